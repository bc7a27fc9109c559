"""A claw that needs a choice and a distance in every step; importing this registers `Claw-v0`.

It is a vector environment of gymnasium, all of whose claws take a step together in numpy.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

FIRST, SECOND, DROP = range(3)
LONGEST_MOVE = 0.5
"""Distance that an axis moves at 1, the greatest continuous action."""
TOLERANCE = 0.1
"""Distance from the prize, along each axis, at which it is still caught."""
MOVE_COST = 0.1
NEAR, FAR = (0.3, 0.5), (0.8, 1.0)
"""Distances at the start: of one axis, which needs one move, and of the other, which needs two."""
BEST_RETURN = 1 - 3 * MOVE_COST
"""Return of every episode that is played as well as possible: three moves, then the drop."""
TIME_LIMIT = 20


class Claw(VectorEnv[np.ndarray, Any, np.ndarray]):
    """Claws over a square whose prize lies at its centre.

    An observation is the claw's position, `[first, second]`, each in [-1, 1]. The discrete action
    moves one of the two axes or drops the claw; the continuous action holds a distance for each
    axis, in half units, of which only the moved axis's counts. A move costs 0.1. The drop ends the
    episode and gives 1, less the distance by which each axis misses the tolerance of 0.1.

    At the start one axis, each with equal probability, is 0.8 to 1 from the centre, on either side,
    and the other 0.3 to 0.5: uniform draws from each claw's own seed. A move is at most 0.5, so the
    first needs two moves and the other one, and each saves at least 0.2. So every episode's best
    return is exactly 0.7, after four decisions. Choices that do not depend on the observation give
    at most 0.6, by two moves of either axis. No choice makes up for a distance that does not depend
    on it, as the sides differ, and no distance for moving the wrong axis or a drop too early.

    Args:
        num_envs: number of claws.
        max_episode_steps: decisions after which an episode is truncated.
        render_mode: None; it draws no frames.
    """

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = TIME_LIMIT, render_mode: str | None = None
    ) -> None:
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.single_action_space = Tuple((Discrete(3), Box(-1.0, 1.0, (2,), np.float32)))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._time_limit = max_episode_steps
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._positions = np.zeros((num_envs, 2))
        self._ages = np.zeros(num_envs, dtype=np.int64)
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
        return self._positions.astype(np.float32), {}

    def step(
        self, actions: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in every claw; where an episode has just ended, begin a new one instead.

        Actions are choices, `[N]`, and distances in half units, `[N, 2]`.
        """
        choices, distances = actions
        playing = ~self._over
        terminations = playing & (choices == DROP)
        misses = np.maximum(np.abs(self._positions) - TOLERANCE, 0.0).sum(1)
        rewards = np.where(terminations, 1.0 - misses, -MOVE_COST) * playing
        moved = playing[:, None] & (choices[:, None] == np.array([FIRST, SECOND]))
        reached = np.clip(self._positions + LONGEST_MOVE * distances, -1.0, 1.0)
        self._positions = np.where(moved, reached, self._positions)
        self._ages += playing
        truncations = playing & ~terminations & (self._ages >= self._time_limit)
        self._begin(self._over)
        self._over = terminations | truncations
        return self._positions.astype(np.float32), rewards, terminations, truncations, {}

    def _begin(self, mask: np.ndarray) -> None:
        """Begin new episodes where `mask` is True."""
        for i in np.flatnonzero(mask):
            generator = self._generators[i]
            distances = [generator.uniform(*NEAR), generator.uniform(*FAR)]
            order, sides = generator.permutation(2), generator.choice([-1.0, 1.0], 2)
            self._positions[i] = sides * np.array(distances)[order]
        self._ages[mask] = 0
        self._over = self._over & ~mask


gymnasium.register(
    id="Claw-v0", vector_entry_point="suite.envs.hybrid_tasks:Claw", max_episode_steps=TIME_LIMIT
)
