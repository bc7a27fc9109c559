"""How long every piece of work takes (`make bench`); figures to report, never to gate on."""

from typing import Any

import pytest

from reproduce.speed.workloads import WORKLOADS, built

SLOW = (
    *("train-sac", "train-impala", "train-acer_continuous"),
    *("simulator-Pong-16", "adapter-Pong-16"),
)
"""Left out among tests, where two whole trainings and eight games of Pong are enough."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WORKLOADS]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize("name", NAMES)
def test_speed(benchmark: Any, name: str) -> None:
    """One repetition; shares of ceilings are `python -m reproduce throughput`'s to print."""
    with built([name]) as works:
        benchmark(works[name].repeat)
