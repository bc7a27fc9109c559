"""Verdicts: every branch, the numbers behind them, tables of a suite, and error rates."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce import check
from reproduce.check import (
    TABLE_COLUMNS,
    Verdict,
    decide,
    holm,
    judge,
    suite_summary,
    verdict_table,
    welch,
)
from reproduce.error_rates import NUM_REPETITIONS, simulate, tables
from reproduce.references import ROOT, ReferenceScore, Rule, reference_score

VERDICTS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts.md"

scores_in_eighths = st.lists(
    st.integers(-800, 800).map(lambda score: score / 8.0), min_size=2, max_size=8, unique=True
)


def reference(
    mean: float, std: float, num_runs: int, *, env_steps: int = 1000, rule: Rule = "deterministic"
) -> ReferenceScore:
    """Reference of a made-up source."""
    return ReferenceScore(
        source="someone",
        env_id="Task-v2",
        env_steps=env_steps,
        mean=mean,
        std=std,
        num_runs=num_runs,
        rule=rule,
        how="tabulated",
    )


def spread_scores(mean: float, std: float, num_seeds: int) -> np.ndarray:
    """Scores with exactly this mean and standard deviation."""
    scores = np.linspace(-1.0, 1.0, num_seeds)
    return mean + std * scores / scores.std(ddof=1)


def score_rows(task: str, scores, *, env_steps: int = 1000, rule: str = "deterministic"):
    """One row per seed, as the harness collects them."""
    return pd.DataFrame(
        {
            "task": task,
            "seed": range(1, len(scores) + 1),
            "env_steps": env_steps,
            "score": [float(score) for score in scores],
            "rule": rule,
        }
    )


def status_rows(task: str, *statuses: str) -> pd.DataFrame:
    """One planned run per status."""
    return pd.DataFrame(
        {"task": task, "seed": range(1, len(statuses) + 1), "status": list(statuses)}
    )


@settings(derandomize=True)
@given(ours=scores_in_eighths, theirs=scores_in_eighths)
def test_welch_is_scipys(ours, theirs) -> None:
    """The interval is that of an independent implementation."""
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.90)
    test = welch(
        float(np.mean(ours)),
        float(np.std(ours, ddof=1)),
        len(ours),
        float(np.mean(theirs)),
        float(np.std(theirs, ddof=1)),
        len(theirs),
    )
    assert test.ci_low == pytest.approx(interval.low, abs=1e-6)
    assert test.ci_high == pytest.approx(interval.high, abs=1e-6)


def test_a_match_is_reproduced_and_a_shifted_curve_is_rejected() -> None:
    """Ten published runs match their own curve; two margins lower or higher they do not."""
    runs = pd.read_csv(ROOT / "mujoco" / "curves_by_seed.csv").query(
        "source == 'jaxrl' and env_id == 'HalfCheetah-v2' and env_steps in (95_000, 100_000)"
    )
    scores = runs.pivot(index="seed", columns="env_steps", values="mean_return").to_numpy().mean(1)
    published = reference_score("sac", "jaxrl", "HalfCheetah-v4", 100_000, "deterministic")
    assert published is not None
    margin = 0.1 * (published.mean + 280.0)
    assert judge(scores, published, -280.0).verdict == "reproduced"
    assert judge(scores - 2.0 * margin, published, -280.0).verdict == "below"
    assert judge(scores + 2.0 * margin, published, -280.0).verdict == "above"


def test_numbers_of_a_verdict_are_those_of_a_hand_calculation() -> None:
    """Means 90 and 100, variances 27 / 3 and 16 / 4, so the standard error is the root of 13."""
    verdict = judge(spread_scores(90.0, 27.0**0.5, 3), reference(100.0, 4.0, 4), 20.0)
    degrees_of_freedom = 13.0**2 / (9.0**2 / 2 + 4.0**2 / 3)
    half_width = 13.0**0.5 * stats.t.ppf(0.95, degrees_of_freedom)
    assert verdict.verdict == "inconclusive"
    assert (verdict.num_seeds, verdict.reference_num_runs) == (3, 4)
    assert verdict.reference_source == "someone"
    numbers = {
        "score_mean": 90.0,
        "score_std": 27.0**0.5,
        "reference_mean": 100.0,
        "reference_std": 4.0,
        "random_score": 20.0,
        "margin": 8.0,
        "difference": -10.0,
        "ci_low": -10.0 - half_width,
        "ci_high": -10.0 + half_width,
        "p_below": stats.t.cdf(-2.0 / 13.0**0.5, degrees_of_freedom),
        "ratio": 70.0 / 80.0,
    }
    assert {name: getattr(verdict, name) for name in numbers} == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(120.0, "above"), (109.0, "reproduced"), (100.0, "reproduced"), (91.0, "reproduced"),
     (90.0, "inconclusive"), (89.0, "below"), (-50.0, "below")],
)  # fmt: skip
def test_the_ends_of_the_interval_decide(mean, expected) -> None:
    """With a margin of 10 and an interval of plus or minus 0.8 the edges lie near 90 and 110."""
    verdict = judge(spread_scores(mean, 1.0, 10), reference(100.0, 1.0, 10), 0.0)
    assert verdict.ci_high - verdict.ci_low == pytest.approx(1.55, abs=0.01)
    assert verdict.verdict == expected


@settings(derandomize=True)
@given(
    mean=st.floats(60.0, 130.0),
    std=st.floats(0.0, 20.0),
    reference_std=st.floats(0.0, 20.0),
    num_seeds=st.integers(3, 12),
    num_runs=st.integers(2, 12),
)
def test_below_means_a_p_value_under_five_percent(mean, std, reference_std, num_seeds, num_runs):
    """The printed p-value and the verdict never contradict each other."""
    verdict = judge(
        spread_scores(mean, std, num_seeds), reference(100.0, reference_std, num_runs), 0.0
    )
    assert (verdict.verdict == "below") == (verdict.p_below < 0.05)


@pytest.mark.parametrize(
    ("mean", "expected", "p_below"),
    [(1000.0, "reproduced", 1.0), (900.0, "reproduced", 1.0), (899.0, "below", 0.0),
     (1100.0, "reproduced", 1.0), (1101.0, "above", 1.0)],
)  # fmt: skip
def test_without_any_spread_the_means_are_compared(mean, expected, p_below) -> None:
    """Both sides always reach the same score: the margin alone decides."""
    verdict = judge(np.full(3, mean), reference(1000.0, 0.0, 3), 0.0)
    assert (verdict.verdict, verdict.p_below) == (expected, p_below)
    assert verdict.ci_low == verdict.ci_high == verdict.difference == mean - 1000.0
    assert verdict.smallest_detectable_shortfall == verdict.margin == 100.0
    assert "means are compared" in verdict.note


def test_a_spread_on_one_side_only_still_gives_an_interval() -> None:
    """Only the side that varies gives degrees of freedom: 4 of ours, or 2 of theirs."""
    ours = judge(spread_scores(995.0, 5.0, 5), reference(1000.0, 0.0, 3), 0.0)
    half_width = stats.t.ppf(0.95, 4) * 5.0 / 5**0.5
    assert (ours.ci_low, ours.ci_high) == pytest.approx((-5.0 - half_width, -5.0 + half_width))
    theirs = judge(np.full(5, 995.0), reference(1000.0, 6.0, 3), 0.0)
    half_width = stats.t.ppf(0.95, 2) * 6.0 / 3**0.5
    assert (theirs.ci_low, theirs.ci_high) == pytest.approx((-5.0 - half_width, -5.0 + half_width))
    assert ours.verdict == theirs.verdict == "reproduced"


def is_untested(verdict: Verdict) -> bool:
    """Whether every number of a test is missing."""
    numbers = (verdict.ci_low, verdict.ci_high, verdict.p_below)
    return bool(np.isnan((*numbers, verdict.smallest_detectable_shortfall)).all())


def test_no_reference() -> None:
    """Without a reference our own numbers are shown and nothing else."""
    verdict = judge(np.array([1.0, 2.0, 3.0]), None, 0.0)
    assert (verdict.verdict, verdict.score_mean, verdict.score_std) == ("no reference", 2.0, 1.0)
    assert np.isnan((verdict.reference_mean, verdict.margin, verdict.difference)).all()
    assert np.isnan(verdict.ratio)
    assert (verdict.reference_num_runs, verdict.seeds_to_settle) == (0, None)
    assert is_untested(verdict)


@pytest.mark.parametrize(
    ("published", "random_score", "ratio", "note"),
    [
        (reference(100.0, float("nan"), 1), 20.0, 0.875, "single run"),
        (reference(100.0, 0.0, 1), 20.0, 0.875, "single run"),
        (reference(100.0, float("nan"), 5), 20.0, 0.875, "no spread"),
        (reference(100.0, 5.0, 5), None, float("nan"), "random policy is unknown"),
        (reference(100.0, 5.0, 5), float("nan"), float("nan"), "random policy is unknown"),
        (reference(100.0, 5.0, 5), 100.0, float("nan"), "not above a random policy"),
        (reference(100.0, 5.0, 5), 130.0, float("nan"), "not above a random policy"),
    ],
)
def test_what_cannot_be_tested_is_shown_only(published, random_score, ratio, note) -> None:
    """One run, no spread or no margin: the ratio is printed where it has a meaning."""
    verdict = judge(np.array([80.0, 90.0, 100.0]), published, random_score)
    assert verdict.verdict == "shown only"
    assert verdict.ratio == pytest.approx(ratio, nan_ok=True)
    assert verdict.difference == -10.0
    assert verdict.seeds_to_settle is None
    assert note in verdict.note
    assert is_untested(verdict)


@pytest.mark.parametrize("num_seeds", [0, 1, 2])
def test_fewer_than_three_seeds_are_inconclusive(num_seeds) -> None:
    """However far off they are; three is the number that would be judged."""
    verdict = judge(np.full(num_seeds, 1.0), reference(100.0, 1.0, 10), 0.0)
    assert (verdict.verdict, verdict.num_seeds, verdict.seeds_to_settle) == (
        *("inconclusive", num_seeds, 3),
    )
    assert f"{num_seeds} seeds" in verdict.note
    assert is_untested(verdict)


def test_no_score_at_all_is_inconclusive_even_if_the_reference_could_not_judge() -> None:
    """There is nothing to show yet, and no number of seeds will be judged."""
    verdict = judge(np.array([]), reference(100.0, float("nan"), 1), 0.0)
    assert (verdict.verdict, verdict.seeds_to_settle) == ("inconclusive", None)
    assert np.isnan((verdict.score_mean, verdict.ratio)).all()


def test_scores_that_are_not_finite_are_refused() -> None:
    """A diverged run is reported as such; it is no score."""
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=f"scores must be finite, not {bad}"):
            judge(np.array([1.0, bad, 2.0]), reference(1.0, 1.0, 3), 0.0)
    with pytest.raises(ValueError, match="reference's mean must be finite, not nan"):
        judge(np.array([1.0, 2.0, 3.0]), reference(float("nan"), 1.0, 3), 0.0)


def test_smallest_detectable_shortfall_is_found_in_four_cases_of_five() -> None:
    """Simulated: a true mean short by that much is declared below with a probability of 80 %."""
    published = reference(100.0, 8.0, 10)
    shortfall = judge(spread_scores(100.0, 8.0, 10), published, 0.0).smallest_detectable_shortfall
    rng = np.random.default_rng(0)
    ours = rng.normal(100.0 - shortfall, 8.0, size=(20_000, 10))
    theirs = rng.normal(100.0, 8.0, size=(20_000, 10))
    test = welch(
        ours.mean(axis=1),
        ours.std(axis=1, ddof=1),
        10,
        theirs.mean(axis=1),
        theirs.std(axis=1, ddof=1),
        10,
    )
    share = (decide(test.ci_low, test.ci_high, 10.0) == "below").mean()
    assert share == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("mean", "needed", "settled"),
    [(103.0, 6, "reproduced"), (98.0, 15, "reproduced"), (82.0, 15, "below")],
)
def test_seeds_to_settle_is_the_first_number_with_another_verdict(mean, needed, settled) -> None:
    """Judged again with that many seeds the task is decided, and with one fewer it is not."""
    published = reference(100.0, 8.0, 10)
    verdict = judge(spread_scores(mean, 15.0, 5), published, 0.0)
    assert verdict.verdict == "inconclusive"
    assert verdict.seeds_to_settle == needed
    assert f"{needed} seeds would settle it" in verdict.note
    assert judge(spread_scores(mean, 15.0, needed), published, 0.0).verdict == settled
    for fewer in range(5, needed):
        undecided = judge(spread_scores(mean, 15.0, fewer), published, 0.0)
        assert undecided.verdict == "inconclusive"


def test_few_runs_of_the_reference_cannot_be_made_up_for() -> None:
    """A spread of 30 over three runs leaves plus or minus 50, were our mean known exactly."""
    verdict = judge(spread_scores(100.0, 30.0, 5), reference(100.0, 30.0, 3), 0.0)
    assert (verdict.verdict, verdict.seeds_to_settle) == ("inconclusive", None)
    assert verdict.note.endswith("the reference has 3 runs")


def test_a_decided_task_needs_no_more_seeds() -> None:
    """The number that settles it is the number there is."""
    assert judge(spread_scores(100.0, 1.0, 4), reference(100.0, 1.0, 5), 0.0).seeds_to_settle == 4


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.04 are multiplied by 3, 2, 1 and never fall; NaN is not a test."""
    adjusted = holm(np.array([0.04, np.nan, 0.01, 0.02]))
    np.testing.assert_allclose(adjusted, [0.04, np.nan, 0.03, 0.04])
    np.testing.assert_allclose(holm(np.array([0.03, 0.02])), [0.04, 0.04])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])
    assert holm(np.array([])).size == 0
    with pytest.raises(ValueError, match=r"not 1\.5"):
        holm(np.array([0.5, 1.5]))


def test_holm_leaves_its_argument_alone() -> None:
    """The caller's unadjusted p-values are still wanted."""
    p_values = np.array([0.01, 0.01])
    holm(p_values)
    np.testing.assert_array_equal(p_values, [0.01, 0.01])


def test_table_has_a_row_for_every_task_of_the_plan() -> None:
    """A task without a score is inconclusive or without reference, and its failures are counted."""
    table = verdict_table(
        score_rows("Good-v4", [100.0, 101.0, 99.0]),
        {"Good-v4": reference(100.0, 1.0, 5), "Lost-v4": reference(50.0, 5.0, 3, env_steps=7)},
        {"Good-v4": 0.0, "Lost-v4": 0.0, "Bare-v4": 0.0},
        pd.concat(
            [
                status_rows("Lost-v4", "failed", "failed", "diverged"),
                status_rows("Bare-v4", "running"),
                status_rows("Good-v4", "finished", "finished", "finished", "diverged"),
            ]
        ),
    )
    assert tuple(table.columns) == TABLE_COLUMNS
    assert table["task"].tolist() == ["Lost-v4", "Bare-v4", "Good-v4"]
    assert table["verdict"].tolist() == ["inconclusive", "no reference", "reproduced"]
    assert table["num_seeds"].tolist() == [0, 0, 3]
    assert table["num_failed"].tolist() == [2, 0, 0]
    assert table["num_diverged"].tolist() == [1, 0, 1]
    assert table["env_steps"].fillna(-1).tolist() == [7, -1, 1000]
    assert table["rule"].tolist() == ["deterministic", "", "deterministic"]
    assert table["note"].tolist() == [
        "0 seeds; at least 3 are needed; 2 of 3 runs failed; 1 of 3 runs diverged",
        "no comparable reference at this step and rule; 1 of 1 runs running",
        "1 of 4 runs diverged",
    ]


def test_table_without_a_single_score_is_still_a_table() -> None:
    """The first call of a sweep comes before anything has finished."""
    table = verdict_table(
        score_rows("A-v4", []), {"A-v4": None}, {}, status_rows("A-v4", "running", "running")
    )
    assert table[["task", "verdict", "num_seeds"]].values.tolist() == [["A-v4", "no reference", 0]]


def test_table_adjusts_p_values_over_all_tested_tasks() -> None:
    """Two tasks are tested and one is not, so the smaller p-value doubles."""
    scores = pd.concat(
        [score_rows(task, spread_scores(mean, 5.0, 5)) for task, mean in
         (("A-v4", 80.0), ("B-v4", 92.0), ("C-v4", 1.0))]
    )  # fmt: skip
    references: dict[str, ReferenceScore | None] = {
        "A-v4": reference(100.0, 5.0, 5),
        "B-v4": reference(100.0, 5.0, 5),
        "C-v4": None,
    }
    randoms: dict[str, float] = dict.fromkeys(references, 0.0)
    table = verdict_table(scores, references, randoms, status_rows("A-v4")).set_index("task")
    p_below, adjusted = table["p_below"], table["p_below_holm"]
    expected = [2.0 * p_below["A-v4"], p_below["B-v4"], float("nan")]
    assert adjusted.tolist() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("scores", "status", "message"),
    [
        (score_rows("A", [1.0, float("nan")]), "finished", "A, seed 2: score .* not nan"),
        (pd.concat([score_rows("A", [1.0])] * 2), "finished", "A: seed 1 has more than one score"),
        (
            score_rows("A", [1.0], env_steps=900),
            "finished",
            "900 deterministic, 1000 deterministic",
        ),
        (score_rows("A", [1.0], rule="training"), "finished", "1000 deterministic, 1000 training"),
        (score_rows("A", [1.0]), "lost", "running, planned, not 'lost'"),
    ],
)
def test_tables_that_compare_unlike_things_are_refused(scores, status, message) -> None:
    """Like is compared with like: one step, one rule, one score per seed, and known statuses."""
    with pytest.raises(ValueError, match=message):
        verdict_table(scores, {"A": reference(1.0, 1.0, 3)}, {}, status_rows("A", status))


def test_suite_summary_normalises_by_task() -> None:
    """Scores of 0.5 and 1.5 on one task, 1 on the other; tasks that do not count are left out."""
    scores = pd.concat(
        [
            score_rows("A", [15.0, 25.0]),
            score_rows("B", [-4.0, -4.0]),
            score_rows("NoReference", [1e9]),
            score_rows("NoRandom", [1e9]),
            score_rows("Hopeless", [1e9]),
        ]
    )
    references = {
        "A": reference(20.0, 1.0, 3),
        "B": reference(-4.0, 1.0, 3),
        "NoRandom": reference(20.0, 1.0, 3),
        "Hopeless": reference(5.0, 1.0, 3),
    }
    summary = suite_summary(
        scores, references, {"A": 10.0, "B": -40.0, "Hopeless": 5.0, "NoReference": 0.0}
    ).set_index("statistic")
    assert summary["estimate"].to_dict() == pytest.approx(
        {"iqm": 1.0, "median": 1.0, "mean": 1.0, "optimality_gap": 0.125}
    )
    assert set(summary["num_tasks"]) == {2}
    assert set(summary["num_seeds"]) == {4}
    mean_interval = (summary["ci_low"].to_dict()["mean"], summary["ci_high"].to_dict()["mean"])
    assert mean_interval == pytest.approx((0.75, 1.25))


def test_suite_summary_of_nothing_is_nan() -> None:
    """No comparable task: the statistics are listed, without a number."""
    summary = suite_summary(score_rows("A", [1.0]), {}, {})
    assert summary["statistic"].tolist() == ["iqm", "median", "mean", "optimality_gap"]
    assert np.isnan(summary[["estimate", "ci_low", "ci_high"]].to_numpy()).all()
    assert set(summary["num_tasks"]) == {0}


def test_suite_summary_adds_human_normalised_scores() -> None:
    """0.5 and 1.5 on one game, 4 on the other, which has no reference; other tasks do not count."""
    scores = pd.concat(
        [score_rows("A", [15.0, 25.0]), score_rows("B", [0.0, 0.0]), score_rows("Other", [1e9])]
    )
    references = {"A": reference(20.0, 1.0, 3), "Other": reference(1e9, 1.0, 3)}
    published = {"A": (10.0, 20.0), "B": (-40.0, -30.0), "Unplayed": (0.0, 1.0)}
    plain = suite_summary(scores, references, {"A": 0.0, "Other": 0.0})
    summary = suite_summary(scores, references, {"A": 0.0, "Other": 0.0}, published)
    pd.testing.assert_frame_equal(summary.iloc[:4], plain)
    human = summary.iloc[4:].set_index("statistic")
    assert human["estimate"].to_dict() == pytest.approx(
        {"human_normalised_median": 2.5, "human_normalised_iqm": (1.5 + 4.0) / 2.0}
    )
    assert set(human["num_tasks"]) == {2}
    assert set(human["num_seeds"]) == {4}
    median = human.loc["human_normalised_median"]
    assert (median["ci_low"], median["ci_high"]) == pytest.approx((2.25, 2.75))


def test_human_normalised_rows_without_scores_are_nan_and_scales_must_rise() -> None:
    """Games that nobody has played yet have no number; a scale upside down is an error."""
    summary = suite_summary(score_rows("A", [1.0]), {}, {}, {"B": (0.0, 1.0)})
    human = summary[summary["statistic"].str.startswith("human_normalised_")]
    assert len(human) == 2
    assert np.isnan(human[["estimate", "ci_low", "ci_high"]].to_numpy()).all()
    assert len(suite_summary(score_rows("A", [1.0]), {}, {}, {})) == 4
    with pytest.raises(ValueError, match=r"B: human score must be above random 1\.0, not 1\.0"):
        suite_summary(score_rows("A", [1.0]), {}, {}, {"B": (1.0, 1.0)})


def test_a_drawn_curve_without_a_spread_is_shown_only() -> None:
    """OpenAI Baselines on Pong at 10M: six runs, but no deviation to test with."""
    published = reference_score(
        "a2c", "openai_baselines_7bfbcf1", "Pong-v5", 10_000_000, "training", "noframeskip"
    )
    verdict = judge(np.array([18.0, 19.0, 20.0]), published, -20.3)
    assert (verdict.verdict, verdict.reference_num_runs) == ("shown only", 6)
    assert verdict.note == "the reference states no spread"
    assert verdict.ratio == pytest.approx(39.3 / (18.5 + 20.3), abs=0.005)


def test_simulated_verdicts_are_those_of_judge() -> None:
    """The error rates are rates of the rule that judges, not of a copy of it."""
    shortfall, num_repetitions = 0.1, 300
    rates = simulate(
        0.15, 4, 3, shortfall=shortfall, num_repetitions=num_repetitions,
        rng=np.random.default_rng(5),
    )  # fmt: skip
    rng = np.random.default_rng(5)
    ours = rng.normal(1.0 - shortfall, 0.15, size=(num_repetitions, 4))
    theirs = rng.normal(1.0, 0.15, size=(num_repetitions, 3))
    verdicts = [
        judge(scores, reference(float(runs.mean()), float(runs.std(ddof=1)), 3), 0.0).verdict
        for scores, runs in zip(ours, theirs, strict=True)
    ]
    counts = [
        sum(verdict in names for verdict in verdicts)
        for names in (("reproduced", "above"), ("below",), ("inconclusive",))
    ]
    assert min(counts) > 0
    np.testing.assert_allclose(rates, np.array(counts) / num_repetitions)


@pytest.mark.parametrize(("num_seeds", "num_runs"), [(3, 3), (3, 10), (10, 10)])
def test_at_the_margin_either_error_stays_near_five_percent(num_seeds, num_runs) -> None:
    """At a true difference of exactly minus the margin neither verdict exceeds 6 %."""
    reproduced, below, _ = simulate(
        0.15, num_seeds, num_runs, shortfall=check.MARGIN_FRACTION, num_repetitions=20_000,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    assert 0.02 < reproduced < 0.06
    assert 0.02 < below < 0.06


def test_the_documented_error_rates_are_what_the_command_prints() -> None:
    """The page cannot fall behind the rule."""
    assert tables(NUM_REPETITIONS) in VERDICTS_PAGE.read_text(encoding="utf-8")
