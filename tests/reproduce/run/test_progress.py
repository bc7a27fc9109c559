"""How far runs are, how fast, and how long they still take, under a clock that is moved by hand."""

import csv
import io
import lzma
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from reproduce import ROOT
from reproduce.plan import speeds
from reproduce.plan.make import make_plan
from reproduce.plan.status import Run
from reproduce.run.progress import (
    OVER,
    WINDOW_SECONDS,
    Board,
    Mark,
    Progress,
    board_of,
    read_progress,
    start_progress,
)
from suite.base.files import CHECKPOINT

PUBLISHED = ROOT / "results" / "published"
START_SECONDS = 4.0
"""From a simulated run's command to its first step."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock's only entry, to be moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def rows(*states: tuple[str, int, float | None]) -> list[Progress]:
    """Runs of 1,000 steps by state, steps done and steps per second so far."""
    run = Run("Hopper-v4", 1, 1000, Path("nowhere"), "planned")
    made = []
    for state, done, speed in states:
        marks = [Mark(1.0, 0), Mark(1.0 + done / speed, done)] if speed else []
        made.append(Progress(run, state, done, marks=marks))
    return made


def test_the_time_left_of_a_run_is_its_steps_over_its_speed() -> None:
    """600 steps at 20 per second are 30 seconds; before it learns nobody knows."""
    (row,) = rows(("running", 400, 20.0))
    slowdown = row.slowdown()
    assert slowdown is not None
    assert row.estimate(slowdown).seconds_left == 30.0
    (row,) = rows(("running", 400, None))
    assert row.slowdown() is None


@pytest.mark.parametrize(
    ("side_by_side", "states", "expected"),
    [
        (2, [("waiting", 0, None), ("running", 10, None)], None),
        (1, [("running", 500, 10.0)], 50.0),
        (2, [("running", 500, 10.0), ("running", 500, 20.0)], 50.0),
        (1, [("running", 500, 10.0), ("waiting", 0, None)], 150.0),
        (2, [("running", 900, 10.0), ("waiting", 0, None), ("waiting", 0, None)], 110.0),
        (1, [("running", 800, 10.0), ("running", 900, 10.0), ("waiting", 0, None)], 120.0),
        (1, [("elsewhere", 500, 10.0), ("waiting", 0, None)], 100.0),
        (8, [("running", 900, 10.0), ("waiting", 0, None)], 100.0),
        (1, [("finished", 1000, 5.0), ("failed", 10, 5.0), ("waiting", 0, None)], 200.0),
        (1, [("finished", 1000, 5.0), ("diverged", 10, 5.0)], 0.0),
        (1, [("finished", 1000, None)], 0.0),
        (1, [], 0.0),
    ],
)
def test_the_time_left_of_a_plan_is_shared_by_the_workers(
    side_by_side: int, states: list[tuple[str, int, float | None]], expected: float | None
) -> None:
    """Those that wait begin where one ends first, at the measured speeds."""
    left = Board(side_by_side, rows(*states)).seconds_left
    assert left == (expected if expected is None else pytest.approx(expected))


def test_the_first_updates_correct_the_expected_time() -> None:
    """A run that is half as fast as expected says so of those that wait, too."""
    made = rows(("waiting", 0, None), ("waiting", 0, None))
    assert Board(1, made).seconds_left is None
    for row in made:
        row.pace = lambda env_steps: env_steps / 20
    assert Board(1, made).seconds_left == pytest.approx(100.0)
    (begun,) = rows(("running", 250, 10.0))
    begun.pace = made[0].pace
    assert Board(1, [begun, made[1]]).seconds_left == pytest.approx(75.0 + 100.0)


def test_start_up_warm_up_and_evaluations_are_in_the_time_left(clock: list[float]) -> None:
    """10 s of start, 100 quick steps, then slow ones with an evaluation of 20 s at the end."""

    def pace(env_steps: int) -> float:
        learning = max(env_steps - 100, 0) * 0.1
        return 10.0 + min(env_steps, 100) * 0.01 + learning + 20.0 * (env_steps == 1000)

    (row,) = rows(("waiting", 0, None))
    row.pace, row.log_interval = pace, 100
    board = Board(1, [row])
    assert board.seconds_left == pytest.approx(121.0)
    row.turn("running")
    clock[0] += 5.0  # it starts, and shows no steps meanwhile
    assert board.estimates()[0][:2] == (0, True)
    assert board.seconds_left == pytest.approx(116.0)
    clock[0] += 6.0
    row.hear(Mark(1.0, 100), learns=False)
    assert board.seconds_left == pytest.approx(110.0)
    for number in range(1, 4):  # twice as slow as expected
        clock[0] += 20.0
        row.hear(Mark(1.0 + 20.0 * number, 100 + 100 * number), learns=True)
    assert board.seconds_left == pytest.approx(2 * (60.0 + 20.0))


def test_what_is_made_ready_before_the_first_row_is_not_expected_again(
    clock: list[float],
) -> None:
    """A first row after 50 s, not 10, says little of the next ones; without others, it must."""
    first, second = rows(("running", 0, None), ("waiting", 0, None))
    for row in (first, second):
        row.pace, row.log_interval = lambda env_steps: 0.1 * env_steps, 100
    board = Board(2, [first, second])
    for number, seconds in enumerate((50.0, 60.0, 70.0), start=1):
        first.hear(Mark(seconds, 100 * number), learns=True)
    assert board.seconds_left == pytest.approx(100.0)
    second.turn("running")
    second.hear(Mark(50.0, 100), learns=True)
    assert board.seconds_left == pytest.approx(90.0)
    first.marks = []
    assert board.seconds_left == pytest.approx(5 * 90.0)


def test_those_that_wait_start_as_long_as_the_others_did(clock: list[float]) -> None:
    """30 s instead of the expected 10, on a machine that reads its libraries slowly."""
    first, second = rows(("waiting", 0, None), ("waiting", 0, None))
    for row in (first, second):
        row.pace, row.log_interval = lambda env_steps: 10.0 + 0.1 * env_steps, 100
    board = Board(1, [first, second])
    assert board.seconds_left == pytest.approx(110.0 + 110.0)
    first.turn("running")
    clock[0] += 40.0
    first.hear(Mark(10.0, 100), learns=True)
    assert first.start_seconds == pytest.approx(30.0)
    assert board.seconds_left == pytest.approx(90.0 + 30.0 + 100.0)
    clock[0] += 10.0
    first.hear(Mark(20.0, 200), learns=True)  # later rows say nothing of its start
    assert first.start_seconds == pytest.approx(30.0)


def test_steps_between_two_rows_are_estimated_and_never_pass_the_next(clock: list[float]) -> None:
    """The row moves every five seconds, however late the next one is, and says less than it."""
    (row,) = rows(("running", 5000, 50.0))
    row.run = Run("Hopper-v4", 1, 100_000, Path("nowhere"), "planned")
    row.log_interval = 1000
    assert row.estimate(row.slowdown()) == (5000, True, pytest.approx(1900.0))
    shown = []
    for _ in range(40):
        clock[0] += 5.0
        where = row.estimate(row.slowdown())
        shown.append((where.env_steps, where.seconds_left, row.env_steps_per_second))
        assert 5000 < where.env_steps < 6000
        assert not where.is_known
    assert shown[0][0] == 5250
    assert len(set(shown)) == len(shown)
    assert shown[-1][1] > 2 * 1900  # no row for 200 s: it is not as fast as it was
    row.turn("finished")
    assert row.estimate(None) == (100_000, True, None)


def test_a_run_that_goes_on_shows_what_it_has_before_it_starts(tmp_path: Path) -> None:
    """One with a checkpoint: others begin at nothing, whatever rows lie there."""
    run = Run("Hopper-v4", 1, 1000, tmp_path, "running")
    (tmp_path / "timing.csv").write_text("env_steps,num_updates,wall_seconds\n600,6,30.0\n")
    assert start_progress(run).env_steps == 0
    (tmp_path / CHECKPOINT).mkdir()
    row = start_progress(run)
    assert (row.state, row.env_steps) == ("waiting", 600)
    assert Board(1, [row]).seconds_left == pytest.approx(20.0)  # as fast as it was
    (tmp_path / "timing.csv").write_text("env_steps,num_updates,wall_seconds\n700,7,nan\n")
    read_progress(row)
    assert row.env_steps == 600, "a damaged file tells nothing"


def published_rows(folder: Path) -> list[tuple[Mark, bool]]:
    """Return the marks of a published run, and whether it learned."""
    path = folder / "timing.csv"
    packed = folder / "timing.csv.xz"
    text = path.read_text() if path.exists() else lzma.decompress(packed.read_bytes()).decode()
    return [
        (Mark(float(row["wall_seconds"]), int(row["env_steps"])), float(row["num_updates"]) > 0)
        for row in csv.DictReader(io.StringIO(text))
    ]


def steady(pace: Callable[[int], float], last: int, step: int) -> list[tuple[Mark, bool]]:
    """Return the marks of a run that keeps a pace, half as fast as expected."""
    steps = range(step, last + 1, step)
    return [(Mark(2 * (pace(n) - pace(0)), n), n > 10_000) for n in steps]


def announced(
    board: Board,
    records: list[list[tuple[Mark, bool]]],
    clock: list[float],
    slower: Callable[[float], float],
) -> Iterator[tuple[float, float | None]]:
    """Play runs side by side; yield second and time left every five seconds, and the end."""
    second, ages, clocks, read = 0.0, {}, {}, {}
    while any(row.state not in OVER for row in board.rows):
        for i, row in enumerate(board.rows):
            if row.state == "waiting" and board.count("running") < board.side_by_side:
                row.turn("running")
                ages[i], clocks[i], read[i] = -START_SECONDS, -START_SECONDS, 0
        if second % 5 == 0:
            yield second, board.seconds_left
        second, clock[0] = second + 0.5, clock[0] + 0.5
        for i, row in enumerate(board.rows):
            if row.state != "running":
                continue
            ages[i] += 0.5 / slower(second)
            clocks[i] += 0.5
            while read[i] < len(records[i]) and records[i][read[i]][0].seconds <= ages[i]:
                mark, learns = records[i][read[i]]
                row.hear(Mark(clocks[i], mark.env_steps), learns=learns)
                read[i] += 1
            if read[i] == len(records[i]):
                row.turn("finished")
    yield second, 0.0


def errors(said: Iterator[tuple[float, float | None]], since: float) -> np.ndarray:
    """Return relative errors of the announced times after a second; the last ten seconds apart."""
    every = [(at, math.nan if left is None else left) for at, left in said]
    end = every[-1][0]
    return np.array([abs(left / (end - at) - 1) for at, left in every if since <= at < end - 10])


@pytest.fixture
def as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is as fast as the one whose speeds are stored."""
    monkeypatch.setattr(speeds, "relative_speed", lambda speed: 1.0)


def smoke_board() -> Board:
    """The board of SAC's smoke grid, two runs side by side."""
    tasks = ["Reacher-v4", "InvertedPendulum-v4"]
    options = {"tasks": tasks, "budget": "smoke", "device": "cpu", "workers": 2}
    plan = make_plan("sac", "mujoco-small", runs_dir=Path("nowhere"), published=False, **options)
    return board_of(plan, plan.runs(), 2)


@pytest.mark.usefixtures("as_measured")
def test_the_time_left_of_the_smoke_grid_is_true_within_30_per_cent(clock: list[float]) -> None:
    """On a machine that is evenly busy, at any time after the first minute: 1.4 % was measured.

    Where it becomes three times as slow, from when all rows of the last minutes are of that time.
    """
    row_seconds = 45.0
    for changes_at, since in ((np.inf, 60.0), (200.0, 200.0 + WINDOW_SECONDS + row_seconds)):
        board = smoke_board()
        records = [steady(row.expected, row.run.env_steps, 1000) for row in board.rows]
        slower = lambda second, at=changes_at: 1.0 if second < at else 3.0  # noqa: E731
        found = errors(announced(board, records, clock, slower), since)
        assert found.max() < 0.3


@pytest.mark.usefixtures("as_measured")
def test_the_time_left_of_recorded_runs_is_mostly_near(clock: list[float]) -> None:
    """The published smoke grid, on a machine whose other work came and went.

    Its own speed changed by a factor of two meanwhile, which nobody can know before.
    """
    board = smoke_board()
    folder = PUBLISHED / "sac-mujoco-small" / "paper"
    records = [published_rows(folder / row.run.task / f"seed-{row.run.seed}") for row in board.rows]
    found = errors(announced(board, records, clock, lambda second: 1.0), 60.0)
    assert np.median(found) < 0.2
    assert (found < 0.3).mean() > 0.7
