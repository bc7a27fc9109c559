"""This tree's speed beside that of another commit: two processes that take turns.

`workloads.py` defines the work; `serve.py` repeats it on the code of either tree.
"""

import io
import math
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

from reproduce import ROOT
from reproduce.run.processes import Server
from reproduce.speed import Finding, workloads
from suite.base.errors import UsageError

SERVE = Path(__file__).with_name("serve.py")
CODE = ("agents", "suite", "results/references/*/*.toml")
LEAST_OF_REVISION = 0.93
"""Alarm if the whole interval of the ratio of two commits' speeds is below this."""
STARTS = 3
"""Starts of both processes of a pair that must all alarm: a process may be slow for life."""
PAIR_SECONDS = 6.0
LONGEST = 600.0
"""Seconds that an answer of a process may take."""
BLOCK_SECONDS = 0.02
"""Time of one block, at least a repetition: long beside the clock's tick, short beside
disturbances."""
Runner = Callable[[int], float]


class Ratio(NamedTuple):
    """One speed over another, with its 95 % interval; see `ratio`."""

    median: float
    low: float
    high: float


class Incomparable(UsageError):
    """The other tree cannot do the work."""


def compare(ours: Path, theirs: Path, name: str, seconds: float = PAIR_SECONDS) -> Ratio:
    """Return the ratio of two trees' speeds of a workload, measured in blocks that take turns.

    Raises:
        Incomparable: if `theirs` cannot do the work.
        UsageError: if `ours` cannot.
    """
    command = [sys.executable, str(SERVE), name]
    with closing(Server(command, ours)) as first, closing(Server(command, theirs)) as second:
        runners = [partial(_repeat, server) for server in (first, second)]
        runners[0](1)
        try:
            runners[1](1)
        except UsageError as error:
            raise Incomparable(str(error)) from None
        times = take_turns(runners, seconds)
    return ratio(*1 / times.T)


def _repeat(server: Server, count: int) -> float:
    server.send({"count": count})
    return server.read(LONGEST)["seconds"]


def take_turns(runners: Sequence[Runner], seconds: float) -> Float[np.ndarray, "rounds runners"]:
    """Return seconds per repetition of runners that take turns, ABBA.

    The time includes a warm-up; there are at least four rounds.
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
    machine that steadily gets slower, cancel within a turn. If turns are independent, the number of
    those below the true median is binomial, so two ranks enclose the median with at least 95 %
    probability. In fact turns are correlated, and each process has a speed of its own: of 300
    intervals of equal code 215 enclosed 1 (`results/throughput/gate_quality.csv`). So the check
    has slack, and asks three starts. A few disturbed blocks, however bad, move neither rank. Fewer
    than six turns give an unbounded interval.
    """
    logs = np.log(first / second)
    turns = np.sort(logs[: len(logs) // 2 * 2].reshape(-1, 2).mean(1))
    rank = int(scipy.stats.binom.ppf(0.025, len(turns), 0.5))
    low, high = (turns[rank - 1], turns[len(turns) - rank]) if rank else (-np.inf, np.inf)
    return Ratio(*np.exp([np.median(turns), low, high]).tolist())


def judge(name: str, speeds: Ratio) -> Finding:
    """Judge whether a workload got slower: the whole interval of the ratio is below 0.93."""
    if not math.isfinite(speeds.high):
        return Finding(name, False, "too slow here for enough turns", judged=False)
    text = "{:.3f} [{:.3f}, {:.3f}] times the speed".format(*speeds)
    return Finding(name, speeds.high < LEAST_OF_REVISION, text)


def judge_against(revision: str, names: Sequence[str]) -> Iterator[Finding]:
    """Compare this tree with another commit, in a temporary copy of it.

    A workload that seems slower is measured again by processes started anew, and alarms if it does
    so `STARTS` times. Work that the other commit cannot do (it may lack the function) is skipped in
    one line. If no file that the workloads run differs, nothing is measured.
    """
    workloads.check_names(names, workloads.WORKLOADS)
    with other_tree(revision) as tree:
        if not _git("diff", "--name-only", revision, "--", *CODE):
            yield Finding("all", False, f"no code that the workloads run differs from {revision}")
            return
        for name in names:
            finding, starts = Finding(name, True, ""), 0
            while finding.alarm and starts < STARTS:
                starts += 1
                try:
                    finding = judge(name, compare(ROOT, tree, name))
                except Incomparable as error:
                    text = f"skipped: cannot be done ({error})"
                    finding = Finding(name, False, text, judged=False)
            yield finding._replace(text=f"{finding.text} at {revision}")


@contextmanager
def other_tree(revision: str) -> Iterator[Path]:
    """Unpack a commit of this repository into a temporary folder."""
    try:
        content = _git("archive", revision)
    except (OSError, subprocess.CalledProcessError):
        raise UsageError(f"git does not know the revision {revision!r}") from None
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout
