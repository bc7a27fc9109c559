"""Names that become paths, and writes that cannot be torn."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suite.files import check_name, extent, write_atomically, write_json
from suite.settings import UsageError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
hostile_names = st.one_of(
    st.text(max_size=120),
    st.text(alphabet="./\\-_a0~\n\0 ", max_size=12),
    st.text(alphabet=LETTERS + "._-", max_size=120),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(hostile_names)
@example("..")
@example(".")
@example("")
@example("a/../b")
@example("-rf")
@example("run\n")
@example("a" * 101)
@example("٣")
@example("é")
def test_only_plain_names_become_paths(name: str) -> None:
    """A name from a file or a flag is one ASCII component below where it is put, or refused.

    The rule is restated here character by character, without a regular expression.
    """
    plain = (
        0 < len(name) <= 100
        and all(letter in LETTERS + "._-" for letter in name)
        and name[0] in LETTERS
    )
    if plain:
        assert check_name(name, "source") == name
        assert os.path.normpath(Path("/runs") / name) == f"/runs/{name}"
    else:
        with pytest.raises(UsageError, match=r"^source .* cannot be a file name") as refusal:
            check_name(name, "source")
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["a", "7", "HalfCheetah-v4", "seed-1", "x" * 100, "a..b", "a.-_"])
def test_ordinary_names_pass(name: str) -> None:
    """Every task, source and run name in use is accepted."""
    assert check_name(name, "source") == name


def test_the_old_content_stays_until_the_new_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader, or a power cut, in the middle of a write finds the old file whole."""
    path, sync, seen = tmp_path / "run.json", os.fsync, []

    def synchronise(descriptor: int) -> None:
        seen.append(path.read_bytes())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synchronise)
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


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


def test_json_is_readable_and_round_trips(tmp_path: Path) -> None:
    """Records are read by people too: indented, letters as they are, a newline at the end."""
    path = tmp_path / "run.json"
    value = {"task": "Hopper-v4", "author": "Gödel", "rate": 0.1 + 0.2, "seeds": [1, 2]}
    write_json(path, value)
    text = path.read_bytes().decode()
    assert json.loads(text) == value
    assert '  "author": "Gödel",\n' in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_without_a_standard_meaning_is_refused(number: float, tmp_path: Path) -> None:
    """`NaN` is no JSON: other readers would reject the whole record."""
    path = tmp_path / "run.json"
    write_json(path, {"loss": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": number})
    assert json.loads(path.read_text()) == {"loss": 1.0}


def test_an_extent_is_the_beginning_of_a_file(tmp_path: Path) -> None:
    """What was appended since does not count; what was lost does."""
    path = tmp_path / "episodes.csv"
    path.write_bytes(b"a\n1\n")
    known = extent(path)
    path.write_bytes(b"a\n1\n2\n")
    assert extent(path, known[0]) == known
    assert extent(path) != known
    path.write_bytes(b"a\n1")
    assert extent(path, known[0]) != known
