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
from suite.settings.recorded import refuse_old_agent

COMMANDS = {
    "report": ("AGENT SUITE", "judge and draw again what was run, or is published"),
    "list": ("[NAME]", "agents, suites, sources, results; or one of them"),
    "watch": ("[RUNS_DIR]", "show a grid that another process or machine runs"),
    "judge": ("AGENT CSV --like SOURCE", "verdicts on the curves of any program"),
    "compare": ("RUNS_A RUNS_B", "before-and-after table of two folders of runs"),
    "evaluate": ("RUN", "score the policy that a run saved"),
    "video": ("AGENT SUITE", "film an episode that a run was scored by"),
    "export": ("RUN --onnx FILE", "write a policy for ONNX runtimes"),
    "track": ("KIND RUNS LOGDIR", "mirror runs into tensorboard or wandb"),
    "verify": ("AGENT [RUN]", "make a recorded run's beginning again, byte by byte"),
    "control": ("PEER AGENT SUITE", "run somebody else's program as a grid"),
    "throughput": ("", "does an update cost more than before?"),
    "simulators": ("[SUITE]", "how fast engines step many environments"),
    "published": ("[--check]", "draw results/published again"),
    "docs": ("[--check]", "write README's scores anew"),
    "site": ("[--out DIR]", "build the documentation"),
}
"""By word, which is a file of `commands`: its arguments and its line in the help."""


def command() -> None:
    """Run the console command `encore`."""
    sys.exit(run_main(main))


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    if not argv:
        raise UsageError(f"name an agent and a suite, for example: {flags.program()} sac mujoco")
    word = argv[0]
    if word in COMMANDS:
        return importlib.import_module(f"reproduce.commands.{word}").main(argv[1:])
    if not word.startswith("-") and word not in agents.AGENTS:
        refuse_old_agent(word)
        known = (*agents.AGENTS, *COMMANDS)
        known = known if near(word, known) else agents.AGENTS
        raise UsageError(f"unknown agent {word!r}{nearest(word, known)}")
    lines = [f"  {f'{word} {words}':<31} {text}" for word, (words, text) in COMMANDS.items()]
    return grid.main(argv, "\n".join(["commands:", *lines]))


if __name__ == "__main__":
    command()
