"""Charts of scores, profile, improvement and speed show every run, and say what they leave out."""

from typing import Any

import pandas as pd
import pytest

from reproduce.judge.improvement import improvements
from reproduce.report import grid_charts
from reproduce.report.page import COLUMNS
from tests.reproduce.report.tables import NAN, no_rows, score, verdict
from tests.reproduce.report.test_charts import content


def theirs(task: str, *values: float) -> pd.DataFrame:
    """Scores of a reference's runs 1, 2, ..."""
    rows = [(task, "published", run, 100, value, "deterministic", 0.0, 100.0, value / 100)
            for run, value in enumerate(values, 1)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS["reference_scores"]))


def points(fragment: str, series: str, panel: int = 0) -> list[dict[str, Any]]:
    """The traces of a series in a panel."""
    traces = content(fragment)["panels"][panel]["data"]
    return [trace for trace in traces if trace["meta"]["series"] == series]


def test_every_run_is_a_dot_on_the_scale_from_random_policy_to_reference() -> None:
    """With random 20, reference 120 and margin 10: 70 is at 0.5; the interval is the verdict's."""
    shifted = verdict("A", zero_score=20.0, reference_mean=120.0)
    fragment = grid_charts.scores_chart(score("A", 70.0, 145.0), theirs("A", 110.0, 130.0), shifted)
    dots, interval, mean = points(fragment, "ours")
    assert dots["x"] == [0.5, 1.25]
    assert dots["text"][0] == "seed 1: <b>70</b>"
    assert (interval["x"], mean["x"]) == ([0.94, 1.04], [0.875])
    assert points(fragment, "reference")[0]["x"] == [0.9, 1.1]
    assert points(fragment, "margin")[0]["x"] == [0.9]
    assert points(fragment, "random")[0]["x"] == [0]


def test_a_task_without_a_scale_keeps_its_own_axis_and_a_far_score_is_an_arrow() -> None:
    """One extreme seed does not squeeze the others, and its hover text is true."""
    unknown = {"reference_mean": NAN, "margin": NAN, "reference_std": NAN, "zero_score": NAN}
    verdicts = pd.concat([verdict("A"), verdict("B", "no reference", **unknown), verdict("C")])
    scores = pd.concat([score("A", 95.0, 9000.0), score("B", 3000.0, 4000.0)])
    fragment = grid_charts.scores_chart(scores, no_rows("reference_scores"), verdicts)
    shared, own = (points(fragment, "ours", panel)[0] for panel in (0, 1))
    assert shared["x"] == [0.95, 3]
    assert shared["marker"]["symbol"] == ["circle", "triangle-right"]
    assert shared["text"][1] == "seed 2: <b>9,000</b>"
    assert own["x"] == [3000, 4000]
    assert not grid_charts.scores_chart(no_rows("scores"), no_rows("reference_scores"), verdicts)


def test_a_profile_needs_several_tasks_and_says_what_it_leaves_out() -> None:
    """Each threshold's share is the mean over tasks of the share of runs above it."""
    verdicts = pd.concat([verdict("A"), verdict("B"), verdict("C")])
    scores = pd.concat([score("A", 50.0, 150.0), score("B", 150.0, 150.0), score("C", 10.0)])
    runs = pd.concat([theirs("A", 90.0, 110.0), theirs("B", 90.0, 110.0)])
    fragment, note = grid_charts.profile_chart(scores, runs, verdicts)
    shares = dict(zip(*(points(fragment, "ours")[1][axis] for axis in "xy"), strict=True))
    assert shares[1] == 0.75
    assert shares[0] == 1
    assert points(fragment, "reference")
    assert note == "Left out: C (no scale, or one seed)."
    _, note = grid_charts.profile_chart(scores, runs[runs["task"] == "A"], verdicts)
    assert "it has no single runs of all these tasks" in note
    assert grid_charts.profile_chart(scores[scores["task"] == "A"], runs, verdicts)[0] == ""


def test_improvement_counts_pairs_of_runs_and_needs_two_of_either_side() -> None:
    """A: three of four pairs are ours; B: a tie is half; C has one run. Their mean comes last."""
    scores = pd.concat([score("A", 1.0, 3.0), score("B", 5.0, 5.0), score("C", 1.0)])
    runs = pd.concat([theirs("A", 0.0, 2.0), theirs("B", 5.0, 5.0), theirs("C", 0.0, 2.0)])
    table = improvements(scores, runs)
    assert tuple(table.columns) == COLUMNS["improvement"]
    assert table["task"].tolist() == ["A", "B", ""]
    assert table["probability"].tolist() == [0.75, 0.5, 0.625]
    assert table[["num_seeds", "num_runs"]].to_numpy().tolist() == [[2, 2], [2, 2], [4, 4]]
    fragment = grid_charts.improvement_chart(table)
    assert points(fragment, "ours")[-1]["x"] == [0.75, 0.5, 0.625]
    assert "all tasks" in fragment
    assert improvements(score("A", 1.0), theirs("A", 0.0, 2.0)).empty
    assert not grid_charts.improvement_chart(table[:0])


def test_throughput_shows_every_device_and_share() -> None:
    """Runs on two devices are two rows; a share that was not measured draws nothing."""
    row = (1, "cpu", 100, 90, 1.0, 100.0, 90.0, 0.1, 0.2, 0.6, 0.1, 500.0)
    gpu = (2, "cuda", 100, 90, 1.0, 700.0, 90.0, NAN, NAN, NAN, NAN, NAN)
    throughput = pd.DataFrame([("A", *row), ("A", *gpu)], columns=list(COLUMNS["throughput"]))
    fragment = grid_charts.throughput_chart(throughput)
    assert content(fragment)["panels"][0]["layout"]["yaxis"]["ticktext"] == ["A, cpu", "A, cuda"]
    assert points(fragment, "speed")[0]["x"] == [100]
    shares = {name: points(fragment, name, 1)[0]["x"] for name in grid_charts.SHARES}
    assert shares["learning"] == [0.6, None]
    assert sum(values[0] for values in shares.values()) == pytest.approx(1.0)
