"""Bytes of two trees: the one that holds this file, and the one that it is compared with."""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from suite import behaviour, hardware
from suite.files import write_atomically
from suite.settings import UsageError, nearest
from tests.golden.configurations import RUNS, configure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORED = HERE / "golden.json"
"""By agent the runs of its base commit, with their settings, and the checksums that they have on
machines of several kinds."""
Orders = dict[str, dict[str, Any]]
"""By run: every setting, as JSON, and whether it is cut."""
Checksums = dict[str, dict[str, str]]
"""By run and file."""


def machine() -> dict[str, Any]:
    """Return all that decides the bytes of a run, on a CPU, beside the code."""
    versions = hardware.versions()
    facts = {
        **hardware.processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "libc": " ".join(platform.libc_ver()),
    }
    return facts | {name: versions[name] for name in ("torch", "numpy", "envpool")}


def base_runs(agent: str, only: Sequence[str] = ()) -> Orders:
    """Return the runs that the base commit had.

    Args:
        agent: whose runs.
        only: names of runs; empty: all.

    Raises:
        UsageError: if there is no base, or no such run.
    """
    runs = _stored(agent)["runs"]
    names = only or list(runs)
    for name in names:
        if name not in runs:
            raise UsageError(f"the base of {agent} has no run {name!r}{nearest(name, runs)}")
    return {name: {key: runs[name][key] for key in ("settings", "cut")} for name in names}


def todays_runs(agent: str) -> Orders:
    """Return the runs of `configurations.py`, with the settings that today's presets give them."""
    module = importlib.import_module(f"agents.{agent}")
    orders = {
        name: {"settings": dataclasses.asdict(configure(module, run)), "cut": run.cut}
        for name, run in RUNS[agent].items()
    }
    return json.loads(json.dumps(orders))


def store(agent: str, runs: Orders, checksums: Checksums) -> None:
    """Write the runs of an agent's new base, made on this machine."""
    _write(agent, {"runs": runs, "made": [{"machine": machine(), "checksums": checksums}]})


def add_machine(agent: str, checksums: Checksums) -> bool:
    """Add the base's checksums on a machine of this kind; false: they were there."""
    base = _stored(agent)
    if any(made["machine"] == machine() for made in base["made"]):
        return False
    base["made"].append({"machine": machine(), "checksums": checksums})
    _write(agent, base)
    return True


def _write(agent: str, base: dict[str, Any]) -> None:
    content = json.loads(STORED.read_bytes()) if STORED.exists() else {}
    content[agent] = base
    write_atomically(STORED, json.dumps(content, indent=1).encode() + b"\n")


def _stored(agent: str) -> dict[str, Any]:
    content = json.loads(STORED.read_bytes())
    if agent not in content or not behaviour.behaviours(agent):
        raise UsageError(f"{agent} has no base: python -m tests.golden --agent {agent} --update")
    return content[agent]


class Runner:
    """A process that runs what it is told with the code of one tree; it ends with the `with`.

    Args:
        tree: the root of a checkout.
    """

    def __init__(self, tree: Path) -> None:
        self._tree, self._said = tree, tempfile.TemporaryFile()  # noqa: SIM115

    @functools.cached_property
    def _process(self) -> "subprocess.Popen[str]":
        """The process, which takes seconds to start, from its first order on."""
        fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        fixed |= {"PYTHONPATH": str(self._tree), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen(
            [sys.executable, "-P", str(HERE / "runner.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=self._tree,
            env=os.environ | fixed,
        )

    def run(self, agent: str, runs: Orders) -> Checksums:
        """Return what an agent's runs give.

        Raises:
            RuntimeError: if one cannot be run, with the end of what was said.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"agent": agent, "tree": str(self._tree), "runs": runs}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if answer and (found := json.loads(answer)) is not None:
            return found
        if not answer:
            self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")[-4_000:]
        raise RuntimeError(f"{agent} does not run in {self._tree}:\n{said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if "_process" in vars(self):  # it was started
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()  # the end of its orders
        self._said.close()


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


class Bases:
    """The base commits' checksums: the stored ones; on a machine of a new kind they are made.

    That takes a worktree and a process for each commit, which end with the `with`.
    `python -m tests.golden` then stores the checksums; the tests store nothing.
    """

    def __init__(self) -> None:
        self._until_exit = contextlib.ExitStack()
        self._runners: dict[str, Runner] = {}

    def checksums(self, agent: str, runs: Orders) -> Checksums:
        """Return the stored checksums; those of a new kind of machine are made.

        Raises:
            UsageError: if the base commit is needed and not there.
        """
        here = machine()
        for made in _stored(agent)["made"]:
            if made["machine"] == here:
                return {name: made["checksums"][name] for name in runs}
        declared = behaviour.behaviours(agent)
        commit = declared[max(declared)]["base"]
        if commit not in self._runners:
            tree = self._until_exit.enter_context(checkout(commit))
            self._runners[commit] = self._until_exit.enter_context(Runner(tree))
        return self._runners[commit].run(agent, runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._until_exit.close()


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
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
