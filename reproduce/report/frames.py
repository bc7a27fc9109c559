"""The tidy frames that figures and page are drawn from: one observation a row, one schema each.

Curves are drawn only where they were measured: our mean where every seed has a value, a reference
up to our last step. Only what was measured by our evaluation rule stands on our axes.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from reproduce.judge.aggregates import WIDEST
from suite.base.errors import UsageError
from suite.envs.tasks import SUITES

COMMON: dict[str, str] = dict.fromkeys(("task", "source", "role", "kind", "seed"), "str")
COMMON |= dict.fromkeys(("lower", "upper"), "float64")
CURVES = COMMON | dict.fromkeys(("env_steps", "wall_time", "mean_return"), "float64")
"""Learning curves. `source` is a name for readers, `role` ours, judge or context, `kind` seed or
mean, `wall_time` in seconds, `lower` and `upper` the mean ± std over runs, cut to the scores that
the task has. A `seed` is a line: a reference has its folder and environment there, our mean
nothing."""
SCORES = COMMON | {"axis": "str", "score": "float64", "value": "float64"}
"""Scores near the last step. `kind` is run or mean, `score` a return; `value`, `lower` and `upper`
are on the axis that is named. The ends are our deciding interval, or the reference's mean ± std."""

NORMALISED = "normalised score (0 nothing learned, 1 reference, dashed: margin; -1, 3: and beyond)"
"""The axis that tasks share whose reference lies above the zero of the scale."""
PALETTES = {
    "ours": ("#0173B2", "#8E6CCB", "#00899C", "#A07400", "#C0587E", "#6B7280"),
    "judge": ("#D55E00", "#A0722A", "#9B6FD0"),
    "context": ("#029E73", "#CC78BC", "#949494", "#2E8B9A"),
}
"""By role; told apart under common colour blindness, with a contrast of 3 to white and to black."""
DASHES = ("dash", "dot", "dashdot", "longdash")
PARTS = {"environment": "#0173B2", "acting": "#029E73", "learning": "#D55E00", "other": "#949494"}
"""Of a run's wall time, with their colours."""
LABELS = {"": "all tasks", "iqm": "IQM", "optimality_gap": "optimality gap"}
NOTHING: Mapping[str, Any] = MappingProxyType({})
RETURNS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("CartPole", "StatelessCartPole"), (0.0, 500.0)),
    "Acrobot": (-500.0, 0.0),
    "MountainCar": (-200.0, 0.0),
    "Pendulum": (-200.0 * (math.pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2), 0.0),
    "MountainCarContinuous": (-99.9, 100.0),
    "TMaze": (0.0, 1.0),
    "InvertedPendulum": (0.0, 1000.0),
    "InvertedDoublePendulum": (-math.inf, 10_000.0),
    "Reacher": (-math.inf, 0.0),
    "Pong": (-21.0, 21.0),
    **dict.fromkeys(
        ("BeamRider", "Breakout", "Enduro", "Qbert", "Seaquest", "SpaceInvaders"), (0.0, math.inf)
    ),
}
"""Lowest and highest return of an episode, by environment, where its rewards bound them."""

Credits = Mapping[str, Mapping[str, str]]


def checked(frame: pd.DataFrame, schema: Mapping[str, str]) -> pd.DataFrame:
    """Return the schema's columns in its types."""
    try:
        return frame[list(schema)].astype(dict(schema)).reset_index(drop=True)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"no figure can be drawn of this table: {error}") from None


def learning_curves(
    grids: Mapping[str, pd.DataFrame],
    reference_curves: pd.DataFrame | None = None,
    planned: Mapping[str, int] = NOTHING,
    credits: Credits = NOTHING,
) -> pd.DataFrame:
    """Return the frame `CURVES` of one grid or several and of what was published beside them.

    Args:
        grids: Rows of `curves.csv` by the name that readers see.
        reference_curves: Rows of `reference_curves.csv`, of one grid or of several.
        planned: The tasks with their planned steps, up to which references go where we have no
            curve. A task without any curve has a row without numbers.
        credits: What is known of sources, as `references.credits_of` returns it.
    """
    ours = [rows.assign(source=name) for name, rows in grids.items()]
    runs = pd.concat([pd.DataFrame(columns=pd.Index(["task", "seed", "env_steps", "rule"])), *ours])
    tasks = list(dict.fromkeys([*planned, *runs["task"]]))
    ends = {**planned, **runs.groupby("task")["env_steps"].max()}
    bare = {"task": tasks, "source": next(iter(grids), "ours"), "kind": "mean"}
    seeds = runs.rename(columns={"wall_seconds": "wall_time"}).sort_values("env_steps")
    parts = [pd.DataFrame(bare), seeds.assign(kind="seed")]
    for (task, source), rows in runs.groupby(["task", "source"], sort=False):
        parts.append(mean_of(rows).assign(task=str(task), source=str(source)))
    parts = [part.assign(role="ours") for part in parts]
    if reference_curves is not None:
        theirs = comparable(runs["rule"], reference_curves)
        keys = ["task", "source", "role", "env_id"]
        for key, rows in theirs[theirs["task"].isin(tasks)].groupby(keys, sort=False):
            task, source, role, env_id = map(str, key)
            name = "reference: " * (role == "judge") + name_of(source, credits)
            named = {"task": task, "source": name, "role": role, "seed": f"{source} {env_id}"}
            parts.append(up_to(rows, float(ends[task])).assign(**named, kind="mean"))
    frame = pd.concat(parts, ignore_index=True).reindex(columns=list(CURVES)).fillna({"seed": ""})
    drawn = frame["task"].isin(frame.loc[frame["env_steps"].notna(), "task"])
    frame = frame[frame["env_steps"].notna() | ~drawn]  # a bare row only where there is no curve
    limits = pd.DataFrame(map(possible_returns, frame["task"]), frame.index, ["lowest", "highest"])
    ends = frame[["lower", "upper"]].astype(np.float64)
    ends = ends.clip(limits["lowest"], limits["highest"], axis=0)
    frame = frame.assign(lower=ends["lower"], upper=ends["upper"])
    places = frame["task"].map(tasks.index)
    return checked(frame.loc[places.sort_values(kind="stable").index], CURVES)


def possible_returns(name: str) -> tuple[float, float]:
    """Return the lowest and the highest return of a task's episode; infinite where unknown."""
    if name in SUITES["dmc"]:
        return 0.0, 1000.0
    return RETURNS.get(name.rpartition("-")[0], (-math.inf, math.inf))


def name_of(source: Any, credits: Credits) -> str:
    """Return what readers know a source as."""
    return credits.get(source, {}).get("name", str(source))


def comparable(rules: Iterable[Any], reference_curves: pd.DataFrame) -> pd.DataFrame:
    """Return the published curves that were measured by a rule of ours; by any, without ours."""
    known = {rule for rule in rules if pd.notna(rule)}
    alike = reference_curves["rule"].isin(known) if known else reference_curves["rule"].notna()
    rows = reference_curves[alike].sort_values("role", ascending=False, kind="stable")
    return rows.drop_duplicates(["task", "source", "env_id", "env_steps"])  # of several grids


def mean_of(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of one task's seeds and mean ± std, where all have a finite value.

    Nothing is interpolated or extrapolated, and one seed has no band. The wall time is the median
    of the seeds', NaN where one has none.
    """
    rows = curves.drop_duplicates(["seed", "env_steps"], keep="last")
    returns, seconds = (
        rows.pivot(index="env_steps", columns="seed", values=name).astype(np.float64).sort_index()
        for name in ("mean_return", "wall_seconds")
    )
    returns = returns.replace([np.inf, -np.inf], np.nan).dropna()
    mean, std = returns.mean(axis=1).to_numpy(), returns.std(axis=1).to_numpy()
    times = seconds.loc[returns.index].median(axis=1, skipna=False).to_numpy()
    frame = pd.DataFrame({"env_steps": returns.index, "wall_time": times, "mean_return": mean})
    band = {"lower": mean - std, "upper": mean + std} if returns.shape[1] > 1 else {}
    return frame.assign(**band, kind="mean", seed="")


def up_to(reference: pd.DataFrame, horizon: float) -> pd.DataFrame:
    """Return one published curve up to our last step, interpolated there, never extended."""
    names = {"return_mean": "mean_return", "return_low": "lower", "return_high": "upper"}
    rows = reference.rename(columns=names).sort_values("env_steps")
    rows = rows[["env_steps", *names.values()]].astype(np.float64)
    inside = rows[rows["env_steps"] <= horizon]
    if 0 < len(inside) < len(rows) and inside["env_steps"].iloc[-1] < horizon:
        last = {name: [np.interp(horizon, rows["env_steps"], rows[name])] for name in rows}
        inside = pd.concat([inside, pd.DataFrame(last)])
    return inside


def gaps(curves: pd.DataFrame, task: str) -> list[str]:
    """Say what our curves of a task lack: all of them, a mean, or its end."""
    own = curves[(curves["task"] == task) & (curves["role"] == "ours")].dropna(subset="env_steps")
    said = [] if len(own) else ["no curve recorded"]
    for source, rows in own.groupby("source", sort=False):
        ends = rows.groupby("kind")["env_steps"].max()
        if "mean" not in ends:
            said.append(f"{source}: the seeds share no step, so no mean")
        elif ends["mean"] < ends["seed"]:
            said.append(f"{source}: no mean beyond {ends['mean']:,.0f} steps, a seed ends there")
    return said


def looks(frame: pd.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Return a colour for every source of a frame, and its dashes (a name of plotly's)."""
    colours: dict[str, str] = {}
    dashes: dict[str, str] = {}
    for role, palette in PALETTES.items():
        sources = frame.loc[frame["role"] == role, "source"].unique()
        for place, source in enumerate(sources):
            dash = DASHES[place % len(DASHES)] if role == "context" else "solid"
            dashes.setdefault(source, dash)
        colours = dict(zip(sources, palette, strict=False)) | colours
    more = [source for source in dashes if source not in colours]
    return colours | dict(zip(more, many_colours(len(more)), strict=True)), dashes


def many_colours(number: int) -> list[str]:
    """Return colours around a circle of hues, as bright as those of the palettes."""
    if not number:
        return []
    import seaborn as sns  # slow, and rarely needed

    return sns.husl_palette(number, s=0.75, l=0.55).as_hex()


def final_scores(
    scores: pd.DataFrame, reference_scores: pd.DataFrame, verdicts: pd.DataFrame, credits: Credits
) -> pd.DataFrame:
    """Return the frame `SCORES` of a grid and of the reference that judges it.

    A task without a score has a row without numbers.
    """
    rows = verdicts.set_index("task", drop=False)
    names = ["score_mean", "reference_mean", "reference_std", "ci_low", "ci_high", "zero_score"]
    ours, mean, std, low, high, zero = (rows[name].astype(np.float64) for name in names)
    parts = {
        ("ours", "mean"): rows.assign(score=ours, lower=mean + low, upper=mean + high),
        ("ours", "run"): scores,
        ("judge", "mean"): rows.assign(score=mean, lower=mean - std, upper=mean + std)[
            mean.notna()
        ],
        ("judge", "run"): reference_scores.rename(columns={"run": "seed"}),
    }
    frame = pd.concat([
        part[part["task"].isin(rows.index)].assign(role=role, kind=kind, seed=part.get("seed", ""))
        for (role, kind), part in parts.items()
    ], ignore_index=True)  # fmt: skip
    judge = rows["reference_source"].map(lambda source: "reference: " + name_of(source, credits))
    frame["source"] = frame["task"].map(judge).where(frame["role"] == "judge", "ours")
    scaled = frame["task"].map((mean > zero) & (rows["verdict"] != "nothing learned"))
    frame["axis"] = np.where(scaled, NORMALISED, frame["task"] + ": return")
    origin = frame["task"].map(zero).where(scaled, 0.0)
    scale = (frame["task"].map(mean) - origin).where(scaled, 1.0)
    ends = frame[["score", "lower", "upper"]].sub(origin, axis=0).div(scale, axis=0)
    ends = ends.mask(scaled, ends.clip(*WIDEST)).rename(columns={"score": "value"})
    return checked(frame.drop(columns=["lower", "upper"]).join(ends), SCORES)


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `judge.aggregates.over_tasks` with the names of these frames, and a label."""
    names = {"estimate": "value", "probability": "value", "ci_low": "lower", "ci_high": "upper"}
    names |= {"statistic": "label", "task": "label"}
    rows = rows.rename(columns=names).fillna({"label": ""}).replace({"label": LABELS})
    return rows.assign(source=rows["role"].replace("judge", "reference"), kind="mean", seed="")


def mean_shares(throughput: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the mean share of wall time of each of `PARTS`, a row each; NaN: not known."""
    parts = {f"{part}_share": part for part in PARTS}
    means = throughput.rename(columns=parts).groupby(by, sort=False)[list(PARTS)].mean()
    return means.reset_index().melt(by, var_name="part", value_name="share")
