"""The tables that a run records, and whether they can be used."""

import errno
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from reproduce.plan.grid import Plan
from reproduce.plan.status import Run
from suite.base.errors import UsageError
from suite.base.files import DAMAGED, read_plain
from suite.record.recorder import EPISODE_COLUMNS
from suite.settings.config import MOST_STEPS

COUNTS = ("env_steps", "num_updates", "episode_length")
"""Columns of whole numbers, not below 0."""
LARGEST_NUMBER = 1e12
"""In absolute value; figures have no room for more digits, and Welch's test takes fourth powers."""
SHARES = ("environment_share", "acting_share", "learning_share")
EXPECTED = {
    "episodes.csv": EPISODE_COLUMNS,
    "evaluations.csv": ("env_steps", "mean_return"),
    "timing.csv": ("env_steps", "num_updates", "wall_seconds", *SHARES),
}
"""Columns of numbers that a table must have."""


def read_table(path: Path) -> pd.DataFrame:
    """Return a recorded CSV file without the torn line that a killed run may have left.

    Where there is only its compressed form, `path`.xz, that is read. A file that cannot be opened,
    or lacks a whole row, gives an empty table.
    """
    try:
        content = read_plain(path)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(f"unreadable {path}: {error.strerror}") from None
        return pd.DataFrame()
    except DAMAGED as error:
        raise UsageError(f"unreadable {path}.xz: {error}") from None
    whole = content[: content.rfind(b"\n") + 1]
    if whole.count(b"\n") < 2:
        return pd.DataFrame()
    try:
        table = pd.read_csv(io.BytesIO(whole))
    except (ValueError, pd.errors.ParserError) as error:
        raise UsageError(f"unreadable {path}: {str(error).splitlines()[0]}") from None
    expected = EXPECTED.get(path.name, ())
    for column in expected:
        if column not in table:
            raise UsageError(f"unreadable {path}: no column {column}")
    for column in table if expected else ():
        cells = table[column].to_numpy()
        if (
            cells.dtype.kind not in "iuf"
            or (column in COUNTS and not (cells.min() >= 0 and cells.max() <= MOST_STEPS))
            or np.abs(cells[np.isfinite(cells)]).max(initial=0) > LARGEST_NUMBER
        ):
            raise UsageError(
                f"unreadable {path}: {column} has a cell that is no number, or too large"
            )
    return table


def runs_of(plan: Plan) -> list[Run]:
    """Return a plan's runs; one whose tables cannot be used is `damaged`, too."""
    found = ((run, _defect_of(run.directory)) for run in plan.runs())
    return [replace(run, status="damaged", remark=why) if why else run for run, why in found]


def _defect_of(directory: Path) -> str:
    """Return why a run's tables cannot be used; empty if they can."""
    try:
        for name in EXPECTED:
            read_table(directory / name)
    except UsageError as error:
        return str(error)
    return ""
