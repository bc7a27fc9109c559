"""The record of a run: an agent's measurements, as CSV and JSON, per seed.

`DIR/seed-<k>/` holds `run.json` (settings, machine and outcome), `episodes.csv`, `evaluations.csv`,
`updates.csv` (the same run gives the same bytes in all three) and `timing.csv` (everything that
depends on a clock). Rows are buffered, written whole and flushed at each log interval; `finished`
is written last, by rename, after the sums of all files (`manifest.py`). A run has one writer: if
another process starts the same run, the older one stops at its next write. The first seed's folder
also holds the checkpoint that a killed run resumes from, and from which a finished one is extended
(`journal.py`).
"""

import dataclasses
import datetime
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from suite.base import hardware
from suite.base.beside import Beside
from suite.base.errors import UsageError
from suite.base.files import (
    CHECKPOINT,
    append,
    check_inside,
    extent,
    open_inside,
    open_regular,
    read_json,
    remove_torn,
    to_json,
    write_atomically,
    write_json,
)
from suite.envs.vector_env import Step
from suite.record.best import BestPolicies
from suite.record.manifest import FILES, TABLES, write_manifest
from suite.record.records import LARGEST_RECORD, SCHEMA_VERSION
from suite.settings.command_line import RunOptions, printable
from suite.settings.recorded import WITHOUT_EFFECT, recorded_settings

SECTIONS = ("environment", "acting", "learning", "evaluation")
EPISODE_COLUMNS = ("env_steps", "episode_return", "episode_length")
TIMING_COLUMNS = (
    "env_steps",
    "num_updates",
    "wall_seconds",
    "env_steps_per_second",
    *(f"{section}_share" for section in SECTIONS),
)
"""Followed by `<section>_share` for every section that an agent adds to the clock."""
ENDS = ("status", "error", "ended_at", "wall_seconds")
"""Entries of `run.json` that change when a seed ends."""
UNFINISHED = ("running", "diverged")
"""Statuses of the seeds of an unfinished group."""
ACTIONS = "actions.bin"
"""File of all actions of an unfinished run, in its checkpoint folder."""
CHECKPOINT_SECONDS = 300.0
Status = Literal["running", "finished", "diverged", "failed"]


class Stopwatch:
    """Splits wall time into sections: each lap is charged to the section that just ended.

    An agent may add sections to `seconds` before it starts, and another thread's seconds to them.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = dict.fromkeys(SECTIONS, 0.0)

    def start(self) -> None:
        """Start again; no section is charged for the time since the last lap."""
        self._last = time.perf_counter()

    def lap(self, section: str) -> None:
        """Charge the time since the previous lap to `section` (a key of `seconds`)."""
        now = time.perf_counter()
        self.seconds[section] += now - self._last
        self._last = now


class Means:
    """Running means of an agent's diagnostics, torch tensors `[S]` by name.

    They stay on their device until the log interval ends: one transfer from a GPU for all.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add one update's diagnostics."""
        for name, value in metrics.items():
            if self._counts.get(name, 0):
                self._sums[name] += value
            else:
                self._sums[name] = value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, np.ndarray]:
        """Return the means since the last call, `[S]` each, and reset them."""
        means = {
            name: (total / self._counts[name]).cpu().numpy() for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, {}
        return means


def has_passed(interval: int, env_steps: int, gained: int) -> bool:
    """Return whether the last `gained` steps reached or passed a multiple of `interval` above 0."""
    return env_steps > 0 and env_steps // interval > (env_steps - gained) // interval


class Recorder:
    """Writes the record of a group of seeds that train in one process.

    Args:
        directory: holds one folder `seed-<k>` per seed; made if absent.
        run: entries of `run.json`: agent, suite, source, task, config, command.
        seeds: the seeds, in the order of the `S` axis.
        checkpoint_seconds: time between two checkpoints.
        keeps_checkpoint: whether the last one stays beside a finished run, to extend it.
        keeps_best: whether the policies of the best evaluations are kept beside the last ones.

    Raises:
        UsageError: if the directory cannot be written, or holds links to other files, or a finished
            run of these seeds that is as long as this one or cannot be extended.
    """

    def __init__(
        self,
        directory: Path,
        run: Mapping[str, Any],
        seeds: Sequence[int],
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        *,
        keeps_checkpoint: bool = True,
        keeps_best: bool = False,
    ) -> None:
        self.checkpoint_seconds = checkpoint_seconds
        self.keeps_checkpoint = keeps_checkpoint
        self.best = BestPolicies(len(seeds)) if keeps_best else None
        """The policies of the best evaluations so far; None: they are not kept."""
        self.is_stopping = False
        """Whether training is to end after its next checkpoint; see `suite/record/journal.py`."""
        self.clock = Stopwatch()
        self._started = self._interval_start = time.perf_counter()
        self._interval_env_steps = 0
        self._seconds_before = dict(self.clock.seconds)
        self._directory = directory
        self.seed_directories = [directory / f"seed-{seed}" for seed in seeds]
        for folder in self.seed_directories:
            for name in ("run.json", *FILES, f"{CHECKPOINT}/{ACTIONS}"):
                check_inside(directory, folder / name)
        env_steps = run.get("config", {}).get("env_steps", 0)
        finished = [is_finished(folder, env_steps) for folder in self.seed_directories]
        self.statuses: list[Status] = ["finished" if done else "running" for done in finished]
        self._rows: list[dict[str, list[str]]] = [{} for _ in seeds]
        self._recent: list[list[float]] = [[] for _ in seeds]
        """Returns of the training episodes since each seed's last line, if these are its score."""
        self._evaluates = run.get("config", {}).get("evaluation_rule") != "training"
        self._awaited: tuple[Beside, Callable[[Any], None]] | None = None
        """Work beside training, and what records its result; None: there is none."""
        self._held: list[Callable[[], None]] = []
        """What records the rows that follow this result."""
        self._columns: list[dict[str, tuple[str, ...]]] = [{} for _ in seeds]
        self._runs: list[dict[str, Any]] = []
        self.checkpoint_directory = self.seed_directories[0] / CHECKPOINT
        sources = hardware.sources(str(run["agent"]))
        number = None if hardware.uncommitted(sources) else hardware.behaviour(str(run["agent"]))
        device = run.get("config", {}).get("device", "cpu")
        for seed in seeds:
            self._runs.append(
                {
                    "schema_version": SCHEMA_VERSION,
                    **run,
                    "seed": seed,
                    "status": "running",
                    "error": None,
                    "started_at": _now(),
                    "resumed_at": [],
                    "ended_at": None,
                    "wall_seconds": None,
                    **hardware.revision(),
                    "sources": sources,
                    "behaviour": number,
                    "versions": hardware.versions(),
                    "machine": hardware.machine(device),
                }
            )
        self.agent = str(run["agent"])
        """The agent's name."""
        for i in self.active:
            remove_torn(self.seed_directories[i])
        self._identity = _identity(run, self._runs) | ({"keep_best": True} if keeps_best else {})
        self._misfit_found = "its checkpoint is gone"
        self.snapshot = self._find_snapshot()
        """The checkpoint that these runs resume from; None: they start from the beginning."""
        if self.snapshot is not None:
            self._go_on(self.snapshot.content)
        else:
            for folder in self.seed_directories:
                why = "" if is_finished(folder, env_steps) else self._misfit_found
                refuse_finished(folder, why=why)
            for folder, record in zip(self.seed_directories, self._runs, strict=True):
                _open(folder, record)
        self._stamps = [_stamp(folder) for folder in self.seed_directories]

    @classmethod
    def for_command(cls, agent: str, config: Any, options: RunOptions) -> "Recorder":
        """Return the recorder of an agent that was started by its own command line.

        Args:
            agent: the agent's name.
            config: its configuration, a dataclass with `task` and `seeds`.
            options: preset, folder and checkpoints of the run.

        Raises:
            UsageError: for a missing device, or no evaluation to keep the best of, before anything
                is written; otherwise as `Recorder`.
        """
        hardware.find_device(config.device)
        if options.keep_best:
            refuse_no_evaluations(config)
        run = {
            "agent": agent,
            "suite": options.suite,
            "source": options.source,
            "task": config.task,
            "config": dataclasses.asdict(config),
            "command": command_line(),
        }
        return cls(
            options.out,
            run,
            config.seeds,
            60 * options.checkpoint_minutes,
            keeps_checkpoint=not options.drop_checkpoints,
            keeps_best=options.keep_best,
        )

    @property
    def so_far(self) -> str:
        """Return how far training is in words: past the last row that was written."""
        return f"past {self._interval_env_steps} env_steps"

    @property
    def active(self) -> list[int]:
        """Return the indices of the seeds that still run."""
        return [i for i, status in enumerate(self.statuses) if status == "running"]

    def episodes(self, env_steps: int, step: Step) -> None:
        """Record the episodes that ended in this vector step, environment by environment."""
        if not step.episode_ends.any():
            return
        for i, env in np.argwhere(step.episode_ends).tolist():
            cells = (env_steps, step.episode_returns[i, env], step.episode_lengths[i, env])
            row: dict[str, Any] = dict(zip(EPISODE_COLUMNS, cells, strict=True))
            self._in_order(partial(self._append, i, "episodes.csv", row))
            if not self._evaluates:
                self._recent[i].append(row["episode_return"])

    def evaluation(self, env_steps: int, episode_returns: np.ndarray) -> None:
        """Record one evaluation of every seed; `episode_returns` is `[S, episodes]`.

        A seed with a non-finite return is `diverged` from here on; the others continue.
        """
        for i in self.active:
            returns = episode_returns[i]
            singles = {f"return_{k}": value for k, value in enumerate(returns)}
            row = {"env_steps": env_steps, "mean_return": returns.mean(), **singles}
            self._append(i, "evaluations.csv", row)
            if not np.isfinite(returns).all():
                self._end(i, "diverged", f"non-finite evaluation at {env_steps} env_steps")
            self._say(i, env_steps, returns.mean())

    def log(
        self,
        env_steps: int,
        num_updates: int,
        metrics: Mapping[str, np.ndarray],
        checks: Mapping[str, np.ndarray],
    ) -> None:
        """End a log interval: record `metrics` (each `[S]`) and timing, write all rows, flush.

        A seed with a non-finite metric or check is `diverged` from here on; the others continue.
        """
        metrics, checks = (
            {name: np.array(column) for name, column in each.items()} for each in (metrics, checks)
        )
        timing = self._timing(env_steps, num_updates)
        self._in_order(partial(self._log, env_steps, num_updates, metrics, checks, timing))

    def _log(
        self,
        env_steps: int,
        num_updates: int,
        metrics: Mapping[str, np.ndarray],
        checks: Mapping[str, np.ndarray],
        timing: Mapping[str, int | float],
    ) -> None:
        """Record the end of a log interval; see `log`."""
        for i in self.active:
            values = {name: float(column[i]) for name, column in metrics.items()}
            if metrics:
                row = {"env_steps": env_steps, "num_updates": num_updates, **values}
                self._append(i, "updates.csv", row)
            values |= {name: float(column[i]) for name, column in checks.items()}
            bad = [name for name, value in values.items() if not np.isfinite(value)]
            if bad:
                self._end(i, "diverged", f"non-finite {', '.join(bad)} at {env_steps} env_steps")
        for i in self.active:
            self._append(i, "timing.csv", timing)
            if self._recent[i]:
                self._say(i, env_steps, np.mean(self._recent[i]))
                self._recent[i].clear()
        self.flush()

    def _say(self, i: int, env_steps: int, mean_return: np.floating) -> None:
        """Print a seed's last evaluation; without any, the mean of its latest training episodes."""
        name = self.seed_directories[i].name
        print(f"{name} env_steps {env_steps} mean_return {mean_return:.4g}", flush=True)

    def await_result(self, work: Beside, record: Callable[[Any], None]) -> None:
        """Hold all rows back until `settle` has recorded the result of work beside training.

        So rows have the order, and seeds the end, that they have if training waits for the work.

        Args:
            work: gives the result; no other may be awaited.
            record: records it.
        """
        self._awaited = work, record

    def settle(self, *, wait: bool = True) -> None:
        """Record the awaited result, if any, then the rows held back for it, in order.

        Args:
            wait: False: only if the result is there.

        Raises:
            Exception: if the work failed.
        """
        if self._awaited is None or not (wait or self._awaited[0].has_ended()):
            return
        (work, record), held = self._awaited, self._held
        self._awaited, self._held = None, []
        record(work.result())
        for record_next in held:
            record_next()

    def abandon(self) -> None:
        """Ask for no awaited result any more, if there is one: the process is about to end."""
        if self._awaited is not None:
            self._awaited[0].abandon()

    def _in_order(self, record: Callable[[], None]) -> None:
        """Record now, or after the awaited result."""
        if self._awaited is None:
            record()
        else:
            self._held.append(record)

    def flush(self) -> None:
        """Append the buffered rows to the files, whole rows only.

        Raises:
            OSError: if writing fails.
            UsageError: if another process has started the same run meanwhile.
        """
        for i, (folder, tables) in enumerate(zip(self.seed_directories, self._rows, strict=True)):
            for name, lines in tables.items():
                if lines:
                    self._check_ours(i)
                    append(self._directory, folder / name, "".join(lines).encode())
                    lines.clear()

    def finish(self) -> int:
        """Flush, and mark every seed that still runs as finished. A run calls it last.

        Returns:
            the exit status of an agent's command: 0, or 2 if a seed diverged.

        Raises:
            OSError: if writing fails; the runs then stay unfinished.
        """
        self.settle()
        self.flush()
        for i in self.active:
            self._end(i, "finished", None)
        if not self.keeps_checkpoint or "finished" not in self.statuses:
            _remove_checkpoint(self.seed_directories[0])
        return 2 if "diverged" in self.statuses else 0

    def checkpoint(self, actions: tuple[int, str]) -> dict[str, Any]:
        """Flush, awaited results included, and return the record's part of a checkpoint.

        Args:
            actions: length and SHA-256 of the file of actions.

        Raises:
            OSError: if writing fails.
            UsageError: if another process has started the same run meanwhile.
        """
        self.check_ours()
        self.settle()
        self.flush()
        now = time.perf_counter()
        return {
            "identity": self._identity,
            "files": [
                {name: extent(folder / name) for name in TABLES if (folder / name).exists()}
                for folder in self.seed_directories
            ],
            "actions": actions,
            "ends": [{key: run[key] for key in ENDS} for run in self._runs],
            "clock": {
                "wall_seconds": now - self._started,
                "interval_seconds": now - self._interval_start,
                "interval_env_steps": self._interval_env_steps,
                "seconds_before": self._seconds_before,
                "seconds": dict(self.clock.seconds),
            },
        }

    def check_ours(self) -> None:
        """Check that these runs still belong to this process.

        Raises:
            UsageError: if another process has started the same run meanwhile.
        """
        for i in self.active:
            self._check_ours(i)

    def restart_clock(self, clock: Mapping[str, Any]) -> None:
        """Restore a checkpoint's clock; discard time since it and replay time.

        Args:
            clock: the entry `clock` of the checkpoint.

        Raises:
            LookupError, TypeError, ValueError: if `checkpoint` did not make it.
        """
        seconds = clock["seconds"]
        if seconds.keys() != self.clock.seconds.keys():
            raise ValueError(f"a clock of {', '.join(seconds)}")
        times = [clock[name] for name in ("wall_seconds", "interval_seconds", "interval_env_steps")]
        if not all(map(math.isfinite, (*times, *seconds.values()))):
            raise ValueError("a clock that shows no time")
        if not all(map(math.isfinite, clock["seconds_before"].values())):
            raise ValueError("a clock that showed no time")
        now = time.perf_counter()
        self._started = now - clock["wall_seconds"]
        self._interval_start = now - clock["interval_seconds"]
        self._interval_env_steps = clock["interval_env_steps"]
        self._seconds_before = dict(clock["seconds_before"])
        self.clock.seconds = dict(clock["seconds"])
        for i in self.active:
            print(f"{self.seed_directories[i].name} goes on {self.so_far}", flush=True)

    def _find_snapshot(self) -> Any:
        """Return the checkpoint to resume from; if the one found does not fit, print why."""
        from suite.resume.snapshot import BROKEN, read_snapshot  # imports torch

        try:
            snapshot = read_snapshot(self.checkpoint_directory)
            if snapshot is None or not self.active:
                return None
            misfit = self._misfit(snapshot.content)
        except UsageError as error:
            snapshot, misfit = None, str(error)
        except (OSError, *BROKEN) as error:
            snapshot, misfit = None, f"unreadable checkpoint: {error}"
        if not misfit:
            return snapshot
        self._misfit_found = misfit
        if not any(map(is_finished, self.seed_directories)):
            text = f"{self.seed_directories[0]} starts from scratch: {misfit}"
            print(text, file=sys.stderr, flush=True)
        return None

    def _misfit(self, content: Mapping[str, Any]) -> str:
        """Return why these runs cannot resume exactly from a checkpoint; empty if they can."""
        theirs, ours = dict(content["identity"]), dict(self._identity)
        if not theirs.pop("env_steps", 0) <= ours.pop("env_steps"):
            return "its checkpoint is of a longer run"
        differs = [key for key, value in ours.items() if theirs.get(key) != value]
        if differs:
            return f"its checkpoint has another {', '.join(differs)}"
        ends, files_of = content["ends"], content["files"]
        json.dumps(ends, allow_nan=False)
        if any(end.keys() != set(ENDS) or end["status"] not in UNFINISHED for end in ends):
            raise ValueError("a seed has an impossible status")
        for rows in (ends, files_of):
            if not isinstance(rows, list) or len(rows) != len(self.seed_directories):
                raise ValueError("not one entry for each seed")
        extents = {self.checkpoint_directory / ACTIONS: content["actions"]}
        for i, files in enumerate(files_of):
            folder = self.seed_directories[i]
            if self.statuses[i] != "finished":
                extents |= {folder / name: files[name] for name in TABLES if name in files}
        changed = [path for path, known in extents.items() if extent(path, known[0]) != known]
        return f"{changed[0]} was changed" if changed else ""

    def _go_on(self, content: Mapping[str, Any]) -> None:
        """Truncate the files to a checkpoint that fits; leave finished seeds as they are.

        Each seed's record is written before, which stops an older process, and after.
        """
        open_inside(
            self._directory, self.checkpoint_directory / ACTIONS, content["actions"][0]
        ).close()
        for i in self.active:
            folder = self.seed_directories[i]
            record = _read_record(folder)
            ours, earlier = self._runs[i], record.get("resumed_at")
            ours["started_at"] = record.get("started_at", ours["started_at"])
            ours["resumed_at"] = [*(earlier if isinstance(earlier, list) else []), _now()]
            ours |= content["ends"][i]
            self.statuses[i] = ours["status"]
            files = content["files"][i]
            write_json(folder / "run.json", ours)
            for name in FILES:
                if name not in files:
                    (folder / name).unlink(missing_ok=True)
                    continue
                open_inside(self._directory, folder / name, files[name][0]).close()
                with open_regular(folder / name) as file:
                    header = file.readline().decode().rstrip("\n")
                self._columns[i][name] = tuple(header.split(","))
                self._rows[i][name] = []
            write_json(folder / "run.json", ours)

    def _append(self, i: int, name: str, row: Mapping[str, int | float | np.generic]) -> None:
        """Buffer a row under the columns of the file's first row; missing cells stay empty."""
        if self.statuses[i] != "running":
            return
        if name not in self._rows[i]:
            self._columns[i][name] = tuple(row)
            self._rows[i][name] = [",".join(row) + "\n"]
        columns = self._columns[i][name]
        if not row.keys() <= set(columns):
            raise ValueError(f"{name} has no column for {sorted(row.keys() - set(columns))}")
        cells = (_text(row[column]) if column in row else "" for column in columns)
        self._rows[i][name].append(",".join(cells) + "\n")

    def _timing(self, env_steps: int, num_updates: int) -> dict[str, int | float]:
        """End an interval of the clock; return its row of `timing.csv`."""
        now = time.perf_counter()
        elapsed = max(now - self._interval_start, 1e-9)
        seconds = self.clock.seconds
        before = self._seconds_before
        shares = [(spent - before.get(name, 0.0)) / elapsed for name, spent in seconds.items()]
        speed = (env_steps - self._interval_env_steps) / elapsed
        row = (env_steps, num_updates, now - self._started, speed, *shares)
        added = (f"{name}_share" for name in list(seconds)[len(SECTIONS) :])
        columns = (*TIMING_COLUMNS, *added)
        rounded = [cell if isinstance(cell, int) else round(cell, 4) for cell in row]
        self._interval_start, self._interval_env_steps = now, env_steps
        self._seconds_before = dict(seconds)
        self.clock.start()  # time not yet charged lies in the interval that ends here
        return dict(zip(columns, rounded, strict=True))

    def _end(self, i: int, status: Status, error: str | None) -> None:
        self.statuses[i] = status
        if error:
            print(f"{self.seed_directories[i].name} {status}: {error}", file=sys.stderr, flush=True)
        wall_seconds = round(time.perf_counter() - self._started, 3)
        self._runs[i].update(status=status, error=error, ended_at=_now(), wall_seconds=wall_seconds)
        folder, record = self.seed_directories[i], to_json(self._runs[i])
        self._check_ours(i)
        if status == "finished":
            write_manifest(folder, record)
        write_atomically(folder / "run.json", record)
        self._stamps[i] = _stamp(folder)
        if status == "finished":
            print(f"{folder.name} finished: {printable(str(folder))}", flush=True)

    def _check_ours(self, i: int) -> None:
        """Raise a `UsageError` if another process has replaced this one's `run.json`."""
        folder = self.seed_directories[i]
        stamp = _stamp(folder)
        if stamp is None:
            raise UsageError(f"{folder} was removed, or its disk: what was learned there is lost")
        if stamp != self._stamps[i]:
            raise UsageError(f"{folder} was started again by another process, which continues it")


def status_of(config: Any, directory: Path, seed: int) -> Status | None:
    """Return how this configuration's seed ended; None if it has not, or with other settings."""
    record = _read_record(directory / f"seed-{seed}")
    ours = json.loads(json.dumps(dataclasses.asdict(config)))
    settings = record.get("config")
    free = dict.fromkeys(WITHOUT_EFFECT)
    same = isinstance(settings, dict) and (
        {**recorded_settings(type(config), settings), **free} == {**ours, **free}
    )
    ended = record.get("status") in ("finished", "diverged") and same
    return record["status"] if ended else None


def refuse_no_evaluations(config: Any) -> None:
    """Refuse, by a `UsageError`, to keep the best policy of a run without evaluations."""
    if config.evaluation_rule == "training":
        raise UsageError(
            "--keep-best needs evaluations, and these settings score the training's own episodes "
            "(evaluation_rule training)"
        )


def refuse_finished(folder: Path, env_steps: int = 0, *, why: str = "") -> None:
    """Refuse to start a run in the folder of a finished one.

    Args:
        folder: the run's.
        env_steps: finished runs of fewer steps are not refused: they may be extended.
        why: why a finished run cannot be extended.

    Raises:
        UsageError: naming the folder.
    """
    if is_finished(folder, env_steps):
        reason = f" that cannot be extended ({why})" if why else ""
        raise UsageError(
            f"{folder} holds a finished run{reason}: choose another --out, or delete it"
        )


def is_finished(folder: Path, env_steps: int = 0) -> bool:
    """Return whether a folder holds a finished run of at least `env_steps`, as far as known."""
    record = _read_record(folder)
    config = record.get("config")
    steps = config.get("env_steps") if isinstance(config, dict) else 0
    return record.get("status") == "finished" and not (isinstance(steps, int) and steps < env_steps)


def _read_record(folder: Path) -> dict[str, Any]:
    """Return the content of `run.json`; empty if it is absent or not a record.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        record = read_json(folder / "run.json", LARGEST_RECORD)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {folder / 'run.json'}: {error.strerror}") from None
    return record if isinstance(record, dict) else {}


def _identity(run: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return everything that two commands must share to give the same bytes, as JSON values.

    `env_steps` may be larger when a run goes on: nothing that it does before its end depends on it.
    Settings `WITHOUT_EFFECT` may be others.
    """
    machine, config = records[0]["machine"], run.get("config", {})
    elsewhere = ("env_steps", *WITHOUT_EFFECT)
    identity = {
        **{key: value for key, value in run.items() if key != "command"},
        "env_steps": config.get("env_steps", 0),
        "config": {key: value for key, value in config.items() if key not in elsewhere},
        "seeds": [record["seed"] for record in records],
        "processor": [machine["cpu"], machine["gpu"], machine["gpu_driver"]],
        **{key: records[0][key] for key in ("sources", "versions")},
    }
    return json.loads(json.dumps(identity))


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return numbers that identify one `run.json`; None without one."""
    try:
        facts = (folder / "run.json").stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _open(folder: Path, run: Mapping[str, Any]) -> None:
    """Start a run in its folder; remove the files that an unfinished run left there.

    Its record claims the folder before a file changes, and says afterwards that all have.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", run)
        _remove_checkpoint(folder)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        write_json(folder / "run.json", run)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None


def _remove_checkpoint(folder: Path) -> None:
    """Remove a run's checkpoint, be it a folder, a file or a link."""
    path = folder / CHECKPOINT
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def command_line() -> str:
    """Return the command that started this process, as it would be typed."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {module.name}" if module else f"python {sys.argv[0]}"
    command = [program.removesuffix(".__main__"), *map(shlex.quote, sys.argv[1:])]
    return printable(" ".join(command))  # a path need not be text


def _text(cell: int | float | np.generic) -> str:
    """Return a number as text that reads back as the same number."""
    return repr(cell.item() if isinstance(cell, np.generic) else cell)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
