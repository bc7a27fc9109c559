"""How often a comparison with another commit cries wolf, and how often it sees one.

    .venv/bin/python -m tests.benchmarks.gate_quality --out results/throughput/gate_quality.csv

Compares this tree with itself, by the rule and in the time that `--pair` takes, on every gated
workload in turn. In every fourth round one side is slowed down: after each repetition it waits,
busily, until it runs at 85 % of its speed. Every comparison starts both processes anew, and again
where it alarms, as `--pair` does. Rows are appended as they come, so a study that was stopped goes
on where it was.
"""

import csv
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy import stats

from reproduce.speed.pair import ROOT, STARTS, compare, judge, workers
from reproduce.speed.workloads import GATED
from suite.settings.command_line import Parser, run_main

SLOWER = 0.85
"""Speed of the side that is slowed down, as a share of its own."""
COLUMNS = (
    *("number", "workload", "slowed", "median", "low", "high", "first", "alarm", "load", "seconds"),
)
"""Of a row: `first`, whether the first start of the processes alarmed; `load`, the machine's; the
interval is the last start's."""


def measure(number: int) -> tuple[object, ...]:
    """Make comparison `number` and return its row."""
    slowed, name = number // len(GATED) % 4 == 3, GATED[number % len(GATED)]
    started, alarms, interval = time.perf_counter(), list[bool](), ()
    while len(alarms) < STARTS and all(alarms):
        with workers(ROOT, ROOT) as (ours, theirs):
            speeds = compare(ours, theirs, name, slowdown=1 / SLOWER if slowed else 1.0)
        alarms.append(judge(name, speeds).alarm)
        interval = tuple(round(part, 4) for part in speeds)
    seconds = round(time.perf_counter() - started, 1)  # building the work included
    load = round(os.getloadavg()[0], 1)
    return (number, name, int(slowed), *interval, int(alarms[0]), int(alarms[-1]), load, seconds)


def summary(rows: pd.DataFrame) -> list[str]:
    """Return the shares of alarms with exact (Clopper-Pearson) 95 % intervals, as sentences."""
    lines = []
    for slowed, what in ((0, "of a tree with itself"), (1, f"at {SLOWER:.0%} of the speed")):
        of = rows[rows.slowed == slowed]
        if of.empty:
            continue
        exact = stats.binomtest(int(of.alarm.sum()), len(of)).proportion_ci(method="exact")
        lines.append(
            f"{of.alarm.sum()} alarms in {len(of)} comparisons {what} "
            f"(95 % interval of the rate: {exact.low:.2%} to {exact.high:.2%}); "
            f"at the first start {of['first'].sum()}"
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
        for number in range(done, options.comparisons):
            writer.writerow(measure(number))
            file.flush()
    rows = pd.read_csv(options.out)
    print("\n".join(summary(rows)))
    print(f"one comparison: {rows.seconds.median():.1f} s, at most {rows.seconds.max():.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
