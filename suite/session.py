"""The frame of every training loop: device, environments, evaluations, logs and policies."""

import copy
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from suite.beside import Beside, InCopy, OnGpu, can_copy, is_copyable
from suite.best import copy_weights
from suite.checkpoint import save_policy
from suite.command_line import read_command_line
from suite.config import RunConfig
from suite.evaluation import evaluate
from suite.hardware import fills_gpu_memory, find_device, gpu_use, use_device, use_threads
from suite.manifest import BEST
from suite.randomness import environment_seeds, stream
from suite.recorder import Recorder, has_passed, refuse_finished, status_of
from suite.recurrence import Memory
from suite.settings import Preset, UsageError
from suite.vector_env import VectorEnv

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a training to stop."""
Act = Callable[[np.ndarray, Sequence[np.random.Generator] | None], np.ndarray]
"""Maps observations `[S, N, *obs]` to actions: drawn with each seed's generator; None: modes."""
WeightsOf = Callable[[int], Mapping[str, Tensor]]
"""Maps a seed's index to its policy's tensors by name."""


class Session:
    """Device, threads and training environments of a run, and its schedule.

    Args:
        config: the run's settings.
        recorder: the run's recorder.
        stride: most environment steps in one pass of the training loop.
        reset: how environments restart after an end; see `VectorEnv`.
        reward_parts: whether the environments report the parts of rewards, too.

    Raises:
        UsageError: for a missing GPU, or a setting that needs one.
    """

    def __init__(
        self,
        config: RunConfig,
        recorder: Recorder,
        stride: int,
        *,
        reset: Literal["next_step", "same_step"] = "next_step",
        reward_parts: bool = False,
    ) -> None:
        self._config, self._recorder, self._stride = config, recorder, stride
        self._queue: Any = None  # of a GPU, for evaluations
        self.device = use_device(config.device, tf32=config.tf32)
        use_threads(config.num_threads)
        seeds = environment_seeds(config.seeds, config.num_envs, "environments")
        self._env_threads = config.env_threads or config.num_threads
        self.env = VectorEnv(
            config.find_task(),
            seeds,
            reset=reset,
            num_threads=self._env_threads,
            reward_parts=reward_parts,
        )

    def goes_on(self, env_steps: int) -> bool:
        """Return whether another stride fits into the run and a seed still learns."""
        return env_steps + self._stride <= self._config.env_steps and bool(self._recorder.active)

    def is_due(self, interval: int, env_steps: int, gained: int) -> bool:
        """Return whether the last `gained` steps reached a multiple of `interval`, or the end."""
        last = env_steps + self._stride > self._config.env_steps
        return last or has_passed(interval, env_steps, gained)

    def log_is_due(self, env_steps: int, gained: int) -> bool:
        """Return whether it is time for a row of `updates.csv`."""
        return self.is_due(self._config.log_interval, env_steps, gained)

    def evaluate_if_due(
        self,
        env_steps: int,
        gained: int,
        act: Act,
        weights_of: WeightsOf,
        memory: Memory | None = None,
    ) -> None:
        """Score the policies by the run's rule, if an evaluation is due; see `score`.

        With `evaluate_beside` training goes on meanwhile where it can. One evaluation ends before
        the next begins; the recorder holds back the rows that follow it.

        Args:
            env_steps: training steps so far.
            gained: those of the last pass of the training loop.
            act: the policies; without a copy (`suite.beside.is_copyable`) a GPU's training waits.
            weights_of: maps a seed's index to its tensors by name, to keep the best.
            memory: what the policies remember of their episodes; None: nothing.
        """
        config, recorder, best = self._config, self._recorder, self._recorder.best
        if config.evaluation_rule == "training":
            return
        is_due = self.is_due(config.evaluation_interval, env_steps, gained)
        recorder.settle(wait=is_due)  # the one before it
        if not is_due:
            return
        goes_on = self.goes_on(env_steps)  # else nothing is left to do meanwhile
        on_gpu = self.device.type == "cuda"
        is_possible = is_copyable(act) if on_gpu else can_copy()
        beside = config.evaluate_beside and goes_on and is_possible
        if beside and best is not None:
            weights = {i: copy_weights(weights_of(i)) for i in recorder.active}
            weights_of = weights.__getitem__
        if beside and on_gpu:
            act, memory = copy.deepcopy((act, memory))
            self._queue = self._queue or torch.cuda.Stream(self.device)

        def record(episode_returns: np.ndarray) -> None:
            recorder.evaluation(env_steps, episode_returns)
            if best is not None:
                for i in recorder.active:
                    best.offer(i, env_steps, episode_returns[i].mean().item(), weights_of)

        score = partial(self.score, env_steps, act, memory)
        if beside:
            work: Beside = OnGpu(score, self._queue) if on_gpu else InCopy(score)
            recorder.await_result(work, record)
        else:
            record(score())
        recorder.clock.lap("evaluation")

    def score(
        self,
        env_steps: int,
        act: Act,
        memory: Memory | None = None,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> np.ndarray:
        """Return every seed's evaluation returns at `env_steps`, `[S, episodes]`.

        Args:
            env_steps: training steps so far.
            act: the policies.
            memory: what they remember of their episodes; None: nothing.
            is_abandoned: whether nobody waits for the returns any more.

        Raises:
            InterruptedError: if they are abandoned.
        """
        config, generators = self._config, None
        if config.evaluation_rule == "sampled":
            generators = [stream(seed, "evaluation actions", env_steps) for seed in config.seeds]

        def choose(obs: np.ndarray) -> np.ndarray:
            if is_abandoned():
                raise InterruptedError("the evaluation is abandoned")
            return act(obs, generators)

        return evaluate(
            config.find_task(),
            choose,
            config.seeds,
            env_steps,
            episodes=config.evaluation_episodes,
            num_threads=self._env_threads,
            memory=memory,
        )

    def save_policies(self, weights_of: WeightsOf, settings: Sequence[str]) -> None:
        """Write the policy of every seed that has not diverged into its run's folder.

        If the best are kept, each seed's best is written into the folder `best` in it.

        Args:
            weights_of: maps a seed's index to its tensors by name.
            settings: names of the settings that rebuild the network.
        """
        names = ("task", "protocol", *settings)
        description = {
            name: getattr(self._config, name) for name in names if hasattr(self._config, name)
        }
        description |= {"agent": self._recorder.agent, **self.env.spaces._asdict()}
        best = self._recorder.best
        self._recorder.settle()
        for i in self._recorder.active:
            folder = self._recorder.seed_directories[i]
            save_policy(folder, weights_of(i), description)
            if best is not None and (kept := best.kept[i]):
                (folder / BEST).mkdir(exist_ok=True)
                facts = {name: kept[name] for name in ("env_steps", "mean_return")}
                save_policy(folder / BEST, kept["weights"], description | facts)


def train_together(
    file: str, train: Callable[[Any, Recorder], object], presets: Any, argv: Sequence[str]
) -> int:
    """Train as an agent's own command line says, all seeds side by side.

    Args:
        file: the agent's file, which has the agent's name.
        train: trains every seed of its configuration.
        presets: the agent's `PRESETS`.
        argv: the arguments after the program's name.

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
    left = [alone for alone, end in zip(each, ends, strict=True) if end is None] or each
    for alone in left:
        refuse_finished(options.out / f"seed-{alone.seeds[0]}", alone.env_steps)
    status = 2 if "diverged" in ends else 0
    for alone in left:
        recorder = Recorder.for_command(agent, alone, options)
        status = max(status, _train(alone, recorder, train))
    return status


def _train_and_draw(file: str, train: Any, argv: Sequence[str], config: Any, out: Path) -> int:
    """Train in a process of its own and draw; see `suite/live.py`, which is no source of a run."""
    runs = {(config.task, seed): out / f"seed-{seed}" for seed in config.seeds}
    return import_module("suite.live").train(file, train.__module__, argv, runs)


def _train(config: Any, recorder: Recorder, train: Callable[[Any, Recorder], object]) -> int:
    """Train and finish. Ctrl-C or SIGTERM ends it after a checkpoint, a second one at once.

    Returns:
        the exit status: 0, or 2 if a seed diverged.

    Raises:
        KeyboardInterrupt: after the checkpoint.
        UsageError: if the seeds do not fit into a GPU's memory.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if recorder.is_stopping:
            raise KeyboardInterrupt
        recorder.is_stopping = True

    heard = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop) for number in heard if main}
    try:
        train(config, recorder)
        status = recorder.finish()
    except RuntimeError as error:
        if not fills_gpu_memory(error):
            raise
        raise _too_large(config) from None
    finally:
        recorder.abandon()
        for number, handler in before.items():
            signal.signal(number, handler)
    if recorder.is_stopping:  # too late for a checkpoint
        raise KeyboardInterrupt
    return status


def _too_large(config: RunConfig) -> UsageError:
    """Return what to do about seeds that do not fit into a GPU's memory together.

    A seed needs what torch has held for it. What it keeps beside its networks is a part of that, or
    else is what was not granted any more.
    """
    number, (held, available) = len(config.seeds), gpu_use(find_device(config.device))
    kept = config.memory_bytes if config.keeps_on_device else 0
    needed = held / number + (kept if held < number * kept else 0)
    fitting = min(int(available / max(needed, 1)), number - 1)
    seeds = "1 seed exceeds" if number == 1 else f"{number} seeds in one process exceed"
    remedy = f"train at most {fitting} together"
    if not fitting:
        remedy = "not even one fits, so use smaller batches, networks or replay, or --device cpu"
    free, beside, each = (f"{size / 2**30:.2f} GiB" for size in (available, kept, needed))
    return UsageError(
        f"--device {config.device} is out of memory: {seeds} the {free} that are free; a seed "
        f"keeps {beside} beside its networks and needs {each} or more: {remedy}"
    )
