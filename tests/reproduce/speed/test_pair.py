"""Pairs: a slower tree is found, and what cannot be compared is told."""

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from reproduce.run.ray.pool import copy_code
from reproduce.speed import Finding, pair
from reproduce.speed.pair import Ratio
from suite.base.errors import UsageError
from tests.reproduce.conftest import Say


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[str, str], Path]:
    """A function that copies this tree and appends code to one of its files."""

    def copy(file: str, code: str) -> Path:
        copy_code(tmp_path)
        with (tmp_path / file).open("a") as source:
            source.write(code)
        return tmp_path

    return copy


@pytest.mark.long
@pytest.mark.quiet
def test_code_that_got_slower_is_found(planted: Callable[[str, str], Path]) -> None:
    """V-trace computed twice, in another tree; the same tree twice is no slower than itself."""
    slow = planted(
        "agents/impala.py",
        "\n\n_once = vtrace_from_importance_weights\n"
        "def vtrace_from_importance_weights(*arguments):\n"
        "    _once(*arguments)\n"
        "    return _once(*arguments)\n",
    )
    for seconds in (0.75, 5.0, 15.0):
        finding = pair.judge("vtrace", pair.compare(slow, pair.ROOT, "vtrace", seconds))
        if finding.alarm:
            break
    assert finding.alarm, finding.text
    same = pair.judge("update-acer", pair.compare(slow, pair.ROOT, "update-acer", 0.75))
    assert not same.alarm, same.text


@pytest.mark.long
def test_what_only_one_tree_cannot_do_is_told(planted: Callable[[str, str], Path]) -> None:
    """An older commit may lack a function; a tree that broke it is an error."""
    broken = planted("agents/impala.py", "\n\ndel vtrace_from_importance_weights\n")
    with pytest.raises(pair.Incomparable, match="has no attribute 'vtrace_from_importance"):
        pair.compare(pair.ROOT, broken, "vtrace", 0.2)
    with pytest.raises(UsageError, match="has no attribute 'vtrace_from_importance") as caught:
        pair.compare(broken, pair.ROOT, "vtrace", 0.2)
    assert not isinstance(caught.value, pair.Incomparable)


def test_a_pair_that_judges_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    """Skipped work is shown as such and is no success."""
    skipped = Finding("vtrace", False, "skipped: old cannot do it (why)", judged=False)
    monkeypatch.setattr(pair, "judge_against", lambda *arguments: iter([skipped]))
    status, out, err = say(["throughput", "--pair", "old"])
    assert (status, out) == (2, "not judged vtrace: skipped: old cannot do it (why)\n")
    assert err.startswith("error: nothing could be compared with old")


def test_a_pair_of_the_same_gated_code_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, tests and the harness may differ; an agent's file or a source's settings may not."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(pair, "other_tree", lambda revision: nullcontext(Path("elsewhere")))
    monkeypatch.setattr(pair, "_git", lambda *words: asked.append(words) or b"")
    monkeypatch.setattr(pair, "compare", lambda *trees: pytest.fail("something was measured"))
    (finding,) = pair.judge_against("old", ["vtrace"])
    assert finding == ("all", False, "no code that the workloads run differs from old", True)
    (words,) = asked
    paths = {"agents/a2c.py", "suite/nets/networks.py", "results/references/paper/sac.toml"}
    listed = ["git", "-C", str(pair.ROOT), "ls-files", *words[words.index("--") :]]
    tracked = subprocess.run(listed, capture_output=True, text=True).stdout.split()
    assert paths <= set(tracked)
    assert not [path for path in tracked if path.startswith(("reproduce/", "docs/", "tests/"))]


def test_a_pair_alarms_only_if_every_start_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process may be slower than its twin for life: it is placed otherwise in memory."""
    slow, equal, fast = Ratio(0.5, 0.4, 0.6), Ratio(1.0, 0.9, 1.1), Ratio(2.0, 1.9, 2.1)
    monkeypatch.setattr(pair, "other_tree", lambda revision: nullcontext(Path("elsewhere")))
    monkeypatch.setattr(pair, "_git", lambda *words: b"agents/impala.py")
    monkeypatch.setattr(pair, "compare", lambda *arguments: left.pop(0))
    cases = [([slow, slow, equal], False), ([slow] * 3, True), ([equal], False), ([fast], False)]
    for found, alarms in cases:
        left = list(found)
        (finding,) = pair.judge_against("old", ["vtrace"])
        assert (finding.alarm, left) == (alarms, [])


def test_what_is_unknown_stops_a_pair_before_it_begins() -> None:
    """Not after the minutes that the workloads before it take."""
    with pytest.raises(UsageError, match="no such workload 'nonsense'"):
        next(pair.judge_against("HEAD", ["vtrace", "nonsense"]))
    with pytest.raises(UsageError, match="git does not know the revision 'nowhere'"):
        next(pair.judge_against("nowhere", ["vtrace"]))


def test_the_interval_of_a_ratio_holds_the_truth() -> None:
    """At least 95 of 100 times, with disturbed blocks and drift; it shows a loss of a tenth."""
    generator, inside, seen = np.random.default_rng(0), 0, 0
    for _ in range(1_000):
        drift = np.exp(np.linspace(0, 0.3, 80))
        speeds = drift[:, None] * generator.normal(1.0, 0.02, (80, 2))
        speeds[generator.random((80, 2)) < 0.1] *= 0.4
        speeds[:, 0] *= 0.9
        found = pair.ratio(speeds[:, 0], speeds[:, 1])
        inside += found.low <= 0.9 <= found.high
        seen += found.high < 1.0
    assert inside >= 930  # 95 % of 1,000 less three deviations
    assert seen >= 990
    # ten rounds are five turns: no two of their ranks hold 95 %
    assert pair.ratio(np.ones(10), np.ones(10))[1:] == (0.0, np.inf)


def test_turns_are_taken_back_and_forth() -> None:
    """ABBA, in blocks of the same length whatever one repetition takes."""
    calls: list[str] = []

    def runner(name: str, seconds: float):  # type: ignore[no-untyped-def]
        return lambda count: calls.append(name) or count * seconds

    rows = pair.take_turns([runner("a", 0.02), runner("b", 0.01)], seconds=0.01)
    assert rows.mean(0) == pytest.approx([0.02, 0.01])
    assert "".join(calls[-8:]) == "abbaabba"
