"""Draws of updates: their distributions, and what they depend on."""

from typing import Any

import pytest
import scipy.stats
import torch

from suite.draws import DeviceDraws, HostDraws

CPU = torch.device("cpu")
SEEDS = (3, 1, 4)
BATCH_SIZE = 40
NOISE_SHAPE = (2, BATCH_SIZE, 3)
KINDS = pytest.mark.parametrize("kind", [HostDraws, DeviceDraws])


def made(kind: Any, seeds: tuple[int, ...] = SEEDS) -> Any:
    return kind(seeds, BATCH_SIZE, NOISE_SHAPE, CPU)


@KINDS
def test_rows_are_uniform_and_noise_is_normal(kind: Any) -> None:
    """Each row of a replay is drawn as often, the last one too, and none beyond it."""
    draw = made(kind)
    drawn = [draw(number, 7) for number in range(100)]
    rows = torch.stack([rows for rows, _ in drawn])
    noise = torch.stack([noise for _, noise in drawn])
    assert (rows.dtype, rows.shape) == (torch.int64, (100, 3, BATCH_SIZE))
    assert (noise.dtype, noise.shape) == (torch.float32, (100, 3, *NOISE_SHAPE))
    for seed in range(3):
        assert (
            scipy.stats.chisquare(torch.bincount(rows[:, seed].flatten(), minlength=7)).pvalue
            > 0.01
        )
        assert scipy.stats.kstest(noise[:, seed].flatten(), "norm").pvalue > 0.01
    assert len(noise.unique()) > 0.98 * noise.numel()  # no update and no seed repeats another's


@KINDS
def test_a_seed_draws_the_same_alone(kind: Any) -> None:
    """Whoever its neighbours are, in every update."""
    draw, alone = made(kind), made(kind, (1,))
    for number in range(40):
        for together, single in zip(draw(number, 1000), alone(number, 1000), strict=True):
            assert torch.equal(together[1], single[0])


@KINDS
def test_a_replay_that_grows_is_drawn_from_in_full(kind: Any) -> None:
    """The size of the moment counts, though numbers were drawn ahead."""
    draw = made(kind)
    for number, size in enumerate([1, 2, 500, 1_000_000]):
        rows, _ = draw(number, size)
        assert rows.min() >= 0
        assert (size - 1) * 0.8 <= rows.max() < size


def test_what_a_device_draws_follows_from_the_number_alone() -> None:
    """So a run that was stopped goes on with the numbers that it would have drawn."""
    draw = made(DeviceDraws)
    whole = [draw(number, 10_000) for number in range(3 * DeviceDraws.AHEAD)]
    for number in (0, 1, DeviceDraws.AHEAD, 2 * DeviceDraws.AHEAD + 5, 3):
        for ours, theirs in zip(made(DeviceDraws)(number, 10_000), whole[number], strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [1, 3, 1000, 2**20 - 1, 2**20, 2**20 + 1, 10**9 + 7])
def test_the_largest_draw_is_the_last_row(size: int) -> None:
    """Its product with the size is not rounded up to the row after it."""
    draw = made(DeviceDraws)
    vars(draw)["_uniform"].fill_(1 - 2**-53)
    assert (draw(0, size)[0] == size - 1).all()


def test_torchs_own_generator_is_left_alone() -> None:
    """Numbers drawn elsewhere do not depend on updates."""
    state = torch.get_rng_state()
    made(DeviceDraws)(0, 10)
    assert torch.equal(torch.get_rng_state(), state)
