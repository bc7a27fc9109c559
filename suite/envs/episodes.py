"""What tasks in numpy share: seeds, the time limit, and the step after an end."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Episodes(VectorEnv[np.ndarray, Any, np.ndarray]):
    """A vector environment of gymnasium, all of whose episodes take a step together in numpy.

    A task says with which spaces, how episodes begin, what they show, and what actions change.

    Args:
        num_envs: number of environments.
        max_episode_steps: decisions after which an episode is truncated.
        render_mode: None; it draws no frames.
    """

    def __init__(
        self, num_envs: int, max_episode_steps: int, render_mode: str | None = None
    ) -> None:
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._time_limit = max_episode_steps
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._ages = np.zeros(num_envs, dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes, where `reset_mask` says so; return observations, `[N, O]`.

        The seed is one for each, or the first of successive ones; None: go on drawing.
        """
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            self._generators = [np.random.default_rng(each) for each in seeds]
        everywhere = np.ones(self.num_envs, dtype=bool)
        self._begin((options or {}).get("reset_mask", everywhere))
        return self._observe(), {}

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in every episode; where one has just ended, begin a new one instead."""
        playing = ~self._over
        rewards, terminations = self._act(actions, playing)
        self._ages += playing
        truncations = playing & ~terminations & (self._ages >= self._time_limit)
        self._begin(self._over)
        self._over = terminations | truncations
        return self._observe(), rewards, terminations, truncations, {}

    def _begin(self, mask: np.ndarray) -> None:
        for i in np.flatnonzero(mask).tolist():
            self._draw(i, self._generators[i])
        self._ages[mask] = 0
        self._over = self._over & ~mask

    @abstractmethod
    def _draw(self, i: int, generator: np.random.Generator) -> None:
        """Draw the beginning of a new episode in environment `i`."""

    @abstractmethod
    def _observe(self) -> np.ndarray:
        """Return what every environment shows, `[N, O]` float32."""

    @abstractmethod
    def _act(self, actions: Any, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move what is playing; return rewards and terminations, `[N]`, 0 for all others."""
