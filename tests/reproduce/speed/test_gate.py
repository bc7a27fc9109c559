"""The gate: each tier finds what was planted for it, and nothing where nothing was."""

import json
import math
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest
import torch

from reproduce.__main__ import main
from reproduce.run.ray.pool import copy_code
from reproduce.speed import gate
from reproduce.speed.shares import Ratio, Share, write_shares
from reproduce.speed.workloads import UPDATES, built
from suite.command_line import run_main
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
    """A value read by the host, on a CPU too where that costs nothing, or a shape of values."""
    number, mask = torch.ones(()), torch.tensor([True, False])
    text = _alarm(step, lambda: (step(), number.item()), tmp_path)
    assert "synchronisations 0 -> 1" in text
    text = _alarm(step, lambda: (step(), number.expand(2)[mask]), tmp_path)
    assert "synchronisations 0 -> 1" in text
    for read in (number.cpu, number.tolist, number.numpy, lambda: number.to("cpu")):
        text = _alarm(step, lambda read=read: (step(), read()), tmp_path)
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
    with pytest.raises(UsageError, match="--exact --update"):
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


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"torch": "1"}'])
def test_a_damaged_baseline_is_one_line(content: str, tmp_path: Path) -> None:
    """Naming the command that makes it anew."""
    (tmp_path / "exact.json").write_text(content)
    with pytest.raises(UsageError, match=r"make it anew with .* --exact --update"):
        gate.judge_exact({}, tmp_path)


def test_counts_without_onednn_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products then are other operators, which is no change of the code."""
    gate.write_exact({"step": {"operators": {}, "flops": 1}}, tmp_path)
    monkeypatch.setattr("reproduce.speed.workloads.ONEDNN_LINEAR", None)
    (verdict,) = gate.judge_exact({"step": {"operators": {}, "flops": 2}}, tmp_path)
    assert not verdict.alarm
    assert verdict.text.startswith("not compared")


# Shares


def share(level: float, name: str = "vtrace", high: float | None = None) -> Share:
    """What a measurement might have found."""
    return Share(name, "memory", 1e-3, 1e9, "B", Ratio(level, level, high or level))


@pytest.mark.parametrize(
    ("first", "second", "alarm"),
    [(0.5, 0.1, False), (0.43, 0.1, False), (0.42, 0.43, False), (0.42, 0.42, True)],
)
def test_a_share_alarms_below_85_per_cent_of_its_baseline_found_twice(
    first: float, second: float, alarm: bool, tmp_path: Path
) -> None:
    """One disturbed measurement is repeated before anybody is called."""
    write_shares([share(0.5)], tmp_path)
    (verdict,) = gate.judge_shares([share(first)], lambda name: [share(second, name)], tmp_path)
    assert verdict.alarm == alarm
    assert "of its baseline 0.5" in verdict.text


def test_a_share_that_may_be_as_fast_as_before_is_no_alarm(tmp_path: Path) -> None:
    """Few turns, or disturbed ones, have a wide interval."""
    write_shares([share(0.5)], tmp_path)
    wide = share(0.2, high=0.45)
    (verdict,) = gate.judge_shares([wide], lambda name: [wide], tmp_path)
    assert not verdict.alarm


def test_a_share_without_a_baseline_says_how_to_record_one(tmp_path: Path) -> None:
    """Another machine, or new work: neither an alarm nor silence."""
    (verdict,) = gate.judge_shares([share(0.5)], directory=tmp_path)
    assert not verdict.alarm
    assert verdict.text.startswith("no baseline for this machine")
    assert verdict.text.endswith(gate.RECORD)
    write_shares([share(0.5)], tmp_path)
    (verdict,) = gate.judge_shares([share(0.5, "retrace")], directory=tmp_path)
    assert not verdict.alarm
    assert verdict.text == f"no baseline of retrace / memory: record one with {gate.RECORD}"


# Pairs

NOT_TODAY = "\n\nraise RuntimeError('not today')\n"


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[str, str], Path]:
    """A function that copies this tree and appends code to one of its files."""

    def copy(file: str, code: str) -> Path:
        copy_code(tmp_path)
        with (tmp_path / file).open("a") as source:
            source.write(code)
        return tmp_path

    return copy


@pytest.mark.quiet
def test_code_that_got_slower_is_found_and_equal_code_is_not(
    planted: Callable[[str, str], Path],
) -> None:
    """V-trace computed twice, in another tree; the same tree twice is no slower than itself.

    On a disturbed machine a short measurement has a wide interval: then a longer one is taken.
    """
    slow = planted(
        "agents/impala.py",
        "\n\n_once = vtrace_from_importance_weights\n"
        "def vtrace_from_importance_weights(*arguments):\n"
        "    _once(*arguments)\n"
        "    return _once(*arguments)\n",
    )
    with gate.workers(slow, gate.ROOT) as (ours, theirs):
        for seconds in (0.75, 5.0, 15.0):
            verdict = gate.judge_pair("vtrace", gate.compare(ours, theirs, "vtrace", seconds))
            if verdict.alarm:
                break
        assert verdict.alarm, verdict.text
        same = gate.judge_pair("retrace", gate.compare(ours, theirs, "retrace", 0.75))
        assert not same.alarm, same.text
        faster = gate.judge_pair("vtrace", gate.compare(theirs, ours, "vtrace", 0.75))
        assert not faster.alarm, faster.text


def test_what_the_other_tree_cannot_do_is_told_from_what_this_one_cannot(
    planted: Callable[[str, str], Path],
) -> None:
    """An older commit may lack a function; a tree that broke it is an error. Both can go on."""
    broken = planted("agents/impala.py", "\n\ndel vtrace_from_importance_weights\n")
    with gate.workers(gate.ROOT, broken) as (whole, lacking):
        with pytest.raises(gate.Incomparable, match="has no attribute 'vtrace_from_importance"):
            gate.compare(whole, lacking, "vtrace", 0.2)
        with pytest.raises(UsageError, match="has no attribute 'vtrace_from_importance") as caught:
            gate.compare(lacking, whole, "vtrace", 0.2)
        assert not isinstance(caught.value, gate.Incomparable)
        assert gate.compare(whole, lacking, "retrace", 0.2).median > 0


def test_a_commit_that_cannot_start_is_an_error(
    planted: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It may be older than what the workloads import; a gate that measured nothing is not `ok`."""
    broken = planted("suite/settings.py", NOT_TODAY)
    (broken / "torch.py").write_text(NOT_TODAY)  # what a worker imports first
    monkeypatch.setattr(gate, "worktree", lambda revision: nullcontext(broken))
    assert run_main(lambda _: main(["throughput", "--pair", "old", "vtrace"])) == 2
    expected = "error: the other tree does not start: RuntimeError: not today\n"
    assert capsys.readouterr().err == expected


def test_a_pair_of_which_nothing_can_be_judged_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Skipped work is shown as such and is no success."""
    skipped = gate.Verdict("vtrace", False, "skipped: old cannot do it (why)", judged=False)
    monkeypatch.setattr(gate, "pair", lambda *arguments: iter([skipped]))
    assert run_main(lambda _: main(["throughput", "--pair", "old"])) == 2
    told = capsys.readouterr()
    assert told.out == "not judged vtrace: skipped: old cannot do it (why)\n"
    assert told.err.startswith("error: nothing could be compared with old")


def test_a_pair_without_a_difference_in_gated_code_measures_nothing(
    planted: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages, tests and the harness may differ; an agent's file or its settings may not."""
    same = planted("README.md", "\nAnother page.\n")
    assert gate.differing(same) == []
    monkeypatch.setattr(gate, "worktree", lambda revision: nullcontext(same))
    monkeypatch.setattr(gate, "workers", lambda *trees: pytest.fail("something was measured"))
    (verdict,) = gate.pair("old", ["vtrace"])
    assert verdict == ("all", False, "no code that the workloads run differs from old", True)
    for file in ("agents/impala.py", "suite/affine.py", "reproduce/gather/collect.py"):
        with (same / file).open("a") as code:
            code.write("# another line\n")
        assert file in gate.differing(same)


def test_a_pair_alarms_only_if_every_start_of_its_processes_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One process may be slower than its twin for life: it is placed otherwise in memory."""
    starts, found = [], [Ratio(0.5, 0.4, 0.6), Ratio(0.5, 0.4, 0.6), Ratio(1.0, 0.9, 1.1)]
    monkeypatch.setattr(gate, "worktree", lambda revision: nullcontext(Path("elsewhere")))
    monkeypatch.setattr(gate, "differing", lambda tree: ["a file"])
    monkeypatch.setattr(gate, "workers", lambda *trees: starts.append(1) or nullcontext((1, 2)))
    monkeypatch.setattr(gate, "compare", lambda *arguments: left.pop(0))
    left = list(found)
    (verdict,) = gate.pair("old", ["vtrace"])
    assert (verdict.alarm, len(starts), left) == (False, 3, [])
    left = [found[0]] * 3
    (verdict,) = gate.pair("old", ["vtrace"])
    assert verdict.alarm
    left = [found[2]]
    (verdict,) = gate.pair("old", ["vtrace"])
    assert not verdict.alarm


def test_a_worker_that_does_not_answer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that hangs would block the gate for ever."""
    hangs = tmp_path / "workloads.py"
    hangs.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(gate.workloads, "__file__", str(hangs))
    monkeypatch.setattr(gate, "ANSWER_SECONDS", 0.5)
    with gate.Worker(tmp_path) as worker, pytest.raises(UsageError, match="gave no answer for"):
        worker.wait()


def test_too_few_turns_judge_nothing() -> None:
    """Work that takes a second leaves no interval: it says so."""
    verdict = gate.judge_pair("slow", Ratio(0.5, 0.0, math.inf))
    assert verdict == ("slow", False, "too slow here for enough turns", False)


def test_a_tree_that_does_not_start_is_an_error(planted: Callable[[str, str], Path]) -> None:
    """The last line of its complaint is shown."""
    broken = planted("torch.py", NOT_TODAY)  # what a worker imports first
    with (
        pytest.raises(UsageError, match="RuntimeError: not today"),
        gate.workers(broken, gate.ROOT),
    ):
        pass


def test_a_commit_is_checked_out_and_removed_again() -> None:
    """Nothing is left of it, on disk or in git's list of worktrees."""
    if not (gate.ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    with gate.worktree("HEAD") as tree:
        assert (tree / "agents" / "sac.py").exists()
        assert tree != gate.ROOT
    assert not tree.exists()
    listed = ["git", "-C", str(gate.ROOT), "worktree", "list"]
    assert str(tree) not in subprocess.run(listed, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["nonsense", "a b"])
def test_an_unknown_workload_stops_a_pair_before_it_begins(name: str) -> None:
    """Not after the minutes that those before it take."""
    with pytest.raises(UsageError, match=f"no such workload '{name}'"):
        next(gate.pair("HEAD", ["vtrace", name]))


def test_an_unknown_revision_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 before anything is measured."""
    assert run_main(lambda _: main(["throughput", "--pair", "nowhere"])) == 2
    assert capsys.readouterr().err == "error: git does not know the revision 'nowhere'\n"
