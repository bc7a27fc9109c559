"""The view of running runs: a live table, or plain lines without a terminal."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from reproduce.run.progress import Board, Progress
from suite.command_line import printable

STYLES = {"failed": "bold red", "diverged": "bold red", "finished": "green", "waiting": "dim"}
LINE_SECONDS = 30
MAX_ROWS = 30
"""Rows of the live table; in a larger plan, waiting and finished runs are only counted."""


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
    """Shows a `Board` as it changes: a context manager, and a `watch` for `launch`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last_line = -LINE_SECONDS
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

    def __call__(self, board: Board) -> None:
        """Show the state of every run; print each note and each end of a run once."""
        if not self._reported:
            done = [row for row in board.rows if row.run.has_ended]
            self._reported |= {(row.run.task, row.run.seed) for row in done} | {("", 0)}
        for note in board.notes[self._num_notes :]:
            say(self._console, note)
        self._num_notes = len(board.notes)
        for row in board.rows:
            name = (row.run.task, row.run.seed)
            if row.state in ("failed", "diverged", "finished") and name not in self._reported:
                self._reported.add(name)
                say(self._console, _event(row), STYLES[row.state])
        if self._live:
            self._live.update(_table(board), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            say(self._console, _line(board))


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, line by line: whatever it holds moves no cursor."""
    for line in text.splitlines():
        line = printable(line)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _event(row: Progress) -> str:
    outcome = f": {row.error}" if row.error else f", last return {_number(row.last_return)}"
    return f"{row.run.task} seed {row.run.seed} {row.state}{outcome}"


def _line(board: Board) -> str:
    running = [
        f"{row.run.task}/{row.run.seed} {row.env_steps:,} of {row.run.env_steps:,} steps, "
        f"return {_number(row.last_return)}"
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
    spent = time.monotonic() - board.started
    return f"{counts}; {duration(spent)} so far, time left: {duration(board.seconds_left)}"


def _table(board: Board) -> Table:
    table = Table(caption=_totals(board), caption_justify="left", expand=False)
    for name in ("task", "seed", "state", "env steps", "last return", "steps/s", "time left"):
        table.add_column(name, justify="left" if name in ("task", "state") else "right")
    rows = board.rows
    if len(rows) > MAX_ROWS:
        rows = [row for row in rows if row.state not in ("finished", "waiting")][:MAX_ROWS]
    for row in rows:
        speed = row.env_steps_per_second
        table.add_row(
            row.run.task,
            str(row.run.seed),
            row.state,
            f"{row.env_steps:,} / {row.run.env_steps:,}",
            _number(row.last_return),
            f"{speed:,.0f}" if speed and row.state == "running" else "",
            duration(row.seconds_left) if row.state == "running" else "",
            style=STYLES.get(row.state, ""),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
