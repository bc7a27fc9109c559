"""The record of a run: an agent's measurements, as CSV and JSON, per seed.

`DIR/seed-<k>/` holds `run.json` (settings, machine and outcome), `episodes.csv`, `evaluations.csv`,
`updates.csv` (the same run gives the same bytes in all three) and `timing.csv` (everything that
depends on a clock). Rows are buffered, written whole and flushed at each log interval; `finished`
is written last, by rename, after the sums of all files (`manifest.py`). A run has one writer: if
another process starts the same run, the older one stops at its next write. The first seed's folder
also holds the checkpoint that a killed run resumes from, and from which a finished one is extended
(`journal.py`).
"""

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.base import code, hardware
from suite.base.errors import UsageError
from suite.base.files import CHECKPOINT, check_inside, open_inside
from suite.envs.vector_env import Step
from suite.record.clock import Clock
from suite.record.manifest import FILES
from suite.record.reading import SCHEMA_VERSION, misnamed
from suite.record.resumption import ACTIONS, comparable, find, identity_of
from suite.record.seed_folder import (
    ENDS,
    SeedFolder,
    Status,
    is_finished,
    now,
    read_entries,
    remove_checkpoint,
)
from suite.settings.command_line import CHECKPOINT_MINUTES, RunOptions, printable
from suite.settings.config import refuse_no_evaluations
from suite.settings.older import todays_settings

EPISODE_COLUMNS = ("env_steps", "episode_return", "episode_length")


class Recorder:
    """Writes the record of a group of seeds that train in one process.

    Args:
        directory: holds one folder `seed-<k>` per seed; made if absent.
        run: entries of `run.json`: agent, suite, source, task, config, command.
        seeds: the seeds, in the order of the `S` axis.
        checkpoint_seconds: time between two checkpoints.
        keeps_checkpoint: whether the last one stays beside a finished run, to extend it.
        keeps_best: whether the policies of the best evaluations are kept beside the last ones.
    """

    def __init__(
        self,
        directory: Path,
        run: Mapping[str, Any],
        seeds: Sequence[int],
        checkpoint_seconds: float = 60 * CHECKPOINT_MINUTES,
        *,
        keeps_checkpoint: bool = True,
        keeps_best: bool = False,
    ) -> None:
        self.agent = str(run["agent"])
        """The agent's name."""
        self.checkpoint_seconds = checkpoint_seconds
        self.keeps_checkpoint = keeps_checkpoint
        self.best: list[dict[str, Any] | None] = [None] * len(seeds) if keeps_best else []
        """Each seed's best evaluation so far, a part of the run's state: `env_steps`, `mean_return`
        and the policy's `weights`; None before the first. Empty: they are not kept."""
        self.is_stopping = False
        """Whether training is to end after its next checkpoint; see `suite/record/journal.py`."""
        self.clock = Clock()
        self._directory = directory
        self._evaluates = run.get("config", {}).get("evaluation_rule") != "training"
        self._seeds = _seed_folders(directory, run, seeds)
        self.seed_directories = [seed.folder for seed in self._seeds]
        self.checkpoint_directory = self.seed_directories[0] / CHECKPOINT
        self._identity = identity_of(run, self._seeds) | ({"keep_best": True} if keeps_best else {})
        self.snapshot, misfit = find(self.checkpoint_directory, self._identity, self._seeds)
        """The checkpoint that these runs resume from; None: they start from the beginning."""
        if self.snapshot is not None:
            self._resume(self.snapshot.content)
            return
        if misfit:  # of a checkpoint that is there
            text = f"{self.seed_directories[0]} starts from scratch: {misfit}"
            print(text, file=sys.stderr, flush=True)
        for seed in self._seeds:
            seed.begin()

    @classmethod
    def for_command(cls, agent: str, config: Any, options: RunOptions) -> "Recorder":
        """Return the recorder of an agent that was started by its own command line.

        Prints a warning if the run is longer than its learning rate lasts.
        """
        hardware.find_device(config.device, tf32=config.tf32)
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
        recorder = cls(
            options.out,
            run,
            config.seeds,
            60 * options.checkpoint_minutes,
            keeps_checkpoint=not options.drop_checkpoints,
            keeps_best=options.keep_best,
        )
        horizon = getattr(config, "learning_rate_decay_steps", 0)
        if 0 < horizon < config.env_steps:
            text = f"warning: the learning rate is 0 from {horizon:,} environment steps on: "
            text += f"set --learning-rate-decay-steps to --env-steps, {config.env_steps:,}, or to 0"
            print(f"{text} for a constant rate", file=sys.stderr, flush=True)
        return recorder

    @property
    def statuses(self) -> list[Status]:
        """Return the status of every seed."""
        return [seed.status for seed in self._seeds]

    @property
    def active(self) -> list[int]:
        """Return the indices of the seeds that still run."""
        return [i for i, seed in enumerate(self._seeds) if seed.is_running]

    def episodes(self, env_steps: int, step: Step) -> None:
        """Record the episodes that ended in this vector step, environment by environment."""
        if not step.episode_ends.any():
            return
        for i, env in np.argwhere(step.episode_ends).tolist():
            cells = (env_steps, step.episode_returns[i, env], step.episode_lengths[i, env])
            row: dict[str, Any] = dict(zip(EPISODE_COLUMNS, cells, strict=True))
            self._seeds[i].append("episodes.csv", row)
            if not self._evaluates and self._seeds[i].is_running:
                self._seeds[i].recent.append(row["episode_return"])

    def evaluation(self, env_steps: int, episode_returns: np.ndarray) -> None:
        """Record one evaluation of every seed; `episode_returns` is `[S, episodes]`.

        A seed with a non-finite return is `diverged` from here on; the others continue.
        """
        for i in self.active:
            returns = episode_returns[i]
            singles = {f"return_{k}": value for k, value in enumerate(returns)}
            row = {"env_steps": env_steps, "mean_return": returns.mean(), **singles}
            self._seeds[i].append("evaluations.csv", row)
            if not np.isfinite(returns).all():
                self._end(i, "diverged", f"non-finite evaluation at {env_steps} env_steps")
            self._seeds[i].say(env_steps, returns.mean())

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
        timing = self.clock.row(env_steps, num_updates)
        for i in self.active:
            values = {name: float(column[i]) for name, column in metrics.items()}
            if metrics:
                row = {"env_steps": env_steps, "num_updates": num_updates, **values}
                self._seeds[i].append("updates.csv", row)
            values |= {name: float(column[i]) for name, column in checks.items()}
            bad = [name for name, value in values.items() if not np.isfinite(value)]
            if bad:
                self._end(i, "diverged", f"non-finite {', '.join(bad)} at {env_steps} env_steps")
        for seed in self._seeds:
            seed.append("timing.csv", timing)
            if seed.is_running and seed.recent:
                seed.say(env_steps, np.mean(seed.recent))
                seed.recent.clear()
        self.flush()

    def flush(self) -> None:
        """Append the buffered rows to the files, whole rows only."""
        for seed in self._seeds:
            seed.flush()

    def finish(self) -> int:
        """Flush, and mark every seed that still runs as finished. A run calls it last.

        Returns:
            the exit status of an agent's command: 0, or 2 if a seed diverged.
        """
        self.flush()
        for i in self.active:
            self._end(i, "finished", None)
        if not self.keeps_checkpoint or "finished" not in self.statuses:
            remove_checkpoint(self.seed_directories[0])
        return 2 if "diverged" in self.statuses else 0

    def fail(self, error: Exception) -> None:
        """Record an error that ended training, where a record can still be written."""
        for i in self.active:
            with contextlib.suppress(OSError, UsageError):
                self._end(i, "failed", " ".join(f"{type(error).__name__}: {error}".split()))

    def checkpoint(self, actions: tuple[int, str]) -> dict[str, Any]:
        """Flush, and return the record's part of a checkpoint.

        `actions` are length and SHA-256 of their file.
        """
        self.check_ours()
        self.flush()
        return {
            "identity": self._identity,
            "files": [seed.extents() for seed in self._seeds],
            "actions": actions,
            "ends": [{key: seed.entries[key] for key in ENDS} for seed in self._seeds],
            "wall_seconds": self.clock.wall_seconds,
        }

    def check_ours(self) -> None:
        """Check that these runs, and the checkpoint's folder, still belong to this process."""
        for i, seed in enumerate(self._seeds):
            if seed.is_running or (i == 0 and seed.status == "diverged"):
                seed.check_ours()

    def restart_clock(self, wall_seconds: float, env_steps: int) -> None:
        """Restore a checkpoint's clock, and say where each seed goes on; see `Clock.restore`."""
        self.clock.restore(wall_seconds, env_steps)
        for i in self.active:
            print(f"{self.seed_directories[i].name} goes on at {env_steps} env_steps", flush=True)

    def _resume(self, content: Mapping[str, Any]) -> None:
        """Cut the files to a checkpoint that fits; leave finished seeds as they are."""
        path = self.checkpoint_directory / ACTIONS
        open_inside(self._directory, path).close()  # refuses what is no file of ours
        for i in self.active:  # which stops an older process
            self._seeds[i].resume(content["ends"][i], content["files"][i])
        open_inside(self._directory, path, content["actions"][0]).close()

    def _end(self, i: int, status: Status, error: str | None) -> None:
        self._seeds[i].end(status, error, self.clock.wall_seconds)


def _seed_folders(
    directory: Path, run: Mapping[str, Any], seeds: Sequence[int]
) -> list[SeedFolder]:
    """Return the folders of seeds that start now, or have finished; nothing is written."""
    agent, config = str(run["agent"]), run.get("config", {})
    folders = [directory / f"seed-{seed}" for seed in seeds]
    for folder in folders:
        for name in ("run.json", *FILES, f"{CHECKPOINT}/{ACTIONS}"):
            check_inside(directory, folder / name)
    sources, commit = code.sources(agent), code.revision()["commit"]
    is_dirty = bool(code.uncommitted(sources))
    number = None if is_dirty else code.behaviour(agent)
    found = []
    for seed, folder in zip(seeds, folders, strict=True):
        entries = {
            "schema_version": SCHEMA_VERSION,
            **run,
            "seed": seed,
            "status": "running",
            "error": None,
            "started_at": now(),
            "resumed_at": [],
            "ended_at": None,
            "wall_seconds": None,
            "commit": commit,
            "dirty": None if commit is None else is_dirty,
            "sources": sources,
            "behaviour": number,
            "versions": hardware.versions(),
            "machine": hardware.machine(config.get("device", "cpu")),
        }
        if wrong := misnamed(folder, entries):
            raise UsageError(f"{folder} names another run (this one {wrong}): choose another --out")
        is_done = is_finished(folder, config.get("env_steps", 0))
        found.append(SeedFolder(directory, folder, entries, "finished" if is_done else "running"))
    return found


def status_of(config: Any, directory: Path, seed: int) -> Status | None:
    """Return how this configuration's seed ended; None if it has not, or with other settings."""
    record = read_entries(directory / f"seed-{seed}")
    ours = json.loads(json.dumps(dataclasses.asdict(config)))
    settings = record.get("config")
    same = isinstance(settings, dict) and (
        comparable(todays_settings(type(config), settings), "seeds") == comparable(ours, "seeds")
    )
    ended = record.get("status") in ("finished", "diverged") and same
    return record["status"] if ended else None


def command_line() -> str:
    """Return the command that started this process, as it would be typed."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {module.name}" if module else f"python {sys.argv[0]}"
    command = [program.removesuffix(".__main__"), *map(shlex.quote, sys.argv[1:])]
    return printable(" ".join(command))  # a path need not be text
