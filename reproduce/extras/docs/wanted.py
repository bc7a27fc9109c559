"""The grids of `results/wanted.csv` that are not published yet: what each would cost and decide."""

import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from reproduce.extras.docs.markdown import table
from reproduce.extras.docs.results import DECIDED, Cell, cells
from reproduce.judge.outlook import Outlook, outlooks
from reproduce.plan.declared import read_declared
from reproduce.plan.grid import PUBLISHED, Plan
from reproduce.plan.make import make_plan
from reproduce.plan.speeds import find_speed, run_seconds
from suite.settings import UsageError

WANTED = PUBLISHED.with_name("wanted.csv")
"""Agent, suite and source; tasks, with spaces between; steps of a run, seeds of a task."""


class Missing(NamedTuple):
    """A wanted task with fewer published seeds than it should have."""

    outlook: Outlook
    num_seeds: int
    """Published at that many steps."""
    num_wanted: int
    is_exploratory: bool
    """Whether fewer seeds were declared: with more they decide nothing."""
    core_hours: float | None
    """Of the seeds that are missing, by `speeds.csv`, on the processor that it names; None: its
    like was never measured."""


def missing(link: object) -> str:
    """Return what is wanted and not published: a row for each task, with a grid's command.

    Raises:
        UsageError: naming the row that asks for what cannot be planned.
    """
    rows, total, unknown, published = [], 0.0, 0, cells()
    for words, plan in grids():
        found = list(missing_from(plan, published))
        for task in found:
            outlook, hours = task.outlook, task.core_hours
            total, unknown = total + (hours or 0.0), unknown + (hours is None)
            seeds = f"{task.num_seeds} of {task.num_wanted}"
            chance = "exploratory" if task.is_exploratory else f"{outlook.chance:.0%}"
            chance = "—" if math.isnan(outlook.chance) else chance
            cost = "not measured" if hours is None else f"{hours:.1f}"
            cell = (f"`{plan.agent}`", f"`{plan.source}`", outlook.task, f"{outlook.env_steps:,}")
            rows.append((*cell, seeds, chance, cost, f"`{words}`" if task is found[0] else ""))
    if not rows:
        return "Everything that was wanted is there."
    header = ("agent", "settings of", "task", "steps", "seeds", "decided if equal", "core-hours")
    body = table((*header, "command of the grid"), rows, right=[3, 4, 5, 6])
    rest = f", and {unknown} whose cost was never measured" if unknown else ""
    return f"{len(rows)} tasks: {total:.0f} core-hours{rest}.\n\n{body}"


def grids() -> Iterator[tuple[str, Plan]]:
    """Yield every wanted grid: its command, and the plan that the command makes.

    Raises:
        UsageError: naming the row that asks for what cannot be planned.
    """
    with WANTED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, 2):
        try:
            yield _command(row), _plan(row)
        except (KeyError, ValueError, UsageError) as error:
            raise UsageError(f"{WANTED}, line {number}: {error}") from None


def missing_from(plan: Plan, published: Iterable[Cell]) -> Iterator[Missing]:
    """Yield the tasks of a plan that are undecided with fewer published seeds than it asks for."""
    rows = {
        cell.row["task"]: cell.row
        for cell in published
        if (cell.agent, cell.source) == (plan.agent, plan.source)
    }
    for outlook in outlooks(plan):
        row = rows.get(outlook.task, {})
        is_there = row.get("env_steps") == outlook.env_steps
        num_seeds = int(row["num_seeds"] or 0) if is_there else 0
        wanted = plan.num_seeds[outlook.task]
        if num_seeds < wanted and not (is_there and row["verdict"] in DECIDED):
            hours = _core_hours(plan, outlook, wanted - num_seeds)
            is_exploratory = wanted > len(plan.declared[outlook.task])
            yield Missing(outlook, num_seeds, wanted, is_exploratory, hours)


def _plan(row: Mapping[str, str]) -> Plan:
    plan = make_plan(
        row["agent"],
        row["suite"],
        source=row["source"],
        tasks=row["tasks"].split(),
        env_steps=int(row["env_steps"]),
        num_seeds=int(row["num_seeds"]),
        device="cpu",
    )
    declared = read_declared(plan.published_folder / "plan.json")
    seeds = {t: declared.get((t, n), plan.declared[t]) for t, n in plan.env_steps.items()}
    return dataclasses.replace(plan, declared=seeds)


def _command(row: Mapping[str, str]) -> str:
    grid = f"{row['agent']} {row['suite']} --like {row['source']} --tasks {row['tasks']}"
    size = f"--env-steps {row['env_steps']} --num-seeds {row['num_seeds']}"
    return f"python -m reproduce {grid} {size}"


def _core_hours(plan: Plan, outlook: Outlook, num_seeds: int) -> float | None:
    """Return what seeds of a task cost on the processor that its speed was measured on."""
    speed = find_speed(plan.agent, plan.source, outlook.task, plan.device)
    if speed is None:
        return None
    config = dataclasses.replace(plan.config, task=outlook.task, env_steps=outlook.env_steps)
    return num_seeds * run_seconds(speed, config) * plan.preset.cores_per_run / 3600
