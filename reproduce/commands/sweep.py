"""A sweep: the grids of several settings, one after another, and how each compares with the first.

Every variant is a plan of its own in a runs folder that its settings name; it resumes, and is
reported, like any other.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.text import Text

from reproduce.commands.compare import interval, refuse_different
from reproduce.commands.grid import train
from reproduce.judge import outlook
from reproduce.judge.inference import holm
from reproduce.pipeline import gather, write_report
from reproduce.plan.grid import Plan
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
Variants = Mapping[str, Plan]
"""Plans by the values in which they differ; the others are compared with the first."""
COMPARED = (
    ", with Welch's 95 % interval of this comparison alone; "
    "p: that nothing differs, adjusted for the number of comparisons, {} (Holm)"
)


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
