"""Exact counts: what was planted is found, and nothing where nothing was."""

from pathlib import Path

import pytest
import torch

from reproduce.speed import exact
from reproduce.speed.workloads import UPDATES
from tests.messages import refused


@pytest.mark.long
def test_every_update_costs_what_is_declared() -> None:
    """Operators, FLOPs, synchronisations and allocations: `make check`'s gate."""
    findings = exact.judge(exact.count_all())
    skipped = [finding for finding in findings if finding.text.startswith("not compared")]
    alarms = [f"{finding.name}: {finding.text}" for finding in findings if finding.alarm]
    assert not alarms, "\n".join(alarms)
    if skipped:
        pytest.skip(skipped[0].text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A baseline of the test's own."""
    return tmp_path / "exact.json"


def test_whatever_a_step_costs_more_is_found_and_named(path: Path) -> None:
    """An operator, a value or shape read by the host, ten floats kept, a product's FLOPs."""
    weight = torch.nn.Parameter(torch.randn(8, 8))
    optimiser = torch.optim.Adam([weight], fused=True)
    number, mask, kept = torch.ones(()), torch.tensor([True, False]), list[torch.Tensor]()
    left, right = torch.ones(4, 8), torch.ones(8, 8)

    def step() -> None:
        optimiser.zero_grad()
        (left @ weight).square().mean().backward()
        optimiser.step()

    exact.write({"step": exact.count(step)}, path)
    (same,) = exact.judge({"step": exact.count(step)}, path)
    assert not same.alarm, same.text
    reads = (number.item, number.cpu, number.tolist, number.numpy, lambda: number.to("cpu"))
    for planted, said in (
        (number.cos, "aten.cos.default 0 -> 1"),
        *((read, "synchronisations 0 -> 1") for read in reads),
        (lambda: number.expand(2)[mask], "synchronisations 0 -> 1"),
        (lambda: kept.append(torch.empty(10)), "growth_bytes 0 -> 40"),
        (lambda: left @ right, "flops 1,024 -> 1,536"),
    ):
        counts = exact.count(lambda planted=planted: (step(), planted()))
        (finding,) = exact.judge({"step": counts}, path)
        assert finding.alarm
        assert said in finding.text
        assert exact.DECLARE in finding.text


def test_counts_under_another_torch_are_not_compared_and_it_says_so(path: Path) -> None:
    """Neither an alarm nor silence."""
    exact.write({"step": {"operators": {}, "flops": 1}}, path)
    path.write_text(path.read_text().replace(torch.__version__.partition("+")[0], "1.0.0"))
    (finding,) = exact.judge({"step": {"operators": {}, "flops": 2}}, path)
    assert (finding.alarm, finding.judged) == (False, False)
    assert finding.text.startswith("not compared: counted with torch 1.0.0")


def test_an_undeclared_workload_names_the_command(path: Path) -> None:
    """A new update, and a new count, are declared like a changed one."""
    for known in ({}, {"step": {"operators": {}}}):
        exact.write(known, path)
        (finding,) = exact.judge({"step": {"operators": {}, "flops": 2}}, path)
        assert finding.alarm
        assert exact.DECLARE in finding.text


def test_every_agent_has_an_update_that_is_counted() -> None:
    """A new agent cannot be left out."""
    from agents import AGENTS

    assert {name.split("-")[1] for name in UPDATES} == set(AGENTS)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"torch": "1"}'])
def test_no_baseline_and_a_damaged_one_are_one_line(content: str | None, path: Path) -> None:
    """Naming the command that makes it anew."""
    if content is not None:
        path.write_text(content)
    with refused():
        exact.judge({}, path)
