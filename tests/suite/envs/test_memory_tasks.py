"""Tasks that need memory: what is shown, what is best, and what is best without memory."""

from collections.abc import Callable
from itertools import product

import numpy as np

from suite.base.randomness import environment_seeds
from suite.envs.memory_tasks import FORWARD, LENGTH
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv

TMAZE = find_task("TMaze-v0")
Decide = Callable[[np.ndarray, int], int]
"""Maps an observation and the number of the maze to an action."""


def first_episodes(env_seeds: np.ndarray, decide: Decide) -> tuple[np.ndarray, np.ndarray]:
    """Return score and length of the first episode in each maze."""
    env = VectorEnv(TMAZE, env_seeds[None])
    obs, (scores, lengths) = env.reset(), np.full((2, len(env_seeds)), np.nan)
    while np.isnan(scores).any():
        step = env.step(np.array([[decide(row, i) for i, row in enumerate(obs[0])]]))
        first = step.episode_ends[0] & np.isnan(scores)
        scores[first] = step.episode_returns[0, first]
        lengths[first] = step.episode_lengths[0, first]
        obs = step.obs
    return scores, lengths


def seeds_of_both_cues() -> tuple[int, int]:
    """Return a seed whose first maze turns left, and one whose first maze turns right."""
    env = VectorEnv(TMAZE, np.arange(20, dtype=np.int32)[None])
    cues = env.reset()[0, :, 0].tolist()
    return cues.index(-1.0), cues.index(1.0)


def test_who_remembers_the_cue_reaches_exactly_the_optimum() -> None:
    """1 in every maze, after the corridor and one turn: no luck is left to noise."""
    env_seeds = environment_seeds([1], 30, "test")[0]
    remembered: dict[int, int] = {}

    def decide(obs: np.ndarray, maze: int) -> int:
        remembered.setdefault(maze, int(obs[0] > 0))
        return remembered[maze] if obs[1] else FORWARD

    scores, lengths = first_episodes(env_seeds, decide)
    assert set(remembered.values()) == {0, 1}
    assert (set(scores), set(lengths)) == ({1.0}, {LENGTH + 1.0})


def test_the_best_policy_without_memory_scores_exactly_half() -> None:
    """All 81 rules from observations to actions, each under both cues."""
    seen = [(-1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    rules = [dict(zip(seen, actions, strict=True)) for actions in product(range(3), repeat=4)]
    env_seeds = np.tile(np.array(seeds_of_both_cues(), dtype=np.int32), len(rules))
    scores, _ = first_episodes(env_seeds, lambda obs, i: rules[i // 2][tuple(obs.tolist())])
    assert scores.reshape(-1, 2).mean(axis=1).max() == 0.5


def test_only_the_first_observation_shows_the_cue() -> None:
    """Standing still does not prolong it, and the time limit truncates who never turns."""
    env = VectorEnv(TMAZE, environment_seeds([1], 4, "test"), reset="same_step")
    obs = env.reset()
    assert (np.abs(obs[..., 0]) == 1.0).all()
    for age in range(1, TMAZE.time_limit + 1):
        step = env.step(np.zeros((1, 4), dtype=np.int64))
        assert (step.next_obs == 0.0).all()
        assert step.truncations.all() == (age == TMAZE.time_limit)
        assert not step.terminations.any()
    assert (np.abs(env.obs[..., 0]) == 1.0).all()


def test_stateless_cartpole_is_cartpole_without_velocities() -> None:
    """Step for step: the first and the third component, and everything else unchanged."""
    env_seeds = environment_seeds([1], 3, "test")
    blind = VectorEnv(find_task("StatelessCartPole-v1"), env_seeds, reset="same_step")
    whole = VectorEnv(find_task("CartPole-v1"), env_seeds, reset="same_step")
    np.testing.assert_array_equal(blind.reset(), whole.reset()[..., [0, 2]], strict=True)
    assert blind.spaces.obs_shape == (2,)
    generator, ended = np.random.default_rng(0), 0
    for _ in range(60):
        actions = generator.integers(0, 2, size=(1, 3))
        ours, full = blind.step(actions), whole.step(actions)
        for name in ("obs", "next_obs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(full, name)[..., [0, 2]])
        for one, two in zip(ours[2:], full[2:], strict=True):
            np.testing.assert_array_equal(one, two, strict=True)
        ended += ours.episode_ends.sum()
    assert ended > 3
