"""Bytes of short runs, and the checksums that are stored of them."""

import dataclasses
import importlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from suite.base import code, hardware
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.settings.older import todays_settings
from tests.golden.configurations import RUNS, configure

STORED = Path(__file__).with_name("golden.json")
"""By agent: its behaviour's number, the short runs with their settings, and the checksums that they
have on machines of several kinds."""
MISSING = "no checksums are stored for this processor and these versions of packages"
BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""Instructions that hypervisors may hide on one processor and not on its like."""
Orders = dict[str, dict[str, Any]]
"""By run: every setting, as JSON, and whether it is cut."""
Checksums = dict[str, dict[str, str]]
"""By run and file."""


def machine() -> dict[str, Any]:
    """Return all that decides the bytes of a run, on a CPU, beside the code."""
    versions = hardware.versions()
    facts = {
        **hardware.processor(),
        "bfloat16": " ".join(sorted(BFLOAT16 & set(hardware.CPUINFO.read_text().split()))),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "libc": " ".join(platform.libc_ver()),
    }
    return facts | {name: versions[name] for name in ("torch", "numpy", "envpool")}


def number_of(agent: str) -> int:
    """Return an agent's number, under which checksums may be stored; refuse one that went down."""
    number, known = code.behaviour(agent), stored(agent)
    if number is None:
        raise UsageError(f"agents/{agent}.py has no number: add BEHAVIOUR = 1 below its imports")
    if known is not None and number < known["behaviour"]:
        raise UsageError(
            f"agents/{agent}.py has BEHAVIOUR = {number}, after {known['behaviour']}: raise it"
        )
    return number


def check_stored(agent: str) -> None:
    """Refuse checksums of another number than the agent's."""
    number, known = number_of(agent), stored(agent)
    if known is None or known["behaviour"] != number:
        raise UsageError(
            f"no checksums of behaviour {number}: python -m tests.golden --agent {agent} --update"
        )


def stored(agent: str) -> dict[str, Any] | None:
    """Return what is stored of an agent: `behaviour`, `runs` and `made`; None: nothing."""
    return json.loads(STORED.read_bytes()).get(agent) if STORED.exists() else None


def stored_runs(agent: str, only: Sequence[str] = ()) -> Orders:
    """Return the short runs that are compared, all or those of these names."""
    runs = (stored(agent) or {"runs": todays_runs(agent)})["runs"]
    return {name: runs[name] for name in only or runs}


def checksums(agent: str) -> Checksums:
    """Return the checksums stored for a machine of this kind, by run; none of an unknown kind."""
    made = (stored(agent) or {"made": []})["made"]
    here = machine().items()  # older entries do not say all of it
    return next((each["checksums"] for each in made if each["machine"].items() <= here), {})


def todays_runs(agent: str) -> Orders:
    """Return the runs of `runs.toml`, with the settings that today's presets give them."""
    module = importlib.import_module(f"agents.{agent}")
    orders = {
        name: {"settings": dataclasses.asdict(configure(module, run)), "cut": run.cut}
        for name, run in RUNS[agent].items()
    }
    return json.loads(json.dumps(orders))


def of_today(agent: str, order: Any) -> Any:
    """Return a stored run with the settings that are younger than it, at what it ran with."""
    config_class = importlib.import_module(f"agents.{agent}").Config
    return order | {"settings": todays_settings(config_class, order["settings"])}


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
    text = re.sub(r"\{[^{}]*\}", _on_one_line, json.dumps(content, indent=1))
    write_atomically(STORED, text.encode() + b"\n")


def _on_one_line(innermost: re.Match[str]) -> str:
    return json.dumps(json.loads(innermost[0]))


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return a line for every run that gave other bytes: which, and in what."""
    lines: list[str] = []
    for name in {**theirs, **ours}:
        before, after = theirs.get(name, {}), ours.get(name, {})
        files = [file for file in {**before, **after} if before.get(file) != after.get(file)]
        if not before or not after:
            lines.append(f"{name}: only {'today' if after else 'before'}")
        elif files:
            lines.append(f"{name}: {', '.join(sorted(files))}")
    return lines
