"""The frame of every training loop: device, environments, evaluations and policies."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from suite.base.errors import UnreadableError, UsageError
from suite.base.hardware import fills_gpu_memory, use_device, use_threads
from suite.base.randomness import environment_seeds, stream
from suite.base.signals import handled
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate
from suite.nets.recurrence import EnsembleMemory, Memory
from suite.policy import save_policy
from suite.record.manifest import BEST
from suite.record.recorder import Recorder, status_of
from suite.record.seed_folder import refuse_finished
from suite.settings.command_line import read_command_line
from suite.settings.config import RunConfig
from suite.settings.presets import Preset

Act = Callable[[np.ndarray, Sequence[np.random.Generator] | None], np.ndarray]
"""Maps observations `[S, N, *obs]` to actions: drawn with each seed's generator; None: modes."""
WeightsOf = Callable[[int], Mapping[str, Tensor]]
"""Maps a seed's index to its policy's tensors by name."""
ONE_REQUEST_SECONDS = 1.0
"""A scheduler signals an agent and its harness, which then signals the agent, too."""


class Session:
    """Device, threads and training environments of a run, and its schedule.

    Args:
        config: the run's settings.
        recorder: its record.
        stride: most environment steps in one pass of the training loop.
        options: those of `VectorEnv`.
    """

    def __init__(self, config: RunConfig, recorder: Recorder, stride: int, **options: Any) -> None:
        self._config, self._recorder, self._stride = config, recorder, stride
        self.device = use_device(config.device, tf32=config.tf32)
        use_threads(config.num_threads)
        seeds = environment_seeds(config.seeds, config.num_envs, "environments")
        self._env_threads = config.env_threads or config.num_threads
        task = config.find_task()
        self.env = VectorEnv(task, seeds, num_threads=self._env_threads, **options)

    def has_room(self, env_steps: int) -> bool:
        """Return whether another stride fits into the run and a seed still learns."""
        return env_steps + self._stride <= self._config.env_steps and bool(self._recorder.active)

    def is_due(self, interval: int, env_steps: int, gained: int) -> bool:
        """Return whether the last `gained` steps reached a multiple of `interval`, or the end."""
        last = env_steps + self._stride > self._config.env_steps
        passes = env_steps // interval > (env_steps - gained) // interval
        return last or (env_steps > 0 and passes)

    def evaluate_if_due(
        self,
        env_steps: int,
        gained: int,
        act: Act,
        weights_of: WeightsOf,
        memory: Memory | EnsembleMemory | None = None,
    ) -> None:
        """Score the policies, if an evaluation is due, and keep the best; see `score`.

        `gained` of the `env_steps` came from the last pass of the training loop.
        """
        config, recorder, best = self._config, self._recorder, self._recorder.best
        is_due = self.is_due(config.evaluation_interval, env_steps, gained)
        if config.evaluation_rule == "training" or not is_due:
            return
        episode_returns = self.score(env_steps, act, memory)
        recorder.evaluation(env_steps, episode_returns)
        for i in recorder.active if best else ():
            kept, mean = best[i], episode_returns[i].mean().item()
            if kept is None or mean > kept["mean_return"]:  # training goes on with the tensors
                weights = {name: w.detach().cpu().clone() for name, w in weights_of(i).items()}
                best[i] = {"env_steps": env_steps, "mean_return": mean, "weights": weights}
        recorder.clock.lap("evaluation")

    def score(
        self, env_steps: int, act: Act, memory: Memory | EnsembleMemory | None = None
    ) -> np.ndarray:
        """Return every seed's evaluation returns at `env_steps`, `[S, episodes]`."""
        config, generators = self._config, None
        if config.evaluation_rule == "sampled":
            generators = [stream(seed, "evaluation actions", env_steps) for seed in config.seeds]

        returns, _ = evaluate(
            config.find_task(),
            lambda obs: act(obs, generators),
            config.seeds,
            env_steps,
            episodes=config.evaluation_episodes,
            num_threads=self._env_threads,
            memory=memory,
        )
        return returns

    def save_policies(self, weights_of: WeightsOf, settings: Sequence[str]) -> None:
        """Write the policy of every seed that has not diverged, and its best, into its folder.

        Settings are the names of those that rebuild the network.
        """
        config, names = self._config, ("task", "protocol", *settings)
        description = {name: getattr(config, name) for name in names if hasattr(config, name)}
        description |= {"agent": self._recorder.agent, **self.env.spaces._asdict()}
        best = self._recorder.best
        for i in self._recorder.active:
            folder = self._recorder.seed_directories[i]
            save_policy(folder, weights_of(i), description)
            if best and (kept := best[i]):
                (folder / BEST).mkdir(exist_ok=True)
                facts = {name: kept[name] for name in ("env_steps", "mean_return")}
                save_policy(folder / BEST, kept["weights"], description | facts)


def train_together(
    file: str, train: Callable[[Any, Recorder], object], presets: Any, argv: Sequence[str]
) -> int:
    """Train as an agent's own command line says, all seeds side by side.

    Returns:
        the exit status: 0, or 2 if a seed diverged.
    """
    agent = Path(file).stem
    config, options = read_command_line(presets, argv, agent=agent)
    if options.plot:
        return _train_and_draw(file, train, argv, config, options.out)
    ends: list[str | None] = []
    try:
        recorder = Recorder.for_command(agent, config, options)
    except UnreadableError:
        raise
    except UsageError:
        # If this command was killed as its seeds ended, and their checkpoint fits no more.
        ends = [status_of(config, options.out, seed) for seed in config.seeds]
        left = tuple(seed for seed, end in zip(config.seeds, ends, strict=True) if end is None)
        if len(left) in (0, len(ends)):
            raise
        config = replace(config, seeds=left)
        recorder = Recorder.for_command(agent, config, options)
    return max(2 if "diverged" in ends else 0, _train(config, recorder, train))


def train_in_turn(
    file: str,
    train: Callable[[Any, Recorder], object],
    presets: Mapping[tuple[str, str], Preset[Any]],
    argv: Sequence[str],
) -> int:
    """Train as an agent's own command line says, one seed after another; see `train_together`."""
    agent = Path(file).stem
    config, options = read_command_line(presets, argv, agent=agent)
    if options.plot:
        return _train_and_draw(file, train, argv, config, options.out)
    each = [replace(config, seeds=(seed,)) for seed in config.seeds]
    # If this command was killed, some seeds have ended: continue with the others.
    ends = [status_of(alone, options.out, alone.seeds[0]) for alone in each]
    left = [alone for alone, end in zip(each, ends, strict=True) if end is None]
    status = 2 if left and "diverged" in ends else 0
    left = left or each
    for alone in left:
        refuse_finished(options.out / f"seed-{alone.seeds[0]}", alone.env_steps)
    for alone in left:
        recorder = Recorder.for_command(agent, alone, options)
        status = max(status, _train(alone, recorder, train))
    return status


def _train_and_draw(file: str, train: Any, argv: Sequence[str], config: Any, out: Path) -> int:
    """Train in a process of its own and draw; `suite/record/live.py` is no source of a run."""
    runs = {(config.task, seed): out / f"seed-{seed}" for seed in config.seeds}
    return import_module("suite.record.live").train(file, train.__module__, argv, runs)


def _train(config: Any, recorder: Recorder, train: Callable[[Any, Recorder], object]) -> int:
    """Train and finish. Ctrl-C or SIGTERM ends it after a checkpoint, a second one at once.

    Signals within `ONE_REQUEST_SECONDS` are one.

    Returns:
        the exit status: 0, or 2 if a seed diverged.
    """
    asked = math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if time.monotonic() > asked + ONE_REQUEST_SECONDS:
            raise KeyboardInterrupt
        asked, recorder.is_stopping = min(asked, time.monotonic()), True

    try:
        with handled(stop):
            train(config, recorder)
            status = recorder.finish()
    except Exception as error:
        recorder.fail(error)
        if not fills_gpu_memory(error):
            raise
        raise UsageError(
            f"--device {config.device} is out of memory, seeds in this process: {len(config.seeds)}"
            "; train fewer together, or use smaller batches, networks or replay, or --device cpu"
        ) from None
    if recorder.is_stopping:  # too late for a checkpoint
        raise KeyboardInterrupt
    return status
