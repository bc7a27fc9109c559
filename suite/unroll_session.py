"""The frame of a loop that collects unrolls of one seed and learns from each.

`agents/a2c.py` shows it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.base.randomness import stream
from suite.envs.vector_env import Step
from suite.graphs import as_graph
from suite.player import Player
from suite.record.journal import Journal
from suite.record.means import Means
from suite.record.recorder import Recorder
from suite.session import Session
from suite.settings.config import UnrollConfig

MOMENTS = ("target", "residual", "squared_target", "squared_residual")
"""Means over valid rows of V's targets and errors, and of their squares."""


def diagnostics(
    numbers: Mapping[str, Tensor],
    rows: Mapping[str, Tensor],
    value_targets: Float[Tensor, "T N"],
    residuals: Float[Tensor, "T N"],
    valid: Float[Tensor, "T N"],
) -> dict[str, Tensor]:
    """Return an update's diagnostics by name, in float64, on their device.

    Args:
        numbers: those that are one number.
        rows: those of every row, `[T, N]`; their means over valid rows are taken.
        value_targets: of V; `MOMENTS` of them and of `residuals` follow.
        residuals: `value_targets` minus V.
        valid: 1 for valid rows, 0 for others.
    """
    of_rows = torch.stack([*rows.values(), value_targets, residuals]).double()
    of_rows = torch.cat([of_rows, of_rows[-2:].square()]) * valid
    means = of_rows.sum((1, 2)) / valid.sum().clamp(min=1)
    found = {name: number.double() for name, number in numbers.items()}
    return found | dict(zip((*rows, *MOMENTS), means, strict=True))


def explained_variance(
    target: float, residual: float, squared_target: float, squared_residual: float
) -> float:
    """Return the share of the targets' variance that V explains, from `MOMENTS`.

    It is 0 where the variance is the rounding of float64.
    """
    variance = squared_target - target**2
    if variance <= 1e-12 * squared_target:
        return 0.0
    return 1 - (squared_residual - residual**2) / variance


def columns_of(means: Mapping[str, np.ndarray], learning_rate: float) -> dict[str, np.ndarray]:
    """Return the columns of `updates.csv`, `[1]` each, from the means over a log interval."""
    columns = {name: float(mean) for name, mean in means.items()}
    if not columns:
        return {}
    if MOMENTS[0] in columns:
        moments = [columns.pop(name) for name in MOMENTS]
        columns["explained_variance"] = explained_variance(*moments)
    columns["learning_rate"] = learning_rate
    return {name: np.array([value]) for name, value in columns.items()}


class UnrollSession(Session):
    """A `Session` of one seed, with its counters, its journal and its updates."""

    def __init__(self, config: UnrollConfig, recorder: Recorder) -> None:
        super().__init__(config, recorder, config.unroll_rows)
        (self._seed,) = config.seeds
        self._learning_rate_at = config.learning_rate_at
        self._means = Means()
        self._may_save = False
        self.env_steps = 0
        """Environment steps so far; ignored actions do not count."""
        self.first_step = 0
        """Environment steps before the newest unroll."""
        self.num_updates, self._reward_sum = 0, 0.0
        self.obs = self.env.reset()[0]
        """Observations to act on, `[N, *obs]`."""

    @property
    def learning_rate(self) -> float:
        """Return the step size of updates that follow the newest unroll."""
        return self._learning_rate_at(self.first_step)

    def stream(self, name: str) -> np.random.Generator:
        """Return the seed's random stream of that name."""
        return stream(self._seed, name)

    def begin(
        self,
        learner: Any,
        player: Player,
        update: Callable[..., dict[str, Tensor]],
        state: Mapping[str, Any],
        store: Callable[[np.ndarray, None, Step], None] | None = None,
    ) -> None:
        """Go on from a run that was killed, or begin a new one.

        Args:
            learner: all that learns; its `optimiser` knows the weights.
            player: the policy in evaluations.
            update: changes the learner, returns diagnostics; `self.update` calls it.
            state: what else changes and is not in `store`, by name: random streams and the like.
            store: stores a vector step of the past: actions `[N, ...]`, None for what is kept of
                the policy, and the outcome; None: nothing is stored.
        """
        self._learner, self._player = learner, player
        self._update = as_graph(update, learner, self._config, self.device)
        state = {"learner": learner, "means": self._means, **state}
        self._journal = Journal(self._recorder, self.env, state)
        for step, actions in self._journal.past:
            if store is not None:
                store(actions[0], None, step)
        numbers = self._journal.resume(0, 0, 0, 0.0)
        self.env_steps, self.first_step, self.num_updates, self._reward_sum = numbers
        self.obs = self.env.obs[0]
        self.are_new = np.full(self._config.num_envs, self.env_steps == 0)
        """Mask of observations `[N]` that running moments lack and that a valid action follows."""
        self._recorder.clock.start()

    def continues(self) -> bool:
        """Save, evaluate and log what is due, then return whether there is another unroll."""
        more = self.has_room(self.env_steps)
        self._recorder.clock.lap("learning")
        if self._may_save and self._journal.is_due(at_end=not more):
            numbers = (self.env_steps, self.first_step, self.num_updates, self._reward_sum)
            self._journal.save(*numbers)
        gained, player = self.env_steps - self.first_step, self._player
        self.evaluate_if_due(self.env_steps, gained, player, player.weights, player.memory)
        if self.is_due(self._config.log_interval, self.env_steps, gained):
            norm = self._learner.optimiser.weights.norm()
            checks = {"reward": np.array([self._reward_sum]), "weight_norm": np.array([norm])}
            columns = columns_of(self._means.read(), self.learning_rate)
            self._recorder.log(self.env_steps, self.num_updates, columns, checks)
        self.first_step, self._may_save = self.env_steps, True
        return self.has_room(self.env_steps)

    def step(self, actions: np.ndarray | Tensor) -> Step:
        """Take a step in every environment, count it, and record the episodes that ended."""
        clock = self._recorder.clock
        actions = actions.cpu().numpy() if isinstance(actions, Tensor) else actions
        clock.lap("acting")
        step = self.env.step(actions[None])
        self._journal.record(actions)
        self.obs, self.are_new = step.obs[0], ~step.ends[0]
        self._count(step)
        clock.lap("environment")
        return step

    def record_unroll(
        self, steps: Sequence[Step], actions: np.ndarray, seconds: Mapping[str, float]
    ) -> None:
        """Count and record an unroll for which this thread has waited.

        `seconds` are those that the other thread spent, by section of the clock.
        """
        self._recorder.clock.lap("learner_idle")
        self._journal.record(actions)
        for step in steps:
            self._count(step)
        for section, spent in seconds.items():
            self._recorder.clock.seconds[section] += spent

    def pauses(self) -> bool:
        """Return whether a checkpoint may follow, so that no thread may be at work until then."""
        self._may_save = not self.has_room(self.env_steps) or self._journal.is_due()
        return self._may_save

    def _count(self, step: Step) -> None:
        self.env_steps += int(np.count_nonzero(step.valid))
        self._reward_sum += float(step.rewards.sum())
        self._recorder.episodes(self.env_steps, step)

    def update(self, *inputs: Any) -> dict[str, Tensor]:
        """Make an update with these inputs, as a CUDA graph if the settings say so.

        Returns:
            its diagnostics by name, on the device.
        """
        metrics = self._update(*inputs)
        self._means.add(metrics)
        self.num_updates += 1
        return metrics
