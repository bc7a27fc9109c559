"""The pool of processes: no run is lost, none is left behind, and progress is what files say.

Small scripts stand in for the agents: a launcher knows them by their files and exit status alone.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reproduce import ROOT
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan
from reproduce.plan.status import check_extensions
from reproduce.run import pool as pooling
from reproduce.run.lease import Leases
from reproduce.run.pool import launch
from reproduce.run.processes import start_time
from reproduce.run.progress import Board
from suite.base.errors import UsageError
from tests.gpus import with_gpus
from tests.reproduce.conftest import TASK, StandIn, pendulum, record_run
from tests.reproduce.run.boards import ends, ignore, record_of
from tests.runs import tree

FINISH = "end(folders[0], 'finished')"
CRASH = "print('all is well', flush=True); raise MemoryError('no more')"
SLEEP = """
(folders[0] / "timing.csv").write_text("env_steps,num_updates,env_steps_per_second\\n77,0,1.0\\n")
(folders[0] / "pid").write_text(str(os.getpid()))
time.sleep(60)
"""


def pids_of(plan: Plan, count: int, board: Board) -> list[int]:
    """Process ids of the sleeping runs once there are `count`, else none; gives up in the end."""
    assert time.monotonic() < board.started + 60, "the sleeping runs have not begun"
    said = [file.read_text() for file in plan.directory.glob("*/*/pid")]
    return [int(pid) for pid in said] if len(said) == count and all(said) else []


UNFINISHED = {
    "print(*range(100), sep='\\n', flush=True); " + CRASH: "exit 1: MemoryError: no more",
    "print('at work', flush=True); os.abort()": "killed by SIGABRT: at work",
    "os.kill(os.getpid(), signal.SIGRTMIN + 3)": "killed by signal 37: no output",
    "pass": "exit 0: no output",
    "end(folders[0], 'running')": "exit 0: no output",
    "(folders[0] / 'run.json').write_text('{')": "exit 0: no output",
    "sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.exit(3)": "exit 3: \ufffd\ufffd",
    "end(folders[0], 'running'); raise ValueError('late')": "exit 1: ValueError: late",
    "raise MemoryError": "exit 1: MemoryError",  # alone: nobody leaves it more
}
"""Scripts of seeds 2, 3, ..., and what is said of each."""


def test_whatever_does_not_finish_has_failed(tmp_path: Path, stand_in: StandIn) -> None:
    """A crash, a kill or an end without a finished run is recorded with its last words."""
    stand_in(dict(enumerate([FINISH, *UNFINISHED], 1)))
    plan = pendulum(tmp_path, range(1, len(UNFINISHED) + 2))
    board = launch(plan, ignore)
    failed = {seed: ("failed", said) for seed, said in enumerate(UNFINISHED.values(), 2)}
    assert (ends(board), board.notes) == ({1: ("finished", "")} | failed, [])
    for seed, script in enumerate(UNFINISHED, 2):
        record = record_of(plan, seed)
        assert (record["task"], record["status"], record["error"]) == (TASK, *failed[seed])
        assert ("sources" in record) == ("running" in script)
    record = record_of(plan, 2)
    assert len(record["log_tail"]) == pooling.LOG_LINES
    assert record["log_tail"][-1] == "MemoryError: no more"
    assert "all is well" in record["log_tail"]
    assert sys.executable in record["command"]
    assert (record["seed"], record["config"]) == (2, {"env_steps": 1000})


def test_the_seeds_of_one_process_end_each_on_their_own(tmp_path: Path, stand_in: StandIn) -> None:
    """On a GPU one process may finish a seed, see one diverge and die with the third unfinished."""
    script = "end(folders[0], 'finished'); end(folders[1], 'diverged', 'nan')"
    stand_in({1: script + "; print('not a number'); sys.exit(2)"})
    plan = dataclasses.replace(pendulum(tmp_path, [1, 2, 3]), device="cuda")
    assert ends(launch(plan, ignore)) == {
        1: ("finished", ""),
        2: ("diverged", "nan"),
        3: ("failed", "exit 2: not a number"),
    }
    tails = [record_of(plan, seed).get("log_tail") for seed in (1, 2, 3)]
    assert tails == [None, ["not a number"], ["not a number"]]
    assert record_of(plan, 2)["status"] == "diverged"
    assert (plan.directory / TASK / "seeds-1-2-3.log").exists()


def test_no_more_than_the_workers_run_side_by_side(tmp_path: Path, stand_in: StandIn) -> None:
    """Six runs on two workers: two at a time, never three, and not one by one."""
    script = """
began = time.monotonic()
(folders[0] / 'began').touch()
pair = (int(seeds[0]) + 1) // 2
while len(list(pathlib.Path(out).glob('*/began'))) < 2 * pair:
    if time.monotonic() > began + 180:
        sys.exit('alone')
    time.sleep(0.01)
time.sleep(0.03)
(folders[0] / 'times').write_text(f"{began} {time.monotonic()}")
end(folders[0], 'finished')
"""
    stand_in(dict.fromkeys(range(1, 7), script))
    plan = pendulum(tmp_path, [1, 2, 3, 4, 5, 6])
    assert launch(plan, ignore).count("finished") == 6
    times = [(run.directory / "times").read_text().split() for run in plan.runs()]
    spans = [(float(began), float(ended)) for began, ended in times]
    assert max(sum(low <= began < high for low, high in spans) for began, _ in spans) == 2


SEES = """
(folders[0] / "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
def await_finished(*others):
    until = time.monotonic() + 180
    while any(not pathlib.Path(out, f"seed-{k}", "run.json").exists() for k in others):
        if time.monotonic() > until:
            sys.exit("waited in vain")
        time.sleep(0.005)
"""
TURNS = f"{SEES}await_finished(2, 5)\n{FINISH}"


@pytest.mark.parametrize(
    ("visible", "options", "first", "others", "seen"),
    [
        # a long run keeps its own GPU; all others go, one by one, to the other
        (None, {}, (2, 3, 4), SEES + FINISH, "0111"),
        ("7,3", {}, (2,), SEES + FINISH, "73"),
        (" 5, 6,9", {}, (2, 3, 4), SEES + FINISH, "5666"),
        (None, {"workers": 4}, (2, 5), TURNS, "01011"),  # where one ends, the next begins
        (None, {"device": "cuda:1"}, (), SEES + FINISH, ["all", "all"]),  # its own flag says which
    ],
)
def test_a_process_gets_the_gpu_with_the_fewest_and_sees_just_that_one(
    visible, options, first, others: str, seen, tmp_path, stand_in: StandIn, monkeypatch
) -> None:
    """Of two GPUs: the first run waits for some others, which end at once."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("reproduce.plan.resources.num_cores", lambda: 4)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with_gpus(monkeypatch, 2)
    asked = {"tasks": ["CartPole-v1"], "env_steps": 1000, "device": "cuda", **options}
    plan = make_plan("a2c", "classic", runs_dir=tmp_path, num_seeds=len(seen), **asked)
    waits = f"{SEES}await_finished(*{first})\n{FINISH}"
    ends_at_once = dict.fromkeys(first[:1] + first[-1:], SEES + FINISH)
    stand_in({**dict.fromkeys(range(1, len(seen) + 1), others), **ends_at_once, 1: waits})
    assert launch(plan, ignore).count("finished") == len(seen)
    assert [(run.directory / "gpu").read_text() for run in plan.runs()] == list(seen)


def test_what_a_killed_run_left_is_its_agents_to_remove(tmp_path: Path, stand_in: StandIn) -> None:
    """It may refuse to begin: another run's checkpoint goes on from these rows."""
    plan = pendulum(tmp_path, [1])
    folder = record_run(plan, TASK, 1, {900: 5.0}, status="running")
    rows = {path: path.read_bytes() for path in folder.glob("*.csv")}
    stand_in({1: CRASH})
    (row,) = launch(plan, ignore).rows
    assert row.state == "failed"
    assert {path: path.read_bytes() for path in folder.glob("*.csv")} == rows


def test_a_shorter_run_that_cannot_go_on_is_left(tmp_path: Path, stand_in: StandIn) -> None:
    """Without a checkpoint it is refused, and if its agent refuses it, its record stays."""
    plan = pendulum(tmp_path, [1])
    folder = record_run(plan, TASK, 1, {300: 5.0}, env_steps=300, device="cpu")
    before = tree(folder)
    with pytest.raises(UsageError, match="ended at 300 steps and cannot go on to 1,000: its check"):
        check_extensions(plan, plan.runs())
    stand_in({1: FINISH})
    (row,) = launch(plan, ignore).rows
    assert row.state == "failed"
    assert "its checkpoint is gone" in row.error
    assert tree(folder) == before
    (folder / "checkpoint").mkdir()
    (folder / "best").mkdir()  # a run that was begun anew leaves it empty
    check_extensions(plan, plan.runs())
    with pytest.raises(UsageError, match="it was begun without --keep-best"):
        check_extensions(replace(plan, keep_best=True), plan.runs())
    stand_in({1: CRASH})
    (row,) = launch(plan, ignore).rows
    assert row.state == "failed"
    assert tree(folder) == before
    assert sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) == ["seed-1"]


@pytest.fixture
def _foreign() -> Iterator[None]:
    """A handler of SIGTERM that another library installed: Ray's ends the process."""
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_foreign")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_everything(number: signal.Signals, tmp_path: Path, stand_in: StandIn) -> None:
    """Ctrl-C, a scheduler's SIGTERM or a closed terminal leaves no orphan and no false result."""
    stand_in({1: FINISH, 2: SLEEP, 3: SLEEP, 4: FINISH})
    plan = pendulum(tmp_path, [1, 2, 3, 4])
    pids: list[int] = []

    def interrupt(board: Board) -> None:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN)
        pids[:] = pids_of(plan, 2, board)
        if pids and [row.env_steps for row in board.rows] == [0, 77, 77, 0]:  # read as they run
            assert all(map(start_time, pids))
            os.kill(os.getpid(), number)
            time.sleep(5)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        launch(plan, interrupt)
    assert len(pids) == 2
    assert not any(map(start_time, pids))
    assert signal.getsignal(number) == before
    assert [run.status for run in plan.runs()] == ["finished", "planned", "planned", "planned"]


def test_a_second_request_to_end_takes_no_agent_its_time(tmp_path: Path, stand_in: StandIn) -> None:
    """A scheduler may signal the harness twice: its agents still write their checkpoints."""
    late = "time.sleep(1); print('a checkpoint', flush=True); sys.exit()"
    stand_in({1: f"signal.signal(signal.SIGTERM, lambda *_: exec({late!r})); {SLEEP}"})
    plan = pendulum(tmp_path, [1])

    def interrupt(board: Board) -> None:
        if pids_of(plan, 1, board):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        launch(plan, interrupt)
    assert "a checkpoint" in (plan.directory / TASK / "seeds-1.log").read_text()
    assert not list((plan.directory / TASK).glob("*.lease"))


def test_seeds_of_a_checkpoint_wait_for_one_elsewhere(tmp_path: Path, stand_in: StandIn) -> None:
    """A checkpoint fits all seeds of its process: no part of them is started."""
    plan = dataclasses.replace(pendulum(tmp_path, [1, 2, 3]), device="cuda")
    first = record_run(plan, TASK, 1, {900: 5.0}, status="running", seeds=(1, 2))
    (first / "checkpoint").mkdir()
    stand_in({1: "end(folders[1], 'finished'); " + FINISH, 3: FINISH})
    other = Leases(plan.directory)
    assert other.claim(first.with_name("seed-2"))

    def watch(board: Board) -> None:
        if board.count("finished"):
            other.release(first.with_name("seed-2"))

    assert launch(plan, watch).count("finished") == 3
    assert {path.name for path in first.parent.glob("*.log")} == {"seeds-1-2.log", "seeds-3.log"}


@pytest.mark.parametrize("why", ["Ctrl-C, ignored", "an error of the watcher", "no folder"])
def test_whatever_ends_the_launcher_ends_what_it_started(
    why: str, tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the agent wants to, and without a new start in a folder that has vanished."""
    monkeypatch.setattr(pooling, "STOP_SECONDS", 0.1)
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if "ignored" in why else ""
    stand_in({1: ignored + SLEEP, 2: FINISH})
    plan, pids = pendulum(tmp_path, [1, 2], workers=1), list[int]()

    def end(board: Board) -> None:
        pids[:] = pids_of(plan, 1, board)
        if pids and why == "no folder":
            plan.directory.rename(tmp_path / "elsewhere")
        elif pids:
            raise KeyboardInterrupt if ignored else ZeroDivisionError

    expected = {"C": KeyboardInterrupt, "a": ZeroDivisionError, "n": UsageError}[why[0]]
    with pytest.raises(expected) as caught:
        launch(plan, end)
    assert start_time(pids[0]) is None
    assert plan.directory.exists() == (why != "no folder")
    assert ("sac-classic/tuned has vanished" in str(caught.value)) == (why == "no folder")


def test_a_process_finds_this_checkout_and_uses_one_thread(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents are found from any working directory, add to PYTHONPATH, and do not share cores."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = "('PYTHONPATH', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')"
    stand_in({1: f"print(json.dumps([os.environ[n] for n in {names}] + [sys.stdin.read()]))"})
    plan = pendulum(tmp_path, [1])
    launch(plan, ignore)
    said = json.loads((plan.directory / TASK / "seeds-1.log").read_text())
    assert said == [f"{ROOT}:/somewhere/else", "1", "1", "1", ""]


def test_a_diverged_seed_stays_so_where_others_go_on(tmp_path: Path, stand_in: StandIn) -> None:
    """One process is given all seeds of the checkpoint; no row is lost, nor the divergence."""
    plan = dataclasses.replace(pendulum(tmp_path, [1, 2, 3]), device="cuda")
    first = record_run(plan, TASK, 1, {900: 5.0}, status="running", seeds=(1, 2))
    (first / "checkpoint").mkdir()
    record = record_of(plan, 1) | {"status": "diverged", "error": "no number"}
    (first / "run.json").write_text(json.dumps(record))
    rows = tree(first)
    stand_in({1: "end(folders[1], 'finished'); sys.exit(2)", 3: FINISH})
    states = ends(launch(plan, ignore))
    assert states == {1: ("diverged", "no number"), 2: ("finished", ""), 3: ("finished", "")}
    row = launch(plan, ignore).rows[0]  # on a second start
    assert (row.state, row.error) == ("diverged", "no number")
    assert {name: rows[name] for name in rows if name != "run.json"}.items() <= tree(first).items()
    assert {path.name for path in first.parent.glob("*.log")} == {"seeds-1-2.log", "seeds-3.log"}
