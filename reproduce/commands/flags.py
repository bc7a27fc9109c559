"""Parsers, flags and the console, shared by several commands."""

import sys
import webbrowser
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from rich.console import Console

import agents
from suite.command_line import Parser, task_from, whole, whole_numbers
from suite.hardware import num_cores
from suite.settings import UsageError
from suite.tasks import SUITES, find_task


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


def add_grid(parser: Parser) -> None:
    """Add the arguments that select a grid: agent, suite, source and the folder of its runs."""
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--like", metavar="SOURCE", help="default: the suite's, first in `list`")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")


def add_size(parser: Parser) -> None:
    """Add the flags of a grid's size and settings."""
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument("--tasks", **several, metavar="TASK", help="default: all of the suite")
    parser.add_argument("--budget", default="laptop", help="smoke, laptop (default) or paper")
    parser.add_argument(
        "--env-steps", type=whole, metavar="N", help="instead of the budget's: 30000, 30k or 3e4"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes side by side; default: as many as fit"
    )
    parser.add_argument(
        "--set",
        **several,
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a setting; KEY=A,B sweeps over values, or lists: KEY=64,64/256,256",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--num-seeds", type=int, metavar="N", help="seeds 1 to N")
    seeds.add_argument(
        "--seeds", type=whole_numbers, **several, metavar="SEED", help="1 2 3, 1,2,3 or 1-3"
    )


def check_size(options: Namespace, launcher: str = "local") -> None:
    """Check the numbers of a grid, and put its seeds in one list.

    Raises:
        UsageError: naming the number.
    """
    for flag in ("env_steps", "num_seeds", "workers"):
        value = getattr(options, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag.replace('_', '-')} must be at least 1, not {value}")
    if options.seeds is not None:
        options.seeds = [seed for seeds in options.seeds for seed in seeds]
    cores = num_cores()
    if options.workers and options.workers > cores and launcher == "local":
        raise UsageError(
            f"--workers: {options.workers} processes side by side slow each other down on "
            f"{cores} cores: use --workers {cores} or fewer"
        )


def asked(options: Namespace) -> dict[str, Any]:
    """Return the arguments of `add_grid` and `add_size` as a plan's arguments."""
    words = ("agent", "suite", "tasks", "budget", "env_steps", "num_seeds", "seeds", "workers")
    words += ("runs_dir", "settings")
    return {"source": options.like} | {word: getattr(options, word) for word in words}


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
