"""A verdict is about today's code: runs that other code made never pass for its own."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reproduce import ROOT, pipeline
from reproduce.commands.published import find_plans
from reproduce.plan.grid import Plan
from reproduce.plan.make import load_plan, make_plan, save_plan
from reproduce.plan.status import refuse_mixture
from suite.base import code
from tests.messages import refused
from tests.reproduce.conftest import Say, record_run, recorded, reseal, statuses

REACHER = "Reacher-v4"
STEPS = 30_000
COMMIT = "0123456789abcdef"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the agents and of `suite`, with nothing changed."""
    root = tmp_path / "project"
    for folder in ("agents", "suite"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "_root", lambda: root)
    monkeypatch.setattr(code, "revision", lambda: {"commit": COMMIT, "dirty": False})
    monkeypatch.chdir(tmp_path)
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *words: str) -> None:
    """Call git for the checkout."""
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)


def commit(root: Path) -> None:
    """Commit everything in the checkout."""
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Change")
    code._uncommitted.cache_clear()


def change(root: Path, pattern: str, new: str) -> None:
    """Change SAC's file where a pattern is first found."""
    file = root / "agents" / "sac.py"
    text = file.read_text()
    changed = re.sub(pattern, new, text, count=1, flags=re.MULTILINE)
    assert changed != text
    file.write_text(changed)


def set_number(root: Path, line: str) -> None:
    """Write another line in place of SAC's number."""
    change(root, r"^BEHAVIOUR = .*$", line)


def flip_sign(root: Path) -> None:
    """Let SAC's critics flee from their targets."""
    change(root, r"return 0\.5 \* \(q_values", "return -0.5 * (q_values")


def restore(project: Path) -> None:
    """Undo all changes of SAC's file."""
    shutil.copyfile(ROOT / "agents" / "sac.py", project / "agents" / "sac.py")


def smoke(**options: Any) -> Plan:
    """SAC's smoke grid on one task."""
    options = {"tasks": [REACHER], "source": "paper", "budget": "smoke", "device": "cpu"} | options
    return make_plan("sac", "mujoco-small", **options)


def train(plan: Plan) -> Plan:
    """Write finished runs that are above their reference."""
    for seed in (1, 2, 3):
        record_run(plan, REACHER, seed, {STEPS: -3.6 - 0.1 * seed})
    return plan


def test_an_uncommitted_change_leaves_runs_out_and_is_named(project: Path, say: Say) -> None:
    """So is another number; other code of the same number, once committed, keeps every run."""
    folder = train(smoke()).directory / REACHER
    assert statuses(smoke()) == ["finished"] * 3
    flip_sign(project)
    assert statuses(smoke()) == ["left out"] * 3
    words = f"sac mujoco-small --like paper --tasks {REACHER} --budget smoke --device cpu --dry-run"
    status, said, _ = say(words.split())
    assert status == 0
    made = "3 runs made by commit 0123456; agents/sac.py has uncommitted changes (left out)"
    assert f"{REACHER}: {made}" in said
    restore(project)
    assert statuses(smoke()) == ["finished"] * 3
    (project / "agents" / "a2c.py").write_text("# not SAC's code\n")
    assert statuses(smoke()) == ["finished"] * 3
    (project / "suite" / "base" / "noise.py").write_text("# rewritten\n")
    commit(project)
    assert statuses(smoke()) == ["finished"] * 3
    shutil.rmtree(folder / "seed-2")
    shutil.copytree(folder / "seed-1", folder / "seed-2")
    (_, damaged, _) = smoke().runs()
    assert (damaged.status, damaged.error) == ("damaged", "says seed 1, its folder says 2")
    set_number(project, "BEHAVIOUR = 7")
    commit(project)
    (run, *_) = smoke().runs()
    number = json.loads((folder / "seed-1" / "run.json").read_text())["behaviour"]
    said = f"of behaviour {number}, today's is 7"
    assert (run.status, run.remark.split("; ")[1]) == ("left out", said)


def test_runs_of_changed_code_do_not_count_once_mended(project: Path) -> None:
    """Code that is not committed gives its runs no number, whatever its file says."""
    flip_sign(project)
    folder = train(smoke()).directory / REACHER
    record = json.loads((folder / "seed-1" / "run.json").read_text())
    assert record["behaviour"] is None
    assert statuses(smoke()) == ["finished"] * 3  # that very code's own
    restore(project)
    assert statuses(smoke()) == ["left out"] * 3
    assert smoke().runs()[0].remark.endswith("; agents/sac.py has changed since")


def test_an_agent_without_a_number_counts_its_own_until_it_changes(project: Path) -> None:
    """A developer's agent needs none, committed or not."""
    set_number(project, "")
    commit(project)
    train(smoke())
    assert statuses(smoke()) == ["finished"] * 3
    (project / "suite" / "base" / "noise.py").write_text("# rewritten\n")
    assert statuses(smoke()) == ["left out"] * 3
    commit(project)
    assert statuses(smoke()) == ["left out"] * 3
    with refused():
        refuse_mixture(smoke())


def test_a_published_grid_is_drawn_of_its_own_runs(project: Path, published: Path) -> None:
    """Its page tells of its runs, marked if the agent has another number since, changed or not."""
    plan = train(smoke(runs_dir=published))
    save_plan(plan)
    flip_sign(project)
    (found,) = find_plans(published)
    (row,) = pipeline.gather(found)["verdicts"].to_dict("records")
    assert (row["verdict"], row["older_runs"]) == ("above", "")
    restore(project)
    set_number(project, "BEHAVIOUR = 7")
    commit(project)
    (found,) = find_plans(published)
    (row,) = pipeline.gather(found)["verdicts"].to_dict("records")
    assert (row["verdict"], row["older_runs"]) == ("above", "counted")
    assert "today's is 7 (counted)" in row["note"]
    again = load_plan(plan.agent, plan.suite, plan.source, published)  # as `report` does
    assert statuses(again) == statuses(found) == ["finished"] * 3
    shutil.rmtree(plan.directory / REACHER / "seed-1")
    record_run(smoke(runs_dir=published), REACHER, 1, {STEPS: -5.0})
    (found,) = find_plans(published)
    assert statuses(found) == ["finished", "left out", "left out"]  # numbers are never mixed


def test_ones_own_older_runs_are_neither_judged_nor_trained_over(project: Path) -> None:
    """They have no score, a training beside them is refused, and another task has none of them."""
    for seed in (1, 2):
        record_run(smoke(), REACHER, seed, {STEPS: -5.0})
    flip_sign(project)
    plan = smoke()
    assert statuses(plan) == ["left out", "left out", "planned"]
    with refused():
        refuse_mixture(plan)
    alone, both = smoke(tasks=["Swimmer-v4"]), smoke(tasks=["Swimmer-v4", REACHER])
    refuse_mixture(alone)
    assert statuses(alone) == ["planned"] * 3
    with refused():
        refuse_mixture(both)
    tables = pipeline.gather(plan)
    assert recorded(plan)["scores"].empty
    assert tables["curves"].empty
    (row,) = tables["verdicts"].to_dict("records")
    assert (row["verdict"], row["older_runs"]) == ("inconclusive", "left out")
    assert "2 runs made by commit 0123456; agents/sac.py has uncommitted" in row["note"]
    assert pipeline.exit_status(tables["verdicts"], tables["suite"], tables["runs"].status) == 2


def test_a_setting_that_a_record_lacks_has_its_default() -> None:
    """A grid that sets it otherwise does not take the run; a setting unknown today is no match."""
    folder = record_run(smoke(), REACHER, 1, {STEPS: -5.6})
    config = json.loads((folder / "run.json").read_text())["config"]
    del config["log_std_min"], config["hidden_sizes"]
    reseal(folder, config=config)
    assert statuses(smoke())[0] == "finished"
    with refused():
        smoke(settings=["log_std_min=-3.0"]).runs()
    reseal(folder, config=config | {"gone": 1})
    with refused():
        smoke().runs()
