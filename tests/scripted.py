"""An environment of which every return can be told beforehand."""

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.envs.vector_env import NO_PARTS, Spaces, Step

LENGTH = 8


class ScriptedEnv:
    """Episodes of eight steps with reward 1; they end as `kind` says.

    Takes the place of `VectorEnv`. An observation is the time, from 0 to 1. With the reset
    `next_step` the action after an end is ignored; its row holds rewards that no agent may learn
    from. Parts of a reward are itself and its half.
    """

    spaces = Spaces((1,), 2)
    kind = "truncation"
    reward: Callable[[np.ndarray], np.ndarray] = staticmethod(np.ones_like)
    """Maps actions to rewards; of continuous actions the first dimension, `[S, N]`, of hybrid ones
    whole rows, `[S, N, 1 + A]`."""

    def __init__(
        self,
        task: Any,
        env_seeds: np.ndarray,
        *,
        reset: str = "next_step",
        num_threads: int = 1,
        reward_parts: bool = False,
    ) -> None:
        self.shape = self.num_seeds, self.num_envs = env_seeds.shape
        self._same_step, self._parted, self._time = reset == "same_step", reward_parts, 0
        continuous = self.spaces.continuous
        self.action_shape = (self.spaces.num_outputs,) if continuous else ()
        self.num_actions, self.obs_shape = self.spaces.num_outputs, self.spaces.obs_shape
        if self.spaces.num_choices:
            self.action_shape = (1 + self.spaces.num_outputs,)
            self.num_actions = self.spaces.num_choices

    @property
    def obs(self) -> np.ndarray:
        """Return what to act on next."""
        return self._obs(self._time)

    def digest(self) -> str:
        """Return the state."""
        return str(self._time)

    def reset(self) -> np.ndarray:
        """Return the first observations."""
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        """Act and return the outcome."""
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Begin a step."""
        assert actions.shape == (*self.shape, *self.action_shape)
        rows = bool(self.spaces.num_choices) or not self.spaces.continuous
        self._actions = actions if rows else actions[..., 0]

    def recv(self) -> Step:
        """Return the outcome of the step begun."""
        ignored = self._time == LENGTH
        time = 0 if ignored else self._time + 1
        ends, never = np.full(self.shape, time == LENGTH), np.zeros(self.shape, dtype=bool)
        rewards = self.reward(self._actions.astype(np.float32)).astype(np.float32)
        rewards = np.full_like(rewards, 1e3) if ignored else rewards
        self._time = time % LENGTH if self._same_step else time
        return Step(
            obs=self.obs,
            next_obs=self._obs(time),
            rewards=rewards,
            raw_rewards=100 * rewards,  # a score, never learned from
            terminations=ends if self.kind == "termination" else never,
            truncations=ends if self.kind == "truncation" else never,
            valid=np.full(self.shape, not ignored),
            episode_ends=ends,
            episode_returns=np.full(self.shape, float(LENGTH)),
            episode_lengths=np.full(self.shape, LENGTH),
            reward_parts=np.stack([rewards, rewards / 2], -1) if self._parted else NO_PARTS,
        )

    def _obs(self, time: int) -> np.ndarray:
        return np.full((*self.shape, 1), time / LENGTH, dtype=np.float32)
