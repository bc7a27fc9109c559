"""Figures show every task, draw only what was measured, and are the same bytes every time."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reproduce.report import plot
from tests.reproduce.report.tables import NAN, curve, no_rows, reference, score, verdict

SVG_TEXT = "{http://www.w3.org/2000/svg}text"


def svg_texts(path: Path) -> list[str]:
    """Texts of a figure, after checking that it is well-formed XML."""
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter(SVG_TEXT)]


ALL_KINDS = plot.KINDS


@pytest.fixture(autouse=True)
def svg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other kinds are the same figure, and each takes as long."""
    monkeypatch.setattr(plot, "KINDS", ("svg",))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they were when written, in order."""
    kept: list[Figure] = []
    save = plot._save

    def keep(figure: Figure, directory: Path, name: str) -> list[Path]:
        kept.append(figure)
        return save(figure, directory, name)

    monkeypatch.setattr(plot, "_save", keep)
    return kept


def widths(panel: Axes) -> dict[float, np.ndarray]:
    """The x values of each line of a panel, by line width."""
    return {line.get_linewidth(): np.asarray(line.get_xdata()) for line in panel.get_lines()}


@pytest.mark.parametrize("num_tasks", [1, 2, 5, 20, pytest.param(57, marks=pytest.mark.slow)])
def test_every_task_has_a_panel_with_its_verdict(tmp_path: Path, num_tasks: int) -> None:
    """Neither a task without a curve nor one without a verdict is left out of the grid."""
    tasks = [f"Task{index}-v4" for index in range(num_tasks)]
    verdicts = pd.concat([verdict(task, "above") for task in tasks])
    curves = pd.concat([curve("Extra-v4", 1, [10, 20]), curve(tasks[0], 1, [10, 20])])
    paths = plot.draw_curves(curves, no_rows("reference_curves"), verdicts, tmp_path)
    assert [path.name for path in paths] == ["curves.svg"]
    texts = svg_texts(paths[0])
    assert {*tasks, "Extra-v4"} <= set(texts)
    assert texts.count("above, 2 seeds") == num_tasks
    assert texts.count("no curve recorded") == num_tasks - 1


def test_a_failed_task_says_so_and_still_shows_its_reference(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """The panel counts the failed runs and draws the reference up to the planned step."""
    failed = verdict("Ant-v4", "inconclusive", num_seeds=0, num_failed=3)
    paths = plot.draw_curves(
        no_rows("curves"), reference("Ant-v4", [50, 100, 200]), failed, tmp_path
    )
    texts = svg_texts(paths[0])
    assert {"no curve recorded", "3 runs failed", "inconclusive, 3 runs failed"} <= set(texts)
    assert widths(figures[0].axes[0])[1.8].tolist() == [50, 100]


def variant(name: str, task: str, steps: list[int], seeds: tuple[int, ...] = (1, 2)):
    """Curves of a sweep's variant."""
    rows = pd.concat([curve(task, seed, steps, seed) for seed in seeds])
    return rows.assign(variant=name)


def test_every_variant_of_a_sweep_has_a_line_in_every_panel(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """Each has a look of its own; one without a seed's end says where its mean ends."""
    names = [f"gamma=0.{number}" for number in range(8)]
    curves = [variant(name, task, [10, 20, 30]) for name in names for task in ("A-v4", "B-v4")]
    curves += [variant("gamma=1", "A-v4", [10, 20])]
    (path,) = plot.draw_variants(pd.concat(curves), tmp_path, "sweep-sac-mujoco")
    assert path.name == "sweep-sac-mujoco.svg"
    texts = svg_texts(path)
    assert {"A-v4", "B-v4", *names, "gamma=1"} <= set(texts)
    assert "gamma=1: no mean beyond 20: a seed ends there" in texts
    first, second = (panel.get_lines() for panel in figures[0].axes)
    assert (len(first), len(second)) == (9, 8)
    looks = {(line.get_color(), line.get_linestyle()) for line in first}
    assert len(looks) == 9
    means = variant("", "A-v4", [10, 20, 30]).groupby("env_steps")["mean_return"].mean()
    assert np.asarray(first[0].get_ydata()).tolist() == means.tolist()


def test_a_sweep_without_a_curve_says_so(tmp_path: Path) -> None:
    """As when every run failed."""
    none = no_rows("curves").assign(variant=[])
    assert "no curve recorded" in svg_texts(plot.draw_variants(none, tmp_path, "sweep")[0])


def test_figures_are_the_same_bytes_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clock, no random identifier no state of an earlier figure enters a file of any kind."""
    monkeypatch.setattr(plot, "KINDS", ALL_KINDS)
    curves = pd.concat([curve("A", seed, [10, 20, 30], seed) for seed in (1, 2, 3)])
    scores, verdicts = score("A", 97.0, 99.0), verdict("A")
    for name in ("first", "second"):
        plot.draw_curves(curves, reference("A", [10, 30]), verdicts, tmp_path / name)
        plot.draw_scores(scores, verdicts, tmp_path / name)
        assert mpl.rcParams["svg.fonttype"] == "path"
    starts = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    paths = sorted((tmp_path / "first").iterdir())
    assert {path.name for path in paths} == {
        f"{name}{kind}" for name in ("curves", "scores") for kind in starts
    }
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(starts[path.suffix])
        assert content == (tmp_path / "second" / path.name).read_bytes()


def test_names_are_drawn_literally(tmp_path: Path) -> None:
    """Markup and mathematics in a name stay characters."""
    names = ["<script>alert(1)</script>", "$\\frac{1}{0}$", "a & b"]
    verdicts = pd.concat([verdict(name) for name in names])
    paths = plot.draw_curves(no_rows("curves"), no_rows("reference_curves"), verdicts, tmp_path)
    assert set(names) <= set(svg_texts(paths[0]))
    assert "<script" not in paths[0].read_text(encoding="utf-8")


def test_the_mean_ends_where_the_first_seed_ends(tmp_path: Path, figures: list[Figure]) -> None:
    """The longer seed goes on thinly, the mean does not, and the panel says why."""
    curves = pd.concat([curve("A", 1, [10, 20, 30, 40]), curve("A", 2, [10, 20])])
    paths = plot.draw_curves(curves, no_rows("reference_curves"), verdict("A"), tmp_path)
    lines = [line for line in figures[0].axes[0].get_lines() if line.get_color() == plot.OURS]
    ends = [(line.get_linewidth(), np.asarray(line.get_xdata()).max()) for line in lines]
    assert ends == [(0.8, 40), (0.8, 20), (2.4, 20)]
    assert "no mean beyond 20: a seed ends there" in svg_texts(paths[0])


def test_seeds_without_a_common_step_have_no_mean(tmp_path: Path, figures: list[Figure]) -> None:
    """Nothing is interpolated to bring seeds together."""
    curves = pd.concat([curve("A", 1, [10, 30]), curve("A", 2, [20, 40])])
    plot.draw_curves(curves, no_rows("reference_curves"), verdict("A"), tmp_path)
    assert 2.4 not in widths(figures[0].axes[0])


def test_one_seed_has_no_band(tmp_path: Path, figures: list[Figure]) -> None:
    """A band of one seed would suggest a certainty that nobody measured."""
    curves = curve("A", 1, [10, 20, 30])
    paths = plot.draw_curves(curves, no_rows("reference_curves"), verdict("A"), tmp_path)
    assert not figures[0].axes[0].collections
    assert "95 % of bootstrap resamples" not in svg_texts(paths[0])


def test_the_band_is_the_bootstrap_band_of_the_drawn_points(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """Of three parallel curves it is their range, so it claims no confidence of 95 %."""
    curves = pd.concat([curve("A", seed, [10, 20], seed) for seed in (1, 2, 3)])
    paths = plot.draw_curves(curves, no_rows("reference_curves"), verdict("A"), tmp_path)
    assert "95 % of bootstrap resamples" in svg_texts(paths[0])
    vertices = figures[0].axes[0].collections[0].get_paths()[0].vertices
    ends = np.asarray(vertices)[np.asarray(vertices)[:, 0] == 20][:, 1]
    assert (ends.min(), ends.max()) == (20, 60)


def test_a_reference_of_one_run_has_no_spread(tmp_path: Path, figures: list[Figure]) -> None:
    """Empty low and high draw a line alone; a context curve is drawn thinner than the judge."""
    curves = curve("A", 1, [10, 40])
    references = pd.concat(
        [reference("A", [0, 40], spread=NAN), reference("A", [0, 40], "context")]
    )
    shown = verdict("A", "shown only")
    paths = plot.draw_curves(curves, references, shown, tmp_path, context=True)
    drawn = [path for band in figures[0].axes[0].collections for path in band.get_paths()]
    assert all(np.asarray(path.vertices).size == 0 for path in drawn)
    assert {1.2, 1.8, 2.4} <= set(widths(figures[0].axes[0]))
    assert {"reference: published", "another"} <= set(svg_texts(paths[0]))
    plot.draw_curves(curves, references, shown, tmp_path)
    assert 1.2 not in widths(figures[1].axes[0])


def test_a_reference_under_another_rule_is_not_drawn(tmp_path: Path) -> None:
    """Rules never share an axis."""
    references = reference("A", [0, 40], "context").assign(rule="training")
    curves = curve("A", 1, [10, 40])
    paths = plot.draw_curves(curves, references, verdict("A"), tmp_path, context=True)
    assert not any("another" in text for text in svg_texts(paths[0]))


@pytest.mark.parametrize("num_tasks", [1, 2, 5])
def test_the_legend_takes_less_than_a_fifth_of_the_figure(
    tmp_path: Path, figures: list[Figure], num_tasks: int
) -> None:
    """With ten sources of context, too; each is called what people call it."""
    tasks = [f"Task{index}-v4" for index in range(num_tasks)]
    curves = pd.concat([curve(task, seed, [10, 40]) for task in tasks for seed in (1, 2)])
    sources = [f"source_{index}" for index in range(10)]
    others = [reference(tasks[0], [0, 40], "context").assign(source=name) for name in sources]
    verdicts = pd.concat([verdict(task) for task in tasks])
    credits = {name: {"name": f"The well-known {name}"} for name in sources}
    references = pd.concat([reference(tasks[0], [0, 40]), *others])
    paths = plot.draw_curves(curves, references, verdicts, tmp_path, credits, context=True)
    (figure,) = figures
    legend = figure.legends[0].get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert legend.height < 0.2 * figure.bbox.height
    assert legend.x1 <= figure.bbox.x1
    assert {f"The well-known {name}" for name in sources} <= set(svg_texts(paths[0]))


def test_an_svg_is_readable_on_black(tmp_path: Path) -> None:
    """It has no background, and each of its inks has a lighter one for a dark page."""
    paths = plot.draw_curves(
        curve("A", 1, [10, 40]), reference("A", [0, 40]), verdict("A"), tmp_path
    )
    text = paths[0].read_text(encoding="utf-8")
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text.partition("</style>")[2]))
    assert plot.OURS.lower() in used
    assert used <= {light.lower() for light in plot.DARK}
    assert "@media (prefers-color-scheme: dark)" in text.partition("</style>")[0]


def test_scores_are_normalised_by_random_policy_and_reference(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """With random 20, reference 120 and margin 10: a score of 70 is drawn at 0.5, margin at 0.9."""
    shifted = verdict("A", zero_score=20.0, reference_mean=120.0)
    paths = plot.draw_scores(score("A", 70.0, 145.0), shifted, tmp_path)
    assert [path.name for path in paths] == ["scores.svg"]
    panel = figures[0].axes[0]
    dots = next(line for line in panel.get_lines() if line.get_marker() == "o")
    assert np.asarray(dots.get_xdata()).tolist() == [0.5, 1.25]
    segments = [line for part in panel.collections if hasattr(part, "get_segments")
                for line in part.get_segments()]  # type: ignore[attr-defined]  # fmt: skip
    drawn = {round(float(end[0]), 9) for line in segments for end in line}
    assert drawn == {0.94, 1.04, 0.9, 1.0}


def test_a_task_without_a_reference_keeps_its_own_units(
    tmp_path: Path, figures: list[Figure]
) -> None:
    """It gets an axis of its own, beside the shared one; a task without scores keeps its row."""
    missing = verdict("B", "no reference", reference_mean=NAN, reference_std=NAN, margin=NAN)
    verdicts = pd.concat([verdict("A"), missing, verdict("C", "inconclusive", num_failed=2)])
    scores = pd.concat([score("A", 95.0, 99.0), score("B", 3000.0, 4000.0)])
    plot.draw_scores(scores, verdicts, tmp_path)
    shared, own = figures[0].axes
    assert [label.get_text() for label in shared.get_yticklabels()] == ["A", "C"]
    assert [label.get_text() for label in own.get_yticklabels()] == ["B"]
    dots = next(line for line in own.get_lines() if line.get_marker() == "o")
    assert np.asarray(dots.get_xdata()).tolist() == [3000, 4000]
    words = [text.get_text() for text in shared.texts]
    assert "no score recorded" in words
    assert "inconclusive, 2 runs failed" in words


def test_a_score_far_outside_is_marked_at_the_edge(tmp_path: Path, figures: list[Figure]) -> None:
    """One extreme seed does not squeeze the others into a line, and is not hidden either."""
    plot.draw_scores(score("A", 95.0, 9000.0), verdict("A", ci_low=NAN, ci_high=NAN), tmp_path)
    panel = figures[0].axes[0]
    assert any(line.get_marker() == ">" for line in panel.get_lines())
    assert panel.get_xlim()[1] < 3.5


def test_nothing_recorded_is_a_figure_that_says_so(tmp_path: Path) -> None:
    """Tables with a header only do not crash a stage."""
    curves, references, verdicts = map(no_rows, ("curves", "reference_curves", "verdicts"))
    paths = plot.draw_curves(curves, references, verdicts, tmp_path)
    assert "no task to draw" in svg_texts(paths[0])
    assert plot.draw_scores(no_rows("scores"), no_rows("verdicts"), tmp_path)[0].exists()
