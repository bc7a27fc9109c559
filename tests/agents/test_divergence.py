"""Numbers that are none, in each agent: found within one log interval, counted, and cheap to find.

They are injected where they would arise: into the simulator's rewards, a loss, the weights.
"""

import importlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import agents
from suite import session
from suite.envs.vector_env import Step, VectorEnv
from suite.record.recorder import Recorder

LOG_INTERVAL, POISONED = 50, 145
TASKS = {
    "sac": "Pendulum-v1",
    "sac_discrete": "CartPole-v1",
    "a2c": "CartPole-v1",
    "impala": "CartPole-v1",
    "acer": "CartPole-v1",
    "acer_continuous": "Pendulum-v1",
    "sac_value": "Pendulum-v1",
    "sac_alf": "Pendulum-v1",
}
TINY = {
    "sac": ("--learning-starts=20", "--batch-size=8"),
    "sac_discrete": ("--num-envs=4", "--learning-starts=20", "--batch-size=8"),
    "a2c": ("--num-envs=4", "--unroll-length=5"),
    "impala": ("--num-envs=4", "--unroll-length=5"),
    "acer": ("--num-envs=4", "--unroll-length=5"),
    "acer_continuous": ("--num-envs=4", "--unroll-length=5", "--replay-start=0"),
    "sac_value": ("--learning-starts=20", "--batch-size=8"),
    "sac_alf": ("--learning-starts=20", "--batch-size=8", "--prioritised-replay"),
}
"""So that 240 steps are many updates; every agent logs and learns more often than each 50."""
Poison = Callable[[ModuleType, str, pytest.MonkeyPatch], None]


def counting(patch: pytest.MonkeyPatch, hook: Callable[[Step], Step]) -> None:
    """Call `hook` on the vector step of the training environment that reaches `POISONED`."""

    class Counting(VectorEnv):
        env_steps = 0

        def recv(self) -> Step:
            step = super().recv()
            before, self.env_steps = self.env_steps, self.env_steps + int(step.valid.sum())
            return hook(step) if before < POISONED <= self.env_steps else step

    patch.setattr(session, "VectorEnv", Counting)


def poison_reward(module: ModuleType, agent: str, patch: pytest.MonkeyPatch) -> None:
    """The rewards of one vector step are no numbers."""

    def hook(step: Step) -> Step:
        rewards = np.full_like(step.rewards, np.nan)
        return step._replace(rewards=rewards, raw_rewards=rewards.copy())

    counting(patch, hook)


def poison_weights(module: ModuleType, agent: str, patch: pytest.MonkeyPatch) -> None:
    """One weight of the network that learns is no number."""
    learners: list[Any] = []
    make_learner = module.make_learner

    def keep(*arguments: Any, **options: Any) -> Any:
        learners.append(make_learner(*arguments, **options))
        return learners[-1]

    def hook(step: Step) -> Step:
        network = learners[0].actor if agent.startswith("sac") else learners[0].network
        with torch.no_grad():
            next(network.parameters()).flatten()[0] = np.nan
        return step

    patch.setattr(module, "make_learner", keep)
    counting(patch, hook)


def poison_loss(module: ModuleType, agent: str, patch: pytest.MonkeyPatch) -> None:
    """The first loss after the step is no number, or its gradient is none."""
    due = [False]
    of_critics = agent.startswith("sac")
    owner, name = (module, "critic_loss") if of_critics else (module.FlatWeights, "gradient")
    healthy = getattr(owner, name)

    def poisoned(*arguments: Any) -> Any:
        value = healthy(*arguments)
        if due[0]:  # ALF's comes with errors
            several = isinstance(value, tuple)
            value = tuple(each * torch.nan for each in value) if several else value * torch.nan
        due[0] = False
        return value

    def hook(step: Step) -> Step:
        due[0] = True
        return step

    patch.setattr(owner, name, poisoned)
    counting(patch, hook)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("poison", [poison_reward, poison_weights, poison_loss])
@pytest.mark.parametrize("agent", sorted(TASKS))
def test_what_is_no_number_is_found_within_one_log_interval(
    agent: str, poison: Poison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as `diverged`, says where, saves no policy, and the command's status is 2."""
    assert set(TASKS) == set(agents.AGENTS)
    module = importlib.import_module(f"agents.{agent}")
    poison(module, agent, monkeypatch)
    command = [f"--task={TASKS[agent]}", "--env-steps=240", "--device=cpu", f"--out={tmp_path}"]
    command += [
        "--hidden-sizes",
        "8",
        "8",
        f"--log-interval={LOG_INTERVAL}",
        "--evaluation-interval=100000",
    ]
    assert module.main([*command, "--evaluation-episodes=1", *TINY[agent]]) == 2
    record = json.loads((tmp_path / "seed-1" / "run.json").read_text())
    assert record["status"] == "diverged"
    found = re.fullmatch(r"non-finite .* at (\d+) env_steps", record["error"])
    assert found
    assert POISONED <= int(found[1]) <= POISONED + LOG_INTERVAL
    assert not (tmp_path / "seed-1" / "policy.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("agent", sorted(TASKS))
def test_looking_for_them_costs_next_to_nothing(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of one log interval, times their number, is at most 0.5 % of a run."""
    module = importlib.import_module(f"agents.{agent}")
    learners: list[Any] = []
    num_logs = [0]
    make_learner, log = module.make_learner, Recorder.log

    def keep(*arguments: Any, **options: Any) -> Any:
        learners.append(make_learner(*arguments, **options))
        return learners[-1]

    def count(recorder: Recorder, *arguments: Any) -> None:
        num_logs[0] += 1
        log(recorder, *arguments)

    monkeypatch.setattr(module, "make_learner", keep)
    monkeypatch.setattr(Recorder, "log", count)
    command = [f"--task={TASKS[agent]}", "--env-steps=20000", "--device=cpu", f"--out={tmp_path}"]
    if agent.startswith("sac"):
        command += ["--env-steps=3000", "--learning-starts=1000"]
    began = time.perf_counter()
    assert module.main([*command, "--evaluation-interval=100000"]) == 0
    seconds = time.perf_counter() - began
    (learner,) = learners
    began = time.perf_counter()
    for _ in range(100):
        if agent.startswith("sac"):
            norms = learner.health()["weight_norm"].cpu().numpy()
        else:
            norms = np.array([learner.optimiser.weights.norm()])
        values = {f"metric {k}": float(norms[0]) for k in range(12)}
        assert all(np.isfinite(value) for value in values.values())
    share = (time.perf_counter() - began) / 100 * num_logs[0] / seconds
    print(f"{agent}: {num_logs[0]} checks in {seconds:.1f} s are {share:.4%} of the run")
    assert share < 0.005
