"""Uniform replay: what was stored comes back, seed by seed, and the oldest goes first."""

import numpy as np
import pytest
import torch

from suite.replay import Replay

CPU = torch.device("cpu")


def fill(replay: Replay, num_seeds: int, num_envs: int, num_steps: int) -> None:
    """Add transitions that a tag tells apart: 100 * seed + 10 * step + environment."""
    for t in range(num_steps):
        tag = (100 * np.arange(num_seeds)[:, None] + 10 * t + np.arange(num_envs)).astype("f4")
        wide = np.repeat(tag[..., None], 3, -1)
        replay.add(wide, tag[..., None] / 1000, tag + 0.5, tag % 2 == 0, wide + 5)


def test_replay_returns_what_was_stored_and_forgets_the_oldest() -> None:
    """Rows come back whole, per seed, and a full ring holds exactly the newest transitions."""
    replay = Replay(2, 7, 2, 3, 1, CPU)  # capacity becomes 6
    assert replay.capacity == 6
    fill(replay, 2, 2, 5)
    assert replay.size == 6
    batch = replay.batch(torch.arange(6).expand(2, 6))
    assert sorted(batch.obs[0, :, 0].tolist()) == [20, 21, 30, 31, 40, 41]
    assert sorted(batch.obs[1, :, 0].tolist()) == [120, 121, 130, 131, 140, 141]
    torch.testing.assert_close(batch.rewards, batch.obs[..., 0] + 0.5)
    torch.testing.assert_close(batch.next_obs, batch.obs + 5)
    assert torch.equal(batch.obs_actions[..., :3], batch.obs)
    torch.testing.assert_close(batch.obs_actions[..., 3], batch.obs[..., 0] / 1000)
    torch.testing.assert_close(batch.terminations, (batch.obs[..., 0] % 2 == 0).float())


def test_each_seed_reads_its_own_rows_in_the_order_asked_for() -> None:
    """Indices count a seed's own transitions; they may repeat and come in any order."""
    replay = Replay(3, 8, 1, 3, 1, CPU)
    fill(replay, 3, 1, 4)
    indices = torch.tensor([[0, 3, 3], [2, 1, 0], [1, 1, 2]])
    tags = replay.batch(indices).obs[..., 0]
    assert torch.equal(tags, 10.0 * indices + torch.tensor([[0.0], [100.0], [200.0]]))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_size_counts_what_is_stored_until_the_ring_is_full(num_envs: int) -> None:
    """Transitions of one seed: those added so far, never more than the capacity."""
    replay = Replay(2, 9, num_envs, 3, 1, CPU)
    sizes = []
    for _ in range(12 // num_envs):
        fill(replay, 2, num_envs, 1)
        sizes.append(replay.size)
    assert sizes == [min(num, 9) for num in range(num_envs, 13, num_envs)]


def test_extras_come_back_beside_their_transition() -> None:
    """What else is stored moves no other column, and the newest rows are known as they wrap."""
    replay = Replay(2, 7, 2, 3, 1, CPU, extra_size=3)
    for t in range(5):
        tag = (100 * np.arange(2)[:, None] + 10 * t + np.arange(2)).astype("f4")[..., None]
        wide = np.repeat(tag, 3, -1)
        replay.add(wide, tag, tag[..., 0], tag[..., 0] < 0, wide + 5, tag + 1, wide[..., :2] + 2)
        assert replay.newest.tolist() == [2 * t % 6, 2 * t % 6 + 1]
    batch = replay.batch(torch.tensor([[0, 3, 4], [1, 1, 5]]))
    tags = batch.obs[..., :1]
    torch.testing.assert_close(batch.next_obs, tags.expand(-1, -1, 3) + 5)
    torch.testing.assert_close(batch.extras, tags + torch.tensor([1.0, 2.0, 2.0]))
