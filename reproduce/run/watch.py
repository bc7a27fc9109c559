"""Watch a grid that another process, or another machine, runs: nothing is written."""

import time
from collections.abc import Callable
from pathlib import Path

from reproduce.plan.declared import PLAN
from reproduce.plan.grid import Plan
from reproduce.plan.make import load_grid, way_on
from reproduce.run.lease import Holders
from reproduce.run.progress import OVER, Board, Progress, board_of, read_progress
from suite.base.errors import UsageError
from suite.record.manifest import stamp
from suite.record.records import ENDED

LOOK_SECONDS = 1.0
"""Time between two looks at the files."""
IDLE_LOOKS = 5
"""Between two runs nobody holds a lease, for less than this."""


def find_grid(folder: Path) -> Path:
    """Return the folder of the grid that was started last, at a folder or below it.

    One of a sweep that was begun anew lies four folders deep. Controls are left out.
    """
    found = [path for depth in range(5) for path in folder.glob(f"{'*/' * depth}{PLAN}")]
    paths = [path for path in found if "controls" not in path.relative_to(folder).parts]
    if not paths:
        example = "python -m reproduce a2c classic"
        raise UsageError(f"{folder} holds no grid: start one first, for example by `{example}`")
    return max(paths, key=lambda path: path.stat().st_mtime_ns).parent


class Watcher:
    """The board of a grid that others run, read from its files."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._written = plan, stamp(plan.directory / PLAN)
        self._holders = Holders()
        self.board = board_of(plan.runs(), plan.workers)

    def look(self) -> bool:
        """Return whether every run has ended, after reading the files again."""
        written = stamp(self.plan.directory / PLAN)
        if written != self._written:  # it was started once more, with other runs
            self._written, self.plan = written, load_grid(self.plan.directory.absolute())
            now = board_of(self.plan.runs(), self.plan.workers)
            self.board.rows, self.board.side_by_side = now.rows, now.side_by_side
        for row in self.board.rows:
            if row.state not in ENDED:
                self._look_at(row)
        return all(row.state in OVER for row in self.board.rows)

    def _look_at(self, row: Progress) -> None:
        run = self.plan.run(*row.run.key)
        is_held = self._holders.is_held(run.directory)
        if is_held or run.has_ended:
            read_progress(row)
        if run.has_ended or (run.status == "failed" and not is_held):
            row.state, row.error = run.status, run.error
        else:
            row.state = "running" if is_held else "waiting"


def watch(plan: Plan, show: Callable[[Board], None]) -> Board:
    """Show a grid until every run has ended; return how."""
    watcher, idle = Watcher(plan), 0
    board = watcher.board
    while not watcher.look():
        idle = 0 if board.count("running") else idle + 1
        if idle == IDLE_LOOKS:
            on = way_on(watcher.plan)
            board.notes.append(f"Nobody runs this grid now; watching until somebody does; {on}")
        show(board)
        time.sleep(LOOK_SECONDS)
    show(board)
    return board
