"""Notes to readers on finished runs that are not known to be of today's code."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from reproduce.plan.grid import Run
from reproduce.words import counted

Older = Literal["", "counted", "left out"]
"""Treatment of a task's older runs; empty if there are none."""


def describe(runs: Iterable[Run]) -> tuple[Older, str]:
    """Return how a task's older runs were treated, and a sentence on them."""
    remarks = Counter(
        (run.has_ended, run.remark) for run in runs if run.remark and run.status != "damaged"
    )
    words = [
        f"{counted(count, 'run')} {remark} ({'counted' if counts else 'left out'})"
        for (counts, remark), count in remarks.items()
    ]
    any_counts = any(counts for counts, _ in remarks)
    return ("counted" if any_counts else "left out") if remarks else "", "; ".join(words)


def by_task(runs: Iterable[Run]) -> dict[str, tuple[Older, str]]:
    """Return `describe`'s result for every task, in the runs' order."""
    of_task: dict[str, list[Run]] = {}
    for run in runs:
        of_task.setdefault(run.task, []).append(run)
    return {task: describe(each) for task, each in of_task.items()}
