"""Tasks that somebody else might register with gymnasium; importing this registers them."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from gymnasium.vector import SyncVectorEnv

VECTORS = Box(-np.inf, np.inf, (3,), np.float64)


class Tape(gymnasium.Env[Any, Any]):
    """Shows its first draw, its age and the last action; the reward is that action.

    A hybrid action counts as its number plus ten times the first component of its vector.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as gymnasium declares it

    def __init__(
        self,
        observations: Space[Any] = VECTORS,
        actions: Space[Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = observations
        self.action_space = actions or Discrete(3, start=5)
        self.render_mode = render_mode
        self._seen = np.zeros(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = np.array([self.np_random.uniform(), 0.0, 0.0])
        return self._seen, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        number = float(np.asarray(action[0] if isinstance(action, tuple) else action).flat[0])
        if isinstance(action, tuple):
            number += 10 * float(action[1][0])
        self._seen = np.array([self._seen[0], self._seen[1] + 1, number])
        return self._seen, number, False, False, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        shade = int(255 * self._seen[0]) ^ int(self._seen[1])
        return np.full((4, 6, 3), shade, dtype=np.uint8)


class Deaf(SyncVectorEnv):
    """A vector of its own, which resets all environments where some are asked for."""

    def __init__(self, num_envs: int, max_episode_steps: int) -> None:
        one = partial(gymnasium.make, "TMaze-v0", max_episode_steps=max_episode_steps)
        super().__init__([one] * num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes everywhere."""
        return super().reset(seed=seed)


def _register(name: str, max_episode_steps: int | None = 8, **kwargs: Any) -> None:
    gymnasium.register(
        f"{name}-v0", f"{__name__}:Tape", max_episode_steps=max_episode_steps, kwargs=kwargs
    )


_register("Tape")
_register("far/CartPole")
_register("Pulled", actions=Box(0.0, 10.0, (2,), np.float32))
_register("Both", actions=Tuple((Discrete(3, start=5), Box(0.0, 10.0, (2,), np.float32))))
_register("Pairs", actions=Tuple((Discrete(3), Discrete(2))))
_register("Endless", max_episode_steps=None)
_register("Named", observations=Dict({"age": Discrete(9)}))
_register("Frames", observations=Box(0, 255, (96, 96, 3), np.uint8))
_register("Several", actions=MultiDiscrete([2, 3]))
_register("Unbounded", actions=Box(-3e38, 3e38, (2,), np.float32))
_register("Matrix", actions=Box(-1.0, 1.0, (2, 2), np.float32))
_register("Broken", colour="blue")
gymnasium.register("Deaf-v0", vector_entry_point=f"{__name__}:Deaf", max_episode_steps=40)
