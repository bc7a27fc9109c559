"""Running moments: those of everything seen, on both sides, and what is scaled by them."""

import math

import numpy as np
import pytest
import torch

from suite.envs.vector_env import Step
from suite.nets.moments import DeviceMoments, RewardScale, RunningMoments
from tests.agents.trainings import random_flags

CPU = torch.device("cpu")


def test_running_moments_equal_those_of_all_rows() -> None:
    """However they are cut into batches, and so far from 0 that float32 loses the deviation."""
    rows = np.random.default_rng(0).normal(1e4, 0.1, size=(500, 4)).astype(np.float32)
    moments, exact = RunningMoments((4,)), rows.astype(np.float64)
    for chunk in np.split(rows, [3, 10, 200, 200, 333]):
        moments.add(chunk)
    np.testing.assert_allclose(moments.mean, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, exact.var(0), rtol=1e-9)
    scaled = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(moments.standardise(rows, 1.5), scaled.clip(-1.5, 1.5), atol=1e-5)
    assert moments.standardise(rows, 1.5).dtype == np.float32


def test_before_the_first_rows_moments_are_those_of_a_standard_variable() -> None:
    """Mean 0 and variance 1: numbers pass as they are."""
    rows = np.array([[0.5, -2.0], [20.0, 0.0]])
    expected = rows.clip(-10, 10)
    np.testing.assert_allclose(RunningMoments((2,)).standardise(rows, 10.0), expected, rtol=1e-6)
    moments = DeviceMoments(CPU)
    assert moments.values.tolist() == [0.0, 0.0, 1.0]
    assert moments.std().item() == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_both_sides_are_one_definition(seed: int) -> None:
    """Random batches, of which some numbers are valid: the same moments to 1e-12 after each."""
    rng = np.random.default_rng(seed)
    ours, theirs = RunningMoments(()), DeviceMoments(CPU)
    values = theirs.values
    centre, spread = rng.normal(scale=10), rng.uniform(0.1, 10)
    for i in range(20):
        shape = tuple(rng.integers(1, 9, size=2))
        numbers = rng.normal(centre, spread, size=shape)
        valid = rng.uniform(size=shape) < rng.uniform()
        valid[0, 0] |= i == 0  # an empty batch may follow, not come first
        ours.add(numbers[valid])
        weights = torch.from_numpy(valid / max(valid.sum(), 1))
        theirs.add(torch.from_numpy(numbers), weights)
        expected = [ours.count, float(ours.mean), float(ours.variance)]
        np.testing.assert_allclose(values.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert theirs.values is values  # in place, as a graph reads them
    assert theirs.std().dtype == torch.float32
    assert theirs.std().item() == pytest.approx(math.sqrt(ours.variance + 1e-8), rel=1e-6)


def test_rewards_are_divided_by_the_deviation_of_discounted_sums() -> None:
    """Against a slow loop: sums of past rewards of valid rows, begun anew after each end."""
    rng, no = np.random.default_rng(0), np.zeros((1, 3))
    scale, sums, seen = RewardScale(3, 0.9, 1.5), [0.0] * 3, []
    for terminations, truncations, valid in zip(*random_flags(rng, 40, 3), strict=True):
        rewards = rng.normal(1, 5, size=3) * valid
        for i in range(3):
            sums[i] = 0.9 * sums[i] + rewards[i]
            if valid[i]:
                seen.append(sums[i])
            if terminations[i] or truncations[i]:
                sums[i] = 0.0
        deviation = math.sqrt(np.var(seen) + 1e-8)
        expected = [max(min(reward / deviation, 1.5), -1.5) for reward in rewards]
        ends = terminations[None], truncations[None]
        step = Step(no, no, rewards[None], no, *ends, valid[None], no, no, no)
        np.testing.assert_allclose(scale.of(step).rewards[0], expected, rtol=1e-10)
    assert 50 < len(seen) < 120
