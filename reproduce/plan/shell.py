"""The command that makes a plan again, as somebody types it into a shell."""

import shlex
import shutil
import sys
from pathlib import Path

from reproduce.plan.grid import Plan
from reproduce.plan.places import choose_device
from reproduce.plan.presets import source_of
from reproduce.plan.request import FIELDS, Request, words_of
from suite.command_line import printable


def command(plan: Plan) -> str:
    """Return the command that makes, or goes on with, a plan."""
    words = [_python(), "-m", "reproduce", *plan.maker.verb, *words_of(request_of(plan))]
    return printable(shlex.join(words))  # a path need not be text


def request_of(plan: Plan) -> Request:
    """Return the request that makes a plan again, without what would be chosen all the same."""
    budget, default = plan.preset.budgets[plan.budget], source_of(plan.agent, plan.suite, None)
    has_other_steps = any(budget.steps(task) != n for task, n in plan.env_steps.items())
    is_whole = min(plan.num_seeds.values()) == len(plan.seeds)
    is_usual = plan.device == choose_device("auto", plan.cluster)
    return Request(
        **{name: getattr(plan, name) for name in FIELDS}
        | {
            "source": None if plan.source == default.name else plan.source,
            "env_steps": next(iter(plan.env_steps.values())) if has_other_steps else None,
            "seeds": plan.seeds if is_whole else None,
            "num_seeds": None,
            "device": "auto" if is_usual else plan.device,
            "workers": None if plan.has_default_workers else plan.workers,
        }
        | dict(plan.maker.asked)
    )


def way_on(plan: Plan, track: str = "") -> str:
    """Return how to go on with a plan after it was stopped, in words.

    Args:
        plan: the grid.
        track: what runs are mirrored into while they are written, if anything.
    """
    return f"go on with:\n  {command(plan)}{f' --track {track}' if track else ''}"


def _python() -> str:
    """Return how this Python is called: `python` where that finds it, else its relative path."""
    here = Path(sys.executable)
    found = shutil.which("python")
    if (found and Path(found) == here) or not here.is_relative_to(Path.cwd()):
        return "python"
    return str(here.relative_to(Path.cwd()))
