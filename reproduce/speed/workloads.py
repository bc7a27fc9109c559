"""Work whose cost is counted and whose speed is compared between commits.

A workload is a function without arguments that does its work once; all repetitions are alike:
nothing grows, nothing runs out. This file imports nothing of its package: `serve.py` also runs it
on the code of other commits.
"""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import agents
from agents import impala
from suite.base import hardware
from suite.base.errors import UsageError, nearest
from suite.base.randomness import environment_seeds
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv
from suite.record.recorder import Recorder

POLICIES = Path(agents.__file__).parents[1] / "results" / "published"
TRAINED = {
    "sac": ("sac-mujoco/jaxrl/HalfCheetah-v4/seed-1", 17),
    "a2c": ("a2c-classic/rl_zoo/CartPole-v1/seed-1", 4),
}
"""By agent: a policy, and the length of its observations."""
EXTENDED = {"prior": "same_action", "reward_weights": (0.5, 0.5), "normalise_entropy": True}
"""Settings of `sac_alf` that make its update the longest."""
EIGHT = {"num_envs": 8, "num_minibatches": 1, "convolutions": "nature"}
"""Settings of `impala` with which an update is of few unrolls."""
Work = Callable[[], object]
Builder = Callable[[], Work]


def adapter(task: str, num_envs: int) -> Work:
    """Make a vector step through the adapter, simulator included."""
    env = VectorEnv(find_task(task), environment_seeds([1], num_envs, "benchmark"))
    env.reset()
    draws, size = np.random.default_rng(0), (64, 1, num_envs, *env.action_shape)
    if env.action_shape:
        rows = cycle(draws.uniform(-1.0, 1.0, size))
    else:
        rows = cycle(draws.integers(0, env.num_actions, size))
    return lambda: env.step(next(rows))


def acting(agent: str, batch: int) -> Work:
    """Compute a trained policy's actions for a batch of observations, from numpy to numpy."""
    folder, obs_size = TRAINED[agent]
    policy = agents.load_policy(POLICIES / folder)
    obs = np.zeros((batch, obs_size), dtype=np.float32)
    return lambda: policy(obs)


class _FirstUpdate(BaseException):
    """Ends a training at its first update, whose arguments it holds."""


def update(agent: str, suite: str, source: str | None = None, **changes: Any) -> Work:
    """Make a training's first update again and again; replay holds few steps then."""
    module = importlib.import_module(f"agents.{agent}")  # older commits may lack it
    presets = module.PRESETS.items()
    config = next(each.config for key, each in presets if key == (suite, source or key[1]))
    early = {"learning_starts": 1024, "replay_start": 80, "device": "cpu"}
    known = {name: value for name, value in early.items() if hasattr(config, name)}
    config, make = replace(config, **known | changes), module.update

    def catch(*arguments: Any) -> None:
        raise _FirstUpdate(*arguments)

    vars(module)["update"] = catch
    try:
        with TemporaryDirectory() as folder, redirect_stdout(None):
            module.train(config, Recorder(Path(folder), {"agent": agent}, config.seeds))
    except _FirstUpdate as first:
        return partial(make, *first.args)
    finally:
        vars(module)["update"] = make
    raise RuntimeError(f"{agent} ended before its first update")


def vtrace() -> Work:
    """Compute targets and advantages of the paper's batch of 32 unrolls of 20 steps."""
    log_rhos, rewards, values = torch.randn(3, 20, 32)
    discounts, last = torch.full((20, 32), 0.99), torch.randn(32)
    arguments = (log_rhos, discounts, rewards, values, last)
    return lambda: impala.vtrace_from_importance_weights(*arguments)


WORKLOADS: Mapping[str, Builder] = {
    "adapter-HalfCheetah-1": partial(adapter, "HalfCheetah-v4", 1),
    "adapter-HalfCheetah-8": partial(adapter, "HalfCheetah-v4", 8),
    "adapter-Pong-8": partial(adapter, "Pong-v5", 8),
    "act-sac-1": partial(acting, "sac", 1),
    "act-sac-16": partial(acting, "sac", 16),
    "act-a2c-1": partial(acting, "a2c", 1),
    "act-a2c-16": partial(acting, "a2c", 16),
    "update-sac": partial(update, "sac", "mujoco", "paper"),
    "update-sac-4": partial(update, "sac", "mujoco", "paper", seeds=(1, 2, 3, 4)),
    "update-a2c": partial(update, "a2c", "classic", "rl_zoo"),  # the first at older commits
    "update-a2c-Pong": partial(update, "a2c", "atari", task="Pong-v5"),
    "update-ppo": partial(update, "ppo", "classic"),
    "update-impala": partial(update, "impala", "classic", **EIGHT),
    "update-impala-Pong": partial(update, "impala", "atari", task="Pong-v5", **EIGHT),
    "update-acer": partial(update, "acer", "classic"),
    "update-acer_continuous": partial(update, "acer_continuous", "mujoco"),
    "update-sac_value": partial(update, "sac_value", "mujoco", "paper"),
    "update-sac_alf": partial(update, "sac_alf", "mujoco", **EXTENDED),
    "update-sac_alf-mixed": partial(update, "sac_alf", "hybrid"),
    "update-sac_discrete": partial(update, "sac_discrete", "classic"),
    "update-sac_discrete-Pong": partial(update, "sac_discrete", "atari-7", task="Pong-v5"),
    "vtrace": vtrace,
}
UPDATES = tuple(name for name in WORKLOADS if name.startswith("update-"))


def check_names(names: Sequence[str], known: Collection[str], what: str = "workload") -> None:
    """Raise a `UsageError` for the first unknown name."""
    for name in names:
        if name not in known:
            raise UsageError(f"no such {what} {name!r}{nearest(name, known)}")


def build(names: Sequence[str]) -> dict[str, Work]:
    """Build workloads by name."""
    check_names(names, WORKLOADS)
    hardware.use_threads(1)
    works = {}
    for name in names:
        torch.manual_seed(0)
        works[name] = WORKLOADS[name]()
    return works
