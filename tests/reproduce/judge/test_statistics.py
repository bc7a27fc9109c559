"""Aggregates, bootstrap intervals, profiles and probabilities against hand-computed values."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce.judge import statistics
from reproduce.judge.statistics import (
    Interval,
    bootstrap_band,
    iqm,
    mean_score,
    median_score,
    optimality_gap,
    probability_of_improvement,
    stratified_bootstrap,
)

RAGGED = [np.array([1.0, 3.0]), np.array([10.0]), np.array([0.0, 0.0, 3.0])]

few_scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=6).map(np.array)


def test_mean_and_median_weigh_every_task_the_same() -> None:
    """Task means are 2, 10 and 1, whatever the number of seeds behind them."""
    assert mean_score(RAGGED) == pytest.approx(13 / 3)
    assert median_score(RAGGED) == pytest.approx(2.0)


def test_iqm_drops_a_quarter_of_the_pooled_runs_at_either_end() -> None:
    """Of the eight runs 0, 1, 2, 3, 4, 5, 90 and -70 only 1, 2, 3 and 4 count."""
    scores = [np.array([0.0, 90.0, 3.0, 4.0]), np.array([1.0, -70.0, 2.0, 5.0])]
    assert iqm(scores) == pytest.approx(2.5)
    assert iqm(scores) == pytest.approx(stats.trim_mean(np.concatenate(scores), 0.25))


def test_optimality_gap_does_not_reward_scores_above_the_target() -> None:
    """The clipped task means are (0.5 + 1) / 2 and 1, so a quarter over two tasks is missing."""
    scores = [np.array([0.5, 7.0]), np.array([3.0, 2.0])]
    assert optimality_gap(scores) == pytest.approx(0.125)
    assert optimality_gap(scores, target=2.0) == pytest.approx(0.375)


@pytest.mark.parametrize("statistic", [mean_score, median_score, iqm, optimality_gap])
def test_a_batch_of_resamples_gives_the_statistic_of_each(statistic) -> None:
    """The bootstrap computes all resamples at once; each must equal the statistic on its own."""
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=(5, num_seeds)) for num_seeds in (4, 1, 7)]
    expected = [statistic([scores[row] for scores in batch]) for row in range(5)]
    np.testing.assert_allclose(statistic(batch), expected)


def test_bootstrap_interval_is_the_percentile_of_every_possible_resample() -> None:
    """Three seeds have 27 equally likely resamples; their 80 % percentiles are the interval."""
    scores = np.array([0.0, 1.0, 5.0])
    resampled = [np.mean(draw) for draw in itertools.product(scores, repeat=3)]
    interval = stratified_bootstrap(
        [scores], mean_score, seed=1, num_resamples=50_000, confidence=0.8
    )
    assert interval.estimate == pytest.approx(2.0)
    assert interval.ci_low == pytest.approx(np.quantile(resampled, 0.1))
    assert interval.ci_high == pytest.approx(np.quantile(resampled, 0.9))


def test_bootstrap_resamples_seeds_within_their_own_task() -> None:
    """Tasks differ wildly but one seed each cannot vary, so the interval has no width."""
    interval = stratified_bootstrap([np.array([0.0]), np.array([100.0])], mean_score, seed=0)
    assert interval == Interval(50.0, 50.0, 50.0)


def test_bootstrap_is_decided_by_its_seed_alone() -> None:
    """The same seed gives the same interval and another seed another one."""
    scores = [np.random.default_rng(3).normal(size=20)]
    first, second = (stratified_bootstrap(scores, iqm, seed=7) for _ in range(2))
    assert first == second
    assert first != stratified_bootstrap(scores, iqm, seed=8)


def test_resamples_drawn_in_blocks_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded for any number of runs, and no interval depends on the bound."""
    scores = [np.random.default_rng(0).normal(size=(20))]
    curves = np.random.default_rng(1).normal(size=(20, 3))

    def results() -> list[tuple[Any, ...]]:
        return [
            tuple(stratified_bootstrap(scores, iqm, seed=1, num_resamples=101)),
            tuple(bootstrap_band(curves, seed=1, num_resamples=101)),
        ]

    at_once = results()
    monkeypatch.setattr(statistics, "LARGEST_BLOCK", 20 * 7)
    assert [sum(statistics._blocks(101, 20)), len(statistics._blocks(101, 20))] == [101, 15]
    for one, other in zip(at_once, results(), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_bootstrap_agrees_with_scipy_on_one_task() -> None:
    """With 40 seeds the percentile interval is scipy's up to the noise of resampling."""
    scores = np.random.default_rng(5).exponential(size=40)
    expected = stats.bootstrap(
        (scores,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(0)
    ).confidence_interval
    interval = stratified_bootstrap([scores], mean_score, seed=0, num_resamples=20_000)
    assert interval.ci_low == pytest.approx(expected.low, abs=0.01)
    assert interval.ci_high == pytest.approx(expected.high, abs=0.01)


def test_band_of_one_seed_is_its_curve() -> None:
    """A single run has no spread to show: mean and both edges are the run itself."""
    values = np.array([[0.1, -3.3, 1e6]])
    for curve in bootstrap_band(values, seed=0):
        np.testing.assert_array_equal(curve, values[0])


def test_band_edges_are_percentiles_of_the_mean() -> None:
    """Two seeds at 0 and 8 average to 0, 4, 4 or 8: 95 % reach from 0 to 8, 40 % stay at 4."""
    values = np.array([[0.0], [8.0]])
    assert np.concatenate(bootstrap_band(values, seed=0)).tolist() == [4.0, 0.0, 8.0]
    narrow = bootstrap_band(values, seed=0, confidence=0.4)
    assert np.concatenate(narrow).tolist() == [4.0, 4.0, 4.0]


def test_band_resamples_whole_seeds() -> None:
    """A curve and its mirror image have mirrored bands: the points of a seed move as one."""
    curve = np.random.default_rng(2).normal(size=(6, 1))
    band = bootstrap_band(np.hstack([curve, 10.0 - curve]), seed=4)
    assert band.ci_low[1] == pytest.approx(10.0 - band.ci_high[0], abs=1e-12)
    assert band.ci_high[1] == pytest.approx(10.0 - band.ci_low[0], abs=1e-12)


@settings(derandomize=True)
@given(ours=few_scores, theirs=few_scores)
def test_probability_of_improvement_is_mann_whitneys_share_of_pairs(ours, theirs) -> None:
    """It equals U / (n m) with ties counted half, and the two sides share the probability."""
    probability = probability_of_improvement([ours], [theirs], seed=0, num_resamples=1).estimate
    pairs = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic / (
        ours.size * theirs.size
    )
    reverse = probability_of_improvement([theirs], [ours], seed=0, num_resamples=1).estimate
    assert probability == pytest.approx(pairs)
    assert probability + reverse == pytest.approx(1.0)


def test_probability_of_improvement_averages_tasks_and_resamples_both_sides() -> None:
    """Tasks at 1 and 1/2 average to 3/4; only the second varies, and only through the baseline."""
    ours = [np.array([2.0, 3.0]), np.array([1.0])]
    baseline = [np.array([1.0]), np.array([0.0, 2.0])]
    improvement = probability_of_improvement(ours, baseline, seed=0)
    assert improvement == Interval(0.75, 0.5, 1.0)
    mirrored = probability_of_improvement(baseline, ours, seed=0)
    assert mirrored == Interval(0.25, 0.0, 0.5)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "at least one task, not 0"),
        ([np.array([1.0]), np.array([])], r"task 1 .* shape \(0,\)"),
        ([np.array([1.0, np.nan])], r"not nan \(task 0, score 1\)"),
        ([np.array([1.0]), np.array([-np.inf])], r"not -inf \(task 1, score 0\)"),
    ],
)
def test_bad_scores_are_refused_by_name(scores, message) -> None:
    """Nothing is averaged over a missing or non-finite score; the message names it."""
    with pytest.raises(ValueError, match=message):
        stratified_bootstrap(scores, mean_score, seed=0)
    good = [np.array([0.0])] * len(scores)
    with pytest.raises(ValueError, match=message):
        probability_of_improvement(scores, good, seed=0)
    with pytest.raises(ValueError, match=message):
        probability_of_improvement(good, scores, seed=0)


def test_bad_bands_and_bad_bootstraps_are_refused_by_name() -> None:
    """The offending number is in the message."""
    with pytest.raises(ValueError, match="at least one seed, not 0"):
        bootstrap_band(np.empty((0, 3)), seed=0)
    with pytest.raises(ValueError, match=r"not nan at \[1, 0\]"):
        bootstrap_band(np.array([[1.0], [np.nan]]), seed=0)
    with pytest.raises(ValueError, match="2 tasks cannot be compared with 1"):
        probability_of_improvement([np.zeros(1)] * 2, [np.zeros(1)], seed=0)
    with pytest.raises(ValueError, match=r"confidence must .* not 95\.0"):
        bootstrap_band(np.ones((2, 2)), seed=0, confidence=95.0)
    with pytest.raises(ValueError, match="num_resamples must be at least 1, not 0"):
        stratified_bootstrap([np.zeros(1)], mean_score, seed=0, num_resamples=0)
