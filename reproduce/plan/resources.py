"""What runs need, and whether it is there: devices, workers, clusters, memory, folders.

What runs keep in memory beside their networks is `memory_bytes` of the agent's configuration; a
replay of frames is gigabytes. On a GPU it is the GPU's memory that must hold it, if the agent keeps
it there.
"""

import dataclasses
import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suite.base.errors import UsageError
from suite.base.hardware import find_device, machine, num_cores

if TYPE_CHECKING:
    from reproduce.plan.grid import Group, Plan, Run


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster that a plan runs on, as it was when the plan was made."""

    address: str | None
    nodes: tuple[Mapping[str, float], ...]
    """Resources of every node that is alive, in Ray's words: `CPU`, `GPU`, `memory` (bytes)."""

    def num_places(self, demand: Mapping[str, float]) -> int:
        """Return how many groups that each take `demand` can run at the same time.

        A share of a GPU is of one GPU: three shares of 0.4 need two.
        """

        def places(name: str, there: float, need: float) -> int:
            is_share = name == "GPU" and need < 1
            return int(there) * int(1 / need) if is_share else int(there / need)

        return sum(
            min(places(name, node.get(name, 0.0), need) for name, need in demand.items() if need)
            for node in self.nodes
        )


def choose_device(name: str, cluster: Cluster | None) -> str:
    """Return `cpu`, `cuda` or `cuda:<i>`; `auto`: the device of this machine or the cluster."""
    if cluster is None:
        return find_device(name).type if name == "auto" else str(find_device(name))
    if name == "auto":
        return "cuda" if any(node.get("GPU") for node in cluster.nodes) else "cpu"
    if name not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: on a Ray cluster it is auto, cpu or cuda")
    return name


def gpus_of(device: str) -> tuple[str, ...]:
    """Return the GPUs here that a plan's processes are dealt to: all of `cuda`, one, or none."""
    if device != "cuda":
        return () if device == "cpu" else (device,)
    import torch

    count = torch.cuda.device_count()
    return tuple(f"cuda:{i}" for i in range(count)) if count > 1 else (device,)


def default_workers(device: str, cores_per_run: int, cluster: Cluster | None) -> int:
    """Return how many processes run side by side where `--workers` does not say."""
    if cluster:
        demand = {"CPU": float(cores_per_run), "GPU": float(device != "cpu")}
        refuse_unplaceable(demand, cluster)
        return cluster.num_places(demand)
    return len(gpus_of(device)) or max(1, num_cores() // cores_per_run)


def refuse_unplaceable(demand: Mapping[str, float], cluster: Cluster) -> None:
    """Refuse, by a `UsageError`, a group whose needs no node of the cluster meets."""
    if cluster.num_places(demand):
        return

    def words(resources: Mapping[str, float]) -> str:
        units = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (2**30, "GiB of memory")}
        return ", ".join(
            f"{resources[name] / unit:.4g} {what}"
            for name, (unit, what) in units.items()
            if resources.get(name)
        )

    there = "; ".join(map(words, cluster.nodes))
    raise UsageError(
        f"a process needs {words(demand)}, which no node of the Ray cluster has ({there}): add one "
        "with `ray start --address`, or choose another --device"
    )


def keeps_on_gpu(plan: "Plan") -> bool:
    """Return whether a run's `memory_bytes`, its replay, lie on the GPU."""
    return plan.device != "cpu" and plan.config.keeps_on_device


def _memory_bytes(plan: "Plan", task: str) -> int:
    return dataclasses.replace(plan.config_of(task), device=plan.device).memory_bytes


def demand_of(plan: "Plan", group: "Group") -> dict[str, float]:
    """Return the resources that a group takes, by Ray's names.

    CPU: the cores that a run keeps busy. GPU: on a cluster with fewer GPUs than workers, a share of
    one. Memory, in bytes: as the agent states it; 0 where the GPU keeps it.
    """
    gpus = sum(node.get("GPU", 0.0) for node in plan.cluster.nodes) if plan.cluster else 1.0
    share = 0.0 if plan.device == "cpu" else 1.0 / math.ceil(plan.workers / max(gpus, 1.0))
    kept = 0 if keeps_on_gpu(plan) else _memory_bytes(plan, group[0].task)
    return {
        "CPU": float(plan.preset.cores_per_run),
        "GPU": math.floor(share * 1e4) / 1e4,  # the finest share that Ray knows
        "memory": float(len(group) * kept),
    }


def gpu_memory_gib(device: str) -> float:
    """Return the memory of the GPU called `cuda` or `cuda:<i>`."""
    import torch

    return torch.cuda.get_device_properties(torch.device(device)).total_memory / 2**30


def check_memory(plan: "Plan", runs: "Sequence[Run] | None" = None) -> None:
    """Refuse runs that together keep more than this machine, or one more than any node, holds."""
    groups = plan.groups(runs)
    if plan.cluster:
        for group in groups:
            refuse_unplaceable(demand_of(plan, group), plan.cluster)
        return
    gpus = plan.gpus if keeps_on_gpu(plan) else ()
    there = min(map(gpu_memory_gib, gpus)) if gpus else machine()["memory_gib"]
    places = max(1, len(gpus))
    place = f"each of {places} GPUs" if places > 1 else "this GPU" if gpus else "this machine"
    kept = {task: _memory_bytes(plan, task) / 2**30 for task in plan.tasks}
    sizes = sorted((len(each) * kept[each[0].task] for each in groups), reverse=True)
    at_once = math.ceil(min(plan.workers, len(groups)) / places)
    needed = sum(sizes[:at_once])
    if needed <= there:
        return
    fitting = places * sum(total <= there for total in itertools.accumulate(sizes))
    fix = "train fewer seeds together, or make what they keep smaller with --set"
    raise UsageError(
        f"runs side by side keep {needed:.1f} GiB, but {place} has "
        f"{there:.1f} GiB of memory: {f'use --workers {fitting}' if fitting else fix}"
    )


def check_writable(directory: Path, flag: str = "--runs-dir") -> None:
    """Raise a `UsageError` unless files can be made in `directory`, which need not exist yet."""
    existing = directory
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"{flag}: cannot write to {existing}: {reason}") from None
