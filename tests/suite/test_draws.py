"""Draws of updates: their distributions, and what they depend on."""

from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from suite.draws import DeviceDraws, HostDraws

SEEDS = (3, 1, 4)
BATCH_SIZE = 40
NOISE_SHAPE = (2, BATCH_SIZE, 3)
LEAST_P = {"cpu": 0.01, "cuda": 1e-4}
"""A GPU's numbers are not known yet: of its seven tests one in 1,400 may fail by chance."""
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
KINDS = pytest.mark.parametrize("kind", [HostDraws, DeviceDraws])


def made(kind: Any, device: str = "cpu", seeds: tuple[int, ...] = SEEDS) -> Any:
    return kind(seeds, NOISE_SHAPE, torch.device(device))


def drawn(draw: Any, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Return rows and noise of as many updates, by update and seed."""
    draws = [draw(number, size) for number, size in enumerate(sizes)]
    for each in draws:
        assert each.last_row == each.rows.max()
    rows, noise = torch.stack([each.rows for each in draws]), [each.noise for each in draws]
    return rows.cpu(), torch.stack(noise).cpu().transpose(1, 2)


@DEVICES
@KINDS
def test_rows_are_uniform_and_noise_is_normal(kind: Any, device: str) -> None:
    """Each row of a replay is drawn as often, the last one too, and none beyond it."""
    rows, noise = drawn(made(kind, device), 100 * [7])
    assert (rows.dtype, rows.shape) == (torch.int64, (100, 3, BATCH_SIZE))
    assert (noise.dtype, noise.shape) == (torch.float32, (100, 3, *NOISE_SHAPE))
    for seed in range(3):
        counts = torch.bincount(rows[:, seed].flatten(), minlength=7)
        assert len(counts) == 7
        assert scipy.stats.chisquare(counts).pvalue > LEAST_P[device]
        assert scipy.stats.kstest(noise[:, seed].flatten(), "norm").pvalue > LEAST_P[device]


@DEVICES
@KINDS
def test_no_update_and_no_seed_draws_what_another_draws(kind: Any, device: str) -> None:
    """Neither rows nor noise, and noise is not the rows' numbers in another form."""
    rows, noise = drawn(made(kind, device), 100 * [10**6])
    for numbers in (rows, noise):
        assert len({each.numpy().tobytes() for each in numbers.flatten(0, 1)}) == 300
    pairs = rows.flatten().numpy(), noise[:, :, 0, :, 0].flatten().numpy()
    assert scipy.stats.spearmanr(*pairs).pvalue > LEAST_P[device]


@DEVICES
@KINDS
def test_a_seed_draws_the_same_alone(kind: Any, device: str) -> None:
    """Whoever its neighbours are, in every update."""
    together = drawn(made(kind, device), 40 * [1000])
    alone = drawn(made(kind, device, (1,)), 40 * [1000])
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(ours[:, 1], theirs[:, 0])


@DEVICES
@KINDS
def test_a_replay_that_grows_is_drawn_from_in_full(kind: Any, device: str) -> None:
    """The size of the moment counts, though numbers were drawn ahead."""
    sizes = [1, 2, 500, 1_000_000]
    rows, _ = drawn(made(kind, device), sizes)
    assert rows.min() >= 0
    for size, of_update in zip(sizes, rows, strict=True):
        assert (size - 1) * 0.8 <= of_update.max() < size


@DEVICES
def test_what_a_device_draws_follows_from_the_number_alone(device: str) -> None:
    """So a run that was stopped goes on with the numbers that it would have drawn."""
    rows, noise = drawn(made(DeviceDraws, device), 3 * DeviceDraws.AHEAD * [10_000])
    for number in (0, 1, DeviceDraws.AHEAD, 2 * DeviceDraws.AHEAD + 5, 3):
        ours = made(DeviceDraws, device)(number, 10_000)
        assert torch.equal(ours.rows.cpu(), rows[number])
        assert torch.equal(ours.noise.cpu(), noise[number].transpose(0, 1))


@pytest.mark.parametrize("size", [1, 3, 1000, 2**20 - 1, 2**20, 2**20 + 1, 10**9 + 7])
def test_the_largest_draw_is_the_last_row(size: int) -> None:
    """Its product with the size is not rounded up to the row after it."""
    draw = made(DeviceDraws)
    draw(0, size)
    vars(draw)["_uniform"].fill_(1 - 2**-53)
    assert (draw(0, size).rows == size - 1).all()


@DEVICES
def test_torchs_own_generators_are_left_alone(device: str) -> None:
    """Numbers drawn elsewhere do not depend on updates."""

    def states() -> list[Tensor]:
        own = torch.cuda.get_rng_state if device == "cuda" else torch.get_rng_state
        return [torch.get_rng_state(), own()]

    before = states()
    made(DeviceDraws, device)(0, 10)
    assert all(map(torch.equal, states(), before))
