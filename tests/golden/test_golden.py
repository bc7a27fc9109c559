"""An agent's bytes change with its number alone: files, and the values of all weights."""

import importlib
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from suite.base import code
from suite.settings.older import WITHOUT_EFFECT
from tests.golden import runner, trees
from tests.golden.configurations import RUNS, configure

pytestmark = pytest.mark.usefixtures("unchecked")


FIRST = {agent: next(name for name, run in runs.items() if run.cut) for agent, runs in RUNS.items()}
"""By agent: the run that `make test` makes; `make check` makes all."""


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        pytest.param(agent, name, marks=[] if name == FIRST[agent] else pytest.mark.long)
        for agent, runs in RUNS.items()
        for name in runs
    ],
)
def test_a_run_has_the_bytes_of_its_agents_number(agent: str, name: str) -> None:
    """Every short run has the files and weights that it had; its seeds have different updates."""
    trees.check_stored(agent)
    stored = trees.checksums(agent).get(name)
    if stored is None:
        pytest.skip(f"{trees.MISSING}: python -m tests.golden --agent {agent} --update")
    found = runner.all_checksums(agent, trees.stored_runs(agent, [name]))
    updates = [each for file, each in found[name].items() if file.endswith("/updates.csv")]
    assert len({*updates}) == len(updates) > 0
    lines = trees.differences({name: stored}, found)
    head = f"{agent} gives other bytes than behaviour {code.behaviour(agent)} in"
    wanted = f"if this is wanted, raise BEHAVIOUR: python -m tests.golden --agent {agent} --update"
    assert not lines, "\n".join([head, *lines, wanted])


@pytest.mark.parametrize("agent", RUNS)
def test_the_runs_use_every_choice(agent: str) -> None:
    """A new word or a new switch needs a run that uses it."""
    module = importlib.import_module(f"agents.{agent}")
    configs = [configure(module, run) for run in RUNS[agent].values()]
    assert any(run.cut for run in RUNS[agent].values())
    assert any(len(config.seeds) > 1 for config in configs)
    hints = get_type_hints(module.Config)
    for name in WITHOUT_EFFECT:  # tests/suite/test_session.py
        del hints[name]
    hints.pop("cuda_graphs", None)  # tests/agents/test_devices.py
    del hints["tf32"]  # tests/suite/base/test_hardware.py
    if agent == "acer_continuous":
        del hints["bfloat16"]  # no task of its has frames
    if agent != "ppo" and "protocol" in hints:
        hints["protocol"] = Literal["noframeskip", "sticky"]  # a network alone sees their size
    for name, hint in hints.items():
        used = {_choice(getattr(config, name), hint) for config in configs}
        assert set(_choices(hint)) <= used, name


def _choices(hint: Any) -> list[Any]:
    """Return the words of a setting's type, yes and no, and whether it may be None."""
    if hint is bool:
        return [True, False]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_choices(part) for part in get_args(hint) if part is not type(None)]
        return [None, *(choice for part in parts for choice in part or ["a value"])]
    return []


def _choice(value: Any, hint: Any) -> Any:
    """Return what `_choices` calls a value."""
    choices = _choices(hint)
    return value if value in choices or not choices else "a value"
