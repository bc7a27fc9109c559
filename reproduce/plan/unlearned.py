"""Mean returns of policies that learned nothing, by task: the zero of every scale.

`python -m reproduce.judge.zero_scores` measures them.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ZEROS = Path(__file__).with_name("unlearned.csv")


class Zero(NamedTuple):
    """Mean returns of policies that learned nothing, in reward units; NaN: unknown."""

    random: float = math.nan
    """Of uniformly random actions."""
    idle: float = math.nan
    """Of the action that does nothing."""
    untrained: float = math.nan
    """Of the initial networks of an agent that trains the task."""
    shortest_episode: int | None = None
    """Decisions of the shortest episode of random actions; None: not measured."""
    longest_episode: int | None = None
    """Decisions of the longest one."""

    @property
    def score(self) -> float:
        """Return the largest of those that are known: the zero of a scale; NaN: none is."""
        return max((each for each in self[:3] if not math.isnan(each)), default=math.nan)


@cache
def read_zeros() -> Mapping[tuple[str, str], Zero]:
    """Return what is known of policies that learned nothing, by (task, protocol)."""
    with ZEROS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = ("mean_return", "idle_return", "untrained_return")
    lengths = ("shortest_episode", "longest_episode")
    known = {}
    for row in rows:
        random, idle, untrained = (float(row[name] or "nan") for name in scores)
        shortest, longest = (int(row[name]) if row[name] else None for name in lengths)
        known[row["task"], row["protocol"]] = Zero(random, idle, untrained, shortest, longest)
    for task, protocol in [key for key in known if key[1] == "noframeskip"]:
        # the size of frames changes nothing of play that does not see them
        blind = known[task, protocol]._replace(untrained=math.nan)
        known.setdefault((task, "small_frames"), blind)
    return MappingProxyType(known)


def known_zero(task: str, protocol: str = "") -> Zero:
    """Return what is known of policies that learned nothing on a task."""
    return read_zeros().get((task, protocol), Zero())
