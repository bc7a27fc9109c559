"""Updates during the simulator's step: the same ones, in the same order, with the same results."""

import numpy as np
import torch
from torch import Tensor

from suite.draws import Draws
from suite.record.means import Means
from suite.replay import Replay
from suite.updates import Updates, updates_due

CPU = torch.device("cpu")
NUM_ENVS = 2


def add_step(replay: Replay, number: int) -> None:
    """Store a vector step of two seeds, whose numbers tell it from others."""
    tags = (10 * number + np.arange(4).reshape(2, NUM_ENVS)).astype("f4")
    wide = tags[..., None]
    replay.add(wide, wide + 0.5, tags, tags < 0, wide + 10)


def test_updates_during_steps_are_those_after_them() -> None:
    """Same draws of a growing and then full replay, a step ahead too; same rows read."""
    results, early = [], 0
    for overlaps, ahead in ((True, True), (True, False), (False, False)):
        replay, draw = Replay(2, 60, NUM_ENVS, 1, 1, CPU), Draws((3, 1), (1, 4, 1), CPU)
        read: list[Tensor] = []

        def update(
            number: int,
            rows: Tensor,
            noise: Tensor,
            replay: Replay = replay,
            read: list[Tensor] = read,
        ) -> dict[str, Tensor]:
            read += [replay.batch(rows).obs.clone(), noise]
            return {}

        updates, number = Updates(update, replay, draw, Means(), every_step=ahead), 0
        for step in range(50):
            until = updates_due(1.5, step + 1)
            if overlaps:
                updates.begin(number, until)
                early += len(read) // 2 - number
                add_step(replay, step)
                number = updates.finish()
                assert len(updates.ahead) == ahead
            else:
                add_step(replay, step)
                for each in range(number, until):
                    update(each, *draw(replay.size)[:2])
                number = until
        results.append(torch.stack([each.flatten() for each in read]))
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[2])
    assert 20 < early < 2 * number == 150


def test_updates_due_are_not_lost_to_rounding() -> None:
    """0.1 updates a step are a hundred after a thousand steps; before the warm-up none is due."""
    assert [updates_due(0.1, 10 * n) for n in range(1000)] == [*range(1000)]
    assert updates_due(1.0, -5) < 0
    assert updates_due(0.5, 3) == 1
