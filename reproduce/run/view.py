"""The view of running runs: a live table, or plain lines without a terminal."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reproduce.run.progress import OVER, Board, Progress
from suite.settings.command_line import printable

if TYPE_CHECKING:  # it imports pandas, which most commands need not
    from suite.record.live import Curves

STYLES = {"failed": "bold red", "diverged": "bold red", "finished": "green", "waiting": "dim"}
LINE_SECONDS = 30
COLUMNS = {"task": None, "seed": None, "state": 8, "env steps": 14, "return": 8, "steps/s": 7}
COLUMNS |= {"time left": 10}
"""Columns of the table, with the characters that their changing values may take."""
WIDE = 90
"""Characters of a terminal with room for the speeds beside a long name."""
SHOWN_FIRST = ("running", "elsewhere", "failed", "diverged", "waiting", "finished")
"""States in the order in which a low terminal shows them; all are counted below the table."""


def duration(seconds: float | None) -> str:
    """Return a duration in words, for example `1 h 05 min`; `measuring` where it is None."""
    if seconds is None:
        return "measuring"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
        elif self._curves and not self._console.is_jupyter:
            self._console.print(self._curves.shown)

    def __call__(self, board: Board) -> None:
        """Show the state of every run; print each note and each end of a run once.

        Without a terminal a line is not said again until another was.
        """
        if not self._reported:
            done = [row for row in board.rows if row.run.has_ended]
            self._reported |= {row.run.key for row in done} | {("", 0)}
        for note in board.notes[self._num_notes :]:
            say(self._console, note)
        self._num_notes = len(board.notes)
        for row in board.rows:
            if row.state in OVER and row.run.key not in self._reported:
                self._reported.add(row.run.key)
                say(self._console, _event(row), STYLES[row.state])
        height = self._console.height
        if self._curves:
            height -= (room := height * 2 // 3)
            runs = {row.run.key: row.run.directory for row in board.rows}
            self._curves.update(runs, room)
        if self._live:
            screen = _screen(board, self._console, height)
            curves = [self._curves.shown] if self._curves else []
            self._live.update(Group(screen, *curves), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line, before = time.monotonic(), self._said
            self._said = _line(board)
            if self._said != before:
                say(self._console, self._said)


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, line by line: whatever it holds moves no cursor."""
    for line in text.splitlines():
        line = printable(line)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _event(row: Progress) -> str:
    outcome = f": {row.error}" if row.error else f", last return {_number(row.last_return)}"
    return f"{row.run.name} {row.state}{outcome}"


def _line(board: Board) -> str:
    running = [
        f"{row.run.task}/{row.run.seed} {_steps(row)} steps, return {_number(row.last_return)}"
        for row in board.rows
        if row.state == "running"
    ]
    return "; ".join([_totals(board), *running])


def _totals(board: Board) -> str:
    counts = ", ".join(
        f"{board.count(state)} {state}"
        for state in ("finished", "running", "elsewhere", "waiting", "diverged", "failed")
        if board.count(state)
    )
    if board.is_idle:
        return counts
    spent = time.monotonic() - board.started
    return f"{counts}; {duration(spent)} so far, time left: {_left(board.seconds_left)}"


def _screen(board: Board, console: Console, height: int) -> Group:
    """Return the table of runs with the totals below it, as wide as the terminal at most."""
    width = console.width
    totals, rows = _totals(board), list(zip(board.rows, board.lefts(), strict=True))
    text = Text(totals)
    num_lines = len(text.wrap(console, width))
    room = max(height - num_lines - 3, 1)  # header, its line, the cursor's
    if len(rows) > room:
        text = Text(f"{totals} ({room} of {len(rows)} shown)")
        room = max(height - len(text.wrap(console, width)) - 3, 1)
        first = sorted(rows, key=lambda pair: SHOWN_FIRST.index(pair[0].state))[:room]
        rows = [pair for pair in rows if any(pair is other for other in first)]
    return Group(_table(rows, width), text)


def _table(rows: Sequence[tuple[Progress, float | None]], width: int) -> Table:
    """Return a line for each run; a name that is too long for the width is folded."""
    names = [name for name in COLUMNS if width >= WIDE or name != "steps/s"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        justify, folds = "left" if name in ("task", "state") else "right", name == "task"
        look: dict[str, Any] = {"justify": justify, "no_wrap": not folds, "overflow": "fold"}
        table.add_column(name, min_width=COLUMNS[name], **look)
    for row, left in rows:
        cells = dict(zip(COLUMNS, _cells(row, left), strict=True))
        table.add_row(*(cells[name] for name in names), style=STYLES.get(row.state, ""))
    return table


def _cells(row: Progress, seconds_left: float | None) -> tuple[str, ...]:
    """Return what the table says of a run, column by column."""
    left, state = "", row.state
    if row.state == "running":
        state = "running" if row.marks else "starting"
        left = f"{row.seconds:.0f} s spent" if seconds_left is None else _left(seconds_left)
    return (
        *(printable(row.run.task), str(row.run.seed), state, _steps(row)),
        *(_number(row.last_return), _speed(row), left),
    )


def _speed(row: Progress) -> str:
    speed = row.env_steps_per_second if row.state == "running" else None
    return "" if speed is None else f"{speed:,.{int(speed < 10)}f}"


def _steps(row: Progress) -> str:
    """Return a run's steps by its last row, and its length."""
    done = row.run.env_steps if row.state == "finished" else row.env_steps
    return f"{done:,} of {_short(row.run.env_steps)}"


def _short(number: int) -> str:
    """Return a number of steps without its zeros: 30k, 1M, 2,500."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= 10_000 and number % unit == 0:
            return f"{number // unit:,}{letter}"
    return f"{number:,}"


def _left(seconds: float | None) -> str:
    """Return a time left in words: seconds only in the last ten minutes."""
    words = duration(seconds)
    return words if seconds is None or seconds < 600 else words.partition(" min")[0] + " min"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1_000_000 else f"{value:.4g}"
