"""The record of a run: what an agent measured, as CSV and JSON, per seed.

`DIR/seed-<k>/` holds `run.json` (what ran, on what, and how it ended), `episodes.csv`,
`evaluations.csv`, `updates.csv` (all three the same bytes for the same run) and `timing.csv`
(everything that depends on a clock). Rows are buffered, written whole and flushed at each log
interval; `finished` is written last, by rename, after the sums of all files (`suite/manifest.py`).
A run has one writer: if another one begins the same run, the older one stops at its next rows.
"""

import dataclasses
import datetime
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from suite import hardware
from suite.command_line import RunOptions, read_command_line
from suite.files import to_json, write_atomically, write_json
from suite.manifest import FILES, write_manifest
from suite.settings import Preset, UsageError
from suite.vector_env import Step

SCHEMA_VERSION = 2
"""Version 1 had no manifest and did not say which sources made the run."""
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
Status = Literal["running", "finished", "diverged", "failed"]


class Stopwatch:
    """Splits wall time into sections: each lap is charged to the section that just ended.

    An agent may add sections to `seconds` before it starts, and seconds of another thread.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = dict.fromkeys(SECTIONS, 0.0)

    def start(self) -> None:
        """Begin anew: the time since the last lap is charged to nothing."""
        self._last = time.perf_counter()

    def lap(self, section: str) -> None:
        """Charge the time since the previous lap to `section` (one of `SECTIONS`)."""
        now = time.perf_counter()
        self.seconds[section] += now - self._last
        self._last = now


class Means:
    """Running means of an agent's diagnostics, torch tensors `[S]` by name.

    They stay on their device until a log interval reads them: the one transfer from a GPU.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Take in one update's diagnostics."""
        for name, value in metrics.items():
            if self._counts.get(name, 0):
                self._sums[name] += value
            else:
                self._sums[name] = value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, np.ndarray]:
        """Return the means since the last call, `[S]` each, and begin anew."""
        means = {
            name: (total / self._counts[name]).cpu().numpy() for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, {}
        return means


def passed(interval: int, env_steps: int, num_envs: int) -> bool:
    """Whether the latest vector step reached or passed a positive multiple of `interval`."""
    return env_steps > 0 and env_steps // interval > (env_steps - num_envs) // interval


class Recorder:
    """Writes the record of a group of seeds that train in one process.

    Args:
        directory: holds one folder `seed-<k>` per seed; made if absent.
        run: what `run.json` says beyond the machine: agent, suite, source, task, config, command.
        seeds: the seeds, in the order of the `S` axis.

    Raises:
        UsageError: if the directory cannot be written, or holds a finished run of these seeds.
    """

    def __init__(self, directory: Path, run: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self.clock = Stopwatch()
        self._started = self._interval_start = time.perf_counter()
        self._interval_env_steps = 0
        self._seconds_before = dict(self.clock.seconds)
        self.seed_directories = [directory / f"seed-{seed}" for seed in seeds]
        self.statuses: list[Status] = ["running"] * len(seeds)
        self._rows: list[dict[str, list[str]]] = [{} for _ in seeds]
        self._columns: list[dict[str, tuple[str, ...]]] = [{} for _ in seeds]
        self._runs: list[dict[str, Any]] = []
        for folder in self.seed_directories:
            _refuse_finished(folder)
        for seed, folder in zip(seeds, self.seed_directories, strict=True):
            self._runs.append(
                {
                    "schema_version": SCHEMA_VERSION,
                    **run,
                    "seed": seed,
                    "status": "running",
                    "error": None,
                    "started_at": _now(),
                    "ended_at": None,
                    "wall_seconds": None,
                    **hardware.revision(),
                    "sources": hardware.sources(str(run["agent"])),
                    "versions": hardware.versions(),
                    "machine": hardware.machine(),
                }
            )
            _open(folder, self._runs[-1])
        self._stamps = [_stamp(folder) for folder in self.seed_directories]

    @classmethod
    def for_command(cls, agent: str, config: Any, options: RunOptions) -> "Recorder":
        """Return the recorder of an agent that was started by its own command line.

        Args:
            agent: the agent's name.
            config: its configuration, a dataclass with `task` and `seeds`.
            options: where the run comes from and where it goes.

        Raises:
            UsageError: for a device that is not there, before anything is written; as `Recorder`.
        """
        hardware.find_device(config.device)
        run = {
            "agent": agent,
            "suite": options.suite,
            "source": options.source,
            "task": config.task,
            "config": dataclasses.asdict(config),
            "command": command_line(),
        }
        return cls(options.out, run, config.seeds)

    @property
    def active(self) -> list[int]:
        """Indices of the seeds that have not diverged."""
        return [i for i, status in enumerate(self.statuses) if status == "running"]

    def episodes(self, env_steps: int, step: Step) -> None:
        """Record the episodes that ended in this vector step, in the order of environments."""
        if not step.episode_ends.any():
            return
        for i, env in np.argwhere(step.episode_ends).tolist():
            cells = (env_steps, step.episode_returns[i, env], step.episode_lengths[i, env])
            self._append(i, "episodes.csv", dict(zip(EPISODE_COLUMNS, cells, strict=True)))

    def evaluation(self, env_steps: int, episode_returns: np.ndarray) -> None:
        """Record one evaluation of every seed; `episode_returns` is `[S, episodes]`.

        A seed with a return that is not finite is `diverged` from here on; the others go on.
        """
        for i in self.active:
            returns = episode_returns[i]
            singles = {f"return_{k}": value for k, value in enumerate(returns)}
            row = {"env_steps": env_steps, "mean_return": returns.mean(), **singles}
            self._append(i, "evaluations.csv", row)
            if not np.isfinite(returns).all():
                self._end(i, "diverged", f"non-finite evaluation at {env_steps} env_steps")
            name = self.seed_directories[i].name
            print(f"{name} env_steps {env_steps} mean_return {returns.mean():.4g}", flush=True)

    def log(
        self,
        env_steps: int,
        num_updates: int,
        metrics: Mapping[str, np.ndarray],
        checks: Mapping[str, np.ndarray],
    ) -> None:
        """End a log interval: record `metrics` (each `[S]`) and timing, write all rows, flush.

        A seed with a non-finite metric or check is `diverged` from here on; the others go on.
        """
        for i in self.active:
            values = {name: float(column[i]) for name, column in metrics.items()}
            if metrics:
                row = {"env_steps": env_steps, "num_updates": num_updates, **values}
                self._append(i, "updates.csv", row)
            values |= {name: float(column[i]) for name, column in checks.items()}
            bad = [name for name, value in values.items() if not np.isfinite(value)]
            if bad:
                self._end(i, "diverged", f"non-finite {', '.join(bad)} at {env_steps} env_steps")
        self._append_timing(env_steps, num_updates)
        self.flush()

    def flush(self) -> None:
        """Append the buffered rows to the files, whole.

        Raises:
            OSError: if the disk refuses.
            UsageError: if another process has begun the same run meanwhile.
        """
        for i, (folder, tables) in enumerate(zip(self.seed_directories, self._rows, strict=True)):
            for name, lines in tables.items():
                if lines:
                    self._check_ours(i)
                    with (folder / name).open("a", newline="") as file:
                        file.write("".join(lines))
                    lines.clear()

    def finish(self) -> int:
        """Flush, and mark every seed that has not diverged as finished. The last thing a run does.

        Returns:
            the exit status of an agent's command: 0, or 2 if a seed diverged.

        Raises:
            OSError: if the disk refuses; the runs then stay unfinished.
        """
        self.flush()
        for i in self.active:
            self._end(i, "finished", None)
        return 2 if "diverged" in self.statuses else 0

    def _append(self, i: int, name: str, row: Mapping[str, int | float | np.generic]) -> None:
        """Buffer a row under the columns of the file's first row; what it lacks stays empty."""
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

    def _append_timing(self, env_steps: int, num_updates: int) -> None:
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
        for i in self.active:
            self._append(i, "timing.csv", dict(zip(columns, rounded, strict=True)))
        self._interval_start, self._interval_env_steps = now, env_steps
        self._seconds_before = dict(seconds)
        self.clock.start()  # time not yet charged lies in the interval that ends here

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

    def _check_ours(self, i: int) -> None:
        """Raise a `UsageError` if `run.json` is no longer the one that this process wrote."""
        folder = self.seed_directories[i]
        if _stamp(folder) != self._stamps[i]:
            raise UsageError(f"{folder} was begun anew by another process, which goes on with it")


def train_each_seed(
    agent: str,
    train: Callable[[Any, Recorder], object],
    presets: Mapping[tuple[str, str], Preset[Any]],
    argv: Sequence[str],
) -> int:
    """Train as an agent's own command line says, one seed after another.

    Args:
        agent: the agent's name.
        train: trains the only seed of its configuration.
        presets: the agent's `PRESETS`.
        argv: the arguments after the program's name.

    Returns:
        the exit status: 0, or 2 if a seed diverged.
    """
    config, options = read_command_line(presets, argv, prog=f"python -m agents.{agent}")
    for seed in config.seeds:
        _refuse_finished(options.out / f"seed-{seed}")
    status = 0
    for seed in config.seeds:
        alone = dataclasses.replace(config, seeds=(seed,))
        recorder = Recorder.for_command(agent, alone, options)
        train(alone, recorder)
        status = max(status, recorder.finish())
    return status


def _refuse_finished(folder: Path) -> None:
    try:
        record = (folder / "run.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"cannot read {folder / 'run.json'}: {error.strerror}") from None
    if _is_finished(record):
        raise UsageError(f"{folder} holds a finished run: choose another --out, or delete it")


def _is_finished(record: bytes) -> bool:
    try:
        return json.loads(record)["status"] == "finished"
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return what tells one `run.json` from another; None without one."""
    try:
        facts = (folder / "run.json").stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _open(folder: Path, run: Mapping[str, Any]) -> None:
    """Begin a run in its folder; what an unfinished run left there is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        write_json(folder / "run.json", run)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None


def command_line() -> str:
    """Return the command that started this process, as it would be typed."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {module.name}" if module else f"python {sys.argv[0]}"
    return " ".join([program.removesuffix(".__main__"), *map(shlex.quote, sys.argv[1:])])


def _text(cell: int | float | np.generic) -> str:
    """Return a number as text that reads back as the same number."""
    return repr(cell.item() if isinstance(cell, np.generic) else cell)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
