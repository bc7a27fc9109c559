"""The statistics of a verdict: one task, and a suite. Functions of numbers, float64.

`verdicts.py` uses them to reach a verdict, `error_rates.py` to reach many at once, and
`docs/verdicts.md` explains both to a reader.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from reproduce.gather.references import spread

Numbers = float | np.ndarray
"""One number, or one per test."""

Flags = bool | np.bool_ | np.ndarray
"""One truth value, or one per test."""
LEVEL = 0.05
"""One-sided level of the test at either end of an interval."""
MARGIN_FRACTION = 0.1
"""Margin as a fraction of the gap between the reference and the zero of the scale."""
MIN_REFERENCE_RUNS = 3
"""Smallest number of runs of a reference that judges: with two a verdict errs in about 7 %."""
MIN_SEEDS_APART = 5
"""Smallest number of seeds that is tested where one run lies apart from the others."""
TOLERANCE = 1e-9
"""Distance from the margin that counts as rounding, as a fraction of the margin."""
SCALED_MAD = 1.0 / special.ndtri(0.75)
"""Standard deviation of normal numbers over their median absolute deviation, 1.4826."""


class Sample(NamedTuple):
    """Statistics of one side's runs, all that a test uses."""

    mean: Numbers
    std: Numbers
    """Standard deviation over runs (n - 1 in the denominator)."""
    num_runs: Numbers
    """At least 2."""

    @property
    def variance(self) -> Numbers:
        """Return the squared standard error of the mean."""
        return np.square(self.std) / self.num_runs


def sample(scores: Float[np.ndarray, "*tests runs"]) -> Sample:
    """Return the statistics of these scores, runs in the last axis."""
    return Sample(scores.mean(axis=-1), spread(scores), scores.shape[-1])


class Comparison(NamedTuple):
    """An estimated difference and its interval; every field has one entry per test."""

    difference: Numbers
    """Ours minus the reference's; negative where we fall short."""
    standard_error: Numbers
    degrees_of_freedom: Numbers
    """Of Student's distribution, which (difference / standard error) nearly follows."""
    ci_low: Numbers
    ci_high: Numbers

    def p_below(self, margin: Numbers) -> Numbers:
        """Return the one-sided p-value against "we fall short by at most the margin".

        Without any spread it is 0 or 1: 1 at a shortfall of exactly the margin. It is below the
        interval's level if and only if the interval's upper end is below minus the margin.
        """
        excess = np.asarray(self.difference + margin, np.float64)
        has_spread = np.asarray(self.standard_error) > 0.0
        statistic = excess / np.where(has_spread, self.standard_error, 1.0)
        exact = np.where(excess < -TOLERANCE * np.asarray(margin), 0.0, 1.0)
        return np.where(has_spread, special.stdtr(self.degrees_of_freedom, statistic), exact)[()]


def welch(ours: Sample, theirs: Sample, level: float = LEVEL) -> Comparison:
    """Compare two means without assuming equal spreads (Welch 1947).

    With v = s^2 / n of either side the standard error is the root of v_1 + v_2, its degrees of
    freedom (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)) (Satterthwaite 1946). If both
    spreads are 0, the interval shrinks to the difference. The level is that of the one-sided test
    at either end of the interval.
    """
    variances = np.broadcast_arrays(ours.variance, theirs.variance)
    freedoms = np.broadcast_arrays(ours.num_runs - 1, theirs.num_runs - 1)
    difference = ours.mean - theirs.mean
    return _interval(difference, np.stack(variances, -1), np.stack(freedoms, -1), level)


def counts_in_suite(theirs: Sample, zero_score: Numbers) -> Flags:
    """Return whether a task's gap is at least twice the reference's deviation over runs.

    With a smaller gap the ratio's mean is useless: its divisor comes close to 0.
    """
    return theirs.mean - zero_score >= 2.0 * np.asarray(theirs.std)


def compare_suite(
    ours: Sample,
    theirs: Sample,
    zero_score: Float[np.ndarray, "*tests tasks"],
    counted: Bool[np.ndarray, "*tests tasks"],
) -> Comparison:
    """Compare the mean over tasks of (ours - zero) / (reference - zero) with 1.

    With g = reference - zero, v = s^2 / n of either side, and r the ratio of a task:

    - the mean of a ratio is too large by r v_ref / g^2, to second order in the reference's error
      (Taylor's expansion of 1 / g), so the estimate is r (1 - v_ref / g^2) - 1;
    - its variance is (v_ours + r^2 v_ref) / g^2 (delta method); degrees of freedom as in `welch`,
      over both sides of every task.

    Tasks may differ in their numbers of runs. The zero of the scale counts as exact, though a
    source's untrained policies may be few runs. Tasks lie in the last axis; at least one is
    `counted` in every test.
    """
    gap = np.where(counted, theirs.mean - zero_score, 1.0)
    ratio = np.where(counted, (ours.mean - zero_score) / gap, 0.0)
    num_tasks = counted.sum(axis=-1, keepdims=True)
    differences = np.where(counted, ratio * (1.0 - theirs.variance / gap**2) - 1.0, 0.0)
    scale = (gap * num_tasks) ** 2
    variances = [
        np.where(counted, ours.variance / scale, 0.0),
        np.where(counted, ratio**2 * theirs.variance / scale, 0.0),
    ]
    freedoms = [np.broadcast_to(side.num_runs - 1, gap.shape) for side in (ours, theirs)]
    difference = (differences / num_tasks).sum(axis=-1)
    return _interval(difference, np.concatenate(variances, -1), np.concatenate(freedoms, -1), LEVEL)


def decide(ci_low: Numbers, ci_high: Numbers, margin: Numbers) -> np.ndarray:
    """Return the verdict for intervals of the difference and positive margins, one per test.

    An end within `TOLERANCE` of the margin lies on it: -margin is not below -margin, so a shortfall
    of exactly the margin is `reproduced`, and an advantage of it is not `above`.
    """
    above, below = margin * (1.0 + TOLERANCE), -margin * (1.0 + TOLERANCE)
    return np.select(
        [ci_low > above, ci_low >= below, ci_high < below],
        ["above", "reproduced", "below"],
        default="inconclusive",
    )


def lies_apart(scores: Float[np.ndarray, "*tests seeds"], margin: Numbers) -> Flags:
    """Return whether a run is further from the median than both three deviations and the margin.

    The deviation is the median absolute one (Hampel 1974), scaled to be the standard deviation of
    normal numbers. It is small if two of three runs happen to agree, and a run that is off by less
    than the margin decides nothing: so the run must be off by more than the margin, too.
    """
    deviations = np.abs(scores - np.median(scores, axis=-1, keepdims=True))
    limit = 3.0 * SCALED_MAD * np.median(deviations, axis=-1)
    return deviations.max(axis=-1) > np.maximum(limit, margin)


def holm(p_values: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Adjust p-values for the number of tests (Holm 1979); NaN marks a missing test and stays NaN.

    Rejecting where the adjusted value is at most 0.05 keeps the probability of any false
    rejection among all tests at 5 %, whatever their dependence, if each p-value is true. Those of
    three seeds against ten runs are too small far out: see `docs/error_rates.md`.
    """
    tested = np.flatnonzero(~np.isnan(p_values))
    values = p_values[tested]
    order = np.argsort(values)
    remaining = np.arange(values.size, 0, -1)
    adjusted = p_values.copy()
    adjusted[tested[order]] = np.minimum(np.maximum.accumulate(remaining * values[order]), 1.0)
    return adjusted


def _interval(
    difference: Numbers, variances: np.ndarray, freedoms: np.ndarray, level: float
) -> Comparison:
    """Return a difference with its interval.

    Its variance is the sum of independent parts (last axis), of `freedoms` degrees of freedom.
    """
    total, parts = variances.sum(-1), (variances**2 / freedoms).sum(-1)
    has_spread = parts > 0.0
    freedom = np.where(has_spread, total**2 / np.where(has_spread, parts, 1.0), freedoms.sum(-1))
    error = np.sqrt(total)
    half = error * special.stdtrit(freedom, 1.0 - level)
    return Comparison(difference, error, freedom[()], difference - half, difference + half)
