"""How long the parts take (`make bench`); figures to report, never to gate on."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import sac
from reproduce import pipeline
from reproduce.plan import Plan, make_plan
from suite.hardware import use_threads
from suite.randomness import environment_seeds
from suite.recorder import Recorder
from suite.tasks import find_task
from suite.vector_env import Step, VectorEnv

pytestmark = pytest.mark.benchmark(disable_gc=True, warmup=True)
CPU = torch.device("cpu")
HALF_CHEETAH = (17, 6)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    use_threads(1)


def test_matrix_product_of_one_core(benchmark: Any) -> None:
    """The ceiling of an update: a 256 x 256 x 256 product in single precision."""
    left, right = torch.randn(2, 256, 256)
    benchmark(torch.mm, left, right)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_adapter_without_its_simulator(
    benchmark: Any, num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `VectorEnv.step` adds to envpool: the pool is replaced by a recorded answer."""
    env, actions = _half_cheetah(num_envs)
    env._pool.send(np.zeros((num_envs, 6)))
    monkeypatch.setattr(env, "_pool", _Recorded(env._pool.recv()))
    benchmark(env.step, actions)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_vector_step(benchmark: Any, num_envs: int) -> None:
    """A whole step of HalfCheetah through the adapter, one simulator thread."""
    env, actions = _half_cheetah(num_envs)
    benchmark(env.step, actions)


@pytest.mark.parametrize("batch", [1, 16])
def test_sac_acting(benchmark: Any, batch: int) -> None:
    """A policy's action for `batch` observations, from numpy to numpy."""
    learner = sac.make_learner(sac.Config(), *HALF_CHEETAH, CPU)
    pairs = zip(learner.actor.weights, learner.actor.biases, strict=True)
    weights = {}
    for i, (weight, bias) in enumerate(pairs):
        weights |= {f"weight_{i}": weight[0, 0].detach(), f"bias_{i}": bias[0, 0].detach()}
    config = {k: getattr(sac.Config(), k) for k in ("log_std_min", "log_std_max", "log_std_bound")}
    bounds = {"action_low": [-1.0] * 6, "action_high": [1.0] * 6}
    policy = sac.load(weights, {"task": "HalfCheetah-v4", **config, **bounds})
    benchmark(policy.act, np.zeros((batch, 17), dtype=np.float32))


def test_sac_replay_sampling(benchmark: Any) -> None:
    """Gathering 256 of 100,000 transitions."""
    replay = _filled_replay(100_000)
    generator = np.random.default_rng(0)
    benchmark(lambda: replay.batch(torch.from_numpy(generator.integers(0, 100_000, (1, 256)))))


@pytest.mark.parametrize("num_seeds", [1, 4])
def test_sac_update(benchmark: Any, num_seeds: int) -> None:
    """One gradient step of the paper's networks, for one seed and for four in one process."""
    config = sac.Config(seeds=tuple(range(num_seeds)))
    benchmark(_updater(config))


def test_recorder(benchmark: Any, tmp_path: Path) -> None:
    """One log interval: metrics, timing and a flush of every file."""
    recorder = Recorder(tmp_path, {"agent": "sac"}, [1])
    metrics = {name: np.zeros(1) for name in ("critic_loss", "q_value", "actor_loss", "entropy")}
    benchmark(recorder.log, 1000, 1000, metrics, {"reward": np.zeros(1)})


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "suite"), [("sac", "mujoco"), ("a2c", "atari")])
def test_report_of_thirty_runs(benchmark: Any, agent: str, suite: str, tmp_path: Path) -> None:
    """From the files of 30 runs of 1,000,000 steps to tables, intervals, figures and the page."""
    options: dict[str, Any] = {"env_steps": 1_000_000, "num_seeds": 10, "runs_dir": tmp_path}
    options |= {"device": "cpu", "published": False}
    tasks = make_plan(agent, suite, **options).tasks[:3]
    plan = make_plan(agent, suite, tasks=tasks, **options)
    for task in tasks:
        _record_runs(plan, task)
    benchmark.pedantic(pipeline.make_report, (plan,), rounds=3, warmup_rounds=1)


def test_sac_short_training(benchmark: Any, tmp_path: Path) -> None:
    """300 updates of the whole loop, set-up included: InvertedPendulum, the paper's networks."""
    config = sac.Config(task="InvertedPendulum-v4", env_steps=500, learning_starts=200)
    config = replace(config, evaluation_interval=500, evaluation_episodes=1)

    def train(round_directory: Path) -> None:
        sac.train(config, Recorder(round_directory, {"agent": "sac"}, config.seeds))

    rounds = iter(range(100))
    benchmark.pedantic(lambda: train(tmp_path / str(next(rounds))), rounds=3, warmup_rounds=0)


def _record_runs(plan: Plan, task: str) -> None:
    """Write what all seeds of a task record: an episode per 100 steps, a row per 1,000."""
    config = replace(plan.config, task=task, seeds=plan.seeds, env_steps=1_000_000)
    run = {"agent": plan.agent, "suite": plan.suite, "source": plan.source, "task": task}
    run |= {"config": asdict(config), "command": f"python -m agents.{plan.agent}"}
    recorder, shape = Recorder(plan.directory / task, run, plan.seeds), (len(plan.seeds), 1)
    nothing, ends, lengths = np.zeros(shape), np.ones(shape, dtype=bool), np.full(shape, 100)
    ended = Step(
        *[nothing] * 7, episode_ends=ends, episode_returns=nothing, episode_lengths=lengths
    )
    generator = np.random.default_rng(0)
    for step in range(100, 1_000_001, 100):
        recorder.episodes(step, ended._replace(episode_returns=generator.normal(step, 1e5, shape)))
        if step % 5_000 == 0:
            recorder.evaluation(step, generator.normal(step, 1e5, (len(plan.seeds), 10)))
        if step % 1_000 == 0:
            losses = {f"loss_{i}": generator.normal(size=len(plan.seeds)) for i in range(6)}
            recorder.log(step, step, losses, {})
    recorder.finish()


class _Recorded:
    """Stands for a pool: every answer is the same recorded one."""

    def __init__(self, answer: tuple[Any, ...]) -> None:
        self._answer = answer

    def send(self, actions: np.ndarray) -> None:
        pass

    def recv(self) -> tuple[Any, ...]:
        return self._answer


def _half_cheetah(num_envs: int) -> tuple[VectorEnv, np.ndarray]:
    seeds = environment_seeds([1], num_envs, "benchmark")
    env = VectorEnv(find_task("HalfCheetah-v4"), seeds, reset="same_step")
    env.reset()
    return env, np.zeros((1, num_envs, 6), dtype=np.float32)


def _filled_replay(size: int, num_seeds: int = 1) -> sac.Replay:
    replay = sac.Replay(num_seeds, size, 1000, *HALF_CHEETAH, CPU)
    generator = np.random.default_rng(0)
    for _ in range(size // 1000):
        obs = generator.standard_normal((num_seeds, 1000, 17), dtype=np.float32)
        actions = generator.uniform(-1, 1, (num_seeds, 1000, 6)).astype(np.float32)
        nothing = np.zeros((num_seeds, 1000), dtype=np.float32)
        replay.add(obs, actions, nothing, nothing, obs)
    return replay


def _updater(config: sac.Config) -> Callable[[], object]:
    num_seeds = len(config.seeds)
    learner = sac.make_learner(config, *HALF_CHEETAH, CPU)
    replay = _filled_replay(10_000, num_seeds)
    batch = replay.batch(torch.randint(0, 10_000, (num_seeds, config.batch_size)))
    noise = torch.randn(2, num_seeds, config.batch_size, 6)
    return lambda: sac.update(learner, config, batch, noise, 0)
