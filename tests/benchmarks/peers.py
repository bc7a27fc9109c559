"""Speed of our SAC beside stable-baselines3's, interleaved in one run.

    make peers && .venv/bin/python -m tests.benchmarks.peers

Both train HalfCheetah with the paper's networks (256 x 256, batch 256, one update per step) on one
CPU thread, whole training loop, warm-up excluded. Pairs alternate, so a machine that changes speed
changes both; the ratio of each pair is what counts. Peers run in an environment of their own.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduce.collect import throughput
from suite.command_line import Parser, run_main
from suite.settings import UsageError

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 500
STABLE_BASELINES3 = """
import sys, time
import gymnasium, torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

warm_up, updates = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)

class Clock(BaseCallback):
    def _on_step(self):
        if self.num_timesteps in (warm_up + 100, warm_up + 100 + updates):
            times.append(time.perf_counter())
        return True

times = []
env = gymnasium.make("HalfCheetah-v5")
model = SAC("MlpPolicy", env, learning_starts=warm_up, device="cpu", seed=1)
model.learn(warm_up + updates + 101, callback=Clock())
print(updates / (times[1] - times[0]))
"""


def ours(num_updates: int) -> float:
    """Return our environment steps (and updates) per second after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "agents.sac", "--task=HalfCheetah-v4", "--device=cpu"]
        command += [f"--env-steps={WARM_UP + 100 + num_updates}", f"--learning-starts={WARM_UP}"]
        command += ["--evaluation-interval=1000000", "--evaluation-episodes=1"]
        command += ["--log-interval=100", f"--out={folder}"]
        _run(command)
        speed = throughput(Path(folder) / "seed-1")
    assert speed is not None
    return speed["env_steps_per_second"]


def stable_baselines3(num_updates: int) -> float:
    """Return stable-baselines3's environment steps per second after the warm-up."""
    python = ROOT / ".venv-peers" / "bin" / "python"
    if not python.exists():
        raise UsageError("the peers' environment is missing: run `make peers` first")
    output = _run([str(python), "-c", STABLE_BASELINES3, str(WARM_UP), str(num_updates)])
    return float(output.split()[-1])


def _run(command: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    ).stdout


def main(argv: Sequence[str]) -> int:
    """Measure pairs, print each and the summary."""
    parser = Parser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1500, help="measured updates per run")
    options = parser.parse(argv)
    ratios = []
    for pair in range(options.pairs):
        speeds = ours(options.updates), stable_baselines3(options.updates)
        ratios.append(speeds[0] / speeds[1])
        print(
            f"pair {pair + 1}: encore {speeds[0]:.1f}, stable-baselines3 {speeds[1]:.1f} steps/s, "
            f"ratio {ratios[-1]:.2f}",
            flush=True,
        )
    low, median, high = np.quantile(ratios, [0, 0.5, 1])
    print(f"ratio: median {median:.2f}, {low:.2f} to {high:.2f} over {len(ratios)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
