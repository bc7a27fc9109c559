"""Tables that describe a grid over its tasks; nothing is judged by them."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from reproduce.judge import statistics
from reproduce.judge.zero import Scale
from suite.settings.presets import REFERENCES

COLUMNS = ("task", "probability", "ci_low", "ci_high", "num_seeds", "num_runs")
TIMES_COLUMNS = ("task", "seed", "share", "score", "env_steps", "wall_seconds")
SHARES = (0.5, 0.9)
"""Of the way from the zero of the scale to the reference, to which times are taken."""
NONE = statistics.Interval(math.nan, math.nan, math.nan)


def normalise(scores: pd.DataFrame, scales: Mapping[str, Scale]) -> pd.DataFrame:
    """Add zero, reference and normalised scores to a table of scores.

    Normalised: (score - zero) / (reference - zero), NaN where the reference is not above the zero.
    """
    means = {task: scale.reference.mean for task, scale in scales.items() if scale.reference}
    zeros = {task: scale.zero.score for task, scale in scales.items()}
    zero, reference = (scores["task"].map(ends).astype(float) for ends in (zeros, means))
    gap = (reference - zero).where(reference > zero)
    return scores.assign(
        zero_score=zero, reference_score=reference, normalised_score=(scores["score"] - zero) / gap
    )


def human_scores(tasks: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the published random and human scores of the Atari games among tasks.

    They are unclipped returns of the no-op-start literature, which uses them for both protocols.
    """
    table = pd.read_csv(REFERENCES / "human_random.csv").set_index("task")
    ends = zip(table["random"].astype(float), table["human"].astype(float), strict=True)
    known = dict(zip(table.index, ends, strict=True))
    return {task: known[task] for task in tasks if task in known}


def suite_summary(
    scores: pd.DataFrame, human_scores: Mapping[str, tuple[float, float]]
) -> pd.DataFrame:
    """Aggregate the normalised scores of a suite (Agarwal et al. 2021).

    Human-normalised, for Atari: (score - random) / (human - random) with the published numbers of
    `human_scores`, without a reference; those rows are left out without any.

    Returns:
        One row per statistic with 95 % of its resamples, the number of tasks that have normalised
        scores and the number of their runs; NaN if no task counts.
    """
    ends = pd.DataFrame(human_scores, index=["random", "human"]).T.reindex(scores["task"])
    random, human = (ends[name].to_numpy(np.float64) for name in ("random", "human"))
    by_human = scores.assign(normalised_score=(scores["score"] - random) / (human - random))
    aggregates = [
        ("iqm", scores, statistics.iqm),
        ("median", scores, statistics.median_score),
        ("mean", scores, statistics.mean_score),
        ("optimality_gap", scores, statistics.optimality_gap),
        ("human_normalised_median", by_human, statistics.median_score),
        ("human_normalised_iqm", by_human, statistics.iqm),
    ]
    rows = []
    for name, table, statistic in aggregates if human_scores else aggregates[:4]:
        counted = table.dropna(subset="normalised_score").groupby("task", sort=False)
        runs = [of_task.to_numpy(np.float64) for _, of_task in counted["normalised_score"]]
        interval = NONE
        if runs:
            interval = statistics.stratified_bootstrap(runs, statistic, seed=0)
        sizes = {"num_tasks": len(runs), "num_seeds": sum(map(len, runs))}
        rows.append({"statistic": name} | interval._asdict() | sizes)
    return pd.DataFrame(rows)


def reference_scores(scales: Mapping[str, Scale]) -> pd.DataFrame:
    """Return the score of every single run of the references, numbered within its task."""
    rows = [
        (task, reference.source, run, reference.env_steps, score, reference.rule)
        for task, scale in scales.items()
        if (reference := scale.reference)
        for run, score in enumerate(reference.scores, 1)
    ]
    columns = ["task", "source", "run", "env_steps", "score", "rule"]
    return pd.DataFrame(rows, columns=columns)


def improvements(scores: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return the probability of improvement (Agarwal et al. 2021) of each task, and their mean.

    A task counts if at least two runs of either side have a score; a tie counts half. The last row,
    where there are several tasks, is their mean, whose task is empty.
    """
    pairs = {}
    for task in theirs["task"].unique():
        sides = (table.loc[table["task"] == task, "score"] for table in (scores, theirs))
        ours, reference = (side.to_numpy(np.float64) for side in sides)
        if min(ours.size, reference.size) > 1:
            pairs[task] = (ours, reference)
    groups = {task: [pair] for task, pair in pairs.items()}
    groups |= {"": [*pairs.values()]} if len(pairs) > 1 else {}
    rows = []
    for task, of_group in groups.items():
        ours, reference = ([*side] for side in zip(*of_group, strict=True))
        interval = statistics.probability_of_improvement(ours, reference, seed=0)
        rows.append((task, *interval, sum(map(len, ours)), sum(map(len, reference))))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def times_to_score(curves: pd.DataFrame, scales: Mapping[str, Scale]) -> pd.DataFrame:
    """Return when each seed's curve first reached `SHARES` of the way from zero to the reference.

    `score` is the return to reach; `env_steps` and `wall_seconds` those of the curve's first point
    there, NaN where it has none.
    """
    rows = []
    for (task, seed), points in curves.sort_values("env_steps").groupby(["task", "seed"]):
        scale = scales[str(task)]
        zero, best = scale.zero.score, scale.reference.mean if scale.reference else math.nan
        for share in SHARES if best > zero else ():
            score = zero + share * (best - zero)
            reached = points[points["mean_return"] >= score]
            first = reached.iloc[0] if len(reached) else {}
            when = (first.get(name, math.nan) for name in TIMES_COLUMNS[-2:])
            rows.append((task, seed, share, score, *when))
    return pd.DataFrame(rows, columns=list(TIMES_COLUMNS))
