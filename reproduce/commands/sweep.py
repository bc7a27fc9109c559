"""A sweep: the grids of several settings, one after another, and how each compares with the first.

Every variant is a plan of its own in a runs folder that its settings name; it resumes, and is
reported, like any other.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from reproduce.commands.compare import interval
from reproduce.gather.collect import Failures, collect_curves, score
from reproduce.judge import outlook
from reproduce.judge.inference import holm
from reproduce.pipeline import gather, write_report
from reproduce.plan.grid import Plan
from reproduce.plan.status import name_of_settings
from reproduce.report import figures, frames
from reproduce.report.words import mean_and_spread, with_interval
from reproduce.run.view import say
from reproduce.words import counted, number
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.settings.command_line import printable

COLUMNS = (
    *("task", "variant", "env_steps", "rule", "num_seeds", "score_mean", "score_std"),
    *("difference", "ci_low", "ci_high", "p", "p_holm"),
)
DIFFERENCE = "difference: from the first variant"
COMPARED = (
    ", with Welch's 95 % interval of this comparison alone; "
    "p: that nothing differs, adjusted for the number of comparisons, {} (Holm)"
)


def names(plans: Sequence[Plan]) -> list[str]:
    """Return each variant's name: its values of the settings in which variants differ."""
    keys = [key for key in plans[0].settings if len({plan.settings[key] for plan in plans}) > 1]
    return [" ".join(f"{key}={plan.settings[key]}" for key in keys) for plan in plans]


def refuse_alike(plans: Sequence[Plan]) -> None:
    """Refuse identical variants, and variants with incomparable scores.

    Raises:
        UsageError: naming them.
    """
    known: dict[str, str] = {}
    for plan, name in zip(plans, names(plans), strict=True):
        other = known.setdefault(name_of_settings(plan.config), name)
        if other != name:
            raise UsageError(f"--set: {other} and {name} are the same settings")
    rules = sorted({plan.rule for plan in plans})
    if len(rules) > 1:
        raise UsageError(f"--set: scores of different rules do not compare: {', '.join(rules)}")


def plan_table(plans: Sequence[Plan]) -> Group:
    """Return a table of the variants, their runs, those left, and times; then the total."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("variant", "runs", "to run", "takes"):
        table.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    total: float | None = 0.0
    for plan, name in zip(plans, names(plans), strict=True):
        runs = plan.runs()
        waiting = [run for run in runs if not run.has_ended]
        takes = {task: plan.expected_seconds(task) for task in plan.tasks}
        seconds = outlook.seconds_left(plan, takes, waiting)
        total = None if seconds is None or total is None else total + seconds
        cells = (name, str(len(runs)), str(len(waiting)), outlook.about(seconds))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    first = plans[0]
    what = (
        f"{first.agent} on {first.suite}, settings of {first.source}: {len(plans)} variants of "
        f"{counted(len(first.tasks), 'task')}, {counted(first.workers, 'run')} side by side "
        f"on {first.device}; {outlook.about(total)}. Each has a folder of its own, the first "
        f"{first.directory}."
    )
    return Group(table, Text(printable(what)))


def stem(plans: Sequence[Plan], root: Path) -> Path:
    """Return where the table of all variants and its figure lie, without `.csv` and the like."""
    return root / f"sweep-{plans[0].agent}-{plans[0].suite}"


def run(
    plans: Sequence[Plan], root: Path, console: Console, train: Callable[[Plan], Failures]
) -> int:
    """Run, report and compare every variant.

    `train` runs what is left of a variant, and returns the errors of the runs that failed.

    Returns:
        the exit status: 2 if a run has not finished, 130 after Ctrl-C, else 0.
    """
    for i, (plan, name) in enumerate(zip(plans, names(plans), strict=True)):
        say(console, f"Variant {i + 1} of {len(plans)}: {name}", "bold")
        try:
            failures = train(plan)
        except KeyboardInterrupt:
            say(console, "Stopped. Finished runs are kept; the same command goes on.")
            return 130
        write_report(plan, gather(plan, failures))
    table, path = compare(plans), stem(plans, root).with_suffix(".csv")
    write_atomically(path, table.to_csv(index=False, lineterminator="\n").encode())
    curves = _curves(plans)
    gaps = {task: "\n".join(frames.gaps(curves, task)) for task in curves["task"].unique()}
    figures.draw_curves(curves, gaps, root, path.stem)
    console.print(comparison(table))
    for plan, name in zip(plans, names(plans), strict=True):
        say(console, f"{name}: {plan.directory / 'index.html'}")
    say(console, f"Table: {path}; learning curves: {path.with_suffix('.png')}, .svg, .pdf")
    left = [run.name for plan in plans for run in plan.runs() if run.status != "finished"]
    if left:
        say(console, f"{counted(len(left), 'run')} left unfinished: {', '.join(left)}", "bold red")
    return 2 if left else 0


def compare(plans: Sequence[Plan]) -> pd.DataFrame:
    """Return a row for every task and variant: its scores, and how it compares with the first.

    The p-values are adjusted for all comparisons of the sweep.
    """
    rows = []
    for task in plans[0].tasks:
        first = _scores(plans[0], task)
        for i, (plan, name) in enumerate(zip(plans, names(plans), strict=True)):
            scores = _scores(plan, task)
            low, high, p_value = interval(first, scores) if i else (np.nan,) * 3
            mean = scores.mean() if scores.size else np.nan
            std = scores.std(ddof=1) if scores.size > 1 else np.nan
            apart = mean - first.mean() if i and first.size else np.nan
            said = (task, name, plan.env_steps[task], plan.rule, scores.size, mean, std)
            rows.append((*said, apart, low, high, p_value))
    table = pd.DataFrame(rows, columns=pd.Index(COLUMNS[:-1]))
    return table.assign(p_holm=holm(table["p"].to_numpy(np.float64)))


def comparison(table: pd.DataFrame) -> Group:
    """Format the table of `compare` for a terminal of 80 columns."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("variant", "score, mean ± std", "seeds", "difference [95 %]", "p"):
        shown.add_column(
            Text(name), justify="left" if name == "variant" else "right", overflow="fold"
        )
    for task, rows in table.groupby("task", sort=False):
        steps = f"{task}, {rows['env_steps'].iloc[0]:,} steps"
        shown.add_row(Text(printable(steps), "bold"))
        for row in rows.to_dict("records"):
            has_p = np.isfinite(row["p_holm"])
            cells = (
                f"  {row['variant']}",
                mean_and_spread(row["score_mean"], row["score_std"]),
                str(row["num_seeds"]),
                with_interval(row["difference"], row["ci_low"], row["ci_high"])
                if np.isfinite(row["difference"])
                else "",
                number(row["p_holm"]) if has_p else "",
            )
            style = "bold" if has_p and row["p_holm"] <= 0.05 else ""
            shown.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    count = int(table["p"].notna().sum())
    return Group(shown, Text(DIFFERENCE + (COMPARED.format(count) if count else "")))


def _curves(plans: Sequence[Plan]) -> pd.DataFrame:
    """Return the frame of the learning curves of all variants."""
    variants = {name: collect_curves(plan) for plan, name in zip(plans, names(plans), strict=True)}
    return frames.learning_curves(variants, planned=plans[0].env_steps)


def _scores(plan: Plan, task: str) -> np.ndarray:
    """Return the scores of a task's finished runs."""
    runs = [run for run in plan.runs() if run.task == task and run.status == "finished"]
    scores = np.array([score(run.directory, plan.rule, run.env_steps) for run in runs])
    return scores[np.isfinite(scores)]
