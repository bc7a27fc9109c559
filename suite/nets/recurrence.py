"""Recurrence: an LSTM between a network's hidden layers and its heads, and its memory.

A memory holds all that a policy carries from one step of an episode to the next, `[N, M]`, one row
for each environment: hidden units, cells and, if the LSTM reads them, the last action and the last
reward. It is 0 where an episode begins, so no episode depends on the one before it. The memory of a
feed-forward network is empty, `[N, 0]`.

| holder               | in                             | becomes 0                             |
|----------------------|--------------------------------|---------------------------------------|
| `ActionSampler`      | training                       | as it remembers an ignored action     |
| `Memory`             | evaluation, a file's policy    | before the action after a noted start |
| `EnsembleMemory`     | training and evaluation of SAC | as a start is noted                   |
| `Core.unroll`        | learning                       | in the step after an ignored action   |
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from suite.envs.vector_env import Spaces
from suite.nets.initialisation import Scheme, draw_layer


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997) with forget gates (Gers et al. 2000).

    Gates stand in torch's order: input, forget, candidate, output. Every gate's weights are drawn
    as a layer of their own. The forget gate's biases are then 1 more, as in TensorFlow.
    """

    def __init__(
        self, num_inputs: int, size: int, generator: np.random.Generator, scheme: Scheme
    ) -> None:
        super().__init__()
        gates = [(size, 1.0)] * 4
        weight, bias = draw_layer(generator, num_inputs, gates, scheme)
        bias[size : 2 * size] += 1
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.recurrent_weight = nn.Parameter(draw_layer(generator, size, gates, scheme)[0])

    def forward(
        self,
        inputs: Float[Tensor, "T N I"],
        state: Float[Tensor, "2 N H"],
        starts: Float[Tensor, "T N"],
    ) -> tuple[Float[Tensor, "T N H"], Float[Tensor, "2 N H"]]:
        """Return the hidden units of every step, and the hidden units and cells after the last.

        The state holds hidden units and cells; `starts` is 1 where an episode begins, which finds
        it 0.
        """
        # the inputs' share of all steps is one product
        shares = torch.addmm(self.bias, inputs.flatten(0, 1), self.weight)
        shares = shares.unflatten(0, starts.shape)
        hidden, cell = state.unbind(0)
        outputs = []
        for share, keep in zip(shares.unbind(0), (1 - starts).unsqueeze(-1).unbind(0), strict=True):
            gates = torch.addmm(share, hidden * keep, self.recurrent_weight)
            enter, forget, candidate, leave = gates.chunk(4, -1)
            kept = cell * keep * forget.sigmoid()
            cell = torch.addcmul(kept, enter.sigmoid(), candidate.tanh())
            hidden = leave.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs), torch.stack([hidden, cell])


class Core(nn.Module):
    """An LSTM, its further inputs and its memory.

    The last action (one-hot, or as it was drawn) and the last reward (clipped to [-1, 1]) of the
    spaces `actions_of` are further inputs; None: features are the only ones.
    """

    def __init__(
        self,
        num_features: int,
        size: int,
        generator: np.random.Generator,
        scheme: Scheme,
        actions_of: Spaces | None,
    ) -> None:
        super().__init__()
        self._actions_of = actions_of
        num_further = 0 if actions_of is None else actions_of.num_outputs + 1
        self.lstm = LSTM(num_features + num_further, size, generator, scheme)
        self._parts = [size, size, num_further]
        self.memory_size = sum(self._parts)

    def initial_memory(self, number: int) -> Float[Tensor, "N M"]:
        """Return the memory with which a number of episodes begins."""
        return self.lstm.weight.new_zeros(number, self.memory_size)

    def step(
        self, features: Float[Tensor, "N F"], memory: Float[Tensor, "N M"]
    ) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N M"]]:
        """Return the outputs of one step, and the memory that `remember` completes."""
        hidden, cell, further = memory.split(self._parts, -1)
        inputs, no_starts = torch.cat([features, further], -1), torch.zeros_like(hidden[None, :, 0])
        outputs, state = self.lstm(inputs[None], torch.stack([hidden, cell]), no_starts)
        return outputs[0], torch.cat([*state, further], -1)

    def remember(
        self, memory: Float[Tensor, "N M"], actions: Any, rewards: np.ndarray, valid: np.ndarray
    ) -> Float[Tensor, "N M"]:
        """Return the memory that `step` gave after the outcome of actions, `[N]` or `[N, A]`.

        It is 0 where `valid` is not: an ignored action, which the beginning of an episode follows.
        """
        *state, _ = memory.split(self._parts, -1)
        taken = torch.as_tensor(actions, device=memory.device)
        outcome = np.stack([rewards, valid], dtype=np.float32, casting="unsafe")
        gained, keeps = torch.from_numpy(outcome).to(memory.device).unsqueeze(1).unbind(0)
        further = self._further(taken[None], gained)[0]
        return torch.cat([*state, further], -1) * keeps[0].unsqueeze(-1)

    def unroll(
        self,
        features: Float[Tensor, "R N F"],
        memory: Float[Tensor, "N M"] | None,
        valid: Float[Tensor, "T N"],
        actions: Tensor | None = None,
        rewards: Float[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, "R N H"]:
        """Return the outputs of R steps, R = T or T + 1; see `step` and `remember`.

        Without a memory before the first step an episode begins with it. `valid` is 1 for a
        transition, 0 for an ignored action. Actions taken, `[T, N]` or `[T, N, A]`, and rewards, as
        learned from, are for an LSTM that reads them.
        """
        if memory is None:
            memory = self.initial_memory(features.shape[1])
        hidden, cell, first = memory.split(self._parts, -1)
        past = slice(0, len(features) - 1)
        valid, inputs = valid[past], features
        if actions is not None and rewards is not None:
            further = self._further(actions[past], rewards[past]) * valid.unsqueeze(-1)
            inputs = torch.cat([features, torch.cat([first[None], further])], -1)
        starts = F.pad(1 - valid, (0, 0, 1, 0))
        return self.lstm(inputs, torch.stack([hidden, cell]), starts)[0]

    def _further(self, actions: Tensor, rewards: Tensor) -> Float[Tensor, "T N E"]:
        """Return the further inputs that actions and their rewards are to the next steps."""
        if self._actions_of is None:
            return rewards.new_zeros(*rewards.shape, 0)
        if not self._actions_of.continuous:
            actions = F.one_hot(actions, self._actions_of.num_outputs).to(rewards.dtype)
        return torch.cat([actions, rewards.clamp(-1, 1).unsqueeze(-1)], -1)


_NOTHING = np.zeros(1, dtype=np.float32), np.zeros(1, dtype=bool)
"""No reward, and no beginning of an episode."""


class Memory:
    """A policy's memory while it plays; empty if feed-forward.

    A network's `step` maps observations and a memory to outputs and the memory after it.
    """

    def __init__(self, network: Any) -> None:
        self._network = network
        self.forget()

    def forget(self) -> None:
        """Begin a new episode in every environment."""
        self._rows: Tensor | None = None
        self._noted = _NOTHING

    def act(self, obs: Float[Tensor, "N ..."], choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the actions that `choose` makes of the network's outputs, and remember them."""
        rows, trunk = self._rows, self._network.trunk
        if rows is None or not rows.shape[1]:
            rows = trunk.initial_memory(len(obs))
        else:
            refuse_another_number(len(obs), len(rows))
            rewards, starts = (np.broadcast_to(each, len(obs)) for each in self._noted)
            rows = trunk.remember(rows, self._actions, rewards, np.logical_not(starts))
        self._noted = _NOTHING
        outputs, self._rows = self._network.step(obs, rows)
        self._actions = choose(outputs)
        return self._actions

    def note(self, rewards: np.ndarray | None, starts: np.ndarray | None) -> None:
        """Note the last actions' rewards, and whether the next observations begin episodes.

        None: as noted before, else 0 and False.
        """
        if rewards is not None:
            self._noted = np.ravel(rewards), self._noted[1]
        if starts is not None:
            self._noted = self._noted[0], np.ravel(starts)


class EnsembleMemory:
    """What ensembles remember of S seeds' episodes while they play; none in the beginning.

    Feed-forward networks remember nothing.
    """

    def __init__(self) -> None:
        self._memories: dict[str, Tensor] = {}  # by an ensemble's name, [S, K, N, M]

    def forget(self) -> None:
        """Begin a new episode in every environment."""
        self._memories.clear()

    def note(self, _rewards: np.ndarray | None, starts: np.ndarray | None) -> None:
        """Forget the episodes that are over.

        Args:
            starts: whether an episode begins with the next observation, `[S, N]`; None: nowhere.
        """
        if starts is None:
            return
        keeps = torch.from_numpy(1 - np.asarray(starts, dtype=np.float32))
        for name, memories in self._memories.items():
            kept = keeps.reshape(len(memories), 1, -1, 1).to(memories.device)
            self._memories[name] = memories * kept

    def outputs(
        self, name: str, ensemble: Any, inputs: Float[Tensor, "S N I"]
    ) -> Float[Tensor, "S K N O"]:
        """Return the outputs of an ensemble that has a name, and remember the step."""
        if not ensemble.is_recurrent:
            return ensemble(inputs)
        number, memories = inputs.shape[1], self._memories.get(name)
        if memories is None:
            memories = ensemble.initial_memory(number)
        refuse_another_number(number, memories.shape[2])
        outputs, self._memories[name] = ensemble.step(inputs, memories)
        return outputs


def refuse_another_number(number: int, before: int) -> None:
    """Raise a `ValueError` for another number of observations than in the step before."""
    if number != before:
        raise ValueError(
            f"{number} observations after {before}: call reset() before a policy plays another "
            "number of episodes"
        )
