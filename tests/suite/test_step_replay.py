"""The replay that keeps every frame once gives the transitions of one that keeps whole stacks."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from suite.base.randomness import environment_seeds
from suite.envs.tasks import find_task
from suite.envs.vector_env import Spaces, Step, VectorEnv
from suite.nets.networks import prepare
from suite.step_replay import StepReplay, row_bytes

CPU = torch.device("cpu")
Key = tuple[int, int, float, float, int]


def keys(obs: np.ndarray, next_obs: np.ndarray, *columns: np.ndarray) -> Iterator[Key]:
    """Yield what identifies each transition: hashed observations, action, reward, termination."""
    rows = zip(*columns, strict=True)
    for one, following, (action, reward, end) in zip(obs, next_obs, rows, strict=True):
        of_obs, of_next_obs = hash(one.tobytes()), hash(following.tobytes())
        yield of_obs, int(action), float(reward), float(end), of_next_obs


def play(
    task: str, num_steps: int, num_rows: int, seeds: tuple[int, ...] = (3, 4)
) -> tuple[StepReplay, list[deque[Key]], int]:
    """Play at random; return a replay, and a naive one of whole observations for each seed."""
    num_envs, rng = 2, np.random.default_rng(0)
    env = VectorEnv(
        find_task(task), environment_seeds(seeds, num_envs, "environments"), reset="same_step"
    )
    obs = env.reset()
    replay = StepReplay(env.spaces, len(seeds), num_envs, num_rows, CPU)
    naive: list[deque[Key]] = [deque() for _ in seeds]
    num_ends = 0
    for _ in range(num_steps):
        actions = rng.integers(0, env.num_actions, (len(seeds), num_envs))
        step = env.step(actions)
        replay.store(obs, actions, step)
        before, after = (prepared(each) for each in (obs, step.next_obs))
        for s, kept in enumerate(naive):
            columns = actions[s], step.rewards[s], step.terminations[s]
            kept.extend(keys(before[s], after[s], *columns))
        num_ends += int(np.count_nonzero(step.terminations | step.truncations))
        obs = step.obs
    return replay, naive, num_ends


def prepared(obs: np.ndarray) -> np.ndarray:
    """Return observations `[S, N, *obs]` as networks read them."""
    return np.ascontiguousarray(
        prepare(obs.reshape(-1, *obs.shape[2:]), CPU).unflatten(0, obs.shape[:2]).numpy()
    )


def drawn(replay: StepReplay, num_seeds: int, size: int) -> list[list[Key]]:
    """Return as many transitions of each seed, drawn in batches of a hundred."""
    generators = [np.random.default_rng(s) for s in range(num_seeds)]
    found: list[list[Key]] = [[] for _ in generators]
    for _ in range(size // 100):
        batch = replay.sample(generators, 100)
        obs, next_obs = (np.ascontiguousarray(each.numpy()) for each in (batch.obs, batch.next_obs))
        columns = [column.numpy() for column in (batch.actions, batch.rewards, batch.terminations)]
        for s, of_seed in enumerate(found):
            of_seed.extend(keys(obs[s], next_obs[s], *(column[s] for column in columns)))
    return found


@pytest.mark.parametrize(
    ("task", "num_steps"), [("CartPole-v1", 150), ("Breakout-v5", 100), ("MountainCar-v0", 210)]
)
def test_every_transition_is_that_of_a_naive_replay(task: str, num_steps: int) -> None:
    """Across lost lives, ended games, falls and time limits: none is missing, none is made up."""
    replay, naive, num_ends = play(task, num_steps, num_rows=500)
    assert num_ends >= 4
    for ours, kept in zip(drawn(replay, 2, 20 * num_steps), naive, strict=True):
        assert set(ours) == set(kept)


@pytest.mark.parametrize(("task", "num_steps"), [("CartPole-v1", 400), ("Breakout-v5", 100)])
def test_a_ring_that_came_round_holds_only_whole_transitions(task: str, num_steps: int) -> None:
    """A stack of which a frame was overwritten is never drawn; nearly all of the newest are."""
    num_rows = 40
    replay, naive, _ = play(task, num_steps, num_rows)
    for ours, kept in zip(drawn(replay, 2, 1_000), naive, strict=True):
        newest = set(list(kept)[-2 * num_rows :])
        assert set(ours) <= newest
        at_least = set(list(kept)[-2 * (num_rows - 15) :])
        assert at_least <= set(ours)


def test_transitions_are_drawn_equally_often() -> None:
    """Also while environments have rows of different numbers, as their episodes end."""
    replay, naive, _ = play("CartPole-v1", 40, num_rows=200, seeds=(5,))
    (ours,) = drawn(replay, 1, 80_000)
    counts = np.array([ours.count(key) for key in naive[0]])
    assert len(counts) == 80
    assert abs(counts - 1_000).max() < 5 * np.sqrt(1_000)


@pytest.mark.parametrize(("number", "size"), [(256, 1), (257, 2)])
def test_the_last_action_is_kept_whatever_its_number(number: int, size: int) -> None:
    """A byte would make the action 256 the action 0; the plan knows what a row takes."""
    spaces = Spaces((1,), number)
    replay, zeros = StepReplay(spaces, 1, 1, 8, CPU), np.zeros((1, 1))
    obs = zeros[..., None].astype(np.float32)
    none = zeros.astype(bool)
    step = Step(obs, obs, zeros.astype(np.float32), zeros, none, none, ~none, none, zeros, zeros)
    replay.store(obs, np.full((1, 1), number - 1), step)
    batch = replay.sample([np.random.default_rng(0)], 3)
    assert batch.actions.tolist() == [[number - 1] * 3]
    kept = [each for each in vars(replay).values() if isinstance(each, np.ndarray)]
    of_rows = sum(each.nbytes for each in kept if len(each) == 8)
    assert row_bytes(spaces) == of_rows / 8 == 11 + size
