"""Uniform replay of transitions, a ring for each seed."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.vector_env import Step

NO_EXTRAS = torch.empty(0)
"""Of a replay that stores none."""


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

    Args:
        num_seeds: S.
        capacity: transitions kept per seed; rounded down to a multiple of `num_envs`.
        num_envs: transitions added per seed and vector step, N.
        obs_size: width of an observation, O.
        action_size: width of an action, A.
        device: where the rows live.
        extra_size: numbers that are stored beside these, E.
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
        width = _width(obs_size, action_size, extra_size)
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
        return min(self.size + self._num_envs, self.capacity), self._next

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


def row_bytes(obs_size: int, action_size: int, extra_size: int = 0) -> int:
    """Return the bytes of one stored transition."""
    return 4 * _width(obs_size, action_size, extra_size)


def _width(obs_size: int, action_size: int, extra_size: int) -> int:
    return 2 * obs_size + action_size + 2 + extra_size
