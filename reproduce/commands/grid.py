"""`AGENT SUITE` runs a grid and reports it; `report` does all but run."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from reproduce.commands import flags
from reproduce.plan.declared import keep_declared
from reproduce.plan.grid import Plan
from reproduce.plan.make import (
    load_plan,
    load_published_plan,
    make_plan,
    save_plan,
    sweep_below,
    variants_of,
)
from reproduce.plan.memory import check_memory
from reproduce.plan.origin import by_task
from reproduce.plan.places import Cluster, check_writable, fresh_directory
from reproduce.plan.presets import left_out
from reproduce.plan.request import FIELDS, GRID, Request, add_flags, read_request
from reproduce.plan.settings import folder_name
from reproduce.plan.shell import way_on
from reproduce.plan.status import check_extensions, name_of_settings, refuse_mixture
from reproduce.run.view import say
from reproduce.words import counted
from suite.command_line import Parser, printable, say_todays_name
from suite.hardware import num_cores
from suite.settings import UsageError


def run(argv: Sequence[str], epilog: str = "") -> int:
    """Plan, run, gather, check, draw.

    Args:
        argv: the command's words.
        epilog: what its help ends with.
    """
    options = _grid_parser(epilog).parse(argv)
    request = read_request(options)
    _check(options, request)
    check_writable(request.runs_dir)
    if request.launcher == "ray":
        from reproduce.run.ray.pool import connect

        with connect(request.ray_address) as cluster:
            return _run_grid(options, request, cluster)
    return _run_grid(options, request, None)


def report(argv: Sequence[str]) -> int:
    """Do everything but run, for a plan that was run before."""
    parser = flags.make_parser("report", "gather, check and draw again what was run")
    add_flags(parser, GRID)
    flags.add_context(parser)
    flags.add_open(parser)
    options = parser.parse(argv)
    request = read_request(options)
    is_default = request.runs_dir == FIELDS["runs_dir"].default
    if not is_default and not request.runs_dir.exists():
        raise UsageError(f"--runs-dir: there is no folder {request.runs_dir}")
    check_writable(request.runs_dir)
    where = (request.agent, request.suite, request.source, request.runs_dir)
    console = flags.make_console()
    plan = load_published_plan(*where)
    variants = sweep_below(*where)
    if variants and (plan is None or not is_default):
        raise UsageError(variants)
    if plan is not None:
        say(console, f"Nothing was run in {request.runs_dir} yet; this is {_published(plan)}:")
        say(console, variants)
    else:
        plan = load_plan(*where)
    say_todays_name(request.source, plan.source)
    status = _report(plan, console, context=options.context)
    flags.open_page(options, plan.directory / "index.html")
    return status


def _published(plan: Plan) -> str:
    """Return the name of the folder of a plan's published runs."""
    return "/".join(("results", "published", *plan.published_folder.parts[-2:]))


def _grid_parser(epilog: str) -> Parser:
    parser = flags.make_parser("", "regenerate a paper's curves and judge them", epilog=epilog)
    parser.hint = "; a setting of the agent goes behind --set (--set gamma=0.98), the rest: --help"
    add_flags(parser)
    flags.add_context(parser)
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


def _check(options: Namespace, request: Request) -> None:
    """Check what a parser cannot.

    Raises:
        UsageError: naming the flag.
    """
    cores = num_cores()
    if request.workers and request.workers > cores and request.launcher == "local":
        raise UsageError(
            f"--workers: {request.workers} processes side by side slow each other down on "
            f"{cores} cores: use --workers {cores} or fewer"
        )
    if options.track:
        from reproduce.extras.track import check_kind

        check_kind(options.track)


def _make_plan(request: Request, cluster: Cluster | None, *, is_variant: bool = False) -> Plan:
    plan = make_plan(**vars(request), cluster=cluster)
    names_seeds = is_variant or request.seeds or request.num_seeds
    plan = keep_declared(plan, counts_begun=not names_seeds)
    from reproduce.judge.outlook import refuse_early

    refuse_early(plan)
    check_extensions(plan, plan.runs())
    check_memory(plan)
    return plan


def _run_grid(options: Namespace, request: Request, cluster: Cluster | None) -> int:
    chosen = variants_of(request.agent, request.suite, request.source, request.settings)
    if options.fresh:
        request = replace(request, runs_dir=fresh_directory(request.runs_dir))
    if len(chosen) > 1:
        return _run_sweep(options, request, cluster, chosen)
    plan = _make_plan(request, cluster)
    say_todays_name(request.source, plan.source)
    console = flags.make_console()
    console.print(plan_table(plan))
    _say_outlook(plan, console)
    for line in left_out(plan) if request.tasks is None else ():
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


def _run_sweep(
    options: Namespace,
    request: Request,
    cluster: Cluster | None,
    chosen: Sequence[Sequence[str]],
) -> int:
    """Run a grid for every variant of the settings, and compare each with the first."""
    root, plans = request.runs_dir, []
    for settings in chosen:
        each = replace(request, settings=settings, runs_dir=root / folder_name(settings))
        plans.append(_make_plan(each, cluster, is_variant=True))
    say_todays_name(request.source, plans[0].source)
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
        say(console, f"Stopped. Finished runs are kept; {way_on(plan, track)}")
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
        refuse_mixture(plan)
        Leases(plan.directory, name_of_settings(plan.config)).refuse_rivals()
    plan.directory.mkdir(parents=True, exist_ok=True)
    save_plan(plan)
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
        say(console, f"Nobody runs this grid now; {way_on(plan)}")
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
        caption += f" Finished in {_published(plan)}: {taken}; --no-published trains your own."
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
    described = by_task(plan.runs())
    return [f"{task}: {sentence}" for task, (_, sentence) in described.items() if sentence]
