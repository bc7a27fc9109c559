"""Initial weights for every agent, drawn from a seed's own stream.

A seed's streams are numpy's, on every device; torch's `nn.init` would need a torch generator.
Weights are `[fan_in, fan_out]`; `draw_convolution` gives them a kernel's shape.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Scheme = Literal[
    "orthogonal",
    "glorot_uniform",
    "truncated_normal",
    "lecun_normal",
    "he_normal",
    "torch",
    "unit_norm",
]
"""How weights are drawn. Biases are 0; `torch` draws them within the weights' bounds.

`orthogonal`: uniform over matrices with orthonormal columns (rows, where there are more columns
than rows), times a gain (Saxe et al. 2014). `glorot_uniform`: within +-sqrt(6 / (fan_in + fan_out))
(Glorot & Bengio 2010). `truncated_normal`: normal, cut at two deviations of fan_in^-1/2 (Sonnet 1).
`lecun_normal`: the same, but widened so that the deviation is fan_in^-1/2 after the cut (flax).
`he_normal`: normal with deviation (2 / fan_in)^1/2, not cut (He et al. 2015, arXiv:1502.01852).
`torch`: within +-fan_in^-1/2 (`nn.Linear`). `unit_norm`: normal, then scaled so that a unit's
weights have norm 1; in a kernel, the weights that leave one of its inputs (nnabla-rl).
"""
_CUT_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal variable that is cut at +-2."""
_room: ContextVar[float] = ContextVar("room", default=math.inf)
"""How many more weights may be drawn."""


@contextmanager
def at_most(num_weights: int) -> Iterator[None]:
    """Limit the number of weights drawn for a network that an untrusted file describes.

    Raises:
        ValueError: before the layer that is too large takes memory.
    """
    before = _room.set(num_weights)
    try:
        yield
    finally:
        _room.reset(before)


def draw_weight(
    generator: np.random.Generator,
    fan_in: int,
    fan_out: int,
    scheme: Scheme,
    gain: float = 1.0,
    kernel_area: int = 1,
) -> np.ndarray:
    """Draw weights `[fan_in, fan_out]`, float32.

    Args:
        generator: the seed's stream of initial weights.
        fan_in: inputs of a unit; of a convolution, channels times the kernel's area.
        fan_out: units, or a convolution's output channels.
        scheme: see `Scheme`.
        gain: factor on orthogonal weights; other schemes ignore it.
        kernel_area: outputs per channel that each input reaches: the area of a kernel.

    Raises:
        ValueError: if it would be more than `at_most` allows.
    """
    _room.set(_room.get() - max(fan_in * fan_out, 1))
    if _room.get() < 0:
        raise ValueError("layers with more weights than there are")
    if scheme == "orthogonal":
        tall = generator.standard_normal((max(fan_in, fan_out), min(fan_in, fan_out)))
        columns, triangle = np.linalg.qr(tall)
        columns *= np.sign(np.diag(triangle))  # uniform over orthogonal matrices (Mezzadri 2007)
        weight = gain * (columns if fan_in >= fan_out else columns.T)
    elif scheme == "glorot_uniform":
        bound = math.sqrt(6 / (fan_in + fan_out * kernel_area))
        weight = generator.uniform(-bound, bound, (fan_in, fan_out))
    elif scheme == "torch":
        bound = math.sqrt(1 / fan_in)
        weight = generator.uniform(-bound, bound, (fan_in, fan_out))
    elif scheme == "he_normal":
        weight = math.sqrt(2 / fan_in) * generator.standard_normal((fan_in, fan_out))
    elif scheme == "unit_norm":
        weight = generator.standard_normal((fan_in, fan_out))
        weight /= np.linalg.norm(weight, axis=0 if kernel_area == 1 else 1, keepdims=True)
    else:
        weight = generator.standard_normal((fan_in, fan_out))
        while (far := np.abs(weight) > 2).any():
            weight[far] = generator.standard_normal(np.count_nonzero(far))
        weight /= math.sqrt(fan_in)
        if scheme == "lecun_normal":
            weight /= _CUT_DEVIATION
    return weight.astype(np.float32)


def draw_layer(
    generator: np.random.Generator,
    fan_in: int,
    heads: Sequence[tuple[int, float]],
    scheme: Scheme,
    kernel_area: int = 1,
) -> tuple[Tensor, Tensor]:
    """Draw an affine layer: weights `[fan_in, fan_out]` and biases `[fan_out]`, float32.

    Heads, (width, gain) of outputs, are drawn one after another and then joined; see `draw_weight`.
    """
    weights, biases = [], []
    for width, gain in heads:
        weights.append(draw_weight(generator, fan_in, width, scheme, gain, kernel_area))
        drawn, bound = scheme == "torch", math.sqrt(1 / fan_in)
        biases.append(generator.uniform(-bound, bound, width) if drawn else np.zeros(width))
    weight = np.concatenate(weights, axis=1)
    bias = np.concatenate(biases).astype(np.float32)
    return torch.from_numpy(weight), torch.from_numpy(bias)


def draw_convolution(
    generator: np.random.Generator, shape: tuple[int, int, int], scheme: Scheme, gain: float
) -> tuple[Tensor, Tensor]:
    """Draw a kernel `[filters, channels, size, size]` of a `shape` (filters, channels, size).

    It lies in channels-last memory. Return it and its biases `[filters]`.
    """
    filters, channels, size = shape
    area = size * size
    weight, bias = draw_layer(generator, channels * area, [(filters, gain)], scheme, area)
    kernel = weight.T.reshape(filters, channels, size, size)
    # channels last: twice the speed of the backward pass on a CPU
    return kernel.contiguous(memory_format=torch.channels_last), bias
