"""Scores: the first episode of fresh environments, whatever happened before."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from suite.base.randomness import environment_seeds
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate

CARTPOLE = find_task("CartPole-v1")


def lean(obs: np.ndarray) -> np.ndarray:
    """Balance CartPole badly, by what is seen alone."""
    return ((obs[..., 2] > 0) ^ (np.sin(1e4 * obs[..., 1]) > 0.0)).astype(np.int64)


def first_episode(env_seed: int, act: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the score of one environment played alone until it ends for the first time."""
    env = VectorEnv(CARTPOLE, np.array([[env_seed]]))
    obs, score = env.reset(), 0.0
    while True:
        step = env.step(act(obs))
        score += float(step.raw_rewards.item())
        if step.episode_ends.item():
            return score
        obs = step.obs


def test_the_score_is_the_first_episode_of_each_environment() -> None:
    """Not its second, which short first episodes would add, nor a sum beyond its end."""
    scores, lengths = evaluate(CARTPOLE, lean, [3, 4], 1000, episodes=5)
    env_seeds = environment_seeds([3, 4], 5, "evaluation", 1000)
    assert scores.shape == (2, 5)
    assert scores.max() > 2 * scores.min()  # the short ones went on while the long ones ended
    assert np.array_equal(lengths, scores)  # each step gives a reward of 1
    assert scores.tolist() == [[first_episode(int(s), lean) for s in row] for row in env_seeds]


@pytest.mark.parametrize(
    ("seed", "env_steps", "stream"),
    [(2, 1000, "evaluation"), (1, 2000, "evaluation"), (1, 1000, "x")],
)
def test_every_evaluation_has_environments_of_its_own(
    seed: int, env_steps: int, stream: str
) -> None:
    """The same ten starts at every evaluation would make a whole curve err in one direction."""

    def starts(seed: int, env_steps: int, stream: str) -> np.ndarray:
        seen: list[np.ndarray] = []

        def act(obs: np.ndarray) -> np.ndarray:
            seen.append(obs.copy())
            return lean(obs)

        evaluate(CARTPOLE, act, [seed], env_steps, episodes=3, stream=stream)
        return seen[0]

    ours, other = starts(1, 1000, "evaluation"), starts(seed, env_steps, stream)
    assert not np.isin(ours, other).any()


def test_a_memory_hears_the_rewards_and_where_episodes_begin() -> None:
    """It begins empty, and hears of every step: an ignored action has no reward."""
    heard: list[Any] = []
    memory: Any = SimpleNamespace(forget=lambda: heard.append("forget"))
    memory.note = lambda rewards, starts: heard.append((rewards.copy(), starts.copy()))
    scores, _ = evaluate(CARTPOLE, lean, [3], 1000, episodes=5, memory=memory)
    assert heard[0] == "forget"
    rewards, starts = (np.stack(each) for each in zip(*heard[1:], strict=True))
    assert len(rewards) == scores.max()
    assert np.array_equal(rewards, np.where(starts, 0.0, 1.0))
    first = np.argmax(starts, axis=0)  # the step after the first end
    short = scores < scores.max()
    assert np.array_equal(first[short], scores[short])
