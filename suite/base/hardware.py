"""The machine and the package versions of a run."""

import contextlib
import ctypes
import os
import platform
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from suite.base.errors import UsageError, nearest

PACKAGES = ("torch", "envpool", "gymnasium", "box2d", "numpy", "scipy", "pandas", "safetensors")
CPUINFO = Path("/proc/cpuinfo")
CPU_QUOTA, MEMORY_LIMIT = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/memory.max")
"""A container's limits (cgroup v2)."""
GENERATION = ("vendor_id", "cpu family", "model", "stepping", "cache size")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
GPU_MEMORY_FULL = ("STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Texts of errors on a full GPU memory, beside torch's own: cuBLAS's, cuDNN's, the driver's."""


@cache
def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the facts that decide speed and rounding, for `run.json`.

    Cores and memory are those that this process may use; the GPU is the device in use, on a CPU the
    machine's first.
    """
    return {
        "cpu": processor()["cpu"],
        "processor": processor_name(processor()),
        "cores": num_cores(),
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
        **_gpu(device),
    }


@cache
def processor() -> dict[str, str | None]:
    """Return the facts that distinguish processor generations that hypervisors give the same name.

    What Linux does not say is None.
    """
    lines = CPUINFO.read_text().partition("\n\n")[0].splitlines()
    parts = (line.partition(":") for line in lines)
    told = {name.strip(): text.strip() for name, _, text in parts}
    name = told.get("model name") or platform.processor() or platform.machine()
    return {"cpu": name, **{fact: told.get(fact) for fact in GENERATION}}


def processor_name(facts: Mapping[str, Any]) -> str:
    """Describe the processor in words: its name and generation."""
    words = {"family": facts["cpu family"], "model": facts["model"]}
    return " ".join([facts["cpu"] or "", *(f"{k} {v}" for k, v in words.items() if v)])


def num_cores() -> int:
    """Return how many processor cores this process may use, by its affinity and its cgroup."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max 100000": no quota
        quota, period = map(int, CPU_QUOTA.read_text().split())
        cores = max(1, min(cores, quota // period))
    return cores


@cache
def versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the versions of Python, of the packages that results depend on, and of others."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def find_device(name: str, *, tf32: bool = False) -> Any:
    """Return the `torch.device` called `name`: `cpu`, `cuda`, `cuda:<i>`, or `auto`."""
    import torch

    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        if tf32:
            raise UsageError("tf32 needs a GPU, and this run is on cpu: leave it out")
        return torch.device("cpu")
    if name == "auto":
        name = "cuda"
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise UsageError(
            f"unknown device {name!r}{nearest(name, ['auto', 'cpu', 'cuda', 'cuda:0'])}"
        )
    num_gpus, reason = _num_gpus()
    if int(name.partition(":")[2] or 0) >= num_gpus:
        why = f" ({reason})" if reason else ""
        raise UsageError(
            f"--device {name}: torch finds {num_gpus} GPUs here{why}; use --device cpu"
        )
    torch.backends.cudnn.deterministic = True  # the same command gives the same bytes
    return torch.device(name)


def chosen_device(name: str) -> str:
    """Return the name of a device; of `auto`, the one that it chooses here."""
    return find_device(name).type if name == "auto" else name


def _num_gpus() -> tuple[int, str]:
    """Return how many GPUs torch can use; if none, why, where torch says so."""
    import torch

    with warnings.catch_warnings(record=True) as said:  # for example of a driver that is too old
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return torch.cuda.device_count(), ""
    if torch.version.cuda is None and torch.version.hip is None:
        return 0, f"torch {torch.__version__} was built for CPUs alone"
    texts = (str(each.message).partition("(Triggered internally")[0] for each in said)
    return 0, " ".join(" ".join(texts).split())


def use_device(name: str, *, tf32: bool = False) -> Any:
    """Return the device called `name` as `find_device` does, and let nothing land on another GPU.

    This gives the process its share of that GPU's memory: who only plans calls `find_device`.
    """
    import torch

    device = find_device(name, tf32=tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if device.index is not None:  # otherwise it is torch's own first choice
        torch.cuda.set_device(device)
    return device


def use_threads(num_threads: int) -> None:
    """Let torch compute with `num_threads` threads, and keep the memory it frees in the process.

    By default, glibc may return tensors of 128 KiB and more to the system at every update and
    request them again page by page, which costs up to a fifth of the time.
    """
    import torch

    torch.set_num_threads(num_threads)
    glibc = ctypes.CDLL(None)
    glibc.mallopt(M_MMAP_THRESHOLD, 2**25)
    glibc.mallopt(M_TRIM_THRESHOLD, 2**30)


def worker_thread() -> ThreadPoolExecutor:
    """Return a thread in which torch computes with as many threads as in this one.

    `torch.set_num_threads` holds for the thread that calls it: in a new one, oneDNN's convolutions
    and products would take all cores.
    """
    import torch

    number = torch.get_num_threads()
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(number,))


def _memory_gib() -> float:
    """Return the memory that this process may use: the machine's, or its container's limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # absent, or "max": no limit
        sizes.append(int(MEMORY_LIMIT.read_text()))
    return round(min(sizes) / 2**30, 1)


def fills_gpu_memory(error: BaseException) -> bool:
    """Return whether an error says that a GPU's memory did not suffice."""
    import torch

    told = any(text in str(error) for text in GPU_MEMORY_FULL)
    return told or isinstance(error, torch.OutOfMemoryError)


def _gpu(device: str) -> dict[str, Any]:
    facts = _first_gpu()
    if device == "cpu":
        return facts
    import torch

    if not torch.cuda.is_available():
        return facts
    used = torch.device("cuda" if device == "auto" else device)
    return facts | {"gpu": torch.cuda.get_device_name(used)}  # CUDA_VISIBLE_DEVICES renumbers them


def _first_gpu() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        gpu, driver = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except Exception:  # no package, no driver, no device: each means no usable GPU
        return {"gpu": None, "gpu_driver": None}
    return {"gpu": gpu, "gpu_driver": driver}
