"""A grid's runs as the reference of another grid: `--baseline`."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from reproduce.gather import collect, references
from reproduce.gather.baseline import with_baseline
from reproduce.judge.zero import zero_of
from reproduce.plan import make
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan
from reproduce.plan.unlearned import read_zeros
from tests.messages import refused
from tests.reproduce.conftest import TASK, ReadFrom, Say, record_run, reseal, saved, scored

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 25_000
EQUAL, BROKEN = (-150.0, -155.0, -145.0), (-900.0, -905.0, -895.0)


@pytest.fixture(autouse=True)
def _no_stored_source(tmp_path: Path, read_sources_from: ReadFrom) -> None:
    """Stored curves, whose tables take seconds, are not read; what is lent is no other test's."""
    folder = tmp_path / "references"
    folder.mkdir()
    for name in ("comparable.csv", "sources.csv"):
        shutil.copy(references.REFERENCES / name, folder)
    read_sources_from(folder)


def grid(runs_dir: Path, agent: str = "sac", **asked: Any) -> Plan:
    """Three seeds of Pendulum; their runs end between two evaluations."""
    size: dict[str, Any] = {"tasks": [TASK], "env_steps": STEPS, "seeds": [1, 2, 3]}
    asked = size | {"runs_dir": runs_dir, "device": "cpu"} | asked
    asked["settings"] = ["evaluation_interval=10000", *asked.get("settings", ())]
    return make_plan(agent, "classic", **asked)


def run(plan: Plan, scores: tuple[float, ...] = EQUAL) -> Plan:
    """Record a plan and its runs, which measured scores at their ends, and others before."""
    saved(plan)
    for seed, score in enumerate(scores, 1):
        record_run(plan, TASK, seed, {10_000: -1_000.0, 20_000: -800.0, STEPS: score})
    return plan


@pytest.mark.parametrize(("scores", "verdict"), [(EQUAL, "reproduced"), (BROKEN, "below")])
def test_a_baselines_runs_judge_like_a_stored_source(
    scores: tuple[float, ...], verdict: str, tmp_path: Path, say: Say
) -> None:
    """An equal grid is reproduced, a broken one below; `report` knows it from `plan.json`."""
    run(grid(tmp_path, settings=["gamma=0.9"]))
    ours = grid(tmp_path, "sac_alf", baseline="sac")
    assert with_baseline(ours).preset.judged_by == "sac (baseline)"
    run(ours, scores)
    status, out, err = say(["report", "sac_alf", "classic", "--runs-dir", str(tmp_path)])
    assert (status, err) == (int(verdict == "below"), "")
    said = json.loads((ours.directory / "report.json").read_text())
    assert said["judged_by"] == "sac (baseline)"
    assert "sac-classic/tuned" in said["sources"]["sac (baseline)"]["title"]
    assert said["departures"][0] == "gamma = 0.99 (0.9 in the baseline)"
    assert said["departures"][1].startswith("settings of one agent alone: ")
    assert verdict in out
    assert "sac (baseline)" in (ours.directory / "index.html").read_text()


def test_a_report_without_references_names_the_command_that_judges(
    tmp_path: Path, say: Say
) -> None:
    """By the runs of an agent of one's choice."""
    run(grid(tmp_path, "sac_alf"))
    status, out, _ = say(["report", "sac_alf", "classic", "--runs-dir", str(tmp_path)])
    assert status == 0
    command = out.partition("Judge it by the runs of AGENT:\n  ")[2].partition("\n")[0]
    assert re.match(r"(\.venv/bin/)?python -m reproduce sac_alf classic ", command)
    assert " --baseline AGENT " in command


def test_a_baselines_score_is_that_of_its_own_report(tmp_path: Path) -> None:
    """Also of runs that end between two evaluations, and of ones that go on to a later step."""
    theirs = run(grid(tmp_path))
    for steps in (20_000, STEPS):
        plan = with_baseline(grid(tmp_path, "sac_alf", baseline="sac", env_steps=steps))
        found = scored(plan.agent, plan.preset.judged_by, TASK, steps, plan.rule)
        folders = [theirs.directory / TASK / f"seed-{seed}" for seed in (1, 2, 3)]
        assert found.scores == tuple(collect.score(each, plan.rule, steps) for each in folders)


def test_a_baseline_that_learned_before_our_first_update_is_no_zero(tmp_path: Path) -> None:
    """Its evaluation at 10,000 steps is a learned one; our untrained policy is the scale's."""
    run(grid(tmp_path))
    plan = with_baseline(grid(tmp_path, "sac_alf", baseline="sac"))
    zero = zero_of(plan.agent, plan.preset.judged_by, TASK, "", plan.rule, 15_000)
    assert zero == read_zeros()[TASK, ""]


def test_a_baseline_may_be_evaluated_less_often_than_asked(tmp_path: Path) -> None:
    """An unroll longer than the interval skips evaluations; those that were made judge."""
    theirs = saved(grid(tmp_path, env_steps=60_000))
    for seed, score in enumerate(EQUAL, 1):
        record_run(theirs, TASK, seed, {20_000: -800.0, 40_000: -700.0, 60_000: score})
    plan = with_baseline(grid(tmp_path, "sac_alf", baseline="sac", env_steps=60_000))
    found = scored(plan.agent, plan.preset.judged_by, TASK, 60_000, plan.rule)
    assert found.scores == EQUAL


def test_a_published_grid_is_a_baseline_without_another(tmp_path: Path, published: Path) -> None:
    """One's own grid comes first; a folder names any grid, also one's own before a change."""
    plan = grid(tmp_path / "runs" / "gamma=0.9", "sac_alf", baseline="sac")
    for root, scores in ((published, EQUAL), (tmp_path / "runs", BROKEN)):
        theirs = run(grid(root), scores)
        with_baseline(plan)
        assert references.LENT["sac_alf", "sac (baseline)"][0].path == str(theirs.directory)
        assert scored("sac_alf", "sac (baseline)", TASK, STEPS, plan.rule).mean == scores[0]
    for folder in (theirs.directory, tmp_path / "runs"):
        plan = with_baseline(grid(tmp_path / "after", baseline=os.path.relpath(folder)))
        assert plan.baseline == str(folder)  # `report` may be asked elsewhere
        assert plan.preset.judged_by == "sac (baseline)"
        assert plan.departures == ("evaluation_interval = 10000, set by --set",)


def test_what_cannot_judge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line names what is wrong and the way on; nothing is lent."""
    monkeypatch.setattr(make, "_python", lambda: "python")

    def refuse(case: str, plan: Plan) -> None:
        with refused(case):
            with_baseline(plan)

    refuse("unknown", grid(tmp_path, baseline="scc"))
    refuse("untrained", grid(tmp_path, "sac_alf", baseline="sac"))
    refuse("other actions", grid(tmp_path, baseline="sac_discrete"))
    theirs = run(grid(tmp_path))
    refuse("itself", grid(tmp_path, baseline=str(theirs.directory)))
    asked: dict[str, Any] = {"agent": "sac_alf", "baseline": "sac"}
    refuse("shorter", grid(tmp_path, **asked, env_steps=30_000))
    refuse("measured otherwise", grid(tmp_path, **asked, settings=["evaluation_episodes=3"]))
    refuse("another task", grid(tmp_path, **asked, tasks=["MountainCarContinuous-v0"]))
    reseal(theirs.directory / TASK / "seed-2", status="diverged")
    refuse("diverged", grid(tmp_path, **asked))
    (theirs.directory / TASK / "seed-2" / "run.json").unlink()
    refuse("unfinished", grid(tmp_path, **asked))
    assert not references.LENT
