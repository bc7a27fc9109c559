"""Data of ALF's SAC, learners whose steps show gradients, and plain networks' same steps."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform

from agents import sac_alf
from suite.envs.vector_env import Spaces
from suite.nets.perceptrons import Ensemble
from suite.replay import Batch
from tests.agents import trainings
from tests.agents.trainings import CPU
from tests.perceptrons import linear, vector


def descent(parameters: Iterable[Tensor]) -> Any:
    """Return plain gradient descent: a step shows the size of a gradient, and not only its sign."""
    return torch.optim.SGD([*parameters], lr=0.1)


def descend(parameters: Iterable[Tensor], loss: Tensor) -> None:
    """Make one such step."""
    weights = list(parameters)
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.data -= 0.1 * gradient


def squash(means: Tensor, log_stds: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh of Gaussian draws, and log-densities over the last axis, as torch has them."""
    pre_tanh = means + log_stds.exp() * noise
    actions = torch.tanh(pre_tanh)
    log_slopes = TanhTransform().log_abs_det_jacobian(pre_tanh, actions)
    return actions, (Normal(means, log_stds.exp()).log_prob(pre_tanh) - log_slopes).sum(-1)


def plain_learner(config: sac_alf.Config, spaces: Spaces) -> sac_alf.Learner:
    """Return a learner whose steps are these, with target copies that differ."""
    learner = sac_alf.make_learner(config, spaces, CPU)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in learner.target_critics.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    if learner.actor is not None:
        learner.actor_optimiser = descent(learner.actor.parameters())
    learner.critic_optimiser = descent(learner.critics.parameters())
    learner.alpha_optimiser = descent([learner.log_alphas])
    return learner


def assert_same_weights(ensemble: Ensemble, member: int, slow: torch.nn.Module) -> None:
    """Compare a network with its plain form in float64."""
    ours = vector(linear(ensemble, 0, member)).double()
    torch.testing.assert_close(ours, vector(slow), atol=1e-6, rtol=1e-5)


def random_batch(
    generator: torch.Generator, seeds: int, size: int, obs: int, act: int, parts: int = 1
) -> Batch:
    """Return transitions whose extras are parts of rewards and the previous action."""
    batch = trainings.random_batch(generator, seeds, size, obs, act)
    further = torch.randn(seeds, size, parts + act + 1, generator=generator)
    rewards, actions, first = further.split([parts, act, 1], -1)
    first = (first > 0.5).float()
    extras = torch.cat([rewards, torch.tanh(actions) * (1 - first), first], -1)
    return batch._replace(rewards=rewards.sum(-1), extras=extras)
