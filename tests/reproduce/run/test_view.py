"""What is shown while runs run: every failure, once, on any console."""

import dataclasses
import io
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reproduce.plan.status import Run
from reproduce.run.progress import Board, Progress
from reproduce.run.view import View
from reproduce.words import duration
from suite.record.live import Curves
from tests.messages import check

WORDS = ("60 running", "Hopper-v4", "critic_loss", "seed 1  over 0 to 20 env_steps")
"""From the first line to the last."""


def progress(seed: int, state: str, **fields: Any) -> Progress:
    """A run of 1,000 steps of a task; `speed`: its steps per second."""
    status = "finished" if fields.pop("already", False) else "planned"
    run = Run(str(fields.pop("task", "Hopper-v4")), seed, 1000, Path("nowhere"), status)
    row = Progress(run, state, env_steps_per_second=fields.pop("speed", None))
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def console_of(terminal: bool = False, width: int = 80, height: int = 25) -> Console:
    """A file, or a terminal of a size."""
    size: dict[str, Any] = {"width": width, "height": height, "force_terminal": terminal}
    return Console(file=io.StringIO(), color_system=None, **size)


def text(console: Console) -> str:
    """Everything that was printed."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock's only entry, to be moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_progress_is_plain_lines_at_intervals(clock: list[float]) -> None:
    """One per half minute with totals and every running run, and one for each note."""
    console = console_of()
    rows = [
        progress(1, "running", env_steps=250, speed=10.0, last_return=12345.6),
        progress(2, "elsewhere"),
        progress(3, "finished", already=True),
    ]
    board = Board(1, rows, notes=["one"])
    with View(console) as view:
        for second in range(61):
            clock[0] = board.started + second
            view(board)
            board.notes += ["two"] * (second == 40)
    check(text(console))


@pytest.mark.parametrize("terminal", [False, True])
def test_each_end_is_printed_once_and_at_once(terminal: bool, clock: list[float]) -> None:
    """Of a run that is run again too; what was finished before is no news."""
    console = console_of(terminal, width=400)
    rows = [progress(seed, "running", last_return=-7.5) for seed in (1, 2, 3, 4)]
    rows[0] = progress(1, "finished", already=True)
    board = Board(2, rows)
    error = "exit 1: [bold]RuntimeError[/bold] " + "x" * 300 + " [/] end"
    with View(console) as view:
        view(board)
        rows[1].state, rows[1].error = "failed", error
        for _ in range(3):
            view(board)
        rows[2].state, rows[2].error = "diverged", "non-finite critic_loss at 100 env_steps"
        rows[3].state = "finished"
        for _ in range(3):
            view(board)
        for state, why in (("running", ""), ("failed", "again"), ("running", ""), ("finished", "")):
            rows[1].state, rows[1].error = state, why
            view(board)
    said = text(console)
    for line in (
        f"Hopper-v4 seed 2 failed: {error}",
        "Hopper-v4 seed 3 diverged: non-finite critic_loss at 100 env_steps",
        "Hopper-v4 seed 4 finished, last return -7.5",
        "Hopper-v4 seed 2 failed: again",
        "Hopper-v4 seed 2 finished, last return -7.5",
    ):
        assert said.count(line) == 1
    assert terminal or said.endswith("\n1 diverged, 3 finished\n")
    assert "seed 1 finished" not in said


def screen(board: Board) -> str:
    """The eighteen lines of a terminal after the board was shown once."""
    console = console_of(True, height=18)
    with View(console) as view:
        view(board)
    return re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "", text(console)).split("\r")[-1]


def test_a_terminal_shows_a_table_of_the_runs(clock: list[float]) -> None:
    """State, steps, return, speed and time left of each run, and the totals above them."""
    rows = [
        progress(1, "running", env_steps=250, speed=10.0, last_return=99.5),
        progress(2, "waiting"),
        progress(3, "failed", already=True, env_steps=77),
        progress(4, "finished", already=True, env_steps=992),
    ]
    check(screen(Board(2, rows, clock[0])))


def test_totals_stay_in_sight_of_sixty_runs_in_eighteen_rows(clock: list[float]) -> None:
    """Runs at work and failures are shown first, in the plan's order; all are counted."""
    states = ["finished"] * 20 + ["running"] * 4 + ["failed", "diverged"] + ["waiting"] * 34
    done = ("finished", "failed", "diverged")
    rows = [progress(i, state, already=state in done) for i, state in enumerate(states)]
    check(screen(Board(4, rows)))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "measuring"),
        (math.inf, "measuring"),  # of a speed that is all but 0
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3900.0, "1 h 05 min"),
        (360_000.0, "100 h 00 min"),
    ],
)
def test_durations_are_read_in_words(seconds: float | None, words: str) -> None:
    """No unit is full: 59.6 s is a minute, and nothing is `1 min 60 s`."""
    assert duration(seconds) == words


def test_curves_stand_below_the_table_and_both_fit(tmp_path: Path) -> None:
    """The table has a third of the lines, however many runs there are."""
    (tmp_path / "updates.csv").write_text("env_steps,critic_loss\n10,0.5\n20,0.25\n")
    rows = [progress(seed, "running", env_steps=20) for seed in range(1, 61)]
    rows[0].run = dataclasses.replace(rows[0].run, directory=tmp_path)
    console = console_of(True, height=30)
    with View(console, Curves(console)) as view:
        view(Board(2, rows))
    lines = text(console).split("\r")[-1].splitlines()
    assert len(lines) <= 30
    places = [next(i for i, line in enumerate(lines) if word in line) for word in WORDS]
    assert places == sorted(places)
