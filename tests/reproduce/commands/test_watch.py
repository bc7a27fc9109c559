"""A grid that others run: what its files say, and that nothing is written."""

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reproduce.commands import watch as watching
from reproduce.commands.watch import find_grid, watch
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, load_grid
from reproduce.run.lease import Leases
from reproduce.run.progress import Board
from tests.messages import refused
from tests.reproduce.conftest import TASK, Say, pendulum, record_run, reseal, saved
from tests.runs import tree


def grid(tmp_path: Path, *seeds: int) -> Plan:
    """Runs whose plan is saved."""
    return saved(pendulum(tmp_path / "runs", seeds))


def states(board: Board) -> dict[int, str]:
    """The state of every run, by seed."""
    return {row.run.seed: row.state for row in board.rows}


def seen(plan: Plan, *deeds: Callable[[], object]) -> tuple[list[dict[int, str]], Board]:
    """The states at each look, with a deed after each but the last; and the board."""
    shown, left = list[dict[int, str]](), list(deeds)

    def show(board: Board) -> None:
        shown.append(states(board))
        if left:
            left.pop(0)()

    return shown, watch(plan, show)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.0)


def test_a_read_only_grid_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan and its runs are read; making a plan there is refused."""
    plan = grid(tmp_path, 1)
    record_run(plan, TASK, 1, {1000: 5.0})

    def refuse(**options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    shown, _ = seen(load_grid(plan.directory))
    assert [list(states) for states in shown] == [[1]]
    with refused():
        pendulum(tmp_path / "runs", [1])


def test_the_board_follows_leases_and_records(tmp_path: Path) -> None:
    """Held is running, ended is what the record says, all else waits; nothing is written."""
    plan = grid(tmp_path, 1, 2, 3, 4)
    record_run(plan, TASK, 1, {1000: 5.0})
    run = record_run(plan, TASK, 2, {500: -7.0}, status="running")
    leases = Leases(plan.directory)
    assert leases.claim(run)
    before = tree(tmp_path)

    def end() -> None:
        assert tree(tmp_path) == before
        leases.release(run)
        record_run(plan, TASK, 2, {500: -7.0, 1000: -6.0})
        record_run(plan, TASK, 3, status="failed")
        record_run(plan, TASK, 4, status="diverged")

    (first, last), board = seen(load_grid(plan.directory), end)
    assert first == {1: "finished", 2: "running", 3: "waiting", 4: "waiting"}
    assert last == {1: "finished", 2: "finished", 3: "failed", 4: "diverged"}
    assert (board.rows[1].env_steps, board.rows[1].last_return) == (1000, -6.0)
    assert board.rows[2].error == "exit 1: no memory"


def test_a_grid_that_is_started_with_more_seeds_shows_them(tmp_path: Path) -> None:
    """As a second command with more seeds does."""
    plan = grid(tmp_path, 1)

    def start() -> None:
        record_run(plan, TASK, 1)
        grid(tmp_path, 1, 2)

    shown, _ = seen(plan, start, lambda: record_run(plan, TASK, 2))
    assert shown == [{1: "waiting"}, {1: "finished", 2: "waiting"}, {1: "finished", 2: "finished"}]


def test_watching_ends_with_the_runs(tmp_path: Path, say: Say) -> None:
    """The view is shown until, and after, the last run has ended; status 0 if all finished."""
    plan, shown = grid(tmp_path, 1), list[str]()

    def show(board: Board) -> None:
        shown.append(board.rows[0].state)
        if len(shown) == watching.IDLE_LOOKS:
            record_run(plan, TASK, 1)

    board = watch(plan, show)
    assert shown == [*["waiting"] * watching.IDLE_LOOKS, "finished"]
    assert board.notes == [
        "Nobody runs this grid now; watching until somebody does; go on with:\n  "
        + commands(plan)[0]
    ]
    assert say(["watch", str(plan.directory)])[0] == 0


def test_runs_of_other_code_end(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out, with what has changed; the status is 2."""
    monkeypatch.setattr("reproduce.plan.grid.uncommitted", lambda sources: ())
    plan = grid(tmp_path, 1)
    run = record_run(plan, TASK, 1)
    reseal(run, behaviour=None, sources={"agents/sac.py": "other"})
    shown, board = seen(load_grid(plan.directory))
    assert shown == [{1: "left out"}]
    assert "changed since" in board.rows[0].error
    assert say(["watch", str(plan.directory)])[0] == 2


def test_a_runs_directory_shows_the_grid_that_was_started_last(tmp_path: Path) -> None:
    """From the runs directory, from what lies in it, or from the grid's own folder."""
    first = grid(tmp_path, 1)
    content = json.loads((first.directory / "plan.json").read_text())
    second = dataclasses.replace(first, directory=tmp_path / "runs" / "sac-classic" / "jaxrl")
    second.directory.mkdir()
    (second.directory / "plan.json").write_text(json.dumps(content))
    os.utime(first.directory / "plan.json", (0, 0))
    for folder in (tmp_path / "runs", tmp_path / "runs" / "sac-classic", second.directory):
        assert find_grid(folder) == second.directory
    assert find_grid(first.directory) == first.directory
    deep = tmp_path / "runs" / "fresh-1" / "gamma=0.9" / "sac-classic" / "tuned"
    control = tmp_path / "runs" / "controls" / "sb3" / "sac-classic" / "paper"
    for folder, more in ((deep, {}), (control, {"control": "sb3"})):
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(content | more))
    assert find_grid(tmp_path / "runs") == deep, "the control was last, and is no grid of ours"
    with refused():
        find_grid(tmp_path / "published")
