"""`watch`: show a grid that another process or machine runs."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags
from reproduce.plan.make import load_grid, load_plan
from reproduce.plan.request import RUNS
from reproduce.run import watch as watching
from reproduce.run.view import View, say
from suite.base.errors import UsageError
from suite.record.live import Curves


def main(argv: Sequence[str]) -> int:
    """Show a grid that another process or machine runs until it has ended."""
    about = "show a grid that another process or machine runs, live"
    parser = flags.make_parser("watch", about, "--task-from")
    text = "a folder with grids below it, of which the last to be started is shown (default: the "
    text += "runs directory); or a grid"
    parser.add_argument("grid", nargs="*", metavar="RUNS_DIR | AGENT SUITE", help=text)
    parser.add_argument("--like", metavar="SOURCE", help="of AGENT SUITE; default: the suite's")
    parser.add_argument("--runs-dir", type=Path, default=RUNS, metavar="DIR")
    text = "draw return, losses, entropy and temperature, too; of several tasks returns alone"
    parser.add_argument("--plot", action="store_true", help=text)
    options = parser.parse(argv)
    if len(options.grid) > 2 or (options.like and len(options.grid) < 2):
        raise UsageError("name a runs directory or an agent and a suite, for example: sac mujoco")
    if len(options.grid) == 2:
        agent, suite = options.grid
        plan = load_plan(agent, suite, options.like, options.runs_dir)
    else:
        folder = Path(*options.grid) if options.grid else options.runs_dir
        plan = load_grid(watching.find_grid(folder).absolute())
    console = flags.make_console()
    say(console, f"{plan.title}, in {plan.directory}; Ctrl-C ends the view, not the runs")
    with View(console, Curves(console) if options.plot else None) as view:
        board = watching.watch(plan, view)
    return 2 if board.count("failed") else 0
