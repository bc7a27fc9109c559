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
from typing import NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

Scores = Sequence[Float[np.ndarray, "*resamples _"]]
"""One array per task, seeds last; the seeds' axis may differ between tasks."""

PerResample = float | Float[np.ndarray, "*resamples"]
"""One number per resample, or a single number for scores that were not resampled."""

Statistic = Callable[[Scores], PerResample]


LARGEST_BLOCK = 2**21
"""Draws of a bootstrap that are in memory at once."""


class Interval(NamedTuple):
    """A statistic with its percentile interval, in the unit of the scores."""

    estimate: float
    ci_low: float
    ci_high: float


class Band(NamedTuple):
    """A mean with its pointwise percentile interval, one number per point."""

    mean: Float[np.ndarray, " points"]
    ci_low: Float[np.ndarray, " points"]
    ci_high: Float[np.ndarray, " points"]


def mean_score(scores: Scores) -> PerResample:
    """Return the mean over tasks of the mean over seeds: every task weighs the same."""
    return np.mean([task_scores.mean(axis=-1) for task_scores in scores], axis=0)


def median_score(scores: Scores) -> PerResample:
    """Return the median over tasks of the mean over seeds."""
    return np.median([task_scores.mean(axis=-1) for task_scores in scores], axis=0)


def iqm(scores: Scores) -> PerResample:
    """Return the interquartile mean of all runs: without the lowest and the highest quarter.

    Runs are pooled, so a task with more seeds weighs more. The number of runs cut at either end
    is rounded down.
    """
    return scipy.stats.trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> PerResample:
    """Return the mean shortfall below `target`; scores above it do not make up for others."""
    return target - mean_score([np.minimum(task_scores, target) for task_scores in scores])


def stratified_bootstrap(
    scores: Scores,
    statistic: Statistic,
    *,
    seed: int,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Return a statistic of all tasks with its interval, resampling seeds within each task.

    Args:
        scores: one array of finite scores per task; a task with one seed never varies.
        statistic: one of the functions of this module, or one of the same shape.
        seed: of the Generator that draws the resamples.
        num_resamples: number of resamples.
        confidence: share of resamples inside the interval, in (0, 1).

    Returns:
        The statistic of the scores as they are, and the percentile interval.

    Raises:
        ValueError: if `scores` is empty, a task has no seed, or a score is not finite.
    """
    _check_scores(scores)
    _check_bootstrap(num_resamples, confidence)
    rng = np.random.default_rng(seed)
    num_runs = sum(task_scores.size for task_scores in scores)
    resampled = [
        np.atleast_1d(
            statistic(
                [
                    task_scores[rng.integers(task_scores.size, size=(size, task_scores.size))]
                    for task_scores in scores
                ]
            )
        )
        for size in _blocks(num_resamples, num_runs)
    ]
    ci_low, ci_high = _percentile_interval(np.concatenate(resampled), confidence)
    return Interval(float(statistic(scores)), float(ci_low), float(ci_high))


def bootstrap_band(
    values: Float[np.ndarray, "seeds points"],
    *,
    seed: int,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Band:
    """Return the mean curve of several seeds with a pointwise bootstrap band.

    A resample draws whole seeds, so the points of one seed stay together. With one seed the band
    equals the mean.

    Args:
        values: one row per seed, all finite and aligned on the same points.
        seed: of the Generator that draws the resamples.
        num_resamples: number of resamples.
        confidence: share of resamples inside the band at each point, in (0, 1).

    Returns:
        Mean over seeds and the two edges of the band.

    Raises:
        ValueError: if `values` has no row or a value is not finite.
    """
    if values.shape[0] == 0:
        raise ValueError("a band needs at least one seed, not 0")
    if not np.isfinite(values).all():
        row, point = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(f"values must be finite, not {values[row, point]} at [{row}, {point}]")
    _check_bootstrap(num_resamples, confidence)
    rng = np.random.default_rng(seed)
    resampled_means = _resampled_sums(rng, values, num_resamples) / len(values)
    return Band(values.mean(axis=0), *_percentile_interval(resampled_means, confidence))


def probability_of_improvement(
    scores: Scores,
    baseline: Scores,
    *,
    seed: int,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Return the probability that a run scores above a run of the baseline, averaged over tasks.

    Within a task this is the Mann-Whitney statistic over the number of pairs; a tie counts half.

    Args:
        scores: one array of finite scores per task.
        baseline: the scores to improve on, tasks in the same order.
        seed: of the Generator that draws the resamples.
        num_resamples: number of resamples; both sides are resampled.
        confidence: share of resamples inside the interval, in (0, 1).

    Returns:
        The probability and its percentile interval.

    Raises:
        ValueError: if the numbers of tasks differ, a task has no seed, or a score is not finite.
    """
    if len(scores) != len(baseline):
        raise ValueError(f"{len(scores)} tasks cannot be compared with {len(baseline)} tasks")
    _check_scores(scores)
    _check_scores(baseline)
    _check_bootstrap(num_resamples, confidence)
    rng = np.random.default_rng(seed)
    probability = 0.0
    resampled = np.zeros(num_resamples)
    for ours, theirs in zip(scores, baseline, strict=True):
        wins = (np.sign(ours[:, None] - theirs) + 1.0) / 2.0  # [seeds, baseline seeds]
        our_sums = _resampled_sums(rng, wins, num_resamples)
        their_counts = _seed_counts(rng, theirs.size, num_resamples)
        probability += float(wins.mean()) / len(scores)
        resampled += (our_sums * their_counts).sum(axis=1) / (wins.size * len(scores))
    ci_low, ci_high = _percentile_interval(resampled, confidence)
    return Interval(probability, float(ci_low), float(ci_high))


def _seed_counts(
    rng: np.random.Generator, num_seeds: int, num_resamples: int
) -> Float[np.ndarray, "resamples seeds"]:
    """Draw how often each seed occurs in each resample."""
    shares = np.full(num_seeds, 1.0 / num_seeds)
    return rng.multinomial(num_seeds, shares, size=num_resamples).astype(np.float64)


def _resampled_sums(
    rng: np.random.Generator, values: Float[np.ndarray, "seeds points"], num_resamples: int
) -> Float[np.ndarray, "resamples points"]:
    """Return the sums over the seeds of each resample; the draws are those of `_seed_counts`."""
    blocks = _blocks(num_resamples, len(values))
    return np.concatenate([_seed_counts(rng, len(values), size) @ values for size in blocks])


def _blocks(num_resamples: int, num_seeds: int) -> list[int]:
    """Return numbers of resamples to draw at once: 16 MiB of draws at most, one resample at least.

    Up to 200 seeds that is all 10,000 at once.
    """
    most = max(1, LARGEST_BLOCK // max(1, num_seeds))
    whole, rest = divmod(num_resamples, most)
    return [most] * whole + [rest] * (rest > 0)


def _percentile_interval(
    resampled: Float[np.ndarray, "resamples ..."], confidence: float
) -> Float[np.ndarray, "2 ..."]:
    """Return the two percentiles that enclose the central share of the resamples."""
    tail = (1.0 - confidence) / 2.0
    return np.quantile(resampled, [tail, 1.0 - tail], axis=0)


def _check_scores(scores: Scores) -> None:
    if len(scores) == 0:
        raise ValueError("statistics need at least one task, not 0")
    for task, task_scores in enumerate(scores):
        if task_scores.ndim != 1 or task_scores.size == 0:
            raise ValueError(f"task {task} needs one score per seed, not shape {task_scores.shape}")
        if not np.isfinite(task_scores).all():
            index = int(np.flatnonzero(~np.isfinite(task_scores))[0])
            raise ValueError(
                f"scores must be finite, not {task_scores[index]} (task {task}, score {index})"
            )


def _check_bootstrap(num_resamples: int, confidence: float) -> None:
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, not {num_resamples}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie inside (0, 1), not {confidence}")
