"""Weights of stacked networks, put back from a file."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from suite.networks import FrameLayers, Trunk, draw_perceptron
from suite.stacks import Stack, all_weights_of, num_members, put_weights, stack

FRAMES = {"frame_layers": FrameLayers(((4, 8, 8), (4, 3, 3)), width=8), "hidden_sizes": ()}


def drawn(kind: str, seed: int, number: int = 2) -> Stack:
    """Return a seed's networks: perceptrons, or trunks for frames."""
    generator = np.random.default_rng(seed)
    how: dict[str, Any] = {"scheme": "orthogonal", "gain": 1.0}
    if kind == "frames":
        members = [
            Trunk((4, 84, 84), [(3, 1.0)], generator, **FRAMES, **how) for _ in range(number)
        ]
    else:
        members = [draw_perceptron(generator, (4, 6), [(3, 1.0)], **how) for _ in range(number)]
    return stack([members]).requires_grad_(False)


def saved(networks: Stack) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in all_weights_of(networks, 0).items()}


@pytest.mark.parametrize("kind", ["vectors", "frames"])
def test_weights_that_are_put_back_are_those_that_were_taken(kind: str) -> None:
    """All of all members, bit for bit."""
    theirs, ours = drawn(kind, 1), drawn(kind, 2)
    assert num_members(ours) == 2
    weights = saved(theirs)
    put_weights(ours, weights)
    for name, weight in all_weights_of(ours, 0).items():
        assert torch.equal(weight, weights[name])


@pytest.mark.parametrize("kind", ["vectors", "frames"])
def test_weights_of_other_networks_are_refused_and_change_nothing(kind: str) -> None:
    """One member more or less, a strange name, or a shape that would be broadcast."""
    ours, weights = drawn(kind, 2), saved(drawn(kind, 1))
    before, last = saved(ours), [name for name, weight in weights.items() if weight.dim() == 1][-1]
    less = {name: weight for name, weight in weights.items() if name != last}
    wrong: list[tuple[dict[str, Tensor], str]] = [
        (saved(drawn(kind, 1, number=3)), r"^not the weights of these networks: 2\."),
        (saved(drawn(kind, 1, number=1)), r"^not the weights of these networks: 1\."),
        (less, f"these networks: {last}$"),
        (weights | {"strange": torch.zeros(1)}, "these networks: strange$"),
        (weights | {last: torch.zeros(1)}, rf"^{last} must have the shape \[\d+\], not \[1\]$"),
    ]
    for named, message in wrong:
        with pytest.raises(ValueError, match=message):
            put_weights(ours, named)
    for name, weight in all_weights_of(ours, 0).items():
        assert torch.equal(weight, before[name])
