"""Runs as bytes: what is written elsewhere is one that the agent could have left itself."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce.run.ray import folders
from suite.base.snapshot import Snapshot, read_snapshot, write_snapshot
from suite.record.reading import read_record
from suite.record.recorder import Recorder
from tests.messages import refused

RUN = {"agent": "sac", "suite": "classic", "source": "paper", "task": "Pendulum-v1"}


class Agent:
    """What an agent does to its files, with a checkpoint of every row it has written."""

    def __init__(self, out: Path) -> None:
        config = {"task": "Pendulum-v1", "seeds": [1], "env_steps": 100}
        self._recorder = Recorder(out, {**RUN, "config": config, "command": ""}, [1])
        self.folder = self._recorder.seed_directories[0]
        self._steps = 0

    def advance(self) -> None:
        """Write a row, and a checkpoint that tells of it."""
        self._steps += 10
        self._recorder.log(self._steps, self._steps, {"critic_loss": np.zeros(1)}, {})
        rows = (self.folder / "updates.csv").stat().st_size
        content: dict[str, Any] = {"steps": self._steps, "bytes": rows}
        weights = {"weights": torch.full((3,), float(self._steps))}
        write_snapshot(self.folder / "checkpoint", Snapshot(content, weights))

    def advance_slowly(self) -> None:
        """The same; what is left of the checkpoint before is still to be deleted."""
        (older,) = (self.folder / "checkpoint").glob("*.safetensors")
        content = older.read_bytes()
        self.advance()
        older.write_bytes(content)

    def finish(self) -> None:
        """End the run."""
        self._recorder.finish()


def check(run: Path) -> None:
    """The run can be read, and has every row that its checkpoint tells of."""
    record = read_record(run)
    assert record is not None
    assert record["status"] in ("running", "finished")
    snapshot = read_snapshot(run / "checkpoint")
    if snapshot is not None:
        assert (run / "updates.csv").stat().st_size >= snapshot.content["bytes"]
        assert snapshot.tensors["weights"][0] == snapshot.content["steps"]


def test_a_run_is_whole_at_any_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies after two checkpoints and of the end, each cut off after any file."""
    agent, here = Agent(tmp_path / "there"), tmp_path / "here"
    agent.advance()
    folders.write_folders(folders.read_folders([agent.folder]), here)
    num_files, write = 0, folders.write_atomically

    def write_and_check(path: Path, content: bytes) -> None:
        nonlocal num_files
        write(path, content)
        num_files += 1
        check(here / "seed-1")

    monkeypatch.setattr(folders, "write_atomically", write_and_check)
    agent.advance()
    folders.write_folders(folders.read_folders([agent.folder]), here)
    agent.finish()
    folders.write_folders(folders.read_folders([agent.folder]), here)
    shutil.rmtree(agent.folder / "checkpoint")
    files = folders.read_folders([agent.folder])
    folders.write_folders(files, here)
    assert num_files >= 8
    assert read_record(here / "seed-1")["status"] == "finished"  # type: ignore[index]
    assert folders.read_folders([here / "seed-1"]) == files  # the checkpoint has gone, too


@pytest.mark.parametrize("before", ["checkpoint.json", "updates.csv", "run.json"])
@pytest.mark.parametrize("deed", ["advance", "advance_slowly", "finish"])
def test_what_an_agent_writes_while_it_is_read_is_read_again_or_whole(
    deed: str, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint, or the end, comes before any of the files is read; the run is whole."""
    agent, here = Agent(tmp_path / "there"), tmp_path / "here"
    agent.advance()
    read, deeds = folders.read_whole, [getattr(agent, deed)]

    def read_late(path: Path, most: int) -> bytes:
        if path.name == before and deeds:
            deeds.pop()()
        return read(path, most)

    monkeypatch.setattr(folders, "read_whole", read_late)
    files: Mapping[str, bytes] | None = folders.read_while_written([agent.folder])
    assert not deeds
    if files is None:
        files = folders.read_while_written([agent.folder])
    assert files is not None
    folders.write_folders(files, here)
    check(here / "seed-1")


def test_a_table_that_is_gone_there_is_gone_here(tmp_path: Path) -> None:
    """An agent that begins anew leaves nothing of the run before; hidden files are not its own."""
    for name in ("seed-1/run.json", "seed-1/episodes.csv", "seed-1/.kept", "seed-2/run.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("older")
    folders.write_folders({"seed-1/run.json": b"new"}, tmp_path)
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"seed-1/run.json", "seed-1/.kept", "seed-2/run.json"}


def test_what_no_run_writes_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from elsewhere may hold anything; what is sent is first read into the memory."""
    monkeypatch.setattr(folders, "LARGEST_TENSORS", 2**20)
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "large.bin").write_bytes(bytes(2**20 + 1))
    with refused():
        folders.read_folders([tmp_path / "seed-1"])


@pytest.mark.parametrize("name", ["../elsewhere", "seed-1/../../elsewhere", "/elsewhere"])
def test_a_node_changes_no_file_outside_the_folder(name: str, tmp_path: Path) -> None:
    """Whatever a node sends: nothing is written, not even the good files beside."""
    here = tmp_path / "here"
    with refused():
        folders.write_folders({"seed-1/run.json": b"good", name: b"bad"}, here)
    assert not here.exists()


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    """A node has no business with the other files of this machine."""
    (tmp_path / "secret").write_text("s")
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "run.json").symlink_to(tmp_path / "secret")
    assert folders.read_folders([tmp_path / "seed-1"]) == {}
    with refused():
        folders.write_folders({"seed-1/run.json": b"new"}, tmp_path)
    assert (tmp_path / "secret").read_text() == "s"
