"""`compare RUNS_A RUNS_B`: a before-and-after table of two grids of runs, with intervals."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.table import Table

from reproduce.commands import flags
from reproduce.gather.collect import score, throughput
from reproduce.judge.inference import sample, welch
from reproduce.plan.status import records_below
from reproduce.plan.unlearned import known_zero
from reproduce.report.words import with_interval
from reproduce.run.view import make_table, say
from reproduce.words import number
from suite.base.errors import UsageError
from suite.envs.tasks import TASKS, folder_of
from suite.record.reading import ENDED
from suite.settings.command_line import printable

COLUMNS = ("task", "env steps", "A, mean (n)", "B, mean (n)", "B - A [95 %]", "speed B / A")
Records = dict[Path, Mapping[str, Any]]
"""Records of a task's runs that ended, by their folders."""


def compare(runs_a: Path, runs_b: Path) -> list[dict[str, Any]]:
    """Return one row per task with runs that ended in both grids.

    Scores are taken at the largest step that every run of the task reached, under the runs' own
    rule. A run that `diverged` has a random policy's score, as in a verdict; runs that have not
    ended, or have no score there, are `left_out`, with the reason. The interval is Welch's 95 %
    interval of the difference B - A (NaN with fewer than two scores on a side); `speed_ratio` is
    median B over median A environment steps per second.
    """
    for runs in (runs_a, runs_b):
        if not runs.is_dir():
            raise UsageError(f"there is no folder {runs}")
    (maker_a, grid_a, others_a), (maker_b, grid_b, others_b) = _read(runs_a), _read(runs_b)
    shared = [task for task in grid_a if task in grid_b]
    if not shared:
        tasks = " and ".join(", ".join(grid) for grid in (grid_a, grid_b))
        raise UsageError(f"{runs_a} and {runs_b} share no task: they hold {tasks}")
    made: dict[str, Any] = {"made_by_a": maker_a, "made_by_b": maker_b}
    rows = [made | _row(task, grid_a[task], grid_b[task]) for task in shared]
    for row in rows:
        folder = folder_of(row["task"])
        row["left_out"] |= others_a.get(folder, {}) | others_b.get(folder, {})
    return rows


def _read(runs: Path) -> tuple[str, dict[str, Records], dict[str, dict[Path, str]]]:
    """Return which agent's settings a folder's runs that ended have, and these runs by task.

    The last are the others by their task's folder, each with its status.
    """
    found, makers, others = dict[str, Records](), dict[str, Path](), dict[str, dict[Path, str]]()
    for run, record in (*records_below(runs, "seed-*"), *records_below(runs)):
        if record["status"] in ENDED:
            found.setdefault(record["task"], {})[run] = record
            agent = record.get("control") or record["agent"]
            makers.setdefault(f"{agent}, {record['source']}", run)
        else:
            folder = folder_of(record["task"]) or run.parent.name  # a damaged record does not say
            others.setdefault(folder, {})[run] = record["status"]
    if not found:
        grid = next((run.parents[1] for run in sorted(runs.glob("*-*/*/*/seed-*"))), None)
        fix = f": name a grid, such as {grid}" if grid else ""
        raise UsageError(f"{runs} holds no runs that ended ([<task>/]seed-<k>/run.json){fix}")
    if len(makers) > 1:
        several = " and ".join(f"{maker} ({run})" for maker, run in makers.items())
        raise UsageError(f"{runs} holds runs of {several}: name a folder of one of them")
    return next(iter(makers)), found, others


def _row(task: str, runs_a: Records, runs_b: Records) -> dict[str, Any]:
    runs = runs_a | runs_b
    configs = [record["config"] for record in runs.values()]
    rules = {config.get("evaluation_rule", "deterministic") for config in configs}
    is_game = task in TASKS and TASKS[task].family == "atari"
    protocols = {config.get("protocol") or "noframeskip" for config in configs if is_game}
    refuse_different(task, rules=rules, protocols=protocols)
    rule, env_steps = rules.pop(), min(config["env_steps"] for config in configs)
    random = known_zero(task, next(iter(protocols), "")).random
    diverged = [run for run, record in runs.items() if record["status"] == "diverged"]
    scores = {run: random if run in diverged else score(run, rule, env_steps) for run in runs}
    none, unknown = f"no score at {env_steps:,} steps", "diverged; a random score is unknown"
    absent = [run for run, found in scores.items() if math.isnan(found)]
    left_out = {run: unknown if run in diverged else none for run in absent}
    a, b = (
        np.array([scores[run] for run in side if run not in left_out], dtype=np.float64)
        for side in (runs_a, runs_b)
    )
    mean_a, mean_b = (side.mean() if side.size else math.nan for side in (a, b))
    low, high, _ = interval(a, b)
    return {
        **{"task": task, "env_steps": env_steps, "rule": rule},
        **{"num_seeds_a": len(a), "score_mean_a": mean_a},
        **{"num_seeds_b": len(b), "score_mean_b": mean_b},
        **{"difference": mean_b - mean_a, "ci_low": low, "ci_high": high},
        "speed_ratio": _median_speed(runs_b) / _median_speed(runs_a),
        "diverged": [run for run in diverged if run not in left_out],
        "left_out": left_out,
    }


def refuse_different(place: str, **kinds: Collection[str]) -> None:
    """Refuse, by a `UsageError` that names the place, scores of several rules or protocols."""
    for what, found in kinds.items():
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise UsageError(f"{place}: scores of different {what} do not compare: {names}")


def _median_speed(runs: Records) -> float:
    speeds = [speed["env_steps_per_second"] for run in runs if (speed := throughput(run))]
    return float(np.median(speeds)) if speeds else math.nan


def interval(
    ours: Float[np.ndarray, " a"], theirs: Float[np.ndarray, " b"]
) -> tuple[float, float, float]:
    """Return Welch's 95 % interval of the difference of means, B - A, and its p-value.

    The p-value is two-sided. All are NaN with fewer than two scores on a side.
    """
    if min(len(ours), len(theirs)) < 2:
        return math.nan, math.nan, math.nan
    test = welch(sample(theirs), sample(ours), level=0.025)
    p_below = 0.5 if test.difference == 0.0 else float(test.p_below(0.0))
    return float(test.ci_low), float(test.ci_high), 2.0 * min(p_below, 1.0 - p_below)


def main(argv: Sequence[str]) -> int:
    """Print a before-and-after table of two folders of runs."""
    parser = flags.make_parser("compare")
    text = "folder of a grid, such as runs/sac-mujoco/paper, or --out of an agent's command"
    parser.add_argument("runs_a", type=Path, help=text)
    parser.add_argument("runs_b", type=Path)
    options = parser.parse(argv)
    rows, console = compare(options.runs_a, options.runs_b), flags.make_console()
    first = rows[0]
    title = f"A: {options.runs_a} ({first['made_by_a']})   B: {options.runs_b} "
    console.print(_table(rows, f"{title}({first['made_by_b']})"))
    for row in rows:
        if row["diverged"]:
            runs = ", ".join(map(str, row["diverged"]))
            say(console, f"Diverged on {row['task']}, so counted as a random policy: {runs}")
        if row["left_out"]:
            runs = ", ".join(f"{run} ({why})" for run, why in row["left_out"].items())
            say(console, f"Left out of {row['task']}: {runs}")
    return 0


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = make_table(*COLUMNS, title=printable(title))
    for row in rows:
        counts = (row["num_seeds_a"], row["num_seeds_b"])
        means = zip((row["score_mean_a"], row["score_mean_b"]), counts, strict=True)
        difference = with_interval(row["difference"], row["ci_low"], row["ci_high"])
        if min(counts) < 2:
            difference = f"{number(row['difference'])}, no interval: one run on a side"
        if min(counts) == 0:
            difference = "none: no score on a side"
        table.add_row(
            printable(row["task"]),
            f"{row['env_steps']:,}",
            *(f"{number(mean)} ({count})" if count else "no score" for mean, count in means),
            difference,
            "not timed" if math.isnan(row["speed_ratio"]) else f"{row['speed_ratio']:.2f}",
        )
    return table
