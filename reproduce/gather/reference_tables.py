"""Tables of reference data: read whole, or refused by one line that names the mistake.

A table is read into the types of its columns, as fast as can be; only one that does not fit them is
read again, line by line, to find where.
"""

import contextlib
import csv
import functools
import io
import lzma
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from suite.base.errors import UsageError
from suite.base.files import DAMAGED

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "curves": {
        **{"agent": "str", "env_id": "str", "env_steps": "int64", "return_mean": "float64"},
        **{"return_low": "float64", "return_high": "float64", "num_runs": "int64"},
    },
    "curves_by_seed": {
        **{"agent": "str", "env_id": "str", "seed": "int64", "env_steps": "int64"},
        "mean_return": "float64",
    },
    "scores": {
        **{"agent": "str", "env_id": "str", "env_steps": "int64", "score_mean": "float64"},
        **{"score_std": "float64", "num_runs": "int64"},
    },
    "comparable": {
        **{"agent": "str", "source": "str", "env_id": "str", "task": "str", "protocol": "str"},
        **{"max_env_steps": "float64", "why": "str"},
    },
    "sources": {"source": "str", "name": "str", "paper": "str"},
}
"""Columns of each table, with their types; a file may have others beside them."""
MAY_BE_EMPTY = ("return_low", "return_high", "score_std", "protocol", "max_env_steps", "paper")
LENT: dict[tuple[str, str], tuple[Any, Mapping[str, pd.DataFrame]]] = {}
"""Sources without files, by agent and name: what is said of them, and their tables."""
_KEPT: list[Any] = []
_Function = TypeVar("_Function", bound=Callable[..., Any])
NUMBERS = {
    "int64": "a whole number without separators",
    "float64": "a number without separators",
}
"""What a cell of a numeric type must be."""


def kept(function: _Function) -> _Function:
    """Return a function of reference data that gives an answer again, until a source is lent."""
    cached: Any = functools.cache(function)
    _KEPT.append(cached)
    return cached


def lend(source: Any, tables: Mapping[str, pd.DataFrame]) -> None:
    """Let a source that has no files judge in this process, in place of an earlier one of its name.

    Args:
        source: a `references.Source`.
        tables: `comparable`, and any tables that a source's folder may hold, by their names.
    """
    named = {name: table.assign(source=source.source) for name, table in tables.items()}
    LENT[source.agent, source.source] = (source, named)
    forget()


def forget() -> None:
    """Forget the answers of all functions that are `kept`."""
    for cached in _KEPT:
        cached.cache_clear()


def read_reference_table(path: Path) -> pd.DataFrame:
    """Return a table of reference data; a name that ends in `.xz` is unpacked.

    Raises:
        UsageError: naming the file, and the line and column of the first mistake: a column or a
            required cell is missing, a cell is no number, or a line has too many cells or too few.
    """
    columns = COLUMNS[path.name.partition(".")[0]]
    try:
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
    except (*DAMAGED, OSError) as error:
        raise UsageError(f"unreadable {path}: {error}") from None
    with contextlib.suppress(ValueError, OverflowError):
        text = {"keep_default_na": False, "na_values": [""]}  # an agent may be called NA
        table = pd.read_csv(io.BytesIO(content), dtype=dict(columns), **text)
        filled = table.filter([name for name in columns if name not in MAY_BE_EMPTY])
        fits = {*columns} <= {*table} and isinstance(table.index, pd.RangeIndex)
        finite = not np.isinf(table.select_dtypes("number")).any(axis=None)
        if fits and finite and filled.notna().all(axis=None):
            return table
    problem = _first_mistake(content.decode("utf-8-sig", "replace"), columns)
    raise UsageError(f"unreadable {path}: {problem or 'its lines do not fit its header'}")


def empty_reference_table(name: str) -> pd.DataFrame:
    """Return a table without rows, as a source without the file has it."""
    return pd.DataFrame(columns=[*COLUMNS[name]]).astype(dict(COLUMNS[name]))


def _first_mistake(text: str, columns: Mapping[str, str]) -> str:
    """Return line, column and mistake of the first cell that does not fit; empty if all do."""
    lines = csv.reader(io.StringIO(text, newline=""))
    header = next(lines, [])
    for name in columns:
        if name not in header:
            return f"no column {name}; its first line must be {','.join(columns)}"
    for cells in filter(None, lines):
        line = f"line {lines.line_num}"
        if len(cells) != len(header):
            advice = ": put a text that holds a comma in double quotes"
            return f"{line} has {len(cells)} cells, its header {len(header)}" + advice * (
                len(cells) > len(header)
            )
        for name, cell in zip(header, cells, strict=True):
            if problem := _mistake(name, cell, columns.get(name, "str")):
                return f"{line}: {name} {problem}"
    return ""


def _mistake(name: str, cell: str, kind: str) -> str:
    """Return what is wrong with a cell; empty: nothing is."""
    if not cell:
        return "" if name in MAY_BE_EMPTY else "is empty"
    if kind == "str":
        return ""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    fits = math.isfinite(value) and (
        kind == "float64" or (value.is_integer() and abs(value) < 2**63)
    )
    fits = fits and "_" not in cell  # Python reads 1_000, a table does not
    return "" if fits else f"must be {NUMBERS[kind]}, not {cell!r}"
