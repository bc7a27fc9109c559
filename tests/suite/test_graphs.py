"""CUDA graphs are for GPUs; that they learn the same is for a GPU to show (tests/agents)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from agents import a2c, acer, acer_continuous, impala
from suite.base.errors import UsageError
from suite.graphs import as_graph

CPU = torch.device("cpu")


@pytest.mark.parametrize("agent", [a2c, acer, acer_continuous, impala])
def test_graphs_without_a_gpu_are_refused(agent: Any) -> None:
    """In one line, with the remedy; unless asked for, a step is called as it is."""
    config = next(iter(agent.PRESETS.values())).config
    assert as_graph(sum, (), config, CPU) is sum
    with pytest.raises(UsageError, match="cuda_graphs needs a GPU, and this run is on cpu: leave"):
        as_graph(sum, (), replace(config, cuda_graphs=True), CPU)
