"""Noise for drawing actions, from a seed's own stream, on a device."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

DrawNoise = Callable[[np.random.Generator, Sequence[int], torch.device], Tensor]
"""`normal` or `gumbel`."""


def normal(generator: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return standard normal draws, float32; mean + std * draws is a draw of a Gaussian."""
    draws = generator.standard_normal(tuple(shape), dtype=np.float32)
    return torch.from_numpy(draws).to(device, non_blocking=True)


def gumbel(generator: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return Gumbel draws, float32; argmax(logits + draws) is a draw of a categorical policy."""
    draws = generator.gumbel(size=tuple(shape)).astype(np.float32)
    return torch.from_numpy(draws).to(device, non_blocking=True)


def stacked(
    draw: DrawNoise,
    generators: Sequence[np.random.Generator],
    shape: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Return what `normal` or `gumbel` draws from each seed's stream, `[S, *shape]`."""
    draws = [draw(each, shape, torch.device("cpu")) for each in generators]
    return torch.stack(draws).to(device, non_blocking=True)


def noise_or_none(
    draw: DrawNoise,
    generators: Sequence[np.random.Generator] | None,
    shape: Sequence[int],
    device: torch.device,
    probability: float,
) -> Tensor | float:
    """Return noise `[S, N, *]` of each seed's stream, for `shape` `[N, *]`; no generators: none.

    A row has noise with a probability; else it is 0, and its action the policy's mode.
    """
    if generators is None:
        return 0.0
    noise = stacked(draw, generators, shape, device)
    if probability == 1:
        return noise
    is_mode = np.stack([each.random((shape[0], 1)) >= probability for each in generators])
    return noise.masked_fill(torch.from_numpy(is_mode).to(device), 0.0)


def choose(
    log_probs: Tensor, generators: Sequence[np.random.Generator] | None, probability: float
) -> Tensor:
    """Return each row's number of an action: with a probability a draw, else the mode."""
    shape, device = log_probs.shape[1:], log_probs.device
    noise = noise_or_none(gumbel, generators, shape, device, probability)
    return (log_probs + noise).argmax(-1)
