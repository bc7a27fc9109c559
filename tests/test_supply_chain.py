"""Whose code runs where this project is tested and released, and what it may do."""

import re
import subprocess

import pytest

from reproduce import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_pinned_actions_and_may_only_read(path: object) -> None:
    """A tag can be moved to other code, a commit cannot; its version stands beside it."""
    text = (ROOT / str(path)).read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert "\npermissions:\n  contents: read\n" in text
    writes = re.findall(r"(\S+): write", text)
    may_write = {"release.yml": ["id-token"], "site.yml": ["pages", "id-token"]}
    assert writes == may_write.get((ROOT / str(path)).name, [])


def test_another_index_gives_torch_and_nothing_else() -> None:
    """With an extra index, whoever has a higher version of any package there would be installed."""
    for path in (*WORKFLOWS, ROOT / "Makefile"):
        assert "extra-index" not in path.read_text().lower().replace("_", "-")
    command = ["make", "--dry-run", "--always-make", "venv", "TORCH_INDEX=https://elsewhere"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line for line in said.splitlines() if " install " in line]
    assert [line for line in lines if "elsewhere" in line] == lines[:1]
    assert re.search(r"--no-deps --index-url https://elsewhere torch==\S+$", lines[0])
