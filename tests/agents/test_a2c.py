"""A2C: every equation against a slow re-derivation, then what training must do."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agents import a2c
from suite import actor_critic
from suite.nets.optimisers import FlatWeights, InTurn, RMSprop
from tests.agents.trainings import (
    CONTROL,
    CPU,
    SWINGING,
    doubled,
    random_flags,
    random_transitions,
    tiny,
)

TINY = tiny("a2c")
TORCH_FORM: dict[str, Any] = {"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0}
"""RMSprop as torch has it."""


# Mathematics


@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
def test_advantages_equal_a_slow_double_loop(gae_lambda: float) -> None:
    """Sum of (gamma lambda)^k times the errors up to the first end, values after truncations."""
    rng = np.random.default_rng(0)
    steps, num_envs, gamma = 12, 5, 0.9
    rewards, values, next_values = rng.normal(size=(3, steps, num_envs))
    terminations, truncations, _ = random_flags(rng, steps, num_envs)
    assert terminations.any()
    assert truncations[:-1].any()
    expected = np.zeros((steps, num_envs))
    for t in range(steps):
        for i in range(num_envs):
            for k in range(t, steps):
                value = 0.0 if terminations[k, i] else gamma * next_values[k, i]
                error = rewards[k, i] + value - values[k, i]
                expected[t, i] += (gamma * gae_lambda) ** (k - t) * error
                if terminations[k, i] or truncations[k, i]:
                    break
    ours = a2c.gae(
        torch.from_numpy(rewards),
        torch.from_numpy(gamma * ~terminations),
        torch.from_numpy((~(terminations | truncations)).astype(float)),
        torch.from_numpy(values),
        torch.from_numpy(next_values),
        gae_lambda,
    )
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12)


def test_losses_equal_a_slow_float64_derivation() -> None:
    """Means over valid rows, element by element; any sign error shows in its own term."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5, 4, 3))
    valid = rng.uniform(size=(4, 3)) < 0.7
    log_probs, entropies, values, advantages, returns = columns
    tensors = torch.from_numpy(columns)
    weights = torch.from_numpy(valid / valid.sum())
    parts = a2c.losses(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], weights)
    policy = value = entropy = 0.0
    for t in range(4):
        for i in range(3):
            if valid[t, i]:
                policy -= log_probs[t, i] * advantages[t, i] / valid.sum()
                value += (returns[t, i] - values[t, i]) ** 2 / valid.sum()
                entropy += entropies[t, i] / valid.sum()
    np.testing.assert_allclose([float(p) for p in parts], [policy, value, entropy], rtol=1e-12)
    config = replace(TINY, value_coef=0.3, entropy_coef=0.2)
    assert float(parts.total(config)) == pytest.approx(policy + 0.3 * value - 0.2 * entropy)


def test_log_probabilities_and_entropies_equal_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, generator=generator)
    actions = torch.randint(0, 4, (3, 2), generator=generator)
    reference = torch.distributions.Categorical(logits=logits)
    log_probs, entropies = actor_critic.categorical(logits, actions)
    torch.testing.assert_close(log_probs, reference.log_prob(actions))
    torch.testing.assert_close(entropies, reference.entropy())

    means, log_stds = logits, torch.tensor([-1.0, 0.0, 0.5, 0.2])
    draws = torch.randn(3, 2, 4, generator=generator)
    normal = torch.distributions.Normal(means, log_stds.exp().expand_as(means))
    log_probs, entropies = actor_critic.gaussian(means, log_stds, draws)
    torch.testing.assert_close(log_probs, normal.log_prob(draws).sum(-1))
    torch.testing.assert_close(entropies, normal.entropy().sum(-1))


def test_drawn_actions_have_the_policys_probabilities() -> None:
    """Gumbel noise draws each action as often as its probability says; so does the Gaussian."""
    network = a2c.make_learner(replace(TINY, policy_head_gain=1.0), CONTROL, CPU).network
    obs = torch.randn(1, 4, generator=torch.Generator().manual_seed(3)).expand(20_000, 4)
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    shares = torch.bincount(network.act(network(obs)[0], noise), minlength=3) / 20_000
    torch.testing.assert_close(shares, network(obs[:1])[0].softmax(-1)[0], atol=0.015, rtol=0)

    config = replace(TINY, initial_log_std=-0.7)
    network = a2c.make_learner(config, SWINGING, CPU).network
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    actions = network.act(network(obs)[0], noise)
    torch.testing.assert_close(actions.std(0), torch.full((2,), math.exp(-0.7)), atol=0.01, rtol=0)
    torch.testing.assert_close(actions.mean(0), network(obs[:1])[0][0], atol=0.02, rtol=0)


def test_values_in_units_of_returns_leave_advantages_in_reward_units() -> None:
    """A head that predicts V / 3, with deviation 3, gives the advantages of a head with V."""
    config = replace(TINY, reward_normalisation="value_targets")
    batch = random_transitions(config, CONTROL, 0)
    learner = a2c.make_learner(config, CONTROL, CPU)
    learner.return_moments.values[2] = 9.0
    _, _, values = a2c.evaluate_actions(learner.network, batch.obs[:-1], batch.actions)
    advantages, returns = a2c.targets(learner, config, batch, values)
    plain = a2c.make_learner(replace(config, reward_normalisation="none"), CONTROL, CPU)
    critic = plain.network.critic
    assert critic is not None
    with torch.no_grad():
        critic.weights[-1].mul_(3)
    _, _, unscaled = a2c.evaluate_actions(plain.network, batch.obs[:-1], batch.actions)
    expected = a2c.targets(plain, TINY, batch, unscaled)
    torch.testing.assert_close(advantages, expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(3 * returns, expected[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_separate_optimisers_are_two_of_torchs_one_after_the_other(shared_trunk: bool) -> None:
    """nnabla-rl's update in float64: each loss has its own bound and averages of all weights."""
    config = replace(TINY, **TORCH_FORM, shared_trunk=shared_trunk, unroll_length=8)
    config = replace(config, separate_optimisers=True, max_gradient_norm=0.05, entropy_coef=0.1)
    learner = a2c.make_learner(config, CONTROL, CPU)
    network, optimiser = learner.network.double(), learner.optimiser
    assert isinstance(optimiser, InTurn)
    weights = FlatWeights(network)
    optimiser = learner.optimiser = InTurn(RMSprop(weights, config), RMSprop(weights, config))
    slow = a2c.make_learner(config, CONTROL, CPU).network.double()
    slow.load_state_dict(network.state_dict())
    parameters = list(slow.parameters())
    theirs = [torch.optim.RMSprop(parameters, lr=1e-2, alpha=0.99, eps=1e-5) for _ in range(2)]
    for seed in range(3):
        batch = doubled(random_transitions(config, CONTROL, seed))
        with torch.no_grad():
            values = slow.value(batch.obs.flatten(0, 1)).unflatten(0, batch.obs.shape[:2])
            columns = batch.rewards, batch.discounts, batch.trace_mask, values[:-1], values[1:]
            advantages = a2c.gae(*columns, 1.0)
            returns = advantages + values[:-1]
        norms = []
        for i, torchs in enumerate(theirs):
            outputs = a2c.evaluate_actions(slow, batch.obs[:-1], batch.actions)
            log_probs, entropies, values = outputs
            policy = -(log_probs * advantages + 0.1 * entropies) * batch.weights
            value = 0.5 * (values - returns).square() * batch.weights
            torchs.zero_grad()
            (value if i else policy).sum().backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())
            for parameter, gradient in zip(parameters, gradients, strict=True):
                # torch's own bound adds 1e-6 to the norm, its step leaves out what has no gradient
                parameter.grad = gradient * (0.05 / norms[-1])
            torchs.step()
        row = a2c.update(learner, config, batch, 1e-2)
        assert min(norms) > 0.05
        assert row[3].item() == pytest.approx(math.hypot(*norms), rel=1e-9)
        for ours, other in zip(network.parameters(), parameters, strict=True):
            torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)


# Training on the real simulator


def test_explained_variance_is_that_of_the_interval() -> None:
    """One minus the variance of residuals over that of returns, from their moments."""
    rng = np.random.default_rng(0)
    returns = rng.normal(2, 3, size=1000)
    residuals = 0.5 * rng.normal(size=1000) + 0.1
    moments = [returns.mean(), residuals.mean(), (returns**2).mean(), (residuals**2).mean()]
    columns = a2c.describe({"update": np.array([0.0, 0.0, 0.0, 0.0, *moments])}, 1e-3)
    expected = 1 - residuals.var() / returns.var()
    assert columns["explained_variance"][0] == pytest.approx(expected)
