"""One seed's folder while it trains: its `run.json` and its tables.

A folder has one writer. Whoever starts the run again replaces `run.json`, by which an older process
sees at its next write that the folder is no longer its own.
"""

import datetime
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suite.base.errors import UsageError
from suite.base.files import (
    CHECKPOINT,
    append,
    compressed,
    extent,
    open_inside,
    open_regular,
    read_json,
    remove_torn,
    to_json,
    write_atomically,
    write_json,
)
from suite.record.manifest import FILES, TABLES, stamp, write_manifest
from suite.record.reading import LARGEST_RECORD, Status
from suite.settings.command_line import printable

ENDS = ("status", "error", "ended_at", "wall_seconds")
"""Entries of `run.json` that change when a seed ends."""


class SeedFolder:
    """A seed's folder, in which only one process writes.

    One that is `finished` gets nothing more.
    """

    def __init__(self, root: Path, folder: Path, entries: dict[str, Any], status: Status) -> None:
        self._root, self.folder, self.entries = root, folder, entries
        self.status: Status = status
        self.recent: list[float] = []
        """Returns of the training episodes since the last line, if these are its score."""
        self._rows: dict[str, list[str]] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        self._stamp: object = None

    @property
    def is_running(self) -> bool:
        """Return whether the seed still trains."""
        return self.status == "running"

    def begin(self) -> None:
        """Start a run in its folder; remove the files that an unfinished run left there.

        The record claims the folder before a file changes, and says afterwards that all have.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "run.json", self.entries)
            remove_torn(self.folder)
            remove_checkpoint(self.folder)
            for name in FILES:
                self._remove(name)
            write_json(self.folder / "run.json", self.entries)
            self.own()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.folder.is_dir():
                raise self._displaced() from None  # who began it meanwhile removed a file of ours
            raise UsageError(f"cannot write to {self.folder}: {error.strerror}") from None

    def resume(self, ends: Mapping[str, Any], files: Mapping[str, Any]) -> None:
        """Cut the tables to a checkpoint's extents, `files`, and take what `ends` says.

        The record is written before, which stops an older process, and after.
        """
        before = read_entries(self.folder)
        earlier = before.get("resumed_at")
        self.entries["started_at"] = before.get("started_at", self.entries["started_at"])
        self.entries["resumed_at"] = [*(earlier if isinstance(earlier, list) else []), now()]
        self.entries |= ends
        self.status = self.entries["status"]
        write_json(self.folder / "run.json", self.entries)
        remove_torn(self.folder)
        for name in FILES:
            if name not in files:
                self._remove(name)
                continue
            open_inside(self._root, self.folder / name, files[name][0]).close()
            with open_regular(self.folder / name) as file:
                header = file.readline().decode().rstrip("\n")
            self._columns[name], self._rows[name] = tuple(header.split(",")), []
        write_json(self.folder / "run.json", self.entries)
        self.own()

    def _remove(self, name: str) -> None:
        """Remove a file of another run, and its compressed form."""
        (self.folder / name).unlink(missing_ok=True)
        compressed(self.folder / name).unlink(missing_ok=True)

    def own(self) -> None:
        """Take the `run.json` that lies there now as this process's own."""
        self._stamp = stamp(self.folder / "run.json")

    def append(self, name: str, row: Mapping[str, int | float | np.generic]) -> None:
        """Buffer a row under the columns of the file's first row; missing cells stay empty."""
        if not self.is_running:
            return
        if name not in self._rows:
            self._columns[name] = tuple(row)
            self._rows[name] = [",".join(row) + "\n"]
        columns = self._columns[name]
        if not row.keys() <= set(columns):
            raise ValueError(f"{name} has no column for {sorted(row.keys() - set(columns))}")
        cells = (_text(row[column]) if column in row else "" for column in columns)
        self._rows[name].append(",".join(cells) + "\n")

    def flush(self) -> None:
        """Append the buffered rows to the files, whole rows only."""
        for name, lines in self._rows.items():
            if lines:
                self.check_ours()
                append(self._root, self.folder / name, "".join(lines).encode())
                lines.clear()

    def say(self, env_steps: int, mean_return: np.floating) -> None:
        """Print the last evaluation; without any, the mean of the latest training episodes."""
        name = self.folder.name
        print(f"{name} env_steps {env_steps} mean_return {mean_return:.4g}", flush=True)

    def end(self, status: Status, error: str | None, wall_seconds: float) -> None:
        """Write how the seed ended; `finished` comes last, after the sums of all files."""
        if status == "diverged":  # of a failed one the error is printed
            self.flush()  # the row that shows it
            print(f"{self.folder.name} {status}: {error}", file=sys.stderr, flush=True)
        seconds = round(wall_seconds, 3)
        self.entries.update(status=status, error=error, ended_at=now(), wall_seconds=seconds)
        content = to_json(self.entries)
        self.check_ours()
        if status == "finished":
            write_manifest(self.folder, content)
        write_atomically(self.folder / "run.json", content)
        self.own()
        self.status = status
        if status == "finished":
            print(f"{self.folder.name} finished: {printable(str(self.folder))}", flush=True)
            if not (self.folder / "updates.csv").exists():
                why = "made no update: env_steps end before learning starts"
                print(f"warning: {self.folder.name} {why}", file=sys.stderr, flush=True)

    def extents(self) -> dict[str, list[Any]]:
        """Return sizes and sums of the tables that are there, for a checkpoint."""
        paths = [self.folder / name for name in TABLES]
        return {path.name: extent(path) for path in paths if path.exists()}

    def check_ours(self) -> None:
        """Check that the folder still belongs to this process."""
        found = stamp(self.folder / "run.json")
        if found is None:
            lost = "was removed, or its disk: what was learned there is lost"
            raise UsageError(f"{self.folder} {lost}")
        if found != self._stamp:
            raise self._displaced()

    def _displaced(self) -> UsageError:
        return UsageError(f"{self.folder} was started again by another process: this one stops")


def is_finished(folder: Path, env_steps: int = 0) -> bool:
    """Return whether a folder holds a finished run of at least `env_steps`, as far as known."""
    entries = read_entries(folder)
    config = entries.get("config")
    steps = config.get("env_steps") if isinstance(config, dict) else 0
    is_shorter = isinstance(steps, int) and steps < env_steps
    return entries.get("status") == "finished" and not is_shorter


def refuse_finished(folder: Path, env_steps: int = 0, *, why: str = "") -> None:
    """Refuse to start a run in the folder of a finished one.

    Finished runs of fewer steps are not refused, for they may be extended; `why` says why not.
    """
    if is_finished(folder, env_steps):
        run, way = "a finished run", "extend it by a larger --env-steps, with the same settings, "
        if why:
            run, way = f"{run} that cannot be extended ({why})", ""
        raise UsageError(f"{folder} holds {run}: {way}choose another --out, or delete it")


def read_entries(folder: Path) -> dict[str, Any]:
    """Return the content of `run.json`, unchecked; empty if it is absent or not a record."""
    try:
        entries = read_json(folder / "run.json", LARGEST_RECORD)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {folder / 'run.json'}: {error.strerror}") from None
    return entries if isinstance(entries, dict) else {}


def remove_checkpoint(folder: Path) -> None:
    """Remove a run's checkpoint, be it a folder, a file or a link."""
    path = folder / CHECKPOINT
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def now() -> str:
    """Return the moment, as records name it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _text(cell: int | float | np.generic) -> str:
    """Return a number as text that reads back as the same number."""
    return repr(cell.item() if isinstance(cell, np.generic) else cell)
