"""Work whose cost is counted and whose speed is compared between commits.

A workload is a function without arguments that does its work once; all repetitions are alike:
nothing grows, nothing runs out. This file imports nothing of this room: `serve.py` also runs it on
the code of other commits.
"""

import importlib
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import cycle
from os import devnull
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
from suite.nets.affine import affine
from suite.record.recorder import Recorder
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
"""Published policies: folder and spaces."""
SOURCES = {("a2c", "classic"): "rl_zoo", ("sac", "mujoco"): "paper"}
"""Of workloads whose agent and suite have another default now than at older commits."""
Work = Callable[[], object]
Builder = Callable[[Path], Work]
"""Prepares a workload, which may write into the folder given."""


def count_flops(repeat: Work) -> int:
    """Return the floating-point operations of matrix products and convolutions in `repeat`."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False) as counter:
        repeat()
    return counter.get_total_flops()


def simulator(task: str, num_envs: int, _: Path, num_threads: int = 1) -> Work:
    """Step envpool itself, without our adapter."""
    env, actions = _environment(task, num_envs, num_threads)
    pool = env._pool
    kind = np.float64 if env.action_shape else np.int32
    rows = cycle([a.reshape(num_envs, *env.action_shape).astype(kind) for a in actions])

    def repeat() -> None:
        pool.send(next(rows))
        pool.recv()

    return repeat


def affine_layer(_: Path) -> Work:
    """Run an affine layer of 256 units, forwards and backwards."""
    bias = torch.zeros(256, requires_grad=True)
    inputs, weight = (torch.randn(256, 256, requires_grad=True) for _ in range(2))
    gradient = torch.randn(256, 256)
    return lambda: torch.autograd.grad(
        affine(bias, inputs, weight), (bias, inputs, weight), gradient
    )


def adapter(task: str, num_envs: int, _: Path) -> Work:
    """Make a vector step through the adapter, simulator included."""
    env, actions = _environment(task, num_envs)
    rows = cycle(actions)
    return lambda: env.step(next(rows))


def acting(agent: str, batch: int, _: Path) -> Work:
    """Compute a trained policy's actions for a batch of observations, from numpy to numpy."""
    folder, spaces = TRAINED[agent]
    policy = agents.load_policy(POLICIES / folder)
    obs = np.zeros((batch, *spaces.obs_shape), dtype=np.float32)
    return lambda: policy(obs)


def update_sac(num_seeds: int, _: Path, agent: str = "sac") -> Work:
    """Make a gradient step of the paper's networks, for one seed or several in one process."""
    module = importlib.import_module(f"agents.{agent}")  # older commits may lack it
    config = module.Config(seeds=tuple(range(1, num_seeds + 1)))
    learner = module.make_learner(config, 17, 6, CPU)
    generator = np.random.default_rng(0)
    indices = torch.from_numpy(generator.integers(0, 10_000, (num_seeds, config.batch_size)))
    batch = _sac_replay(10_000, num_seeds).batch(indices)
    noise = torch.from_numpy(_normal(generator, 2, num_seeds, config.batch_size, 6))
    return lambda: module.update(learner, config, batch, noise, 0)


def update_sac_alf(mixed: bool, _: Path) -> Work:
    """Make a gradient step of the default networks.

    With a prior, two reward parts and priorities; or with five choices beside HalfCheetah's size.
    """
    from agents import sac_alf  # as above

    extended = {"prior": "same_action", "reward_weights": (0.5, 0.5), "normalise_entropy": True}
    config = sac_alf.Config(**({} if mixed else extended))
    spaces = HALF_CHEETAH._replace(num_choices=5) if mixed else HALF_CHEETAH
    learner = sac_alf.make_learner(config, spaces, CPU)
    generator, size = np.random.default_rng(0), config.batch_size
    batch = _sac_replay(10_000).batch(torch.from_numpy(generator.integers(0, 10_000, (1, size))))
    if mixed:
        choices = torch.from_numpy(generator.integers(0, 5, (1, size, 1)))
        parts = [batch.obs, choices, batch.obs_actions[..., 17:]]
        batch = batch._replace(obs_actions=torch.cat(parts, -1))
    extras = torch.from_numpy(_normal(generator, 1, size, 6 + (2 if mixed else 3))).clamp(-1, 1)
    batch = batch._replace(extras=extras)
    noise, weights = torch.from_numpy(_normal(generator, 2, 1, size, 6)), torch.ones(1, size)
    return lambda: sac_alf.update(learner, config, batch, weights, noise, 0)


def update_sac_discrete(suite: str, spaces: Spaces, _: Path) -> Work:
    """Make a gradient step of the paper's networks, or of those for classic control."""
    from agents import sac_discrete  # as above
    from suite.step_replay import StepBatch

    config = _settings(sac_discrete, suite)
    learner = sac_discrete.make_learner(config, spaces, CPU)
    generator, size = np.random.default_rng(0), (1, config.batch_size)
    rows = (torch.from_numpy(_normal(generator, size[1], *spaces.obs_shape)) for _ in range(2))
    layout = torch.channels_last if spaces is PONG else torch.contiguous_format
    obs, next_obs = (each.contiguous(memory_format=layout)[None] for each in rows)
    actions = torch.from_numpy(generator.integers(0, spaces.num_outputs, size))
    rewards = torch.from_numpy(_normal(generator, *size))
    batch = StepBatch(obs, actions, rewards, torch.zeros(size), next_obs)
    return lambda: sac_discrete.update(learner, config, batch, 0)


def _settings(agent: Any, suite: str) -> Any:
    """Return an agent's settings on a suite: those of `SOURCES`, else of the first source."""
    found = {source: preset for (of, source), preset in agent.PRESETS.items() if of == suite}
    first, name = next(iter(found)), agent.__name__.rpartition(".")[2]
    return found[SOURCES.get((name, suite), first)].config


def update_a2c(suite: str, spaces: Spaces, _: Path) -> Work:
    """Make a gradient step on one unroll."""
    config = _settings(a2c, suite)
    learner = a2c.make_learner(config, spaces, CPU)
    batch = _unroll(config, spaces).transitions(config.gamma, config.time_limit_is_terminal)
    return lambda: a2c.update(learner, config, batch, 1e-4)


def update_ppo(_: Path) -> Work:
    """Make a gradient step on one unroll, as a single minibatch."""
    from agents import ppo  # older commits have none

    config = _settings(ppo, "classic")
    learner = ppo.make_learner(config, CARTPOLE, CPU)
    batch = _unroll(config, CARTPOLE).transitions(config.gamma, config.time_limit_is_terminal)
    memory = torch.zeros(config.num_envs, 0)
    rows = ppo.judge(learner, config, batch, memory)
    return lambda: ppo.update(learner, config, rows, memory, 1e-4, 0.2)


def update_impala(suite: str, spaces: Spaces, _: Path) -> Work:
    """Make a gradient step on the unrolls of eight environments."""
    config = replace(_settings(impala, suite), num_envs=8, num_minibatches=1, convolutions="nature")
    learner = impala.make_learner(config, spaces, CPU)
    batch = impala.transitions(impala.Experience(_unroll(config, spaces)), config)
    return lambda: impala.update(learner, config, batch, 1e-4)


def update_acer(_: Path) -> Work:
    """Make a gradient step on one replayed unroll of every environment."""
    config = _settings(acer, "classic")
    log_probs = np.full((config.num_envs, 2), math.log(0.5), dtype=np.float32)
    replay = _filled_replay(config, CARTPOLE, log_probs)
    learner = acer.make_learner(config, CARTPOLE, CPU)
    batch = replay.sample(np.random.default_rng(0))
    return lambda: acer.update(learner, config, batch, 1e-4)


def update_acer_continuous(_: Path) -> Work:
    """Make a gradient step on replayed unrolls."""
    config = _settings(acer_continuous, "mujoco")
    policy = np.zeros((config.num_envs, 12), dtype=np.float32)
    policy[:, 6:] = math.log(0.3)
    replay = _filled_replay(config, HALF_CHEETAH, policy)
    learner = acer_continuous.make_learner(config, HALF_CHEETAH, CPU)
    generator = np.random.default_rng(0)
    batch = replay.sample_any(generator, config.batch_unrolls)
    shape = (config.num_action_samples + 1, *batch.rewards.shape, HALF_CHEETAH.num_outputs)
    noise = torch.from_numpy(_normal(generator, *shape))
    return lambda: acer_continuous.update(learner, config, batch, noise, 1e-4)


def vtrace(_: Path) -> Work:
    """Compute targets and advantages of the paper's batch of 32 unrolls of 20 steps."""
    log_rhos, rewards, values = torch.randn(3, 20, 32)
    discounts, last = torch.full((20, 32), 0.99), torch.randn(32)
    arguments = (log_rhos, discounts, rewards, values, last)
    return lambda: impala.vtrace_from_importance_weights(*arguments)


def retrace(_: Path) -> Work:
    """Compute targets of 16 unrolls of 20 steps."""
    rewards, q_values, next_values = torch.randn(3, 20, 16)
    discounts, ones = torch.full((20, 16), 0.99), torch.ones(20, 16)
    arguments = (rewards, discounts, ones, q_values, next_values, ones)
    return lambda: acer.retrace(*arguments)


def training(agent: str, task: str, suite: str, env_steps: int, folder: Path) -> Work:
    """Train for a short time with the preset's settings, set-up included."""
    module = importlib.import_module(f"agents.{agent}")
    settings = {"learning_starts": 200} if agent == "sac" else {}
    config = replace(
        _settings(module, suite),
        task=task,
        env_steps=env_steps,
        evaluation_interval=env_steps,
        evaluation_episodes=1,
        device="cpu",
        **settings,
    )

    def repeat() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as fresh, _silence():
            module.train(config, Recorder(Path(fresh), {"agent": agent}, config.seeds))

    return repeat


WORKLOADS: Mapping[str, Builder] = {
    "affine": affine_layer,
    **{
        f"adapter-{task.partition('-')[0]}-{num_envs}": partial(adapter, task, num_envs)
        for task, num_envs in (
            *(("HalfCheetah-v4", 1), ("HalfCheetah-v4", 8), ("Pong-v5", 8), ("Pong-v5", 16)),
        )
    },
    **{
        f"act-{agent}-{batch}": partial(acting, agent, batch)
        for agent in TRAINED
        for batch in (1, 16)
    },
    "update-sac": partial(update_sac, 1),
    "update-sac-4": partial(update_sac, 4),
    "update-a2c": partial(update_a2c, "classic", CARTPOLE),
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
    "retrace": retrace,
    "train-sac": partial(training, "sac", "InvertedPendulum-v4", "mujoco", 500),
    "train-a2c": partial(training, "a2c", "CartPole-v1", "classic", 4_000),
    "train-impala": partial(training, "impala", "CartPole-v1", "classic", 8_000),
    "train-acer": partial(training, "acer", "CartPole-v1", "classic", 3_200),
    "train-acer_continuous": partial(
        training, "acer_continuous", "InvertedPendulum-v4", "mujoco", 3_200
    ),
}
GATED = tuple(name for name in WORKLOADS if not name.startswith("train-"))
"""What is short enough for a gate."""
UPDATES = tuple(name for name in WORKLOADS if name.startswith("update-"))
"""Gradient steps, which the exact tier counts."""


def check_names(names: Sequence[str], known: Collection[str], what: str = "workload") -> None:
    """Check that all names are known.

    Raises:
        UsageError: for the first unknown one.
    """
    for name in names:
        if name not in known:
            raise UsageError(f"no such {what} {name!r}{nearest(name, known)}")


@contextmanager
def built(names: Sequence[str]) -> Iterator[dict[str, Work]]:
    """Build workloads by name, in folders that are removed afterwards.

    Raises:
        UsageError: for an unknown name.
    """
    check_names(names, WORKLOADS)
    hardware.use_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        works = {}
        for name in names:
            folder = Path(directory) / name
            folder.mkdir()
            torch.manual_seed(0)
            works[name] = WORKLOADS[name](folder)
        yield works


@contextmanager
def _silence() -> Iterator[None]:
    """Drop a training's output."""
    with Path(devnull).open("w") as sink, redirect_stdout(sink):
        yield


def _environment(
    task: str, num_envs: int, num_threads: int = 1
) -> tuple[VectorEnv, list[np.ndarray]]:
    """Return an environment and 64 random actions for it, `[1, N, ...]` each."""
    seeds = environment_seeds([1], num_envs, "benchmark")
    env = VectorEnv(find_task(task), seeds, num_threads=num_threads)
    env.reset()
    generator = np.random.default_rng(0)
    if env.action_shape:
        size = (64, 1, num_envs, *env.action_shape)
        return env, list(generator.uniform(env.action_low[0], env.action_high[0], size))
    return env, list(generator.integers(0, env.num_actions, (64, 1, num_envs)))


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape, dtype=np.float32)


def _observations(generator: np.random.Generator, num_envs: int, spaces: Spaces) -> np.ndarray:
    shape = (num_envs, *spaces.obs_shape)
    if len(spaces.obs_shape) == 3:
        return generator.integers(0, 256, shape, dtype=np.uint8)
    return _normal(generator, *shape)


def _actions(generator: np.random.Generator, shape: Sequence[int], spaces: Spaces) -> np.ndarray:
    if spaces.continuous:
        return generator.uniform(-1, 1, shape).astype(np.float32)
    return generator.integers(0, spaces.num_outputs, shape)


def _sac_replay(size: int, num_seeds: int = 1) -> Replay:
    replay = Replay(num_seeds, size, 1000, 17, 6, CPU)
    generator = np.random.default_rng(0)
    for _ in range(size // 1000):
        obs = _normal(generator, num_seeds, 1000, 17)
        actions = _actions(generator, (num_seeds, 1000, 6), HALF_CHEETAH)
        rewards = _normal(generator, num_seeds, 1000)
        replay.add(obs, actions, rewards, np.zeros_like(rewards), obs)
    return replay


def _step(generator: np.random.Generator, num_envs: int, spaces: Spaces) -> Step:
    """Return a possible outcome of a step, `[1, N, ...]`; few episodes end."""
    obs = _observations(generator, num_envs, spaces)[None]
    rewards, ends = _normal(generator, 1, num_envs), generator.random((1, num_envs)) < 0.02
    no, yes = np.zeros_like(ends), np.ones_like(ends)
    zeros = np.zeros_like(rewards)
    return Step(obs, obs, rewards, rewards, ends, no, yes, ends, zeros, zeros)


def _unroll(config: UnrollConfig, spaces: Spaces) -> Unroll:
    """Return an unroll of random steps, as if a policy had collected it."""
    generator = np.random.default_rng(0)
    unroll = Unroll(spaces, config.num_envs, config.unroll_length, CPU, keeps_outputs=True)
    for t in range(config.unroll_length + 1):
        unroll.put_obs(t, _observations(generator, config.num_envs, spaces))
    unroll.actions.copy_(torch.from_numpy(_actions(generator, unroll.actions.shape, spaces)))
    unroll.behaviour.copy_(torch.from_numpy(_normal(generator, *unroll.behaviour.shape)))
    outcomes = unroll.outcomes
    outcomes.rewards[:] = _normal(generator, *outcomes.rewards.shape)
    outcomes.terminations[:] = generator.random(outcomes.rewards.shape) < 0.02
    outcomes.valid[:] = True
    return unroll


def _filled_replay(
    config: acer.Config | acer_continuous.Config, spaces: Spaces, behaviour: np.ndarray
) -> UnrollReplay:
    """Return a replay of random steps; the policy that acts is always `behaviour`, `[N, D]`."""
    replay, generator = (
        UnrollReplay(spaces, config, behaviour.shape[1], CPU),
        np.random.default_rng(0),
    )
    replay.put_first_obs(_observations(generator, config.num_envs, spaces))
    shape = (config.num_envs, spaces.num_outputs) if spaces.continuous else (config.num_envs,)
    for _ in range(4 * config.unroll_length):
        actions = _actions(generator, shape, spaces)
        replay.add(actions, behaviour, _step(generator, config.num_envs, spaces))
    return replay
