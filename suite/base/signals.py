"""Signals that ask a process to stop."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a training to stop."""


@contextmanager
def handled(
    handle: Callable[[int, FrameType | None], object] | signal.Handlers,
    numbers: Sequence[signal.Signals] = STOPS,
) -> Iterator[None]:
    """Let a function handle signals, or ignore them, and restore their handlers afterwards.

    Signals that are ignored, as by `nohup`, stay so; outside the main thread nothing changes.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
