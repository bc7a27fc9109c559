"""Acting beside learning: a thread that collects unrolls under an older copy of the policy.

The learner reads an unroll once `result` has returned it, and the thread touches nothing of the
learner's. Unroll k is collected under the weights after `k - lag` unrolls, so no result depends on
which thread is faster.
"""

import copy
import time
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suite.envs.vector_env import Step
from suite.nets.moments import RunningMoments
from suite.nets.optimisers import FlatWeights
from suite.player import ActionSampler, PolicyNetwork
from suite.record.clock import Stopwatch
from suite.unroll_session import UnrollSession
from suite.unrolls import Unroll

NO_OBS = np.empty(0)
"""In place of observations that have been stored elsewhere."""


@dataclass
class Experience:
    """One unroll, and what the learner must know of its collection."""

    unroll: Unroll
    memory: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    """The acting policy's memory at the unroll's start, `[N, M]`."""
    log_stds: Tensor | None = None
    """Log deviations of the policy that acted; None: actions are discrete."""
    obs_moments: RunningMoments | None = None
    """Statistics of observations at its end; None: they are not normalised."""
    steps: list[Step] = field(default_factory=list)
    """Its steps without their observations."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Spent on waiting, acting and simulating."""


class Collector:
    """Collects unrolls on a thread, one at a time.

    Its network is like the learner's and its own. It acts `lag` unrolls behind the learner, whose
    statistics it begins with; with 0 the two take turns. With a lag of 2, where w0 are the initial
    weights and w1 those that have learned from unroll 0:

    | unroll | weights noted | acting | buffer | the learner's meanwhile |
    |--------|---------------|--------|--------|-------------------------|
    | 0      | w0            | w0     | A      | none                    |
    | 1      | w0, w0        | w0     | B      | A, unroll 0             |
    | 2      | w0, w1        | w0     | A      | B, unroll 1             |
    | 3      | w1, w2        | w1     | B      | A, unroll 2             |
    """

    def __init__(
        self,
        config: Any,
        session: UnrollSession,
        learner: Any,
        network: PolicyNetwork,
        thread: Executor,
    ) -> None:
        self._env, self._learner, self._thread = session.env, learner, thread
        self._lag = lag = config.policy_lag
        self.network = network.requires_grad_(False)
        self.sampler, self._weights = ActionSampler(network, config), FlatWeights(network)
        self._obs_moments = copy.deepcopy(learner.obs_moments)
        options = {"frame_factor": 1 / config.frame_divisor, "keeps_outputs": True}
        place = session.env.spaces, session.device, self._obs_moments
        room = partial(Unroll, config, *place, **options)
        rooms = [room() for _ in range(2 if lag else 1)]  # one is filled, one is learned from
        self._buffers = deque(Experience(each, self.sampler.memory.clone()) for each in rooms)
        on_gpu = session.device.type == "cuda"
        self._queue = torch.cuda.Stream(session.device) if on_gpu else None
        """Its own work for a GPU, so that acting does not wait for learning."""
        self._past_weights: deque[Tensor] = deque(maxlen=max(lag, 1))
        """The learner's after its newest unrolls; the oldest ones act next."""
        self._stream = session.stream("action noise")
        self._collection: Future[None] | None = None
        self._finished_at = time.perf_counter()
        self.state = {"stream": self._stream, "memory": self.sampler.memory}
        """All that a checkpoint holds of it, beside the environments."""
        self.state |= {"weights": self._past_weights}

    def begin(self, obs: np.ndarray, are_new: np.ndarray) -> None:
        """Go on from observations `[N, *obs]`; those that are new enter the statistics."""
        if self._obs_moments is not None:
            self._obs_moments.copy_from(self._learner.obs_moments)
        self._obs = self._buffers[0].unroll.put_obs(0, obs, are_new)

    def start(self, *, waits: bool = False) -> None:
        """Note the learner's weights, and begin the next unroll; or let `result` begin it."""
        self._past_weights.append(self._learner.optimiser.weights.vector.clone())
        if not waits:
            self._submit()

    def result(self) -> Experience:
        """Return the next unroll.

        It stays as it is until the next is begun; with a lag, until the one after that.
        """
        if self._collection is None and self._lag and self._past_weights:
            self._submit()
        elif self._collection is None:
            self.start()
        assert self._collection is not None
        self._collection.result()
        self._collection = None
        self._buffers.rotate()
        return self._buffers[-1]

    def _submit(self) -> None:
        self._weights.vector.copy_(self._past_weights[0])
        self.wait_for_learner()
        self._collection = self._thread.submit(self.collect, self._buffers[0])

    def wait_for_learner(self) -> None:
        """Make the collector's work for a GPU wait for all that the learner has queued."""
        if self._queue is not None:
            self._queue.wait_stream(torch.cuda.current_stream(self._queue.device))

    @torch.no_grad()
    def collect(self, experience: Experience) -> None:
        """Fill an unroll."""
        idle, clock = time.perf_counter() - self._finished_at, Stopwatch()
        env, unroll, log_stds = self._env, experience.unroll, self.network.log_stds
        experience.log_stds, experience.steps = None if log_stds is None else log_stds.clone(), []
        if self._queue is not None:  # leaving it would wake GPU 0, on which a thread begins
            torch.cuda.set_device(self._queue.device)
        with nullcontext() if self._queue is None else torch.cuda.stream(self._queue):
            noise = self.network.draw_noise(self._stream, unroll.shape)
            obs = unroll.obs[0].copy_(self._obs)
            experience.memory.copy_(self.sampler.memory)
            clock.start()
            for t in range(len(noise)):
                actions, outputs = self.sampler(obs, noise[t])
                env.send(actions.cpu().numpy()[None])
                clock.lap("acting")
                unroll.behaviour[t], unroll.actions[t] = outputs, actions  # beside the simulator
                step = env.recv()
                unroll.outcomes.put(t, step)
                obs = unroll.put_obs(t + 1, step.obs[0], ~step.ends[0])
                self.sampler.remember(actions, step)
                experience.steps.append(step._replace(obs=NO_OBS, next_obs=NO_OBS))
                clock.lap("environment")
            if self._queue is not None:
                self._queue.synchronize()
        self._obs, experience.obs_moments = obs, copy.deepcopy(self._obs_moments)
        experience.seconds = {**clock.seconds, "actor_idle": idle}
        self._finished_at = time.perf_counter()
