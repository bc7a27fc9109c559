"""What a run's time is spent on, and the rows of `timing.csv`."""

import math
import time
from collections.abc import Mapping
from typing import Any

SECTIONS = ("environment", "acting", "learning", "evaluation")
TIMING_COLUMNS = (
    "env_steps",
    "num_updates",
    "wall_seconds",
    "env_steps_per_second",
    *(f"{section}_share" for section in SECTIONS),
)
"""Followed by `<section>_share` for every section that an agent adds to the clock."""


class Stopwatch:
    """Splits wall time into sections: each lap is charged to the section that just ended.

    An agent may add sections to `seconds` before it starts, and another thread's seconds to them.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = dict.fromkeys(SECTIONS, 0.0)

    def start(self) -> None:
        """Start again; no section is charged for the time since the last lap."""
        self._last = time.perf_counter()

    def lap(self, section: str) -> None:
        """Charge the time since the previous lap to `section` (a key of `seconds`)."""
        now = time.perf_counter()
        self.seconds[section] += now - self._last
        self._last = now


class Clock(Stopwatch):
    """A stopwatch that knows when the run began, and the interval of its next row."""

    def __init__(self) -> None:
        super().__init__()
        self._started = self._interval_start = self._last
        self.env_steps = 0
        """Those of the last row."""
        self._seconds_before = dict(self.seconds)

    @property
    def wall_seconds(self) -> float:
        """Return the time since the run began, without the gaps before it went on."""
        return time.perf_counter() - self._started

    def row(self, env_steps: int, num_updates: int) -> dict[str, int | float]:
        """End an interval; return its row of `timing.csv`."""
        now = time.perf_counter()
        elapsed = max(now - self._interval_start, 1e-9)
        before = self._seconds_before
        shares = [(spent - before.get(name, 0.0)) / elapsed for name, spent in self.seconds.items()]
        speed = (env_steps - self.env_steps) / elapsed
        cells = (env_steps, num_updates, now - self._started, speed, *shares)
        added = (f"{name}_share" for name in list(self.seconds)[len(SECTIONS) :])
        rounded = [cell if isinstance(cell, int) else round(cell, 4) for cell in cells]
        self._interval_start, self.env_steps = now, env_steps
        self._seconds_before = dict(self.seconds)
        self.start()  # time not yet charged lies in the interval that ends here
        return dict(zip((*TIMING_COLUMNS, *added), rounded, strict=True))

    def state(self) -> dict[str, Any]:
        """Return what `restore` restores, as JSON."""
        now = time.perf_counter()
        return {
            "wall_seconds": now - self._started,
            "interval_seconds": now - self._interval_start,
            "interval_env_steps": self.env_steps,
            "seconds_before": self._seconds_before,
            "seconds": dict(self.seconds),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's clock; the time since it does not count."""
        seconds, before = state["seconds"], state["seconds_before"]
        if seconds.keys() != self.seconds.keys():
            raise ValueError(f"a clock of {', '.join(seconds)}")
        names = ("wall_seconds", "interval_seconds", "interval_env_steps")
        wall_seconds, interval_seconds, env_steps = times = [state[name] for name in names]
        if not all(map(math.isfinite, (*times, *seconds.values(), *before.values()))):
            raise ValueError("a clock that shows no time")
        now = time.perf_counter()
        self._started, self._interval_start = now - wall_seconds, now - interval_seconds
        self.env_steps = env_steps
        self._seconds_before, self.seconds = dict(before), dict(seconds)
