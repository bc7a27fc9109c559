"""Published measurements: sources, reference scores and reference curves.

The data lie in `results/references`, a folder for each source; `README.md` there says what they can
be compared with. A source's environment version or Atari protocol is never mixed with another's,
and a task without a comparable source has no reference. Files are read when they are first needed.
"""

import functools
import io
import lzma
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from suite.base.errors import UsageError
from suite.base.files import DAMAGED
from suite.envs.tasks import ATARI_PROTOCOLS
from suite.settings.presets import REFERENCES, Data, Rule, read_source

CURVE_COLUMNS = (
    *("source", "env_id", "env_steps", "return_mean", "return_low", "return_high"),
    *("num_runs", "rule", "role"),
)

TEXT, COUNT, NUMBER = "str", "int64", "float64"
_RUNS = {"agent": TEXT, "env_id": TEXT}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "curves": _RUNS
    | {"env_steps": COUNT, "return_mean": NUMBER, "return_low": NUMBER, "return_high": NUMBER}
    | {"num_runs": COUNT},
    "curves_by_seed": _RUNS | {"seed": COUNT, "env_steps": COUNT, "mean_return": NUMBER},
    "scores": _RUNS
    | {"env_steps": COUNT, "score_mean": NUMBER, "score_std": NUMBER, "num_runs": COUNT},
    "comparable": {"agent": TEXT, "source": TEXT, "env_id": TEXT, "task": TEXT, "protocol": TEXT}
    | {"max_env_steps": NUMBER, "why": TEXT},
    "sources": {"source": TEXT, "name": TEXT, "paper": TEXT},
}
"""Columns of each table, with their types; a file may have others beside them."""
MAY_BE_EMPTY = ("return_low", "return_high", "score_std", "protocol", "max_env_steps", "paper")
LENT: dict[tuple[str, str], tuple[Data, Mapping[str, pd.DataFrame]]] = {}
"""Sources without files, by agent and name: what is said of them, and their tables."""
KEPT: list[Any] = []
"""Functions whose answers are kept until a source is lent."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
TooManyCells = pd.errors.ParserWarning
How = Literal["single runs", "stated", "drawn curve"]

PROTOCOLS = ("", *ATARI_PROTOCOLS)
"""How an Atari game is presented (see `suite/envs/tasks.py`); empty for every other task."""


@dataclass(frozen=True, kw_only=True)
class ReferenceScore:
    """Score of one source on one task at one step, over its runs; reward units."""

    source: str
    env_steps: int
    """Step of the score, which covers (0.9 env_steps, env_steps] unless the source states it."""
    mean: float
    std: float
    """Standard deviation over runs (n - 1 in the denominator); NaN if none was published."""
    num_runs: int
    rule: Rule
    how: How
    """Computed from everything that single runs measured in the window, stated by the source for
    this step, or the mean of the points of its drawn mean curve in the window, without a spread."""
    stated_as: str = ""
    scores: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Describe how the score was taken, as `verdicts.csv` says it."""
        return f"{self.how} by the source: {self.stated_as}" if self.stated_as else self.how


def kept(function: _Function) -> _Function:
    """Return a function of reference data that keeps its answers until a source is lent."""
    KEPT.append(functools.cache(function))
    return KEPT[-1]


def lend(agent: str, source: str, data: Data, tables: Mapping[str, pd.DataFrame]) -> None:
    """Let a source without files judge in this process, by tables by their names."""
    named = {name: table.assign(source=source) for name, table in tables.items()}
    LENT[agent, source] = (data, named)
    for function in KEPT:
        function.cache_clear()


def read_cells(content: Any, **how: Any) -> pd.DataFrame:
    """Return a CSV table of a stream; a `TooManyCells` where a line has more than the header.

    pandas would take the first column for an index, or leave out the last cells.
    """
    with warnings.catch_warnings(action="error", category=TooManyCells):
        return pd.read_csv(content, index_col=False, **how)


def read_reference_table(path: Path) -> pd.DataFrame:
    """Return a table of reference data; a name that ends in `.xz` is unpacked.

    A `UsageError` names the file and the first mistake: a missing column or required cell, a cell
    that is no finite number, or a line with more cells than the header.
    """
    columns = COLUMNS[path.name.partition(".")[0]]
    how: Any = {"keep_default_na": False, "na_values": [""]}  # an agent may be called NA
    try:
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
        table = read_cells(io.BytesIO(content), dtype=dict(columns), **how)
    except TooManyCells:
        fix = "put a text that holds a comma in double quotes"
        problem = f"its lines have more cells than its header: {fix}"
        raise UsageError(f"unreadable {path}: {problem}") from None
    except (*DAMAGED, OSError, ValueError, OverflowError) as error:
        said = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"unreadable {path}: {said}") from None
    for name in columns:
        if name not in table:
            header = f"its first line must be {','.join(columns)}"
            raise UsageError(f"unreadable {path}: no column {name}; {header}")
        wrong = table[name].isin([np.inf, -np.inf])
        wrong |= table[name].isna() & (name not in MAY_BE_EMPTY)
        if wrong.any():
            problem = f"{name} is empty, or infinite, in row {wrong.argmax() + 1}"
            raise UsageError(f"unreadable {path}: {problem}")
    return table


def in_window(steps: Any, env_steps: int) -> Any:
    """Return which steps lie in (0.9 t, t]; whole numbers decide, so 0.9 t itself never does."""
    return (10 * steps > 9 * env_steps) & (steps <= env_steps)


def spread(scores: Float[np.ndarray, "*tests runs"]) -> Any:
    """Return the standard deviation over runs (n - 1), exactly 0 where all scores are equal.

    Rounding of their mean would leave equal scores a spread of about 1e-15 of it. A single run has
    none: NaN.
    """
    if scores.shape[-1] < 2:
        return np.full(scores.shape[:-1], math.nan)[()]
    return np.where(np.ptp(scores, axis=-1) == 0.0, 0.0, scores.std(axis=-1, ddof=1))[()]


@kept
def sources(agent: str) -> Mapping[str, Data]:
    """Return the sources held for an agent, by name (a folder's): those that judge first."""
    found = {name: data for (whose, name), (data, _) in LENT.items() if whose == agent}
    for path in sorted(REFERENCES.glob(f"*/{agent}.toml")):
        if data := read_source(path).get("data"):
            found[path.parent.name] = data
    return dict(sorted(found.items(), key=lambda source: (not source[1].judges, source[0])))


@kept
def reference_score(
    agent: str, source: str | None, task: str, env_steps: int, rule: str, protocol: str = ""
) -> ReferenceScore | None:
    """Return the reference's score for a run of `task` at `env_steps`.

    The score of a run at step t is the mean of its evaluations in (0.9 t, t]. By rule `training` it
    is the mean of its episodes there, or of its own means over recent ones. The first of these
    counts:

    1. `single runs`, if each has an evaluation in the window and reaches t;
    2. `stated`: the source states a score for exactly this step, by its own rule;
    3. `drawn curve`, by rule `training` only: the mean of the curve's points in the window, if it
       reaches t. The points are means over recent episodes; the spread of runs is unknown.

    Nothing is interpolated or extrapolated. None if the source measured another task, version,
    protocol (empty for all but Atari games) or rule, if the step lies outside its range, or if it
    does not judge; None as a source: none judges.
    """
    held = _held(agent, source, task, protocol)
    if held is None or not held.data.judges or held.data.rule != rule:
        return None
    if env_steps > held.last_step:
        return None
    scores, stated, curve = held.scores(env_steps), held.rows(_stated_scores), held.rows(_curves)
    stated = stated[stated["env_steps"] == env_steps]
    inside = curve[in_window(curve["env_steps"], env_steps)]
    how: How
    if scores.size:
        how, mean, num_runs = "single runs", float(scores.mean()), scores.size
        std = float(spread(scores))
    elif len(stated):
        how, row = "stated", stated.iloc[0]
        mean = float(row["score_mean"])
        std, num_runs = float(row["score_std"]), int(row["num_runs"])
    elif rule == "training" and len(inside) and curve["env_steps"].max() >= env_steps:
        how, mean = "drawn curve", float(inside["return_mean"].mean())
        std, num_runs = math.nan, int(inside["num_runs"].min())
    else:
        return None
    return ReferenceScore(
        source=held.source,
        env_steps=env_steps,
        mean=mean,
        std=std,
        num_runs=num_runs,
        rule=held.data.rule,
        how=how,
        stated_as=held.data.stated_as or "" if how == "stated" else "",
        scores=tuple(scores.tolist()),
    )


def reference_curves(agent: str, task: str, judge: str | None, protocol: str = "") -> pd.DataFrame:
    """Return every curve that may be drawn beside runs of a task.

    Returns:
        `CURVE_COLUMNS`, sorted by source and step, empty if nothing compares. The role is `judge`
        or `context`; low and high are one standard deviation over runs from the mean, NaN if the
        source gives none.
    """
    curves = _curves().query("agent == @agent")
    curves = curves.merge(_comparable(agent, task, protocol), on=["agent", "source", "env_id"])
    curves = curves.query("env_steps <= max_env_steps").sort_values(["source", "env_steps"])
    curves["rule"] = [_data_of(agent, name, "curves.csv").rule for name in curves["source"]]
    curves["role"] = np.where(curves["source"] == judge, "judge", "context")
    return curves.reset_index(drop=True)[[*CURVE_COLUMNS]]


def first_evaluations(
    agent: str, source: str, task: str, last_step: int, protocol: str = ""
) -> Float[np.ndarray, " runs"]:
    """Return the returns of a source's single runs at its first evaluation, to two decimals.

    The source need not judge. `last_step` is the last at which nothing is learned yet.

    Returns:
        The return of each run; empty if the source has no single runs that compare, or began later.
    """
    held = _held(agent, source, task, protocol)
    if held is None:
        return np.empty(0)
    runs = held.rows(single_runs)
    first = runs[(runs["env_steps"] == runs["env_steps"].min()) & (runs["env_steps"] <= last_step)]
    return first["mean_return"].to_numpy(dtype=float).round(2)


@kept
def measured_steps(agent: str, source: str, task: str, protocol: str = "") -> tuple[int, ...]:
    """Return the steps at which a source may have a score of a task, increasing.

    They are those of its evaluations, or else, since single episodes end anywhere, of its mean
    curve, and those for which it states a score. Arguments as in `reference_score`.
    """
    held = _held(agent, source, task, protocol)
    if held is None:
        return ()
    points = held.rows(single_runs if held.data.evaluation_interval_steps else _curves)
    steps = pd.concat([points, held.rows(_stated_scores)])["env_steps"]
    return tuple(sorted({int(step) for step in steps if 0 < step <= held.last_step}))


@kept
def _known() -> Mapping[str, Mapping[str, str]]:
    """Return name and paper of sources, from `sources.csv`, by their folders' names."""
    path = REFERENCES / "sources.csv"
    table = read_reference_table(path).fillna("")
    for twice in table.loc[table["source"].duplicated(), "source"]:
        raise UsageError(f"{path}: {twice} has two lines: leave out one")
    rows: Any = table.set_index("source").to_dict("index")
    return rows


def name_of(source: str) -> str:
    """Return the name by which people know a source: its own, or its folder's."""
    return _known().get(source, {}).get("name") or source


@kept
def coverage(agent: str, source: str) -> pd.DataFrame:
    """Return the tasks on which ours can be compared with a source; read-only.

    A row for each of our tasks: `task`, `protocol`, `env_id`, `first_step` and `last_step` of its
    curve, its scores, or the part that all its single runs cover, and `num_runs`.
    """
    ours = "agent == @agent and source == @source"
    facts = {"first_step": ("first_step", "min"), "last_step": ("last_step", "max")}
    facts |= {"num_runs": ("num_runs", "max")}
    drawn = pd.concat([_curves(), _stated_scores()]).query(ours)
    drawn = drawn.assign(first_step=drawn["env_steps"], last_step=drawn["env_steps"])
    runs = single_runs().query(ours).groupby(["env_id", "seed"])["env_steps"].agg(["min", "max"])
    every = runs.groupby("env_id").agg(  # where all of them are
        first_step=("min", "max"), last_step=("max", "min"), num_runs=("max", "size")
    )
    merged = pd.concat([drawn, every.reset_index()]).groupby("env_id").agg(**facts)
    named = _comparable_table().query(ours).merge(merged, on="env_id")
    named["last_step"] = named[["last_step", "max_env_steps"]].min(axis=1).astype(int)
    return named[["task", "protocol", "env_id", *facts]]


def credits_of(agent: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return sources' names, titles and links, for readers, by folder.

    `name`, `title`, and addresses of `paper` and `code`, empty where there is none.
    """
    credits = {}
    for name in names:
        path = REFERENCES / name / f"{agent}.toml"
        said = read_source(path) if path.exists() else {}
        title = LENT[agent, name][0].notes if (agent, name) in LENT else said.get("title", "")
        stated = re.search(r"arXiv:(\d{4}\.\d{4,5})", title)
        code = "https://github.com/{repository}/tree/{commit}"
        credits[name] = {
            "name": name_of(name),
            "title": title,
            "paper": _known().get(name, {}).get("paper")
            or (f"https://arxiv.org/abs/{stated[1]}" if stated else ""),
            "code": code.format(**said) if {"repository", "commit"} <= said.keys() else "",
        }
    return credits


class _Held(NamedTuple):
    """What a source has that compares with a task."""

    agent: str
    source: str
    data: Data
    env_id: str
    last_step: float

    def rows(self, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return the source's rows of the table that `read` gives."""
        key = (self.agent, self.source, self.env_id)
        return read().iloc[_places(read).get(key, [])]

    def scores(self, env_steps: int) -> Float[np.ndarray, " runs"]:
        """Return the window means of single runs; none unless every run has one and goes on to t.

        A run goes on to t if it would have measured nothing more before t: it may end there. So
        does one whose last episode ended earlier, where the mean curve of all runs is drawn to t.
        """
        runs, interval = self.rows(single_runs), self.data.evaluation_interval_steps
        inside = runs[in_window(runs["env_steps"], env_steps)].groupby("seed")
        ends = runs.groupby("seed")["env_steps"].max()
        gaps = inside["env_steps"].agg(lambda steps: interval or steps.diff().max()).fillna(0.0)
        drawn = self.rows(_curves)
        whole = drawn.loc[drawn["num_runs"] == len(ends), "env_steps"]
        reached = interval is None and whole.max() >= env_steps
        is_short = not reached and (ends + gaps < env_steps).any()
        if ends.empty or len(inside) < len(ends) or is_short:
            return np.empty(0)
        if interval is not None and inside.size().nunique() > 1:
            return np.empty(0)  # one of them was evaluated at t, and another had ended
        return inside["mean_return"].mean().to_numpy(dtype=np.float64)


def _held(agent: str, source: str | None, task: str, protocol: str) -> _Held | None:
    """Return what a source has of a task; None: nothing that compares."""
    rows = _comparable(agent, task, protocol)
    rows = rows[rows["source"] == source]
    if rows.empty:
        return None
    (row,) = rows.to_dict("records")
    data = _data_of(agent, row["source"], f"{agent}.toml")
    return _Held(agent, row["source"], data, row["env_id"], row["max_env_steps"])


@kept
def _places(read: Callable[[], pd.DataFrame]) -> Mapping[Any, Any]:
    return read().groupby(["agent", "source", "env_id"]).indices


@kept
def _comparable(agent: str, task: str, protocol: str) -> pd.DataFrame:
    """Return the environments that compare with a task, with their last usable steps; read-only."""
    rows = _comparable_table().query("agent == @agent and task == @task and protocol == @protocol")
    last_steps = rows["max_env_steps"].fillna(np.inf)
    return rows[["agent", "source", "env_id"]].assign(max_env_steps=last_steps)


@kept
def _table(name: str) -> pd.DataFrame:
    """Return the tables of that name of all sources as one, with a column `source`; read-only.

    A source's compressed table counts where there is only that.
    """
    packed = REFERENCES.glob(f"*/{name}.csv.xz")
    alone = (path for path in packed if not path.with_suffix("").exists())
    paths = sorted((*REFERENCES.glob(f"*/{name}.csv"), *alone))
    tables = [read_reference_table(path).assign(source=path.parent.name) for path in paths]
    tables += [lent[name] for _, lent in LENT.values() if name in lent]
    none = pd.DataFrame(columns=[*COLUMNS[name], "source"]).astype(dict(COLUMNS[name]))
    return pd.concat(tables or [none], ignore_index=True)


def _curves() -> pd.DataFrame:
    return _table("curves")


@kept
def single_runs() -> pd.DataFrame:
    """Return single runs' measurements: agent, source, env_id, seed, env_steps, mean_return.

    A source that evaluates at an interval must have every evaluation, or a window could be averaged
    over the part that was kept.
    """
    table = _table("curves_by_seed")
    for key, runs in table.groupby(["agent", "source", "env_id"]):
        agent, source, env_id = map(str, key)
        interval = _data_of(agent, source, "curves_by_seed.csv").evaluation_interval_steps
        if interval is None:
            continue
        due = runs["env_steps"] // interval  # a first evaluation may stand at step 1
        by_seed = due.groupby(runs["seed"])
        if (by_seed.diff().fillna(1) != 1).any() or by_seed.min().nunique() > 1:
            problem = f"lacks an evaluation: there is one every {interval:,} steps"
            raise UsageError(_refusal(source, "curves_by_seed.csv", env_id, problem))
    return table


@kept
def _stated_scores() -> pd.DataFrame:
    """Return the scores that sources state, each by a rule that it says (`stated_as`)."""
    table = _table("scores")
    for agent, source, env_id in table[["agent", "source", "env_id"]].itertuples(index=False):
        if not _data_of(agent, source, "scores.csv").stated_as:
            problem = f"is stated by no rule: {agent}.toml lacks data.stated_as"
            raise UsageError(_refusal(source, "scores.csv", env_id, problem))
    return table


def _data_of(agent: str, source: str, name: str) -> Data:
    if source not in sources(agent):
        problem = f"is not a source's agent: {source}/{agent}.toml is missing, or has no [data]"
        raise UsageError(_refusal(source, name, agent, problem))
    return sources(agent)[source]


def _refusal(source: str, name: str, what: object, problem: str) -> str:
    return f"{REFERENCES / source / name}: {what} {problem}"


@kept
def _comparable_table() -> pd.DataFrame:
    path = REFERENCES / "comparable.csv"
    lent = [tables["comparable"] for _, tables in LENT.values()]
    table = pd.concat([read_reference_table(path), *lent], ignore_index=True)
    table = table.fillna({"protocol": ""})
    for row in table[~table["protocol"].isin(PROTOCOLS)].to_dict("records"):
        known = " or ".join(filter(None, PROTOCOLS))
        what = f"{row['source']}, {row['env_id']}, {row['task']}"
        raise UsageError(f"{path}: {what}: protocol must be {known}, not {row['protocol']!r}")
    for row in table[table.duplicated(["agent", "source", "task", "protocol"])].to_dict("records"):
        what = f"{row['agent']}, {row['source']}, {row['task']}"
        raise UsageError(f"{path}: {what} has two lines: leave out one")
    return table
