"""README's figure: SAC on HalfCheetah beside three references, and all scores that are decided."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from reproduce.plan.grid import PUBLISHED
from reproduce.report import figures, frames
from reproduce.report.tables import read_table, verdict_rows

SOURCES = {"jaxrl": "jaxrl", "sb3_control": "stable-baselines3", "tianshou_control": "Tianshou"}
"""Sources beside which the figure shows SAC, and their names."""
TASK = "HalfCheetah-v4"
SCORES = "Normalised scores"
"""The last panel."""


def draw(grids: Sequence[Path], directory: Path) -> list[Path]:
    """Write the files `overview`, whose last panel has the scores of grids; return their paths."""
    curves, references, remarks = [], [], {}
    for source, name in SOURCES.items():
        panel, grid = f"HalfCheetah, beside {name}", PUBLISHED / "sac-mujoco" / source
        ours, theirs = (
            rows[rows["task"] == TASK].assign(task=panel)
            for rows in (read_table(grid, "curves"), read_table(grid, "reference_curves"))
        )
        curves.append(ours)
        references.append(theirs[theirs["role"] == "judge"].assign(source="theirs"))
        (remarks[panel],) = (row["verdict"] for row in verdict_rows(grid) if row["task"] == TASK)
    planned = {**dict.fromkeys(remarks, 0), SCORES: 0}
    remarks[SCORES] = "of all tasks that have a deciding interval; dots: runs\n"
    remarks[SCORES] += "green: reproduced, blue: above, red: below, brown: inconclusive"
    frame = frames.learning_curves({"ours": pd.concat(curves)}, pd.concat(references), planned)
    scores = pd.concat(map(_normalised, grids), ignore_index=True)
    return figures.draw_overview(frame, remarks, scores, directory)


def _normalised(grid: Path) -> pd.DataFrame:
    """Return rows of the frame `SCORES` of a grid's runs and means that have a deciding interval.

    `label` names agent, task and source; `verdict` is the task's.
    """
    decided = read_table(grid, "verdicts").dropna(subset="ci_low")
    if decided.empty:
        return pd.DataFrame()
    ours, theirs = (read_table(grid, name) for name in ("scores", "reference_scores"))
    scores = frames.final_scores(ours, theirs, decided, {}).query("role == 'ours'")
    agent, tasks = grid.parent.name.partition("-")[0], scores["task"].str.rpartition("-")[0]
    verdicts = scores["task"].map(decided.set_index("task")["verdict"])
    return scores.assign(label=agent + " " + tasks + ", " + grid.name, verdict=verdicts)
