"""Exact resume: what a run needs to go on, after it was killed, as if it never had been.

A journal holds a run's past, the actions of every vector step, and at a checkpoint its present:
weights, optimisers, random streams, counters (see `suite/snapshot.py`). A run that starts again
plays the past into fresh environments, which brings back simulators, observations and unfinished
episodes at the simulator's speed, and takes up the present. `docs/resume.md` says what that is
worth and what it costs.
"""

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from suite.recorder import ACTIONS, Recorder
from suite.settings import UsageError
from suite.snapshot import BROKEN, Snapshot, pack, unpack, write_snapshot
from suite.vector_env import Step

STEPS_AT_ONCE = 4_096
PENDING_BYTES = 2**20
"""Actions that wait for the next write."""


class Journal:
    """The past and the present of the seeds that train in one process.

        journal = Journal(recorder, env, {"learner": learner, "streams": streams})
        obs = env.reset()
        for step, actions in journal.past():
            replay.add(...)
        env_steps, num_updates = journal.resume(0, 0)
        ...
            journal.record(actions)
            if journal.due():
                journal.save(env_steps, num_updates)

    Args:
        recorder: of the run; it knows whether the run goes on from a checkpoint.
        env: a `VectorEnv`, not stepped yet.
        state: all that changes while the run goes on, by name; `resume` restores it in place.
            Whatever can be made again from `past` needs no place in it.
    """

    def __init__(self, recorder: Recorder, env: Any, state: Mapping[str, Any]) -> None:
        self._recorder, self._env, self._state = recorder, env, dict(state)
        self._folder = recorder.checkpoint_directory
        self._path = self._folder / ACTIONS
        self._shape = (env.num_seeds, env.num_envs, *env.action_shape)
        self._type = np.dtype("<f4")
        if not env.action_shape:  # numbers of actions: one byte is enough for all known tasks
            self._type = np.min_scalar_type(env.num_actions - 1).newbyteorder("<")
        self._pending = bytearray()
        self._num_bytes, self._sum = 0, hashlib.sha256()
        self._saved_at = time.perf_counter()
        self._past = self._replay()

    def past(self) -> Iterator[tuple[Step, np.ndarray]]:
        """Play the recorded steps into the environments; nothing, if the run begins.

        Yields:
            what each step caused, and its actions, `[S, N, ...]`.

        Raises:
            UsageError: for a record of actions that cannot be played.
        """
        return self._past

    def resume(self, *numbers: int | float) -> tuple[Any, ...]:
        """Play the rest of the past, then restore the state that the checkpoint holds.

        Args:
            numbers: those of a run that begins; as many and in the order that `save` was given.

        Returns:
            the numbers of the checkpoint, or those given where the run begins.

        Raises:
            UsageError: if the environments are not where they were, or the checkpoint is damaged.
        """
        for _ in self._past:
            pass
        snapshot = self._recorder.snapshot
        if snapshot is None:
            return numbers
        content = snapshot.content
        if self._env.fingerprint() != content["environments"]:
            raise UsageError(
                f"the simulator did not repeat itself, so this run cannot go on exactly: delete "
                f"{self._folder} to begin it anew"
            )
        try:
            unpack(content["state"], snapshot.tensors, self._state)
            restored = tuple(unpack(content["numbers"], {}, list(numbers)))
            if len(restored) != len(numbers):
                raise ValueError(f"{len(restored)} numbers in place of {len(numbers)}")
            self._recorder.restart_clock(content["clock"])
        except BROKEN as error:
            raise self._unreadable(error) from None
        self._saved_at = time.perf_counter()
        return restored

    def record(self, actions: np.ndarray) -> None:
        """Keep the actions of one vector step, `[S, N, ...]`, or of several, `[T, S, N, ...]`.

        The axis of one seed may be left out.
        """
        self._pending += actions.astype(self._type).tobytes()
        if len(self._pending) > PENDING_BYTES:
            self._write_pending()

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.perf_counter() - self._saved_at >= self._recorder.checkpoint_seconds

    def save(self, *numbers: int | float) -> None:
        """Make a checkpoint; from here the run goes on if it is killed from now on.

        Args:
            numbers: counters and sums that are no objects: `resume` returns them.

        Raises:
            OSError: if the disk refuses; the checkpoint before stays.
            UsageError: if another process has begun the same run meanwhile.
        """
        self._write_pending(sync=True)
        tensors: dict[str, Tensor] = {}
        content = {
            **self._recorder.checkpoint((self._num_bytes, self._sum.hexdigest())),
            "environments": self._env.fingerprint(),
            "numbers": list(numbers),
            "state": pack(self._state, tensors, "state"),
        }
        write_snapshot(self._folder, Snapshot(content, tensors))
        self._saved_at = time.perf_counter()
        self._recorder.clock.start()

    def _replay(self) -> Iterator[tuple[Step, np.ndarray]]:
        """Play the actions of the file, whose length and sum the recorder has checked."""
        if self._recorder.snapshot is None:
            return
        num_steps, rest = divmod(
            self._path.stat().st_size, self._type.itemsize * math.prod(self._shape)
        )
        if rest:
            raise self._unreadable(f"{ACTIONS} has {rest} bytes too many")
        if not num_steps:
            return
        recorded = np.memmap(self._path, self._type, mode="r", shape=(num_steps, *self._shape))
        for first in range(0, num_steps, STEPS_AT_ONCE):
            steps = np.array(recorded[first : first + STEPS_AT_ONCE])
            self._count(steps.tobytes())
            for actions in steps if self._env.action_shape else steps.astype(np.int64):
                try:
                    step = self._env.step(actions)
                except ValueError as error:
                    raise self._unreadable(error) from None
                yield step, actions

    def _write_pending(self, *, sync: bool = False) -> None:
        """Append the actions that wait; those after the last checkpoint are cut on resume."""
        self._recorder.check_ours()
        self._folder.mkdir(exist_ok=True)
        with self._path.open("ab") as file:
            file.write(self._pending)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        self._count(self._pending)
        self._pending.clear()

    def _count(self, actions: bytes | bytearray) -> None:
        self._sum.update(actions)
        self._num_bytes += len(actions)

    def _unreadable(self, error: object) -> UsageError:
        return UsageError(
            f"unreadable checkpoint in {self._folder}: {error}; delete it to begin the run anew"
        )
