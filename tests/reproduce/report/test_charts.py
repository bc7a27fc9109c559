"""Charts hold what was measured, ask no network for anything, and show hostile names as text."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as graph_objects
import pytest

from reproduce.report import charts
from tests.reproduce.report.tables import curve, no_rows, reference

HOSTILE = "</script><script>alert(1)</script><a href='javascript:x'>\u2028%{y}"
TASK = charts.Heading("A", "reproduced", "reproduced")
CREDITS = {
    "published": {"name": "People's Zoo", "paper": "https://a.org", "code": "https://b.org"},
    "another": {"name": "Another", "paper": "", "code": "javascript:alert(1)"},
}


def content(fragment: str) -> dict[str, Any]:
    """The JSON of a fragment, after checking that plotly knows every key of it."""
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', fragment, re.DOTALL)
    data = json.loads(text)
    for panel in data["panels"]:
        graph_objects.Figure(panel)
    return data


def drawn(fragment: str, part: str, series: str, panel: int = 0) -> list[dict[str, Any]]:
    """The traces of one role and series of a panel."""
    traces = content(fragment)["panels"][panel]["data"]
    wanted = {"series": series, "part": part}
    return [trace for trace in traces if wanted.items() <= trace["meta"].items()]


def learning(
    curves: pd.DataFrame,
    references: pd.DataFrame,
    *headings: charts.Heading,
    credits: Mapping[str, Mapping[str, str]] = CREDITS,
) -> str:
    """A chart of one grid."""
    grids = {"ours": curves}
    return charts.learning_curves("curves", grids, references, credits, headings or [TASK])


def test_a_chart_holds_mean_band_seeds_and_times() -> None:
    """Two seeds: their mean, the band of their resamples, each of them, and hover texts."""
    curves = pd.concat([curve("A", 1, [100, 200]), curve("A", 2, [100, 200], 3.0)])
    fragment = learning(curves, reference("A", [0, 400]))
    (mean,), (band,) = drawn(fragment, "mean", "ours-0"), drawn(fragment, "band", "ours-0")
    assert (mean["x"], mean["y"]) == ([100, 200], [200, 400])
    assert mean["meta"]["time"] == [10, 20]  # seconds: the longest is below two minutes
    assert mean["text"][0] == " ± 141 (2 seeds)<br>seed 1: 100 · 2: 300"
    assert (band["x"], band["y"]) == ([100, 200, 200, 100], [100, 200, 600, 300])
    assert [seed["y"] for seed in drawn(fragment, "seed", "ours-0")] == [[100, 200], [300, 600]]
    (theirs,) = drawn(fragment, "mean", "source-published")
    assert (theirs["x"], theirs["y"]) == ([0, 200], [0, 200])  # cut at our last step
    assert theirs["text"][0] == " ± 5"
    assert "time" not in theirs["meta"]


def test_the_judge_is_on_and_every_other_source_is_off() -> None:
    """Sources are named as people know them, with paper and repository one click away."""
    references = pd.concat([reference("A", [0, 40]), reference("A", [0, 40], "context")])
    fragment = learning(curve("A", 1, [10, 40]), references)
    boxes = re.findall(r'data-series="([^"]+)"( checked)?', fragment)
    assert boxes == [("ours-0", " checked"), ("source-published", " checked"),
                     ("source-another", "")]  # fmt: skip
    assert "People&#39;s Zoo" in fragment
    assert re.findall(r'href="([^"]+)"', fragment) == ["https://a.org", "https://b.org"]
    assert "the judge, 5 runs" in fragment


def test_another_rule_is_on_no_axis_of_ours() -> None:
    """What was measured by another rule is named as left out."""
    references = reference("A", [0, 40], "context").assign(rule="training")
    fragment = learning(curve("A", 1, [10, 40]), references)
    assert not drawn(fragment, "mean", "source-another")
    assert "Measured by another rule, so not on these axes: Another (training)." in fragment


def test_hostile_names_end_no_script_and_make_no_markup() -> None:
    """In JSON, in HTML and in what plotly reads as markup of its own."""
    curves = curve(HOSTILE, 1, [10, 20])
    references = reference(HOSTILE, [10, 20]).assign(source=HOSTILE, rule="deterministic")
    heading = charts.Heading(HOSTILE, HOSTILE, HOSTILE)
    credits = {HOSTILE: {"name": HOSTILE, "paper": HOSTILE, "code": ""}}
    fragment = learning(curves, references, heading, credits=credits)
    assert fragment.count("<script") == fragment.count("</script>") == 1
    assert "\u2028" not in fragment.partition('"application/json">')[2]
    assert "<a href='javascript" not in fragment
    name = content(fragment)["panels"][0]["data"][0]["name"]
    assert "<" not in name
    assert "%{" not in name


@pytest.mark.parametrize("have_ours", [True, False])
def test_a_task_without_a_curve_keeps_its_panel(have_ours: bool) -> None:
    """Its references go up to the planned step; without any curve of ours by any rule."""
    curves = curve("B", 1, [10, 20]) if have_ours else no_rows("curves")
    heading = charts.Heading("A", "1 run failed", "failed", env_steps=100)
    fragment = learning(curves, reference("A", [50, 100, 200]), heading, charts.Heading("B"))
    assert drawn(fragment, "mean", "source-published")[0]["x"] == [50, 100]
    assert len(content(fragment)["panels"]) == 2
    assert "1 run failed" in fragment
    assert ('value="time" disabled' in fragment) is not have_ours


def test_the_mean_ends_where_the_first_seed_ends_and_the_panel_says_why() -> None:
    """The longer seed goes on; seeds without a common step have no mean."""
    curves = pd.concat([curve("A", 1, [10, 20, 30, 40]), curve("A", 2, [10, 20])])
    fragment = learning(curves, no_rows("reference_curves"))
    assert drawn(fragment, "mean", "ours-0")[0]["x"] == [10, 20]
    assert [seed["x"][-1] for seed in drawn(fragment, "seed", "ours-0")] == [40, 20]
    assert "no mean beyond 20: a seed ends there" in fragment
    curves = pd.concat([curve("A", 1, [10, 30]), curve("A", 2, [20, 40])])
    fragment = learning(curves, no_rows("reference_curves"))
    assert not drawn(fragment, "mean", "ours-0")
    assert "the seeds share no step: no mean" in fragment


def test_grids_share_a_panel() -> None:
    """Before and after, or two agents: each has its colour and its entry of the legend."""
    grids = {"before": curve("A", 1, [10, 20]), "after": curve("A", 1, [10, 40], 2.0)}
    fragment = charts.learning_curves("both", grids, no_rows("reference_curves"), {}, [TASK])
    assert drawn(fragment, "mean", "ours-0")[0]["y"] == [10, 20]
    assert drawn(fragment, "mean", "ours-1")[0]["y"] == [20, 80]
    assert len(set(re.findall(r"light-dark\((#\w+)", fragment))) == 2


def test_the_scripts_end_no_script_element() -> None:
    """Both are put into a page as they stand; the library is plotly's own."""
    assert "plotly.js" in charts.library()[:100]
    for text in (charts.library(), charts.script()):
        assert "</script" not in text.lower()
