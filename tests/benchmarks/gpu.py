"""What the agents reach on the GPU at hand.

    make test-gpu                                          # the tests marked `gpu`, then this
    .venv/bin/python -m tests.benchmarks.gpu --out gpu.json
    .venv/bin/python -m tests.benchmarks.gpu --only bytes sac-64 --seconds 5
    .venv/bin/python -m tests.benchmarks.gpu --device cpu  # tiny sizes: tries the program, no GPU

Each part is a process of its own, ended at its limit. The trainings are the agents as they are,
warm-up left out; `bytes` runs one command twice.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reproduce import ROOT
from reproduce.plan.speeds import warm_up_steps
from suite.base import code, hardware
from suite.base.errors import UsageError, nearest
from suite.base.files import write_json
from suite.settings.command_line import Parser, run_main
from tests.benchmarks.speeds import Meter, train, warm_config
from tests.runs import repeatable

HALF_CHEETAH, PONG = "HalfCheetah-v4", "Pong-v5"
NEEDS_GPU = "needs a GPU"
TINY = {
    "sac": {"hidden_sizes": (8,), "batch_size": 8, "learning_starts": 40},
    "a2c": {"num_envs": 2, "convolutions": "a3c"},
    "impala": {"num_envs": 2},
    "acer": {"num_envs": 2, "replay_start": 20},
    "ppo": {"num_envs": 2, "unroll_length": 8, "num_minibatches": 2},
}
"""Settings of an agent on a CPU, where the program is tried."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    what: str
    value: float | None
    """None: not measured; `note` says why."""
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Training:
    """An agent's settings whose speed is measured."""

    agent: str
    suite: str
    source: str
    task: str
    num_seeds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    with_evaluation: bool = False
    """Whether another row counts the time of evaluations."""


_SAC = ("sac", "mujoco", "paper", HALF_CHEETAH)
_A2C = ("a2c", "atari-7", "openai_baselines", PONG)
_IMPALA = ("impala", "atari-7", "paper", PONG)
_ACER = ("acer", "atari-7", "openai_baselines", PONG)
_PPO = ("ppo", "atari-7", "openai_baselines", PONG)
_DEEP, _KERNELS = {"convolutions": "deep"}, {"cuda_graphs": False}
_MANY = partial(Training, *_SAC, num_seeds=64, with_evaluation=True)
TRAININGS = {
    "sac-1": Training(*_SAC),
    "sac-1-kernels": Training(*_SAC, settings=_KERNELS),
    "sac-16": Training(*_SAC, num_seeds=16),
    "sac-64": _MANY(),
    "sac-64-kernels": _MANY(settings=_KERNELS),
    "sac-64-tf32": _MANY(settings={"tf32": True}),
    "a2c": Training(*_A2C),
    "a2c-kernels": Training(*_A2C, settings=_KERNELS),
    "impala": Training(*_IMPALA, settings=_DEEP),
    "impala-kernels": Training(*_IMPALA, settings=_DEEP | _KERNELS),
    "impala-bfloat16": Training(*_IMPALA, settings=_DEEP | {"bfloat16": True}),
    "acer": Training(*_ACER),
    "ppo": Training(*_PPO),
}


def training(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the environment steps a second of an agent as it is, of all its seeds together."""
    asked, device = TRAININGS[name], hardware.find_device(options.device)
    preset = import_module(f"agents.{asked.agent}").PRESETS[asked.suite, asked.source]
    on_gpu = device.type == "cuda"
    if {"cuda_graphs", "tf32", "bfloat16"} & {*asked.settings} and not on_gpu:
        yield Row(name, None, "steps/s", NEEDS_GPU)
        return
    num_seeds = asked.num_seeds if on_gpu else min(asked.num_seeds, 2)
    changes: dict[str, Any] = dict(asked.settings)
    if not asked.with_evaluation:
        changes["evaluation_interval"] = 10**9
    if not on_gpu:
        changes |= TINY[asked.agent] | {"evaluation_episodes": 1}
    num_envs = changes.get("num_envs", preset.config.num_envs)
    rows = num_envs * getattr(preset.config, "unroll_length", 10)
    config = warm_config(
        preset.config,
        **changes,
        task=asked.task,
        seeds=tuple(range(1, num_seeds + 1)),
        device=options.device,
        log_interval=10 * rows if on_gpu else rows,  # on a GPU each one waits for the device
        env_threads=max(1, hardware.num_cores() - preset.cores_per_run + 1),
    )
    meter = Meter(options.seconds, warm_up_steps(config), time.perf_counter)
    train(asked.agent, config, meter)
    speed = num_seeds * meter.speeds()[1]
    what = f"{asked.agent}, {asked.task}, {num_seeds} seeds" + "".join(
        f", {key} {value}" for key, value in asked.settings.items()
    )
    yield Row(what, speed, "steps/s", "" if on_gpu else "tiny sizes")
    if asked.with_evaluation:
        every = num_seeds * config.evaluation_interval
        speed = every / (every / speed + meter.evaluation_seconds)
        note = f"one takes {meter.evaluation_seconds:.1f} s, every {config.evaluation_interval:,}"
        yield Row(f"{what}, evaluations counted", speed, "steps/s", note)


def equal_bytes(options: argparse.Namespace) -> Iterator[Row]:
    """Yield whether one command, given twice, writes the same files."""
    on_gpu = hardware.find_device(options.device).type == "cuda"
    num_seeds, steps, starts = (64, 1_500, 1_000) if on_gpu else (2, 80, 40)
    words = ["--suite=mujoco", f"--task={HALF_CHEETAH}", f"--device={options.device}", "--seeds"]
    words += [*map(str, range(1, num_seeds + 1)), f"--env-steps={steps}"]
    words += [f"--learning-starts={starts}", f"--log-interval={steps // 10}"]
    words += [f"--evaluation-interval={steps}", "--evaluation-episodes=1"]
    if not on_gpu:
        words += ["--hidden-sizes=8", "--batch-size=8"]
    words += [f"--env-threads={hardware.num_cores()}"]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for folder in (first, second):
            status = import_module("agents.sac").main([*words, f"--out={folder}"])
            if status:
                raise UsageError(f"sac ended with status {status}")
        one, other = repeatable(Path(first)), repeatable(Path(second))
    if not one:
        raise UsageError("no run wrote anything that could be compared")
    differ = sorted(name for name in one | other if one.get(name) != other.get(name))
    note = f"differ: {', '.join(differ[:3])}" if differ else "equal, byte by byte"
    what = f"sac, {num_seeds} seeds, {steps} steps, twice"
    yield Row(what, len(differ), "files", note)


PARTS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Row]], float]] = {
    name: (partial(training, name), 120.0 if asked.with_evaluation else 75.0)
    for name, asked in TRAININGS.items()
} | {"bytes": (equal_bytes, 120.0)}
"""What is measured, by name, and the seconds at which it is ended: 20.5 minutes for all of it."""


def in_a_process(name: str, options: argparse.Namespace) -> list[Row]:
    """Return what a part measured in a process of its own; a row without a value if it failed."""
    words = [f"--device={options.device}", f"--seconds={options.seconds}", "--only", name]
    limit = PARTS[name][1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        command = [sys.executable, "-m", "tests.benchmarks.gpu", *words, "--here", f"--out={out}"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=limit)
        except subprocess.TimeoutExpired:
            return [Row(name, None, "", f"not done within {limit:.0f} s")]
        if not out.exists():  # status 1 alone is a measurement: bytes that differ
            said = (run.stderr.strip() or "no output").splitlines()[-1]
            return [Row(name, None, "", f"exit {run.returncode}: {said[-200:]}")]
        return [Row(**row) for row in json.loads(out.read_bytes())["rows"]]


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Return the table that is printed."""
    table = Table(title=title)
    for name in ("what", "measured", "unit", "note"):
        table.add_column(name, justify="right" if name == "measured" else "left")
    for row in rows:
        value = ""
        if row.value is not None:
            value = f"{row.value:,.4g}" if row.value < 1e4 else f"{row.value:,.0f}"
        table.add_row(row.what, value, row.unit, row.note)
    return table


def write(path: Path | None, facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write what was measured so far, if a file is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**facts, "rows": [asdict(row) for row in rows]})


def main(argv: Sequence[str]) -> int:
    """Measure the parts asked for, print and write them; 1: one failed, or bytes differ."""
    parser = Parser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:<i>, or cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="of learning, each training")
    parser.add_argument(
        "--only", nargs="+", default=[*PARTS], metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--here", action="store_true", help="in this process, without limits")
    options = parser.parse(argv)
    for name in options.only:
        if name not in PARTS:
            raise UsageError(f"no part {name!r}{nearest(name, PARTS)}")
    hardware.find_device(options.device)
    rows: list[Row] = []
    facts = {"device": options.device, "versions": hardware.versions(), **code.revision()}
    for name in options.only:
        if not options.here:
            print(f"{name}: {PARTS[name][1]:.0f} s at most", flush=True)
        part = [*PARTS[name][0](options)] if options.here else in_a_process(name, options)
        rows += part
        if not options.here:
            for row in part:
                print(f"  {row.what}: {row.value} {row.unit} {row.note}", flush=True)
        write(options.out, facts, rows)  # a machine may be taken away at any time
    machine = hardware.machine(options.device)
    where = machine["gpu"] if options.device != "cpu" else machine["processor"]
    console = Console()
    console.width = max(console.width, 150)
    console.print(table_of(rows, f"{where}, {machine['cores']} cores"))
    write(options.out, facts | {"machine": machine}, rows)
    failed = any(row.value is None and row.note != NEEDS_GPU for row in rows)
    return int(failed or any(row.unit == "files" and row.value for row in rows))


if __name__ == "__main__":
    sys.exit(run_main(main))
