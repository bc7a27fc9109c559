"""What a launcher costs beside the agent's own command.

    .venv/bin/python -m tests.benchmarks.launcher_overhead

The same training runs by the agent's own command and by a grid of one run, in turns. What a grid
takes longer, it takes once: imports, Ray's start, tables, figures, page. What its processes compute
while the agent trains, they take from the cores for as long as it does. Both together are the share
of a 10-minute grid.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduce import ROOT
from reproduce.run.processes import CHILD_SYSTEM_TIME, PROC, THREADING, USER_TIME, stat_fields
from suite.base.hardware import num_cores
from suite.settings.command_line import Parser, run_main

TASK, LAUNCHERS = "CartPole-v1", ("local", "ray")
GRID_SECONDS = 600.0
MARK = "ENCORE_OVERHEAD"
"""Variable of the environment by which all processes of one command are found."""
SAMPLE_SECONDS = 0.5


def main(argv: Sequence[str]) -> int:
    """Measure both launchers and print what they cost."""
    parser = Parser(prog="python -m tests.benchmarks.launcher_overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=1_000_000, help="of A2C on CartPole")
    options = parser.parse(argv)
    longer: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    busy: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            steps = ["--env-steps", str(options.env_steps), "--device", "cpu"]
            agent = ["agents.a2c", "--task", TASK, "--suite", "classic", "--out", folder]
            alone, _ = time_command([*agent, "--seeds", "1", *steps])
        for name in LAUNCHERS:
            with tempfile.TemporaryDirectory() as folder:
                grid = ["reproduce", "a2c", "classic", "--tasks", TASK, "--runs-dir", folder]
                grid += ["--seeds", "1", "--no-published", "--workers", "1", "--launcher", name]
                seconds, share = time_command([*grid, *steps])
            longer[name].append(seconds - alone)
            busy[name].append(share)
            print(f"{name}: {seconds:.1f} s, the agent alone {alone:.1f} s", flush=True)
    for name in LAUNCHERS:
        once, all_along = np.median(longer[name]), np.median(busy[name])
        share = once / GRID_SECONDS + all_along / num_cores()
        print(
            f"{name}: {once:.1f} s once ({min(longer[name]):.1f} to {max(longer[name]):.1f}), "
            f"{all_along:.2%} of one core all along: {share:.2%} of a 10-minute grid on "
            f"{num_cores()} cores"
        )
    return 0


def time_command(words: Sequence[str]) -> tuple[float, float]:
    """Run a module; return its seconds, and the cores that all but the agent kept busy.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, **THREADING, MARK: mark, "PYTHONPATH": str(ROOT)}
    samples: list[tuple[float, float]] = []
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            seconds, trains = _processor_seconds(f"{MARK}={mark}".encode())
            if trains:
                samples.append((time.perf_counter(), seconds))
    elapsed = time.perf_counter() - started
    if process.returncode not in (0, 1):  # 1: below its reference, which is not the point here
        raise subprocess.CalledProcessError(process.returncode, words)
    settled = samples[len(samples) // 4 :]  # the agent and Ray have started by then
    if len(settled) < 2:
        return elapsed, float("nan")
    (first, before), (last, after) = settled[0], settled[-1]
    return elapsed, (after - before) / (last - first)


def _processor_seconds(mark: bytes) -> tuple[float, bool]:
    """Return the processor time of a command's processes but the agent, and whether that lives."""
    ticks, trains = 0, False
    for entry in filter(str.isdecimal, os.listdir(PROC)):
        try:
            if mark not in Path(PROC, entry, "environ").read_bytes().split(b"\0"):
                continue
            if b"agents.a2c" in Path(PROC, entry, "cmdline").read_bytes().split(b"\0"):
                trains = True
                continue
        except OSError:  # it has ended, or is not ours
            continue
        # Without ended children: the agent is one, and its time would come all at once.
        fields = stat_fields(int(entry))
        ticks += sum(map(int, fields[USER_TIME : CHILD_SYSTEM_TIME - 1])) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK"), trains


if __name__ == "__main__":
    sys.exit(run_main(main))
