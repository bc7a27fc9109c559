"""gymnasium behind the adapter, where it differs from envpool, and tasks without a row."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import agents
from agents import a2c, sac
from reproduce.commands.evaluate import evaluate_run
from suite.base.errors import UsageError
from suite.base.randomness import environment_seeds
from suite.envs.gymnasium_pool import describe
from suite.envs.tasks import find_task
from suite.envs.vector_env import Spaces, VectorEnv
from suite.settings.command_line import read_command_line
from tests.messages import refused
from tests.runs import run_json

HERE = "tests.suite.envs.elsewhere"
FROM = f"--task-from={HERE}"


@pytest.mark.parametrize(
    "flags",
    [
        *(f"{FROM}:{name}-v0" for name in ("Tap", "Zoo", "Endless", "Named", "Frames", "Several")),
        *(f"{FROM}:{name}-v0" for name in ("Unbounded", "Pairs", "Matrix", "Broken")),
        *("--task-from=no.such:Tape-v0", "--task-from=CartPole-v1", "--task-from=gymnasium:"),
        *(f"{FROM}:Tape-v0 --task=CartPole-v1", "--task=:Tape-v0"),
    ],
)
def test_a_task_that_no_agent_can_do_is_refused_in_a_line(
    flags: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is wrong, the line says what to do, and no folder has been made."""
    monkeypatch.chdir(tmp_path)
    find_task(f"{HERE}:Tape-v0")
    with refused():
        a2c.main(flags.split())
    assert not list(tmp_path.iterdir())


def test_a_mistake_in_a_tasks_module_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is there: to install it would not help."""
    (tmp_path / "torn_tasks.py").write_text("raise RuntimeError('oops')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"importing torn_tasks fails: RuntimeError: oops$"):
        find_task("torn_tasks:Tape-v0")


def test_a_missing_package_is_named_before_a_folder_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Box2D is an extra of ours, and gymnasium would name its own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    describe.cache_clear()
    with pytest.raises(UsageError, match=r"needs Box2D: pip install 'encore-rl\[box2d\]'$"):
        sac.main(["--task=BipedalWalker-v3"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("agent", "task", "flags"),
    [(a2c, "Tape-v0", []), (sac, "Pulled-v0", ["--learning-starts=50", "--evaluation-episodes=1"])],
)
def test_a_run_finds_its_task_again(
    agent: Any, task: str, flags: list[str], tmp_path: Path
) -> None:
    """It is recorded by its whole name; its policy's discrete actions may begin at five."""
    name = f"{HERE}:{task}"
    command = ["--task-from", name, f"--out={tmp_path}", "--device=cpu", "--num-envs=2", *flags]
    assert agent.main([*command, "--env-steps=100"]) == 0
    assert agent.main([*command, "--env-steps=200"]) == 0
    folder, record = tmp_path / "seed-1", run_json(tmp_path)
    assert (record["status"], record["task"]) == ("finished", name)
    assert len(record["resumed_at"]) == 1
    policy = agents.load_policy(folder)
    assert policy.task == find_task(name)
    space = gymnasium.make(name, disable_env_checker=True).action_space
    actions = policy(np.ones((4, 3), dtype=np.float32), np.random.default_rng(0))
    assert all(action in space for action in actions)
    assert evaluate_run(folder, episodes=2).task.name == name


def test_a_folder_is_never_called_after_a_part_of_the_task() -> None:
    """A slash in an id would make it one of ours, CartPole-v0, and the record would contradict."""
    _, options = read_command_line(a2c.PRESETS, [f"--task={HERE}:far/CartPole-v0"], agent="a2c")
    assert options.out == Path("runs/alone/a2c") / f"{HERE}-far-CartPole-v0"


def test_a_hybrid_action_is_a_number_and_then_a_vector() -> None:
    """The number begins at the space's own, the vector is clipped and scaled, by themselves."""
    env = VectorEnv(find_task(f"{HERE}:Both-v0"), environment_seeds([1, 2], 2, "test"))
    env.reset()
    assert env.spaces == Spaces((3,), 2, (0.0, 0.0), (10.0, 10.0), 3, 5)
    actions = np.zeros((2, 2, 3), dtype=np.float32)
    actions[..., 0] = [[0, 1], [2, 0]]
    actions[..., 1] = [[-1.0, 0.5], [7.0, -7.0]]
    tens = np.array([[5.0, 6.0], [7.0, 5.0]])
    np.testing.assert_allclose(env.step(actions).rewards, tens + np.array([[0, 75], [100, 0]]))
    for number in (-1.0, 3.0, 0.5, np.nan):
        actions[0, 1, 0] = number
        with pytest.raises(ValueError, match=r"choices not in 0\.\.2: "):
            env.step(actions)


def test_a_simulator_that_resets_more_than_it_is_asked_to_is_refused() -> None:
    """Its other environments' transitions would lead into episodes that they did not come from."""
    right, forward = 1, 2
    seeds = environment_seeds([1], 2, "environments")
    env = VectorEnv(find_task(f"{HERE}:Deaf-v0"), seeds, reset="same_step")
    env.reset()
    for _ in range(10):
        env.step(np.full((1, 2), forward))
    with pytest.raises(UsageError, match=r"Deaf-v0 must reset .*\['reset_mask'\].* train one"):
        env.step(np.array([[right, forward]]))
    alone = VectorEnv(find_task(f"{HERE}:Deaf-v0"), seeds[:, :1], reset="same_step")
    alone.reset()
    steps = [alone.step(np.array([[right if n % 11 == 10 else forward]])) for n in range(33)]
    assert sum(step.terminations.sum() for step in steps) == 3


def test_frames_are_drawn_where_a_task_draws_any() -> None:
    """One for each environment, as it moves; asked of a task that draws none, a line."""
    env_seeds = environment_seeds([1, 2], 3, "test")
    env = VectorEnv(find_task(f"{HERE}:Tape-v0"), env_seeds, render=True)
    env.reset()
    before = env.render()
    assert (before.shape, before.dtype) == ((2, 3, 4, 6, 3), np.uint8)
    env.step(np.zeros((2, 3), dtype=np.int64))
    assert (env.render() != before).all()
    assert len(np.unique(before.reshape(6, -1), axis=0)) == 6
    with pytest.raises(UsageError, match=r"^TMaze-v0 draws no frames$"):
        VectorEnv(find_task("TMaze-v0"), env_seeds, render=True)
    silent = VectorEnv(find_task(f"{HERE}:Tape-v0"), env_seeds)
    with pytest.raises(RuntimeError, match="render=True"):
        silent.render()
