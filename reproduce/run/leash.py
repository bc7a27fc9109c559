"""`python leash.py PARENT COMMAND...`: become COMMAND, which dies when its parent process does.

The kernel sends the signal (Linux), so it reaches an agent even if its launcher was killed by
`kill -9` and the agent itself is stopped or busy. Run with `-I -S`, this costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> int:
    """Replace this process by `command`; return 1 if the parent has died already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
