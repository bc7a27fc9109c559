"""The view of runs in progress: a live table, or plain lines without a terminal."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reproduce.run.progress import OVER, Board, Progress
from reproduce.words import duration, number
from suite.settings.command_line import printable

if TYPE_CHECKING:  # it imports pandas, which most commands need not
    from suite.record.live import Curves

BAD = "bold red"
STYLES = {"failed": BAD, "diverged": BAD, "left out": BAD, "finished": "green", "waiting": "dim"}
LINE_SECONDS = 30
COLUMNS = {"task": 9, "seed": 4, "state": 8, "env steps": 14, "return": 8, "steps/s": 7}
COLUMNS |= {"time left": 10}
"""Columns of the table, with the characters that their values may take."""
STATES = ("running", "elsewhere", "failed", "diverged", "left out", "waiting", "finished")
"""States in the order in which a low terminal shows them."""
PLAIN: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
"""The look of all tables: they must fit 80 columns."""
LINES_AROUND = 6
"""Lines around the rows: totals, which may need two, the header, its lines and the cursor's."""


def make_table(*columns: str, left: Collection[str] = (), **look: Any) -> Table:
    """Return a table whose first column, and those of `left`, stand to the left, others right."""
    table = Table(**PLAIN, title_justify="left", caption_justify="left", **look)
    for place, name in enumerate(columns):
        justify = "left" if not place or name in left else "right"
        table.add_column(Text(name), justify=justify, overflow="fold")
    return table


class View:
    """Shows a `Board` as it changes: a context manager, and a `watch` for `launch`.

    Curves are drawn below the board, or in a notebook's cell; without a terminal, at the end.
    """

    def __init__(self, console: Console, curves: "Curves | None" = None) -> None:
        self._console, self._curves = console, curves
        on_screen = console.is_terminal and not console.is_jupyter
        self._live = Live(console=console, auto_refresh=False) if on_screen else None
        self._last_line, self._said = -LINE_SECONDS, ""
        self._reported: set[tuple[str, int]] = set()
        self._num_notes = 0

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()
        elif self._curves and not self._console.is_jupyter:
            self._console.print(self._curves.shown)

    def __call__(self, board: Board) -> None:
        """Show the state of every run; print each note and each end of a run once."""
        for note in board.notes[self._num_notes :]:
            say(self._console, note)
        self._num_notes = len(board.notes)
        for row in board.rows:
            is_news = row.state in OVER and not row.run.has_ended
            if row.state not in OVER:
                self._reported.discard(row.run.key)
            elif is_news and row.run.key not in self._reported:
                self._reported.add(row.run.key)
                last = f", last return {number(row.last_return)}"
                outcome = f": {row.error}" if row.error else last
                say(self._console, f"{row.run.name} {row.state}{outcome}", STYLES[row.state])
        is_over = all(row.state in OVER for row in board.rows)
        height = self._console.height
        if self._curves:
            height -= (room := height * 2 // 3)
            runs = {row.run.key: row.run.directory for row in board.rows}
            self._curves.update(runs, room)
        if self._live:
            table = _table(board, max(height - LINES_AROUND, 1))
            shown: list[RenderableType] = [_totals(board), table]
            shown += [self._curves.shown] if self._curves else []
            self._live.update(Group(*shown), refresh=True)
        elif is_over or time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line, before = time.monotonic(), self._said
            self._said = _line(board)
            if self._said != before:
                say(self._console, self._said)


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, line by line: whatever it holds moves no cursor."""
    for line in text.splitlines():
        line = printable(line)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _line(board: Board) -> str:
    running = [
        f"{row.run.task}/{row.run.seed} {_steps(row)} steps, return {number(row.last_return)}"
        for row in board.rows
        if row.state == "running"
    ]
    return "; ".join([str(_totals(board)), *running])


def _totals(board: Board) -> Text:
    """Return how many runs are in each state, and the times while any is at work."""
    counts = {state: count for state in STATES if (count := board.count(state))}
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    if counts.keys() & {"running", "elsewhere"}:
        spent = duration(time.monotonic() - board.started)
        said += f"; {spent} so far, time left: {duration(board.seconds_left)}"
    return Text(said)


def _table(board: Board, room: int) -> Table:
    """Return a line for each run, or for as many as there is room for: those at work first."""
    rows = board.rows
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: STATES.index(row.state))[:room]
    table = Table(**PLAIN, show_edge=False)
    for name, width in COLUMNS.items():
        is_text, folds = name in ("task", "state"), name == "task"
        table.add_column(
            name,
            justify="left" if is_text else "right",
            min_width=width,
            no_wrap=not folds,
            overflow="fold",
        )
    for row in rows:
        is_running, speed = row.state == "running", row.env_steps_per_second
        table.add_row(
            *(printable(row.run.task), str(row.run.seed), row.state, _steps(row)),
            number(row.last_return),
            f"{speed:,.{int(speed < 10)}f}" if is_running and speed else "",
            duration(board.seconds_left_of(row)) if is_running else "",
            style=STYLES.get(row.state, ""),
        )
    return table


def _steps(row: Progress) -> str:
    """Return a run's steps by its last row, and its length without zeros: 30k, 1M, 2,500."""
    steps = row.run.env_steps
    done, length = steps if row.state == "finished" else row.env_steps, f"{steps:,}"
    for zeros, letter in ((",000,000", "M"), (",000", "k")):
        if steps >= 10_000 and length.endswith(zeros):
            length = length.removesuffix(zeros) + letter
    return f"{done:,} of {length}"
