"""Throughput: the cost of an update in exact numbers, and the speed beside another commit's."""

from typing import NamedTuple


class Finding(NamedTuple):
    """What a check found for one workload."""

    name: str
    alarm: bool
    text: str
    """One line: what changed, or why the workload was not judged."""
    judged: bool = True
    """Whether there was something to compare with."""
