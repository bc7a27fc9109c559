"""SHA-256 sums of a finished run's files, which show any later change of them.

`SHA256SUMS` has the format of `sha256sum`, so `sha256sum --check SHA256SUMS` works too. The
manifest itself is checked as well: its bytes must equal the sums that the files give now. A
compressed file counts by its content (`xz --decompress` it for `sha256sum`). The policy of a
published run may be left out: its sums are then comments, by which a copy can still be checked.
"""

import errno
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from suite.base.errors import UnreadableError
from suite.base.files import (
    DAMAGED,
    LARGEST_TENSORS,
    open_regular,
    read_plain,
    read_whole,
    write_atomically,
)

MANIFEST = "SHA256SUMS"
TABLES = ("episodes.csv", "evaluations.csv", "updates.csv", "timing.csv")
POLICY = ("policy.safetensors", "policy.json")
BEST = "best"
"""Folder, in a run's, of the policy of its best evaluation; `--keep-best` keeps it."""
POLICIES = (*POLICY, *(f"{BEST}/{name}" for name in POLICY))
FILES = (*TABLES, *POLICIES, MANIFEST)
"""Files that a run writes beside `run.json`."""
COVERED = (*TABLES, *POLICIES, "run.json")
LARGEST_MANIFEST = 2**16
"""Bytes of a manifest that are read; more than a run has files for."""
UNREADABLE = "unreadable"
"""In place of the sum of a file that cannot be read, or is too large to be."""
OF_DISK = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
"""Errors of a disk, or of a user's rights: the file may be whole."""
LEFT_OUT = re.compile(rb"# left out: [0-9a-f]{64}  (best/)?policy\.(safetensors|json)\n")
"""Line of a manifest for a file that its folder lacks on purpose."""


def write_manifest(folder: Path, record: bytes) -> None:
    """Write the sums of a run's files, and of `record`, its `run.json` to be written next."""
    found = _sums(folder)
    for name in (name for name, sum_ in found.items() if sum_ == UNREADABLE):
        raise OSError(errno.EIO, "Cannot be read back, or is too large", str(folder / name))
    found["run.json"] = hashlib.sha256(record).hexdigest()
    write_atomically(folder / MANIFEST, _render(found))


def damage(folder: Path) -> str:
    """Return the names of a run's files that differ from its manifest; empty if none does."""
    try:
        stored = LEFT_OUT.sub(b"", _read(folder / MANIFEST))
    except OSError:  # a pipe, a folder, or none
        return MANIFEST
    names = (*COVERED, *(f"{name}.xz" for name in COVERED))
    now = _known_sums(folder, tuple(stamp(folder / name) for name in names))
    if stored == _render(now):
        return ""
    lines = stored.decode(errors="replace").split("\n")
    said = {name: line for line in lines for name in COVERED if line.endswith(f"  {name}")}
    found = {name: f"{digest}  {name}" for name, digest in now.items()}
    changed = [name for name in COVERED if said.get(name) != found.get(name)]
    return ", ".join(changed or [MANIFEST])


def leave_out_policy(folder: Path) -> None:
    """Delete a run's policies; their sums stay in the manifest, where there is one, as comments."""
    path = folder / MANIFEST
    if path.exists():
        lines = _read(path).splitlines(keepends=True)
        endings = tuple(f"  {name}\n".encode() for name in POLICIES)
        is_policy = [line.endswith(endings) and line[:1] != b"#" for line in lines]
        marked = [b"# left out: " * out + line for out, line in zip(is_policy, lines, strict=True)]
        write_atomically(path, b"".join(marked))
    for name in POLICIES:
        (folder / name).unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    """Return the content of a manifest."""
    with open_regular(path) as file:
        return file.read(LARGEST_MANIFEST)


@lru_cache(maxsize=4096)  # a report asks several times, and a policy may hold many megabytes
def _known_sums(folder: Path, stamps: tuple[object, ...]) -> Mapping[str, str]:
    return _sums(folder)


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every existing file that a manifest covers, or `UNREADABLE`."""
    found: dict[str, str] = {}
    for name in COVERED:
        path, is_policy = folder / name, name in POLICIES  # which may be larger than a table
        try:
            content = read_whole(path, LARGEST_TENSORS) if is_policy else read_plain(path)
            found[name] = hashlib.sha256(content).hexdigest()
        except FileNotFoundError:
            continue
        except (OSError, ValueError, *DAMAGED) as error:
            if isinstance(error, OSError) and error.errno in OF_DISK:
                raise UnreadableError(f"cannot read {path}: {error.strerror}") from None
            found[name] = UNREADABLE
    return found


def _render(found: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in found.items()).encode()


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return numbers that change whenever a file is written or replaced; None without a file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
