"""A T-maze, which cannot be solved without memory; importing this registers `TMaze-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from suite.envs.episodes import Episodes

LEFT, RIGHT, FORWARD = range(3)
LENGTH = 10
"""Steps from the start to the junction."""
TIME_LIMIT = 50


class TMaze(Episodes):
    """Corridors that end in a junction, after Bakker (2002, Advances in NIPS 14, Section 4).

    An observation is `[cue, at the junction]`. The first of an episode shows the cue, -1 for left
    or 1 for right with equal probability; all others show 0. Actions are left, right and forward. A
    turn in the corridor and a step forward at the junction change nothing. The turn at the junction
    ends the episode; the cue's gives the reward 1, the other 0.

    The best expected return is exactly 1, after 11 decisions. Without memory it is exactly 1/2: at
    the junction both cues look alike. Each maze draws its cues from its own seed's generator.
    """

    single_observation_space = Box(-1.0, 1.0, (2,), np.float32)
    single_action_space = Discrete(3)

    def __init__(self, num_envs: int, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self._cues, self._positions = np.zeros((2, num_envs), dtype=np.int64)

    def _draw(self, i: int, generator: np.random.Generator) -> None:
        self._cues[i], self._positions[i] = generator.integers(2), 0

    def _observe(self) -> np.ndarray:
        cues = np.where(self._ages == 0, 2 * self._cues - 1, 0)
        return np.stack([cues, self._positions == LENGTH], axis=1).astype(np.float32)

    def _act(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at_junction, forward = self._positions == LENGTH, actions == FORWARD
        turns = playing & at_junction & ~forward
        self._positions += playing & ~at_junction & forward
        return (turns & (actions == self._cues)).astype(np.float64), turns


gymnasium.register(
    id="TMaze-v0", vector_entry_point="suite.envs.memory_tasks:TMaze", max_episode_steps=TIME_LIMIT
)
