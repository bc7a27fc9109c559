"""The command line: `encore sac mujoco` runs a grid and reports the result.

`python -m reproduce` is the same command where nothing was installed.

Exit status: 0 nothing is below its reference, 1 something is, 2 a run or the harness failed or the
command could not be understood, 130 stopped by Ctrl-C.
"""

import importlib
import sys
from collections.abc import Sequence

import agents
from reproduce.commands import flags, grid
from suite.base.errors import UsageError, near, nearest
from suite.settings.command_line import run_main


def command() -> None:
    """Run the console command `encore`."""
    sys.exit(run_main(main))


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    if not argv:
        raise UsageError(f"name an agent and a suite, for example: {flags.program()} sac mujoco")
    word = argv[0]
    if word in flags.COMMANDS:
        return importlib.import_module(f"reproduce.commands.{word}").main(argv[1:])
    if not word.startswith("-") and word not in agents.AGENTS:
        known = (*agents.AGENTS, *flags.COMMANDS)
        known = known if near(word, known) else agents.AGENTS
        raise UsageError(f"unknown agent {word!r}{nearest(word, known)}")
    return grid.main(argv)


if __name__ == "__main__":
    command()
