"""What surrounds a training loop: what is due, scores, saved policies, an agent's own command."""

import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.a2c import Config
from suite import session as module
from suite.base.errors import UsageError
from suite.policy import read_policy
from suite.record.recorder import Recorder, status_of
from suite.session import Session, train_in_turn, train_together
from suite.settings.command_line import run_main
from suite.settings.presets import Preset
from tests.gpus import with_gpus
from tests.runs import run_json, tree


def small(**changes: Any) -> Config:
    """Return an agent's settings of a short run of two seeds."""
    settings: dict[str, Any] = {"task": "CartPole-v1", "seeds": (4, 5), "env_steps": 100}
    settings |= {"device": "cpu", "num_envs": 2, "evaluation_rule": "sampled"}
    settings |= {"evaluation_interval": 30, "evaluation_episodes": 3, "log_interval": 20}
    return Config(**(settings | changes))


def recorder(folder: Path, config: Config, agent: str = "mine") -> Recorder:
    return Recorder(folder, {"agent": agent, "task": config.task}, config.seeds)


def columns(folder: Path, seed: int, name: str) -> list[int]:
    """Return the first column of a table."""
    text = (folder / f"seed-{seed}" / name).read_text()
    return [int(row.partition(",")[0]) for row in text.splitlines()[1:]]


def log(run: Recorder, env_steps: int, losses: Sequence[float]) -> None:
    run.log(env_steps, env_steps // 2, {"critic_loss": np.array(losses)}, {})


def first_at_or_beyond(interval: int, steps: Sequence[int]) -> set[int]:
    """Return the places of the first steps at or beyond each multiple, and of the last step."""
    multiples = range(interval, steps[-1] + 1, interval)
    places = {next(i for i, s in enumerate(steps) if s >= multiple) for multiple in multiples}
    return places | {len(steps) - 1}


@pytest.mark.parametrize("stride", [7, 10, 64])
@pytest.mark.parametrize("ignored", [False, True])
def test_each_multiple_is_met_once_and_the_last_stride_always(
    stride: int, ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both intervals, also where ignored actions make a stride gain less; and no stride more."""
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: (np.zeros((2, 3)), None))
    config, rng = small(), np.random.default_rng(stride)
    run = recorder(tmp_path, config)
    ours = Session(config, run, stride)
    steps, logged, env_steps = [], [], 0
    while ours.has_room(env_steps):
        gained = int(rng.integers(0, stride + 1)) if ignored else stride
        env_steps += gained
        steps.append(env_steps)
        ours.evaluate_if_due(env_steps, gained, lambda obs, generators: obs, weights_of)
        if ours.is_due(config.log_interval, env_steps, gained):
            logged.append(len(steps) - 1)
    assert steps[-1] <= 100 < steps[-1] + stride
    assert set(logged) == first_at_or_beyond(config.log_interval, steps)
    assert len(logged) == len(set(logged))
    run.flush()
    scored = [steps[i] for i in sorted(first_at_or_beyond(config.evaluation_interval, steps))]
    for seed in config.seeds:
        assert columns(tmp_path, seed, "evaluations.csv") == scored


def test_a_run_that_its_training_scores_is_not_evaluated(tmp_path: Path) -> None:
    """Evaluations would take time, and be a second score."""
    config = small(evaluation_rule="training")
    run = recorder(tmp_path, config)
    Session(config, run, 10).evaluate_if_due(30, 10, lambda obs, generators: obs, weights_of)
    run.flush()
    assert not list(tmp_path.rglob("evaluations.csv"))


def test_a_run_takes_the_threads_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its simulator has as many as its updates, unless it is told another number."""
    taken, run = list[int](), recorder(tmp_path, small())
    monkeypatch.setattr(module, "use_threads", taken.append)
    monkeypatch.setattr(module, "VectorEnv", lambda *_, num_threads: taken.append(num_threads))
    for env_threads in (None, 3):
        Session(small(num_threads=2, env_threads=env_threads), run, 10)
    assert taken == [2, 2, 2, 3]


def test_a_run_goes_on_until_its_last_seed_has_diverged(tmp_path: Path) -> None:
    """Steps of seeds that have nothing left to learn would be wasted."""
    run = recorder(tmp_path, small())
    ours = Session(small(), run, 10)
    log(run, 10, [math.nan, 1.0])
    assert ours.has_room(10)
    log(run, 20, [math.nan, math.nan])
    assert not ours.has_room(20)


def test_a_seed_has_ended_whatever_cores_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only results decide, so the device may be named, or chosen by `auto`."""
    config = small()
    run = {"agent": "mine", "task": config.task, "config": asdict(config)}
    Recorder(tmp_path, run, config.seeds).finish()
    assert status_of(replace(config, env_threads=3), tmp_path, 4) == "finished"
    assert status_of(replace(config, gamma=0.5), tmp_path, 4) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert status_of(replace(config, device="auto"), tmp_path, 4) == "finished"


def weights_of(i: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2,), float(i))}


def test_a_diverged_seed_leaves_no_policy(tmp_path: Path) -> None:
    """What is no number acts on nothing; the other seeds' policies are saved as theirs."""
    config = small(seeds=(4, 5, 6))
    run = recorder(tmp_path, config)
    ours = Session(config, run, 10)
    log(run, 10, [1.0, math.nan, 1.0])
    asked: list[int] = []
    ours.save_policies(lambda i: asked.append(i) or weights_of(i), ())
    assert asked == [0, 2]
    assert read_policy(tmp_path / "seed-6")[0]["weight"].tolist() == [2, 2]
    assert not list((tmp_path / "seed-5").glob("policy.*"))


PRESETS = {("classic", "paper"): Preset(config=small(num_envs=3), budgets={}, judged_by=None)}
Train = Callable[[Any, Recorder], object]


def command(
    entry: Callable[[str, Train, Any, Sequence[str]], int],
    folder: Path,
    losses: dict[int, float],
    seeds: str = "1 2 3",
) -> tuple[int, list[Config]]:
    """Train seeds by a command of their own; return its exit status and what was trained.

    A loss of 9 kills the command (-9), one of 8 is an error (-8), one that is not finite diverges.
    """
    trained: list[Config] = []

    def train(config: Config, run: Recorder) -> None:
        trained.append(config)
        of_seeds = [losses.get(seed, 1.0) for seed in config.seeds]
        log(run, 10, of_seeds)
        if 9.0 in of_seeds:
            raise KeyboardInterrupt
        if 8.0 in of_seeds:
            raise ArithmeticError("the robot\nfell")

    argv = ["--task", "CartPole-v1", "--seeds", *seeds.split(), "--out", str(folder)]
    try:
        return entry("/somewhere/my_agent.py", train, PRESETS, argv), trained
    except (KeyboardInterrupt, ArithmeticError) as error:
        return -8 if isinstance(error, ArithmeticError) else -9, trained


def test_seeds_are_trained_together_or_in_turn(tmp_path: Path) -> None:
    """Side by side in one call, or one call each; settings are the preset's with the flags."""
    config = small(num_envs=3, seeds=(1, 2, 3))
    assert command(train_together, tmp_path / "together", {}) == (0, [config])
    alone = [replace(config, seeds=(seed,)) for seed in (1, 2, 3)]
    assert command(train_in_turn, tmp_path / "turn", {}) == (0, alone)
    assert run_json(tmp_path / "together", 2)["config"]["seeds"] == [1, 2, 3]
    assert run_json(tmp_path / "turn", 2)["config"]["seeds"] == [2]


@pytest.mark.parametrize("ended", [{}, {1: math.nan}, {2: math.nan}, {1: math.nan, 2: math.nan}])
def test_a_command_of_several_seeds_goes_on_after_those_that_ended(
    ended: dict[int, float], tmp_path: Path
) -> None:
    """Finished or diverged, in whatever order; a divergence is still told by the exit status."""
    status, trained = command(train_in_turn, tmp_path, {**ended, 3: 9.0})
    assert (status, [config.seeds for config in trained]) == (-9, [(1,), (2,), (3,)])
    status, trained = command(train_in_turn, tmp_path, ended)
    assert (status, [config.seeds for config in trained]) == (2 if ended else 0, [(3,)])
    statuses = ["diverged" if seed in ended else "finished" for seed in (1, 2, 3)]
    assert [run_json(tmp_path, seed)["status"] for seed in (1, 2, 3)] == statuses


@pytest.mark.parametrize("entry", [train_together, train_in_turn])
def test_an_error_is_in_the_record(entry: Any, tmp_path: Path) -> None:
    """Also without a harness, which would write it; the same command trains the seed again."""
    assert command(entry, tmp_path, {2: 8.0})[0] == -8
    record = run_json(tmp_path, 2)
    assert (record["status"], record["error"]) == ("failed", "ArithmeticError: the robot fell")
    assert record["ended_at"]
    assert command(entry, tmp_path, {})[0] == 0
    assert run_json(tmp_path, 2)["status"] == "finished"


@pytest.mark.parametrize("entry", [train_together, train_in_turn])
def test_a_command_never_trains_over_finished_seeds(entry: Any, tmp_path: Path) -> None:
    """Repeated after its end, it is refused before a seed that diverged begins again."""
    assert command(entry, tmp_path, {1: math.nan})[0] == 2
    before = tree(tmp_path)
    with pytest.raises(UsageError, match="seed-2 holds a finished run: extend it by a larger"):
        command(entry, tmp_path, {})
    assert tree(tmp_path) == before


@pytest.mark.parametrize("entry", [train_together, train_in_turn])
def test_a_command_trains_the_seeds_that_were_added(entry: Any, tmp_path: Path) -> None:
    """Those of a command that ended stay, and its exit status, as one of them diverged."""
    assert command(entry, tmp_path, {1: math.nan}, "1 2")[0] == 2
    before = run_json(tmp_path, 2)
    status, trained = command(entry, tmp_path, {})
    assert (status, [config.seeds for config in trained]) == (2, [(3,)])
    assert run_json(tmp_path, 2) == before


@pytest.mark.parametrize("entry", [train_together, train_in_turn])
def test_seeds_are_trained_again_once_all_have_diverged(entry: Any, tmp_path: Path) -> None:
    """The exit status tells how they end this time."""
    losses = {seed: math.nan for seed in (1, 2, 3)}
    assert command(entry, tmp_path, losses)[0] == 2
    assert command(entry, tmp_path, {})[0] == 0


@pytest.mark.parametrize(("seconds", "goes_on"), [(60.0, True), (0.0, False)])
def test_a_second_request_ends_a_run_at_once(
    seconds: float, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waits for a checkpoint, and so do those that come with it: they are one."""
    monkeypatch.setattr(module, "ONE_REQUEST_SECONDS", seconds)
    went_on: list[bool] = []

    def train(config: Config, run: Recorder) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert run.is_stopping
        os.kill(os.getpid(), signal.SIGINT)
        went_on.append(True)

    with pytest.raises(KeyboardInterrupt):
        train_together("mine.py", train, PRESETS, ["--seeds=1", f"--out={tmp_path}"])
    assert bool(went_on) == goes_on


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_seeds_that_a_gpu_cannot_hold_are_one_line(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever asked for too many should not have to read a traceback."""

    def train(config: Config, run: Recorder) -> None:
        raise error

    with_gpus(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU 1")
    words = ["mine", "--seeds", "1-4", "--device", "cuda:1", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", words)
    assert run_main(lambda argv: train_together("mine.py", train, PRESETS, argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --device cuda:1 is out of memory, seeds in this process: 4; ")
    assert run_json(tmp_path, 4)["status"] == "failed"
