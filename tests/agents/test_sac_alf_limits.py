"""With its options off, or of no effect, `sac_alf` is `sac`."""

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from agents import sac, sac_alf
from suite.envs.vector_env import Spaces
from tests.agents import trainings
from tests.agents.alf import random_batch, rates
from tests.agents.trainings import CPU, networks, table, tiny, train

TINY = tiny("sac_alf")
SHORT = replace(TINY, env_steps=60, log_interval=10)
"""20 updates."""
SHARED: dict[str, Any] = {"seeds": (1, 2), "hidden_sizes": (16, 16), "gamma": 0.9, "tau": 0.1}


def follow(
    config: sac_alf.Config, plain: sac.Config, shift: float = 0.0
) -> Iterable[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Yield the metrics of five updates, ours and `agents.sac`'s; then compare all weights.

    `agents.sac` gets rewards that are greater by `shift` where a value follows.
    """
    ours, theirs = (
        sac_alf.make_learner(config, Spaces.vectors(3, 2), CPU),
        sac.make_learner(plain, 3, 2, CPU),
    )
    for one, other in zip(networks(ours), networks(theirs), strict=True):
        assert torch.equal(one, other)
    generator, weights = torch.Generator().manual_seed(0), torch.ones(2, 8)
    for num_updates in range(5):
        batch, noise = random_batch(generator, 2, 8, 3, 2), torch.randn(2, 2, 8, 2)
        alpha = theirs.log_alpha.exp()[:, None]
        rewards = batch.rewards + shift * alpha * (1 - batch.terminations)
        metrics, _ = sac_alf.update(ours, config, batch, weights, noise, num_updates)
        yield (
            metrics,
            sac.update(theirs, plain, batch._replace(rewards=rewards), noise, num_updates),
        )
    for one, other in zip(networks(ours), networks(theirs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], theirs.log_alpha)


@pytest.mark.parametrize("weights", [None, (1.0,)])
def test_with_all_options_off_it_is_sac(weights: tuple[float, ...] | None) -> None:
    """Updates of `agents.sac` to rounding; so are those of a reward with one part."""
    config = replace(TINY, reward_weights=weights, num_critics=3, **SHARED)
    plain = sac.Config(task="Pendulum-v1", num_critics=3, **SHARED)
    for metrics, expected in follow(config, plain):
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, atol=1e-6, rtol=1e-5)


OF_SAC: tuple[dict[str, Any], ...] = (
    {
        **{"env_steps": 72, "hidden_sizes": (8, 8, 8), "num_envs": 2, "num_critics": 3},
        **{"initialisation": "orthogonal", "hidden_gain": 0.5, "policy_head_gain": 0.3},
        **{"separate_heads": True, "evaluation_rule": "sampled"},
        **{f"{name}_learning_rate": 3e-3 for name in ("actor", "critic", "alpha")},
        **{"target_entropy_per_action": 0.5, "gamma": 0.5, "tau": 0.5, "reward_scale": 3.0},
        **{"replay_capacity": 50, "learning_starts": 50, "update_ratio": 2.0, "seeds": (3, 1)},
    },
    {
        **{"initialisation": "lecun_normal", "log_std_bound": "tanh", "log_std_min": -0.2},
        **{"log_std_max": 0.1, "max_log_alpha": -1.5, "entropy_in_target": False},
        "action_gradient_clip": 1e-3,
        **{"count_warm_up": False, "batch_size": 16, "log_interval": 20},
        **{"policy_period": 2, "compensate_policy_period": False, "target_period": 3},
        **{"evaluation_interval": 30, "evaluation_episodes": 2},
    },
    {**{"initialisation": "torch", "learn_alpha": False, "initial_alpha": 0.3}, "policy_period": 3},
)
"""Every setting of `agents.sac` at another value than the default's, in three runs."""
ELSEWHERE = {"task", "device", "tf32", "num_threads", "env_threads"}
"""Settings that no agent reads itself, and of which `cuda_graphs` needs a GPU."""


def test_every_setting_of_sac_is_compared() -> None:
    """A new one must be one of `agents.sac_alf` too, with the same default."""
    names, given = trainings.fields(sac.Config), {name for each in OF_SAC for name in each}
    assert names == given | ELSEWHERE | {"cuda_graphs"}
    theirs, ours = sac.Config(), sac_alf.Config()
    assert all(getattr(theirs, name) == getattr(ours, name) for name in names)
    assert all(getattr(theirs, n) != value for each in OF_SAC for n, value in each.items())


@pytest.mark.parametrize("changes", OF_SAC)
def test_a_training_is_that_of_sac_under_its_settings(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Ten updates or more, with all options off: tables, weights and temperature agree."""
    config = replace(SHORT, **changes)
    theirs = sac.Config(**{field.name: getattr(config, field.name) for field in fields(sac.Config)})
    ours, recorder = train(config, tmp_path / "ours")
    expected, other = train(theirs, tmp_path / "theirs")
    for one, two in zip(networks(ours), networks(expected), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], expected.log_alpha, atol=1e-6, rtol=1e-5)
    for seed in range(len(theirs.seeds)):
        for name in ("episodes.csv", "evaluations.csv", "updates.csv"):
            one, two = (table(each, name, seed) for each in (recorder, other))
            pd.testing.assert_frame_equal(one, two, rtol=1e-4, atol=1e-5)


def test_a_uniform_prior_is_entropy_up_to_a_constant() -> None:
    """The target moves by log 2 a dimension, a reward by what the constant is worth in s'."""
    config = replace(TINY, prior="uniform", target_kl_per_action=1.5, **SHARED)
    plain = sac.Config(task="Pendulum-v1", target_entropy_per_action=math.log(2) - 1.5, **SHARED)
    for metrics, expected in follow(config, plain, shift=-0.9 * 2 * math.log(2)):
        torch.testing.assert_close(metrics["entropy"], expected["entropy"])
        divergence = 2 * math.log(2) - expected["entropy"]
        torch.testing.assert_close(metrics["prior_kl"], divergence, atol=1e-6, rtol=1e-5)


def test_a_constant_entropy_earns_nothing_if_it_is_normalised() -> None:
    """The running mean of equal numbers is that number, whatever the weights of the past."""
    batch = random_batch(torch.Generator().manual_seed(0), 1, 8, 3, 2)
    batch = batch._replace(next_obs=batch.next_obs[:, :1].expand(-1, 8, -1))
    noise = torch.zeros(2, 1, 8, 2)
    weights, config = torch.ones(1, 8), replace(TINY, normalise_entropy=True, **rates(1e-9))
    found = []
    for each in (config, replace(config, normalise_entropy=False, entropy_in_target=False)):
        learner = sac_alf.make_learner(each, Spaces.vectors(3, 2), CPU)
        updates = [sac_alf.update(learner, each, batch, weights, noise, n) for n in range(4)]
        found.append([errors for _, errors in updates])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
