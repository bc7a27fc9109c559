"""Updates made while the simulator steps, where that changes no result."""

import math
from collections.abc import Callable

from torch import Tensor

from suite.draws import Draw
from suite.record.means import Means
from suite.replay import Replay

Learn = Callable[[int, Tensor, Tensor], dict[str, Tensor]]
"""Makes an update from its number, rows of replay and noise; returns diagnostics, each `[S]`."""


def updates_due(update_ratio: float, num_steps: int) -> int:
    """Return how many updates belong to the first so many environment steps after the warm-up."""
    return math.floor(update_ratio * num_steps + 1e-6)  # what should be whole may be rounded down


class Updates:
    """The updates that are due after an environment step, begun during it.

    An update reads the weights, which the simulator does not, and the rows that it draws. If all of
    them were stored before the step, it makes no difference whether the update comes before or
    after the step's end. Of a full replay, which is a ring, the step's rows replace old ones
    anywhere: there it waits more often than it must. `late` updates all wait, as their draws depend
    on the step under way and on the update before.
    """

    def __init__(
        self,
        learn: Learn,
        replay: Replay,
        draw: Callable[[int], Draw],
        means: Means,
        late: bool = False,
    ) -> None:
        self._learn, self._replay, self._draw, self._means = learn, replay, draw, means
        self._late = late
        self._number = self._until = self._size = 0
        self._waits: Draw | None = None

    def begin(self, number: int, until: int) -> None:
        """Make updates `number` to `until` - 1, up to the first that draws rows of this step."""
        self._number, self._until = number, until
        self._size, first_new = self._replay.coming
        while not self._late and self._waits is None and self._number < until:
            draw = self._draw(self._size)
            if draw.last_row < first_new:
                self._make(draw)
            else:
                self._waits = draw

    def finish(self) -> int:
        """Make the others, now that the step is stored; return the number of the next update."""
        while self._number < self._until:
            draw, self._waits = self._waits, None
            self._make(draw or self._draw(self._size))
        return self._number

    def _make(self, draw: Draw) -> None:
        self._means.add(self._learn(self._number, draw.rows, draw.noise))
        self._number += 1
