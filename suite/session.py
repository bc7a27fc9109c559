"""The frame of every training loop: device, environments, evaluations, logs and policies."""

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
from torch import Tensor

from suite.base.errors import UnreadableError, UsageError
from suite.base.hardware import fills_gpu_memory, use_device, use_threads
from suite.base.randomness import environment_seeds, stream
from suite.base.signals import handled
from suite.draws import Draws
from suite.envs.vector_env import Step, VectorEnv
from suite.evaluation import evaluate
from suite.graphs import Graphs, uses_graphs
from suite.nets.recurrence import Memory, StackMemory
from suite.record.journal import Journal
from suite.record.manifest import BEST
from suite.record.means import Means
from suite.record.recorder import Recorder, status_of
from suite.record.seed_record import refuse_finished
from suite.replay import Replay
from suite.resume.checkpoint import save_policy
from suite.settings.command_line import read_command_line
from suite.settings.config import RunConfig
from suite.settings.presets import Preset
from suite.updates import Learn, Updates, updates_due

Act = Callable[[np.ndarray, Sequence[np.random.Generator] | None], np.ndarray]
"""Maps observations `[S, N, *obs]` to actions: drawn with each seed's generator; None: modes."""
Store = Callable[[np.ndarray, np.ndarray, Step], None]
"""Stores observations `[S, N, *obs]`, the actions taken on them and their outcome."""
WeightsOf = Callable[[int], Mapping[str, Tensor]]
"""Maps a seed's index to its policy's tensors by name."""
ONE_REQUEST_SECONDS = 1.0
"""A scheduler signals an agent and its harness, which then signals the agent, too."""


class Session:
    """Device, threads and training environments of a run, and its schedule.

    A stride is the most environment steps in one pass of the training loop; None: a vector step's.
    Other options are those of `VectorEnv`.
    """

    def __init__(
        self,
        config: RunConfig,
        recorder: Recorder,
        stride: int | None = None,
        *,
        reset: Literal["next_step", "same_step"] = "next_step",
        reward_parts: bool = False,
    ) -> None:
        self._config, self._recorder = config, recorder
        self._stride = stride or config.num_envs
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
        self.env_steps = 0
        """Environment steps of each seed so far."""
        self.num_updates = 0
        self.action_streams = [stream(seed, "action noise") for seed in config.seeds]
        self._means, self._reward_sums = Means(), np.zeros(len(config.seeds))
        self._streams: list[Any] = [self.action_streams]
        self._updates: Updates | None = None
        self._warm_up, self._has_stepped = 0, False

    def goes_on(self, env_steps: int) -> bool:
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
        memory: Memory | StackMemory | None = None,
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
        self, env_steps: int, act: Act, memory: Memory | StackMemory | None = None
    ) -> np.ndarray:
        """Return every seed's evaluation returns at `env_steps`, `[S, episodes]`."""
        config, generators = self._config, None
        if config.evaluation_rule == "sampled":
            generators = [stream(seed, "evaluation actions", env_steps) for seed in config.seeds]

        return evaluate(
            config.find_task(),
            lambda obs: act(obs, generators),
            config.seeds,
            env_steps,
            episodes=config.evaluation_episodes,
            num_threads=self._env_threads,
            memory=memory,
        )

    @property
    def obs(self) -> np.ndarray:
        """Return the observations to act on, `[S, N, *obs]`."""
        return self.env.obs

    @property
    def warms_up(self) -> bool:
        """Return whether the next actions are drawn uniformly, before there is learning."""
        return self.env_steps < self._warm_up

    def draws(self, noise_shape: tuple[int, int, int], **options: Any) -> Draws:
        """Return what draws for the updates of all seeds; see `Draws` for noise and options."""
        options |= {"num_threads": self._env_threads}
        draws = Draws(self._config.seeds, noise_shape, self.device, **options)
        self._streams += draws.streams
        return draws

    def updater(
        self,
        learn: Learn,
        replay: Replay,
        draws: Draws,
        learner: Any = None,
        phase_of: Callable[[int], Hashable] | None = None,
    ) -> None:
        """Have draws of replay learned from, as many as are due after each `step`.

        On a GPU updates are launched as CUDA graphs, unless `phase_of` is None or the setting
        `cuda_graphs` says no: `learner` is all that they change, and `phase_of` maps an update's
        number to its phase; updates of one phase do the same.
        """
        launch, late = learn, draws.priorities is not None
        if phase_of is not None and uses_graphs(self._config, self.device):
            launch = Graphs(learn, phase_of, learner, self.device)
        config: Any = self._config
        every_step = config.update_ratio * config.num_envs >= 1
        self._updates = Updates(launch, replay, draws, self._means, late, every_step)

    def begin(
        self, learner: Any, store: Store, *, warm_up: int, further: Sequence[Any] = ()
    ) -> None:
        """If the run goes on, replay its steps into `store` and restore its state.

        Args:
            learner: all that learns.
            store: stores a vector step, given its observations, its actions and its outcome.
            warm_up: environment steps before the first update.
            further: more random streams, and other stateful objects of the loop.
        """
        self._store, self._warm_up = store, warm_up
        state = {"learner": learner, "streams": [*self._streams, *further]}
        state |= {"means": self._means, "reward_sums": self._reward_sums}
        if self._updates is not None:
            state["draws ahead"] = self._updates.ahead
        self._journal = Journal(self._recorder, self.env, state)
        obs = self.env.reset()
        for step, actions in self._journal.past:
            store(obs, actions, step)
            obs = step.obs
        self.env_steps, self.num_updates = self._journal.resume(0, 0)
        self._recorder.clock.start()

    def continues(
        self,
        policy: Act,
        weights_of: WeightsOf,
        health: Callable[[], dict[str, Tensor]],
        memory: StackMemory | None = None,
    ) -> bool:
        """Save, evaluate and log what is due, then return whether there is another step to take.

        Args:
            policy: the policies of all seeds.
            weights_of: maps a seed's index to its policy's tensors by name.
            health: returns numbers `[S]` that must be finite, by name; `weight_norm` is recorded,
                too.
            memory: what the policies remember of an evaluation's episodes; None: nothing.
        """
        steps, gained = self.env_steps, self._config.num_envs
        goes_on = self.goes_on(steps)
        if self._has_stepped and self._journal.is_due(at_end=not goes_on):
            self._journal.save(steps, self.num_updates)
        self.evaluate_if_due(steps, gained, policy, weights_of, memory)
        if self.is_due(self._config.log_interval, steps, gained):
            metrics = self._means.read()
            checks = {name: each.detach().cpu().numpy() for name, each in health().items()}
            weight_norm = checks.pop("weight_norm")
            if metrics:
                metrics["weight_norm"] = weight_norm
            checks = {"reward": self._reward_sums, **checks}
            self._recorder.log(steps, self.num_updates, metrics, checks)
        return self.goes_on(steps)

    def step(self, actions: np.ndarray) -> None:
        """Take a step in every environment and store it; record the episodes that ended.

        Updates of `updater` that draw none of its rows are made meanwhile, the others by `learn`.
        """
        clock, obs = self._recorder.clock, self.env.obs
        clock.lap("acting")
        self.env.send(actions)
        self.env_steps += self._config.num_envs
        if self._updates is not None:
            self._updates.begin(self.num_updates, self._due)
            clock.lap("learning")
        step = self.env.recv()
        self._has_stepped = True
        self._journal.record(actions)
        self._store(obs, actions, step)
        self._reward_sums += step.raw_rewards.sum(1)
        self._recorder.episodes(self.env_steps, step)
        clock.lap("environment")

    def learn(self, update: Callable[[int], dict[str, Tensor]] | None = None) -> None:
        """Make the updates that are due after a step.

        Args:
            update: makes update number i, returns diagnostics; None: the one given to `updater`.
        """
        if update is None:
            assert self._updates is not None
            self.num_updates = self._updates.finish()
        else:
            while self.num_updates < self._due:
                self._means.add(update(self.num_updates))
                self.num_updates += 1
        self._recorder.clock.lap("learning")

    @property
    def _due(self) -> int:
        """Return how many updates have been due so far."""
        steps = self.env_steps - self._warm_up
        return updates_due(self._config.update_ratio, steps)  # type: ignore[attr-defined]

    def random_actions(self) -> np.ndarray:
        """Return uniform actions, drawn from each seed's stream: in [-1, 1], or numbers, or both.

        A hybrid action's first component is the number.
        """
        streams, spaces, num_envs = self.action_streams, self.env.spaces, self._config.num_envs
        if not spaces.continuous:
            return np.stack([each.integers(0, spaces.num_outputs, num_envs) for each in streams])
        shape = (num_envs, *self.env.action_shape)
        actions = np.stack([each.uniform(-1, 1, shape) for each in streams]).astype(np.float32)
        if spaces.num_choices:
            numbers = [each.integers(0, spaces.num_choices, num_envs) for each in streams]
            actions[..., 0] = np.stack(numbers)
        return actions

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
    left = [alone for alone, end in zip(each, ends, strict=True) if end is None] or each
    for alone in left:
        refuse_finished(options.out / f"seed-{alone.seeds[0]}", alone.env_steps)
    status = 2 if "diverged" in ends else 0
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
