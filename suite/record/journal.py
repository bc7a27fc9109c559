"""Resume a killed run; it ends with the same bytes.

A journal holds a run's past, the actions of every vector step, and at a checkpoint its present:
weights, optimisers, random streams, counters (see `suite/base/snapshot.py`). A run that starts
again plays the past into fresh environments, which restores simulators, observations and unfinished
episodes at the simulator's speed, and then loads the present. `docs/robust.md` gives the limits
and the costs.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from suite.base.errors import UsageError
from suite.base.files import append
from suite.base.snapshot import BROKEN, Snapshot, pack, unpack, write_snapshot
from suite.envs.vector_env import Step
from suite.record.recorder import Recorder
from suite.record.resumption import ACTIONS

PENDING_BYTES = 2**20
"""Size of the actions that may wait for a write."""


class Journal:
    """The past and the present of the seeds that train in one process.

    A run plays its `past`, calls `resume`, and then calls `record` after every vector step and
    `save` where it `is_due`. A checkpoint is taken before the reports of its step, and a run that
    resumes makes them first. So the last one holds none of those that are due only because the run
    ends: a longer run goes on from it as if it had never ended there.

    Args:
        recorder: the run's; it knows whether the run resumes from a checkpoint.
        env: a `VectorEnv`, not stepped yet.
        state: everything that training changes, by name; `resume` restores it in place. Leave out
            whatever `past` can rebuild.
    """

    def __init__(self, recorder: Recorder, env: Any, state: Mapping[str, Any]) -> None:
        best = {"best": recorder.best} if recorder.best else {}
        self._recorder, self._env, self._state = recorder, env, {**state, **best}
        self._folder = recorder.checkpoint_directory
        self._path = self._folder / ACTIONS
        self._shape = (env.num_seeds, env.num_envs, *env.action_shape)
        self._type = np.dtype("<f4")
        if not env.action_shape:  # numbers of actions: one byte is enough for all known tasks
            self._type = np.min_scalar_type(env.num_actions - 1).newbyteorder("<")
        self._pending = bytearray()
        self._num_bytes, self._sum = 0, hashlib.sha256()
        self._saved_at = time.perf_counter()
        self.past = self._replay()
        """Plays the recorded steps into the environments; a new run has none. Yields each step's
        outcome, and its actions, `[S, N, ...]`."""

    def resume(self, *numbers: int | float) -> tuple[Any, ...]:
        """Play the rest of the past, restore the state, return the numbers that `save` was given.

        In a new run these are the arguments, their initial values.
        """
        for _ in self.past:
            pass
        snapshot = self._recorder.snapshot
        if snapshot is None:
            return numbers
        content = snapshot.content
        if self._env.digest() != content["environments"]:
            raise UsageError(
                f"the simulator did not repeat itself, so this run cannot resume exactly: delete "
                f"{self._folder} to start it from scratch"
            )
        try:
            unpack(content["state"], snapshot.tensors, self._state)
            restored = tuple(unpack(content["numbers"], {}, list(numbers)))
            if len(restored) != len(numbers):
                raise ValueError(f"{len(restored)} numbers instead of {len(numbers)}")
            self._recorder.restart_clock(float(content["wall_seconds"]), restored[0])
        except BROKEN as error:
            raise self._unreadable(error) from None
        snapshot.tensors.clear()  # a replay's may fill gigabytes
        self._saved_at = time.perf_counter()
        return restored

    def record(self, actions: np.ndarray) -> None:
        """Record the actions of one vector step, `[S, N, ...]`, or of several, `[T, S, N, ...]`.

        With one seed, the axis S may be left out.
        """
        self._pending += actions.astype(self._type).tobytes()
        if len(self._pending) > PENDING_BYTES:
            self._write_pending()

    def is_due(self, *, at_end: bool = False) -> bool:
        """Return whether a checkpoint is due: by time, at a stop, or at the end if kept."""
        passed = time.perf_counter() - self._saved_at
        last = at_end and self._recorder.keeps_checkpoint
        return last or self._recorder.is_stopping or passed >= self._recorder.checkpoint_seconds

    def save(self, *numbers: int | float) -> None:
        """Write a checkpoint; if the run is killed later, it resumes from here.

        Numbers are counters and sums outside the `state`, `env_steps` first; `resume` returns them.
        """
        try:
            self._write_pending(sync=True)
            tensors: dict[str, Tensor] = {}
            content = {
                **self._recorder.checkpoint((self._num_bytes, self._sum.hexdigest())),
                "environments": self._env.digest(),
                "numbers": list(numbers),
                "state": pack(self._state, tensors, "state"),
            }
            write_snapshot(self._folder, Snapshot(content, tensors))
        except FileNotFoundError:
            self._recorder.check_ours()  # another process that began these runs removed a file
            raise
        self._saved_at = time.perf_counter()
        self._recorder.clock.start()
        if self._recorder.is_stopping:
            where = f"at {numbers[0]} env_steps"
            print(f"stopped after a checkpoint {where}; the same command goes on", flush=True)
            raise KeyboardInterrupt

    def _replay(self) -> Iterator[tuple[Step, np.ndarray]]:
        """Play the actions of the file; the recorder has checked its length and checksum."""
        if self._recorder.snapshot is None:
            return
        num_steps, rest = divmod(
            self._path.stat().st_size, self._type.itemsize * math.prod(self._shape)
        )
        if rest:
            raise self._unreadable(f"{ACTIONS} has {rest} bytes too many")
        recorded = np.fromfile(self._path, self._type).reshape(num_steps, *self._shape)
        self._count(recorded.tobytes())
        for actions in recorded if self._env.action_shape else recorded.astype(np.int64):
            try:
                step = self._env.step(actions)
            except ValueError as error:
                raise self._unreadable(error) from None
            yield step, actions

    def _write_pending(self, *, sync: bool = False) -> None:
        """Append the waiting actions to the file; `resume` cuts those after the checkpoint."""
        self._recorder.check_ours()
        self._folder.mkdir(exist_ok=True)
        append(self._folder, self._path, self._pending, sync=sync)
        self._count(self._pending)
        self._pending.clear()

    def _count(self, actions: bytes | bytearray) -> None:
        self._sum.update(actions)
        self._num_bytes += len(actions)

    def _unreadable(self, error: object) -> UsageError:
        return UsageError(
            f"unreadable checkpoint in {self._folder}: {error}; "
            "delete it to start the run from scratch"
        )
