"""Squashed Gaussians: draws, densities and gradients are those of the closed forms."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from suite.squashed_gaussian import squash


def draw(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return means, log standard deviations and noise of two seeds."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 2, 5, 3, generator=generator, dtype=torch.float64).to(dtype)
    return [drawn[0].requires_grad_(), drawn[1].requires_grad_(), drawn[2]]


def test_gradients_are_those_of_finite_differences() -> None:
    """The backward pass, written by hand, of actions and of log-densities."""
    means, log_stds, noise = draw()
    assert torch.autograd.gradcheck(lambda m, s: squash(m, s, noise), (means, log_stds))


def test_results_and_gradients_are_those_of_torchs_distributions() -> None:
    """In float64: a normal distribution behind torch's own tanh."""
    means, log_stds, noise = draw()
    actions, log_probs = squash(means, log_stds, noise)
    normal = Normal(means, log_stds.exp())
    expected = torch.tanh(means + log_stds.exp() * noise)
    tanh: Any = TanhTransform(cache_size=1)
    squashed = TransformedDistribution(normal, [tanh])
    density = squashed.log_prob(tanh(means + log_stds.exp() * noise)).sum(-1)
    torch.testing.assert_close(actions, expected)
    torch.testing.assert_close(log_probs, density)
    loss = (actions * noise).sum() + log_probs.square().sum()
    reference = (expected * noise).sum() + density.square().sum()
    ours = torch.autograd.grad(loss, (means, log_stds))
    torch.testing.assert_close(ours, torch.autograd.grad(reference, (means, log_stds)))


def test_single_precision_agrees_with_the_former_formulation() -> None:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), node by node: equal up to rounding."""
    means, log_stds, noise = draw(torch.float32)
    pre_tanh = means + log_stds.exp() * noise
    log_normal = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - pre_tanh - torch.nn.functional.softplus(-2 * pre_tanh))
    expected = torch.tanh(pre_tanh), (log_normal - log_slope).sum(-1)
    results = squash(means, log_stds, noise)
    torch.testing.assert_close(results, expected)
    gradients = [
        torch.autograd.grad((a * a).sum() + d.sum(), (means, log_stds))
        for a, d in (results, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("mean", [-60.0, 60.0, math.nan])
def test_nothing_is_lost_far_out(mean: float) -> None:
    """Where tanh is 1 in every digit, the density is finite; NaN stays NaN."""
    means = torch.full((1, 1, 1), mean, requires_grad=True)
    actions, log_probs = squash(means, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(mean))
    assert log_probs.item() == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert actions.isnan().all() == math.isnan(mean)
