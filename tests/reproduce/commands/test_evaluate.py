"""`evaluate` scores a policy anew: reproducibly, with an honest interval, by either rule."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from agents import load_policy
from reproduce import __main__ as command_line
from reproduce.commands import evaluate as scoring
from reproduce.commands.evaluate import evaluate_run
from reproduce.commands.export import export_onnx
from reproduce.words import number
from suite.base.errors import UsageError
from suite.base.files import write_json
from tests.messages import refused
from tests.reproduce.conftest import TASK, Say, reseal
from tests.runs import tree
from tests.suite.envs import elsewhere

USES: dict[str, Callable[[Path], Any]] = {
    "load": load_policy,
    "load, best": lambda folder: load_policy(folder / "best"),
    "export": lambda folder: export_onnx(folder, folder.parent / "a.onnx"),
    "export, best": lambda folder: export_onnx(folder, folder.parent / "a.onnx", best=True),
    "evaluate": lambda folder: evaluate_run(folder, episodes=1),
}
"""What a run's policy is used for."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five episodes with known returns in place of the simulator's."""
    returns = np.array([[-3.0, -1.0, 1.0, 3.0, 5.0]])
    monkeypatch.setattr(
        scoring, "evaluate", lambda *_, episodes, **more: (returns[:, :episodes], None)
    )


@pytest.mark.parametrize("sampled", [False, True])
def test_a_score_is_the_same_every_time(sampled: bool, run: Path) -> None:
    """Same policy, seed and rule: the same bits; another seed or rule plays other episodes."""
    before, rule = tree(run), {False: "deterministic", True: "sampled"}[sampled]
    first = evaluate_run(run, episodes=4, sampled=sampled)
    assert (first.task.name, first.rule, first.returns.shape) == (TASK, rule, (4,))
    assert (evaluate_run(run, episodes=4, sampled=sampled).returns == first.returns).all()
    assert (evaluate_run(run, episodes=4, sampled=sampled, seed=1).returns != first.returns).all()
    assert (evaluate_run(run, episodes=4, sampled=not sampled).returns != first.returns).all()
    assert ((first.returns > -2000) & (first.returns < 0)).all()
    assert tree(run) == before


@pytest.mark.parametrize(
    ("scored", "rule"),
    [("training", "sampled"), ("sampled", "sampled"), ("deterministic", "deterministic")],
)
def test_actions_are_by_default_those_of_the_runs_own_score(
    run: Path, scored: str, rule: str, tmp_path: Path, scripted: None
) -> None:
    """A policy that was scored by drawn actions is not judged by its mode unless asked."""
    folder = shutil.copytree(run, tmp_path / "seed-3")
    config = json.loads((folder / "run.json").read_text())["config"]
    reseal(folder, config=config | {"evaluation_rule": scored})
    assert evaluate_run(folder, episodes=2).rule == rule
    assert evaluate_run(folder, episodes=2, sampled=False).rule == "deterministic"


@pytest.mark.usefixtures("scripted")
def test_the_interval_is_students(run: Path) -> None:
    """Five returns of mean 1: the 95 % t-interval with 4 degrees; one has no spread."""
    half = stats.t.ppf(0.975, 4) * np.sqrt(10.0 / 5)
    assert evaluate_run(run, episodes=5).interval() == pytest.approx((1 - half, 1 + half))
    assert evaluate_run(run, episodes=1).interval() is None


@pytest.mark.parametrize("use", USES)
def test_a_policy_unlike_its_manifest_is_refused(use: str, run: Path, tmp_path: Path) -> None:
    """Changed weights act, too: nobody would see it. A best policy's sums stand above it."""
    folder = shutil.copytree(run, tmp_path / "seed-3")
    path = folder / "policy.safetensors"
    if "best" in use:
        (folder / "best").mkdir()
        path = Path(shutil.copy(path, folder / "best"))
        shutil.copy(folder / "policy.json", folder / "best")
        reseal(folder)
        assert load_policy(folder / "best").task.name == TASK
    content = bytearray(path.read_bytes())
    content[-100::4] = bytes(byte ^ 1 for byte in content[-100::4])  # in the numbers' last bits
    path.write_bytes(content)
    if "export" in use:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    with refused():
        USES[use](folder)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-3"]


def test_a_policy_unlike_its_tasks_spaces_is_refused(run: Path, tmp_path: Path) -> None:
    """It would get observations of another size."""
    folder = shutil.copytree(run, tmp_path / "seed-3")
    path = folder / "policy.json"
    write_json(path, json.loads(path.read_text()) | {"task": "MountainCarContinuous-v0"})
    reseal(folder)
    with refused():
        evaluate_run(folder, episodes=1)


def test_a_task_that_is_not_the_policys_is_refused(run: Path, tmp_path: Path) -> None:
    """Its score is not the other task's."""
    folder = shutil.copytree(run, tmp_path / "seed-3")
    with refused():
        command_line.main(["evaluate", str(folder), f"--task-from={elsewhere.__name__}:Pulled-v0"])
    assert evaluate_run(folder, episodes=1, task_from=TASK).task.name == TASK


def test_a_run_without_evaluations_has_none_to_play_again(run: Path, tmp_path: Path) -> None:
    """The line names the flag to leave out."""
    folder = shutil.copytree(run, tmp_path / "seed-3")
    (folder / "evaluations.csv").unlink()
    reseal(folder)
    with refused():
        evaluate_run(folder, episodes=1, recorded=True)


def test_the_command_prints_the_score(run: Path, say: Say) -> None:
    """One line: task, mean, interval, episodes and rule."""
    score = evaluate_run(run, episodes=3)
    low, high = score.interval() or (0.0, 0.0)
    status, out, _ = say(["evaluate", str(run), "--episodes", "3"])
    assert status == 0
    assert out == (
        f"{TASK}: mean return {number(score.returns.mean())} "
        f"(95 % interval {number(low)} to {number(high)}) over 3 episodes, sampled actions\n"
    )
    assert "interval" not in say(["evaluate", str(run), "--episodes=1", "--deterministic"])[1]
    for other in ("--episodes=3", "--seed=1", "--deterministic"):
        with pytest.raises(UsageError, match="leave out the flags of fresh episodes"):
            command_line.main(["evaluate", str(run), "--recorded", other])
