"""A2C: draws and diagnostics, against slow re-derivations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agents import a2c
from suite.unroll_session import columns_of, explained_variance
from tests.agents.trainings import CONTROL, CPU, SWINGING, outputs_of, random_transitions, tiny
from tests.perceptrons import draw

TINY = tiny("a2c")


def test_drawn_actions_have_the_policys_probabilities() -> None:
    """Gumbel noise draws each action as often as its probability says; so does the Gaussian."""
    network = a2c.make_learner(replace(TINY, policy_head_gain=1.0), CONTROL, CPU).network
    obs = draw(3, 1, 4).expand(20_000, 4)
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    shares = torch.bincount(network.act(network(obs)[0], noise), minlength=3) / 20_000
    torch.testing.assert_close(shares, network(obs[:1])[0].softmax(-1)[0], atol=0.015, rtol=0)

    config = replace(TINY, initial_log_std=-0.7)
    network = a2c.make_learner(config, SWINGING, CPU).network
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    actions = network.act(network(obs)[0], noise)
    torch.testing.assert_close(actions.std(0), torch.full((2,), math.exp(-0.7)), atol=0.01, rtol=0)
    torch.testing.assert_close(actions.mean(0), network(obs[:1])[0][0], atol=0.02, rtol=0)


def test_diagnostics_are_what_they_are_called() -> None:
    """Parts of the loss, and moments of returns and values' errors, are means over valid rows."""
    batch, learner = random_transitions(TINY, CONTROL, 0), a2c.make_learner(TINY, CONTROL, CPU)
    valid = batch.valid > 0
    logits, values = outputs_of(learner.network, batch.obs[:-1].flatten(0, 1))
    logits, values = logits[valid.flatten()], values.squeeze(1)[valid.flatten()]
    policy = torch.distributions.Categorical(logits=logits)
    judged = a2c.evaluate_actions(learner.network, batch.obs[:-1], batch.actions)[2]
    advantages, returns = (each[valid] for each in a2c.targets(learner, TINY, batch, judged))
    errors = returns - values
    expected = {
        "policy_loss": -(advantages * policy.log_prob(batch.actions[valid])).mean(),
        **{"value_loss": errors.square().mean(), "entropy": policy.entropy().mean()},
        **{"target": returns.mean(), "squared_target": returns.square().mean()},
        **{"residual": errors.mean(), "squared_residual": errors.square().mean()},
    }
    found = a2c.update(learner, TINY, batch, 1e-3)
    assert found.pop("gradient_norm") > 0
    assert {name: each.item() for name, each in found.items()} == pytest.approx(
        {name: each.item() for name, each in expected.items()}, rel=1e-4, abs=1e-6
    )
    explained = 1 - errors.var(correction=0) / returns.var(correction=0)
    columns = columns_of({name: each.numpy() for name, each in found.items()}, 1e-3)
    assert columns["explained_variance"][0] == pytest.approx(explained.item(), rel=1e-4)


def test_rounding_explains_no_variance() -> None:
    """Constant returns, whose moments differ by float64's rounding, have a variance of 0."""
    target = 137.1
    moments = (target, 0.5, math.nextafter(target**2, math.inf), 0.26)
    assert explained_variance(*moments) == 0.0
    assert explained_variance(0.0, 0.0, 0.0, 0.0) == 0.0
    assert explained_variance(0.0, 0.0, 4.0, 1.0) == 0.75
