"""What an agent measures between two rows of its tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class Means:
    """Running means of an agent's diagnostics, torch tensors `[S]` by name.

    They stay on their device until the log interval ends: one transfer from a GPU for all.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add one update's diagnostics."""
        for name, value in metrics.items():
            if self._counts.get(name, 0):
                self._sums[name] += value
            else:
                self._sums[name] = value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, np.ndarray]:
        """Return the means since the last call, `[S]` each, and reset them."""
        means = {
            name: (total / self._counts[name]).cpu().numpy() for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, {}
        return means
