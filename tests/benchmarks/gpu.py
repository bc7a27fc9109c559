"""What the agents reach on the GPU at hand, beside what that machine can do.

    make test-gpu                                          # the tests marked `gpu`, then this
    .venv/bin/python -m tests.benchmarks.gpu --out gpu.json
    .venv/bin/python -m tests.benchmarks.gpu --only ceilings sac-64 --seconds 5
    .venv/bin/python -m tests.benchmarks.gpu --device cpu  # tiny sizes: tries the program, no GPU

Each part is a process of its own, ended at its limit. `ceilings` are products of 256-wide matrices,
a node of a replayed CUDA graph, copies to the device, draws, and the simulator alone; the trainings
are the agents as they are, warm-up left out; `bytes` runs one command twice.
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
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from reproduce import ROOT
from reproduce.plan.speeds import warm_up_steps
from reproduce.speed.workloads import Work
from suite.base import hardware
from suite.base.errors import UsageError, nearest
from suite.base.files import write_json
from suite.base.randomness import environment_seeds
from suite.draws import Draws
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv
from suite.settings.command_line import Parser, run_main
from tests.benchmarks.speeds import Meter, train, warm_config

HALF_CHEETAH, PONG = "HalfCheetah-v4", "Pong-v5"
MATRIX, GRAPH_NODES = 256, 1_000
NEEDS_GPU = "needs a GPU"
SAME = ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors")
"""What a command that is given twice writes twice."""
TINY = {
    "sac": {"hidden_sizes": (8,), "batch_size": 8, "learning_starts": 40},
    "a2c": {"num_envs": 2, "convolutions": "a3c"},
    "impala": {"num_envs": 2},
    "acer": {"num_envs": 2, "convolutions": "a3c", "replay_start": 20},
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


def rate(repeat: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Return how often a second something can be repeated, once it is warm.

    Args:
        repeat: the work.
        seconds: for how long, about.
        device: what must have done all of it before the clock is read.
    """

    def timed(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            repeat()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    timed(3)
    count = 1
    while (spent := timed(count)) < seconds / 2:
        count = max(2 * count, int(count * seconds / max(spent, 1e-9)) // 2)
    return count / spent


def ceilings(options: argparse.Namespace) -> Iterator[Row]:
    """Yield what the machine can do, each for a twentieth of the seconds."""
    device, seconds = hardware.find_device(options.device), options.seconds / 20
    if device.type == "cuda":
        yield from _products(device, seconds)
        yield _graph(device, seconds)
        yield from _copies(device, seconds)
    yield from _draws(device, seconds)
    cores = hardware.num_cores()
    threads = sorted({1, max(1, cores // 2), cores})
    for task, num_envs in ((HALF_CHEETAH, 64), (PONG, 32)):
        for count in threads if device.type == "cuda" else threads[:1]:
            envs = num_envs if device.type == "cuda" else 2
            work = simulator(task, envs, count)
            speed = envs * rate(work, seconds, torch.device("cpu"))
            name = f"simulator, {task}, {envs} environments, {count} threads"
            yield Row(name, speed, "steps/s")


def simulator(task: str, num_envs: int, num_threads: int) -> Work:
    """Step envpool itself by random actions, without our adapter."""
    seeds = environment_seeds([1], num_envs, "benchmark")
    env = VectorEnv(find_task(task), seeds, num_threads=num_threads)
    env.reset()
    draws, size = np.random.default_rng(0), (64, num_envs, *env.action_shape)
    if env.action_shape:
        rows = cycle(draws.uniform(env.action_low, env.action_high, size))
    else:
        rows = cycle(draws.integers(0, env.num_actions, size, np.int32))
    pool = env._pool
    return lambda: (pool.send(next(rows)), pool.recv())


def _products(device: torch.device, seconds: float) -> Iterator[Row]:
    """Yield the speed of batched products, in the two precisions."""
    for precision, name in (("highest", "fp32"), ("high", "TF32")):
        for batch in (1, 16, 128):
            what = f"products, {name}, {batch} of {MATRIX} x {MATRIX}"
            left, right, out = torch.randn(3, batch, MATRIX, MATRIX, device=device)
            torch.set_float32_matmul_precision(precision)
            try:
                speed = rate(partial(torch.bmm, left, right, out=out), seconds, device)
            finally:
                torch.set_float32_matmul_precision("highest")
            yield Row(what, speed * batch * 2 * MATRIX**3 / 1e9, "GFLOP/s")


def _graph(device: torch.device, seconds: float) -> Row:
    """Return how long a node of a replayed graph takes that does next to nothing."""
    number = torch.zeros(1, device=device)
    number.add_(1.0)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            number.add_(1.0)
    what = f"graph of {GRAPH_NODES} tiny kernels, each"
    return Row(what, 1e6 / GRAPH_NODES / rate(graph.replay, seconds, device), "us")


def _copies(device: torch.device, seconds: float) -> Iterator[Row]:
    """Yield bandwidth and latency of copies from the host."""
    for kind in ("pinned", "pageable"):
        for size, name, unit in ((2**26, "64 MiB", "GB/s"), (2**10, "1 KiB", "us")):
            what = f"copy to the device, {kind}, {name}"
            source = torch.zeros(size, dtype=torch.uint8, pin_memory=kind == "pinned")
            target = torch.empty_like(source, device=device)

            def copy(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
                target.copy_(source)
                torch.cuda.synchronize(device)

            speed = rate(copy, seconds, device)
            yield Row(what, size * speed / 1e9 if unit == "GB/s" else 1e6 / speed, unit)


def _draws(device: torch.device, seconds: float) -> Iterator[Row]:
    """Yield how long an update of SAC on HalfCheetah waits for rows and noise."""
    for num_seeds in (1, 16, 64):
        draws = Draws(range(num_seeds), (2, 256, 6), device, num_threads=hardware.num_cores())
        speed = rate(partial(draws, 100_000), seconds, device)
        yield Row(f"draws of an update, {num_seeds} seeds", 1e6 / speed, "us")


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
        differ = differing(Path(first), Path(second))
    note = f"differ: {', '.join(differ[:3])}" if differ else "equal, byte by byte"
    what = f"sac, {num_seeds} seeds, {steps} steps, twice"
    yield Row(what, len(differ), "files", note)


def differing(first: Path, second: Path) -> list[str]:
    """Return the files of runs that are not the same in two folders, or that one lacks."""
    names = {
        path.relative_to(folder)
        for folder in (first, second)
        for path in folder.rglob("*")
        if path.name in SAME
    }
    if not names:
        raise UsageError("no run wrote anything that could be compared")
    return [
        str(name)
        for name in sorted(names)
        if not all((folder / name).exists() for folder in (first, second))
        or (first / name).read_bytes() != (second / name).read_bytes()
    ]


PARTS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Row]], float]] = {
    "ceilings": (ceilings, 120.0),
    **{
        name: (partial(training, name), 120.0 if asked.with_evaluation else 75.0)
        for name, asked in TRAININGS.items()
    },
    "bytes": (equal_bytes, 120.0),
}
"""What is measured, by name, and the seconds at which it is ended: 22.5 minutes for all of it."""


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
    """Measure every part that is asked for, print the table and write it as JSON.

    Returns:
        the exit status: 1 if a part failed, or if a command that was given twice differs.
    """
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
    facts = {"device": options.device, "versions": hardware.versions(), **hardware.revision()}
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
