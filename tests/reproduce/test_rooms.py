"""The rooms of `reproduce/` and `suite/`, and their order."""

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import reproduce
import suite
from reproduce import ROOT

HARNESS, SUITE = ROOT / "reproduce", ROOT / "suite"
AGENTS = sorted((ROOT / "agents").glob("*.py"))
ROOMS, SHARED = (
    re.findall(r"^([a-z]+)  +\S", package.__doc__ or "", re.MULTILINE)
    for package in (reproduce, suite)
)


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("package", "rooms"), [(HARNESS, ROOMS), (SUITE, SHARED)])
def test_every_room_stands_in_the_order_and_has_a_text(package: Path, rooms: list[str]) -> None:
    """The list of the package's `__init__.py` names every room, and each says what it is for."""
    folders = [path.parent for path in package.glob("*/__init__.py")]
    assert sorted(rooms) == sorted(folder.name for folder in folders)
    assert all(ast.get_docstring(ast.parse((f / "__init__.py").read_text())) for f in folders)


@pytest.mark.parametrize(
    ("package", "room"), [*product(["reproduce"], ROOMS), *product(["suite"], SHARED)]
)
def test_no_room_imports_one_after_it(package: str, room: str) -> None:
    """Nor what is built of rooms: all else in the suite, and the pipeline, built of the stages."""
    if package == "suite":
        rooms, forbidden = SHARED, {path.stem for path in SUITE.glob("*.py")}
    else:
        is_stage = room in ROOMS[: ROOMS.index("speed")]
        rooms, forbidden = ROOMS, {"__main__", *(["pipeline"] if is_stage else [])}
    forbidden.update(rooms[rooms.index(room) + 1 :])
    for path in (ROOT / package / room).rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] != package or parts[1] not in forbidden, f"{path} imports {name}"


@pytest.mark.parametrize("package", ["suite", "agents"])
def test_what_is_below_knows_nothing_of_the_harness(package: str) -> None:
    """`suite` and `agents` import nothing of `reproduce`."""
    for path in (ROOT / package).rglob("*.py"):
        names = list(imports(path))
        assert not any(name.split(".")[0] == "reproduce" for name in names), path
        if package == "agents" and path.name != "__init__.py":
            allowed = {"agents.sac"} if path.stem == "sac_alf" else set()
            modules = {".".join(name.split(".")[:2]) for name in names}
            assert {name for name in modules if name.split(".")[0] == "agents"} <= allowed, path
        if package == "suite":
            assert not any(name.split(".")[0] == "agents" for name in names), path


def test_peers_stand_apart() -> None:
    """What peers' own Pythons run imports nothing of ours, and nothing of ours imports it."""
    glue = sorted((HARNESS / "controls" / "peers").glob("*.py"))
    assert "run.py" in [path.name for path in glue]
    for path in glue:
        of_project = {"reproduce", "suite", "agents", "tests"}
        assert not of_project & {name.split(".")[0] for name in imports(path)}, path
    for path in (*HARNESS.rglob("*.py"), *SUITE.rglob("*.py"), *AGENTS):
        peers = "reproduce.controls.peers"
        assert not any(name.startswith(peers) for name in imports(path)), path
