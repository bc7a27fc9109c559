"""Many checks simulated at once: scores of two sides, judged as a real check judges them.

`error_rates.py` tells how often verdicts err, `outlook.py` what a plan can decide.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from reproduce.judge.inference import (
    LEVEL,
    MARGIN_FRACTION,
    MIN_SEEDS_APART,
    Comparison,
    Numbers,
    Sample,
    compare_suite,
    counts_in_suite,
    decide,
    lies_apart,
    sample,
    welch,
)

NUM_REPETITIONS = 40_000
NUM_SUITES = 10_000
CHUNK = 2_000
"""Repetitions held in memory at a time."""

Scores = Float[np.ndarray, "*repetitions _"]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Function that draws scores of the given shape."""
Sides = tuple[Draw, Draw]
"""Draw our scores, and the reference's, in a simulated check."""
Rates = tuple[float, float]
"""Shares of simulated checks that were `reproduced` or `above`, and `below`."""


class Judged(NamedTuple):
    """Many simulated tasks, each judged by all its seeds."""

    ours: Sample
    theirs: Sample
    verdicts: np.ndarray
    test: Comparison
    """Welch's test, even of tasks that are not tested."""
    is_tested: np.ndarray


def normal(spread: Numbers, shortfall: float) -> Sides:
    """Return normal runs of this spread, or of one per task; ours fall short; the gap is 1."""
    per_run = np.asarray(spread)[..., None]
    return (
        lambda rng, shape: rng.normal(1.0 - shortfall, per_run, shape),
        lambda rng, shape: rng.normal(1.0, per_run, shape),
    )


def skewed(spread: float, shortfall: float, direction: int) -> Sides:
    """Return exponential runs: most lie together, a few far below (-1) or above (1) the others."""

    def runs(mean: float) -> Draw:
        return lambda rng, shape: (
            mean + direction * spread * (rng.standard_exponential(shape) - 1.0)
        )

    return runs(1.0 - shortfall), runs(1.0)


def failing(spread: float, share: float, mean: float = 1.0) -> Draw:
    """Draw runs of which `share` scores 0, as a random policy, and the others are normal."""
    others = mean / (1.0 - share)

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.where(rng.random(shape) < share, 0.0, rng.normal(others, spread, shape))

    return draw


def resampled(scores: Float[np.ndarray, " runs"]) -> Sides:
    """Return runs drawn from published ones; ours are short by exactly the margin."""
    return (
        lambda rng, shape: rng.choice(scores, shape) - MARGIN_FRACTION,
        lambda rng, shape: rng.choice(scores, shape),
    )


def judge_many(ours: Scores, theirs: Scores) -> Judged:
    """Judge many tasks as `verdicts.judge` judges one."""
    now, reference = sample(ours), sample(theirs)
    margin = MARGIN_FRACTION * np.asarray(reference.mean)
    test = welch(now, reference)
    names = decide(test.ci_low, test.ci_high, margin)
    untested = margin <= 0.0
    if ours.shape[-1] < MIN_SEEDS_APART:
        untested |= lies_apart(ours, margin)
    names[untested] = "inconclusive"
    return Judged(now, reference, names, test, ~untested)


def simulate(
    sides: Sides,
    num_seeds: int | range,
    reference_num_runs: int,
    rng: np.random.Generator,
    *,
    num_repetitions: int = NUM_REPETITIONS,
) -> Rates:
    """Return the rates of one task, checked many times.

    Where `num_seeds` are several, seeds are added, and the first number decides at which somebody
    who looks at each finds a verdict.
    """
    looks = [num_seeds] if isinstance(num_seeds, int) else num_seeds
    draw_ours, draw_theirs = sides
    ours = draw_ours(rng, (num_repetitions, looks[-1]))
    theirs = draw_theirs(rng, (num_repetitions, reference_num_runs))
    verdicts = np.full(num_repetitions, "inconclusive")
    for count in looks:
        now = judge_many(ours[:, :count], theirs).verdicts
        verdicts = np.where(verdicts == "inconclusive", now, verdicts)
    return share_reproduced(verdicts), float((verdicts == "below").mean())


def share_reproduced(verdicts: np.ndarray) -> float:
    """Return the share of verdicts that are `reproduced` or `above`."""
    return float(np.isin(verdicts, ["reproduced", "above"]).mean())


def simulate_suite(
    sides: Sides,
    num_seeds: int,
    reference_num_runs: int,
    num_tasks: int,
    rng: np.random.Generator,
    *,
    num_repetitions: int = NUM_SUITES,
) -> tuple[float, float, float]:
    """Return the rates of a suite, and how often any of its tasks is below after Holm.

    A suite is inconclusive if none of its tasks counts.
    """
    (draw_ours, draw_theirs), verdicts, any_below = sides, [], []
    for first in range(0, num_repetitions, CHUNK):
        shape = (min(CHUNK, num_repetitions - first), num_tasks)
        ours = draw_ours(rng, (*shape, num_seeds))
        judged = judge_many(ours, draw_theirs(rng, (*shape, reference_num_runs)))
        margin = MARGIN_FRACTION * np.asarray(judged.theirs.mean)
        p_below = np.where(judged.is_tested, judged.test.p_below(margin), 1.0)
        # Holm rejects something if the smallest p-value passes Bonferroni's bound.
        num_tested = judged.is_tested.sum(axis=1)
        any_below.append((p_below.min(axis=1) * num_tested <= LEVEL) & (num_tested > 0))
        counted = np.asarray(counts_in_suite(judged.theirs, 0.0))
        is_judged = np.any(counted, axis=1)
        counted = counted | ~is_judged[:, None]
        test = compare_suite(judged.ours, judged.theirs, np.zeros(shape), counted)
        now = decide(test.ci_low, test.ci_high, MARGIN_FRACTION)
        verdicts.append(np.where(is_judged, now, "inconclusive"))
    names = np.concatenate(verdicts)
    below = float((names == "below").mean())
    return share_reproduced(names), below, float(np.concatenate(any_below).mean())
