"""What the kernel says of processes (Linux's /proc): who they are, whether they live and work."""

import contextlib
import os
import time
from pathlib import Path

STALL_SECONDS = 90.0
"""A run that uses no processor for this long has stalled."""
ALIVE_SECONDS = 0.1
"""Processor time that shows life: a run that works, however slowly, uses it in a moment."""
PROC = Path("/proc")
STATE, SESSION, USER_TIME, CHILD_SYSTEM_TIME, START_TIME = 0, 3, 11, 14, 19
"""Fields of `/proc/<pid>/stat` after the program's name."""


def machine() -> str:
    """Return what tells apart the machines and containers whose process numbers differ.

    Empty where the kernel does not say: then nothing can be concluded from a process number.
    """
    try:
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self' / 'ns' / 'pid')}"
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Return when a process began (clock ticks since boot); None if it has ended.

    With the number it names a process for good: numbers are used again, this pair is not.
    """
    fields = _stat(pid)
    return int(fields[START_TIME]) if fields and fields[STATE] not in ("Z", "X") else None


def cpu_seconds(session: int) -> float | None:
    """Return the processor time of all processes of a session; None where nobody knows."""
    ticks = [
        sum(map(int, fields[USER_TIME : CHILD_SYSTEM_TIME + 1]))
        for entry in (os.listdir(PROC) if PROC.exists() else ())
        if entry.isdecimal() and (fields := _stat(int(entry))) and fields[SESSION] == str(session)
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


class Pulse:
    """Whether the processes of a session still work.

    The sign of life is processor time, of the agent and of every process that it started. A stopped
    and a deadlocked run use none; a run that computes does, whether or not it writes, holds the
    interpreter's lock or waits for its own children. An endless loop cannot be told from work.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._spent: float | None = None
        self._idle = 0.0
        self._looked = time.monotonic()

    def stalled(self) -> bool:
        """Return whether the session has been idle for `STALL_SECONDS`; to be asked often."""
        passed = time.monotonic() - self._looked
        if passed < STALL_SECONDS / 20:
            return False
        self._looked += passed
        spent = cpu_seconds(self._session)
        if spent is None or self._spent is None or abs(spent - self._spent) >= ALIVE_SECONDS:
            self._spent, self._idle = spent, 0.0
        else:  # one who asks late may have been suspended together with the run
            self._idle += min(passed, STALL_SECONDS / 4)
        return self._idle >= STALL_SECONDS


def _stat(pid: int) -> list[str] | None:
    with contextlib.suppress(OSError):  # it has ended
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return None
