"""`--set key=value`: changes of an agent's settings; with several values, a sweep over them.

`--set gamma=0.98,0.99 tau=0.005,0.01` asks for every combination. Where a value is a list of its
own, commas separate its entries, and slashes the values: `hidden_sizes=64,64/256,256`.
"""

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from reproduce.plan.status import NOT_SETTINGS
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import find_task, shortest_episodes
from suite.settings.command_line import read_value

LARGEST = 100
"""Variants of one sweep."""
LONGEST_NAME = 120
"""Characters of a folder's name before it is shortened."""
THREADS = {
    "num_threads": "is 1 in every process",
    "env_threads": "is 1 in every process, and its share of the cores that no run keeps busy",
}
"""Settings that the harness decides itself, and how."""


def changes_of(settings: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the changes that `--set` asks for, by setting; a `UsageError` for what is none."""
    if isinstance(settings, Mapping):
        return dict(settings)
    changes: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--set: {setting!r} is not key=value, such as gamma=0.99")
        if key.replace("-", "_") in changes:
            raise UsageError("--set: a setting is named twice")
        changes[key.replace("-", "_")] = value
    return changes


def configure(config: Any, task: str, changes: Mapping[str, str]) -> Any:
    """Return a preset's configuration on a task, with the changes of `--set`, or a `UsageError`."""
    hints = get_type_hints(type(config))
    known = [field.name for field in dataclasses.fields(config)]
    for key in changes:
        if key in NOT_SETTINGS and key != "cuda_graphs":
            own = THREADS.get(key, "has a flag of its own")
            raise UsageError(f"--set: {key} {own} (see --help)")
        if key not in known:
            raise UsageError(f"--set: unknown setting {key!r}{nearest(key, known)}")
    values = {key: read_value(f"--set: {key}", hints[key], [v]) for key, v in changes.items()}
    find_task(task)
    return dataclasses.replace(config, task=task, **values)


def refuse_scoreless(config: Any) -> None:
    """Refuse a run in which no training episode can end, if these are what is scored.

    A policy that learns is taken to play no shorter episodes than a random one.

    Raises:
        UsageError: naming a number of steps that gives a score.
    """
    task = config.find_task()
    first = shortest_episodes().get((task.name, task.protocol), 0) * config.num_envs
    if config.evaluation_rule == "training" and config.env_steps < first:
        raise UsageError(
            f"{task.name}: {config.env_steps:,} steps give no score: no episode of "
            f"{counted(config.num_envs, 'environment')} ends before {first:,}; use --env-steps "
            f"{10 * first} or more"
        )


def variants(config: Any, settings: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the `--set` of every variant, the first values first; one where nothing varies."""
    choices = [_values(config, setting) for setting in settings]
    count = math.prod(map(len, choices))
    if count > LARGEST:
        each = " x ".join(str(len(values)) for values in choices if len(values) > 1)
        raise UsageError(
            f"--set: {each} = {count:,} variants are more than {LARGEST}: name fewer values"
        )
    return list(itertools.product(*choices))


def folder_name(settings: Sequence[str]) -> str:
    """Return the name of a variant's runs folder: its settings."""
    name = ",".join(re.sub(r"[^\w.=+-]", "-", setting) for setting in settings)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _values(config: Any, setting: str) -> list[str]:
    """Return a setting with each of its values."""
    key, _, text = setting.partition("=")
    is_list = isinstance(getattr(config, key.replace("-", "_"), None), tuple)
    values = text.split("/" if is_list else ",")
    if len(values) > 1 and not all(values):
        raise UsageError(f"--set: {setting!r} has an empty value")
    if len(set(values)) < len(values):
        raise UsageError(f"--set: {setting!r} names a value twice")
    return [f"{key}={value}" for value in values]
