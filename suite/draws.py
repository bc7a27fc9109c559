"""What an update of several seeds draws: rows of each seed's replay, and noise.

A seed draws the same numbers alone and beside others.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.base.randomness import stream
from suite.priorities import PriorityDraws

FEWEST_SEEDS = 4
"""Seeds for which another thread is worth its start: each takes some 50 us to draw."""


class Draw(NamedTuple):
    """What an update of several seeds draws."""

    rows: Tensor
    """Rows of each seed's replay, `[S, B]` int64."""
    noise: Tensor
    """Standard normal, `[K, S, B, A]`."""
    last_row: int
    """The last that the update reads; none after it."""


class Draws:
    """Draws of numpy's streams, which are the same for every device.

    Args:
        seeds: the runs' seeds, S of them.
        noise_shape: of one seed's noise, `[K, B, A]`; B is the number of rows, too.
        device: where the draws are used.
        replace: whether a row may come twice in an update.
        priorities: those of rows; None: all are equally likely.
        reach: rows after a drawn one that an update reads, too.
        num_threads: threads that draw, each for seeds of its own.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        noise_shape: tuple[int, int, int],
        device: torch.device,
        replace: bool = True,
        priorities: PriorityDraws | None = None,
        reach: int = 0,
        num_threads: int = 1,
    ) -> None:
        num_threads = max(1, min(num_threads, len(seeds) // FEWEST_SEEDS))
        self._threads = ThreadPoolExecutor(num_threads)
        self._chunks = [range(i, len(seeds), num_threads) for i in range(num_threads)]
        self._noise_shape, self._device, self._replace = noise_shape, device, replace
        self._reach, self._drawn = reach, np.empty(0)
        self.priorities = priorities
        self.weights = torch.ones(len(seeds), noise_shape[1], device=device)
        """Importance weights of the rows drawn last, `[S, B]`."""
        self._rows = [stream(seed, "replay sampling") for seed in seeds]
        self._noise = [stream(seed, "update noise") for seed in seeds]
        self.streams = [self._rows, self._noise, *([] if priorities is None else [priorities])]
        """The generators, and the priorities, for a checkpoint."""

    def __call__(self, size: int) -> Draw:
        """Return what the next update draws of replays with `size` rows."""
        num_seeds, number = len(self._rows), self._noise_shape[1]
        rows = np.empty((num_seeds, number), dtype=np.int64)
        noise = np.empty((num_seeds, *self._noise_shape), dtype=np.float32)

        def draw(seed: int) -> None:
            if self.priorities is None and self._replace:
                rows[seed] = self._rows[seed].integers(0, size, number)
            elif self.priorities is None:
                rows[seed] = self._rows[seed].choice(size, number, replace=False, shuffle=False)
            self._noise[seed].standard_normal(dtype=np.float32, out=noise[seed])

        self._for_all_seeds(draw)
        if self.priorities is not None:
            rows, weights = self.priorities.draw(self._rows, number, size)
            self._drawn, self.weights = rows, torch.from_numpy(weights).to(self._device)
        both = (
            torch.from_numpy(each).to(self._device, non_blocking=True) for each in (rows, noise)
        )
        on_device, noise_on_device = both
        return Draw(on_device, noise_on_device.transpose(0, 1), int(rows.max()) + self._reach)

    def _for_all_seeds(self, draw: Callable[[int], None]) -> None:
        """Call a function with the index of every seed."""

        def draw_some(seeds: range) -> None:
            for seed in seeds:
                draw(seed)

        first, *others = self._chunks
        waiting = [self._threads.submit(draw_some, each) for each in others]
        draw_some(first)
        for each in waiting:
            each.result()

    def add(self, rows: np.ndarray) -> None:
        """Take note of rows that hold new transitions, `[N]`, the same for all seeds."""
        if self.priorities is not None:
            self.priorities.add(rows)

    def update(self, errors: Tensor) -> None:
        """Take note of the errors of the rows drawn last, `[S, B]`."""
        if self.priorities is not None:
            self.priorities.update(self._drawn, errors)
