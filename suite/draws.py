"""What an update of several seeds draws: rows of each seed's replay, and noise.

A seed draws the same numbers alone and beside others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from suite.noise import stacked_normal
from suite.randomness import stream


class Draw(NamedTuple):
    """What an update of several seeds draws."""

    rows: Tensor
    """Rows of each seed's replay, `[S, B]` int64."""
    noise: Tensor
    """Standard normal, `[K, S, B, A]`."""
    last_row: int
    """The greatest of all rows."""


class HostDraws:
    """Draws of numpy's streams, which are the same for every device.

    Args:
        seeds: the runs' seeds, S of them.
        noise_shape: of one seed's noise, `[K, B, A]`; B is the number of rows, too.
        device: where the draws are used.
    """

    def __init__(
        self, seeds: Sequence[int], noise_shape: tuple[int, int, int], device: torch.device
    ) -> None:
        self._noise_shape, self._device = noise_shape, device
        self._rows = [stream(seed, "replay sampling") for seed in seeds]
        self._noise = [stream(seed, "update noise") for seed in seeds]
        self.streams = [self._rows, self._noise]
        """The generators, for a checkpoint."""

    def __call__(self, number: int, size: int) -> Draw:
        """Return what an update draws; its number does not matter, updates come in turn.

        Args:
            number: of the update, from 0.
            size: rows in each seed's replay, which are equally likely.
        """
        rows = np.stack([each.integers(0, size, self._noise_shape[1]) for each in self._rows])
        noise = stacked_normal(self._noise, self._noise_shape, self._device)
        on_device = torch.from_numpy(rows).to(self._device, non_blocking=True)
        return Draw(on_device, noise.transpose(0, 1), int(rows.max()))


class DeviceDraws:
    """Draws of the device's own generator, for many updates at once.

    What an update draws follows from its number, so there is no state. Another kind of GPU may draw
    other numbers. On a CPU keys have 32 bits, so two blocks of a long run may coincide. It takes
    `HostDraws`'s arguments, and is called alike.
    """

    AHEAD = 32
    """Updates that are drawn for at once: a seed's share takes two kernels."""

    def __init__(
        self, seeds: Sequence[int], noise_shape: tuple[int, int, int], device: torch.device
    ) -> None:
        self._seeds, self._device = seeds, device
        self._rows_shape = (self.AHEAD, noise_shape[1])
        self._noise_shape = (self.AHEAD, *noise_shape)
        self._generator = torch.Generator(device)
        self.streams: list[list[np.random.Generator]] = []
        """None: there is no state."""
        self._block = -1
        self._uniform = self._noise = torch.empty(0)
        self._greatest: list[float] = []

    def __call__(self, number: int, size: int) -> Draw:
        """Return what an update draws, as `HostDraws` does."""
        block, place = divmod(number, self.AHEAD)
        if block != self._block:
            self._draw(block)
        rows = (self._uniform[:, place] * size).long()  # of 53 bits: equally likely to 1e-9
        last_row = int(self._greatest[place] * size)
        return Draw(rows, self._noise[:, place].transpose(0, 1), last_row)

    def _draw(self, block: int) -> None:
        """Draw for the updates of a block."""
        uniform, noise = [], []
        for seed in self._seeds:
            key = stream(seed, "updates", block).integers(2**63)
            generator = self._generator.manual_seed(int(key))
            uniform.append(
                torch.rand(
                    self._rows_shape, dtype=torch.float64, generator=generator, device=self._device
                )
            )
            noise.append(torch.randn(self._noise_shape, generator=generator, device=self._device))
        self._block, self._uniform, self._noise = block, torch.stack(uniform), torch.stack(noise)
        self._greatest = self._uniform.amax((0, 2)).tolist()  # of each update
