"""Initial weights: every scheme draws what its source says it draws."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import scipy.stats
import torch

from suite.nets.initialisation import Scheme, draw_convolution, draw_layer, draw_weight

ALL: tuple[Scheme, ...] = get_args(Scheme)
CUT = scipy.stats.truncnorm(-2, 2)
"""A standard normal variable between -2 and 2."""


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def test_orthogonal_weights_are_uniform_over_orthogonal_matrices() -> None:
    """Then the trace has mean 0 and mean square 1 (Diaconis & Shahshahani 1994)."""
    stream = generator()
    traces = [np.trace(draw_weight(stream, 4, 4, "orthogonal")) for _ in range(10_000)]
    assert np.mean(traces) == pytest.approx(0.0, abs=0.05)
    assert np.mean(np.square(traces)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("scheme", "shape", "deviation", "bound"),
    [
        ("glorot_uniform", (400, 200), 0.1 / math.sqrt(3), 0.1),
        ("glorot_uniform", (8, 16, 5), 0.1 / math.sqrt(3), 0.1),
        ("truncated_normal", (400, 300), 0.8796 / 20, 2 / 20),
        ("lecun_normal", (400, 300), 1 / 20, 2 / 20 / 0.8796),
        ("torch", (400, 300), 1 / 20 / math.sqrt(3), 1 / 20),
    ],
)
def test_initial_weights_have_their_sources_distribution(
    scheme: Any, shape: tuple[int, ...], deviation: float, bound: float
) -> None:
    """Spread, bound and shape, of matrices; of kernels where outputs count, with their area."""
    if len(shape) == 2:
        weight = draw_weight(generator(), *shape, scheme)
    else:
        weight = draw_convolution(generator(), shape, scheme, 1.0)[0].numpy()  # type: ignore[arg-type]
    assert weight.std() == pytest.approx(deviation, rel=0.03)
    assert 0.95 * bound < np.abs(weight).max() <= bound * 1.001
    uniform = scheme in ("glorot_uniform", "torch")
    distribution = scipy.stats.uniform(-bound, 2 * bound) if uniform else CUT
    unit = 1 if uniform else deviation / CUT.std()
    assert scipy.stats.kstest(weight.ravel() / unit, distribution.cdf).pvalue > 0.01


def test_unit_norms_are_of_units_and_of_a_kernels_inputs() -> None:
    """nnabla-rl scales slices along the first axis: of `[in, out]`, and of `[out, in, h, w]`."""
    matrix = draw_weight(generator(), 40, 30, "unit_norm")
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), np.ones(30), rtol=1e-5)
    kernel = draw_convolution(generator(), (16, 4, 8), "unit_norm", 1.0)[0].numpy()
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), np.ones((4, 8, 8)), rtol=1e-5)
    columns = kernel.reshape(16, -1)
    assert np.linalg.norm(columns, axis=1) == pytest.approx(np.full(16, 4.0), rel=0.2)
    assert scipy.stats.normaltest(matrix.ravel()).pvalue > 0.01


@pytest.mark.parametrize("scheme", ALL)
def test_biases_are_zero_but_for_those_of_torch(scheme: Scheme) -> None:
    """Those of `torch` are uniform in the bounds of the weights."""
    weight, bias = draw_layer(generator(), 100, [(2_000, 1.0), (3_000, 1.0)], scheme)
    assert bias.shape == (5_000,)
    _, of_kernel = draw_convolution(generator(), (64, 4, 5), scheme, 1.0)
    assert of_kernel.shape == (64,)
    assert (of_kernel != 0).all() == (scheme == "torch")
    if scheme != "torch":
        assert not bias.any()
        return
    assert of_kernel.abs().max() <= np.float32(0.1)
    uniform = scipy.stats.uniform(-0.1, 0.2)
    for drawn in (bias, weight.flatten()[::99]):
        assert 0.095 < drawn.abs().max() <= np.float32(0.1)
        assert scipy.stats.kstest(drawn.numpy(), uniform.cdf).pvalue > 0.01


def test_heads_of_a_layer_are_drawn_one_after_another() -> None:
    """Side by side they are what each, with its own gain, would be as a layer of its own."""
    stream, heads = generator(), [(3, 0.01), (1, 2.0)]
    alone = [draw_layer(stream, 6, [head], "orthogonal")[0] for head in heads]
    together, _ = draw_layer(generator(), 6, heads, "orthogonal")
    assert torch.equal(together, torch.cat(alone, 1))
    np.testing.assert_allclose(together.norm(dim=0), [0.01, 0.01, 0.01, 2.0], rtol=1e-5)


@pytest.mark.parametrize("scheme", ALL)
def test_a_kernel_is_a_matrix_of_patches_in_channels_last_memory(scheme: Scheme) -> None:
    """A unit's inputs are channels times area; orthogonal filters are orthonormal patches."""
    kernel, _ = draw_convolution(generator(), (8, 4, 3), scheme, 0.5)
    assert kernel.shape == (8, 4, 3, 3)
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    matrix = draw_weight(generator(), 4 * 9, 8, scheme, 0.5, kernel_area=9)
    np.testing.assert_array_equal(kernel.flatten(1).T, matrix)
    gram = kernel.flatten(1) @ kernel.flatten(1).T
    orthonormal = torch.allclose(gram, 0.25 * torch.eye(8), atol=1e-5)
    assert orthonormal == (scheme == "orthogonal")
