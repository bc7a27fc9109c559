"""Stacks of networks: K independent ones for each of S seeds, of vectors or of frames."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from suite.networks import StackedPerceptrons, Trunk
from suite.settings import check_shape


class StackedTrunks(nn.Module):
    """Trunks for frames: K independent ones for each of S seeds. Members share nothing.

    Args:
        members: `members[s][k]`.
        device: the weights' device.
    """

    def __init__(
        self, members: Sequence[Sequence[Trunk]], device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.shape = len(members), len(members[0])
        self.trunks = nn.ModuleList(trunk for of_seed in members for trunk in of_seed).to(device)

    def forward(self, inputs: Float[Tensor, "S B ..."]) -> Float[Tensor, "S K B O"]:
        """Apply every member of seed s to that seed's batch."""
        per_seed = self.shape[1]
        outputs = [trunk(inputs[i // per_seed]) for i, trunk in enumerate(self.trunks)]
        return torch.stack(outputs).unflatten(0, self.shape)

    def weights_of(self, seed: int, member: int = 0) -> dict[str, Tensor]:
        """Return one trunk's weights by name, for a file."""
        return self.trunks[seed * self.shape[1] + member].state_dict()

    def clip_gradients(self, bound: float) -> None:
        """Scale the gradient of each member down to a Euclidean norm of at most `bound`."""
        for trunk in self.trunks:
            nn.utils.clip_grad_norm_(trunk.parameters(), bound)


Stack = StackedPerceptrons | StackedTrunks
"""K networks for each of S seeds: observations `[S, B, *obs]` to outputs `[S, K, B, O]`."""


def stack(members: Sequence[Sequence[Any]], device: torch.device | str = "cpu") -> Stack:
    """Return the networks `members[s][k]`, trunks or the layers of perceptrons, side by side."""
    frames = isinstance(members[0][0], Trunk)
    return StackedTrunks(members, device) if frames else StackedPerceptrons(members, device)


def num_members(networks: Stack) -> int:
    """Return the number of networks of each seed, K."""
    if isinstance(networks, StackedTrunks):
        return networks.shape[1]
    return networks.weights[0].shape[1]


def all_weights_of(networks: Stack, seed: int) -> dict[str, Tensor]:
    """Return the weights of all of a seed's members by name, for a file."""
    members = [networks.weights_of(seed, k).items() for k in range(num_members(networks))]
    return {f"{k}.{name}": weight for k, named in enumerate(members) for name, weight in named}


def put_weights(networks: Stack, weights: Mapping[str, Tensor]) -> None:
    """Replace the weights of the only seed's members by those that `all_weights_of` returned.

    Raises:
        ValueError: naming those that the networks lack, or that they alone have, or a wrong shape.
    """
    own = all_weights_of(networks, 0)
    if strange := sorted(own.keys() ^ weights.keys()):
        raise ValueError(f"not the weights of these networks: {', '.join(strange)}")
    for name, weight in own.items():
        check_shape(name, weights[name], weight.shape)
    for name, weight in own.items():
        weight.copy_(weights[name])
