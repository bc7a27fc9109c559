"""What is no number, in rewards or in weights, is found by each agent within a log interval."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from suite import session
from suite.envs.vector_env import Step, VectorEnv
from tests.agents.trainings import SETTINGS, fields, module_of, watch
from tests.runs import flags, run_json

LOG_INTERVAL, POISONED = 50, 145
TINY = {"env_steps": 240, "log_interval": LOG_INTERVAL, "learning_starts": 24, "replay_start": 0}
TINY |= {"evaluation_interval": 100_000, "evaluation_episodes": 1, "task": "Pendulum-v1"}
"""So that a run makes many updates; every agent logs and learns more often than each 50 steps."""


@pytest.mark.parametrize(
    ("agent", "what"),
    [
        pytest.param(agent, what, marks=[] if (i + j) % 2 == 0 else pytest.mark.further)
        for i, agent in enumerate(SETTINGS)
        for j, what in enumerate(("rewards", "weights"))
    ],
)
def test_what_is_no_number_is_found_within_one_log_interval(
    agent: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as `diverged`, says where, saves no policy, and the command's status is 2."""
    module = module_of(agent)
    learners = watch(module, monkeypatch, "make_learner")

    class Poisoned(VectorEnv):
        """In the vector step that reaches `POISONED` all rewards, or a weight, are no numbers."""

        env_steps = 0

        def recv(self) -> Step:
            step = super().recv()
            before, self.env_steps = self.env_steps, self.env_steps + int(step.valid.sum())
            if not before < POISONED <= self.env_steps:
                return step
            if what == "rewards":
                rewards = np.full_like(step.rewards, np.nan)
                return step._replace(rewards=rewards, raw_rewards=rewards.copy())
            (*_, learner), *_ = learners
            network = learner.actor if agent.startswith("sac") else learner.network
            with torch.no_grad():
                next(network.parameters()).flatten()[0] = np.nan
            return step

    monkeypatch.setattr(session, "VectorEnv", Poisoned)
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
