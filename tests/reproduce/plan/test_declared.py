"""Seeds are declared once, when a task is first started, and nothing later changes them."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reproduce import __main__ as command_line
from reproduce.commands.flags import make_console
from reproduce.commands.grid import train
from reproduce.plan.declared import keep_declared
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, load_plan, make_plan
from reproduce.run import pool as pooling
from suite.base.errors import UsageError
from tests.messages import refused
from tests.reproduce.conftest import NEVER_BEGUN, record_run, saved, scored

HOPPER, WALKER, STEPS = "Hopper-v4", "Walker2d-v4", 1_000_000


def mujoco(runs_dir: Path, **options: Any) -> Plan:
    """Hopper at a million steps, as the command line plans it."""
    standard = {"tasks": [HOPPER], "env_steps": STEPS, "device": "cpu", "runs_dir": runs_dir}
    return keep_declared(make_plan("sac", "mujoco", **(standard | options)))


def ended(plan: Plan) -> None:
    """Start the plan and record all of its runs."""
    for run in saved(plan).runs():
        record_run(plan, run.task, run.seed)


def test_what_was_declared_first_stays(tmp_path: Path) -> None:
    """More seeds, run twice, leave the declared ones in `plan.json`; two alone declare nothing."""
    saved(mujoco(tmp_path, num_seeds=2))
    saved(mujoco(tmp_path, num_seeds=3))
    declared = {HOPPER: (1, 2, 3)}
    for _ in range(2):
        assert saved(mujoco(tmp_path, num_seeds=8)).declared == declared
    assert load_plan("sac", "mujoco", None, tmp_path).declared == declared


def test_a_declared_seed_is_not_dropped(tmp_path: Path) -> None:
    """Neither by asking for fewer nor for others: one line that says how to go on."""
    saved(mujoco(tmp_path, seeds=[4, 2, 7]))
    for seeds in ([4, 2], [1, 2, 3, 4], [7, 8]):
        with pytest.raises(UsageError, match=r"go on with --seeds 4 2 7, or start anew .*--fresh"):
            mujoco(tmp_path, seeds=seeds)
    assert mujoco(tmp_path, seeds=[2, 4, 7, 1]).declared[HOPPER] == (4, 2, 7)


def test_of_two_first_starts_one_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other, planned before that was written, is refused, or takes what was declared."""
    first, other, more = (mujoco(tmp_path, seeds=s) for s in ([1, 2, 3], [4, 5, 6], [1, 2, 3, 4]))
    ended(first)
    written = (first.directory / "plan.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(pooling, "launch", lambda *_: pytest.fail("it would train"))
        with pytest.raises(UsageError, match="go on with --seeds 1 2 3, or"):
            train(other, make_console())
    assert (first.directory / "plan.json").read_bytes() == written
    record_run(more, HOPPER, 4)
    plan, _ = train(more, make_console())
    assert plan.declared == {HOPPER: (1, 2, 3)}


def test_every_task_and_number_of_steps_declares_seeds_of_its_own(tmp_path: Path) -> None:
    """A second task, or a shorter run, in the same folder forgets nothing of the first."""
    saved(mujoco(tmp_path, num_seeds=3))
    saved(mujoco(tmp_path, num_seeds=5, tasks=[WALKER]))
    saved(mujoco(tmp_path, num_seeds=4, env_steps=1000))
    assert mujoco(tmp_path, num_seeds=6).declared[HOPPER] == tuple(range(1, 4))
    both = mujoco(tmp_path, num_seeds=6, tasks=[HOPPER, WALKER])
    assert [len(seeds) for seeds in both.declared.values()] == [3, 5]
    assert mujoco(tmp_path, num_seeds=6, env_steps=1000).declared[HOPPER] == tuple(range(1, 5))


@pytest.mark.parametrize(
    ("env_steps", "allowed"), [(STEPS, False), (STEPS * 9 // 10, False), (STEPS * 3, True)]
)
def test_begun_seeds_are_not_picked_from(env_steps: int, allowed: bool, tmp_path: Path) -> None:
    """One by one nothing was declared; of much longer runs the scores tell little."""
    for seed in range(1, 6):
        plan = saved(mujoco(tmp_path, seeds=[seed]))
        record_run(plan, HOPPER, seed, status="running" if seed == 5 else "finished")
    with nullcontext() if allowed else refused():
        mujoco(tmp_path, seeds=[4, 2, 3], env_steps=env_steps)
    assert mujoco(tmp_path, seeds=[6, 7, 8], env_steps=env_steps).declared[HOPPER] == (6, 7, 8)
    assert mujoco(tmp_path, num_seeds=6, env_steps=env_steps).declared[HOPPER] == tuple(range(1, 7))
    other = mujoco(tmp_path, seeds=[4, 2, 3], settings=["gamma=0.98"])
    assert other.declared == {HOPPER: (4, 2, 3)}


@pytest.mark.parametrize("content", [None, "{"])
def test_a_run_without_a_record_was_not_begun(content: str | None, tmp_path: Path) -> None:
    """The launcher's own record of a failure says no settings; of a torn one nobody knows."""
    plan = saved(mujoco(tmp_path, seeds=[1]))
    record_run(plan, HOPPER, 1)
    folder = plan.directory / HOPPER / "seed-2"
    folder.mkdir()
    failed = NEVER_BEGUN | {"task": HOPPER, "seed": 2, "config": {"env_steps": STEPS}}
    (folder / "run.json").write_text(json.dumps(failed) if content is None else content)
    if content is None:
        assert mujoco(tmp_path, seeds=[1, 3, 4]).declared == {HOPPER: (1, 3, 4)}
    else:
        with refused():
            mujoco(tmp_path, seeds=[1, 3, 4])


def test_seeds_that_only_another_task_has_are_refused(tmp_path: Path) -> None:
    """Walker2d would get Hopper's fourth and fifth; and declared seeds are kept as they are."""
    ended(mujoco(tmp_path, num_seeds=5))
    for seed in (1, 9):
        ended(mujoco(tmp_path, seeds=[seed], tasks=[WALKER]))
    both = {"tasks": [WALKER, HOPPER], "env_steps": STEPS, "device": "cpu", "runs_dir": tmp_path}
    with refused():
        keep_declared(make_plan("sac", "mujoco", **both), counts_begun=True)


def test_without_a_number_of_seeds_a_task_has_those_it_was_begun_with(tmp_path: Path) -> None:
    """Hopper has five, Walker2d the budget's four; and so say the plan's commands."""
    ended(mujoco(tmp_path, num_seeds=5))
    both = {"tasks": [WALKER, HOPPER], "env_steps": STEPS - 1, "device": "cpu"}
    asked = make_plan("sac", "mujoco", runs_dir=tmp_path, **both)
    plan = keep_declared(asked, counts_begun=True)
    assert plan.num_seeds == {WALKER: 4, HOPPER: 5}
    assert plan.declared == {WALKER: (1, 2, 3, 4), HOPPER: (1, 2, 3, 4, 5)}
    said = zip(commands(plan), plan.tasks, ("1 2 3 4 ", "1 2 3 4 5 "), strict=True)
    for part, task, seeds in said:
        assert f"--tasks {task} --seeds {seeds}--env-steps {STEPS - 1} " in part
    saved(plan)
    assert load_plan("sac", "mujoco", None, tmp_path) == plan
    assert keep_declared(asked, counts_begun=True) == plan, "declared now, and kept"


@pytest.mark.usefixtures("undrawn")
def test_more_seeds_are_exploratory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line to `verdicts.csv`: three seeds first, then eight."""
    reference = scored("sac", "nnabla_rl", HOPPER, STEPS, "deterministic")
    for num_seeds in (3, 8):
        plan = saved(mujoco(tmp_path, num_seeds=num_seeds))
        for run in plan.runs():
            if not run.has_ended:
                record_run(plan, HOPPER, run.seed, {STEPS: reference.mean * (2 + run.seed % 2)})
    words = ["sac", "mujoco", "--tasks", HOPPER, "--env-steps", str(STEPS), "--device", "cpu"]
    words += ["--runs-dir", str(tmp_path), "--num-seeds", "8"]
    assert command_line.main(words) == 0
    said = capsys.readouterr().out
    assert "Hopper-v4 was started with 3 declared seeds; with more it is exploratory" in said
    assert "above, exploratory" in said
    (row,) = pd.read_csv(plan.directory / "verdicts.csv").to_dict("records")
    assert (row["verdict"], row["exploratory"], row["num_seeds"]) == ("above", True, 8)
    assert "1 exploratory" in (plan.directory / "index.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_report_names_tasks_of_earlier_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page shows those of the last one alone."""
    for task in (WALKER, HOPPER):
        ended(mujoco(tmp_path, tasks=[task], num_seeds=3))
    command_line.main(["report", "sac", "mujoco", "--runs-dir", str(tmp_path)])
    line = "and not on this page: Walker2d-v4 (1,000,000 steps, 3 seeds)"
    assert line in " ".join(capsys.readouterr().out.split())
