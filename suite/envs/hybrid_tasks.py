"""A claw that needs a choice and a distance in every step; importing this registers `Claw-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple

from suite.envs.tasks import TASKS

FIRST, SECOND, DROP = range(3)
LONGEST_MOVE = 0.5
"""Distance that an axis moves at 1, the greatest continuous action."""
TOLERANCE = 0.1
"""Distance from the prize, along each axis, at which it is still caught."""
MOVE_COST = 0.1
NEAR, FAR = (0.3, 0.5), (0.8, 1.0)
"""Distances at the start: of one axis, which needs one move, and of the other, which needs two."""


class Claw(gymnasium.Env[np.ndarray, Any]):
    """A claw over a square whose prize lies at its centre.

    An observation is the claw's position, `[first, second]`, each in [-1, 1]. The discrete action
    moves one of the two axes or drops the claw; the continuous action holds a distance for each
    axis, in half units, of which only the moved axis's counts. A move costs 0.1. The drop ends the
    episode and gives 1, less the distance by which each axis misses the tolerance of 0.1.

    At the start one axis, each with equal probability, is 0.8 to 1 from the centre, on either side,
    and the other 0.3 to 0.5: uniform draws. A move is at most 0.5, so the far axis needs two moves
    and the near axis one; each move saves at least 0.2. So every episode's best
    return is exactly 0.7, after four decisions. Choices that do not depend on the observation give
    at most 0.6, by two moves of either axis. No choice makes up for a distance that does not depend
    on it, as the sides differ, and no distance for moving the wrong axis or a drop too early.
    """

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Tuple((Discrete(3), Box(-1.0, 1.0, (2,), np.float32)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw where the claw begins; return its position."""
        super().reset(seed=seed)
        draw = self.np_random
        distances = [draw.uniform(*NEAR), draw.uniform(*FAR)]
        order, sides = draw.permutation(2), draw.choice([-1.0, 1.0], 2)
        self._position = sides * np.array(distances)[order]
        return self._position.astype(np.float32), {}

    def step(
        self, action: tuple[np.integer, np.ndarray]
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move an axis, or drop; distances are in half units."""
        choice, distances = action
        reward, position = -MOVE_COST, self._position
        if choice == DROP:
            reward = 1 - np.maximum(np.abs(position) - TOLERANCE, 0).sum()
        else:
            position[choice] = np.clip(position[choice] + LONGEST_MOVE * distances[choice], -1, 1)
        return position.astype(np.float32), reward, bool(choice == DROP), False, {}


LIMIT = TASKS["Claw-v0"].time_limit
gymnasium.register("Claw-v0", f"{__name__}:Claw", max_episode_steps=LIMIT)
