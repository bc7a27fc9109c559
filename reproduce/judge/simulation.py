"""Many checks simulated at once: scores of two sides, judged at looks as a real check judges them.

`error_rates.py` tells how often verdicts err, `outlook.py` what a plan can decide.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from reproduce.judge.inference import (
    MARGIN_FRACTION,
    MIN_SEEDS_APART,
    Comparison,
    Sample,
    compare_suite,
    counts_in_suite,
    decide,
    lies_apart,
    sample,
    welch,
)
from reproduce.plan.looks import LEVELS

FAILING_SHARE = 1.0 / 8.0
"""Share of failing seeds of the bimodal scores."""

NUM_REPETITIONS = 40_000
NUM_SUITES = 10_000
CHUNK = 2_000
"""Repetitions held in memory at a time."""

Scores = Float[np.ndarray, "*repetitions _"]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Function that draws scores of the given shape."""


class Sides(NamedTuple):
    """Sources of the scores of a simulated check."""

    ours: Draw
    theirs: Draw


class Look(NamedTuple):
    """Many simulated tasks after one of their looks."""

    ours: Sample
    """Our side, at this look or at the earlier one that decided the task."""
    theirs: Sample
    """The reference's side."""
    verdicts: np.ndarray
    """Verdicts' names, at this look or the earlier one."""
    test: Comparison
    """Test at this look, even if an earlier one decided."""
    is_tested: np.ndarray
    """Whether this look tested the task: it was undecided, and a test was possible."""


class Rates(NamedTuple):
    """Outcomes of many simulated checks."""

    reproduced: float
    """Share that was `reproduced` or `above`."""
    below: float
    """Share that was `below`."""
    num_seeds: float
    """Mean number of our seeds per task at its last look."""


def normal(spread: float, shortfall: float, ratio: float = 1.0) -> Sides:
    """Return normal runs.

    Args:
        spread: standard deviation of the reference's runs; the gap is 1.
        shortfall: true mean of the reference minus ours.
        ratio: standard deviation of our runs over `spread`.
    """
    return Sides(
        lambda rng, shape: rng.normal(1.0 - shortfall, spread * ratio, shape),
        lambda rng, shape: rng.normal(1.0, spread, shape),
    )


def skewed(spread: float, shortfall: float, direction: int) -> Sides:
    """Return exponential runs: most lie together, a few far below (-1) or above (1) the others."""
    return Sides(
        lambda rng, shape: (
            1.0 - shortfall + direction * spread * (rng.standard_exponential(shape) - 1.0)
        ),
        lambda rng, shape: 1.0 + direction * spread * (rng.standard_exponential(shape) - 1.0),
    )


def bimodal(spread: float, *, theirs_fail: bool) -> Sides:
    """Return runs of which one in eight is as poor as a random policy, the others normal.

    If only ours fail, we fall short by an eighth of the gap, more than the margin. If theirs fail
    as well, our other runs are lowered so that our mean falls short by exactly the margin.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...], mean: float) -> np.ndarray:
        fails = rng.random(shape) < FAILING_SHARE
        return np.where(fails, 0.0, rng.normal(mean, spread, shape))

    if theirs_fail:
        mean = 1.0 / (1.0 - FAILING_SHARE)
        return Sides(
            lambda rng, shape: draw(rng, shape, mean * (1.0 - MARGIN_FRACTION)),
            lambda rng, shape: draw(rng, shape, mean),
        )
    return Sides(lambda rng, shape: draw(rng, shape, 1.0), normal(spread, 0.0).theirs)


def resampled(scores: Float[np.ndarray, " runs"]) -> Sides:
    """Return runs drawn from published ones; ours are short by exactly the margin."""
    return Sides(
        lambda rng, shape: rng.choice(scores, shape) - MARGIN_FRACTION,
        lambda rng, shape: rng.choice(scores, shape),
    )


def looks(
    ours: Scores, theirs: Scores, counts: Sequence[int], level: float, *, control: bool = False
) -> Iterator[Look]:
    """Judge many tasks at their looks, as `verdicts.judge_looks` judges one.

    Args:
        ours: scores of our seeds, in the last axis, in the order in which they are added.
        theirs: scores of the reference's runs, in the last axis.
        counts: numbers of seeds of the looks.
        level: one-sided level of each.
        control: whether the runs of `theirs` are added at the same looks.
    """
    shape = ours.shape[:-1]
    verdicts, judged = np.full(shape, "inconclusive"), Sample(*np.zeros((3, *shape)))
    for count in counts:
        is_open = verdicts == "inconclusive"
        now = sample(ours[..., :count])
        reference = sample(theirs[..., :count] if control else theirs)
        margin = MARGIN_FRACTION * np.asarray(reference.mean)
        test = welch(now, reference, level)
        names = decide(test.ci_low, test.ci_high, margin)
        untested = margin <= 0.0
        if count < MIN_SEEDS_APART:
            untested |= lies_apart(ours[..., :count], margin)
        names[untested] = "inconclusive"
        judged = Sample(
            *(np.where(is_open, new, old) for new, old in zip(now, judged, strict=True))
        )
        verdicts = np.where(is_open, names, verdicts)
        yield Look(judged, reference, verdicts, test, is_open & ~untested)


def simulate(
    sides: Sides,
    counts: Sequence[int],
    reference_num_runs: int,
    rng: np.random.Generator,
    *,
    level: float | None = None,
    num_repetitions: int = NUM_REPETITIONS,
) -> Rates:
    """Return the rates of one task, checked many times.

    Args:
        sides: draws the scores.
        counts: numbers of our seeds at the looks.
        reference_num_runs: number of the reference's runs; 0: as many as ours at every look.
        rng: draws all scores.
        level: one-sided level of each look; default: from `LEVELS`.
        num_repetitions: number of simulated checks.
    """
    ours = sides.ours(rng, (num_repetitions, counts[-1]))
    theirs = sides.theirs(rng, (num_repetitions, reference_num_runs or counts[-1]))
    level = LEVELS[len(counts) - 1] if level is None else level
    *_, last = looks(ours, theirs, counts, level, control=reference_num_runs == 0)
    reproduced = np.isin(last.verdicts, ["reproduced", "above"])
    return Rates(
        float(reproduced.mean()),
        float((last.verdicts == "below").mean()),
        float(np.mean(last.ours.num_runs)),
    )


def simulate_suite(
    sides: Sides,
    counts: Sequence[int],
    reference_num_runs: int,
    num_tasks: int,
    rng: np.random.Generator,
    *,
    num_repetitions: int = NUM_SUITES,
) -> tuple[Rates, float]:
    """Return the rates of a suite, and how often any of its tasks is below after Holm.

    A suite is inconclusive if none of its tasks counts.

    Args:
        sides: draws the scores of every task.
        counts: numbers of our seeds at the looks of every task.
        reference_num_runs: number of the reference's runs.
        num_tasks: number of tasks.
        rng: draws all scores.
        num_repetitions: number of simulated checks.
    """
    level, parts = LEVELS[len(counts) - 1], []
    for first in range(0, num_repetitions, CHUNK):
        shape = (min(CHUNK, num_repetitions - first), num_tasks)
        ours = sides.ours(rng, (*shape, counts[-1]))
        theirs = sides.theirs(rng, (*shape, reference_num_runs))
        verdicts, any_below = np.full(shape[0], "inconclusive"), np.zeros(shape[0], bool)
        num_seeds = np.zeros(shape[0])
        for look in looks(ours, theirs, counts, level):
            margin = MARGIN_FRACTION * np.asarray(look.theirs.mean)
            p_below = np.where(look.is_tested, look.test.p_below(margin), 1.0)
            # Holm rejects something if the smallest p-value passes Bonferroni's bound.
            num_tested = look.is_tested.sum(axis=1)
            any_below |= (p_below.min(axis=1) * num_tested <= level) & (num_tested > 0)
            counted = np.asarray(counts_in_suite(look.theirs, 0.0))
            is_judged = np.any(counted, axis=1, keepdims=True)
            counted = counted | ~is_judged
            test = compare_suite(look.ours, look.theirs, np.zeros(shape), counted, level)
            now = decide(test.ci_low, test.ci_high, MARGIN_FRACTION)
            is_open = (verdicts == "inconclusive") & is_judged[:, 0]
            verdicts[is_open] = now[is_open]
            num_seeds = np.asarray(look.ours.num_runs).mean(axis=1)
        reproduced = np.isin(verdicts, ["reproduced", "above"])
        parts.append(np.stack([reproduced, verdicts == "below", num_seeds, any_below]))
    *rates, any_below = np.concatenate(parts, axis=1).mean(axis=1)
    return Rates(*map(float, rates)), float(any_below)
