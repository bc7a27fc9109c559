"""`verify`, `compare`, `judge`, `track` and `watch`: use the records of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

import agents
from reproduce.commands import flags
from reproduce.plan.make import load_grid, load_plan
from reproduce.plan.request import RUNS
from reproduce.run.view import say
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.settings.command_line import printable, whole


def verify(argv: Sequence[str]) -> int:
    """Make the beginning of recorded runs again; the exit status is 1 if one differs."""
    about = "make the beginning of a recorded run again, compare its rows"
    parser = flags.make_parser("verify", about)
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    text = "default: the quickest published one"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=text)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="N", help="for each run")
    words = list(argv)
    if "--seconds" in words:  # flags go last: argparse wants the folders in one piece
        place = words.index("--seconds")
        words = [*words[:place], *words[place + 2 :], *words[place : place + 2]]
    options = parser.parse(words)
    if not 0 < options.seconds < float("inf"):
        raise UsageError(f"--seconds must be above 0, not {options.seconds}")
    from reproduce.extras import verify as verifying

    runs = options.runs or list(filter(None, [verifying.default_run(options.agent)]))
    if not runs:
        print(f"no published run of {options.agent} has today's number: name a RUN")
    status = 0
    for run in runs:
        outcome = verifying.verify(options.agent, run, options.seconds)
        print(f"{'ok' if outcome.same else 'DIFFERS'} {outcome.text}", flush=True)
        status = max(status, not outcome.same)
    return int(status)


def compare(argv: Sequence[str]) -> int:
    """Print a before-and-after table of two folders of runs."""
    parser = flags.make_parser("compare", "before-and-after table of two folders of runs")
    parser.add_argument("runs_a", type=Path, help="for example runs/sac-mujoco/paper")
    parser.add_argument("runs_b", type=Path)
    options = parser.parse(argv)
    from reproduce.extras.compare import compare as compare_runs

    rows = compare_runs(options.runs_a, options.runs_b)
    table = Table(title=printable(f"A: {options.runs_a}   B: {options.runs_b}"))
    for name in ("task", "env steps", "A, mean (n)", "B, mean (n)", "B - A [95 %]", "speed B / A"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for row in rows.to_dict("records"):
        table.add_row(
            printable(row["task"]),
            f"{row['env_steps']:,}",
            f"{row['score_mean_a']:,.4g} ({row['num_seeds_a']})",
            f"{row['score_mean_b']:,.4g} ({row['num_seeds_b']})",
            f"{row['difference']:+,.4g} [{row['ci_low']:,.4g}, {row['ci_high']:,.4g}]",
            f"{row['speed_ratio']:.2f}",
        )
    flags.make_console().print(table)
    return 0


def judge(argv: Sequence[str]) -> int:
    """Judge anybody's curves by a source; the exit status is that of a grid."""
    about = "verdicts on runs of any program, from a table of curves"
    parser = flags.make_parser("judge", about)
    parser.add_argument("agent", help="whose sources judge: " + ", ".join(agents.AGENTS))
    text = "CSV file with columns task, seed, env_steps, mean_return, or a grid's curves.csv"
    parser.add_argument("curves", type=Path, help=text)
    parser.add_argument("--like", required=True, metavar="SOURCE", help="the source that judges")
    text = "default: the last step of all runs of a task"
    parser.add_argument("--env-steps", type=whole, metavar="N", help=text)
    presented: dict[str, Any] = {"choices": ("noframeskip", "sticky"), "default": "noframeskip"}
    parser.add_argument("--protocol", help="of Atari", **presented)
    options = parser.parse(argv)
    from reproduce.extras.judge_curves import judge_curves
    from reproduce.judge.remarks import judge_of
    from reproduce.pipeline import exit_status
    from reproduce.report.words import verdict_lines

    if options.env_steps is not None and options.env_steps < 1:
        raise UsageError(f"--env-steps must be positive, not {options.env_steps:,}")
    size = {"env_steps": options.env_steps, "protocol": options.protocol}
    found = judge_curves(options.agent, options.curves, options.like, **size)
    console = flags.make_console()
    console.print(verdict_lines(found.tasks, found.suite, printable(str(options.curves))))
    how = f"by rule {found.rule}, as {options.like} was; every seed counts."
    say(console, f"Taken as measured {how}")
    say(console, judge_of(options.agent, options.like).sentence())
    return exit_status(found.tasks, found.suite, found.tasks["task"].map(lambda _: "finished"))


def track(argv: Sequence[str]) -> int:
    """Mirror recorded runs into TensorBoard or Weights & Biases."""
    from reproduce.extras.track import LOOK, mirror

    parser = flags.make_parser("track", "mirror recorded runs into tensorboard or wandb")
    parser.add_argument("kind", help=", ".join(LOOK))
    parser.add_argument("runs", type=Path, help="a folder with runs below it, for example runs")
    parser.add_argument("logdir", type=Path, help="where the mirrors go")
    options = parser.parse(argv)
    num_runs = mirror(options.kind, options.runs, options.logdir)
    where = LOOK[options.kind].format(options.logdir)
    print(f"{counted(num_runs, 'run')} mirrored; look at them with: {where}")
    return 0


def watch(argv: Sequence[str]) -> int:
    """Show a grid that another process or machine runs until it has ended."""
    from reproduce.run import watch as watching
    from reproduce.run.view import View
    from suite.record.live import Curves

    about = "show a grid that another process or machine runs, live"
    parser = flags.make_parser("watch", about)
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
