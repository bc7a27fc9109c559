"""Curves drawn while runs train: from their tables alone, and never at their cost."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from agents import a2c
from reproduce import ROOT
from suite.record import live
from suite.record.live import Curves, collect, panels, read_curves, read_growing_table
from tests.runs import repeatable

WORDS = ["--task=CartPole-v1", "--seeds", "1", "2", "--env-steps=1000", "--log-interval=250"]


def run_folder(folder: Path, **tables: str) -> Path:
    """A run's folder with some tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def points(frame: pd.DataFrame, panel: str) -> list[tuple[float, float]]:
    """The points of a panel."""
    rows = frame[frame["panel"] == panel]
    return list(zip(rows["env_steps"].tolist(), rows["value"].tolist(), strict=True))


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """And a table that is absent, empty, without steps or no table gives no rows."""
    path = tmp_path / "updates.csv"
    assert read_growing_table(path).empty
    path.write_text("env_steps,critic_loss\n10,0.5\n20,0.25\n30,0.1")
    assert read_growing_table(path)["critic_loss"].tolist() == [0.5, 0.25]
    for text in (
        "",
        "env_steps,critic_loss",
        "\x00\xff\n",
        "a,b\n1,2\n",
        "env_steps\n1,2\n1,2,3\n",
    ):
        path.write_text(text)
        assert read_curves(tmp_path, text).empty, text


def test_losses_entropies_and_temperatures_are_drawn_and_nothing_else(tmp_path: Path) -> None:
    """In the order of their columns; what is no finite number is no point."""
    header = "env_steps,num_updates,critic_loss,q_value,choice_entropy,log_alpha\n"
    folder = run_folder(tmp_path, updates=header + "10,5,nan,7,1.5,x\n20,10,0.5,7,inf,-2\n")
    frame = read_curves(folder, 0)
    assert frame["panel"].unique().tolist() == ["critic_loss", "choice_entropy", "log_alpha"]
    assert points(frame, "critic_loss") == [(20, 0.5)]
    assert points(frame, "choice_entropy") == [(10, 1.5)]
    assert points(frame, "log_alpha") == [(20, -2)]


def test_returns_are_of_evaluations_once_a_seed_of_the_task_has_any(tmp_path: Path) -> None:
    """So that one panel has all seeds; before, they are of training episodes."""
    episodes = "env_steps,episode_return,episode_length\n5,1.0,5\n"
    runs = {
        (task, seed): run_folder(tmp_path / task / str(seed), episodes=episodes)
        for task in ("T", "U")
        for seed in (1, 2)
    }
    of_one = {key: runs[key] for key in (("T", 1), ("T", 2))}
    frame = collect(of_one, dict.fromkeys(of_one, 0))
    assert frame["panel"].tolist() == ["episode_return"] * 2
    run_folder(runs["T", 1], evaluations="env_steps,mean_return,return_0\n10,8.0,8.0\n")
    frame = collect(of_one, dict.fromkeys(of_one, 1))
    assert points(frame, "mean_return") == [(10, 8.0)]
    assert frame["seed"].tolist() == [1]
    run_folder(runs["U", 1], updates="env_steps,critic_loss\n10,0.5\n")
    frame = collect(runs, dict.fromkeys(runs, 2))
    assert frame[["panel", "seed"]].to_numpy().tolist() == [["T", 1], ["U", 1], ["U", 2]]


def frame_of(names: Sequence[str], seeds: Sequence[int]) -> pd.DataFrame:
    """Straight lines."""
    steps = np.arange(0, 40_001, 1000)
    columns = [
        pd.DataFrame({"panel": name, "seed": seed, "env_steps": steps, "value": seed * steps})
        for name in names
        for seed in seeds
    ]
    return pd.concat(columns)


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("height", [5, 24, 60])
def test_a_terminals_panels_fit_into_it(width: int, height: int) -> None:
    """As many as there is room for, the first ones first; a very low terminal has one row."""
    names = ["mean_return", "critic_loss", "actor_loss", "entropy", "alpha"]
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(panels(frame_of(names, (1, 2)), width, height))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 7)
    shown = [name for name in names if name in capture.get()]
    room = max(width // 26, 1) * max((height - 1) // 9, 1)
    assert len(shown) == min(room, 5)
    assert shown == names[: len(shown)]
    assert lines[-1].startswith("seed 1  seed 2  over")
    assert "\u2800" < max(capture.get()) < "\u2900", "nothing is drawn"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody draws."""
    folder = tmp_path_factory.mktemp("plain")
    assert a2c.main([*WORDS, f"--out={folder}"]) == 0
    return folder


@pytest.mark.long
def test_a_run_that_is_drawn_has_the_bytes_of_one_that_is_not(
    plain: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets one drawing, after all that the run says; the recorded command does not draw."""
    capfd.readouterr()
    assert a2c.main([*WORDS, "--plot", f"--out={tmp_path}"]) == 0
    assert repeatable(tmp_path) == repeatable(plain)
    said = capfd.readouterr().out
    assert said.count("episode_return") == said.count("policy_loss") == 1
    assert said.index("seed-2 finished") < said.index("episode_return")
    assert "--plot" not in (tmp_path / "seed-1" / "run.json").read_text()


@pytest.mark.long
def test_an_error_in_drawing_is_said_once_and_the_run_goes_on(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the run's bytes and status."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no room")

    monkeypatch.setattr(live, "panels", fail)
    curves = Curves(Console(width=80))
    runs = {("CartPole-v1", 1): plain / "seed-1"}
    capsys.readouterr()
    curves.update(runs, 20)
    curves.update(runs, 30)
    assert capsys.readouterr().out == "not drawn: ZeroDivisionError: no room\n"
    assert a2c.main([*WORDS, "--plot", f"--out={tmp_path}"]) == 0
    assert repeatable(tmp_path) == repeatable(plain)


@pytest.mark.long
@pytest.mark.parametrize("stop", ["SIGTERM", "Ctrl-C"])
def test_a_terminal_is_drawn_in_while_the_run_trains(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below what the run says, of which no line is lost; the training is asked to stop once."""
    words = ["--task=CartPole-v1", "--env-steps=200_000", "--log-interval=500"]
    command = [sys.executable, "-m", "agents.a2c", *words, f"--out={tmp_path}", "--plot"]
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    said, is_asked, ignored = b"", False, 0
    how: Any = {"cwd": ROOT, "stdout": theirs, "stderr": theirs, "process_group": 0}
    with subprocess.Popen(command, **how) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # it has ended
            while more := os.read(ours, 65_536):
                said += more
                if b"value_loss" in said and not is_asked:
                    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
                    (child,) = children.read_text().split()
                    status = Path(f"/proc/{child}/status").read_text()
                    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
                    if stop == "Ctrl-C":
                        os.killpg(process.pid, signal.SIGINT)
                    else:
                        process.terminate()
                    is_asked = True
    os.close(ours)
    assert process.returncode == 130
    assert ignored & 1 << signal.SIGINT - 1
    assert said.index(b"seed-1 env_steps") < said.index(b"value_loss")
    assert b"stopped after a checkpoint" in said


@pytest.mark.long
def test_a_notebooks_cell_shows_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One, in the place of those before it, beside what the run says."""
    cells: list[list[bytes]] = []
    """Images of each cell, one after another."""

    def display(image: Any, display_id: bool) -> object:
        assert display_id
        cells.append([image.data])
        return SimpleNamespace(update=lambda image: cells[-1].append(image.data))

    monkeypatch.setattr(live, "DRAW_SECONDS", 0)
    monkeypatch.setattr(live, "Console", partial(Console, force_jupyter=True))
    monkeypatch.setattr("IPython.display.display", display)
    assert a2c.main([*WORDS, "--plot", f"--out={tmp_path}"]) == 0
    assert len(cells) == 1
    said = capsys.readouterr().out
    assert "seed-2 finished" in said
    assert "not drawn" not in said
    curves, runs = Curves(live.Console()), {("CartPole-v1", 1): tmp_path / "seed-1"}
    curves.update(runs)
    with (tmp_path / "seed-1" / "updates.csv").open("a") as table:
        table.write("2000,400\n")
    curves.update(runs)
    assert len(cells) == len(cells[-1]) == 2
    assert all(image.startswith(b"\x89PNG") for images in cells for image in images)
