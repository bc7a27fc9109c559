"""Files: safe names, atomic writes, compression, checksums."""

import errno
import hashlib
import io
import json
import lzma
import os
import re
import uuid
from pathlib import Path
from typing import Any

from suite.settings import UsageError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers: the disk is full, a quota is used up, or a file would be too large."""
CHECKPOINT = "checkpoint"
"""A run's checkpoint folder."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str) -> str:
    """Return `name` if it may become a path component.

    Args:
        name: the candidate, as a user or a file gave it.
        what: the kind of thing it names, for the message.

    Raises:
        UsageError: if it does not match `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name!r} cannot be a file name: use up to 100 letters, digits, '.', '_', '-'"
        )
    return name


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, sync and rename it: readers see the old or the new file whole.

    Raises:
        OSError: if writing fails; `path` then keeps its old content.
    """
    # Not the process's number: on a shared disk, another machine's process may have the same.
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


DAMAGED = (lzma.LZMAError, EOFError)
"""Errors of reading a compressed file that has changed or ends too early."""


def compress(path: Path) -> None:
    """Replace a file by its compressed form, `path`.xz, from which `open_plain` reads the same.

    Raises:
        OSError: if writing fails; the file is then kept.
    """
    write_atomically(_compressed(path), lzma.compress(path.read_bytes()))
    path.unlink()


def open_plain(path: Path) -> io.BufferedIOBase:
    """Open a file, or its compressed form where there is only that, to read its content.

    Raises:
        OSError: if there is neither. Reading a damaged compressed file raises one of `DAMAGED`.
    """
    if not path.exists() and _compressed(path).exists():
        return lzma.open(_compressed(path))
    return path.open("rb")


def _compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.xz")


def to_json(value: object) -> bytes:
    """Return `value` as indented JSON; raise a ValueError for a non-finite number."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON, atomically."""
    write_atomically(path, to_json(value))


def extent(path: Path, num_bytes: int | None = None) -> list[Any]:
    """Sync a file; return the number and SHA-256 of its bytes, of the first `num_bytes` at most.

    Raises:
        OSError: if it cannot be read.
    """
    digest, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(2**20 if num_bytes is None else min(2**20, num_bytes - count)):
            digest.update(chunk)
            count += len(chunk)
        os.fsync(file.fileno())
    return [count, digest.hexdigest()]
