"""Figures of a comparison for papers and README, drawn by seaborn: SVG, PNG and PDF.

Each function takes a frame of `frames` and what stands under the name of each task, and returns
the paths of its files. Their bytes depend only on these and on the installed versions.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from reproduce.report import frames
from suite.base.files import write_atomically

FORMATS = ("svg", "png", "pdf")
"""Of every figure: for a page, for README, for a paper."""
STYLE: Any = sns.axes_style("whitegrid") | {"grid.color": ".92", "pdf.fonttype": 42}
STYLE |= {"svg.fonttype": "none", "svg.hashsalt": "reproduce"}
STYLE |= {"text.parse_math": False}  # a $ in a name stays one
WIDTHS = {"ours": 2.6, "judge": 1.9, "context": 1.3}
DASHES = {"solid": "", "dash": (5, 2), "dot": (1.2, 1.5), "dashdot": (6, 2, 1.2, 2)}
DASHES |= {"longdash": (9, 3)}
COLOURS = {"reproduced": "#00694D", "above": "#005A94", "below": "#A83A00"}
COLOURS |= {"inconclusive": "#765A00"}
"""Of what stands under a title, by its first word."""
CAPTION = "thick: mean of our seeds; thin: each seed; bands, ours and theirs: mean ± std of runs"
AXES = {"env_steps": "environment steps", "wall_time": "seconds of wall time"}
MEANS: dict[str, Any] = {"x": "end", "estimator": "median", "errorbar": ("pi", 100)}
MEANS |= {"linestyle": "none", "marker": "D", "markersize": 6, "legend": False}
"""Of a mean and the ends of its interval, a row each: their median is the mean."""
RESAMPLED = "bands and intervals: 95 % of the resamples of runs within tasks"
OVER_TASKS: dict[str, tuple[str, str, dict[str, float]]] = {
    "profile": ("normalised score", "share of runs", {}),
    "aggregates": ("normalised score", "", {"x": 1.0}),
    "improvement": ("probability of improvement", "", {"x": 0.5}),
}
"""Figures over all tasks (Agarwal et al. 2021): what their axes are called, and a line on one."""


@mpl.rc_context(STYLE)
def draw_curves(
    curves: pd.DataFrame,
    remarks: Mapping[str, str],
    directory: Path,
    name: str = "curves",
    unit: str = "episode return",
    x: str = "env_steps",
) -> list[Path]:
    """Draw a panel per task of a frame `CURVES`: seeds, means and bands, references.

    Over `wall_time` there are no references, whose machines are not ours.
    """
    curves = curves[curves[x].notna() | (curves["role"] == "ours")]
    colours, dashes = frames.looks(curves)
    roles = dict(zip(curves["source"], curves["role"], strict=True))
    common: dict[str, Any] = {"x": x, "y": "mean_return", "hue": "source"}
    common |= {"palette": colours, "units": "seed", "estimator": None}
    look = {"style": "source", "dashes": {source: DASHES[dashes[source]] for source in roles}}
    look |= {"size": "source", "sizes": {source: WIDTHS[role] for source, role in roles.items()}}
    panels: dict[str, Any] = {"col": "task", "col_order": curves["task"].unique(), "height": 3.2}
    panels |= {"col_wrap": {1: 1, 2: 2, 4: 2}.get(curves["task"].nunique(), 3), "aspect": 1.5}
    panels["facet_kws"] = {"sharex": False, "sharey": False}
    means = curves[curves["kind"] == "mean"]
    if means[["mean_return", x]].isna().any(axis=1).all():  # seaborn has no axes for nothing
        means = means.assign(**{x: 0.0, "mean_return": 0.0})
    grid = sns.relplot(means, kind="line", **common, **look, **panels)
    grid.set_titles("")
    for task, panel in grid.axes_dict.items():
        own = curves[curves["task"] == task]
        seeds = own[own["kind"] == "seed"]
        if len(seeds):
            sns.lineplot(seeds, lw=0.8, alpha=0.4, legend=False, ax=panel, **common)
        bands = own[own["role"] != "context"].dropna(subset="lower")
        for (source, _), rows in bands.groupby(["source", "seed"]):
            ends = (rows[column] for column in (x, "lower", "upper"))
            panel.fill_between(*ends, color=colours[str(source)], alpha=0.2, lw=0)
        panel.set(xlabel="", ylabel="")  # seaborn names every axis
        panel.set_xlim(0.0, own[x].max() if own[x].any() else 1.0)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        said = remarks.get(task, "")
        panel.set_title(task, loc="left", weight="bold", pad=20 + 13 * said.count("\n"))
        offset: Any = {"xytext": (0, 4), "textcoords": "offset points"}
        offset |= {"color": COLOURS.get(said.split(",")[0], "dimgrey")}
        panel.annotate(said, (0, 1), xycoords="axes fraction", **offset)
    grid.set_axis_labels(AXES[x], unit)
    return save(grid, CAPTION, directory, name)


@mpl.rc_context(STYLE)
def draw_throughput(
    throughput: pd.DataFrame, directory: Path, name: str = "throughput"
) -> list[Path]:
    """Draw each run's steps/s by task with the median, and beside it where the time goes."""
    shares = frames.mean_shares(throughput, ["task"]).dropna()
    panels = pd.DataFrame({"panel": ["environment steps/s", "share of wall time"]})
    height = 1.2 + 0.4 * throughput["task"].nunique()
    options: dict[str, Any] = {"sharex": False, "height": height, "aspect": 5.0 / height}
    grid = sns.FacetGrid(panels, col="panel", **options)
    speeds, times = grid.axes_dict.values()
    common: dict[str, Any] = {"data": throughput, "x": "env_steps_per_second", "y": "task"}
    sns.stripplot(color=frames.PALETTES["ours"][0], jitter=False, alpha=0.5, ax=speeds, **common)
    median: dict[str, Any] = {"estimator": "median", "errorbar": None, "linestyle": "none"}
    sns.pointplot(color=frames.PALETTES["ours"][0], marker="D", ax=speeds, **median, **common)
    bars: dict[str, Any] = {"hue": "part", "palette": frames.PARTS, "multiple": "stack"}
    bars |= {"hue_order": [*frames.PARTS][::-1], "discrete": True, "shrink": 0.8, "alpha": 1.0}
    bars["legend"] = False
    if len(shares):  # of another program's runs none is known
        sns.histplot(shares, y="task", weights="share", ax=times, **bars)
    speeds.set_xlim(left=0.0)
    for panel, title in zip((speeds, times), panels["panel"], strict=True):
        panel.set(xlabel=title, ylabel="", title="")
    speeds.xaxis.set_major_formatter(EngFormatter(sep=""))
    names = {part: Patch(color=colour) for part, colour in frames.PARTS.items()}
    grid.add_legend(names)
    return save(grid, "dots: runs; diamonds: medians; mean shares", directory, name)


@mpl.rc_context(STYLE)
def draw_scores(scores: pd.DataFrame, remarks: Mapping[str, str], directory: Path) -> list[Path]:
    """Draw a row per task of a frame `SCORES`: every run, means and their intervals.

    Tasks with a scale share an axis; every other task has its own, in units of return. Nothing is
    drawn without a run.
    """
    if not (scores["kind"] == "run").any():
        return []
    scores = scores.assign(label=scores["task"] + "\n" + scores["task"].map(remarks))
    means = scores[scores["kind"] == "mean"]
    ends = means.melt(["axis", "label", "source"], ["lower", "value", "upper"], value_name="end")
    rows = scores.groupby("axis", sort=False)["task"].nunique() + 0.5
    colours, _ = frames.looks(scores)
    common: dict[str, Any] = {"y": "label", "hue": "source", "palette": colours}
    common["hue_order"] = list(colours)
    panels: dict[str, Any] = {"row": "axis", "row_order": rows.index, "sharex": False}
    panels |= {"height": 0.8 * rows.mean(), "aspect": 9.0 / rows.mean(), "sharey": False}
    panels["facet_kws"] = {"gridspec_kws": {"height_ratios": list(rows)}}
    dots = {"x": "value", "dodge": True, "jitter": False, "alpha": 0.6}
    dodge: Any = 0.8 - 0.8 / len(colours)  # seaborn's own, of the dots
    grid = sns.catplot(scores[scores["kind"] == "run"], kind="strip", **common, **dots, **panels)
    for axis, panel in grid.set_titles("").axes_dict.items():
        own = ends[ends["axis"] == axis]
        sns.pointplot(own, err_kws={"lw": 1.5}, dodge=dodge, ax=panel, **common, **MEANS)
        for place, dash in zip((0.0, 0.9, 1.0), ("-", "--", "-"), strict=True):
            if axis == frames.NORMALISED:
                panel.axvline(place, color="grey", lw=1.2, ls=dash, zorder=0)
        panel.set(xlabel=axis, ylabel="")
    said = "dots: runs; diamonds: means, ours with the interval that decides, theirs ± std"
    return save(grid, said, directory, "scores")


@mpl.rc_context(STYLE)
def draw_over_tasks(tables: Mapping[str, pd.DataFrame], directory: Path) -> list[Path]:
    """Draw what `judge.aggregates.over_tasks` returns."""
    paths: list[Path] = []
    for name, (x, y, place) in OVER_TASKS.items():
        if name in tables:
            rows = frames.labelled(tables[name])
            grid = (_lines if "x" in rows else _intervals)(rows)
            grid.refline(**place, color="grey", linestyle="-", lw=1.2, zorder=0)
            paths += save(grid.set_axis_labels(x, y), RESAMPLED, directory, name)
    return paths


def _lines(rows: pd.DataFrame) -> sns.FacetGrid:
    colours, _ = frames.looks(rows)
    size: dict[str, Any] = {"height": 3.6, "aspect": 1.6, "linewidth": 2.4, "palette": colours}
    grid = sns.relplot(rows, x="x", y="value", hue="source", kind="line", **size)
    for source, own in rows.groupby("source"):
        band: dict[str, Any] = {"color": colours[str(source)], "alpha": 0.2, "lw": 0}
        grid.ax.fill_between(own["x"], own["lower"], own["upper"], **band)
    return grid


def _intervals(rows: pd.DataFrame) -> sns.FacetGrid:
    ends = rows.melt(["label", "source"], ["lower", "value", "upper"], value_name="end")
    height = 0.5 * rows["label"].nunique() + 1.0
    size: dict[str, Any] = {"height": height, "aspect": 6.0 / height, "err_kws": {"lw": 2}}
    look = {"legend": "auto", "palette": frames.looks(rows)[0]}
    look["dodge"] = 0.4 * (rows["source"].nunique() > 1)
    return sns.catplot(ends, kind="point", y="label", hue="source", **size, **MEANS | look)


def save(grid: sns.FacetGrid, caption: str, directory: Path, name: str) -> list[Path]:
    """Put the legend above the panels and write a figure in all `FORMATS`, without a date."""
    grid.despine(left=True).tight_layout()
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncol": 4}
    sns.move_legend(grid, title=caption, alignment="left", **place)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = [Path(directory) / f"{name}.{kind}" for kind in FORMATS]
    for path, kind in zip(paths, FORMATS, strict=True):
        content = io.BytesIO()
        grid.savefig(content, format=kind, metadata=dates.get(kind), dpi=150)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    plt.close(grid.figure)
    return paths
