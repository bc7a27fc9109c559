"""Small rules about files: names that are safe as paths, and writes that cannot be torn."""

import errno
import json
import os
import re
from pathlib import Path

from suite.settings import UsageError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, a quota or the limit of a file's size is used up."""
CHECKPOINT = "checkpoint"
"""Folder, in that of a run, of what the run goes on from if it is killed."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str) -> str:
    """Return `name` if it may become a path component.

    Args:
        name: the candidate, as a user or a file gave it.
        what: what it names, for the message.

    Raises:
        UsageError: if it does not match `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name!r} cannot be a file name: use up to 100 letters, digits, '.', '_', '-'"
        )
    return name


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, sync it and rename it: readers see the old or the new whole.

    Raises:
        OSError: if the disk refuses; `path` then holds what it held before.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def to_json(value: object) -> bytes:
    """Return `value` as readable JSON. Non-finite numbers are refused (ValueError)."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path, value: object) -> None:
    """Write `value` as `to_json` does, atomically."""
    write_atomically(path, to_json(value))
