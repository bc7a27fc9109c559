"""Parsers, flags and the console, shared by several commands; a grid's own are in `Request`."""

import sys
import webbrowser
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from rich.console import Console

from suite.command_line import Parser, task_from
from suite.tasks import find_task


def program() -> str:
    """Return how this program was started: its name, or the module's."""
    return "encore" if Path(sys.argv[0]).stem == "encore" else "python -m reproduce"


def make_parser(word: str, description: str, epilog: str = "") -> Parser:
    """Return a parser for the arguments after `word`."""
    return Parser(
        prog=f"{program()} {word}".strip(),
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        epilog=epilog,
    )


def add_context(parser: Parser) -> None:
    """Add the flag that also draws references that do not judge."""
    parser.add_argument(
        "--context",
        action="store_true",
        help="draw published curves that do not judge into curves.svg, .png and .pdf, too",
    )


def add_open(parser: Parser) -> None:
    """Add the flag that opens the page; see `open_page`."""
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def open_page(options: Namespace, page: Path) -> None:
    """Open a page in the browser if that is asked for."""
    if options.open:
        webbrowser.open(page.absolute().as_uri())


def add_task_from(parser: Parser) -> None:
    """Add `--task-from`, which imports a policy's task: its file alone imports no module."""
    parser.add_argument(
        "--task-from",
        type=task_from,
        metavar="MODULE:ID",
        help="import the module of the policy's task, which you trust",
    )


def import_task(options: Namespace) -> None:
    """Import the module that `--task-from` names."""
    if options.task_from:
        find_task(options.task_from)


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
