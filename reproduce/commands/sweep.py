"""A sweep: the grids of several settings, one after another, and how each compares with the first.

Every variant is a plan of its own in a runs folder that its settings name; it resumes, and is
reported, like any other.
"""

import hashlib
import itertools
import math
import re
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.text import Text

from reproduce.commands.compare import interval, refuse_different
from reproduce.commands.flags import make_console
from reproduce.commands.grid import checked_plan, train
from reproduce.judge import outlook
from reproduce.judge.inference import holm
from reproduce.pipeline import gather, write_report
from reproduce.plan.grid import Plan
from reproduce.plan.make import changes_of, command_of
from reproduce.plan.presets import source_of
from reproduce.plan.request import Request
from reproduce.plan.resources import Cluster
from reproduce.plan.status import name_of_settings, refuse_changed
from reproduce.report import figures, frames
from reproduce.report.words import mean_and_spread, with_interval
from reproduce.run.view import make_table, say
from reproduce.words import counted, number
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.tasks import find_task
from suite.record.reading import ENDED
from suite.settings.command_line import printable

COLUMNS = (
    *("task", "variant", "env_steps", "rule", "num_seeds", "score_mean", "score_std"),
    *("difference", "ci_low", "ci_high", "p", "p_holm"),
)
LARGEST = 100
"""Variants of one sweep."""
LONGEST_NAME = 120
"""Characters of a folder's name before it is shortened; file systems take 255."""
Variants = Mapping[str, Plan]
"""Plans by the values in which they differ; the others are compared with the first."""
COMPARED = (
    ", with Welch's 95 % interval of this comparison alone; "
    "p: that nothing differs, adjusted for the number of comparisons, {} (Holm)"
)


def combinations(request: Request) -> list[tuple[str, ...]]:
    """Return the `--set` of every variant that is asked for, the first values first.

    `gamma=0.98,0.99 tau=0.005,0.01` asks for every combination. Where a value is a list of its own,
    commas separate its entries, and slashes the values: `hidden_sizes=64,64/256,256`.
    """
    for setting in request.settings:
        changes_of([setting])
    config = source_of(request.agent, request.suite, request.source).preset.config
    choices = [_values(config, setting) for setting in request.settings]
    count = math.prod(map(len, choices))
    if count > LARGEST:
        each = " x ".join(str(len(values)) for values in choices if len(values) > 1)
        raise UsageError(
            f"--set: {each} = {count:,} variants are more than {LARGEST}: name fewer values"
        )
    return list(itertools.product(*choices))


def _values(config: Any, setting: str) -> list[str]:
    key, _, text = setting.partition("=")
    hint = get_type_hints(type(config)).get(key.replace("-", "_"))
    is_list = tuple in map(get_origin, (hint, *get_args(hint)))
    values = text.split("/" if is_list else ",")
    if len(values) > 1 and not all(values):
        raise UsageError(f"--set: {setting!r} has an empty value")
    if len(set(values)) < len(values):
        raise UsageError(f"--set: {setting!r} names a value twice")
    return [f"{key}={value}" for value in values]


def folder_name(settings: Sequence[str]) -> str:
    """Return the name of a variant's runs folder: its settings."""
    name = ",".join(re.sub(r"[^\w.=+-]", "-", setting) for setting in settings)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def run_all(request: Request, cluster: Cluster | None, chosen: Sequence[Sequence[str]]) -> int:
    """Plan the chosen variants, run them unless it is a dry run, and return the exit status."""
    root, plans = request.runs_dir, []
    for settings in chosen:
        each = replace(request, settings=settings, runs_dir=root / folder_name(settings))
        plans.append(checked_plan(each, cluster, is_variant=True))
    variants, console = variants_of(plans), make_console()
    console.print(plan_table(variants))
    if request.dry_run:
        return 0
    name = f"sweep-{plans[0].name.replace('/', '-')}-{folder_name([*variants])}"
    path = root / f"{name}.csv"
    status = run(variants, path, console, command_of(request))
    if request.open and status != 130:
        webbrowser.open(path.with_suffix(".svg").absolute().as_uri())
    return status


def variants_of(plans: Sequence[Plan]) -> Variants:
    """Name the variants of a sweep; a `UsageError` names identical or incomparable ones."""
    keys = [key for key in plans[0].settings if len({plan.settings[key] for plan in plans}) > 1]
    variants = {" ".join(f"{key}={plan.settings[key]}" for key in keys): plan for plan in plans}
    known: dict[str, str] = {}
    for name, plan in variants.items():
        other = known.setdefault(name_of_settings(plan.config), name)
        if other != name:
            raise UsageError(f"--set: {other} and {name} are the same settings")
    of_tasks = {find_task(task, plan.protocol).protocol for plan in plans for task in plan.tasks}
    games = of_tasks - {""}
    refuse_different("--set", rules={plan.rule for plan in plans}, protocols=games)
    return variants


def plan_table(variants: Variants) -> Group:
    """Return a table of the variants, their runs, those left, and times; then the total."""
    table, times = make_table("variant", "runs", "to run", "takes"), []
    for name, plan in variants.items():
        runs = plan.runs()
        waiting = [run for run in runs if not run.has_ended]
        takes = {task: plan.expected_seconds(task) for task in plan.tasks}
        times.append(outlook.seconds_left(plan, takes, waiting))
        cells = (name, str(len(runs)), str(len(waiting)), outlook.about(times[-1]))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    first, total = next(iter(variants.values())), sum(filter(None, times))
    what = (
        f"{first.agent} on {first.suite}, settings of {first.source}: {len(variants)} variants of "
        f"{counted(len(first.tasks), 'task')}, {counted(first.workers, 'run')} side by side "
        f"on {first.device}; {outlook.about(None if None in times else total)}. "
        f"Each has a folder of its own, the first {first.directory}."
    )
    return Group(table, Text(printable(what)))


def run(variants: Variants, path: Path, console: Console, again: str) -> int:
    """Train, report and compare every variant; the table goes to `path`, its figure beside it.

    `again` is the command that goes on. The exit status is 2 if a run has not finished, 130 after
    Ctrl-C, else 0.
    """
    curves_of, scores_of = dict[str, pd.DataFrame](), dict[str, pd.DataFrame]()
    left, goes_on = list[str](), False
    first = next(iter(variants.values()))
    code = first.program.code(first.agent)
    for i, (name, plan) in enumerate(variants.items(), start=1):
        say(console, f"Variant {i} of {len(variants)}: {name}", "bold")
        refuse_changed(code, plan.program.code(plan.agent))
        try:
            plan, failures = train(plan, console)
        except KeyboardInterrupt:
            say(console, f"Stopped. Finished runs are kept; go on with:\n  {again}")
            return 130
        tables = gather(plan, failures)
        write_report(plan, tables)
        curves_of[name], scores_of[name] = tables["curves"], tables["scores"]
        for row in tables["runs"].query("status != 'finished'").itertuples():
            left.append(f"{name}: {row.task} seed {row.seed} {row.status} {row.error}".rstrip())
            goes_on |= row.status not in ENDED
    table = compare(variants, scores_of)
    write_atomically(path, table.to_csv(index=False, lineterminator="\n").encode())
    curves = frames.learning_curves(curves_of, planned=first.env_steps)
    gaps = {task: "\n".join(frames.gaps(curves, task)) for task in curves["task"].unique()}
    figures.draw_curves(curves, gaps, path.parent, path.stem)
    console.print(comparison(table))
    for name, plan in variants.items():
        say(console, f"{name}: {plan.directory / 'index.html'}")
    say(console, f"Table: {path}; learning curves: {path.with_suffix('.png')}, .svg, .pdf")
    for line in left:
        say(console, line, "bold red")
    if goes_on:
        say(console, f"Go on with:\n  {again}")
    return 2 if left else 0


def compare(variants: Variants, scores_of: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row for every task and variant: its scores, and how it compares with the first.

    `scores_of` are the variants' tables `scores`, in which a diverged run has the score of a random
    policy. The p-values are adjusted for all comparisons of the sweep.
    """
    rows, first = [], next(iter(variants.values()))
    for task in first.tasks:
        own = {name: table.loc[table["task"] == task, "score"] for name, table in scores_of.items()}
        others = next(iter(own.values()))
        for name, plan in variants.items():
            scores = own[name]
            row = {"task": task, "variant": name, "env_steps": plan.env_steps[task]}
            row |= {"rule": plan.rule, "num_seeds": len(scores)}
            row |= {"score_mean": scores.mean(), "score_std": scores.std()}
            if plan is not first:
                low, high, p_value = interval(others.to_numpy(), scores.to_numpy())
                row |= {"difference": scores.mean() - others.mean(), "p": p_value}
                row |= {"ci_low": low, "ci_high": high}
            rows.append(row)
    table = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    return table.assign(p_holm=holm(table["p"].to_numpy(np.float64)))


def comparison(table: pd.DataFrame) -> Group:
    """Format the table of `compare` for a terminal of 80 columns."""
    columns = ("variant", "score, mean ± std", "seeds", "difference [95 %]", "p")
    shown = make_table(*columns)
    for task, rows in table.groupby("task", sort=False):
        steps = f"{task}, {rows['env_steps'].iloc[0]:,} steps"
        shown.add_row(Text(printable(steps), "bold"))
        for row in rows.to_dict("records"):
            ends, p_value = (row["difference"], row["ci_low"], row["ci_high"]), row["p_holm"]
            cells = (
                f"  {row['variant']}",
                mean_and_spread(row["score_mean"], row["score_std"]),
                str(row["num_seeds"]),
                "" if pd.isna(row["difference"]) else with_interval(*ends),
                "" if pd.isna(p_value) else number(p_value),
            )
            style = "bold" if p_value <= 0.05 else ""
            shown.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    count = int(table["p"].notna().sum())
    said = "difference: from the first variant" + (COMPARED.format(count) if count else "")
    return Group(shown, Text(said))
