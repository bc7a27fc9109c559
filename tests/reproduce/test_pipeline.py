"""From recorded runs to the verdict: known runs give known answers, and nothing bad is hidden."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reproduce import pipeline
from reproduce.gather.references import ReferenceScore
from reproduce.judge.zero import scale_of
from reproduce.pipeline import exit_status, gather
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, make_plan
from reproduce.plan.status import run_of
from reproduce.plan.unlearned import known_zero
from reproduce.report.tables import COLUMNS
from reproduce.run.lease import Leases
from tests.reproduce.conftest import (
    NEVER_BEGUN,
    TASK,
    Say,
    make_report,
    pendulum,
    record_run,
    reseal,
    saved,
    scored,
)
from tests.runs import tree

HOPPER, ANT, STEPS = "Hopper-v4", "Ant-v4", 1_000_000
REPORT = ("report", "sac", "mujoco", "--like", "paper", "--runs-dir")


def mujoco(runs_dir: Path, tasks: list[str], seeds: list[int] | None = None) -> Plan:
    """Runs of a million steps, three seeds unless told otherwise."""
    asked: dict[str, Any] = {"tasks": tasks, "seeds": seeds or [1, 2, 3], "env_steps": STEPS}
    return make_plan("sac", "mujoco", source="paper", device="cpu", runs_dir=runs_dir, **asked)


def reference_of(plan: Plan, task: str) -> ReferenceScore:
    """The reference that judges a task, which must exist."""
    return scored(plan.agent, plan.preset.judged_by, task, STEPS, plan.rule)


def around(score: float, seed: int) -> dict[int, float]:
    """Evaluations that give seeds 1, 2, 3 the scores - 50, + 0, + 50; only the last two count."""
    last = score + 50.0 * (seed - 2)
    return {500_000: 0.0, 900_000: -1e6, 950_000: last - 20.0, STEPS: last + 20.0}


def records(plan: Plan, name: str) -> list[dict[str, Any]]:
    """Rows of one of the written tables."""
    return pd.read_csv(plan.directory / f"{name}.csv").to_dict("records")  # type: ignore[return-value]


def status_of(plan: Plan) -> int:
    """The exit status of a report on the plan."""
    tables = gather(plan)
    return exit_status(tables["verdicts"], tables["suite"], tables["runs"].status)


@pytest.mark.usefixtures("undrawn")  # `test_command_line.py` draws figures and charts
def test_runs_like_the_reference_reproduce_it_and_everything_is_written(tmp_path: Path) -> None:
    """Three seeds around the reference's mean are `reproduced`, a task without one has its score.

    A report changes nothing that a run recorded, and is the same where its folder is moved.
    """
    plan = mujoco(tmp_path / "here", [HOPPER, ANT])
    reference = reference_of(plan, HOPPER)
    for seed in plan.seeds:
        record_run(plan, HOPPER, seed, around(reference.mean, seed))
        record_run(plan, ANT, seed, around(4000.0, seed))
    before = tree(plan.directory)
    (plan.directory / "throughput.svg").touch()  # of an earlier report, and not drawn now
    verdicts = make_report(plan)
    assert verdicts.task.tolist() == [HOPPER, ANT]
    assert verdicts.verdict.tolist() == ["reproduced", "no reference"]
    assert status_of(plan) == 0
    hopper = verdicts.iloc[0]
    zero = hopper.zero_score
    assert zero > known_zero(HOPPER).random, "standing still, or not trained, is better"
    assert hopper.score_mean == pytest.approx(reference.mean)
    assert hopper.score_std == pytest.approx(50.0)
    assert hopper.margin == pytest.approx(0.1 * (reference.mean - zero))
    assert (hopper.reference_source, hopper.num_seeds) == (plan.preset.judged_by, 3)
    assert verdicts.iloc[1].score_mean == pytest.approx(4000.0)
    written = tree(plan.directory)
    names = {*(f"{name}.csv" for name in COLUMNS), "report.json", "index.html"}
    assert set(written) - set(before) == names
    assert before.items() <= written.items()
    for name, columns in COLUMNS.items():
        header = written[f"{name}.csv"].decode().partition("\n")[0]
        assert sorted(header.split(",")) == sorted(columns), name
    scores = records(plan, "scores")
    assert [row["score"] for row in scores if row["task"] == ANT] == [3950.0, 4000.0, 4050.0]
    expected = 1.0 + 50.0 / (reference.mean - zero)
    assert scores[2]["normalised_score"] == pytest.approx(expected)
    assert len(records(plan, "curves")) == 2 * 3 * 4
    assert len(records(plan, "runs")) == 6
    drawn = pd.DataFrame(records(plan, "reference_curves"))
    assert set(drawn.query("role == 'judge'").task) == {HOPPER}
    facts = json.loads(written["report.json"])
    assert facts["command"] == "\n".join(commands(plan, workers=None))
    assert facts["departures"] == list(plan.departures)
    assert facts["env_steps"] == {HOPPER: STEPS, ANT: STEPS}
    page = written["index.html"].decode()
    assert "1 of 5 tasks reproduced, 1 no reference, 3 not planned" in page

    (tmp_path / "here").rename(tmp_path / "there")
    moved = mujoco(tmp_path / "there", [HOPPER, ANT])
    make_report(moved)
    again = tree(moved.directory)
    assert [
        name for name in written if name.endswith(".csv") and again[name] != written[name]
    ] == []
    assert set(again) == set(written)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("shift", "verdict", "status"),
    [(-0.25, "below", 1), (0.25, "above", 0), (-0.1, "inconclusive", 0)],
)
def test_a_shifted_curve_is_seen(shift: float, verdict: str, status: int, tmp_path: Path) -> None:
    """A quarter of the way to a random policy is far below; exactly the margin decides nothing."""
    plan = mujoco(tmp_path, [HOPPER])
    reference = reference_of(plan, HOPPER)
    scale = scale_of(plan.agent, plan.preset.judged_by, plan.config_of(HOPPER), STEPS)
    gap = reference.mean - scale.zero.score
    for seed in plan.seeds:
        record_run(plan, HOPPER, seed, around(reference.mean + shift * gap, seed))
    verdicts = make_report(plan)
    assert verdicts.verdict.tolist() == [verdict]
    assert verdicts.difference[0] == pytest.approx(shift * gap)
    assert status_of(plan) == status


@pytest.mark.usefixtures("undrawn")
def test_a_report_tells_failed_diverged_and_idle_runs(tmp_path: Path, say: Say) -> None:
    """Good scores of the other seeds hide none: status 2, and one scores as a random policy."""
    plan = saved(mujoco(tmp_path, [HOPPER], seeds=[1, 2, 3, 4, 5]))
    mean = reference_of(plan, HOPPER).mean
    for seed in (1, 2, 3):
        record_run(plan, HOPPER, seed, around(mean, seed))
    record_run(plan, HOPPER, 4, around(mean, 2), status="failed")
    record_run(plan, HOPPER, 5, around(mean, 2), status="diverged")
    status, said, _ = say([*REPORT, str(tmp_path)])
    assert status == 2
    assert f"{HOPPER} seed 4 failed exit 1: no memory\nno memory\n" in said
    assert f"{HOPPER} seed 5 diverged non-finite critic_loss" in said
    idle = ", ".join(f"{HOPPER} seed {seed}" for seed in (1, 2, 3))
    assert f"warning: no update was made in {idle}: --env-steps is too small\n" in said
    (row,) = records(plan, "verdicts")
    random_score = known_zero(HOPPER).random
    assert row["score_mean"] == pytest.approx((3.0 * mean + random_score) / 4.0)


@pytest.mark.usefixtures("undrawn")
def test_a_reports_machine_is_that_of_its_runs(tmp_path: Path) -> None:
    """Also where the first run failed before it wrote its own record."""
    plan = pendulum(tmp_path, [1, 2])
    folder = record_run(plan, TASK, 2)
    machine = json.loads((folder / "run.json").read_text())["machine"]
    reseal(folder, machine=machine | {"cpu": "Far away"})
    first = folder.with_name("seed-1")
    first.mkdir()
    (first / "run.json").write_text(json.dumps(NEVER_BEGUN))
    make_report(plan)
    assert json.loads((plan.directory / "report.json").read_text())["hardware"]["cpu"] == "Far away"


@pytest.mark.usefixtures("undrawn")
def test_a_judge_without_references_judges_nothing(tmp_path: Path) -> None:
    """A copied agent's settings name one that holds nothing for the copy."""
    plan = pendulum(tmp_path, [1])
    record_run(plan, TASK, 1)
    for judge, said in ((plan.preset.judged_by, plan.preset.judged_by), ("rllib_control", None)):
        make_report(replace(plan, preset=replace(plan.preset, judged_by=judge)))
        assert json.loads((plan.directory / "report.json").read_text())["judged_by"] == said


@pytest.mark.usefixtures("undrawn")
def test_a_report_on_a_killed_grid_says_how_to_go_on(tmp_path: Path, say: Say) -> None:
    """As Ctrl-C does; while somebody runs it there is nothing to start."""
    plan = saved(mujoco(tmp_path, [HOPPER]))
    first, *_ = (record_run(plan, HOPPER, seed, status="running") for seed in (1, 2))
    leases = Leases(plan.directory)
    status, said, _ = say([*REPORT, str(tmp_path)])
    assert status == 2
    assert f"{HOPPER} seed 1 interrupted\n" in said
    assert "3 planned = 0 finished + 2 interrupted + 1 not run\n" in said
    assert f"\nNobody runs this grid now; go on with:\n  {commands(plan)[0]}\n" in said
    assert leases.claim(first)
    assert leases.claim(run_of(plan, HOPPER, 3).directory)  # it has not written its record yet
    status, said, _ = say([*REPORT, str(tmp_path)])
    assert status == 2
    assert "3 planned = 0 finished + 2 running + 1 interrupted\n" in said
    assert "Nobody runs" not in said


@pytest.mark.parametrize(
    ("p_values", "suite", "runs", "expected"),
    [
        ([0.5, 0.9], 0.5, ["finished"] * 6, 0),
        ([float("nan")], None, ["finished"] * 6, 0),
        ([0.5, 0.04], 0.5, ["finished"] * 6, 1),
        ([0.5, 0.06], 0.5, ["finished"] * 6, 0),
        ([0.5, 0.9], 0.04, ["finished"] * 6, 1),
        ([0.5], None, ["finished", "failed"], 2),
        ([0.5], None, ["finished", "diverged"], 2),
        ([0.5], None, ["finished", "running"], 2),
        ([0.5], None, ["finished", "planned"], 2),
        ([0.01], 0.01, ["finished", "failed"], 2),
    ],
)
def test_the_exit_status_is_the_worst_that_happened(
    p_values: list[float], suite: float | None, runs: list[str], expected: int
) -> None:
    """0 nothing is below after Holm, nor the suite; 1 something is; 2 a run is missing."""
    verdicts = pd.DataFrame({"p_below_holm": p_values, "level": 0.05})
    suites = pd.DataFrame({"p_below": [suite], "level": 0.05}).dropna()
    assert exit_status(verdicts, suites, pd.Series(runs)) == expected


def test_a_suite_names_the_declared_tasks_that_a_command_leaves_out(tmp_path: Path) -> None:
    """Else who has seen a result could drop it without a word."""
    tasks = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"]
    asked: dict[str, Any] = {"runs_dir": tmp_path, "device": "cpu"}
    saved(make_plan("a2c", "classic", tasks=tasks, **asked))
    left_out = gather(make_plan("a2c", "classic", tasks=tasks[:2], **asked))["suite"]["left_out"]
    assert "MountainCar-v0: declared here, and left out by --tasks" in left_out.item()
    assert "Pendulum-v1, MountainCarContinuous-v0: not planned" in left_out.item()


def test_a_score_that_its_source_states_is_a_departure(tmp_path: Path) -> None:
    """Its rule is named once per step, beside what the settings depart from."""
    plan = mujoco(tmp_path, [HOPPER])
    stated = "stated by the source: the best one"
    env_steps = pd.array([1000, 1000, 1000, None], dtype="Int64")
    how = [stated, "single runs", stated, ""]
    verdicts = pd.DataFrame({"how": how, "env_steps": env_steps})
    *settings, rule = pipeline.departures(plan, verdicts)
    assert settings == list(plan.departures)
    said = f"the reference's score at 1,000 steps is {stated}; ours is the mean over (0.9 t, t]"
    assert rule == said
