"""Engines that step many environments at once, behind one set of methods.

`serve.py` builds one in a process of its own. Those of stable-baselines3 run in the peers' Python,
whose packages are not ours; so every import of a library stands where it is used.
"""

import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from os import devnull
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from suite.base.errors import UsageError
from suite.envs.tasks import Task, find_task

INSTALL = "pip install 'encore-rl[simulators]'"
SEEDS = 7
"""The first environment's seed; the others have the numbers after it."""


class Rows(NamedTuple):
    """What one vector step returned, a row for each environment that took part in it."""

    rewards: np.ndarray
    """As the game gave them, not clipped."""
    ends: np.ndarray
    """Whole episodes that ended here, by termination or time limit."""


class Engine(ABC):
    """Some environments of one task; threads end with it. Actions are in the units of `units`."""

    next_step_reset = True
    """Whether the row after an end ignores its action, to reset; else the end's own row resets."""
    frame_skip = 1
    """Steps of the simulator in a decision, as the engine says itself."""

    def __init__(self, num_envs: int, space: Any) -> None:
        self.num_envs, self.rows = num_envs, num_envs
        self.obs = np.empty(0)
        """Observations to act on next, one for each row of the next step."""
        self.ids = np.arange(num_envs)
        """The environments that they are of."""
        self.num_actions = int(space.n) if hasattr(space, "n") else 0
        """Discrete actions; 0: they are continuous."""
        self.action_size = 0 if self.num_actions else int(space.shape[0])
        if not self.num_actions:
            self.low, self.high = (np.asarray(bound, float) for bound in (space.low, space.high))
            self.dtype = space.dtype

    def units(self, actions: np.ndarray) -> Any:
        """Return actions, numbers or values in [-1, 1], as this engine takes them."""
        if self.num_actions:
            return actions
        scaled = self.low + (np.clip(actions, -1.0, 1.0) + 1) * (self.high - self.low) / 2
        return scaled.astype(self.dtype)

    @abstractmethod
    def step(self, actions: Any) -> Rows:
        """Act once in `rows` environments, and keep the observations to act on next."""

    def close(self) -> None:  # noqa: B027 - most have no processes
        """End its processes."""


class Encore(Engine):
    """Our adapter over envpool (or gymnasium, where envpool lacks the task)."""

    def __init__(self, task: Task, num_envs: int, num_threads: int) -> None:
        from suite.envs.vector_env import VectorEnv

        if task.actions == "hybrid":
            raise UsageError(f"{task.name} has hybrid actions, which no other engine has")
        seeds = SEEDS + np.arange(num_envs)[None]
        self._env = VectorEnv(task, seeds, num_threads=num_threads)
        spaces = self._env.spaces
        self.num_envs, self.rows, self.frame_skip = num_envs, num_envs, task.frame_skip
        self.num_actions = 0 if spaces.continuous else spaces.num_outputs
        self.action_size = spaces.num_outputs if spaces.continuous else 0
        if spaces.continuous:
            self.low, self.high = np.asarray(spaces.low), np.asarray(spaces.high)
        self.obs, self.ids = self._env.reset()[0], np.arange(num_envs)

    def units(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as the adapter takes them: it scales and clips itself."""
        return actions[None]

    def step(self, actions: np.ndarray) -> Rows:
        """Step all environments."""
        step = self._env.step(actions)
        self.obs = step.obs[0]
        return Rows(step.raw_rewards[0], step.episode_ends[0])


class Envpool(Engine):
    """envpool itself: synchronous, or with batches, one of `parts`, of those done first."""

    def __init__(self, task: Task, num_envs: int, num_threads: int, parts: int = 1) -> None:
        from suite.envs.vector_env import make_pool

        if task.simulator != "envpool":
            raise UsageError(f"envpool lacks {task.name}")
        batch = num_envs // parts
        if batch * parts != num_envs:
            raise UsageError(f"{num_envs} environments are no {parts} batches")
        options = task.options if parts == 1 else {**task.options, "batch_size": batch}
        seeds, threads = list(range(SEEDS, SEEDS + num_envs)), min(num_threads, batch)
        self._pool = make_pool(replace(task, options=options), seeds, threads, render=False)
        super().__init__(num_envs, self._pool.action_space)
        self.rows, self._game = batch, task.family == "atari"
        self.frame_skip = int(self._pool.config.get("frame_skip", 1))
        self._pool.async_reset()
        self.obs, info = self._pool.recv(reset=True)
        self.ids = info["env_id"]

    def units(self, actions: np.ndarray) -> np.ndarray:
        """Return actions in the types that envpool takes without a copy."""
        return super().units(actions).astype(np.int32 if self.num_actions else np.float64)

    def step(self, actions: np.ndarray) -> Rows:
        """Send actions to the environments last received, and receive those done next."""
        self._pool.send(actions, self.ids)
        self.obs, rewards, terminations, truncations, info = self._pool.recv()
        self.ids = info["env_id"]
        if self._game:  # a lost life terminates, but does not end the game
            terminations = info["terminated"].astype(bool)
        return Rows(rewards, terminations | truncations)


class Vector(Engine):
    """One of gymnasium's vectors, by its name of the `mode`; only the task's own has threads."""

    def __init__(self, task: Task, num_envs: int, num_threads: int, mode: str) -> None:
        import gymnasium

        own = mode == "vector_entry_point"
        name, options, wrappers = made_by_gymnasium(task)
        how: dict[str, Any] = {"wrappers": wrappers, **options}
        if own:
            if gymnasium.spec(name).vector_entry_point is None:
                raise UsageError(f"gymnasium has no vector of {task.name}'s own")
            how = _own_options(task, num_threads)
        self._envs: Any = gymnasium.make_vec(name, num_envs, vectorization_mode=mode, **how)
        super().__init__(num_envs, self._envs.single_action_space)
        if task.frame_skip > 1:
            self.frame_skip = 4 if own else int(self._envs.get_attr("frame_skip")[0])
        self.obs, _ = self._envs.reset(seed=SEEDS)

    def step(self, actions: Any) -> Rows:
        """Step all environments."""
        self.obs, rewards, terminations, truncations, _ = self._envs.step(actions)
        return Rows(rewards, terminations | truncations)

    def close(self) -> None:
        """End the vector."""
        self._envs.close()


class StableBaselines(Vector):
    """One of stable-baselines3's vectors, in the peers' Python."""

    next_step_reset = False

    def __init__(self, task: Task, num_envs: int, num_threads: int, kind: str) -> None:
        vectors: Any = importlib.import_module("stable_baselines3.common.vec_env")
        self._envs = getattr(vectors, kind)([partial(make_one, task) for _ in range(num_envs)])
        Engine.__init__(self, num_envs, self._envs.action_space)
        if task.frame_skip > 1:
            self.frame_skip = int(self._envs.get_attr("frame_skip")[0])
        self._envs.seed(SEEDS)
        self.obs = self._envs.reset()

    def step(self, actions: Any) -> Rows:
        """Step all environments."""
        self.obs, rewards, ends, _ = self._envs.step(actions)
        return Rows(rewards, ends)


def _game_options(task: Task) -> dict[str, Any]:
    """Return what ale-py's games and its vector of them call alike."""
    return {
        "repeat_action_probability": task.options["repeat_action_probability"],
        "full_action_space": task.options.get("full_action_space", False),
    }


def made_by_gymnasium(task: Task) -> tuple[str, dict[str, Any], list[Callable[[Any], Any]]]:
    """Return the id, the arguments and the wrappers that make gymnasium's form of a task.

    Frames are skipped, scaled and stacked by gymnasium's own wrappers. A lost life ends nothing:
    `AtariPreprocessing` would restart the game, which envpool goes on with.
    """
    import gymnasium

    if task.family == "atari":
        try:
            importlib.import_module("cv2")
            gymnasium.register_envs(importlib.import_module("ale_py"))
        except ImportError as error:
            raise UsageError(f"{task.name} needs {error.name}: {INSTALL}") from None
        options = {"frameskip": 1, "max_episode_steps": 4 * task.time_limit, **_game_options(task)}
        wrappers = gymnasium.wrappers
        frames = partial(wrappers.AtariPreprocessing, noop_max=task.options.get("noop_max", 30))
        stack = partial(wrappers.FrameStackObservation, stack_size=4)
        return f"ALE/{task.simulator_id}", options, [frames, stack]
    if task.simulator_id not in gymnasium.registry:
        raise UsageError(f"gymnasium lacks {task.name}")
    return task.simulator_id, {"max_episode_steps": task.time_limit}, []


def make_one(task: Task) -> Any:
    """Return one environment of a task, as gymnasium makes it; worker processes call this, too."""
    import gymnasium

    name, options, wrappers = made_by_gymnasium(task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = gymnasium.make(name, **options)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _own_options(task: Task, num_threads: int) -> dict[str, Any]:
    if task.family != "atari":
        return {"max_episode_steps": task.time_limit}
    return _game_options(task) | {
        "num_threads": num_threads,
        "max_num_frames_per_episode": 4 * task.time_limit,
        "noop_max": task.options.get("noop_max", 30),
        "reward_clipping": False,
        "frameskip": 4,
    }


ENGINES: Mapping[str, Callable[[Task, int, int], Engine]] = MappingProxyType({
    "envpool": Envpool,
    "envpool-async-2": partial(Envpool, parts=2),
    "envpool-async-4": partial(Envpool, parts=4),
    "encore": Encore,
    "gymnasium-sync": partial(Vector, mode="sync"),
    "gymnasium-async": partial(Vector, mode="async"),
    "gymnasium-own": partial(Vector, mode="vector_entry_point"),
    "sb3-dummy": partial(StableBaselines, kind="DummyVecEnv"),
    "sb3-subproc": partial(StableBaselines, kind="SubprocVecEnv"),
})  # fmt: skip
"""By name. A batch of `envpool-async-2` is half of the environments; `gymnasium-own` is the vector
that the task brings along: numpy's CartPole, ale-py's games."""
PROCESSES = ("gymnasium-async", "sb3-subproc")
"""Engines with a process for each environment."""
OF_PEERS = ("sb3-dummy", "sb3-subproc")


def make_engine(name: str, task: str, num_envs: int, num_threads: int) -> Engine:
    """Build an engine; a `UsageError` says that it lacks the task, or is not installed."""
    try:
        with Path(devnull).open("w") as sink, redirect_stdout(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old versions and bounds
            return ENGINES[name](find_task(task), num_envs, num_threads)
    except ImportError as error:
        raise UsageError(f"{name} needs {error.name}: {INSTALL}") from None
    except Exception as error:
        if type(error).__name__ == "DependencyNotInstalled":
            raise UsageError(f"{task} needs more: {INSTALL}") from None
        raise
