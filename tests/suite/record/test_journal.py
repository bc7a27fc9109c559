"""The journal of a run: its actions bring the environments back, its checkpoint all the rest."""

import copy
import errno
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suite.base import code, hardware
from suite.base.errors import UsageError
from suite.base.randomness import environment_seeds, stream
from suite.base.snapshot import Snapshot, read_snapshot, write_snapshot
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv
from suite.record import seed_folder
from suite.record.journal import Journal
from suite.record.recorder import Recorder
from tests.runs import Killed, repeatable, run_json, tree

ENDS = 60
SAVES = (7, 20, 41)


class Run:
    """A run of random actions: S seeds of two environments, a log every ten steps."""

    def __init__(
        self,
        folder: Path,
        *,
        task: str = "CartPole-v1",
        seeds: Sequence[int] = (1,),
        simulator: int = 0,
        gamma: float = 0.5,
        device: str = "cpu",
    ) -> None:
        config = {"gamma": gamma, "device": device, "seeds": [*seeds]}
        run = {"agent": "toy", "task": task, "config": config, "command": "python"}
        self.recorder = Recorder(folder, run, seeds)
        self.env = VectorEnv(
            find_task(task), environment_seeds(seeds, 2, "environments", simulator)
        )
        self.streams = [stream(seed, "action noise") for seed in seeds]
        self.sums = np.zeros(len(seeds))
        self.past: list[np.ndarray] = []
        state = {"streams": self.streams, "sums": self.sums}
        self.journal = Journal(self.recorder, self.env, state)

    def play(self, stops: int = ENDS, diverges: int = -1) -> list[np.ndarray]:
        """Go on until a step; return the actions of all steps since the start."""
        self.env.reset()
        self.past = [actions for _, actions in self.journal.past]
        (env_steps,) = self.journal.resume(0)
        while env_steps < ENDS:
            if env_steps == stops:
                raise Killed
            odds = np.stack([s.uniform(0, 1, 2) for s in self.streams]).astype(np.float32)
            actions = (odds > 0.5).astype(np.int64)
            if self.env.action_shape:
                actions = odds[..., None] * 2 - 1
            if self.env.spaces.num_choices:
                numbers = (odds * self.env.num_actions).astype(np.int64)
                actions = np.stack([numbers, odds, -odds], axis=-1, dtype=np.float32)
            step = self.env.step(actions)
            self.journal.record(actions)
            self.past.append(actions)
            env_steps += 1
            self.sums += step.raw_rewards.sum(1)
            if env_steps == diverges:
                self.sums[0] = np.nan
            self.recorder.episodes(env_steps, step)
            if env_steps % 10 == 0:
                self.recorder.log(env_steps, 0, {"sum": self.sums}, {})
            if env_steps in SAVES:
                self.journal.save(env_steps)
        self.recorder.finish()
        return self.past


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tables of a run that was not killed."""
    Run(folder := tmp_path_factory.mktemp("whole")).play()
    return repeatable(folder)


def cut(folder: Path, stops: int = 55, **options: Any) -> Path:
    """Leave a run in `folder` that was killed, and return its checkpoint."""
    run = Run(folder, **options)
    with pytest.raises(Killed):
        run.play(stops)
    return run.recorder.checkpoint_directory


@pytest.mark.parametrize(
    ("task", "stops"),
    [
        *product(["CartPole-v1"], [5, 7, 8, 34, 59]),
        *product(["Pendulum-v1", "gymnasium:CartPole-v1", "TMaze-v0", "Claw-v0"], [45]),
    ],
)
def test_a_run_goes_on_from_its_newest_checkpoint(task: str, stops: int, tmp_path: Path) -> None:
    """Rows and actions since the checkpoint, torn ones too, come again, once; none is rounded."""
    whole = Run(tmp_path / "whole", task=task).play()
    cut(tmp_path / "cut", stops, task=task)
    for name in ("checkpoint/actions.bin", "episodes.csv", "updates.csv"):
        if stops > SAVES[0]:
            with (tmp_path / "cut" / "seed-1" / name).open("ab") as file:
                file.write(b"60,1")
    again = Run(tmp_path / "cut", task=task)
    snapshot = again.recorder.snapshot
    assert (snapshot is None) == (stops < SAVES[0])
    assert np.array_equal(np.array(again.play()), np.array(whole))
    assert snapshot is None or not snapshot.tensors  # no second copy stays in memory
    assert repeatable(tmp_path / "cut") == repeatable(tmp_path / "whole")


@pytest.mark.parametrize("name", ["", "episodes.csv", "checkpoint/actions.bin"])
def test_a_run_that_goes_on_cuts_nothing_that_it_links_to(name: str, tmp_path: Path) -> None:
    """The checkpoint fits what the links lead to; it may still not be written."""
    place, outside = tmp_path / "cut" / "seed-1" / name, tmp_path / "outside"
    cut(tmp_path / "cut")
    place.rename(outside)
    place.symlink_to(outside)
    paths = [outside, *outside.rglob("*")]
    before = {path: path.read_bytes() for path in paths if path.is_file()}
    with pytest.raises(UsageError, match=r"is a link.*: delete it"):
        Run(tmp_path / "cut")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *product(["checkpoint/actions.bin", "episodes.csv"], ["flipped", "empty", "lost"]),
        *product(["timing.csv"], ["flipped", "lost"]),
        ("checkpoint", "empty"),
    ],
)
def test_what_is_damaged_means_a_run_from_the_start(
    name: str,
    damage: str,
    whole: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bytes are right all the same, and a line says why it takes longer."""
    cut(tmp_path / "cut")
    (path,) = (tmp_path / "cut" / "seed-1").glob(name)
    content = path.read_bytes() if path.is_file() else b""
    path.rename(tmp_path / "before")
    if damage != "lost":
        path.write_bytes(content[:3] + b"x" + content[4:] if damage == "flipped" else b"")
    again = Run(tmp_path / "cut")
    assert again.recorder.snapshot is None
    said = capsys.readouterr().err
    assert name == "checkpoint" or "seed-1 starts from scratch: " in said  # without one as ever
    again.play()
    assert repeatable(tmp_path / "cut") == whole


FILES = ("checkpoint/checkpoint.json", "checkpoint/*.safetensors", "checkpoint/actions.bin")


@pytest.mark.parametrize("name", [*FILES, "episodes.csv"])
def test_a_disk_that_cannot_be_read_now_costs_nothing(
    name: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is refused, not begun anew; once its files are read again, it goes on."""
    cut(tmp_path / "cut")
    (path,) = (tmp_path / "cut" / "seed-1").glob(name)
    before, real = tree(tmp_path), os.open

    def fail(file: Any, *rest: Any) -> int:
        if str(file) == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        return real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(UsageError, match=r"^cannot read .*: Input/output error$"):
            Run(tmp_path / "cut")
    assert tree(tmp_path) == before
    again = Run(tmp_path / "cut")
    assert again.recorder.snapshot is not None
    again.play()
    assert repeatable(tmp_path / "cut") == whole


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a JSON object, and to all inside it."""
    if isinstance(tree, dict | list):
        for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield (*path, key)
            yield from places(item, (*path, key))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
FORGED = st.recursive(
    LEAVES | st.sampled_from([{"tensor": "state.sums"}, {"array": "state.sums"}, {"tuple": [1]}]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@pytest.mark.parametrize("times", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_whatever_a_checkpoint_says_is_one_line_or_harmless(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value of it is another; its sum is right. A run goes on, or anew, or is refused."""
    checkpoint = cut(tmp_path / "cut")
    snapshot = read_snapshot(checkpoint)
    assert snapshot is not None
    ways = [path for path in places(snapshot.content) if "sources" not in path]
    step = VectorEnv.step
    num_steps = 0

    def counted(env: VectorEnv, actions: np.ndarray) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 2 * ENDS:  # it may have a long way to go
            raise Killed
        return step(env, actions)

    monkeypatch.setattr(VectorEnv, "step", counted)

    @settings(max_examples=times, deadline=None, derandomize=True, database=None)
    @example(("identity",), [])
    @example(("files",), {"a": 1})
    @example(("files",), 5)
    @example(("files", 0), {"episodes.csv": ["x", "y"]})
    @example(("actions",), None)
    @example(("ends",), "")
    @example(("ends",), [{}])
    @example(("ends", 0, "status"), "finished")
    @example(("ends", 0, "wall_seconds"), math.nan)
    @example(("wall_seconds",), "x")
    @example(("numbers",), [])
    @example(("numbers",), ["7"])
    @example(("state",), [[]])
    @example(("state", "dict", 0, 1), [])
    @given(st.sampled_from(ways), FORGED)
    def check(path: tuple[Any, ...], value: Any) -> None:
        nonlocal num_steps
        num_steps, folder = 0, tmp_path / "forged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "cut", folder)
        content = copy.deepcopy(snapshot.content)
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        write_snapshot(folder / "seed-1" / "checkpoint", Snapshot(content, snapshot.tensors))
        said = ""
        try:
            Run(folder).play()
        except Killed:
            return
        except UsageError as error:
            said = str(error)
        assert "\n" not in said
        assert re.search(f"delete (it|{folder})", said) or not said
        assert said or run_json(folder)["status"] in ("finished", "diverged")

    check()


def test_a_simulator_that_does_not_repeat_itself_is_an_error(tmp_path: Path) -> None:
    """Here it has other seeds; it might be another version on another processor."""
    checkpoint = cut(tmp_path)
    with pytest.raises(UsageError, match="did not repeat itself") as e:
        Run(tmp_path, simulator=1).play()
    assert f"delete {checkpoint} to start it from scratch" in str(e.value)
    Run(tmp_path).play()  # nothing was lost


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gamma": 0.9}, r"an unfinished run .*differs in gamma\): choose another --out"),
        # another agent's code always differs
        ({"task": "Pendulum-v1"}, "an unfinished run of another command"),
    ],
)
def test_another_run_does_not_take_the_place_of_an_unfinished_one(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before a byte changes: the run may go on at this moment, and writes."""
    cut(tmp_path)
    (tmp_path / "seed-1" / ".run.json.1.tmp").touch()
    before = tree(tmp_path)
    if "task" in changes:
        monkeypatch.setattr(code, "sources", lambda agent: {"suite/new.py": agent})
    with pytest.raises(UsageError, match=said):
        Run(tmp_path, **changes)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "change", "device", "differs"),
    [
        ("sources", {"other.py": "one"}, "cpu", "sources"),
        ("sources", {"sac.toml": "one"}, "cpu", ""),  # settings are in the configuration
        ("versions", {"torch": "3.0"}, "cpu", "versions"),
        ("machine", {"processor": "another"}, "cpu", "processor"),  # which rounds otherwise
        ("machine", {"gpu_driver": "another"}, "cpu", ""),
        ("machine", {"gpu_driver": "another"}, "cuda", "processor"),
    ],
)
def test_a_run_in_other_circumstances_begins_anew(
    name: str,
    change: dict[str, str],
    device: str,
    differs: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where other code, packages or processors would give other bytes; else it goes on."""
    machine = hardware.machine()
    monkeypatch.setattr(hardware, "machine", lambda device: machine)
    cut(tmp_path, device=device)
    owner = code if name == "sources" else hardware
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: real(*given) | change)
    assert (Run(tmp_path, device=device).recorder.snapshot is None) == bool(differs)
    assert (f"differs in {differs}" in capsys.readouterr().err) == bool(differs)
    assert (tmp_path / "seed-1" / "checkpoint").exists() != bool(differs)


def test_a_run_goes_on_if_the_device_is_named_that_was_chosen(tmp_path: Path) -> None:
    """A grid names it in the agents' commands; a user's own command need not."""
    cut(tmp_path, device="auto")
    named = hardware.find_device("auto").type
    assert Run(tmp_path, device=named).recorder.snapshot is not None


def test_a_diverged_seed_stays_diverged_and_the_other_goes_on(tmp_path: Path) -> None:
    """Killed after the divergence, before or after the next checkpoint."""
    seeds = (1, 2)
    Run(tmp_path / "whole", seeds=seeds).play(diverges=15)
    for stops in (18, 35):
        folder = tmp_path / str(stops)
        run = Run(folder, seeds=seeds)
        with pytest.raises(Killed):
            run.play(stops, diverges=15)
        before = run_json(folder, 1)
        assert before["status"] == ("running" if stops == 18 else "diverged")
        again = Run(folder, seeds=seeds)
        again.play(diverges=15)
        assert again.recorder.statuses == ["diverged", "finished"]
        assert repeatable(folder) == repeatable(tmp_path / "whole")
        if stops == 35:
            assert run_json(folder, 1)["ended_at"] == before["ended_at"]


@pytest.mark.parametrize(
    ("begun", "asked", "diverges"),
    [
        *product([(1, 2)], [(2,), (1,), (1, 2, 3)], [-1, 15]),
        *product([(1,)], [(1, 2), (2, 1)], [-1]),
    ],
)
def test_a_killed_group_keeps_its_progress(
    begun: Sequence[int],
    asked: Sequence[int],
    diverges: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other groups of its seeds are refused while it can go on, if only with other cores."""
    run = Run(tmp_path, seeds=begun)
    with pytest.raises(Killed):
        run.play(35, diverges=diverges)
    before, machine = tree(tmp_path), hardware.machine()
    changed = machine | {"cores": 99, "platform": "another kernel", "gpu_driver": "another"}
    monkeypatch.setattr(hardware, "machine", lambda *_: changed)
    unfinished = f"an unfinished run of --seeds {' '.join(map(str, begun))}: go on with them"
    for device in ("cpu", "cuda"):
        with pytest.raises(UsageError, match=unfinished):
            Run(tmp_path, seeds=asked, device=device)
    assert tree(tmp_path) == before
    (run.recorder.checkpoint_directory / "checkpoint.json").unlink()
    assert Run(tmp_path, seeds=asked).recorder.snapshot is None


def test_time_goes_on_where_the_checkpoint_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of 200 s, killed at 55 of 60 steps, 100 s a day later: no lost time is counted.

    When it was begun stays in its record.
    """
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    run = Run(tmp_path)
    run.recorder.clock.lap("acting")
    now = 100.0
    run.recorder.clock.lap("acting")
    with pytest.raises(Killed):
        run.play(55)
    now = 1e5
    monkeypatch.setattr("suite.record.recorder.now", lambda: "a day later")
    again = Run(tmp_path)
    now += 50.0  # the past is played again
    env_step = again.env.step

    def step(actions: np.ndarray) -> Any:
        nonlocal now
        now += 1.0
        return env_step(actions)

    again.env.reset()
    for _ in again.journal.past:
        pass
    monkeypatch.setattr(again.env, "step", step)
    monkeypatch.setattr(again.env, "reset", lambda: None)
    again.play()
    rows = (tmp_path / "seed-1" / "timing.csv").read_text().splitlines()
    seconds = [float(row.split(",")[2]) for row in rows[1:]]
    assert seconds == [100.0, 100.0, 100.0, 100.0, 109.0, 119.0]
    record = run_json(tmp_path)
    assert record["wall_seconds"] == 119.0
    assert record["started_at"] != "a day later"


def test_a_run_that_was_begun_anew_gets_no_actions_of_the_older_process(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    """They would stand before the newer one's own, and spoil what it goes on from."""
    old, new = Run(tmp_path / "cut"), Run(tmp_path / "cut")
    old.env.reset()
    old.journal.record(np.ones((1, 2)))
    with pytest.raises(UsageError, match="started again by another process"):
        old.journal.save(1)
    with pytest.raises(Killed):
        new.play(45)
    again = Run(tmp_path / "cut")
    assert again.recorder.snapshot is not None
    assert again.recorder.snapshot.content["numbers"] == [SAVES[-1]]
    again.play()
    assert repeatable(tmp_path / "cut") == whole


def test_a_run_that_goes_on_is_claimed_before_its_tables_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older process that only hung would else write its rows behind the cut."""
    old, cut, cuts = Run(tmp_path), seed_folder.open_inside, list[Path]()
    with pytest.raises(Killed):
        old.play(55)

    def checked(folder: Path, path: Path, num_bytes: int) -> Any:
        with pytest.raises(UsageError, match="started again by another process"):
            old.recorder.check_ours()
        cuts.append(path)
        return cut(folder, path, num_bytes)

    monkeypatch.setattr(seed_folder, "open_inside", checked)
    Run(tmp_path)
    assert len(cuts) == 3  # episodes, updates and timing


@pytest.mark.parametrize("file", ["run.json", "tensors"])
def test_a_process_whose_run_is_begun_anew_says_so_even_while_it_writes(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one removes the file that the older is about to rename, its first among them."""
    synced, newer = os.fsync, list[Run]()

    def begin_anew(descriptor: int) -> None:
        synced(descriptor)
        if file in Path(f"/proc/self/fd/{descriptor}").readlink().name and not newer:
            monkeypatch.setattr(os, "fsync", synced)
            newer.append(Run(tmp_path))

    monkeypatch.setattr(os, "fsync", begin_anew)
    with pytest.raises(UsageError, match="started again by another process"):
        Run(tmp_path).play()
    newer[0].play()
