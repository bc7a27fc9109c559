"""An agent's file is a reference: short, mathematics early; what it repeats cannot drift apart."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import agents
from tests.agents.trainings import module_of

FOLDER = Path(agents.__file__).parent
LINES = {"sac": 390, "sac_value": 350, "sac_discrete": 445, "sac_alf": 700}
LINES |= {"a2c": 345, "ppo": 405, "acer": 510, "acer_continuous": 600, "impala": 535}
"""At most so many lines: ALF's has three kinds of actions; three agents have recurrence."""
FIRST_EQUATION = 130
"""The line by which its mathematics begins."""
FILE_LINES, FUNCTION_LINES, LOOP_LINES = 500, 60, 80
"""At most so many lines of any other file, of a function, and of `train`, read as a whole."""
SOURCES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
MARK = re.compile(r"^# Same in: (\w+)\.py\n(?:@.*\n)?(?:def|class) (\w+)", re.MULTILINE)
REPEATS = [(agent, *found) for agent, text in SOURCES.items() for found in MARK.findall(text)]
"""Agent, other agent and name of every definition that says `# Same in: other.py`."""


def too_long(text: str, **bounds: int) -> list[str]:
    """Return functions and methods that are too long; decorators do not count."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    lengths = [(each.name, (each.end_lineno or 0) - each.lineno + 1) for each in nodes]
    return [name for name, length in lengths if length > bounds.get(name, FUNCTION_LINES)]


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agent_is_short_and_its_mathematics_begins_early(agent: str) -> None:
    """Who adds a feature that makes it longer gives the feature a home in `suite/`, or a file."""
    text = SOURCES[agent]
    assert agent in LINES, "give it a limit"
    assert len(text.splitlines()) <= LINES[agent]
    first = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    assert ast.get_docstring(first)
    assert first.lineno <= FIRST_EQUATION
    assert not too_long(text, train=LOOP_LINES)


@pytest.mark.parametrize("package", ["suite", "reproduce"])
def test_files_and_functions_are_short(package: str) -> None:
    """500 lines and 60: what grows beyond is divided."""
    files = {path: path.read_text() for path in (FOLDER.parent / package).rglob("*.py")}
    assert files
    assert not [path.name for path, text in files.items() if len(text.splitlines()) > FILE_LINES]
    assert not [name for text in files.values() for name in too_long(text)]


def test_what_says_that_it_is_the_same_is_the_same() -> None:
    """Equal syntax trees: comments and line breaks may differ, nothing else."""
    assert len(REPEATS) == sum(text.count("# Same in: ") for text in SOURCES.values()) > 0
    for agent, other, name in REPEATS:
        ours, theirs = (
            ast.dump(ast.parse(inspect.getsource(getattr(module_of(each), name))))
            for each in (agent, other)
        )
        assert ours == theirs, f"{name} of {agent} and {other}"
