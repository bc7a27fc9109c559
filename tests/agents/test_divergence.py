"""Numbers that are none, in each agent: found within one log interval, counted, and cheap to find.

They are injected where they would arise: into the simulator's rewards and the weights.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from suite import session
from suite.envs.vector_env import Step, VectorEnv
from tests.agents.trainings import SETTINGS, fields, module_of
from tests.flags import flags
from tests.runs import run_json

LOG_INTERVAL, POISONED = 50, 145
TINY = {"env_steps": 240, "log_interval": LOG_INTERVAL, "learning_starts": 24, "replay_start": 0}
TINY |= {"evaluation_interval": 100_000, "evaluation_episodes": 1, "task": "Pendulum-v1"}
"""So that a run makes many updates; every agent logs and learns more often than each 50 steps."""
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


POISONS = (poison_reward, poison_weights)


@pytest.mark.parametrize(
    ("agent", "poison"),
    [
        pytest.param(agent, poison, marks=[] if (i + j) % 2 == 0 else pytest.mark.further)
        for i, agent in enumerate(SETTINGS)
        for j, poison in enumerate(POISONS)
    ],
)
def test_what_is_no_number_is_found_within_one_log_interval(
    agent: str, poison: Poison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as `diverged`, says where, saves no policy, and the command's status is 2."""
    module = module_of(agent)
    poison(module, agent, monkeypatch)
    known = fields(module.Config)
    settings = SETTINGS[agent] | {name: each for name, each in TINY.items() if name in known}
    if agent in ("sac_discrete", "acer"):
        settings["task"] = "CartPole-v1"
    assert module.main([f"--out={tmp_path}", *flags(settings)]) == 2
    record = run_json(tmp_path)
    assert record["status"] == "diverged"
    found = re.fullmatch(r"non-finite .* at (\d+) env_steps", record["error"])
    assert found
    assert POISONED <= int(found[1]) <= POISONED + LOG_INTERVAL
    assert not (tmp_path / "seed-1" / "policy.safetensors").exists()
