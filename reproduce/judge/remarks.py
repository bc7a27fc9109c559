"""What stands beside a verdict: how its runs were made, and what judged them.

A remark is a mark, as in `uncommitted code`, or a mark with its details, as in `settings changed:
gamma = 0.98`. The marks stand beside the verdict's word, the details in the sentences on it.
"""

import hashlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reproduce import ROOT
from reproduce.gather.reference_tables import LENT
from suite.settings.command_line import printable

CODE = ("reproduce/judge/*.py", "reproduce/gather/*.py", "suite/*_scores.csv")
"""Files that judge by every source: code, and scores of policies that have learned nothing."""
TABLES = ("results/references/comparable.csv", "results/references/{source}/*.csv*")
"""What was published by a source, and what it compares with."""
SHOWN = 12
"""Digits of a checksum that are shown."""
ABSENT = "none"
"""In place of a package's version, or a processor's name, that a record lacks."""


class Judge(NamedTuple):
    """What judges by a source: code and tables."""

    digest: str
    """The beginning of a checksum of all their files."""
    changed: bool | None
    """Whether a file differs from the committed one; None where git knows nothing of them."""

    def sentence(self) -> str:
        """Say it to readers of a report."""
        state = {True: ", changed since the commit", False: "", None: ", unknown to git"}
        return f"Judged by code and tables {self.digest}{state[self.changed]}"


def judge_of(agent: str, source: str | None, root: Path = ROOT) -> Judge:
    """Return what judges an agent by a source."""
    patterns = [*CODE, TABLES[0]]
    if source is not None:
        patterns += [TABLES[1].format(source=source), f"results/references/{source}/{agent}.toml"]
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        sum_ = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{sum_}  {path.relative_to(root).as_posix()}\n".encode())
    for name, table in LENT.get((agent, str(source)), (None, {}))[1].items():
        total.update(f"{name}\n{table.to_csv(index=False)}".encode())
    return Judge(total.hexdigest()[:SHOWN], _is_changed(root, patterns))


def of_task(
    settings: Mapping[str, str], records: Sequence[Mapping[str, Any]], *, judge_changed: bool
) -> str:
    """Return the remarks on a task's verdict, separated by semicolons; empty without any."""
    remarks = []
    if settings:
        changes = ", ".join(f"{key} = {value}" for key, value in settings.items())
        remarks.append(f"settings changed: {changes}")
    dirty = sum(record.get("dirty") is True for record in records)
    if dirty:
        remarks.append(f"uncommitted code: in {dirty} of {len(records)} runs")
    versions = [_mapping(record, "versions") for record in records]
    different = [
        f"{package} {differing}"
        for package in sorted({package for each in versions for package in each})
        if (differing := _differing(each.get(package) for each in versions))
    ]
    if different:
        remarks.append(f"versions differ: {', '.join(different)}")
    if processors := _differing(_processors(records)):
        remarks.append(f"processors differ: {processors}")
    if judge_changed:
        remarks.append("judge changed")
    return printable("; ".join(remarks))


def of_suite(remarks: Iterable[str]) -> str:
    """Return the marks that any task's remarks have, separated by semicolons."""
    return "; ".join(dict.fromkeys(mark for each in remarks for mark in marks(each)))


def marks(remarks: str) -> list[str]:
    """Return what remarks begin with, which stands beside the verdict's word."""
    return [remark.partition(": ")[0] for remark in remarks.split("; ") if remark]


def details(remarks: str) -> list[str]:
    """Return the remarks that have details, which are said in sentences."""
    return [remark for remark in remarks.split("; ") if ": " in remark]


def _processors(records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what each run computed on: its GPU, or its processor as far as all records tell."""
    machines = [_mapping(record, "machine") for record in records]
    tells = all(machine.get("processor") for machine in machines)  # younger than its model's name
    names = [machine.get("processor" if tells else "cpu") for machine in machines]
    devices = [str(_mapping(record, "config").get("device", "cpu")) for record in records]
    return [
        name if device == "cpu" else machine.get("gpu")
        for name, device, machine in zip(names, devices, machines, strict=True)
    ]


def _differing(values: Iterable[Any]) -> str:
    """Return values in words, each once, if there are several; else nothing."""
    words = (ABSENT if value is None else str(value).replace(";", ",") for value in values)
    found = dict.fromkeys(words)
    return " and ".join(sorted(found)) if len(found) > 1 else ""


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _is_changed(root: Path, patterns: Sequence[str]) -> bool | None:
    """Return whether files differ from the committed ones; None where git cannot tell."""
    git = ["git", "-C", str(root)]
    try:
        own = [*git, "ls-files", "--error-unmatch", "reproduce/judge"]  # ours, not a host's
        subprocess.run(own, check=True, capture_output=True)
        asked = [*git, "status", "--porcelain", "--", *(f":(glob){each}" for each in patterns)]
        told = subprocess.run(asked, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return bool(told.stdout.strip())
