"""A2C: draws, units of values, optimisers in turn and diagnostics, against slow re-derivations."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agents import a2c
from suite.nets.optimisers import FlatWeights, InTurn, RMSprop
from tests.agents.trainings import (
    CONTROL,
    CPU,
    SWINGING,
    doubled,
    random_transitions,
    tiny,
)

TINY = tiny("a2c")
TORCH_FORM: dict[str, Any] = {"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0}
"""RMSprop as torch has it."""


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
        norms, diagnostics = [], []
        for i, torchs in enumerate(theirs):
            outputs = a2c.evaluate_actions(slow, batch.obs[:-1], batch.actions)
            log_probs, entropies, values = outputs
            policy_loss = -(log_probs * advantages * batch.weights).sum()
            value_loss = ((values - returns).square() * batch.weights).sum()
            entropy = (entropies * batch.weights).sum()
            diagnostics.append([policy_loss.item(), value_loss.item(), entropy.item()])
            torchs.zero_grad()
            (0.5 * value_loss if i else policy_loss - 0.1 * entropy).backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())
            for parameter, gradient in zip(parameters, gradients, strict=True):
                # torch's own bound adds 1e-6 to the norm, its step leaves out what has no gradient
                parameter.grad = gradient * (0.05 / norms[-1])
            torchs.step()
        row = a2c.update(learner, config, batch, 1e-2)
        assert min(norms) > 0.05
        assert row[:3].tolist() == pytest.approx(diagnostics[0], rel=1e-9)
        assert row[3].item() == pytest.approx(math.hypot(*norms), rel=1e-9)
        for ours, other in zip(network.parameters(), parameters, strict=True):
            torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)


def test_explained_variance_is_that_of_the_interval() -> None:
    """One minus the variance of residuals over that of returns, from their moments."""
    rng = np.random.default_rng(0)
    returns = rng.normal(2, 3, size=1000)
    residuals = 0.5 * rng.normal(size=1000) + 0.1
    moments = [returns.mean(), residuals.mean(), (returns**2).mean(), (residuals**2).mean()]
    columns = a2c.describe({"update": np.array([0.0, 0.0, 0.0, 0.0, *moments])}, 1e-3)
    expected = 1 - residuals.var() / returns.var()
    assert columns["explained_variance"][0] == pytest.approx(expected)
