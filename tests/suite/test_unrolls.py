"""Unrolls, collected in place or read from replay: an update reads what happened, and no more."""

import dataclasses
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from agents.acer import Config
from suite.base.randomness import environment_seeds
from suite.envs.tasks import find_task
from suite.envs.vector_env import Spaces, Step, VectorEnv
from suite.nets.moments import RunningMoments
from suite.unrolls import Unroll, UnrollBatch, UnrollReplay
from tests.agents.trainings import random_flags

CPU = torch.device("cpu")
DISCRETE, CONTINUOUS = Spaces((4,), 3), Spaces.vectors(4, 3)
FRAMES = Spaces((4, 84, 84), 6)


def small(**changes: Any) -> Config:
    """Return an agent's settings: four unrolls of three steps in replay, five environments."""
    settings: dict[str, Any] = {"task": "CartPole-v1", "num_envs": 5, "unroll_length": 3}
    settings |= {"gamma": 0.9, "replay_capacity": 12, "replay_start": 0, "online_updates": True}
    return Config(**(settings | changes))


class Added(NamedTuple):
    """What one call of `add` was given."""

    actions: np.ndarray
    behaviour: np.ndarray
    step: Step


def random_steps(config: Config, spaces: Spaces, num_steps: int) -> tuple[np.ndarray, list[Added]]:
    """First observations, and steps whose rewards name them: 8 * step + environment."""
    rng, size = np.random.default_rng(0), config.num_envs
    terminations, truncations, valid = random_flags(rng, num_steps, size)

    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    added, first_obs = [], numbers(size, *spaces.obs_shape)
    for t in range(num_steps):
        obs = numbers(1, size, *spaces.obs_shape)
        rewards = (8 * t + np.arange(size)).astype(np.float32)[None]
        flags = (terminations[t : t + 1], truncations[t : t + 1], valid[t : t + 1])
        ends, zeros = flags[0] | flags[1], np.zeros((1, size))
        step = Step(obs, obs, rewards, rewards, *flags, ends, zeros, zeros.astype(int))
        actions = rng.integers(0, spaces.num_outputs, size)
        if spaces.continuous:
            actions = numbers(size, spaces.num_outputs)
        added.append(Added(actions, numbers(size, spaces.num_outputs), step))
    return first_obs, added


def fill(config: Config, spaces: Spaces, num_steps: int) -> tuple[UnrollReplay, list[Added]]:
    """Replay with random steps, and what was added."""
    first_obs, added = random_steps(config, spaces, num_steps)
    replay = UnrollReplay(spaces, config, spaces.num_outputs, CPU)
    replay.put_first_obs(first_obs)
    for each in added:
        replay.add(*each)
    return replay, added


def drawn(config: Config, batch: UnrollBatch) -> list[tuple[int, int]]:
    """Return the number of each column's unroll, and its environment; all are whole."""
    steps, envs = np.divmod(batch.rewards.numpy().astype(int), 8)
    numbers = steps[0] // config.unroll_length
    whole = numbers * config.unroll_length + np.arange(config.unroll_length)[:, None]
    np.testing.assert_array_equal(steps, whole)
    np.testing.assert_array_equal(envs, np.broadcast_to(envs[0], envs.shape))
    return list(zip(numbers.tolist(), envs[0].tolist(), strict=True))


def assert_same(ours: UnrollBatch, theirs: UnrollBatch) -> None:
    for name, column in ours._asdict().items():
        other = getattr(theirs, name)
        assert column.dtype == other.dtype, name
        assert torch.equal(column, other), name


def test_minibatches_share_out_the_columns() -> None:
    """Each is in exactly one, whole in time and in order; all weights still add up to 1."""
    replay, _ = fill(small(num_envs=6), CONTINUOUS, 6)
    batch = replay.newest()
    parts = batch.minibatches(3)
    assert len(parts) == 3
    for name, column in batch._asdict().items():
        shares = [getattr(part, name) for part in parts]
        assert {share.shape[:2] for share in shares} == {(len(column), 2)}
        assert torch.equal(torch.cat(shares, 1), column)
    assert not batch.valid.all()
    assert [part.weights.sum().item() for part in parts] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("time_limit_is_terminal", [False, True])
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_what_is_collected_is_what_replay_returns(
    spaces: Spaces, time_limit_is_terminal: bool
) -> None:
    """The same steps are the same transitions to the bit, in place and from a ring."""
    config = small(unroll_length=6, time_limit_is_terminal=time_limit_is_terminal)
    first_obs, added = random_steps(config, spaces, 6)
    unroll = Unroll(config, spaces, CPU, keeps_outputs=True)
    are_new = np.ones(config.num_envs, dtype=bool)
    unroll.put_obs(0, first_obs, are_new)
    for t, (actions, behaviour, step) in enumerate(added):
        unroll.actions[t] = torch.from_numpy(actions)
        unroll.behaviour[t] = torch.from_numpy(behaviour)
        unroll.outcomes.put(t, step)
        unroll.put_obs(t + 1, step.obs[0], are_new)
    batch = unroll.transitions()
    assert_same(batch, fill(config, spaces, 6)[0].newest())
    assert batch.obs.data_ptr() == unroll.obs.data_ptr()  # neither is copied
    assert batch.actions.data_ptr() == unroll.actions.data_ptr()


@pytest.mark.parametrize("factor", [1 / 255, 1 / 256])
def test_frames_are_scaled_as_they_are_put(factor: float) -> None:
    """The network acts on the row that is learned from; the whole unroll lies channels-last."""
    frames = np.random.default_rng(0).integers(0, 256, (3, 2, *FRAMES.obs_shape), dtype=np.uint8)
    unroll = Unroll(small(num_envs=2, unroll_length=2), FRAMES, CPU, frame_factor=factor)
    rows = [unroll.put_obs(t, obs, np.ones(2, dtype=bool)) for t, obs in enumerate(frames)]
    expected = np.float32(frames) * np.float32(factor)
    np.testing.assert_array_equal(unroll.obs, expected)
    assert [row.data_ptr() for row in rows] == [row.data_ptr() for row in unroll.obs]
    joined = unroll.transitions().obs.flatten(0, 1)
    assert joined.data_ptr() == unroll.obs.data_ptr()
    assert joined.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("time_limit_is_terminal", [False, True])
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_replay_returns_what_was_added(spaces: Spaces, time_limit_is_terminal: bool) -> None:
    """Every column of every kept unroll, and the observation after it, in a ring that wraps."""
    config = small(time_limit_is_terminal=time_limit_is_terminal)
    replay, added = fill(config, spaces, 33)
    assert (replay.num_steps, replay.num_unrolls, config.kept_unrolls) == (33, 11, 4)
    pairs = [*product(range(7, 11), range(5)), (8, 3), (8, 3)]
    numbers, envs = (np.array(column) for column in zip(*pairs[::-1], strict=True))
    batch = replay.read(numbers, envs)
    assert batch.actions.dtype == (torch.float32 if spaces.continuous else torch.int64)
    seen = set()
    for i, (number, env) in enumerate(zip(numbers, envs, strict=True)):
        for t in range(3):
            before, (actions, behaviour, step) = added[3 * number + t - 1], added[3 * number + t]
            np.testing.assert_array_equal(batch.obs[t, i], before.step.obs[0, env])
            np.testing.assert_array_equal(batch.obs[t + 1, i], step.obs[0, env])
            np.testing.assert_array_equal(batch.actions[t, i], actions[env])
            np.testing.assert_array_equal(batch.behaviour[t, i], behaviour[env])
            assert batch.rewards[t, i].item() == step.rewards[0, env]
            assert batch.valid[t, i].item() == step.valid[0, env]
            terminated, cut = step.terminations[0, env], step.truncations[0, env]
            assert batch.trace_mask[t, i].item() == (not (terminated or cut))
            ends = terminated or (cut and time_limit_is_terminal)
            assert batch.discounts[t, i].item() == np.float32(0.0 if ends else 0.9)
            seen.add((bool(terminated), bool(cut), bool(step.valid[0, env])))
    torch.testing.assert_close(batch.weights, batch.valid / batch.valid.sum())
    assert seen == {(False, False, True), (True, False, True), (False, True, True)} | {
        (False, False, False)
    }


@pytest.mark.parametrize(("num_steps", "kept"), [(7, (0, 1)), (12, (0, 3)), (34, (7, 10))])
def test_samples_hold_whole_unrolls_that_are_not_overwritten(num_steps: int, kept: Any) -> None:
    """One of each environment, drawn on its own, or any number of any, with replacement."""
    config, generator = small(), np.random.default_rng(2)
    replay, _ = fill(config, DISCRETE, num_steps)
    of_each, of_any, unlike, twice = set(), set(), 0, 0
    for _ in range(100):
        pairs = drawn(config, replay.sample(generator))
        assert [env for _, env in pairs] == list(range(5))
        of_each |= set(pairs)
        unlike += len({number for number, _ in pairs}) > 1
        pairs = drawn(config, replay.sample_any(generator, 3))
        of_any |= set(pairs)
        twice += len(set(pairs)) < 3 == len(pairs)
    assert of_each == of_any == set(product(range(kept[0], kept[1] + 1), range(5)))
    assert unlike > 50
    assert twice > 0


def test_a_policy_acts_on_observations_standardised_by_all_it_acted_on() -> None:
    """The newest enter mean and variance first, but for those whose action is ignored."""
    config, rows = small(observation_clip=1.5), list[np.ndarray]()
    replay = UnrollReplay(DISCRETE, config, 3, CPU, RunningMoments((4,)))
    for _, _, step in random_steps(config, DISCRETE, 12)[1]:
        acted_on = ~(step.terminations | step.truncations)[0]
        rows.extend(step.obs[0, acted_on].astype(np.float64))
        scaled = (step.obs[0] - np.mean(rows, 0)) / np.sqrt(np.var(rows, 0) + 1e-8)
        seen = replay.read_obs(step.obs[0], acted_on)
        np.testing.assert_allclose(seen, scaled.clip(-1.5, 1.5), rtol=1e-6, atol=1e-6)


def test_rebuilt_stacks_are_the_simulators_bit_for_bit() -> None:
    """Across lost lives, games that end, games cut short, and through a ring that wraps."""
    config = small(num_envs=2, unroll_length=10, replay_capacity=100)
    task = dataclasses.replace(find_task("Breakout-v5"), time_limit=180)
    env = VectorEnv(task, environment_seeds([1], 2, "environments"))
    replay, rng = UnrollReplay(env.spaces, config, 0, CPU), np.random.default_rng(0)
    behaviour, envs = np.zeros((2, 0), dtype=np.float32), np.arange(2)
    obs = env.reset()[0]
    replay.put_first_obs(obs)
    seen, lives, games, cut = [obs], 0, 0, 0
    for unroll in range(40):
        for _ in range(10):
            actions = rng.integers(0, env.spaces.num_outputs, 2)
            step = env.step(actions[None])
            replay.add(actions, behaviour, step)
            seen.append(step.obs[0])
            lives += int((step.terminations & ~step.episode_ends).sum())
            games += int((step.terminations & step.episode_ends).sum())
            cut += int(step.truncations.sum())
        for number in {max(0, unroll - 9), unroll}:  # right at first and at last
            expected = np.stack(seen[10 * number : 10 * number + 11])
            expected = expected.astype(np.float32) * np.float32(1 / 255)
            np.testing.assert_array_equal(replay.read(np.full(2, number), envs).obs, expected)
            mixed = replay.read(np.array([unroll, number]), envs).obs
            np.testing.assert_array_equal(mixed[:, 1], expected[:, 1])
    assert lives > 5
    assert games > 1
    assert cut > 1
    joined = replay.newest().obs.flatten(0, 1)
    assert joined.is_contiguous(memory_format=torch.channels_last)
