"""What parallel runs keep in memory beside their networks, and whether it fits.

It is `memory_bytes` of the agent's configuration, where there is such a property; a replay of
frames is gigabytes. On a GPU it is the GPU's memory that must hold it, if the agent keeps it there.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from reproduce.plan.grid import Group, Plan
from reproduce.plan.places import refuse_unplaceable
from suite.hardware import gpu_memory_gib, machine
from suite.settings import UsageError


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory kept by parallel processes beside their networks, and the number that fits."""

    place: str
    """Whose memory: `this machine`, `this GPU`, or `each of 4 GPUs`."""
    num_places: int
    """How many such memories the processes are shared out among."""
    available: float | None
    """GiB of the smallest of them; None: unknown."""
    processes: Sequence[tuple[float, int]]
    """Memory that each process keeps, in GiB, and its number of runs; the largest first."""
    at_once: int
    """How many of them share one memory at a time, at most."""
    task_parts: int
    """How many processes a task's seeds are split over."""

    @property
    def needed(self) -> float:
        """Return the GiB that the largest processes keep that may share a memory."""
        return sum((size for size, _ in self.processes[: self.at_once]), 0.0)

    @property
    def fits(self) -> bool:
        """Return whether the memory holds them, as far as is known."""
        return self.available is None or self.needed <= self.available

    @property
    def most_workers(self) -> int | None:
        """Return how many processes may run side by side; None: all, as many as there are."""
        if self.available is None:
            return None
        totals = itertools.accumulate(size for size, _ in self.processes)
        fitting = sum(total <= self.available for total in totals)
        return None if fitting == len(self.processes) else fitting * self.num_places

    @property
    def most_seeds(self) -> int | None:
        """Return how many seeds of a task fit; None: nothing limits them."""
        largest, num_seeds = max(self.processes, default=(0.0, 1))
        if self.available is None or not largest:
            return None
        return int(self.available / self.at_once / (largest / num_seeds)) * self.task_parts


def keeps_on_gpu(plan: Plan) -> bool:
    """Return whether a run's `memory_bytes`, its replay, lie on the GPU."""
    return plan.device != "cpu" and getattr(plan.config, "keeps_on_device", False)


def kept_gib(plan: Plan, group: Group) -> float:
    """Return the memory that a group's runs keep, GiB; 0 where the agent states none."""
    configs = (plan.config_of(run.task, run.env_steps) for run in group.runs)
    return sum(getattr(config, "memory_bytes", 0) for config in configs) / 2**30


def demand_of(plan: Plan, group: Group) -> dict[str, float]:
    """Return the resources that a group takes, by Ray's names.

    CPU: the cores that a run keeps busy. GPU: on a cluster with fewer GPUs than workers, a share of
    one. Memory, in bytes: as the agent states it; 0 without a statement, or where the GPU keeps it.
    """
    gpus = sum(node.get("GPU", 0.0) for node in plan.cluster.nodes) if plan.cluster else 1.0
    share = 0.0 if plan.device == "cpu" else 1.0 / math.ceil(plan.workers / max(gpus, 1.0))
    memory = 0.0 if keeps_on_gpu(plan) else kept_gib(plan, group) * 2**30
    return {
        "CPU": float(plan.preset.cores_per_run),
        "GPU": math.floor(share * 1e4) / 1e4,  # the finest share that Ray knows
        "memory": float(round(memory)),
    }


def room_of(plan: Plan, groups: Sequence[Group]) -> Room:
    """Return the memory that groups of a plan keep on this machine, and where."""
    gpus = plan.gpus if keeps_on_gpu(plan) else ()
    place = "this GPU" if gpus else "this machine"
    num_places, num_tasks = max(1, len(gpus)), len({group.runs[0].task for group in groups})
    sizes = [(kept_gib(plan, group), len(group.runs)) for group in groups]
    return Room(
        place=f"each of {num_places} GPUs" if num_places > 1 else place,
        num_places=num_places,
        available=min(map(gpu_memory_gib, gpus)) if gpus else machine()["memory_gib"],
        processes=sorted(sizes, reverse=True),
        at_once=math.ceil(min(plan.workers, len(groups)) / num_places),
        task_parts=max(1, min(plan.workers, num_places) // max(1, num_tasks)),
    )


def check_memory(plan: Plan) -> None:
    """Refuse runs that together keep more than this machine, or one more than any node, holds.

    Raises:
        UsageError: naming both sizes and the number of workers, or seeds, that would fit.
    """
    groups = plan.groups()
    if plan.cluster:
        for group in groups:
            refuse_unplaceable(demand_of(plan, group), plan.cluster)
        return
    there = room_of(plan, groups)
    if there.fits:
        return
    fix, seeds = "make what it keeps smaller with --set", there.most_seeds or 0
    if there.most_workers:
        fix = f"use --workers {there.most_workers}"
    elif seeds:
        fix = f"use --num-seeds {seeds}"
    num_runs = sum(count for _, count in there.processes[: there.at_once])
    raise UsageError(
        f"{num_runs} runs side by side keep {there.needed:.1f} GiB, but {there.place} has "
        f"{there.available:.1f} GiB of memory: {fix}"
    )
