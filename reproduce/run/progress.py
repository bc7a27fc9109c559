"""The progress of runs, read from their own files, for the launcher and its view."""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reproduce.plan.grid import Group, Run
from reproduce.plan.speeds import side_by_side
from reproduce.run.log import LAST_BYTES, tail
from suite.base.files import CHECKPOINT, open_regular

OVER = ("finished", "diverged", "failed", "left out")
"""Final states of a run; only a grid that is watched holds runs that are left out."""


@dataclass
class Progress:
    """The progress of one run, read from its own files."""

    run: Run
    state: str
    """`waiting`, `running`, `elsewhere`, or one of `OVER`."""
    env_steps: int = 0
    """Steps that its last row states."""
    last_return: float | None = None
    error: str = ""
    env_steps_per_second: float | None = None
    """In the last log interval, evaluations included; None before it learns."""


@dataclass
class Board:
    """The state of every run of a plan, for the live view."""

    side_by_side: int
    """Runs that train at the same time: processes, times the seeds of each."""
    rows: list[Progress]
    started: float = field(default_factory=lambda: time.monotonic())
    notes: list[str] = field(default_factory=list)
    """Events other than the ends of runs; the list only grows."""

    def seconds_left_of(self, row: Progress) -> float | None:
        """Return how long a run still takes; one without a speed takes the mean of the others'."""
        return _seconds_left(row, self._usual_speed())

    def _usual_speed(self) -> float | None:
        known = [speed for row in self.rows if (speed := row.env_steps_per_second)]
        return sum(known) / len(known) if known else None

    @property
    def seconds_left(self) -> float | None:
        """Return about how long the whole plan still takes; None until a speed is known."""
        usual = self._usual_speed()
        return side_by_side([_seconds_left(row, usual) for row in self.rows], self.side_by_side)

    def count(self, state: str) -> int:
        """Return how many runs are in `state`."""
        return sum(row.state == state for row in self.rows)


def _seconds_left(row: Progress, usual: float | None) -> float | None:
    if row.state in OVER:
        return 0.0
    speed = row.env_steps_per_second or usual
    return speed and (row.run.env_steps - row.env_steps) / speed


def board_of(runs: Sequence[Run], workers: int, groups: Sequence[Group]) -> Board:
    """Return the board of a plan's runs before the launch: what their files say.

    `workers` processes train the `groups` that wait.
    """
    rows = []
    for run in runs:
        is_over = run.has_ended or run.status == "left out"
        state, error = (run.status, run.error or run.remark) if is_over else ("waiting", "")
        row = Progress(run, state, run.env_steps if state == "finished" else 0, error=error)
        rows.append(row)
        if not is_over and (run.directory / CHECKPOINT).exists():
            read_progress(row)
    return Board(workers * max(map(len, groups), default=1), rows)


def read_progress(row: Progress) -> None:
    """Update `row` from the last whole lines of the run's files."""
    timing, evaluation, episode = (
        last_row(row.run.directory / f"{name}.csv")
        for name in ("timing", "evaluations", "episodes")
    )
    with contextlib.suppress(KeyError, ValueError, OverflowError):  # damaged files tell nothing
        if timing and math.isfinite(speed := float(timing["env_steps_per_second"])):
            row.env_steps = int(float(timing["env_steps"]))
            row.env_steps_per_second = speed if float(timing["num_updates"]) > 0 else None
        if evaluation:
            row.last_return = float(evaluation["mean_return"])
        elif episode:
            row.last_return = float(episode["episode_return"])


def last_row(path: Path) -> dict[str, str] | None:
    """Return the last whole line of a CSV file by column; None if there is none yet.

    `LAST_BYTES` hold the last row of any table, even of an evaluation of thousands of episodes.
    """
    try:
        with open_regular(path) as file:
            header = file.readline(LAST_BYTES).decode().strip().split(",")
            lines = tail(file).decode(errors="replace").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    if not lines or len(cells := lines[-1].split(",")) != len(header):
        return None
    return dict(zip(header, cells, strict=True))
