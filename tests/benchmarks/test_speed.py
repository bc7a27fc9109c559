"""How long every piece of work takes (`make bench`); figures to report, never to gate on."""

from typing import Any

import pytest

from reproduce.pipeline import gather
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.make import load_plan
from reproduce.simulators.engines import ENGINES, OF_PEERS, make_engine
from reproduce.simulators.serve import random_actions
from reproduce.speed.workloads import WORKLOADS, build
from suite.base.errors import UsageError

pytestmark = pytest.mark.further  # `make bench` runs them


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize("name", WORKLOADS)
def test_speed(benchmark: Any, name: str) -> None:
    """One repetition of a workload."""
    benchmark(build([name])[name])


SIMULATORS = [
    pytest.param(name, task, marks=[] if task == "CartPole-v1" else [pytest.mark.slow])
    for task in ("CartPole-v1", "Pong-v5", "HalfCheetah-v4")
    for name in ENGINES
    if name not in OF_PEERS
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
@pytest.mark.parametrize(("name", "task"), SIMULATORS)
def test_simulator(benchmark: Any, name: str, task: str) -> None:
    """One vector step of eight environments, of its batch where the engine has batches."""
    try:
        engine = make_engine(name, task, 8, 1)
    except UsageError as error:
        pytest.skip(str(error))
    choose = random_actions(engine)
    benchmark(lambda: engine.step(choose(engine.obs)))
    engine.close()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.benchmark(disable_gc=True, warmup=True)
def test_gathering(benchmark: Any) -> None:
    """Gather and judge a published grid of four tasks."""
    plan = load_plan("a2c", "mujoco-small", "tianshou_v3", PUBLISHED)
    tables = benchmark(gather, plan)
    assert len(tables["verdicts"]) == 4
