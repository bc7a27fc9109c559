"""How long every piece of work takes (`make bench`); figures to report, never to gate on."""

from typing import Any

import pytest

from reproduce.pipeline import gather
from reproduce.plan.make import load_plan
from reproduce.plan.presets import PUBLISHED
from reproduce.speed.workloads import WORKLOADS, build

pytestmark = pytest.mark.further  # `make bench` alone runs them


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize("name", WORKLOADS)
def test_speed(benchmark: Any, name: str) -> None:
    """One repetition of a workload."""
    benchmark(build([name])[name])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
def test_gathering(benchmark: Any) -> None:
    """Gather and judge a published grid of four tasks."""
    plan = load_plan("a2c", "mujoco-small", "tianshou_v3", PUBLISHED)
    tables = benchmark(gather, plan)
    assert len(tables["verdicts"]) == 4
