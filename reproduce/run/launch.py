"""Run a plan: on this machine, or on a Ray cluster."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from reproduce.plan.grid import Plan
from reproduce.run.pool import Pool
from reproduce.run.progress import Board


def launch(plan: Plan, watch: Callable[[Board], None]) -> Board:
    """Run every group of `plan` that is not finished; return how each run ended.

    A group that fails is recorded as failed, with its log's last lines; the others continue. Runs
    leased elsewhere are waited for and counted. `watch` is called about twice a second, and once at
    the end, with the state of every run. On Ctrl-C (or SIGTERM, SIGHUP) every process is stopped
    before the KeyboardInterrupt leaves. `docs/robust.md` has the rest.
    """
    if plan.cluster:
        from reproduce.run.ray.pool import RayPool

        pool = RayPool(plan)
    else:
        pool = Pool(plan)
    with _signals_interrupt():
        pool.run(watch)
    watch(pool.board)
    return pool.board


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the launcher as Ctrl-C does: no process is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores, and stays so
                before[number] = signal.signal(number, interrupt)  # Ray's exits at once
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
