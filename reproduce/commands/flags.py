"""Parsers, flags and the console, shared by several commands; a grid's own are in `Request`."""

import sys
import webbrowser
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from reproduce.plan.grid import Plan
from suite.base.errors import UsageError
from suite.envs.tasks import find_task
from suite.settings.command_line import Parser, task_from


def _import_task(text: str) -> None:
    """Import the module of a task, from a command line."""
    try:
        find_task(task_from(text))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


SHARED: Mapping[str, Mapping[str, Any]] = {
    "run": {"type": Path, "help": "a run's folder: .../<task>/seed-<k>"},
    "--best": {"action": "store_true", "help": "its best policy, if it kept that"},
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


def make_parser(word: str, description: str, *shared: str) -> Parser:
    """Return a parser for the arguments after `word`, with some of the `SHARED` ones."""
    parser = Parser(
        prog=f"{program()} {word}".strip(),
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
    )
    for name in shared:
        parser.add_argument(name, **SHARED[name])
    return parser


def open_page(page: Path) -> None:
    """Open a page in the browser."""
    webbrowser.open(page.absolute().as_uri())


def say_stale(stale: Sequence[Path], target: str) -> int:
    """Name what is out of date, and return 1 if anything is."""
    if stale:
        names = ", ".join(map(str, stale))
        print(f"out of date: {names}: run `make {target}`", file=sys.stderr)
    return int(bool(stale))


def published_name(plan: Plan) -> str:
    """Return the name of the folder of a plan's published runs."""
    return "/".join(("results", "published", *plan.published_folder.parts[-2:]))


def make_console() -> Console:
    """Return the console; wide enough for tables where output goes to a file or pipe.

    Names and paths that look like markup are printed as they are.
    """
    console = _Console(markup=False, emoji=False)
    if console.is_terminal:
        return console
    return _Console(width=max(console.width, 120), markup=False, emoji=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the end of a reader, such as `head`, to `run_main`; rich would exit with 1."""
        raise BrokenPipeError
