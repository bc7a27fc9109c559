"""Policies that act: in training, in evaluations, and from a file.

Discrete actions are the argmax of logits plus Gumbel noise, which is a draw of the policy;
continuous ones are mean + standard deviation * normal noise. Without noise they are the mode.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from suite.base.noise import gumbel, normal
from suite.envs.vector_env import Spaces, Step
from suite.graphs import as_graph
from suite.nets.moments import RunningMoments
from suite.nets.networks import Trunk, prepare
from suite.nets.optimisers import FlatWeights
from suite.nets.recurrence import Memory
from suite.policy import Policy, config_of
from suite.settings.config import RunConfig


class PolicyNetwork(nn.Module):
    """A network whose `trunk` puts out the policy first: logits, or means.

    Its copies have `FlatWeights`, as those that train: they give the same bits.
    """

    actor: Trunk
    log_stds: Any
    """Logarithms of continuous actions' standard deviations, `[A]`; None: actions are discrete."""

    def __init__(self, spaces: Spaces, initial_log_std: float | None = None) -> None:
        super().__init__()
        self.num_outputs, self._continuous = spaces.num_outputs, spaces.continuous
        if initial_log_std is not None:
            initial = torch.full((spaces.num_outputs,), initial_log_std)
            self.log_stds = nn.Parameter(initial) if spaces.continuous else None

    def __deepcopy__(self, memo: dict[int, Any]) -> "PolicyNetwork":
        """Return a copy."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        FlatWeights(copied)
        return copied

    @property
    def trunk(self) -> Trunk:
        """Return the network that acts, which has the policy's memory."""
        return self.actor

    def step(
        self, obs: Float[Tensor, "N ..."], memory: Float[Tensor, "N M"]
    ) -> tuple[Any, Float[Tensor, "N M"]]:
        """Return the policy's outputs on observations, and the memory after them."""
        outputs, memory = self.trunk.step(obs, memory)
        return outputs[:, : self.num_outputs], memory

    def act(self, outputs: Any, noise: Tensor | None = None) -> Tensor:
        """Return actions, `[B]` or `[B, A]`: drawn with noise of `draw_noise`, or the modes."""
        if self.log_stds is None:  # the largest of logits plus Gumbel noise is a draw
            return (outputs if noise is None else outputs + noise).argmax(-1)
        return outputs if noise is None else torch.addcmul(outputs, self.log_stds.exp(), noise)

    def draw_noise(self, generator: np.random.Generator, shape: Sequence[int]) -> Tensor:
        """Return noise for drawing actions, `[*shape, A]`, on the network's device."""
        draw = normal if self._continuous else gumbel
        return draw(generator, (*shape, self.num_outputs), self.trunk.device)


@torch.no_grad()
def step_and_draw(
    network: PolicyNetwork, obs: Tensor, memory: Float[Tensor, "N M"], noise: Tensor
) -> tuple[Tensor, Any, Float[Tensor, "N M"]]:
    """Return actions, the outputs that they are drawn from, and the memory after them."""
    outputs, memory = network.step(obs, memory)
    return network.act(outputs, noise), outputs, memory


class ActionSampler:
    """Draws the actions of training, and remembers what the policy needs of its episodes."""

    def __init__(self, network: PolicyNetwork, config: Any) -> None:
        self._trunk = trunk = network.trunk
        self.memory = self._after = trunk.initial_memory(config.num_envs)
        """The policy's memory before the next step, `[N, M]`."""
        self._choose = as_graph(partial(step_and_draw, network), (), config, trunk.device)

    def __call__(self, obs: Float[Tensor, "N ..."], noise: Tensor) -> tuple[Tensor, Any]:
        """Return actions drawn with noise of `draw_noise`, and the policy's outputs."""
        actions, outputs, self._after = self._choose(obs, self.memory, noise)
        return actions, outputs

    def remember(self, actions: Any, step: Step) -> None:
        """Take the outcome of the last actions into the memory; a feed-forward policy has none."""
        if self.memory.shape[1]:
            outcome = actions, step.rewards[0], step.valid[0]
            self.memory.copy_(self._trunk.remember(self._after, *outcome))


class Player:
    """A policy that plays in evaluations or from a file, and what it remembers of its episodes."""

    def __init__(
        self, network: PolicyNetwork, obs_moments: RunningMoments | None, config: Any
    ) -> None:
        self._network, self._obs_moments = network, obs_moments
        self._clip = config.observation_clip
        self._frame_factor = 1 / getattr(config, "frame_divisor", 255.0)
        self.memory = Memory(network)

    def __call__(
        self, obs: np.ndarray, generators: Sequence[np.random.Generator] | None
    ) -> np.ndarray:
        """Return actions for observations of one seed, `[1, N, *obs]`; see `decide`."""
        return self.decide(obs[0], generators[0] if generators else None)[None]

    @torch.no_grad()
    def decide(self, obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        """Return actions, in [-1, 1] or numbers: drawn with a generator; None: the modes."""
        if self._obs_moments is not None:
            obs = self._obs_moments.standardise(obs, self._clip)
        network, noise = self._network, None
        if generator is not None:
            noise = network.draw_noise(generator, obs.shape[:1])
        inputs = prepare(obs, network.trunk.device, self._frame_factor)
        actions = self.memory.act(inputs, partial(network.act, noise=noise))
        return (actions.clamp(-1, 1) if actions.is_floating_point() else actions).cpu().numpy()

    def weights(self, _seed: int = 0) -> dict[str, Tensor]:
        """Return the network's weights by name, and the statistics', for a file."""
        moments = self._obs_moments
        return self._network.state_dict() | ({} if moments is None else moments.weights())


def rebuild(
    network_of: Callable[[Any, Spaces, np.random.Generator], PolicyNetwork],
    config_class: type[RunConfig],
    settings: Sequence[str],
    weights: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> Policy:
    """Return a policy that plays as it did in training; `settings` rebuild its network."""
    config = config_of(config_class, description, settings)
    spaces, weights = Spaces.from_json(description), dict(weights)
    moments = RunningMoments.from_weights(weights)
    network = network_of(config, spaces, np.random.default_rng(0))  # every weight is replaced
    FlatWeights(network)  # they lie as in training, for the same last bits
    network.load_state_dict(weights)
    player = Player(network, moments, config)
    return Policy(config.find_task(), spaces, player.decide, player.memory)
