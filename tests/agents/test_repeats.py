"""What two agents share is repeated in the open, and cannot drift apart."""

import ast
import re
from pathlib import Path

import pytest

import agents

FOLDER = Path(agents.__file__).parent


def repeats() -> list[tuple[str, str, str]]:
    """Return (file, name, other file) for every definition that says `# Same in: other.py`."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if other := re.search(r"# Same in: (\w+\.py)", line):
                following = " ".join(lines[i + 1 : i + 4])  # a decorator may stand between
                name = re.search(r"\b(?:def|class) (\w+)", following)
                assert name, f"{path.name}:{i + 1} marks no definition"
                found.append((path.name, name[1], other[1]))
    return found


@pytest.mark.parametrize(("file", "name", "other"), repeats())
def test_what_says_that_it_is_the_same_is_the_same(file: str, name: str, other: str) -> None:
    """Equal syntax trees: comments and line breaks may differ, nothing else."""
    assert definition(file, name) == definition(other, name)


def test_repeats_are_found() -> None:
    """The comparison above has something to compare, in impala.py at least."""
    assert ("impala.py", "load", "a2c.py") in repeats()


def definition(file: str, name: str) -> str:
    """Return the function or class of that name in an agent's file, as a tree."""
    tree = ast.parse((FOLDER / file).read_text())
    (found,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    return ast.dump(found)
