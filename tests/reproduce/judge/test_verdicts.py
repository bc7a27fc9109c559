"""Verdicts: every branch, the numbers behind them, declared seeds, suites and their tables."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reproduce.gather.references import ReferenceScore
from reproduce.judge import verdicts
from reproduce.judge.aggregates import normalise, suite_summary
from reproduce.judge.inference import LEVEL, MARGIN_FRACTION, spread
from reproduce.judge.verdicts import Judged, Verdict, judge, judge_suite, judge_tasks
from reproduce.judge.zero import Scale
from reproduce.plan.unlearned import Zero
from reproduce.report.words import explain_suite
from tests.reproduce.conftest import reference

NAN = float("nan")


def measured(runs: Sequence[float]) -> ReferenceScore:
    """Reference computed from these single runs."""
    scores = np.array(runs)
    return reference(scores.mean(), float(spread(scores)), len(runs), scores=tuple(runs))


RUNS = reference(100.0, 5.0, 10)
"""A reference with a margin of 10 above a zero of 0."""


def scale(published: ReferenceScore | None = RUNS, zero: float = 0.0, why: str = "") -> Scale:
    """The scale of a task."""
    return Scale(reference=published, zero=Zero(random=zero), nothing_learned=why)


def spread_scores(mean: float, std: float, num_seeds: int) -> np.ndarray:
    """Scores with exactly this mean and standard deviation."""
    scores = np.linspace(-1.0, 1.0, num_seeds)
    return mean + std * scores / scores.std(ddof=1)


def score_rows(task: str, scores: Sequence[float] | np.ndarray) -> pd.DataFrame:
    """One row per seed, as the harness collects them."""
    said = {"task": task, "env_steps": 1000, "rule": "deterministic"}
    rows = [{**said, "seed": seed, "score": float(s)} for seed, s in enumerate(scores, start=1)]
    return pd.DataFrame(rows, columns=["task", "seed", "env_steps", "score", "rule"])


def status_rows(task: str, *statuses: str) -> pd.DataFrame:
    """One planned run per status."""
    return pd.DataFrame({"task": task, "seed": range(1, len(statuses) + 1), "status": statuses})


def table_of(scores, scales, runs, **declared: Sequence[int]) -> pd.DataFrame:
    """The table of everything that is judged."""
    judged = judge_tasks(scores, scales, runs, declared)
    return verdicts.verdict_table(judged, scores, scales, runs)


def is_untested(verdict: Verdict) -> bool:
    """Whether every number of a test is missing."""
    return bool(np.isnan((verdict.ci_low, verdict.ci_high, verdict.p_below)).all())


def test_numbers_of_a_verdict_are_those_of_a_hand_calculation() -> None:
    """Means 90 and 100, variances 27 / 3 and 16 / 4, so the standard error is the root of 13."""
    verdict = judge(spread_scores(90.0, 27.0**0.5, 3), scale(reference(100.0, 4.0, 4), 20.0))
    degrees_of_freedom = 13.0**2 / (9.0**2 / 2 + 4.0**2 / 3)
    half_width = 13.0**0.5 * stats.t.ppf(0.95, degrees_of_freedom)
    assert (verdict.verdict, verdict.reference_source) == ("inconclusive", "someone")
    numbers = {
        "num_seeds": 3,
        "score_mean": 90.0,
        "score_std": 27.0**0.5,
        "reference_num_runs": 4,
        "reference_mean": 100.0,
        "reference_std": 4.0,
        "zero_score": 20.0,
        "difference": -10.0,
        "margin": 8.0,
        "ratio": 70.0 / 80.0,
        "ci_low": -10.0 - half_width,
        "ci_high": -10.0 + half_width,
        "p_below": stats.t.cdf(-2.0 / 13.0**0.5, degrees_of_freedom),
    }
    assert {name: getattr(verdict, name) for name in numbers} == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(120, "above"), (109, "reproduced"), (91, "reproduced"), (90, "inconclusive"), (89, "below")],
)
def test_the_ends_of_the_interval_decide(mean: float, expected: str) -> None:
    """With a margin of 10 and an interval of plus or minus 0.8 the edges lie near 90 and 110."""
    verdict = judge(spread_scores(mean, 1.0, 10), scale(reference(100.0, 1.0, 10)))
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
    scores = spread_scores(mean, std, num_seeds)
    verdict = judge(scores, scale(reference(100.0, reference_std, num_runs)))
    assert (verdict.verdict == "below") == (verdict.p_below < 0.05)


finite = st.floats(-1000.0, 1000.0, width=32)


@settings(derandomize=True, deadline=None)
@given(zero=finite, gap=st.floats(0.01, 1000.0), n=st.integers(3, 12), m=st.integers(3, 12))
def test_without_any_spread_the_margin_alone_decides(zero, gap, n, m) -> None:
    """Rounding decides nothing: at exactly the margin equal seeds are `reproduced`."""
    published = measured([zero + gap] * m)
    margin = MARGIN_FRACTION * (published.mean - zero)

    def verdict(shortfall: float) -> Verdict:
        return judge(np.full(n, published.mean - shortfall), scale(published, zero))

    reached = [verdict(margin * part) for part in (1.0, 1.0 + 1e-6, -1.0, -1.0 - 1e-6)]
    assert [each.verdict for each in reached] == ["reproduced", "below", "reproduced", "above"]
    assert [each.p_below for each in reached] == [1.0, 0.0, 1.0, 1.0]
    assert all(each.ci_low == each.ci_high == each.difference for each in reached)


@pytest.mark.parametrize(
    ("published", "zero_score", "verdict", "ratio", "note"),
    [
        (None, 20.0, "no reference", NAN, "no comparable reference"),
        (reference(100.0, NAN, 1), 20.0, "shown only", 0.875, "single run"),
        (reference(100.0, 1.0, 2), 20.0, "shown only", 0.875, "two runs; at least 3"),
        (reference(100.0, NAN, 5), 20.0, "shown only", 0.875, "states no spread"),
        (reference(100.0, NAN, 5, how="drawn curve"), 20.0, "shown only", 0.875, "a mean curve"),
        (RUNS, NAN, "shown only", NAN, "zero of the scale is unknown"),
        (RUNS, 100.0, "shown only", NAN, "not above the zero"),
    ],
)
def test_what_cannot_be_tested_says_why(published, zero_score, verdict, ratio, note) -> None:
    """One run, two, no spread or no margin: the ratio is printed where it has a meaning."""
    found = judge(np.array([80.0, 90.0, 100.0]), scale(published, zero_score))
    assert (found.verdict, found.seeds_to_settle) == (verdict, None)
    assert found.ratio == pytest.approx(ratio, nan_ok=True)
    assert (found.score_mean, found.score_std) == (90.0, 10.0)
    assert note in found.note
    assert is_untested(found)
    without = judge(np.array([]), scale(published, zero_score))
    assert without.verdict == ("no reference" if published is None else "inconclusive")
    assert without.seeds_to_settle is None


@pytest.mark.parametrize("num_seeds", [0, 1, 2])
def test_fewer_than_three_seeds_are_inconclusive(num_seeds: int) -> None:
    """However far off they are; three is the number that would be judged."""
    verdict = judge(np.full(num_seeds, 1.0), scale())
    assert (verdict.verdict, verdict.num_seeds) == ("inconclusive", num_seeds)
    assert verdict.seeds_to_settle == 3
    assert is_untested(verdict)


@pytest.mark.parametrize(
    ("mean", "needed", "settled"),
    [(103.0, 6, "reproduced"), (98.0, 15, "reproduced"), (82.0, 15, "below")],
)
def test_seeds_to_settle_is_the_first_number_with_another_verdict(mean, needed, settled) -> None:
    """Judged again with that many seeds the task is decided, and with one fewer it is not."""
    published = reference(100.0, 8.0, 10)
    by_seeds = [judge(spread_scores(mean, 15.0, n), scale(published)) for n in range(5, needed + 1)]
    assert by_seeds[0].seeds_to_settle == by_seeds[-1].seeds_to_settle == needed
    undecided = ["inconclusive"] * (needed - 5)
    assert [each.verdict for each in by_seeds] == [*undecided, settled]


def test_few_runs_of_the_reference_cannot_be_made_up_for() -> None:
    """A spread of 30 over three runs leaves plus or minus 50, were our mean known exactly."""
    verdict = judge(spread_scores(100.0, 30.0, 5), scale(reference(100.0, 30.0, 3)))
    assert (verdict.verdict, verdict.seeds_to_settle) == ("inconclusive", None)
    assert verdict.note.endswith("the reference has 3 runs")


def test_a_run_that_lies_apart_asks_for_five_seeds() -> None:
    """One collapsed seed of three is no spread to judge by, nor is one of four."""
    for scores in ([100.0, 101.0, 40.0], [100.0, 101.0, 99.0, 40.0]):
        verdict = judge(np.array(scores), scale())
        assert (verdict.verdict, verdict.seeds_to_settle) == ("inconclusive", 5)
        assert is_untested(verdict)
    assert not is_untested(judge(np.array([100.0, 101.0, 99.0, 98.0, 40.0]), scale()))
    assert judge(np.array([100.0, 100.1, 95.0]), scale()).verdict == "reproduced"


ALIKE, APART = [99.0, 100.0, 101.0, 100.5, 99.5], [100.0, 100.1, 99.9, 100.0, 60.0]


@pytest.mark.parametrize(
    ("scores", "published", "who"),
    [
        (APART, measured(ALIKE), "one seed lies"),
        (ALIKE, measured(APART), "one run of the reference lies"),
        (APART, measured(APART), "one seed and one run of the reference lie"),
        (ALIKE, measured(ALIKE), ""),
        (ALIKE, dataclasses.replace(measured(APART), scores=()), ""),  # nobody can look at them
    ],
)
def test_a_verdict_on_runs_that_lie_apart_may_err_more_often(scores, published, who) -> None:
    """On either side; the 5 % hold for normal runs."""
    note = judge(np.array(scores), scale(published)).note
    said = f"{who} apart: the verdict may err in more than 5%"
    assert note.endswith(said) if who else "err" not in note


def judged_at(scores, num_declared: int, of: Scale | None = None) -> Judged:
    """What becomes of these scores of seeds 1, 2, ...; None has no score."""
    of_seeds = {seed: float(s) for seed, s in enumerate(scores, start=1) if s is not None}
    declared, seeds = range(1, num_declared + 1), range(1, len(scores) + 1)
    return verdicts.judge_declared(of_seeds, declared, seeds, of or scale())


def test_seeds_added_until_a_verdict_appears_give_an_exploratory_one() -> None:
    """Three undecided seeds and five more that match: nothing that was declared was found."""
    scores = [80.0, 95.0, 100.0, 99.0, 101.0, 100.0, 100.0, 99.0]
    assert judged_at(scores[:3], 3).shown.verdict == "inconclusive"
    more, whole = judged_at(scores, 3), judged_at(scores, 8)
    assert (more.shown.verdict, more.shown.num_seeds) == ("reproduced", 8)
    assert more.declared is not None
    assert more.declared.verdict == "inconclusive"
    assert whole.shown.verdict == "reproduced"
    assert (more.is_exploratory, whole.is_exploratory) == (True, False)


def test_more_seeds_cannot_wash_a_task_that_was_below() -> None:
    """The p-values, and so the exit status, stay those of the declared seeds."""
    scores = [60.0, 61.0, 59.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    statuses = status_rows("A", *["finished"] * len(scores))
    table = table_of(score_rows("A", scores), {"A": scale()}, statuses, A=(1, 2, 3))
    (row,) = table.to_dict("records")
    assert (row["verdict"], row["exploratory"], row["num_seeds"]) == ("inconclusive", True, 8)
    assert row["p_below_holm"] == row["p_below"] < LEVEL
    assert "by its 3 declared seeds: below" in row["note"]


@pytest.mark.parametrize("num_scores", [0, 1, 3, 4])
def test_a_task_that_lacks_a_declared_seed_is_not_decided(num_scores: int) -> None:
    """A crashed or unfinished run leaves `inconclusive`, however clear the others are."""
    scores = [*[100.0 + seed for seed in range(num_scores)], *[None] * (5 - num_scores)]
    judged = judged_at(scores, 5)
    assert (judged.shown.verdict, judged.shown.num_seeds) == ("inconclusive", num_scores)
    assert judged.declared is None
    assert f"{num_scores} of its 5 declared seeds" in judged.shown.note


def test_table_has_a_row_for_every_task_of_the_plan() -> None:
    """A task without a score is inconclusive or without reference, and its failures are counted."""
    lost = ("failed", "failed", "diverged")
    runs = [status_rows("Lost", *lost), status_rows("Bare", "running")]
    runs.append(status_rows("Good", *["finished"] * 3))
    scales = {"Lost": scale(reference(50.0, 5.0, 3, env_steps=7)), "Bare": scale(None)}
    scales["Good"] = scale(reference(100.0, 1.0, 5))
    table = table_of(score_rows("Good", [100.0, 101.0, 99.0]), scales, pd.concat(runs))
    assert tuple(table.columns) == verdicts.TABLE_COLUMNS
    columns = ["task", "verdict", "num_seeds", "num_failed", "num_diverged", "rule"]
    assert table[columns].values.tolist() == [
        ["Lost", "inconclusive", 0, 2, 1, "deterministic"],
        ["Bare", "no reference", 0, 0, 0, ""],
        ["Good", "reproduced", 3, 0, 0, "deterministic"],
    ]
    assert table["env_steps"].fillna(-1).tolist() == [7, -1, 1000]
    assert "2 of 3 runs failed; 1 of 3 runs diverged, left out: no random" in table["note"][0]
    ended = status_rows("Good", "finished", "finished", "diverged")
    table = table_of(score_rows("Good", [100.0, 101.0, -9.0]), scales, ended)
    assert "1 of 3 runs diverged, counted as a random policy" in table["note"][2]


def test_p_values_are_adjusted_over_all_tested_tasks() -> None:
    """Two tasks are tested and one is not, so the smaller p-value doubles."""
    means = {"A": 80.0, "B": 92.0, "C": 1.0}
    rows = [score_rows(task, spread_scores(mean, 5.0, 5)) for task, mean in means.items()]
    scales = {"A": scale(), "B": scale(), "C": scale(None)}
    table = table_of(pd.concat(rows), scales, status_rows("A")).set_index("task")
    p_below = table["p_below"]
    expected = [2.0 * p_below["A"], p_below["B"], NAN]
    assert table["p_below_holm"].tolist() == pytest.approx(expected, nan_ok=True)


def suite_of(*scores, num_declared: int | None = None):
    """The verdict on tasks with these scores, all with the same reference."""
    each = [judged_at(of_task, num_declared or len(of_task)) for of_task in scores]
    return judge_suite({f"T{index}": judged for index, judged in enumerate(each)})


def test_numbers_of_a_suite_are_those_of_a_hand_calculation() -> None:
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


FINE = judged_at(spread_scores(100.0, 2.0, 5), 5)


@pytest.mark.parametrize("scores", [[], [100.0], [100.0] * 5, [0.0, 50.0, 200.0]])
def test_where_nothing_was_learned_no_score_of_ours_changes_the_verdict(scores) -> None:
    """Shown with the reason; neither tested nor adjusted for, and no suite counts it."""
    why = "the reference is not clear of a random policy: 100 ± 5 beside 95"
    judged = judged_at([*scores, *[None] * (5 - len(scores))], 5, scale(why=why))
    for verdict in (judge(np.array(scores), scale(why=why)), judged.shown):
        assert (verdict.verdict, verdict.note) == ("nothing learned", why)
        assert is_untested(verdict)
    suite = judge_suite({"A": FINE, "B": FINE, "C": judged})
    assert (suite.verdict, suite.num_tasks, suite.left_out) == ("reproduced", 2, f"C: {why}")


def test_a_suite_says_what_it_leaves_out_and_why() -> None:
    """No reference, no margin, a reference near a random policy; a reason is said once."""
    near = judged_at(spread_scores(0.0, 2.0, 5), 5, scale(reference(100.0, 51.0, 10)))
    none = judged_at([5.0], 1, scale(None))
    two = judged_at([5.0] * 3, 3, scale(reference(100.0, 5.0, 2)))
    tasks = {"A": FINE, "Two": two, "B": FINE, "Near": near, "None": none, "Pair": two}
    verdict = judge_suite(tasks, {"Poor": "not planned", "Worse": "not planned"})
    assert (verdict.verdict, verdict.num_tasks) == ("reproduced", 2)
    assert verdict.left_out == (
        "Two, Pair: the reference has two runs; at least 3 are needed; "
        "Near: its reference is within two standard deviations of the zero; "
        "None: no comparable reference at this step and rule; Poor, Worse: not planned"
    )
    assert f"Left out: {verdict.left_out}." in explain_suite(asdict(verdict))
    alone = judge_suite({"A": FINE, "None": none})
    assert (alone.verdict, alone.num_tasks) == ("not judged", 1)


def test_a_suite_with_more_seeds_than_declared_is_exploratory() -> None:
    """Its p-value stays that of the declared seeds; a task that lacks one decides nothing."""
    few = suite_of(*[spread_scores(80.0, 2.0, 3)] * 2)
    scores = [*spread_scores(80.0, 2.0, 3), *[105.0] * 9]
    more = suite_of(scores, scores, num_declared=3)
    assert (few.verdict, few.exploratory) == ("below", False)
    assert (more.verdict, more.exploratory) == ("reproduced", True)
    assert more.p_below == few.p_below < LEVEL
    assert more.note == "by its declared seeds: below"
    waiting = suite_of(spread_scores(100.0, 2.0, 5), [100.0, None, 100.0, 100.0, 100.0])
    assert (waiting.verdict, np.isnan(waiting.difference)) == ("inconclusive", True)


def test_a_summary_normalises_by_task() -> None:
    """0.5 and 1.5 on one task, 1 on two; seeds are drawn within a task; two have no summary."""
    rows = {"A": [15.0, 25.0], "B": [-4.0, -4.0], "C": [20.0], "NoReference": [1e9]}
    rows |= {"NoZero": [1e9], "Unlearned": [1e9]}
    scores = pd.concat([score_rows(task, of_task) for task, of_task in rows.items()])
    twenty = reference(20.0, 1.0, 3)
    scales = {"A": scale(twenty, 10.0), "B": scale(reference(-4.0, 1.0, 3), -40.0)}
    scales |= {"C": scale(twenty, 0.0), "NoReference": scale(None), "NoZero": scale(twenty, NAN)}
    scales |= {"Unlearned": dataclasses.replace(scale(twenty, 19.0), nothing_learned="not yet")}
    table = normalise(scores, scales)
    found = table["normalised_score"].fillna(-9).tolist()
    assert found == pytest.approx([0.5, 1.5, 1, 1, 1, -9, -9, -9])
    summary = suite_summary(table).set_index("statistic")
    estimates = {"iqm": 1.0, "median": 1.0, "mean": 1.0, "optimality_gap": 0.25 / 3}
    assert summary["estimate"].to_dict() == pytest.approx(estimates)
    assert summary[["num_tasks", "num_seeds"]].to_numpy().tolist() == [[3, 5]] * 4
    ends = [*summary.loc["mean", ["ci_low", "ci_high"]]]
    assert ends == pytest.approx([2.5 / 3, 3.5 / 3])
    assert suite_summary(table[table["task"] != "C"]).empty
