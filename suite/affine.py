"""Affine layers at a processor's full speed.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that Intel did not
make. oneDNN, which torch brings for its convolutions, uses all that the processor has: on an AMD
EPYC with AVX-512 a product of two 256 x 256 matrices runs at 244 GFLOP/s instead of 117. Both are
float32 throughout; they differ in the order of summation.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_FEWEST_PRODUCTS = 2**22
"""Below as many multiplications, oneDNN's longer way in costs more than it gains."""
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's `x @ w.T + b`; None where torch was built without it."""


def affine(
    bias: Float[Tensor, " O"], inputs: Float[Tensor, "B I"], weight: Float[Tensor, "I O"]
) -> Float[Tensor, "B O"]:
    """Return `bias + inputs @ weight`, as `torch.addmm` does."""
    large = inputs.shape[0] * weight.numel() >= _FEWEST_PRODUCTS
    if not large or _linear is None or inputs.is_cuda or inputs.dtype != torch.float32:
        return torch.addmm(bias, inputs, weight)
    return _Affine.apply(bias, inputs, weight)


class _Affine(torch.autograd.Function):
    """The same, forwards and backwards by oneDNN."""

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
            _product(inputs.t(), gradient) if of_weight else None,
        )


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    return _linear(left, right.t(), bias, "none", [], "")
