"""`AGENT SUITE` runs a grid and reports it; `report` does all but run."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from reproduce.commands import flags
from reproduce.plan.extension import check_extensions
from reproduce.plan.grid import Plan
from reproduce.plan.places import Cluster, check_writable, fresh_directory
from reproduce.plan.request import (
    keep_declared,
    left_out,
    load_plan,
    load_published_plan,
    make_plan,
    sweep_below,
    variants_of,
)
from reproduce.plan.sweep import folder_name
from reproduce.run.view import say
from reproduce.words import counted
from suite.command_line import Parser, minutes, printable, say_todays_name
from suite.settings import UsageError, nearest

LAUNCHERS = ("local", "ray")


def run(argv: Sequence[str], epilog: str = "") -> int:
    """Plan, run, gather, check, draw.

    Args:
        argv: the command's words.
        epilog: what its help ends with.
    """
    options = _grid_parser(epilog).parse(argv)
    _check_grid(options)
    check_writable(options.runs_dir)
    if options.launcher == "ray":
        from reproduce.run.ray.pool import connect

        with connect(options.ray_address) as cluster:
            return _run_grid(options, cluster)
    return _run_grid(options, None)


def report(argv: Sequence[str]) -> int:
    """Do everything but run, for a plan that was run before."""
    parser = flags.make_parser("report", "gather, check and draw again what was run")
    flags.add_grid(parser)
    flags.add_context(parser)
    flags.add_open(parser)
    options = parser.parse(argv)
    if options.runs_dir != parser.get_default("runs_dir") and not options.runs_dir.exists():
        raise UsageError(f"--runs-dir: there is no folder {options.runs_dir}")
    check_writable(options.runs_dir)
    where = (options.agent, options.suite, options.like)
    console = flags.make_console()
    plan = load_published_plan(*where, options.runs_dir)
    variants = sweep_below(*where, options.runs_dir)
    if variants and (plan is None or options.runs_dir != parser.get_default("runs_dir")):
        raise UsageError(variants)
    if plan is not None:
        folder = f"results/published/{'/'.join(plan.published_folder.parts[-2:])}"
        say(console, f"Nothing was run in {options.runs_dir} yet; this is {folder}:")
        say(console, variants)
    else:
        plan = load_plan(*where, options.runs_dir)
    say_todays_name(options.like, plan.source)
    status = _report(plan, console, context=options.context)
    flags.open_page(options, plan.directory / "index.html")
    return status


def _grid_parser(epilog: str) -> Parser:
    parser = flags.make_parser("", "regenerate a paper's curves and judge them", epilog=epilog)
    parser.hint = "; a setting of the agent goes behind --set (--set gamma=0.98), the rest: --help"
    flags.add_grid(parser)
    flags.add_size(parser)
    parser.add_argument(
        "--device",
        default="auto",
        help="auto (default): GPUs if there are any; cpu; cuda: every GPU; cuda:<i>: that one",
    )
    parser.add_argument(
        "--launcher", default="local", help="local (default) or ray: see docs/robust.md"
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="auto: the cluster that this machine is part of (default: a Ray of its own)",
    )
    parser.add_argument(
        "--no-published",
        action="store_true",
        help="run what is finished under results/published all the same",
    )
    flags.add_context(parser)
    parser.add_argument(
        "--checkpoint-minutes",
        type=minutes,
        metavar="N",
        help="time between two checkpoints of a run (default: 5; 0: at every update)",
    )
    parser.add_argument(
        "--drop-checkpoints",
        action="store_true",
        help="keep no checkpoint of finished runs: a larger --env-steps cannot extend them then",
    )
    parser.add_argument(
        "--keep-best",
        action="store_true",
        help="keep the policy of each run's best evaluation, too: `evaluate RUN --best`",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start anew, in a folder of its own inside the runs directory",
    )
    parser.add_argument(
        "--track",
        default="",
        metavar="KIND",
        help="mirror runs into tensorboard or wandb while they are written",
    )
    flags.add_open(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    return parser


def _check_grid(options: Namespace) -> None:
    """Check what a parser cannot.

    Raises:
        UsageError: naming the flag.
    """
    flags.check_size(options, options.launcher)
    if options.track:
        from reproduce.extras.track import check_kind

        check_kind(options.track)
    if options.launcher not in LAUNCHERS:
        near = nearest(options.launcher, LAUNCHERS)
        raise UsageError(f"--launcher: unknown launcher {options.launcher!r}{near}")
    if options.ray_address is not None and options.launcher != "ray":
        raise UsageError("--ray-address needs --launcher ray")


def _make_plan(options: Namespace, cluster: Cluster | None, *, is_variant: bool = False) -> Plan:
    asked = flags.asked(options)
    if options.fresh:
        asked["runs_dir"] = fresh_directory(options.runs_dir)
    plan = make_plan(
        **asked,
        device=options.device,
        published=not options.no_published,
        checkpoint_minutes=options.checkpoint_minutes,
        drop_checkpoints=options.drop_checkpoints,
        keep_best=options.keep_best,
        cluster=cluster,
    )
    names_seeds = is_variant or options.seeds or options.num_seeds
    plan = keep_declared(plan, counts_begun=not names_seeds)
    from reproduce.judge.outlook import refuse_early

    refuse_early(plan)
    check_extensions(plan, plan.runs())
    plan.check_memory()
    return plan


def _run_grid(options: Namespace, cluster: Cluster | None) -> int:
    chosen = variants_of(options.agent, options.suite, options.like, options.settings)
    if len(chosen) > 1:
        return _run_sweep(options, cluster, chosen)
    plan = _make_plan(options, cluster)
    say_todays_name(options.like, plan.source)
    console = flags.make_console()
    console.print(plan_table(plan))
    _say_outlook(plan, console)
    for line in left_out(plan) if options.tasks is None else ():
        say(console, line)
    for task, seeds in plan.declared.items():
        if plan.num_seeds[task] > len(seeds):
            started = counted(len(seeds), "declared seed")
            say(console, f"{task} was started with {started}; with more it is exploratory")
    for line in _older_lines(plan):
        say(console, line)
    if options.dry_run:
        return 0
    status = run_plan(plan, console, track=options.track, context=options.context)
    if status != 130:  # the page of a grid that was stopped is not written
        flags.open_page(options, plan.directory / "index.html")
    return status


def _run_sweep(options: Namespace, cluster: Cluster | None, chosen: Sequence[Sequence[str]]) -> int:
    """Run a grid for every variant of the settings, and compare each with the first."""
    root = fresh_directory(options.runs_dir) if options.fresh else options.runs_dir
    plans = []
    for settings in chosen:
        own = {"settings": list(settings), "runs_dir": root / folder_name(settings)}
        each = Namespace(**(vars(options) | own | {"fresh": False}))
        plans.append(_make_plan(each, cluster, is_variant=True))
    say_todays_name(options.like, plans[0].source)
    from reproduce.extras import sweep

    sweep.refuse_alike(plans)
    console = flags.make_console()
    console.print(sweep.plan_table(plans))
    if options.dry_run:
        return 0
    train = partial(_train, console=console, track=options.track)
    status = sweep.run(plans, root, console, train, context=options.context)
    if status != 130:
        flags.open_page(options, sweep.stem(plans, root).with_suffix(".svg"))
    return status


def run_plan(plan: Plan, console: Console, *, track: str = "", context: bool = False) -> int:
    """Run a plan, report it and return the exit status.

    Args:
        plan: the grid.
        console: where its progress is shown.
        track: what runs are mirrored into while they are written, if anything.
        context: whether curves that do not judge are drawn, too.
    """
    try:
        failures = _train(plan, console, track)
    except KeyboardInterrupt:
        say(console, f"Stopped. Finished runs are kept; {plan.way_on(track)}")
        return 130
    return _report(plan, console, failures, context=context)


def _train(plan: Plan, console: Console, track: str) -> dict[tuple[str, int], str]:
    """Run what is left of a plan; return the errors of the runs that failed.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when every run has stopped.
    """
    from reproduce.extras.track import mirrored
    from reproduce.run.launch import launch
    from reproduce.run.lease import Leases
    from reproduce.run.view import View

    if plan.groups():
        plan.refuse_mixture()
        Leases(plan.directory, plan.name_of_settings).refuse_rivals()
    plan.directory.mkdir(parents=True, exist_ok=True)
    plan.save()
    with mirrored(plan, track, lambda line: say(console, line)), View(console) as view:
        board = launch(plan, view)
    failed = [row for row in board.rows if row.state == "failed"]
    return {(row.run.task, row.run.seed): row.error for row in failed}


def _report(
    plan: Plan,
    console: Console,
    failures: Mapping[tuple[str, int], str] = MappingProxyType({}),
    *,
    context: bool = False,
) -> int:
    from reproduce.judge.remarks import judge_of
    from reproduce.pipeline import (
        departures,
        exit_status,
        gather,
        tally,
        write_report,
    )
    from reproduce.report.page import verdict_lines

    tables = gather(plan, failures)
    write_report(plan, tables, context=context)
    verdicts, suite, runs = (tables[name] for name in ("verdicts", "suite", "runs"))
    console.print(verdict_lines(verdicts, suite, plan.title))
    for row in runs[runs.status != "finished"].itertuples():
        say(console, f"{row.task} seed {row.seed} {row.status} {row.error}".rstrip(), "bold red")
        say(console, str(row.log_tail))
    say(console, tally(runs.status))
    statuses = set(runs.status)
    if statuses & {"interrupted", "planned"} and "running" not in statuses:
        say(console, f"Nobody runs this grid now; {plan.way_on()}")
    if unmatched := departures(plan, verdicts):
        say(console, "Not matched to the reference: " + "; ".join(unmatched))
    say(console, judge_of(plan.agent, plan.preset.judged_by).sentence())
    say(console, f"Tables, figures and page: {plan.directory / 'index.html'}")
    return exit_status(verdicts, suite, runs.status)


def plan_table(plan: Plan) -> Table:
    """Return a table of the plan's runs, by task."""
    groups = plan.groups()
    device = plan.device + (f" ({len(plan.gpus)} GPUs)" if len(plan.gpus) > 1 else "")
    caption = (
        f"{counted(len(groups), 'process')}, {plan.workers} side by side on {device}, into "
        f"{plan.directory}."
        if groups
        else f"Every run is finished; tables, figures and page go to {plan.directory}."
    )
    folder = plan.published_folder
    runs = plan.runs()
    taken = sum(run.has_ended and run.directory.is_relative_to(folder) for run in runs)
    if taken:
        name = f"results/published/{folder.parent.name}/{folder.name}"
        caption += f" Finished in {name}: {taken}; --no-published trains your own."
    table = Table(
        title=f"{plan.title}, budget {plan.budget}",
        caption=printable(caption),
        caption_justify="left",
    )
    for name in ("task", "env steps", "seeds", "already finished", "to run"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for task, env_steps in plan.env_steps.items():
        done = [r.seed for r in runs if r.task == task and r.has_ended]
        to_run = [r.seed for r in runs if r.task == task and r.seed not in done]
        planned = plan.seeds[: plan.num_seeds[task]]
        cells = (" ".join(map(str, seeds)) for seeds in (planned, done, to_run))
        table.add_row(task, f"{env_steps:,}", *cells)
    return table


def _say_outlook(plan: Plan, console: Console) -> None:
    """Print what a plan can decide and what it costs, then the same for every budget."""
    from reproduce.judge import outlook

    rows = outlook.outlooks(plan)
    console.print(outlook.table_of(rows))
    say(console, outlook.cost(plan, rows))
    for line in outlook.budget_lines(plan):
        say(console, line)


def _older_lines(plan: Plan) -> list[str]:
    """Return a line for every task with finished runs of other code than today's."""
    from reproduce.plan.origin import by_task

    described = by_task(plan.runs())
    return [f"{task}: {sentence}" for task, (_, sentence) in described.items() if sentence]
