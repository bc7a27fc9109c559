"""Affine layers, and perceptrons made of them, at a processor's full speed.

torch multiplies float32 matrices with MKL, which uses AVX2 at most on processors that Intel did not
make. oneDNN, which torch ships for its convolutions, uses all instructions: on an AMD EPYC with
AVX-512 a product of two 256 x 256 matrices runs at 244 GFLOP/s instead of 117. Both compute in
float32 throughout; they differ in the order of summation.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Layers = Sequence[tuple[Tensor, Tensor]]
"""The weight `[in, out]` and the bias `[out]` of every layer of a perceptron."""
_FEWEST_PRODUCTS = 700_000
"""Below this number of multiplications, calling oneDNN costs more time than it saves."""
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's `x @ w.T + b`; None where torch was built without it."""
_relu_gradient: Any = torch.ops.aten.threshold_backward.grad_input


def affine(
    bias: Float[Tensor, " O"], inputs: Float[Tensor, "B I"], weight: Float[Tensor, "I O"]
) -> Float[Tensor, "B O"]:
    """Return `bias + inputs @ weight`, as `torch.addmm` does."""
    if _is_faster(inputs, weight):
        return _Affine.apply(bias, inputs, weight)
    return torch.addmm(bias, inputs, weight)


def perceptrons(
    inputs: Float[Tensor, "S B I"], flat: Float[Tensor, " P"], members: Sequence[Sequence[Layers]]
) -> Float[Tensor, "S K B O"]:
    """Apply K independent perceptrons with ReLU between their layers for each of S seeds.

    Equal to `affine` and `relu` in turn, but a single node of the graph: at usual widths, a node
    per layer adds a fifth to the time of the products.

    Args:
        inputs: one batch per seed, shared by its K members.
        flat: all weights layer by layer, each in the order `[S, K, in, out]`, then all biases.
        members: `members[s][k]` holds that member's layers, views of `flat`.
    """
    return _Perceptrons.apply(inputs, flat, members)


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


class _Perceptrons(torch.autograd.Function):
    """`perceptrons`, forwards and backwards through one member after another."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, flat: Tensor, members: Sequence[Sequence[Layers]]
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        results, ctx.passes, ctx.shape = [], [], (len(members), len(members[0]))
        for batch, of_seed in zip(inputs.unbind(0), members, strict=True):
            for layers in of_seed:
                outputs, layer_inputs = batch, []
                for weight, bias in layers:
                    hidden = outputs.relu_() if layer_inputs else batch
                    layer_inputs.append(hidden)
                    outputs = _product(hidden, weight, bias)
                results.append(outputs)
                if learns:
                    ctx.passes.append((layers, layer_inputs))
        return torch.stack(results).unflatten(0, ctx.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        of_inputs, of_flat, _ = ctx.needs_input_grad
        gradients = grad_outputs[0].flatten(0, 1).unbind(0)
        num_layers = len(ctx.passes[0][0])
        of_weights: list[list[Tensor]] = [[] for _ in range(num_layers)]
        of_biases: list[list[Tensor]] = [[] for _ in range(num_layers)]
        of_batches = []
        for gradient, (layers, layer_inputs) in zip(gradients, ctx.passes, strict=True):
            for i in reversed(range(num_layers)):
                hidden = layer_inputs[i]
                if of_flat:
                    of_weights[i].append(_weight_gradient(hidden, gradient).flatten())
                    of_biases[i].append(gradient.sum(0))
                if i or of_inputs:
                    gradient = _product(gradient, layers[i][0].t())
                if i:
                    _relu_gradient(gradient, hidden, 0, grad_input=gradient)
            of_batches.append(gradient)
        return (
            torch.stack(of_batches).unflatten(0, ctx.shape).sum(1) if of_inputs else None,
            torch.cat([g for layer in of_weights + of_biases for g in layer]) if of_flat else None,
            None,
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
