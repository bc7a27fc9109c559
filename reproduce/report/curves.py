"""Drawn parts of curves: where all seeds have a value; of references, up to our last step.

The static figures and the interactive charts draw the same points, made here from tidy frames.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reproduce.judge.statistics import Band, bootstrap_band

MOST_POINTS = 300
"""Largest number of points drawn of one curve."""


class AlignedCurves(NamedTuple):
    """Returns of several seeds at the steps all of them have."""

    env_steps: NDArray[np.float64]
    """Environment steps, increasing, `[P]`."""
    values: NDArray[np.float64]
    """Mean returns, `[S, P]`."""
    wall_seconds: NDArray[np.float64]
    """Median over seeds of the time each took to get there, NaN where one has none, `[P]`."""

    def band(self) -> Band:
        """Return the mean of the seeds and its bootstrap band, at every point."""
        return bootstrap_band(self.values, seed=0)

    def remark(self, horizon: float) -> str:
        """Say why there is no mean up to a step; empty if there is one."""
        if not self.values.shape[1]:
            return "the seeds share no step: no mean"
        if self.env_steps[-1] < horizon:
            return f"no mean beyond {compact(self.env_steps[-1])}: a seed ends there"
        return ""


def align_seeds(curves: pd.DataFrame) -> AlignedCurves:
    """Align the seeds of one task on the environment steps that all of them have.

    Steps where any seed lacks a finite value are dropped; nothing is interpolated or extrapolated.
    Of more than `MOST_POINTS` steps, evenly spread ones are kept.

    Args:
        curves: Rows of `curves.csv` of one task.

    Returns:
        The common steps and the values there.
    """
    rows = curves.drop_duplicates(["seed", "env_steps"], keep="last")
    returns, seconds = (
        rows.pivot(index="env_steps", columns="seed", values=name).astype(np.float64).sort_index()
        for name in ("mean_return", "wall_seconds")
    )
    returns = returns.replace([np.inf, -np.inf], np.nan).dropna()
    returns = returns.iloc[thinned(len(returns))]
    times = seconds.loc[returns.index].median(axis=1, skipna=False)
    steps = returns.index.to_numpy(np.float64)
    return AlignedCurves(steps, returns.to_numpy().T, times.to_numpy(np.float64))


def clip_reference(reference: pd.DataFrame, horizon: float) -> pd.DataFrame:
    """Cut one published curve at our last step.

    Args:
        reference: Rows of `reference_curves.csv` of one task and source.
        horizon: Our last environment step.

    Returns:
        The points up to the horizon, and a last one interpolated at the horizon if the source
        continues beyond it. A source that ends earlier is not extended. Of more than
        `MOST_POINTS`, evenly spread ones are kept.
    """
    columns = ["env_steps", "return_mean", "return_low", "return_high"]
    reference = pd.DataFrame(reference[columns]).astype(np.float64).sort_values(by="env_steps")
    steps = reference["env_steps"].to_numpy()
    inside = pd.DataFrame(reference[steps <= horizon])
    if not inside.empty and steps.max() > horizon > inside["env_steps"].max():
        last = {name: np.interp(horizon, steps, reference[name].to_numpy()) for name in columns}
        inside = pd.DataFrame(pd.concat([inside, pd.DataFrame([last])], ignore_index=True))
    return inside.iloc[thinned(len(inside))]


def same_rule(
    rules: Iterable[Any], references: pd.DataFrame, tasks: Sequence[str]
) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """Part published curves by their evaluation rule: only those of ours stand on our axes.

    Args:
        rules: Ours; without any, all rules are.
        references: Rows of `reference_curves.csv`, of one grid or of several.
        tasks: Those that are drawn.

    Returns:
        The rows to draw, each once, those that judge first; source and rule of all others.
    """
    known = {rule for rule in rules if pd.notna(rule)}
    here = pd.DataFrame(references[references["task"].isin(tasks)])
    here = here.sort_values("role", ascending=False, kind="stable")  # "judge" before "context"
    here = here.drop_duplicates(["task", "source", "env_id", "env_steps"])
    alike = here["rule"].isin(known) if known else here["rule"].notna()
    pairs = here.loc[~alike, ["source", "rule"]].fillna("unstated").drop_duplicates()
    return here[alike], [(str(source), str(rule)) for source, rule in pairs.to_numpy()]


def compact(value: float, _: int | None = None) -> str:
    """Return a number for an axis: 250k, 1.5M."""
    for letter, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.10g}{letter}"
    return f"{value:.6g}"


def thinned(num_points: int) -> NDArray[np.int64]:
    """Return at most `MOST_POINTS` evenly spread indices, including the first and the last."""
    return np.unique(np.linspace(0, num_points - 1, min(num_points, MOST_POINTS)).astype(np.int64))
