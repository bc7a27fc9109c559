"""Run a plan on a Ray cluster: every group of runs is a Ray task.

`docs/robust.md` shows how. A task runs the agent's own command on a node (`node.py`), which writes
into the driver's folder of runs where the disk is shared; else the runs arrive here after each
checkpoint. If a node is lost, its groups resume elsewhere from the last one.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproduce import ROOT
from reproduce.plan.grid import Group, Plan
from reproduce.plan.resources import Cluster, demand_of
from reproduce.run.pool import Pool, Worker
from reproduce.run.processes import End
from reproduce.run.ray import node
from reproduce.run.ray.folders import checkpoint_of, read_folders, write_folders
from suite.base.code import REVISION, SETTINGS, revision
from suite.base.errors import UsageError
from suite.base.files import NO_SPACE, open_inside, write_atomically, write_json
from suite.envs.tasks import folder_of

ANSWER_SECONDS, CONNECT_SECONDS = 5.0, 60.0
STORE_BYTES = 2**28
"""Size of the object store of a Ray that is started here: nothing but commands is sent."""
CANCEL_SECONDS = 10.0
MOST_LOSSES = 3
"""Nodes that a group may lose in a row without a checkpoint; with the next one it fails."""
CODE = ("agents", "reproduce", "suite")
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that, if it is 0, binds Ray to 127.0.0.1 alone, on any system."""


@contextlib.contextmanager
def connect(address: str | None) -> Iterator[Cluster]:
    """Connect to a Ray cluster, send it a copy of this code, and disconnect in the end.

    `address`: `auto`: the cluster of this machine; `HOST:PORT`: the cluster with this head; None: a
    Ray of this machine alone, started and stopped here. A `UsageError` if Ray does not answer.
    """
    _check_reachable(address)
    for name, value in _environment(address).items():  # read when Ray is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UsageError("--launcher ray needs Ray: pip install 'encore-rl[ray]'") from None
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    with tempfile.TemporaryDirectory(prefix="encore-code-") as folder:
        copy_code(Path(folder))
        options["runtime_env"] = {"working_dir": folder}
        _init(ray, address, options)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        yield Cluster(address, tuple(alive))
    finally:
        ray.shutdown()
        os.environ.pop(LOOPBACK, None)


def _environment(address: str | None) -> dict[str, str]:
    """Return how Ray is set up: no reports, a Ray of this machine for it alone, token or none.

    With `auto`, Ray uses a token as soon as there is one; with a cluster's address it does not.
    """
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if address is None:
        return settings | {LOOPBACK: "0"}
    given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if given or (Path.home() / ".ray" / "auth_token").exists():
        settings["RAY_AUTH_MODE"] = "token"
    return settings


def copy_code(folder: Path) -> None:
    """Copy the files that an agent's command reads: code, settings, a revision."""
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob(SETTINGS.format(agent="*")):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    write_json(folder / REVISION, revision())


def _check_reachable(address: str | None) -> None:
    """Raise a `UsageError` if nobody listens at an address: Ray itself would wait for long."""
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"--ray-address must be auto or HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or error) from None


def _unreachable(address: str | None, reason: object) -> UsageError:
    if address is None:
        return UsageError(f"--launcher ray: Ray does not start here: {reason}")
    head = "HOST:PORT" if address == "auto" else address
    return UsageError(
        f"--ray-address {address}: no Ray cluster ({reason}); this machine joins one with "
        f"`ray start --address={head} --num-cpus=0`"
    )


def _init(ray: Any, address: str | None, options: dict[str, Any]) -> None:
    """Call `ray.init`, without its handling of signals.

    A Ray of this machine starts in this thread, since the kernel ends its processes with the thread
    that started them. A connection is made in another thread, since it hangs if something other
    than Ray answers.
    """
    errors: list[BaseException | None] = []

    def init() -> None:
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    if address is None:
        before = signal.getsignal(signal.SIGTERM)
        init()
        signal.signal(signal.SIGTERM, before)
    else:
        thread = threading.Thread(target=init, daemon=True)
        thread.start()
        thread.join(CONNECT_SECONDS)
    if not errors:
        raise _unreachable(address, f"no answer within {CONNECT_SECONDS:.0f} s")
    if errors[0] and not isinstance(errors[0], Exception):  # Ctrl-C
        raise errors[0]
    if errors[0]:
        raise _unreachable(address, _first_line(errors[0]).rstrip(".")) from errors[0]


class Lost(End):
    """The end of an agent whose node, or Ray on it, is lost; the agent is not to blame."""


class RayPool(Pool):
    """Groups as Ray tasks: Ray decides where and when each of them runs."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.cluster is not None
        self._is_here = plan.cluster.address is None  # a Ray of this machine has its disk
        if plan.has_default_workers:  # nodes may join while it runs
            self._most_workers = max(1, len(self._waiting))
        self._losses: Counter[tuple[str, int]] = Counter()

    def _work(self, group: Group, log: Path) -> Worker:
        place = Path("runs", self._plan.name, folder_of(group[0].task))
        there = tuple(replace(run, directory=place / run.directory.name) for run in group)
        order = node.Order(
            agent=self._plan.agent,
            sources=self._sources,
            arguments=self._plan.command(there, 1)[1:],
            out=place.as_posix(),
            folders=[run.directory.name for run in group],
            log=_on_a_shared_disk(log),
            files={} if self._is_here else read_folders(run.directory for run in group),
        )
        demand = demand_of(self._plan, group)
        with open_inside(log.parent, log, 0) as file:
            file.write(order.sign)
        agent = _RayAgent(group, log, order, demand)
        worker = Worker(group, self._plan.command(group, 1), log, agent)
        self._mark(group, "waiting")
        return worker

    def _look_after(self) -> None:
        super()._look_after()
        for worker in self._workers:
            if isinstance(worker.agent, _RayAgent) and worker.agent.node:
                self._mark(worker.group, "running")

    def _end(self, worker: Any, end: End) -> None:
        """Record how a worker's runs ended; place the group again if its node is lost."""
        losses = 0 if worker.agent.has_advanced else self._losses[worker.group[0].key]
        for run in worker.group:
            self._losses[run.key] = losses + isinstance(end, Lost)
        if not isinstance(end, Lost) or losses >= MOST_LOSSES:
            super()._end(worker, end)
            return
        for run in worker.group:
            self.board.notes.append(f"{run.name} is placed elsewhere: {end.reason}")
        self._put_back(worker)


class _RayAgent:
    """A group's Ray task."""

    def __init__(
        self, group: Group, log: Path, order: node.Order, demand: dict[str, float]
    ) -> None:
        import ray

        self._group, self._log = group, log
        self.node = ""
        """Where it runs; empty while it waits for a place."""
        self._has_ended = False
        self._before = checkpoint_of(group[0].directory)
        submit = ray.remote(
            num_cpus=demand["CPU"],
            num_gpus=demand["GPU"],
            memory=demand["memory"],
            num_returns="streaming",
            max_retries=0,
        )
        self._name = order.name
        self._messages: Any = submit(node.work).remote(order)

    @property
    def has_advanced(self) -> bool:
        """Return whether the agent has made a checkpoint that is here."""
        return checkpoint_of(self._group[0].directory) != self._before

    def poll(self) -> End | None:
        """Write the runs that have arrived; return how the agent ended, None while it works."""
        import ray
        import ray.exceptions as errors

        try:
            while ray.wait([self._messages], timeout=0)[0]:
                message = ray.get(next(self._messages))
                if isinstance(message, End):
                    self._has_ended = True
                    return message
                if isinstance(message, node.Sent):
                    write_folders(message.files, self._group[0].directory.parent)
                    write_atomically(self._log, message.log)
                else:
                    self.node = message
        except errors.OutOfMemoryError:  # Ray's own watch over a node's memory
            return End(-signal.SIGKILL)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            return _failure(getattr(error, "cause", None) or error)
        except errors.RayError as error:
            return Lost(1, f"its node is lost ({type(error).__name__})")
        except StopIteration:
            return Lost(1, "its worker ended without a message")
        except (OSError, UsageError) as error:
            return _failure(error)
        return None

    def terminate(self) -> None:
        """Ask the agent to end by itself, after a checkpoint."""
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self._name, b"end")

    def kill(self, grace_seconds: float = 0.0) -> None:
        """Stop the agent; if it does not stop, end the Ray worker that runs it.

        An agent that runs has the grace time for its last files to arrive.
        """
        import ray

        until = time.monotonic() + grace_seconds
        while self.node and time.monotonic() < until and self.poll() is None:
            time.sleep(0.1)
        if self._has_ended:
            return
        ray.cancel(self._messages)
        ended = [self._messages.completed()]
        if not ray.wait(ended, timeout=CANCEL_SECONDS)[0]:
            ray.cancel(self._messages, force=True)
            ray.wait(ended, timeout=CANCEL_SECONDS)


def _on_a_shared_disk(path: Path) -> str:
    """Return where a node finds a file of this machine, if it shares the disk."""
    return str(path.absolute())


def _failure(error: BaseException) -> End:
    """Return the end of a run that failed on its node, or whose files cannot be written here."""
    kind = "not started: " if isinstance(error, UsageError) else f"{type(error).__name__}: "
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        kind = "no space: "
    return End(1, kind + _first_line(error))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
