"""How often the gate's third tier cries wolf, and how often it sees one.

    .venv/bin/python -m tests.benchmarks.gate_quality --out results/throughput/gate_quality.csv

Compares this tree with itself, by the code and in the time that `--pair` takes. In every fourth
comparison one side is slowed down: after each repetition it waits, busily, until it runs at 85 % of
its speed. Every fourth comparison starts both processes anew. Rows are appended as they come, so a
study that was stopped goes on where it was.
"""

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy import stats

from reproduce.speed.gate import ROOT, Worker, compare, judge_pair, workers
from suite.command_line import Parser, run_main

WORKLOADS = ("update-sac", "adapter-HalfCheetah-8", "update-a2c", "act-sac-1")
SLOWER = 0.85
"""Speed of the side that is slowed down, as a share of its own."""
COLUMNS = ("number", "workload", "slowed", "median", "low", "high", "alarm", "seconds")


def measure(number: int, ours: Worker, theirs: Worker) -> tuple[object, ...]:
    """Make comparison `number` and return its row."""
    slowed, name = number % 4 == 3, WORKLOADS[number // 4 % len(WORKLOADS)]
    started = time.perf_counter()
    speeds = compare(ours, theirs, name, slowdown=1 / SLOWER if slowed else 1.0)
    seconds = round(time.perf_counter() - started, 2)  # building the work included
    alarm = judge_pair(name, speeds).alarm
    return (number, name, int(slowed), *(round(part, 4) for part in speeds), int(alarm), seconds)


def summary(rows: pd.DataFrame) -> list[str]:
    """Return the shares of alarms with exact (Clopper-Pearson) 95 % intervals, as sentences."""
    lines = []
    for slowed, what in ((0, "of a tree with itself"), (1, f"at {SLOWER:.0%} of the speed")):
        alarms = rows[rows.slowed == slowed].alarm
        exact = stats.binomtest(int(alarms.sum()), len(alarms)).proportion_ci(method="exact")
        lines.append(
            f"{alarms.sum()} alarms in {len(alarms)} comparisons {what} "
            f"(95 % interval of the rate: {exact.low:.2%} to {exact.high:.2%})"
        )
    return lines


def main(argv: Sequence[str]) -> int:
    """Make the comparisons that the file does not have yet, and summarise all."""
    parser = Parser(prog="python -m tests.benchmarks.gate_quality", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV that rows are appended to")
    parser.add_argument("--comparisons", type=int, default=400, help="a fourth of them slowed down")
    options = parser.parse(argv)
    done = len(pd.read_csv(options.out)) if options.out.exists() else 0
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(COLUMNS)
        for first in range(done, options.comparisons, 4):
            with workers(ROOT, ROOT) as (ours, theirs):
                for number in range(first, min(first + 4, options.comparisons)):
                    writer.writerow(measure(number, ours, theirs))
                    file.flush()
    rows = pd.read_csv(options.out)
    print("\n".join(summary(rows)))
    print(f"one comparison: {rows.seconds.median():.1f} s, at most {rows.seconds.max():.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
