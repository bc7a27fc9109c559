"""Affine layers, and perceptrons made of them, at a processor's full speed.

torch multiplies float32 matrices with MKL, which uses AVX2 at most on processors that Intel did not
make. oneDNN, which torch ships for its convolutions, uses all instructions: on an AMD EPYC with
AVX-512 a product of two 256 x 256 matrices runs at 244 GFLOP/s instead of 117. Both compute in
float32 throughout; they differ in the order of summation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Layers = Sequence[tuple[Tensor, Tensor]]
"""The weight `[in, out]` and the bias `[out]` of every layer of a perceptron."""


class Layer(NamedTuple):
    """One layer of a stacked perceptron: views, made once, of the vector of weights."""

    weight: Tensor  # [in, out]
    bias: Tensor  # [out]
    transposed: Tensor  # [out, in], the weight's


Members = Sequence[Sequence[Sequence[Layer]]]
"""`members[s][k]`: the layers of perceptron k of seed s."""

_FEWEST_PRODUCTS = 700_000
"""Below this number of multiplications, calling oneDNN costs more time than it saves."""
_FEWEST_IN_PASS = 2_000_000
"""The same within a pass of perceptrons, where a call of torch's own product costs less."""
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's `x @ w.T + b`; None where torch was built without it."""
_affine_relu: Any = torch._addmm_activation  # type: ignore[attr-defined]
relu_gradient: Any = torch.ops.aten.threshold_backward.grad_input
"""Writes what a ReLU passes back of a gradient, from its outputs."""


def affine(
    bias: Float[Tensor, " O"], inputs: Float[Tensor, "B I"], weight: Float[Tensor, "I O"]
) -> Float[Tensor, "B O"]:
    """Return `bias + inputs @ weight`, as `torch.addmm` does."""
    if _is_faster(inputs, weight):
        return _Affine.apply(bias, inputs, weight)
    return torch.addmm(bias, inputs, weight)


class Pass:
    """A pass of stacked perceptrons forwards, and the passes backwards that follow it.

    They take one member after another, without autograd: at usual widths, a node of its graph for
    each layer would add a fifth to the time of the products.

    Args:
        members: whose layers have ReLU between them.
        inputs: columns side by side of one batch per seed, shared by its K members.
    """

    outputs: Float[Tensor, "S K B *O"]
    """`[S, K, B, O]`, or `[S, K, B]` if O is 1."""

    def __init__(self, members: Members, inputs: Sequence[Float[Tensor, "S B _"]]) -> None:
        self._members, self._widths = members, [columns.shape[-1] for columns in inputs]
        self._hidden: list[list[Tensor]] = []  # of every member, the inputs of its layers
        results, batches = [], torch.cat([*inputs], -1) if len(inputs) > 1 else inputs[0]
        for batch, of_seed in zip(batches.unbind(0), members, strict=True):
            for layers in of_seed:
                hidden = [batch]
                for layer in layers[:-1]:
                    hidden.append(_activations(hidden[-1], layer))
                results.append(_outputs(hidden[-1], layers[-1]))
                self._hidden.append(hidden)
        stacked = torch.stack(results) if len(results) > 1 else results[0]
        rows, width = results[0].shape
        shape = (len(members), len(members[0]), rows, width)
        self.outputs = stacked.view(shape if width != 1 else shape[:3])

    def weight_gradients(self, of_outputs: Tensor) -> list[Tensor]:
        """Return the gradients of all weights, then of all biases: layer by layer, `[s][k]`."""
        return self.gradients(of_outputs, of_weights=True)[0]

    def input_gradient(self, of_outputs: Tensor, part: int = 0) -> Float[Tensor, "S B _"]:
        """Return the gradient of one part of the inputs."""
        return self._of_part(part, self.gradients(of_outputs, of_weights=False)[1])

    def gradients(
        self, of_outputs: Tensor, *, of_weights: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients of the parameters, if wanted, and of each member's first layer.

        Args:
            of_outputs: the gradient of the outputs, in their order.
            of_weights: whether those of the parameters are wanted.
        """
        members = [layers for of_seed in self._members for layers in of_seed]
        weights: list[list[Tensor]] = [[] for _ in members[0]]
        biases: list[list[Tensor]] = [[] for _ in members[0]]
        of_first = []
        shape = (len(members), len(self._hidden[0][0]), members[0][-1].bias.numel())
        of_members = of_outputs.reshape(shape).unbind(0)
        for gradient, layers, hidden in zip(of_members, members, self._hidden, strict=True):
            for i in reversed(range(len(layers))):
                if of_weights:
                    weights[i].append(_weight_product(hidden[i], gradient))
                    biases[i].append(gradient.sum(0))
                if i:
                    gradient = _input_product(gradient, layers[i])
                    relu_gradient(gradient, hidden[i], 0, grad_input=gradient)
            of_first.append(gradient)
        return [gradient for layer in weights + biases for gradient in layer], of_first

    def _of_part(self, part: int, of_first: Sequence[Tensor]) -> Tensor:
        """Return the gradient of one part of the inputs: each seed's sum over its members."""
        end = sum(self._widths[: part + 1])
        columns, sums, gradients = slice(end - self._widths[part], end), [], iter(of_first)
        for of_seed in self._members:
            sums.append(_product(next(gradients), of_seed[0][0].transposed[:, columns]))
            for layers in of_seed[1:]:
                sums[-1] += _product(next(gradients), layers[0].transposed[:, columns])
        return torch.stack(sums)


def perceptrons(
    inputs: Float[Tensor, "S B I"], flat: Float[Tensor, " P"], members: Members
) -> Float[Tensor, "S K B O"]:
    """Apply K independent perceptrons with ReLU between their layers for each of S seeds.

    Equal to `affine` and `relu` in turn, but a single node of autograd's graph, a `Pass`.

    Args:
        inputs: one batch per seed, shared by its K members.
        flat: all weights layer by layer, each in the order `[S, K, in, out]`, then all biases.
        members: views of `flat`.
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
    """`perceptrons`, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, flat: Tensor, members: Members) -> Tensor:
        ctx.forwards = Pass(members, [inputs])
        outputs, width = ctx.forwards.outputs, members[0][0][-1].bias.numel()
        return outputs.view(*outputs.shape[:3], width)  # a view: the node must not hold its result

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        of_inputs, of_flat, _ = ctx.needs_input_grad
        of_weights, of_first = ctx.forwards.gradients(grad_outputs[0], of_weights=of_flat)
        return (
            ctx.forwards._of_part(0, of_first) if of_inputs else None,
            torch.cat([gradient.flatten() for gradient in of_weights]) if of_flat else None,
            None,
        )


def _is_faster(left: Tensor, right: Tensor, fewest: int = _FEWEST_PRODUCTS) -> bool:
    """Return whether oneDNN makes a product faster; it never does if `right` has one column."""
    large = left.shape[0] * right.numel() >= fewest and right.shape[1] > 1
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


def _is_faster_in_pass(left: Tensor, right: Tensor) -> bool:
    return _is_faster(left, right, _FEWEST_IN_PASS)


def _activations(inputs: Tensor, layer: Layer) -> Tensor:
    """Return what a layer passes on. oneDNN's own ReLU would hide NaN: it makes 0 of it."""
    if _is_faster_in_pass(inputs, layer.weight):
        return _linear(inputs, layer.transposed, layer.bias, "none", [], "").relu_()
    return _affine_relu(layer.bias, inputs, layer.weight)


def _outputs(inputs: Tensor, layer: Layer) -> Tensor:
    """Return what the last layer gives."""
    if _is_faster_in_pass(inputs, layer.weight):
        return _linear(inputs, layer.transposed, layer.bias, "none", [], "")
    return torch.addmm(layer.bias, inputs, layer.weight)


def _input_product(gradient: Tensor, layer: Layer) -> Tensor:
    """Return `gradient @ weight.T`, the gradient of a layer's inputs."""
    if _is_faster_in_pass(gradient, layer.transposed):
        return _linear(gradient, layer.weight, None, "none", [], "")
    return torch.mm(gradient, layer.transposed)


def _weight_product(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return `inputs.T @ gradient`, the gradient of a layer's weight."""
    transposed = inputs.t()
    if _is_faster_in_pass(transposed, gradient):
        return _linear(transposed, gradient.t(), None, "none", [], "")
    return torch.mm(transposed, gradient)
