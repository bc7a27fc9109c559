"""What goes wrong outside the code: kills, rivals, full disks, hangs.

Each fault is injected for real. Small scripts stand in for agents, forked processes for harnesses.
"""

import dataclasses
import io
import json
import multiprocessing
import os
import platform
import random
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from reproduce.commands import grid
from reproduce.gather.tables import read_table
from reproduce.pipeline import tally
from reproduce.plan.grid import Plan
from reproduce.plan.status import refuse_mixture
from reproduce.run import lease as leasing
from reproduce.run import processes
from reproduce.run.lease import LATE_SECONDS, Holders, Leases
from reproduce.run.pool import launch
from reproduce.run.progress import OVER, Board
from suite.base.errors import UsageError
from suite.base.files import write_json
from suite.record import manifest
from tests.messages import refused
from tests.reproduce.conftest import TASK, StandIn, pendulum, record_run, recorded
from tests.reproduce.run.boards import FINISH, ends, ignore, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

slow = pytest.mark.slow
FORK = multiprocessing.get_context("fork")

FAIL = "sys.exit(3)"
WRITE_FOR_EVER = """
while True:
    with (folders[0] / "episodes.csv").open("a") as file:
        file.write("row\\n")
    time.sleep(0.005)
"""
BUSY = "until = time.monotonic() + {}\nwhile time.monotonic() < until: pass\n"


def executions(plan: Plan) -> Counter[int]:
    """How often each seed was started."""
    path = plan.directory / TASK / "executions"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(int(line.split()[0]) for line in lines)


def pids(plan: Plan) -> list[int]:
    """The process of every start."""
    lines = (plan.directory / TASK / "executions").read_text().splitlines()
    return [int(line.split()[1]) for line in lines]


def ended(pid: int) -> bool:
    """Whether a process is gone."""
    return processes.start_time(pid) is None


class Harness:
    """A harness in a process of its own, which exits with 0 if every run is finished."""

    def __init__(self, plan: Plan, watch: Callable[[Board], None] = ignore) -> None:
        def work() -> None:
            board = launch(plan, watch)
            assert all(row.state in OVER for row in board.rows)
            os._exit(0 if board.count("finished") == len(board.rows) else 2)

        self.process = FORK.Process(target=work)
        self.process.start()

    def kill(self) -> None:
        """`kill -9`, and wait."""
        self.process.kill()
        self.process.join()

    def status(self) -> int | None:
        """Wait for the end; return the exit status."""
        self.process.join(timeout=120)
        if self.process.is_alive():
            self.kill()
        return self.process.exitcode


@pytest.mark.parametrize("name", ["seeds-1.log", "seed-1"])
def test_a_link_costs_its_run_alone(name: str, tmp_path: Path, stand_in: StandIn) -> None:
    """The agent's output would overwrite the one, a new start remove the tables of the other."""
    plan, outside = pendulum(tmp_path / "runs", [1, 2]), tmp_path / "outside"
    outside.mkdir()
    victim = outside / "thesis.csv"
    victim.write_text("ten years")
    (plan.directory / TASK).mkdir(parents=True)
    (plan.directory / TASK / name).symlink_to(victim if name.endswith(".log") else outside)
    stand_in({1: FINISH, 2: FINISH})
    (state, error), other = (ends(launch(plan, ignore))[seed] for seed in (1, 2))
    assert (state, other) == ("failed", ("finished", ""))
    assert f"{name} is a link" in error
    assert [path.read_text() for path in outside.iterdir()] == ["ten years"]


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=slow)])
def test_a_killed_harness_leaves_no_writer(rounds: int, tmp_path: Path, stand_in: StandIn) -> None:
    """Neither a busy agent nor a stopped one outlives it; what was finished is not run again."""
    rng = random.Random(rounds)
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    for number in range(rounds):
        plan = pendulum(tmp_path / str(number), [1, 2, 3, 4], workers=3)
        stand_in({1: FINISH, 2: WRITE_FOR_EVER, 3: stop, 4: WRITE_FOR_EVER})
        harness = Harness(plan)
        rows = plan.directory / TASK / "seed-2" / "episodes.csv"
        if number % 2 == 0:
            wait_for(lambda plan=plan: len(executions(plan)) == 4, "all four agents")
            wait_for(rows.exists, "a first row")
        time.sleep(rng.random() / 5)
        harness.kill()
        orphans = pids(plan) if number % 2 == 0 else []
        wait_for(lambda orphans=orphans: all(map(ended, orphans)), "the end of the orphans")
        size = rows.stat().st_size if rows.exists() else 0
        time.sleep(0.05)
        assert (rows.stat().st_size if rows.exists() else 0) == size
        before = executions(plan)
        finished = [run.seed for run in plan.runs() if run.status == "finished"]
        stand_in(dict.fromkeys((1, 2, 3, 4), FINISH))
        assert launch(plan, ignore).count("finished") == 4
        assert executions(plan) - before == Counter({1, 2, 3, 4} - set(finished))


@pytest.mark.parametrize(("most", "rounds"), [(3, 2), pytest.param(8, 50, marks=slow)])
def test_harnesses_beside_each_other_execute_every_run_once(
    most: int, rounds: int, tmp_path: Path, stand_in: StandIn
) -> None:
    """Whoever is late waits for the other's runs and counts them, failures too."""
    rng = random.Random(most)
    for number in range(rounds):
        count = rng.randint(2, most) if rounds > 2 else most
        plan = pendulum(tmp_path / str(number), range(1, 6))
        here = plan.directory / TASK
        here.mkdir(parents=True)
        begun = f"while len(list(pathlib.Path(out).glob('begun-*'))) < {count}: time.sleep(0.005)\n"
        naps = [f"{begun}time.sleep({rng.random() / 10})\n" for _ in range(5)]
        stand_in({seed: naps[seed - 1] + (FAIL if seed == 5 else FINISH) for seed in range(1, 6)})
        for failing in (True, False):
            if not failing:  # a later start repairs what failed: once, again
                stand_in({5: begun + FINISH})

            def show(board: Board, here: Path = here) -> None:
                (here / f"begun-{os.getpid()}").touch()

            harnesses = [Harness(plan, show) for _ in range(count)]
            assert {harness.status() for harness in harnesses} == {2 if failing else 0}
            for file in here.glob("begun-*"):
                file.unlink()
            expected = dict.fromkeys(range(1, 6), 1) | {5: 1 if failing else 2}
            assert executions(plan) == Counter(expected)
        assert list(plan.directory.rglob("*.lease")) == []


def test_a_harness_with_other_settings_is_refused(tmp_path: Path, stand_in: StandIn) -> None:
    """Nothing is finished yet by which the two could be told apart; then nobody works any more."""
    stand_in(dict.fromkeys((1, 2, 3), "time.sleep(60)\n"))
    plan = pendulum(tmp_path, [1])
    harness = Harness(plan)
    wait_for(lambda: executions(plan)[1], "the agent")
    other = pendulum(tmp_path, [1, 2], settings=["gamma=0.5"])
    said = rf"other settings .*{harness.process.pid}\) runs .*seed-1"
    with pytest.raises(UsageError, match=said):
        grid.run_plan(other, Console(file=io.StringIO()))
    assert not (plan.directory / "plan.json").exists()
    stand_in({2: FINISH, 3: FINISH})
    other = dataclasses.replace(other, seeds=(2,), num_seeds={TASK: 1})
    state, why = ends(launch(other, ignore))[2]
    assert state == "failed"
    assert "not started: a harness with other settings" in why
    alike = dataclasses.replace(plan, seeds=(3,))
    assert ends(launch(alike, ignore)) == {3: ("finished", "")}
    assert executions(plan) == Counter({1: 1, 3: 1})
    harness.kill()
    shutil.rmtree(plan.directory / TASK / "seed-3")
    assert launch(other, ignore).count("finished") == 1


def test_a_lease_from_before_a_reboot_refuses_nobody_for_ever(tmp_path: Path) -> None:
    """It looks like another machine's, which counts for ten minutes after its last sign of life."""
    plan = pendulum(tmp_path, [1])
    run = plan.runs()[0].directory
    theirs, ours = Leases(plan.directory, "gamma"), Leases(plan.directory, "tau")
    assert theirs.claim(run)
    lease = run.with_name("seed-1.lease")
    lease.write_text(json.dumps(json.loads(lease.read_text()) | {"machine": "before the reboot"}))
    with pytest.raises(UsageError, match="other settings"):
        ours.refuse_rivals()
    os.utime(lease, (0, time.time() - LATE_SECONDS))
    Leases(plan.directory, "tau").refuse_rivals()


def test_the_runs_of_a_killed_harness_are_taken_over(tmp_path: Path, stand_in: StandIn) -> None:
    """At once, on the same machine: the process that holds the lease is gone."""
    plan = pendulum(tmp_path, [1, 2])
    first_start = "len((pathlib.Path(out) / 'executions').read_text().splitlines()) <= 2"
    stand_in(dict.fromkeys((1, 2), f"if {first_start}: time.sleep(60)\n" + FINISH))
    killed = Harness(plan)
    wait_for(lambda: len(executions(plan)) == 2, "both agents")
    notes: list[str] = []

    def watch(board: Board) -> None:
        if board.count("elsewhere") == 2 and killed.process.is_alive():
            notes[:] = board.notes
            killed.kill()

    assert launch(plan, watch).count("finished") == 2
    assert executions(plan) == Counter({1: 2, 2: 2})
    where = f"is run elsewhere: {platform.node()}, process {killed.process.pid}"
    assert notes == [f"{TASK} seed {seed} {where}" for seed in (1, 2)]


def write_foreign_lease(run: Path) -> Path:
    """Let another machine claim a run."""
    run.parent.mkdir(parents=True, exist_ok=True)
    lease = run.with_name(f"{run.name}.lease")
    write_json(lease, {"host": "far", "pid": os.getpid(), "machine": "another"})
    return lease


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """It would be opened to be written."""
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with refused():
        Leases(tmp_path)


def test_a_foreign_lease_needs_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by our clock alone: a heartbeat with any time on it keeps it, none gives it up."""
    monkeypatch.setattr(leasing, "HEARTBEAT_SECONDS", 0.2)
    foreign = tmp_path / "task" / "seed-1"
    leases, lease = Leases(tmp_path), write_foreign_lease(foreign)
    for beat in range(6):
        assert not leases.claim(foreign)
        os.utime(lease, (beat, 2e9 - 1000 * beat))  # clocks elsewhere may say anything
        time.sleep(0.1)
    began = time.monotonic()
    wait_for(lambda: leases.claim(foreign), "the lease")
    assert time.monotonic() - began > 0.2
    assert json.loads(lease.read_text())["pid"] == os.getpid()


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """A lease of this machine lives as long as its process, not as long as its number."""
    run = tmp_path / "seed-1"
    leases = Leases(tmp_path)
    assert leases.claim(run)
    assert not Leases(tmp_path).claim(run)
    lease = tmp_path / "seed-1.lease"
    holder = json.loads(lease.read_text())
    lease.write_text(json.dumps(holder | {"process_started": holder["process_started"] - 1}))
    assert Leases(tmp_path).claim(run)


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_no_lease(kind: str, tmp_path: Path) -> None:
    """In somebody else's folder: `watch` and `report` go on."""
    lease = tmp_path / "seed-1.lease"
    make = {"folder": os.mkdir, "pipe": os.mkfifo, "loop": lambda path: os.symlink(path, path)}
    make[kind](lease)
    assert not Holders().is_held(tmp_path / "seed-1")


@pytest.mark.parametrize("content", ["", "[]", '{"pid": []}', "[" * 100_000])
def test_a_lease_that_cannot_be_read_is_a_foreign_one(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is concluded from rubbish but that nobody shows a heartbeat."""
    monkeypatch.setattr(leasing, "HEARTBEAT_SECONDS", 0.05)
    run = tmp_path / "seed-1"
    (tmp_path / "seed-1.lease").write_text(content)
    leases = Leases(tmp_path)
    assert not leases.claim(run)
    assert leases.holder(run).startswith("unknown")
    wait_for(lambda: leases.claim(run), "the lease")


def test_a_harness_that_lost_a_run_stops_its_agent_and_counts_the_other(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended for too long, say: the run now belongs to whoever took it over."""
    monkeypatch.setattr(leasing, "HEARTBEAT_SECONDS", 0.4)
    plan = pendulum(tmp_path, [1])
    stand_in({1: WRITE_FOR_EVER})
    run = plan.directory / TASK / "seed-1"

    def watch(board: Board) -> None:
        if board.count("running") and executions(plan):
            write_foreign_lease(run)
        if board.count("elsewhere"):
            assert all(map(ended, pids(plan)))
            record_run(plan, TASK, 1)
            run.with_name("seed-1.lease").unlink(missing_ok=True)

    assert ends(launch(plan, watch)) == {1: ("finished", "")}
    assert executions(plan) == Counter({1: 1})


FILL = """
import resource
end(folders[0], "running")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with (folders[0] / "evaluations.csv").open("w") as file:
    file.write("env_steps,mean_return\\n")
    while True:
        file.write("100,0.125\\n")
"""


def test_a_run_without_space_fails_and_says_so(tmp_path: Path, stand_in: StandIn) -> None:
    """Earlier results stay readable, the truncated table is of no finished run."""
    plan = pendulum(tmp_path, [1, 2])
    record_run(plan, TASK, 1, {1000: 7.0})
    stand_in({2: FILL})
    state, error = ends(launch(plan, ignore))[2]
    assert state == "failed"
    assert error.startswith("no space: exit 1: OSError: [Errno 27]")
    torn = plan.directory / TASK / "seed-2" / "evaluations.csv"
    assert torn.stat().st_size == 4096


def test_a_full_disk_ends_neither_others_nor_harness(tmp_path: Path, stand_in: StandIn) -> None:
    """Not even the failure can be written down, and still every planned run is accounted for."""
    plan = pendulum(tmp_path, [1, 2, 3], workers=1)
    folder = record_run(plan, TASK, 1, {1000: 7.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill = f"""
import resource
for process in (0, {os.getpid()}):  # from now on neither it nor the harness can write a byte
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, {limits[1]}))
(folders[0] / "episodes.csv").write_text("row")
"""
    stand_in({2: fill, 3: FINISH})
    try:
        board = launch(plan, ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = ends(board)
    assert found[1] == ("finished", "")
    assert found[2][1].startswith("no space: exit 1")
    assert found[3][1].startswith("no space")
    failures = {(row.run.task, row.run.seed): row.error for row in board.rows if row.error}
    runs = recorded(plan, failures)["runs"]
    assert tally(runs.status) == "3 planned = 1 finished + 2 failed"
    assert read_table(folder / "evaluations.csv").mean_return.tolist() == [7.0]
    stand_in({2: FINISH, 3: FINISH})
    assert launch(plan, ignore).count("finished") == 3


@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=slow)])
def test_every_damage_to_a_finished_run_is_found(times: int, tmp_path: Path) -> None:
    """A flipped bit or a cut at any place of any file, and a file that is gone, or a folder."""
    plan = pendulum(tmp_path, [1])
    folder = record_run(plan, TASK, 1, {step: step / 3 for step in range(50, 1001, 50)})
    (folder / "policy.safetensors").write_bytes(bytes(range(256)) * 16)
    manifest.write_manifest(folder, (folder / "run.json").read_bytes())
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    assert {path.name for path in whole} >= {"SHA256SUMS", "run.json", "timing.csv"}

    @settings(max_examples=times, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(sorted(whole)), st.floats(0, 1, exclude_max=True), st.integers(-1, 7))
    def check(path: Path, place: float, bit: int) -> None:
        content = bytearray(whole[path])
        offset = int(place * len(content))
        if bit < 0:
            del content[offset:]
        else:
            content[offset] ^= 1 << bit
        path.write_bytes(content)
        manifest._known_sums.cache_clear()  # two writes within a tick of the clock look alike
        (run,) = plan.runs()
        (row,) = recorded(plan)["runs"].to_dict("records")
        path.write_bytes(whole[path])
        manifest._known_sums.cache_clear()
        assert run.status == "damaged"
        assert row["status"] == "failed"
        assert path.name in row["error"] or path.name == "SHA256SUMS"  # whose lines name others
        assert [run.status for run in plan.runs()] == ["finished"]

    check()
    for path, content in whole.items():
        path.unlink()
        assert [run.status for run in plan.runs()] == ["damaged"]
        path.mkdir()  # no more to be read than a pipe
        assert [run.status for run in plan.runs()] == ["damaged"]
        path.rmdir()
        path.write_bytes(content)


def test_a_damaged_run_is_kept_aside_and_run_again(tmp_path: Path, stand_in: StandIn) -> None:
    """Nothing is lost: what is left of it stays readable beside the new run."""
    plan = pendulum(tmp_path, [1, 2])
    folders = [record_run(plan, TASK, seed) for seed in (1, 2)]
    with (folders[0] / "evaluations.csv").open("a") as file:
        file.write("1000,9e9,9e9,9e9\n")
    stand_in({1: FINISH})
    board = launch(plan, ignore)
    assert board.count("finished") == 2
    assert executions(plan) == Counter({1: 1})
    aside = plan.directory / TASK / "seed-1.damaged"
    assert "9e9" in (aside / "evaluations.csv").read_text()
    error = "differs from its manifest: evaluations.csv"
    assert board.notes == [f"{TASK} seed 1 kept aside in {aside}: {error}"]


def test_a_run_that_hangs_is_killed_and_one_that_works_is_not(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlocked run stalls; a silent loop, a wait for a child and a pause by SIGSTOP do not."""
    assert processes.STALL_SECONDS * 1.1 < 120
    monkeypatch.setattr(processes, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(processes, "ALIVE_SECONDS", 0.01)
    work = BUSY.format(1.5)
    scripts = {
        1: "print('at work', flush=True)\n"
        "if not os.fork():\n    os.setsid()\n    time.sleep(1.5)\n"
        "    os.kill(os.getppid(), signal.SIGCONT)\n    os._exit(0)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n" + FINISH,
        2: "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire(timeout=60)",
        3: work + FINISH,
        4: f"import subprocess\nwork = 'import time; ' + {work!r}\n"
        "subprocess.run([sys.executable, '-c', work], check=True)\n" + FINISH,
    }
    stand_in(scripts)
    plan = pendulum(tmp_path, [1, 2, 3, 4], workers=4)
    assert ends(launch(plan, ignore)) == {
        1: ("finished", ""),
        2: ("failed", "stalled: no sign of work for 1 s: no output"),
        3: ("finished", ""),
        4: ("finished", ""),
    }
    assert all(map(ended, pids(plan)))


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """A run's own at once; others' in the grid's folder may still be written for an hour."""
    plan = pendulum(tmp_path, [1])
    folder = record_run(plan, TASK, 1, status="running")
    (folder / "checkpoint").mkdir()
    places = [folder, folder / "checkpoint", plan.directory, plan.directory / TASK]
    paths = [place / f".file.{number}.tmp" for place in places for number in (1, 2)]
    for path in paths:
        path.write_text("torn")
        if path.name == ".file.1.tmp":
            long_ago = time.time() - 4000
            os.utime(path, (long_ago, long_ago))
    record_run(plan, TASK, 1, status="running")
    assert [path.exists() for path in paths] == [False] * 4 + [True] * 4
    Leases(plan.directory)
    assert [path.exists() for path in paths] == [False] * 4 + [False, True] * 2


def test_a_harness_that_was_suspended_calls_nobody_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop's lid, a frozen container: time in which nobody could work does not count."""
    now, spent = [0.0], [5.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(processes, "cpu_seconds", lambda session: spent[0])
    pulse = processes.Pulse(1)
    for seconds in (10, 10, 10_000):
        now[0] += seconds
        assert not pulse.has_stalled()
    spent[0] += 1
    for _ in range(9):
        now[0] += 10
        assert not pulse.has_stalled()
    now[0] += 10
    assert pulse.has_stalled()


def test_runs_of_other_settings_are_not_mixed_even_as_other_seeds(tmp_path: Path) -> None:
    """Seed 3 of another gamma would stand in one folder with seeds 1 and 2."""
    plan = pendulum(tmp_path, [1, 2])
    record_run(plan, TASK, 3, gamma=0.5)
    with pytest.raises(UsageError, match=r"seed-3 was run with other settings \(gamma 0\.5 there"):
        refuse_mixture(plan)


def test_changed_code_starts_no_further_run(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs goes on; what waits is not started, and can be once the change is undone."""
    monkeypatch.setattr("suite.base.code._root", lambda: tmp_path / "code")
    changed = tmp_path / "code" / "agents" / "sac.py"
    changed.parent.mkdir(parents=True)
    changed.touch()
    plan = pendulum(tmp_path / "runs", [1, 2], workers=1)
    append = f"pathlib.Path({str(changed)!r}).open('a').write('new = True')\n"
    stand_in({1: append + FINISH, 2: FINISH})
    assert ends(launch(plan, ignore)) == {
        1: ("finished", ""),
        2: ("failed", "not started: agents/sac.py changed since this command was started"),
    }
    assert executions(plan) == Counter({1: 1})
    assert [run.status for run in plan.runs()] == ["finished", "planned"]
    assert launch(plan, ignore).count("finished") == 2


@pytest.mark.parametrize("ask", [False, True])
def test_only_its_own_is_killed(ask: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number may be another's after a `wait`: signals go to one that is still taken."""
    taken: list[bool] = []
    killpg = os.killpg

    def look_and_kill(number: int, sent: int) -> None:
        taken.append(processes.stat_fields(number) is not None)
        killpg(number, sent)

    monkeypatch.setattr("os.killpg", look_and_kill)
    child = tmp_path / "child"
    script = "import pathlib, subprocess, sys\n"
    script += "child = subprocess.Popen(['sleep', '60'])\n"
    script += f"pathlib.Path({str(child)!r}).write_text(str(child.pid))\nsys.exit(3)"
    agent = processes.AgentProcess((sys.executable, "-c", script), tmp_path / "log")
    if ask:
        wait_for(lambda: child.exists() and ended(agent._popen.pid), "the end of the agent")
        agent.terminate()
    wait_for(agent.poll, "what it ended with")
    assert agent.poll() == processes.End(3)
    number = int(child.read_text())
    wait_for(lambda: ended(number), "the end of its child")
    agent.terminate()
    agent.kill()
    assert taken == [True]
