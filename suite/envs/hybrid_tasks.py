"""A claw that needs a choice and a distance in every step; importing this registers `Claw-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple

from suite.envs.episodes import Episodes

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


class Claw(Episodes):
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
    """

    single_observation_space = Box(-1.0, 1.0, (2,), np.float32)
    single_action_space = Tuple((Discrete(3), Box(-1.0, 1.0, (2,), np.float32)))

    def __init__(self, num_envs: int, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self._positions = np.zeros((num_envs, 2))

    def _draw(self, i: int, generator: np.random.Generator) -> None:
        distances = [generator.uniform(*NEAR), generator.uniform(*FAR)]
        order, sides = generator.permutation(2), generator.choice([-1.0, 1.0], 2)
        self._positions[i] = sides * np.array(distances)[order]

    def _observe(self) -> np.ndarray:
        return self._positions.astype(np.float32)

    def _act(
        self, actions: tuple[np.ndarray, np.ndarray], playing: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions are choices, `[N]`, and distances in half units, `[N, 2]`."""
        choices, distances = actions
        drops = playing & (choices == DROP)
        misses = np.maximum(np.abs(self._positions) - TOLERANCE, 0.0).sum(1)
        moved = playing[:, None] & (choices[:, None] == np.array([FIRST, SECOND]))
        reached = np.clip(self._positions + LONGEST_MOVE * distances, -1.0, 1.0)
        self._positions = np.where(moved, reached, self._positions)
        return np.where(drops, 1.0 - misses, -MOVE_COST) * playing, drops


gymnasium.register(
    id="Claw-v0", vector_entry_point="suite.envs.hybrid_tasks:Claw", max_episode_steps=TIME_LIMIT
)
