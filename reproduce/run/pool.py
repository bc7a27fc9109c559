"""Run a plan: groups that wait, and workers that run them, watched through their runs' files.

`Pool` runs agents on this machine; `ray/pool.py` replaces its workers by those of a Ray cluster,
and shares the queue, the leases and the ends of runs.
"""

import contextlib
import shlex
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce.plan.grid import Group, Plan, Run
from reproduce.plan.status import (
    check_extensions,
    companions,
    name_of_settings,
    refuse_changed,
    refuse_mixture,
    run_of,
    with_status,
)
from reproduce.run.lease import Leases
from reproduce.run.log import last_lines
from reproduce.run.processes import AgentProcess, End, seeing_gpu
from reproduce.run.progress import Board, Progress, board_of, read_progress
from suite.base.errors import UsageError
from suite.base.files import NO_SPACE, check_inside, write_json
from suite.base.signals import handled
from suite.record.manifest import stamp
from suite.record.reading import read_record
from suite.settings.command_line import printable

POLL_SECONDS = 0.5
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
"""They stop the launcher as Ctrl-C does: no process is left behind."""
STOP_SECONDS = 30.0
"""Time for agents that are asked to stop: their step or evaluation, then a checkpoint."""
LOG_LINES = 12
NO_SPACE_LEFT = (*(f"[Errno {number}]" for number in NO_SPACE), "No space left on device")


def launch(plan: Plan, watch: Callable[[Board], None]) -> Board:
    """Run every group of `plan` that is not finished; return how each run ended.

    A group that fails is recorded as failed, with its log's last lines; the others continue. Runs
    leased elsewhere are waited for and counted. `watch` is called about twice a second, and once at
    the end, with the state of every run. On Ctrl-C (or SIGTERM, SIGHUP) every process is stopped
    before the KeyboardInterrupt leaves. `docs/robust.md` has the rest.
    """
    if plan.cluster:
        from reproduce.run.ray.pool import RayPool

        pool = RayPool(plan)
    else:
        pool = Pool(plan)
    with handled(signal.default_int_handler, TERMINATIONS):
        pool.run(watch)
    watch(pool.board)
    return pool.board


@dataclass(eq=False)
class Worker:
    """A group that runs."""

    group: Group
    command: Sequence[str]
    log: Path
    agent: Any
    """An `AgentProcess`, or what has its `poll`, `terminate` and `kill`."""
    gpu: int | None = None
    """The GPU that it was dealt; None: there are not several."""


class Pool:
    """Groups that wait and workers that run; leases tell which runs belong to this harness."""

    def __init__(self, plan: Plan) -> None:
        runs = plan.runs()
        self._plan, self._waiting = plan, plan.groups(runs)
        self._most_workers = plan.workers
        self.board = board_of(runs, plan.workers, self._waiting)
        self._row_of = {row.run.key: row for row in self.board.rows}
        self._workers: list[Worker] = []
        self._leases = Leases(plan.directory, name_of_settings(plan.config))
        self._sources = plan.program.code(plan.agent)
        self._before = {run.directory: stamp(run.directory / "run.json") for run in runs}

    def run(self, watch: Callable[[Board], None]) -> None:
        """Run every group that waits; a `UsageError` if the plan's folder vanishes."""
        try:
            while self._waiting or self._workers:
                self._refuse_lost_folder()
                self._start_waiting()
                time.sleep(POLL_SECONDS)
                self._refuse_lost_folder()
                self._look_after()
                watch(self.board)
        finally:
            self._stop()

    def _refuse_lost_folder(self) -> None:
        """Make no new folder in the place of one that was removed, or whose disk is gone."""
        if not self._plan.directory.is_dir():
            raise UsageError(f"{self._plan.directory} has vanished, with the runs in it: stopped")

    def _start_waiting(self) -> None:
        """Start groups while workers are free. Runs leased elsewhere keep waiting."""
        for group in list(self._waiting):
            if len(self._workers) >= self._most_workers:
                return
            self._waiting.remove(group)
            try:
                ours = self._claim(group)
                if theirs := tuple(run for run in group if run not in ours):
                    self._waiting.append(theirs)
                todo = [run for run in ours if run.has_ended or not self._has_ended_elsewhere(run)]
                if all(run.has_ended for run in todo):
                    self._settle(todo)
                else:
                    self._start(tuple(todo))
            except OSError as error:
                reason = "no space" if error.errno in NO_SPACE else "not started"
                self._fail(group, f"{reason}: {error}")
            except UsageError as error:
                self._fail(group, f"not started: {error}")

    def _claim(self, group: Group) -> list[Run]:
        """Take the leases that are free; return their runs.

        A checkpoint fits all its seeds, or none: of those nothing is taken while one is elsewhere.
        """
        here = {run.directory: run for run in group}
        are_bound = len(group) > 1 and bool(companions(group[0], here))
        held = [run for run in group if self._leases.is_held(run.directory)] if are_bound else []
        ours = [] if held else [run for run in group if self._leases.claim(run.directory)]
        self._leave(held or [run for run in group if run not in ours])
        if are_bound and len(ours) < len(group):  # another harness was faster
            for run in ours:
                self._leases.release(run.directory)
            return []
        return ours

    def _leave(self, runs: Sequence[Run]) -> None:
        for run in runs:
            row = self._row_of[run.key]
            if row.state != "elsewhere":
                row.state = "elsewhere"
                holder = self._leases.holder(run.directory)
                self.board.notes.append(f"{run.name} is run elsewhere: {holder}")

    def _has_ended_elsewhere(self, run: Run) -> bool:
        """Return whether another harness has run a run since this pool began; take its result."""
        now = run_of(self._plan, run.task, run.seed)
        new = stamp(run.directory / "run.json") != self._before[run.directory]
        if ended := now.has_ended or (now.status == "failed" and new):
            self._settle([now])
        return ended

    def _settle(self, runs: Sequence[Run]) -> None:
        """Show how runs have ended, and give their leases back."""
        for run in runs:
            row = self._row_of[run.key]
            read_progress(row)
            row.state, row.error = run.status, run.error
            self._leases.release(row.run.directory)

    def _start(self, group: Group) -> None:
        """Start a group whose leases are held, unless the code or other runs have changed."""
        refuse_changed(self._sources, self._plan.program.code(self._plan.agent))
        refuse_mixture(self._plan)
        check_extensions(self._plan, group)
        for run in group:
            if run.has_ended:
                continue
            check_inside(self._plan.directory, run.directory)
            self._keep_aside(run)
            run.directory.mkdir(parents=True, exist_ok=True)
        seeds = "-".join(str(run.seed) for run in group)[:100]
        log = group[0].directory.parent / f"seeds-{seeds}.log"
        self._workers.append(self._work(group, log))

    def _work(self, group: Group, log: Path) -> Worker:
        # Beside it are those that run, and those that follow while workers are free.
        side_by_side = min(self._most_workers, len(self._workers) + 1 + len(self._waiting))
        command, gpu = self._plan.command(group, side_by_side), self._free_gpu()
        if gpu is not None:
            command = (*seeing_gpu(gpu), *command)
        worker = Worker(group, command, log, AgentProcess(command, log), gpu)
        self._mark(group, "running")
        return worker

    def _free_gpu(self) -> int | None:
        """Return the GPU with the fewest processes, where there are several."""
        numbers = range(len(self._plan.gpus))
        beside = Counter(worker.gpu for worker in self._workers)
        return min(numbers, key=lambda gpu: beside[gpu]) if len(numbers) > 1 else None

    def _mark(self, group: Group, state: str) -> None:
        for run in group:
            self._row_of[run.key].state = state

    def _keep_aside(self, run: Run) -> None:
        run = with_status(run, read_record(run.directory))
        if run.status != "damaged":
            return
        aside = run.directory.with_name(f"{run.directory.name}.damaged")
        while aside.exists():
            aside = aside.with_name(f"{aside.name}.damaged")
        run.directory.rename(aside)
        self.board.notes.append(f"{run.name} kept aside in {aside}: {run.error}")

    def _look_after(self) -> None:
        lost = self._leases.beat()
        for worker in list(self._workers):
            if any(run.directory in lost for run in worker.group):
                self._put_back(worker)
                continue
            end = worker.agent.poll()  # before the last rows are read
            for run in worker.group:
                read_progress(self._row_of[run.key])
            if end:
                self._end(worker, end)
        for row in self.board.rows:
            if row.state == "elsewhere":
                read_progress(row)

    def _end(self, worker: Worker, end: End) -> None:
        worker.agent.kill()
        self._workers.remove(worker)
        lines, status, reason = last_lines(worker.log), end.status, end.reason
        if not reason:
            names = {number.value: number.name for number in signal.Signals}
            killer = names.get(-status, f"signal {-status}")  # a real-time signal has no name
            reason = f"killed by {killer}" if status < 0 else f"exit {status}"
            if _is_out_of_space(lines, worker.group[0].directory):
                reason = f"no space: {reason}"
        for row in (self._row_of[run.key] for run in worker.group):
            if not _has_result(row, lines):
                _fail_recorded(row, worker.command, reason, lines)
            self._leases.release(row.run.directory)

    def _put_back(self, worker: Worker) -> None:
        """Stop a worker that has lost a lease; its unfinished runs wait again, in new groups."""
        worker.agent.kill()
        self._workers.remove(worker)
        runs = [run_of(self._plan, run.task, run.seed) for run in worker.group]
        groups = self._plan.groups(runs)
        self._waiting += groups
        waiting = [run for group in groups for run in group]
        self._settle([run for run in runs if run not in waiting])
        for run in waiting:
            self._row_of[run.key].state = "waiting"
            self._leases.release(run.directory)

    def _fail(self, runs: Sequence[Run], error: str) -> None:
        """Show unstarted runs as failed; record nothing, so that a later start may run them."""
        for run in runs:
            row = self._row_of[run.key]
            if run not in [other for group in self._waiting for other in group]:
                if not run.has_ended:
                    row.state, row.error = "failed", error
                self._leases.release(run.directory)

    def _stop(self) -> None:
        """End all workers. Their leases hold meanwhile: other harnesses may wait for these runs."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(POLL_SECONDS):
                with contextlib.suppress(OSError):  # of a disk that is gone or full
                    self._leases.beat()

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        with handled(signal.SIG_IGN, TERMINATIONS):  # a second Ctrl-C does not wait
            try:
                for worker in self._workers:
                    worker.agent.terminate()
                until = time.monotonic() + STOP_SECONDS
                for worker in self._workers:
                    worker.agent.kill(grace_seconds=max(0.0, until - time.monotonic()))
            finally:
                over.set()
                beating.join()
            for row in self.board.rows:
                self._leases.release(row.run.directory)


def _has_result(row: Progress, log: Sequence[str]) -> bool:
    """Return whether a run is finished or diverged; if so, take over its result."""
    record = read_record(row.run.directory)
    run = with_status(row.run, record)  # `shorter` if its agent refused to go on
    if not run.has_ended:
        return False
    row.state, row.error = run.status, run.error
    if row.state == "diverged":
        _write_record(run, {**(record or {}), "log_tail": log[-LOG_LINES:]})
    return True


def _fail_recorded(row: Progress, command: Sequence[str], reason: str, log: Sequence[str]) -> None:
    """Record a run as failed; keep the other entries of its own record."""
    record = read_record(row.run.directory) or {}
    run = with_status(row.run, record or None)
    if run.status == "damaged":
        reason, record = run.error, {}
    row.state = "failed"
    row.error = f"{reason}: {log[-1].strip() if log else 'no output'}"
    config = {"env_steps": run.env_steps}
    words = printable(shlex.join(command))  # a path need not be text
    failed: dict[str, Any] = {"task": run.task, "seed": run.seed}
    failed |= {"config": config, "command": words, **record}
    failed |= {"status": "failed", "error": row.error, "log_tail": log[-LOG_LINES:]}
    if run.status != "shorter":  # a result, which nothing has touched
        _write_record(run, failed)


def _write_record(run: Run, record: dict[str, Any]) -> None:
    """Write a run's record.

    On a full disk, or with entries that are no JSON, the old one stays, which also states no end.
    """
    with contextlib.suppress(OSError, ValueError):
        write_json(run.directory / "run.json", record)


def _is_out_of_space(log: Sequence[str], directory: Path) -> bool:
    """Return whether a run ended for lack of space: its log says so, or nothing can be written."""
    said = "\n".join(log[-LOG_LINES:])
    if any(text in said for text in NO_SPACE_LEFT):
        return True
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(2**16))
    except OSError as error:
        return error.errno in NO_SPACE
    return False
