"""Draws by priority: frequencies, ties, importance weights, new rows, a restored state."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from suite.base.randomness import stream
from suite.base.snapshot import pack, unpack
from suite.priorities import LEVELS, WIDTH, PriorityDraws


def draws_of(errors: np.ndarray, **settings: Any) -> PriorityDraws:
    """Return draws of rows with these errors, `[S, R]`, whose priorities they are by default."""
    powers = {"exponent": 1.0, "epsilon": 0.0, "importance_exponent": 1.0, **settings}
    draws = PriorityDraws(len(errors), errors.shape[1] + 7, **powers)
    draws.update(np.arange(errors.shape[1])[None].repeat(len(errors), 0), torch.from_numpy(errors))
    return draws


def streams(num_seeds: int) -> list[np.random.Generator]:
    return [stream(seed, "replay sampling") for seed in range(num_seeds)]


def shares_of(draws: PriorityDraws, size: int) -> list[float]:
    """Return each row's share of all priorities, which importance weights tell of those drawn."""
    (rows,), (weights,) = draws.draw(streams(1), 4_000, size)
    shares = np.zeros(size)
    shares[rows] = 1 / (size * weights)
    return shares.tolist()


def approx(*priorities: float) -> Any:
    """Return shares of these priorities; importance weights are float32."""
    return pytest.approx([each / sum(priorities) for each in priorities], rel=1e-5)


@pytest.mark.parametrize("num_rows", [1, 5, WIDTH, 3_000, WIDTH ** (LEVELS - 1) + 50])
def test_rows_are_those_at_which_the_running_sum_passes_the_strata(num_rows: int) -> None:
    """In exact arithmetic: a search in the sum of all priorities, one draw from each stratum."""
    errors = np.random.default_rng(0).integers(0, 8, (2, num_rows)).astype(float)
    errors[:, 0] += 1
    rows, weights = draws_of(errors).draw(streams(2), 64, num_rows)
    for seed, generator in enumerate(streams(2)):
        shares = (np.arange(64) + generator.random(64)) / 64
        sums = np.cumsum(errors[seed])
        expected = np.searchsorted(sums, shares * sums[-1], side="right")
        assert rows[seed].tolist() == expected.tolist()
        ratios = errors[seed, expected] / errors[seed].mean()
        np.testing.assert_allclose(weights[seed], 1 / ratios, rtol=1e-6)


def test_equal_priorities_are_uniform_and_weigh_one() -> None:
    """With exponent 0 whatever the errors: 100 of 100 rows, each once, with weight 1."""
    errors = np.random.default_rng(2).uniform(0, 9, (2, 100))
    draws = draws_of(errors, exponent=0.0, importance_exponent=0.4)
    rows, weights = draws.draw(streams(2), 100, 100)
    assert [sorted(of_seed) for of_seed in rows.tolist()] == [[*range(100)]] * 2
    np.testing.assert_allclose(weights, 1, rtol=1e-6)


def test_new_rows_come_first_and_rows_without_a_transition_never() -> None:
    """A new row has the greatest priority of its seed, at least 1, also when that has gone down."""
    draws = PriorityDraws(1, 50, 1.0, 0.0, 1.0)
    draws.add(np.arange(3))
    assert shares_of(draws, 5) == approx(1, 1, 1, 0, 0)
    draws.update(np.array([[0, 1]]), torch.tensor([[7.0, 0.5]]))
    draws.add(np.array([3]))
    assert shares_of(draws, 5) == approx(7, 0.5, 1, 7, 0)
    draws.update(np.array([[0, 2, 3]]), torch.tensor([[0.2, 0.4, 0.2]]))
    draws.add(np.array([4]))
    assert shares_of(draws, 5) == approx(0.2, 0.5, 0.4, 0.2, 1)


def test_a_row_drawn_twice_keeps_the_last_error() -> None:
    """The sums above it know of that one alone."""
    draws = draws_of(np.ones((1, 4)))
    draws.update(np.array([[2, 2, 2]]), torch.tensor([[5.0, 6.0, 3.0]]))
    assert shares_of(draws, 4) == approx(1, 1, 3, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_errors_that_are_not_finite_leave_rows_that_exist(bad: float) -> None:
    """A seed that diverges goes on drawing until that is found, and its neighbour as before."""
    errors = np.random.default_rng(5).uniform(0.1, 1, (2, 30))
    expected = draws_of(errors).draw(streams(2), 16, 30)
    sick = draws_of(np.stack([np.full(30, bad), errors[1]]))
    rows, weights = sick.draw(streams(2), 16, 30)
    assert rows[0].max() < 30
    assert rows[1].tolist() == expected[0][1].tolist()
    assert weights[1].tolist() == expected[1][1].tolist()


def test_rounding_never_ends_at_a_row_without_priority() -> None:
    """Priorities over thirty orders of magnitude among zeros, and the last share below 1."""
    errors = np.zeros((1, 2_000))
    errors[0, ::7] = 10.0 ** np.random.default_rng(6).uniform(-20, 10, len(errors[0, ::7]))
    draws = draws_of(errors)
    for seed in range(20):
        rows, _ = draws.draw([np.random.default_rng(seed)], 4_096, 2_000)
        assert (errors[0][rows[0]] > 0).all()
    for share in (0.0, np.nextafter(1.0, 0.0), 1.0):
        generator: Any = SimpleNamespace(random=lambda number, share=share: np.full(number, share))
        rows, _ = draws.draw([generator], 1, 2_000)
        assert errors[0][rows[0, 0]] > 0


def test_a_restored_state_draws_the_same_also_in_a_longer_ring() -> None:
    """A checkpoint keeps priorities and sums; an extended run has room for more."""
    draws = draws_of(np.random.default_rng(7).uniform(0.1, 3, (2, 1_500)))
    tensors: dict[str, Tensor] = {}
    packed = pack(draws, tensors, "draws")
    for capacity in (1_507, 90_000):
        restored = PriorityDraws(2, capacity, 1.0, 0.0, 1.0)
        unpack(packed, tensors, restored)
        both = [each.draw(streams(2), 64, 1_500) for each in (draws, restored)]
        for one, other in zip(*both, strict=True):
            assert one.tolist() == other.tolist()
        restored.add(np.array([1_500]))  # it goes on as well
        assert 1_500 in restored.draw(streams(2), 4_000, 1_501)[0]
