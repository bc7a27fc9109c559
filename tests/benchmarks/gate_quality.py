"""How often a comparison with another commit cries wolf, and how often it sees one.

    .venv/bin/python -m tests.benchmarks.gate_quality --out gate_quality.csv

Compares this tree with itself as `--pair` does, every workload in turn. Each comparison is
also judged as if one side ran at 85 % of its speed: its times are multiplied. Rows are appended as
they come, so a study that was stopped goes on where it was.
"""

import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy import stats

from reproduce import ROOT
from reproduce.speed.pair import STARTS, Ratio, compare, judge
from reproduce.speed.workloads import WORKLOADS
from suite.settings.command_line import Parser, run_main

SLOWER = 0.85
"""Speed of the side that is slowed down, as a share of its own."""
COLUMNS = "number", "workload", "start", "median", "low", "high", "alarm", "alarm_if_slower", "load"


def measure(number: int) -> list[tuple[object, ...]]:
    """Return the rows of comparison `number`: one for each start of both processes."""
    name, rows = [*WORKLOADS][number % len(WORKLOADS)], []
    for start in range(STARTS):
        speeds = compare(ROOT, ROOT, name)
        slower = Ratio(*(SLOWER * part for part in speeds))
        alarms = (int(judge(name, each).alarm) for each in (speeds, slower))
        figures = (round(part, 4) for part in speeds)
        rows.append((number, name, start, *figures, *alarms, round(os.getloadavg()[0], 1)))
    return rows


def summary(rows: pd.DataFrame) -> list[str]:
    """Return the shares of comparisons of which every start alarms, as sentences.

    The intervals are exact (Clopper-Pearson), of 95 %.
    """
    lines = []
    each = rows.groupby("number")[["alarm", "alarm_if_slower"]].min()
    for column, what in (("alarm", "of a tree with itself"), ("alarm_if_slower", "at 85 % speed")):
        count = int(each[column].sum())
        exact = stats.binomtest(count, len(each)).proportion_ci(method="exact")
        interval = f"{exact.low:.2%} to {exact.high:.2%}"
        lines.append(f"{count} alarms in {len(each)} comparisons {what} (rate: {interval})")
    return lines


def main(argv: Sequence[str]) -> int:
    """Make the comparisons that the file does not have yet, and summarise all."""
    parser = Parser(prog="python -m tests.benchmarks.gate_quality", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV that rows are appended to")
    parser.add_argument("--comparisons", type=int, default=300)
    options = parser.parse(argv)
    done = int(pd.read_csv(options.out).number.max()) + 1 if options.out.exists() else 0
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(COLUMNS)
        for number in range(done, options.comparisons):
            writer.writerows(measure(number))
            file.flush()
    print("\n".join(summary(pd.read_csv(options.out))))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
