"""Figures of the turns measured on one machine, drawn by seaborn."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns

from reproduce.report import figures

PALETTE = "colorblind"
SPEED = "env_steps_per_second"
RANGE: dict[str, Any] = {"estimator": "median", "errorbar": ("pi", 100)}
"""A line of medians over turns, with the range of the turns."""


def draw(table: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw what a table of turns has: speeds, their growth with threads, A2C's trainings."""
    turns = table[table["turn"] > 0]
    random = turns[turns["mode"] == "random"]
    paths: list[Path] = []
    with mpl.rc_context(figures.style()):
        if len(random):
            paths += _speeds(random, directory)
        if random.groupby(["task", "num_envs"])["num_threads"].nunique().gt(1).any():
            paths += _threads(random, directory)
        training = turns[turns["mode"] == "training"]
        if len(training):
            labels = training["task"] + ", " + training["num_envs"].astype("str")
            busy = training[[name for name in training if str(name).endswith("_share")]].sum(axis=1)
            training = training.assign(task=labels, other_share=(1 - busy).clip(lower=0.0))
            paths += figures.draw_throughput(training, directory, "training")
    return paths


def _speeds(random: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw steps/s over the number of environments, a line per engine, a panel per task."""
    rows = random[random["num_threads"] == random["num_threads"].min()]
    grid = sns.relplot(
        rows, x="num_envs", y=SPEED, kind="line", marker="o", **_engines(rows), **RANGE
    )
    grid.set(xscale="log", yscale="log")
    for panel in grid.axes.flat:
        figures.label_powers(panel.yaxis)
        figures.label_powers(panel.xaxis)
        panel.set_xticks(sorted(rows["num_envs"].unique()), minor=False)
    grid.set_titles("{col_name}", weight="bold").set_axis_labels("environments", "steps/s")
    said = "one thread, random actions: median and range of the turns"
    return figures.save(grid, said, directory, "speeds")


def _threads(random: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw steps/s over threads, beside what twice the threads would give at best."""
    both = random.groupby(["task", "engine", "num_envs"])["num_threads"].transform("nunique") > 1
    rows = random[both]
    rows = rows[rows["num_envs"] == rows["num_envs"].max()]
    grid = sns.relplot(
        rows, x="num_threads", y=SPEED, kind="line", marker="o", **_engines(rows), **RANGE
    )
    for task, panel in grid.axes_dict.items():
        own = rows[rows["task"] == task]
        fewest = own["num_threads"].min()
        alone = own[own["num_threads"] == fewest].groupby("engine")[SPEED].median().max()
        ends = [fewest, own["num_threads"].max()]
        panel.plot(ends, [alone * end / fewest for end in ends], color="grey", ls="--", zorder=0)
        panel.set_ylim(bottom=0)
        panel.set_xticks(sorted(own["num_threads"].unique()))
    grid.set_titles("{col_name}", weight="bold").set_axis_labels("threads", "steps/s")
    said = f"{rows['num_envs'].max()} environments; dashed: perfect scaling of the fastest"
    return figures.save(grid, said, directory, "threads")


def _engines(rows: pd.DataFrame) -> dict[str, Any]:
    """Return how engines and tasks are told apart."""
    panels = {"col": "task", "facet_kws": {"sharey": False}, "height": 3.2, "aspect": 1.2}
    return {"hue": "engine", "style": "engine", "dashes": False, "palette": PALETTE, **panels}
