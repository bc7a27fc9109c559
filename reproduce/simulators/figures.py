"""Figures of the turns measured on one machine, drawn by seaborn."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from reproduce.report import figures
from reproduce.words import counted

SPEED = "env_steps_per_second"
LOOK: dict[str, Any] = {"hue": "engine", "style": "engine", "dashes": False, "marker": "o"}
LOOK |= {"palette": "colorblind", "estimator": "median", "errorbar": ("pi", 100)}
LOOK |= {"kind": "line", "col": "task", "facet_kws": {"sharey": False}, "height": 3.2}
"""A line of medians over turns for each engine, with the range of the turns; a panel per task."""


@mpl.rc_context(figures.STYLE)
def draw(table: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw what a table of turns has: speeds, their growth with threads, A2C's trainings."""
    turns = table[table["turn"] > 0]
    random, training = (turns[turns["mode"] == mode] for mode in ("random", "training"))
    paths: list[Path] = []
    if len(random):
        paths += _speeds(random, directory)
    keys = ["task", "engine", "num_envs"]
    grows = random.groupby(keys)["num_threads"].transform("nunique") > 1
    if grows.any():
        paths += _threads(random[grows], directory)
    if len(training):
        labels = training["task"] + ", " + training["num_envs"].astype("str")
        other = (1 - training.filter(like="_share").sum(axis=1)).clip(lower=0.0)
        training = training.assign(task=labels, other_share=other)
        paths += figures.draw_throughput(training, directory, "training")
    return paths


def _speeds(random: pd.DataFrame, directory: Path) -> list[Path]:
    rows = random[random["num_threads"] == random.groupby("task")["num_threads"].transform("min")]
    grid = sns.relplot(rows, x="num_envs", y=SPEED, aspect=1.2, **LOOK)
    grid.set(xscale="log", yscale="log")
    for panel in grid.axes.flat:
        for axis in (panel.yaxis, panel.xaxis):  # plain numbers, as 200, 500 and 1k
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(EngFormatter(sep=""))
        panel.set_xticks(sorted(rows["num_envs"].unique()), minor=False)
    grid.set_titles("{col_name}", weight="bold").set_axis_labels("environments", "steps/s")
    threads = " or ".join(counted(n, "thread") for n in sorted(rows["num_threads"].unique()))
    said = f"{threads}, random actions: median and range of the turns"
    return figures.save(grid, said, directory, "speeds")


def _threads(rows: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw steps/s over threads, beside what twice the threads would give at best."""
    rows = rows[rows["num_envs"] == rows.groupby("task")["num_envs"].transform("max")]
    grid = sns.relplot(rows, x="num_threads", y=SPEED, aspect=1.2, **LOOK)
    for task, panel in grid.axes_dict.items():
        own = rows[rows["task"] == task]
        ends = own["num_threads"].agg(["min", "max"]).to_numpy()
        alone = own[own["num_threads"] == ends[0]].groupby("engine")[SPEED].median().max()
        panel.plot(ends, alone * ends / ends[0], color="grey", ls="--", zorder=0)
        panel.set_ylim(bottom=0)
        panel.set_xticks(sorted(own["num_threads"].unique()))
    grid.set_titles("{col_name}", weight="bold").set_axis_labels("threads", "steps/s")
    envs = " or ".join(f"{number:,}" for number in sorted(rows["num_envs"].unique()))
    said = f"{envs} environments; dashed: perfect scaling of the fastest"
    return figures.save(grid, said, directory, "threads")
