"""Measure policies that learn nothing: the random one, and the one that stands still.

`python -m suite.random_policy --tasks HalfCheetah-v4 --episodes 100` updates
`suite/random_scores.csv`. Random actions are uniform over [-1, 1], scaled to the task's bounds, and
over the discrete choices. The idle action is 0 in [-1, 1], no operation in a game, and none of a
few other tasks' moves; the rest have no such action. A score is the undiscounted return of a whole
episode. The untrained policy's column is measured by `python -m reproduce.judge.untrained`.
"""

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.base.randomness import stream
from suite.envs.tasks import (
    ATARI_PROTOCOLS,
    RANDOM_SCORES,
    TASKS,
    Task,
    baseline_scores,
    find_task,
)
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate, play
from suite.settings.command_line import Parser, run_main

COLUMNS: tuple[str, ...] = (
    *("task", "protocol", "mean_return", "std_return", "num_episodes", "seed"),
    *("shortest_episode", "longest_episode", "idle_return"),
    *("untrained_return", "untrained_agent", "untrained_rule"),
)
IDLE_ACTIONS = {"Acrobot-v1": 1, "MountainCar-v0": 1, "LunarLander-v3": 0}
"""Discrete actions without torque, push or thrust; in a game it is 0, and others have none."""


def measure(task: Task, *, episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and lengths in decisions of a random policy's episodes, `[episodes]` each."""
    act = _random_actions(task, seed)
    returns, lengths = play(task, act, [seed], 0, episodes=episodes, stream="random policy")
    return returns[0], lengths[0]


def idle_returns(task: Task, *, episodes: int, seed: int = 0) -> np.ndarray | None:
    """Return the returns of standing still in the random policy's episodes; None: impossible."""
    action = 0 if task.family == "atari" else IDLE_ACTIONS.get(task.name)
    if task.actions != "continuous" and action is None:
        return None
    shape = VectorEnv(task, np.zeros((1, 1), dtype=np.int32)).action_shape
    actions = np.full((1, episodes, *shape), action or 0)
    return evaluate(task, lambda _: actions, [seed], 0, episodes=episodes, stream="random policy")[
        0
    ]


def _random_actions(task: Task, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from observations `[S, N, *obs]` to uniformly random actions."""
    generator = stream(seed, "random policy actions")
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


def write_scores(tasks: Sequence[Task], *, episodes: int, seed: int = 0) -> None:
    """Measure tasks; after each, put what was measured into `suite/random_scores.csv`."""
    for task in tasks:
        returns, lengths = measure(task, episodes=episodes, seed=seed)
        idle = idle_returns(task, episodes=episodes, seed=seed)
        measured = {
            "mean_return": f"{returns.mean():.6g}",
            "std_return": f"{returns.std(ddof=1):.6g}",
            "num_episodes": str(episodes),
            "seed": str(seed),
            "shortest_episode": str(lengths.min()),
            "longest_episode": str(lengths.max()),
            "idle_return": "" if idle is None else f"{idle.mean():.6g}",
        }
        put(task, measured)
        print(task.name, task.protocol, *measured.values(), flush=True)


def put(task: Task, measured: Mapping[str, str]) -> None:
    """Write columns of a task's row of `suite/random_scores.csv`; all else stays as it is."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    if RANDOM_SCORES.exists():
        with RANDOM_SCORES.open(newline="") as file:
            rows = {(row["task"], row["protocol"]): row for row in csv.DictReader(file)}
    key = {"task": task.name, "protocol": task.protocol}
    rows[task.name, task.protocol] = {**rows.get((task.name, task.protocol), {}), **key, **measured}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[key] for key in sorted(rows))
    write_atomically(RANDOM_SCORES, text.getvalue().encode())
    baseline_scores.cache_clear()


def in_every_protocol(names: Sequence[str]) -> list[Task]:
    """Return the tasks of these names; of a game, one for each protocol that has its own scores.

    Small frames have those of large ones (`baseline_scores`).
    """
    tasks = []
    for name in names:
        task = find_task(name)
        games = [find_task(name, each) for each in ATARI_PROTOCOLS if each != "small_frames"]
        tasks += games if task.family == "atari" else [task]
    return tasks


def main(argv: Sequence[str]) -> int:
    """Read the command line, measure and write; return the exit status."""
    parser = Parser(prog="python -m suite.random_policy", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="default: every task")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse(argv)
    if options.episodes < 2:
        raise UsageError(f"--episodes must be at least 2, not {options.episodes}")
    if options.seed < 0:
        raise UsageError(f"--seed must be at least 0, not {options.seed}")
    tasks = in_every_protocol(options.tasks)
    write_scores(tasks, episodes=options.episodes, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
