"""What verdicts promise about their own errors is what simulation and arithmetic give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.gather import references
from reproduce.gather.references import ReferenceScore
from reproduce.judge.inference import (
    MARGIN_FRACTION,
    MIN_REFERENCE_RUNS,
    decide,
    sample,
    spread,
    welch,
)
from reproduce.judge.simulation import failing, normal, simulate, simulate_suite
from reproduce.judge.verdicts import judge, obstacle


def published(runs: list[float]) -> ReferenceScore:
    """A reference with these single runs."""
    scores = np.array(runs)
    return ReferenceScore(
        source="someone", env_id="T", env_steps=1, mean=float(scores.mean()),
        std=float(spread(scores)), num_runs=len(runs), rule="training", how="single runs",
        scores=tuple(runs),
    )  # fmt: skip


def test_a_reference_of_two_runs_is_shown_only() -> None:
    """However close, it does not judge, and neither the plan nor the verdict says that it does."""
    two, three = published([100.0, 101.0]), published([100.0, 101.0, 102.0])
    scores = np.array([100.0, 101.0, 102.0])
    verdict = judge(scores, two, 0.0)
    assert (verdict.verdict, verdict.note) == (
        "shown only",
        "the reference has two runs; at least 3 are needed",
    )
    assert obstacle(two, 0.0) == verdict.note
    assert obstacle(three, 0.0) == ""
    assert judge(scores, three, 0.0).verdict == "reproduced"


def test_two_runs_of_a_reference_err_too_often_and_three_do_not() -> None:
    """Why three are asked for: ten seeds, a shortfall of exactly the margin."""
    rates = {
        m: simulate(normal(0.15, MARGIN_FRACTION), 10, m, np.random.default_rng(1))
        for m in (2, MIN_REFERENCE_RUNS)
    }
    assert min(rates[2].reproduced, rates[2].below) > 0.06
    assert max(rates[MIN_REFERENCE_RUNS].reproduced, rates[MIN_REFERENCE_RUNS].below) < 0.055


ALIKE = [99.0, 100.0, 101.0, 100.5, 99.5]
APART = [100.0, 100.1, 99.9, 100.0, 60.0]


@pytest.mark.parametrize(
    ("scores", "runs", "who"),
    [
        (APART, ALIKE, "one seed lies apart"),
        (ALIKE, APART, "one run of the reference lies apart"),
        (APART, APART, "one seed and one run of the reference lie apart"),
    ],
)
def test_a_verdict_on_runs_that_lie_apart_says_that_it_may_err_more_often(
    scores, runs, who
) -> None:
    """On either side; the 5 % hold for normal runs."""
    verdict = judge(np.array(scores), published(runs), 0.0)
    assert verdict.note.endswith(f"{who}: the verdict may err in more than 5%")


def test_a_verdict_on_runs_that_lie_together_says_nothing_of_its_errors() -> None:
    """Nor does one on a reference without single runs, which nobody can look at."""
    assert judge(np.array(ALIKE), published(ALIKE), 0.0).note == ""
    stated = published(APART)
    stated = ReferenceScore(**{**vars(stated), "scores": ()})
    assert "err" not in judge(np.array(ALIKE), stated, 0.0).note


finite = st.floats(-1000.0, 1000.0, width=32)


@settings(derandomize=True, deadline=None)
@given(score=finite, num_runs=st.integers(2, 30))
def test_equal_scores_have_no_spread(score, num_runs) -> None:
    """Their mean is rounded, and their spread is 0."""
    scores = np.full(num_runs, np.float64(score) / 3.0)
    assert spread(scores) == 0.0
    assert sample(scores).variance == 0.0


@settings(derandomize=True, deadline=None)
@given(
    random_score=finite,
    gap=st.floats(0.01, 1000.0),
    num_seeds=st.integers(3, 12),
    num_runs=st.integers(3, 12),
)
def test_equal_seeds_short_by_exactly_the_margin_are_reproduced(
    random_score, gap, num_seeds, num_runs
) -> None:
    """Rounding decides nothing: a millionth of the margin further down it is `below`."""
    reference = published([random_score + gap] * num_runs)
    margin = MARGIN_FRACTION * (reference.mean - random_score)

    def verdict(shortfall: float) -> str:
        return judge(
            np.full(num_seeds, reference.mean - shortfall), reference, random_score
        ).verdict

    assert verdict(margin) == "reproduced"
    assert verdict(margin * (1.0 + 1e-6)) == "below"
    assert verdict(-margin) == "reproduced"
    assert verdict(-margin * (1.0 + 1e-6)) == "above"


def test_three_equal_seeds_ten_below_at_a_margin_of_ten() -> None:
    """They were inconclusive, for their mean is rounded; the p-value agrees with the verdict."""
    verdict = judge(np.full(3, 1.1 + 90.0), published([1.1 + 100.0] * 3), 1.1)
    assert (verdict.verdict, verdict.score_std) == ("reproduced", 0.0)
    assert verdict.p_below == 1.0
    test = welch(sample(np.full(3, 1.1 + 90.0)), sample(np.full(3, 1.1 + 100.0)))
    assert decide(test.ci_low, test.ci_high, 10.0) == "reproduced"


def test_single_runs_of_a_source_that_agree_have_no_spread() -> None:
    """A reference's spread is measured as ours is."""
    runs = np.array([0.1] * 3)
    assert runs.std(ddof=1) > 0.0  # what rounding makes of it
    measured = references._from_single_runs(runs)
    assert measured is not None
    assert measured[1] == 0.0


def test_a_control_whose_failures_did_not_show_accuses_an_equal_agent() -> None:
    """One in five fails on both sides: the five of the control show none in a third of cases.

    Few seeds of ours scatter too much to accuse it; a hundred do in a quarter of cases.
    """
    rng = np.random.default_rng(3)
    many = simulate(failing(0.03, 0.2), 100, 5, rng, num_repetitions=10_000)
    few = simulate(failing(0.03, 0.2), 5, 5, rng, num_repetitions=10_000)
    assert many.below == pytest.approx(0.262, abs=0.02)
    assert few.below < 0.05


def test_a_suite_with_one_wild_task_is_falsely_below_too_often() -> None:
    """Five tasks short by exactly the margin, one at a spread of 50 %: why the page warns."""
    spreads = np.array([0.5, *[0.05] * 4])
    sides, rng = normal(spreads, MARGIN_FRACTION), np.random.default_rng(4)
    rates, _ = simulate_suite(sides, 5, 5, 5, rng, num_repetitions=4_000)
    assert rates.below > 0.07
