"""Published measurements: sources, reference scores and reference curves.

The data lie in `results/references`, a folder for each source; `README.md` there says what they can
be compared with. A source's environment version or Atari protocol is never mixed with another's,
and a task without a comparable source has no reference. Files are read when they are first needed.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from suite.presets import REFERENCES as ROOT
from suite.presets import Data, Rule, read_source

CURVE_COLUMNS = (
    *("source", "env_id", "env_steps", "return_mean", "return_low", "return_high"),
    *("num_runs", "rule", "role"),
)

How = Literal["single runs", "tabulated", "interpolated", "drawn curve"]

PROTOCOLS = ("", "noframeskip", "sticky")
"""How an Atari game is presented (see `suite/tasks.py`); empty for every other task."""


class HumanScores(NamedTuple):
    """The two ends of the human-normalised scale of an Atari game, unclipped returns."""

    random: float
    """Published score of uniformly random play."""
    human: float
    """Published score of a human player."""


@dataclass(frozen=True, kw_only=True)
class Source(Data):
    """A published implementation whose curves are held here; `commit` is that of its data."""

    agent: str
    """The agent its curves belong to."""
    source: str
    """Name of the source: its folder."""
    title: str
    """Whose it is."""
    repository: str
    """Owner and name on GitHub."""
    licence: str
    """SPDX identifier of the repository's licence."""


@dataclass(frozen=True, kw_only=True)
class ReferenceScore:
    """Score of one source on one task at one step, over its runs."""

    source: str
    """Name of the source."""
    env_id: str
    """Environment as the source names it."""
    env_steps: int
    """Step of the score; a score covers the evaluations in (0.9 env_steps, env_steps]."""
    mean: float
    """Mean over runs, reward units."""
    std: float
    """Standard deviation over runs (n - 1 in the denominator); NaN if none was published."""
    num_runs: int
    """Number of runs."""
    rule: Rule
    """Evaluation rule."""
    how: How
    """Computed from every evaluation, read from a table, between two rows of it, or read off the
    mean curve as it was drawn, which has no spread unless its band is one over runs."""


def sources(agent: str) -> tuple[Source, ...]:
    """Return the sources held for an agent: those that judge first, then by name."""
    return tuple(
        sorted(_sources(agent).values(), key=lambda entry: (not entry.judges, entry.source))
    )


def reference_score(
    agent: str, source: str | None, task: str, env_steps: int, rule: str, protocol: str = ""
) -> ReferenceScore | None:
    """Return the score to compare a run of `task` at `env_steps` with.

    The score of a run at step t is the mean of its evaluations in (0.9 t, t]. Where t is an
    evaluation of the source and its single runs hold every evaluation of that window, the score
    is computed from them. Elsewhere (long curves were thinned) mean and standard deviation are
    interpolated linearly between tabulated scores. By rule `training`, where neither single runs
    nor tabulated scores reach, the score is the drawn mean curve interpolated at t: such curves are
    already means over recent episodes. Its standard deviation is NaN unless the drawn band is one
    standard deviation over runs. Nothing is extrapolated.

    Args:
        agent: name of the agent.
        source: name of the source that judges; None: none does.
        task: our task id.
        env_steps: step of the score, positive.
        rule: evaluation rule of the score to be compared.
        protocol: how the Atari game is presented; empty for all other tasks.

    Returns:
        The score, or None if the source has nothing that compares: another task or version,
        another protocol or rule, a step outside its range, or a source that does not judge.

    Raises:
        ValueError: if `env_steps` is not positive, the protocol is unknown, or the agent has
            sources but not this one.
    """
    if env_steps < 1:
        raise ValueError(f"env_steps must be positive, not {env_steps}")
    comparable = _comparable(agent, task, protocol)
    known = _sources(agent)
    if source is None or not known:
        return None
    if source not in known:
        raise ValueError(f"{agent} has no source {source!r}; it has {', '.join(sorted(known))}")
    entry = known[source]
    if not entry.judges or entry.rule != rule:
        return None
    matches = comparable.query("source == @source and max_env_steps >= @env_steps")
    if matches.empty:
        return None
    env_id = str(matches["env_id"].item())
    measured = (
        _from_single_runs(entry, env_id, env_steps)
        or _from_table(entry, env_id, env_steps)
        or _from_curve(entry, env_id, env_steps)
    )
    if measured is None:
        return None
    mean, std, num_runs, how = measured
    return ReferenceScore(
        source=source,
        env_id=env_id,
        env_steps=env_steps,
        mean=mean,
        std=std,
        num_runs=num_runs,
        rule=entry.rule,
        how=how,
    )


def reference_curves(agent: str, task: str, judge: str | None, protocol: str = "") -> pd.DataFrame:
    """Return every curve that may be drawn beside runs of a task.

    Args:
        agent: name of the agent.
        task: our task id.
        judge: name of the source that judges; all others are context.
        protocol: how the Atari game is presented; empty for all other tasks.

    Returns:
        `CURVE_COLUMNS`, sorted by source and step; the role is `judge` or `context`, and low and
        high are one standard deviation over runs from the mean, NaN if the source gives none.
        Empty if nothing compares.

    Raises:
        ValueError: if the protocol is unknown.
    """
    curves = _table("curves").query("agent == @agent")
    curves = curves.merge(_comparable(agent, task, protocol), on=["agent", "source", "env_id"])
    curves = curves.query("env_steps <= max_env_steps").sort_values(["source", "env_steps"])
    known = _sources(agent)
    curves["rule"] = [known[source].rule for source in curves["source"]]
    curves["role"] = np.where(curves["source"] == judge, "judge", "context")
    return curves.reset_index(drop=True).filter(CURVE_COLUMNS)


def first_evaluations(
    agent: str, source: str, task: str, last_step: int
) -> Float[np.ndarray, " runs"]:
    """Return what a source's single runs returned at its first evaluation.

    Args:
        agent: name of the agent.
        source: name of the source.
        task: our task id.
        last_step: the last step at which nothing is learned yet.

    Returns:
        The return of each run; empty if the source has no single runs that compare, or began later.
    """
    comparable = _comparable(agent, task, "").query("source == @source")
    runs = _table("curves_by_seed").query("agent == @agent and source == @source")
    runs = runs[runs["env_id"].isin(comparable["env_id"])]
    first = runs.query("env_steps == env_steps.min() and env_steps <= @last_step")
    return first["mean_return"].to_numpy(dtype=float)


def coverage(agent: str, source: str) -> pd.DataFrame:
    """What a source may be compared with.

    Args:
        agent: name of the agent.
        source: name of the source.

    Returns:
        a row for each of our tasks: `task`, `protocol`, `env_id`, `first_step` and `last_step` of
        its curve or scores, and `num_runs`.
    """
    rows = pd.concat([_table("curves"), _table("scores")])
    rows = rows.query("agent == @agent and source == @source").groupby("env_id")
    facts = rows.agg(
        first_step=("env_steps", "min"),
        last_step=("env_steps", "max"),
        num_runs=("num_runs", "max"),
    )
    named = _comparable_table().query("agent == @agent and source == @source")
    named = named.fillna({"protocol": ""}).merge(facts, on="env_id")
    named["last_step"] = named[["last_step", "max_env_steps"]].min(axis=1).astype(int)
    return named[["task", "protocol", "env_id", "first_step", "last_step", "num_runs"]]


def human_scores(tasks: Iterable[str]) -> dict[str, HumanScores]:
    """Return the published random and human scores of the Atari games among `tasks`.

    Human-normalised score = (score - random) / (human - random). The numbers are those of the
    no-op-start literature; they are used for both protocols, as that literature does.

    Args:
        tasks: our task ids.

    Returns:
        Random and human score by task, in the order of `tasks`.
    """
    known = {
        row["task"]: HumanScores(float(row["random"]), float(row["human"]))
        for row in pd.read_csv(ROOT / "human_random.csv").to_dict("records")
    }
    return {task: known[task] for task in tasks if task in known}


def _from_single_runs(
    entry: Source, env_id: str, env_steps: int
) -> tuple[float, float, int, How] | None:
    """Return the window means of single runs, or None if an evaluation there is missing."""
    interval = entry.evaluation_interval_steps
    if interval is None or env_steps % interval:
        return None
    # Whole numbers decide what lies in (0.9 t, t], so that 0.9 t itself never does.
    num_evaluations = env_steps // interval - 9 * env_steps // (10 * interval)
    runs = _select(_table("curves_by_seed"), entry, env_id)
    window = runs.query("10 * env_steps > 9 * @env_steps and env_steps <= @env_steps")
    evaluations = window.pivot(index="seed", columns="env_steps", values="mean_return").to_numpy()
    if evaluations.shape[1] != num_evaluations or np.isnan(evaluations).any():
        return None
    scores = evaluations.mean(axis=1)  # [runs]
    std = float(scores.std(ddof=1)) if scores.size > 1 else float("nan")
    return float(scores.mean()), std, scores.size, "single runs"


def _from_table(entry: Source, env_id: str, env_steps: int) -> tuple[float, float, int, How] | None:
    """Return the tabulated score, interpolated between rows; None outside the table."""
    rows = _select(_table("scores"), entry, env_id)
    between = _between(rows, env_steps)
    tabulated = (rows["env_steps"] == env_steps).any()
    return between and (*between, "tabulated" if tabulated else "interpolated")


def _from_curve(entry: Source, env_id: str, env_steps: int) -> tuple[float, float, int, How] | None:
    """Return the score read off the drawn mean curve of training episodes, or None outside it."""
    if entry.rule != "training":
        return None
    rows = _select(_table("curves"), entry, env_id)
    half_band = (rows["return_high"] - rows["return_low"]) / 2.0
    rows = rows.assign(score_mean=rows["return_mean"], score_std=half_band)
    between = _between(rows, env_steps)
    return between and (*between, "drawn curve")


def _between(rows: pd.DataFrame, env_steps: int) -> tuple[float, float, int] | None:
    """Return mean, standard deviation and number of runs at a step; None outside the table."""
    rows = rows.sort_values("env_steps")
    steps = rows["env_steps"].to_numpy()
    if steps.size == 0 or not steps[0] <= env_steps <= steps[-1]:
        return None
    nearest = rows.iloc[[(steps <= env_steps).sum() - 1, (steps < env_steps).sum()]]
    mean = np.interp(env_steps, nearest["env_steps"], nearest["score_mean"])
    std = np.interp(env_steps, nearest["env_steps"], nearest["score_std"])
    return float(mean), float(std), int(nearest["num_runs"].min())


def _select(table: pd.DataFrame, entry: Source, env_id: str) -> pd.DataFrame:
    """Return the rows of one source and environment."""
    return table.query("agent == @entry.agent and source == @entry.source and env_id == @env_id")


def _comparable(agent: str, task: str, protocol: str) -> pd.DataFrame:
    """Return the environments that compare with a task, each with its last usable step."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {PROTOCOLS}, not {protocol!r}")
    rows = _comparable_table().fillna({"protocol": ""})
    rows = rows.query("agent == @agent and task == @task and protocol == @protocol")
    last_steps = rows["max_env_steps"].fillna(np.inf)
    return rows[["agent", "source", "env_id"]].assign(max_env_steps=last_steps)


@functools.cache
def _sources(agent: str) -> dict[str, Source]:
    """Sources that measured something of an agent, by name."""
    found = {}
    for path in sorted(ROOT.glob(f"*/{agent}.toml")):
        said = read_source(path)
        if "data" in said:
            found[path.parent.name] = Source(
                agent=agent,
                source=path.parent.name,
                **{name: said[name] for name in ("title", "repository", "licence")},
                **{**vars(said["data"]), "commit": said["data"].commit or said["commit"]},
            )
    return found


@functools.cache
def _table(name: str) -> pd.DataFrame:
    """Return the tables of that name of all sources as one, with a column `source`; read-only."""
    return pd.concat(
        [
            pd.read_csv(path).assign(source=path.parent.name)
            for path in sorted(ROOT.glob(f"*/{name}.csv"))
        ],
        ignore_index=True,
    )


@functools.cache
def _comparable_table() -> pd.DataFrame:
    return pd.read_csv(ROOT / "comparable.csv")
