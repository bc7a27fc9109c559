"""Every agent on a GPU that is not there: whole trainings, beside the same ones on the CPU.

`tests/stand_in_gpu.py` says which mistakes it finds, and which only a GPU can.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import agents
from agents import impala
from suite import player, unroll_session
from suite.base.errors import UsageError
from suite.collector import Collector
from suite.graphs import WARM_UPS, Graphs
from tests import stand_in_gpu
from tests.agents.trainings import by_agent, learned, module_of
from tests.golden import configurations, runner
from tests.runs import repeatable
from tests.stand_in_gpu import DEVICE, Graph, OnGpu, Pool, installed, on_cpu, reads_nothing

pytestmark = pytest.mark.long
RUNS = {
    "a2c": ("classic, two seeds, cut", "mujoco, in full", "frames, sticky, two trunks"),
    "acer": (
        *("memory, two seeds, cut", "classic, ChainerRL's choices"),
        "frames, replay twice over, two trunks, evaluated",
    ),
    "acer_continuous": (
        *("classic, normalised, cut", "classic, learned deviation", "mujoco-small, online, cut"),
    ),
    "impala": (
        *("classic, far behind, adam, cut", "memory, two seeds, cut"),
        "classic, continuous, in turns, the rate reaches 0",
    ),
    "ppo": (
        *("classic, continuous, the rate and the clip reach 0", "mujoco-small, in full"),
        *("classic, two seeds, cut", "frames, small"),
    ),
    "sac": (
        *("classic, tuned, two seeds, cut", "tianshou_v3, sampled, one critic, replay twice over"),
        *("dmc, pytorch_sac, two seeds", "dmc, three critics, actor seldom"),
    ),
    "sac_alf": (
        "parts, priorities, sampled, replay twice over, three seeds",
        "mixed, fixed temperatures, bounds, warm-up only at the start, cut",
        "mixed, tuned, in full",
        "a prior of one's own, equal priorities, all weighted",
        "discrete, two seeds, priorities, cut",
        "several steps, two seeds, actor seldom, orthogonal, cut",
    ),
    "sac_discrete": (
        "classic, alf, evaluated, two seeds, replay twice over, cut",
        "classic, critics, three, their mean, a bound from the start",
    ),
    "sac_value": ("sampled, one critic, replay twice over, cut",),
}
"""Names of golden runs that between them take every branch on which tensors are made."""
CASES = [(agent, name) for agent, names in RUNS.items() for name in names]
UNROLLS = [each for each in CASES if each[0] not in runner.SEEDS_TOGETHER]
"""Those of agents that learn from unrolls."""
CHANGED: list[tuple[str, str, dict[str, Any]]] = [
    *((*each, {"learning_rate_decay_steps": 10_000} if each in UNROLLS else {}) for each in CASES),
    ("sac", "classic, tuned, two seeds, cut", {"policy_period": 2, "target_period": 3}),
    ("sac_alf", "several steps, two seeds, actor seldom, orthogonal, cut", {"td_steps": 1}),
]
"""With a step size that is not frozen, and periods."""
MIXED = ("sac_alf", "mixed, tuned, in full", {"policy_period": 2})
"""No further form, as ALF's first has no graphs."""
GRAPHS = [each for each in [*CHANGED, MIXED] if each[0] == "sac" or each[2]]
"""Those whose updates can be graphs."""
TASKS = {"continuous": "InvertedPendulum-v4", "discrete": "CartPole-v1"}
"""With episodes that end soon, for evaluations."""


def test_every_case_is_a_golden_run() -> None:
    """Most of them run once a week: a name that is gone is found before."""
    assert set(RUNS) == set(agents.AGENTS)
    assert all(name in configurations.RUNS[agent] for agent, name in CASES)


def short(agent: str, name: str) -> Any:
    """Return the settings of a golden run's first seeds, without graphs, that ends soon."""
    run = configurations.RUNS[agent][name]
    config = configurations.configure(module_of(agent), run)
    task, changes = config.find_task(), dict[str, Any](device="cpu")
    if hasattr(config, "cuda_graphs"):
        changes["cuda_graphs"] = False
    if name.startswith(("classic", "mujoco,", "dmc", "sampled", "tianshou")):
        changes["task"] = TASKS[task.actions]
    if agent in runner.SEEDS_TOGETHER:
        unit, starts = config.num_envs, min(config.learning_starts or 0, 8)
        passes = starts + (4 if task.family == "atari" else 12)
        changes |= {"learning_starts": starts * config.num_envs}
    else:
        unit, passes = config.unroll_rows, 8 if run.cut else 3
        changes |= {"seeds": config.seeds[:1]}
    if agent.startswith("acer"):
        changes |= {"replay_start": config.unroll_length}
    steps = {"env_steps": passes * unit, "log_interval": unit, "evaluation_interval": passes * unit}
    return dataclasses.replace(config, **changes, **steps)


def train_on_gpu(
    agent: str, config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool = False
) -> Any:
    """Return what an agent has learned where `update` must read nothing back."""
    module = module_of(agent)
    update = module.update

    @functools.wraps(update)
    def read_nothing(*arguments: Any) -> Any:
        with reads_nothing():
            results = update(*arguments)
        assert all(isinstance(each, OnGpu) for each in tree_leaves(results))
        return results

    with monkeypatch.context() as patch, installed(patch):
        patch.setattr(module, "update", read_nothing)
        patch.setattr(impala, "worker_thread", functools.partial(Pool, 1))
        config = dataclasses.replace(config, device="cuda:1")
        return runner.train(module, config, folder, cut=cut)


def on_copies(step: Callable[..., Any], *_: Any) -> Callable[..., Any]:
    """Call a step as a graph does: on tensors that are aligned as a graph's."""
    return lambda *inputs: step(*tree_map_only(Tensor, torch.clone, inputs))


@pytest.mark.parametrize(("agent", "name", "changes"), [*by_agent(CHANGED), MIXED])
def test_an_agent_learns_on_a_gpu_what_it_learns_on_the_cpu(
    agent: str, name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No update reads anything back; graphs give what kernels do, to the bit, after a cut too."""
    config, cut = short(agent, name), configurations.RUNS[agent][name].cut
    config = dataclasses.replace(config, **changes)
    theirs = [*learned(runner.train(module_of(agent), config, tmp_path / "cpu", cut=False))]
    calls: list[str] = []

    def counted(owner: Any, method: str) -> None:
        function = getattr(owner, method)

        def call(*given: Any) -> Any:
            calls.append(method)
            return function(*given)

        monkeypatch.setattr(owner, method, call)

    counted(module_of(agent), "update")
    counted(Graph, "replay")
    with monkeypatch.context() as patch:
        for module in (player, unroll_session):  # the one acts, the other updates
            patch.setattr(module, "as_graph", on_copies)
        plain = [*learned(train_on_gpu(agent, config, tmp_path / "plain", monkeypatch, cut=cut))]
    tolerance = 1e-5 if agent in runner.SEEDS_TOGETHER else 0.0
    assert len(plain) == len(theirs) > 0
    for our, their in zip(plain, theirs, strict=True):
        assert isinstance(our, OnGpu)
        torch.testing.assert_close(on_cpu(our), their.detach(), atol=tolerance, rtol=tolerance)
    if (agent, name, changes) not in GRAPHS:
        return
    number = len(calls)
    assert calls == ["update"] * number
    calls.clear()
    config = dataclasses.replace(config, cuda_graphs=True)
    learner = train_on_gpu(agent, config, tmp_path / "graphs", monkeypatch, cut=cut)
    if (agent, name) in UNROLLS:
        assert calls.count("replay") >= number + config.env_steps // config.num_envs
        num_graphs = 2
    else:
        assert calls.count("replay") >= number
        assert agent == "sac" or calls.count("replay") == number  # SAC acts so, too
        periods = config.policy_period, config.target_period
        num_graphs = len({(n % periods[0] == 0, (n + 1) % periods[1] == 0) for n in range(number)})
    assert calls.count("update") <= (WARM_UPS + 1) * num_graphs * (1 + cut)
    for our, other in zip(learned(learner), plain, strict=True):
        assert torch.equal(on_cpu(our), on_cpu(other))
    ours, others = repeatable(tmp_path / "graphs"), repeatable(tmp_path / "plain")
    assert any(name.endswith("updates.csv") for name in others)
    assert ours == others


@pytest.mark.gpu
@pytest.mark.parametrize(("agent", "name", "changes"), GRAPHS)
def test_a_gpu_learns_from_graphs_what_it_learns_from_kernels(
    agent: str, name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The same weights to rounding, across a checkpoint too; ACER's differ by 3e-4 at the end."""
    bound = 1e-3 if agent == "acer" else 1e-5
    config = dataclasses.replace(short(agent, name), **changes, device="cuda")
    module, cut = module_of(agent), configurations.RUNS[agent][name].cut
    plain = runner.train(module, config, tmp_path / "plain", cut=False)
    config = dataclasses.replace(config, cuda_graphs=True)
    graphs = runner.train(module, config, tmp_path / "graphs", cut=cut)
    for ours, theirs in zip(learned(graphs), learned(plain), strict=True):
        torch.testing.assert_close(ours, theirs, atol=bound, rtol=bound)


def by_onednn(here: Tensor, there: Tensor) -> None:
    torch.ops.mkldnn._linear_pointwise(here.expand(3, 3), here.expand(3, 3), None, "none", [], "")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda here, there: here + there, "tensors of both devices"),
        (lambda here, there: torch.where(there > 0, here, 0.0), "tensors of both devices"),
        (by_onednn, "is a processor's"),
        (lambda here, there: torch.ones(3, device="cuda"), "another GPU"),
        (lambda here, there: there.to("cuda:0"), "another GPU"),
        (lambda here, there: here.sum().item(), "reads back to the host"),
        (lambda here, there: here.cpu(), "reads back to the host"),
        (lambda here, there: there.copy_(here), "reads back to the host"),
        (lambda here, there: here[here > 0], "reads back to the host"),
    ],
)
def test_what_a_gpu_would_refuse_or_wait_for_is_found(
    mistake: Callable[[Tensor, Tensor], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's rules, one by one; what names no GPU would land on GPU 0."""
    with installed(monkeypatch):
        here, there = torch.ones(3, device=DEVICE), torch.ones(3)
        with reads_nothing(), pytest.raises(AssertionError, match=message):
            mistake(here, there)


def without_memory(numbers: Tensor) -> None:
    """Find no memory in a capture."""
    if stand_in_gpu.thread.graph is not None:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("mistake", "error", "reason"),
    [
        (lambda numbers: numbers.sum().item(), UsageError, "operation not permitted .* capturing"),
        (lambda numbers: numbers + torch.ones(3).to(DEVICE), UsageError, "a copy from the host"),
        (without_memory, torch.OutOfMemoryError, ""),  # which says how many seeds fit
    ],
)
def test_an_update_that_cannot_be_captured_ends_the_run(
    mistake: Callable[[Tensor], object],
    error: type[Exception],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the first error, not with the one of ending the capture, and with the remedy."""

    def step(number: int, numbers: Tensor) -> dict[str, Tensor]:
        mistake(numbers)
        return {}

    with installed(monkeypatch):
        graphs = Graphs(step, lambda number: 0, [], DEVICE)
        said = f"captured .*{reason}.*: --no-cuda-graphs" if reason else "CUDA out of memory"
        with pytest.raises(error, match=said):
            graphs(0, torch.ones(3, device=DEVICE))


@pytest.mark.parametrize("missed", [0, 1])
def test_the_collector_of_impala_waits_for_its_observations_and_for_its_weights(
    missed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is needed: of the frames before the first unroll, and of each new policy."""
    waits: list[bool] = []
    wait = Collector.wait_for_learner

    def wait_but_once(collector: Collector) -> None:
        waits.append(True)
        if len(waits) != missed + 1:
            wait(collector)

    monkeypatch.setattr(Collector, "wait_for_learner", wait_but_once)
    config = short("impala", "frames, rllib_2018")
    with pytest.raises(AssertionError, match="does not wait for another stream"):
        train_on_gpu("impala", config, tmp_path, monkeypatch)
    assert len(waits) == missed + 1
