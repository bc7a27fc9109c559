"""A process that holds one engine and works when told; see `measure.Server`.

    python -m reproduce.simulators.serve ENGINE TASK NUM_ENVS NUM_THREADS

Its first answer says that the engine is ready, or why not. It then answers each order, a line of
JSON: `{"mode": "random", "seconds": 1, "least": 20}` with what a turn took, `{"episodes": 2,
"seconds": 60}` with what random play gave. It ends with its input. Answers are lines of JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from reproduce.simulators.engines import Engine, make_engine
from suite.base.errors import UsageError

SAME = 100
"""Decisions of each environment whose rewards are summed, to compare engines reward by reward."""
TAPE = 64
"""Rows of random actions that are drawn beforehand."""
Choose = Callable[[np.ndarray], Any]


def serve(name: str, task: str, num_envs: int, num_threads: int) -> None:
    """Build the engine, then read orders from stdin and answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what simulators print is no answer
    choosers: dict[str, Choose] = {}

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        engine = make_engine(name, task, num_envs, num_threads)
        say({"rows": engine.rows})
        for line in sys.stdin:
            order = json.loads(line)
            if "episodes" in order:
                say(work(engine, **order))
                continue
            mode = order.pop("mode")
            if mode not in choosers:
                is_random = mode == "random"
                choosers[mode] = random_actions(engine) if is_random else policy(engine, task)
            say(turn(engine, choosers[mode], **order))
        engine.close()
    except Exception as error:
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        say({"error": (kind + str(error)).strip().split("\n")[0]})
    os._exit(0)  # workers that died would be waited for


def random_actions(engine: Engine) -> Choose:
    """Return a function that gives the next row of a tape of random actions."""
    drawn = draw(engine, np.random.default_rng(0), TAPE, engine.rows)
    rows = cycle([engine.units(row) for row in drawn])
    return lambda obs: next(rows)


def draw(engine: Engine, generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Return random actions: numbers, or values in [-1, 1]."""
    if engine.num_actions:
        return generator.integers(0, engine.num_actions, shape)
    return generator.uniform(-1.0, 1.0, (*shape, engine.action_size))


def policy(engine: Engine, name: str) -> Choose:
    """Return a function that draws actions from A2C's network, as it is before training.

    It has the settings and the normalisation of a training that mode `training` measures, and one
    thread.
    """
    import torch

    from agents import a2c
    from suite.base.hardware import use_threads
    from suite.envs.vector_env import Spaces
    from suite.player import Player
    from suite.settings.command_line import read_command_line

    use_threads(1)
    config, _ = read_command_line(a2c.PRESETS, [f"--task={name}"], agent="a2c")
    size = engine.num_actions or engine.action_size
    bounds: Any = () if engine.num_actions else ((-1.0,) * size, (1.0,) * size)
    spaces = Spaces(tuple(engine.obs.shape[1:]), size, *bounds)
    learner = a2c.make_learner(config, spaces, torch.device("cpu"))
    player = Player(learner.network, learner.obs_moments, config)
    generator = np.random.default_rng(0)
    return lambda obs: engine.units(player.decide(obs, generator))


def turn(engine: Engine, choose: Choose, seconds: float, least: int) -> dict[str, float]:
    """Step for some seconds, at least some times; return what that took.

    Returns:
        `steps` of environments, `seconds`, and median and 99th percentile of the time of one vector
        step, with the choice of its actions, in milliseconds.
    """
    clock, step = time.perf_counter, engine.step
    marks = [clock()]
    while marks[-1] - marks[0] < seconds or len(marks) <= least:
        step(choose(engine.obs))
        marks.append(clock())
    median, high = np.quantile(np.diff(marks), [0.5, 0.99]) * 1e3
    return {
        "steps": (len(marks) - 1) * engine.rows,
        "seconds": marks[-1] - marks[0],
        "latency_median_ms": float(median),
        "latency_p99_ms": float(high),
    }


def work(engine: Engine, episodes: int, seconds: float) -> dict[str, Any]:
    """Play randomly until every environment has ended some episodes; return what that gave.

    Every engine plays the same tape from its start: decision `t` of environment `i` has the same
    action. The episodes counted are the first ones of each environment, so short ones have no
    advantage.
    """
    tape = draw(engine, np.random.default_rng(1), 10 * TAPE, engine.num_envs)
    was_end = 1 - np.isin(np.arange(engine.num_envs), engine.ids)  # their resets come as rows
    ages = -was_end
    lengths, returns = np.zeros(engine.num_envs), np.zeros(engine.num_envs)
    done: list[list[tuple[float, float]]] = [[] for _ in range(engine.num_envs)]
    taped = 0.0
    until = time.perf_counter() + seconds
    while min(map(len, done)) < episodes and time.perf_counter() < until:
        rows = engine.step(engine.units(tape[ages[engine.ids] % len(tape), engine.ids]))
        ids = engine.ids
        counts = was_end[ids] == 0 if engine.next_step_reset else np.ones(len(ids), dtype=bool)
        taped += float(np.where(ages[ids] < SAME, rows.rewards, 0.0).sum())
        ages[ids] += 1
        lengths[ids] += counts
        returns[ids] += np.where(counts, rows.rewards, 0.0)
        was_end[ids] = ended = rows.ends & counts
        for i in ids[ended]:
            done[i].append((lengths[i], returns[i]))
            lengths[i] = returns[i] = 0.0
    counted = np.array([pair for each in done for pair in each[:episodes]]).reshape(-1, 2)
    return _summary(engine, counted) | {"tape_return": round(taped, 3)}


def _summary(engine: Engine, counted: np.ndarray) -> dict[str, Any]:
    bounds = "" if engine.num_actions else f" in [{engine.low.min():g}, {engine.high.max():g}]"
    said = {
        "obs": f"{engine.obs.dtype}{list(engine.obs.shape[1:])}",
        "actions": f"{engine.num_actions or engine.action_size}{bounds}",
        "frame_skip": engine.frame_skip,
        "autoreset": "next step" if engine.next_step_reset else "same step",
        "num_episodes": len(counted),
    }
    for name, values in zip(("length", "return"), counted.T, strict=True):
        enough = len(values) > 1
        said[f"{name}_mean"] = float(values.mean()) if len(values) else None
        said[f"{name}_se"] = float(values.std(ddof=1) / len(values) ** 0.5) if enough else None
    return said


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
