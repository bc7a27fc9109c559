"""A copy of a group's files on another machine, kept up to date while an agent writes them.

`Mirror.changes` reads new content where the agent works; `apply` writes it where the record is
kept. Whenever either machine dies, the copy is in a state that the agent could have left itself: it
can be read, and the run resumes from it exactly.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.files import (
    LARGEST_TENSORS,
    check_inside,
    naming,
    open_inside,
    open_regular,
    read_whole,
    write_atomically,
)
from suite.manifest import MANIFEST
from suite.settings import UsageError

LOG = "log"
"""Name of the file of the agent's output, beside the folders of its runs."""
RECORD = "run.json"
LAST = ("checkpoint.json", MANIFEST, RECORD)
"""Files that describe those written before them, in the order of writing."""
GROWING = (".csv", ".bin", LOG)
"""Endings of the names of files that only grow, or start again from nothing."""
LOG_BYTES = 2**20
"""Bytes of new output that are sent at once: of more than 1 MiB the beginning is left out."""
Stamp = tuple[int, int, int]
UNREAD: Stamp = (-1, -1, -1)


@dataclass(frozen=True)
class Piece:
    """New content of one file."""

    path: str
    """Relative to the folder that holds `seed-<k>` for every run."""
    start: int | None
    """Byte at which the content replaces the rest of the file; None: it replaces the whole file."""
    content: bytes


@dataclass(frozen=True)
class Changes:
    """Changes of a group's files, in the order in which `apply` makes them."""

    pieces: Sequence[Piece]
    gone: Sequence[str]


def read_folders(folders: Iterable[Path]) -> dict[str, bytes]:
    """Return the content of all files in runs' folders, by path relative to their parent.

    Raises:
        OSError: if one cannot be read.
        UsageError: if one is larger than any that a run writes.
    """
    try:
        return {
            path.relative_to(folder.parent).as_posix(): read_whole(path, LARGEST_TENSORS)
            for folder in folders
            for path in _files(folder)
        }
    except ValueError as error:
        raise UsageError(f"{error}, which no run writes: it is not sent") from None


def apply(changes: Changes, folder: Path, log: Path) -> None:
    """Make changes in the copy `folder`, and in the copy `log` of the agent's output.

    Raises:
        OSError: if writing fails.
        UsageError: if a file would be written elsewhere; nothing is then.
    """
    places = {piece.path: folder / piece.path for piece in changes.pieces if piece.path != LOG}
    places |= {name: folder / name for name in changes.gone}
    for place in places.values():
        check_inside(folder, place)
    places[LOG] = log
    for piece in changes.pieces:
        path = places[piece.path]
        path.parent.mkdir(parents=True, exist_ok=True)
        if piece.start is None:
            write_atomically(path, piece.content)
            continue
        with naming(path), open_inside(path.parent, path, piece.start) as file:
            file.write(piece.content)
    for name in changes.gone:
        places[name].unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            places[name].parent.rmdir()  # a checkpoint's, if that was its last file


class Mirror:
    """Keeps track of the content of an agent's files that has been read.

    A run's folder is read once its agent has replaced the `run.json` that was there: before, the
    agent may still truncate the files.

    Args:
        folder: where the agent works; holds `seed-<k>` for every run, and the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = dict.fromkeys(self._names(), UNREAD)
        self._untouched = {name: self._stamp(name) for name in self._names() if _is_record(name)}

    def changes(self) -> Changes | None:
        """Return the new content; None if files were replaced meanwhile: ask again."""
        known, pieces = dict(self._known), list[Piece]()
        try:
            names = self._names()
            begun = {folder for folder in map(_folder, names) if self._has_begun(folder)}
            # A file that describes others is read before them, and written after them.
            for name in sorted(names, key=_rank, reverse=True):
                if _folder(name) in begun and self._stamp(name) != known.get(name):
                    piece, known[name] = self._read(name, known.get(name, UNREAD))
                    pieces.append(piece)
            if self._names() != names:  # a checkpoint may have come whose tensors were not seen
                return None
        except FileNotFoundError:  # also of a folder that is removed while it is listed
            return None
        gone = [name for name in known if name not in names]
        self._known = {name: stamp for name, stamp in known.items() if name in names}
        return Changes(sorted(pieces, key=lambda piece: _rank(piece.path)), gone)

    def _names(self) -> list[str]:
        paths = [path.relative_to(self._folder) for path in _files(self._folder)]
        return [path.as_posix() for path in paths if len(path.parts) > 1 or path.name == LOG]

    def _has_begun(self, folder: str) -> bool:
        record = f"{folder}/{RECORD}"
        try:
            return self._stamp(record) != self._untouched.get(record)
        except FileNotFoundError:
            return folder == ""  # the log's

    def _stamp(self, name: str) -> Stamp:
        """Return numbers that change with a file's content."""
        facts = (self._folder / name).stat()
        return facts.st_ino, facts.st_size, 0 if name.endswith(GROWING) else facts.st_mtime_ns

    def _read(self, name: str, known: Stamp) -> tuple[Piece, Stamp]:
        """Return the unread content of a file, and its stamp once that is read."""
        if not name.endswith(GROWING):
            stamp = self._stamp(name)  # first: if it is replaced meanwhile, it is read once more
            return Piece(name, None, (self._folder / name).read_bytes()), stamp
        with open_regular(self._folder / name) as file:
            facts = os.fstat(file.fileno())
            same = facts.st_ino == known[0] and facts.st_size >= known[1]
            start = known[1] if same else 0
            if name == LOG:
                start = max(start, facts.st_size - LOG_BYTES)
            file.seek(start)
            content = file.read() if name != LOG else file.read(LOG_BYTES)
        return Piece(name, start, content), (facts.st_ino, start + len(content), 0)


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder, except links, and hidden ones, still being written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.name[0] != ".")
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _folder(name: str) -> str:
    """Return the name of the run's folder that holds a file; empty for the log."""
    return name.rpartition("/")[0].partition("/")[0]


def _is_record(name: str) -> bool:
    return name.endswith(f"/{RECORD}")


def _rank(name: str) -> int:
    """Return the place of a file in the order of writing: each kind describes those before it."""
    if name.endswith(GROWING):
        return 0
    base = name.rpartition("/")[2]
    return 2 + LAST.index(base) if base in LAST else 1
