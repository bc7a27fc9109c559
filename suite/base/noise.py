"""Noise for drawing actions, from a seed's own stream, on a device."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def normal(generator: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return standard normal draws, float32; mean + std * draws is a draw of a Gaussian."""
    draws = generator.standard_normal(tuple(shape), dtype=np.float32)
    return torch.from_numpy(draws).to(device, non_blocking=True)


def gumbel(generator: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return Gumbel draws, float32; argmax(logits + draws) is a draw of a categorical policy."""
    draws = generator.gumbel(size=tuple(shape)).astype(np.float32)
    return torch.from_numpy(draws).to(device, non_blocking=True)


def stacked_normal(
    generators: Sequence[np.random.Generator], shape: Sequence[int], device: torch.device
) -> Tensor:
    """Return standard normal draws of `shape` from each seed's stream, `[S, *shape]` float32."""
    draws = [g.standard_normal(tuple(shape), dtype=np.float32) for g in generators]
    return torch.from_numpy(np.stack(draws)).to(device, non_blocking=True)


def stacked_gumbel(
    generators: Sequence[np.random.Generator], shape: Sequence[int], device: torch.device
) -> Tensor:
    """Return Gumbel draws of `shape` from each seed's stream, `[S, *shape]` float32."""
    draws = [g.gumbel(size=tuple(shape)).astype(np.float32) for g in generators]
    return torch.from_numpy(np.stack(draws)).to(device, non_blocking=True)


def noise_or_none(
    draw: Callable[..., Tensor],
    generators: Sequence[np.random.Generator] | None,
    shape: Sequence[int],
    device: torch.device,
    probability: float,
) -> Tensor | float:
    """Return noise `[S, N, *]` of which a row is 0 where its action is to be the policy's mode.

    Args:
        draw: `stacked_normal` or `stacked_gumbel`.
        generators: each seed's stream; None: every action is the mode.
        shape: `[N, *]`.
        device: where the noise is used.
        probability: of noise, for each row; 1: always.
    """
    if generators is None:
        return 0.0
    noise = draw(generators, shape, device)
    if probability == 1:
        return noise
    is_mode = np.stack([each.random((shape[0], 1)) >= probability for each in generators])
    return noise.masked_fill(torch.from_numpy(is_mode).to(device), 0.0)


def choose(
    log_probs: Tensor, generators: Sequence[np.random.Generator] | None, probability: float
) -> Tensor:
    """Return the number of an action for each row, `[S, N]`: a draw, or the mode.

    Args:
        log_probs: of all actions, `[S, N, A]`.
        generators: each seed's stream; None: modes.
        probability: of a draw, for each row.
    """
    shape, device = log_probs.shape[1:], log_probs.device
    noise = noise_or_none(stacked_gumbel, generators, shape, device, probability)
    return (log_probs + noise).argmax(-1)
