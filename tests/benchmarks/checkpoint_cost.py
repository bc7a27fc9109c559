"""The price of exact resume: a run's record of actions, and a checkpoint every five minutes.

    .venv/bin/python -m tests.benchmarks.checkpoint_cost sac a2c

Each agent trains with its paper's networks for a while and makes a checkpoint every few seconds.
Both costs are shares of the same run's time, so the speed of the machine cancels out.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import agents
from suite.base.errors import UsageError, nearest
from suite.record.journal import Journal
from suite.record.recorder import Recorder
from suite.settings.command_line import CHECKPOINT_MINUTES, Parser, run_main
from suite.settings.presets import find_source
from tests.benchmarks.speeds import Enough

CASES = {
    "sac": ("mujoco", "HalfCheetah-v4"),
    "a2c": ("atari-7", "Pong-v5"),
    "impala": ("atari-7", "Pong-v5"),
    "acer": ("atari-7", "Pong-v5"),
    "acer_continuous": ("mujoco", "HalfCheetah-v4"),
    "sac_value": ("mujoco", "HalfCheetah-v4"),
}
"""Suite, whose preset is used, and task."""


def main(argv: Sequence[str]) -> int:
    """Train every agent asked for and print what its journal cost."""
    parser = Parser(prog="python -m tests.benchmarks.checkpoint_cost", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="AGENT", help=", ".join(agents.AGENTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each agent")
    options = parser.parse(argv)
    for name in options.names:
        if name not in CASES:
            raise UsageError(f"no agent {name!r}{nearest(name, CASES)}")
    for name in options.names or CASES:
        record, saves, total = measure(name, options.seconds)
        per_minutes = np.median(saves) / (60 * CHECKPOINT_MINUTES)
        print(
            f"{name}: the record of actions takes {record / total:.3%} of the time, a checkpoint "
            f"{np.median(saves) * 1e3:.0f} ms ({len(saves)}, at most {max(saves) * 1e3:.0f}): "
            f"{record / total + per_minutes:.3%} with one every {CHECKPOINT_MINUTES:g} minutes"
        )
    return 0


def measure(agent: str, seconds: float) -> tuple[float, list[float], float]:
    """Return the seconds spent on recording, those of each checkpoint, and those of the run."""
    module: Any = import_module(f"agents.{agent}")
    suite, task = CASES[agent]
    config = module.PRESETS[suite, find_source(module.PRESETS, suite, None)].config
    config = replace(config, task=task, seeds=(1,), device="cpu", evaluation_rule="training")
    recording: list[float] = []
    saves: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), {"agent": agent}, config.seeds, seconds / 20)
        record, started = Journal.record, 0.0

        def record_until_enough(journal: Journal, actions: np.ndarray) -> None:
            nonlocal started
            started = started or time.perf_counter()
            record(journal, actions)
            if time.perf_counter() - started > seconds:
                raise Enough

        timed: Any = {"record": _timed(record_until_enough, recording)}
        timed["save"] = _timed(Journal.save, saves)
        with patch.multiple(Journal, **timed), contextlib.suppress(Enough):
            module.train(config, recorder)
    return sum(recording), saves, time.perf_counter() - started - sum(saves)


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent.append(time.perf_counter() - started)

    return timed


if __name__ == "__main__":
    sys.exit(run_main(main))
