"""A record is what its folder, its manifest and its schema version say, or it is damaged."""

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from suite.base.errors import UnreadableError
from suite.record.reading import KEYS, read_record
from tests.reproduce.conftest import TASK, pendulum, record_run, reseal


def finish(root: Path) -> Path:
    """Record a finished run of SAC on Pendulum, as its agent would, and return its folder."""
    return record_run(pendulum(root), TASK, 1)


def error_of(folder: Path) -> str:
    """Return why a record is damaged, after a look that it is."""
    record = read_record(folder)
    assert record is not None
    assert record["status"] == "damaged"
    assert "\n" not in record["error"]
    return record["error"]


def test_what_is_no_record_is_no_run(tmp_path: Path) -> None:
    """A file that does not say what was run cannot stand for a finished run."""
    said = '"status": "finished", "task": "t", "seed": 1'
    for content in ("", "[]", '{"status": "finished"}', f'{{{said}, "config": 3}}'):
        (tmp_path / "run.json").write_text(content)
        assert read_record(tmp_path) is None
    (tmp_path / "run.json").write_text(f'{{{said}, "config": {{}}}}')
    assert read_record(tmp_path) is None
    assert read_record(tmp_path / "nowhere") is None


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_disk_that_cannot_be_read_is_no_damage(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may be whole: it is neither left out nor trained again."""
    folder = finish(tmp_path)

    def fail(path: Path) -> bytes:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr("suite.record.manifest.read_plain", fail)
    with pytest.raises(UnreadableError, match=r"cannot read .*episodes\.csv"):
        read_record(folder)


def test_a_record_of_a_novel_is_none(tmp_path: Path) -> None:
    """Whatever it says would come into the report and the page."""
    folder = finish(tmp_path)
    reseal(folder, error="x" * 2**17)
    assert read_record(folder) is not None
    reseal(folder, error="x" * 2**18)
    assert read_record(folder) is None


HERE = "sac-classic/tuned/Pendulum-v1/seed-1"


@pytest.mark.parametrize(
    ("place", "entries", "error"),
    [
        ("sac-classic/tuned/Pendulum-v1/seed-2", {}, "says seed 1, its folder says 2"),
        ("sac-classic/tuned/MountainCar-v0/seed-1", {}, "says task Pendulum-v1, its folder says"),
        ("a2c-classic/tuned/Pendulum-v1/seed-1", {}, "says agent sac, its folder says a2c"),
        ("sac-mujoco/tuned/Pendulum-v1/seed-1", {}, "says suite classic, its folder says mujoco"),
        ("alone/MountainCarContinuous-v0/seed-1", {}, "says task Pendulum-v1, its folder says"),
        (HERE, {"seed": 2}, "says seed 2, its settings say [1]"),
        (HERE, {"schema_version": 99}, "has the schema version 99, which is unknown here"),
        (HERE, {"schema_version": None}, "has the schema version None, which is unknown here"),
    ],
)
def test_a_record_that_contradicts_its_folder_or_itself_is_damaged(
    place: str, entries: Mapping[str, Any], error: str, tmp_path: Path
) -> None:
    """No copy is another run, and a manifest is written anew as easily as a record is edited."""
    folder = shutil.copytree(finish(tmp_path / "runs"), tmp_path / place)
    reseal(folder, **entries)
    assert error_of(folder).startswith(error)


def test_a_record_has_all_entries_of_its_version(tmp_path: Path) -> None:
    """None is missing; without task, seed, settings or status it is no record."""
    folder = finish(tmp_path)
    record = read_record(folder)
    assert record is not None
    assert record["status"] == "finished"
    for key in [key for key in KEYS if key not in ("task", "seed", "config", "status")]:
        reseal(folder, without=key)
        assert error_of(folder) == f"lacks {key}, which schema version 3 has"
        reseal(folder, **{key: record[key]})
