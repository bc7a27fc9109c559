"""Affine layers of trunks by oneDNN, on processors with AVX-512.

torch multiplies float32 matrices with MKL, which uses AVX2 at most on processors that Intel did not
make. oneDNN, which torch ships for its convolutions, uses all instructions. Both compute in float32
throughout; they differ in the order of summation. The processor decides between them, never a
clock, so that a run has the same bytes every time.

What oneDNN wins differs by processor. A product of two 256 x 256 matrices ran at 244 GFLOP/s
instead of 117 on one AMD EPYC with AVX-512, and no faster than MKL's on another. Whole updates win
nothing where they were measured. AMD EPYC (family 25, model 17): A2C on Pong takes 59 ms instead of
58, PPO on CartPole 1.6 instead of 1.3. Intel (family 6, model 207): A2C 58 instead of 52. Without
AVX-512 oneDNN took 400 to 540 us for such a product and MKL 370 (AMD EPYC, family 25, model 1). So
this file goes when the bytes of its agents change next.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_FEWEST_PRODUCTS = 700_000
"""Below this number of multiplications, calling oneDNN costs more time than it saves."""


def _find_linear() -> Any:
    """Return oneDNN's `x @ w.T + b`; None without AVX-512, or where torch was built without it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_linear = _find_linear()


def affine(
    bias: Float[Tensor, " O"], inputs: Float[Tensor, "B I"], weight: Float[Tensor, "I O"]
) -> Float[Tensor, "B O"]:
    """Return `bias + inputs @ weight`, as `torch.addmm` does."""
    if not torch.compiler.is_compiling() and _is_faster(inputs, weight):  # ONNX knows `addmm`
        return _Affine.apply(bias, inputs, weight)
    return torch.addmm(bias, inputs, weight)


class _Affine(torch.autograd.Function):
    """`affine` by oneDNN, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (gradient,), (inputs, weight) = grad_outputs, ctx.saved_tensors
        of_bias, of_inputs, of_weight = ctx.needs_input_grad
        return (
            gradient.sum(0) if of_bias else None,
            _product(gradient, weight.t()) if of_inputs else None,
            _weight_gradient(inputs, gradient) if of_weight else None,
        )


def _is_faster(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN makes a product faster; it never does if `right` has one column."""
    large = left.shape[0] * right.numel() >= _FEWEST_PRODUCTS and right.shape[1] > 1
    return large and _linear is not None and not left.is_cuda and left.dtype == torch.float32


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    if _is_faster(left, right):
        return _linear(left, right.t(), bias, "none", [], "")
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def _weight_gradient(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return `inputs.T @ gradient`, contiguous; oneDNN wants the longer side last.

    Inputs may be columns of wider rows, with which oneDNN would take a thousand times as long.
    """
    if gradient.shape[1] < inputs.shape[1]:
        return _product(gradient.t(), inputs.contiguous()).t().contiguous()
    return _product(inputs.t(), gradient)
