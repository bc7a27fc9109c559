"""Files: safe names and places, atomic writes, compression, checksums."""

import contextlib
import errno
import hashlib
import json
import lzma
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from suite.base.errors import UsageError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers: the disk is full, a quota is used up, or a file would be too large."""
CHECKPOINT = "checkpoint"
"""A run's checkpoint folder."""
LARGEST_JSON = 2**23
"""Bytes of JSON that are read: 8 MiB, hundreds of times what a run writes."""
LARGEST_TABLE = 2**28
"""Bytes of a run's table, packed or not, that are read: 256 MiB."""
LARGEST_TENSORS = 2**32
"""Bytes of a policy's or a checkpoint's tensors that are read, and written: 4 GiB."""


def check_inside(folder: Path, path: Path) -> None:
    """Check that `path` lies in `folder` and is not reached through a link below it."""
    if not path.is_relative_to(folder) or ".." in path.relative_to(folder).parts:
        raise UsageError(f"{path} is not inside {folder}, so it is not written")
    place = folder
    for part in path.relative_to(folder).parts:
        place = place / part
        if place.is_symlink():
            raise UsageError(f"{place} is a link, which nothing is written through: delete it")


def open_inside(folder: Path, path: Path, num_bytes: int | None = None) -> BinaryIO:
    """Open a file below a folder that the user named, to write at its end; make it if it is absent.

    Every file that is not replaced whole, by `write_atomically`, is opened here, so that a folder
    that was handed over has no other file changed. With `num_bytes` the file is cut to them first.

    Raises:
        UsageError: if `path` leads elsewhere, or is not a regular file with this name alone.
    """
    check_inside(folder, path)
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file: delete it")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o666), "ab")
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise UsageError(f"{path} has another name elsewhere (a hard link): replace it by a copy")
    if num_bytes is not None:
        file.truncate(num_bytes)
    return file


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of writing name the file: the system names it only where it opens one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def append(folder: Path, path: Path, content: bytes | bytearray, *, sync: bool = False) -> None:
    """Write at the end of a file below `folder`, opened as by `open_inside`.

    With `sync` it waits until all is on the disk.
    """
    with naming(path), open_inside(folder, path) as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_whole(path: Path, most: int) -> bytes:
    """Return the content of a regular file; a ValueError refuses more than `most` bytes, unread."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:  # memory for more would be taken
            content = file.read(size + 1)
            if len(content) <= most:  # it may grow
                return content
    limit = f"{most / 2**20:.0f} MiB" if most >= 2**20 else f"{most / 2**10:.0f} KiB"
    raise ValueError(f"{path.name} has more than {limit}")


def read_json(path: Path, most: int | None = None) -> Any:
    """Return the content of a JSON file."""
    content = read_whole(path, LARGEST_JSON if most is None else most)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside `path`, sync and rename: readers see the old or the new content whole."""
    # Not the process's number: on a shared disk, another machine's process may have the same.
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with naming(path):
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def remove_torn(folder: Path, seconds: float = 0.0) -> None:
    """Remove files that killed writers left below a folder; not those of the last `seconds`."""
    with contextlib.suppress(FileNotFoundError):  # another process removes a folder meanwhile
        for path in folder.rglob(".*.tmp"):
            with contextlib.suppress(OSError):  # or the file
                if time.time() - path.stat().st_mtime >= seconds:
                    path.unlink()


DAMAGED = (lzma.LZMAError, EOFError)
"""Errors of reading a compressed file that has changed or ends too early."""


def compress(path: Path) -> None:
    """Replace a file by its compressed form, `path`.xz, from which `read_plain` reads the same."""
    with open_regular(path) as file:
        write_atomically(compressed(path), lzma.compress(file.read()))
    path.unlink()


def read_plain(path: Path) -> bytes:
    """Return the content of a file, or of its compressed form where there is only that."""
    is_packed = not path.exists() and compressed(path).exists()
    place = compressed(path) if is_packed else path
    with open_regular(place) as file, lzma.open(file) if is_packed else file as plain:
        content = plain.read(LARGEST_TABLE + 1)
    if len(content) > LARGEST_TABLE:
        raise OSError(errno.EFBIG, f"More than {LARGEST_TABLE / 2**20:.0f} MiB", str(path))
    return content


def compressed(path: Path) -> Path:
    """Return where the compressed form of a file lies."""
    return path.with_name(f"{path.name}.xz")


def to_json(value: object) -> bytes:
    """Return `value` as indented JSON; raise a ValueError for a non-finite number."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON, atomically."""
    write_atomically(path, to_json(value))


def extent(path: Path, num_bytes: int | None = None) -> list[Any]:
    """Sync a file; return the number and SHA-256 of its bytes, of the first `num_bytes` at most."""
    digest, count = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(
            2**20 if num_bytes is None else min(2**20, max(num_bytes - count, 0))
        ):
            digest.update(chunk)
            count += len(chunk)
        os.fsync(file.fileno())
    return [count, digest.hexdigest()]
