"""How long every piece of work takes (`make bench`); figures to report, never to gate on."""

from typing import Any

import pytest

from reproduce.speed.workloads import WORKLOADS, built

NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in ("train-sac", "train-impala") else [])
    for name in WORKLOADS
]
"""All; among tests, two whole trainings are enough."""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize("name", NAMES)
def test_speed(benchmark: Any, name: str) -> None:
    """One repetition; shares of ceilings are `python -m reproduce throughput`'s to print."""
    with built([name]) as works:
        benchmark(works[name].repeat)
