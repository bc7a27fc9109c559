"""What every agent must do, once: its bytes, records, evaluations, time limits and settings."""

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from suite.base.randomness import stream
from suite.evaluation import evaluate
from suite.record.clock import TIMING_COLUMNS
from suite.record.recorder import Recorder
from tests.agents.columns import SHARED, TOGETHER, UPDATES, WAITS
from tests.agents.trainings import (
    SETTINGS,
    VARIANTS,
    by_agent,
    learned,
    module_of,
    same,
    table,
    tiny,
    train,
)
from tests.golden.configurations import RUNS

TABLES = ("episodes.csv", "evaluations.csv", "updates.csv")


class Trained(NamedTuple):
    """A short run."""

    config: Any
    learner: Any
    recorder: Recorder
    initial: list[Tensor]
    """All weights before it."""


def train_noting(config: Any, directory: Path) -> Trained:
    """Return a short run with its initial weights."""
    module, initial = importlib.import_module(type(config).__module__), []
    make_learner = module.make_learner

    def noted(*arguments: Any) -> Any:
        learner = make_learner(*arguments)
        initial.extend(learned(learner))
        return learner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_learner", noted)
        return Trained(config, *train(config, directory), initial)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Return what gives a variant's short run, which this process trains once."""

    @cache
    def of(variant: str) -> Trained:
        return train_noting(tiny(variant), tmp_path_factory.mktemp("trained"))

    return of


def test_every_agent_is_held_to_the_contract() -> None:
    """Each has settings of a short run, and golden runs."""
    assert set(SETTINGS) == set(RUNS) == set(agents.AGENTS)


@pytest.mark.parametrize("variant", by_agent(TOGETHER))
def test_a_seed_beside_others_has_the_bits_of_the_seed_alone(
    variant: str, trained: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables and weights, beside a seed that is poisoned at the start, and a healthy one."""
    module, alone = module_of(variant), trained(variant)
    make_learner = module.make_learner

    def poisoned(*arguments: Any) -> Any:
        learner = make_learner(*arguments)
        with torch.no_grad():
            learner.critics.weights_of(0)["weight_0"].fill_(math.nan)
        return learner

    monkeypatch.setattr(module, "make_learner", poisoned)
    learner, recorder = train(tiny(variant, seeds=(2, *alone.config.seeds, 3)), tmp_path)
    assert recorder.statuses == ["diverged", "finished", "finished"]
    rounding = 1e-6 if variant == "sac_alf, options" else 0.0  # of parts of rewards
    for ours, theirs in zip(learned(learner, 1), learned(alone.learner), strict=True):
        torch.testing.assert_close(ours, theirs, atol=rounding, rtol=0)
    for name in TABLES:
        ours, theirs = recorder.seed_directories[1], alone.recorder.seed_directories[0]
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


@pytest.mark.parametrize("variant", by_agent(VARIANTS))
def test_evaluations_disturb_nothing(
    variant: str, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    """More of them, by draws or by modes: other scores, and the same weights and updates."""
    config, learner, recorder, _ = trained(variant)
    rule = {"sampled": "deterministic", "deterministic": "sampled"}[config.evaluation_rule]
    changes = {"evaluation_rule": rule, "evaluation_interval": config.evaluation_interval // 2}
    ours, other = train(replace(config, **changes), tmp_path)
    assert same(ours, learner)
    assert table(other, "updates.csv").equals(table(recorder, "updates.csv"))
    scores = [table(each, "evaluations.csv").iloc[-1].tolist() for each in (recorder, other)]
    assert scores[0][0] == scores[1][0]
    assert scores[0] != scores[1]


@pytest.mark.parametrize("variant", by_agent(VARIANTS))
def test_a_training_moves_all_weights_and_records_everything(
    variant: str, trained: Callable[[str], Trained]
) -> None:
    """Also slow copies and temperatures; all numbers are finite, the last step is evaluated."""
    config, learner, recorder, initial = trained(variant)
    unmoved = [torch.equal(*pair) for pair in zip(initial, learned(learner), strict=True)]
    fixed = variant == "acer_continuous"
    assert sum(unmoved) == (2 if fixed else 0)  # the fixed deviation, and its copy
    updates, evaluations = (table(recorder, name) for name in ("updates.csv", "evaluations.csv"))
    agent = variant.partition(",")[0]
    assert set(updates.columns) - SHARED == UPDATES.get(variant, UPDATES[agent])
    assert [*table(recorder, "timing.csv").columns] == [*TIMING_COLUMNS, *WAITS.get(agent, ())]
    assert np.isfinite(updates.dropna().to_numpy()).all()
    assert len(updates) > 1
    assert evaluations.env_steps.iloc[-1] == updates.env_steps.iloc[-1] <= config.env_steps
    assert len(evaluations) == 2
    assert recorder.statuses == ["finished"]


@pytest.mark.parametrize("variant", by_agent(VARIANTS))
def test_a_saved_policy_scores_what_its_last_evaluation_says(
    variant: str, trained: Callable[[str], Trained]
) -> None:
    """Read back from its folder: networks, bounds, statistics, memory, modes or draws."""
    config, _, recorder, _ = trained(variant)
    row = table(recorder, "evaluations.csv").iloc[-1]
    env_steps, (seed,) = int(row.env_steps), config.seeds
    policy = agents.load_policy(recorder.seed_directories[0])
    drawn = config.evaluation_rule == "sampled"
    generator = stream(seed, "evaluation actions", env_steps) if drawn else None
    noted: dict[str, Any] = {}
    told: Any = SimpleNamespace(forget=policy.reset)
    told.note = lambda rewards, starts: noted.update(rewards=rewards, starts=starts)
    scores, _ = evaluate(
        config.find_task(),
        lambda obs: policy.act(obs, generator, **noted),
        config.seeds,
        env_steps,
        episodes=config.evaluation_episodes,
        memory=told if policy.memory else None,
    )
    assert row.tolist()[-config.evaluation_episodes :] == scores[0].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "variant", [*VARIANTS, "sac_discrete, frames", "a2c, frames", "ppo, frames", "acer, frames"]
)
def test_a_gpu_learns_what_the_cpu_learns(variant: str, tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after a few updates."""
    frames = {"task": "Pong-v5", "num_envs": 2, "env_steps": 60} if "frames" in variant else {}
    seeds = {"seeds": (1, 2)} if variant in TOGETHER else {}
    config = tiny(variant, **frames, **seeds)
    config = replace(config, env_steps=min(config.env_steps, 120), evaluation_interval=1_000)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    for ours, theirs in zip(learned(gpu), learned(cpu), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-3, rtol=1e-2)
