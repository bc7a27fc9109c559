"""Shares: intervals that hold what they promise, and baselines of the same machine only."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from reproduce.__main__ import main
from reproduce.speed import shares
from reproduce.speed.shares import Ratio, Share
from reproduce.speed.workloads import MEASURED, built, pinned
from suite import hardware
from suite.settings import UsageError


def share(level: float = 0.5, name: str = "update-sac") -> Share:
    """What a measurement might have found."""
    return Share(name, "matmul", 1e-3, 1e9, "FLOP", Ratio(level, level, level))


def test_the_interval_of_a_ratio_holds_the_truth() -> None:
    """At least 95 of 100 times, also where one block in ten is disturbed and the machine drifts."""
    generator, inside = np.random.default_rng(0), 0
    for _ in range(1_000):
        drift = np.exp(np.linspace(0, 0.3, 80))
        speeds = drift[:, None] * generator.normal(1.0, 0.02, (80, 2))
        speeds[generator.random((80, 2)) < 0.1] *= 0.4
        speeds[:, 0] *= 0.9
        found = shares.ratio(speeds[:, 0], speeds[:, 1])
        inside += found.low <= 0.9 <= found.high
    assert inside >= 930  # 95 % of 1,000 less three deviations


def test_few_turns_enclose_nothing() -> None:
    """Ten rounds are five turns: no two of their ranks hold 95 %."""
    assert shares.ratio(np.ones(10), np.ones(10))[1:] == (0.0, np.inf)


def test_turns_are_taken_back_and_forth() -> None:
    """ABBA, in blocks of the same length whatever one repetition takes."""
    calls: list[str] = []

    def runner(name: str, seconds: float):  # type: ignore[no-untyped-def]
        return lambda count: calls.append(name) or count * seconds

    rows = shares.take_turns([runner("a", 0.02), runner("b", 0.01)], seconds=0.01)
    assert rows.mean(0) == pytest.approx([0.02, 0.01])
    assert "".join(calls[-8:]) == "abbaabba"


@pytest.mark.quiet
def test_a_share_is_taken_of_the_ceiling_in_the_same_unit() -> None:
    """A share of its own ceiling is never above 1 by more than noise, nor nothing."""
    (found,) = [s for s in shares.measure("affine", 0.3) if s.against == "matmul-onednn"]
    assert 0.02 < found.share.median < 1.3
    assert found.rate == pytest.approx(2 * 3 * 256**3 / found.seconds, rel=0.01)


def test_a_pinned_thread_does_not_hide_the_machines_cores() -> None:
    """What is recorded while one core is left still names the whole machine."""
    hardware.machine.cache_clear()
    cores = hardware.num_cores()
    with pinned("vtrace"):
        assert hardware.num_cores() == 1
        assert shares.this_machine()["cores"] == cores


def test_baselines_are_read_on_the_same_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another generation, number of cores or version of torch has a file of its own."""
    open_end = share(name="gather")._replace(share=Ratio(0.5, 0.0, math.inf))
    path = shares.write_shares([share(), open_end], tmp_path)
    recorded = shares.read_shares(tmp_path)
    assert recorded is not None
    assert recorded["update-sac / matmul"]["median"] == 0.5
    assert recorded["gather / matmul"]["high"] is None
    here = shares.this_machine()
    for change in ({"cpu": "Another"}, {"flags": "fewer"}, {"cores": 99}, {"torch": "1.0.0"}):
        monkeypatch.setattr(shares, "this_machine", lambda change=change: {**here, **change})
        assert shares.read_shares(tmp_path) is None
        path.rename(shares.baseline_path(tmp_path))  # under the other's name all the same
        assert shares.read_shares(tmp_path) is None
        path = shares.baseline_path(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"shares": 1}'])
def test_a_baseline_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    """The command then says how to record one."""
    shares.baseline_path(tmp_path).write_text(content)
    assert shares.read_shares(tmp_path) is None


def test_the_table_shows_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share, baseline and their ratio stand in one row."""
    recorded = {"update-sac / matmul": {"median": 0.25}}
    monkeypatch.setattr(shares, "read_shares", lambda: recorded)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(shares.share_table([share()]))
    (row,) = [line for line in console.export_text().splitlines() if "update-sac" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        *("update-sac", "1 ms", "1 GFLOP/s", "matmul", "0.5 [0.5, 0.5]", "0.25", "2.00")
    ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "adapter-Pong-16" else name
        for name in MEASURED
        if name != "gather"
    ],
)
def test_every_ceiling_of_a_workload_can_be_measured(name: str) -> None:
    """It is named, and in the same unit."""
    with built([name]) as works, built(works[name].against) as ceilings:
        assert ceilings
        assert {ceiling.unit for ceiling in ceilings.values()} == {works[name].unit}


def test_an_unknown_workload_is_named(tmp_path: Path) -> None:
    """Before anything is measured, with what was meant."""
    with pytest.raises(
        UsageError, match=r"no such workload 'update-sca'; did you mean update-sac\?"
    ):
        shares.measure_all(["vtrace", "update-sca"])


def test_the_command_measures_and_judges(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table, a line per tier-two verdict, and the history where one is asked for."""
    measure = shares.measure
    monkeypatch.setattr(shares, "measure", lambda name: measure(name, seconds=0.5))
    path = tmp_path / "history.csv"
    assert main(["throughput", "vtrace", "--history", str(path)]) in (0, 1)
    out = capsys.readouterr().out
    assert "memory" in out
    assert "vtrace:" in out
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("argv", [["--update", "vtrace"], ["--update", "--pair", "HEAD"]])
def test_a_baseline_is_declared_whole(argv: list[str]) -> None:
    """A part of it would mix two states of the code."""
    with pytest.raises(UsageError, match="--update declares every workload"):
        main(["throughput", *argv])


def test_committed_baselines_are_of_the_workloads_that_there_are() -> None:
    """A new or renamed workload is declared again; there is a baseline for some machine."""
    records = [json.loads(path.read_text()) for path in shares.BASELINES.glob("*.json")]
    baselines = [record["shares"] for record in records if "shares" in record]
    assert baselines
    for baseline in baselines:
        assert {key.partition(" / ")[0] for key in baseline} == set(MEASURED)
