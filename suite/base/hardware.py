"""The machine, package versions and code revision of a run."""

import ast
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from suite.base.errors import UsageError, nearest

REVISION = "revision.json"
"""File that replaces git in a copy of the code; see `revision`."""
SETTINGS = "results/references/*/{agent}.toml"
"""Files with the sources' settings for an agent; see `suite/settings/presets.py`."""
PACKAGES = ("torch", "envpool", "gymnasium", "box2d", "numpy", "scipy", "pandas", "safetensors")
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
CPUINFO = Path("/proc/cpuinfo")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
GENERATION = ("vendor_id", "cpu family", "model", "stepping", "cache size")
NUMBER = re.compile(r"^BEHAVIOUR = (\d+)\b", re.MULTILINE)
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
    """Return how many processor cores this process may use, by its affinity and its cgroup (v2)."""
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


@cache
def revision() -> dict[str, Any]:
    """Return `commit` (or None outside a git checkout) and `dirty`: uncommitted code changes.

    A copy of a checkout reads both from its `revision.json`.
    """
    root = _root()
    if (root / REVISION).exists():
        return json.loads((root / REVISION).read_bytes())
    try:
        _git(
            root, "ls-files", "--error-unmatch", str(Path(__file__).resolve())
        )  # ours, not a host's
        commit = _git(root, "rev-parse", "HEAD")
        code = ("suite", "agents", "reproduce", ":(glob)" + SETTINGS.format(agent="*"))
        changed = _git(root, "status", "--porcelain", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changed)}


def sources(agent: str) -> dict[str, str]:
    """Return the SHA-256 of every file that an agent's run depends on, by path.

    These are the agent's file, all that it imports of this project, and the sources' settings;
    unlike a commit's they change with what is not committed, and not with pages, tests and figures.
    """
    root = _root()
    paths = sorted(imported(root, root / "agents" / f"{agent}.py"))
    paths += sorted(root.glob(SETTINGS.format(agent=agent)))
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def of_code(sources: object) -> dict[str, str]:
    """Return a record's checksums of code alone: its settings are in its configuration."""
    known = sources if isinstance(sources, Mapping) else {}
    return {path: checksum for path, checksum in known.items() if path.endswith(".py")}


def behaviour(agent: str) -> int | None:
    """Return the number in an agent's file that goes up when the bytes of its runs change.

    None for a file without `BEHAVIOUR`: runs of such an agent count until its code changes.
    """
    try:
        text = (_root() / "agents" / f"{agent}.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = NUMBER.search(text)
    return int(found[1]) if found else None


def uncommitted(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return which Python files differ from the last commit, or are in none.

    Without git, as where a wheel was installed, there are none; in a copy of a checkout with
    changes these are all files.
    """
    names = tuple(sorted(name for name in files if name.endswith(".py")))
    if (_root() / REVISION).exists():
        return names if revision()["dirty"] else ()
    return _uncommitted(_root(), names, tuple(files[name] for name in names))


@lru_cache(maxsize=64)  # every run that a process records asks
def _uncommitted(root: Path, names: tuple[str, ...], _sums: tuple[str, ...]) -> tuple[str, ...]:
    try:
        _git(root, "ls-files", "--error-unmatch", "suite/base/hardware.py")  # ours, not a host's
        known = _git(root, "ls-files", "-z", "--", *names).split("\0")
        changed = _git(root, "diff", "--name-only", "--relative", "-z", "HEAD", "--", *names)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(name for name in names if name in changed.split("\0") or name not in known)


def imported(root: Path, file: Path) -> set[Path]:
    """Return a file and all files below `root` that it imports, directly or not."""
    found, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        if path not in found and path.exists():
            found.add(path)
            waiting += _imports(root, path, path.read_bytes())
    return found


@lru_cache(maxsize=1024)  # a grid asks before every run that it starts
def _imports(root: Path, path: Path, content: bytes) -> tuple[Path, ...]:
    """Return where the modules may be that a file imports, wherever in it, and their packages."""
    here = path.relative_to(root).parent.parts
    names = {(*here, "__init__")}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a file that is being edited
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = here[: len(here) - node.level + 1] if node.level else ()
            module = (*package, *(node.module.split(".") if node.module else ()))
            names |= {module, *((*module, alias.name) for alias in node.names)}
    parts = {name[: i + 1] for name in names for i in range(len(name))}
    modules = [root.joinpath(*part) for part in sorted(parts)]
    return tuple(
        place for it in modules for place in (it.with_name(f"{it.name}.py"), it / "__init__.py")
    )


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _memory_gib() -> float:
    """Return the memory that this process may use: the machine's, or its container's limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # absent, or "max": no limit
            sizes.append(int(path.read_text()))
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
