"""Policies that act: drawn actions, memory, and play with an axis of one seed."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from suite.envs.tasks import Task, find_task
from suite.envs.vector_env import Spaces, Step
from suite.nets.moments import RunningMoments
from suite.nets.networks import Trunk
from suite.player import Actor, Player, PolicyNetwork, rebuild

DISCRETE, CONTINUOUS = Spaces((4,), 3), Spaces((4,), 2, (-1.0, -1.0), (1.0, 1.0))


@dataclass(frozen=True)
class Config:
    """What playing needs of an agent's settings."""

    num_envs: int = 5
    observation_clip: float = 10.0
    cuda_graphs: bool = False

    def find_task(self) -> Task:
        """Return the task that the policies play."""
        return find_task("CartPole-v1")


class Network(PolicyNetwork):
    """A policy and a value in one trunk, as agents have it."""

    def __init__(self, spaces: Spaces, lstm_size: int = 0) -> None:
        super().__init__(spaces)
        heads = [(spaces.num_outputs, 1.0), (1, 1.0)]
        self.actor = Trunk(
            spaces.obs_shape,
            heads,
            np.random.default_rng(0),
            hidden_sizes=(8,),
            lstm_size=lstm_size,
        )
        self.log_stds: Tensor | None = None
        if spaces.continuous:
            self.log_stds = torch.nn.Parameter(torch.tensor([-1.0, 0.5]))


def outcome(valid: np.ndarray) -> Step:
    zeros = np.zeros((1, len(valid)), dtype=np.float32)
    no = np.zeros_like(zeros, dtype=bool)
    return Step(zeros, zeros, zeros, zeros, no, no, valid[None], no, zeros, zeros)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_a_player_gives_one_seeds_actions_with_an_axis_of_seeds(spaces: Spaces) -> None:
    """Modes without a generator, else the draws of that generator's own noise; clipped."""
    network = Network(spaces)
    player = Player(network, None, Config())
    obs = 3 * np.random.default_rng(1).normal(size=(1, 6, 4)).astype(np.float32)
    with torch.no_grad():
        outputs, _ = network.step(torch.from_numpy(obs[0]), network.actor.begin(6))
    for generator, again in ((None, None), (np.random.default_rng(2), np.random.default_rng(2))):
        noise = None if again is None else network.draw_noise(again, (6,))
        expected = network.act(outputs, noise).detach()
        if spaces.continuous:
            assert generator is None or (expected.abs() > 1).any()
            expected = expected.clamp(-1, 1)
        actions = player(obs, None if generator is None else [generator])
        np.testing.assert_array_equal(actions, expected[None])


def test_a_player_normalises_by_the_statistics_that_training_changes() -> None:
    network, moments = Network(DISCRETE), RunningMoments((4,))
    player = Player(network, moments, Config())
    obs = np.random.default_rng(1).normal(3, 2, size=(20, 4)).astype(np.float32)
    moments.add(obs)
    inputs = torch.from_numpy(moments.standardise(obs, 10.0))
    with torch.no_grad():
        expected = network.step(inputs, network.actor.begin(20))[0].argmax(-1)
    assert (player.decide(obs, None) == expected.numpy()).all()
    again = rebuild(lambda *_: Network(DISCRETE), Config(), player.weights(), DISCRETE._asdict())
    assert (again.act(obs) == expected.numpy()).all()


def test_an_actor_forgets_where_an_episode_begins() -> None:
    """After an ignored action the memory is 0; elsewhere it is what the network left."""
    network = Network(DISCRETE, lstm_size=4)
    actor, obs = Actor(network, Config()), torch.ones(5, 4)
    noise = network.draw_noise(np.random.default_rng(0), (5,))
    valid = np.array([True, False, True, True, False])
    actions, _ = actor(obs, noise)
    with torch.no_grad():
        _, expected = network.step(obs, network.actor.begin(5))
    assert not actor.memory.any()  # until the outcome is known
    actor.remember(actions, outcome(valid))
    torch.testing.assert_close(actor.memory, expected * torch.from_numpy(valid)[:, None])
    assert actor.memory[0].any()
