"""An agent's file is short enough to be read as a reference, and begins with what it is about."""

import ast
from pathlib import Path

import pytest

import agents

LINES = {"sac": 480, "a2c": 540, "acer": 580, "acer_continuous": 710, "impala": 793}
"""At most so many lines, in IMPALA's file with recurrence; other agents have 520."""
FIRST_EQUATION = {"sac_discrete": 175}
"""The line by which its mathematics begins; 160 elsewhere. Discrete SAC has settings for two forms,
and for vectors and frames."""


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agent_is_short(agent: str) -> None:
    """Who adds a feature that makes it longer gives the feature a home in `suite/`, or a file."""
    assert len(lines_of(agent)) <= LINES.get(agent, 520)


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agents_mathematics_begins_early(agent: str) -> None:
    """The first function behind the settings; before it stand docstring, imports and settings."""
    tree = ast.parse("\n".join(lines_of(agent)))
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert ast.get_docstring(first)
    assert first.lineno <= FIRST_EQUATION.get(agent, 160)


def lines_of(agent: str) -> list[str]:
    return Path(agents.__file__).with_name(f"{agent}.py").read_text().splitlines()
