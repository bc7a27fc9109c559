"""The copy of a run in pieces: at every moment one that the agent could have left behind itself."""

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce.run.log import last_lines
from reproduce.run.ray import mirror as mirroring
from reproduce.run.ray.mirror import Changes, Mirror, Piece, Stamp, apply, read_folders
from suite.checkpoint import save_policy
from suite.files import extent
from suite.recorder import ACTIONS, Recorder
from suite.records import read_record
from suite.settings import UsageError
from suite.snapshot import Snapshot, write_snapshot

RUN: dict[str, Any] = {"agent": "sac", "task": "Pendulum-v1", "config": {"env_steps": 60}}
RUN |= {"suite": "classic", "source": "tuned", "command": "python -m agents.sac"}
SEEDS = (1, 2)
END = object()


class Life:
    """What an agent of two seeds does to its files, with a checkpoint after every few rows."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder(folder, RUN, SEEDS)
        content = self.recorder.snapshot.content if self.recorder.snapshot else {"numbers": [0]}
        self.env_steps = content["numbers"][0]

    def live(self, until: int) -> None:
        """Go on until `until` steps; at 60 the runs are finished."""
        for _ in self.moves(until):
            pass

    def moves(self, until: int = 60) -> Iterator[None]:
        """Go on until `until` steps, with a pause after every file that is written."""
        recorder, folder = self.recorder, self.recorder.checkpoint_directory
        while self.env_steps < until:
            self.env_steps += 1
            returns = np.full((len(SEEDS), 3), float(self.env_steps))
            recorder.evaluation(self.env_steps, returns)
            recorder.log(self.env_steps, self.env_steps, {"loss": returns[:, 0]}, {})
            yield
            folder.mkdir(exist_ok=True)
            with (folder / ACTIONS).open("ab") as file:
                file.write(bytes([self.env_steps]) * 100)
            yield
            if self.env_steps % 5 == 0:
                actions = (self.env_steps * 100, extent(folder / ACTIONS)[1])
                content = {**recorder.checkpoint(actions), "numbers": [self.env_steps]}
                tensors = {"weights": torch.full((1000,), float(self.env_steps))}
                write_snapshot(folder, Snapshot(content, tensors))
                yield
        if self.env_steps == 60:
            for place in recorder.seed_directories:
                save_policy(place, {"weights": torch.ones(10)}, {"agent": "sac"})
                yield
            recorder.finish()
            yield


def check(copy: Path, tmp_path: Path) -> tuple[int, int]:
    """A copy can be read, and gone on from if it holds a checkpoint; return how it stands."""
    finished = 0
    for seed in SEEDS:
        if (copy / f"seed-{seed}" / "run.json").exists():  # else nothing has come of this run yet
            record = read_record(copy / f"seed-{seed}")
            assert record is not None
            assert record["status"] in ("running", "finished"), record["error"]
            finished += record["status"] == "finished"
    if finished or not (copy / "seed-1" / "checkpoint" / "checkpoint.json").exists():
        return finished, 0
    trial = tmp_path / "trial"
    shutil.copytree(copy, trial)
    life = Life(trial)
    assert life.recorder.snapshot is not None
    shutil.rmtree(trial)
    return finished, life.env_steps


def test_a_copy_is_at_every_moment_what_an_agent_could_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read while the agent writes, and cut off after any piece: rows, checkpoints, the end."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # no power is lost here
    read, generator = Mirror._read, random.Random(0)
    stood: set[tuple[int, int]] = set()
    for number in range(2):
        there, copy = tmp_path / f"there-{number}", tmp_path / f"copy-{number}"
        there.mkdir()
        copy.mkdir()
        mirror, moves = Mirror(there), Life(there).moves()

        def read_later(
            mirror: Mirror, name: str, known: Stamp, moves: Iterator[None] = moves
        ) -> tuple[Piece, Stamp]:
            for _ in itertools.islice(moves, generator.choice([0, 0, 1, 3])):
                pass  # the agent goes on between two reads
            return read(mirror, name, known)

        monkeypatch.setattr(Mirror, "_read", read_later)
        done = False
        while not done:
            done = next(moves, END) is END
            changes = mirror.changes()
            while done and changes is None:
                changes = mirror.changes()
            for piece in changes.pieces if changes else ():
                apply(Changes([piece], []), copy, copy / "log")
                stood.add(check(copy, tmp_path))
            if changes:
                apply(Changes([], changes.gone), copy, copy / "log")
        assert read_folders([*copy.glob("seed-*")]) == read_folders([*there.glob("seed-*")])
        assert {path.name for path in copy.rglob("*")} == {path.name for path in there.rglob("*")}
    assert {finished for finished, _ in stood} == {0, 1, 2}
    assert len(stood) >= 10


def test_a_copy_follows_an_agent_that_cuts_its_files_back(tmp_path: Path) -> None:
    """What was sent along is not read before the agent has begun; then nothing of it is left."""
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy"
    first.mkdir()
    Life(first).live(13)
    for folder in (second, copy):
        for name, content in read_folders(sorted(first.glob("seed-*"))).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    mirror = Mirror(second)
    (second / "log").write_text("starting\n")
    changes = mirror.changes()
    assert changes == Changes([Piece("log", 0, b"starting\n")], [])
    life = Life(second)
    assert life.env_steps == 10
    life.live(22)
    changes = mirror.changes()
    assert changes is not None
    apply(changes, copy, copy / "log")
    assert read_folders(sorted(copy.glob("seed-*"))) == read_folders(sorted(second.glob("seed-*")))
    assert (copy / "seed-2" / "updates.csv").read_text().count("\n") == 1 + 22


def test_an_agent_that_begins_anew_leaves_nothing_of_the_old_copy(tmp_path: Path) -> None:
    """The checkpoint was of another machine, say: it goes, with rows that do not come again."""
    there, copy = tmp_path / "there", tmp_path / "copy"
    there.mkdir()
    Life(there).live(13)
    shutil.copytree(there, copy)
    mirror = Mirror(there)
    (there / "seed-1" / "checkpoint" / "checkpoint.json").unlink()
    Life(there)
    changes = mirror.changes()
    assert changes is not None
    apply(changes, copy, copy / "log")
    assert [path.name for path in sorted(copy.rglob("*"))] == [
        *("seed-1", "run.json", "seed-2", "run.json")
    ]


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    """A row costs its own bytes, however long the table is."""
    mirror, life = Mirror(tmp_path), Life(tmp_path)
    life.live(12)
    assert mirror.changes() is not None
    assert mirror.changes() == Changes([], [])
    life.live(13)
    changes = mirror.changes()
    assert changes is not None
    tables = {"evaluations.csv", "updates.csv", "timing.csv"}
    expected = {f"seed-{seed}/{name}" for seed in SEEDS for name in tables}
    assert {piece.path for piece in changes.pieces} == expected | {"seed-1/checkpoint/actions.bin"}
    assert all(piece.start and len(piece.content) < 150 for piece in changes.pieces)


def test_a_checkpoint_that_comes_while_the_files_are_listed_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its description is there already, its tensors were not: one without the other is nothing."""
    there, copy = tmp_path / "there", tmp_path / "copy"
    there.mkdir()
    mirror, life, names = Mirror(there), Life(there), Mirror._names
    life.live(7)
    (old,) = there.glob("seed-1/checkpoint/tensors-*")
    content = old.read_bytes()

    def list_and_live(mirror: Mirror) -> list[str]:
        found = names(mirror)
        life.live(12)
        old.write_bytes(content)  # not removed yet
        return found

    monkeypatch.setattr(Mirror, "_names", list_and_live)
    assert mirror.changes() is None
    monkeypatch.undo()
    changes = mirror.changes()
    assert changes is not None
    apply(changes, copy, copy / "log")
    assert check(copy, tmp_path) == (0, 10)


def test_a_folder_that_goes_while_it_is_listed_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is removed when its runs finish."""
    mirror = Mirror(tmp_path)

    def vanish(self: Path, pattern: str) -> list[Path]:
        raise FileNotFoundError(self / "seed-1" / "checkpoint")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", vanish)
        assert mirror.changes() is None
    assert mirror.changes() == Changes([], [])


def test_a_file_that_begins_anew_is_sent_anew(tmp_path: Path) -> None:
    """Cut back or replaced: the copy has nothing of what it was."""
    there, copy = tmp_path / "there", tmp_path / "copy"
    there.mkdir()
    mirror, log = Mirror(there), there / "log"
    for content in ("one\n", "one\ntwo\n", "3\n"):
        log.write_text(content)
        changes = mirror.changes()
        assert changes is not None
        apply(changes, copy, copy / "log")
        assert (copy / "log").read_text() == content
    other = there / ".aside"
    other.write_text("four\n")
    other.replace(log)
    changes = mirror.changes()
    assert changes == Changes([Piece("log", 0, b"four\n")], [])


def test_of_a_flood_of_output_the_end_is_sent(tmp_path: Path) -> None:
    """A gigabyte in the log of a node is not a gigabyte in the memory of two machines."""
    copy, log = tmp_path / "copy", tmp_path / "log"
    copy.mkdir()
    there, end = Mirror(tmp_path), b"\nlast words\n"
    for _ in range(2):
        with log.open("ab") as file:
            file.truncate(log.stat().st_size + 2**30)  # no block of it is on the disk
            file.seek(0, os.SEEK_END)
            file.write(end)
        changes = there.changes()
        assert changes is not None
        (piece,) = changes.pieces
        assert len(piece.content) == 2**20
        apply(changes, copy, copy / "log")
        assert (copy / "log").stat().st_size == log.stat().st_size
        assert last_lines(copy / "log")[-1] == "last words"
    assert there.changes() == Changes([], [])


def test_what_no_run_writes_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from elsewhere may hold anything; what is sent is first read into the memory."""
    monkeypatch.setattr(mirroring, "LARGEST_TENSORS", 99)
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "film.mp4").write_bytes(bytes(100))
    with pytest.raises(UsageError, match=r"film\.mp4 has more than .*: it is not sent"):
        read_folders([tmp_path / "seed-1"])


@pytest.mark.parametrize("name", ["../thesis", "/thesis", "seed-1/../../thesis", "linked/thesis"])
@pytest.mark.parametrize("kind", ["grows", "replaced", "gone"])
def test_a_node_changes_no_file_outside_the_copy(name: str, kind: str, tmp_path: Path) -> None:
    """Whatever a node sends: nothing is written, not even the good pieces beside."""
    copy, outside = tmp_path / "copy", tmp_path / "thesis"
    copy.mkdir()
    outside.write_text("ten years")
    (copy / "linked").symlink_to(tmp_path)
    name = str(tmp_path) + name if name[0] == "/" else name
    bad = Piece(name, 0 if kind == "grows" else None, b"")
    pieces = [Piece("seed-1/run.json", None, b"{}"), *([bad] if kind != "gone" else [])]
    with pytest.raises(UsageError, match=r"thesis is not inside|linked is a link"):
        apply(Changes(pieces, [name] if kind == "gone" else []), copy, copy / "log")
    assert outside.read_text() == "ten years"
    assert [path.name for path in copy.iterdir()] == ["linked"]


def test_what_is_linked_into_a_run_is_not_sent(tmp_path: Path) -> None:
    """A node has no business with the files of this machine."""
    (tmp_path / "secret").write_text("key")
    run = tmp_path / "seed-1"
    run.mkdir()
    (run / "policy.json").symlink_to(tmp_path / "secret")
    assert read_folders([run]) == {}
