"""Tables that describe a grid over its tasks, and their statistics; nothing is judged by them.

The statistics are those of Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice" (arXiv:2108.13264). They take normalised scores as a list with one array per
task, each with one score per seed; tasks may differ in their number of seeds. Every interval has
95 % of the resamples of seeds within each task (a stratified bootstrap), by a Generator of its own.
With three runs these span their range, which holds the true mean of symmetric scores in 75 % only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

from reproduce.judge.zero import Scale

IMPROVEMENT_COLUMNS = ("task", "probability", "ci_low", "ci_high", "num_seeds", "num_runs")
SUMMARY_COLUMNS = ("statistic", "estimate", "ci_low", "ci_high", "num_tasks", "num_seeds")
TIMES_COLUMNS = ("task", "seed", "share", "score", "env_steps", "wall_seconds")
SHARES = (0.5, 0.9)
"""Of the way from the zero of the scale to the reference, to which times are taken."""
LEAST = 3
"""Tasks of which a statistic says more than their rows."""
WIDEST = (-1.0, 3.0)
"""Ends of the axis of normalised scores: what lies beyond is drawn at an end."""

Scores = Sequence[Float[np.ndarray, "*resamples _"]]
"""One array per task, seeds last; the seeds' axis may differ between tasks."""

PerResample = float | Float[np.ndarray, "*resamples"]
"""One number per resample, or a single number for scores that were not resampled."""

Statistic = Callable[[Scores], PerResample]


class Interval(NamedTuple):
    """A statistic with its percentile interval, in the unit of the scores; of curves, by point."""

    estimate: Any
    ci_low: Any
    ci_high: Any


def mean_score(scores: Scores) -> PerResample:
    """Return the mean over tasks of the mean over seeds: every task weighs the same."""
    return np.mean([task_scores.mean(axis=-1) for task_scores in scores], axis=0)


def median_score(scores: Scores) -> PerResample:
    """Return the median over tasks of the mean over seeds."""
    return np.median([task_scores.mean(axis=-1) for task_scores in scores], axis=0)


def iqm(scores: Scores) -> PerResample:
    """Return the interquartile mean of all runs: without the lowest and the highest quarter.

    Runs are pooled, so a task with more seeds weighs more; either quarter is rounded down.
    """
    return scipy.stats.trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1)


def optimality_gap(scores: Scores) -> PerResample:
    """Return the mean shortfall below 1; scores above it do not make up for others."""
    return 1.0 - mean_score([np.minimum(task_scores, 1.0) for task_scores in scores])


STATISTICS: Mapping[str, Statistic] = {
    "iqm": iqm,
    "median": median_score,
    "mean": mean_score,
    "optimality_gap": optimality_gap,
}


def stratified_bootstrap(
    scores: Scores, statistic: Statistic, num_resamples: int = 10_000
) -> Interval:
    """Return a statistic of all tasks with its interval, resampling seeds within each task.

    A task with one seed never varies.
    """
    rng = np.random.default_rng(0)
    resampled = [
        task_scores[rng.integers(task_scores.size, size=(num_resamples, task_scores.size))]
        for task_scores in scores
    ]
    return Interval(float(statistic(scores)), *_ends(statistic(resampled)))


def stratified_band(
    curves: Sequence[Float[np.ndarray, "_ points"]], num_resamples: int = 2_000
) -> Interval:
    """Return the `mean_score` of all tasks at every point, with a pointwise bootstrap band.

    Whole runs are drawn, the same ones at every point.
    """
    points = [[runs[:, point] for runs in curves] for point in range(curves[0].shape[1])]
    intervals = [stratified_bootstrap(scores, mean_score, num_resamples) for scores in points]
    return Interval(*np.array(intervals).T)


def probability_of_improvement(
    scores: Scores, baseline: Scores, num_resamples: int = 10_000
) -> Interval:
    """Return the probability that a run scores above a run of the baseline, averaged over tasks.

    Within a task this is the Mann-Whitney statistic over the number of pairs; a tie counts half.
    """
    rng = np.random.default_rng(0)
    probability = 0.0
    resampled = np.zeros(num_resamples)
    for ours, theirs in zip(scores, baseline, strict=True):
        wins = (np.sign(ours[:, None] - theirs) + 1.0) / 2.0  # [seeds, baseline seeds]
        our_sums = _seed_counts(rng, ours.size, num_resamples) @ wins
        their_counts = _seed_counts(rng, theirs.size, num_resamples)
        probability += float(wins.mean()) / len(scores)
        resampled += (our_sums * their_counts).sum(axis=1) / (wins.size * len(scores))
    return Interval(probability, *_ends(resampled))


def _seed_counts(
    rng: np.random.Generator, num_seeds: int, num_resamples: int
) -> Float[np.ndarray, "resamples seeds"]:
    shares = np.full(num_seeds, 1.0 / num_seeds)
    return rng.multinomial(num_seeds, shares, size=num_resamples).astype(np.float64)


def _ends(resampled: PerResample) -> list[float]:
    return np.quantile(resampled, [0.025, 0.975]).tolist()


def normalise(scores: pd.DataFrame, scales: Mapping[str, Scale]) -> pd.DataFrame:
    """Add zero, reference and normalised scores to a table of scores.

    Normalised: (score - zero) / (reference - zero), NaN where the reference is not above the zero
    or has learned nothing.
    """
    means = {task: scale.reference.mean for task, scale in scales.items() if scale.reference}
    zeros = {task: scale.zero.score for task, scale in scales.items()}
    zero, reference = (scores["task"].map(ends).astype(float) for ends in (zeros, means))
    unlearned = [task for task, scale in scales.items() if scale.nothing_learned]
    gap = (reference - zero).where((reference > zero) & ~scores["task"].isin(unlearned))
    return scores.assign(
        zero_score=zero, reference_score=reference, normalised_score=(scores["score"] - zero) / gap
    )


def suite_summary(scores: pd.DataFrame) -> pd.DataFrame:
    """Aggregate the normalised scores of a suite (Agarwal et al. 2021).

    Returns:
        One row per statistic with 95 % of its resamples, the number of tasks that have normalised
        scores and the number of their runs; none of fewer than `LEAST` such tasks.
    """
    runs = _runs(scores)
    sizes = {"num_tasks": len(runs), "num_seeds": sum(map(len, runs))}
    rows = [
        {"statistic": name, **stratified_bootstrap(runs, statistic)._asdict(), **sizes}
        for name, statistic in (STATISTICS.items() if len(runs) >= LEAST else ())
    ]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def _runs(scores: pd.DataFrame) -> Scores:
    """Return the normalised scores of each task that has any."""
    counted = scores.dropna(subset="normalised_score").groupby("task", sort=False)
    return [of_task.to_numpy(np.float64) for _, of_task in counted["normalised_score"]]


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

    A task counts if at least two runs of either side have a normalised score; a tie counts half.
    The last row, where there are several tasks, is their mean, whose task is empty.
    """
    pairs, both = {}, [table.dropna(subset="normalised_score") for table in (scores, theirs)]
    for task in theirs["task"].unique():
        sides = (table.loc[table["task"] == task, "score"] for table in both)
        ours, reference = (side.to_numpy(np.float64) for side in sides)
        if min(ours.size, reference.size) > 1:
            pairs[task] = (ours, reference)
    groups = {task: [pair] for task, pair in pairs.items()}
    groups |= {"": [*pairs.values()]} if len(pairs) > 1 else {}
    rows = []
    for task, of_group in groups.items():
        ours, reference = ([*side] for side in zip(*of_group, strict=True))
        interval = probability_of_improvement(ours, reference)
        rows.append((task, *interval, sum(map(len, ours)), sum(map(len, reference))))
    return pd.DataFrame(rows, columns=list(IMPROVEMENT_COLUMNS))


def times_to_score(
    curves: pd.DataFrame, scales: Mapping[str, Scale], runs: pd.DataFrame
) -> pd.DataFrame:
    """Return when each seed's curve first reached `SHARES` of the way from zero to the reference.

    `score` is the return to reach; `env_steps` and `wall_seconds` those of the curve's first point
    there, NaN where it has none. Seeds are those with a curve, and those that failed, or diverged,
    without one.
    """
    rows = []
    points_of = dict(iter(curves.sort_values("env_steps").groupby(["task", "seed"])))
    for task, seed, status in runs[["task", "seed", "status"]].itertuples(index=False):
        points, scale = points_of.get((task, seed), curves.iloc[:0]), scales[task]
        zero, best = scale.zero.score, scale.reference.mean if scale.reference else math.nan
        has_ended = len(points) or status in ("failed", "diverged")
        counts = has_ended and not scale.nothing_learned
        for share in SHARES if counts and best > zero else ():
            score = zero + share * (best - zero)
            reached = points[points["mean_return"] >= score]
            first = reached.iloc[0] if len(reached) else {}
            when = (first.get(name, math.nan) for name in TIMES_COLUMNS[-2:])
            rows.append((task, seed, share, score, *when))
    return pd.DataFrame(rows, columns=list(TIMES_COLUMNS))


def median_times(times: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each task and share of `times.csv`, with the median of its seeds' seconds.

    A seed that did not get there counts as later than all others, so the median is NaN unless more
    than half did. Seconds are NaN where none were recorded.
    """
    groups = times.assign(late=times["wall_seconds"].fillna(np.inf))
    groups = groups.groupby(["task", "share", "score"], sort=False)
    found = groups["env_steps"].agg(num_reached="count", num_seeds="size")
    found[["fastest", "slowest"]] = groups["wall_seconds"].agg(["min", "max"])
    found["median"] = groups["late"].median().replace(np.inf, np.nan)
    return found.reset_index()


def over_tasks(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return what a grid's tables say of `LEAST` tasks or more, by the name of its figure.

    Rows have an estimate (or probability), the ends of its interval, and a role, ours or judge.
    """
    found = dict[str, pd.DataFrame]()
    if sides := sides_of(tables["scores"], tables["reference_scores"]):
        summaries = [suite_summary(side).assign(role=role) for role, side in sides.items()]
        found = {"profile": profile(sides), "aggregates": pd.concat(summaries, ignore_index=True)}
    if len(tables["improvement"]) > LEAST:  # the last row is their mean
        found["improvement"] = tables["improvement"].assign(role="ours")
    return found


def sides_of(scores: pd.DataFrame, reference_scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of tasks of which we have several normalised scores, by role.

    The reference is a side only if it has several scores for every one of these tasks. Fewer than
    `LEAST` tasks have no sides.
    """
    counted = (table.dropna(subset="normalised_score") for table in (scores, reference_scores))
    ours, theirs = (table[table.duplicated("task", keep=False)] for table in counted)
    tasks = set(ours["task"])
    if len(tasks) < LEAST:
        return {}
    theirs = theirs[theirs["task"].isin(tasks)]
    return {"ours": ours} | ({"judge": theirs} if set(theirs["task"]) == tasks else {})


def profile(sides: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the share of runs above each normalised score, every task weighing the same."""
    scores = pd.concat(side["normalised_score"] for side in sides.values())
    low, high = np.clip([min(scores.min(), 0.0), scores.max()], *WIDEST)
    points = np.linspace(low, high, 101)
    parts = []
    for role, side in sides.items():
        above = [(runs[:, None] > points).astype(np.float64) for runs in _runs(side)]
        band = stratified_band(above)
        parts.append(pd.DataFrame({"role": role, "x": points, **band._asdict()}))
    return pd.concat(parts, ignore_index=True)
