"""What an update of several seeds draws: rows of each seed's replay, and noise.

A seed draws the same numbers alone and beside others.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.base.randomness import stream
from suite.priorities import PriorityDraws

MOST_THREADS, SEEDS_PER_THREAD = 4, 8
"""More threads that draw, or fewer seeds for each, are no faster (16 cores, 64 seeds: 2.9 ms by one
thread, 1.9 by two, 1.8 by four, 2.2 by eight)."""


class UpdateInputs(NamedTuple):
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
        priorities: those of rows; None: all are equally likely.
        reach: rows after a drawn one that an update reads, too.
        num_threads: threads that may draw noise, each for seeds of its own.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        noise_shape: tuple[int, int, int],
        device: torch.device,
        priorities: PriorityDraws | None = None,
        reach: int = 0,
        num_threads: int = 1,
    ) -> None:
        self._noise_shape, self._device = noise_shape, device
        self._reach, self._drawn = reach, np.empty(0)
        self.priorities = priorities
        self.weights = torch.ones(len(seeds), noise_shape[1], device=device)
        """Importance weights of the rows drawn last, `[S, B]`."""
        self._rows = [stream(seed, "replay sampling") for seed in seeds]
        self._noise = [stream(seed, "update noise") for seed in seeds]
        number = max(1, min(num_threads, MOST_THREADS, len(seeds) // SEEDS_PER_THREAD))
        self._shares = [range(first, len(seeds), number) for first in range(number)]
        self._map = map if number == 1 else ThreadPoolExecutor(number).map
        self.streams = [self._rows, self._noise, *([] if priorities is None else [priorities])]
        """The generators, and the priorities, for a checkpoint."""

    def __call__(self, size: int) -> UpdateInputs:
        """Return what the next update draws of replays with `size` rows."""
        number = self._noise_shape[1]
        if self.priorities is not None:
            rows, weights = self.priorities.draw(self._rows, number, size)
            self._drawn, self.weights = rows, torch.from_numpy(weights).to(self._device)
        else:
            rows = np.stack([each.integers(0, size, number) for each in self._rows])
        noise = np.empty((len(self._noise), *self._noise_shape), dtype=np.float32)
        list(self._map(partial(self._fill, noise), self._shares))  # waits for all of them
        noise_there = torch.from_numpy(noise).to(self._device, non_blocking=True)
        rows_there = torch.from_numpy(rows).to(self._device, non_blocking=True)
        return UpdateInputs(rows_there, noise_there.transpose(0, 1), int(rows.max()) + self._reach)

    def _fill(self, noise: np.ndarray, seeds: range) -> None:
        for i in seeds:
            self._noise[i].standard_normal(dtype=np.float32, out=noise[i])

    def add(self, rows: np.ndarray) -> None:
        """Take note of rows that hold new transitions, `[N]`, the same for all seeds."""
        if self.priorities is not None:
            self.priorities.add(rows)

    def update(self, errors: Tensor) -> None:
        """Take note of the errors of the rows drawn last, `[S, B]`."""
        if self.priorities is not None:
            self.priorities.update(self._drawn, errors)
