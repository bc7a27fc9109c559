"""What the launchers' tests share: a watcher that watches nothing, ends by seed, patience."""

import time
from collections.abc import Callable
from typing import Any

from reproduce.plan.grid import Plan
from reproduce.run.progress import Board
from suite.record.reading import read_record
from tests.reproduce.conftest import TASK

FINISH = """
(folders[0] / "evaluations.csv").write_text("env_steps,mean_return\\n1000,3.5\\n")
end(folders[0], "finished")
"""
"""A stand-in for an agent: its one evaluation, and the end."""


def ignore(board: Board) -> None:
    """Watch nothing."""


def ends(board: Board) -> dict[int, tuple[str, str]]:
    """State and error of every run by seed."""
    return {row.run.seed: (row.state, row.error) for row in board.rows}


def record_of(plan: Plan, seed: int) -> dict[str, Any]:
    """The record of a run, which must be one."""
    record = read_record(plan.directory / TASK / f"seed-{seed}")
    assert record is not None
    return record


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait up to three minutes for `condition`: other tests may keep every core busy."""
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)
