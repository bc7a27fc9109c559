"""`judge AGENT CURVES`: verdicts on anybody's runs, from one table of their evaluations."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from reproduce.gather import references
from reproduce.judge.verdicts import SuiteVerdict, judge_suite, judge_tasks, verdict_table
from reproduce.plan.grid import check_agent
from suite.settings import UsageError, nearest
from suite.tasks import TASKS, Protocol, find_task, nearest_task, random_scores

SUITE_COLUMNS = tuple(field.name for field in dataclasses.fields(SuiteVerdict))
COLUMNS = ("task", "seed", "env_steps", "mean_return")


class Verdicts(NamedTuple):
    """What was found; the columns are those of `verdicts.csv` and `suite.csv` of a grid."""

    rule: str
    """Of the source, by which the curves are taken to be measured."""
    tasks: pd.DataFrame
    suite: pd.DataFrame
    """One row; none for a single task."""


def judge_curves(
    agent: str,
    curves: Path,
    source: str,
    *,
    env_steps: int | None = None,
    protocol: Protocol = "noframeskip",
) -> Verdicts:
    """Judge curves by a source, as the runs of a grid are judged: one look at all their seeds.

    A score is the mean of `mean_return` over (0.9 t, t], reward units.

    Args:
        agent: name of the agent whose sources judge.
        curves: a CSV file with `COLUMNS`, one row for each evaluation of a run, or, for a source
            of rule `training`, for each of its training episodes.
        source: name of a source that judges.
        env_steps: t; default: of each task the last step that all of its runs have reached.
        protocol: how Atari games were presented.

    Raises:
        UsageError: for an unknown name, a table that cannot be read, or a run without a row in its
            window.
    """
    check_agent(agent)
    judges = {each.source: each for each in references.sources(agent) if each.judges}
    if source not in judges:
        raise UsageError(f"no source {source!r} judges {agent}{nearest(source, judges)}")
    rows, rule = read_curves(curves), judges[source].rule
    twice = rows[rows.duplicated(["task", "seed", "env_steps"])]
    if rule != "training" and not twice.empty:
        task, seed, step, _ = twice.iloc[0]
        raise UsageError(f"{curves}: {task}, seed {seed} has two evaluations at {step:,}")
    scores, judging, zeros = [], {}, {}
    for name, of_task in rows.groupby("task", sort=False):
        if name not in TASKS:  # one that a module registers would be imported
            raise UsageError(f"{curves}: unknown task {name!r}{nearest_task(str(name), TASKS)}")
        task = find_task(str(name), protocol)
        ends = of_task.groupby("seed")["env_steps"].max()
        steps = int(ends.min()) if env_steps is None else env_steps
        if (ends < steps).any():
            raise UsageError(
                f"{curves}: {name}, seed {ends.idxmin()} ends at {ends.min():,}: use a smaller "
                f"--env-steps than {steps:,}"
            )
        inside = references.window(of_task, steps).groupby("seed")
        means = inside["mean_return"].mean().reindex(ends.index)
        if means.isna().any():
            seed = means.index[means.isna()][0]
            raise UsageError(
                f"{curves}: {name}, seed {seed} has no row behind {0.9 * steps:,.0f} and up to "
                f"{steps:,} steps, which are scored"
            )
        scores += [(task.name, seed, steps, score, rule) for seed, score in means.items()]
        reference = (agent, source, task.name, steps, rule, task.protocol)
        judging[task.name] = references.reference_score(*reference)
        zero = random_scores().get((task.name, task.protocol))
        zeros |= {} if zero is None else {task.name: zero}
    table = pd.DataFrame(scores, columns=["task", "seed", "env_steps", "score", "rule"])
    statuses = table[["task", "seed"]].assign(status="finished")
    judged = judge_tasks(table, judging, zeros, statuses)
    suite = [dataclasses.asdict(judge_suite(judged, ()))] if len(judged) > 1 else []
    verdicts = verdict_table(judged, table, judging, statuses)
    return Verdicts(rule, verdicts, pd.DataFrame(suite, columns=list(SUITE_COLUMNS)))


def read_curves(path: Path) -> pd.DataFrame:
    """Return a table of curves with `COLUMNS`; others are dropped.

    Raises:
        UsageError: if it is none, naming the column.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable {path}: {str(error).splitlines()[0]}") from None
    for column in COLUMNS:
        if column not in table:
            raise UsageError(f"{path} has no column {column}: it needs {', '.join(COLUMNS)}")
    table = table[list(COLUMNS)]
    if table.empty:
        raise UsageError(f"{path} has no row")
    if table["task"].isna().any():
        raise UsageError(f"{path}: a row has no task")
    for column, kinds in (("seed", "iu"), ("env_steps", "iu"), ("mean_return", "iuf")):
        if table[column].dtype.kind not in kinds or not np.isfinite(table[column]).all():
            raise UsageError(f"{path}: {column} holds what is no number, or not a whole one")
    return table.astype({"task": str})
