"""Figures of a comparison for papers and README: learning curves and scores, SVG, PNG and PDF.

Every function takes tidy frames, as in the CSV files beside the figure, and writes files; none
opens a window or keeps state. Curves are drawn only where they were measured: our mean where
every seed has a value, a reference up to our last step. The bytes depend only on the frames and
the installed versions. The SVG has no background, and inks that follow its reader's theme.
"""

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from reproduce.report import charts
from reproduce.report.curves import (
    AlignedCurves,
    align_seeds,
    clip_reference,
    compact,
    same_rule,
    thinned,
)
from reproduce.report.page import mean_and_spread, verdict_words
from reproduce.words import counted
from suite.files import write_atomically

OURS, REFERENCE = charts.OURS[0][0], charts.REFERENCE[0]
INK, FAINT, GRID, EDGE = "#1D2329", "#5B6670", "#E3E7EA", "#AEB5BB"
VERDICT_COLOURS = {
    "reproduced": "#00694D",
    "above": "#005A94",
    "below": "#A83A00",
    "inconclusive": "#765A00",
}
DARK = {
    **{INK: "#E4E8EB", FAINT: "#9AA5AE", GRID: "#333B43", EDGE: "#4A545C", "#FFFFFF": "#14181C"},
    **{"#00694D": "#3FBF96", "#005A94": "#6CB8EE", "#A83A00": "#FF9561", "#765A00": "#E0B94A"},
    **dict((*charts.OURS, *charts.OTHERS, charts.REFERENCE)),
}
"""Replacement of each colour in an SVG that is viewed in the dark."""
DASHES = ((0, (5, 2)), (0, (1.2, 1.5)), (0, (6, 2, 1.2, 2)), (0, (9, 3)))
KINDS = ("svg", "png", "pdf")
"""Of every figure: for a page, for README, for a paper."""

Credits = Mapping[str, Mapping[str, str]]

FIGURE_WIDTH = 12.0
"""Inches; the same for every grid of panels, so that text has the same size on a page."""

WIDEST_NORMALISED = (-1.0, 3.0)
"""Normalised scores outside this range are drawn as arrows at its edge."""


def draw_curves(
    curves: pd.DataFrame,
    reference_curves: pd.DataFrame,
    verdicts: pd.DataFrame,
    directory: Path,
    credits: Credits = MappingProxyType({}),
    *,
    context: bool = False,
) -> list[Path]:
    """Draw one panel of learning curves per task.

    Args:
        curves: Rows of `curves.csv`.
        reference_curves: Rows of `reference_curves.csv`.
        verdicts: Rows of `verdicts.csv`; each of its tasks gets a panel, with or without a curve.
        directory: Where `curves.svg`, `.png` and `.pdf` are written.
        credits: What sources are called, as `references.credits_of` returns it.
        context: Whether curves are drawn that do not judge, if they are of the same rule.

    Returns:
        Paths of the files.
    """
    tasks = _tasks(verdicts, curves)
    with _style():
        if not tasks:
            return _save(_message("no task to draw"), directory, "curves")
        references, _ = same_rule(curves["rule"], reference_curves, tasks)
        if not context:
            references = references[references["role"] == "judge"]
        looks = _looks(references)
        handles = _curve_legend(curves, references, looks, credits)
        figure, panels = _curve_panels(len(tasks), handles, curves["rule"])
        for panel, task in zip(panels, tasks, strict=False):
            ours, theirs = _of_task(curves, task), _of_task(references, task)
            _draw_panel(panel, task, ours, theirs, _row(verdicts, task), looks)
        return _save(figure, directory, "curves")


def draw_variants(curves: pd.DataFrame, directory: Path, name: str) -> list[Path]:
    """Draw the learning curves of a sweep: a panel per task, and in it a line per variant.

    Args:
        curves: Rows of the variants' `curves.csv`, with a column `variant`.
        directory: Where the files are written.
        name: Of the files, without `.svg`, `.png` and `.pdf`.

    Returns:
        Paths of the files.
    """
    tasks = _tasks(curves)
    with _style():
        if not tasks:
            return _save(_message("no curve recorded"), directory, name)
        looks = {
            str(variant): (
                charts.OURS[place % len(charts.OURS)][0],
                ("-", *DASHES)[place // len(charts.OURS) % (len(DASHES) + 1)],
            )
            for place, variant in enumerate(curves["variant"].unique())
        }
        handles: list[Artist] = [
            Line2D([], [], color=colour, lw=2.4, ls=dash, label=variant)
            for variant, (colour, dash) in looks.items()
        ]
        if curves["seed"].nunique() > 1:
            label = "95 % of bootstrap resamples"
            handles.append(Patch(color=FAINT, alpha=0.22, lw=0, label=label))
        figure, panels = _curve_panels(len(tasks), handles, curves["rule"])
        for panel, task in zip(panels, tasks, strict=False):
            of_task = _of_task(curves, task)
            horizon, remarks = float(of_task["env_steps"].max()), []
            for variant, own in of_task.groupby("variant", sort=False):
                aligned = align_seeds(own)
                _draw_mean(panel, aligned, *looks[str(variant)])
                if remark := aligned.remark(horizon):
                    remarks.append(f"{variant}: {remark}")
            if remarks:
                _whisper(panel, "\n".join(remarks))
            size = _fitting(panel, task, 11.0)
            panel.set_title(task, loc="left", fontweight="bold", fontsize=size)
            _set_axes(panel, horizon)
        return _save(figure, directory, name)


def draw_scores(scores: pd.DataFrame, verdicts: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw the final scores against reference, zero and margin, one row per task.

    Tasks whose reference is above the zero share one axis, on which 0 is that zero
    and 1 the reference mean. Every other task has its own small axis, in units of return.

    Args:
        scores: Rows of `scores.csv`.
        verdicts: Rows of `verdicts.csv`; each of its tasks gets a row, with or without a score.
        directory: Where `scores.svg`, `.png` and `.pdf` are written.

    Returns:
        Paths of the files.
    """
    rows = [_score_row(task, scores, verdicts) for task in _tasks(verdicts, scores)]
    shared = [row for row in rows if row.scale > 0]
    single = [row for row in rows if not row.scale > 0]
    with _style():
        if not rows:
            return _save(_message("no task to draw"), directory, "scores")
        heights = ([0.42 * len(shared) + 0.3] if shared else []) + [0.75] * len(single)
        figure = Figure(figsize=(FIGURE_WIDTH, sum(heights) + 0.9), layout="constrained")
        axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).ravel()
        if shared:
            _draw_normalised(axes[0], shared)
        for panel, row in zip(axes[len(axes) - len(single) :], single, strict=True):
            _draw_raw(panel, row)
        headings = ("ours, mean ± std (seeds)", "reference (runs)", "verdict")
        _annotate_columns(axes[0], None, headings, (FAINT, FAINT, FAINT))
        handles = [
            _dot("one seed", OURS),
            Line2D([], [], color=OURS, marker="D", markersize=6, lw=3, label="our mean, interval"),
            Line2D([], [], color=REFERENCE, lw=2, label="reference mean"),
            Patch(color=REFERENCE, alpha=0.2, lw=0, label="± its std"),
            Line2D([], [], color=REFERENCE, lw=1.2, ls=(0, (3, 2)), label="mean - margin"),
            Line2D([], [], color=FAINT, lw=1.2, label="nothing learned"),
        ]
        _legend(figure, handles, columns=6)
        return _save(figure, directory, "scores")


class ScoreRow(NamedTuple):
    """Content of one row of the score figure; the scale is NaN if either of its ends is unknown."""

    task: str
    scores: NDArray[np.float64]
    verdict: Mapping[str, Any]
    origin: float
    scale: float

    def normalised(self, value: Any) -> Any:
        """Return `value` on the axis where 0 is the zero of the scale and 1 the reference mean."""
        return (value - self.origin) / self.scale

    def interval(self) -> tuple[float, float]:
        """Return the interval of our mean that decides, in units of return."""
        reference = _float(self.verdict, "reference_mean")
        low, high = _float(self.verdict, "ci_low"), _float(self.verdict, "ci_high")
        return reference + low, reference + high


def _style() -> AbstractContextManager[None]:
    settings: Any = sns.axes_style("ticks") | {
        "axes.edgecolor": EDGE,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.8,
        "axes.titlesize": 11,
        "axes.titlecolor": INK,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
        "font.size": 10.5,
        "path.simplify": True,
        "pdf.fonttype": 42,
        "savefig.dpi": 150,
        "svg.fonttype": "none",
        "svg.hashsalt": "reproduce",
        "text.color": INK,
        "text.parse_math": False,  # a dollar sign in a name stays a dollar sign
        "xtick.color": FAINT,
        "xtick.labelsize": 9.5,
        "xtick.major.size": 3,
        "ytick.color": FAINT,
        "ytick.labelsize": 9.5,
        "ytick.major.size": 3,
    }
    return mpl.rc_context(settings)


def _save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write a figure in all `KINDS`, without a date; only the PNG has a background."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()  # arranges it, which takes longest, once for all kinds
    figure.set_layout_engine("none")
    paths = [directory / f"{name}.{kind}" for kind in KINDS]
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}
    for path, kind in zip(paths, KINDS, strict=True):
        content = io.BytesIO()
        ground = "white" if kind == "png" else "none"
        figure.savefig(content, format=kind, metadata=dates[kind], facecolor=ground)
        drawn = content.getvalue()
        if kind == "svg":
            drawn = drawn.replace(b"</style>", f"{_inks()}</style>".encode(), 1)
        write_atomically(path, drawn)
    return paths


def _inks() -> str:
    """Return the rules of style that give an SVG other colours on a dark page."""
    rules = (
        f'[style*="{use}: {light.lower()}"] {{{use}: {dark} !important}}'
        for light, dark in DARK.items()
        for use in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{{''.join(rules)}}}"


def _message(text: str) -> Figure:
    figure = Figure(figsize=(8.0, 2.0))
    figure.text(0.5, 0.5, text, ha="center", va="center", color=FAINT)
    return figure


def _tasks(*tables: pd.DataFrame) -> list[str]:
    """Return every task of the tables, in order of first mention."""
    return list(dict.fromkeys(task for table in tables for task in table["task"]))


def _of_task(table: pd.DataFrame, task: str) -> pd.DataFrame:
    return pd.DataFrame(table[table["task"] == task])


def _row(verdicts: pd.DataFrame, task: str) -> dict[str, Any]:
    rows = _of_task(verdicts, task).to_dict(orient="records")
    return {str(name): value for name, value in rows[0].items()} if rows else {}


def _float(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _num_columns(num_tasks: int) -> int:
    if num_tasks <= 3:
        return num_tasks
    return 2 if num_tasks == 4 else 3 if num_tasks <= 9 else 4 if num_tasks <= 24 else 5


def _tidy(panel: Axes) -> None:
    sns.despine(ax=panel, left=True)
    panel.tick_params(axis="y", length=0)


def _legend(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Draw a legend above everything, filled row by row; matplotlib fills column by column."""
    ordered = [handle for first in range(columns) for handle in handles[first::columns]]
    figure.legend(
        handles=ordered,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=10,
        handlelength=2.2,
        columnspacing=1.6,
        labelcolor=INK,
    )


def _dot(label: str, colour: str) -> Line2D:
    return Line2D([], [], ls="", marker="o", markersize=6, color=colour, alpha=0.7, label=label)


def _looks(references: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """Return colour and dashes of every source: the judge's line is whole."""
    judges = set(references.loc[references["role"] == "judge", "source"])
    others = [source for source in references["source"].unique() if source not in judges]
    looks: dict[str, tuple[str, Any]] = {str(source): (REFERENCE, "-") for source in judges}
    for place, source in enumerate(others):
        colour, _ = charts.OTHERS[place % len(charts.OTHERS)]
        looks[str(source)] = (colour, DASHES[place % len(DASHES)])
    return looks


def _curve_panels(
    num_tasks: int, handles: Sequence[Artist], rules: pd.Series
) -> tuple[Figure, NDArray[Any]]:
    """Return a figure of learning curves with empty panels, as many as tasks or more."""
    columns = _num_columns(num_tasks)
    rows = math.ceil(num_tasks / columns)
    width = 8.0 if columns == 1 else FIGURE_WIDTH
    num_entries = 4 if columns > 1 else 3
    panels_height = rows * (0.62 if columns < 3 else 0.74) * width / columns
    height = panels_height + 0.7 + 0.22 * math.ceil(len(handles) / num_entries)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[num_tasks:]:
        panel.set_axis_off()
    known = list(dict.fromkeys(rules.dropna()))
    figure.supxlabel("environment steps", fontsize=10.5, color=FAINT)
    label = f"episode return ({known[0]})" if len(known) == 1 else "episode return"
    figure.supylabel(label, fontsize=10.5, color=FAINT)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)  # type: ignore[union-attr]
    if handles:
        _legend(figure, handles, columns=min(len(handles), num_entries))
    return figure, panels


def _draw_panel(
    panel: Axes,
    task: str,
    curves: pd.DataFrame,
    references: pd.DataFrame,
    verdict: Mapping[str, Any],
    looks: Mapping[str, tuple[str, Any]],
) -> None:
    """Draw one task: its references, every seed, our mean and the verdict."""
    steps = curves["env_steps"].to_numpy(np.float64)
    horizon = float(steps.max()) if len(steps) else _float(verdict, "env_steps")
    for _, reference in references.groupby(["source", "env_id", "rule"], dropna=False):
        source, role = reference["source"].iloc[0], reference["role"].iloc[0]
        _draw_reference(panel, clip_reference(reference, horizon), role, *looks[str(source)])
    if len(steps):
        _draw_ours(panel, curves, horizon)
    else:
        _whisper(panel, "\n".join(["no curve recorded", *_losses(verdict)]), size=10.5)
    panel.set_title(
        task, loc="left", fontweight="bold", pad=19, fontsize=_fitting(panel, task, 11.0)
    )
    line = _verdict_line(verdict)
    panel.annotate(
        line,
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        color=_verdict_colour(verdict),
        fontsize=_fitting(panel, line, 9.5),
    )
    _set_axes(panel, horizon)
    if not panel.has_data():
        panel.set_xticks([])
        panel.set_yticks([])


def _set_axes(panel: Axes, horizon: float) -> None:
    """Set what curves are read by, up to our last step."""
    panel.grid(axis="y", color=GRID, lw=0.8)
    panel.set_axisbelow(True)
    _tidy(panel)
    panel.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    panel.xaxis.set_major_formatter(FuncFormatter(compact))
    panel.yaxis.set_major_formatter(FuncFormatter(compact))
    if math.isfinite(horizon) and horizon > 0:
        panel.set_xlim(0.0, horizon)


def _draw_reference(
    panel: Axes, reference: pd.DataFrame, role: str, colour: str, dash: Any
) -> None:
    if reference.empty:
        return
    steps = reference["env_steps"].to_numpy()
    mean, low, high = (reference[f"return_{name}"].to_numpy() for name in ("mean", "low", "high"))
    marker = "o" if len(steps) == 1 else ""
    if role != "judge":
        panel.plot(steps, mean, color=colour, lw=1.2, ls=dash, marker=marker, ms=4, zorder=4)
        return
    panel.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0, zorder=2)
    panel.plot(steps, mean, color=colour, lw=1.8, marker=marker, ms=6, clip_on=False, zorder=6)
    if len(steps) == 1:
        panel.vlines(steps, low, high, color=colour, lw=1.2, zorder=6)


def _draw_ours(panel: Axes, curves: pd.DataFrame, horizon: float) -> None:
    """Draw every seed as far as it goes; mean and band only where all seeds have a value."""
    for _, seed in curves.sort_values("env_steps").groupby("seed"):
        seed = seed.iloc[thinned(len(seed))]
        x, y = seed["env_steps"].to_numpy(np.float64), seed["mean_return"].to_numpy(np.float64)
        marker = "o" if len(x) == 1 else ""
        panel.plot(x, y, color=OURS, lw=0.8, alpha=0.35, marker=marker, ms=3, zorder=5)
    aligned = align_seeds(curves)
    _draw_mean(panel, aligned, OURS)
    if aligned.env_steps.size and aligned.env_steps[-1] < horizon:
        panel.axvline(aligned.env_steps[-1], color=FAINT, lw=0.8, ls=(0, (2, 2)), zorder=1)
    if remark := aligned.remark(horizon):
        _whisper(panel, remark)


def _draw_mean(panel: Axes, aligned: AlignedCurves, colour: str, dash: Any = "-") -> None:
    """Draw the mean of several seeds and its bootstrap band, where all have a value."""
    num_seeds, num_points = aligned.values.shape
    if not num_points:
        return
    x, (mean, low, high) = aligned.env_steps, aligned.band()
    if num_seeds > 1:
        panel.fill_between(x, low, high, color=colour, alpha=0.22, lw=0, zorder=3)
    marker = "o" if num_points == 1 else ""
    panel.plot(x, mean, color=colour, lw=2.4, ls=dash, marker=marker, ms=6, clip_on=False, zorder=7)


def _whisper(panel: Axes, text: str, size: float = 8.5) -> None:
    """Write a remark in the lower right corner, which a rising curve leaves free."""
    panel.annotate(
        text,
        (1.0, 0.0),
        xycoords="axes fraction",
        xytext=(-4, 7),
        textcoords="offset points",
        ha="right",
        fontsize=size,
        color=FAINT,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.85, "lw": 0},
        zorder=9,
    )


def _fitting(panel: Axes, text: str, largest: float) -> float:
    """Return the font size, in points, up to `largest`, at which a line fits its panel's width."""
    figure = panel.get_figure(root=True)
    columns = panel.get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    width = 0.86 * 72.0 * figure.get_size_inches()[0] / columns  # type: ignore[union-attr]
    return min(largest, width / (0.69 * max(len(text), 1)))


def _losses(verdict: Mapping[str, Any]) -> list[str]:
    """Return the counts of failed and diverged runs, in words."""
    counts = [(_float(verdict, f"num_{what}"), what) for what in ("failed", "diverged")]
    return [f"{counted(count, 'run')} {what}" for count, what in counts if count > 0]


def _verdict_line(verdict: Mapping[str, Any]) -> str:
    seeds = _float(verdict, "num_seeds")
    parts = [verdict_words(verdict)]
    if seeds > 0:
        parts.append(counted(seeds, "seed"))
    return ", ".join(parts + _losses(verdict))


def _verdict_colour(verdict: Mapping[str, Any]) -> str:
    return VERDICT_COLOURS.get(str(verdict.get("verdict")), FAINT)


def _curve_legend(
    curves: pd.DataFrame,
    references: pd.DataFrame,
    looks: Mapping[str, tuple[str, Any]],
    credits: Credits,
) -> list[Artist]:
    handles: list[Artist] = []
    if not curves.empty:
        handles.append(Line2D([], [], color=OURS, lw=2.4, label="ours, mean"))
    if any(rows["seed"].nunique() > 1 for _, rows in curves.groupby("task")):
        handles += [
            Patch(color=OURS, alpha=0.22, lw=0, label="95 % of bootstrap resamples"),
            Line2D([], [], color=OURS, lw=0.8, alpha=0.5, label="each seed"),
        ]
    for source, (colour, dash) in looks.items():
        judges = "judge" in set(references.loc[references["source"] == source, "role"])
        label = credits.get(source, {}).get("name", source)
        label, width = (f"reference: {label}", 1.8) if judges else (label, 1.2)
        handles.append(Line2D([], [], color=colour, lw=width, ls=dash, label=label))
    return handles


def _score_row(task: str, scores: pd.DataFrame, verdicts: pd.DataFrame) -> ScoreRow:
    verdict = _row(verdicts, task)
    values = _of_task(scores, task)["score"].to_numpy(np.float64)
    origin = _float(verdict, "zero_score")
    scale = _float(verdict, "reference_mean") - origin
    return ScoreRow(task, values[np.isfinite(values)], verdict, origin, scale)


def _draw_normalised(panel: Axes, rows: Sequence[ScoreRow]) -> None:
    lowest, highest = WIDEST_NORMALISED
    drawn = [0.0, 1.25]
    for place, row in enumerate(rows):
        spread = _float(row.verdict, "reference_std") / row.scale
        margin = _float(row.verdict, "margin") / row.scale
        interval = [row.normalised(end) for end in row.interval()]
        scores = row.normalised(row.scores)
        _draw_score(panel, place, np.clip(scores, lowest, highest), interval)
        for edge, outside in ((lowest, scores < lowest), (highest, scores > highest)):
            if outside.any():
                marker = ">" if edge > 0 else "<"
                panel.plot([edge], [place], marker, color=OURS, ms=8, clip_on=False, zorder=6)
        _draw_target(panel, place, 1.0, spread, 1.0 - margin)
        drawn += [value for value in (*scores, *interval, 1.0 + spread) if math.isfinite(value)]
        _annotate_row(panel, place, row)
    panel.axvline(0.0, color=FAINT, lw=1.2, zorder=1)
    low, high = max(min(drawn), lowest), min(max(drawn), highest)
    pad = 0.04 * (high - low)
    panel.set_xlim(low - pad, high + pad)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_yticks(range(len(rows)), [row.task for row in rows])
    panel.set_xlabel("normalised score: 0 nothing learned, 1 reference mean", color=FAINT)
    panel.grid(axis="x", color=GRID, lw=0.8)
    _tidy(panel)


def _draw_raw(panel: Axes, row: ScoreRow) -> None:
    """Draw a task that cannot be normalised, on its own axis in units of return."""
    _draw_score(panel, 0, row.scores, row.interval())
    reference, random = _float(row.verdict, "reference_mean"), _float(row.verdict, "zero_score")
    if math.isfinite(reference):
        margin = reference - _float(row.verdict, "margin")
        _draw_target(panel, 0, reference, _float(row.verdict, "reference_std"), margin)
    if math.isfinite(random):
        panel.axvline(random, color=FAINT, lw=1.2, zorder=1)
    _annotate_row(panel, 0, row)
    panel.set_ylim(0.5, -0.5)
    panel.set_yticks([0], [row.task])
    panel.margins(x=0.08)
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    panel.xaxis.set_major_formatter(FuncFormatter(compact))
    if not panel.has_data():
        panel.set_xticks([])
    panel.grid(axis="x", color=GRID, lw=0.8)
    _tidy(panel)


def _draw_score(
    panel: Axes, place: int, scores: NDArray[np.float64], interval: Sequence[float]
) -> None:
    """Draw dots for the seeds, and above them their mean with the interval that decides."""
    if not len(scores):
        text = "no score recorded"
        panel.annotate(
            text,
            (0.5, place),
            xycoords=panel.get_yaxis_transform(),
            color=FAINT,
            ha="center",
            va="center",
            zorder=8,
        )
        return
    panel.plot(
        scores,
        np.full(len(scores), place + 0.17),
        "o",
        color=OURS,
        ms=5,
        alpha=0.5,
        mew=0,
        clip_on=False,
        zorder=5,
    )
    if np.isfinite(interval).all():
        panel.hlines(place - 0.14, interval[0], interval[1], color=OURS, lw=3, zorder=6)
    panel.plot([scores.mean()], [place - 0.14], "D", color=OURS, ms=6, mec="white", zorder=7)


def _draw_target(panel: Axes, place: int, mean: float, spread: float, margin: float) -> None:
    low, high = place - 0.36, place + 0.36
    if math.isfinite(spread):
        panel.fill_betweenx(
            [low, high], mean - spread, mean + spread, color=REFERENCE, alpha=0.16, lw=0, zorder=2
        )
    panel.vlines(mean, low, high, color=REFERENCE, lw=2, zorder=3)
    if math.isfinite(margin):
        panel.vlines(margin, low, high, color=REFERENCE, lw=1.2, ls=(0, (3, 2)), zorder=3)


def _annotate_row(panel: Axes, place: int, row: ScoreRow) -> None:
    verdict = row.verdict
    scores = row.scores
    spread = scores.std(ddof=1) if len(scores) > 1 else math.nan
    ours = mean_and_spread(scores.mean() if len(scores) else math.nan, spread, len(scores))
    reference = mean_and_spread(
        _float(verdict, "reference_mean"),
        _float(verdict, "reference_std"),
        _float(verdict, "reference_num_runs"),
    )
    words = ", ".join([verdict_words(verdict), *_losses(verdict)])
    colours = (INK, INK, _verdict_colour(verdict))
    _annotate_columns(panel, place, (ours, reference, words), colours)


def _annotate_columns(
    panel: Axes, place: int | None, texts: Sequence[str], colours: Sequence[str]
) -> None:
    """Write text columns right of a panel, level with row `place`; headings if it is None."""
    for text, colour, offset in zip(texts, colours, (14, 158, 282), strict=True):
        panel.annotate(
            text,
            (1.0, 1.0 if place is None else place),
            xycoords="axes fraction" if place is None else panel.get_yaxis_transform(),
            xytext=(offset, 8 if place is None else 0),
            textcoords="offset points",
            fontsize=9.5,
            va="bottom" if place is None else "center",
            color=colour,
            annotation_clip=False,
        )
