"""Published grids: kept small, drawn again from their records, and compared with them.

`python -m reproduce published` does the first two for every folder under `results/published`, and
with `--check` only the last.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from reproduce.commands import flags
from reproduce.pipeline import gather, write_report
from reproduce.plan.grid import Plan
from reproduce.plan.make import load_grid
from reproduce.plan.presets import PUBLISHED
from suite.base.files import DAMAGED, compress, compressed
from suite.envs.tasks import find_task
from suite.record.manifest import POLICY, TABLES, leave_out_policy

RECORDS = "*/seed-*/run.json"
LONG_TABLE = 12_000
"""Bytes of a table of episodes that is kept compressed."""
TOLERANCE = 1e-6
"""Relative difference of two numbers that count as the same: other processors round otherwise."""


def find_plans(root: Path) -> list[Plan]:
    """Return the plan of every folder `<agent>-<suite>/<source>` with runs.

    A `UsageError` names a folder whose plan is missing or cannot be read.
    """
    plans = []
    for folder in sorted(folder for folder in root.glob("*/*") if any(folder.glob(RECORDS))):
        here = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        plans.append(load_grid(here))
    return plans


def refresh(plan: Plan) -> None:
    """Keep the records of a published folder small, and write its tables, figures and page.

    A task keeps one policy, all games together one. Tables of games, of many episodes and of the
    reference's curves are compressed.
    """
    kept = set()
    for run in plan.runs():
        if not run.has_ended:
            continue
        is_game = find_task(run.task, plan.protocol).family == "atari"
        for path in filter(Path.exists, (run.directory / name for name in TABLES)):
            if is_game or (path.name == "episodes.csv" and path.stat().st_size > LONG_TABLE):
                compress(path)
        if (run.directory / POLICY[0]).exists():
            whose = "games" if is_game else run.task
            if whose in kept:
                leave_out_policy(run.directory)
            kept.add(whose)
    write_report(plan, gather(plan), packed=["reference_curves"])


def stale_table(plan: Plan) -> str:
    """Return the name of a table that records and references no longer give; empty if all hold."""
    for name, table in gather(plan).items():
        path = plan.directory / f"{name}.csv"
        given = pd.read_csv(io.StringIO(table.to_csv(index=False)))
        try:
            kept = pd.read_csv(path if path.exists() else compressed(path))
            pd.testing.assert_frame_equal(kept, given, check_dtype=False, rtol=TOLERANCE, atol=1e-9)
        except (FileNotFoundError, ValueError, AssertionError, *DAMAGED):
            return path.name
    return ""


def main(argv: Sequence[str]) -> int:
    """Draw every published folder again, or say which tables are out of date."""
    options = flags.make_parser("published", "--check").parse(argv)
    stale = []
    for plan in find_plans(PUBLISHED):
        if not options.check:
            refresh(plan)
            print(plan.directory / "index.html")
        elif name := stale_table(plan):
            stale.append(plan.directory / name)
    return flags.say_stale(stale, "published")
