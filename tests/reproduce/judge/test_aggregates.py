"""Aggregates, bootstrap intervals, probabilities and times against hand-computed values."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce.judge import aggregates
from reproduce.judge.aggregates import Interval, iqm, mean_score, median_score
from reproduce.judge.zero import Scale
from reproduce.plan.unlearned import Zero
from tests.reproduce.conftest import reference
from tests.reproduce.report import tables

NAN = float("nan")
RAGGED = [np.array([1.0, 3.0]), np.array([10.0]), np.array([0.0, 0.0, 3.0])]

few_scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=6).map(np.array)


def test_mean_median_and_iqm_by_hand() -> None:
    """Means of tasks are 2, 10 and 1; the IQM drops a quarter of all runs at either end."""
    assert mean_score(RAGGED) == pytest.approx(13 / 3)
    assert median_score(RAGGED) == pytest.approx(2.0)
    scores = [np.array([0.0, 90.0, 3.0, 4.0]), np.array([1.0, -70.0, 2.0, 5.0])]
    assert iqm(scores) == pytest.approx(2.5)
    assert iqm(scores) == pytest.approx(stats.trim_mean(np.concatenate(scores), 0.25))


@pytest.mark.parametrize("statistic", [mean_score, median_score, iqm, aggregates.optimality_gap])
def test_a_batch_of_resamples_gives_the_statistic_of_each(statistic) -> None:
    """The bootstrap computes all resamples at once; each must equal the statistic on its own."""
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=(5, num_seeds)) for num_seeds in (4, 1, 7)]
    expected = [statistic([scores[row] for scores in batch]) for row in range(5)]
    np.testing.assert_allclose(statistic(batch), expected)


def test_bootstrap_interval_is_the_percentile_of_every_possible_resample() -> None:
    """Three seeds have 27 equally likely resamples, whose percentiles are the interval."""
    scores = np.array([0.0, 1.0, 5.0])
    resampled = [np.mean(draw) for draw in itertools.product(scores, repeat=3)]
    ends = np.quantile(resampled, [0.025, 0.975], method="inverted_cdf")
    interval = aggregates.stratified_bootstrap([scores], mean_score, num_resamples=50_000)
    assert interval == pytest.approx([2.0, *ends])


@settings(derandomize=True, deadline=None)
@given(ours=few_scores, theirs=few_scores)
def test_probability_of_improvement_is_mann_whitneys_share_of_pairs(ours, theirs) -> None:
    """It equals U / (n m) with ties counted half, and the two sides share the probability."""
    probability = aggregates.probability_of_improvement([ours], [theirs], num_resamples=1).estimate
    wins = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic
    reverse = aggregates.probability_of_improvement([theirs], [ours], num_resamples=1).estimate
    assert probability == pytest.approx(wins / (ours.size * theirs.size))
    assert probability + reverse == pytest.approx(1.0)


def test_probability_of_improvement_averages_tasks_and_resamples_both_sides() -> None:
    """Tasks at 1 and 1/2 average to 3/4; only the second varies, and only through the baseline."""
    ours = [np.array([2.0, 3.0]), np.array([1.0])]
    baseline = [np.array([1.0]), np.array([0.0, 2.0])]
    improvement = aggregates.probability_of_improvement(ours, baseline)
    assert improvement == Interval(0.75, 0.5, 1.0)
    mirrored = aggregates.probability_of_improvement(baseline, ours)
    assert mirrored == Interval(0.25, 0.0, 0.5)


def scale(mean: float, zero: float) -> Scale:
    """The scale of a task."""
    return Scale(reference=reference(mean, 1.0, 5), zero=Zero(random=zero))


def curve(task: str, seed: int, *returns: float) -> pd.DataFrame:
    """A point every ten steps, which take a second."""
    steps = [*range(10, 10 * len(returns) + 1, 10)]
    return tables.curve(task, seed, steps).assign(mean_return=returns)


def test_a_time_is_that_of_the_first_point_at_the_score() -> None:
    """From zero 100 to 200: 150 and 190; three of six seeds have no evaluation."""
    curves = [curve("A", 1, 100.0, 150.0, 120.0, 195.0), curve("A", 2, 190.0, 0.0)]
    curves += [curve("A", 3, 149.0), *(curve(task, 1, 9.0) for task in "BCD")]
    runs = [("A", seed, "finished") for seed in (1, 2, 3)]
    runs += [("A", 4, "failed"), ("A", 5, "running"), ("A", 6, "diverged")]
    runs += [(task, 1, "finished") for task in "BCD"]
    scales = {
        "A": scale(200.0, 100.0),
        "B": scale(1.0, 2.0),
        "C": Scale(reference=None, zero=Zero(random=0.0)),
        "D": dataclasses.replace(scale(2.0, 0.0), nothing_learned="its reference learned nothing"),
    }
    shuffled = pd.concat(curves).sample(frac=1.0, random_state=0)
    table = pd.DataFrame(runs, columns=pd.Index(["task", "seed", "status"]))
    times = aggregates.times_to_score(shuffled, scales, table)
    assert set(times["task"]) == {"A"}  # B's reference lies below its zero, C has none
    assert times["score"].tolist() == [150.0, 190.0] * 5
    assert times["env_steps"].fillna(-1).tolist() == [20, 40, 10, 10, *[-1] * 6]
    assert times["wall_seconds"].fillna(-1).tolist() == [2, 4, 1, 1, *[-1] * 6]
    half, most = aggregates.median_times(times).to_dict("records")
    assert (half["num_reached"], half["num_seeds"]) == (2, 5)
    assert math.isnan(half["median"]), "two of five are not more than half"
    assert (most["fastest"], most["slowest"]) == (1.0, 4.0)


@pytest.mark.parametrize(("reached", "median"), [(1, NAN), (2, 5.0), (3, 5.0)])
def test_a_median_needs_half_of_the_seeds(reached: int, median: float) -> None:
    """Seeds that do not get there count as later, so they do not make a task look faster."""
    seconds = [4.0, 5.0, 6.0][:reached] + [NAN] * (3 - reached)
    times = pd.DataFrame({"task": "A", "share": 0.5, "score": 1.0, "wall_seconds": seconds})
    times["env_steps"] = times["wall_seconds"]
    assert aggregates.median_times(times)["median"].tolist() == pytest.approx([median], nan_ok=True)
    untimed = aggregates.median_times(times.assign(wall_seconds=NAN))
    assert untimed["num_reached"].tolist() == [reached], "curves without times got there, too"
    assert untimed["median"].isna().all()


def test_profile_and_aggregates_are_those_of_the_runs() -> None:
    """Half of ours lie above 0.5 to 1; the reference has a side only with runs of all our tasks."""
    own = tables.over("A", "B", "C")
    found = aggregates.over_tasks(own)
    lines = found["profile"]
    assert 0.0 <= lines["ci_low"].min() <= lines["ci_high"].max() <= 1.0
    assert (lines["ci_low"] <= lines["estimate"]).all()
    assert (lines["estimate"] <= lines["ci_high"]).all()
    for role, at, share in (("ours", 0.4, 1.0), ("ours", 0.8, 0.5), ("judge", 1.05, 0.5)):
        rows = lines[lines["role"] == role]
        place = int(np.abs(rows["x"].to_numpy() - at).argmin())
        assert rows["estimate"].to_numpy()[place] == share
    means = found["aggregates"].set_index(["role", "statistic"])["estimate"]
    assert (means["ours", "mean"], means["judge", "mean"]) == (0.75, 1.0)
    assert means["ours", "optimality_gap"] == 0.25
    fewer = own["reference_scores"][own["reference_scores"]["task"] != "B"]
    assert list(aggregates.sides_of(own["scores"], fewer)) == ["ours"]


def test_every_task_weighs_the_same_in_a_profile_and_those_of_one_run_nothing() -> None:
    """Above 0.9 lie two of three runs of A, one of two of B and none of D; C has a single run."""
    several = [tables.score("A", 50.0, 150.0, 160.0), tables.score("B", 85.0, 150.0)]
    scores = pd.concat([*several, tables.score("D", 10.0, 20.0), tables.score("C", 10.0)])
    theirs = pd.concat([tables.score(task, 90.0, 110.0) for task in "ABCD"])
    sides = aggregates.sides_of(scores, theirs)
    assert [sorted(set(side["task"])) for side in sides.values()] == [["A", "B", "D"]] * 2
    ours = aggregates.profile(sides).query("role == 'ours' and x >= 0.9")
    assert ours["estimate"].iloc[0] == pytest.approx((2 / 3 + 1 / 2) / 3)
