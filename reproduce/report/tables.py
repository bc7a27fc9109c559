"""The tables and the report of a grid's folder, read back from their files.

Their columns stand here once. Only an empty cell counts as missing.
"""

import io
from pathlib import Path
from typing import Any

import pandas as pd

from reproduce.gather import collect
from reproduce.gather.references import CURVE_COLUMNS
from reproduce.judge.aggregates import IMPROVEMENT_COLUMNS, SUMMARY_COLUMNS, TIMES_COLUMNS
from reproduce.judge.verdicts import TABLE_COLUMNS
from suite.base.errors import UsageError
from suite.base.files import DAMAGED, read_json, read_plain

SCALE = ("zero_score", "reference_score", "normalised_score")

COLUMNS = {
    "curves": (*collect.COLUMNS["curves"], "rule"),
    "reference_curves": ("task", *CURVE_COLUMNS),
    "scores": (*collect.COLUMNS["scores"], "rule", *SCALE),
    "reference_scores": ("task", "source", "run", "env_steps", "score", "rule", *SCALE),
    "throughput": collect.COLUMNS["throughput"],
    "verdicts": TABLE_COLUMNS,
    "suite": (
        *("verdict", "exploratory", "older_runs", "num_tasks", "num_seeds"),
        *("difference", "ci_low", "ci_high", "margin", "p_below", "left_out", "note"),
        "remarks",
    ),
    "summary": SUMMARY_COLUMNS,
    "improvement": IMPROVEMENT_COLUMNS,
    "times": TIMES_COLUMNS,
    "runs": collect.COLUMNS["runs"],
}
"""Columns of every tidy file, by its stem."""

TEXT_COLUMNS = {
    *("task", "rule", "source", "env_id", "role", "device", "verdict", "reference_source"),
    *("remarks", "note", "statistic", "status", "error", "cpu", "gpu", "commit"),
    *("dirty", "command", "log_tail", "left_out", "how", "older_runs", "remark"),
}


def read_report_table(directory: Path, name: str) -> pd.DataFrame:
    """Read one tidy file of a comparison, or its compressed form.

    Returns:
        The rows with every column of `COLUMNS[name]`; empty if the file is missing. Only an empty
        cell counts as missing, so a task may be called `NA`.
    """
    columns, path = list(COLUMNS[name]), directory / f"{name}.csv"
    text: Any = dict.fromkeys(TEXT_COLUMNS.intersection(columns), str)
    try:
        content = io.BytesIO(read_plain(path))
        table = pd.read_csv(content, dtype=text, keep_default_na=False, na_values=[""])
    except FileNotFoundError:
        return pd.DataFrame(columns=pd.Index(columns))
    except (OSError, ValueError, *DAMAGED) as error:
        raise UsageError(f"unreadable {path}: {error}") from None
    return table.reindex(columns=columns)


def read_report(directory: Path) -> dict[str, Any]:
    """Read `report.json`; missing entries are empty."""
    try:
        report = read_json(directory / "report.json")
    except ValueError as error:
        raise UsageError(f"unreadable {directory / 'report.json'}: {error}") from None
    names = ("agent", "suite", "source", "judged_by", "budget", "last_run_ended_at")
    said: dict[str, Any] = dict.fromkeys((*names, "command"), "")
    said |= {key: {} for key in ("env_steps", "config", "versions", "hardware", "sources")}
    said |= {key: [] for key in ("suite_tasks", "seeds", "departures")}
    said["title"] = f"{report.get('agent', '')} on {report.get('suite', '')}"
    return said | {name: value for name, value in report.items() if value is not None}


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; missing cells become None."""
    rows = table.to_dict("records")
    return [{str(key): None if pd.isna(row[key]) else row[key] for key in row} for row in rows]
