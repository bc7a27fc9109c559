"""Unrolls: T steps of N environments, time-major, collected in place or read from replay.

Row t holds an observation, the action taken on it, and everything that this action caused.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.envs.vector_env import Spaces, Step, frames_back
from suite.nets.moments import RunningMoments
from suite.nets.networks import prepare
from suite.settings.config import ReplayConfig, UnrollConfig


class UnrollBatch(NamedTuple):
    """Unrolls for an update, on the device; the B columns are environments or draws."""

    obs: Tensor
    """`[T + 1, B, *obs]`: observations acted on, and the one after them, as networks read them."""
    actions: Tensor
    """`[T, B]` int64, or `[T, B, A]` float32 before the environment clips them to [-1, 1]."""
    behaviour: Tensor
    """`[T, B, ...]`: numbers that the agent keeps of the policy that acted; may be empty."""
    rewards: Tensor
    """`[T, B]`, as learned from."""
    discounts: Tensor
    """`[T, B]`: gamma, or 0 where no value follows."""
    trace_mask: Tensor
    """`[T, B]`: 1 where a trace passes from t + 1 to t, 0 at any end."""
    valid: Tensor
    """`[T, B]`: 1 for a transition, 0 for an ignored action."""

    @property
    def weights(self) -> Tensor:
        """Return `valid` over the number of valid rows: a weighted sum is their mean."""
        return self.valid / self.valid.sum().clamp(min=1)

    @property
    def is_empty(self) -> bool:
        """Return whether no row is a transition; of two in a row one is, so T is 1."""
        return len(self.valid) == 1 and not self.valid.any()

    def minibatches(self, number: int) -> list["UnrollBatch"]:
        """Split the columns into `number` parts, in order."""
        chunks = [column.chunk(number, dim=1) for column in self]
        return [UnrollBatch(*columns) for columns in zip(*chunks, strict=True)]


class Outcomes(NamedTuple):
    """Outcomes of actions, `[T, B]` numpy each; see `Step`."""

    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    valid: np.ndarray

    @classmethod
    def zeros(cls, *shape: int) -> "Outcomes":
        """Return outcomes of this shape, filled with zeros."""
        terminations, truncations, valid = np.zeros((3, *shape), dtype=bool)
        return cls(np.zeros(shape, dtype=np.float32), terminations, truncations, valid)

    def put(self, row: int, step: Step) -> None:
        """Store the outcome of one vector step of one seed."""
        self.rewards[row], self.valid[row] = step.rewards[0], step.valid[0]
        self.terminations[row], self.truncations[row] = step.terminations, step.truncations

    def tensors(self, device: torch.device, config: UnrollConfig) -> Tensor:
        """Return rewards, discounts, trace mask and valid rows, `[4, T, B]` float32."""
        cut = self.terminations | self.truncations
        ends = cut if config.time_limit_is_terminal else self.terminations
        columns = [self.rewards, config.gamma * ~ends, ~cut, self.valid]
        stacked = np.stack(columns, dtype=np.float32, casting="unsafe")
        return torch.from_numpy(stacked).to(device)


class Unroll:
    """T steps of N environments and the observation after them, filled step by step.

    `behaviour` keeps the acting network's outputs if asked to. Observations are normalised as they
    are stored if there are statistics; frames are scaled by a factor if there are none.
    """

    def __init__(
        self,
        config: UnrollConfig,
        spaces: Spaces,
        device: torch.device,
        obs_moments: RunningMoments | None = None,
        *,
        frame_factor: float = 1 / 255,
        keeps_outputs: bool = False,
    ) -> None:
        length, num_envs = config.unroll_length, config.num_envs
        self._config, self._device, self._frame_factor = config, device, frame_factor
        self._obs_moments = obs_moments
        self.obs = torch.empty(length + 1, num_envs, *spaces.obs_shape, device=device)
        if len(spaces.obs_shape) == 3:  # channels-last memory, as the kernels have it
            channels, height, width = spaces.obs_shape
            rows = torch.empty(length + 1, num_envs, height, width, channels, device=device)
            self.obs = rows.permute(0, 1, 4, 2, 3)
        kind = torch.float32 if spaces.continuous else torch.int64
        size = (spaces.num_outputs,) if spaces.continuous else ()
        self.actions = torch.empty(length, num_envs, *size, dtype=kind, device=device)
        kept = spaces.num_outputs if keeps_outputs else 0
        self.behaviour = torch.empty(length, num_envs, kept, device=device)
        self.outcomes = Outcomes.zeros(length, num_envs)

    @property
    def shape(self) -> tuple[int, int]:
        """Return T and N."""
        return self.outcomes.valid.shape

    def begin_again(self) -> Tensor:
        """Make the last observations the first ones and return them."""
        return self.obs[0].copy_(self.obs[-1])

    def put_obs(self, t: int, obs: np.ndarray, are_new: np.ndarray) -> Tensor:
        """Store observations `[N, *obs]` at `t` and return them as the network reads them.

        Those that are new, which a valid action follows, enter the statistics.
        """
        if self._obs_moments is not None:
            self._obs_moments.add(obs[are_new])
            obs = self._obs_moments.standardise(obs, self._config.observation_clip)
        return prepare(obs, self._device, self._frame_factor, out=self.obs[t])

    def transitions(self) -> UnrollBatch:
        """Return the transitions for an update; observations and actions are not copied."""
        columns = self.outcomes.tensors(self._device, self._config)
        return UnrollBatch(self.obs, self.actions, self.behaviour, *columns)


def shuffled(
    columns: Sequence[Tensor], memory: Tensor, number: int, generator: np.random.Generator
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the rows of an unroll in a random order, in `number` parts: columns, and their memory.

    Without a memory, `[N, M]` before the first step, rows are drawn one by one, `[1, B, ...]`; with
    one, environments with all their steps, `[T, B, ...]`.
    """
    whole = memory.shape[1] > 0
    # frames stay in channels-last memory
    rows = [each.movedim(2, -1) if each.dim() == 5 else each for each in columns]
    if not whole:
        rows = [each.flatten(0, 1).unsqueeze(0) for each in rows]
    order = torch.from_numpy(generator.permutation(rows[0].shape[1])).to(memory.device)
    for part in order.chunk(number):
        share = (each.index_select(1, part) for each in rows)
        share = [each.movedim(-1, 2) if each.dim() == 5 else each for each in share]
        yield share, memory[part] if whole else memory.new_empty(len(part), 0)


class UnrollReplay:
    """The newest unrolls of every environment, and the observation after them.

    A ring of steps, time-major, in the machine's memory but for frames, which lie on the device. It
    stores only the newest frame of each stack and rebuilds the stack from the frames before it
    (`frames_back`). Of the policy that acted it keeps `behaviour_size` numbers a row. Observations
    are stored as they come, and normalised as they are read if there are statistics.
    """

    def __init__(
        self,
        spaces: Spaces,
        config: ReplayConfig,
        behaviour_size: int,
        device: torch.device,
        obs_moments: RunningMoments | None = None,
    ) -> None:
        self._config, self._device, self._obs_moments = config, device, obs_moments
        self._length, self._num_unrolls = config.unroll_length, config.kept_unrolls
        self._stack, shape = spaces.stored
        # an unroll is read with the observation after it and the frames before it
        self._num_rows = self._num_unrolls * self._length + self._stack
        size = (self._num_rows, config.num_envs)
        kind, place = (torch.uint8, device) if self._stack > 1 else (torch.float32, "cpu")
        self._obs = torch.empty(*size, *shape, dtype=kind, device=place)
        self._ages = np.zeros(size, dtype=np.uint8)
        kind, dimensions = (np.float32, (spaces.num_outputs,)) if spaces.continuous else (int, ())
        self._actions = np.zeros((*size, *dimensions), dtype=kind)
        self.behaviour = np.zeros((*size, behaviour_size), dtype=np.float32)
        """Numbers kept of the policies that acted: all that replaying actions cannot restore."""
        self._outcomes = Outcomes.zeros(*size)
        self._envs = np.arange(config.num_envs)
        self._over = np.zeros(config.num_envs, dtype=bool)
        self.num_steps = 0

    @property
    def num_unrolls(self) -> int:
        """Return the number of whole unrolls so far, including overwritten ones."""
        return self.num_steps // self._length

    def draw_num_updates(self, generator: np.random.Generator) -> int:
        """Return how many updates from replay follow the newest unroll."""
        if self.num_steps < self._config.replay_start:
            return 0
        if self._config.replay_count == "poisson":
            return int(generator.poisson(self._config.mean_replays))
        return int(self._config.mean_replays)

    def put_first_obs(self, obs: np.ndarray) -> None:
        """Store the observations `[N, *obs]` before the very first actions."""
        self._put_obs(0, obs, np.zeros(len(obs), dtype=np.uint8))

    def add(self, actions: np.ndarray, behaviour: np.ndarray | None, step: Step) -> None:
        """Store a vector step: actions, numbers of the policy that acted, and the outcome.

        Without these numbers those in the ring stay.
        """
        row, following = self.num_steps % self._num_rows, (self.num_steps + 1) % self._num_rows
        self._actions[row] = actions
        if behaviour is not None:
            self.behaviour[row] = behaviour
        self._outcomes.put(row, step)
        ages = np.where(self._over, 0, np.minimum(self._ages[row] + 1, self._stack - 1))
        self._put_obs(following, step.obs[0], ages)
        self._over = step.episode_ends[0]  # the next action is ignored, a new game follows it
        self.num_steps += 1

    def read_obs(self, obs: np.ndarray, are_new: np.ndarray) -> Tensor:
        """Return the newest observations, those stored last, as networks read them.

        Those that are new, which a valid action follows, enter the statistics.
        """
        if self._obs_moments is not None:
            self._obs_moments.add(obs[are_new])
        if self._stack > 1:  # they have crossed to the device
            return self._read_obs(np.full((1, len(obs)), self.num_steps), self._envs)[0]
        return self._prepare(obs)

    def newest(self) -> UnrollBatch:
        """Return the newest unroll of every environment."""
        return self.read(np.full(len(self._envs), self.num_unrolls - 1), self._envs)

    def sample(self, generator: np.random.Generator) -> UnrollBatch:
        """Return one stored unroll of each environment, drawn at random."""
        return self.read(self._draw(generator, len(self._envs)), self._envs)

    def sample_any(self, generator: np.random.Generator, number: int) -> UnrollBatch:
        """Return `number` stored unrolls of any environment, drawn with replacement."""
        numbers = self._draw(generator, number)
        return self.read(numbers, generator.integers(0, len(self._envs), number))

    def read(self, numbers: np.ndarray, envs: np.ndarray) -> UnrollBatch:
        """Return unroll `numbers[i]` (the first is 0) of environment `envs[i]`, for every i."""
        steps = numbers * self._length + np.arange(self._length + 1)[:, None]  # [T + 1, B]
        acted = steps[:-1] % self._num_rows, envs
        outcomes = Outcomes(*(column[acted] for column in self._outcomes))
        return UnrollBatch(
            self._read_obs(steps, envs),
            torch.from_numpy(self._actions[acted]).to(self._device),
            torch.from_numpy(self.behaviour[acted]).to(self._device),
            *outcomes.tensors(self._device, self._config),
        )

    def _read_obs(self, steps: np.ndarray, envs: np.ndarray) -> Tensor:
        """Return the observations of environments `envs[i]` at `steps[:, i]`, `[T, B, *obs]`."""
        back = frames_back(self._ages[steps % self._num_rows, envs], self._stack)
        places = (steps[..., None] - back) % self._num_rows * len(self._envs) + envs[:, None]
        where = torch.from_numpy(places.reshape(-1)).to(self._obs.device)
        obs = self._obs.flatten(0, 1).index_select(0, where)
        if self._stack > 1:
            obs = obs.unflatten(0, (-1, self._stack))
        return self._prepare(obs).unflatten(0, steps.shape)

    def _prepare(self, obs: np.ndarray | Tensor) -> Tensor:
        if self._obs_moments is not None:
            rows = obs.cpu().numpy() if isinstance(obs, Tensor) else obs
            obs = self._obs_moments.standardise(rows, self._config.observation_clip)
        return prepare(obs, self._device)

    def _draw(self, generator: np.random.Generator, number: int) -> np.ndarray:
        oldest = max(self.num_unrolls - self._num_unrolls, 0)
        return generator.integers(oldest, self.num_unrolls, size=number)

    def _put_obs(self, row: int, obs: np.ndarray, ages: np.ndarray) -> None:
        """Store observations and how many earlier frames of the same game each one holds."""
        newest = torch.from_numpy(obs[:, -1] if self._stack > 1 else obs)
        self._obs[row] = newest.to(self._obs.device)
        self._ages[row] = ages
