"""Measure policies that learned nothing: random, standing still, and untrained.

    python -m reproduce.judge.zero_scores --tasks HalfCheetah-v4 Hopper-v4
    python -m reproduce.judge.zero_scores --tasks HalfCheetah-v4 --only untrained

It updates `reproduce/plan/unlearned.csv`. A score is the undiscounted return of a whole episode.
Random actions are uniform over [-1, 1], scaled to the task's bounds, and over the discrete choices.
The idle action is 0 in [-1, 1], no operation in a game, and none of a few other tasks' moves; the
rest have no such action.

The untrained policy has the initial networks of SAC, of A2C or IMPALA, or of `sac_alf`, by the kind
of actions, and the default preset of the task's suite (of a task without one, the agent's own
default). Continuous policies play their mode, discrete ones sample, for they begin near uniform and
the mode is a single action.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from reproduce.judge.fingerprints import untrained_returns
from reproduce.plan.unlearned import ZEROS, read_zeros
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.base.randomness import stream
from suite.envs.tasks import (
    ATARI_PROTOCOLS,
    TASKS,
    Task,
    find_task,
    tasks_in,
)
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate
from suite.settings.command_line import Parser, run_main

COLUMNS: tuple[str, ...] = (
    *("task", "protocol", "mean_return", "std_return", "num_episodes", "seed"),
    *("shortest_episode", "longest_episode", "idle_return"),
    *("untrained_return", "untrained_agent", "untrained_rule"),
)
KEYS = ["task", "protocol"]
SEED = 0
"""Of the random policy."""
IDLE_ACTIONS = {"Acrobot-v1": 1, "MountainCar-v0": 1, "LunarLander-v3": 0}
"""Discrete actions without torque, push or thrust; in a game it is 0, and others have none."""
AGENTS_OF = {
    "continuous": (("sac",), "deterministic"),
    "discrete": (("a2c", "impala"), "sampled"),
    "hybrid": (("sac_alf",), "deterministic"),
}
"""Agents of each kind of actions, the first that trains a task plays it, and their rule."""


def random_returns(task: Task, *, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and lengths in decisions of a random policy's episodes, `[episodes]` each."""
    act = _random_actions(task)
    returns, lengths = evaluate(task, act, [SEED], 0, episodes=episodes, stream="random policy")
    return returns[0], lengths[0]


def idle_returns(task: Task, *, episodes: int) -> np.ndarray | None:
    """Return the returns of standing still in the random policy's episodes; None: impossible."""
    action = 0 if task.family == "atari" else IDLE_ACTIONS.get(task.name)
    if task.actions != "continuous" and action is None:
        return None
    shape = VectorEnv(task, np.zeros((1, 1), dtype=np.int32)).action_shape
    actions = np.full((1, episodes, *shape), action or 0)
    stand: dict[str, Any] = {"episodes": episodes, "stream": "random policy"}
    returns, _ = evaluate(task, lambda _: actions, [SEED], 0, **stand)
    return returns[0]


def _random_actions(task: Task) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from observations `[S, N, *obs]` to uniformly random actions."""
    generator = stream(SEED, "random policy actions")
    probe = VectorEnv(task, np.zeros((1, 1), dtype=np.int32))

    def act(obs: np.ndarray) -> np.ndarray:
        shape = (*obs.shape[:2], *probe.action_shape)
        if task.actions == "discrete":
            return generator.integers(0, probe.num_actions, size=shape)
        actions = generator.uniform(-1.0, 1.0, size=shape)
        if task.actions == "hybrid":
            actions[..., 0] = generator.integers(0, probe.num_actions, size=shape[:-1])
        return actions

    return act


def untrained_config(task: Task) -> tuple[str, Any]:
    """Return the agent whose initial networks play a task, and its settings there.

    An evaluation has ten episodes; in a game, whose episodes are long, two.
    """
    agents, rule = AGENTS_OF[task.actions]
    presets = {agent: importlib.import_module(f"agents.{agent}").PRESETS for agent in agents}
    training = [
        (agent, preset.config)
        for agent in agents
        for (suite, _), preset in presets[agent].items()
        if task.name in (preset.tasks or tasks_in(suite))
    ]
    agent, config = (training or [(agents[0], next(iter(presets[agents[0]].values())).config)])[0]
    changes: dict[str, Any] = {"protocol": task.protocol} if task.family == "atari" else {}
    episodes = 2 if task.family == "atari" else 10
    changes |= {"evaluation_rule": rule, "evaluation_episodes": episodes}
    return agent, replace(config, task=task.name, **changes)


def measure_random(task: Task, *, episodes: int) -> dict[str, str]:
    """Return the columns of the random policy and of standing still."""
    returns, lengths = random_returns(task, episodes=episodes)
    idle = idle_returns(task, episodes=episodes)
    return {
        "mean_return": f"{returns.mean():.6g}",
        "std_return": f"{returns.std(ddof=1):.6g}",
        "num_episodes": str(episodes),
        "seed": str(SEED),
        "shortest_episode": str(lengths.min()),
        "longest_episode": str(lengths.max()),
        "idle_return": "" if idle is None else f"{idle.mean():.6g}",
    }


def measure_untrained(task: Task) -> dict[str, str]:
    """Return the columns of the untrained policy."""
    agent, config = untrained_config(task)
    return {
        "untrained_return": f"{untrained_returns(agent, config).mean():.6g}",
        "untrained_agent": agent,
        "untrained_rule": config.evaluation_rule,
    }


def put(task: Task, measured: Mapping[str, str]) -> None:
    """Write columns of a task's row of `reproduce/plan/unlearned.csv`; all else stays as it is."""
    table = pd.DataFrame([{"task": task.name, "protocol": task.protocol, **measured}])
    before = pd.read_csv(ZEROS, dtype=str, keep_default_na=False)
    table = table.set_index(KEYS).combine_first(before.set_index(KEYS)).reset_index()
    content = table.reindex(columns=list(COLUMNS)).to_csv(index=False, lineterminator="\n")
    write_atomically(ZEROS, content.encode())
    read_zeros.cache_clear()


def in_every_protocol(names: Sequence[str]) -> list[Task]:
    """Return the tasks of these names; of a game, one for each protocol that has its own scores.

    Small frames have those of large ones (`read_zeros`).
    """
    tasks = []
    for name in names:
        task = find_task(name)
        games = [find_task(name, each) for each in ATARI_PROTOCOLS if each != "small_frames"]
        tasks += games if task.family == "atari" else [task]
    return tasks


def main(argv: Sequence[str]) -> int:
    """Read the command line, measure and write after each task; return the exit status."""
    parser = Parser(prog="python -m reproduce.judge.zero_scores", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="default: every task")
    parser.add_argument("--only", choices=("random", "untrained"), help="default: both")
    parser.add_argument("--episodes", type=int, default=100, help="of the random policy")
    options = parser.parse(argv)
    if options.episodes < 2:
        raise UsageError(f"--episodes must be at least 2, not {options.episodes}")
    for task in in_every_protocol(options.tasks):
        measured: dict[str, str] = {}
        if options.only != "untrained" or (task.name, task.protocol) not in read_zeros():
            measured |= measure_random(task, episodes=options.episodes)
        if options.only != "random":
            measured |= measure_untrained(task)
        put(task, measured)
        print(task.name, task.protocol, *measured.values(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
