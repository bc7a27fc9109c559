"""Do engines do the same work? Random play on each, by the same actions, tells differences.

An engine's observations and actions are compared with the first one's by their types and shapes,
and its episodes by their mean length and return. These depend on rewards, frames skipped, ends and
time limits. Libraries draw their own starting states, so the rewards of the same actions are equal
only among engines of one library: `tape_return` shows where they are.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from reproduce.simulators.measure import Cell, Server
from suite.base.errors import UsageError
from suite.envs.tasks import find_task

NUM_ENVS = 8
EPISODES = {"classic": 50}
"""Episodes of each environment, by family; else two."""
SECONDS = 60.0
FAR = 3.5
"""Standard errors of a difference that are no chance: 1 in 700 with 16 episodes a side."""
COLUMNS = (
    *("task", "engine", "obs", "actions", "frame_skip", "autoreset", "tape_return"),
    *("num_episodes", "length_mean", "length_se", "return_mean", "return_se", "differs"),
)
"""`differs` names what is not as with the first engine; of an engine that ended, why it did."""


def same_work(task: str, engines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of `COLUMNS` for each engine; `differs` is left to `differences`, or an error."""
    episodes = EPISODES.get(find_task(task).family, 2)
    for engine in engines:
        row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"task": task, "engine": engine}
        try:
            with closing(Server(engine, Cell(task, NUM_ENVS, 1))) as server:
                row |= server.ask(SECONDS, episodes=episodes)
            yield row
        except UsageError as error:
            yield row | {"differs": str(error)}


def differences(row: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """Return in what an engine differs from the first."""
    names = ("obs", "actions", "frame_skip", "autoreset")
    found = [name for name in names if row[name] != first[name]]
    for name in ("length", "return"):
        ours, theirs = (each[f"{name}_mean"] for each in (row, first))
        errors = [each[f"{name}_se"] for each in (row, first)]
        if None in (ours, theirs, *errors):
            found.append(f"{name} not known")
        elif abs(ours - theirs) > FAR * math.hypot(*errors):
            found.append(name)
    return found
