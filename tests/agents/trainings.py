"""Short trainings of every agent, and random data as its updates have it."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from suite.envs.vector_env import Spaces
from suite.nets.optimisers import RMSprop
from suite.nets.perceptrons import Ensemble
from suite.record.recorder import Recorder
from suite.replay import Batch
from suite.unrolls import Outcomes, UnrollBatch
from tests.golden import runner

CPU = torch.device("cpu")
CONTROL, SWINGING = Spaces((4,), 3), Spaces.vectors(4, 2)
"""Spaces with three discrete actions, and with two continuous dimensions."""
TRANSITIONS: dict[str, Any] = {
    **{"task": "InvertedPendulum-v4", "device": "cpu", "env_steps": 120, "hidden_sizes": (16, 16)},
    **{"batch_size": 8, "learning_starts": 40, "log_interval": 40},
    **{"evaluation_interval": 60, "evaluation_episodes": 1},
}
UNROLLS: dict[str, Any] = {
    **{"task": "CartPole-v1", "device": "cpu", "env_steps": 400, "num_envs": 4},
    **{"unroll_length": 5, "hidden_sizes": (16, 16), "log_interval": 100},
    **{"evaluation_rule": "sampled", "evaluation_interval": 200, "evaluation_episodes": 2},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": TRANSITIONS,
    "sac_value": TRANSITIONS,
    "sac_discrete": TRANSITIONS | {"task": "CartPole-v1", "update_ratio": 1.0, "target_period": 10},
    "sac_alf": TRANSITIONS,
    "a2c": UNROLLS,
    "ppo": UNROLLS | {"num_epochs": 2, "num_minibatches": 2},
    "impala": UNROLLS
    | {"learning_rate": 3e-3, "initialisation": "orthogonal", "policy_head_gain": 1.0},
    "acer": UNROLLS | {"replay_start": 20},
    "acer_continuous": UNROLLS
    | {"task": "InvertedPendulum-v4", "env_steps": 240, "evaluation_interval": 120}
    | {"log_interval": 60, "evaluation_episodes": 1, "replay_ratio": 2.0, "replay_start": 20}
    | {"advantage_hidden_sizes": (8, 8)},
}
"""What makes a run short, by agent."""
UNROLL_AGENTS = ("a2c", "ppo", "impala", "acer", "acer_continuous")
ALF_OPTIONS: dict[str, Any] = {
    **{"prior": "same_action", "normalise_entropy": True, "prioritised_replay": True}
}
"""All that work on a task whose reward has one part."""
MOMENTS: dict[str, Any] = {"normalise_observations": True, "observation_clip": 1.5}
BOUNDS: dict[str, Any] = {"log_std_min": 0.5, "log_std_max": 1.0, "evaluation_rule": "sampled"}
VARIANTS: dict[str, dict[str, Any]] = {
    **{agent: {} for agent in SETTINGS},
    "sac, bounds": {**BOUNDS, "log_std_bound": "tanh"},
    "sac_value, bounds": BOUNDS,
    "sac_discrete, critics": {"policy": "critics"},
    "sac_alf, options": {"task": "Reacher-v4", "reward_weights": (0.5, 0.5), **ALF_OPTIONS},
    "sac_alf, mixed": {"task": "Claw-v0"},
    "sac_alf, discrete": {"task": "CartPole-v1", "prioritised_replay": True},
    "sac_alf, recurrent": {"task": "Claw-v0", "lstm_size": 4, "td_steps": 3},
    "a2c, continuous": {"task": "Pendulum-v1", **MOMENTS, "reward_normalisation": "value_targets"},
    "a2c, shared": {"shared_trunk": True},
    "ppo, continuous": {"task": "Pendulum-v1", **MOMENTS, "reward_normalisation": "value_targets"},
    "ppo, recurrent": {"shared_trunk": True, "lstm_size": 6},
    "impala, continuous": {"task": "Pendulum-v1", "policy_lag": 2},
    "impala, recurrent": {"lstm_size": 6, "num_minibatches": 2},
    "acer, two trunks": {"shared_trunk": False, "policy_head_gain": 1.0},
    "acer, recurrent": {"lstm_size": 6},
    "acer_continuous, learned": {
        **{"std": "learned", "bounded_mean": True, "learning_rate_decay_steps": 1_000}
    },
    "acer_continuous, by state": {"std": "state_dependent", "policy_head_gain": 1.0},
}
"""Forms of agents that differ in their networks or actions, by the agent's name and theirs."""


def module_of(agent: str) -> Any:
    """Return the module of an agent, or of a variant of it."""
    return importlib.import_module(f"agents.{agent.partition(',')[0]}")


def by_agent(cases: Iterable[Any]) -> list[Any]:
    """Return parameters: an agent's first case runs always, its others under `make test-slow`.

    Cases are names, or tuples that begin with one; an agent is what stands before the comma.
    """
    met: set[str] = set()
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        agent = values[0].partition(",")[0]
        marks = [pytest.mark.further] if agent in met else []
        parameters.append(pytest.param(*values, marks=marks))
        met.add(agent)
    return parameters


def tiny(variant: str, **changes: Any) -> Any:
    """Return the settings of a short run."""
    agent = variant.partition(",")[0]
    return module_of(agent).Config(**(SETTINGS[agent] | VARIANTS.get(variant, {}) | changes))


def train(config: Any, directory: Path, **options: Any) -> tuple[Any, Recorder]:
    """Return what was learned under these settings, and the recorder, which has finished."""
    agent = type(config).__module__.split(".")[1]
    options = {"keeps_checkpoint": False} | options
    recorder = Recorder(directory, {"agent": agent, "task": config.task}, config.seeds, **options)
    learner = module_of(agent).train(config, recorder)
    recorder.finish()
    return learner, recorder


def watch(
    owner: Any, monkeypatch: pytest.MonkeyPatch, name: str = "update"
) -> list[tuple[Any, ...]]:
    """Return a list that gets arguments and result of every call of a function of `owner`."""
    function, seen = getattr(owner, name), list[tuple[Any, ...]]()

    def watched(*arguments: Any) -> Any:
        seen.append((*arguments, function(*arguments)))
        return seen[-1][-1]

    monkeypatch.setattr(owner, name, watched)
    return seen


def outputs_of(network: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs of policy and critic on observations `[B, *obs]`, without an LSTM."""
    outputs, critic = network.actor(obs), getattr(network, "critic", None)
    policy, rest = outputs[:, : network.num_outputs], outputs[:, network.num_outputs :]
    return policy, rest if critic is None else critic(obs)


def table(recorder: Recorder, name: str, seed: int = 0) -> pd.DataFrame:
    """Return a table that a run has written."""
    return pd.read_csv(recorder.seed_directories[seed] / name)


def learned(learner: Any, seed: int | None = None) -> Iterator[Tensor]:
    """Yield copies of all weights, network by network, of one seed or of all."""
    for value in vars(learner).values():
        if isinstance(value, Ensemble):
            for each in range(value.shape[0]) if seed is None else [seed]:
                yield from (weight.clone() for weight in value.all_weights_of(each).values())
        else:
            yield from (
                each.detach().clone() if seed is None else each.detach()[..., [seed]].clone()
                for each in runner.weights(value)
            )


def same(ours: Any, theirs: Any) -> bool:
    """Return whether two learners have the same weights, to the last bit."""
    pairs = [*learned(ours)], [*learned(theirs)]
    shapes = [[weight.shape for weight in each] for each in pairs]
    return shapes[0] == shapes[1] and all(map(torch.equal, *pairs))


def random_batch(generator: torch.Generator, seeds: int, size: int, obs: int, act: int) -> Batch:
    """Return transitions as replay gives them, `[S, B, ...]`."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observations, actions = draw(seeds, size, obs), torch.tanh(draw(seeds, size, act))
    return Batch(
        obs=observations,
        obs_actions=torch.cat([observations, actions], -1),
        rewards=draw(seeds, size),
        terminations=(draw(seeds, size) > 0.8).float(),
        next_obs=draw(seeds, size, obs),
    )


def random_flags(generator: np.random.Generator, steps: int, num_envs: int) -> tuple[Any, ...]:
    """Return ends of both kinds inside an unroll, and which rows are not the ignored ones."""
    kinds = generator.choice(3, size=(steps, num_envs), p=[0.6, 0.2, 0.2])
    valid = np.ones((steps, num_envs), dtype=bool)
    for t in range(1, steps):
        valid[t] = ~(valid[t - 1] & (kinds[t - 1] > 0))
        kinds[t][~valid[t]] = 0
    return kinds == 1, kinds == 2, valid


def random_transitions(
    config: Any, spaces: Spaces, seed: int, behaviour_size: int = 0
) -> UnrollBatch:
    """Return one unroll of random steps, with ends of both kinds and ignored rows.

    Of the policy that acted it keeps `behaviour_size` standard normal numbers a row; 0: one.
    """
    rng, shape = np.random.default_rng(seed), (config.unroll_length, config.num_envs)

    def numbers(steps: int, *sizes: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(steps, shape[1], *sizes)).astype(np.float32))

    rewards = rng.normal(size=shape).astype(np.float32)
    outcomes = Outcomes(rewards, *random_flags(rng, *shape))
    discrete = torch.from_numpy(rng.integers(0, spaces.num_outputs, shape))
    return UnrollBatch(
        numbers(shape[0] + 1, *spaces.obs_shape),
        numbers(shape[0], spaces.num_outputs) if spaces.continuous else discrete,
        numbers(shape[0], *[behaviour_size] * (behaviour_size > 0)),
        *outcomes.tensors(CPU, config),
    )


def doubled(batch: UnrollBatch) -> UnrollBatch:
    """Return the same transitions in float64."""
    return UnrollBatch(*(each.double() if each.is_floating_point() else each for each in batch))


def fields(config: Any) -> set[str]:
    """Return the names of all settings."""
    return {field.name for field in dataclasses.fields(config)}


class Exact(RMSprop):
    """Keeps the gradient of a step, which only adds the rate to all weights."""

    seen: Any = None

    def step(self, gradient: Tensor, learning_rate: Any) -> None:
        """Keep the gradient."""
        self.seen = gradient
        self.weights.vector += learning_rate


ACER_UPDATE: dict[str, Any] = {
    **{"unroll_length": 6, "policy_head_gain": 1.0, "entropy_coef": 0.1, "replay_capacity": 100},
    **{"clip_rho_threshold": 1.5, "trust_region_delta": 0.05},
}
"""Settings of an update of ACER in which every part of it counts."""


def check_update(
    learner: Any,
    policy: Any,
    config: Any,
    expected: Tensor,
    rows: Sequence[Mapping[str, Tensor]],
    update: Callable[[], Mapping[str, Tensor]],
) -> None:
    """Check an update of ACER: diagnostics, clipped gradient, step of 0.1, the average policy's."""
    exact, norm = learner.optimiser, expected.norm()
    before, average = exact.weights.vector.clone(), learner.average_policy
    slow = [p.clone() for p in average.parameters()]
    means = {name: torch.stack([row[name] for row in rows]).mean().detach() for name in rows[0]}
    diagnostics = means | {"gradient_norm": norm}
    torch.testing.assert_close(update(), diagnostics, rtol=1e-6, atol=1e-9)
    if config.max_gradient_norm is not None:
        expected = expected * min(1.0, config.max_gradient_norm / float(norm))
    torch.testing.assert_close(exact.seen, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(exact.weights.vector, before + 0.1)
    for new, old, fast in zip(average.parameters(), slow, policy.parameters(), strict=True):
        torch.testing.assert_close(new, (1 - config.tau) * old + config.tau * fast)
