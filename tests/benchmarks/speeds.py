"""Measure how fast every source's settings train here; write `reproduce/plan/speeds.csv`.

    .venv/bin/python -m tests.benchmarks.speeds                    # everything, about an hour
    .venv/bin/python -m tests.benchmarks.speeds --agents sac --suites mujoco --tasks HalfCheetah-v4

Each combination trains in a process of its own, as the harness would start it, until it has learned
for some seconds. Plans take their times from the table: measure while nothing else runs, or with
`--busy`, and say in `--note` how it was.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import agents
from reproduce.gather.tables import read_table
from reproduce.plan.presets import PUBLISHED
from reproduce.plan.speeds import SPEEDS, Speed, products_per_second, read_speeds, warm_up_steps
from reproduce.run.processes import THREADING
from suite.base.files import write_atomically
from suite.base.hardware import machine
from suite.envs.tasks import find_suite, find_task
from suite.record.journal import Journal
from suite.record.recorder import Recorder
from suite.session import Session
from suite.settings.command_line import Parser, run_main
from suite.settings.presets import find_source

WARM_UP_STEPS = 2_000
"""Environment steps before replay is learned from: at most as many as this."""
SETTLING_SECONDS = 1.0
"""The first updates are slower and do not count."""
CHOSEN = {
    "atari": ("Breakout-v5", "Pong-v5", "Seaquest-v5"),
    "dmc": ("CheetahRun-v1", "HumanoidRun-v1", "QuadrupedRun-v1"),
}
"""Tasks that stand for their family; of the others every one is measured."""


class Enough(Exception):
    """Ends a training."""


def processor_time(cores: int) -> float:
    """Return the the seconds if nothing else ran: of the processor, or of its busier core."""
    learning = time.thread_time()
    acting = time.process_time() - learning
    return learning + acting if cores == 1 else max(learning, acting)


class Meter:
    """Notes when steps and updates were made, and stops the training after some seconds."""

    def __init__(self, seconds: float, warm_up: int, clock: Callable[[], float]) -> None:
        self._seconds, self._warm_up, self._clock = seconds, warm_up, clock
        self.first_step_at = 0.0
        self.evaluation_seconds = 0.0
        self.rows: list[tuple[float, int]] = []
        """Time without evaluations, and environment steps, of every log interval's end."""

    def evaluate_once(self, score: Callable[[], object]) -> None:
        """Time one evaluation, as soon as something was learned."""
        if self._learning() and not self.evaluation_seconds:
            started = self._clock()
            score()
            self.evaluation_seconds = self._clock() - started

    def log(self, env_steps: int) -> None:
        """Note a log interval's end."""
        self.rows.append((self._clock() - self.evaluation_seconds, env_steps))
        learning = self._learning()
        if len(learning) > 1 and learning[-1][0] - learning[0][0] > self._seconds:
            raise Enough

    def speeds(self) -> tuple[float, float]:
        """Return environment steps per second of warm-up, and from then on."""
        learning = self._learning()
        before = [row for row in self.rows if row[1] <= self._warm_up]
        speed = _speed(learning[0], learning[-1])
        return _speed(before[0], before[-1]) if len(before) > 1 else speed, speed

    def _learning(self) -> list[tuple[float, int]]:
        rows = [row for row in self.rows if row[1] > self._warm_up]
        return [row for row in rows if row[0] - rows[0][0] > SETTLING_SECONDS]


def _speed(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0])


def train(agent: str, config: Any, meter: Meter, age: Callable[[], float] = time.time) -> None:
    """Train in this process, which is of an `age`, until a meter has seen enough."""
    resume = Journal.resume

    def log(recorder: Recorder, env_steps: int, num_updates: int, *columns: object) -> None:
        meter.log(env_steps)

    def evaluate(session: Session, env_steps: int, gained: int, act: Any, *_: Any) -> None:
        if config.evaluation_rule != "training":
            meter.evaluate_once(lambda: session.score(env_steps, act))

    def resume_at(journal: Journal, *numbers: int | float) -> tuple[Any, ...]:
        meter.first_step_at = age()
        return resume(journal, *numbers)

    with (
        patch.object(Recorder, "log", log),
        patch.object(Journal, "resume", resume_at),
        patch.object(Session, "evaluate_if_due", evaluate),
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(Enough),
    ):
        recorder = Recorder(Path(folder), {"agent": agent}, config.seeds, 1e9)
        import_module(f"agents.{agent}").train(config, recorder)


def warm_config(config: Any, **changes: Any) -> Any:
    """Return a configuration with changes, that learns as soon as it can be measured."""
    num_envs = changes.get("num_envs", config.num_envs)
    if hasattr(config, "learning_starts"):
        changes.setdefault("learning_starts", WARM_UP_STEPS - WARM_UP_STEPS % num_envs)
    if hasattr(config, "replay_start"):
        start = min(config.replay_start, WARM_UP_STEPS // num_envs)
        changes.setdefault("replay_start", start)
    return replace(config, **changes)


def measure(agent: str, suite: str, source: str, task: str, options: argparse.Namespace) -> Speed:
    """Train in this process for some seconds; return its row of the table."""
    module: Any = import_module(f"agents.{agent}")
    preset = module.PRESETS[suite, source]
    busy_clock = partial(processor_time, preset.cores_per_run)
    config, clock = preset.config, busy_clock if options.busy else time.perf_counter
    rows = getattr(config, "unroll_rows", 5 * config.num_envs)
    config = warm_config(config, task=task, seeds=(1,), device="cpu", log_interval=rows)
    meter = Meter(options.seconds, warm_up_steps(config), clock)
    train(agent, config, meter, clock if options.busy else lambda: time.time() - options.started)
    warm_up, learning = meter.speeds()
    return Speed(
        agent=agent,
        source=source,
        task=task,
        processor=machine()["cpu"],
        products_per_second=round(products_per_second()),
        start_seconds=round(meter.first_step_at, 1),
        warm_up_steps_per_second=round(warm_up, 1),
        env_steps_per_second=round(learning, 2),
        evaluation_seconds=round(meter.evaluation_seconds, 3),
        note=options.note,
    )


def published(table: Sequence[Speed]) -> Iterator[Speed]:
    """Yield the mean speeds of published runs; the start is a median of a table's rows."""
    for folder in sorted({run.parent for run in PUBLISHED.glob("*/*/*/seed-*")}):
        runs = sorted(folder.glob("seed-*"))
        record = json.loads((runs[0] / "run.json").read_bytes())
        agent, suite, task = (record[name] for name in ("agent", "suite", "task"))
        presets = import_module(f"agents.{agent}").PRESETS
        source = find_source(presets, suite, record["source"])
        each = [_recorded(run) for run in runs]
        speed, warm_up, evaluation = (float(np.mean(column)) for column in zip(*each, strict=True))
        like = [row for row in table if row.agent == agent] or table
        yield Speed(
            *(agent, source, task, record["machine"]["cpu"]),
            products_per_second=round(float(np.median([row.products_per_second for row in table]))),
            start_seconds=round(float(np.median([row.start_seconds for row in like])), 1),
            warm_up_steps_per_second=round(warm_up, 1),
            env_steps_per_second=round(speed, 2),
            evaluation_seconds=round(evaluation, 3),
            note=f"{len(runs)} runs of {folder.relative_to(PUBLISHED.parents[1])}",
        )


def _recorded(run: Path) -> tuple[float, float, float]:
    """Return steps per second with updates and before, and seconds of an evaluation."""
    timing = read_table(run / "timing.csv")
    steps, seconds = timing.env_steps.diff().fillna(timing.env_steps), timing.wall_seconds.diff()
    seconds = seconds.fillna(timing.wall_seconds)
    evaluating = timing.evaluation_share * seconds
    learning = timing.num_updates > 0
    number = max(len(read_table(run / "evaluations.csv")), 1)
    speed = steps[learning].sum() / (seconds - evaluating)[learning].sum()
    before = ~learning
    warm_up = steps[before].sum() / (seconds - evaluating)[before].sum() if before.any() else speed
    return speed, warm_up, evaluating.sum() / number


def combinations(
    names: Sequence[str], suites: Sequence[str], sources: Sequence[str], tasks: Sequence[str]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield agent, suite, source and task of everything that is measured, each settings once."""
    seen = set()
    for agent in names or agents.AGENTS:
        for (suite, source), preset in import_module(f"agents.{agent}").PRESETS.items():
            for task in tasks or preset.tasks or find_suite(suite):
                chosen = CHOSEN.get(find_task(task).family)
                here = task in (preset.tasks or find_suite(suite)) and (
                    tasks or chosen is None or task in chosen
                )
                wanted = (not suites or suite in suites) and (not sources or source in sources)
                if here and wanted and (agent, source, task) not in seen:
                    seen.add((agent, source, task))
                    yield agent, suite, source, task


def write(rows: Sequence[Speed], path: Path = SPEEDS) -> None:
    """Replace the rows of the same settings and task; keep the others."""
    read_speeds.cache_clear()
    table = {row[:3]: row for row in (read_speeds(path) if path.exists() else ())}
    table |= {row[:3]: row for row in rows}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Speed._fields)
    for key in sorted(table):
        writer.writerow(f"{cell:g}" if isinstance(cell, float) else cell for cell in table[key])
    write_atomically(path, text.getvalue().encode())


def main(argv: Sequence[str]) -> int:
    """Measure what is asked for, one after another, and write the table after each."""
    parser = Parser(prog="python -m tests.benchmarks.speeds", description=__doc__)
    for flag in ("agents", "suites", "sources", "tasks"):
        parser.add_argument(f"--{flag}", nargs="+", default=[], help="default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="of learning, each")
    parser.add_argument("--note", default="", help="what else the machine did")
    text = "count processor time: other programs run on this machine meanwhile"
    parser.add_argument("--busy", action="store_true", help=text)
    text = "measure nothing: take what the table lacks from the records of published runs"
    parser.add_argument("--published", action="store_true", help=text)
    parser.add_argument("--one", nargs=4, help="measure in this process and print the row")
    parser.add_argument("--started", type=float, default=0.0, help="with --one: when it began")
    options = parser.parse(argv)
    if options.one:
        agent, suite, source, task = options.one
        print(json.dumps(measure(agent, suite, source, task, options)))
        return 0
    if options.published:
        measured = read_speeds()
        known = {row[:3] for row in measured}
        write([row for row in published(measured) if row[:3] not in known])
        return 0
    for chosen in combinations(options.agents, options.suites, options.sources, options.tasks):
        command = [sys.executable, "-m", "tests.benchmarks.speeds", *argv, "--one", *chosen]
        answer = subprocess.run(
            [*command, "--started", str(time.time())],
            env={**os.environ, **THREADING},
            stdout=subprocess.PIPE,
            text=True,
        )
        if answer.returncode:
            print(f"{' '.join(chosen)}: not measured", file=sys.stderr)
            continue
        row = Speed(*json.loads(answer.stdout.splitlines()[-1]))
        write([row])
        print(f"{' '.join(chosen)}: {row.env_steps_per_second:,.1f} steps/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
