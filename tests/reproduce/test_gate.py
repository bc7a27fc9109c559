"""The gate: each tier finds what was planted for it, and nothing where nothing was."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from reproduce import gate
from reproduce.workloads import UPDATES, built
from suite.settings import UsageError


def test_every_update_costs_what_is_declared() -> None:
    """Operators, FLOPs, recompilations, synchronisations and allocations: `make check`'s gate."""
    verdicts = gate.judge_exact(gate.count_all())
    skipped = [verdict for verdict in verdicts if verdict.text.startswith("not compared")]
    alarms = [f"{verdict.name}: {verdict.text}" for verdict in verdicts if verdict.alarm]
    assert not alarms, "\n".join(alarms)
    if skipped:
        pytest.skip(skipped[0].text)


@pytest.fixture
def step() -> Callable[[], object]:
    """A small update in its steady state."""
    weight = torch.nn.Parameter(torch.randn(8, 8))
    optimiser = torch.optim.Adam([weight], fused=True)

    def repeat() -> None:
        optimiser.zero_grad()
        (torch.ones(4, 8) @ weight).square().mean().backward()
        optimiser.step()

    return repeat


def _alarm(step: Callable[[], object], planted: Callable[[], object], directory: Path) -> str:
    """Return what the exact tier says of `planted` where `step` is the baseline."""
    gate.write_exact({"step": gate.exact_counts(step)}, directory)
    (same,) = gate.judge_exact({"step": gate.exact_counts(step)}, directory)
    assert not same.alarm, same.text
    (verdict,) = gate.judge_exact({"step": gate.exact_counts(planted)}, directory)
    assert verdict.alarm
    assert gate.DECLARE in verdict.text
    return verdict.text


def test_one_more_operator_is_found(step: Callable[[], object], tmp_path: Path) -> None:
    """By its name, with the times before and after."""
    number = torch.zeros(3)
    assert "aten.cos.default 0 -> 1" in _alarm(step, lambda: (step(), number.cos()), tmp_path)


def test_a_synchronisation_is_found(step: Callable[[], object], tmp_path: Path) -> None:
    """A value read by the host, or a shape that depends on values."""
    number, mask = torch.ones(()), torch.tensor([True, False])
    text = _alarm(step, lambda: (step(), number.item()), tmp_path)
    assert "synchronisations 0 -> 1" in text
    text = _alarm(step, lambda: (step(), number.expand(2)[mask]), tmp_path)
    assert "synchronisations 0 -> 1" in text


def test_memory_that_is_not_freed_is_found(step: Callable[[], object], tmp_path: Path) -> None:
    """A list that keeps a tensor of every step: 40 bytes of ten floats, or a cache line's more."""
    kept: list[torch.Tensor] = []
    text = _alarm(step, lambda: (step(), kept.append(torch.empty(10))), tmp_path)
    assert "growth_bytes 0 -> 40" in text


def test_wasted_products_are_found(step: Callable[[], object], tmp_path: Path) -> None:
    """Twice 2 * 4 * 8 * 8 FLOPs for a product, forwards and for the weight's gradient."""
    left, right = torch.ones(4, 8), torch.ones(8, 8)
    text = _alarm(step, lambda: (step(), left @ right), tmp_path)
    assert "flops 1,024 -> 1,536" in text


def test_a_recompilation_is_found(step: Callable[[], object], tmp_path: Path) -> None:
    """torch.compile on a shape that is another one every time."""
    double, sizes = torch.compile(lambda x: x + x, backend="eager", dynamic=False), count(1)

    def planted() -> None:
        step()
        double(torch.ones(next(sizes)))

    assert "recompilations 0 -> 1" in _alarm(step, planted, tmp_path)


def test_counts_under_another_torch_are_not_compared_and_it_says_so(tmp_path: Path) -> None:
    """Neither an alarm nor silence."""
    path = gate.write_exact({"step": {"operators": {}, "flops": 1}}, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "torch": "1.0.0"}))
    (verdict,) = gate.judge_exact({"step": {"operators": {}, "flops": 2}}, tmp_path)
    assert not verdict.alarm
    assert verdict.text.startswith("not compared: counted with torch 1.0.0")


def test_on_another_processor_allocations_alone_are_not_compared(tmp_path: Path) -> None:
    """FLOPs and operators are the code's; layouts, and so allocations, the processor's."""
    counts = {"operators": {}, "flops": 1, "allocations": 2}
    path = gate.write_exact({"step": counts}, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "instructions": "other"}))
    (verdict,) = gate.judge_exact({"step": {**counts, "allocations": 3}}, tmp_path)
    assert not verdict.alarm
    assert "allocations not compared" in verdict.text
    (verdict,) = gate.judge_exact({"step": {**counts, "flops": 3}}, tmp_path)
    assert verdict.alarm


def test_an_undeclared_workload_and_a_missing_baseline_name_the_command(tmp_path: Path) -> None:
    """A new update is declared like a changed one."""
    with pytest.raises(UsageError, match="--update-exact"):
        gate.judge_exact({}, tmp_path)
    gate.write_exact({}, tmp_path)
    (verdict,) = gate.judge_exact({"step": {"operators": {}, "flops": 2}}, tmp_path)
    assert verdict.alarm
    assert gate.DECLARE in verdict.text


def test_the_products_of_an_affine_layer_are_counted_whoever_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator of which torch's counter knows nothing counts as torch.addmm does."""
    with built(["update-sac"]) as works:
        counted = works["update-sac"].amount
    monkeypatch.setattr("suite.affine._linear", None)
    with built(["update-sac"]) as works:
        assert works["update-sac"].amount == counted


def test_every_agent_has_an_update_that_is_counted() -> None:
    """A new agent cannot be left out."""
    from agents import AGENTS

    assert {name.split("-")[1] for name in UPDATES} == set(AGENTS)
