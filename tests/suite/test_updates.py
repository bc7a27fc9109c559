"""Updates during the simulator's step: the same ones, in the same order, with the same results."""

import numpy as np
import pytest
import torch
from torch import Tensor

from suite.draws import Draw, Draws
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


@pytest.mark.parametrize(
    ("num_stored", "last_rows", "during"),
    [
        (3, [5, 0, 3], 3),  # all were stored before
        (3, [5, 6, 0], 1),  # the second waits, and so does who comes after it
        (3, [7, 0, 0], 0),
        (3, [], 0),
        (0, [0], 0),  # nothing was stored before
        (6, [1, 2, 0], 1),  # a full ring: the step's rows are 2 and 3
        (6, [7, 1], 0),  # row 7 is old, too, but that is not asked
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_an_update_waits_for_the_step_whose_rows_it_draws(
    num_stored: int, last_rows: list[int], during: int, late: bool
) -> None:
    """It begins before the step's end only if all it reads is there; updates keep their order."""
    replay, made, asked = Replay(2, 10, NUM_ENVS, 1, 1, CPU), list[int](), list[int]()
    for number in range(num_stored):
        add_step(replay, number)

    def draw(size: int) -> Draw:
        asked.append(size)
        return Draw(torch.empty(0), torch.empty(0), last_rows[len(asked) - 1])

    def update(number: int, rows: Tensor, noise: Tensor) -> dict[str, Tensor]:
        made.append(number)
        return {}

    updates = Updates(update, replay, draw, Means(), late)
    during = 0 if late else during
    numbers = [7 + each for each in range(len(last_rows))]
    updates.begin(7, 7 + len(last_rows))
    assert made == numbers[:during]
    add_step(replay, num_stored)
    assert updates.finish() == 7 + len(last_rows)
    assert made == numbers
    assert asked == [replay.size for _ in numbers]


def test_updates_during_steps_are_those_after_them() -> None:
    """Same draws of a growing and then full replay, same rows read; some come early, some wait."""
    results, early = [], 0
    for overlaps in (True, False):
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

        updates, number = Updates(update, replay, draw, Means()), 0
        for step in range(50):
            until = updates_due(1.5, step + 1)
            if overlaps:
                updates.begin(number, until)
                early += len(read) // 2 - number
                add_step(replay, step)
                number = updates.finish()
            else:
                add_step(replay, step)
                for each in range(number, until):
                    update(each, *draw(replay.size)[:2])
                number = until
        results.append(torch.stack([each.flatten() for each in read]))
    assert torch.equal(*results)
    assert 10 < early < number == 75


def test_updates_due_are_not_lost_to_rounding() -> None:
    """0.1 updates a step are a hundred after a thousand steps; before the warm-up none is due."""
    assert [updates_due(0.1, 10 * n) for n in range(1000)] == [*range(1000)]
    assert updates_due(1.0, -5) < 0
    assert updates_due(0.5, 3) == 1
