"""How far runs are, how fast, and how long they still take, under a clock that is moved by hand."""

import time
from pathlib import Path

import pytest

from reproduce.plan.status import Run
from reproduce.run.progress import (
    WINDOW_SECONDS,
    Board,
    Mark,
    Progress,
    read_progress,
    start_progress,
)
from suite.base.files import CHECKPOINT


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


def test_the_time_left_of_a_run_is_its_steps_over_its_speed(clock: list[float]) -> None:
    """600 steps at 20 per second are 30 seconds; before it learns nobody knows."""
    (row,) = rows(("running", 400, 20.0))
    assert row.seconds_left(row.slowdown) == 30.0
    clock[0] += 5.0
    assert row.seconds_left(row.slowdown) == 25.0
    (row,) = rows(("running", 400, None))
    assert row.slowdown is None


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
    row.pace = pace
    board = Board(1, [row])
    assert board.seconds_left == pytest.approx(121.0)
    row.turn("running")
    clock[0] += 5.0  # it starts
    assert board.seconds_left == pytest.approx(116.0)
    clock[0] += 6.0
    row.hear(Mark(1.0, 100), learns=False)
    assert board.seconds_left == pytest.approx(110.0)
    for number in range(1, 4):  # twice as slow as expected
        clock[0] += 20.0
        row.hear(Mark(1.0 + 20.0 * number, 100 + 100 * number), learns=True)
    assert board.seconds_left == pytest.approx(2 * (60.0 + 20.0))


def test_what_is_made_ready_before_the_first_row_is_not_expected_again() -> None:
    """A first row after 50 s, not 10, says little of the next ones."""
    first, second = rows(("running", 0, None), ("waiting", 0, None))
    first.pace = second.pace = lambda env_steps: 0.1 * env_steps
    board = Board(2, [first, second])
    for number, seconds in enumerate((50.0, 60.0, 70.0), start=1):
        first.hear(Mark(seconds, 100 * number), learns=True)
    assert board.seconds_left == pytest.approx(100.0)


def test_a_run_that_goes_on_shows_what_it_has_before_it_starts(tmp_path: Path) -> None:
    """One with a checkpoint: others begin at nothing, whatever rows lie there."""
    run = Run("Hopper-v4", 1, 1000, tmp_path, "running")
    (tmp_path / "timing.csv").write_text("env_steps,num_updates,wall_seconds\n600,6,30.0\n")
    assert start_progress(run).env_steps == 0
    (tmp_path / CHECKPOINT).mkdir()
    row = start_progress(run)
    assert (row.state, row.env_steps) == ("waiting", 600)
    (tmp_path / "timing.csv").write_text("env_steps,num_updates,wall_seconds\n700,7,nan\n")
    read_progress(row)
    assert row.env_steps == 600, "a damaged file tells nothing"


def test_a_machine_that_becomes_slower_is_noticed_within_a_window(clock: list[float]) -> None:
    """Rows older than `WINDOW_SECONDS` tell nothing: ten steps a second, then five."""
    (row,) = rows(("running", 0, None))
    for number in range(1, 101):
        seconds = 2.0 * number + max(number - 50, 0) * 2.0
        row.hear(Mark(seconds, 20 * number), learns=True)
    assert WINDOW_SECONDS < 50 * 4.0
    assert row.env_steps_per_second == pytest.approx(5.0)
