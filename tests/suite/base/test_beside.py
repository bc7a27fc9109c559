"""Work beside training, in a copy of the process: the same bytes, no orphan, no silent failure."""

import errno
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import a2c, sac
from suite import session
from suite.base.beside import InCopy, can_copy
from suite.record.journal import Journal
from suite.record.recorder import Recorder
from suite.session import Session
from tests.test_resume import CASES, Killed, tables, train

A2C, SAC = CASES["a2c"][1], CASES["sac, two seeds"][1]
TIMES = ("started_at", "resumed_at", "ended_at", "wall_seconds")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[InCopy]:
    """Evaluate beside training, and ask for a result as late as a run may; return all such work.

    The tests' own threads only wait for orders.
    """
    made: list[InCopy] = []

    def beside(work: Callable[[], Any]) -> InCopy:
        made.append(InCopy(work))
        return made[-1]

    monkeypatch.setattr(session, "can_copy", lambda: True)
    monkeypatch.setattr(session, "InCopy", beside)
    monkeypatch.setattr(InCopy, "has_ended", lambda work: False)
    return made


def everything(directory: Path) -> dict[str, Any]:
    """Return all that a run leaves, but for times, its checkpoint and its settings."""
    found: dict[str, Any] = dict(tables(directory))
    for folder in directory.glob("seed-*"):
        record = json.loads((folder / "run.json").read_text())
        kept = {key: value for key, value in record.items() if key not in (*TIMES, "config")}
        policy = folder / "policy.safetensors"
        found[folder.name] = kept, policy.read_bytes() if policy.exists() else None
        steps = [row.split(",")[:2] for row in (folder / "timing.csv").read_text().splitlines()]
        found[f"{folder.name}/timing.csv"] = steps
    return found


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("case", "at_once"),
    [
        ("a2c, normalised", False),
        ("a2c, normalised", True),
        ("sac, two seeds", False),
        ("acer, normalised, recurrent", False),
    ],
)
def test_a_run_has_the_bytes_of_one_that_waits(
    case: str,
    at_once: bool,
    tmp_path: Path,
    copies: list[InCopy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows in their order, weights, last and best policies: with statistics, seeds and memory.

    A result may come as late as the next evaluation, or before any other row.
    """
    monkeypatch.setattr(InCopy, "has_ended", lambda work: at_once)
    agent, config = CASES[case]
    interval = config.evaluation_interval // 2
    config = replace(config, evaluation_interval=interval, evaluation_rule="sampled")
    train(agent, config, tmp_path / "waits")
    assert not copies
    train(agent, replace(config, evaluate_beside=True), tmp_path / "beside")
    assert len(copies) == 3  # beside the last evaluation nothing is left to train
    assert everything(tmp_path / "beside") == everything(tmp_path / "waits")


@pytest.mark.usefixtures("unchecked")
def test_a_run_killed_during_an_evaluation_goes_on_with_the_same_bytes(
    tmp_path: Path, copies: list[InCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint waits for the result; one that was lost is computed again, beside or not."""
    config = replace(A2C, evaluation_interval=80)
    train(a2c, config, tmp_path / "whole")
    goes_on, rows = Session.goes_on, tmp_path / "cut" / "seed-1" / "evaluations.csv"

    def dies(ours: Session, env_steps: int) -> bool:
        if env_steps >= 280:
            raise Killed
        return goes_on(ours, env_steps)

    passes = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "goes_on", dies)
        patch.setattr(Journal, "is_due", lambda journal, at_end=False: next(passes) == 10)
        with pytest.raises(Killed):
            train(a2c, replace(config, evaluate_beside=True), tmp_path / "cut")
    assert len(copies) == 3  # at 80, 160 and 240
    assert len(rows.read_text().splitlines()) == 1 + 2  # the checkpoint was after 160
    other = replace(config, env_threads=2)
    assert train(a2c, other, tmp_path / "cut").snapshot is not None
    assert tables(tmp_path / "cut") == tables(tmp_path / "whole")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("bad_score", "bad_metric"), [(60, 0), (0, 90), (60, 90), (120, 0)])
def test_a_seed_diverges_where_it_does_in_a_run_that_waits(
    bad_score: int,
    bad_metric: int,
    tmp_path: Path,
    copies: list[InCopy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first has a score of NaN, which takes its later rows back, or its policy at the end.

    The second's NaN is learned after 60 steps, whose score it keeps.
    """
    score, log = Session.score, Recorder.log

    def scored(ours: Session, env_steps: int, *rest: Any) -> np.ndarray:
        returns = score(ours, env_steps, *rest)
        return np.where([[env_steps == bad_score], [False]], np.nan, returns)

    def logged(
        ours: Recorder, env_steps: int, updates: int, metrics: Mapping[str, Any], checks: Any
    ) -> None:
        bad = np.array([0.0, np.nan if env_steps == bad_metric else 0.0])
        log(ours, env_steps, updates, metrics, {**checks, "bad": bad})

    monkeypatch.setattr(Session, "score", scored)
    monkeypatch.setattr(Recorder, "log", logged)
    ends = [train(sac, SAC, tmp_path / "waits").statuses]
    ends.append(train(sac, replace(SAC, evaluate_beside=True), tmp_path / "beside").statuses)
    wanted = ["diverged" if bad else "finished" for bad in (bad_score, bad_metric)]
    assert ends == [wanted, wanted]
    assert len(copies) == 1
    assert everything(tmp_path / "beside") == everything(tmp_path / "waits")


def test_rows_held_back_are_those_that_were_recorded(tmp_path: Path) -> None:
    """Training goes on with the arrays that it gave; times are those of the call."""
    recorder = Recorder(tmp_path, {"agent": "mine"}, [1])
    recorder.await_result(InCopy(lambda: 7.0), lambda score: recorder.evaluation(5, one(score)))
    losses, rewards = one(2.0)[0], one(3.0)[0]
    recorder.log(5, 1, {"loss": losses}, {"reward": rewards})
    assert not (tmp_path / "seed-1" / "timing.csv").exists()
    losses[:] = rewards[:] = np.nan
    time.sleep(0.05)
    before = time.perf_counter() - recorder.clock._started
    recorder.settle()
    folder = tmp_path / "seed-1"
    assert (folder / "updates.csv").read_text() == "env_steps,num_updates,loss\n5,1,2.0\n"
    assert (folder / "evaluations.csv").read_text().endswith("\n5,7.0,7.0\n")
    assert float((folder / "timing.csv").read_text().splitlines()[1].split(",")[2]) < before - 0.04
    assert recorder.statuses == ["running"]


def one(number: float) -> np.ndarray:
    """Return one seed's array of one number."""
    return np.array([[number]])


@pytest.mark.usefixtures("unchecked", "copies")
def test_a_failed_evaluation_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error that shows where in the copy; the run is not finished."""

    def evaluate(*_: Any, **__: Any) -> np.ndarray:
        raise ValueError("no such joint")

    monkeypatch.setattr(session, "evaluate", evaluate)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback .* in evaluate\n.*no such joint"):
        train(a2c, replace(A2C, evaluate_beside=True), tmp_path)
    assert json.loads((tmp_path / "seed-1/run.json").read_text())["status"] == "running"


def test_a_result_that_cannot_be_sent_is_told_as_such() -> None:
    """Not as a copy that ended for no reason."""
    with pytest.raises(RuntimeError, match=r"(?s)Traceback .*pickle"):
        InCopy(lambda: lambda: 1).result()


def test_work_that_is_killed_is_an_error() -> None:
    """As by the kernel where memory is short, which the launcher takes as such."""
    work = InCopy(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match=r"\(--evaluate-beside\): out of memory"):
        work.result()


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_without_a_copy_the_work_is_done_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine short of memory or processes makes a run slower and does not end it."""

    def fork() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fork", fork)
    work = InCopy(os.getpid)
    assert work.has_ended()
    assert work.result() == os.getpid()


def test_a_signal_to_all_processes_leaves_the_work_alone() -> None:
    """Ctrl-C in a terminal reaches the copy as well, whose result the checkpoint waits for."""
    (begun, begins), (go, may_go) = os.pipe(), os.pipe()

    def wait() -> bytes:
        os.write(begins, b"!")
        return os.read(go, 1)

    work = InCopy(wait)
    os.read(begun, 1)
    assert not work.has_ended()
    assert work._copy is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(work._copy, number)
    os.write(may_go, b"7")
    assert work.result() == b"7"
    for descriptor in (begun, begins, go, may_go):
        os.close(descriptor)


def test_the_work_leaves_the_garbage_of_the_process_alone() -> None:
    """A simulator in it would wait, in the copy, for threads that only the process has."""
    ends: list[str] = []

    class Simulator:
        """Notes that it ends; it is in a cycle, which only the garbage collector breaks."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ends.append("ended")

    def collect() -> list[str]:
        gc.collect()
        return ends

    gc.disable()
    try:
        Simulator()
        assert InCopy(collect).result() == []
    finally:
        gc.enable()
    assert collect() == ["ended"]


def test_a_process_that_is_killed_leaves_no_copy() -> None:
    """`kill -9` reaches the process alone; its copy would work on for nobody."""
    program = (
        "import time; from suite.base.beside import InCopy;"
        "print(InCopy(lambda: time.sleep(60))._copy, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        copy = int(process.stdout.readline())
        os.kill(copy, 0)
        process.kill()
    until = time.monotonic() + 20
    while not has_gone(copy):
        assert time.monotonic() < until, "an orphan"
        time.sleep(0.02)


def has_gone(pid: int) -> bool:
    """Return whether a process is gone, or dead and only not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_only_a_process_without_other_threads_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy would wait for ever for a lock that one of them holds."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert can_copy()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)
        assert not can_copy()
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not can_copy()
