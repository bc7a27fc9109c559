"""A run killed at any moment and started again ends with the same bytes as one never killed."""

import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import AGENTS, a2c, sac
from suite import session
from suite.base.errors import UsageError
from suite.envs.vector_env import Step, VectorEnv
from suite.record.journal import Journal
from suite.record.recorder import Recorder
from suite.settings.command_line import run_main
from tests.agents.trainings import module_of, tiny
from tests.runs import Killed, flags, repeatable, run_json, tree

pytestmark = pytest.mark.usefixtures("unchecked")
FRAMES: dict[str, Any] = {
    **{"task": "Breakout-v5", "env_steps": 48, "num_envs": 2},
    **{"log_interval": 16, "evaluation_rule": "training"},
}
REPLAY: dict[str, Any] = {"unroll_length": 8, "replay_start": 24, "replay_capacity": 48}
CONFIGS: dict[str, Any] = {
    "sac": tiny("sac", seeds=(3, 4), num_envs=2),
    "sac_value": tiny("sac_value, bounds"),
    "sac_alf": tiny("sac_alf, options", num_envs=2, replay_capacity=50),
    "sac_discrete": tiny(
        "sac_discrete, critics",
        replay_capacity=60,
        evaluation_rule="sampled",
        evaluation_epsilon=0.5,
    ),
    "a2c": tiny(
        "a2c, continuous",
        reward_normalisation="discounted_returns",
        learning_rate_decay_steps=4_000,
    ),
    "ppo": tiny("ppo, recurrent", reward_normalisation="value_targets"),
    "impala": tiny("impala, recurrent", policy_lag=3, optimiser="adam"),
    "acer": tiny("acer", **REPLAY, **FRAMES),
    "acer_continuous": tiny("acer_continuous", **REPLAY, num_envs=2),
}
"""By agent. Golden runs that are cut have further kinds of state."""


def those(*agents: str) -> list[Any]:
    """Return parameters: these agents, and the others as further ones."""
    further = [pytest.param(each, marks=pytest.mark.further) for each in CONFIGS]
    return [*agents, *(each for each in further if each.values[0] not in agents)]


def train(config: Any, directory: Path) -> Recorder:
    agent = type(config).__module__.removeprefix("agents.")
    run = {"agent": agent, "task": config.task, "config": asdict(config)}
    keeps_best = config.evaluation_rule != "training"
    recorder = Recorder(directory, run, config.seeds, 1e9, keeps_best=keeps_best)
    module_of(agent).train(config, recorder)
    recorder.finish()
    return recorder


def test_every_agent_has_a_run_that_is_cut() -> None:
    """A new agent needs one."""
    assert set(CONFIGS) == set(AGENTS)


@pytest.mark.parametrize("agent", those("sac", "sac_alf", "a2c", "impala", "acer"))
def test_a_training_cut_at_any_step_ends_with_the_same_bytes(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks, optimisers, streams, statistics, replay and unfinished episodes: all go on."""
    config, state = CONFIGS[agent], torch.get_rng_state()
    unroll = getattr(config, "unroll_length", 1)
    num_steps = last = 0

    class Mortal(VectorEnv):
        """Is killed in its step number `last`, the first of the past being 1."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            nonlocal num_steps
            num_steps = 0
            super().__init__(*args, **kwargs)

        def recv(self) -> Step:
            nonlocal num_steps
            num_steps += 1
            if num_steps == last:
                raise Killed
            return super().recv()

    def is_due(journal: Journal, *, at_end: bool = False) -> bool:
        """Return whether the next pass of the training loop is the one that is cut."""
        return 0 < last - num_steps <= unroll

    monkeypatch.setattr(session, "VectorEnv", Mortal)
    monkeypatch.setattr(Journal, "is_due", is_due)
    train(config, tmp_path / "whole")
    expected = repeatable(tmp_path / "whole")
    assert len(expected) >= len(config.seeds)  # else nothing is compared

    generator, quarter = random.Random(agent), num_steps // 4
    for first in (2 * quarter, 0):
        last = first + generator.randrange(1, quarter)
        with pytest.raises(Killed):
            train(config, tmp_path / "cut")
    last = 0
    recorder = train(config, tmp_path / "cut")
    assert recorder.snapshot is not None
    assert repeatable(tmp_path / "cut") == expected
    assert torch.equal(torch.get_rng_state(), state)  # which no checkpoint holds


@pytest.mark.parametrize("agent", those("sac", "a2c", "impala", "acer_continuous"))
def test_an_extended_run_has_the_bytes_of_one_that_was_longer_from_the_start(
    agent: str, tmp_path: Path
) -> None:
    """Also where it ended between two reports, and its replay had less room; it says when."""
    config = CONFIGS[agent]
    train(config, tmp_path / "whole")
    for share in (0.45, 0.7):
        steps = int(share * config.env_steps) // config.num_envs * config.num_envs
        train(replace(config, env_steps=steps), tmp_path / "grown")
    train(config, tmp_path / "grown")
    assert len(run_json(tmp_path / "grown", config.seeds[0])["resumed_at"]) == 2
    assert repeatable(tmp_path / "grown") == repeatable(tmp_path / "whole")


@contextlib.contextmanager
def stopped_at_a_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run stop after the checkpoint that follows its first log interval."""
    log = Recorder.log

    def log_and_stop(recorder: Recorder, *row: Any) -> None:
        log(recorder, *row)
        recorder.is_stopping = True

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "log", log_and_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("agent", those("sac", "a2c", "impala", "acer", "acer_continuous"))
def test_a_killed_run_goes_on_to_a_nearer_end(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the bytes of one that was shorter from the start, if its checkpoint lies before that."""
    config = CONFIGS[agent]
    if hasattr(config, "replay_capacity"):
        config = replace(config, replay_capacity=100_000)
    train(config, tmp_path / "whole")
    with stopped_at_a_log(monkeypatch):
        train(replace(config, env_steps=2 * config.env_steps), tmp_path / "cut")
    (steps,) = re.findall(r"stopped after a checkpoint at (\d+)", capsys.readouterr().out)
    assert config.log_interval < int(steps) < config.env_steps
    shutil.copytree(tmp_path / "cut", tmp_path / "past")
    recorder = train(config, tmp_path / "cut")
    assert recorder.snapshot is not None
    assert repeatable(tmp_path / "cut") == repeatable(tmp_path / "whole")
    before = tree(tmp_path / "past")
    with pytest.raises(UsageError, match=f"its checkpoint is at {steps} env_steps, not before"):
        train(replace(config, env_steps=int(steps)), tmp_path / "past")
    assert tree(tmp_path / "past") == before


def test_seeds_killed_as_they_ended_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has finished and stays; the other ends the same, or is trained alone by another torch."""
    command = ["--task=Pendulum-v1", "--device=cpu", "--seeds", "1", "2", "--evaluation-episodes=1"]
    command += ["--env-steps=60", "--learning-starts=40", "--batch-size=8", "--hidden-sizes=8"]
    whole, cut, other = (tmp_path / name for name in ("whole", "cut", "other"))
    end = Recorder._end

    def cannot_read(path: Path, *rest: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def killed(recorder: Recorder, i: int, status: Any, error: str | None) -> None:
        if i == 1:
            raise SystemExit("killed")
        end(recorder, i, status, error)

    assert sac.main([*command, f"--out={whole}"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_end", killed)
        with pytest.raises(SystemExit, match="killed"):
            sac.main([*command, f"--out={cut}"])
    shutil.copytree(cut, other)
    before = tree(cut)
    with monkeypatch.context() as patch:
        patch.setattr("suite.base.snapshot.read_json", cannot_read)
        with pytest.raises(UsageError, match=r"^cannot read .*: Input/output error$"):
            sac.main([*command, f"--out={cut}"])
    assert tree(cut) == before, "a disk that cannot be read now costs nothing"
    for folder, version in ((cut, None), (other, "3.0")):
        before = tree(folder / "seed-1")
        if version:
            monkeypatch.setattr("suite.base.hardware.versions", lambda: {"torch": "3.0"})
        assert sac.main([*command, f"--out={folder}"]) == 0
        assert tree(folder / "seed-1") == before
        record = run_json(folder, 2)
        assert record["status"] == "finished"
        assert version in (None, record["versions"]["torch"])
    assert repeatable(cut) == repeatable(whole)
    with pytest.raises(UsageError, match="holds a finished run"):
        sac.main([*command, f"--out={other}"])


def test_a_run_that_cannot_be_extended_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Without its checkpoint, with other settings or in other company it would be another run."""
    command = ["--task=CartPole-v1", "--device=cpu", "--evaluation-rule=sampled"]
    command += ["--evaluation-episodes=1", "--log-interval=200", f"--out={tmp_path}"]
    kept, dropped = tmp_path / "seed-1", tmp_path / "seed-2"
    assert a2c.main([*command, "--seeds=1", "--env-steps=400"]) == 0
    assert a2c.main([*command, "--seeds=2", "--env-steps=400", "--drop-checkpoints"]) == 0
    assert (kept / "checkpoint").exists()
    assert not (dropped / "checkpoint").exists()
    before = tree(tmp_path)
    extend = "a finished run: extend it by a larger --env-steps, with the same settings, choose"
    for seed, changes, reason in (
        (2, ["--env-steps=800"], "cannot be extended (it has no checkpoint of these seeds"),
        (
            1,
            ["--env-steps=800", "--gamma=0.5"],
            "cannot be extended (its checkpoint differs in gamma",
        ),
        (1, ["--env-steps=800", "--keep-best"], "it was begun without --keep-best: omit it"),
        (1, ["--env-steps=400"], extend),
        (1, ["--env-steps=200"], extend),
    ):
        with pytest.raises(UsageError) as error:
            a2c.main([*command, f"--seeds={seed}", *changes])
        assert reason in str(error.value)
        assert tree(tmp_path) == before
    assert a2c.main([*command, "--seeds=1", "--env-steps=800"]) == 0
    record = run_json(tmp_path)
    assert (record["config"]["env_steps"], len(record["resumed_at"])) == (800, 1)


@pytest.mark.parametrize(("agent", "number"), [("sac", signal.SIGINT), ("impala", signal.SIGTERM)])
def test_a_command_that_is_asked_to_stop_writes_a_checkpoint(
    agent: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C or a scheduler's SIGTERM, long before one is due: nothing learned is lost."""
    config = CONFIGS[agent]
    train(config, tmp_path / "whole")
    log, logs = Recorder.log, 0

    def log_and_signal(recorder: Recorder, *row: Any) -> None:
        nonlocal logs
        log(recorder, *row)
        logs += 1
        if logs == 2:
            for _ in range(2):  # a scheduler asks an agent and its harness, which asks the agent
                os.kill(os.getpid(), number)

    handlers = [signal.getsignal(number) for number in signal.Signals]
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "log", log_and_signal)
        patch.setattr(sys, "argv", [agent, *words(config), "--out", str(tmp_path / "cut")])
        assert run_main(module_of(agent).main) == 130
    out = capsys.readouterr().out
    (steps,) = re.findall(
        r"^stopped after a checkpoint at (\d+) env_steps; the same command goes on$", out, re.M
    )
    assert out.count("stopped") == 1
    assert int(steps) > 0
    assert "goes on at" not in out
    assert [signal.getsignal(number) for number in signal.Signals] == handlers
    assert logs == 2  # it ended with the step, not with the run
    assert module_of(agent).main([*words(config), "--out", str(tmp_path / "cut")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "goes on" in line]
    assert said == [f"seed-{seed} goes on at {steps} env_steps" for seed in config.seeds]
    assert len(run_json(tmp_path / "cut", config.seeds[0])["resumed_at"]) == 1
    assert repeatable(tmp_path / "cut") == repeatable(tmp_path / "whole")


@pytest.mark.parametrize("lives", [1, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("agent", those("sac", "impala"))
def test_a_command_killed_at_random_moments_ends_with_the_same_bytes(
    agent: str, lives: int, tmp_path: Path
) -> None:
    """By SIGKILL: seeds together, or in turn, in two threads; no row is doubled, torn or lost."""
    generator, whole, folder = random.Random(agent), tmp_path / "whole", tmp_path / "cut"
    started = time.perf_counter()
    train(CONFIGS[agent], whole)
    seconds = time.perf_counter() - started
    command = [sys.executable, "-m", f"agents.{agent}", *words(CONFIGS[agent])]
    command += ["--out", str(folder), "--checkpoint-minutes", "0.002"]

    def begun() -> list[int]:
        return [record.stat().st_ino for record in sorted(folder.glob("seed-*/run.json"))]

    def finished() -> bool:
        records = [json.loads(path.read_text()) for path in folder.glob("seed-*/run.json")]
        return bool(records) and all(record["status"] == "finished" for record in records)

    ends = []
    for _ in range(lives):
        before = begun()
        if finished():
            break
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and begun() == before:
                time.sleep(0.002)
            time.sleep(generator.uniform(0.2, 0.6) * seconds / lives)
            process.kill()
        ends.append(process.returncode)
    assert -signal.SIGKILL in ends
    assert {*ends} <= {0, -signal.SIGKILL}
    assert finished() or module_of(agent).main(command[3:]) == 0
    assert finished()
    assert repeatable(folder) == repeatable(whole)


def words(config: Any) -> list[str]:
    """Return the command line that says all of a configuration, and keeps what `train` does."""
    return ["--keep-best"] * (config.evaluation_rule != "training") + flags(vars(config))
