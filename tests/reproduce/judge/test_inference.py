"""The arithmetic of verdicts agrees with independent calculations and with simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce.gather.references import spread
from reproduce.judge import error_rates, inference, verdicts
from reproduce.judge.error_rates import judge_many, normal, simulate_suite
from reproduce.judge.inference import MARGIN_FRACTION, Sample, compare_suite, sample
from reproduce.judge.verdicts import judge
from reproduce.judge.zero import Scale
from reproduce.plan.unlearned import Zero
from tests.reproduce.conftest import reference

scores_in_eighths = st.lists(
    st.integers(-800, 800).map(lambda score: score / 8.0), min_size=2, max_size=8, unique=True
)
numbers = st.floats(-100.0, 100.0)


@settings(derandomize=True, deadline=None)
@given(ours=scores_in_eighths, theirs=scores_in_eighths, margin=st.floats(0.0, 10.0))
def test_welch_is_scipys(ours, theirs, margin) -> None:
    """Interval and p-value are those of an independent implementation."""
    oracle = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = oracle.confidence_interval(0.90)
    test = inference.welch(sample(np.array(ours)), sample(np.array(theirs)))
    assert test.ci_low == pytest.approx(interval.low, abs=1e-6)
    assert test.ci_high == pytest.approx(interval.high, abs=1e-6)
    shifted = stats.ttest_ind(np.array(ours) + margin, theirs, equal_var=False, alternative="less")
    assert test.p_below(margin) == pytest.approx(shifted.pvalue, abs=1e-9)


@settings(derandomize=True, deadline=None)
@given(scale=st.floats(0.01, 100.0), shift=numbers, means=st.lists(numbers, min_size=3, max_size=3))
def test_a_suite_does_not_depend_on_the_units_of_a_task(scale, shift, means) -> None:
    """Scores of one task in other units, or from another zero: the same comparison."""
    ours = Sample(np.array(means), np.array([3.0, 4.0, 5.0]), np.array([3, 5, 10]))
    theirs = Sample(np.array([50.0, 60.0, 70.0]), np.array([5.0, 6.0, 7.0]), np.array([10, 3, 5]))
    random, counted = np.array([-1.0, 0.0, 1.0]), np.ones(3, bool)
    units, zeros = np.array([1.0, scale, 1.0]), np.array([0.0, shift, 0.0])

    def other(side: Sample) -> Sample:
        return Sample(side.mean * units + zeros, side.std * units, side.num_runs)

    one = compare_suite(ours, theirs, random, counted)
    two = compare_suite(other(ours), other(theirs), random * units + zeros, counted)
    np.testing.assert_allclose(np.array(one), np.array(two), rtol=1e-6)


def test_a_task_that_does_not_count_changes_nothing_in_a_suite() -> None:
    """It is as if it were not there, whatever its numbers are: a gap of 0 among them."""
    ours = Sample(np.array([9.0, 11.0, 5.0]), np.array([1.0, 2.0, 3.0]), np.array([3, 3, 3]))
    theirs = Sample(np.array([10.0, 10.0, 0.0]), np.array([1.0, 2.0, 3.0]), np.array([5, 5, 5]))
    counted = np.asarray(inference.counts_in_suite(theirs, np.zeros(3)))
    assert counted.tolist() == [True, True, False]
    every = compare_suite(ours, theirs, np.zeros(3), counted)
    sides = [Sample(*(np.asarray(part)[:2] for part in side)) for side in (ours, theirs)]
    two = compare_suite(sides[0], sides[1], np.zeros(2), np.ones(2, bool))
    np.testing.assert_allclose(np.array(every), np.array(two))


def test_the_second_order_takes_the_bias_from_a_ratio() -> None:
    """At a spread of 30 % over three runs a ratio is 3 % too large, and the estimate is not."""
    rng = np.random.default_rng(0)
    ours, theirs = (sample(rng.normal(1, 0.3, (400_000, 1, 3))) for _ in range(2))
    counted = np.asarray(theirs.mean) > 0.2  # a ratio has no mean where its divisor is near 0
    test = compare_suite(ours, theirs, np.zeros(counted.shape), counted | True)
    naive = np.asarray(ours.mean) / np.asarray(theirs.mean) - 1.0
    assert naive[counted].mean() == pytest.approx(0.033, abs=0.004)
    assert np.asarray(test.difference)[counted[:, 0]].mean() == pytest.approx(0.0, abs=0.005)


def test_a_run_lies_apart_beyond_three_scaled_deviations() -> None:
    """The median is 10, deviations 1, 0, 30: the limit is three times 1.4826 times 1."""
    assert inference.lies_apart(np.array([9.0, 10.0, 40.0]), 5.0)
    assert not inference.lies_apart(np.array([9.0, 10.0, 40.0]), 31.0)
    assert not inference.lies_apart(np.array([9.0, 10.0, 14.4]), 1.0)
    assert inference.lies_apart(np.array([9.0, 10.0, 14.5]), 1.0)
    assert inference.lies_apart(np.array([10.0, 10.0, 10.5]), 0.4)
    assert abs(inference.SCALED_MAD - 1.4826) < 1e-4


def test_holms_adjustment_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.04 are multiplied by 3, 2, 1 and never fall; NaN is not a test."""
    adjusted = inference.holm(np.array([0.04, np.nan, 0.01, 0.02]))
    np.testing.assert_allclose(adjusted, [0.04, np.nan, 0.03, 0.04])
    np.testing.assert_allclose(inference.holm(np.array([0.03, 0.02])), [0.04, 0.04])
    p_values = np.array([0.6, 0.9])
    np.testing.assert_allclose(inference.holm(p_values), [1.0, 1.0])
    assert p_values.tolist() == [0.6, 0.9]  # the caller still wants them
    assert inference.holm(np.array([])).size == 0


@pytest.mark.parametrize(("num_seeds", "num_runs"), [(4, 3), (10, 3), (3, 10)])
def test_simulated_verdicts_are_those_of_judge(num_seeds, num_runs, monkeypatch) -> None:
    """The error rates are rates of the rule that judges, not of a copy of it."""
    monkeypatch.setattr(verdicts, "_seeds_to_settle", lambda *_: None)  # takes longer than judging
    rng, num_repetitions = np.random.default_rng(5), 100
    draw_ours, draw_theirs = normal(0.15, MARGIN_FRACTION)
    ours = draw_ours(rng, (num_repetitions, num_seeds))
    theirs = draw_theirs(rng, (num_repetitions, num_runs))
    many = judge_many(ours, theirs).verdicts
    for i, runs in enumerate(theirs):
        published = reference(float(runs.mean()), float(spread(runs)), num_runs)
        scale = Scale(reference=published, zero=Zero(random=0.0))
        assert judge(ours[i], scale).verdict == many[i]


@pytest.mark.parametrize(("num_tasks", "expected"), [(5, 0.68), (9, 0.90)])
def test_a_suite_recognises_a_match_that_single_tasks_do_not(num_tasks, expected) -> None:
    """At 15 % spread and 3 against 10 runs, where one task is recognised in 22 %, or fewer."""
    rng = np.random.default_rng(4)
    reproduced, *_ = simulate_suite(normal(0.15, 0.0), 3, 10, num_tasks, rng, num_repetitions=4_000)
    assert reproduced == pytest.approx(expected, abs=0.025)


@pytest.mark.parametrize(("num_tasks", "num_seeds"), [(2, 10), (57, 5)])
def test_a_suite_at_the_margin_errs_in_about_five_percent(num_tasks, num_seeds) -> None:
    """Either way, and so does Holm's adjustment over its tasks."""
    arguments = (normal(0.15, MARGIN_FRACTION), num_seeds, 10, num_tasks, np.random.default_rng(6))
    reproduced, below, any_below = simulate_suite(*arguments, num_repetitions=1_500)
    assert reproduced < 0.05 + 0.02
    assert below < 0.06 + 0.02
    assert any_below < 0.05 + 0.02


def test_a_suite_of_one_task_that_counts_is_not_judged() -> None:
    """At a spread of 50 % one of two tasks is often left out, because its reference is too low."""
    arguments = (normal(0.5, MARGIN_FRACTION), 10, 10, 2, np.random.default_rng(8))
    _, below, _ = simulate_suite(*arguments, num_repetitions=2_000)
    assert below == pytest.approx(0.038, abs=0.015)


def test_the_documented_sources_are_the_published_runs() -> None:
    """The stored rows are those that would be resampled, each with a mean of 1."""
    runs = error_rates.published_runs()
    assert len(runs) == 14
    assert runs.keys() <= set(error_rates.stored()["row"])
    assert all(len(scores) == 10 for scores in runs.values())
    assert [scores.mean() for scores in runs.values()] == pytest.approx([1.0] * 14)


@pytest.mark.long
@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("others", "suites", "wild") else name
        for name in error_rates.GROUPS
    ],
)
def test_the_documented_error_rates_are_what_the_command_prints(tables) -> None:
    """The page cannot fall behind the rule."""
    known = error_rates.stored().query("group == @tables").drop(columns="group")
    assert error_rates.simulated(tables).values.tolist() == known.values.tolist()
