"""How far runs are, how fast, and how long they still take."""

import tracemalloc
from pathlib import Path

import pytest

from reproduce.plan.status import Run
from reproduce.run.progress import Board, Progress, board_of, last_row, read_progress
from suite.base.files import CHECKPOINT


def rows(*states: tuple[str, int, float | None]) -> list[Progress]:
    """Runs of 1,000 steps by state, steps done and steps per second."""
    run = Run("Hopper-v4", 1, 1000, Path("nowhere"), "planned")
    return [Progress(run, state, done, env_steps_per_second=speed) for state, done, speed in states]


@pytest.mark.parametrize(
    ("side_by_side", "states", "expected"),
    [
        (2, [("waiting", 0, None), ("running", 10, None)], None),
        (1, [("running", 500, 10.0)], 50.0),
        (2, [("running", 500, 10.0), ("running", 500, 20.0)], 50.0),
        (1, [("running", 500, 10.0), ("waiting", 0, None)], 150.0),
        (2, [("running", 900, 10.0), ("waiting", 0, None), ("waiting", 0, None)], 110.0),
        (2, [("running", 500, 10.0), ("running", 500, 30.0), ("waiting", 0, None)], 200 / 3),
        (1, [("elsewhere", 500, 10.0), ("waiting", 0, None)], 150.0),
        (8, [("running", 900, 10.0), ("waiting", 0, None)], 100.0),
        (1, [("finished", 1000, 5.0), ("failed", 10, 5.0), ("waiting", 0, None)], 200.0),
        (1, [("finished", 1000, None)], 0.0),
        (1, [], 0.0),
    ],
)
def test_the_time_left_of_a_plan_is_shared_by_the_workers(
    side_by_side: int, states: list[tuple[str, int, float | None]], expected: float | None
) -> None:
    """Each waits for a worker; those without a speed are as fast as the others' mean."""
    left = Board(side_by_side, rows(*states)).seconds_left
    assert left == (expected if expected is None else pytest.approx(expected))


def test_progress_is_what_the_files_say_so_far(tmp_path: Path) -> None:
    """Steps, speed once it learns, and the last return: episodes until there are evaluations."""
    row = Progress(Run("Hopper-v4", 1, 1000, tmp_path, "running"), "running")
    for name, text, *expected in (
        ("timing", "env_steps,num_updates,wall_seconds,env_steps_per_second\n", 0, None, None),
        ("timing", "100,0,1.0,100.0\n", 100, None, None),
        ("episodes", "env_steps,episode_return,episode_length\n99,-7.5,3\n", 100, None, -7.5),
        ("timing", "200,50,3.5,40.0\n", 200, 40.0, -7.5),
        ("evaluations", "env_steps,mean_return\n200,12.25\n", 200, 40.0, 12.25),
        ("timing", "300,150,6", 200, 40.0, 12.25),
        ("timing", ".0,50.0\n", 300, 50.0, 12.25),
        ("evaluations", "300,20.5\n400", 300, 50.0, 20.5),
    ):
        with (tmp_path / f"{name}.csv").open("a") as file:
            file.write(text)
        read_progress(row)
        assert [row.env_steps, row.env_steps_per_second, row.last_return] == expected


def test_a_run_that_goes_on_shows_what_it_has_before_it_starts(tmp_path: Path) -> None:
    """One with a checkpoint: others begin at nothing, whatever rows lie there."""
    run = Run("Hopper-v4", 1, 1000, tmp_path, "running")
    columns = "env_steps,num_updates,env_steps_per_second\n"
    (tmp_path / "timing.csv").write_text(f"{columns}600,6,30.0\n")
    assert board_of([run], 1, []).rows[0].env_steps == 0
    (tmp_path / CHECKPOINT).mkdir()
    (row,) = board_of([run], 1, []).rows
    assert (row.state, row.env_steps) == ("waiting", 600)
    (tmp_path / "timing.csv").write_text(f"{columns}700,7,nan\n")
    read_progress(row)
    assert row.env_steps == 600, "a damaged file tells nothing"


def test_seeds_of_one_process_train_side_by_side(tmp_path: Path) -> None:
    """Two processes of three seeds: six runs share the time that is left."""
    runs = tuple(Run("Hopper-v4", seed, 1000, tmp_path) for seed in (1, 2, 3))
    assert board_of(runs, 2, [runs]).side_by_side == 6


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *[(torn, None) for torn in ("", "a,b", "a,b\n", "a,b\n1,2", "a,b\n1,2\n3,4,5\n")],
        ("a,b\n1,2\n3,4\n", {"a": "3", "b": "4"}),
        ("a,b\n1,2\n3,4", {"a": "1", "b": "2"}),
        pytest.param("a,b\n" + "1,2\n" * 50_000 + "3,4\n", {"a": "3", "b": "4"}, id="many lines"),
        pytest.param("a,b\n1," + "2" * 9999 + "\n", {"a": "1", "b": "2" * 9999}, id="long line"),
        pytest.param("\0" * 2**24, None, id="no end of a first line"),
    ],
)
def test_the_last_row_is_the_last_whole_line(
    content: str, expected: dict[str, str] | None, tmp_path: Path
) -> None:
    """Torn headers and torn lines are not read, however long file and lines are, nor kept."""
    path = tmp_path / "table.csv"
    assert last_row(path) is None
    path.write_text(content)
    tracemalloc.start()
    try:
        assert last_row(path) == expected
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
