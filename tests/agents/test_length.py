"""An agent's file is short enough to be read as a reference, and begins with what it is about."""

import ast
from pathlib import Path

import pytest

import agents
import suite

LINES = {"sac": 410, "sac_value": 400, "sac_discrete": 440, "sac_alf": 720}
LINES |= {"a2c": 390, "ppo": 430, "acer": 520, "acer_continuous": 590, "impala": 570}
"""At most so many lines: ALF's has three kinds of actions; three agents have recurrence."""
FIRST_EQUATION = 130
"""The line by which its mathematics begins."""
FILE_LINES, FUNCTION_LINES, LOOP_LINES = 500, 60, 80
"""At most so many lines of a file of `suite`, of a function, and of `train`, read as a whole."""


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agent_is_short(agent: str) -> None:
    """Who adds a feature that makes it longer gives the feature a home in `suite/`, or a file."""
    assert len(lines_of(agent)) <= LINES[agent]


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agents_mathematics_begins_early(agent: str) -> None:
    """The first function of the file; before it stand docstring and imports at least."""
    tree = ast.parse("\n".join(lines_of(agent)))
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert ast.get_docstring(first)
    assert first.lineno <= FIRST_EQUATION


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agents_functions_are_short(agent: str) -> None:
    """Methods and functions inside functions, too; decorators do not count."""
    tree = ast.parse("\n".join(lines_of(agent)))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lengths = [(each.name, (each.end_lineno or 0) - each.lineno + 1) for each in functions]
    bounds = {"train": LOOP_LINES}
    too_long = [each for each in lengths if each[1] > bounds.get(each[0], FUNCTION_LINES)]
    assert functions
    assert not too_long


def lines_of(agent: str) -> list[str]:
    return Path(agents.__file__).with_name(f"{agent}.py").read_text().splitlines()


def test_files_and_functions_of_suite_are_short() -> None:
    """500 lines and 60: what grows beyond is divided."""
    files = {path: path.read_text() for path in Path(suite.__file__).parent.rglob("*.py")}
    long = [path.name for path, text in files.items() if len(text.splitlines()) > FILE_LINES]
    nodes = [node for text in files.values() for node in ast.walk(ast.parse(text))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    lengths = [(each.name, (each.end_lineno or 0) - each.lineno + 1) for each in functions]
    assert files
    assert not long
    assert not [each for each in lengths if each[1] > FUNCTION_LINES]
