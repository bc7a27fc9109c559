"""The environment adapter: the only importer of envpool, and the only place that knows its habits.

Tasks that envpool lacks come from gymnasium (`gymnasium_pool.py`), slower, otherwise alike.

It hides from agents that, in envpool 1.2.5, the action after an end is ignored (`valid` is False
there, or "same step" reset skips the row); seeds of neighbouring runs overlap unless each
environment is given one; actions are neither checked nor clipped; a lost life in Atari looks like a
termination although the game continues; dm_control observations are dictionaries, and its resets
give rewards.
"""

import ctypes
import hashlib
import importlib
import math
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from suite.base.errors import UsageError
from suite.envs.tasks import Task

NO_PARTS = np.empty(0, dtype=np.float32)
"""Parts of a step that reports only the reward's sum."""
LARGEST_BOUND = 1e30
"""Bounds of continuous actions lie below it."""


class Step(NamedTuple):
    """The outcome of one vector step. Shapes `[S, N]`: seeds and environments per seed."""

    obs: np.ndarray
    """Observation to act on next, `[S, N, *obs]`, float32 or uint8."""
    next_obs: np.ndarray
    """Observation the action led to, before any reset, `[S, N, *obs]`."""
    rewards: np.ndarray
    """Reward to learn from, float32: clipped to [-1, 1] for Atari, else as the task gave it."""
    raw_rewards: np.ndarray
    """Reward as the task gave it, float32; 0 in a row that only resets, but for games, which go on
    after a lost life."""
    terminations: np.ndarray
    """End of the decision process: no value follows. A lost life too, except under `sticky`."""
    truncations: np.ndarray
    """Cut by the time limit: a value follows from `next_obs`. envpool also calls a termination in
    that very step so; gymnasium's tasks call it a termination."""
    valid: np.ndarray
    """A real transition, not the ignored action of an auto-reset."""
    episode_ends: np.ndarray
    """A whole episode (for Atari: a whole game) is over."""
    episode_returns: np.ndarray
    """Sum of `raw_rewards` since the episode began, float64; a score where `episode_ends`."""
    episode_lengths: np.ndarray
    """Decisions since the episode began, int64."""
    reward_parts: np.ndarray = NO_PARTS
    """Parts of `raw_rewards` whose sum it is, `[S, N, D]` float32; without numbers unless they were
    asked for. Where the task tells none, the reward is the only part."""

    @property
    def ends(self) -> np.ndarray:
        """Return where a trace ends: at a termination or a truncation, `[S, N]`."""
        return self.terminations | self.truncations


class Spaces(NamedTuple):
    """Shapes and bounds of an environment's observations and actions, for a network."""

    obs_shape: tuple[int, ...]
    """Shape of one observation; three axes are frames `[C, H, W]`."""
    num_outputs: int
    """Number of discrete actions, or dimensions of the continuous one."""
    low: tuple[float, ...] | None = None
    """Least continuous action, in the task's units; None: actions are discrete."""
    high: tuple[float, ...] | None = None
    """Greatest continuous action."""
    num_choices: int = 0
    """Number of discrete actions beside the continuous one; 0: actions are not hybrid."""
    start: int = 0
    """The task's own number of the first discrete action; agents and `VectorEnv` begin at 0."""

    @property
    def continuous(self) -> bool:
        """Return whether actions are continuous, or have a continuous part."""
        return self.low is not None

    @property
    def stored(self) -> tuple[int, tuple[int, ...]]:
        """Return how many frames an observation stacks, and the shape of what replay keeps of it.

        That is the newest frame; of a vector, a stack of one, all.
        """
        frames = len(self.obs_shape) == 3
        return (self.obs_shape[0], self.obs_shape[1:]) if frames else (1, self.obs_shape)

    @property
    def stored_bytes(self) -> int:
        """Return the size of what replay keeps of an observation: bytes of frames, or float32."""
        stack, shape = self.stored
        return math.prod(shape) * (1 if stack > 1 else 4)

    @classmethod
    def vectors(cls, obs_size: int, num_dimensions: int) -> "Spaces":
        """Return the spaces of vector observations and continuous actions in [-1, 1]."""
        ones = (1.0,) * num_dimensions
        return cls((obs_size,), num_dimensions, tuple(-one for one in ones), ones)

    @classmethod
    def of(cls, task: Task) -> "Spaces":
        """Return the spaces of a task before it is made: actions in [-1, 1], 18 in every game."""
        if task.family == "atari":
            size = task.options.get("img_height", 84), task.options.get("img_width", 84)
            return cls((4, *size), 18)
        if task.actions == "discrete":
            return cls((task.obs_size,), task.num_actions)
        return cls.vectors(task.obs_size, task.action_size)._replace(num_choices=task.num_actions)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Spaces":
        """Return the spaces whose fields (`_asdict()`) are among those of a JSON object."""
        low, high = (tuple(fields[name]) if fields[name] else None for name in ("low", "high"))
        shape, num_outputs = tuple(fields["obs_shape"]), fields["num_outputs"]
        num_choices, start = (fields.get(name, 0) for name in ("num_choices", "start"))
        return cls(shape, num_outputs, low, high, num_choices, int(start))  # older ones lack both


def frames_back(ages: np.ndarray, stack: int) -> np.ndarray:
    """Return how many rows before each row the frames of its stack lie, `[..., stack]`.

    Ages are the earlier frames of the same game in a stack. envpool fills the stack of a new game
    with its first frame; a lost life, and the end of a game, leave it as it is:

    | row | its newest frame     | age | rows back  | stack   |
    |-----|----------------------|-----|------------|---------|
    | 0   | a, a game begins     | 0   | 0, 0, 0, 0 | a a a a |
    | 1   | b                    | 1   | 1, 1, 1, 0 | a a a b |
    | 2   | c, a life is lost    | 2   | 2, 2, 1, 0 | a a b c |
    | 3   | d                    | 3   | 3, 2, 1, 0 | a b c d |
    | 4   | e, the game is over  | 3   | 3, 2, 1, 0 | b c d e |
    | 5   | f, another game      | 0   | 0, 0, 0, 0 | f f f f |
    """
    return np.minimum(ages[..., None], np.arange(stack)[::-1])


class VectorEnv:
    """`S` groups of `N` environments of one task, stepped together.

    Continuous actions lie in [-1, 1]; the environment clips them and scales them to the task's
    bounds. A hybrid action is a row: the discrete action's number, then the continuous one.

    Args:
        task: the task to simulate.
        env_seeds: one simulator seed per environment, `[S, N]` int32.
        reset: how environments restart. `"next_step"`: the row after an end ignores its action, and
            its `valid` is False. `"same_step"`: the environment is reset
            within the step; `next_obs` is the true last observation, `obs` the first of the new
            episode, and every row is valid.
        num_threads: simulator threads; results do not depend on it.
        render: keep a renderer for `render()`.
        reward_parts: report the parts of rewards, too.

    Raises:
        ValueError: for seeds other than `[S, N]` integers, or `num_threads` below 1.
    """

    def __init__(
        self,
        task: Task,
        env_seeds: np.ndarray,
        *,
        reset: Literal["next_step", "same_step"] = "next_step",
        num_threads: int = 1,
        render: bool = False,
        reward_parts: bool = False,
    ) -> None:
        env_seeds = _checked(env_seeds, num_threads)
        self.task = task
        self.num_seeds, self.num_envs = env_seeds.shape
        self._shape = (self.num_seeds, self.num_envs)
        self._same_step = reset == "same_step"
        self._atari = task.family == "atari"
        self._observed = list(task.observed)
        self._no_parts = None if reward_parts else np.empty((*self._shape, 0), dtype=np.float32)
        self._pool = make_pool(task, env_seeds.ravel().tolist(), num_threads, render)
        with warnings.catch_warnings():  # gymnasium warns about float64 bounds of float64 spaces
            warnings.simplefilter("ignore")
            observation_space = self._pool.observation_space
            action_space = self._pool.action_space
        self._keys = sorted(observation_space) if hasattr(observation_space, "keys") else None
        first = self._flatten(self._pool.reset()[0])
        self._first_obs = first.reshape(*self._shape, *first.shape[1:])
        self.obs = self._first_obs
        """Observations to act on next, `[S, N, *obs]`, from `reset` or the last step."""
        self.obs_shape: tuple[int, ...] = first.shape[1:]
        self._first = 0  # column of the continuous action
        self.num_actions = start = 0
        if task.actions == "hybrid":
            (choices, action_space), self._first = action_space, 1
            self.num_actions, start = int(choices.n), int(choices.start)
        if task.actions == "discrete":
            self.num_actions, start = int(action_space.n), int(action_space.start)
            self.action_shape: tuple[int, ...] = ()
            self._no_action = np.zeros(env_seeds.size, dtype=np.int32)
            self.spaces = Spaces(self.obs_shape, self.num_actions, start=start)
            """Shapes and bounds of observations and actions."""
        else:
            low = np.asarray(action_space.low, dtype=np.float64)
            high = np.asarray(action_space.high, dtype=np.float64)
            self.action_shape = (self._first + action_space.shape[0],)
            self._centre, self._half_range = (low + high) / 2, (high - low) / 2
            self._no_action = np.zeros((env_seeds.size, *self.action_shape))
            self._is_nan = np.zeros(self._shape, dtype=bool)
            bounds = tuple(low.tolist()), tuple(high.tolist())
            self.spaces = Spaces(self.obs_shape, len(low), *bounds, self.num_actions, start)
        self._actions_shape = (*self._shape, *self.action_shape)
        self._returns = np.zeros(self._shape)
        self._lengths = np.zeros(self._shape, dtype=np.int64)
        self._all_valid = np.ones(self._shape, dtype=bool)
        self._all_valid.flags.writeable = False
        self._valid = self._all_valid
        self._started = self._pending = False

    def reset(self) -> np.ndarray:
        """Return the first observations, `[S, N, *obs]`; later, environments reset themselves.

        Raises:
            RuntimeError: on a second call; make a fresh `VectorEnv` instead.
        """
        if self._started:
            raise RuntimeError("reset() starts a VectorEnv once; ends are reset automatically")
        self._started = True
        return self._first_obs

    def step(self, actions: np.ndarray) -> Step:
        """Act in every environment and wait for the result.

        Args:
            actions: `[S, N, A]` in [-1, 1] for continuous tasks, `[S, N]` integers for discrete
                ones, `[S, N, 1 + A]` for hybrid ones: the number, then A in [-1, 1].

        Raises:
            ValueError: for a wrong shape, type or action number.
            RuntimeError: before `reset()`.
        """
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Start a step; the simulator's threads work until `recv`. See `step`.

        An action with a NaN never reaches the simulator, which gets the middle of the range; the
        reward is NaN.
        """
        if not self._started:
            raise RuntimeError("call reset() before the first step")
        if self._pending:
            raise RuntimeError("send() was called twice without a recv() between")
        if actions.shape != self._actions_shape:
            raise ValueError(f"actions must be {self._actions_shape}, not {actions.shape}")
        if self.action_shape:
            clipped = np.clip(actions[..., self._first :], -1.0, 1.0)
            self._is_nan = np.isnan(clipped).any(axis=-1)
            clipped[self._is_nan] = 0.0
            scaled = clipped * self._half_range + self._centre
            if self._first:
                choices = actions[..., :1]
                if not np.isin(choices, np.arange(self.num_actions)).all():
                    raise ValueError(f"choices not in 0..{self.num_actions - 1}: {choices}")
                scaled = np.concatenate([choices, scaled], axis=-1)
            self._pool.send(scaled.reshape(self._no_action.shape))
        else:
            if actions.dtype.kind not in "iu":
                raise ValueError(f"actions must be integers, not {actions.dtype}")
            if actions.min() < 0 or actions.max() >= self.num_actions:
                raise ValueError(f"actions outside 0..{self.num_actions - 1}: {actions}")
            self._pool.send(actions.reshape(-1).astype(np.int32))
        self._pending = True

    def recv(self) -> Step:
        """Wait for the step begun by `send` and return its outcome.

        Raises:
            RuntimeError: without a `send` before it.
        """
        if not self._pending:
            raise RuntimeError("recv() needs a send() before it")
        self._pending = False
        pool_obs, raw_rewards, terminations, truncations, info = self._pool.recv()
        shape = self._shape
        next_obs = self._flatten(pool_obs)
        next_obs = next_obs.reshape(*shape, *next_obs.shape[1:])
        terminations = terminations.reshape(shape)
        truncations = truncations.reshape(shape)
        ends = terminations | truncations
        if self._atari:
            # A lost life terminates for the learner; only info["terminated"] ends the game.
            raw_rewards = info["reward"].reshape(shape)
            rewards = np.clip(raw_rewards, -1.0, 1.0)
            episode_ends = info["terminated"].reshape(shape).astype(bool) | truncations
        else:
            raw_rewards = raw_rewards.reshape(shape)
            if self._valid is not self._all_valid:
                raw_rewards = np.where(self._valid, raw_rewards, 0.0)
            if self.action_shape and self._is_nan.any():
                raw_rewards = np.where(self._is_nan & self._valid, np.nan, raw_rewards)
            rewards = raw_rewards
            episode_ends = ends
        valid = self._valid
        returns = self._returns + raw_rewards
        lengths = self._lengths + valid
        obs = next_obs
        if ends.any():
            self._returns = np.where(episode_ends, 0.0, returns)
            self._lengths = np.where(episode_ends, 0, lengths)
            if self._same_step:
                obs = self._reset_ended(next_obs, ends)
            else:
                self._valid = ~ends
        else:
            self._returns, self._lengths, self._valid = returns, lengths, self._all_valid
        self.obs = obs
        return Step(
            obs,
            next_obs,
            rewards,
            raw_rewards,
            terminations,
            truncations,
            valid,
            episode_ends,
            returns,
            lengths,
            self._parts(info, raw_rewards) if self._no_parts is None else self._no_parts,
        )

    def digest(self) -> str:
        """Return a checksum of the simulators' visible state.

        SHA-256 over the observations and the returns and lengths of the unfinished episodes.
        """
        parts = (self.obs, self._returns, self._lengths)
        return hashlib.sha256(
            b"".join(np.ascontiguousarray(p).tobytes() for p in parts)
        ).hexdigest()

    def render(self) -> np.ndarray:
        """Return one RGB frame per environment, `[S, N, H, W, 3]` uint8.

        Raises:
            RuntimeError: if the environment was made without `render=True`.
            UsageError: if this machine cannot draw them.
        """
        try:
            frames = self._pool.render(env_ids=np.arange(self.num_seeds * self.num_envs))
        except RuntimeError as error:
            if "EGL" not in str(error):
                raise
            raise UsageError(
                f"{self.task.name} is drawn by EGL, which this machine lacks ({error}): "
                "apt-get install libegl1 libgl1-mesa-dri"
            ) from None
        if frames is None:
            raise RuntimeError("make the VectorEnv with render=True to draw frames")
        return frames.reshape(*self._shape, *frames.shape[1:])

    def _parts(self, info: Mapping[str, Any], raw_rewards: np.ndarray) -> np.ndarray:
        """Return the parts of rewards side by side, `[S, N, D]`."""
        parts = [info[name].reshape(self._shape) for name in self.task.reward_parts]
        return np.stack(parts or [raw_rewards], axis=-1).astype(np.float32)

    def _reset_ended(self, next_obs: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return `next_obs` with the first observations of new episodes where one ended.

        envpool resets in the step after the end and ignores its action, so this takes that step
        for the ended environments only. (`reset(ids)` would restart a whole game.)
        """
        ids = np.flatnonzero(ends.reshape(-1)).astype(np.int32)
        first = self._flatten(self._pool.step(self._no_action[ids], ids)[0])
        obs = next_obs.copy()
        obs.reshape(ends.size, *next_obs.shape[2:])[ids] = first
        return obs

    def _flatten(self, pool_obs: Any) -> np.ndarray:
        """Return observations as float32 (or uint8 pixels), dictionaries joined in key order."""
        if self._keys is not None:
            parts = [pool_obs[key] for key in self._keys]
            pool_obs = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        if self._observed:
            pool_obs = pool_obs[:, self._observed]
        return pool_obs if pool_obs.dtype == np.uint8 else pool_obs.astype(np.float32)


def _checked(env_seeds: np.ndarray, num_threads: int) -> np.ndarray:
    """Return the seeds as an array, after a look at arguments of `VectorEnv`."""
    env_seeds = np.asarray(env_seeds)
    if env_seeds.ndim != 2 or env_seeds.size == 0 or env_seeds.dtype.kind not in "iu":
        raise ValueError(f"env_seeds must be [S, N] integers, not {env_seeds!r:.80}")
    if env_seeds.min() < 0 or env_seeds.max() > 2**31 - 1:
        raise ValueError(f"env_seeds outside 0..2**31-1: {env_seeds.min()}, {env_seeds.max()}")
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, not {num_threads}")
    return env_seeds


def make_pool(task: Task, env_seeds: list[int], num_threads: int, render: bool) -> Any:
    """Return a task's simulator: envpool's pool, or gymnasium behind the same methods."""
    if task.simulator == "gymnasium":
        from suite.envs.gymnasium_pool import GymnasiumPool

        return GymnasiumPool(task, env_seeds, render=render)
    options: dict[str, Any] = dict(task.options)
    if render:
        options["render_mode"] = "rgb_array"
    envpool = _import_envpool()
    if render and task.family in ("mujoco", "dmc"):
        _show_egl(Path(str(envpool.__file__)).parent)
    with warnings.catch_warnings():  # as above
        warnings.simplefilter("ignore")
        return envpool.make_gymnasium(
            task.simulator_id,
            num_envs=len(env_seeds),
            seed=env_seeds,
            num_threads=min(num_threads, len(env_seeds)),
            max_episode_steps=task.time_limit,
            **options,
        )


def _show_egl(package: Path) -> None:
    """Let MuJoCo find the EGL library that draws its frames.

    envpool's wheel brings its own. MuJoCo asks the process for EGL's functions, finds none, since
    Python keeps a library's names to itself, and ends the process. This shows them.
    """
    os.environ.setdefault("EGL_LOG_LEVEL", "fatal")  # what is missing is said in one line
    brought = (package.parent / "envpool.libs").glob("libEGL-*")
    try:
        ctypes.CDLL(str(next(brought, "libEGL.so.1")), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UsageError(f"no EGL to draw with ({error}): apt-get install libegl1") from None


def _import_envpool() -> ModuleType:
    """Return envpool, without two of its families, which have no task here.

    Importing it imports every family. These two take two thirds of the time of that, one of them
    for matplotlib. What imports a family by its own name gets it.
    """
    if "envpool" not in sys.modules:
        left_out = [f"envpool.{family}.registration" for family in ("jumanji", "mujoco.playground")]
        sys.modules.update({name: ModuleType(name) for name in left_out})
        importlib.import_module("envpool")  # here, as plans and usage errors need no simulator
        for name in left_out:
            del sys.modules[name]
    return sys.modules["envpool"]
