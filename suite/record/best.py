"""The policies of the best evaluations so far, which `--keep-best` keeps beside the last ones."""

from collections.abc import Callable, Mapping
from typing import Any


class BestPolicies:
    """Weights of each seed's best evaluation: part of a run's state, written when it ends."""

    def __init__(self, num_seeds: int) -> None:
        self.kept: list[dict[str, Any] | None] = [None] * num_seeds
        """By seed: `env_steps`, `mean_return` and `weights`; None: nothing was scored yet."""

    def offer(
        self,
        i: int,
        env_steps: int,
        mean_return: float,
        weights_of: Callable[[int], Mapping[str, Any]],
    ) -> None:
        """Keep a copy of the weights if no earlier policy of this seed scored as much."""
        kept = self.kept[i]
        if kept is None or mean_return > kept["mean_return"]:
            facts = {"env_steps": env_steps, "mean_return": mean_return}
            weights = {name: each.detach().cpu().clone() for name, each in weights_of(i).items()}
            self.kept[i] = {**facts, "weights": weights}
