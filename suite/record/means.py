"""What an agent measures between two rows of its tables."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class Means:
    """Running means of an agent's diagnostics, torch tensors by name.

    They stay on their device until the log interval ends.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts = Counter[str]()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add one update's diagnostics."""
        known = [name for name in metrics if name in self._sums]
        if known:  # one kernel for all
            sums, values = [self._sums[name] for name in known], [metrics[name] for name in known]
            torch._foreach_add_(sums, values)  # pyright: ignore[reportPrivateImportUsage]
        self._sums |= {name: metrics[name].clone() for name in metrics if name not in self._sums}
        self._counts.update(metrics.keys())

    def read(self) -> dict[str, np.ndarray]:
        """Return the means since the last call and reset them."""
        means = {
            name: (total / self._counts[name]).cpu().numpy() for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, Counter()
        return means
