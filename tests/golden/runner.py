"""Train configurations, and say what bytes they gave."""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from suite.record.recorder import Recorder
from suite.settings.older import todays_settings
from tests.runs import Killed

TABLES = ("episodes.csv", "evaluations.csv", "updates.csv")
SEEDS_TOGETHER = ("sac", "sac_alf", "sac_discrete", "sac_value")
"""Agents that train several seeds in one process."""


class CutRecorder(Recorder):
    """Has a checkpoint made in the second half of a run, and kills it some updates later."""

    def __init__(self, *arguments: Any, env_steps: int) -> None:
        super().__init__(*arguments, checkpoint_seconds=math.inf)
        self._half, self._num_checkpoints = env_steps // 2, 0

    def log(
        self,
        env_steps: int,
        num_updates: int,
        metrics: Mapping[str, np.ndarray],
        checks: Mapping[str, np.ndarray],
    ) -> None:
        if self._num_checkpoints:
            raise Killed
        if env_steps >= self._half:
            self.checkpoint_seconds = 0.0
        super().log(env_steps, num_updates, metrics, checks)

    def checkpoint(self, actions: tuple[int, str]) -> dict[str, Any]:
        self._num_checkpoints, self.checkpoint_seconds = 1, math.inf
        return super().checkpoint(actions)


def configure(agent: Any, settings: Mapping[str, Any]) -> Any:
    """Return the configuration that has all settings of a record, younger and renamed ones too.

    So the bytes say what the code does under the same settings, whatever its presets are today.
    """
    settings = todays_settings(agent.Config, settings)
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    return agent.Config(**values)


def train(agent: Any, config: Any, directory: Path, *, cut: bool) -> Any:
    """Return what an agent has learned; `cut`: in two lives."""
    run = {"agent": agent.__name__.split(".")[1], "task": config.task}
    arguments = (directory, run, config.seeds)
    if cut:
        recorder = CutRecorder(*arguments, env_steps=config.env_steps)
        with contextlib.suppress(Killed):
            agent.train(config, recorder)
            raise RuntimeError("the run ended before it was cut")
    recorder = Recorder(*arguments, checkpoint_seconds=math.inf)
    learner = agent.train(config, recorder)
    recorder.finish()
    for record in directory.glob("seed-*/run.json"):
        ends = json.loads(record.read_bytes())
        if ends["status"] != "finished" or (len(ends["resumed_at"]) == 1) != cut:
            raise RuntimeError(f"{ends['status']}, resumed {len(ends['resumed_at'])} times")
    return learner


def weights(value: Any) -> Iterator[Tensor]:
    """Yield all that is learned, and slow copies of it: modules, and tensors that have gradients.

    Optimisers and running statistics are left out: what they do shows in the weights.
    """
    if isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from weights(item)
    elif isinstance(value, dict):
        yield from weights(list(value.values()))
    elif dataclasses.is_dataclass(value):
        yield from weights([getattr(value, field.name) for field in dataclasses.fields(value)])


def checksum(tensors: Iterator[Tensor]) -> str:
    """Return the checksum of all values, sorted: names, order and layout in memory are free."""
    values = [tensor.detach().cpu().float().flatten().numpy() for tensor in tensors]
    bits = np.concatenate(values).view(np.uint32)  # sorted as they are: also NaN, and -0 beside 0
    return checksum_of(np.sort(bits).tobytes())


def checksum_of(content: bytes) -> str:
    """Return the first 16 digits of a SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def checksums(agent: Any, run: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksum of every file that a run wrote, by seed, and of what it learned."""
    config = configure(agent, run["settings"])
    together = agent.__name__.split(".")[1] in SEEDS_TOGETHER
    groups = [config.seeds] if together else [(seed,) for seed in config.seeds]
    found: dict[str, str] = {}
    for seeds in groups:
        group = dataclasses.replace(config, seeds=seeds)
        with tempfile.TemporaryDirectory() as directory:
            learner = train(agent, group, Path(directory), cut=run["cut"])
            for path in sorted(Path(directory).glob("seed-*/*.csv")):
                if path.name in TABLES:
                    name = path.relative_to(directory).as_posix()
                    found[name] = checksum_of(path.read_bytes())
        found[f"weights of {' and '.join(map(str, seeds))}"] = checksum(weights(learner))
    return found


def all_checksums(agent: str, runs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the checksums of an agent's runs by their names."""
    found: dict[str, dict[str, str]] = {}
    for name, run in runs.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found[name] = checksums(importlib.import_module(f"agents.{agent}"), run)
        except Exception as error:
            error.add_note(f"in the run {name!r}")
            raise
    return found
