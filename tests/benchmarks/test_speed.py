"""How long every piece of work takes (`make bench`); figures to report, never to gate on."""

from typing import Any

import pytest

from reproduce.speed.workloads import WORKLOADS, built


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize("name", WORKLOADS)
def test_speed(benchmark: Any, name: str) -> None:
    """One repetition; shares of ceilings are `python -m reproduce throughput`'s to print."""
    with built([name]) as works:
        benchmark(works[name].repeat)
