"""How long a run takes on a processor, from measured speeds.

`reproduce/plan/speeds.csv` holds what `python -m tests.benchmarks.speeds` measured, a row for a
source's settings on one task. Its speeds are scaled by how fast this machine multiplies matrices.
"""

import csv
import heapq
import statistics
import time
import timeit
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from suite.base.hardware import machine
from suite.envs.tasks import find_task

SPEEDS = Path(__file__).with_name("speeds.csv")
MATRIX_SIZE = 256
"""Of the product that stands for a machine's speed: that of the layers of most agents."""


class Speed(NamedTuple):
    """One row of `speeds.csv`: a source's settings on one task, trained alone for a few seconds."""

    agent: str
    source: str
    task: str
    processor: str
    """Where it was measured."""
    products_per_second: float
    """Products of two matrices, `MATRIX_SIZE` wide, by one core of that processor."""
    start_seconds: float
    """From the command to the first step."""
    warm_up_steps_per_second: float
    """Environment steps before replay is learned from; elsewhere as `env_steps_per_second`."""
    env_steps_per_second: float
    """Environment steps from then on, evaluations left out."""
    evaluation_seconds: float
    """One evaluation; 0 where training episodes are scored."""
    note: str


@cache
def read_speeds(path: Path = SPEEDS) -> tuple[Speed, ...]:
    """Return every measured speed."""
    types = Speed.__annotations__
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return tuple(Speed(*(types[name](row[name]) for name in Speed._fields)) for row in rows)


def find_speed(agent: str, source: str, task: str) -> Speed | None:
    """Return the speed measured on a task, or on the one of its family with the nearest size.

    Of equally near ones it is the slowest; None without any. Versions of a task count as the same.
    """
    rows = [row for row in read_speeds() if (row.agent, row.source) == (agent, source)]
    wanted = find_task(task)

    def distance(row: Speed) -> tuple[bool, int, float]:
        other, stem = find_task(row.task), task.rpartition("-")[0]
        size = abs(other.obs_size - wanted.obs_size)
        return row.task.rpartition("-")[0] != stem, size, row.env_steps_per_second

    alike = [row for row in rows if find_task(row.task).family == wanted.family]
    return min(alike, key=distance, default=None)


def run_seconds(speed: Speed, config: Any) -> float:
    """Return about how long one seed trains here, from the command to the end."""
    warm_up = min(warm_up_steps(config), config.env_steps)
    num_evaluations = -(-config.env_steps // config.evaluation_interval)
    seconds = speed.start_seconds + warm_up / speed.warm_up_steps_per_second
    seconds += (config.env_steps - warm_up) / speed.env_steps_per_second
    if config.evaluation_rule != "training":
        seconds += num_evaluations * speed.evaluation_seconds
    return seconds / relative_speed(speed)


def warm_up_steps(config: Any) -> int:
    """Return the environment steps before a run learns at its full rate."""
    if hasattr(config, "replay_start"):
        return config.replay_start * config.num_envs if config.replay_ratio else 0
    return getattr(config, "warm_up_steps", getattr(config, "learning_starts", 0))


def relative_speed(speed: Speed) -> float:
    """Return how fast this machine is compared with the one where a speed was measured.

    A processor of the same name counts as equally fast: what else it does meanwhile changes by the
    minute.
    """
    if speed.processor == machine()["cpu"]:
        return 1.0
    return products_per_second() / speed.products_per_second


@cache
def products_per_second() -> float:
    """Return how many products of two matrices one core makes in a second of its own time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    product = timeit.Timer(lambda: torch.mm(matrix, matrix), timer=time.thread_time)
    times = product.repeat(repeat=50, number=1)
    torch.set_num_threads(threads)
    return 1.0 / statistics.median(times)


def side_by_side(seconds: Sequence[float | None], number: int) -> float | None:
    """Return about how long runs take together, `number` at a time; None if one's is not known."""
    known = [each for each in seconds if each is not None]
    if len(known) < len(seconds):
        return None
    ends = [0.0] * number
    for each in known:  # the next run starts where one ends first
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)
