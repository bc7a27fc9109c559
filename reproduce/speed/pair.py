"""This tree's speed beside that of another commit: two processes that take turns.

`workloads.py` defines the work; `docs/speed.md` gives the rate of false alarms.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

from reproduce import ROOT
from reproduce.run.processes import THREADING
from reproduce.speed import serve, workloads
from reproduce.speed.finding import Finding
from suite.base import hardware
from suite.base.errors import UsageError

LEAST_OF_REVISION = 0.93
"""Alarm if the whole interval of the ratio of two commits' speeds is below this."""
STARTS = 3
"""Starts of both processes of a pair that must all alarm: a process may be slow for life."""
ANSWER_SECONDS = 120.0
"""Time that a worker has to start, to build its work or to do a block of it."""
PAIR_SECONDS, MOST_SECONDS = 6.0, 8.5
"""Time to measure in a comparison of two trees, and the limit that includes building the work."""
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


class Incomparable(UsageError):
    """The other tree cannot do the work."""


class Worker:
    """A process that does work with the code of a tree; see `serve.py`.

    This tree's `workloads.py` defines the work, even if the code is that of another tree. A process
    that does not answer within `ANSWER_SECONDS` is killed.

    Args:
        tree: the tree whose code runs.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, "-P", serve.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            cwd=tree,
            env={**os.environ, **THREADING, "PYTHONPATH": str(tree)},
        )

    def wait(self) -> None:
        """Wait until the process has started.

        Raises:
            UsageError: if it fails to start, with the last line of its error output.
        """
        code = Path(self._read())
        if code.resolve() != self._tree.resolve():
            raise UsageError(f"{self._tree} ran the code of {code}")

    @contextmanager
    def doing(self, name: str, slowdown: float = 1.0) -> Iterator[None]:
        """Build a workload, and discard it at the end.

        Raises:
            UsageError: if this code cannot build it, with the reason.
        """
        self._write(f"{name} {slowdown}")
        answer = self._read()
        try:
            if answer != "ready":
                raise UsageError(answer)
            yield
        finally:
            self._write("")
            self._read()  # until then, the next order would be read as a count

    def __call__(self, count: int) -> float:
        """Repeat the workload `count` times and return the seconds taken.

        Raises:
            UsageError: if it fails, with the reason.
        """
        self._write(str(count))
        answer = self._read()
        try:
            return float(answer)
        except ValueError:
            raise UsageError(answer) from None

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        limit = threading.Timer(ANSWER_SECONDS, self._process.kill)
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            if self._process.wait() == -signal.SIGKILL and limit.finished.is_set():
                raise UsageError(f"{self._tree} gave no answer for {ANSWER_SECONDS:g} s")
            self._complaints.seek(0)
            lines = self._complaints.read().strip().splitlines() or ["no complaint"]
            raise UsageError(lines[-1])
        return line.strip()

    def __enter__(self) -> "Worker":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._complaints.close()


@contextmanager
def workers(ours: Path, theirs: Path) -> Iterator[tuple[Worker, Worker]]:
    """Start a worker in each of two trees; they wait for orders.

    Raises:
        UsageError: if one does not start.
    """
    with Worker(ours) as our_worker, Worker(theirs) as their_worker:
        our_worker.wait()
        try:
            their_worker.wait()
        except UsageError as error:
            raise UsageError(f"the other tree does not start: {error}") from None
        yield our_worker, their_worker


def compare(
    ours: Worker, theirs: Worker, name: str, seconds: float = PAIR_SECONDS, slowdown: float = 1.0
) -> Ratio:
    """Return the ratio of a workload's speeds in two trees, measured in blocks that take turns.

    Args:
        ours: worker in the tree that may be slower.
        theirs: worker in the tree it is compared with.
        name: the workload's name.
        seconds: time to measure, both together.
        slowdown: artificial slowdown of `ours`; see `serve.py`.

    Raises:
        Incomparable: if `theirs` cannot do the work.
        UsageError: if `ours` cannot.
    """
    started = time.perf_counter()
    with ours.doing(name, slowdown), ExitStack() as stack:
        try:
            stack.enter_context(theirs.doing(name))
        except UsageError as error:
            raise Incomparable(str(error)) from None
        left = MOST_SECONDS - (time.perf_counter() - started)
        times = take_turns([ours, theirs], min(seconds, left))
    return ratio(*1 / times.T)


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


def judge(name: str, speeds: Ratio) -> Finding:
    """Judge whether a workload got slower: the whole interval of the ratio is below 0.93."""
    if not math.isfinite(speeds.high):
        return Finding(name, False, "too slow here for enough turns", judged=False)
    text = "{:.3f} [{:.3f}, {:.3f}] times the speed".format(*speeds)
    return Finding(name, speeds.high < LEAST_OF_REVISION, text)


def judge_against(
    revision: str, names: Sequence[str], seconds: float = PAIR_SECONDS
) -> Iterator[Finding]:
    """Compare this tree with another commit, in a worktree that is removed afterwards.

    A workload that seems slower is measured again by processes started anew, and alarms if it does
    so `STARTS` times. Work that the other commit cannot do (it may lack the function) is skipped in
    one line. If no file that the workloads run differs, nothing is measured.

    Raises:
        UsageError: for a revision that git does not know or whose code does not start, an unknown
            workload, or one that this tree cannot do.
    """
    workloads.check_names(names, workloads.WORKLOADS)
    with worktree(revision) as tree:
        if not differing(tree):
            yield Finding("all", False, f"no code that the workloads run differs from {revision}")
            return
        with ExitStack() as stack:
            started = stack.enter_context(workers(ROOT, tree))
            for name in names:
                try:
                    finding = judge(name, compare(*started, name, seconds))
                    for _ in range(STARTS - 1):
                        if finding.alarm:
                            with workers(ROOT, tree) as again:
                                finding = judge(name, compare(*again, name, seconds))
                    yield finding._replace(text=f"{finding.text} at {revision}")
                except Incomparable as error:
                    text = f"skipped: {revision} cannot do it ({error})"
                    yield Finding(name, False, text, judged=False)


def differing(tree: Path) -> list[str]:
    """Return the files that workloads run, here or in another tree, and that are not equal there.

    Workloads import agents by name, so every agent's file counts.
    """
    found: set[str] = set()
    for root in (ROOT, tree):
        begin = [root / "reproduce" / "speed" / "workloads.py", *(root / "agents").glob("*.py")]
        code = {path for file in begin for path in hardware.imported(root, file)}
        found |= {path.relative_to(root).as_posix() for path in code if path.exists()}
        for agent in (root / "agents").glob("*.py"):
            settings = root.glob(hardware.SETTINGS.format(agent=agent.stem))
            found |= {path.relative_to(root).as_posix() for path in settings}
    return sorted(name for name in found if _content(ROOT / name) != _content(tree / name))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Check out a commit of this repository into a temporary folder.

    Raises:
        UsageError: for a revision that git does not know.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tree = Path(folder) / "tree"
        try:
            commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        except (OSError, subprocess.CalledProcessError):
            raise UsageError(f"git does not know the revision {revision!r}") from None
        try:
            git("worktree", "add", "--detach", str(tree), commit)
        except subprocess.CalledProcessError as error:
            raise UsageError(f"cannot check out {revision}: {error.stderr.strip()}") from None
        stack.callback(git, "worktree", "remove", "--force", str(tree))
        yield tree
