"""Agents and their presets: which suites and tasks each can do, and where its grids lie."""

import importlib
import itertools
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import agents
from reproduce import ROOT
from suite.base.errors import UsageError, nearest
from suite.base.files import NO_SPACE
from suite.envs.tasks import SUITES, find_suite, find_task
from suite.settings.presets import Preset, find_source

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan


PUBLISHED = ROOT / "results" / "published"
"""Folder of our published grids."""


class Source(NamedTuple):
    """The settings of a published source that an agent has for a suite."""

    agent: str
    suite: str
    name: str
    preset: Preset[Any]

    def folder(self, root: Path) -> Path:
        """Return its grid's folder below a runs directory."""
        return root / f"{self.agent}-{self.suite}" / self.name


def check_agent(agent: str) -> None:
    """Raise a `UsageError` that names the nearest agent if there is none of this name."""
    if agent not in agents.AGENTS:
        raise UsageError(f"unknown agent {agent!r}{nearest(agent, agents.AGENTS)}")


def source_of(agent: str, suite: str, asked: str | None) -> Source:
    """Return the source of this name, None: the suite's default; a `UsageError` says why not."""
    check_agent(agent)
    find_suite(suite)
    presets = presets_of(agent)
    suites = dict.fromkeys(known for known, _ in presets)
    if suite not in suites:
        tasks = (preset.tasks or SUITES[known] for (known, _), preset in presets.items())
        kinds = sorted({find_task(task).actions for task in itertools.chain(*tasks)})
        alone = f", or train a task alone with python -m agents.{agent} --task TASK"
        can_learn = any(find_task(task).actions in kinds for task in SUITES[suite])
        raise UsageError(
            f"{agent} has no presets for {suite} (it learns {' and '.join(kinds)} actions): "
            f"choose from {', '.join(suites)}{alone if can_learn else ''}"
        )
    name = find_source(presets, suite, asked)
    return Source(agent, suite, name, presets[suite, name])


def presets_of(agent: str) -> Mapping[tuple[str, str], Preset[Any]]:
    """Return an agent's presets by suite and source.

    A `UsageError` names its file if that cannot be imported or has no `PRESETS`.
    """
    file = f"agents/{agent}.py"
    try:
        module = importlib.import_module(f"agents.{agent}")
    except UsageError:  # of a source's file, which it names
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in NO_SPACE:
            raise  # says nothing about the file
        frames = traceback.extract_tb(error.__traceback__)
        lines = [each.lineno for each in frames if Path(each.filename).name == f"{agent}.py"]
        where = f" (line {lines[-1]})" if lines else ""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{file} cannot be imported: {why}{where}") from None
    presets = getattr(module, "PRESETS", None)
    if not isinstance(presets, Mapping):
        raise UsageError(
            f"{file} has no PRESETS: an agent's file has PRESETS = Presets({agent!r}, Config)"
            " (see CONTRIBUTING.md); any other file belongs elsewhere"
        )
    return presets


def check_trainable(agent: str) -> None:
    """Raise a `UsageError` if an agent's file lacks what training it, or its policy, needs."""
    for name in ("load", "main"):
        if not hasattr(importlib.import_module(f"agents.{agent}"), name):
            raise UsageError(f"agents/{agent}.py has no {name}: see CONTRIBUTING.md")


def tasks_of(preset: Preset[Any], suite: str, budget: str) -> tuple[str, ...]:
    """Return the tasks of a suite that a budget trains where nobody names any."""
    return preset.budgets[budget].tasks or preset.tasks or find_suite(suite)


def skipped_tasks(plan: "Plan") -> list[str]:
    """Return a line for the tasks of a suite that an agent, or a budget, leaves out."""
    can = plan.preset.tasks or find_suite(plan.suite)
    cannot = [task for task in find_suite(plan.suite) if task not in can]
    beyond = [task for task in can if task not in plan.tasks]
    said = {
        f"Skipped, without settings of {plan.source} for {plan.agent}": cannot,
        f"Not in --budget {plan.budget}, but with --tasks": beyond,
    }
    return [f"{why}: {' '.join(tasks)}" for why, tasks in said.items() if tasks]
