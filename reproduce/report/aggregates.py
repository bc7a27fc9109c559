"""Figures over all tasks of a grid, for papers: SVG, PNG and PDF (Agarwal et al. 2021).

Bands and intervals of both sides are 95 % of the resamples of runs within their tasks. Nothing is
drawn of fewer than `LEAST` tasks, and the reference only where it has single runs of all of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns

from reproduce.judge.aggregates import (
    STATISTICS,
    Interval,
    iqm,
    mean_score,
    stratified_band,
    stratified_bootstrap,
)
from reproduce.report import figures, frames

LEAST = 3
"""Tasks of which these figures say more than the rows of the tasks."""
NUM_POINTS = 101
RESAMPLED = "bands and intervals: 95 % of the resamples of runs within tasks"
NAMES = ("profile", "aggregates", "improvement", "efficiency")
Sides = Mapping[str, Mapping[str, np.ndarray]]
"""Normalised scores of runs by role, `ours` and perhaps `judge`, and task."""


def draw(tables: Mapping[str, pd.DataFrame], directory: Path) -> list[Path]:
    """Draw those of the figures `NAMES` that a grid's tables allow; remove the others of before."""
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
    for path in (directory / f"{name}.{kind}" for name in NAMES for kind in figures.KINDS):
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
    with mpl.rc_context(figures.style()):
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
        return figures.save(grid, RESAMPLED, directory, name)


def _draw_rows(rows: pd.DataFrame, name: str, x: str, directory: Path) -> list[Path]:
    """Draw a point with its interval for each side, a row for each label."""
    with mpl.rc_context(figures.style()):
        look = _look(rows)
        ends = look["data"].melt(["label", "source"], ["lower", "value", "upper"], value_name="end")
        both: Any = 0.4 * (ends["source"].nunique() > 1)
        size: dict[str, Any] = {"height": 0.5 * rows["label"].nunique() + 1.0, "err_kws": {"lw": 2}}
        size["aspect"] = 6.0 / size["height"]
        points = figures.MEANS | {"legend": "auto", "dodge": both, "palette": look["palette"]}
        grid = sns.catplot(ends, kind="point", y="label", hue="source", **points, **size)
        grid.ax.axvline(0.5 if name == "improvement" else 1.0, color="grey", lw=1.2, zorder=0)
        grid.set_axis_labels(x, "")
        return figures.save(grid, RESAMPLED, directory, name)
