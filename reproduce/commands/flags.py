"""Parsers, flags and the console, shared by several commands; a grid's own are in `Request`."""

import importlib.util
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from suite.base.errors import UsageError
from suite.envs.tasks import find_task
from suite.settings.command_line import Parser, task_from


def _import_task(text: str) -> str:
    try:
        return find_task(task_from(text)).name
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


COMMANDS = {
    "report": ("AGENT SUITE", "judge recorded runs again and redraw their page"),
    "list": ("[NAME]", "show agents, suites, sources and results, or one of them"),
    "watch": ("[DIR]", "watch a grid that runs elsewhere"),
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
SHARED: Mapping[str, Mapping[str, Any]] = {
    "run": {"type": Path, "help": "a run's folder: .../<task>/seed-<k>"},
    "--best": {"action": "store_true", "help": "the run's best policy (trained with --keep-best)"},
    "--check": {"action": "store_true", "help": "only say what is out of date"},
    "--task-from": {
        "type": _import_task,
        "metavar": "MODULE:ID",
        "help": "import the module of its task, which you trust",
    },
}
"""Arguments of several commands. A policy or a plan alone imports no module, so a flag does."""


def program() -> str:
    """Return how this program was started: its name, or the module's."""
    return "encore" if Path(sys.argv[0]).stem == "encore" else "python -m reproduce"


def make_parser(word: str, *shared: str) -> Parser:
    """Return a parser for the arguments after a command's word, with some of the `SHARED` ones."""
    parser = Parser(prog=f"{program()} {word}", description=COMMANDS[word][1])
    for name in shared:
        parser.add_argument(name, **SHARED[name])
    return parser


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a folder of its name without code is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def refuse_other_task(run: Path, task: str, asked: str | None) -> None:
    """Raise a `UsageError` if `--task-from` names another task than a run's."""
    if asked not in (None, task):
        raise UsageError(f"--task-from: {run} was trained on {task}, not {asked}")


def say_stale(stale: Sequence[Path], target: str) -> int:
    """Name what is out of date, and return 1 if anything is."""
    if stale:
        names = ", ".join(map(str, stale))
        print(f"out of date: {names}: run `make {target}`", file=sys.stderr)
    return int(bool(stale))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the end of a reader, such as `head`, to `run_main`; rich would exit with 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Return the console: markup is printed as it is, and files and pipes take wide tables."""
    console = _Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console
