"""Normalised observations, the same in every agent that learns from unrolls."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from agents import load_policy
from suite.envs.vector_env import Step, VectorEnv
from suite.evaluation import evaluate
from tests.agents.trainings import module_of, outputs_of, tiny, train

ONLINE = {"replay_ratio": 0.0, "replay_start": 0, "online_updates": True}
FRAMES = {"task": "Pong-v5", "evaluation_interval": 120, "evaluation_episodes": 1}
STANDARDISED: dict[str, Any] = {
    **{"normalise_observations": True, "observation_clip": 1.5, "policy_head_gain": 1.0},
    **{"evaluation_rule": "deterministic", "evaluation_interval": 60, "evaluation_episodes": 2},
    "env_steps": 120,
}
CASES: dict[str, dict[str, Any]] = {
    **{"a2c": {}, "impala": {}, "acer": ONLINE, "acer_continuous": ONLINE},
    **{"a2c, frames": FRAMES, "acer, frames": {**ONLINE, **FRAMES}},
}
"""Settings by agent."""


class Tape:
    """Keeps raw observations of training, and standardises in float64 by those acted on."""

    def __init__(self, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.obs: list[np.ndarray] = []
        """Of every step, `[N, *obs]`."""
        self._rows: list[np.ndarray] = []
        reset, recv = VectorEnv.reset, VectorEnv.recv

        def put(obs: np.ndarray, acted_on: np.ndarray) -> None:
            if len(obs) == num_envs:
                self.obs.append(obs.astype(np.float64))
                self._rows.append(self.obs[-1][acted_on])

        def first(env: VectorEnv) -> np.ndarray:
            obs = reset(env)
            put(obs[0], np.ones(obs.shape[1], dtype=bool))
            return obs

        def following(env: VectorEnv) -> Step:
            step = recv(env)
            put(step.obs[0], ~(step.terminations | step.truncations)[0])
            return step

        monkeypatch.setattr(VectorEnv, "reset", first)
        monkeypatch.setattr(VectorEnv, "recv", following)

    def rows(self, until: int) -> np.ndarray:
        """Return all observations of the first `until` steps on which a valid action followed."""
        return np.concatenate(self._rows[:until])

    def standardised(self, obs: np.ndarray, until: int) -> np.ndarray:
        """Standardise `obs` by the observations of the first `until` steps."""
        rows = self.rows(until)
        mean = rows.mean(0)
        return np.clip((obs - mean) / np.sqrt(((rows - mean) ** 2).mean(0) + 1e-8), -1.5, 1.5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * ("frames" in name)) for name in CASES]
)
def test_all_sides_see_observations_standardised_by_those_acted_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, evaluations and the saved policy, against the raw observations in float64."""
    agent, config = module_of(name), tiny(name, **STANDARDISED | CASES[name])
    tape, batches, update = Tape(config.num_envs, monkeypatch), [], agent.update

    def watched(learner: Any, config: Any, batch: Any, *others: Any) -> Tensor:
        batches.append(batch.obs.clone())
        return update(learner, config, batch, *others)

    monkeypatch.setattr(agent, "update", watched)
    learner, recorder = train(config, tmp_path)

    end, rows = len(tape.obs), tape.rows(len(tape.obs))
    assert end % 5 == 1
    assert len(rows) < 4 * end or "frames" in name  # episodes have ended
    assert learner.obs_moments.count == len(rows)
    np.testing.assert_allclose(learner.obs_moments.mean, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(learner.obs_moments.variance, rows.var(0), rtol=1e-9)

    for t in range(6):  # of the newest unroll
        until = end if "acer" in name else end - 5 + t
        expected = tape.standardised(tape.obs[end - 6 + t], until)
        np.testing.assert_allclose(batches[-1][t], expected, rtol=1e-5, atol=1e-5)

    folder = recorder.seed_directories[0]
    policy, obs = load_policy(folder), 2 * np.concatenate(tape.obs).astype(np.float32)
    seen = torch.from_numpy(tape.standardised(obs, end)).float()
    if name == "acer_continuous":
        modes = learner.network.policy(seen).means.detach().clamp(-1, 1)
    else:
        modes = outputs_of(learner.network, seen)[0].argmax(-1)
    np.testing.assert_allclose(policy.act(obs), modes, rtol=1e-4, atol=1e-5)

    evaluations = pd.read_csv(folder / "evaluations.csv")
    env_steps = int(evaluations.env_steps.iloc[-1])
    number = config.evaluation_episodes
    scores, _ = evaluate(config.find_task(), policy.act, config.seeds, env_steps, episodes=number)
    assert scores.shape == (1, number)
    assert evaluations.iloc[-1, -number:].tolist() == scores[0].tolist()
