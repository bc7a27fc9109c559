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

COMMANDS = {
    "report": ("AGENT SUITE", "judge recorded runs again and redraw their page"),
    "list": ("[NAME]", "show agents, suites, sources and results, or one of them"),
    "watch": ("[RUNS_DIR]", "watch a grid that runs elsewhere"),
    "judge": ("AGENT RUNS --like SOURCE", "judge the curves of any program"),
    "compare": ("RUNS_A RUNS_B", "compare two folders of runs"),
    "evaluate": ("RUN", "score a saved policy, or film it"),
    "export": ("RUN --onnx FILE", "write a saved policy as ONNX"),
    "track": ("KIND RUNS LOGDIR", "copy runs into TensorBoard or Weights & Biases"),
    "verify": ("AGENT [RUN]", "retrain the start of a recorded run and compare bytes"),
    "control": ("PEER AGENT SUITE", "train with another program, to make a reference"),
    "throughput": ("", "compare the cost of updates with the stored counts"),
    "simulators": ("[SUITE]", "measure the speed of simulators"),
    "published": ("[--check]", "redraw results/published"),
    "docs": ("[--check]", "update README's scores"),
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
        known = (*agents.AGENTS, *COMMANDS)
        known = known if near(word, known) else agents.AGENTS
        raise UsageError(f"unknown agent {word!r}{nearest(word, known)}")
    lines = [f"  {f'{word} {words}':<31} {text}" for word, (words, text) in COMMANDS.items()]
    return grid.main(argv, "\n".join(["commands:", *lines]))


if __name__ == "__main__":
    command()
