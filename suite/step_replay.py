"""Uniform replay of steps with discrete actions, which keeps every observation and frame once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.envs.vector_env import Spaces, Step, frames_back
from suite.nets.networks import prepare


class StepBatch(NamedTuple):
    """Transitions sampled for one update, per seed."""

    obs: Tensor
    """`[S, B, *obs]`, as networks read them."""
    actions: Tensor
    """`[S, B]` int64."""
    rewards: Tensor
    """`[S, B]`."""
    terminations: Tensor
    """`[S, B]`: 1 where no value follows, else 0; a time limit is a 0."""
    next_obs: Tensor
    """`[S, B, *obs]`, before any reset."""


class StepReplay:
    """The newest steps of S seeds with N environments each, in the machine's memory.

    Every environment has a ring of rows, more than the frames of a stack by two. A row holds an
    observation, the action taken on it and what this caused; the observation that it led to is the
    next row. So the last observation of an episode is a row without an action, which is never
    drawn. Of a stack of frames only the newest is stored, and the stack is rebuilt from the rows
    before it (`frames_back`).
    """

    def __init__(
        self, spaces: Spaces, num_seeds: int, num_envs: int, num_rows: int, device: torch.device
    ) -> None:
        self._shape, self._num_rows, self._device = (num_seeds, num_envs), num_rows, device
        self._stack, stored = spaces.stored
        size = num_seeds * num_envs * num_rows  # rows of all environments, one after another
        self._obs = np.zeros((size, *stored), dtype=np.uint8 if self._stack > 1 else np.float32)
        self._ages = np.zeros(size, dtype=np.uint8)  # earlier frames of the same game in the stack
        self._actions = np.zeros(size, dtype=_action_type(spaces))
        self._rewards = np.zeros(size, dtype=np.float32)
        self._terminations, self._drawable = np.zeros((2, size), dtype=bool)
        self._first_rows = np.arange(num_seeds * num_envs) * num_rows
        self._counts = np.zeros(num_seeds * num_envs, dtype=np.int64)  # rows so far, by environment

    def store(self, obs: np.ndarray, actions: np.ndarray, step: Step) -> None:
        """Store one vector step with "same step" resets: actions `[S, N]` and their outcome.

        The observations `[S, N, *obs]` before them are stored of the very first step only: any
        other's came with the step before.
        """
        envs = np.arange(len(self._counts))
        if not self._counts.any():
            self._append(envs, obs.reshape(-1, *obs.shape[2:]), np.zeros(len(envs), dtype=np.uint8))
        rows = self._rows(envs, self._counts - 1)
        self._actions[rows], self._rewards[rows] = actions.ravel(), step.rewards.ravel()
        self._terminations[rows], self._drawable[rows] = step.terminations.ravel(), True
        oldest = self._stack - 1
        ages = np.minimum(self._ages[rows] + 1, oldest)
        self._append(envs, step.next_obs.reshape(-1, *step.next_obs.shape[2:]), ages)
        ended = np.flatnonzero(step.ends)
        if len(ended):
            ages = np.where(step.episode_ends.ravel(), 0, np.minimum(ages + 1, oldest))
            first = step.obs.reshape(-1, *step.obs.shape[2:])[ended]
            self._append(ended, first, ages[ended])

    def sample(self, generators: Sequence[np.random.Generator], size: int) -> StepBatch:
        """Return transitions drawn with replacement, each seed's from its own stream."""
        rows = np.stack([self._draw(s, generator, size) for s, generator in enumerate(generators)])
        device = self._device
        return StepBatch(
            obs=self._read(rows),
            actions=torch.from_numpy(self._actions[rows]).to(device, torch.int64),
            rewards=torch.from_numpy(self._rewards[rows]).to(device),
            terminations=torch.from_numpy(self._terminations[rows]).to(device, torch.float32),
            next_obs=self._read(self._shifted(rows, 1)),
        )

    def _append(self, envs: np.ndarray, obs: np.ndarray, ages: np.ndarray) -> None:
        """Store observations `[E, *obs]` in the next rows of environments."""
        rows = self._rows(envs, self._counts[envs])
        self._obs[rows] = obs[:, -1] if self._stack > 1 else obs
        self._ages[rows] = ages
        for number in range(self._stack):  # the oldest rows' stacks have lost a frame
            self._drawable[self._shifted(rows, number)] = False
        self._counts[envs] += 1

    def _draw(self, seed: int, generator: np.random.Generator, size: int) -> np.ndarray:
        """Return rows of one seed, each of those with a whole transition equally likely."""
        num_envs = self._shape[1]
        of_seed = slice(seed * num_envs, (seed + 1) * num_envs)
        reach = min(int(self._counts[of_seed].max()), self._num_rows)

        def draw(number: int) -> np.ndarray:
            envs, rows = np.divmod(generator.integers(0, num_envs * reach, number), reach)
            return self._first_rows[of_seed][envs] + rows

        rows = draw(size)
        while (missed := ~self._drawable[rows]).any():
            rows[missed] = draw(int(missed.sum()))
        return rows

    def _read(self, rows: np.ndarray) -> Tensor:
        """Return the observations `[S, B, *obs]` of rows, as networks read them."""
        if self._stack > 1:
            rows = self._shifted(rows[..., None], -frames_back(self._ages[rows], self._stack))
        obs = np.take(self._obs, rows, axis=0)
        joined = prepare(obs.reshape(-1, *obs.shape[2:]), self._device)
        return joined.unflatten(0, obs.shape[:2])

    def _rows(self, envs: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return self._first_rows[envs] + counts % self._num_rows

    def _shifted(self, rows: np.ndarray, by: int | np.ndarray) -> np.ndarray:
        """Return rows further on in the same ring."""
        places = rows % self._num_rows
        return rows - places + (places + by) % self._num_rows


def row_bytes(spaces: Spaces) -> int:
    """Return the bytes of one stored step."""
    return spaces.stored_bytes + 7 + _action_type(spaces).itemsize


def _action_type(spaces: Spaces) -> np.dtype[Any]:
    """Return the smallest type that holds every action's number."""
    return np.min_scalar_type(spaces.num_outputs - 1)
