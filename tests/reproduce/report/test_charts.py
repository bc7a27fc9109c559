"""Charts hold what was measured, ask no network for anything, and show hostile names as text."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plotly.graph_objects import Figure

from reproduce.judge.aggregates import improvements, over_tasks
from reproduce.report import charts, frames
from reproduce.report.page import ASSETS
from reproduce.report.tables import COLUMNS
from tests.reproduce.report.grids import HOSTILE
from tests.reproduce.report.tables import NAN, curve, no_rows, over, reference, score, verdict
from tests.reproduce.report.test_frames import theirs

TWO = pd.concat([curve("A", 1, [100, 200]), curve("A", 2, [100, 200], 3.0)])


def traces(figure: Figure, name: str) -> list[Any]:
    """The traces of a name."""
    return [trace for trace in list[Any](figure.data) if trace.name == name]


def test_a_chart_holds_mean_band_seeds_and_times() -> None:
    """Over steps or times; the judge is on and every other source off, each with its own look."""
    references = pd.concat([reference("A", [0, 400]), reference("A", [0, 40], "context")])
    frame = frames.learning_curves({"ours": TWO}, references)
    figure: Any = charts.curves_chart(frame, {"A": "above"})
    (mean,), (band,) = traces(figure, "ours"), traces(figure, "ours: ± std")
    assert (mean.x.tolist(), mean.y.tolist()) == ([100, 200], [200, 400])
    assert band.x.tolist() == [100, 200, 200, 100]
    assert band.y.round(1).tolist() == [341.4, 682.8, 117.2, 58.6]
    seeds = traces(figure, "ours: each seed")
    assert [seed.y.tolist() for seed in seeds] == [[100, 200], [300, 600]]
    assert [seed.customdata[0][0] for seed in seeds] == ["1", "2"]
    (published,) = traces(figure, "reference: published")
    assert published.x.tolist() == [0, 200]  # cut at our last step
    looks = [mean, published, *traces(figure, "another")]
    assert [trace.visible for trace in looks] == [True, True, "legendonly"]
    assert len({trace.line.color for trace in looks}) == 3
    assert [trace.line.dash for trace in looks] == ["solid", "solid", "dash"]
    assert figure.layout.annotations[0].text == "<b>A</b><br>above"
    steps, times = figure.layout.updatemenus[0].buttons
    assert times.args[1]["xaxis.title.text"] == "seconds of wall time, ours alone"
    places = [list(figure.data).index(trace) for trace in (mean, published)]
    assert [steps.args[0]["x"][place] for place in places] == [[100, 200], [0, 200]]
    ours, none = (times.args[0]["x"][place] for place in places)
    assert ours == [10, 20]  # seconds: the longest is below two minutes
    assert np.isnan(none).all()


def test_hostile_names_end_no_script_and_make_no_markup() -> None:
    """In JSON, in HTML and in what plotly reads as markup of its own."""
    references = reference(HOSTILE, [10, 20]).assign(source=HOSTILE)
    frame = frames.learning_curves({HOSTILE: curve(HOSTILE, 1, [10, 20])}, references)
    rows = {"verdicts": verdict(HOSTILE, reference_source=HOSTILE), "credits": {}}
    runs = (score(HOSTILE, 1.0, 2.0), theirs(HOSTILE, 1.0, 2.0))
    scores = charts.scores_charts(frames.final_scores(*runs, **rows))
    for figure in (charts.curves_chart(frame, {HOSTILE: HOSTILE}), *scores):
        text = str(charts.fragment(figure))
        assert text.count("<script") == text.count("</script>") == 1
        assert "\u2028" not in text
        said = json.dumps(figure.to_dict(), default=list)
        assert "alert(1)" in said
        assert not re.search(r"<(?!/?b>|br>|extra>|/extra>)", said)
        assert "%{y}" not in said.replace("<b>%{y}", "").replace('"%{y}, ', "")


def test_a_task_without_any_curve_keeps_its_panel() -> None:
    """And says so under its name."""
    frame = frames.learning_curves({"ours": no_rows("curves")}, planned={"A": 1, "B": 1})
    figure: Any = charts.curves_chart(frame, {"A": "no curve recorded", "B": "1 run failed"})
    texts = [title.text for title in figure.layout.annotations]
    assert texts == ["<b>A</b><br>no curve recorded", "<b>B</b><br>1 run failed"]


def test_every_run_is_a_dot_beside_the_mean_and_its_interval() -> None:
    """With zero 20 and reference 120 a score of 70 is at 0.5; without any it is itself."""
    unknown = {"reference_mean": NAN, "reference_std": NAN, "zero_score": NAN}
    shifted = verdict("A", zero_score=20.0, reference_mean=120.0, score_mean=107.5)
    verdicts = pd.concat([shifted, verdict("B", "no reference", **unknown)])
    scores = pd.concat([score("A", 70.0, 145.0), score("B", 3000.0)])
    frame = frames.final_scores(scores, theirs("A", 110.0, 130.0), verdicts, {})
    shared, own = charts.scores_charts(frame)
    judge = "reference: published"
    for name, runs, mean, low, high in (
        ("ours", [0.5, 1.25], 0.875, 0.94, 1.04),
        (judge, [0.9, 1.1], 1.0, 0.92, 1.08),
    ):
        (dots,), (marker,) = traces(shared, f"{name}, run"), traces(shared, f"{name}, mean")
        assert (dots.x.tolist(), marker.x.tolist()) == (runs, [mean])
        assert marker.error_x.array.tolist() == pytest.approx([high - mean])
        assert marker.error_x.arrayminus.tolist() == pytest.approx([mean - low])
    assert traces(own, "ours, run")[0].x.tolist() == [3000]


def test_the_profile_is_drawn_as_it_is_with_its_band() -> None:
    """The same as the figure's: a line for each side, and what its resamples lie between."""
    rows = over_tasks(over("A", "B", "C"))["profile"]
    figure = charts.profile_chart(rows)
    for role, name in (("ours", "ours"), ("judge", "reference")):
        own = rows[rows["role"] == role]
        (line,), (band,) = traces(figure, name), traces(figure, f"{name}: 95 % of the resamples")
        assert (line.x.tolist(), line.y.tolist()) == (own["x"].tolist(), own["estimate"].tolist())
        assert band.y.tolist() == [*own["ci_high"], *own["ci_low"][::-1]]


def test_the_probability_of_improvement_stands_for_each_task_and_over_all() -> None:
    """As `improvement.csv` has it."""
    scores = pd.concat([score(task, 1.0, 3.0) for task in "ABC"])
    runs = pd.concat([theirs("A", 0.0, 2.0), theirs("B", 2.0, 2.0), theirs("C", 0.0, 0.0)])
    (figure,) = charts.improvement_charts(improvements(scores, runs))
    (mean,) = traces(figure, "ours, mean")
    assert mean.x.tolist() == [0.75, 0.5, 1.0, 0.75]
    assert mean.y.tolist() == ["A", "B", "C", "all tasks"]


def test_throughput_shows_every_device_and_share() -> None:
    """Runs on two devices are told apart; a share that was not measured draws nothing."""
    row = (1, "cpu", 100, 90, 1.0, 100.0, 90.0, 0.1, 0.2, 0.6, 0.1, 500.0)
    gpu = (2, "cuda", 100, 90, 1.0, 700.0, 90.0, NAN, NAN, NAN, NAN, NAN)
    throughput = pd.DataFrame([("A", *row), ("A", *gpu)], columns=list(COLUMNS["throughput"]))
    speeds, shares = charts.throughput_charts(throughput)
    runs = [traces(speeds, f"{device}, run")[0] for device in ("cpu", "cuda")]
    assert [run.x.tolist() for run in runs] == [[100], [700]]
    assert [traces(shares, f"{part}, cpu")[0].x[0] for part in frames.PARTS] == [0.1, 0.2, 0.6, 0.1]
    assert np.isnan(traces(shares, "learning, cuda")[0].x[0])


def test_the_scripts_end_no_script_element() -> None:
    """All are put into a page as they stand; the library is plotly's own."""
    texts = [read() for read in ASSETS.values()]
    assert "plotly.js" in texts[0][:100]
    assert not any("</script" in text.lower() for text in texts)
