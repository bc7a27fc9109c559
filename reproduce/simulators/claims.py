"""Others' claims about the speed of engines, judged by the turns measured on one machine.

A claim holds if the whole 95 % interval of the ratio of speeds lies above nine tenths of what it
says ("about" is given a tenth), and does not hold here if the interval lies below. Nothing is
extrapolated: where a machine has fewer cores than the claim, it is not judged.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

CLAIMS = Path(__file__).with_name("claims.toml")
ABOUT = 0.9
"""Share of the ratio claimed that is still about it."""


class Judged(NamedTuple):
    """A claim on one task of one machine."""

    says: str
    link: str
    task: str
    beside: str
    """What was measured."""
    claimed: float
    ratio: float
    """Of the speeds, NaN where it was not measured; with the ends of its interval."""
    low: float
    high: float
    verdict: str


def read_claims(path: Path = CLAIMS) -> list[dict[str, Any]]:
    """Return the claims."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["claim"]


def judge(table: pd.DataFrame, num_cores: int, path: Path = CLAIMS) -> Iterator[Judged]:
    """Yield a verdict for each claim and task, of a table of turns."""
    for claim in read_claims(path):
        file = f"{claim['source']}/blob/{claim['commit']}/{claim['file']}#L{claim['line']}"
        for task in claim["tasks"]:
            envs = claim["num_envs"], claim.get("slower_envs", claim["num_envs"])
            fast = _speeds(table, task, claim["faster"], envs[0], num_cores)
            slow = _speeds(table, task, claim["slower"], envs[1], num_cores)
            found = ratio(fast, slow)
            beside = f"{claim['faster']} ({envs[0]}) / {claim['slower']} ({envs[1]})"
            if num_cores < claim["cores"]:
                verdict = f"cannot be measured here: needs {claim['cores']} cores"
            else:
                verdict = verdict_of(claim["ratio"], *found)
            yield Judged(claim["says"], file, task, beside, claim["ratio"], *found, verdict)


def verdict_of(claimed: float, median: float, low: float, high: float) -> str:
    """Judge the interval of a ratio by what was claimed."""
    if np.isnan(median):
        return "not measured"
    if low >= ABOUT * claimed:
        return "holds"
    return "does not hold here" if high < ABOUT * claimed else "undecided"


def ratio(fast: np.ndarray, slow: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of two speeds over turns, and its 95 % interval.

    The geometric mean of the turns' ratios, by Student's t of their logarithms. NaN without two
    turns of each.
    """
    turns = min(len(fast), len(slow))
    if turns < 2:
        return (float("nan"),) * 3
    logs = np.log(fast[:turns] / slow[:turns])
    mean, error = logs.mean(), logs.std(ddof=1) / turns**0.5
    half = error * scipy.stats.t.ppf(0.975, turns - 1)
    low, middle, high = np.exp([mean - half, mean, mean + half]).tolist()
    return middle, low, high


def _speeds(table: pd.DataFrame, task: str, engine: str, envs: int, num_cores: int) -> np.ndarray:
    """Return steps per second of turns, in their order, with the most threads measured."""
    chosen = (table["task"] == task) & (table["engine"] == engine) & (table["num_envs"] == envs)
    chosen &= (table["mode"] == "random") & (table["turn"] > 0)
    rows = table[chosen & (table["num_threads"] <= num_cores)]
    rows = rows[rows["num_threads"] == rows["num_threads"].max()]
    return rows.sort_values("turn")["env_steps_per_second"].to_numpy(np.float64)
