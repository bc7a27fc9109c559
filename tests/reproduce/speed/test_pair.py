"""Pairs: a slower tree is found, and what cannot be compared is told."""

import math
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from reproduce.__main__ import main
from reproduce.run.ray.pool import copy_code
from reproduce.speed import pair
from reproduce.speed.finding import Finding
from reproduce.speed.pair import Ratio
from reproduce.speed.serve import pinned
from suite.base import hardware
from suite.base.errors import UsageError
from suite.settings.command_line import run_main

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
    with pair.workers(slow, pair.ROOT) as (ours, theirs):
        for seconds in (0.75, 5.0, 15.0):
            finding = pair.judge("vtrace", pair.compare(ours, theirs, "vtrace", seconds))
            if finding.alarm:
                break
        assert finding.alarm, finding.text
        same = pair.judge("retrace", pair.compare(ours, theirs, "retrace", 0.75))
        assert not same.alarm, same.text
        faster = pair.judge("vtrace", pair.compare(theirs, ours, "vtrace", 0.75))
        assert not faster.alarm, faster.text


def test_what_the_other_tree_cannot_do_is_told_from_what_this_one_cannot(
    planted: Callable[[str, str], Path],
) -> None:
    """An older commit may lack a function; a tree that broke it is an error. Both can go on."""
    broken = planted("agents/impala.py", "\n\ndel vtrace_from_importance_weights\n")
    with pair.workers(pair.ROOT, broken) as (whole, lacking):
        with pytest.raises(pair.Incomparable, match="has no attribute 'vtrace_from_importance"):
            pair.compare(whole, lacking, "vtrace", 0.2)
        with pytest.raises(UsageError, match="has no attribute 'vtrace_from_importance") as caught:
            pair.compare(lacking, whole, "vtrace", 0.2)
        assert not isinstance(caught.value, pair.Incomparable)
        assert pair.compare(whole, lacking, "retrace", 0.2).median > 0


def test_a_commit_that_cannot_start_is_an_error(
    planted: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It may be older than what the workloads import; a gate that measured nothing is not `ok`."""
    broken = planted("suite/settings.py", NOT_TODAY)
    (broken / "torch.py").write_text(NOT_TODAY)  # what a worker imports first
    monkeypatch.setattr(pair, "worktree", lambda revision: nullcontext(broken))
    assert run_main(lambda _: main(["throughput", "--pair", "old", "vtrace"])) == 2
    expected = "error: the other tree does not start: RuntimeError: not today\n"
    assert capsys.readouterr().err == expected


def test_a_pair_of_which_nothing_can_be_judged_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Skipped work is shown as such and is no success."""
    skipped = Finding("vtrace", False, "skipped: old cannot do it (why)", judged=False)
    monkeypatch.setattr(pair, "judge_against", lambda *arguments: iter([skipped]))
    assert run_main(lambda _: main(["throughput", "--pair", "old"])) == 2
    told = capsys.readouterr()
    assert told.out == "not judged vtrace: skipped: old cannot do it (why)\n"
    assert told.err.startswith("error: nothing could be compared with old")


def test_a_pair_without_a_difference_in_gated_code_measures_nothing(
    planted: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages, tests and the harness may differ; an agent's file or its settings may not."""
    same = planted("README.md", "\nAnother page.\n")
    assert pair.differing(same) == []
    monkeypatch.setattr(pair, "worktree", lambda revision: nullcontext(same))
    monkeypatch.setattr(pair, "workers", lambda *trees: pytest.fail("something was measured"))
    (finding,) = pair.judge_against("old", ["vtrace"])
    assert finding == ("all", False, "no code that the workloads run differs from old", True)
    for file in ("agents/impala.py", "suite/nets/affine.py"):
        with (same / file).open("a") as code:
            code.write("# another line\n")
        assert file in pair.differing(same)


def test_a_pair_alarms_only_if_every_start_of_its_processes_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One process may be slower than its twin for life: it is placed otherwise in memory."""
    starts, found = [], [Ratio(0.5, 0.4, 0.6), Ratio(0.5, 0.4, 0.6), Ratio(1.0, 0.9, 1.1)]
    monkeypatch.setattr(pair, "worktree", lambda revision: nullcontext(Path("elsewhere")))
    monkeypatch.setattr(pair, "differing", lambda tree: ["a file"])
    monkeypatch.setattr(pair, "workers", lambda *trees: starts.append(1) or nullcontext((1, 2)))
    monkeypatch.setattr(pair, "compare", lambda *arguments: left.pop(0))
    left = list(found)
    (finding,) = pair.judge_against("old", ["vtrace"])
    assert (finding.alarm, len(starts), left) == (False, 3, [])
    left = [found[0]] * 3
    (finding,) = pair.judge_against("old", ["vtrace"])
    assert finding.alarm
    left = [found[2]]
    (finding,) = pair.judge_against("old", ["vtrace"])
    assert not finding.alarm


def test_a_worker_that_does_not_answer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that hangs would block the gate for ever."""
    hangs = tmp_path / "serve.py"
    hangs.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(pair.serve, "__file__", str(hangs))
    monkeypatch.setattr(pair, "ANSWER_SECONDS", 0.5)
    with pair.Worker(tmp_path) as worker, pytest.raises(UsageError, match="gave no answer for"):
        worker.wait()


def test_too_few_turns_judge_nothing() -> None:
    """Work that takes a second leaves no interval: it says so."""
    finding = pair.judge("slow", Ratio(0.5, 0.0, math.inf))
    assert finding == ("slow", False, "too slow here for enough turns", False)


def test_a_tree_that_does_not_start_is_an_error(planted: Callable[[str, str], Path]) -> None:
    """The last line of its complaint is shown."""
    broken = planted("torch.py", NOT_TODAY)  # what a worker imports first
    with (
        pytest.raises(UsageError, match="RuntimeError: not today"),
        pair.workers(broken, pair.ROOT),
    ):
        pass


def test_a_commit_is_checked_out_and_removed_again() -> None:
    """Nothing is left of it, on disk or in git's list of worktrees."""
    if not (pair.ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    with pair.worktree("HEAD") as tree:
        assert (tree / "agents" / "sac.py").exists()
        assert tree != pair.ROOT
    assert not tree.exists()
    listed = ["git", "-C", str(pair.ROOT), "worktree", "list"]
    assert str(tree) not in subprocess.run(listed, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["nonsense", "a b"])
def test_an_unknown_workload_stops_a_pair_before_it_begins(name: str) -> None:
    """Not after the minutes that those before it take."""
    with pytest.raises(UsageError, match=f"no such workload '{name}'"):
        next(pair.judge_against("HEAD", ["vtrace", name]))


def test_an_unknown_revision_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 before anything is measured."""
    assert run_main(lambda _: main(["throughput", "--pair", "nowhere"])) == 2
    assert capsys.readouterr().err == "error: git does not know the revision 'nowhere'\n"


def test_the_interval_of_a_ratio_holds_the_truth() -> None:
    """At least 95 of 100 times, also where one block in ten is disturbed and the machine drifts."""
    generator, inside = np.random.default_rng(0), 0
    for _ in range(1_000):
        drift = np.exp(np.linspace(0, 0.3, 80))
        speeds = drift[:, None] * generator.normal(1.0, 0.02, (80, 2))
        speeds[generator.random((80, 2)) < 0.1] *= 0.4
        speeds[:, 0] *= 0.9
        found = pair.ratio(speeds[:, 0], speeds[:, 1])
        inside += found.low <= 0.9 <= found.high
    assert inside >= 930  # 95 % of 1,000 less three deviations


def test_few_turns_enclose_nothing() -> None:
    """Ten rounds are five turns: no two of their ranks hold 95 %."""
    assert pair.ratio(np.ones(10), np.ones(10))[1:] == (0.0, np.inf)


def test_turns_are_taken_back_and_forth() -> None:
    """ABBA, in blocks of the same length whatever one repetition takes."""
    calls: list[str] = []

    def runner(name: str, seconds: float):  # type: ignore[no-untyped-def]
        return lambda count: calls.append(name) or count * seconds

    rows = pair.take_turns([runner("a", 0.02), runner("b", 0.01)], seconds=0.01)
    assert rows.mean(0) == pytest.approx([0.02, 0.01])
    assert "".join(calls[-8:]) == "abbaabba"


def test_a_pinned_thread_does_not_hide_the_machines_cores() -> None:
    """What is recorded while one core is left still names the whole machine."""
    hardware.machine.cache_clear()
    cores = hardware.num_cores()
    with pinned("vtrace"):
        assert hardware.num_cores() == 1
        assert hardware.machine()["cores"] == cores
