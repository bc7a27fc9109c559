"""Gaussians in closed form: densities, divergences and their gradients by statistics."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Normal distributions of actions whose dimensions are independent."""

    means: Float[Tensor, "*B A"]
    """In the units of actions in [-1, 1]."""
    log_stds: Float[Tensor, "*B A"]
    """Logarithms of the standard deviations."""

    def unflatten(self, length: int) -> "Gaussian":
        """Return `[T * B, A]` as `[T, B, A]`."""
        return Gaussian(*(each.unflatten(0, (length, -1)) for each in self))

    def draw(self, noise: Float[Tensor, "*M A"]) -> Float[Tensor, "*M A"]:
        """Turn standard normal noise into actions."""
        return torch.addcmul(self.means, self.log_stds.exp(), noise)

    def log_probs(self, actions: Float[Tensor, "*M A"]) -> Float[Tensor, "*M"]:
        """Return the logarithms of the actions' densities."""
        standardised = (actions - self.means) * torch.exp(-self.log_stds)
        return -(0.5 * standardised.square() + self.log_stds + _HALF_LOG_2_PI).sum(-1)

    def entropies(self) -> Float[Tensor, "*B"]:
        """Return the entropies, nats."""
        return (self.log_stds + 0.5 + _HALF_LOG_2_PI).sum(-1)

    def scores(self, actions: Float[Tensor, "*B A"]) -> Float[Tensor, "*B S"]:
        """Return the gradients of `log_probs` w.r.t. means and log deviations, side by side."""
        inverses = torch.exp(-self.log_stds)
        standardised = (actions - self.means) * inverses
        return torch.cat([standardised * inverses, standardised.square() - 1], -1)


def truncated_log_density(
    values: Float[Tensor, "*B"], centres: Float[Tensor, "*B"], std: float
) -> Float[Tensor, "*B"]:
    """Return the log-density of values in [-1, 1] under normals that are cut off outside.

    Means and deviation are those before the cut; the rest adds up to 1.
    """
    within = torch.special.ndtr((1 - centres) / std) - torch.special.ndtr((-1 - centres) / std)
    normaliser = math.log(std) + _HALF_LOG_2_PI
    return -0.5 * ((values - centres) / std).square() - normaliser - within.log()


def divergences(average: Gaussian, policy: Gaussian) -> Float[Tensor, "*B"]:
    """Return KL(average || policy), nats."""
    log_ratios = average.log_stds - policy.log_stds
    distances = (average.means - policy.means) * torch.exp(-policy.log_stds)
    return 0.5 * ((2 * log_ratios).exp() - 1 - 2 * log_ratios + distances.square()).sum(-1)


def divergence_gradients(average: Gaussian, policy: Gaussian) -> Float[Tensor, "*B S"]:
    """Return the gradients of `divergences` w.r.t. the policy's means and log deviations."""
    inverses = torch.exp(-policy.log_stds)
    distances = (policy.means - average.means) * inverses
    squared_ratios = (2 * (average.log_stds - policy.log_stds)).exp()
    return torch.cat([distances * inverses, 1 - squared_ratios - distances.square()], -1)
