"""Speed of our agents beside other libraries', interleaved in one run.

    make peers && make peers PEER=sbx
    .venv/bin/python -m tests.benchmarks.peers sac a2c-pong --pairs 5

Whole training loops of equal networks and batches, warm-up excluded. The contestants of a
comparison take turns, so a machine that changes speed changes all of them; the ratios of each
turn are what counts. Peers run in an environment of their own. CleanRL and LeanRL are scripts and
no packages: they take part where a clone of each lies in that environment's folder `src`. LeanRL's
needs older packages, which its clone may hold:

    pip install --no-deps --target .venv-peers/src/LeanRL tensordict==0.8.3 torchrl==0.8.1 tqdm

On a loaded machine nothing is measured, unless `--busy` asks for it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from reproduce import ROOT
from reproduce.commands.docs import beside
from reproduce.gather.collect import throughput
from reproduce.simulators.measure import MOST_BUSY, busy_cores
from suite.base.code import revision
from suite.base.errors import UsageError, nearest
from suite.base.hardware import num_cores, processor, processor_name
from suite.settings.command_line import Parser, run_main

PEERS = ROOT / ".venv-peers"

STABLE_BASELINES3 = """
import os, sys, time
library, name, threads, warm_up, steps = *sys.argv[1:3], *map(int, sys.argv[3:])
if library == "sbx":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    from sbx import PPO, SAC
else:
    from stable_baselines3 import A2C, PPO, SAC
import ale_py, gymnasium, torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)  # in worker processes too

class Clock(BaseCallback):
    def _on_step(self):
        if self.num_timesteps >= (warm_up, warm_up + steps)[min(len(times), 1)] and len(times) < 2:
            times.append(time.perf_counter())
            counts.append(self.num_timesteps)
        return True

def make_model():
    common = {"seed": 1, "device": "cpu"}
    if name == "sac":
        env = make_vec_env("HalfCheetah-v5")
        return SAC("MlpPolicy", env, learning_starts=warm_up - 100, **common)
    if name == "a2c-cartpole":
        return A2C("MlpPolicy", make_vec_env("CartPole-v1", 16), **common)
    if name == "ppo-cartpole":
        epochs = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
        return PPO("MlpPolicy", make_vec_env("CartPole-v1", 8), **epochs, **common)
    if name == "ppo-halfcheetah":
        return PPO("MlpPolicy", make_vec_env("HalfCheetah-v5", 8), n_steps=256, **common)
    processes = {"vec_env_cls": SubprocVecEnv} if name == "a2c-pong-processes" else {}
    env = make_atari_env("PongNoFrameskip-v4", 16, seed=1, **processes)
    return A2C("CnnPolicy", VecFrameStack(env, 4), **common)

if __name__ == "__main__":
    torch.set_num_threads(threads)
    times, counts = [], []
    model = make_model()
    model.learn(warm_up + steps + 80, callback=Clock())
    print((counts[1] - counts[0]) / (times[1] - times[0]))
    model.get_env().close()
"""
TORCHRL = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

threads, warm_up, steps = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(1)
env = TransformedEnv(GymEnv("HalfCheetah-v5"), DoubleToFloat())
bounds = {"low": env.action_spec.space.low, "high": env.action_spec.space.high, "tanh_loc": False}
layers = {"num_cells": [256, 256], "activation_class": nn.ReLU}
net = nn.Sequential(MLP(in_features=17, out_features=12, **layers), NormalParamExtractor())
actor = ProbabilisticActor(
    TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
    spec=env.action_spec, in_keys=["loc", "scale"], distribution_class=TanhNormal,
    distribution_kwargs=bounds, return_log_prob=False)
critic = ValueOperator(MLP(in_features=23, out_features=1, **layers),
                       in_keys=["action", "observation"])
loss = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2", delay_qvalue=True)
loss.make_value_estimator(gamma=0.99)
target = SoftUpdate(loss, eps=0.995)
parameters = [loss.actor_network_params, loss.qvalue_network_params]
optimisers = [torch.optim.Adam([*p.flatten_keys().values()], lr=3e-4) for p in parameters]
optimisers.append(torch.optim.Adam([loss.log_alpha], lr=3e-4))
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000_000), batch_size=256)
collector = Collector(env, actor, frames_per_batch=1, total_frames=warm_up + steps,
                              init_random_frames=warm_up - 100)
for step, data in enumerate(collector):
    if step == warm_up:
        started = time.perf_counter()
    replay.extend(data.reshape(-1))
    if step < warm_up - 100:
        continue
    losses = loss(replay.sample())
    for optimiser in optimisers:
        optimiser.zero_grad()
    (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
    for optimiser in optimisers:
        optimiser.step()
    target.step()
print(steps / (time.perf_counter() - started))
"""
PFRL = """
import sys, time, warnings
warnings.simplefilter("ignore")
import gymnasium, torch
from torch import nn
from pfrl import policies, q_functions
from pfrl.action_value import DiscreteActionValue
from pfrl.agents import acer
from pfrl.optimizers import SharedRMSpropEpsInsideSqrt
from pfrl.replay_buffers import EpisodicReplayBuffer

replay_ratio, unroll_length, threads, warm_up, steps = map(int, sys.argv[1:])
torch.set_num_threads(threads)

def perceptron(head):
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)]
    return nn.Sequential(*layers, head)

class Values(nn.Module):
    def forward(self, q_values):
        return DiscreteActionValue(q_values)

model = acer.ACERDiscreteActionHead(perceptron(policies.SoftmaxCategoricalHead()),
                                    perceptron(Values())).share_memory()
optimiser = SharedRMSpropEpsInsideSqrt(model.parameters(), 2e-3)
for state in optimiser.state.values():
    for value in state.values():
        if isinstance(value, torch.Tensor):
            value.share_memory_()
agent = acer.ACER(model, optimiser, t_max=unroll_length, gamma=0.99,
                  replay_buffer=EpisodicReplayBuffer(40_000),
                  n_times_replay=replay_ratio, replay_start_size=800)
env = gymnasium.make("CartPole-v1")
obs, _ = env.reset(seed=1)
for step in range(warm_up + steps):
    if step == warm_up:
        started = time.perf_counter()
    obs, reward, terminated, truncated, _ = env.step(int(agent.act(obs)))
    agent.observe(obs, reward, terminated, terminated or truncated)
    if terminated or truncated:
        obs, _ = env.reset()
print(steps / (time.perf_counter() - started))
"""
SCRIPT = """
import runpy, sys, time
from unittest import mock
import gymnasium, torch
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv

path, root, warm_up, steps = *sys.argv[1:3], *map(int, sys.argv[3:5])
torch.set_num_threads(1)
sys.modules["wandb"] = mock.MagicMock()  # nothing is tracked
sys.path.insert(0, root)

class Clocked(SyncVectorEnv):
    # The script's environments, as gymnasium had them when it was written, with a clock.
    num_steps, started = 0, 0.0

    def __init__(self, env_fns):
        super().__init__(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions):
        if self.num_steps == warm_up:
            self.started = time.perf_counter()
        if self.num_steps == warm_up + steps:
            print(steps / (time.perf_counter() - self.started), flush=True)
            raise SystemExit
        self.num_steps += self.num_envs
        *results, infos = super().step(actions)
        if "final_obs" in infos:
            infos["final_observation"] = infos["final_obs"]
        infos.pop("final_info", None)
        return *results, infos

gymnasium.vector.SyncVectorEnv = Clocked
transform = wrappers.TransformObservation
wrappers.TransformObservation = lambda env, f: transform(env, f, None)
sys.argv[1:] = sys.argv[5:]
runpy.run_path(path, run_name="__main__")
"""


@dataclass(frozen=True)
class Comparison:
    """Programs that do the same work; each returns environment steps per second."""

    steps: int
    """Measured environment steps of each run."""
    contestants: dict[str, Callable[[int], float]]
    """By name; the first is compared with each of the others."""
    one_core: bool = False
    """Whether each has one core, its simulator and helpers included."""


def ours(agent: str, flags: str, warm_up: int, steps: int) -> float:
    """Return the speed of one of our agents, from its own record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"agents.{agent}", "--device=cpu", f"--out={folder}"]
        command += [f"--env-steps={warm_up + steps}", f"--log-interval={warm_up}", *flags.split()]
        _run(command, threads=1)
        speed = throughput(Path(folder) / "seed-1")
    assert speed is not None
    return speed["env_steps_per_second"]


def stable_baselines3(name: str, threads: int, warm_up: int, steps: int) -> float:
    """Return the speed of stable-baselines3, by its own settings' defaults."""
    numbers = map(str, (threads, warm_up, steps))
    return _peer(STABLE_BASELINES3, ["stable_baselines3", name, *numbers], threads)


def torchrl(threads: int, warm_up: int, steps: int) -> float:
    """Return the speed of SAC put together from torchrl's collector, replay and loss."""
    return _peer(TORCHRL, [*map(str, (threads, warm_up, steps))], threads)


def sbx(name: str, warm_up: int, steps: int) -> float:
    """Return the speed of sbx, stable-baselines3's agents in JAX, by its defaults."""
    numbers = map(str, (1, warm_up, steps))
    return _peer(STABLE_BASELINES3, ["sbx", name, *numbers], 1, PEERS / "sbx")


def script(repository: str, path: str, flags: str, warm_up: int, steps: int) -> float:
    """Return the speed of a script of CleanRL's kind, by its own file; NaN without a clone of it.

    SAC's actor is updated every second step, twice, as by its default. The clock is an
    environment's.
    """
    root = PEERS / "src" / repository.rpartition("/")[2]
    if not (root / path).exists():
        print(f"left out: {path}; git clone https://github.com/{repository} {root}", flush=True)
        return float("nan")
    arguments = [str(root / path), str(root), str(warm_up), str(steps), *flags.split()]
    try:
        return _peer(SCRIPT, arguments, threads=1)
    except UsageError as error:  # a script of another year beside today's packages
        print(f"left out: {error}", flush=True)
        return float("nan")


def pfrl(replay_ratio: int, unroll_length: int, warm_up: int, steps: int) -> float:
    """Return the speed of pfrl's ACER on CartPole, networks and unrolls as ours."""
    numbers = (replay_ratio, unroll_length, 1, warm_up, steps // 20)  # it takes its time
    return _peer(PFRL, [*map(str, numbers)], threads=1)


def _peer(program: str, arguments: Sequence[str], threads: int, place: Path = PEERS) -> float:
    """Run a program in the peers' environment and return the speed that it prints."""
    python = place / "bin" / "python"
    if not python.exists():
        peer = "" if place == PEERS else f" PEER={place.name}"
        raise UsageError(f"the peers' environment is missing: run `make peers{peer}` first")
    with tempfile.TemporaryDirectory() as folder:  # worker processes import a file
        file = Path(folder) / "peer.py"
        file.write_text(program)
        return float(_run([str(python), str(file), *arguments], threads, folder).split()[-1])


def _run(command: list[str], threads: int, folder: str | Path = ROOT) -> str:
    limits: dict[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    limits["OMP_WAIT_POLICY"] = "PASSIVE"  # for all contestants: waiting threads do not spin
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **limits}
    )
    if run.returncode:
        raise UsageError(f"{' '.join(command)[:80]} failed: {run.stderr.strip()[-300:]}")
    return run.stdout


def ppo(name: str, num_unrolls: int, rows: int, flags: str) -> Comparison:
    """Return a comparison of PPO's after two unrolls."""
    warm_up = 2 * rows
    return Comparison(
        steps=num_unrolls * rows,
        one_core=True,
        contestants={
            "encore": partial(ours, "ppo", flags, warm_up),
            "sbx": partial(sbx, f"ppo-{name}", warm_up),
        },
    )


_OURS = "--task=HalfCheetah-v4 --learning-starts=500 --evaluation-interval=1000000"
_SAC = "--env-id=HalfCheetah-v5 --learning-starts=500"
_CLEANRL = "vwxyzjn/cleanrl", "cleanrl/sac_continuous_action.py", _SAC
_LEANRL = "pytorch-labs/LeanRL", "leanrl/sac_continuous_action_torchcompile.py", f"{_SAC} --compile"
_ACER = "--task=CartPole-v1"
_PONG = "--suite=atari-7 --task=Pong-v5 --num-envs=16"
_LIKE_A2C = f"{_PONG} --num-minibatches=1 --unroll-length=20 --convolutions=nature"
_CARTPOLE = "--task=CartPole-v1 --no-normalise-observations --reward-normalisation=none"
_CHEETAH = (
    "--task=HalfCheetah-v4 --normalise-observations --reward-normalisation=discounted_returns"
)
_EQUAL = "--num-envs=8 --no-recompute-advantages --evaluation-rule=training"
_PPO = f"{_EQUAL} --num-epochs=4 --num-minibatches=4 --unroll-length=128"
_LONG_PPO = f"{_EQUAL} --num-epochs=10 --num-minibatches=32 --unroll-length=256"
COMPARISONS = {
    "sac": Comparison(
        steps=1_500,
        one_core=True,
        contestants={
            "encore": partial(ours, "sac", f"{_OURS} --evaluation-episodes=1", 600),
            "stable-baselines3": partial(stable_baselines3, "sac", 1, 600),
            "torchrl": partial(torchrl, 1, 600),
            "sbx": partial(sbx, "sac", 600),
            "CleanRL": partial(script, *_CLEANRL, 600),
            "LeanRL": partial(script, *_LEANRL, 600),
        },
    ),
    "ppo-cartpole": ppo("cartpole", 40, 1_024, f"{_CARTPOLE} {_PPO}"),
    "ppo-halfcheetah": ppo("halfcheetah", 6, 2_048, f"{_CHEETAH} {_LONG_PPO}"),
    "a2c-cartpole": Comparison(
        steps=160_000,
        contestants={
            "encore": partial(ours, "a2c", _CARTPOLE, 16_000),
            "stable-baselines3": partial(stable_baselines3, "a2c-cartpole", 1, 1_600),
        },
    ),
    **{
        f"acer-cartpole-{ratio}": Comparison(
            steps=40_000,
            contestants={
                "encore": partial(ours, "acer", f"{_ACER} --replay-ratio={ratio}", 4_000),
                "pfrl": partial(pfrl, ratio, 10, 1_000),
            },
        )
        for ratio in (0, 4)
    },
    "a2c-pong": Comparison(
        steps=16_000,
        contestants={
            "encore": partial(ours, "a2c", f"{_PONG} --num-threads=2", 1_600),
            "stable-baselines3": partial(stable_baselines3, "a2c-pong", 2, 1_600),
            "stable-baselines3, 16 processes": partial(
                stable_baselines3, "a2c-pong-processes", 1, 1_600
            ),
        },
    ),
    "impala-pong": Comparison(
        steps=16_000,
        contestants={
            "encore impala": partial(ours, "impala", _LIKE_A2C, 1_600),
            "encore a2c": partial(ours, "a2c", f"{_PONG} --num-threads=2", 1_600),
        },
    ),
}


def main(argv: Sequence[str]) -> int:
    """Measure turns of every comparison asked for; print each and the summary."""
    parser = Parser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--pairs", type=int, default=5, help="turns of every contestant")
    parser.add_argument("--steps", type=int, help="measured environment steps of each run")
    parser.add_argument("--out", type=Path, help="CSV file of every turn")
    parser.add_argument("--busy", action="store_true", help="measure beside other programs, too")
    options = parser.parse(argv)
    for name in options.names:
        if name not in COMPARISONS:
            raise UsageError(f"no comparison {name!r}{nearest(name, COMPARISONS)}")
    busy = busy_cores()
    if busy > MOST_BUSY and not options.busy:
        raise UsageError(f"{busy:.1f} cores are at work: wait until nothing runs, or --busy")
    where = {"processor": processor_name(processor()), "commit": revision()["commit"]}
    print(f"{where['processor']}, {num_cores()} cores, {busy:.1f} at work", flush=True)
    cores, rows = os.sched_getaffinity(0), list[dict[str, Any]]()
    for name in options.names or COMPARISONS:
        comparison = COMPARISONS[name]
        used = {max(cores)} if comparison.one_core else cores
        os.sched_setaffinity(0, used)
        facts = {"comparison": name, "cores": len(used), **where}
        for turn in range(1, options.pairs + 1):
            steps = options.steps or comparison.steps
            speeds = {who: measure(steps) for who, measure in comparison.contestants.items()}
            said = " ".join(f"{s:,.0f}" for s in speeds.values())
            print(f"{name}, turn {turn}: {said} (load {os.getloadavg()[0]:.1f})", flush=True)
            ours = speeds.pop(next(iter(speeds)))
            rows += [
                {
                    **facts,
                    "turn": turn,
                    "beside": who,
                    "ours": round(ours, 1),
                    "theirs": round(s, 1),
                }
                for who, s in speeds.items()
                if s > 0  # it took part
            ]
    frame = pd.DataFrame(rows)
    print(beside(frame))
    if options.out:
        frame.to_csv(options.out, index=False)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
