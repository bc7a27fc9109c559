"""Work whose cost is counted and whose speed is compared between commits.

A workload is a function without arguments that does its work once; all repetitions are alike:
nothing grows, nothing runs out. This file imports nothing of this room: `serve.py` also runs it on
the code of other commits.
"""

import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

import agents
from agents import a2c, acer, acer_continuous, impala
from suite.base import hardware
from suite.base.errors import UsageError, nearest
from suite.base.randomness import environment_seeds
from suite.envs.tasks import find_task
from suite.envs.vector_env import Spaces, Step, VectorEnv
from suite.replay import Replay
from suite.settings.config import UnrollConfig
from suite.unrolls import Unroll, UnrollReplay

CPU = torch.device("cpu")
POLICIES = Path(agents.__file__).parents[1] / "results" / "published"
HALF_CHEETAH = Spaces((17,), 6, (-1.0,) * 6, (1.0,) * 6)
CARTPOLE, PONG = Spaces((4,), 2), Spaces((4, 84, 84), 6)
TRAINED = {
    "sac": ("sac-mujoco/jaxrl/HalfCheetah-v4/seed-1", HALF_CHEETAH),
    "a2c": ("a2c-classic/rl_zoo/CartPole-v1/seed-1", CARTPOLE),
}
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
    folder, spaces = TRAINED[agent]
    policy = agents.load_policy(POLICIES / folder)
    obs = np.zeros((batch, *spaces.obs_shape), dtype=np.float32)
    return lambda: policy(obs)


def update_sac(num_seeds: int, agent: str = "sac") -> Work:
    """Make a gradient step of the paper's networks, for one seed or several in one process."""
    module = importlib.import_module(f"agents.{agent}")  # older commits may lack it
    config = module.Config(seeds=tuple(range(1, num_seeds + 1)))
    learner = module.make_learner(config, 17, 6, CPU)
    draws = np.random.default_rng(0)
    indices = torch.from_numpy(draws.integers(0, 10_000, (num_seeds, config.batch_size)))
    batch = _sac_replay(num_seeds).batch(indices)
    noise = _normal(draws, 2, num_seeds, config.batch_size, 6)
    return lambda: module.update(learner, config, batch, noise, 0)


def update_sac_alf(mixed: bool) -> Work:
    """Make a gradient step of the default networks.

    With a prior, two reward parts and priorities; or with five choices beside HalfCheetah's size.
    """
    from agents import sac_alf  # as above

    extended = {"prior": "same_action", "reward_weights": (0.5, 0.5), "normalise_entropy": True}
    config = sac_alf.Config(**({} if mixed else extended))
    spaces = HALF_CHEETAH._replace(num_choices=5) if mixed else HALF_CHEETAH
    learner = sac_alf.make_learner(config, spaces, CPU)
    draws, size = np.random.default_rng(0), config.batch_size
    batch = _sac_replay().batch(torch.from_numpy(draws.integers(0, 10_000, (1, size))))
    if mixed:
        choices = torch.from_numpy(draws.integers(0, 5, (1, size, 1)))
        parts = [batch.obs, choices, batch.obs_actions[..., 17:]]
        batch = batch._replace(obs_actions=torch.cat(parts, -1))
    batch = batch._replace(extras=_normal(draws, 1, size, 6 + (2 if mixed else 3)).clamp(-1, 1))
    noise, weights = _normal(draws, 2, 1, size, 6), torch.ones(1, size)
    return lambda: sac_alf.update(learner, config, batch, weights, noise, 0)


def update_sac_discrete(suite: str, spaces: Spaces) -> Work:
    """Make a gradient step of the paper's networks, or of those for classic control."""
    from agents import sac_discrete  # as above
    from suite.step_replay import StepBatch

    config = _settings(sac_discrete, suite)
    learner = sac_discrete.make_learner(config, spaces, CPU)
    draws, size = np.random.default_rng(0), (1, config.batch_size)
    layout = torch.channels_last if spaces is PONG else torch.contiguous_format
    rows = (_normal(draws, config.batch_size, *spaces.obs_shape) for _ in range(2))
    obs, next_obs = (each.contiguous(memory_format=layout)[None] for each in rows)
    actions = torch.from_numpy(draws.integers(0, spaces.num_outputs, size))
    batch = StepBatch(obs, actions, _normal(draws, *size), torch.zeros(size), next_obs)
    return lambda: sac_discrete.update(learner, config, batch, 0)


def _settings(agent: Any, suite: str, source: str | None = None) -> Any:
    presets = agent.PRESETS.items()
    return next(each.config for key, each in presets if key == (suite, source or key[1]))


def update_a2c(suite: str, spaces: Spaces, source: str | None = None) -> Work:
    """Make a gradient step on one unroll."""
    config = _settings(a2c, suite, source)
    learner = a2c.make_learner(config, spaces, CPU)
    batch = _unroll(config, spaces).transitions()
    return lambda: a2c.update(learner, config, batch, 1e-4)


def update_ppo() -> Work:
    """Make a gradient step on one unroll, as a single minibatch."""
    from agents import ppo  # older commits have none

    config = _settings(ppo, "classic")
    learner = ppo.make_learner(config, CARTPOLE, CPU)
    batch = _unroll(config, CARTPOLE).transitions()
    memory = torch.zeros(config.num_envs, 0)
    rows = ppo.with_advantages(learner, config, batch, memory)
    return lambda: ppo.update(learner, config, rows, memory, 1e-4, 0.2)


def update_impala(suite: str, spaces: Spaces) -> Work:
    """Make a gradient step on the unrolls of eight environments."""
    config = replace(_settings(impala, suite), num_envs=8, num_minibatches=1, convolutions="nature")
    learner = impala.make_learner(config, spaces, CPU)
    batch = impala.transitions(impala.Experience(_unroll(config, spaces)), config)
    return lambda: impala.update(learner, config, batch, 1e-4)


def update_acer() -> Work:
    """Make a gradient step on one replayed unroll of every environment."""
    config = _settings(acer, "classic")
    log_probs = np.full((config.num_envs, 2), math.log(0.5), dtype=np.float32)
    replay = _filled_replay(config, CARTPOLE, log_probs)
    learner = acer.make_learner(config, CARTPOLE, CPU)
    batch = replay.sample(np.random.default_rng(0))
    return lambda: acer.update(learner, config, batch, 1e-4)


def update_acer_continuous() -> Work:
    """Make a gradient step on replayed unrolls."""
    config = _settings(acer_continuous, "mujoco")
    policy = np.zeros((config.num_envs, 12), dtype=np.float32)
    policy[:, 6:] = math.log(0.3)
    replay = _filled_replay(config, HALF_CHEETAH, policy)
    learner = acer_continuous.make_learner(config, HALF_CHEETAH, CPU)
    draws = np.random.default_rng(0)
    batch = replay.sample_any(draws, config.batch_unrolls)
    noise = _normal(draws, config.num_action_samples + 1, *batch.rewards.shape, 6)
    return lambda: acer_continuous.update(learner, config, batch, noise, 1e-4)


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
    "update-sac": partial(update_sac, 1),
    "update-sac-4": partial(update_sac, 4),
    "update-a2c": partial(update_a2c, "classic", CARTPOLE, "rl_zoo"),  # the first at older commits
    "update-a2c-Pong": partial(update_a2c, "atari", PONG),
    "update-ppo": update_ppo,
    "update-impala": partial(update_impala, "classic", CARTPOLE),
    "update-impala-Pong": partial(update_impala, "atari", PONG),
    "update-acer": update_acer,
    "update-acer_continuous": update_acer_continuous,
    "update-sac_value": partial(update_sac, 1, agent="sac_value"),
    "update-sac_alf": partial(update_sac_alf, False),
    "update-sac_alf-mixed": partial(update_sac_alf, True),
    "update-sac_discrete": partial(update_sac_discrete, "classic", CARTPOLE),
    "update-sac_discrete-Pong": partial(update_sac_discrete, "atari-7", PONG),
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


def _normal(draws: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(draws.standard_normal(shape, dtype=np.float32))


def _observations(draws: np.random.Generator, num_envs: int, spaces: Spaces) -> np.ndarray:
    shape = (num_envs, *spaces.obs_shape)
    if len(spaces.obs_shape) == 3:
        return draws.integers(0, 256, shape, dtype=np.uint8)
    return _normal(draws, *shape).numpy()


def _actions(draws: np.random.Generator, shape: Sequence[int], spaces: Spaces) -> np.ndarray:
    if spaces.continuous:
        return draws.uniform(-1, 1, shape).astype(np.float32)
    return draws.integers(0, spaces.num_outputs, shape)


def _sac_replay(num_seeds: int = 1) -> Replay:
    replay, draws = Replay(num_seeds, 10_000, 1000, 17, 6, CPU), np.random.default_rng(0)
    for _ in range(10):
        obs = _normal(draws, num_seeds, 1000, 17).numpy()
        actions = _actions(draws, (num_seeds, 1000, 6), HALF_CHEETAH)
        rewards = _normal(draws, num_seeds, 1000).numpy()
        replay.add(obs, actions, rewards, np.zeros_like(rewards), obs)
    return replay


def _unroll(config: UnrollConfig, spaces: Spaces) -> Unroll:
    """Return an unroll of random steps, as if a policy had collected it."""
    draws = np.random.default_rng(0)
    unroll = Unroll(config, spaces, CPU, keeps_outputs=True)
    for t in range(config.unroll_length + 1):
        unroll.put_obs(t, _observations(draws, config.num_envs, spaces))
    unroll.actions.copy_(torch.from_numpy(_actions(draws, unroll.actions.shape, spaces)))
    unroll.behaviour.copy_(_normal(draws, *unroll.behaviour.shape))
    outcomes = unroll.outcomes
    outcomes.rewards[:] = _normal(draws, *outcomes.rewards.shape).numpy()
    outcomes.terminations[:] = draws.random(outcomes.rewards.shape) < 0.02
    outcomes.valid[:] = True
    return unroll


def _filled_replay(
    config: acer.Config | acer_continuous.Config, spaces: Spaces, behaviour: np.ndarray
) -> UnrollReplay:
    """Return a replay of random steps, of which few end episodes.

    The policy that acts is always `behaviour`, `[N, D]`.
    """
    replay = UnrollReplay(spaces, config, behaviour.shape[1], CPU)
    draws, size = np.random.default_rng(0), config.num_envs
    replay.put_first_obs(_observations(draws, size, spaces))
    for _ in range(4 * config.unroll_length):
        shape = (size, spaces.num_outputs) if spaces.continuous else (size,)
        actions = _actions(draws, shape, spaces)
        obs = _observations(draws, size, spaces)[None]
        rewards, ends = _normal(draws, 1, size).numpy(), draws.random((1, size)) < 0.02
        no, yes, zeros = np.zeros_like(ends), np.ones_like(ends), np.zeros_like(rewards)
        step = Step(obs, obs, rewards, rewards, ends, no, yes, ends, zeros, zeros)
        replay.add(actions, behaviour, step)
    return replay
