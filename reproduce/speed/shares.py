"""Speeds as shares of the machine's limits, and the baselines that they are compared with.

A share is a workload's speed over that of a ceiling or a plain way (`workloads.py`), both
measured in this process, in blocks that take turns. Only shares of the same machine may be
compared.
"""

import datetime
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
import torch
from jaxtyping import Float
from rich.table import Table

from reproduce import ROOT
from reproduce.speed.workloads import MEASURED, built, check_names, pinned, time_repetitions
from suite import hardware
from suite.files import write_json

BASELINES = ROOT / "results" / "throughput"
BLOCK_SECONDS = 0.02
"""Time of one block: long beside the clock's tick, short beside a machine's disturbances.

A block is one repetition if that takes longer.
"""
Runner = Callable[[int], float]
"""Repeats some work a given number of times and returns the seconds taken."""


class Ratio(NamedTuple):
    """One speed over another, with its 95 % interval; see `ratio`."""

    median: float
    low: float
    high: float


class Share(NamedTuple):
    """The speed of a workload relative to the work it is measured against."""

    name: str
    against: str
    seconds: float
    """Time of one repetition, the median over blocks."""
    rate: float
    """Speed in `unit` per second."""
    unit: str
    share: Ratio

    @property
    def key(self) -> str:
        """Return the share's name in a baseline."""
        return f"{self.name} / {self.against}"


def take_turns(runners: Sequence[Runner], seconds: float) -> Float[np.ndarray, "rounds runners"]:
    """Return seconds per repetition of runners that take turns, ABBA.

    Args:
        runners: the runners to measure.
        seconds: time to measure, warm-up included; there are at least four rounds.
    """
    until = time.perf_counter() + seconds
    counts = [max(1, round(BLOCK_SECONDS / _pace(runner))) for runner in runners]
    order, rows = list(range(len(runners))), []
    while time.perf_counter() < until or len(rows) < 4 or len(rows) % 2:
        row = np.zeros(len(runners))
        for i in order:
            row[i] = runners[i](counts[i])
        rows.append(row / counts)
        order.reverse()
    return np.array(rows)


def _pace(runner: Runner) -> float:
    """Warm up; return roughly how many seconds one repetition takes."""
    count = 1
    while (seconds := min(runner(count) for _ in range(3))) < 0.005:
        count *= 2
    return seconds / count


def ratio(first: Float[np.ndarray, " rounds"], second: Float[np.ndarray, " rounds"]) -> Ratio:
    """Return the ratio of two speeds that took turns: the median over turns and its interval.

    A turn is two rounds, ABBA, and its value their geometric mean. The order within a round, and a
    machine that steadily gets slower, cancel within a turn. Under any distribution, the number of
    turns below the true median is binomial, so two ranks enclose the median with at least 95 %
    probability. A few disturbed blocks, however bad, move neither. Fewer than six turns give an
    unbounded interval.
    """
    logs = np.log(first / second)
    turns = np.sort(logs[: len(logs) // 2 * 2].reshape(-1, 2).mean(1))
    rank = int(scipy.stats.binom.ppf(0.025, len(turns), 0.5))
    low, high = (turns[rank - 1], turns[len(turns) - rank]) if rank else (-np.inf, np.inf)
    return Ratio(*np.exp([np.median(turns), low, high]).tolist())


def measure(name: str, seconds: float = 4.0) -> list[Share]:
    """Return the shares of one workload, its ceiling first; about `seconds` for all together."""
    with pinned(name), built([name]) as works, built(works[name].against) as others:
        work = works[name]
        all_works = (work, *others.values())
        runners = [partial(time_repetitions, work.repeat) for work in all_works]
        speeds = [work.amount for work in all_works] / take_turns(runners, seconds)
    rate = float(np.median(speeds[:, 0]))
    return [
        Share(name, against, work.amount / rate, rate, work.unit, ratio(speeds[:, 0], column))
        for against, column in zip(work.against, speeds[:, 1:].T, strict=True)
    ]


def measure_all(names: Sequence[str]) -> list[Share]:
    """Return the shares of several workloads.

    Raises:
        UsageError: for a workload that has none.
    """
    check_names(names, MEASURED)
    return [share for name in names for share in measure(name)]


# -- baselines --------------------------------------------------------------------------------


def this_machine() -> dict[str, Any]:
    """Return the facts that must be equal before two shares may be compared."""
    cores = hardware.machine()["cores"]  # asked before one of them is chosen
    version = torch.__version__.partition("+")[0]
    return {**hardware.processor(), "cores": cores, "threads": 1, "torch": version}


def machine_name() -> str:
    """Return this machine in words; machines whose shares may be compared have the same name."""
    facts = this_machine()
    return f"{hardware.processor_name(facts)}, {facts['cores']} cores, torch {facts['torch']}"


def baseline_path(directory: Path = BASELINES) -> Path:
    """Return the path of this machine's baseline."""
    return directory / (re.sub(r"[^a-z0-9.]+", "-", machine_name().lower()).strip("-") + ".json")


def write_shares(shares: Sequence[Share], directory: Path = BASELINES) -> Path:
    """Write shares as this machine's new baseline and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = baseline_path(directory)
    record = {
        "identity": this_machine(),
        "machine": hardware.machine(),
        "versions": hardware.versions(),
        "commit": hardware.revision()["commit"],
        "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "shares": {share.key: _describe(share) for share in shares},
    }
    write_json(path, record)
    return path


def _describe(share: Share) -> dict[str, Any]:
    """Return a share as it is recorded; an infinite upper end, from too few turns, is null."""
    fields = {**share._asdict(), **share.share._asdict()}
    fields["high"] = share.share.high if math.isfinite(share.share.high) else None
    return {key: fields[key] for key in ("median", "low", "high", "seconds", "rate", "unit")}


def read_shares(directory: Path = BASELINES) -> Mapping[str, Mapping[str, Any]] | None:
    """Return this machine's recorded shares by key; None if there are none.

    A file that states another machine is ignored, whatever its name.
    """
    try:
        record = json.loads(baseline_path(directory).read_bytes())
        return dict(record["shares"]) if record["identity"] == this_machine() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def share_table(shares: Sequence[Share]) -> Table:
    """Return the table that the command prints."""
    baseline = read_shares()
    note = "" if baseline else "no baseline for this machine"
    table = Table(title=f"{machine_name()}, one thread", caption=note, caption_justify="left")
    for column in ("work", "time", "rate", "share of", "share [95 %]", "baseline", "ratio"):
        table.add_column(column, justify="left" if column in ("work", "share of") else "right")
    for share in shares:
        before = (baseline or {}).get(share.key)
        old = f"{before['median']:.3g}" if before else ""
        change = f"{share.share.median / before['median']:.2f}" if before else ""
        table.add_row(
            share.name,
            _scaled(share.seconds, "s"),
            _scaled(share.rate, f"{share.unit}/s"),
            share.against,
            "{:.3g} [{:.3g}, {:.3g}]".format(*share.share),
            old,
            change,
        )
    return table


def _scaled(value: float, unit: str) -> str:
    """Return a number with the prefix that leaves one to three digits before the point."""
    scales = {1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "µ"}
    scale = next((s for s in scales if value >= s), 1e-6)
    return f"{value / scale:.3g} {scales[scale]}{unit}"
