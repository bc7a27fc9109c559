"""Measure the scores of a uniformly random policy: the zero of every normalised score.

`python -m suite.random_policy --tasks HalfCheetah-v4 --episodes 100` updates
`suite/random_scores.csv`. Actions are uniform over [-1, 1], scaled to the task's bounds, and over
the discrete choices; a score is the undiscounted return of a whole episode.
"""

import csv
import io
import sys
from collections.abc import Callable, Sequence

import numpy as np

from suite.command_line import Parser, run_main
from suite.evaluation import evaluate
from suite.files import write_atomically
from suite.randomness import environment_seeds, stream
from suite.settings import UsageError
from suite.tasks import ATARI_PROTOCOLS, RANDOM_SCORES, TASKS, Task, find_task, random_scores
from suite.vector_env import VectorEnv

COLUMNS: tuple[str, ...] = (
    *("task", "protocol", "mean_return", "std_return", "num_episodes", "seed", "shortest_episode"),
)


def measure(task: Task, *, episodes: int, seed: int = 0) -> np.ndarray:
    """Return the returns of a random policy, `[episodes]`, in reward units."""
    act = _random_actions(task, seed)
    return evaluate(task, act, [seed], 0, episodes=episodes, stream="random policy")[0]


def shortest_episode(task: Task, *, episodes: int, seed: int = 0) -> int:
    """Return the decisions of the shortest of several episodes; plays none to a later end."""
    act = _random_actions(task, seed)
    env = VectorEnv(task, environment_seeds([seed], episodes, "random policy", 0))
    obs, length = env.reset(), 0
    while True:
        step, length = env.step(act(obs)), length + 1
        if step.episode_ends.any():
            return length
        obs = step.obs


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
    """Measure tasks; after each, replace its row in `suite/random_scores.csv`."""
    for task in tasks:
        episode_returns = measure(task, episodes=episodes, seed=seed)
        rows: dict[tuple[str, str], dict[str, str]] = {}
        if RANDOM_SCORES.exists():
            with RANDOM_SCORES.open(newline="") as file:
                rows = {(row["task"], row["protocol"]): row for row in csv.DictReader(file)}
        rows[task.name, task.protocol] = {
            "task": task.name,
            "protocol": task.protocol,
            "mean_return": f"{episode_returns.mean():.6g}",
            "std_return": f"{episode_returns.std(ddof=1):.6g}",
            "num_episodes": str(episodes),
            "seed": str(seed),
            "shortest_episode": str(shortest_episode(task, episodes=episodes, seed=seed)),
        }
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
        write_atomically(RANDOM_SCORES, text.getvalue().encode())
        print(f"{task.name} {task.protocol} {episode_returns.mean():.6g}", flush=True)
    random_scores.cache_clear()


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
    tasks = []
    for name in options.tasks:
        task = find_task(name)
        atari = task.family == "atari"
        tasks += [find_task(name, protocol) for protocol in ATARI_PROTOCOLS] if atari else [task]
    write_scores(tasks, episodes=options.episodes, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
