"""What stands beside a verdict: how its runs were made.

A remark is a mark, as in `uncommitted code`, or a mark with its details, as in `settings changed:
gamma = 0.98`. The marks stand beside the verdict's word, the details in the sentences on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from suite.base.hardware import recorded_processor
from suite.settings.command_line import printable

ABSENT = "none"
"""In place of a package's version, or a processor's name, that a record lacks."""


def of_task(settings: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> str:
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
    processors = [recorded_processor(machine) for machine in machines]
    if not all(processors):
        processors = [machine.get("cpu") for machine in machines]
    devices = [_mapping(record, "config").get("device", "cpu") for record in records]
    told = zip(machines, processors, devices, strict=True)
    return [processor if device == "cpu" else each.get("gpu") for each, processor, device in told]


def _differing(values: Iterable[Any]) -> str:
    """Return values in words, each once, if there are several; else nothing."""
    words = (ABSENT if value is None else str(value).replace(";", ",") for value in values)
    found = dict.fromkeys(words)
    return " and ".join(sorted(found)) if len(found) > 1 else ""


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}
