"""A T-maze, which cannot be solved without memory; importing this registers `TMaze-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from suite.envs.tasks import TASKS

LEFT, RIGHT, FORWARD = range(3)
LENGTH = 10
"""Steps from the start to the junction."""


class TMaze(gymnasium.Env[np.ndarray, np.integer]):
    """A corridor that ends in a junction, after Bakker (2002, Advances in NIPS 14, Section 4).

    An observation is `[cue, at the junction]`. The first of an episode shows the cue, -1 for left
    or 1 for right with equal probability; all others show 0. Actions are left, right and forward. A
    turn in the corridor and a step forward at the junction change nothing. The turn at the junction
    ends the episode; the cue's gives the reward 1, the other 0.

    The best expected return is exactly 1, after 11 decisions. Without memory it is exactly 1/2: at
    the junction both cues look alike.
    """

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the cue, and show it at the start of the corridor."""
        super().reset(seed=seed)
        self._cue, self._position = int(self.np_random.integers(2)), 0
        return np.array([2 * self._cue - 1, 0], dtype=np.float32), {}

    def step(self, action: np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move, or turn; only the first observation shows the cue."""
        at_junction, forward = self._position == LENGTH, action == FORWARD
        turns = at_junction and not forward
        self._position += not at_junction and forward
        obs = np.array([0, self._position == LENGTH], dtype=np.float32)
        return obs, float(turns and action == self._cue), bool(turns), False, {}


LIMIT = TASKS["TMaze-v0"].time_limit
gymnasium.register("TMaze-v0", f"{__name__}:TMaze", max_episode_steps=LIMIT)
