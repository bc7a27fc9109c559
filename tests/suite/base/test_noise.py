"""Noise: the distributions it is named after, each seed's from its own stream alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from suite.base.noise import gumbel, noise_or_none, normal, stacked

CPU = torch.device("cpu")


def among(generator: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return the draws of one seed among others."""
    others = [np.random.default_rng(99), np.random.default_rng(98)]
    return stacked(normal, [others[0], generator, others[1]], shape, device)[1]


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [(normal, scipy.stats.norm), (gumbel, scipy.stats.gumbel_r), (among, scipy.stats.norm)],
)
def test_noise_has_its_distribution_and_comes_from_its_stream(draw: Any, distribution: Any) -> None:
    """float32 of the shape asked for, the same bytes from the same stream; torch's is untouched."""
    state = torch.get_rng_state()
    noise = draw(np.random.default_rng(0), (200, 50, 3), CPU)
    assert (noise.dtype, noise.shape) == (torch.float32, (200, 50, 3))
    assert scipy.stats.kstest(noise.flatten().numpy(), distribution.cdf).pvalue > 0.01
    columns = noise.flatten(0, 1).T.numpy()
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 0.05
    assert torch.equal(draw(np.random.default_rng(0), (200, 50, 3), CPU), noise)
    assert not torch.equal(draw(np.random.default_rng(1), (200, 50, 3), CPU), noise)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_noise_comes_with_a_probability_for_each_row(probability: float) -> None:
    """Whole rows are 0 as often as asked; the others are what they would be, seed by seed."""

    def streams() -> list[np.random.Generator]:
        return [np.random.default_rng(seed) for seed in (0, 1)]

    noise = noise_or_none(normal, streams(), (5_000, 3), CPU, probability)
    plain = stacked(normal, streams(), (5_000, 3), CPU)
    assert isinstance(noise, Tensor)
    drawn = (noise != 0).all(-1)
    assert torch.equal(noise, plain * drawn[..., None])
    assert drawn.float().mean(1).tolist() == pytest.approx([probability] * 2, abs=0.03)
    assert noise_or_none(normal, None, (5, 3), CPU, probability) == 0.0
    if 0 < probability < 1:
        assert not torch.equal(drawn[0], drawn[1])
