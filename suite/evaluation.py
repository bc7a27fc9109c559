"""Score a policy: one episode in each of several fresh environments."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suite.base.randomness import environment_seeds
from suite.envs.tasks import Task
from suite.envs.vector_env import VectorEnv


def evaluate(
    task: Task,
    act: Callable[[np.ndarray], np.ndarray],
    seeds: Sequence[int],
    env_steps: int,
    *,
    episodes: int,
    stream: str = "evaluation",
    num_threads: int = 1,
    memory: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and lengths in decisions of each seed's first episodes, `[S, episodes]` each.

    Environments are made for this evaluation and seeded from each seed's `stream` and `env_steps`,
    so an evaluation neither disturbs training nor depends on what came before it.

    Args:
        task: the task to play.
        act: maps observations `[S, episodes, *obs]` to actions for `VectorEnv.step`.
        seeds: the runs' seeds, in the order of the `S` axis.
        env_steps: training steps so far.
        episodes: environments per seed, each of which plays one episode.
        stream: name of the random stream that seeds the simulators.
        num_threads: simulator threads; returns do not depend on it.
        memory: what `act` remembers, such as a recurrent `Policy.memory`; it begins empty. None:
            nothing.
    """
    env_seeds = environment_seeds(seeds, episodes, stream, env_steps)
    env = VectorEnv(task, env_seeds, num_threads=num_threads)
    episode_returns = np.full((len(seeds), episodes), np.nan)
    episode_lengths = np.zeros(episode_returns.shape, dtype=np.int64)
    done = np.zeros(episode_returns.shape, dtype=bool)
    obs = env.reset()
    if memory is not None:
        memory.forget()
    while not done.all():
        step = env.step(act(obs))
        if memory is not None:
            memory.note(step.rewards, ~step.valid)
        first_ends = step.episode_ends & ~done
        episode_returns[first_ends] = step.episode_returns[first_ends]
        episode_lengths[first_ends] = step.episode_lengths[first_ends]
        done |= step.episode_ends
        obs = step.obs
    return episode_returns, episode_lengths
