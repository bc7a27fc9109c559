"""Published claims about the speed of engines, judged by the turns measured on one machine.

A claim holds if the whole 95 % interval of the ratio of speeds lies above nine tenths of what it
says ("about" is given a tenth), and does not hold here if the interval lies below. Nothing is
extrapolated: where a machine has fewer cores than the claim, it is not judged.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy

CLAIMS = Path(__file__).with_name("claims.csv")
"""`ratio`: how many times as fast `faster` is as `slower`, with the threads of all cores, up to the
environments. `where`: what it was measured with. With fewer `cores` it is not judged."""
ABOUT = 0.9
"""Share of the ratio claimed that is still about it."""


def judge(table: pd.DataFrame, num_cores: int, path: Path = CLAIMS) -> list[dict[str, Any]]:
    """Return the claims, judged by a table of turns.

    A row of the file gets `here` (the measured ratio with its interval, "" if there is none),
    `outcome`, `link`, and `beside`, which names the speeds compared.
    """
    rows = []
    for claim in pd.read_csv(path).to_dict("records"):
        sides = [(claim["faster"], claim["num_envs"]), (claim["slower"], claim["slower_envs"])]
        found, low, high = ratio(*(_speeds(table, claim["task"], *e, num_cores) for e in sides))
        place = f"{claim['file']}#L{claim['line']}"
        rows.append(
            claim
            | {"here": "" if np.isnan(found) else f"{found:.2f} [{low:.2f}, {high:.2f}]"}
            | {"outcome": "undecided"}
            | {"link": f"{claim['source']}/blob/{claim['commit']}/{place}"}
            | {"beside": " / ".join(f"{engine} ({envs})" for engine, envs in sides)}
        )
        if num_cores < claim["cores"]:
            rows[-1]["outcome"] = f"not judged: needs {claim['cores']} cores"
        elif np.isnan(found):
            rows[-1]["outcome"] = "not measured"
        elif low >= ABOUT * claim["ratio"]:
            rows[-1]["outcome"] = "holds"
        elif high < ABOUT * claim["ratio"]:
            rows[-1]["outcome"] = "does not hold here"
    return rows


def ratio(fast: np.ndarray, slow: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of two speeds over turns, and its 95 % interval.

    The geometric mean of the turns' ratios, by Student's t of their logarithms. NaN without two
    turns of each.
    """
    turns = min(len(fast), len(slow))
    if turns < 2:
        return np.nan, np.nan, np.nan
    logs = np.log(fast[:turns] / slow[:turns])
    half = scipy.stats.sem(logs) * scipy.stats.t.ppf(0.975, turns - 1)
    low, middle, high = np.exp(logs.mean() + np.array([-half, 0.0, half])).tolist()
    return middle, low, high


def _speeds(table: pd.DataFrame, task: str, engine: str, envs: int, num_cores: int) -> np.ndarray:
    """Return steps per second of turns, in their order, with a thread for each core in use."""
    rows = table.query(
        "task == @task and engine == @engine and num_envs == @envs and mode == 'random'"
        " and turn > 0"
    )
    rows = rows[rows["num_threads"] == min(num_cores, envs)]
    return rows.sort_values("turn")["env_steps_per_second"].to_numpy(np.float64)
