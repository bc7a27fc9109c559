"""A gate for speed in four tiers, each of which must avoid false alarms.

1. Exact: an update's operators, FLOPs, allocations and synchronisations are counted and must equal
   `results/throughput/exact.json`. Counts have no noise, so any change is an alarm.
2. Shares: speeds over ceilings and over plain ways, taken in one process, against those that were
   recorded on the same machine.
3. Pairs: this tree against another commit, two processes that take turns.
4. History: a figure of shares over time with their change points; it never alarms.

`workloads.py` defines the work; `docs/speed.md` gives the error rate of each tier.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reproduce import ROOT
from reproduce.run.processes import THREADING
from reproduce.speed import workloads
from reproduce.speed.shares import (
    BASELINES,
    Ratio,
    Share,
    machine_name,
    measure,
    ratio,
    read_shares,
    take_turns,
)
from reproduce.speed.workloads import UPDATES, built, count_flops
from suite import hardware
from suite.files import write_json
from suite.settings import UsageError

RECORD = "python -m reproduce throughput --update"
LEAST_OF_BASELINE = 0.85
"""Alarm if a share's whole interval is below this fraction of its baseline, twice in a row."""
LEAST_OF_REVISION = 0.93
"""Alarm if the whole interval of the ratio of two commits' speeds is below this."""
STARTS = 3
"""Starts of both processes of a pair that must all alarm: a process may be slow for life."""
ANSWER_SECONDS = 120.0
"""Time that a worker has to start, to build its work or to do a block of it."""
PAIR_SECONDS, MOST_SECONDS = 6.0, 8.5
"""Time to measure in a comparison of two trees, and the limit that includes building the work."""
DECLARE = "python -m reproduce throughput --exact --update"
SYNCHRONISING = (
    *("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal", "aten.nonzero"),
    *("aten.masked_select", "aten.unique", "aten._unique2", "aten.unique_consecutive"),
    *("aten.unique_dim", "aten.bincount", "aten.repeat_interleave"),
)
"""Operators whose result the host has to wait for: a value, or a shape that depends on values."""
READING = tuple(
    getattr(torch.Tensor, name) for name in ("cpu", "numpy", "tolist", "to", "__array__")
)
"""Methods that may bring a tensor to the host; on a CPU they dispatch no operator."""
Exact = dict[str, Any]
"""Counts of one workload: `operators` by name, and numbers."""


class Verdict(NamedTuple):
    """The verdict of a tier on one workload."""

    name: str
    """The workload's name."""
    alarm: bool
    text: str
    """One line: the finding, or why the workload was not judged."""
    judged: bool = True
    """Whether there was something to compare with."""


# -- tier 1 -----------------------------------------------------------------------------------


class _Operators(TorchDispatchMode):
    """Counts dispatched operators, and those among them that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_synchronising = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one operator and run it."""
        name = str(func)
        self.counts[name] += 1
        waits = name.rpartition(".")[0] in SYNCHRONISING or _selects_by_mask(name, args)
        self.num_synchronising += waits
        return func(*args, **(kwargs or {}))


class _Readings(TorchFunctionMode):
    """Counts calls of `READING`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one call and make it."""
        self.count += func in READING
        return func(*args, **(kwargs or {}))


def _selects_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an index is a mask; its number of true entries decides a shape."""
    if not name.startswith(("aten.index.Tensor", "aten.index_put")):
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def exact_counts(repeat: Callable[[], object]) -> Exact:
    """Return the counts of one repetition in its steady state; they have no noise.

    Keys: `operators` (times each was dispatched, by name), `flops` of matrix products and
    convolutions, `synchronisations` with the host, `recompilations` by torch.compile,
    `allocations` and `allocated_bytes` of torch's memory, and `growth_bytes`, which are not freed.
    """
    for _ in range(2):  # optimisers make their state at the first step
        repeat()
    compiled = _num_compilations()
    repeat()
    recompilations = _num_compilations() - compiled
    with _Operators() as operators, _Readings() as readings:
        repeat()
    _allocations(repeat)  # the profiler counts the release of what it has seen made
    allocations = _allocations(repeat)
    made = [size for size in allocations if size > 0]
    return {
        "operators": dict(sorted(operators.counts.items())),
        "flops": count_flops(repeat),
        "synchronisations": operators.num_synchronising + readings.count,
        "recompilations": recompilations,
        "allocations": len(made),
        "allocated_bytes": sum(made),
        "growth_bytes": sum(allocations),
    }


def _num_compilations() -> int:
    """Return how many graphs torch.compile has made so far in this process."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _allocations(repeat: Callable[[], object]) -> list[int]:
    """Return the bytes of every allocation, and negative ones of every release, by torch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        _quiet_stderr(),
        torch.profiler.profile(activities=activities, profile_memory=True) as profile,
    ):
        repeat()
    events: Any = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [event.nbytes() for event in events if event.name() == "[memory]"]


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop the messages of the profiler's C++ code."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def environment() -> dict[str, Any]:
    """Return the facts, other than the code, that counts depend on."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "onednn": workloads.ONEDNN_LINEAR is not None,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def count_all(names: Sequence[str] = UPDATES) -> dict[str, Exact]:
    """Return the counts of updates by name.

    Raises:
        UsageError: for a workload that is not an update.
    """
    workloads.check_names(names, UPDATES, "update")
    with built(names) as works:
        return {name: exact_counts(work.repeat) for name, work in works.items()}


def write_exact(counts: Mapping[str, Exact], directory: Path = BASELINES) -> Path:
    """Write counts as the new baseline and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "exact.json"
    write_json(path, {**environment(), "workloads": counts})
    return path


def judge_exact(counts: Mapping[str, Exact], directory: Path = BASELINES) -> list[Verdict]:
    """Compare counts with the baseline: any difference is an alarm.

    With another version of torch, or with oneDNN on one side only, nothing is compared, and the
    verdicts say so. On a processor with other instructions, allocations are not compared, since
    oneDNN lays out its tensors differently.

    Raises:
        UsageError: without a baseline.
    """
    baseline = _read_exact(directory / "exact.json")
    here, problem = environment(), ""
    if baseline["torch"] != here["torch"]:
        problem = f"not compared: counted with torch {baseline['torch']}, this is {here['torch']}"
    elif baseline["onednn"] != here["onednn"]:
        problem = "not compared: only one of baseline and this torch has oneDNN"
    same_processor = baseline["instructions"] == here["instructions"]
    verdicts = []
    for name, now in counts.items():
        before = baseline["workloads"].get(name)
        if problem:
            verdicts.append(Verdict(name, False, problem, judged=False))
        elif before is None:
            verdicts.append(Verdict(name, True, f"has no baseline; declare it: {DECLARE}"))
        else:
            changes = _changes(before, now, allocations=same_processor)
            text = f"{'; '.join(changes)}; if that is meant, declare it: {DECLARE}"
            note = "" if same_processor else "; allocations not compared: other instructions"
            num_operators = sum(now["operators"].values())
            same = f"{num_operators} operators, {now['flops']:,} FLOPs, as declared{note}"
            verdicts.append(Verdict(name, bool(changes), text if changes else same))
    return verdicts


def _changes(before: Exact, now: Exact, *, allocations: bool) -> list[str]:
    """Return the differences, operators first: "aten.mul.Tensor 3 -> 4"."""
    old, new = before["operators"], now["operators"]
    changes = [
        f"{operator} {old.get(operator, 0)} -> {new.get(operator, 0)}"
        for operator in sorted({*old, *new})
        if old.get(operator) != new.get(operator)
    ]
    names = [name for name in now if name != "operators"]
    if not allocations:
        names = [name for name in names if name not in ("allocations", "allocated_bytes")]
    return changes + [
        f"{name} {before.get(name):,} -> {now[name]:,}"
        for name in names
        if before.get(name) != now[name]
    ]


def _read_exact(path: Path) -> dict[str, Any]:
    try:
        baseline = json.loads(path.read_bytes())
        for key in (*environment(), "workloads"):
            baseline[key]
        return baseline
    except FileNotFoundError:
        raise UsageError(f"no baseline {path}: make one with {DECLARE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"unreadable {path} ({error}): make it anew with {DECLARE}") from None


# -- tier 2 -----------------------------------------------------------------------------------


def judge_shares(
    shares: Sequence[Share],
    again: Callable[[str], Sequence[Share]] = measure,
    directory: Path = BASELINES,
) -> list[Verdict]:
    """Compare shares with this machine's baseline; alarm if certainly below 85 % of it, twice.

    Args:
        shares: the measured shares.
        again: measures a workload once more if it seems slow.
        directory: folder of the baselines.
    """
    baseline = read_shares(directory)
    if baseline is None:
        text = f"no baseline for this machine ({machine_name()}): record one with {RECORD}"
        names = dict.fromkeys(share.name for share in shares)
        return [Verdict(name, False, text, judged=False) for name in names]
    verdicts, repeated = [], dict[str, Sequence[Share]]()
    for share in shares:
        if share.key not in baseline:
            text = f"no baseline of {share.key}: record one with {RECORD}"
            verdicts.append(Verdict(share.name, False, text, judged=False))
            continue
        before, now = baseline[share.key]["median"], share.share
        if now.high < LEAST_OF_BASELINE * before:
            if share.name not in repeated:
                repeated[share.name] = again(share.name)
            now = next(s for s in repeated[share.name] if s.key == share.key).share
        change = "{:.2f} [{:.2f}, {:.2f}]".format(*(part / before for part in now))
        text = f"{now.median:.3g} of {share.against}, {change} of its baseline {before:.3g}"
        verdicts.append(Verdict(share.name, now.high < LEAST_OF_BASELINE * before, text))
    return verdicts


# -- tier 3 -----------------------------------------------------------------------------------


class Incomparable(UsageError):
    """The other tree cannot do the work."""


class Worker:
    """A process that does work with the code of a tree; see `workloads.serve`.

    This tree's `workloads.py` defines the work, even if the code is that of another tree. A process
    that does not answer within `ANSWER_SECONDS` is killed.

    Args:
        tree: the tree whose code runs.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, "-P", workloads.__file__],
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
        slowdown: artificial slowdown of `ours`; see `workloads.serve`.

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


def judge_pair(name: str, speeds: Ratio) -> Verdict:
    """Judge whether a workload got slower: the whole interval of the ratio is below 0.93."""
    if not math.isfinite(speeds.high):
        return Verdict(name, False, "too slow here for enough turns", judged=False)
    text = "{:.3f} [{:.3f}, {:.3f}] times the speed".format(*speeds)
    return Verdict(name, speeds.high < LEAST_OF_REVISION, text)


def pair(revision: str, names: Sequence[str], seconds: float = PAIR_SECONDS) -> Iterator[Verdict]:
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
            yield Verdict("all", False, f"no code that the workloads run differs from {revision}")
            return
        with ExitStack() as stack:
            started = stack.enter_context(workers(ROOT, tree))
            for name in names:
                try:
                    verdict = judge_pair(name, compare(*started, name, seconds))
                    for _ in range(STARTS - 1):
                        if verdict.alarm:
                            with workers(ROOT, tree) as again:
                                verdict = judge_pair(name, compare(*again, name, seconds))
                    yield verdict._replace(text=f"{verdict.text} at {revision}")
                except Incomparable as error:
                    text = f"skipped: {revision} cannot do it ({error})"
                    yield Verdict(name, False, text, judged=False)


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
