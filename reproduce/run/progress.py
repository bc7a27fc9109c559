"""The progress of runs, read from their own files, for the launcher and its view.

How long the rest takes follows from a run's last minutes: they tell by how much it is slower or
faster than expected, of start-up, warm-up, learning and evaluations alike.
"""

import contextlib
import heapq
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reproduce.plan.grid import Plan, Run
from reproduce.plan.speeds import Pace
from reproduce.run.log import LAST_BYTES
from suite.base.files import CHECKPOINT, open_regular

OVER = ("finished", "diverged", "failed")
"""Final states of a run: in the end, planned = finished + diverged + failed."""
AT_WORK = ("running", "elsewhere")
WINDOW_SECONDS = 120.0
"""How much of a run's last rows says how fast it is."""


class Mark(NamedTuple):
    """How far a run was at some time."""

    seconds: float
    """Since it began."""
    env_steps: int


@dataclass
class Progress:
    """The progress of one run, read from its own files."""

    run: Run
    state: str
    """`waiting`, `running`, `elsewhere`, `finished`, `diverged` or `failed`."""
    env_steps: int = 0
    """Steps that its last row states."""
    last_return: float | None = None
    error: str = ""
    pace: Pace | None = None
    """How it was expected to go on before it began; None: unknown."""
    marks: list[Mark] = field(default_factory=list)
    """Its last rows, oldest first, of `WINDOW_SECONDS`; one alone where it does not learn yet."""
    heard: float = field(default_factory=lambda: time.monotonic())
    """When its last row appeared, or its state changed."""

    def turn(self, state: str) -> None:
        """Change its state."""
        if state != self.state:
            self.state, self.heard = state, time.monotonic()

    def hear(self, mark: Mark, *, learns: bool) -> None:
        """Take in one row of the run's file."""
        if self.marks and self.marks[-1] == mark:
            return
        self.env_steps, self.heard = mark.env_steps, time.monotonic()
        goes_on = learns and not (self.marks and mark < self.marks[-1])
        self.marks = [*self.marks, mark] if goes_on else [mark]
        while len(self.marks) > 2 and self.marks[1].seconds < mark.seconds - WINDOW_SECONDS:
            self.marks.pop(0)

    @property
    def env_steps_per_second(self) -> float | None:
        """Return its speed in the last minutes, evaluations included; None before it learns."""
        if len(self.marks) < 2:
            return None
        first, last = self.marks[0], self.marks[-1]
        return (last.env_steps - first.env_steps) / max(last.seconds - first.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        """Return the seconds since it began."""
        return (self.marks[-1].seconds if self.marks else 0.0) + self._silence

    @property
    def slowdown(self) -> float | None:
        """Return its measured seconds over the expected ones; None before it learns.

        Without a pace, a step was expected to take a second.
        """
        if len(self.marks) < 2:
            return None
        first, last = self.marks[0], self.marks[-1]
        expected = self.expected(last.env_steps) - self.expected(first.env_steps)
        return (last.seconds - first.seconds) / max(expected, 1e-9)

    def seconds_left(self, slowdown: float | None) -> float | None:
        """Return how long it still takes; None: nothing tells, or it has ended."""
        if self.state in OVER or slowdown is None:
            return None
        done = self.expected(self.env_steps) if self.marks else 0.0
        left = slowdown * (self.expected(self.run.env_steps) - done)
        return max(left - self._silence, 0.0)

    def expected(self, env_steps: int) -> float:
        """Return the expected seconds from its command until so many steps are made."""
        return self.pace(env_steps) if self.pace else float(env_steps)

    @property
    def _silence(self) -> float:
        """Return the seconds since its last row, or since it began."""
        return time.monotonic() - self.heard if self.state in AT_WORK else 0.0


@dataclass
class Board:
    """The state of every run of a plan, for the live view."""

    side_by_side: int
    """Runs that train at the same time: processes, times the seeds of each."""
    rows: list[Progress]
    started: float = field(default_factory=lambda: time.monotonic())
    notes: list[str] = field(default_factory=list)
    """Events other than the ends of runs; the list only grows."""
    is_idle: bool = False
    """Whether nobody runs it, as far as one who watches it knows: then no time passes for it."""

    def lefts(self) -> list[float | None]:
        """Return the seconds left of every run, in the order of the rows; None: unknown, or over.

        A run without a speed of its own is as much slower or faster than expected as the others;
        where nothing was expected, as fast as the others.
        """
        usual = {has_pace: self._usual(has_pace) for has_pace in (True, False)}
        found = []
        for row in self.rows:
            own = row.slowdown if row.state in AT_WORK else None
            slowdown = usual[row.pace is not None] if own is None else own
            found.append(row.seconds_left(slowdown))
        return found

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds left for the whole plan; None until a speed is known.

        Those that wait begin in their order, each where a run ends first.
        """
        pairs = list(zip(self.rows, self.lefts(), strict=True))
        if any(row.state not in OVER and left is None for row, left in pairs):
            return None
        lefts = {
            state: [left or 0.0 for row, left in pairs if row.state == state]
            for state in ("running", "elsewhere", "waiting")
        }
        places = sorted(lefts["running"])
        latest = max([*places, *lefts["elsewhere"]], default=0.0)
        free = max(self.side_by_side - len(places), 0)
        places = [0.0] * free + places[max(len(places) - self.side_by_side, 0) :]
        heapq.heapify(places)
        for seconds in lefts["waiting"]:
            end = heapq.heappop(places) + seconds
            heapq.heappush(places, end)
            latest = max(latest, end)
        return latest

    def count(self, state: str) -> int:
        """Return how many runs are in `state`."""
        return sum(row.state == state for row in self.rows)

    def _usual(self, has_pace: bool) -> float | None:
        """Return the slowdown of the runs at work with, or without, a pace; else of ended ones.

        Where none tells: with a pace 1, without one the seconds per step of all others.
        """
        alike = [row for row in self.rows if (row.pace is not None) == has_pace]
        for states in (AT_WORK, OVER):
            known = [row.slowdown for row in alike if row.state in states and row.slowdown]
            if known:
                return sum(known) / len(known)
        if has_pace:
            return 1.0
        speeds = [speed for row in self.rows if (speed := row.env_steps_per_second)]
        return len(speeds) / sum(speeds) if speeds else None


def board_of(plan: Plan, runs: Sequence[Run], side_by_side: int) -> Board:
    """Return the board of a plan before its launch."""
    paces = {task: plan.pace(task) for task in plan.tasks}
    return Board(side_by_side, [start_progress(run, paces[run.task]) for run in runs])


def start_progress(run: Run, pace: Pace | None = None) -> Progress:
    """Return a run's progress before the launch: what its files say, if it goes on or has ended."""
    state = run.status if run.has_ended else "waiting"
    steps = run.env_steps if state == "finished" else 0
    row = Progress(run, state, steps, pace=pace)
    if not run.has_ended and (run.directory / CHECKPOINT).exists():
        read_progress(row)
    return row


def read_progress(row: Progress) -> None:
    """Update `row` from the last whole lines of the run's files."""
    timing = last_row(row.run.directory / "timing.csv")
    evaluation = last_row(row.run.directory / "evaluations.csv")
    episode = last_row(row.run.directory / "episodes.csv")
    with contextlib.suppress(KeyError, ValueError, OverflowError):  # damaged files tell nothing
        if timing:
            mark = Mark(float(timing["wall_seconds"]), int(float(timing["env_steps"])))
            if math.isfinite(mark.seconds):
                row.hear(mark, learns=float(timing["num_updates"]) > 0)
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
