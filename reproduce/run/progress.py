"""The progress of runs, read from their own files, for the launcher and its view.

A run writes rows now and then. Between two of them its steps are estimated, never beyond the next
row. How fast it is, and how long the rest takes, follows from its last minutes: they tell by how
much it is slower or faster than expected, of start-up, warm-up, learning and evaluations alike.
"""

import contextlib
import heapq
import itertools
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


BEGINNING = Mark(0.0, 0)
"""Until a run's first row something may be made ready that is not again."""


class Estimate(NamedTuple):
    """Where a run is by now."""

    env_steps: int
    is_known: bool
    """Whether a row, or its end, says so; otherwise it lies between the last row and the next."""
    seconds_left: float | None
    """None: nothing tells, or it has ended."""


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
    log_interval: int | None = None
    """Environment steps between two rows; None: unknown."""
    marks: list[Mark] = field(default_factory=list)
    """Its last rows, oldest first, of `WINDOW_SECONDS`; one alone where it does not learn yet."""
    heard: float = field(default_factory=lambda: time.monotonic())
    """When its last row appeared, or its state changed."""
    start_seconds: float | None = None
    """From its command until it began to count seconds; None until a row tells."""

    def turn(self, state: str) -> None:
        """Change its state."""
        if state != self.state:
            self.state, self.heard = state, time.monotonic()

    def hear(self, mark: Mark, *, learns: bool) -> None:
        """Take in one row of the run's file."""
        if self.marks and self.marks[-1] == mark:
            return
        if not self.marks and self.state == "running":
            self.start_seconds = max(self._silence - mark.seconds, 0.0)
        self.env_steps, self.heard = mark.env_steps, time.monotonic()
        if not learns or (self.marks and mark < self.marks[-1]):
            self.marks = [mark]
            return
        self.marks = [*(self.marks or [BEGINNING]), mark]
        while len(self.marks) > 2 and (
            self.marks[0] == BEGINNING or self.marks[1].seconds < mark.seconds - WINDOW_SECONDS
        ):
            self.marks.pop(0)

    @property
    def env_steps_per_second(self) -> float | None:
        """Return its speed in the last minutes, evaluations included; None before it learns."""
        if len(self.marks) < 2:
            return None
        first, last = self.marks[0], self.marks[-1]
        silence = self._silence
        steps, seconds = last.env_steps - first.env_steps, last.seconds - first.seconds
        late = steps + self._next_row - last.env_steps
        return min(steps / max(seconds, 1e-9), late / max(seconds + silence, 1e-9))

    @property
    def seconds(self) -> float:
        """Return the seconds since it began."""
        return (self.marks[-1].seconds if self.marks else 0.0) + self._silence

    def slowdown(self, *, at_first: bool = False) -> float | None:
        """Return its measured seconds over the expected ones; None before it learns.

        A row that is overdue counts as if it appeared now. Without a pace, a step was expected to
        take a second.

        Args:
            at_first: whether a first row counts, before which something may be made ready.
        """
        if len(self.marks) < 2 or (self.marks[0] == BEGINNING and not at_first):
            return None
        first, last = self.marks[0], self.marks[-1]
        seconds = last.seconds - first.seconds
        expected = max(self.expected(last.env_steps) - self.expected(first.env_steps), 1e-9)
        return max(seconds / expected, (seconds + self._silence) / (expected + self._due))

    def estimate(self, slowdown: float | None, start_seconds: float | None = None) -> Estimate:
        """Return where it is by now, and how long it still takes.

        Args:
            slowdown: seconds over expected ones; None: unknown.
            start_seconds: how long the others took to start; None: unknown.
        """
        if self.state in OVER:
            steps = self.run.env_steps if self.state == "finished" else self.env_steps
            return Estimate(steps, True, None)
        if slowdown is None:
            return Estimate(self.env_steps, True, None)
        start = slowdown * self.expected(0) if start_seconds is None else start_seconds
        left = slowdown * (self.expected(self.run.env_steps) - self.expected(self.env_steps))
        if self.state not in AT_WORK:
            return Estimate(self.env_steps, True, start + left)
        silence, due = self._silence, slowdown * self._due
        start = 0.0 if self.marks else start
        seconds = max(start + left - min(silence, start + due), 0.0)
        if not (self.marks or self.pace):  # nobody knows how long it starts
            return Estimate(0, True, seconds)
        passed = max(silence - start, 0.0) / max(due, 1e-9)
        share = passed if passed <= 0.8 else 1 - 0.04 / (passed - 0.6)  # as steep there, below 1
        steps = self.env_steps + int(share * (self._next_row - self.env_steps))
        return Estimate(steps, steps == self.env_steps, seconds)

    def expected(self, env_steps: int) -> float:
        """Return the expected seconds from its command until so many steps are made."""
        return self.pace(env_steps) if self.pace else float(env_steps)

    @property
    def _next_row(self) -> int:
        """Return the steps that its next row states, at most."""
        if self.log_interval is None:
            return self.run.env_steps
        row = (self.env_steps // self.log_interval + 1) * self.log_interval
        return max(min(row, self.run.env_steps), self.env_steps)

    @property
    def _due(self) -> float:
        """Return the expected seconds between its last row and the next."""
        return self.expected(self._next_row) - self.expected(self.env_steps)

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

    def estimates(self) -> list[Estimate]:
        """Return where every run is by now, in the order of the rows.

        A run without a speed of its own is as much slower or faster than expected as the others;
        where nothing was expected, as fast as the others. It starts as long as they did.
        """
        usual = {has_pace: self._usual(has_pace) for has_pace in (True, False)}
        starts = [row.start_seconds for row in self.rows if row.start_seconds is not None]
        start = sum(starts) / len(starts) if starts else None
        found = []
        for row in self.rows:
            own = row.slowdown() if row.state in AT_WORK else None
            slowdown = usual[row.pace is not None] if own is None else own
            found.append(row.estimate(slowdown, start))
        return found

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds left for the whole plan; None until a speed is known.

        Those that wait begin in their order, each where a run ends first.
        """
        estimates = self.estimates()
        pairs = list(zip(self.rows, estimates, strict=True))
        if any(row.state not in OVER and left.seconds_left is None for row, left in pairs):
            return None
        lefts = {
            state: [left.seconds_left or 0.0 for row, left in pairs if row.state == state]
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
        for at_first, states in itertools.product((False, True), (AT_WORK, OVER)):
            slowdowns = [row.slowdown(at_first=at_first) for row in alike if row.state in states]
            known = [slowdown for slowdown in slowdowns if slowdown is not None]
            if known:
                return sum(known) / len(known)
        if has_pace:
            return 1.0
        speeds = [speed for row in self.rows if (speed := row.env_steps_per_second)]
        return len(speeds) / sum(speeds) if speeds else None


def board_of(plan: Plan, runs: Sequence[Run], side_by_side: int) -> Board:
    """Return the board of a plan before its launch.

    Args:
        plan: what is run.
        runs: what `plan.runs()` returned.
        side_by_side: runs that train at the same time.
    """
    paces = {task: plan.pace(task) for task in plan.tasks}
    rows = [start_progress(run, paces[run.task], plan.config.log_interval) for run in runs]
    return Board(side_by_side, rows)


def start_progress(run: Run, pace: Pace | None = None, log_interval: int | None = None) -> Progress:
    """Return a run's progress before the launch: what its files say, if it goes on or has ended.

    Args:
        run: the run.
        pace: how it should go on; None: unknown.
        log_interval: environment steps between two of its rows; None: unknown.
    """
    state = run.status if run.has_ended else "waiting"
    steps = run.env_steps if state == "finished" else 0
    row = Progress(run, state, steps, pace=pace, log_interval=log_interval)
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
