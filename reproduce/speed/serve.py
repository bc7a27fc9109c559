"""A process that repeats workloads on the code of any commit and times them; see `pair.Worker`.

It is started as a file, in the folder of the commit: what the workloads import is that commit's,
while the workloads themselves are those beside this file.
"""

import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TextIO

import agents
from suite.base import hardware


def serve() -> None:
    """Read orders from stdin, answer with timings.

    The first answer is the folder whose code runs. An order "name slowdown" forks a process that
    builds the work and answers "ready", or the error. It then answers each line "count" with the
    seconds of that many repetitions. An empty line ends it; the answer is "ended". `slowdown`
    multiplies the time of every repetition by busy waiting, to measure how well the gate finds
    slow code.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the work's own output is not an answer
    workloads = _load_workloads()
    print(Path(agents.__file__).parents[1], file=answers, flush=True)
    while order := sys.stdin.readline():
        if order.strip():
            _in_child(workloads, order, answers)
        print("ended", file=answers, flush=True)


def _load_workloads() -> ModuleType:
    """Import `workloads.py` beside this file, whatever `reproduce` is in this process."""
    spec = importlib.util.spec_from_file_location(
        "workloads", Path(__file__).with_name("workloads.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_child(workloads: ModuleType, order: str, answers: TextIO) -> None:
    """Fork a process for an order and wait for its end."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    try:
        name, slowdown = order.split()
        with pinned(name), workloads.built([name]) as works:
            _serve_one(works[name], float(slowdown), answers)
    except Exception as error:  # the other side says it in one line
        print(f"{type(error).__name__}: {error}".split("\n")[0], file=answers, flush=True)
        sys.stdin.readline()
    os._exit(0)


def _serve_one(repeat: Callable[[], object], slowdown: float, answers: TextIO) -> None:
    if slowdown > 1:
        repeat = partial(_slowly, repeat, slowdown)
    repeat()
    print("ready", file=answers, flush=True)
    while count := sys.stdin.readline().strip():
        print(_time_repetitions(repeat, int(count)), file=answers, flush=True)


@contextmanager
def pinned(name: str) -> Iterator[None]:
    """Keep this thread, and those it starts, on one core; trainings may use all.

    A simulator's thread and ours wait for each other; on one core they change places at once, while
    waking another core can take longer than a step.
    """
    hardware.machine()  # remembers how many cores there are, before only one is left
    cores = os.sched_getaffinity(0)
    if not name.startswith("train-"):
        os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _time_repetitions(repeat: Callable[[], object], count: int) -> float:
    """Return the seconds that `count` repetitions take, with the garbage collector off."""
    gc.disable()
    started = time.perf_counter()
    for _ in range(count):
        repeat()
    seconds = time.perf_counter() - started
    gc.enable()
    return seconds


def _slowly(repeat: Callable[[], object], slowdown: float) -> None:
    started = time.perf_counter()
    repeat()
    until = started + slowdown * (time.perf_counter() - started)
    while time.perf_counter() < until:
        pass


if __name__ == "__main__":
    serve()
