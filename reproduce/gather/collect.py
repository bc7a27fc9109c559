"""Gather the records of runs into tidy tables, one observation per row."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from reproduce.gather.references import in_window
from reproduce.gather.tables import SHARES, read_table
from reproduce.plan.grid import Plan, Run
from reproduce.plan.unlearned import known_zero
from reproduce.run.lease import Holders
from reproduce.run.log import plain
from suite.envs.tasks import find_task
from suite.record.reading import read_record

Failures = Mapping[tuple[str, int], str]
"""Errors by task and seed."""
IDLE_SHARES = ("learner_idle_share", "actor_idle_share")
"""Recorded where one thread acts while another learns."""
COLUMNS = {
    "runs": (
        *("task", "seed", "status", "error", "remark", "env_steps", "wall_seconds", "device"),
        *("cpu", "gpu", "commit", "dirty", "command", "log_tail"),
    ),
    "scores": ("task", "seed", "env_steps", "score"),
    "curves": ("task", "seed", "env_steps", "mean_return", "wall_seconds"),
    "throughput": (
        *("task", "seed", "device", "env_steps", "num_updates", "wall_seconds"),
        *("env_steps_per_second", "updates_per_second", *SHARES, "other_share"),
        "env_frames_per_second",
    ),
}
"""Of the tables of a plan's runs, by stem; `scores` and `curves` have the `rule`, too."""
CURVE_POINTS = 100
"""Points of a curve of training episodes; a curve of evaluations has one for each."""


def score(directory: Path, rule: str, env_steps: int) -> float:
    """Return a run's score at `env_steps`, NaN if its window is empty.

    The score is the mean over (0.9 t, t] of the evaluations that were due there (`deterministic`,
    `sampled`), or of the returns of the training episodes that end there (`training`); reward
    units. An evaluation at the run's end that was due at no multiple of the interval counts only
    where there is no other: longer runs, and the reference's, have no evaluation at that step.
    """
    return _window_mean(measured(directory, rule, env_steps), env_steps)


def measured(directory: Path, rule: str, env_steps: int) -> pd.DataFrame:
    """Return the rows of which those in (0.9 t, t] give the `score`: `env_steps`, `mean_return`."""
    table = scored(directory, rule)
    interval = _config(directory).get("evaluation_interval")
    return table if rule == "training" else on_schedule(table, env_steps, interval)


def on_schedule(evaluations: pd.DataFrame, env_steps: int, interval: int | None) -> pd.DataFrame:
    """Return a run's evaluations, in order, without a last one off schedule.

    That is one at no multiple of the interval, where (0.9 t, t] has another.
    """
    *_, before, last = (0, 0, *evaluations["env_steps"])
    is_extra = in_window(before, env_steps) and last % (interval or 1)
    return evaluations[:-1] if is_extra else evaluations


def evaluations(directory: Path) -> pd.DataFrame:
    """Return a run's evaluations, each at the step it was due: a multiple of the interval.

    Agents that update once per unroll evaluate at the first update past that step, up to one
    unroll late; their last evaluation, up to one unroll before the end, is due at the end. With due
    steps, seeds share their steps and an evaluation falls into the same window as the reference's.
    """
    table, config = read_table(directory / "evaluations.csv"), _config(directory)
    interval = config.get("evaluation_interval")
    if table.empty or interval is None:
        return table
    due = table.env_steps // interval * interval
    unroll = config.get("num_envs", 1) * config.get("unroll_length", 1)
    if table.env_steps.iloc[-1] > config["env_steps"] - unroll:
        due.iloc[-1] = config["env_steps"]
    return table.assign(env_steps=due)


def _config(directory: Path) -> dict[str, Any]:
    return (read_record(directory) or {}).get("config", {})


def curve(directory: Path, rule: str, env_steps: int) -> pd.DataFrame:
    """Return a run's curve up to `env_steps`: columns `env_steps`, `mean_return`.

    No window of training episodes ends after the run, or, if it has not finished, after its last
    episode.
    """
    table = scored(directory, rule)
    if rule == "training" and len(table):
        record, last = read_record(directory) or {}, table["env_steps"].max()
        table = window_means(table, env_steps)
        is_whole = record.get("status") == "finished"
        env_steps = min(env_steps, record["config"]["env_steps"] if is_whole else last)
    return table[table["env_steps"] <= env_steps]


def window_means(episodes: pd.DataFrame, env_steps: int) -> pd.DataFrame:
    """Return the curve of training episodes up to a step: means over (0.9 t, t]."""
    points = np.linspace(0, env_steps, CURVE_POINTS + 1)[1:].round().astype(int)
    means = [_window_mean(episodes, int(point)) for point in points]
    return pd.DataFrame({"env_steps": points, "mean_return": means}).dropna()


def wall_clock(directory: Path, env_steps: pd.Series) -> np.ndarray:
    """Return the seconds that a run took to given steps, evaluations included, to a millisecond.

    Its speed counts as even between two lines of `timing.csv`; NaN beyond the last line by more
    than the distance of two lines.
    """
    table = read_table(directory / "timing.csv")
    if table.empty:
        return np.full(len(env_steps), np.nan)
    steps = np.concatenate([[0.0], table["env_steps"].to_numpy(np.float64)])
    seconds = np.concatenate([[0.0], table["wall_seconds"].to_numpy(np.float64)])
    asked = env_steps.to_numpy(np.float64)
    found = np.interp(asked, steps, seconds).round(3)
    return np.where(asked <= steps[-1] + np.diff(steps).max(), found, np.nan)


def throughput(directory: Path) -> dict[str, float] | None:
    """Return a run's speed after warm-up, evaluations included: from its first updates to its end.

    Shares are of wall time; with `other_share`, the rest, they add up to the number of threads.
    None if fewer than two log intervals had updates.
    """
    table = read_table(directory / "timing.csv")
    learns = table.get("num_updates", pd.Series(dtype=int)) > 0
    if learns.sum() < 2:
        return None
    table = table[learns]
    lasted, weights = table.iloc[-1] - table.iloc[0], table["wall_seconds"].diff()
    seconds = lasted["wall_seconds"]
    shares = {
        name: float((table[name] * weights).sum(min_count=1) / seconds)  # the first has no weight
        for name in (*SHARES, *IDLE_SHARES)
        if name in table
    }
    num_threads = 2 if IDLE_SHARES[0] in shares else 1  # one that acts beside one that learns
    busy = sum(shares[column] for column in SHARES)
    return {
        **{name: float(table[name].iloc[-1]) for name in ("env_steps", "num_updates")},
        "wall_seconds": float(table["wall_seconds"].iloc[-1]),
        "env_steps_per_second": float(lasted["env_steps"] / seconds),
        "updates_per_second": float(lasted["num_updates"] / seconds),
        **shares,
        "other_share": float(np.maximum(0.0, num_threads - busy)),  # NaN where none is known
    }


def collect(
    plan: Plan, runs: Sequence[Run], failures: Failures = MappingProxyType({})
) -> dict[str, pd.DataFrame]:
    """Return what runs recorded so far: the tables `runs`, `scores`, `curves` and `throughput`.

    Every run has a row in `runs`. A run that ended has a score; a diverged one that of
    a random policy, if known: its own is unknown, and leaving it out would flatter the mean.

    `runs` are those of `tables.runs_of`; `failures`, errors that the launcher
    knows: on a full disk a run cannot record its own.
    """
    holders, found = Holders(), {name: list[Any]() for name in COLUMNS}
    for run in runs:
        key, reached = {"task": run.task, "seed": run.seed}, math.nan
        task = find_task(run.task, plan.protocol)
        if run.status == "finished":
            reached = score(run.directory, plan.rule, run.env_steps)
        elif run.has_ended:
            reached = known_zero(task.name, task.protocol).random
        found["runs"].append(_describe(run, plan.rule, reached, failures, holders))
        if math.isfinite(reached):
            found["scores"].append(key | {"env_steps": run.env_steps, "score": reached})
        if run.status in ("damaged", "left out"):  # files that cannot be used, or of other code
            continue
        line = curve(run.directory, plan.rule, run.env_steps)
        seconds = wall_clock(run.directory, line["env_steps"])
        found["curves"] += line.assign(**key, wall_seconds=seconds).to_dict("records")
        if speed := throughput(run.directory):
            frames = {"env_frames_per_second": task.frame_skip * speed["env_steps_per_second"]}
            device = {"device": _config(run.directory).get("device", "")}
            found["throughput"].append(key | device | speed | frames)
    idle = [name for name in IDLE_SHARES if any(name in row for row in found["throughput"])]
    tables = {
        name: pd.DataFrame(rows, columns=[*COLUMNS[name], *(idle if name == "throughput" else ())])
        for name, rows in found.items()
    }
    whole = tables["throughput"].astype({"seed": int, "env_steps": int, "num_updates": int})
    scores = tables["scores"].astype({"seed": int, "env_steps": int, "score": float})
    curves = tables["curves"].assign(rule=plan.rule)
    return tables | {"scores": scores.assign(rule=plan.rule), "curves": curves, "throughput": whole}


def _describe(
    run: Run, rule: str, reached: float, failures: Failures, holders: Holders
) -> dict[str, Any]:
    """Return a run's row of `runs.csv`.

    A damaged run, and a finished one without a score, count as failed. Running is what somebody
    holds the lease of; a begun run that nobody holds is `interrupted`, and one that is to be
    extended `planned`.
    """
    record = read_record(run.directory) or {}
    status, error = run.status, run.error
    has_to_run = status in ("running", "planned", "shorter")
    if status == "damaged":
        status, error = "failed", run.remark or error
    elif has_to_run and run.key in failures:
        status, error = "failed", failures[run.key]
    elif has_to_run and holders.is_held_of_late(run.directory):
        status = "running"
    elif status == "running":
        status = "interrupted"
    elif status == "shorter":
        status = "planned"
    elif status == "finished" and not math.isfinite(reached):
        window = f"({0.9 * run.env_steps:,.0f}, {run.env_steps:,}]"
        status, error = "failed", f"no {rule} score in {window}: use a larger --env-steps"
    machine = record.get("machine", {})
    return {
        "task": run.task,
        "seed": run.seed,
        "status": status,
        "error": plain(error),
        "remark": run.remark,
        "env_steps": run.env_steps,
        "wall_seconds": record.get("wall_seconds"),
        "device": _config(run.directory).get("device", ""),
        "cpu": machine.get("cpu", ""),
        "gpu": machine.get("gpu") or "",
        "commit": record.get("commit") or "",
        "dirty": record.get("dirty"),
        "command": record.get("command", ""),
        "log_tail": "\n".join(plain(str(line)) for line in record.get("log_tail", [])),
    }


def scored(directory: Path, rule: str) -> pd.DataFrame:
    """Return what a score of this rule averages, as columns `env_steps` and `mean_return`."""
    if rule == "training":
        table = read_table(directory / "episodes.csv")
        table = table.rename(columns={"episode_return": "mean_return"})
    else:
        table = evaluations(directory)
    return table.reindex(columns=["env_steps", "mean_return"])


def _window_mean(table: pd.DataFrame, env_steps: int) -> float:
    """Return the mean return over (0.9 t, t]; NaN if a value, or every row, is missing there."""
    inside = in_window(table["env_steps"].to_numpy(), env_steps)
    returns = table["mean_return"].to_numpy(np.float64)[inside]
    return float(returns.mean()) if returns.size else math.nan
