"""Normal distributions cut off outside [-1, 1], the rest made to add up to 1."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def log_density(
    values: Float[Tensor, "*B"], centres: Float[Tensor, "*B"], std: float
) -> Float[Tensor, "*B"]:
    """Return the log-density of values in [-1, 1]; means and deviation are those before the cut."""
    within = torch.special.ndtr((1 - centres) / std) - torch.special.ndtr((-1 - centres) / std)
    normaliser = math.log(std) + 0.5 * math.log(2 * math.pi)
    return -0.5 * ((values - centres) / std).square() - normaliser - within.log()
