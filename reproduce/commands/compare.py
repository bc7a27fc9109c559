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
from reproduce.report.words import with_interval
from reproduce.run.view import say
from reproduce.words import number
from suite.base.errors import UsageError
from suite.envs.tasks import TASKS, folder_of
from suite.settings.command_line import printable

COLUMNS = ("task", "env steps", "A, mean (n)", "B, mean (n)", "B - A [95 %]", "speed B / A")
Configs = dict[Path, Mapping[str, Any]]
"""Configurations of finished runs of a task, by their folders."""


def compare(runs_a: Path, runs_b: Path) -> list[dict[str, Any]]:
    """Return one row per task with finished runs in both grids.

    Scores are taken at the largest step that every run of the task reached, under the runs' own
    rule; runs that have not finished, or have no score there, are `left_out`, with the reason. The
    interval is Welch's 95 % interval of the difference B - A (NaN with fewer than two scores on a
    side); `speed_ratio` is median B over median A environment steps per second.
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


def _read(runs: Path) -> tuple[str, dict[str, Configs], dict[str, dict[Path, str]]]:
    """Return which agent's settings a folder's finished runs have, and these runs by task.

    The last are the others by their task's folder, each with its status.
    """
    found, makers, others = dict[str, Configs](), dict[str, Path](), dict[str, dict[Path, str]]()
    for run, record in (*records_below(runs, "seed-*"), *records_below(runs)):
        if record["status"] == "finished":
            found.setdefault(record["task"], {})[run] = record["config"]
            agent = record.get("control") or record["agent"]
            makers.setdefault(f"{agent}, {record['source']}", run)
        else:
            folder = folder_of(record["task"]) or run.parent.name  # a damaged record does not say
            others.setdefault(folder, {})[run] = record["status"]
    if not found:
        raise UsageError(f"{runs} holds no finished runs ([<task>/]seed-<k>/run.json)")
    if len(makers) > 1:
        several = " and ".join(f"{maker} ({run})" for maker, run in makers.items())
        raise UsageError(f"{runs} holds runs of {several}: name a folder of one of them")
    return next(iter(makers)), found, others


def _row(task: str, runs_a: Configs, runs_b: Configs) -> dict[str, Any]:
    configs = [*runs_a.values(), *runs_b.values()]
    rules = {config.get("evaluation_rule", "deterministic") for config in configs}
    is_game = task in TASKS and TASKS[task].family == "atari"
    protocols = {config.get("protocol") or "noframeskip" for config in configs if is_game}
    refuse_different(task, rules=rules, protocols=protocols)
    rule, env_steps = rules.pop(), min(config["env_steps"] for config in configs)
    scores = {run: score(run, rule, env_steps) for run in (*runs_a, *runs_b)}
    none = f"no score at {env_steps:,} steps"
    left_out = {run: none for run, found in scores.items() if math.isnan(found)}
    a, b = (
        np.array([scores[run] for run in runs if run not in left_out], dtype=np.float64)
        for runs in (runs_a, runs_b)
    )
    mean_a, mean_b = (side.mean() if side.size else math.nan for side in (a, b))
    low, high, _ = interval(a, b)
    return {
        **{"task": task, "env_steps": env_steps, "rule": rule},
        **{"num_seeds_a": len(a), "score_mean_a": mean_a},
        **{"num_seeds_b": len(b), "score_mean_b": mean_b},
        **{"difference": mean_b - mean_a, "ci_low": low, "ci_high": high},
        "speed_ratio": _median_speed(runs_b) / _median_speed(runs_a),
        "left_out": left_out,
    }


def refuse_different(place: str, **kinds: Collection[str]) -> None:
    """Refuse, by a `UsageError` that names the place, scores of several rules or protocols."""
    for what, found in kinds.items():
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise UsageError(f"{place}: scores of different {what} do not compare: {names}")


def _median_speed(runs: Configs) -> float:
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


def _grids(runs: Path) -> dict[Path, Path]:
    """Return the grids of a `--runs-dir` by name; of a grid or another folder of runs, itself."""
    grids = sorted({run.parents[1] for run in runs.glob("*-*/*/*/seed-*")})
    return {path.relative_to(runs): path for path in grids} or {Path(): runs}


def _pairs(grids_a: Mapping[Path, Path], grids_b: Mapping[Path, Path]) -> list[tuple[Path, Path]]:
    """Return the folders to compare: of two with one grid each, these; else grids of one name."""
    if len(grids_a) == len(grids_b) == 1:
        return [*zip(grids_a.values(), grids_b.values(), strict=True)]
    both = [(path, grids_b[name]) for name, path in grids_a.items() if name in grids_b]
    folders = (*grids_a.values(), *grids_b.values())
    if not both and all(path.is_dir() for path in folders):
        ours, theirs = (", ".join(map(str, grids.values())) for grids in (grids_a, grids_b))
        raise UsageError(f"no grid has one name on both sides: name one of {ours}; and of {theirs}")
    return both or [(folders[0], folders[-1])]  # `compare` names the one that is missing


def main(argv: Sequence[str]) -> int:
    """Print a before-and-after table of two folders of runs, or of two `--runs-dir`."""
    parser = flags.make_parser("compare")
    parser.add_argument("runs_a", type=Path, help="runs/sac-mujoco/paper, an --out or a --runs-dir")
    parser.add_argument("runs_b", type=Path)
    options = parser.parse(argv)
    console = flags.make_console()
    sides = {"A": _grids(options.runs_a), "B": _grids(options.runs_b)}
    pairs, status = _pairs(*sides.values()), 0
    for runs_a, runs_b in pairs:
        try:
            rows = compare(runs_a, runs_b)
        except UsageError as error:
            if len(pairs) == 1:
                raise
            say(console, f"Not compared: {error}", "bold red")
            status = 2
            continue
        title = f"A: {runs_a} ({rows[0]['made_by_a']})   B: {runs_b} ({rows[0]['made_by_b']})"
        console.print(_table(rows, title))
        for row in rows:
            if row["left_out"]:
                runs = ", ".join(f"{run} ({why})" for run, why in row["left_out"].items())
                say(console, f"Left out of {row['task']}: {runs}")
    compared = {grid for pair in pairs for grid in pair}
    for side, grids in sides.items():
        if alone := [str(grid) for grid in grids.values() if grid not in compared]:
            say(console, f"Only in {side}: {', '.join(alone)}")
    return status


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = flags.make_table(*COLUMNS, title=printable(title))
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
