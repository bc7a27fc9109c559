"""Runs' folders as bytes, to carry them between machines that share no disk.

They are read after a checkpoint. Whenever a machine dies, the folder that was written is one that
the agent could have left itself: it can be read, and the run resumes from it exactly.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suite.base.errors import UsageError
from suite.base.files import CHECKPOINT, LARGEST_TENSORS, check_inside, read_whole, write_atomically
from suite.base.snapshot import DESCRIPTION
from suite.record.manifest import MANIFEST, stamp

LAST = (DESCRIPTION, MANIFEST, "run.json")
"""Files that describe those written before them, in the order of writing."""


def checkpoint_of(folder: Path) -> tuple[int, int, int] | None:
    """Return numbers that change with every checkpoint of a process; None before the first."""
    return stamp(folder / CHECKPOINT / DESCRIPTION)


def read_folders(folders: Iterable[Path]) -> dict[str, bytes]:
    """Return the content of all files in runs' folders, by path relative to their parent.

    A file that describes others is read before them: tables only grow until the next checkpoint.
    """
    places = sorted(_names(folders).items(), key=lambda place: _rank(place[1].name), reverse=True)
    try:
        return {name: read_whole(path, LARGEST_TENSORS) for name, path in places}
    except ValueError as error:
        raise UsageError(f"{error}, which no run writes: it is not sent") from None


def read_while_written(folders: Sequence[Path]) -> dict[str, bytes] | None:
    """Return the files of a process that goes on; None if others came meanwhile: ask again.

    These are of a new checkpoint, whose tensors have a name of their own, or of the end.
    """
    try:
        files = read_folders(folders)
        now = _names(folders)
    except FileNotFoundError:  # of the checkpoint before
        return None
    return files if now.keys() == files.keys() else None


def write_folders(files: Mapping[str, bytes], folder: Path) -> None:
    """Write runs' folders, and delete what else they hold; refuse files that lie elsewhere."""
    for name in files:
        check_inside(folder, folder / name)
    for name in sorted(files, key=lambda name: _rank(name.rpartition("/")[2])):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[name])
    for run in {folder / name.partition("/")[0] for name in files}:
        for path in _files(run):
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # a checkpoint's, if that was its last file


def _names(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the files in runs' folders, by path relative to the folders' parent."""
    return {
        path.relative_to(folder.parent).as_posix(): path
        for folder in folders
        for path in _files(folder)
    }


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder, except links, and hidden ones, still being written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.name[0] != ".")
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _rank(name: str) -> int:
    """Return the place of a file in the order of writing: each kind describes those before it."""
    return 1 + LAST.index(name) if name in LAST else 0
