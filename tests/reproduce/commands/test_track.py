"""Mirrors in TensorBoard and Weights & Biases: every recorded point once, and no harm to a run."""

import importlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reproduce.commands import track
from reproduce.commands.track import Mirror, Sink, mirror, mirrored
from reproduce.gather.others import read_curves
from tests.messages import refused
from tests.reproduce.conftest import NEVER_BEGUN, TASK, pendulum, record_run
from tests.reproduce.run.boards import wait_for
from tests.runs import tree

Point = tuple[str, int, float]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Point]]:
    """What was mirrored, in memory, by runs' names."""
    points: dict[str, list[Point]] = {}

    def sink(folder: Path, name: str, record: Mapping[str, Any]) -> Sink:
        own = points[name] = []
        return lambda steps, values: own.extend((k, steps, v) for k, v in values.items()), print

    monkeypatch.setitem(track.SINKS, "tensorboard", sink)
    monkeypatch.setattr(track, "check_kind", lambda kind: None)  # it asks for the package
    return points


def write(run: Path, begun: str, *rows: str, end: str = "") -> None:
    """Give a run's record this beginning, and `episodes.csv` these rows."""
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"started_at": begun}))
    lines = ["env_steps,episode_return,episode_length", *rows]
    (run / "episodes.csv").write_text("\n".join(lines) + "\n" + end)


def returns(points: list[Point]) -> list[tuple[int, float]]:
    """Steps and returns of the mirrored episodes."""
    return [(steps, value) for name, steps, value in points if name == "episodes/episode_return"]


def test_every_point_is_mirrored_once(tmp_path: Path, memory: dict[str, list[Point]]) -> None:
    """After a kill rows are written again; a torn row waits; a run that begins anew has no past."""
    run = record_run(pendulum(tmp_path / "runs", [1, 2]), TASK, 1, status="running")
    one = Mirror(run, tmp_path / "mirror", "seed-1", "tensorboard")
    write(run, "2026-01-01", "10,1,5", "20,2,5", end="30,3")
    one.update()
    one.update()
    assert returns(memory["seed-1"]) == [(10, 1), (20, 2)]
    write(run, "2026-01-01", "10,1,5")
    one.update()
    write(run, "2026-01-01", "10,1,5", "20,2,5", "30,3,5", "30,4,5")
    one.update()
    assert returns(memory["seed-1"]) == [(10, 1), (20, 2), (30, 3), (30, 4)]
    write(run, "2026-01-02", "10,7,5")
    one.update()
    assert returns(memory["seed-1"]) == [(10, 7)]


def test_a_longer_run_adds_to_its_mirror(tmp_path: Path, memory: dict[str, list[Point]]) -> None:
    """A finished run's mirror is complete; a larger `--env-steps` adds to the same run."""
    run = record_run(pendulum(tmp_path / "runs", [1, 2]), TASK, 1, {1000: 5.0})
    one = Mirror(run, tmp_path / "mirror", "seed-1", "tensorboard")
    one.update()
    record = json.loads((run / "run.json").read_text())
    longer = {"status": "running", "config": record["config"] | {"env_steps": 2000}}
    (run / "run.json").write_text(json.dumps(record | longer))
    with (run / "evaluations.csv").open("a") as file:
        file.write("1500,7,0,10\n")
    one.update()
    means = [point[1:] for point in memory["seed-1"] if "mean_return" in point[0]]
    assert means == [(1000, 5.0), (1500, 7.0)]


def test_damaged_runs_are_not_mirrored(tmp_path: Path, memory: dict[str, list[Point]]) -> None:
    """They are not counted, alone they are refused; a cell that holds text is left out."""
    plan = pendulum(tmp_path / "runs", [1, 2])
    damaged = record_run(plan, TASK, 1, {500: 5.0})
    running = record_run(plan, TASK, 2, {500: 5.0}, status="running")
    (damaged / "evaluations.csv").write_text("")
    (running / "updates.csv").write_text("env_steps,loss\n100,much\n")
    assert mirror("tensorboard", plan.directory, tmp_path / "logs") == 1
    with refused("damaged"):
        mirror("tensorboard", damaged, tmp_path / "logs")
    ((name, points),) = memory.items()
    assert name.endswith("seed-2")
    assert {point[0].partition("/")[0] for point in points} >= {"evaluations"}


def test_a_mirror_harms_no_run_and_no_file(tmp_path: Path, memory: dict[str, list[Point]]) -> None:
    """Runs' own folders, and what cannot be written to, are refused in a line."""
    run = record_run(pendulum(tmp_path / "runs", [1, 2]), TASK, 1, status="running")
    (run / "run.json").write_text(json.dumps(NEVER_BEGUN))
    Mirror(run, tmp_path, "never begun", "tensorboard").update()
    (tmp_path / "FILE").touch()
    before = tree(tmp_path)
    for case, logdir in ("own folder", run.parent), ("no folder", tmp_path / "FILE" / "below"):
        with refused(case):
            mirror("tensorboard", run.parent, logdir)
    assert (tree(tmp_path), memory) == (before, {})


@pytest.mark.usefixtures("memory")
def test_a_mirror_replaces_mirrors_alone(tmp_path: Path) -> None:
    """One run is mirrored by its task and seed, in no folder with files of others."""
    runs = [record_run(pendulum(tmp_path / "runs", [1, 2]), TASK, seed) for seed in (1, 2)]
    for run in (*runs, *runs):
        assert mirror("tensorboard", run, tmp_path / "logs") == 1
    made = {path.parent.name for path in (tmp_path / "logs" / TASK).glob(f"*/{track.MARK}")}
    assert made == {"seed-1", "seed-2"}
    mark = tmp_path / "logs" / TASK / "seed-2" / track.MARK
    mark.rename(mark.with_name("events.out.tfevents.1"))
    with refused("others' files"):
        mirror("tensorboard", runs[1], tmp_path / "logs")


@pytest.mark.tracking
def test_tensorboard_holds_what_was_recorded(tmp_path: Path) -> None:
    """Read back by TensorBoard itself; mirroring again adds nothing."""
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    folder = record_run(pendulum(tmp_path / "runs", [1, 2]), TASK, 1, {500: -3.0, 1000: 2.0})
    for _ in range(2):
        assert mirror("tensorboard", folder.parent, tmp_path / "mirror") == 1
    events = reader.EventAccumulator(str(tmp_path / "mirror" / "seed-1")).Reload()
    points = [(event.step, event.value) for event in events.Scalars("evaluations/mean_return")]
    assert points == [(500, -3.0), (1000, 2.0)]


@pytest.mark.tracking
def test_wandb_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline unless `WANDB_MODE` says otherwise; its file names every recorded value."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    plan, lines = pendulum(tmp_path / "runs", [1, 2]), []
    with mirrored(plan, "wandb", lines.append):
        record_run(plan, TASK, 1, {500: -3.0, 1000: 2.0})
    importlib.import_module("wandb").teardown()  # else its service may still be writing
    root = tmp_path / "runs" / "tracking" / "wandb"
    (file,) = (root / "sac-classic" / plan.source / TASK / "seed-1").rglob("*.wandb")
    assert file.parent.name.startswith("offline-run-")
    assert lines == [f"Mirrored into {root}; look at it with: {track.LOOK['wandb'].format(root)}"]
    values = re.findall(rb"evaluations/mean_return[^\w-]+(-?[\d.]+)", file.read_bytes())
    assert {*map(float, values)} == {-3.0, 2.0}


def test_runs_are_mirrored_while_they_are_written(
    tmp_path: Path, memory: dict[str, list[Point]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only at the end; and a plan is named in the mirror as its folder is."""
    monkeypatch.setattr(track, "FOLLOW_SECONDS", 0.01)
    task = "gymnasium:Pendulum-v1"
    plan = pendulum(tmp_path / "runs", [1, 2], tasks=[task])
    name = f"sac-classic/{plan.source}/gymnasium-Pendulum-v1/seed-2"
    with mirrored(plan, "tensorboard", print):
        record_run(plan, task, 2, status="running")
        wait_for(lambda: name in memory, "the mirror of a run that goes on")


@pytest.mark.usefixtures("memory")
def test_a_mirror_that_fails_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a service that is gone costs the mirror, not the runs."""

    def gone(*arguments: object) -> None:
        raise RuntimeError("no service")

    monkeypatch.setitem(track.SINKS, "tensorboard", gone)
    plan, lines = pendulum(tmp_path / "runs", [1, 2]), []
    with mirrored(plan, "tensorboard", lines.append):
        record_run(plan, TASK, 1)
    (line,) = lines
    assert line.startswith("The mirror is not complete (RuntimeError: no service)")


def test_what_cannot_be_tracked_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown kind names the nearest; a missing package names the extra.

    A folder called `wandb`, as wandb makes them where it runs, is no package.
    """
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for kind in ("wandbb", "wandb"):
        with refused(kind):
            track.check_kind(kind)


@pytest.mark.tracking
def test_what_tensorboard_recorded_is_read_back(tmp_path: Path) -> None:
    """A folder for each run; the name says task and seed, a flag another value."""
    from torch.utils.tensorboard import SummaryWriter

    for seed in (3, 4):
        with SummaryWriter(str(tmp_path / f"CartPole-v1__ppo__{seed}__17")) as writer:
            for step in (10, 20):
                writer.add_scalar("charts/episodic_return", seed + step, step)
                writer.add_scalar("test/score", -step, step)
    rows = list(read_curves([tmp_path]).rows.itertuples(index=False, name=None))
    assert rows == [("CartPole-v1", seed, t, seed + t) for seed in (3, 4) for t in (10, 20)]
    named = read_curves([tmp_path], {"mean_return": "test/score"}).rows
    assert named["mean_return"].tolist() == [-10, -20, -10, -20]
