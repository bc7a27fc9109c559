"""Files that are opened inside their folder, and writes that cannot be torn."""

import json
import lzma
import os
import re
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.base import files
from suite.base.errors import UsageError
from suite.base.files import (
    NO_SPACE,
    append,
    open_inside,
    read_json,
    read_plain,
    write_atomically,
    write_json,
)


@pytest.mark.parametrize("kind", ["link", "hard link", "linked folder", "..", "absolute", "pipe"])
def test_nothing_is_opened_for_writing_but_files_inside(kind: str, tmp_path: Path) -> None:
    """A folder may come from anybody: opening one of its files cuts no other, and never blocks."""
    folder, victim = tmp_path / "runs", tmp_path / "outside" / "thesis.tex"
    folder.mkdir()
    victim.parent.mkdir()
    victim.write_bytes(b"ten years")
    path = folder / "seeds-1.log"
    match kind:
        case "link":
            path.symlink_to(victim)
        case "hard link":
            path.hardlink_to(victim)
        case "linked folder":
            (folder / "seed-1").symlink_to(victim.parent)
            path = folder / "seed-1" / victim.name
        case "..":
            path = folder / ".." / "outside" / victim.name
        case "absolute":
            path = folder / victim.absolute()
        case "pipe":
            os.mkfifo(path)
    with pytest.raises(UsageError, match=r"is (a link|not)|has another name"):
        open_inside(folder, path, 0)
    assert victim.read_bytes() == b"ten years"


def test_a_file_inside_is_cut_and_appended_to(tmp_path: Path) -> None:
    """The folder that the user named may itself be a link, to a larger disk."""
    (tmp_path / "disk").mkdir()
    runs = tmp_path / "runs"
    runs.symlink_to("disk")
    for num_bytes, text in ((None, b"abc"), (2, b"d"), (None, b"e")):
        with open_inside(runs, runs / "log", num_bytes) as file:
            file.write(text)
    assert (tmp_path / "disk" / "log").read_bytes() == b"abde"
    open_inside(runs, runs / "log", 0).close()
    assert (tmp_path / "disk" / "log").read_bytes() == b""


@pytest.mark.parametrize("read", [read_json, read_plain])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_might_never_end_is_not_read(
    kind: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Each of these in place of a file is an error at once."""
    path = tmp_path / "run.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="regular file"):
        read(path)


def test_json_that_is_nested_too_deeply_or_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the process, or fill the memory."""
    path = tmp_path / "run.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(path)
    path.write_text(json.dumps("x" * 1022))
    assert read_json(path, 1024) == "x" * 1022
    monkeypatch.setattr(files, "LARGEST_JSON", 1023)
    with pytest.raises(ValueError, match="more than 1 KiB"):
        read_json(path)


def test_a_file_larger_than_the_memory_is_refused_unread(tmp_path: Path) -> None:
    """No memory is taken for it."""
    with open(tmp_path / "policy.safetensors", "wb") as file:
        file.truncate(2**42)  # all holes
    with pytest.raises(ValueError, match="more than 1 KiB"):
        files.read_whole(tmp_path / "policy.safetensors", 1024)


@pytest.mark.parametrize("name", ["updates.csv", "updates.csv.xz"])
def test_a_table_is_read_to_its_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was packed small: no more of it comes into memory."""
    monkeypatch.setattr(files, "LARGEST_TABLE", 10**6)
    for size in (10**6, 10**6 + 1, 5 * 10**7):
        content = bytes(size)
        packed = lzma.compress(content, preset=0) if name.endswith("xz") else content
        (tmp_path / name).write_bytes(packed)
        del content, packed
        tracemalloc.start()
        try:
            if size == 10**6:
                assert read_plain(tmp_path / "updates.csv") == bytes(size)
            else:
                with pytest.raises(OSError, match="More than"):
                    read_plain(tmp_path / "updates.csv")
            assert tracemalloc.get_traced_memory()[1] < 3 * 10**7
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_behind(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the new content only."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "policy.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(*((os, "fsync") if broken == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["policy.json"]


@pytest.mark.parametrize(
    "write", [write_atomically, lambda path, content: append(path.parent, path, content)]
)
def test_a_full_disk_names_the_file(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    """The system says only that something is full. A limit on files' sizes is as good as a disk."""
    path = tmp_path / "episodes.csv"
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, unlimited[1]))
    try:
        with pytest.raises(OSError, match=re.escape(f"'{path}'")) as caught:
            write(path, bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert caught.value.errno in NO_SPACE


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_without_a_standard_meaning_is_refused(number: float, tmp_path: Path) -> None:
    """`NaN` is no JSON: other readers would reject the whole record."""
    path = tmp_path / "run.json"
    write_json(path, {"loss": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": number})
    assert json.loads(path.read_text()) == {"loss": 1.0}
