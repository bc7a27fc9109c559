"""Where runs go: devices, workers, clusters, folders."""

import itertools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from suite.hardware import find_device, num_cores
from suite.settings import UsageError


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster that a plan runs on, as it was when the plan was made."""

    address: str | None
    """Value of `--ray-address`."""
    nodes: tuple[Mapping[str, float], ...]
    """Resources of every node that is alive, in Ray's words: `CPU`, `GPU`, `memory` (bytes)."""

    def most(self, resource: str) -> float:
        """Return how much of a resource the node with the most of it has."""
        return max((node.get(resource, 0.0) for node in self.nodes), default=0.0)

    def num_places(self, demand: Mapping[str, float]) -> int:
        """Return how many groups that each take `demand` can run at the same time.

        A share of a GPU is of one GPU: three shares of 0.4 need two.
        """

        def places(name: str, there: float, need: float) -> int:
            if name == "GPU" and need < 1:
                return int(there) * int(1 / need)
            return int(there / need)

        return sum(
            min(places(name, node.get(name, 0.0), need) for name, need in demand.items() if need)
            for node in self.nodes
        )


def choose_device(name: str, cluster: Cluster | None) -> str:
    """Return `cpu`, `cuda` or `cuda:<i>`; `auto`: the device of this machine or the cluster."""
    if cluster is None:
        return find_device(name).type if name == "auto" else str(find_device(name))
    if name == "auto":
        return "cuda" if cluster.most("GPU") else "cpu"
    if name not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: on a Ray cluster it is auto, cpu or cuda")
    return name


def gpus_of(device: str) -> tuple[str, ...]:
    """Return the GPUs of this machine that a plan's processes are dealt to; none for `cpu`.

    `cuda` means every GPU that torch finds, `cuda:<i>` that one alone.
    """
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
    units = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (2**30, "GiB of memory")}
    needs = " and ".join(
        f"{demand[name] / unit:.4g} {what}"
        for name, (unit, what) in units.items()
        if demand.get(name)
    )
    there = "; ".join(
        ", ".join(
            f"{node.get(name, 0.0) / unit:.4g} {what}" for name, (unit, what) in units.items()
        )
        for node in cluster.nodes
    )
    raise UsageError(
        f"a process needs {needs}, which no node of the Ray cluster has ({there}): add one with "
        "`ray start --address`, or choose another --device"
    )


def fresh_directory(runs_dir: Path) -> Path:
    """Return a folder for runs inside `runs_dir` that does not exist: `fresh-1`, `fresh-2`, ..."""
    numbers = itertools.count(1)
    places = (runs_dir / f"fresh-{number}" for number in numbers)
    return next(place for place in places if not place.exists())


def check_writable(directory: Path, flag: str = "--runs-dir") -> None:
    """Raise a `UsageError` unless files can be made in `directory`, which need not exist yet.

    Args:
        directory: the folder.
        flag: what named it on the command line.
    """
    existing = directory
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"{flag}: cannot write to {existing}: {reason}") from None
