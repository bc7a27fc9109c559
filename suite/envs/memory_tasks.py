"""A T-maze, which cannot be solved without memory; importing this registers `TMaze-v0`.

It is a vector environment of gymnasium, all of whose mazes take a step together in numpy.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LEFT, RIGHT, FORWARD = range(3)
LENGTH = 10
"""Steps from the start to the junction."""
TIME_LIMIT = 50


class TMaze(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Corridors that end in a junction, after Bakker (2002, Advances in NIPS 14, Section 4).

    An observation is `[cue, at the junction]`. The first of an episode shows the cue, -1 for left
    or 1 for right with equal probability; all others show 0. Actions are left, right and forward. A
    turn in the corridor and a step forward at the junction change nothing. The turn at the junction
    ends the episode; the cue's gives the reward 1, the other 0.

    The best expected return is exactly 1, after 11 decisions. Without memory it is exactly 1/2: at
    the junction both cues look alike. Each maze draws its cues from its own seed's generator.

    Args:
        num_envs: number of mazes.
        max_episode_steps: decisions after which an episode is truncated.
        render_mode: None; it draws no frames.
    """

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = TIME_LIMIT, render_mode: str | None = None
    ) -> None:
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._time_limit = max_episode_steps
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._cues, self._positions, self._ages = np.zeros((3, num_envs), dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes, where `reset_mask` says so; return observations, `[N, 2]`.

        The seed is one for each, or the first of successive ones; None: go on drawing.
        """
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            self._generators = [np.random.default_rng(each) for each in seeds]
        everywhere = np.ones(self.num_envs, dtype=bool)
        self._begin((options or {}).get("reset_mask", everywhere))
        return self._observe(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in every maze; where an episode has just ended, begin a new one instead."""
        playing, at_junction = ~self._over, self._positions == LENGTH
        forward = actions == FORWARD
        terminations = playing & at_junction & ~forward
        rewards = (terminations & (actions == self._cues)).astype(np.float64)
        self._positions += playing & ~at_junction & forward
        self._ages += playing
        truncations = playing & ~terminations & (self._ages >= self._time_limit)
        self._begin(self._over)
        self._over = terminations | truncations
        return self._observe(), rewards, terminations, truncations, {}

    def _begin(self, mask: np.ndarray) -> None:
        """Begin new episodes where `mask` is True."""
        for i in np.flatnonzero(mask):
            self._cues[i] = self._generators[i].integers(2)
        self._positions[mask] = self._ages[mask] = 0
        self._over = self._over & ~mask

    def _observe(self) -> np.ndarray:
        cues = np.where(self._ages == 0, 2 * self._cues - 1, 0)
        return np.stack([cues, self._positions == LENGTH], axis=1).astype(np.float32)


gymnasium.register(
    id="TMaze-v0", vector_entry_point="suite.envs.memory_tasks:TMaze", max_episode_steps=TIME_LIMIT
)
