"""With its options off, or of no effect, `sac_alf` is `sac`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from agents import sac, sac_alf
from tests.agents import trainings
from tests.agents.trainings import table, tiny, train

TINY = tiny("sac_alf")
SHORT = replace(TINY, env_steps=60, log_interval=10)
"""20 updates."""


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
        **{"log_std_max": 0.1, "batch_size": 16, "log_interval": 20},
        **{"policy_period": 2, "target_period": 3},
        **{"evaluation_interval": 30, "evaluation_episodes": 2},
    },
    {**{"initialisation": "torch", "learn_alpha": False, "initial_alpha": 0.3}, "policy_period": 3},
)
"""Every setting of `agents.sac` at another value than the default's, in three runs."""
ELSEWHERE = {"task", "device", "tf32", "num_threads", "env_threads", "cuda_graphs"}
"""Settings that no agent reads itself, or only on a GPU."""


def test_every_setting_of_sac_is_compared() -> None:
    """A new one must be one of `agents.sac_alf` too, with the same default."""
    names, given = trainings.fields(sac.Config), {name for each in OF_SAC for name in each}
    assert names == given | ELSEWHERE
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
    stacks = ("actor", "critics", "target_critics")
    for one, two in zip(weights_of(ours, *stacks), weights_of(expected, *stacks), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], expected.log_alpha, atol=1e-6, rtol=1e-5)
    for seed in range(len(theirs.seeds)):
        for name in ("episodes.csv", "evaluations.csv", "updates.csv"):
            one, two = (table(each, name, seed) for each in (recorder, other))
            pd.testing.assert_frame_equal(one, two, rtol=1e-4, atol=1e-5)


def weights_of(learner: Any, *stacks: str) -> list[Tensor]:
    """Return the weights of some of a learner's networks."""
    return [weight for name in stacks for weight in getattr(learner, name).parameters()]
