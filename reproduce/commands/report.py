"""`report`: gather, judge and draw what a grid has run."""

import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rich.console import Console

from reproduce import pipeline
from reproduce.commands import flags
from reproduce.gather import references
from reproduce.gather.baseline import with_baseline
from reproduce.plan.declared import PLAN, declared_in, read_plan
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, load_plan, way_on
from reproduce.plan.presets import presets_of
from reproduce.plan.request import FIELDS, GRID, add_flags, read_request
from reproduce.plan.resources import check_writable
from reproduce.report.words import verdict_lines
from reproduce.run.view import say
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.settings.presets import origin_of


def main(argv: Sequence[str]) -> int:
    """Do everything but run, for a plan that was run before."""
    parser = flags.make_parser("report", "--task-from")
    add_flags(parser, (*GRID, "open"))
    request = read_request(parser.parse(argv))
    if request.runs_dir != FIELDS["runs_dir"].default and not request.runs_dir.exists():
        raise UsageError(f"--runs-dir: there is no folder {request.runs_dir}")
    check_writable(request.runs_dir)
    plan = load_plan(request.agent, request.suite, request.source, request.runs_dir)
    return report(with_baseline(replace(plan, open=request.open)), flags.make_console())


def without_updates(plan: Plan) -> list[str]:
    """Return our finished runs that made no update; what a control's program did is not known."""
    ours = [run for run in plan.runs() if plan.program.is_ours and run.status == "finished"]
    return [f"{r.task} seed {r.seed}" for r in ours if not any(r.directory.glob("updates.csv*"))]


def report(
    plan: Plan, console: Console, failures: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> int:
    """Gather, judge, write and print a grid; return the exit status."""
    with console.status("Judging and drawing"):
        tables = pipeline.gather(plan, failures)
        pipeline.write_report(plan, tables)
    verdicts, suite, runs = (tables[name] for name in ("verdicts", "suite", "runs"))
    console.print(verdict_lines(verdicts, suite, plan.title))
    for row in runs[runs.status != "finished"].itertuples():
        say(console, f"{row.task} seed {row.seed} {row.status} {row.error}".rstrip(), "bold red")
        say(console, str(row.log_tail))
    say(console, pipeline.tally(runs.status))
    begun = declared_in(read_plan(plan.directory / PLAN))
    others = [
        f"{task} ({steps:,} steps, {counted(len(seeds), 'seed')})"
        for (task, steps), seeds in begun.items()
        if task not in plan.tasks
    ]
    if others:
        say(console, f"Begun here by other commands, and not on this page: {', '.join(others)}")
    if idle := without_updates(plan):
        say(console, f"warning: no update was made in {', '.join(idle)}: --env-steps is too small")
    statuses = set(runs.status)
    is_idle = not statuses & {"running", "left out"}
    if is_idle and statuses & {"interrupted", "planned", "failed"} and plan.groups():
        say(console, f"Nobody runs this grid now; {way_on(plan)}")
    if found := pipeline.departures(plan, verdicts):
        say(console, "\n  ".join(["Departures from the source:", *found]))
    if plan.program.is_ours and not references.sources(plan.agent):
        origin = origin_of(presets_of(plan.agent), plan.agent)
        other = "AGENT" if origin == plan.agent else origin
        lines = "\n  ".join(commands(plan, baseline=other))
        say(console, f"Judge it by the runs of {other}:\n  {lines}")
    page = plan.directory / "index.html"
    say(console, f"Tables, figures and page: {page}")
    if plan.open:
        webbrowser.open(page.absolute().as_uri())
    return pipeline.exit_status(verdicts, suite, runs.status)
