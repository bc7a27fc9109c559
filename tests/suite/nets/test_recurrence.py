"""Recurrence: acting step by step is an unroll, and memories that no episode inherits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.a2c import Config
from suite.envs.vector_env import Spaces
from suite.nets.networks import Trunk
from suite.nets.recurrence import LSTM, Memory
from suite.unrolls import UnrollBatch
from tests.agents.trainings import CONTROL, SWINGING, doubled, random_transitions
from tests.perceptrons import draw

CASES = [None, CONTROL, SWINGING]
"""Whose last action and reward are inputs."""
SIZE, STEPS, ENVS = 5, 9, 4


def trunk_of(spaces: Spaces | None) -> Trunk:
    """A recurrent network in float64, all of whose biases differ from 0."""
    trunk = Trunk(
        (4,),
        [(3, 1.0), (1, 1.0)],
        np.random.default_rng(0),
        hidden_sizes=(6, 7),
        activation="tanh",
        lstm_size=SIZE,
        lstm_actions_of=spaces,
    ).double()
    with torch.no_grad():
        for i, parameter in enumerate(trunk.parameters()):
            if parameter.dim() == 1:
                parameter += 0.3 * draw(i, len(parameter))
    return trunk


def unroll_of(spaces: Spaces | None) -> tuple[UnrollBatch, Tensor]:
    """Random steps with ends of both kinds, the ignored rows after them, and a memory before."""
    config = Config(num_envs=ENVS, unroll_length=STEPS)
    batch = doubled(random_transitions(config, spaces or CONTROL, 1))
    assert (batch.valid == 0).sum() > 5
    assert batch.rewards.abs().max() > 1  # as an input it is clipped
    further = 0 if spaces is None else spaces.num_outputs + 1
    return batch, draw(4, ENVS, 2 * SIZE + further).double()


def outputs_of(trunk: Trunk, memory: Tensor | None, batch: UnrollBatch) -> Tensor:
    return trunk.unroll(batch.obs, memory, batch.valid, batch.actions, batch.rewards)


def test_every_gate_is_drawn_as_a_layer_and_forgetting_starts_late() -> None:
    """Recurrent weights of each gate are orthogonal; only the forget gates' biases are 1."""
    lstm = LSTM(8, SIZE, np.random.default_rng(0), "orthogonal")
    for weight in lstm.recurrent_weight.detach().split(SIZE, 1):
        torch.testing.assert_close(weight.T @ weight, torch.eye(SIZE))
    for weight in lstm.weight.detach().split(SIZE, 1):
        torch.testing.assert_close(weight.T @ weight, torch.eye(SIZE))
    assert lstm.bias.view(4, SIZE).tolist() == [[0.0] * SIZE, [1.0] * SIZE, *[[0.0] * SIZE] * 2]


@pytest.mark.parametrize("spaces", CASES)
def test_acting_step_by_step_is_the_unroll(spaces: Spaces | None) -> None:
    """The same outputs; the memory after the last step is 0 where that was ignored."""
    trunk, (batch, memory) = trunk_of(spaces), unroll_of(spaces)
    batch.valid[-1] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    expected, outputs = outputs_of(trunk, memory, batch), []
    for t in range(STEPS):
        output, memory = trunk.step(batch.obs[t], memory)
        outputs.append(output)
        outcome = batch.rewards[t].numpy(), batch.valid[t].numpy() > 0
        memory = trunk.remember(memory, batch.actions[t], *outcome)
    outputs.append(trunk.step(batch.obs[-1], memory)[0])
    torch.testing.assert_close(torch.stack(outputs), expected, rtol=1e-6, atol=1e-7)
    assert memory[batch.valid[-1] == 0].eq(0).all()
    assert memory[batch.valid[-1] > 0].ne(0).any(1).all()


class Network:
    """What `Memory` asks of an agent's network."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk, self.step = trunk, trunk.step


def take(outputs: Tensor) -> Tensor:
    return outputs[:, :3].argmax(-1)


def test_a_memory_goes_from_step_to_step() -> None:
    """Actions, noted rewards and noted beginnings count, and are noted for one step only."""
    trunk, (batch, _) = trunk_of(CONTROL).float(), unroll_of(CONTROL)
    memory, obs = Memory(Network(trunk)), batch.obs.float()
    rows, seen = trunk.initial_memory(ENVS), []

    def look(outputs: Tensor) -> Tensor:
        seen.append(outputs)
        return take(outputs)

    notes: list[Any] = [(None, None), (np.full((1, ENVS), 0.7), None), (None, None)]
    notes += [(np.full(ENVS, -3.0), np.array([True, False, False, True])), (None, None)]
    for t, (rewards, starts) in enumerate(notes):
        outputs, rows = trunk.step(obs[t], rows)
        actions = memory.act(obs[t], look)
        assert torch.equal(seen[-1], outputs)
        assert torch.equal(actions, take(outputs))
        memory.note(rewards, starts)
        given = np.zeros(ENVS) if rewards is None else np.ravel(rewards)
        begins = np.zeros(ENVS, dtype=bool) if starts is None else starts
        rows = trunk.remember(rows, actions, given, ~begins)
    memory.forget()
    memory.act(obs[0], look)
    assert torch.equal(seen[-1], seen[0])


def test_another_number_of_episodes_needs_a_reset() -> None:
    """A recurrent policy refuses what it cannot match; a feed-forward one does not care."""
    recurrent, obs = Memory(Network(trunk_of(None).float())), torch.zeros(3, 4)
    recurrent.act(obs, take)
    with pytest.raises(ValueError, match=r"2 observations after 3: call reset\(\)"):
        recurrent.act(obs[:2], take)
    recurrent.forget()
    recurrent.act(obs[:2], take)
    plain = Memory(Network(Trunk((4,), [(3, 1.0)], np.random.default_rng(0), hidden_sizes=(6,))))
    for number in (3, 2):
        plain.act(obs[:number], take)
