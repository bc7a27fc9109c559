"""Affine layers by oneDNN: torch's results, whichever way they take."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from suite import affine as module
from suite.affine import Layers, affine, perceptrons

SIZES = [(256, 256, 256), (80, 3136, 64), (256, 256, 1), (5, 7, 3), (4096, 1024, 1)]
"""Rows, inputs and outputs on both sides of the size from which oneDNN computes."""


def layer(rows: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((outputs,), (rows, inputs), (inputs, outputs), (rows, outputs))
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return drawn[0], drawn[1], drawn[2], drawn[3]


@pytest.mark.parametrize("size", SIZES)
def test_results_and_gradients_are_those_of_float64(size: tuple[int, int, int]) -> None:
    """The forward pass and all three gradients, to the rounding of float32."""
    *arguments, upstream = layer(*size)
    ours = [a.requires_grad_() for a in arguments]
    theirs = [a.detach().double().requires_grad_() for a in arguments]
    output, expected = affine(ours[0], ours[1], ours[2]), torch.addmm(*theirs)
    gradients = torch.autograd.grad(output, ours, upstream)
    expected_gradients = torch.autograd.grad(expected, theirs, upstream.double())
    for ours_, theirs_ in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        torch.testing.assert_close(ours_.double(), theirs_, rtol=1e-4, atol=1e-3)
        assert ours_.is_contiguous()


def test_large_layers_take_the_way_of_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sizes that gain from it, and only where torch has it."""
    calls = []
    linear = module._linear
    assert linear is not None
    monkeypatch.setattr(module, "_linear", lambda *a: calls.append(1) or linear(*a))
    for size, count in (((64, 256, 256), 1), ((16, 64, 64), 0), ((4096, 1024, 1), 0)):
        calls.clear()
        affine(*layer(*size)[:3])
        assert len(calls) == count
    monkeypatch.setattr(module, "_linear", None)
    affine(*layer(64, 256, 256)[:3])


@pytest.mark.parametrize("sizes", [(17, 256, 256, 12), (23, 256, 256, 1), (3, 8, 2), (5, 4)])
@pytest.mark.parametrize("frozen", [False, True])
def test_perceptrons_are_their_layers(sizes: tuple[int, ...], frozen: bool) -> None:
    """Results and gradients of two seeds with three members each, against float64 autograd."""
    generator = torch.Generator().manual_seed(0)
    pairs = list(pairwise(sizes))
    blocks = [torch.randn(2, 3, i, o, generator=generator) / i**0.5 for i, o in pairs]
    blocks += [torch.randn(2, 3, o, generator=generator) for _, o in pairs]
    inputs = torch.randn(2, 256, sizes[0], generator=generator, requires_grad=True)
    flat = torch.cat([block.flatten() for block in blocks]).requires_grad_(not frozen)
    parts = flat.detach().split([block.numel() for block in blocks])
    views = [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]

    def layers(seed: int, member: int) -> Layers:
        cut = [view[seed, member] for view in views]
        return list(zip(cut[: len(pairs)], cut[len(pairs) :], strict=True))

    outputs = perceptrons(inputs, flat, [[layers(s, k) for k in range(3)] for s in range(2)])
    leaves = [tensor.detach().double().requires_grad_() for tensor in (inputs, *blocks)]
    hidden = leaves[0][:, None]
    for layer in range(len(pairs)):
        hidden = hidden.relu() if layer else hidden
        hidden = hidden @ leaves[1 + layer] + leaves[1 + len(pairs) + layer][:, :, None]
    torch.testing.assert_close(outputs.double(), hidden, rtol=1e-4, atol=1e-4)
    upstream = torch.randn(outputs.shape, generator=generator)
    expected = torch.autograd.grad(hidden, leaves, upstream.double())
    wanted = [inputs] if frozen else [inputs, flat]
    gradients = torch.autograd.grad(outputs, wanted, upstream)
    joined = torch.cat([gradient.flatten() for gradient in expected[1:]])
    for ours, theirs in zip(gradients, (expected[0], joined), strict=False):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)


def test_onednn_gets_no_columns_of_wider_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Humanoid's observations are wider than a layer, and columns of replay's rows.

    oneDNN's way for a matrix with gaps takes 940 ms instead of 0.8 for their weight gradient.
    """
    if module._linear is None:
        pytest.skip("this torch has no oneDNN")
    linear, seen = module._linear, []

    def watch(left: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(weight.is_contiguous() or weight.t().is_contiguous())
        return linear(left, weight, *rest)

    monkeypatch.setattr(module, "_linear", watch)
    inputs, gradient = torch.ones(256, 771)[:, :376], torch.ones(256, 256)
    assert module._weight_gradient(inputs, gradient).shape == (376, 256)
    assert seen == [True]


def test_frozen_weights_get_no_gradient() -> None:
    """A layer whose weights are constants passes a gradient to its inputs alone."""
    bias, inputs, weight, upstream = layer(64, 256, 256)
    inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(affine(bias, inputs, weight), [inputs], upstream)
    torch.testing.assert_close(gradient, upstream @ weight.T, rtol=1e-4, atol=1e-3)


def test_other_number_types_are_torchs() -> None:
    """float64, as tests of gradients use it, keeps its precision."""
    bias, inputs, weight, _ = (tensor.double() for tensor in layer(64, 256, 256))
    assert torch.equal(affine(bias, inputs, weight), torch.addmm(bias, inputs, weight))
