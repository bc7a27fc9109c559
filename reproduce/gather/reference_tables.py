"""Tables of reference data: read whole, or refused by one line that names the mistake."""

import functools
import io
import lzma
import warnings
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
        UsageError: naming the file and the first mistake: a column or a required cell is missing, a
            cell is no finite number, or a line has more cells than the header.
    """
    columns = COLUMNS[path.name.partition(".")[0]]
    how: Any = {"keep_default_na": False, "na_values": [""]}  # an agent may be called NA
    too_many = pd.errors.ParserWarning
    try:
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
        with warnings.catch_warnings(action="error", category=too_many):
            table = pd.read_csv(io.BytesIO(content), index_col=False, dtype=dict(columns), **how)
    except too_many:
        fix = "put a text that holds a comma in double quotes"
        problem = f"its lines have more cells than its header: {fix}"
        raise UsageError(f"unreadable {path}: {problem}") from None
    except (*DAMAGED, OSError, ValueError, OverflowError) as error:
        said = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"unreadable {path}: {said}") from None
    for name in columns:
        if name not in table:
            header = f"its first line must be {','.join(columns)}"
            raise UsageError(f"unreadable {path}: no column {name}; {header}")
        wrong = table[name].isin([np.inf, -np.inf])
        wrong |= table[name].isna() & (name not in MAY_BE_EMPTY)
        if wrong.any():
            problem = f"{name} is empty, or infinite, in row {wrong.argmax() + 1}"
            raise UsageError(f"unreadable {path}: {problem}")
    return table


def empty_reference_table(name: str) -> pd.DataFrame:
    """Return a table without rows, as a source without the file has it."""
    return pd.DataFrame(columns=[*COLUMNS[name]]).astype(dict(COLUMNS[name]))
