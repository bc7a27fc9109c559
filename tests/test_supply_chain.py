"""Whose code runs where this project is tested and released, and what it may do."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reproduce import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXTRAS = {"base": (), "dev": ("dev",), "tracking": ("tracking",)}
"""Extras of the project by the file in requirements/ that pins them."""
PINNED = re.compile(r"([a-z0-9-]+)==(\S+)( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})+")


@cache
def pins(name: str) -> dict[str, str]:
    """The versions that a file in requirements/ pins, by package; fails on a pin without a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", "")
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    lines = [line for line in lines if line and not line.startswith("#")]
    matches = [PINNED.fullmatch(line) for line in lines]
    assert None not in matches, lines[matches.index(None)]
    versions = {match[1]: match[2] for match in matches if match}
    assert len(versions) == len(lines), "a package is pinned twice"
    return versions


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def asked(extra: str | None) -> Iterator[Requirement]:
    """Yield what the project, or one of its extras, asks for; extras of itself are followed."""
    project = pyproject()["project"]
    for line in project["optional-dependencies"][extra] if extra else project["dependencies"]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            for named in sorted(requirement.extras):
                yield from asked(named)
        else:
            yield requirement


def installs(*words: str) -> list[str]:
    """Return the commands that install something when `make` is given these words."""
    command = ["make", "--dry-run", "--always-make", *words]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if " install " in line]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_and_installs_what_is_pinned_and_may_only_read(path: Path) -> None:
    """A tag can be moved to other code, a commit cannot; its version stands beside it."""
    text = path.read_text()
    for name, job in yaml.safe_load(text)["jobs"].items():  # `a: b` in a command is a mapping
        assert all(step.keys() & {"run", "uses"} for step in job["steps"]), name
    for line in re.findall(r".*pip install .*", text):  # torch and our wheel bring no package
        assert "--require-hashes" in line or "--no-deps" in line, line
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert "\npermissions:\n  contents: read\n" in text
    writes = re.findall(r"(\S+): write", text)
    may_write = {
        "ci.yml": ["contents"],  # of the branch with the chart of speeds
        "release.yml": ["id-token"],
        "site.yml": ["pages", "id-token"],
    }
    assert writes == may_write.get(path.name, [])


def test_another_index_gives_torch_and_nothing_else() -> None:
    """With an extra index, whoever has a higher version of any package there would be installed."""
    for path in (*WORKFLOWS, ROOT / "Makefile"):
        assert "extra-index" not in path.read_text().lower().replace("_", "-")
    lines = installs("venv", "TORCH_INDEX=https://elsewhere")
    assert [line for line in lines if "elsewhere" in line] == lines[:1]
    torch = "--no-deps --index-url https://elsewhere --requirement requirements/torch.txt"
    assert lines[0].endswith(torch)
    pinned = re.fullmatch(r"#.*\ntorch==(\S+)\n", (ROOT / "requirements/torch.txt").read_text())
    assert pinned
    counted = json.loads((ROOT / "results/throughput/exact.json").read_text())["torch"]
    assert pinned[1] == counted, (
        "python -m reproduce throughput --update"
    )  # else nothing is compared


@pytest.mark.parametrize("target", ["venv", ".venv/.tracking", "peers"])
def test_what_is_installed_was_pinned_by_its_hash(target: str) -> None:
    """But for torch and the project itself, which both bring no other package."""
    lines = installs(target)
    assert any("--require-hashes" in line for line in lines)
    for line in lines:
        assert re.search(
            r"--require-hashes .*--requirement requirements/\w+\.txt$"
            r"|--no-deps +--requirement requirements/torch\.txt$"
            r"|--no-deps --no-build-isolation --editable \.$",
            line,
        ), line


@pytest.mark.parametrize("name", EXTRAS)
def test_every_dependency_is_pinned_by_hash(name: str) -> None:
    """A changed pyproject.toml needs `make lock`; another file may pin no other version."""
    peers = pyproject()["dependency-groups"]["peers"]
    assert {canonicalize_name(Requirement(line).name) for line in peers} <= pins("peers").keys()
    pinned = pins(name)
    for extra in (None, *EXTRAS[name]):
        for requirement in asked(extra):
            if requirement.name != "torch":
                version = pinned.get(canonicalize_name(requirement.name))
                assert version, f"{requirement} is not pinned: make lock"
                assert requirement.specifier.contains(version), f"{requirement}, not {version}"
    assert pinned.items() <= pins("dev").items() or name == "tracking"
    assert ("wandb" in pinned, "tensorboard" in pinned) == (name == "tracking",) * 2
    assert not {p for p in pinned.keys() & pins("dev") if pinned[p] != pins("dev")[p]}


@pytest.mark.parametrize("name", [*EXTRAS, "peers"])
def test_pins_bring_no_build_of_torch(name: str) -> None:
    """It comes alone, from an index of choice: that of CI has no packages of CUDA."""
    brought = {p for p in pins(name) if re.match(r"torch$|triton|nvidia-|cuda-", p)}
    assert brought <= {"nvidia-ml-py"}  # which reads a GPU's state
