"""A recurrent network the slow way: by torch's cell, one episode of one environment at a time."""

from typing import Any

import torch
from torch import Tensor

from suite.envs.vector_env import Spaces
from suite.nets.networks import Trunk


def slow_unroll(trunk: Trunk, spaces: Spaces | None, memory: Tensor, batch: Any) -> Tensor:
    """Return the outputs of every step of `batch`, `[T + 1, N, O]`, differentiable.

    The trunk has tanh layers; spaces are given if last action and reward are inputs.
    """
    assert trunk.core is not None
    *layers, (weight, bias) = zip(trunk.weights, trunk.biases, strict=True)
    features, lstm, columns = batch.obs, trunk.core.lstm, []
    for each, offset in layers:
        features = torch.tanh(features @ each + offset)
    gates = lstm.weight.T, lstm.recurrent_weight.T, lstm.bias, torch.zeros_like(lstm.bias)
    size = len(lstm.recurrent_weight)
    for i, row in enumerate(memory):
        hidden, cell, further = row[:size], row[size : 2 * size], row[2 * size :]
        units = []
        for t, inputs in enumerate(features[:, i]):
            if t and batch.valid[t - 1, i]:
                further = further_inputs(spaces, batch.actions[t - 1, i], batch.rewards[t - 1, i])
            elif t:  # the row before was ignored: an episode of its own begins
                hidden, cell, further = (torch.zeros_like(part) for part in (hidden, cell, further))
            rows = torch.cat([inputs, further])[None], (hidden[None], cell[None])
            hidden, cell = (each[0] for each in torch.lstm_cell(*rows, *gates))
            units.append(hidden)
        columns.append(torch.stack(units))
    return torch.stack(columns, 1) @ weight + bias


def further_inputs(spaces: Spaces | None, action: Tensor, reward: Tensor) -> Tensor:
    """Return the last action, one-hot if it is a number, and the last reward, clipped."""
    if spaces is None:
        return reward.new_zeros(0)
    clipped = max(-1.0, min(1.0, float(reward)))
    if spaces.continuous:
        return torch.stack([*action, reward.new_tensor(clipped)])
    one_hot = [float(number == int(action)) for number in range(spaces.num_outputs)]
    return reward.new_tensor([*one_hot, clipped])
