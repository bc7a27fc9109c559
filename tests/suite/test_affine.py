"""Affine layers by oneDNN: torch's results, whichever way they take."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from suite import affine as module
from suite.affine import Layer, Members, Pass, affine, perceptrons

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


def stacked(sizes: tuple[int, ...]) -> tuple[Tensor, list[Tensor], Members]:
    """Return the vector of the weights of two seeds with three members each, and views of it.

    The views are stacked weights and then biases, layer by layer, and the layers of each member.
    """
    generator, pairs = torch.Generator().manual_seed(0), list(pairwise(sizes))
    blocks = [torch.randn(2, 3, i, o, generator=generator) / i**0.5 for i, o in pairs]
    blocks += [torch.randn(2, 3, o, generator=generator) for _, o in pairs]
    flat = torch.cat([block.flatten() for block in blocks])
    parts = flat.split([block.numel() for block in blocks])
    views = [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]

    def layers(seed: int, member: int) -> list[Layer]:
        cut = [view[seed, member] for view in views]
        both = zip(cut[: len(pairs)], cut[len(pairs) :], strict=True)
        return [Layer(weight, bias, weight.t()) for weight, bias in both]

    return flat, views, [[layers(s, k) for k in range(3)] for s in range(2)]


def plain(inputs: Tensor, views: list[Tensor]) -> Tensor:
    """Return what stacked weights and biases give, in torch's own operators."""
    number, hidden = len(views) // 2, inputs[:, None]
    for layer in range(number):
        hidden = hidden.relu() if layer else hidden
        hidden = hidden @ views[layer] + views[number + layer][:, :, None]
    return hidden


WIDTHS = [(17, 256, 256, 12), (23, 256, 256, 1), (3, 8, 2), (5, 4), (9, 1), (393, 256, 2)]
"""Widths of layers, with and without such as oneDNN multiplies."""


@pytest.mark.parametrize("sizes", WIDTHS)
@pytest.mark.parametrize("frozen", [False, True])
def test_perceptrons_are_their_layers(sizes: tuple[int, ...], frozen: bool) -> None:
    """Results and gradients of two seeds with three members each, against float64 autograd."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(2, 256, sizes[0], generator=generator, requires_grad=True)
    flat, views, members = stacked(sizes)
    flat.requires_grad_(not frozen)
    outputs = perceptrons(inputs, flat, members)
    leaves = [tensor.detach().double().requires_grad_() for tensor in (inputs, *views)]
    expected_outputs = plain(leaves[0], leaves[1:])
    torch.testing.assert_close(outputs.double(), expected_outputs, rtol=1e-4, atol=1e-4)
    upstream = torch.randn(outputs.shape, generator=generator)
    expected = torch.autograd.grad(expected_outputs, leaves, upstream.double())
    wanted = [inputs] if frozen else [inputs, flat]
    gradients = torch.autograd.grad(outputs, wanted, upstream)
    joined = torch.cat([gradient.flatten() for gradient in expected[1:]])
    for ours, theirs in zip(gradients, (expected[0], joined), strict=False):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sizes", WIDTHS)
def test_a_pass_gives_the_gradient_of_each_weight_and_each_part(sizes: tuple[int, ...]) -> None:
    """Columns of wider rows and contiguous ones side by side, against float64 autograd."""
    generator, split = torch.Generator().manual_seed(1), sizes[0] - 2
    rows = torch.randn(2, 256, sizes[0] + 5, generator=generator)
    inputs = [rows[..., :split], rows[..., -2:].contiguous()]
    _, views, members = stacked(sizes)
    forwards = Pass(members, inputs)
    leaves = [tensor.detach().double().requires_grad_() for tensor in (*inputs, *views)]
    expected_outputs = plain(torch.cat(leaves[:2], -1), leaves[2:])
    if sizes[-1] == 1:
        expected_outputs = expected_outputs.squeeze(-1)
    torch.testing.assert_close(forwards.outputs.double(), expected_outputs, rtol=1e-4, atol=1e-4)
    upstream = torch.randn(forwards.outputs.shape, generator=generator)
    expected = torch.autograd.grad(expected_outputs, leaves, upstream.double())
    of_inputs = [forwards.input_gradient(upstream, part) for part in range(2)]
    of_members = [part for stack in expected[2:] for part in stack.flatten(0, 1)]
    ours = [*of_inputs, *forwards.weight_gradients(upstream)]
    for gradient, theirs in zip(ours, [*expected[:2], *of_members], strict=True):
        torch.testing.assert_close(gradient.double(), theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sizes", [(17, 256, 256, 12), (3, 8, 2)])
def test_a_pass_hides_no_nan(sizes: tuple[int, ...]) -> None:
    """One NaN among the inputs is in that row's outputs, whoever multiplies: runs diverge aloud."""
    _, _, members = stacked(sizes)
    inputs = torch.ones(2, 256, sizes[0])
    inputs[1, 3, 0] = torch.nan
    sick = Pass(members, [inputs]).outputs.isnan()
    assert sick[1, :, 3].all()
    assert sick.sum() == sick[1, :, 3].numel()


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
    assert module._weight_product(inputs, gradient).shape == (376, 256)
    assert seen == [True, True]


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
