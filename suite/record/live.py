"""Curves of runs while they train, in a terminal or in a notebook's cell.

Drawing only reads recorded tables. With `--plot` an agent trains in a process of its own, started
by the same command without `--plot`: what is drawn, or fails to be, changes no byte of the run.
"""

import io
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from suite.base.files import DAMAGED, read_plain
from suite.base.signals import handled
from suite.record.manifest import stamp
from suite.settings.command_line import printable

Runs = Mapping[tuple[str, int], Path]
"""Folders of runs by task and seed."""
RETURNS = {"evaluations.csv": "mean_return", "episodes.csv": "episode_return"}
"""Column of a run's return, by table: of evaluations, of training episodes."""
TABLES = (*RETURNS, "updates.csv")
NOTHING = pd.DataFrame(columns=["env_steps", "value", "panel"])
DIAGNOSTICS = ("loss", "alpha", "entropy")
"""What the names of the other drawn columns end with."""
MOST_POINTS = 200
"""Of a longer table, means over neighbouring rows are drawn."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""Of the seeds in a terminal, in turns."""
PANEL_WIDTH, PANEL_HEIGHT, USUAL_WIDTH = 26, 9, 40
"""Least characters and lines of a panel in a terminal; it is wider where all find room so."""
LOOK_SECONDS, DRAW_SECONDS = 0.2, 2.0
"""Time between two looks at a training's output, and between two drawings."""


class Curves:
    """Draws curves of runs in a console; what goes wrong is said once, and never raised."""

    def __init__(self, console: Console) -> None:
        self._console, self._cell = console, None
        self._drawn: object = None
        self._problem = ""
        self.shown: RenderableType = Text()
        """The last drawing for a terminal; in a notebook a cell has it."""

    def update(self, runs: Runs, height: int = 24, live: Live | None = None) -> None:
        """Draw again if a table has changed.

        A terminal has `height` lines at most; `live` shows the drawing, too.
        """
        try:
            sizes = self._console.width, height
            versions = {key: _version(folder) for key, folder in runs.items()}
            if self._drawn == (sizes, versions):
                return
            self._drawn = sizes, versions
            frame = collect(runs, versions)
            if len(frame) and self._console.is_jupyter:
                self._show_in_cell(frame)
            elif len(frame):
                self.shown = panels(frame, *sizes)
            if live:
                live.update(self.shown, refresh=True)
        except Exception as error:  # whatever it is, runs go on
            problem = printable(f"not drawn: {type(error).__name__}: {error}")
            if problem != self._problem:
                print(problem)
            self._problem = problem

    def _show_in_cell(self, frame: pd.DataFrame) -> None:
        """Put a figure in the place of the last one."""
        from IPython.display import Image, display

        image = Image(figure(frame))
        if self._cell is None:
            self._cell = display(image, display_id=True)
        else:
            self._cell.update(image)


def _version(folder: Path) -> tuple[object, ...]:
    return tuple(stamp(folder / name) for name in TABLES)


def collect(runs: Runs, versions: Mapping[tuple[str, int], object]) -> pd.DataFrame:
    """Return the tidy curves of runs: panel, task, seed, env_steps, value.

    A panel is a column of a table; of several tasks it is a task, and shows returns alone. Returns
    are of evaluations where a seed of the task has any.
    """
    frames = [
        read_curves(folder, versions[task, seed]).assign(task=printable(task), seed=seed)
        for (task, seed), folder in runs.items()
    ]
    frame = pd.concat(
        [frame for frame in frames if len(frame)] or [NOTHING.assign(task="", seed=0)]
    )
    evaluated, trained = (frame["panel"] == column for column in RETURNS.values())
    frame = frame[~(trained & frame["task"].isin(frame["task"][evaluated]))]
    if frame["task"].nunique() > 1:
        frame = frame[frame["panel"].isin(RETURNS.values())].assign(panel=lambda rows: rows["task"])
    return frame


@lru_cache(maxsize=1024)
def read_curves(folder: Path, version: object) -> pd.DataFrame:
    """Return a run's curves as tidy rows: panel (the column's name), env_steps, value.

    The version changes with the run's tables.
    """
    curves = []
    for name in TABLES:
        table = read_growing_table(folder / name)
        for column in map(str, table):
            if column != RETURNS.get(name) and not column.endswith(DIAGNOSTICS):
                continue
            rows = table[["env_steps", column]].set_axis(["env_steps", "value"], axis="columns")
            rows = rows.replace([np.inf, -np.inf], np.nan).dropna()
            places = np.arange(len(rows)) * MOST_POINTS // max(len(rows), MOST_POINTS)
            curves.append(rows.groupby(places).mean().assign(panel=column))
    return pd.concat([curve for curve in curves if len(curve)] or [NOTHING])


def read_growing_table(path: Path) -> pd.DataFrame:
    """Return the whole rows of a table that grows; none if it is absent or damaged."""
    try:
        content = read_plain(path)
        whole = io.BytesIO(content[: content.rfind(b"\n") + 1])
        table = pd.read_csv(whole).apply(pd.to_numeric, errors="coerce")
    except (OSError, ValueError, *DAMAGED):
        return pd.DataFrame()
    return table if "env_steps" in table else pd.DataFrame()


def panels(frame: pd.DataFrame, width: int, height: int) -> Group:
    """Return the curves as text: as many panels as there is room for, and the seeds' colours.

    The height, in lines, includes that of the colours.
    """
    names = list(frame["panel"].unique())
    most = max((height - 1) // PANEL_HEIGHT, 1)
    across = max(math.ceil(len(names) / most), min(width // USUAL_WIDTH, 3))
    across = max(min(across, width // PANEL_WIDTH, len(names)), 1)
    down = min(math.ceil(len(names) / across), most)
    colours = dict(zip(sorted(frame["seed"].unique()), itertools.cycle(COLOURS), strict=False))
    last = float(frame["env_steps"].max())
    drawn = [
        _panel(rows, colours, last, width // across, (height - 1) // down)
        for _, rows in frame.groupby("panel", sort=False)
    ]
    grid = Table.grid()
    for first in range(0, across * down, across):
        grid.add_row(*drawn[first : first + across])
    legend = Text(no_wrap=True, overflow="ellipsis")
    for seed, colour in colours.items():
        legend.append(f"seed {seed}  ", style=colour)
    legend.append(f"over 0 to {_short(last, last)} env_steps")
    return Group(grid, legend)


def _panel(
    rows: pd.DataFrame, colours: Mapping[Any, str], last: float, width: int, height: int
) -> Text:
    """Return one panel, with a line for each seed, up to the last step of all panels."""
    from plotille import Figure

    plot = Figure()
    plot.width, plot.height, plot.origin = max(width - 15, 1), max(height - 4, 1), False
    plot.set_x_limits(0, 1.02 * last)
    room = last * (1 - 4 / plot.width)  # a number beyond would be cut
    plot.x_ticks_fkt = lambda low, _: _short(low, room)
    plot.y_ticks_fkt = lambda low, _: f"{low:.4g}"
    for seed, own in rows.groupby("seed"):
        plot.plot(own["env_steps"].tolist(), own["value"].tolist(), lc=colours[seed])
    _, *lines = Text.from_ansi(plot.show()).split()
    for line in lines:
        line.truncate(width - 1)
    return Text("\n").join([Text(rows["panel"].iloc[0], style="bold"), *lines])


def _short(steps: Any, most: float) -> str:
    """Return steps for an axis: 750, 2.5k, 1M; nothing for more than the most."""
    if steps > most:
        return ""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{letter}"
    return f"{steps:.3g}"


def figure(frame: pd.DataFrame) -> bytes:
    """Return the curves as a PNG image: a panel for each quantity, a colour for each seed."""
    import seaborn as sns
    from matplotlib import pyplot as plt

    grid = sns.relplot(
        frame.assign(seed=frame["seed"].astype(str)),
        **{"x": "env_steps", "y": "value", "hue": "seed", "col": "panel", "kind": "line"},
        **{"col_wrap": min(frame["panel"].nunique(), 3), "height": 2.4, "aspect": 1.4},
        facet_kws={"sharey": False},
        errorbar=None,
    )
    grid.set_titles("{col_name}").set_axis_labels("env_steps", "")
    content = io.BytesIO()
    grid.savefig(content, format="png")
    plt.close(grid.figure)
    return content.getvalue()


def train(file: str, module: str, argv: Sequence[str], runs: Runs) -> int:
    """Train as an agent's command without `--plot` does, in a process of its own; draw meanwhile.

    Ctrl-C and SIGTERM ask the training to stop; a second one ends it at once. Where a drawing
    cannot be replaced, as in a file or a pipe, there is one at the end. Returns the training's exit
    status.
    """
    spec = getattr(sys.modules.get(module), "__spec__", None)
    words = [sys.executable, *(["-m", spec.name] if spec else [file])]
    words += [word for word in argv if word != "--plot"]
    console = Console(markup=False, emoji=False, highlight=False)
    curves, in_cell = Curves(console), console.is_jupyter
    output: dict[str, Any] = {}
    if in_cell or console.is_terminal:
        both = in_cell or sys.stderr.isatty()
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT if both else None}
    on_screen = bool(output) and not in_cell
    asked = list[int]()
    with handled(lambda number, _: asked.append(number)):
        # a terminal's Ctrl-C reaches both processes; the training hears our SIGTERM
        with handled(signal.SIG_IGN, (signal.SIGINT,)):
            run = subprocess.Popen(words, bufsize=0, **output)
        live = Live(console=console, auto_refresh=False) if on_screen else nullcontext()
        with handled(lambda *_: run.terminate()), run, live as screen:
            if asked:  # while it started
                run.terminate()
            _follow(run, curves, runs, screen)
    if not output:
        console.print(curves.shown)
    return run.returncode if run.returncode >= 0 else 128 - run.returncode


def _follow(run: subprocess.Popen[Any], curves: Curves, runs: Runs, live: Live | None) -> None:
    """Pass a training's output on, and draw, until it has ended."""
    if run.stdout:
        os.set_blocking(run.stdout.fileno(), False)
    ended, last = False, -DRAW_SECONDS
    while not ended:
        ended = run.poll() is not None
        if run.stdout and (said := run.stdout.read()):
            print(said.decode(errors="replace"), end="")
        if ended or (run.stdout and time.monotonic() - last >= DRAW_SECONDS):
            last = time.monotonic()
            screen = live.console.height if live else 25
            curves.update(runs, max(screen * 3 // 4, min(screen - 1, 24)), live)
        time.sleep(0 if ended else LOOK_SECONDS)
