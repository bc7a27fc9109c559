"""Draws of updates: their distributions, and what they depend on."""

import pytest
import scipy.stats
import torch
from torch import Tensor

from suite.draws import Draws
from suite.priorities import PriorityDraws

SEEDS = (3, 1, 4)
BATCH_SIZE = 40
NOISE_SHAPE = (2, BATCH_SIZE, 3)


def made() -> Draws:
    return Draws(SEEDS, NOISE_SHAPE, torch.device("cpu"))


def drawn(draw: Draws, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Return rows and noise of as many updates, by update and seed."""
    draws = [draw(size) for size in sizes]
    for each in draws:
        assert each.last_row == each.rows.max()
    rows, noise = torch.stack([each.rows for each in draws]), [each.noise for each in draws]
    return rows, torch.stack(noise).transpose(1, 2)


def test_rows_are_uniform_and_noise_is_normal() -> None:
    """Each row of a replay is drawn as often, the last one too, and none beyond it."""
    rows, noise = drawn(made(), 100 * [7])
    assert (rows.dtype, rows.shape) == (torch.int64, (100, 3, BATCH_SIZE))
    assert (noise.dtype, noise.shape) == (torch.float32, (100, 3, *NOISE_SHAPE))
    for seed in range(3):
        counts = torch.bincount(rows[:, seed].flatten(), minlength=7)
        assert len(counts) == 7
        assert scipy.stats.chisquare(counts).pvalue > 0.01
        assert scipy.stats.kstest(noise[:, seed].flatten(), "norm").pvalue > 0.01


def test_priorities_decide_the_rows_and_their_weights() -> None:
    """Errors of the rows drawn last become priorities; the noise is what it was without them."""
    priorities = PriorityDraws(1, 10, 1.0, 0.0, 1.0)
    draw, plain = (
        Draws((3,), (1, 100, 2), torch.device("cpu"), priorities=each)
        for each in (priorities, None)
    )
    draw.add(torch.arange(4).numpy())
    first = draw(4)
    assert torch.equal(first.noise, plain(4).noise)
    assert torch.equal(torch.bincount(first.rows[0]), torch.full((4,), 25))
    assert torch.equal(draw.weights, torch.ones(1, 100))
    draw.update(torch.where(first.rows == 2, 6.0, 2.0))  # of 6 and three times 2: a half
    rows = draw(4).rows[0]
    assert torch.bincount(rows).tolist() == pytest.approx([100 / 6, 100 / 6, 50, 100 / 6], abs=1)
    torch.testing.assert_close(draw.weights[0], torch.where(rows == 2, 0.5, 1.5))
    assert draw.streams[-1] is priorities
    plain.update(torch.ones(1, 100))
    assert torch.equal(plain.weights, torch.ones(1, 100))


def test_no_update_and_no_seed_draws_what_another_draws() -> None:
    """Neither rows nor noise, and noise is not the rows' numbers in another form."""
    rows, noise = drawn(made(), 100 * [10**6])
    for numbers in (rows, noise):
        assert len({each.numpy().tobytes() for each in numbers.flatten(0, 1)}) == 300
    pairs = rows.flatten().numpy(), noise[:, :, 0, :, 0].flatten().numpy()
    assert scipy.stats.spearmanr(*pairs).pvalue > 0.01


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_seed_draws_the_same_alone(num_threads: int) -> None:
    """Whoever its neighbours are, in every update, and whichever thread draws for it."""
    place = NOISE_SHAPE, torch.device("cpu")
    together = drawn(Draws(range(30), *place, num_threads=num_threads), 40 * [1000])
    for seed in (1, 29):
        alone = drawn(Draws((seed,), *place), 40 * [1000])
        for ours, theirs in zip(together, alone, strict=True):
            assert torch.equal(ours[:, seed], theirs[:, 0])
