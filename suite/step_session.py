"""The frame of a loop that learns from replay after each step, of all seeds at once.

`agents/sac.py` shows it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from suite.base.randomness import stream
from suite.draws import Draws
from suite.envs.vector_env import Step
from suite.graphs import as_graph
from suite.nets.recurrence import EnsembleMemory
from suite.record.journal import Journal
from suite.record.means import Means
from suite.record.recorder import Recorder
from suite.replay import Replay
from suite.session import Act, Session, WeightsOf
from suite.settings.config import OffPolicyConfig
from suite.updates import Updates, updates_due

Store = Callable[[np.ndarray, np.ndarray, Step], None]
"""Stores observations `[S, N, *obs]`, the actions taken on them and their outcome."""


class StepSession(Session):
    """A `Session` with the counters, the journal and the updates of all seeds."""

    def __init__(
        self, config: OffPolicyConfig, recorder: Recorder, *, reward_parts: bool = False
    ) -> None:
        options = {"reset": "same_step", "reward_parts": reward_parts}
        super().__init__(config, recorder, config.num_envs, **options)
        self._update_ratio = config.update_ratio
        self.env_steps = 0
        """Environment steps of each seed so far."""
        self.num_updates = 0
        self.action_streams = [stream(seed, "action noise") for seed in config.seeds]
        self._means, self._reward_sums = Means(), np.zeros(len(config.seeds))
        self._streams: list[Any] = [self.action_streams]
        self._warm_up, self._has_stepped = 0, False

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

    def begin(
        self,
        learner: Any,
        store: Store,
        learn: Callable[..., dict[str, Tensor]],
        replay: Replay | None = None,
        draws: Draws | None = None,
        *,
        warm_up: int,
        phase_of: Callable[[int], Hashable] | None = None,
        further: Sequence[Any] = (),
    ) -> None:
        """Restore the run if it was killed: its steps are stored again, then its state is read.

        Args:
            learner: all that learns.
            store: stores a vector step, given its observations, its actions and its outcome.
            learn: makes an update: a `Learn` of rows of `replay` that `draws` draws; without these
                two it takes the update's number alone, and draws by itself.
            replay: where steps are stored.
            draws: what `self.draws` returned.
            warm_up: environment steps before the first update.
            phase_of: maps an update's number to its phase; updates of one phase do the same, and
                change the learner alone. On a GPU each phase is a CUDA graph then; None: none is.
            further: more random streams, and other stateful objects of the loop.
        """
        if phase_of is not None:
            learn = as_graph(learn, learner, self._config, self.device, phase_of)
        self._store, self._learn, self._warm_up = store, learn, warm_up
        state = {"learner": learner, "streams": [*self._streams, *further]}
        state |= {"means": self._means, "reward_sums": self._reward_sums}
        self._updates: Updates | None = None
        if replay is not None and draws is not None:
            every_step = self._update_ratio * self._config.num_envs >= 1
            self._updates = Updates(learn, replay, draws, self._means, every_step)
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
        memory: EnsembleMemory | None = None,
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
        more = self.has_room(steps)
        if self._has_stepped and self._journal.is_due(at_end=not more):
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
        return self.has_room(steps)

    def step(self, actions: np.ndarray) -> None:
        """Take a step in every environment and store it; record the episodes that ended.

        Due updates that draw none of its rows are made meanwhile, the others by `finish_updates`.
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

    def finish_updates(self) -> None:
        """Make the due updates that waited for the step's end."""
        if self._updates is not None:
            self.num_updates = self._updates.finish()
        while self.num_updates < self._due:
            self._means.add(self._learn(self.num_updates))
            self.num_updates += 1
        self._recorder.clock.lap("learning")

    @property
    def _due(self) -> int:
        """Return how many updates have been due so far."""
        return updates_due(self._update_ratio, self.env_steps - self._warm_up)

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
