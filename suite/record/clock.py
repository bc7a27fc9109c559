"""What a run's time is spent on, and the rows of `timing.csv`."""

import math
import time

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
        self._started = self._last
        self._begin_interval(0)

    @property
    def wall_seconds(self) -> float:
        """Return the time since the run began, without the gaps before it went on."""
        return time.perf_counter() - self._started

    def row(self, env_steps: int, num_updates: int) -> dict[str, int | float]:
        """End an interval; return its row of `timing.csv`."""
        now = time.perf_counter()
        elapsed = max(now - self._interval_start, 1e-9)
        shares = [spent / elapsed for spent in self.seconds.values()]
        speed = (env_steps - self.env_steps) / elapsed
        cells = (env_steps, num_updates, now - self._started, speed, *shares)
        added = (f"{name}_share" for name in list(self.seconds)[len(SECTIONS) :])
        rounded = [cell if isinstance(cell, int) else round(cell, 4) for cell in cells]
        self._begin_interval(env_steps)
        return dict(zip((*TIMING_COLUMNS, *added), rounded, strict=True))

    def restore(self, wall_seconds: float, env_steps: int) -> None:
        """Go on from a checkpoint, where an interval begins; the time since it does not count."""
        if not math.isfinite(wall_seconds):
            raise ValueError("a clock that shows no time")
        self._begin_interval(env_steps)
        self._started = self._last - wall_seconds

    def _begin_interval(self, env_steps: int) -> None:
        self.start()  # time not yet charged lies in the interval that ends here
        self._interval_start = self._last
        self.env_steps = env_steps
        """Those of the last row."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)
