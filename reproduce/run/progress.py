"""The progress of runs, read from their own files, for the launcher and its view."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from reproduce.plan.grid import Run
from reproduce.run.log import LAST_BYTES
from suite.files import open_regular

ENDED = ("finished", "diverged", "failed")
"""Final states of a run: in the end, planned = finished + diverged + failed."""


@dataclass
class Progress:
    """The progress of one run, read from its own files."""

    run: Run
    state: str
    """`waiting`, `running`, `elsewhere`, `finished`, `diverged` or `failed`."""
    env_steps: int = 0
    env_steps_per_second: float | None = None
    """Speed of the latest log interval, once updates have begun; None before."""
    last_return: float | None = None
    error: str = ""
    expected_speed: float | None = None
    """Environment steps per second that were expected before it began; None: unknown."""

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds left; None unless the run is running at a known speed."""
        if self.state != "running" or not self.env_steps_per_second:
            return None
        return (self.run.env_steps - self.env_steps) / self.env_steps_per_second


@dataclass
class Board:
    """The state of every run of a plan, for the live view."""

    side_by_side: int
    """Runs that train at the same time: processes, times the seeds of each."""
    rows: list[Progress]
    started: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    """Events other than the ends of runs, one line each; the list only grows."""

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds left for the whole plan; None until a speed is known.

        Runs without a speed of their own are as much faster or slower than expected as the others;
        where nothing was expected, as fast as the others.
        """
        open_rows = [row for row in self.rows if row.state not in ENDED]
        if not open_rows:
            return 0.0
        measured = [row for row in self.rows if row.env_steps_per_second]
        speeds = [row.env_steps_per_second or 0.0 for row in measured]
        ratios = [
            (row.env_steps_per_second or 0.0) / row.expected_speed
            for row in measured
            if row.expected_speed
        ]
        typical = sum(speeds) / len(speeds) if speeds else None
        ratio = sum(ratios) / len(ratios) if ratios else 1.0
        per_run = []
        for row in open_rows:
            expected = row.expected_speed * ratio if row.expected_speed else typical
            speed = row.env_steps_per_second or expected
            if speed is None:
                return None
            per_run.append((row.run.env_steps - row.env_steps) / speed)
        return max([sum(per_run) / self.side_by_side, *per_run])

    def count(self, state: str) -> int:
        """Return how many runs are in `state`."""
        return sum(row.state == state for row in self.rows)


def start_progress(run: Run, expected_seconds: float | None = None) -> Progress:
    """Return the progress of a run before the launch: none, unless it has ended.

    Args:
        run: the run.
        expected_seconds: how long it should take from beginning to end; None: unknown.
    """
    state = run.status if run.has_ended else "waiting"
    speed = expected_seconds and run.env_steps / expected_seconds
    steps = run.env_steps if state == "finished" else 0
    return Progress(run, state, steps, expected_speed=speed)


def read_progress(row: Progress) -> None:
    """Update `row` from the last whole lines of the run's files."""
    timing = last_row(row.run.directory / "timing.csv")
    evaluation = last_row(row.run.directory / "evaluations.csv")
    episode = last_row(row.run.directory / "episodes.csv")
    with contextlib.suppress(KeyError, ValueError, OverflowError):  # damaged files tell nothing
        if timing:
            row.env_steps = int(float(timing["env_steps"]))
            if float(timing["num_updates"]) > 0:
                row.env_steps_per_second = float(timing["env_steps_per_second"])
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
            start = file.tell()
            file.seek(max(start, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    if not lines or len(cells := lines[-1].split(",")) != len(header):
        return None
    return dict(zip(header, cells, strict=True))
