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
from suite.base.errors import UsageError, nearest
from suite.settings.command_line import run_main
from suite.settings.recorded import refuse_old_agent

COMMANDS = {
    "report": ("AGENT SUITE", "gather, check and draw again what was run, or is published"),
    "verify": ("AGENT [RUN]", "make a recorded run's beginning again, compare byte by byte"),
    "evaluate": ("RUN --episodes N", "score the policy that a run saved"),
    "video": ("AGENT SUITE", "film an episode that a run was scored by (--task T --seed K)"),
    "export": ("RUN --onnx FILE", "write the policy that a run saved for ONNX runtimes"),
    "compare": ("RUNS_A RUNS_B", "before-and-after table of two folders of runs"),
    "judge": (
        "AGENT CURVES --like SOURCE",
        "verdicts on runs of any program, from a CSV file of their curves",
    ),
    "throughput": ("", "does an update cost more; is this tree slower than a commit?"),
    "list": (
        "[AGENT | --like SOURCE]",
        "agents, suites, tasks, sources and who judges, results; or one agent, or one source",
    ),
    "published": (
        "[--check]",
        "draw all of results/published again, or say what is out of date",
    ),
    "docs": ("[--check]", "write README's scores anew, or say if they are old"),
    "site": ("[--out DIR]", "build the documentation, with all published grids"),
    "track": ("KIND RUNS LOGDIR", "mirror recorded runs into tensorboard or wandb"),
    "watch": ("[RUNS_DIR]", "show a grid that another process or machine runs, live"),
    "control": (
        "PEER AGENT SUITE",
        "run somebody else's program, record it as ours, make it a reference",
    ),
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
        raise UsageError(f"unknown agent {word!r}{nearest(word, (*agents.AGENTS, *COMMANDS))}")
    return grid.main(argv, _help_on_commands())


def _help_on_commands() -> str:
    lines = [f"  {f'{word} {words}':<28} {text}" for word, (words, text) in COMMANDS.items()]
    return "\n".join(["other commands:", *lines])


if __name__ == "__main__":
    command()
