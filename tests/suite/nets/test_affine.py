"""Affine layers by oneDNN: torch's results, whichever way they take."""

import pytest
import torch
from torch import Tensor

from suite.nets import affine as module
from suite.nets.affine import affine

SIZES = [(256, 256, 256), (80, 3136, 64), (256, 256, 1), (5, 7, 3), (4096, 1024, 1)]
"""Rows, inputs and outputs on both sides of the size from which oneDNN computes."""


@pytest.fixture(autouse=True)
def _onednn_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with AVX-512."""
    monkeypatch.setattr(module, "_linear", torch.ops.mkldnn._linear_pointwise)


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


def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-512 is for oneDNN; elsewhere every size is MKL's."""
    for capability, is_used in (("AVX512", True), ("AVX2", False), ("DEFAULT", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        assert (module._find_linear() is not None) == is_used


def test_onednn_gets_no_columns_of_wider_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Humanoid's observations are wider than a layer, and columns of replay's rows.

    oneDNN's way for a matrix with gaps takes 940 ms instead of 0.8 for their weight gradient.
    """
    linear, seen = torch.ops.mkldnn._linear_pointwise, []

    def watch(left: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(weight.is_contiguous() or weight.t().is_contiguous())
        return linear(left, weight, *rest)

    monkeypatch.setattr(module, "_linear", watch)
    inputs, gradient = torch.ones(256, 771)[:, :376], torch.ones(256, 256)
    assert module._weight_gradient(inputs, gradient).shape == (376, 256)
    assert seen == [True]


def test_other_number_types_are_torchs() -> None:
    """float64, as tests of gradients use it, keeps its precision."""
    bias, inputs, weight, _ = (tensor.double() for tensor in layer(64, 256, 256))
    assert torch.equal(affine(bias, inputs, weight), torch.addmm(bias, inputs, weight))
