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


@pytest.mark.parametrize("device", ["cpu", DEVICE], ids=str)
def test_gradients_are_clipped_member_by_member(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one to the bound, a short one not at all."""

    def rows(ours: Ensemble) -> torch.Tensor:
        """Return each member's gradient as a row."""
        found = [on_cpu(weight.grad) for weight in ours.parameters() if weight.grad is not None]
        if device == DEVICE:
            return torch.cat([each.flatten(1) for each in found], 1)
        each = len(found) // 12
        parts = [found[start : start + each] for start in range(0, len(found), each)]
        return torch.stack([torch.cat([part.flatten() for part in part_of]) for part_of in parts])

    upstream = draw(1, 3, 4, 8, 3)
    upstream[:, 1] *= 1e-4
    with installed(monkeypatch):
        ours = Ensemble(perceptrons(), device)
        ours(draw(0, 3, 8, 7).to(device)).backward(upstream.to(device))
        before = rows(ours).clone()
        ours.clip_gradients(0.5)
        after = rows(ours)
    norms = before.norm(dim=1)
    is_short = torch.tensor([False, True, False, False] * 3)
    assert torch.equal(norms < 0.5, is_short)
    assert torch.equal(after[is_short], before[is_short])
    expected = before[~is_short] * 0.5 / norms[~is_short, None]
    torch.testing.assert_close(after[~is_short], expected)


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
