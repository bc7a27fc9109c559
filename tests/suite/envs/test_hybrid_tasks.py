"""The claw: what a step does, what is best, and what is best with half an action's sight."""

from itertools import product

import numpy as np
import pytest

from suite.envs.hybrid_tasks import DROP, FIRST, SECOND
from suite.envs.tasks import find_task
from suite.envs.vector_env import VectorEnv

CLAW = find_task("Claw-v0")


def evenly(each: int) -> np.ndarray:
    """Return seeds, `[1, 8 * each]`, as many for either far axis on every pair of sides."""
    obs = VectorEnv(CLAW, np.arange(40 * each, dtype=np.int32)[None]).reset()[0]
    far, sides = np.abs(obs).argmax(axis=1), (obs > 0) @ [2, 4]
    groups = [np.flatnonzero(far + sides == group)[:each] for group in range(8)]
    return np.concatenate(groups, dtype=np.int32)[None]


ENV_SEEDS = evenly(5)


def towards_the_centre(obs: np.ndarray) -> np.ndarray:
    """Return the distances, in half units, that lead straight to the prize, `[..., 2]`."""
    return np.clip(-obs / 0.5, -1.0, 1.0)


def scores(choices: np.ndarray) -> np.ndarray:
    """Return the scores of forty claws that go straight to the prize by choices, `[T, 40]`."""
    env, steps = VectorEnv(CLAW, ENV_SEEDS), []
    env.reset()
    for chosen in choices:
        moves = towards_the_centre(env.obs)
        steps.append(env.step(np.concatenate([chosen[None, :, None], moves], axis=-1)))
    assert steps[-1].terminations.all()
    return steps[-1].episode_returns[0]


def every_plan(longest: int) -> list[tuple[int, int]]:
    """Return all numbers of moves of the two axes; their order does not matter."""
    return [(n, m) for n, m in product(range(longest + 1), repeat=2) if n + m <= longest]


def choices_of(plan: tuple[int, int]) -> np.ndarray:
    """Return a plan's choices, the same for forty claws, `[T, 40]`."""
    each = np.array([FIRST] * plan[0] + [SECOND] * plan[1] + [DROP])
    return np.repeat(each[:, None], 40, axis=1)


def test_who_sees_the_claw_reaches_exactly_the_optimum() -> None:
    """0.7 in every episode, after three moves and the drop: no luck is left to noise."""
    env = VectorEnv(CLAW, ENV_SEEDS, reset="same_step")
    obs = env.reset()
    for t in range(1, 41):
        misses = np.abs(obs)
        choices = np.where(misses.max(-1) <= 0.1, DROP, misses.argmax(-1))
        step = env.step(np.concatenate([choices[..., None], towards_the_centre(obs)], axis=-1))
        assert step.episode_ends.all() == step.episode_ends.any() == (t % 4 == 0)
        obs = step.obs
        if t % 4 == 0:
            assert step.terminations.all()
            np.testing.assert_allclose(step.episode_returns, 0.7, atol=1e-6)


def test_no_plan_is_better_and_no_single_plan_reaches_it() -> None:
    """Every claw's best of all plans of eight moves is 0.7; the best for all alike scores 0.6."""
    table = np.array([scores(choices_of(plan)) for plan in every_plan(8)])
    np.testing.assert_allclose(table.max(axis=0), 0.7, atol=1e-6)
    assert table.mean(axis=1).max() == pytest.approx(0.6, abs=1e-6)
    assert every_plan(8)[table.mean(axis=1).argmax()] == (2, 2)


def test_a_step_does_what_its_choice_says() -> None:
    """Each axis by its own distance alone, to the square's edge; a drop pays by where it is."""
    env = VectorEnv(CLAW, ENV_SEEDS)
    before = env.reset()
    actions = np.empty((1, 40, 3))
    actions[..., 0], actions[..., 1:] = np.arange(40) % 3, [0.8, -0.4]
    step = env.step(actions)
    first, second, drop = (actions[0, :, 0] == choice for choice in (FIRST, SECOND, DROP))
    moved = np.clip(before + np.array([0.4, -0.2]), -1.0, 1.0)
    np.testing.assert_allclose(step.next_obs[0, first, 0], moved[0, first, 0], atol=1e-6)
    np.testing.assert_allclose(step.next_obs[0, second, 1], moved[0, second, 1], atol=1e-6)
    np.testing.assert_array_equal(step.next_obs[0, first, 1], before[0, first, 1])
    np.testing.assert_array_equal(step.next_obs[0, second, 0], before[0, second, 0])
    np.testing.assert_array_equal(step.next_obs[0, drop], before[0, drop])
    np.testing.assert_allclose(step.rewards[0, ~drop], -0.1, atol=1e-7)
    # one axis is 0.8 to 1 from the centre and the other 0.3 to 0.5, so both miss the tolerance
    paid = 1 - (np.abs(before[0, drop]).sum(-1) - 0.2)
    np.testing.assert_allclose(step.rewards[0, drop], paid, atol=1e-6)
    np.testing.assert_array_equal(step.terminations[0], drop)
