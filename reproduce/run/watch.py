"""Watch a grid that another process, or another machine, runs: nothing is written."""

import time
from collections.abc import Callable
from pathlib import Path

from reproduce.plan.grid import Plan, Run
from reproduce.plan.make import PLAN, load_grid, way_on
from reproduce.run.lease import Holders
from reproduce.run.progress import OVER, Board, Progress, board_of, read_progress
from suite.base.errors import UsageError
from suite.record.manifest import stamp
from suite.record.records import ENDED, read_record

LOOK_SECONDS = 1.0
"""Time between two looks at the files."""
IDLE_LOOKS = 5
"""Between two runs nobody holds a lease, for less than this."""


def find_grid(folder: Path) -> Path:
    """Return the folder of the grid that was started last, at a folder or below it.

    One of a sweep that was begun anew lies four folders deep. Controls are left out.

    Raises:
        UsageError: if there is none.
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
        self._plan, self._written = plan, stamp(plan.directory / PLAN)
        self._holders = Holders()
        self._read: dict[Path, tuple[object, Run]] = {}
        self.board = board_of(plan, plan.runs(), plan.workers)

    def look(self) -> bool:
        """Return whether every run has ended, after reading the files again."""
        if stamp(self._plan.directory / PLAN) != self._written:
            self._read_plan()
        for row in self.board.rows:
            if row.state not in ENDED:
                self._look_at(row)
        return all(row.state in OVER for row in self.board.rows)

    def way_on(self) -> str:
        """Return how to go on with the grid, as it was last started, in words."""
        return way_on(self._plan)

    def _read_plan(self) -> None:
        """Take over the plan of a grid that was started once more, with other runs."""
        self._written = stamp(self._plan.directory / PLAN)
        self._plan = load_grid(self._plan.directory.absolute())
        known = {_name(row.run): row for row in self.board.rows}
        rows = board_of(self._plan, self._plan.runs(), self._plan.workers).rows
        self.board.rows[:] = [known.get(_name(row.run), row) for row in rows]
        self.board.side_by_side = self._plan.workers

    def _look_at(self, row: Progress) -> None:
        folder = row.run.directory
        record, run = stamp(folder / "run.json"), row.run
        if self._read.get(folder, (None, run))[0] != record:
            self._read[folder] = record, self._plan.run(run.task, run.seed)
        run = self._read.get(folder, (None, run))[1]
        is_held = self._holders.is_held(folder)
        if is_held or run.has_ended:
            read_progress(row)
        if run.has_ended or (run.status == "failed" and not is_held):
            row.turn(run.status)
            row.error = (read_record(run.directory) or {}).get("error") or ""
        else:
            row.turn("running" if is_held else "waiting")


def watch(plan: Plan, show: Callable[[Board], None]) -> Board:
    """Show a grid until every run has ended; return how.

    Raises:
        UsageError: if the plan can no longer be read.
    """
    watcher, idle = Watcher(plan), 0
    while not watcher.look():
        idle = 0 if watcher.board.count("running") else idle + 1
        watcher.board.is_idle = idle >= IDLE_LOOKS
        if idle == IDLE_LOOKS:
            watcher.board.notes.append(
                f"Nobody runs this grid now; watching until somebody does; {watcher.way_on()}"
            )
        show(watcher.board)
        time.sleep(LOOK_SECONDS)
    watcher.board.is_idle = False
    show(watcher.board)
    return watcher.board


def _name(run: Run) -> tuple[str, int, int]:
    return run.task, run.seed, run.env_steps
