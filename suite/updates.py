"""Updates made while the simulator steps, where that changes no result."""

import math
from collections.abc import Callable

from torch import Tensor

from suite.draws import Draws, UpdateInputs
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
    anywhere: there it waits more often than it must. Updates that draw by priority all wait: their
    draws depend on the step under way and on the update before.

    If an update is due after `every_step`, the next one's draws are known as well. They are made
    while a GPU works on this one.
    """

    def __init__(
        self,
        learn: Learn,
        replay: Replay,
        draws: Draws,
        means: Means,
        every_step: bool = False,
    ) -> None:
        self._learn, self._replay, self._draws, self._means = learn, replay, draws, means
        self._late = draws.priorities is not None
        self._every_step = every_step and not self._late
        self.ahead: list[UpdateInputs] = []
        """What the next update draws, if it has been drawn; a checkpoint needs it."""
        self._number = self._until = self._size = 0

    def begin(self, number: int, until: int) -> None:
        """Make updates `number` to `until` - 1, up to the first that draws rows of this step."""
        self._number, self._until = number, until
        self._size, first_new = self._replay.coming
        while not self._late and self._number < until:
            inputs = self._next_inputs()
            if inputs.last_row >= first_new:
                self.ahead.append(inputs)
                break
            self._make(inputs)
        self._draw_ahead()

    def finish(self) -> int:
        """Make the others, now that the step is stored; return the number of the next update."""
        while self._number < self._until:
            self._make(self._next_inputs())
        self._draw_ahead()
        return self._number

    def _next_inputs(self) -> UpdateInputs:
        return UpdateInputs(*self.ahead.pop()) if self.ahead else self._draws(self._size)

    def _draw_ahead(self) -> None:
        """Draw for the first update of the next step, once this step's are made."""
        if self._every_step and not self.ahead and self._number == self._until > 0:
            self.ahead.append(self._draws(self._replay.size_after(self._size)))

    def _make(self, inputs: UpdateInputs) -> None:
        self._means.add(self._learn(self._number, inputs.rows, inputs.noise))
        self._number += 1
