"""Stacked perceptrons: many small networks in one vector, none of which knows of the others."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from suite.initialisation import draw_layer
from suite.networks import BatchedPass, StackedPerceptrons, batched_forward, draw_perceptron

SIZES, HEADS = (7, 16, 12), ((2, 0.1), (1, 0.5))


def stack(num_seeds: int = 3, num_members: int = 4) -> StackedPerceptrons:
    """Return a stack of drawn perceptrons whose biases are drawn as well."""
    rng = np.random.default_rng(0)
    members = range(num_members)
    return StackedPerceptrons(
        [
            [draw_perceptron(rng, SIZES, HEADS, "torch", 1.0) for _ in members]
            for _ in range(num_seeds)
        ]
    )


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def lies_in(view: Tensor, vector: Tensor) -> bool:
    """Whether a tensor's memory is that of a vector."""
    return view.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()


@pytest.mark.parametrize("scheme", ["orthogonal", "glorot_uniform", "torch"])
def test_a_perceptron_is_drawn_layer_by_layer_from_its_stream(scheme: Any) -> None:
    """Hidden layers with the gain of hidden layers, then the heads, each with its own."""
    rng = np.random.default_rng(0)
    expected = [
        draw_layer(rng, 7, [(16, 1.5)], scheme),
        draw_layer(rng, 16, [(12, 1.5)], scheme),
        draw_layer(rng, 12, HEADS, scheme),
    ]
    layers = draw_perceptron(np.random.default_rng(0), SIZES, HEADS, scheme, 1.5)
    assert [weight.shape for weight, _ in layers] == [(7, 16), (16, 12), (12, 3)]
    for (weight, bias), (expected_weight, expected_bias) in zip(layers, expected, strict=True):
        assert torch.equal(weight, expected_weight)
        assert torch.equal(bias, expected_bias)


def test_every_member_is_a_plain_perceptron_of_its_own() -> None:
    """Results and gradients of member k of seed s are those of `nn.Linear` and ReLU in turn."""
    perceptrons, inputs, upstream = stack(), draw(3, 8, 7), draw(3, 4, 8, 3)
    outputs = perceptrons(inputs)
    (gradient,) = torch.autograd.grad(outputs, perceptrons.flat, upstream)
    weight_gradients, bias_gradients = perceptrons._split(gradient)
    for s in range(3):
        for k in range(4):
            layers: list[torch.nn.Module] = []
            for weight, bias in zip(perceptrons.weights, perceptrons.biases, strict=True):
                linear = torch.nn.Linear(weight.shape[2], weight.shape[3])
                linear.weight.data, linear.bias.data = weight[s, k].T, bias[s, k]
                layers += [linear, torch.nn.ReLU()]
            plain = torch.nn.Sequential(*layers[:-1])
            expected = plain(inputs[s])
            torch.testing.assert_close(outputs[s, k], expected)
            gradients = torch.autograd.grad(expected, list(plain.parameters()), upstream[s, k])
            for i in range(3):
                torch.testing.assert_close(weight_gradients[i][s, k].T, gradients[2 * i])
                torch.testing.assert_close(bias_gradients[i][s, k], gradients[2 * i + 1])


def test_the_batched_form_equals_the_form_member_by_member() -> None:
    """The GPU's and the CPU's way of applying stacked weights: one function and one gradient."""
    perceptrons, inputs = stack(), draw(3, 8, 7).requires_grad_()
    batched = batched_forward(inputs, *perceptrons._split(perceptrons.flat))
    membered = perceptrons(inputs)
    torch.testing.assert_close(batched, membered)
    upstream, leaves = torch.randn_like(batched), [perceptrons.flat, inputs]
    gradients = [torch.autograd.grad(y, leaves, upstream) for y in (batched, membered)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("width", [3, 1])
def test_a_pass_is_forward_and_its_gradients_are_those_of_its_parts(width: int) -> None:
    """On a CPU and, batched, on a GPU: results, and gradients in the order of `parts`."""
    rng, parts = np.random.default_rng(0), [draw(3, 8, 5), draw(3, 8, 2)]
    perceptrons = StackedPerceptrons(
        [
            [draw_perceptron(rng, SIZES, [(width, 1.0)], "torch", 1.0) for _ in range(4)]
            for _ in range(3)
        ]
    )
    inputs, upstream = torch.cat(parts, -1).requires_grad_(), draw(3, 4, 8, width)
    expected = perceptrons(inputs)
    of_inputs, of_flat = torch.autograd.grad(expected, (inputs, perceptrons.flat), upstream)
    weights, biases = perceptrons._split(of_flat)
    stacks = [*weights, *biases]
    of_members = [part for stack in stacks for part in stack.flatten(0, 1)]
    assert [part.shape for part in perceptrons.parts] == [part.shape for part in of_members]
    together = torch.cat([part.flatten() for part in perceptrons.parts])
    assert torch.equal(together, perceptrons.flat)
    assert all(lies_in(part, perceptrons.flat) for part in perceptrons.parts)
    batched = BatchedPass(perceptrons.weights, perceptrons.biases, parts)
    for forwards, wanted in ((perceptrons.begin_pass(*parts), of_members), (batched, stacks)):
        torch.testing.assert_close(forwards.outputs, expected.view(forwards.outputs.shape))
        assert forwards.outputs.shape == ((3, 4, 8, 3) if width == 3 else (3, 4, 8))
        of_outputs = upstream.view(forwards.outputs.shape)
        if forwards is not batched:  # whose graph lives for one pass back
            torch.testing.assert_close(forwards.input_gradient(of_outputs, 1), of_inputs[..., 5:])
        torch.testing.assert_close(forwards.weight_gradients(of_outputs), wanted)
    again = BatchedPass(perceptrons.weights, perceptrons.biases, parts)
    torch.testing.assert_close(again.input_gradient(of_outputs, 1), of_inputs[..., 5:])


def test_frozen_weights_pass_gradients_to_the_inputs_alone() -> None:
    """The same results, and the same gradient of the inputs, but none of the weights."""
    perceptrons, inputs = stack(), draw(3, 8, 7).requires_grad_()
    learning, frozen = perceptrons(inputs), perceptrons(inputs, frozen=True)
    assert torch.equal(learning, frozen)
    (expected,) = torch.autograd.grad(learning.square().sum(), inputs)
    frozen.square().sum().backward()
    assert inputs.grad is not None
    assert torch.equal(inputs.grad, expected)
    assert perceptrons.flat.grad is None


def test_all_weights_are_one_vector() -> None:
    """The only parameter; weights and biases are views, so a step on it is a step on them."""
    perceptrons = stack()
    assert [name for name, _ in perceptrons.named_parameters()] == ["flat"]
    views = [*perceptrons.weights, *perceptrons.biases, *perceptrons.weights_of(2, 3).values()]
    assert all(lies_in(view, perceptrons.flat) for view in views)
    parts = [*perceptrons.weights, *perceptrons.biases]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), perceptrons.flat)
    before = perceptrons(draw(3, 8, 7))
    with torch.no_grad():
        perceptrons.flat.zero_()
    assert not any(view.any() for view in views)
    assert before.any()
    assert not perceptrons(draw(3, 8, 7)).any()


def test_the_weights_of_a_deep_copy_are_views_of_its_own_vector() -> None:
    """A target network moves with its vector, and neither copy moves the other."""
    online, inputs = stack(), draw(3, 8, 7)
    target, results = copy.deepcopy(online), online(inputs)
    assert torch.equal(target(inputs), results)
    assert torch.equal(target.flat, online.flat)
    views = [*target.weights, *target.biases, *target.weights_of(0, 1).values()]
    assert all(lies_in(view, target.flat) for view in views)
    assert not lies_in(target.flat, online.flat)
    with torch.no_grad():
        target.flat.mul_(0.5)
    assert not torch.equal(target(inputs), results)
    assert torch.equal(target.weights[0], 0.5 * online.weights[0])
    assert torch.equal(online(inputs), results)


def test_one_members_weights_make_a_stack_of_that_member(tmp_path: Path) -> None:
    """`from_weights` takes what `weights_of` gave, from a file as well."""
    perceptrons, inputs = stack(), draw(1, 8, 7)
    expected = perceptrons(inputs.expand(3, -1, -1))[1, 2]
    weights = perceptrons.weights_of(1, 2)
    assert list(weights) == [f"{kind}_{i}" for kind in ("weight", "bias") for i in range(3)]
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / "file"
    )
    for given in (weights, safetensors.torch.load_file(tmp_path / "file")):
        alone = StackedPerceptrons.from_weights(given)
        assert not lies_in(alone.flat, perceptrons.flat)
        torch.testing.assert_close(alone(inputs)[0, 0], expected)
        again = alone.weights_of(0)
        assert list(again) == list(weights)
        assert all(torch.equal(again[name], weights[name]) for name in weights)
