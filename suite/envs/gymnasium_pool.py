"""gymnasium as a simulator: whatever envpool lacks, behind the methods that `VectorEnv` calls.

A task is made by its id or, where importing a module registers the id, as `module:id`. gymnasium
steps the environments of one process in turn, so it is far slower than envpool.
"""

import importlib
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.vector import AutoresetMode

import suite.envs.hybrid_tasks  # registers Claw-v0
import suite.envs.memory_tasks  # noqa: F401  registers TMaze-v0
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import Task
from suite.envs.vector_env import LARGEST_BOUND


class GymnasiumPool:
    """Environments of one gymnasium task, with the habits of envpool's pool.

    The action after an end is ignored, and an end is a termination or a truncation, never both:
    gymnasium's time limit also cuts the step that terminates, after which no value follows.
    """

    def __init__(self, task: Task, env_seeds: Sequence[int], *, render: bool = False) -> None:
        options = dict(task.options) | ({"render_mode": "rgb_array"} if render else {})
        self._envs = _make(task.simulator_id, len(env_seeds), task.time_limit, options)
        if render and "rgb_array" not in self._envs.metadata.get("render_modes", ()):
            raise UsageError(f"{task.name} draws no frames")
        self.observation_space: Any = self._envs.single_observation_space
        self.action_space: Any = self._envs.single_action_space
        self._task, self._env_seeds = task, list(env_seeds)
        self._sent = self._obs = np.empty(0)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Seed and reset every environment; return observations and infos."""
        obs, info = self._envs.reset(seed=self._env_seeds)
        return obs.astype(np.float32), info

    def send(self, actions: np.ndarray) -> None:
        """Keep actions for `recv`, which simulates."""
        self._sent = actions

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return observations, rewards, terminations, truncations and infos of the step sent."""
        space: Any = self.action_space
        if isinstance(space, Tuple):  # hybrid: the discrete action stands in the first column
            actions: Any = _in(space[0], self._sent[:, 0]), _in(space[1], self._sent[:, 1:])
        else:
            actions = _in(space, self._sent)
        obs, rewards, terminations, truncations, info = self._envs.step(actions)
        self._obs, rewards = obs.astype(np.float32), rewards.astype(np.float32)
        return self._obs, rewards, terminations, truncations & ~terminations, info

    def step(self, _actions: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Take the step after an end in the environments `ids`: reset them; return their rows."""
        mask = np.zeros(len(self._env_seeds), dtype=bool)
        mask[ids] = True
        obs, info = self._envs.reset(options={"reset_mask": mask})
        if not np.array_equal(obs[~mask].astype(np.float32), self._obs[~mask], equal_nan=True):
            raise UsageError(
                f"{self._task.name} must reset those environments alone that options['reset_mask'] "
                "names, and keep the others' observations, as gymnasium's vectors do; or train one "
                "seed with one environment"
            )
        return obs[ids].astype(np.float32), info

    def render(self, env_ids: np.ndarray) -> np.ndarray | None:
        """Return the frames of the environments `env_ids`; None without a renderer."""
        if self._envs.render_mode is None:
            return None
        try:
            frames = self._envs.render()
        except DependencyNotInstalled as error:
            raise UsageError(f"no frames: {error}") from None
        return np.stack(frames or ())[env_ids]


@cache
def describe(name: str, time_limit: int | None = None) -> Task:
    """Return the task called `module:id`, as it is registered with gymnasium.

    `time_limit` is its limit if its registration has none.
    """
    time_limit = _find(name).max_episode_steps or time_limit
    if time_limit is None:
        raise UsageError(f"{name} has no time limit: register it with max_episode_steps")
    envs = _make(name, 1, time_limit, {})
    obs, actions = envs.single_observation_space, envs.single_action_space
    in_words = _in_words(actions)
    envs.close()
    if not isinstance(obs, Box) or len(obs.shape) != 1:
        raise UsageError(
            f"{name} has observations {_in_words(obs)}, not vectors: "
            "register it inside gymnasium.wrappers.FlattenObservation"
        )
    choices: Any = None
    if isinstance(actions, Discrete):
        choices = actions
    elif isinstance(actions, Tuple) and len(actions) == 2 and isinstance(actions[0], Discrete):
        choices, actions = actions.spaces
    if choices is not actions and not _is_bounded(actions):
        raise UsageError(
            f"{name} has actions {in_words}: register it inside a wrapper that makes them "
            "Discrete, a Box of floats with one axis and bounds below 1e30, or a Tuple of these two"
        )
    (action_size,) = actions.shape or (0,)
    return Task(
        name=name,
        family="other",
        simulator="gymnasium",
        time_limit=time_limit,
        obs_size=obs.shape[0],
        action_size=action_size,
        num_actions=0 if choices is None else int(choices.n),
    )


def _find(name: str) -> EnvSpec:
    """Return the registration of `id` or `module:id`, after importing the module."""
    module, colon, env_id = name.rpartition(":")
    if colon and not module:
        raise UsageError(f"{name!r} names no module: write module:id")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{name}: cannot import {module}: install {error.name}, or name its folder in "
                "PYTHONPATH"
            ) from None
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(f"{name}: importing {module} fails: {why}") from None
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        own = [key for key, other in gymnasium.registry.items() if _is_of(other, module)]
        advice = nearest(env_id, own or gymnasium.registry)
        raise UsageError(f"{module or 'gymnasium'} registers no {env_id!r}{advice}")
    return spec


def _is_of(spec: EnvSpec, module: str) -> bool:
    """Return whether a registered task is made by a module, or by one inside it."""
    entry = spec.entry_point or spec.vector_entry_point
    place = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return f"{place}.".startswith(f"{module}.")


def _make(name: str, num_envs: int, time_limit: int, options: dict[str, Any]) -> Any:
    """Return gymnasium's vector of `num_envs` environments that reset in the step after an end."""
    spec, options = _find(name), {**options, "max_episode_steps": time_limit}
    mode = "sync" if spec.entry_point else "vector_entry_point"
    if mode == "sync":
        options["disable_env_checker"] = True
    try:
        with warnings.catch_warnings():  # about bounds, old versions, absent renderers
            warnings.simplefilter("ignore")
            envs = gymnasium.make_vec(spec, num_envs, vectorization_mode=mode, **options)
    except Exception as error:
        if isinstance(error, DependencyNotInstalled) and "[box2d]" in str(error):
            raise UsageError(f"{name} needs Box2D: pip install 'encore-rl[box2d]'") from None
        if isinstance(error, TypeError) and "render_mode" in options:  # which it does not take
            raise UsageError(f"{name} draws no frames") from None
        raise UsageError(f"cannot make {name}: {error}") from None
    if envs.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
        raise UsageError(f"{name} must reset in the step after an end (AutoresetMode.NEXT_STEP)")
    return envs


def _in(space: Any, actions: np.ndarray) -> np.ndarray:
    """Return actions in a space's type and, of discrete ones, its numbering."""
    actions = actions.astype(space.dtype)
    return actions + space.start if isinstance(space, Discrete) else actions


def _is_bounded(space: Any) -> bool:
    is_vector = isinstance(space, Box) and len(space.shape) == 1 and space.dtype.kind == "f"
    return is_vector and bool((np.abs([space.low, space.high]) < LARGEST_BOUND).all())


def _in_words(space: Any) -> str:
    """Return a space without its bounds, which may fill a page."""
    return f"{type(space).__name__}{space.shape or ''}"
