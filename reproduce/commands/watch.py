"""`watch`: show a grid that another process, or another machine, runs: nothing is written."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reproduce.commands import flags
from reproduce.plan.declared import PLAN, read_plan
from reproduce.plan.grid import Plan
from reproduce.plan.make import load_grid, way_on
from reproduce.plan.request import RUNS
from reproduce.plan.status import run_of
from reproduce.run.lease import Holders
from reproduce.run.progress import OVER, Board, Progress, board_of, read_progress
from reproduce.run.view import View, say
from suite.base.errors import UsageError
from suite.record.live import Curves
from suite.record.manifest import stamp
from suite.record.reading import ENDED

LOOK_SECONDS = 1.0
IDLE_LOOKS = 5
"""Between two runs nobody holds a lease, for less than this."""


def find_grid(folder: Path) -> Path:
    """Return the folder of the grid that was started last, at a folder or below it.

    One of a sweep that was begun anew lies four folders deep. Controls are left out.
    """
    found = [path for depth in range(5) for path in folder.glob(f"{'*/' * depth}{PLAN}")]
    for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        if path.parent == folder or not (read_plan(path) or {}).get("control"):
            return path.parent
    example = "python -m reproduce a2c classic"
    raise UsageError(f"{folder} holds no grid: start one first, for example by `{example}`")


def watch(plan: Plan, show: Callable[[Board], None]) -> Board:
    """Show a grid until every run has ended; return how."""
    board, written = _board(plan), stamp(plan.directory / PLAN)
    holders, idle = Holders(), 0
    while True:
        if stamp(plan.directory / PLAN) != written:  # it was started once more, with other runs
            plan, written = load_grid(plan.directory.absolute()), stamp(plan.directory / PLAN)
            now = _board(plan)
            board.rows, board.side_by_side = now.rows, now.side_by_side
        for row in board.rows:
            if row.state not in ENDED:
                _look_at(row, plan, holders)
        show(board)
        if all(row.state in OVER for row in board.rows):
            return board
        idle = 0 if board.count("running") else idle + 1
        if idle == IDLE_LOOKS:
            on = way_on(plan)
            board.notes.append(f"Nobody runs this grid now; watching until somebody does; {on}")
        time.sleep(LOOK_SECONDS)


def _board(plan: Plan) -> Board:
    runs = plan.runs()
    return board_of(runs, plan.workers, plan.groups(runs))


def _look_at(row: Progress, plan: Plan, holders: Holders) -> None:
    run = run_of(plan, *row.run.key)
    is_held = holders.is_held(run.directory)
    if is_held or run.has_ended:
        read_progress(row)
    if run.has_ended or (run.status in OVER and not is_held):
        row.state, row.error = run.status, run.error or run.remark
    else:
        row.state = "running" if is_held else "waiting"


def main(argv: Sequence[str]) -> int:
    """Show a grid that another process or machine runs until it has ended."""
    parser = flags.make_parser("watch", "--task-from")
    text = "a folder with grids below it, of which the last to be started is shown (default: runs)"
    parser.add_argument("folder", type=Path, nargs="?", default=RUNS, metavar="DIR", help=text)
    text = "draw return, losses, entropy and temperature, too; of several tasks returns alone"
    parser.add_argument("--plot", action="store_true", help=text)
    options = parser.parse(argv)
    plan, console = load_grid(find_grid(options.folder).absolute()), flags.make_console()
    say(console, f"{plan.title}, in {plan.directory}; Ctrl-C ends the view, not the runs")
    with View(console, Curves(console) if options.plot else None) as view:
        board = watch(plan, view)
    return 0 if board.count("finished") == len(board.rows) else 2
