"""Continuous ACER: every equation against a slow re-derivation; far behaviour, first deviation."""

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from agents import acer_continuous as acer
from suite.envs.vector_env import Spaces
from suite.nets.optimisers import FlatWeights
from suite.unrolls import UnrollBatch
from tests.agents.trainings import (
    ACER_UPDATE,
    CPU,
    Exact,
    check_update,
    doubled,
    random_transitions,
    tiny,
)
from tests.perceptrons import draw

TINY = tiny("acer_continuous")
CONTROL = Spaces.vectors(4, 3)
"""Spaces with three dimensions of action."""


def random_batch(config: acer.Config, seed: int) -> UnrollBatch:
    """Return random steps, with the distributions of a policy that drew the actions."""
    batch = random_transitions(config, CONTROL, seed, 6)
    means, log_stds = batch.behaviour.chunk(2, -1)
    behaviour = acer.Gaussian(0.3 * means, 0.3 * log_stds - 1)
    actions = behaviour.draw(batch.actions)
    return batch._replace(actions=actions, behaviour=torch.cat(behaviour, -1))


def plain_layers(layers: Any, inputs: Tensor) -> Tensor:
    """The layers as one would write them down."""
    *hidden, (weight, bias) = zip(layers.weights, layers.biases, strict=True)
    for hidden_weight, hidden_bias in hidden:
        inputs = torch.relu(inputs @ hidden_weight + hidden_bias)
    return inputs @ weight + bias


def make_exact(config: Any) -> Any:
    """A learner in float64, whose optimiser keeps its gradient."""
    rng = np.random.default_rng(2)
    network = acer.ActorCritic(config, CONTROL, rng).double()
    average = acer.ActorCritic(config, CONTROL, rng).policy.double().requires_grad_(False)
    if config.std == "learned":
        network.policy.log_stds.data += draw(7, 3)
    exact = Exact(FlatWeights(network), config)
    return acer.Learner(network, average, exact, None)


def statistics(config: Any, policy: Any, obs: Tensor) -> Tensor:
    """Means and log deviations of one observation, side by side, as one would write them down."""
    outputs = plain_layers(policy.layers, obs)
    means = outputs[:3].tanh() if config.bounded_mean else outputs[:3]
    if config.std == "state_dependent":
        log_stds = (1 + outputs[3].exp()).log().sqrt().log().expand(3)
    else:
        log_stds = policy.log_stds
    return torch.cat([means, log_stds])


def slow_update(
    config: Any, network: Any, average: Any, batch: Any, noise: Tensor
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Gradient and rows' diagnostics, row by row from the paper's equations, by autograd."""
    steps, size = batch.rewards.shape
    obs, rows = batch.obs, list[dict[str, Tensor]]()
    num_rows, loss = batch.valid.sum(), torch.zeros((), dtype=torch.float64)

    def normal(phi: Tensor) -> Independent:
        return Independent(Normal(phi[:3], phi[3:].exp()), 1)

    @cache
    def policy(t: int, i: int) -> Independent:
        return normal(statistics(config, network.policy, obs[t, i]).detach())

    def ratio(t: int, i: int, action: Tensor) -> float:  # pi(a|x) / mu(a|x)
        behaviour = normal(batch.behaviour[t, i])
        return float((policy(t, i).log_prob(action) - behaviour.log_prob(action)).exp())

    @cache
    def value(t: int, i: int) -> Tensor:
        return plain_layers(network.critic, obs[t, i])[0]

    def q_value(t: int, i: int, action: Tensor) -> Tensor:  # Eq. (13)
        def advantage(a: Tensor) -> Tensor:
            return plain_layers(network.advantage, torch.cat([obs[t, i], a]))[0]

        pi = policy(t, i).base_dist
        draws = [pi.loc + pi.scale * noise[k, t, i] for k in range(1, len(noise))]
        others = sum((advantage(u) for u in draws), torch.zeros(())) / len(draws)
        return value(t, i) + advantage(action) - others

    @cache
    def target(t: int, i: int, traced: bool) -> Tensor:  # Eq. (5), or Q_opc
        estimate = value(t + 1, i).detach()
        if t + 1 < steps and batch.trace_mask[t, i]:
            a = batch.actions[t + 1, i]
            c = min(1.0, ratio(t + 1, i, a) ** (1 / 3)) if traced else 1.0
            estimate = estimate + c * (target(t + 1, i, traced) - q_value(t + 1, i, a).detach())
        return batch.rewards[t, i] + batch.discounts[t, i] * estimate

    for t in range(steps):
        for i in range(size):
            if not batch.valid[t, i]:
                continue
            a, v, pi = batch.actions[t, i], value(t, i), policy(t, i).base_dist
            out = statistics(config, network.policy, obs[t, i])
            phi = out.detach().requires_grad_()
            c = config.clip_rho_threshold or math.inf
            advantage = target(t, i, config.advantage_target == "q_retrace") - v.detach()
            objective = min(c, ratio(t, i, a)) * advantage * normal(phi).log_prob(a)
            b = pi.loc + pi.scale * noise[0, t, i]
            share = max(0.0, 1 - c / ratio(t, i, b))
            better = (q_value(t, i, b) - v).detach()
            objective = objective + share * better * normal(phi).log_prob(b)
            (g,) = torch.autograd.grad(objective, phi)
            slow = normal(statistics(config, average, obs[t, i]))
            divergence = kl_divergence(slow, normal(phi))
            (k,) = torch.autograd.grad(divergence, phi)
            if config.std == "fixed":
                g, k, out = g[:3], k[:3], out[:3]
            z = g
            if config.trust_region_delta is not None:
                excess = (k @ g - config.trust_region_delta) / (k @ k)  # Eq. (12)
                z = g - max(0.0, float(excess)) * k
            projected_norm = z.norm()
            if config.std != "fixed":
                bonus = config.entropy_coef * normal(phi).entropy()
                z = z + torch.autograd.grad(bonus, phi)[0]
            q, q_retrace = q_value(t, i, a), target(t, i, True)
            better_value = (min(1.0, ratio(t, i, a)) * (q_retrace - q) + v).detach()  # Eq. (14)
            rows.append(
                {
                    "q_loss": 0.5 * (q_retrace - q) ** 2,
                    "value_loss": 0.5 * (better_value - v) ** 2,
                    **{"q_value": q, "value": v, "entropy": normal(phi).entropy()},
                    **{"kl": divergence, "truncated_share": v.new_tensor(ratio(t, i, a) > c)},
                    "statistics_gradient_norm": g.norm(),
                    "projected_gradient_norm": projected_norm,
                }
            )
            loss = loss - (z @ out) / num_rows
            loss = loss + config.q_coef * 0.5 * (q_retrace - q) ** 2 / num_rows
            loss = loss + config.value_coef * 0.5 * (better_value - v) ** 2 / num_rows
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients]), rows


UPDATES: list[dict[str, Any]] = [
    {},
    {"std": "learned"},
    {"std": "state_dependent", "bounded_mean": True},
    {"trust_region_delta": None, "clip_rho_threshold": None, "std": "learned"},
    {"advantage_target": "q_retrace", "num_action_samples": 1},
    {"q_coef": 0.3, "value_coef": 2.0, "max_gradient_norm": 0.01},
    {"time_limit_is_terminal": True},
]


@pytest.mark.parametrize("settings", UPDATES, ids=str)
def test_an_update_is_what_the_equations_say(settings: dict[str, Any]) -> None:
    """Gradient, diagnostics and the average policy, in float64, with ends inside the unroll."""
    config = replace(TINY, **(ACER_UPDATE | settings))
    batch = doubled(random_batch(config, 4))
    noise = draw(3, config.num_action_samples + 1, *batch.actions.shape).double()
    learner = make_exact(config)
    policies = learner.network, learner.average_policy
    expected = slow_update(config, *policies, batch, noise)
    update = partial(acer.update, learner, config, batch, noise, 0.1)
    check_update(learner, learner.network.policy, config, *expected, update)


@pytest.mark.parametrize("clip_rho_threshold", [5.0, None])
def test_far_away_behaviour_keeps_the_update_finite(clip_rho_threshold: float | None) -> None:
    """Ratios beyond the reach of float32, both ways."""
    for shift in (-30.0, 30.0):
        config = replace(TINY, unroll_length=6, clip_rho_threshold=clip_rho_threshold)
        batch, learner = random_batch(config, 4), acer.make_learner(config, CONTROL, CPU)
        batch.behaviour[..., :3] += shift  # the means
        metrics = acer.update(learner, config, batch, draw(1, 6, 6, 4, 3), 1e-3)
        assert all(torch.isfinite(each) for each in metrics.values())
        assert torch.isfinite(learner.optimiser.weights.vector).all()


@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
def test_the_policy_starts_with_the_deviation_asked_for(std: Any) -> None:
    """Whatever holds the deviation; it is exact but for the head's small weights."""
    config = replace(TINY, std=std, initial_std=0.6)
    policy = acer.make_learner(config, CONTROL, CPU).network.policy
    log_stds = policy(draw(0, 5, 4)).log_stds.detach()
    torch.testing.assert_close(log_stds.exp(), torch.full((5, 3), 0.6), rtol=0.03, atol=0)
