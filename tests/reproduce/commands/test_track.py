"""Mirrors in TensorBoard and Weights & Biases: every recorded point once, and no harm to a run."""

import importlib
import importlib.util
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reproduce.commands import track
from reproduce.commands.track import Mirror, Sink, mirror, mirrored
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan
from suite.base.errors import UsageError

pytestmark = pytest.mark.usefixtures("published")

TASK = "Pendulum-v1"
RecordRun = Callable[..., Path]
Point = tuple[str, int, float]


class Memory(Sink):
    """Keeps the points of all runs, by the name of the run."""

    points: ClassVar[dict[str, list[Point]]] = {}

    def __init__(self, folder: Path, name: str, key: str, config: Mapping[str, Any]) -> None:
        self._own = Memory.points.setdefault(name, [])

    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        self._own += [(name, env_steps, value) for name, value in values.items()]

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Point]]:
    """What was mirrored, in memory, by runs' names."""
    monkeypatch.setattr(Memory, "points", {})
    monkeypatch.setitem(track.SINKS, "tensorboard", Memory)
    monkeypatch.setattr(track, "check_kind", lambda kind: None)  # it asks for the package
    return Memory.points


def grid(tmp_path: Path) -> Plan:
    """Two seeds of Pendulum of 1,000 steps."""
    steps = {"tasks": [TASK], "env_steps": 1000, "seeds": [1, 2], "device": "cpu"}
    return make_plan("sac", "classic", runs_dir=tmp_path / "runs", **steps)


def write_run(folder: Path, begun: str, *rows: str, end: str = "") -> None:
    """Write a run that is not over, with these rows of `episodes.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"started_at": begun, "config": {}, "status": "running"}
    (folder / "run.json").write_text(json.dumps(record))
    lines = ["env_steps,episode_return,episode_length", *rows]
    (folder / "episodes.csv").write_text("\n".join(lines) + "\n" + end)


def returns(points: list[Point]) -> list[tuple[int, float]]:
    """Steps and returns of the mirrored episodes."""
    return [(steps, value) for name, steps, value in points if name == "episodes/episode_return"]


def messages(content: bytes) -> Iterator[bytes]:
    """Yield what a small `.wandb` file holds: a log in LevelDB's format, after 7 bytes."""
    assert content.startswith(b":W&B")
    assert len(content) < 2**15  # one block
    place = 7
    while place < len(content):
        _, length, kind = struct.unpack_from("<IHB", content, place)
        assert kind == 1  # whole
        yield content[place + 7 : place + 7 + length]
        place += 7 + length


def test_a_run_that_goes_on_after_a_kill_has_every_point_once(
    tmp_path: Path, memory: dict[str, list[Point]]
) -> None:
    """The checkpoint is older than the kill, so the run writes rows again; and a torn row waits."""
    run, root = tmp_path / "seed-1", tmp_path / "mirror"
    first = Mirror(run, root, "seed-1", "tensorboard")
    first.update()  # nothing is there
    write_run(run, "noon", "10,1,5", "20,2,5", end="30,3")
    first.update()
    first.update()
    assert returns(memory["seed-1"]) == [(10, 1), (20, 2)]
    write_run(run, "noon", "10,1,5", "20,2,5", "30,3,5")
    first.update()
    first.close()
    second = Mirror(run, root, "seed-1", "tensorboard")  # of the harness that goes on
    write_run(run, "noon", "10,1,5")
    second.update()
    write_run(run, "noon", "10,1,5", "20,2,5", "30,3,5", "30,4,5", "broken", "50,5,5")
    second.update()
    assert returns(memory["seed-1"]) == [(10, 1), (20, 2), (30, 3), (30, 4), (50, 5)]


def test_a_run_that_begins_anew_has_a_new_mirror(
    tmp_path: Path, memory: dict[str, list[Point]]
) -> None:
    """Points of a record that is gone go with it; a run's own folder is never a mirror."""
    run, root = tmp_path / "seed-1", tmp_path / "mirror"
    write_run(run, "noon", "10,1,5", "20,2,5")
    one = Mirror(run, root, "seed-1", "tensorboard")
    one.update()
    (root / "seed-1" / "old").touch()
    write_run(run, "one", "10,7,5")
    one.update()
    assert returns(memory["seed-1"]) == [(10, 1), (20, 2), (10, 7)]
    assert [path.name for path in (root / "seed-1").iterdir()] == [track.STATE]
    with pytest.raises(UsageError, match="is a run's own folder: mirror into another"):
        mirror("tensorboard", tmp_path, tmp_path)
    assert (run / "episodes.csv").exists()


def test_a_mirror_that_cannot_be_written_is_one_line(
    tmp_path: Path, memory: dict[str, list[Point]]
) -> None:
    """Before any sink is opened; the argument and the part of the path that refuses are named."""
    write_run(tmp_path / "runs" / "seed-1", "noon", "10,1,5")
    (tmp_path / "FILE").touch()
    with pytest.raises(UsageError, match=r"^logdir: cannot write to .*/FILE: Not a directory$"):
        mirror("tensorboard", tmp_path / "runs", tmp_path / "FILE" / "below")
    assert not memory


@pytest.mark.tracking
def test_tensorboard_holds_what_was_recorded(tmp_path: Path, record_run: RecordRun) -> None:
    """Read back by TensorBoard itself; mirroring again adds nothing."""
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    folder = record_run(grid(tmp_path), TASK, 1, {500: -3.0, 1000: 2.0})
    for _ in range(2):
        assert mirror("tensorboard", folder.parent, tmp_path / "mirror") == 1
    events = reader.EventAccumulator(str(tmp_path / "mirror" / "seed-1")).Reload()
    points = [(event.step, event.value) for event in events.Scalars("evaluations/mean_return")]
    assert points == [(500, -3.0), (1000, 2.0)]


@pytest.mark.tracking
def test_wandb_writes_below_the_runs_folder_and_asks_no_server(
    tmp_path: Path, record_run: RecordRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline unless `WANDB_MODE` says otherwise; its file holds the recorded points."""
    Record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    plan, lines = grid(tmp_path), []
    with mirrored(plan, "wandb", lines.append):
        record_run(plan, TASK, 1, {500: -3.0, 1000: 2.0})
    importlib.import_module("wandb").teardown()  # else its service may still be writing
    root = tmp_path / "runs" / "tracking" / "wandb"
    (file,) = (root / "sac-classic" / plan.source / TASK / "seed-1").rglob("*.wandb")
    assert file.parent.name.startswith("offline-run-")
    assert lines == [f"Mirrored into {root}; look at it with: {track.LOOK['wandb'].format(root)}"]
    rows = []
    for data in messages(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        rows += [items] if "evaluations/mean_return" in items else []
    points = [(float(row["env_steps"]), float(row["evaluations/mean_return"])) for row in rows]
    assert points == [(500, -3.0), (1000, 2.0)]


def test_runs_are_mirrored_while_they_are_written(
    tmp_path: Path,
    record_run: RecordRun,
    memory: dict[str, list[Point]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not only at the end; and a plan is named in the mirror as its folder is."""
    monkeypatch.setattr(track, "FOLLOW_SECONDS", 0.01)
    plan = grid(tmp_path)
    name = f"sac-classic/{plan.source}/{TASK}/seed-2"
    with mirrored(plan, "tensorboard", print):
        record_run(plan, TASK, 2, status="running")
        for _ in range(1000):
            if name in memory:
                break
            time.sleep(0.01)
        assert name in memory


@pytest.mark.usefixtures("memory")
def test_a_mirror_that_fails_is_said_and_stops_nothing(
    tmp_path: Path, record_run: RecordRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a service that is gone costs the mirror, not the runs."""

    class Gone(Memory):
        def add(self, env_steps: int, values: Mapping[str, float]) -> None:
            raise RuntimeError("no service")

    monkeypatch.setitem(track.SINKS, "tensorboard", Gone)
    plan, lines = grid(tmp_path), []
    with mirrored(plan, "tensorboard", lines.append):
        record_run(plan, TASK, 1)
    assert lines[0] == (
        f"The mirror is not complete (RuntimeError: no service), the record is: {plan.directory}"
    )


def test_what_cannot_be_tracked_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown kind names the nearest; a missing package names the extra."""
    with pytest.raises(UsageError, match="nothing tracks runs with 'wandbb'; did you mean"):
        track.check_kind("wandbb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"wandb is missing: pip install 'encore-rl\[tracking\]'"):
        track.check_kind("wandb")
