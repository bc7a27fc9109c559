"""Updates with fused kernels: the same results to rounding, in fewer kernels, on any processor.

That graphs of them learn the same is for a GPU to show (tests/agents/test_sac.py).
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.exc import InternalTorchDynamoError
from torch._dynamo.utils import counters

from agents import a2c, acer, acer_continuous, impala, sac
from suite import affine
from suite.graphs import as_graph, fused
from suite.optimisers import FusedAdam
from suite.replay import Replay
from suite.settings import UsageError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONFIG = replace(
    *(sac.PRESETS["mujoco", "paper"].config,),
    **{"hidden_sizes": (16, 16), "batch_size": 8, "policy_period": 2, "target_period": 3},
)


def made(seeds: tuple[int, ...]) -> tuple[sac.Config, sac.Learner, Replay]:
    """Return a learner with a GPU's way of multiplying, and transitions to learn from."""
    config, generator = replace(CONFIG, seeds=seeds), np.random.default_rng(5)
    learner, replay = sac.make_learner(config, 3, 2, CPU), Replay(len(seeds), 50, 1, 3, 2, CPU)
    for network in (learner.actor, learner.critics, learner.target_critics):
        network._is_batched = len(network._members) * len(network._members[0]) > 1
    learner.actor_optimiser = FusedAdam(learner.actor.parts, 3e-4)
    learner.critic_optimiser = FusedAdam(learner.critics.parts, 3e-4)
    for _ in range(50):
        numbers = generator.standard_normal((len(seeds), 1, 10), dtype=np.float32)
        obs, actions, next_obs = numbers[..., :3], np.tanh(numbers[..., 3:5]), numbers[..., 5:8]
        replay.add(obs, actions, numbers[..., 8], numbers[..., 9] > 1, next_obs)
    return config, learner, replay


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@torch._dynamo.config.patch(recompile_limit=64)  # for the wrapper that all functions share in tests
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_fused_updates_learn_what_others_learn(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-5 after 20 updates, in every combination of due parts, none of it compiled anew.

    Fewer kernels than operators, of which an update has 108 with one seed.
    """
    monkeypatch.setattr(affine, "_linear", None)  # oneDNN's; a GPU has none
    from torch._inductor import metrics

    metrics.reset()
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 50, (20, len(seeds), 8), generator=generator)
    noise = torch.randn((20, 2, 1 + 2, len(seeds), 8, 2), generator=generator)[:, 0]
    learned, kernels, graphs = [], list[int](), list[int]()
    for update in (sac.update, fused(sac.update, GPU)):
        config, learner, replay = made(seeds)
        for number in range(20):
            update(learner, config, replay.batch(rows[number]), noise[number], number)
            kernels.append(metrics.generated_kernel_count)
            graphs.append(counters["stats"]["unique_graphs"])
        learned.append([*learner.actor.parts, *learner.critics.parts, learner.log_alpha])
        learned[-1] += [*learner.target_critics.parts]
    for ours, theirs in zip(*learned, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert kernels[19] == 0 < kernels[-1] < 75
    assert graphs[19] < graphs[20 + 12] == graphs[-1]  # nothing is compiled again and again


def test_fused_kernels_without_a_gpu_are_refused() -> None:
    """In one line, with the remedy."""
    with pytest.raises(UsageError, match="fuse_kernels needs a GPU, and this run is on cpu: leave"):
        fused(sac.update, CPU)


@pytest.mark.parametrize("agent", [a2c, acer, acer_continuous, impala])
def test_graphs_without_a_gpu_are_refused(agent: Any) -> None:
    """In one line, with the remedy; unless asked for, a step is called as it is."""
    config = next(iter(agent.PRESETS.values())).config
    assert as_graph(sum, (), config, CPU) is sum
    with pytest.raises(UsageError, match="cuda_graphs needs a GPU, and this run is on cpu: leave"):
        as_graph(sum, (), replace(config, cuda_graphs=True), CPU)


def test_an_update_that_cannot_be_compiled_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason and the remedy, instead of going on kernel by kernel."""
    numbers = itertools.count()

    def compile_nothing(update: Any) -> Any:
        def call(*_: Any) -> Any:
            next(numbers)
            raise InternalTorchDynamoError("no compiler\n\nmore")

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    with pytest.raises(UsageError, match=r"compiled \(no compiler\): leave out --fuse-kernels$"):
        fused(sac.update, GPU)(1, 2)
    assert next(numbers) == 1
