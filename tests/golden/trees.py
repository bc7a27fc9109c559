"""Bytes of two trees: the one that holds this file, and the one that it is compared with."""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from suite import hardware
from suite.settings import UsageError
from tests.golden.configurations import RUNS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORED = HERE / "golden.json"
"""The base commit, the machine it ran on, and its checksums by agent, run and file."""
Checksums = dict[str, dict[str, str]]
"""By run and file."""


def machine() -> dict[str, Any]:
    """Return all that decides the bytes of a run, on a CPU, beside the code.

    A model's name is not enough: hypervisors give the same one to several generations.
    """
    versions = hardware.versions()
    facts: dict[str, Any] = {"cpu": hardware.machine()["cpu"]}
    lines: list[str] = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    told = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    for name in ("vendor_id", "cpu family", "model", "stepping", "cache size"):
        facts[name] = told.get(name)
    flags = " ".join(sorted(told.get("flags", "").split()))
    facts["flags"] = hashlib.sha256(flags.encode()).hexdigest()[:16]
    facts["vectors"] = torch.backends.cpu.get_cpu_capability()
    facts["libc"] = " ".join(platform.libc_ver())
    return facts | {name: versions[name] for name in ("torch", "numpy", "envpool")}


def stored() -> dict[str, Any]:
    """Return the base commit, its machine and its checksums."""
    return json.loads(STORED.read_bytes())


def run(tree: Path, agent: str, only: Sequence[str] = ()) -> Checksums:
    """Return what an agent's runs give with the code of `tree`.

    Args:
        tree: the root of a checkout.
        agent: whose runs.
        only: names of runs; empty: all.

    Raises:
        RuntimeError: if one cannot be run there, with the end of what it said.
    """
    names = only or RUNS[agent]
    runs = {name: dataclasses.asdict(RUNS[agent][name]) for name in names}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    process = subprocess.run(
        [sys.executable, "-P", str(HERE / "runner.py")],
        input=json.dumps({"agent": agent, "tree": str(tree), "runs": runs}),
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, **threads, "PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": ""},
    )
    if process.returncode:
        raise RuntimeError(f"{agent} does not run in {tree}:\n{process.stderr[-4_000:]}")
    return json.loads(process.stdout)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Lend a temporary worktree of a commit.

    Raises:
        UsageError: if the repository does not hold it.
    """
    if not _has(commit):
        raise UsageError(f"the base commit {commit} is not in this clone: git fetch --unshallow")
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "base"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def expected(agent: str) -> Checksums:
    """Return the base commit's checksums: the stored ones, or on another machine its own.

    Raises:
        UsageError: if the base commit is needed and not there.
    """
    base = stored()
    if base["machine"] == machine():
        return base["checksums"].get(agent, {})
    with checkout(base["commit"]) as tree:
        return run(tree, agent)


def differences(theirs: Checksums, ours: Checksums) -> list[str]:
    """Return a line for every run that gave other bytes: which, and in what."""
    lines: list[str] = []
    for name in {**theirs, **ours}:
        before, after = theirs.get(name, {}), ours.get(name, {})
        files = [file for file in {**before, **after} if before.get(file) != after.get(file)]
        if not before or not after:
            lines.append(f"{name}: only {'here' if after else 'there'}")
        elif files:
            lines.append(f"{name}: {', '.join(sorted(files))}")
    return lines


def git(*arguments: str) -> str:
    """Return what git says of this tree's repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _has(commit: str) -> bool:
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
