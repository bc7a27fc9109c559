"""Uniform replay of transitions, a ring for each seed."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.envs.vector_env import Step

NO_EXTRAS = torch.empty(0)
"""Extras of a replay that stores none."""


class Batch(NamedTuple):
    """Transitions sampled for one update, per seed."""

    obs: Tensor
    """`[S, B, O]`."""
    obs_actions: Tensor
    """`[S, B, O + A]`: observations and the actions taken on them, side by side."""
    rewards: Tensor
    """`[S, B]`."""
    terminations: Tensor
    """`[S, B]`: 1 where no value follows, else 0; a time limit is a 0."""
    next_obs: Tensor
    """`[S, B, O]`, before any reset."""
    extras: Tensor = NO_EXTRAS
    """`[S, B, E]`: additional columns."""


class Replay:
    """The newest transitions of S seeds: rows of (obs, action, reward, termination, next_obs).

    A vector step adds `num_envs` of each seed; the capacity, of a seed, is rounded down to a
    multiple. Beside these columns `extra_size` numbers are stored.
    """

    def __init__(
        self,
        num_seeds: int,
        capacity: int,
        num_envs: int,
        obs_size: int,
        action_size: int,
        device: torch.device,
        extra_size: int = 0,
    ) -> None:
        self.capacity = capacity // num_envs * num_envs
        self.size = self._next = 0
        self._obs_size, self._action_size, self._num_envs = obs_size, action_size, num_envs
        self._extra_size = extra_size
        width = 2 * obs_size + action_size + 2 + extra_size
        self._rows = torch.empty(num_seeds, self.capacity, width, device=device)
        self._first_rows = torch.arange(num_seeds, device=device)[:, None] * self.capacity

    def add(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminations: np.ndarray,
        next_obs: np.ndarray,
        *extras: np.ndarray,
    ) -> None:
        """Store one vector step, arrays `[S, N, ...]`; the oldest transitions are overwritten.

        Extras, `[S, N, _]`, are stored side by side.
        """
        columns = (obs, actions, rewards[..., None], terminations[..., None], next_obs, *extras)
        on_host = torch.from_numpy(np.concatenate(columns, axis=-1, dtype=np.float32))
        rows = on_host.to(self._rows.device, non_blocking=True)  # the host waits for no update
        self._rows[:, self._next : self._next + rows.shape[1]] = rows
        self._next = (self._next + rows.shape[1]) % self.capacity
        self.size = min(self.size + rows.shape[1], self.capacity)

    def store(self, obs: np.ndarray, actions: np.ndarray, step: Step, scale: float = 1.0) -> None:
        """Store one vector step's observations, actions and outcome, its rewards times `scale`."""
        self.add(obs, actions, step.rewards * scale, step.terminations, step.next_obs)

    @property
    def coming(self) -> tuple[int, int]:
        """Return the size once another vector step is stored, and the first of that step's rows."""
        return self.size_after(self.size), self._next

    def size_after(self, size: int) -> int:
        """Return the size once a vector step is stored beside so many rows."""
        return min(size + self._num_envs, self.capacity)

    @property
    def newest(self) -> np.ndarray:
        """Return the indices of the vector step stored last, `[N]`."""
        return (self._next - self._num_envs + np.arange(self._num_envs)) % self.capacity

    def batch(self, indices: Tensor) -> Batch:
        """Return the transitions at `indices`, `[S, B]` int64 below `size`."""
        flat = (indices + self._first_rows).flatten()
        rows = self._rows.flatten(0, 1).index_select(0, flat).unflatten(0, indices.shape)
        obs_size, inputs = self._obs_size, self._obs_size + self._action_size
        end = inputs + 2 + obs_size
        return Batch(
            obs=rows[..., :obs_size],
            obs_actions=rows[..., :inputs],
            rewards=rows[..., inputs],
            terminations=rows[..., inputs + 1],
            next_obs=rows[..., inputs + 2 : end],
            extras=rows[..., end:] if self._extra_size else NO_EXTRAS,
        )


class HistoryReplay(Replay):
    """Replay that knows what came before a transition, and what follows it.

    Its extras are the D parts of the reward (1: itself), the continuous action before, zeros at an
    episode's first step, and there a 1, else 0. Sizes are the widths of an observation, of a
    continuous action, and of a number before it, 0 or 1.
    """

    def __init__(
        self,
        num_seeds: int,
        capacity: int,
        num_envs: int,
        sizes: tuple[int, int, int],
        num_parts: int,
        device: torch.device,
    ) -> None:
        obs_size, continuous, number = sizes
        extra_size = num_parts + continuous + 1
        widths = (obs_size, continuous + number)
        super().__init__(num_seeds, capacity, num_envs, *widths, device, extra_size)
        self._previous = np.zeros((num_seeds, num_envs, continuous + 1), dtype=np.float32)
        self._previous[..., -1] = 1.0

    def store(self, obs: np.ndarray, actions: np.ndarray, step: Step, scale: float = 1.0) -> None:
        """Store one vector step's observations, actions and outcome, its rewards times `scale`."""
        rows = actions if actions.ndim == 3 else actions[..., None]  # numbers alone
        parts = step.reward_parts if step.reward_parts.size else step.rewards[..., None]
        outcome = (step.rewards * scale, step.terminations, step.next_obs, parts * scale)
        self.add(obs, rows, *outcome, self._previous)
        ends = step.ends[..., None]
        first = rows.shape[-1] - self._previous.shape[-1] + 1  # of the continuous action
        kept = np.where(ends, 0.0, rows[..., first:])
        self._previous = np.concatenate([kept, ends], axis=-1, dtype=np.float32)

    def sequences(self, rows: Tensor, length: int) -> tuple[Batch, Tensor]:
        """Return rows, first, and the T - 1 steps that follow each, `[S, T * B]`.

        A sequence ends with its episode, or with the newest transition; from there on its last row
        is repeated, and does not count: there the second result, `[S, T, B]`, is 0, else 1.
        """
        steps, counts = [rows], [torch.ones_like(rows, dtype=torch.bool)]
        newest = (self._next - self._num_envs) % self.capacity
        for _ in range(length - 1):
            following = (steps[-1] + self._num_envs) % self.capacity
            is_first = self._rows[..., -1].gather(1, following) > 0
            is_newest = (steps[-1] >= newest) & (steps[-1] < newest + self._num_envs)
            counts.append(counts[-1] & ~is_first & ~is_newest)
            steps.append(torch.where(counts[-1], following, steps[-1]))
        return self.batch(torch.cat(steps, 1)), torch.stack(counts, 1).float()
