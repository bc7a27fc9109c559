"""Figures show every task, draw only what was measured, and are the same bytes every time."""

from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from reproduce.judge.aggregates import over_tasks
from reproduce.report import figures, frames
from tests.reproduce.report.tables import NAN, curve, no_rows, over, reference, score, verdict

pytestmark = pytest.mark.usefixtures("svg_alone")

SVG_TEXT = "{http://www.w3.org/2000/svg}text"
FORMATS = figures.FORMATS
BLUE, ORANGE = frames.PALETTES["ours"][0], frames.PALETTES["judge"][0]


def svg_texts(path: Path) -> list[str]:
    """Texts of a figure, after checking that it is well-formed XML."""
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter(SVG_TEXT)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[sns.FacetGrid]:
    """Figures as they are written, in order."""
    kept: list[sns.FacetGrid] = []
    save = figures.save
    monkeypatch.setattr(figures, "save", lambda grid, *rest: kept.append(grid) or save(grid, *rest))
    return kept


def widths(panel: Axes, colour: str) -> dict[float, list[float]]:
    """The x values of each line of a panel, by line width."""
    lines = [line for line in panel.get_lines() if line.get_color() == colour]
    drawn = {line.get_linewidth(): np.asarray(line.get_xdata()).tolist() for line in lines[::-1]}
    return {width: x for width, x in drawn.items() if x}


@pytest.mark.parametrize("num_tasks", [5, pytest.param(57, marks=pytest.mark.slow)])
def test_every_task_has_a_panel_with_what_is_said_of_it(tmp_path: Path, num_tasks: int) -> None:
    """A task without a curve is not left out; markup and mathematics in a name stay characters."""
    tasks = [f"Task{index}-v4" for index in range(num_tasks)]
    tasks[-3:] = ["<script>alert(1)</script>", "$\\frac{1}{0}$", "a & b"]
    curves = {"ours": pd.concat([curve(task, 1, [10, 20]) for task in tasks[:2]])}
    frame = frames.learning_curves(curves, planned=dict.fromkeys(tasks, 20))
    (path,) = figures.draw_curves(frame, dict.fromkeys(tasks, "$x$, 2 seeds"), tmp_path)
    assert path.name == "curves.svg"
    texts = svg_texts(path)
    assert set(tasks) <= set(texts)
    assert texts.count("$x$, 2 seeds") == num_tasks
    assert not {"mean_return", "env_steps"} & set(texts)
    assert "<script" not in path.read_text(encoding="utf-8")


def test_seeds_means_and_references_differ(tmp_path: Path, drawn: list[sns.FacetGrid]) -> None:
    """Ours is thick with thin seeds and a band; only the judge has a band among the sources."""
    curves = pd.concat([curve("A", 1, [10, 20, 30]), curve("A", 2, [10, 20], 3.0)])
    references = pd.concat([reference("A", [0, 20]), reference("A", [0, 20], "context")])
    curves = pd.concat([curves, curve("B", 1, [10, 30])])
    references = pd.concat([references, reference("B", [0, 30], spread=NAN)])
    frame = frames.learning_curves({"ours": curves}, references)
    texts = svg_texts(figures.draw_curves(frame, {}, tmp_path, unit="return")[0])
    assert {"ours", "reference: published", "another", "environment steps", "return"} <= set(texts)
    panel, of_one_run = drawn[0].axes.flat
    assert not of_one_run.collections
    assert widths(panel, BLUE) == {0.8: [10, 20, 30], 2.6: [10, 20]}
    assert widths(panel, ORANGE) == {1.9: [0, 20]}
    assert widths(panel, frames.PALETTES["context"][0]) == {1.3: [0, 20]}
    bands = [np.asarray(band.get_paths()[0].vertices) for band in panel.collections]
    ends = [sorted({*map(float, band[band[:, 0] == 20][:, 1])}) for band in bands]
    std = 20 * 2**0.5
    assert ends == [pytest.approx([40 - std, 40 + std]), [15, 25]]
    assert panel.get_xlim() == (0, 30)


def test_figures_are_always_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock, no random identifier, no state of an earlier figure enters a file of any kind."""
    curves = pd.concat([curve("A", seed, [10, 20, 30], seed) for seed in (1, 2, 3)])
    frame = frames.learning_curves({"ours": curves}, reference("A", [10, 30]))
    scores = (score("A", 97.0, 99.0), no_rows("reference_scores"), verdict("A", score_mean=98.0))
    for name in ("first", "second"):
        with monkeypatch.context() as patch:
            patch.setattr(figures, "FORMATS", FORMATS)
            figures.draw_curves(frame, {"A": "above"}, tmp_path / name)
        figures.draw_scores(frames.final_scores(*scores, {}), {"A": "above"}, tmp_path / name)
        assert mpl.rcParams["svg.fonttype"] == "path"
    starts = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    paths = sorted((tmp_path / "first").iterdir())
    assert {path.name for path in paths} == {*(f"curves{kind}" for kind in starts), "scores.svg"}
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(starts[path.suffix])
        assert content == (tmp_path / "second" / path.name).read_bytes()


def test_scores_are_drawn_as_they_are(tmp_path: Path, drawn: list[sns.FacetGrid]) -> None:
    """Every run is a dot; a task without a scale has its own axis; no run, no figure."""
    missing = verdict("B", "no reference", reference_mean=NAN, reference_std=NAN, score_mean=3500.0)
    scores = pd.concat([score("A", 95.0, 99.0), score("B", 3000.0, 4000.0)])
    verdicts = pd.concat([verdict("A", score_mean=97.0), missing, verdict("C")])
    frame = frames.final_scores(scores, no_rows("reference_scores"), verdicts, {})
    (path,) = figures.draw_scores(frame, dict.fromkeys("ABC", "said"), tmp_path)
    assert {"A", "B", "C", "B: return", frames.NORMALISED} <= set(svg_texts(path))
    shared, own = drawn[0].axes.flat
    assert [label.get_text() for label in own.get_yticklabels()] == ["B\nsaid"]
    dots = [np.ma.getdata(dots.get_offsets())[:, 0].tolist() for dots in shared.collections]
    assert [0.95, 0.99] in dots
    lines = [np.asarray(line.get_xdata()).tolist() for line in shared.get_lines()]
    assert [0.94, 1.04] in lines
    assert any(0.97 in line for line in lines)
    none = (no_rows("scores"), no_rows("reference_scores"), verdict("C", score_mean=NAN))
    assert figures.draw_scores(frames.final_scores(*none, {}), {"C": "said"}, tmp_path) == []


def test_over_wall_time_only_ours_is_drawn(tmp_path: Path, drawn: list[sns.FacetGrid]) -> None:
    """A point stands at its seconds; a reference, whose machine is not ours, is left out."""
    frame = frames.learning_curves({"ours": curve("A", 1, [10, 40])}, reference("A", [0, 40]))
    (path,) = figures.draw_curves(frame, {}, tmp_path, "by_time", x="wall_time")
    assert "seconds of wall time" in svg_texts(path)
    assert "reference: published" not in svg_texts(path)
    panel = drawn[0].axes.flat[0]
    assert widths(panel, BLUE) == {0.8: [1, 4], 2.6: [1, 4]}
    assert widths(panel, ORANGE) == {}


def test_throughput_shows_runs_and_shares(tmp_path: Path, drawn: list[sns.FacetGrid]) -> None:
    """Bars of a task stand side by side and end at the sum of its shares."""
    parts = {"environment": 0.1, "acting": 0.2, "learning": 0.6, "other": 0.1}
    shares = {f"{part}_share": share for part, share in parts.items()}
    rows = [{"task": "A", "env_steps_per_second": speed, **shares} for speed in (10, 20, 60)]
    (path,) = figures.draw_throughput(pd.DataFrame(rows), tmp_path)
    assert {"A", *parts} <= set(svg_texts(path))
    speeds, times = drawn[0].axes.flat
    dots = sorted(x for each in speeds.collections for x in np.ma.getdata(each.get_offsets())[:, 0])
    assert dots == [10, 20, 60]
    assert [line.get_xdata().tolist() for line in speeds.get_lines()] == [[20]]
    bars = {bar.get_facecolor(): (bar.get_x(), bar.get_width()) for bar in times.patches}
    for (part, share), left in zip(parts.items(), (0.0, 0.1, 0.3, 0.9), strict=True):
        assert bars[to_rgba(frames.PARTS[part])] == pytest.approx((left, share))


def test_three_tasks_have_every_figure_and_two_have_none(tmp_path: Path) -> None:
    """What two tasks would say stands in their rows."""
    drawn = figures.draw_over_tasks(over_tasks(over("A", "B", "C")), tmp_path)
    assert [path.name for path in drawn] == [f"{name}.svg" for name in figures.OVER_TASKS]
    assert "95 % of the resamples" in drawn[0].read_text()
    labels = [{"ours", "reference"}, {"IQM", "optimality gap", "reference"}, {"A", "all tasks"}]
    for path, texts in zip(drawn, labels, strict=False):
        assert texts <= set(svg_texts(path))
    assert figures.draw_over_tasks(over_tasks(over("A", "B")), tmp_path) == []
