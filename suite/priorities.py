"""Draws from replay by priority (Schaul et al. 2016, arXiv:1511.05952)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from torch import Tensor

WIDTH, LEVELS = 32, 4
"""Children of every node but the root; levels, with that of the rows."""
INITIAL = 1.0
"""Least priority of a new row."""


class PriorityDraws:
    """Rows of S seeds' replays are drawn in proportion to (error + epsilon)^exponent.

    Importance weights are (priority / mean priority)^-importance_exponent. A new row has its seed's
    greatest priority, at least `INITIAL`. A row without a transition has priority 0 and is never
    drawn.
    """

    def __init__(
        self,
        num_seeds: int,
        capacity: int,
        exponent: float,
        epsilon: float,
        importance_exponent: float,
    ) -> None:
        self._exponent, self._epsilon = exponent, epsilon
        self._importance_exponent = importance_exponent
        self._trees = [_Tree(capacity) for _ in range(num_seeds)]

    def add(self, rows: np.ndarray) -> None:
        """Take note of rows that hold new transitions, `[N]`, the same for all seeds."""
        for tree in self._trees:
            tree.put(rows, np.full(len(rows), max(INITIAL, tree.greatest)))

    def update(self, rows: np.ndarray, errors: Tensor) -> None:
        """Take note of the errors of rows, `[S, B]`; of a row that comes twice, the last one stays.

        The priority of an error that is not finite, in a seed that diverges, is `INITIAL`.
        """
        priorities = (errors.double().cpu().numpy() + self._epsilon) ** self._exponent
        finite = np.where(np.isfinite(priorities), priorities, INITIAL)
        for tree, rows_of_seed, of_seed in zip(self._trees, rows, finite, strict=True):
            tree.put(rows_of_seed, of_seed)

    def draw(
        self, generators: Sequence[np.random.Generator], number: int, size: int
    ) -> tuple[Integer[np.ndarray, "S B"], Float[np.ndarray, "S B"]]:
        """Draw B = `number` rows below `size` for each seed, from its own stream.

        Return them and their importance weights, float32. The draws are stratified: the i-th of n
        comes from the i-th n-th of all priorities.
        """
        strata = np.arange(number)
        drawn = [
            tree.find((strata + generator.random(number)) / number)
            for tree, generator in zip(self._trees, generators, strict=True)
        ]
        rows, shares = (np.stack(each) for each in zip(*drawn, strict=True))
        return rows, ((size * shares) ** -self._importance_exponent).astype(np.float32)


class _Tree:
    """One seed's priorities, from the rows upwards.

    A node holds the running sum of its children, which `find` computes again: both are the same
    number, so that it ends at a row with a priority. A longer run's tree begins as a shorter one's.
    """

    def __init__(self, capacity: int) -> None:
        top = -(-capacity // WIDTH ** (LEVELS - 1))
        sizes = [top * WIDTH**level for level in range(LEVELS)][::-1]
        self._sums = [np.zeros(size) for size in sizes]
        self._maxima = [np.zeros(size) for size in sizes[1:]]

    @property
    def greatest(self) -> float:
        return self._maxima[-1].max()

    def put(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        self._sums[0][rows] = priorities
        nodes, maxima = rows, self._sums[0]
        for level in range(1, LEVELS):
            nodes = np.unique(nodes // WIDTH)
            children = self._sums[level - 1].reshape(-1, WIDTH)[nodes]
            self._sums[level][nodes] = children.cumsum(1)[:, -1]
            self._maxima[level - 1][nodes] = maxima.reshape(-1, WIDTH)[nodes].max(1)
            maxima = self._maxima[level - 1]

    def find(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at which running sums pass shares of the whole, and their own shares."""
        nodes, total = np.zeros(len(shares), dtype=np.int64), self._sums[-1].cumsum()[-1]
        rest = shares * total
        for level in range(LEVELS)[::-1]:
            sums = self._sums[level]
            width = WIDTH if level < LEVELS - 1 else len(sums)
            ends = sums.reshape(-1, width).take(nodes, axis=0).cumsum(1)  # of the children's spans
            rest = np.minimum(rest, np.nextafter(ends[:, -1], 0.0))  # rounding may put it beyond
            children = (ends <= rest[:, None]).sum(1)
            starts = ends[np.arange(len(nodes)), children - 1] * (children > 0)
            nodes, rest = nodes * width + children, rest - starts
        return nodes, self._sums[0][nodes] / total
