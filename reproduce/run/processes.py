"""Processes: their identity, whether they live and work, those that run agents or answer orders.

The facts about processes are read from Linux's /proc.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce import ROOT
from suite.base.errors import UsageError
from suite.base.files import open_inside

STALL_SECONDS = 90.0
"""A run that uses no processor for this long has stalled."""
ALIVE_SECONDS = 0.1
"""Processor time that counts as life: even a slow run that works uses it in a moment."""
THREADING = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment of an agent: one thread; if it asks for more, waiting threads free the cores."""
LEASH = Path(__file__).with_name("leash.py")
PROC = Path("/proc")
STOPPED = "T"
"""State of a process that was stopped, by SIGSTOP or Ctrl-Z."""
STATE, SESSION, USER_TIME, CHILD_SYSTEM_TIME, START_TIME = 0, 3, 11, 14, 19
"""Fields of `/proc/<pid>/stat` after the program's name."""


def pid_space() -> str:
    """Return a name of the machine or container in which process numbers are unique.

    Empty if the kernel does not tell; a process number then proves nothing.
    """
    try:
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self' / 'ns' / 'pid')}"
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Return when a process began (clock ticks since boot); None if it has ended.

    Start time and process number identify a process for good; the kernel reuses numbers alone.
    """
    fields = stat_fields(pid)
    return int(fields[START_TIME]) if fields and fields[STATE] not in ("Z", "X") else None


def cpu_seconds(session: int) -> float | None:
    """Return the processor seconds of all processes of a session; None if unknown."""
    ticks = [
        sum(map(int, fields[USER_TIME : CHILD_SYSTEM_TIME + 1]))
        for fields in members(session).values()
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def members(session: int) -> dict[int, list[str]]:
    """Return the `stat_fields` of every process of a session, by its number."""
    numbers = map(int, filter(str.isdecimal, os.listdir(PROC)))
    found = ((number, stat_fields(number)) for number in numbers)
    return {n: fields for n, fields in found if fields and fields[SESSION] == str(session)}


class Pulse:
    """Detects that the processes of a session have stopped working.

    The sign of life is processor time, of the agent and of every process that it started.
    Deadlocked runs use none; whatever computes uses some. A run that somebody stopped is left
    alone.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._spent: float | None = None
        self._idle = 0.0
        self._looked = time.monotonic()

    def has_stalled(self) -> bool:
        """Return whether the session has been idle for `STALL_SECONDS`; call it often."""
        passed = time.monotonic() - self._looked
        if passed < STALL_SECONDS / 20:
            return False
        self._looked += passed
        spent, agent = cpu_seconds(self._session), stat_fields(self._session)
        if agent and agent[STATE] == STOPPED:
            self._idle = 0.0
        elif spent is None or self._spent is None or abs(spent - self._spent) >= ALIVE_SECONDS:
            self._spent, self._idle = spent, 0.0
        else:  # a late caller may have been suspended together with the run
            self._idle += min(passed, STALL_SECONDS / 4)
        return self._idle >= STALL_SECONDS


def seeing_gpu(number: int) -> tuple[str, ...]:
    """Return the words before a command that let it see one GPU of this machine, and no other.

    To the agent it is `cuda`, as in a Ray task: it can go on, with the same bytes, on any GPU of
    the kind, and takes no memory of the first one.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = seen.split(",")[number].strip() if seen else str(number)
    return ("/usr/bin/env", f"CUDA_VISIBLE_DEVICES={name}")


@dataclass(frozen=True)
class End:
    """How a process ended."""

    status: int
    """Its exit status; below zero, the signal that killed it."""
    reason: str = ""
    """Why it was ended from outside; empty: it ended by itself."""


class AgentProcess:
    """An agent's command, in a session of its own and on a leash; its output replaces the log."""

    def __init__(self, command: Sequence[str], log: Path, directory: Path | None = None) -> None:
        environment = {**os.environ, **THREADING}
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with open_inside(log.parent, log, 0) as output:
            self._popen = subprocess.Popen(
                (sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,  # a Ctrl-C reaches the launcher alone, which stops its runs
            )
        self._pulse = Pulse(self._popen.pid)

    def poll(self) -> End | None:
        """Return how the agent ended, and kill the rest of its session; None while it works.

        Call it often: it kills an agent that stalls.
        """
        if self._has_ended():
            self.kill()
            return End(self._popen.returncode)
        if self._pulse.has_stalled():
            self.kill()
            reason = f"stalled: no sign of work for {STALL_SECONDS:.0f} s"
            return End(self._popen.returncode, reason)
        return None

    def terminate(self) -> None:
        """Ask the agent to end, even one that was stopped."""
        if self._popen.returncode is None:
            os.kill(self._popen.pid, signal.SIGTERM)
            os.kill(self._popen.pid, signal.SIGCONT)

    def kill(self, grace_seconds: float = 0.0) -> None:
        """Kill the agent and its children once it has ended, or after the grace time."""
        if self._popen.returncode is not None:
            return
        until = time.monotonic() + grace_seconds
        while not self._has_ended() and time.monotonic() < until:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def _has_ended(self) -> bool:
        """Return whether the agent has ended; do not free its process number, as `wait` would."""
        if self._popen.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._popen.pid, options) is not None


class Server:
    """A process that answers orders, a line of JSON each; its own errors are answers, too.

    Args:
        command: the process.
        tree: the project's folder whose code it runs.
    """

    def __init__(self, command: Sequence[str], tree: Path) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            env={**os.environ, **THREADING, "PYTHONPATH": str(tree)},
            start_new_session=True,  # its workers end with it
        )
        self.pid = self._process.pid
        """Also the number of its session."""

    def send(self, order: Any) -> None:
        """Give an order; `read` has the answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: reading says so
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def read(self, limit: float) -> dict[str, Any]:
        """Return the next answer; an error, or none in so many seconds, ends the process."""
        assert self._process.stdout is not None
        answer = {"error": f"gave no answer for {limit:g} s"}
        if select.select([self._process.stdout], [], [], limit)[0]:
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            self.close()
            raise UsageError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError), self._process:  # an order that it did not take
            pass


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of `/proc/<pid>/stat` after the program's name; None if the pid is gone."""
    with contextlib.suppress(OSError):  # it has ended
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return None
