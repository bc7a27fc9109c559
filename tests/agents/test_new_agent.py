"""A new agent is one file, as CONTRIBUTING.md says: its name is the file's, everywhere."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
KNOWN = """
import runpy, sys
from reproduce.__main__ import main
from suite.base.errors import UsageError
assert main(["my_a2c", "classic", "--dry-run"]) == 0
with open("x.csv", "w") as curves:
    print("task,seed,env_steps,mean_return\\nCartPole-v1,1,100000,500", file=curves)
try:
    main(["judge", "my_a2c", "x.csv", "--like=sb3_control"])
except UsageError as error:
    print(error)
sys.argv[1:] = ["--like=sb3_control", "--env-steps=320", "--out=alone"]
try:
    runpy.run_module("agents.my_a2c", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert end.code == 0
import numpy as np
import agents
policy = agents.load_policy("alone/seed-1")
print(policy(np.zeros((2, 4), dtype=np.float32)).shape)
print([name for name in sys.modules if name.startswith("agents.")])
sys.exit(main(["list"]))
"""
"""Plans a grid, trains, loads the policy and lists all agents."""


def python(tree: Path, *words: str) -> str:
    """Run Python in a checkout; return what it printed."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def record_of(run: Path) -> dict[str, Any]:
    """Return a run's record, which has its agent's new name wherever it has one."""
    record = read(run / "run.json")
    assert (record["agent"], record["status"]) == ("my_a2c", "finished")
    sources = [path for path in record["sources"] if path.startswith("agents/")]
    assert sources == ["agents/__init__.py", "agents/my_a2c.py"]
    assert record["command"].split("--")[0].endswith("-m agents.my_a2c ")
    assert read(run / "policy.json")["agent"] == "my_a2c"
    return record


def test_a_copy_of_an_agents_file_is_an_agent_and_may_have_sources_of_its_own(
    tmp_path: Path,
) -> None:
    """Recorded, saved, loaded and listed by its file's name; its sources as CONTRIBUTING shows."""
    for name in ("agents", "reproduce", "suite"):  # with what is compiled already
        shutil.copytree(ROOT / name, tmp_path / name)
    references = tmp_path / "results" / "references"
    references.mkdir(parents=True)
    for path in (ROOT / "results" / "references").iterdir():
        (references / path.name).symlink_to(path)
    file = Path(shutil.copyfile(ROOT / "agents" / "a2c.py", tmp_path / "agents" / "my_a2c.py"))
    lines = python(tmp_path, "-c", KNOWN).splitlines()
    record_of(tmp_path / "alone" / "seed-1")
    assert any("give a2c as agent, --like sb3_control" in line for line in lines)
    modules, *listed = lines[lines.index("(2,)") + 1 :]  # of the policy's answer for two
    assert modules == "['agents.my_a2c']"
    sources = listed[listed.index("agent my_a2c") + 1]
    assert sources == "  classic: sb3_control (not judged), rl_zoo (not judged)"

    page = (ROOT / "CONTRIBUTING.md").read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (place,) = re.findall(r"`(results/references/\w+/my_a2c\.toml)`", page)
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(textwrap.dedent(toml))
    before, after = 'Presets("a2c", Config)', 'Presets("my_a2c", Config)'
    assert f"PRESETS = {after}" in page
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))
    words = ["--env-steps=320", "--out=own"]
    python(tmp_path, "-m", "agents.my_a2c", "--like=my_lab", *words)
    record = record_of(tmp_path / "own" / "seed-1")
    assert (record["suite"], record["source"]) == ("classic", "my_lab")
    assert record["config"]["learning_rate"] == 1e-3
    assert place in record["sources"]
    grid = Path("results", "published", "a2c-classic", "sb3_control")
    shutil.copytree(ROOT / grid, tmp_path / grid)
    words = ["classic", "--baseline=a2c", "--dry-run"]
    assert "a2c (baseline)" in python(tmp_path, "-m", "reproduce", "my_a2c", *words)
    for name in ("tests", "docs", "results/simulators", "pyproject.toml", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    python(tmp_path, "-m", "pytest", "--benchmark-disable", "--collect-only", "-q", "tests")
