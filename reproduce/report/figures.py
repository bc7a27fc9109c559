"""Figures of a comparison for papers and README, drawn by seaborn: SVG, PNG and PDF.

Each function takes a frame of `frames` and what stands under the name of each task, and returns
the paths of its files. Their bytes depend only on these and on the installed versions.

Those over all tasks (Agarwal et al. 2021) need `LEAST`, and the reference single runs of all these;
bands and intervals of both sides are 95 % of the resamples of runs within tasks.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from reproduce.judge.aggregates import (
    STATISTICS,
    Interval,
    iqm,
    mean_score,
    stratified_band,
    stratified_bootstrap,
)
from reproduce.report import frames
from suite.base.files import write_atomically

KINDS = ("svg", "png", "pdf")
"""Of every figure: for a page, for README, for a paper."""
STYLE: dict[str, Any] = {"grid.color": ".92", "pdf.fonttype": 42, "svg.fonttype": "none"}
STYLE |= {"svg.hashsalt": "reproduce", "text.parse_math": False}  # a $ in a name stays one
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
LEAST = 3
"""Tasks of which these figures say more than the rows of the tasks."""
NUM_POINTS = 101
RESAMPLED = "bands and intervals: 95 % of the resamples of runs within tasks"
OVER_TASKS = ("profile", "aggregates", "improvement", "efficiency")
Sides = Mapping[str, Mapping[str, np.ndarray]]
"""Normalised scores of runs by role, `ours` and perhaps `judge`, and task."""


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
    with mpl.rc_context(style()):
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


def draw_throughput(
    throughput: pd.DataFrame, directory: Path, name: str = "throughput"
) -> list[Path]:
    """Draw each run's steps/s by task with the median, and beside it where the time goes."""
    parts = {f"{part}_share": part for part in frames.PARTS}
    shares = throughput.rename(columns=parts).melt("task", [*parts.values()], "part", "share")
    shares = shares.groupby(["task", "part"], sort=False)["share"].mean().reset_index()
    panels = pd.DataFrame({"panel": ["environment steps/s", "share of wall time"]})
    height = 1.2 + 0.4 * throughput["task"].nunique()
    with mpl.rc_context(style()):
        options: dict[str, Any] = {"sharex": False, "height": height, "aspect": 5.0 / height}
        grid = sns.FacetGrid(panels, col="panel", **options)
        speeds, times = grid.axes_dict.values()
        common: dict[str, Any] = {"data": throughput, "x": "env_steps_per_second", "y": "task"}
        sns.stripplot(color=frames.OURS[0], jitter=False, alpha=0.5, ax=speeds, **common)
        median: dict[str, Any] = {"estimator": "median", "errorbar": None, "linestyle": "none"}
        sns.pointplot(color=frames.OURS[0], marker="D", ax=speeds, **median, **common)
        bars: dict[str, Any] = {"hue": "part", "palette": frames.PARTS, "multiple": "stack"}
        bars |= {"hue_order": [*frames.PARTS][::-1], "discrete": True, "shrink": 0.8, "alpha": 1.0}
        bars["legend"] = False
        sns.histplot(shares, y="task", weights="share", ax=times, **bars)
        speeds.set_xlim(left=0.0)
        for panel, title in zip((speeds, times), panels["panel"], strict=True):
            panel.set(xlabel=title, ylabel="", title="")
        speeds.xaxis.set_major_formatter(EngFormatter(sep=""))
        names = {part: Patch(color=colour) for part, colour in frames.PARTS.items()}
        grid.add_legend(names)
        return save(grid, "dots: runs; diamonds: medians; mean shares", directory, name)


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
    with mpl.rc_context(style()):
        grid = sns.catplot(
            scores[scores["kind"] == "run"], kind="strip", **common, **dots, **panels
        )
        for axis, panel in grid.set_titles("").axes_dict.items():
            own = ends[ends["axis"] == axis]
            sns.pointplot(own, err_kws={"lw": 1.5}, dodge=dodge, ax=panel, **common, **MEANS)
            for place, dash in zip((0.0, 0.9, 1.0), ("-", "--", "-"), strict=True):
                if axis == frames.NORMALISED:
                    panel.axvline(place, color="grey", lw=1.2, ls=dash, zorder=0)
            panel.set(xlabel=axis, ylabel="")
        said = "dots: runs; diamonds: means, ours with the interval that decides, theirs ± std"
        return save(grid, said, directory, "scores")


def draw_over_tasks(tables: Mapping[str, pd.DataFrame], directory: Path) -> list[Path]:
    """Draw those of `OVER_TASKS` that a grid's tables allow; remove the others of before."""
    sides = sides_of(tables["scores"], tables["reference_scores"])
    drawn: list[Path] = []
    if sides:
        labels = ("normalised score", "share of runs")
        drawn += _draw_lines(profile(sides), "profile", *labels, directory)
        drawn += _draw_rows(aggregates(sides), "aggregates", "normalised score", directory)
    improved = improvement(tables["improvement"])
    if len(improved):
        drawn += _draw_rows(improved, "improvement", "probability of improvement", directory)
    learned = efficiency(tables["curves"], tables["verdicts"])
    if len(learned):
        labels = ("share of the planned steps", "IQM of the normalised return")
        drawn += _draw_lines(learned, "efficiency", *labels, directory)
    for path in (directory / f"{name}.{kind}" for name in OVER_TASKS for kind in KINDS):
        if path not in drawn:
            path.unlink(missing_ok=True)
    return drawn


def sides_of(scores: pd.DataFrame, reference_scores: pd.DataFrame) -> Sides:
    """Return the normalised scores of tasks with several runs; none of fewer than `LEAST` tasks."""
    sides = []
    for table in (scores, reference_scores):
        groups = table.dropna(subset="normalised_score").groupby("task", sort=False)
        runs = {str(task): rows.to_numpy(np.float64) for task, rows in groups["normalised_score"]}
        sides.append({task: values for task, values in runs.items() if len(values) > 1})
    ours, theirs = sides
    if len(ours) < LEAST:
        return {}
    return {"ours": ours, **({"judge": theirs} if ours.keys() <= theirs.keys() else {})}


def profile(sides: Sides) -> pd.DataFrame:
    """Return the share of runs above each normalised score, every task weighing the same."""
    every = np.concatenate([runs for side in sides.values() for runs in side.values()])
    low, high = np.clip([min(every.min(), 0.0), every.max()], *frames.WIDEST)
    points = np.linspace(low, high, NUM_POINTS)
    parts = []
    for role, side in sides.items():
        above = [(side[task][:, None] > points).astype(np.float64) for task in sides["ours"]]
        band = stratified_band(above, mean_score, seed=0)
        parts.append(_line(role, points, band))
    return pd.concat(parts, ignore_index=True)


def aggregates(sides: Sides) -> pd.DataFrame:
    """Return the `STATISTICS` of each side's normalised scores with their intervals."""
    rows = [
        (role, label, *stratified_bootstrap(list(side.values()), statistic, seed=0))
        for name, statistic in STATISTICS.items()
        for label in [name.replace("iqm", "IQM").replace("_", " ")]
        for role, side in sides.items()
    ]
    return pd.DataFrame(rows, columns=["role", "label", "value", "lower", "upper"])


def improvement(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `improvement.csv` with their intervals; none of fewer than `LEAST` tasks."""
    names = {"task": "label", "probability": "value", "ci_low": "lower", "ci_high": "upper"}
    rows = table.rename(columns=names).fillna({"label": ""})
    rows = rows if rows["label"].ne("").sum() >= LEAST else rows[:0]
    return rows.assign(role="ours", label=rows["label"].replace("", "all tasks"))


def efficiency(curves: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the IQM of normalised returns over the share of the planned steps.

    It stands only where every run of every task was measured. Empty of fewer than `LEAST` tasks
    that have a scale and several runs, or without two such points.
    """
    tables = []
    for row in verdicts.to_dict("records"):
        own = curves[curves["task"] == row["task"]]
        own = own.drop_duplicates(["seed", "env_steps"], keep="last")
        gap = row["reference_mean"] - row["zero_score"]
        if not gap > 0 or own["seed"].nunique() < 2:
            continue
        share = (own["env_steps"].astype(np.float64) / row["env_steps"]).round(4)
        values = (own["mean_return"].astype(np.float64) - row["zero_score"]) / gap
        wide = pd.DataFrame({"share": share, "seed": own["seed"], "value": values})
        tables.append(wide.pivot_table("value", "share", "seed", dropna=False).dropna())
    shared = set.intersection(*(set(table.index) for table in tables)) if tables else set()
    if len(tables) < LEAST or len(shared) < 2:
        return pd.DataFrame()
    points = np.array(sorted(shared))
    runs = [table.loc[points].to_numpy().T for table in tables]
    return _line("ours", points, stratified_band(runs, iqm, seed=0))


def _line(role: str, points: np.ndarray, band: Interval) -> pd.DataFrame:
    ends = {"value": band.estimate, "lower": band.ci_low, "upper": band.ci_high}
    return pd.DataFrame({"role": role, "x": points, **ends})


def _look(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the names and colours of both sides, as every figure has them."""
    named = {"ours": "ours", "judge": "reference"}
    colours = {"ours": frames.OURS[0], "reference": frames.JUDGE[0]}
    return {"data": rows.assign(source=rows["role"].map(named)), "palette": colours}


def _draw_lines(rows: pd.DataFrame, name: str, x: str, y: str, directory: Path) -> list[Path]:
    """Draw a line with its band for each side."""
    with mpl.rc_context(style()):
        look = _look(rows)
        size: dict[str, Any] = {"height": 3.6, "aspect": 1.6, "linewidth": 2.4}
        grid = sns.relplot(x="x", y="value", hue="source", kind="line", **look, **size)
        for source, own in look["data"].groupby("source"):
            colour = look["palette"][str(source)]
            band = {"color": colour, "alpha": 0.2, "lw": 0}
            grid.ax.fill_between(own["x"], own["lower"], own["upper"], **band)
        if name == "efficiency":
            grid.ax.axhline(1.0, color="grey", lw=1.2, zorder=0)
        grid.set_axis_labels(x, y)
        return save(grid, RESAMPLED, directory, name)


def _draw_rows(rows: pd.DataFrame, name: str, x: str, directory: Path) -> list[Path]:
    """Draw a point with its interval for each side, a row for each label."""
    with mpl.rc_context(style()):
        look = _look(rows)
        ends = look["data"].melt(["label", "source"], ["lower", "value", "upper"], value_name="end")
        both: Any = 0.4 * (ends["source"].nunique() > 1)
        size: dict[str, Any] = {"height": 0.5 * rows["label"].nunique() + 1.0, "err_kws": {"lw": 2}}
        size["aspect"] = 6.0 / size["height"]
        points = MEANS | {"legend": "auto", "dodge": both, "palette": look["palette"]}
        grid = sns.catplot(ends, kind="point", y="label", hue="source", **points, **size)
        grid.ax.axvline(0.5 if name == "improvement" else 1.0, color="grey", lw=1.2, zorder=0)
        grid.set_axis_labels(x, "")
        return save(grid, RESAMPLED, directory, name)


def label_powers(axis: Any) -> None:
    """Write plain numbers, as 200, 500 and 1k, on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(EngFormatter(sep=""))


def style() -> Any:
    """Return the look of all figures."""
    return sns.axes_style("whitegrid") | STYLE


def save(grid: sns.FacetGrid, caption: str, directory: Path, name: str) -> list[Path]:
    """Put the legend above the panels and write a figure in all `KINDS`, without a date."""
    grid.despine(left=True).tight_layout()
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncol": 4}
    sns.move_legend(grid, title=caption, alignment="left", **place)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = [Path(directory) / f"{name}.{kind}" for kind in KINDS]
    for path, kind in zip(paths, KINDS, strict=True):
        content = io.BytesIO()
        grid.savefig(content, format=kind, metadata=dates.get(kind), dpi=150)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    plt.close(grid.figure)
    return paths
