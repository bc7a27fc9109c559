"""What an update costs in exact numbers: operators, FLOPs, allocations, synchronisations.

They must equal those in `results/throughput/exact.json`. Counts have no noise, so any change is an
alarm; `docs/speed.md` says what they hold for.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reproduce import ROOT
from reproduce.speed import Finding, workloads
from reproduce.speed.workloads import UPDATES, Work, build
from suite.base.errors import UsageError
from suite.base.files import write_json

BASELINE = ROOT / "results" / "throughput" / "exact.json"
DECLARE = "python -m reproduce throughput --update"
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
INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Environment of a process that counts the same on every processor: with AVX-512 oneDNN lays out
tensors differently."""
Counts = dict[str, Any]
"""Of one workload: `operators` by name, and numbers."""


class _Operators(TorchDispatchMode):
    """Counts dispatched operators, and those among them that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_synchronising = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator and run it."""
        name = str(func)
        self.counts[name] += 1
        waits = name.rpartition(".")[0] in SYNCHRONISING
        if name.startswith(("aten.index.Tensor", "aten.index_put")):  # a mask decides a shape
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        self.num_synchronising += waits
        return func(*args, **(kwargs or {}))


class _Readings(TorchFunctionMode):
    """Counts calls of `READING`."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one call and make it."""
        self.count += func in READING
        return func(*args, **(kwargs or {}))


def count(repeat: Work) -> Counts:
    """Return the counts of one repetition in its steady state; they have no noise.

    Keys: `operators` (times each was dispatched, by name), `flops` of matrix products and
    convolutions, `synchronisations` with the host, `allocations` and `allocated_bytes` of torch's
    memory, and `growth_bytes`, which are not freed.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    for _ in range(3):  # optimisers make their state at the first step
        repeat()
    with _Operators() as operators, _Readings() as readings:
        repeat()
    _allocations(repeat)  # the profiler counts the release of what it has seen made
    allocations = _allocations(repeat)
    made = [size for size in allocations if size > 0]
    with FlopCounterMode(display=False) as flops:
        repeat()
    return {
        "operators": dict(sorted(operators.counts.items())),
        "flops": flops.get_total_flops(),
        "synchronisations": operators.num_synchronising + readings.count,
        "allocations": len(made),
        "allocated_bytes": sum(made),
        "growth_bytes": sum(allocations),
    }


def _allocations(repeat: Work) -> list[int]:
    """Return the bytes of every allocation, and negative ones of every release, by torch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        repeat()
    events: Any = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [event.nbytes() for event in events if event.name() == "[memory]"]


def _torch() -> str:
    return torch.__version__.partition("+")[0]


def count_all(names: Sequence[str] = UPDATES) -> dict[str, Counts]:
    """Return the counts of updates by name, made in a process held to `INSTRUCTIONS`."""
    workloads.check_names(names, UPDATES, "update")
    command = [sys.executable, "-m", "reproduce.speed.exact", *names]
    made = subprocess.run(command, cwd=ROOT, env=os.environ | INSTRUCTIONS, capture_output=True)
    if made.returncode:  # else the profiler's C++ code alone has said something
        raise RuntimeError(made.stderr.decode(errors="replace"))
    return json.loads(made.stdout)


def write(counts: Mapping[str, Counts], path: Path = BASELINE) -> None:
    """Write counts as the new baseline."""
    write_json(path, {"torch": _torch(), "workloads": counts})


def judge(counts: Mapping[str, Counts], path: Path = BASELINE) -> list[Finding]:
    """Compare counts with the baseline: any difference is an alarm.

    With another version of torch nothing is compared, and the findings say so.
    """
    try:
        baseline = json.loads(path.read_bytes())
        torch_of, before_of = baseline["torch"], baseline["workloads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"unreadable {path} ({error}): make it anew with {DECLARE}") from None
    findings = []
    for name, now in counts.items():
        text = f"not compared: counted with torch {torch_of}, this is {_torch()}"
        is_same, alarm = torch_of == _torch(), False
        if is_same and name not in before_of:
            text, alarm = f"has no baseline; declare it: {DECLARE}", True
        elif is_same and (changes := _changes(before_of[name], now)):
            text, alarm = f"{'; '.join(changes)}; if that is meant, declare it: {DECLARE}", True
        elif is_same:
            operators = sum(now["operators"].values())
            text = f"{operators} operators, {now['flops']:,} FLOPs, as declared"
        findings.append(Finding(name, alarm, text, judged=is_same))
    return findings


def _changes(before: Counts, now: Counts) -> list[str]:
    """Return the differences, operators first: "aten.mul.Tensor 3 -> 4"."""
    old, new = before["operators"], now["operators"]
    changes = [
        f"{operator} {old.get(operator, 0)} -> {new.get(operator, 0)}"
        for operator in sorted({*old, *new})
        if old.get(operator) != new.get(operator)
    ]
    return changes + [
        f"{name} {before.get(name, 0):,} -> {now[name]:,}"
        for name in now
        if name != "operators" and before.get(name, 0) != now[name]
    ]


if __name__ == "__main__":
    print(json.dumps({name: count(work) for name, work in build(sys.argv[1:]).items()}))
