"""Leases of runs: several harnesses on one runs directory execute every run once.

A lease is the file `seed-<k>.lease` beside a run's folder. It names the host and the process that
works on the run; its time of modification is the heartbeat. A lock lets harnesses claim one at a
time; the kernel releases it if its holder dies.
"""

import contextlib
import errno
import os
import platform
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from reproduce.run.processes import pid_space, start_time
from suite.base.errors import UsageError
from suite.base.files import (
    check_inside,
    open_regular,
    read_json,
    remove_torn,
    to_json,
    write_atomically,
)

HEARTBEAT_SECONDS = 15.0
LATE_SECONDS = 600.0
"""Clocks of two machines may differ by so much."""
LOCK = ".lock"
NO_FILE = (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO)
"""Error numbers of opening what is absent, or a folder, a pipe, a socket or a loop of links."""
TORN_SECONDS = 3600.0
"""Nothing takes this long to write."""


class Holders:
    """Says who holds leases, by reading alone."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[tuple[int, int], float]] = {}

    def is_held(self, run: Path) -> bool:
        """Return whether a run's lease exists and is not stale.

        A lease of this machine is stale if its process has ended. Any other lease is stale after
        two heartbeats without a sign of life, by our clock: clocks of other machines may be wrong.
        """
        lease = _lease(run)
        try:
            with open_regular(lease) as file:  # opened: a network file system then asks its server
                facts = os.fstat(file.fileno())
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            self._seen.pop(lease, None)
            return False
        holder = _read(lease)
        if holder.get("machine") and holder["machine"] == pid_space():
            pid, started = holder.get("pid"), holder.get("process_started")
            return isinstance(pid, int) and started is not None and start_time(pid) == started
        beat, now = (facts.st_ino, facts.st_mtime_ns), time.monotonic()
        if self._seen.get(lease, (None, now))[0] != beat:
            self._seen[lease] = beat, now
        return now - self._seen[lease][1] < 2 * HEARTBEAT_SECONDS

    def is_held_of_late(self, run: Path) -> bool:
        """Return whether a run's lease is held, at a first and only look.

        One of another machine counts for ten minutes after its last sign of life, by both clocks.
        """
        is_held = self.is_held(run)
        if not is_held or _read(_lease(run)).get("machine") == pid_space():
            return is_held
        with contextlib.suppress(FileNotFoundError):  # given back meanwhile
            return time.time() - _lease(run).stat().st_mtime < LATE_SECONDS
        return False

    def holder(self, run: Path) -> str:
        """Return the holder of a run's lease in words: `host, process 123`."""
        holder = _read(_lease(run))
        return f"{holder.get('host', 'unknown')}, process {holder.get('pid', 'unknown')}"


class Leases(Holders):
    """The leases that this harness holds, and those of others.

    Args:
        directory: the plan's; its lock serves every run below it.
        settings: a name of the settings of this harness's runs; empty: any others go beside them.
    """

    def __init__(self, directory: Path, settings: str = "") -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        remove_torn(directory, TORN_SECONDS)
        self._directory, self._settings = directory, settings
        check_inside(directory, directory / LOCK)
        self.lock = FileLock(directory / LOCK)
        self._ours: dict[Path, int] = {}  # an open file, so that no other's lease is ever touched
        self._last_beat = time.monotonic()

    def claim(self, run: Path) -> bool:
        """Return whether a run's lease was free, and take it if so, as `refuse_rivals` allows."""
        lease = _lease(run)
        if self.is_held(run):
            return False
        lease.parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            if self.is_held(run):  # another harness was faster
                return False
            self.refuse_rivals()
            holder = {"host": platform.node(), "pid": os.getpid(), "machine": pid_space()}
            holder |= {"process_started": start_time(os.getpid()), "claimed_at": time.time()}
            holder |= {"settings": self._settings}
            write_atomically(lease, to_json(holder))
            try:
                self._ours[run] = os.open(lease, os.O_RDWR)
            except OSError:
                lease.unlink()
                raise
        return True

    def beat(self) -> list[Path]:
        """Renew the leases, if called often; return the runs whose lease another has taken."""
        if time.monotonic() - self._last_beat < HEARTBEAT_SECONDS / 4:
            return []
        self._last_beat = time.monotonic()
        lost = [run for run in self._ours if not self._is_ours(run)]
        for run in lost:
            os.close(self._ours.pop(run))
        for file in self._ours.values():
            os.utime(file)
        return lost

    def release(self, run: Path) -> None:
        """Give a lease back; do nothing if this harness does not hold it."""
        if run not in self._ours:
            return
        if self._is_ours(run):  # else the lock's folder may be gone, too
            with self.lock:
                if self._is_ours(run):
                    _lease(run).unlink()
        os.close(self._ours.pop(run))

    def refuse_rivals(self) -> None:
        """Refuse to work beside a harness whose runs are of other settings, finished or not."""
        for lease in self._directory.glob("*/seed-*.lease"):
            run, theirs = lease.with_suffix(""), _read(lease).get("settings", "")
            if self._settings and theirs and theirs != self._settings and self.is_held_of_late(run):
                raise UsageError(
                    f"a harness with other settings ({self.holder(run)}) runs {run}: start beside "
                    "it with --fresh, or choose another --runs-dir"
                )

    def _is_ours(self, run: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.stat(_lease(run)), os.fstat(self._ours[run]))
        return False


def _lease(run: Path) -> Path:
    return run.with_name(f"{run.name}.lease")


def _read(lease: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        holder = read_json(lease)
        return holder if isinstance(holder, dict) else {}
    return {}
