"""The record of a run: whole rows, honest statuses, and `finished` last of all."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agents import a2c, sac
from suite.base import code, files, hardware
from suite.base.errors import UsageError
from suite.base.files import write_json
from suite.envs.vector_env import Step
from suite.record import manifest, seed_folder
from suite.record.clock import TIMING_COLUMNS
from suite.record.means import Means
from suite.record.recorder import EPISODE_COLUMNS, Recorder
from suite.settings.command_line import RunOptions
from tests.messages import check
from tests.runs import run_json

RUN = {"agent": "sac", "task": "Hopper-v4", "config": {"gamma": 0.99}}


def record(folder: Path, seeds: Sequence[int] = (1, 2)) -> Recorder:
    return Recorder(folder, RUN, seeds)


def ended(returns: Sequence[Sequence[float]], lengths: Sequence[Sequence[int]]) -> Step:
    """Return a step in which the episodes with a length other than 0 ended."""
    scores, ages = np.array(returns, dtype=np.float64), np.array(lengths)
    flags, rewards = np.zeros(scores.shape, dtype=bool), np.zeros(scores.shape, dtype=np.float32)
    obs = np.zeros((*scores.shape, 1), dtype=np.float32)
    return Step(obs, obs, rewards, rewards, flags, flags, ~flags, ages > 0, scores, ages)


def log(run: Recorder, env_steps: int, losses: Sequence[float], **checks: np.ndarray) -> None:
    run.log(env_steps, env_steps // 2, {"critic_loss": np.array(losses)}, checks)


def lines(folder: Path, seed: int, name: str) -> list[str]:
    text = (folder / f"seed-{seed}" / name).read_bytes().decode()
    assert text.endswith("\n")
    return text.splitlines()


def test_each_table_has_its_rows_once_and_whole(tmp_path: Path) -> None:
    """In the order of environments, for the right seed; nothing is written between two logs."""
    run = record(tmp_path)
    run.log(5, 0, {}, {})
    run.episodes(10, ended([[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]], [[7, 0, 9], [0, 11, 0]]))
    run.episodes(20, ended([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[0, 0, 0], [0, 0, 0]]))
    run.episodes(30, ended([[0.0, 0.0, 0.0], [0.0, 0.0, -2.0]], [[0, 0, 0], [0, 0, 3]]))
    run.evaluation(30, np.array([[1.0, 2.0, 6.0], [0.1, 0.2, 0.3]]))
    assert {file.name for file in (tmp_path / "seed-1").iterdir()} == {"run.json", "timing.csv"}
    losses = {"critic_loss": np.array([0.5, 0.25]), "actor_loss": np.array([1.0, 2.0])}
    run.log(40, 20, losses, {})
    run.flush()
    log(run, 50, [0.125, 2.0])
    run.log(60, 30, dict(reversed(losses.items())), {})
    run.finish()
    head = "env_steps,episode_return,episode_length"
    assert head == ",".join(EPISODE_COLUMNS)
    assert lines(tmp_path, 1, "episodes.csv") == [head, "10,1.5,7", "10,3.5,9"]
    assert lines(tmp_path, 2, "episodes.csv") == [head, "10,5.5,11", "30,-2.0,3"]
    head = "env_steps,mean_return,return_0,return_1,return_2"
    assert lines(tmp_path, 1, "evaluations.csv") == [head, "30,3.0,1.0,2.0,6.0"]
    mean = np.array([0.1, 0.2, 0.3]).mean().item()
    assert lines(tmp_path, 2, "evaluations.csv") == [head, f"30,{mean!r},0.1,0.2,0.3"]
    head = "env_steps,num_updates,critic_loss,actor_loss"
    assert lines(tmp_path, 1, "updates.csv")[:3] == [head, "40,20,0.5,1.0", "50,25,0.125,"]
    assert lines(tmp_path, 2, "updates.csv")[2:] == ["50,25,2.0,", "60,30,0.25,2.0"]
    timing = [row.split(",") for row in lines(tmp_path, 1, "timing.csv")]
    assert timing[0] == list(TIMING_COLUMNS)
    assert [row[:2] for row in timing[1:]] == [["5", "0"], ["40", "20"], ["50", "25"], ["60", "30"]]


def test_a_metric_without_a_column_is_refused(tmp_path: Path) -> None:
    """Under the first row's header it would pass for another quantity, or be lost."""
    run = record(tmp_path, [1])
    run.log(1, 1, {"critic_loss": np.array([1.0])}, {})
    with pytest.raises(ValueError, match=r"no column for .*actor_loss"):
        run.log(2, 2, {"critic_loss": np.array([1.0]), "actor_loss": np.array([2.0])}, {})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["critic_loss", "reward", "evaluation"])
def test_a_diverged_seed_stops_and_the_others_go_on(
    what: str, bad: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said and recorded at once; its rows up to then stay, and the command's status is 2."""
    run = record(tmp_path, [1, 2, 3])
    log(run, 100, [1.0, 1.0, 1.0])
    if what == "evaluation":
        run.evaluation(200, np.array([[1.0, 2.0], [bad, 1.0], [3.0, 4.0]]))
    losses = [1.0, bad if what == "critic_loss" else 1.0, 1.0]
    log(run, 200, losses, reward=np.array([1.0, bad if what == "reward" else 1.0, 1.0]))
    assert run.active == [0, 2]
    error = f"non-finite {what} at 200 env_steps"
    assert (run_json(tmp_path, 2)["status"], run_json(tmp_path, 2)["error"]) == ("diverged", error)
    assert (run_json(tmp_path, 1)["status"], run_json(tmp_path, 1)["error"]) == ("running", None)
    assert capsys.readouterr().err == f"seed-2 diverged: {error}\n"
    run.episodes(250, ended([[1.0], [2.0], [3.0]], [[5], [5], [5]]))
    run.evaluation(250, np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    log(run, 300, [1.0, 1.0, 1.0])
    assert run.finish() == 2
    assert run.statuses == ["finished", "diverged", "finished"]
    steps = ["100"] if what == "evaluation" else ["100", "200"]
    assert [row.split(",")[0] for row in lines(tmp_path, 2, "updates.csv")[1:]] == steps
    assert lines(tmp_path, 2, "updates.csv")[0] == "env_steps,num_updates,critic_loss"
    assert len(lines(tmp_path, 2, "timing.csv")) == 2
    assert not (tmp_path / "seed-2" / "episodes.csv").exists()
    if what == "evaluation":  # the row stays as evidence
        assert len(lines(tmp_path, 2, "evaluations.csv")) == 2
        assert float(lines(tmp_path, 2, "evaluations.csv")[1].split(",")[2]) != 1.0
    for seed in (1, 3):
        assert len(lines(tmp_path, seed, "updates.csv")) == 4
        assert lines(tmp_path, seed, "episodes.csv")[1:] == [f"250,{float(seed)},5"]
        assert lines(tmp_path, seed, "evaluations.csv")[-1].startswith(f"250,{float(seed)},")
        assert run_json(tmp_path, seed)["status"] == "finished"


def test_a_run_says_what_it_is_and_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first moment; nothing of it changes when it ends."""
    monkeypatch.setattr(code, "revision", lambda: {"commit": "c0ffee", "dirty": False})
    monkeypatch.setattr(code, "uncommitted", lambda sources: ("agents/sac.py",) * bool(sources))
    run = record(tmp_path)
    ours = run_json(tmp_path, 2)
    assert {key: ours[key] for key in RUN} == RUN
    assert (ours["schema_version"], ours["seed"], ours["status"]) == (3, 2, "running")
    assert ours["versions"] == hardware.versions()
    assert ours["machine"] == hardware.machine()
    assert (ours["commit"], ours["dirty"]) == ("c0ffee", True)
    monkeypatch.setattr(code, "revision", lambda: {"commit": "c0ffee", "dirty": True})
    monkeypatch.setattr(code, "uncommitted", lambda sources: ())
    record(tmp_path / "beside")  # another agent's file is in no commit
    assert run_json(tmp_path / "beside", 1)["dirty"] is False
    assert ours["started_at"].endswith("+00:00")
    assert (ours["ended_at"], ours["wall_seconds"], ours["error"]) == (None, None, None)
    log(run, 100, [1.0, 1.0])
    assert run.finish() == 0
    after = run_json(tmp_path, 2)
    changed = {key for key in after if after[key] != ours[key]}
    assert changed == {"status", "ended_at", "wall_seconds"}
    assert after["status"] == "finished"
    assert after["ended_at"] >= after["started_at"]
    assert after["wall_seconds"] >= 0.0


def test_a_run_without_an_update_ends_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its policy is the initial one, which `finished` alone would hide."""
    for number in (0, 1):
        run = record(tmp_path / str(number), [1])
        run.log(100, number, {"critic_loss": np.array([1.0])} if number else {}, {})
        run.finish()
        said = capsys.readouterr().err
        assert said.startswith("warning: seed-1 made no update") == (number == 0)


def test_a_run_that_is_begun_anew_has_one_writer(tmp_path: Path) -> None:
    """The older process stops before it writes a row or a status into the newer one's record."""
    old, log_to = record(tmp_path), ended([[1.0], [2.0]], [[3], [3]])
    old.episodes(10, log_to)
    old.flush()
    new = record(tmp_path)
    new.episodes(20, log_to)
    new.flush()
    for write in (old.finish, old.flush):
        with pytest.raises(UsageError, match="seed-1 was started again by another process"):
            write()
        old.episodes(11, log_to)
    new.finish()
    for seed in (1, 2):
        assert lines(tmp_path, seed, "episodes.csv")[1:] == [f"20,{seed}.0,3"]
        assert run_json(tmp_path, seed)["status"] == "finished"


def test_a_group_whose_first_seed_has_diverged_still_owns_its_checkpoint(tmp_path: Path) -> None:
    """It lies in that seed's folder: whoever begins the seed again owns it from then on."""
    group = record(tmp_path)
    log(group, 10, [np.nan, 2.0])
    group.check_ours()
    record(tmp_path, seeds=[1])
    with pytest.raises(UsageError, match="seed-1 was started again by another process"):
        group.check_ours()


def test_of_two_starts_at_once_neither_writes_into_the_others_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the second begins both seeds while the first is between its two."""
    begin, others = seed_folder.SeedFolder.begin, list[Recorder]()

    def begin_late(self: seed_folder.SeedFolder) -> None:
        if self.folder.name == "seed-2" and not others:
            monkeypatch.setattr(seed_folder.SeedFolder, "begin", begin)
            others.append(record(tmp_path))
        begin(self)

    monkeypatch.setattr(seed_folder.SeedFolder, "begin", begin_late)
    for run in (record(tmp_path), *others):
        with pytest.raises(UsageError, match="was started again by another process"):
            log(run, 10, [1.0, 2.0])
    written = [*tmp_path.glob("*/updates.csv")]
    assert all(len(path.read_text().splitlines()) == 2 for path in written)


def test_the_row_that_shows_a_divergence_is_there_before_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the two has explained what it says."""
    run, write = record(tmp_path, [1]), seed_folder.write_atomically
    rows = list[list[str]]()

    def noted(path: Path, content: bytes) -> None:
        rows.append(lines(tmp_path, 1, "updates.csv"))
        write(path, content)

    monkeypatch.setattr(seed_folder, "write_atomically", noted)
    log(run, 10, [np.nan])
    assert rows[0][-1] == "10,5,nan"


def test_an_error_is_recorded_of_every_seed_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's folder may be gone, or a seed's end itself be what failed."""
    run = record(tmp_path / "gone")
    (tmp_path / "gone" / "seed-1" / "run.json").unlink()
    with pytest.raises(UsageError, match="seed-1 was removed, or its disk: what was learned"):
        run.finish()
    run.fail(ArithmeticError("fell"))
    assert run_json(tmp_path / "gone", 2)["status"] == "failed"

    def write_manifest(folder: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(seed_folder, "write_manifest", write_manifest)
    run = record(tmp_path / "full")
    with pytest.raises(OSError, match="No space"):
        run.finish()
    run.fail(OSError(28, "No space left on device"))
    assert run_json(tmp_path / "full", 1)["status"] == "failed"


def test_a_run_is_claimed_before_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the older process would write its rows between the cut and the claim."""
    old = record(tmp_path, [1])
    log(old, 10, [1.0])
    refused = []

    def write(path: Path, value: object) -> None:
        if refused:  # the claim is there and files were cut
            with pytest.raises(UsageError, match="seed-1 was started again by another process"):
                log(old, 30, [3.0])
        refused.append(path)
        write_json(path, value)

    monkeypatch.setattr(seed_folder, "write_json", write)
    new = record(tmp_path, [1])
    assert len(refused) == 2
    log(new, 40, [4.0])
    assert [line.split(",")[0] for line in lines(tmp_path, 1, "updates.csv")[1:]] == ["40"]


@pytest.mark.parametrize("rule", ["training", "deterministic"])
def test_a_run_says_how_it_goes(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without evaluations, by the training episodes since the line before; at the end, where."""
    run = Recorder(tmp_path, RUN | {"config": {"evaluation_rule": rule}}, [1])
    for steps, episode_returns in ((10, [1.0, 3.0]), (20, []), (30, [7.0])):
        for each in episode_returns:
            run.episodes(steps, ended([[each]], [[3]]))
        log(run, steps, [0.0])
    run.evaluation(40, np.array([[5.0]]))
    run.finish()
    by_training = ["seed-1 env_steps 10 mean_return 2", "seed-1 env_steps 30 mean_return 7"]
    assert capsys.readouterr().out.splitlines() == [
        *(by_training if rule == "training" else []),
        "seed-1 env_steps 40 mean_return 5",
        f"seed-1 finished: {tmp_path / 'seed-1'}",
    ]


def test_finished_is_the_last_thing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees `finished` may read everything else: all rows are on disk by then."""
    run, seen, replace = record(tmp_path), [], Path.replace
    run.episodes(10, ended([[1.0], [2.0]], [[3], [3]]))

    def rename(aside: Path, path: Path) -> Path:
        rows = [lines(tmp_path, seed, "episodes.csv")[1:] for seed in (1, 2)]
        seen.append((f"{path.parent.name}/{path.name}", run_json(tmp_path, 1)["status"], rows))
        return replace(aside, path)

    monkeypatch.setattr(Path, "replace", rename)
    run.finish()
    rows = [["10,1.0,3"], ["10,2.0,3"]]
    assert seen == [
        ("seed-1/SHA256SUMS", "running", rows),
        ("seed-1/run.json", "running", rows),
        ("seed-2/SHA256SUMS", "finished", rows),
        ("seed-2/run.json", "finished", rows),
    ]


def test_means_are_over_the_updates_that_measured_something() -> None:
    """A delayed actor has half as many losses: its mean is over those. Each read begins anew."""
    means = Means()
    for update in range(4):
        means.add({"critic_loss": torch.tensor([update, 10.0 * update])})
        if update % 2:
            means.add({"actor_loss": torch.tensor([1.0 * update, -1.0])})
    read = means.read()
    assert {name: mean.tolist() for name, mean in read.items()} == {
        "critic_loss": [1.5, 15.0],
        "actor_loss": [2.0, -1.0],
    }
    assert means.read() == {}
    means.add({"critic_loss": torch.tensor([7.0, 8.0])})
    assert means.read()["critic_loss"].tolist() == [7.0, 8.0]


@pytest.mark.parametrize("content", [None, b'\xff\xfe{"status', b"", b"[1]", b"{}"])
def test_what_an_unfinished_run_left_is_removed(content: bytes | None, tmp_path: Path) -> None:
    """Rows, or a policy, would pass for those of this run; a torn or foreign record is none."""
    first = record(tmp_path, [1])
    first.episodes(10, ended([[1.0]], [[3]]))
    log(first, 10, [1.0])
    for name in ("policy.safetensors", "policy.json", "evaluations.csv.xz", ".run.json.1.tmp"):
        (tmp_path / "seed-1" / name).write_text("old")
    if content is not None:
        (tmp_path / "seed-1" / "run.json").write_bytes(content)
    record(tmp_path, [1])
    assert run_json(tmp_path, 1)["status"] == "running"
    assert {file.name for file in (tmp_path / "seed-1").iterdir()} == {"run.json"}


@pytest.mark.parametrize("place", ["Walker2d-v4", "sac-mujoco/mine/Walker2d-v4", "a2c-mujoco/b/c"])
def test_a_run_is_not_begun_in_the_folder_of_another(place: str, tmp_path: Path) -> None:
    """It would train to its end, and then be damaged: its folder says that it is another run."""
    with pytest.raises(UsageError, match=r"seed-1 names another run \(this one says .*: choose"):
        record(tmp_path / place)
    assert not [*tmp_path.iterdir()]


def test_a_policy_may_be_larger_than_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of wide networks would otherwise end, again and again, without its manifest."""
    monkeypatch.setattr(files, "LARGEST_TABLE", 100_000)
    run = record(tmp_path, [1])
    (tmp_path / "seed-1" / "policy.safetensors").write_bytes(bytes(200_000))
    log(run, 10, [1.0])
    run.finish()
    assert not manifest.damage(tmp_path / "seed-1")


@pytest.mark.parametrize("may_not", ["read", "write"])
def test_a_place_that_may_not_be_read_or_written_is_left_alone(
    may_not: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before an hour of training: it might hold a finished run."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^cannot write to .*seed-1: Not a directory$"):
        record(tmp_path / "file", [1])
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "run.json").write_text("old")

    def forbid(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(seed_folder, f"{may_not}_json", forbid)
    with pytest.raises(UsageError, match=rf"^cannot {may_not} .*seed-1.*: Permission denied$"):
        record(tmp_path, [1])
    assert (tmp_path / "seed-1" / "run.json").read_text() == "old"


def test_a_command_is_recorded_with_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is needed to run it again stands in `run.json`, ready to paste."""
    module = SimpleNamespace(__spec__=SimpleNamespace(name="agents.sac"))
    monkeypatch.setitem(sys.modules, "__main__", module)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", ["sac.py", "--task", "Hopper-v4", "--out", "my runs"])
    options = RunOptions(suite="mujoco", source="jaxrl", out=tmp_path)
    config = sac.Config(task="Hopper-v4", seeds=(4, 5), device="cpu")
    Recorder.for_command("sac", config, options)
    ours = run_json(tmp_path, 5)
    assert ours["command"] == "python -m agents.sac --task Hopper-v4 --out 'my runs'"
    assert ours["config"] == json.loads(json.dumps(vars(config)))
    expected = {"agent": "sac", "suite": "mujoco", "source": "jaxrl", "task": "Hopper-v4"}
    assert ours.items() >= (expected | {"seed": 5}).items()


def test_steps_without_learning_are_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A longer run at a source's horizon would train most of its steps at rate 0 in silence."""
    for env_steps, horizon in ((2_000, 1_000), (1_000, 1_000), (2_000, 0)):
        config = a2c.Config(
            env_steps=env_steps, learning_rate_decay_steps=horizon, seeds=(1,), device="cpu"
        )
        options = RunOptions(suite="", source="", out=tmp_path / f"{env_steps} {horizon}")
        Recorder.for_command("a2c", config, options)
    check(capsys.readouterr().err, "steps without learning")


def test_timing_is_of_the_interval_and_wall_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second interval owes nothing to the first: speed and shares start anew."""
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    run = record(tmp_path, [1])
    run.clock.start()
    for env_steps, environment, learning in ((1_000, 1.0, 3.0), (3_000, 6.0, 2.0)):
        now += environment
        run.clock.lap("environment")
        now += learning
        run.clock.lap("learning")
        now += environment + learning  # spent between the sections
        run.log(env_steps, 0, {}, {})
    rows = [
        dict(zip(TIMING_COLUMNS, map(float, row.split(",")), strict=True))
        for row in lines(tmp_path, 1, "timing.csv")[1:]
    ]
    assert [row["wall_seconds"] for row in rows] == [8.0, 24.0]
    assert [row["env_steps_per_second"] for row in rows] == [125.0, 125.0]
    assert [row["environment_share"] for row in rows] == [0.125, 0.375]
    assert [row["learning_share"] for row in rows] == [0.375, 0.125]
