"""What is published stays small, and its tables are those that records and references give."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reproduce import ROOT
from reproduce.commands import published as publishing
from reproduce.commands.published import find_plans, refresh
from reproduce.gather.tables import read_table
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan
from reproduce.plan.presets import PUBLISHED
from suite.base.files import read_json
from tests.messages import refused
from tests.reproduce.conftest import Say, planned, record_run, reseal, saved
from tests.runs import tree


def three_seeds(root: Path, *grid: str, **options: Any) -> Plan:
    """A published grid of three finished seeds per task, each with a policy."""
    standard = {"env_steps": 1000, "seeds": [1, 2, 3], "device": "cpu", "runs_dir": root}
    plan = saved(make_plan(*(grid or ("sac", "classic")), **(standard | options)))
    for run in plan.runs():
        folder = record_run(plan, run.task, run.seed, {1000: -100.0 * run.seed})
        (folder / "policy.safetensors").write_bytes(bytes(range(256)) * run.seed)
        (folder / "policy.json").write_text("{}")
        reseal(folder)
    return plan


def policies(plan: Plan) -> list[str]:
    """The runs that have one."""
    paths = sorted(plan.directory.glob("*/*/policy.safetensors"))
    return [str(path.parent.relative_to(plan.directory)) for path in paths]


@pytest.mark.usefixtures("undrawn")
def test_a_table_that_its_records_do_not_give_fails_the_check(
    published: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names table and command; rounding is no difference; an empty table is one."""
    monkeypatch.setattr(publishing, "PUBLISHED", published)
    plan = three_seeds(published, tasks=["Pendulum-v1"])
    path = plan.directory / "scores.csv"
    assert say(["published"])[0] == 0
    scores = pd.read_csv(path)
    for change, status in ((1.0 + 1e-9, 0), (1.0 + 1e-3, 1), (0.0, 1), (None, 1)):
        path.unlink()
        if change == 0.0:
            path.touch()
        elif change:
            scores.assign(score=scores["score"] * change).to_csv(path, index=False)
        wanted = f"out of date: {path}: run `make published`\n" if status else ""
        assert say(["published", "--check"]) == (status, "", wanted)
    path.mkdir()
    for words in (["published"], ["published", "--check"]):
        assert say(words) == (2, "", f"error: {path}: Is a directory\n")


def test_the_commands_of_a_published_grid_plan_all_of_it() -> None:
    """Its tasks, each with its steps and seeds, in the settings of its source."""
    for plan in find_plans(PUBLISHED):
        lines = read_json(plan.directory / "report.json")["command"].splitlines()
        found: dict[str, tuple[int, Sequence[int], str]] = {}
        for again in (planned(line.removeprefix("python -m reproduce ")) for line in lines):
            for task, steps in again.env_steps.items():
                found[task] = (steps, again.seeds, again.source)
        assert found == {
            task: (steps, plan.seeds[: plan.num_seeds[task]], plan.source)
            for task, steps in plan.env_steps.items()
        }


@pytest.mark.usefixtures("undrawn")
def test_one_seed_of_a_task_keeps_its_policy(published: Path) -> None:
    """The others say which they had, and nothing else may be gone; drawn again all is the same."""
    plan = three_seeds(published, tasks=["Pendulum-v1"])
    whole = tree(published)
    refresh(plan)
    drawn = tree(published)
    assert {Path(name).suffix for name in drawn} >= {".csv", ".html"}
    refresh(plan)
    assert tree(published) == drawn
    assert policies(plan) == ["Pendulum-v1/seed-1"]
    assert [run.status for run in plan.runs()] == ["finished"] * 3
    lost = {name for name in whole if not (published / name).exists()}
    assert {Path(name).name for name in lost} == {"policy.safetensors", "policy.json"}
    folder = plan.directory / "Pendulum-v1" / "seed-2"
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert said == "evaluations.csv: OK\ntiming.csv: OK\nrun.json: OK\n"
    policy = bytes(range(256)) * 2
    digest = hashlib.sha256(policy).hexdigest()
    assert f"# left out: {digest}  policy.safetensors\n" in (folder / "SHA256SUMS").read_text()
    (folder / "policy.safetensors").write_bytes(policy)
    assert [run.status for run in plan.runs()] == ["finished", "damaged", "finished"]
    folder = plan.directory / "Pendulum-v1" / "seed-3"
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text(f"# left out: {sums}")
    (folder / "evaluations.csv").unlink()
    assert [run.status for run in plan.runs()] == ["finished", "damaged", "damaged"]


@pytest.mark.usefixtures("undrawn")
def test_games_keep_one_policy_in_all_and_compressed_tables(published: Path) -> None:
    """They read as before, and a changed byte of a compressed table is damage."""
    tasks = ["Breakout-v5", "Pong-v5"]
    grid = ("a2c", "atari-7")
    plan = three_seeds(published, *grid, source="nnabla_rl", tasks=tasks)
    folder = plan.directory / "Breakout-v5" / "seed-1"
    before = {name: read_table(folder / name) for name in ("evaluations.csv", "timing.csv")}
    refresh(plan)
    assert policies(plan) == ["Breakout-v5/seed-1"]
    assert not list(plan.directory.glob("*/*/*.csv"))
    assert [run.status for run in plan.runs()] == ["finished"] * 6
    for name, table in before.items():
        pd.testing.assert_frame_equal(read_table(folder / name), table)
    scores = pd.read_csv(plan.directory / "scores.csv")["score"]
    assert scores.tolist() == [-100.0, -200.0, -300.0] * 2
    path = folder / "evaluations.csv.xz"
    content = bytearray(path.read_bytes())
    for place in (len(content) // 2, len(content) - 1):
        content[place] ^= 1
        path.write_bytes(content)
        assert next(run.status for run in plan.runs()) == "damaged"
        content[place] ^= 1
    path.write_bytes(content[:-1])
    assert next(run.status for run in plan.runs()) == "damaged"


def test_runs_without_a_plan_are_named(published: Path) -> None:
    """They would have no table, and nobody would see it."""
    plan = three_seeds(published)
    (plan.directory / "plan.json").unlink()
    with refused():
        find_plans(published)


def test_what_is_tracked_stays_under_fifty_megabytes() -> None:
    """A clone is quick. `git ls-files -z | xargs -0 du` counts blocks of 4 kB, and so does this."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    blocks = [-(-path.stat().st_size // 4096) for path in paths if path.is_file()]
    assert 4096 * sum(blocks) < 50_000_000
