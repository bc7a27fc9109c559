"""`AGENT SUITE`: run a grid and report it."""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import distributions
from typing import Any

from rich.console import Console
from rich.table import Table

from reproduce.commands import flags
from reproduce.plan.declared import keep_declared
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan, save_plan, way_on
from reproduce.plan.presets import check_trainable, presets_of, skipped_tasks
from reproduce.plan.request import Request, add_flags, read_request, started_anew
from reproduce.plan.resources import Cluster, check_memory, check_writable
from reproduce.plan.status import by_task, check_extensions, name_of_settings, refuse_mixture
from reproduce.run.view import View, make_table, say
from reproduce.words import counted
from suite.settings.command_line import Parser, printable
from suite.settings.presets import replaced

ABOUT = "Train an agent on a suite and judge its curves, or use a command.\n\ncommands:"


def main(argv: Sequence[str]) -> int:
    """Plan, run, gather, check, draw."""
    lines = [f"  {f'{word} {words}':<31} {text}" for word, (words, text) in flags.COMMANDS.items()]
    prog, about = flags.program(), "\n".join([ABOUT, *lines])
    parser = Parser(prog=prog, description=about)
    parser.usage = f"{prog} AGENT SUITE [flags]\n       {prog} COMMAND ..."
    parser.hint = "; a setting of the agent goes behind --set (--set gamma=0.98), the rest: --help"
    release = next((found.version for found in distributions(name="encore-rl")), "not installed")
    shown: dict[str, Any] = {"version": f"encore {release}", "help": "show the version"}
    parser.add_argument("--version", action="version", **shown)
    add_flags(parser)
    request = read_request(parser.parse(argv))
    if request.track:
        from reproduce.commands.track import check_kind

        check_kind(request.track)
    check_writable(request.runs_dir)
    if request.launcher == "ray":
        from reproduce.run.ray.pool import connect

        with connect(request.ray_address) as cluster:
            return _run(request, cluster)
    return _run(request, None)


def _run(request: Request, cluster: Cluster | None) -> int:
    if any(set(setting) & {",", "/"} for setting in request.settings):  # may be several values
        from reproduce.commands import sweep

        if len(chosen := sweep.combinations(request)) > 1:
            return sweep.run_all(started_anew(request), cluster, chosen)
    request = started_anew(request)
    plan, console = checked_plan(request, cluster), flags.make_console()
    console.print(plan_table(plan))
    _say_outlook(plan, console)
    lines = skipped_tasks(plan) if request.tasks is None else []
    presets, settings_of = presets_of(plan.agent), (plan.suite, plan.source)
    lines.append(replaced(presets, plan.agent, settings_of, plan.config))
    for task, seeds in plan.declared.items():
        if plan.num_seeds[task] > len(seeds):
            started = counted(len(seeds), "declared seed")
            lines.append(f"{task} was started with {started}; with more it is exploratory")
    for task, (_, sentence) in by_task(plan.runs()).items():
        lines.append(sentence and f"{task}: {sentence}")
    for line in filter(None, lines):
        say(console, line)
    return 0 if request.dry_run else run_plan(plan, console)


def _say_outlook(plan: Plan, console: Console) -> None:
    from reproduce.judge import outlook

    rows = outlook.outlooks(plan)
    console.print()
    console.print(outlook.table_of(rows))
    lines = [outlook.suite_line(plan, rows), outlook.cost(plan, rows)]
    for line in filter(None, lines):
        say(console, line)


def checked_plan(request: Request, cluster: Cluster | None, *, is_variant: bool = False) -> Plan:
    """Return the plan of a request; a `UsageError` if it must not be trained.

    Finished runs of other code are refused by `train`, so that a dry run can name them. Where no
    seeds are asked for, a grid also has those that it was begun with; a sweep's do not.
    """
    from reproduce.gather.baseline import with_baseline
    from reproduce.judge.outlook import refuse_early

    plan = with_baseline(make_plan(**vars(request), cluster=cluster))
    check_trainable(plan.agent)
    names_seeds = is_variant or request.seeds or request.num_seeds
    plan = keep_declared(plan, counts_begun=not names_seeds)
    refuse_early(plan)
    runs = plan.runs()
    check_extensions(plan, runs)
    check_memory(plan, runs)
    return plan


def run_plan(plan: Plan, console: Console) -> int:
    """Run a plan, report it on a console and return the exit status."""
    try:
        plan, failures = train(plan, console)
    except KeyboardInterrupt:
        say(console, f"Stopped. Finished runs are kept; {way_on(plan)}")
        return 130  # its page is not written
    from reproduce.commands.report import report

    return report(plan, console, failures)


def train(plan: Plan, console: Console) -> tuple[Plan, dict[tuple[str, int], str]]:
    """Run what is left of a plan; return it as it was saved, and the errors of runs that failed."""
    from reproduce.commands.track import mirrored
    from reproduce.run.lease import Leases
    from reproduce.run.pool import launch

    if is_due := bool(plan.groups()):
        refuse_mixture(plan)
    leases = Leases(plan.directory, name_of_settings(plan.config))
    with leases.lock:
        if is_due:
            leases.refuse_rivals()
        plan = keep_declared(plan)  # another command may have declared seeds meanwhile
        save_plan(plan)
    with mirrored(plan, plan.track, partial(say, console)), View(console) as view:
        board = launch(plan, view)
    return plan, {row.run.key: row.error for row in board.rows if row.state == "failed"}


def plan_table(plan: Plan) -> Table:
    """Return a table of the plan's runs, by task."""
    runs = plan.runs()
    groups = plan.groups(runs)
    caption = f"Every run has ended; tables, figures and page go to {plan.directory}."
    if groups:
        device = plan.device + (f" ({len(plan.gpus)} GPUs)" if len(plan.gpus) > 1 else "")
        at_once = min(plan.workers, len(groups))
        processes = f"{counted(len(groups), 'process')}, {at_once} side by side on {device}"
        caption = f"{processes}, into {plan.directory}."
    columns = ("task", "env steps", "seeds", "already ended", "to run")
    title = f"{plan.title}, budget {plan.budget}"
    table = make_table(*columns, title=title, caption=printable(caption))
    for task, env_steps in plan.env_steps.items():
        done = [run.seed for run in runs if run.task == task and run.has_ended]
        to_run = [run.seed for run in runs if run.task == task and not run.has_ended]
        seeds = (plan.seeds[: plan.num_seeds[task]], done, to_run)
        table.add_row(task, f"{env_steps:,}", *(" ".join(map(str, each)) for each in seeds))
    return table
