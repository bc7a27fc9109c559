"""Aggregates of scores over tasks and seeds, with bootstrap intervals.

The statistics are those of Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice" (arXiv:2108.13264): mean, median, interquartile mean (IQM), optimality gap
and the probability of improvement. They take normalised scores as a list
with one array per task, and each array holds one score per seed; tasks may differ in their number
of seeds. Every interval comes from resampling seeds within each task (a stratified bootstrap) with
its own Generator, so the same seed gives the same interval.

Bands and intervals made here describe and decide nothing: tasks and suites are judged by
`verdicts.py`. With three runs 95 % of the resamples of a mean span their range, which holds the
true mean of symmetric scores in 75 % only.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

Scores = Sequence[Float[np.ndarray, "*resamples _"]]
"""One array per task, seeds last; the seeds' axis may differ between tasks."""

PerResample = float | Float[np.ndarray, "*resamples"]
"""One number per resample, or a single number for scores that were not resampled."""

Statistic = Callable[[Scores], PerResample]

CONFIDENCE = 0.95
"""Share of the resamples inside an interval or a band."""


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


def stratified_bootstrap(
    scores: Scores, statistic: Statistic, *, seed: int, num_resamples: int = 10_000
) -> Interval:
    """Return a statistic of all tasks with its interval, resampling seeds within each task.

    A task with one seed never varies.
    """
    rng = np.random.default_rng(seed)
    resampled = [
        task_scores[rng.integers(task_scores.size, size=(num_resamples, task_scores.size))]
        for task_scores in scores
    ]
    return Interval(float(statistic(scores)), *_ends(np.asarray(statistic(resampled))).tolist())


def stratified_band(
    curves: Sequence[Float[np.ndarray, "_ points"]],
    statistic: Statistic,
    *,
    seed: int,
    num_resamples: int = 2_000,
) -> Interval:
    """Return a statistic of all tasks at every point, with a pointwise bootstrap band.

    A resample draws whole runs within each task, so the points of a run stay together.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(len(runs), size=(num_resamples, len(runs))) for runs in curves]
    points = range(curves[0].shape[1])
    values = [statistic([runs[:, point] for runs in curves]) for point in points]
    resampled = [
        statistic([runs[rows, point] for runs, rows in zip(curves, drawn, strict=True)])
        for point in points
    ]
    return Interval(np.array(values), *_ends(np.stack(resampled, axis=1)))


def probability_of_improvement(
    scores: Scores, baseline: Scores, *, seed: int, num_resamples: int = 10_000
) -> Interval:
    """Return the probability that a run scores above a run of the baseline, averaged over tasks.

    Within a task this is the Mann-Whitney statistic over the number of pairs; a tie counts half.
    """
    rng = np.random.default_rng(seed)
    probability = 0.0
    resampled = np.zeros(num_resamples)
    for ours, theirs in zip(scores, baseline, strict=True):
        wins = (np.sign(ours[:, None] - theirs) + 1.0) / 2.0  # [seeds, baseline seeds]
        our_sums = _seed_counts(rng, ours.size, num_resamples) @ wins
        their_counts = _seed_counts(rng, theirs.size, num_resamples)
        probability += float(wins.mean()) / len(scores)
        resampled += (our_sums * their_counts).sum(axis=1) / (wins.size * len(scores))
    return Interval(probability, *_ends(resampled).tolist())


def _seed_counts(
    rng: np.random.Generator, num_seeds: int, num_resamples: int
) -> Float[np.ndarray, "resamples seeds"]:
    """Draw how often each seed occurs in each resample."""
    shares = np.full(num_seeds, 1.0 / num_seeds)
    return rng.multinomial(num_seeds, shares, size=num_resamples).astype(np.float64)


def _ends(resampled: Float[np.ndarray, "resamples ..."]) -> Float[np.ndarray, "2 ..."]:
    """Return the two percentiles that enclose the central share of the resamples."""
    tail = (1.0 - CONFIDENCE) / 2.0
    return np.quantile(resampled, [tail, 1.0 - tail], axis=0)
