"""Small tidy tables, for tests of figures, charts and pages."""

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from reproduce.report.tables import COLUMNS

NAN = float("nan")


def curve(task: str, seed: int, steps: list[int], slope: float = 1.0) -> pd.DataFrame:
    """A straight learning curve."""
    rows = [(task, seed, step, slope * step, 0.1 * step, "deterministic") for step in steps]
    return pd.DataFrame(rows, columns=list(COLUMNS["curves"]))


def reference(
    task: str, steps: list[int], role: str = "judge", spread: float = 5.0
) -> pd.DataFrame:
    """A straight published curve of slope one."""
    source = "published" if role == "judge" else "another"
    rows = [
        (task, source, task, step, step, step - spread, step + spread, 5, "deterministic", role)
        for step in steps
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS["reference_curves"]))


def verdict(task: str, name: str = "reproduced", **fields: object) -> pd.DataFrame:
    """A row of verdicts.csv; random policy 0, reference 100 +- 8, margin 10."""
    row = dict.fromkeys(COLUMNS["verdicts"], NAN) | {"task": task, "verdict": name}
    row |= {"env_steps": 100, "rule": "deterministic", "num_seeds": 2}
    row |= {"num_failed": 0, "num_diverged": 0, "reference_source": "published"}
    row |= {"reference_mean": 100.0, "reference_std": 8.0, "reference_num_runs": 5}
    row |= {"zero_score": 0.0, "margin": 10.0, "ci_low": -6.0, "ci_high": 4.0}
    return pd.DataFrame([row | fields])


def score(task: str, *values: float) -> pd.DataFrame:
    """Scores of seeds 1, 2, ..."""
    rows = [(task, seed, 100, value, "deterministic", 0.0, 100.0, value / 100)
            for seed, value in enumerate(values, 1)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS["scores"]))


def no_rows(name: str) -> pd.DataFrame:
    """A file with a header and nothing else."""
    return pd.DataFrame(columns=pd.Index(COLUMNS[name]))


def over(*tasks: str) -> dict[str, pd.DataFrame]:
    """Two seeds and two reference runs of each task, and their curves up to 100 steps."""
    wins = [(task, 0.5, 0.25, 0.75, 2, 2) for task in (*tasks, "")]
    curves = [curve(task, seed, [50, 100], 0.5 * seed) for task in tasks for seed in (1, 2)]
    return {
        "scores": pd.concat([score(task, 50.0, 100.0) for task in tasks]),
        "reference_scores": pd.concat([score(task, 90.0, 110.0) for task in tasks]),
        "improvement": pd.DataFrame(wins, columns=list(COLUMNS["improvement"])),
        "curves": pd.concat(curves),
    }


def write(
    folder: Path,
    facts: Mapping[str, object] | None = None,
    /,
    **tables: pd.DataFrame | list[dict[str, object]],
) -> Path:
    """Write report.json and tables, given as rows or whole, into a folder; return it."""
    standard = {"agent": "sac", "suite": "mujoco", "source": "paper", "judged_by": "published"}
    (folder / "report.json").write_text(json.dumps(standard | dict(facts or {})))
    for name, rows in tables.items():
        table = pd.DataFrame(rows, columns=pd.Index(COLUMNS[name]))
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder
