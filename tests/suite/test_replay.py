"""Uniform replay: what was stored comes back, seed by seed, and the oldest goes first."""

import numpy as np
import pytest
import torch

from suite.envs.vector_env import Step
from suite.replay import HistoryReplay, Replay

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
    again = replay.batch(torch.tensor([[0, 3, 3], [2, 1, 0]]))  # rows may repeat, in any order
    assert torch.equal(again.obs[0], batch.obs[0, [0, 3, 3]])
    assert torch.equal(again.obs[1], batch.obs[1, [2, 1, 0]])


def history(num_steps: int, capacity: int, ends: dict[int, str]) -> HistoryReplay:
    """Return a replay of observations 100 seed + step + env / 10; `ends`: the second's, by step."""
    replay = HistoryReplay(2, capacity, 2, (1, 1, 0), 1, CPU)
    for t in range(num_steps):
        tag = (100 * np.arange(2)[:, None] + t + np.arange(2) / 10).astype("f4")
        kinds = [np.zeros((2, 2), dtype=bool) for _ in range(2)]
        if t in ends:
            kinds[ends[t] == "truncation"][:, 1] = True
        obs, ages, (ended, stopped) = tag[..., None], np.ones((2, 2), int), kinds
        flags = (ended, stopped, tag >= 0, ended | stopped)
        step = Step(obs, obs + 0.5, tag, tag, *flags, tag, ages)
        replay.store(obs, obs / 1000, step, scale=2.0)
    return replay


@pytest.mark.parametrize("capacity", [40, 12])
def test_sequences_follow_one_environment_until_its_episode_ends(capacity: int) -> None:
    """They also end at the newest transition, in a growing ring and in one that came round."""
    replay = history(9, capacity, {4: "truncation", 6: "termination"})
    oldest = max(0, 9 - capacity // 2)
    size = 2 * (9 - oldest)
    rows = torch.arange(size).expand(2, size)
    batch, counts = replay.sequences(rows, 3)
    steps = batch.obs[..., 0].unflatten(1, (3, size))
    for i in range(size):
        for seed in range(2):
            found = round(steps[seed, 0, i].item() - 100 * seed, 1)
            t, env = int(found), round(10 * (found - int(found)))
            assert counts[seed, 0, i] == 1
            last = min(8, *(end for end in (4, 6, 8) if end >= t)) if env else 8
            for ahead in (1, 2):
                assert counts[seed, ahead, i] == (t + ahead <= last)
                expected = 100 * seed + min(t + ahead, last) + env / 10
                assert steps[seed, ahead, i].item() == pytest.approx(expected, abs=1e-3)
    alone, every = replay.sequences(rows, 1)
    for one, other in zip(alone, replay.batch(rows), strict=True):
        assert torch.equal(one, other)
    assert every.shape == (2, 1, size)
    assert every.all()


def test_what_came_before_is_stored_beside_a_transition() -> None:
    """The scaled reward as its only part, the action before, and whether there was one."""
    batch = history(5, 40, {2: "truncation"}).batch(torch.arange(10).expand(2, 10))
    parts, previous, is_first = batch.extras.unbind(-1)
    tags = batch.obs[..., 0]
    torch.testing.assert_close(parts, 2 * tags)
    torch.testing.assert_close(batch.rewards, 2 * tags)
    firsts = torch.zeros(10)
    firsts[[0, 1, 7]] = 1  # both begin; the second environment begins anew after step 2
    assert torch.equal(is_first, firsts.expand(2, 10))
    expected = torch.cat([torch.zeros(2, 2), tags[:, :-2]], 1) / 1000 * (1 - firsts)
    torch.testing.assert_close(previous, expected)
