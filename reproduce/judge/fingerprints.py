"""What fingerprints of initial weights say: do untrained policies return what the source's did?

`reproduce/extras/fingerprints.py` measures them; here their table is read.
"""

import functools

import pandas as pd

from reproduce.judge.inference import holm
from suite.settings.presets import REFERENCES

PATH = REFERENCES / "fingerprints.csv"


@functools.cache
def read_table() -> pd.DataFrame:
    """Return the table with `p_holm`, p-values adjusted for all pairs; treat it as read-only."""
    table = pd.read_csv(PATH)
    return table.assign(p_holm=holm(table["p"].to_numpy(dtype=float)))


def of_task(agent: str, source: str, task: str) -> float:
    """Return the p-value of a preset on a task, NaN where its judge began after an update."""
    rows = read_table().query("agent == @agent and source == @source and task == @task")
    return float(rows["p"].iloc[0]) if len(rows) else float("nan")
