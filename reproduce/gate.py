"""A gate for speed in four tiers, of which none may cry wolf.

1. Exact: what an update dispatches, multiplies, allocates and waits for is counted and must be what
   `results/throughput/exact.json` says. Counts have no noise, so any change is an alarm.
2. Shares: speeds over ceilings and over plain ways, taken in one process, against those that were
   recorded on the same machine.
3. Pairs: this tree against another commit, two processes that take turns.
4. History: shares over time with their change points; it draws, and never alarms.

What is measured is in `reproduce.workloads`; `docs/throughput.md` says how often each tier errs.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reproduce.workloads import UPDATES, built, count_flops
from suite.files import write_json
from suite.settings import UsageError

BASELINES = Path(__file__).resolve().parents[1] / "results" / "throughput"
DECLARE = "python -m reproduce throughput --update-exact"
SYNCHRONISING = (
    *("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal", "aten.nonzero"),
    *("aten.masked_select", "aten.unique", "aten._unique2", "aten.unique_consecutive"),
    *("aten.unique_dim", "aten.bincount", "aten.repeat_interleave"),
)
"""Operators whose result the host has to wait for: a value, or a shape that depends on values."""
Exact = dict[str, Any]
"""What is counted of one workload: `operators` by name, and numbers."""


class Verdict(NamedTuple):
    """What a tier says of one workload."""

    name: str
    """Of the workload."""
    alarm: bool
    text: str
    """One line: what was found, or why nothing could be."""


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
        """Count one operator and do it."""
        name = str(func)
        self.counts[name] += 1
        waits = name.rpartition(".")[0] in SYNCHRONISING or _selects_by_mask(name, args)
        self.num_synchronising += waits
        return func(*args, **(kwargs or {}))


def _selects_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an index is a mask, the number of whose true entries decides a shape."""
    if not name.startswith(("aten.index.Tensor", "aten.index_put")):
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def exact_counts(repeat: Callable[[], object]) -> Exact:
    """Return what one repetition costs, free of noise, once it is in its steady state.

    Keys: `operators` (times each was dispatched, by name), `flops` of matrix products and
    convolutions, `synchronisations` with the host, `recompilations` by torch.compile,
    `allocations` and `allocated_bytes` of torch's memory, and `growth_bytes`: what is not freed.
    """
    for _ in range(2):  # optimisers make their state at the first step
        repeat()
    compiled = _num_compilations()
    repeat()
    recompilations = _num_compilations() - compiled
    with _Operators() as operators:
        repeat()
    _allocations(repeat)  # the profiler counts the release of what it has seen made
    allocations = _allocations(repeat)
    made = [size for size in allocations if size > 0]
    return {
        "operators": dict(sorted(operators.counts.items())),
        "flops": count_flops(repeat),
        "synchronisations": operators.num_synchronising,
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
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [event.nbytes() for event in events if event.name() == "[memory]"]


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what the profiler's C++ writes about itself."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def environment() -> dict[str, str]:
    """Return what counts depend on beside the code."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def count_all(names: Sequence[str] = UPDATES) -> dict[str, Exact]:
    """Return the counts of workloads by name."""
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

    With another version of torch nothing compares, and the verdicts say so; on a processor with
    other instructions allocations do not, since oneDNN lays out its tensors differently.

    Raises:
        UsageError: without a baseline.
    """
    baseline = read_baseline(directory / "exact.json", DECLARE)
    here, problem = environment(), ""
    if baseline["torch"] != here["torch"]:
        problem = f"not compared: counted with torch {baseline['torch']}, this is {here['torch']}"
    same_processor = baseline["instructions"] == here["instructions"]
    verdicts = []
    for name, now in counts.items():
        before = baseline["workloads"].get(name)
        if problem:
            verdicts.append(Verdict(name, False, problem))
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
    """Return what differs, operators first: "aten.mul.Tensor 3 -> 4"."""
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


def read_baseline(path: Path, command: str) -> dict[str, Any]:
    """Return a baseline.

    Raises:
        UsageError: if there is none or it cannot be read, naming the command that makes one.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no baseline {path}: make one with {command}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable {path} ({error}): make it anew with {command}") from None
