"""Verdicts: every branch, the numbers behind them, tables of a suite, and error rates."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce.gather.references import ReferenceScore, Rule, reference_score
from reproduce.judge.inference import LEVEL
from reproduce.judge.verdicts import (
    TABLE_COLUMNS,
    Judged,
    Verdict,
    judge,
    judge_declared,
    judge_suite,
    judge_tasks,
    suite_summary,
)
from reproduce.judge.verdicts import verdict_table as table_of
from reproduce.words import counted
from suite.settings.presets import REFERENCES


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
        how="single runs",
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


def verdict_table(scores, references, randoms, runs_by_status, declared=None) -> pd.DataFrame:
    """The table of everything that is judged."""
    judged = judge_tasks(scores, references, randoms, runs_by_status, declared)
    return table_of(judged, scores, references, runs_by_status)


def status_rows(task: str, *statuses: str) -> pd.DataFrame:
    """One planned run per status."""
    return pd.DataFrame(
        {"task": task, "seed": range(1, len(statuses) + 1), "status": list(statuses)}
    )


def test_a_match_is_reproduced_and_a_shifted_curve_is_rejected() -> None:
    """Ten published runs match their own curve; two margins lower or higher they do not."""
    runs = pd.read_csv(REFERENCES / "jaxrl" / "curves_by_seed.csv.xz").query(
        "env_id == 'HalfCheetah-v2' and env_steps in (95_000, 100_000)"
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
        "zero_score": 20.0,
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


@settings(derandomize=True, deadline=None)
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
    ("published", "zero_score", "ratio", "note"),
    [
        (reference(100.0, float("nan"), 1), 20.0, 0.875, "single run"),
        (reference(100.0, 0.0, 1), 20.0, 0.875, "single run"),
        (reference(100.0, float("nan"), 5), 20.0, 0.875, "no spread"),
        (reference(100.0, 5.0, 5), None, float("nan"), "zero of the scale is unknown"),
        (reference(100.0, 5.0, 5), float("nan"), float("nan"), "zero of the scale is unknown"),
        (reference(100.0, 5.0, 5), 100.0, float("nan"), "not above the zero"),
        (reference(100.0, 5.0, 5), 130.0, float("nan"), "not above the zero"),
    ],
)
def test_what_cannot_be_tested_is_shown_only(published, zero_score, ratio, note) -> None:
    """One run, no spread or no margin: the ratio is printed where it has a meaning."""
    verdict = judge(np.array([80.0, 90.0, 100.0]), published, zero_score)
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
    assert verdict.note.startswith(counted(num_seeds, "seed"))
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
                status_rows("Good-v4", "finished", "finished", "finished"),
            ]
        ),
    )
    assert tuple(table.columns) == TABLE_COLUMNS
    assert table["task"].tolist() == ["Lost-v4", "Bare-v4", "Good-v4"]
    assert table["verdict"].tolist() == ["inconclusive", "no reference", "reproduced"]
    assert table["num_seeds"].tolist() == [0, 0, 3]
    assert table["num_failed"].tolist() == [2, 0, 0]
    assert table["num_diverged"].tolist() == [1, 0, 0]
    assert table["env_steps"].fillna(-1).tolist() == [7, -1, 1000]
    assert table["rule"].tolist() == ["deterministic", "", "deterministic"]
    assert table["note"].tolist() == [
        "0 of its 3 declared seeds have a score; 2 of 3 runs failed; 1 of 3 runs diverged, "
        "counted as a random policy",
        "no comparable reference at this step and rule; 1 of 1 runs running",
        "",
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
        (score_rows("A", [1.0]), "lost", "planned, left out, not 'lost'"),
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
        "a2c", "openai_baselines", "Pong-v5", 10_000_000, "training", "noframeskip"
    )
    verdict = judge(np.array([18.0, 19.0, 20.0]), published, -20.3)
    assert (verdict.verdict, verdict.reference_num_runs) == ("shown only", 6)
    assert verdict.note == "the reference states no spread"
    assert verdict.ratio == pytest.approx(39.3 / (18.5 + 20.3), abs=0.005)


RUNS = reference(100.0, 5.0, 10)
"""A reference with a margin of 10."""


def judged_at(scores, num_declared: int, published=RUNS) -> Judged:
    """What becomes of these scores of seeds 1, 2, ...; None has no score."""
    of_seeds = {seed: float(s) for seed, s in enumerate(scores, start=1) if s is not None}
    declared, seeds = range(1, num_declared + 1), range(1, len(scores) + 1)
    return judge_declared(of_seeds, declared, seeds, published, 0.0)


def test_seeds_added_until_a_verdict_appears_give_an_exploratory_one() -> None:
    """Three undecided seeds and two more that match: nothing that was declared was found."""
    three, five = [80.0, 95.0, 100.0], [80.0, 95.0, 100.0, 99.0, 101.0, 100.0, 100.0, 99.0]
    assert judged_at(three, 3).shown.verdict == "inconclusive"
    more = judged_at(five, 3)
    assert (more.shown.verdict, more.is_exploratory, more.shown.num_seeds) == (
        "reproduced",
        True,
        8,
    )
    assert more.declared is not None
    assert more.declared.verdict == "inconclusive"
    declared = judged_at(five, 8)
    assert (declared.shown.verdict, declared.is_exploratory) == ("reproduced", False)


def test_more_seeds_cannot_wash_a_task_that_was_below() -> None:
    """The p-values, and so the exit status, stay those of the declared seeds."""
    scores = [60.0, 61.0, 59.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    rows = score_rows("A", scores)
    statuses = status_rows("A", *["finished"] * len(scores))
    table = verdict_table(rows, {"A": RUNS}, {"A": 0.0}, statuses, {"A": (1, 2, 3)})
    (row,) = table.to_dict("records")
    assert (row["verdict"], row["exploratory"], row["num_seeds"]) == ("inconclusive", True, 8)
    assert row["p_below_holm"] == row["p_below"] < LEVEL
    assert "by its 3 declared seeds: below" in row["note"]


@pytest.mark.parametrize("num_scores", [0, 1, 3, 4])
def test_a_task_that_lacks_a_declared_seed_is_not_decided(num_scores) -> None:
    """A crashed or unfinished run leaves `inconclusive`, however clear the others are."""
    scores = [*[100.0 + seed for seed in range(num_scores)], *[None] * (5 - num_scores)]
    judged = judged_at(scores, 5)
    assert judged.shown.verdict == "inconclusive"
    assert judged.declared is None
    assert judged.shown.num_seeds == num_scores
    assert f"{num_scores} of its 5 declared seeds" in judged.shown.note


def test_a_run_that_lies_apart_asks_for_five_seeds() -> None:
    """One collapsed seed of three is no spread to judge by; five are judged, and so are four."""
    for scores in ([100.0, 101.0, 40.0], [100.0, 101.0, 99.0, 40.0]):
        verdict = judge(np.array(scores), RUNS, 0.0)
        assert (verdict.verdict, verdict.seeds_to_settle) == ("inconclusive", 5)
        assert "lies apart" in verdict.note
        assert is_untested(verdict)
    assert not is_untested(judge(np.array([100.0, 101.0, 99.0, 98.0, 40.0]), RUNS, 0.0))
    within_the_margin = judge(np.array([100.0, 100.1, 95.0]), RUNS, 0.0)
    assert within_the_margin.verdict == "reproduced"


def suite_of(*scores, num_declared: int | None = None):
    """The verdict on tasks with these scores, all with the same reference."""
    judged = {
        f"T{index}": judged_at(of_task, num_declared or len(of_task))
        for index, of_task in enumerate(scores)
    }
    return judge_suite(judged)


def test_a_suite_by_hand() -> None:
    """Means of 90 and 100 against 100: half of -0.1, less the second order's 0.00025 each."""
    verdict = suite_of(spread_scores(90.0, 3.0, 3), spread_scores(100.0, 3.0, 4))
    second_order = 5.0**2 / 10 / 100.0**2
    assert verdict.difference == pytest.approx((1.9 * (1.0 - second_order) - 2.0) / 2.0)
    parts = np.array([9 / 3, 0.9**2 * 2.5, 9 / 4, 2.5]) / 200.0**2
    freedom = parts.sum() ** 2 / (parts**2 / [2, 9, 3, 9]).sum()
    half_width = stats.t.ppf(0.95, freedom) * parts.sum() ** 0.5
    assert verdict.ci_low == pytest.approx(verdict.difference - half_width)
    assert verdict.ci_high == pytest.approx(verdict.difference + half_width)
    expected = stats.t.cdf((verdict.difference + 0.1) / parts.sum() ** 0.5, freedom)
    assert verdict.p_below == pytest.approx(expected)
    assert (verdict.verdict, verdict.num_tasks, verdict.num_seeds) == ("reproduced", 2, 7)


@pytest.mark.parametrize("scores", [[], [100.0], [100.0] * 5, [0.0, 50.0, 200.0]])
def test_where_nothing_was_learned_no_score_of_ours_changes_the_verdict(scores) -> None:
    """Shown with the reason; neither tested nor adjusted for, and no suite counts it."""
    why = "the reference is not clear of a random policy: 100 ± 5 beside 95"
    verdict = judge(np.array(scores), RUNS, 0.0, why)
    assert (verdict.verdict, verdict.note) == ("nothing learned", why)
    assert is_untested(verdict)
    judged = judge_declared(dict(enumerate(scores)), range(5), range(5), RUNS, 0.0, why)
    assert judged.shown.verdict == "nothing learned"
    fine = judged_at(spread_scores(100.0, 2.0, 5), 5)
    suite = judge_suite({"A": fine, "B": fine, "C": judged})
    assert (suite.verdict, suite.num_tasks, suite.left_out) == ("reproduced", 2, f"C: {why}")


def test_a_suite_says_what_it_leaves_out_and_why() -> None:
    """No reference, no margin, a reference near a random policy: named, and not in the mean."""
    near = reference(100.0, 51.0, 10)
    fine = judged_at(spread_scores(100.0, 2.0, 5), 5)
    judged = {
        "A": fine,
        "B": fine,
        "Near": judged_at(spread_scores(0.0, 2.0, 5), 5, published=near),
        "None": judge_declared({1: 5.0}, (1,), (1,), None, 0.0),
    }
    verdict = judge_suite(judged)
    assert (verdict.verdict, verdict.num_tasks) == ("reproduced", 2)
    assert verdict.left_out == (
        "Near: its reference is within two standard deviations of the zero; "
        "None: no comparable reference at this step and rule"
    )
    chosen = judge_suite({"A": fine, "B": fine}, ["Poor", "Worse"])
    assert (chosen.verdict, chosen.left_out) == ("reproduced", "Poor, Worse: not planned")
    alone = judge_suite({"A": fine, "None": judged["None"]})
    assert (alone.verdict, alone.num_tasks) == ("not judged", 1)
    assert np.isnan(alone.p_below)


def test_holm_counts_the_tasks_that_are_tested() -> None:
    """Two tasks are tested: the smaller p-value doubles."""
    scores = {"Below": spread_scores(80.0, 5.0, 5), "Fine": spread_scores(100.0, 2.0, 5)}
    rows = pd.concat([score_rows(task, of_task) for task, of_task in scores.items()])
    statuses = pd.concat([status_rows(task, *["finished"] * 5) for task in scores])
    table = verdict_table(rows, dict.fromkeys(scores, RUNS), dict.fromkeys(scores, 0.0), statuses)
    table = table.set_index("task")
    assert table["p_below_holm"]["Below"] == pytest.approx(2.0 * table["p_below"]["Below"])


def test_a_suite_waits_for_every_declared_seed() -> None:
    """A task that lacks one holds the suite at `inconclusive`."""
    waiting = suite_of(spread_scores(100.0, 2.0, 5), [100.0, None, 100.0, 100.0, 100.0])
    assert waiting.verdict == "inconclusive"
    assert np.isnan(waiting.difference)


def test_a_suite_with_more_seeds_than_declared_is_exploratory() -> None:
    """Its p-value stays that of the declared seeds."""
    few = suite_of(*[spread_scores(80.0, 2.0, 3)] * 2)
    scores = [*spread_scores(80.0, 2.0, 3), *[105.0] * 9]
    more = suite_of(scores, scores, num_declared=3)
    assert (few.verdict, few.exploratory) == ("below", False)
    assert (more.verdict, more.exploratory) == ("reproduced", True)
    assert more.p_below == few.p_below < LEVEL
    assert more.note == "by its declared seeds: below"
