"""Bytes of a tree's short runs, and the checksums that are stored of them."""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from suite.base import hardware
from suite.base.errors import UsageError, nearest
from suite.base.files import write_atomically
from suite.settings.recorded import recorded_settings
from tests.golden.configurations import RUNS, configure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORED = HERE / "golden.json"
"""By agent: its behaviour's number, the short runs with their settings, and the checksums that they
have on machines of several kinds."""
MISSING = "no checksums are stored for this processor and these versions of packages"
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


def number_of(agent: str) -> int:
    """Return an agent's number, under which checksums may be stored.

    Raises:
        UsageError: if there is none, or it went down.
    """
    number, known = hardware.behaviour(agent), stored(agent)
    if number is None:
        raise UsageError(f"agents/{agent}.py has no number: add BEHAVIOUR = 1 below its imports")
    if known is not None and number < known["behaviour"]:
        raise UsageError(
            f"agents/{agent}.py has BEHAVIOUR = {number}, after {known['behaviour']}: raise it"
        )
    return number


def check_stored(agent: str) -> None:
    """Check that the stored checksums are of an agent's number.

    Raises:
        UsageError: naming the command that stores them.
    """
    number, known = number_of(agent), stored(agent)
    if known is None or known["behaviour"] != number:
        raise UsageError(
            f"no checksums of behaviour {number}: python -m tests.golden --agent {agent} --update"
        )


def stored(agent: str) -> dict[str, Any] | None:
    """Return what is stored of an agent: `behaviour`, `runs` and `made`; None: nothing."""
    return json.loads(STORED.read_bytes()).get(agent) if STORED.exists() else None


def stored_runs(agent: str, only: Sequence[str] = ()) -> Orders:
    """Return the short runs that are compared.

    Args:
        agent: whose runs.
        only: names of runs; empty: all.

    Raises:
        UsageError: if there is none of such a name.
    """
    runs = (stored(agent) or {"runs": todays_runs(agent)})["runs"]
    for name in only:
        if name not in runs:
            raise UsageError(f"{agent} has no run {name!r}{nearest(name, runs)}")
    return {name: runs[name] for name in only or runs}


def checksums(agent: str) -> Checksums:
    """Return the checksums stored for a machine of this kind, by run; none of an unknown kind."""
    made = (stored(agent) or {"made": []})["made"]
    return next((each["checksums"] for each in made if each["machine"] == machine()), {})


def todays_runs(agent: str) -> Orders:
    """Return the runs of `configurations.py`, with the settings that today's presets give them."""
    module = importlib.import_module(f"agents.{agent}")
    orders = {
        name: {"settings": dataclasses.asdict(configure(module, run)), "cut": run.cut}
        for name, run in RUNS[agent].items()
    }
    return json.loads(json.dumps(orders))


def of_today(agent: str, order: Any) -> Any:
    """Return a stored run with the settings that are younger than it, at what it ran with."""
    config_class = importlib.import_module(f"agents.{agent}").Config
    return order | {"settings": recorded_settings(config_class, order["settings"])}


def store(agent: str, runs: Orders, ours: Checksums) -> None:
    """Write an agent's runs and their checksums on this machine, for the number in its file.

    Other kinds of machine keep theirs, of unchanged runs of the same number. A setting that is
    younger than a run, at the value that it ran with, changes nothing.
    """
    content = json.loads(STORED.read_bytes()) if STORED.exists() else {}
    number, before = number_of(agent), content.get(agent)
    made = [{"machine": machine(), "checksums": ours}]
    if before is not None and before["behaviour"] == number:
        both = before["runs"].keys() & runs
        same = {n for n in both if of_today(agent, before["runs"][n]) == of_today(agent, runs[n])}
        made += [
            each | {"checksums": {k: v for k, v in each["checksums"].items() if k in same}}
            for each in before["made"]
            if each["machine"] != machine()
        ]
    content[agent] = {"behaviour": number, "runs": runs, "made": made}
    write_atomically(STORED, json.dumps(content, indent=1).encode() + b"\n")


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
