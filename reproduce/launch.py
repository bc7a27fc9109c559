"""Where it runs: a pool of agent processes on this machine, watched through their files."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from reproduce.plan import ROOT, Group, Plan, Run, read_record
from suite.files import write_json

POLL_SECONDS = 0.5
LOG_LINES = 12
"""Lines of a failed run's log that are kept in its record."""
LAST_BYTES = 2**16
"""Of a CSV file, searched for its last row: an evaluation of thousands of episodes fits."""


@dataclass
class Progress:
    """How far one run is, as its own files tell."""

    run: Run
    state: str
    """`waiting`, `running`, `finished`, `diverged` or `failed`."""
    env_steps: int = 0
    env_steps_per_second: float | None = None
    """Speed of the latest log interval in which it learned; None before the first."""
    last_return: float | None = None
    error: str = ""

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the measured speed; None until the first updates are in."""
        if self.state != "running" or not self.env_steps_per_second:
            return None
        return (self.run.env_steps - self.env_steps) / self.env_steps_per_second


@dataclass
class Board:
    """The state of every run of a plan, for the live view."""

    side_by_side: int
    """Runs that train at the same time: processes, times the seeds of each."""
    rows: list[Progress]
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """Estimate for the whole plan; None until one run has learned for one log interval."""
        open_rows = [row for row in self.rows if row.state in ("waiting", "running")]
        if not open_rows:
            return 0.0
        speeds = [row.env_steps_per_second for row in self.rows if row.env_steps_per_second]
        if not speeds:
            return None
        typical = sum(speeds) / len(speeds)
        per_run = [
            (row.run.env_steps - row.env_steps) / (row.env_steps_per_second or typical)
            for row in open_rows
        ]
        return max([sum(per_run) / self.side_by_side, *per_run])

    def count(self, state: str) -> int:
        """Return how many runs are in `state`."""
        return sum(row.state == state for row in self.rows)


@dataclass
class _Process:
    group: Group
    popen: subprocess.Popen[bytes]
    log: IO[bytes]
    rows: list[Progress]


def launch(plan: Plan, watch: Callable[[Board], None]) -> Board:
    """Run every group of `plan` that is not finished; return how each run ended.

    A group that fails is recorded as failed, with its log's last lines, and leaves the others
    alone. On Ctrl-C (or SIGTERM, SIGHUP) every process is stopped before the exception goes on.

    Args:
        plan: what to run; finished runs in it are left as they are.
        watch: called about twice a second, and once at the end, with the state of every run.

    Raises:
        KeyboardInterrupt: after the processes are stopped.
    """
    waiting = plan.groups()
    side_by_side = plan.workers * max((len(group.runs) for group in waiting), default=1)
    board = Board(side_by_side, [_progress(run) for run in plan.runs()])
    with _signals_interrupt():
        _run_all(waiting, board, plan, watch)
    watch(board)
    return board


def _run_all(
    waiting: list[Group], board: Board, plan: Plan, watch: Callable[[Board], None]
) -> None:
    row_of = {(row.run.task, row.run.seed): row for row in board.rows}
    processes: list[_Process] = []
    try:
        while waiting or processes:
            while waiting and len(processes) < plan.workers:
                group = waiting.pop(0)
                rows = [row_of[run.task, run.seed] for run in group.runs]
                processes.append(_start(group, rows, plan))
            time.sleep(POLL_SECONDS)
            for process in list(processes):
                ended = process.popen.poll() is not None  # asked before its last rows are read
                for row in process.rows:
                    _read_progress(row)
                if ended:
                    _end(process)
                    processes.remove(process)
            watch(board)
    finally:
        _stop(processes)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the launcher as Ctrl-C does: no process is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    changed: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores, and stays so
                signal.signal(number, interrupt)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _progress(run: Run) -> Progress:
    state = run.status if run.status in ("finished", "diverged") else "waiting"
    return Progress(run, state, run.env_steps if state == "finished" else 0)


def _start(group: Group, rows: list[Progress], plan: Plan) -> _Process:
    for run in group.runs:
        _keep_shorter_run(run.directory)
        run.directory.mkdir(parents=True, exist_ok=True)
        for stale in run.directory.glob("*.csv"):
            stale.unlink()
    seeds = "-".join(str(run.seed) for run in group.runs)[:100]
    log = (group.runs[0].directory.parent / f"seeds-{seeds}.log").open("wb")
    threads: dict[str, str] = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    )
    threads["OMP_WAIT_POLICY"] = "PASSIVE"  # where a run has several, they leave the cores alone
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    popen = subprocess.Popen(
        group.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # a Ctrl-C reaches the launcher alone, which stops its processes
    )
    for row in rows:
        row.state = "running"
    return _Process(group, popen, log, rows)


def _keep_shorter_run(directory: Path) -> None:
    """Move a finished run that is shorter than planned aside: longer runs start from nothing."""
    record = read_record(directory)
    if record and record["status"] in ("finished", "diverged"):
        aside = directory.with_name(f"{directory.name}.{record['config']['env_steps']}")
        copies = 1
        while aside.exists():
            copies += 1
            aside = aside.with_name(f"{directory.name}.{record['config']['env_steps']}.{copies}")
        directory.rename(aside)


def _read_progress(row: Progress) -> None:
    """Update `row` from the last whole lines of the run's files."""
    timing = last_row(row.run.directory / "timing.csv")
    if timing:
        row.env_steps = int(float(timing["env_steps"]))
        if float(timing["num_updates"]) > 0:
            row.env_steps_per_second = float(timing["env_steps_per_second"])
    evaluation = last_row(row.run.directory / "evaluations.csv")
    episode = last_row(row.run.directory / "episodes.csv")
    if evaluation:
        row.last_return = float(evaluation["mean_return"])
    elif episode:
        row.last_return = float(episode["episode_return"])


def last_row(path: Path) -> dict[str, str] | None:
    """Return the last whole line of a CSV file by column; None if there is none yet."""
    try:
        with path.open("rb") as file:
            header = file.readline().decode().strip().split(",")
            start = file.tell()
            file.seek(max(start, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return None
    if not lines or len(cells := lines[-1].split(",")) != len(header):
        return None
    return dict(zip(header, cells, strict=True))


def _end(process: _Process) -> None:
    """Record how a process's runs ended; what is neither finished nor diverged has failed."""
    process.log.close()
    status = process.popen.returncode
    log = Path(process.log.name)
    lines = log.read_text(errors="replace").splitlines()
    for row in process.rows:
        directory = row.run.directory
        record = read_record(directory)
        if record and record["status"] in ("finished", "diverged"):
            row.state, row.error = record["status"], record.get("error") or ""
            if row.state == "diverged":
                write_json(directory / "run.json", {**record, "log_tail": lines[-LOG_LINES:]})
            continue
        row.state = "failed"
        reason = f"killed by {_signal_name(-status)}" if status < 0 else f"exit {status}"
        last = lines[-1].strip() if lines else "no output"
        row.error = f"{reason}: {last}"
        failed: dict[str, Any] = dict(record) if record else _bare_record(row.run, process.group)
        failed |= {"status": "failed", "error": row.error, "log_tail": lines[-LOG_LINES:]}
        write_json(directory / "run.json", failed)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _bare_record(run: Run, group: Group) -> dict[str, Any]:
    """Return a record for a run that died before it could write its own."""
    config = {"env_steps": run.env_steps}
    command = shlex.join(group.command)
    return {"task": run.task, "seed": run.seed, "config": config, "command": command}


def _stop(processes: list[_Process]) -> None:
    for process in processes:
        process.popen.terminate()
    for process in processes:
        try:
            process.popen.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
        process.log.close()
