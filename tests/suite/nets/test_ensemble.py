"""Ensembles: many small networks, none of which knows of the others."""

from typing import Any

import numpy as np
import pytest
import torch

from suite.nets.networks import FrameLayers, Trunk
from suite.nets.perceptrons import Ensemble, Perceptron
from tests.perceptrons import draw, linear
from tests.stand_in_gpu import DEVICE, installed, on_cpu

SIZES, HEADS = (7, 16, 12), ((2, 0.1), (1, 0.5))
FRAMES: dict[str, Any] = {
    **{"frame_layers": FrameLayers(((4, 8, 8), (4, 3, 3)), width=8), "hidden_sizes": ()},
    **{"scheme": "orthogonal", "gain": 1.0},
}


def perceptrons() -> list[list[Perceptron]]:
    """Return four drawn perceptrons for each of three seeds; their biases are drawn as well."""
    rng = np.random.default_rng(0)
    return [[Perceptron.drawn(rng, SIZES, HEADS, "torch", 1.0) for _ in range(4)] for _ in range(3)]


@pytest.mark.parametrize("device", ["cpu", DEVICE], ids=str)
def test_every_member_is_a_plain_perceptron_of_its_own(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, and gradients of weights and inputs, are those of `nn.Linear` and ReLU in turn."""
    ensemble, inputs, upstream = Ensemble(perceptrons()), draw(0, 3, 8, 7), draw(1, 3, 4, 8, 3)
    with installed(monkeypatch):
        ours, given = Ensemble(perceptrons(), device), inputs.to(device).requires_grad_()
        results = [ours(given)]
        sources = [given, *ours.parameters()]
        results += torch.autograd.grad(results[0], sources, upstream.to(device))
    outputs, of_inputs, *found = (on_cpu(each.detach()) for each in results)
    summed = torch.zeros_like(inputs)
    for s in range(3):
        for k in range(4):
            plain, rows = linear(ensemble, s, k), inputs[s].detach().requires_grad_()
            expected = plain(rows)
            torch.testing.assert_close(outputs[s, k], expected)
            weights = [rows, *plain.parameters()]
            of_rows, *gradients = torch.autograd.grad(expected, weights, upstream[s, k])
            summed[s] += of_rows
            place = 4 * s + k
            for i, theirs in enumerate(gradients):
                our = found[i][place] if device == DEVICE else found[place * len(gradients) + i]
                torch.testing.assert_close(our, theirs.T if theirs.dim() == 2 else theirs)
    torch.testing.assert_close(of_inputs, summed)


def test_gradients_are_clipped_member_by_member() -> None:
    """A long one to the bound, a short one not at all."""
    ensemble = Ensemble([perceptrons()[0][:2]])
    upstream = draw(0, 1, 2, 8, 3)
    upstream[:, 1] *= 1e-4
    ensemble(draw(0, 1, 8, 7)).backward(upstream)
    short = [
        each.grad.clone() for each in ensemble.networks[1].parameters() if each.grad is not None
    ]
    ensemble.clip_gradients(0.5)
    long = [each.grad for each in ensemble.networks[0].parameters() if each.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in long]).norm()
    assert norm.item() == pytest.approx(0.5, rel=1e-4)
    for gradient, weight in zip(short, ensemble.networks[1].parameters(), strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient)


def trunks(seed: int) -> Ensemble:
    generator = np.random.default_rng(seed)
    heads = [(3, 1.0)]
    return Ensemble([[Trunk((4, 84, 84), heads, generator, **FRAMES) for _ in range(2)]])


def test_trunks_are_stacked_as_perceptrons_are() -> None:
    """Each sees its seed's frames; weights put back from a file are those that were taken."""
    theirs, ours, frames = trunks(1), trunks(2), torch.rand(1, 2, 4, 84, 84)
    outputs = theirs(frames)
    assert outputs.shape == (1, 2, 2, 3)
    assert torch.equal(outputs[0, 1], theirs.networks[1](frames[0]))
    assert not torch.equal(ours(frames), outputs)
    ours.put_weights(theirs.all_weights_of(0))
    assert torch.equal(ours(frames), outputs)
