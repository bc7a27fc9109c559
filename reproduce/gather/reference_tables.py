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

TEXT, COUNT, NUMBER = "str", "int64", "float64"
_RUNS = {"agent": TEXT, "env_id": TEXT}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "curves": _RUNS
    | {"env_steps": COUNT, "return_mean": NUMBER, "return_low": NUMBER, "return_high": NUMBER}
    | {"num_runs": COUNT},
    "curves_by_seed": _RUNS | {"seed": COUNT, "env_steps": COUNT, "mean_return": NUMBER},
    "scores": _RUNS
    | {"env_steps": COUNT, "score_mean": NUMBER, "score_std": NUMBER, "num_runs": COUNT},
    "comparable": {"agent": TEXT, "source": TEXT, "env_id": TEXT, "task": TEXT, "protocol": TEXT}
    | {"max_env_steps": NUMBER, "why": TEXT},
    "sources": {"source": TEXT, "name": TEXT, "paper": TEXT},
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
    """Let a `references.Source` without files judge in this process, by tables by their names."""
    named = {name: table.assign(source=source.source) for name, table in tables.items()}
    LENT[source.agent, source.source] = (source, named)
    forget()


def forget() -> None:
    """Forget the answers of all functions that are `kept`."""
    for cached in _KEPT:
        cached.cache_clear()


def read_reference_table(path: Path) -> pd.DataFrame:
    """Return a table of reference data; a name that ends in `.xz` is unpacked.

    A `UsageError` names the file and the first mistake: a missing column or required cell, a cell
    that is no finite number, or a line with more cells than the header.
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
