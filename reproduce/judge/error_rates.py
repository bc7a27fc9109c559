"""How often a verdict errs, by simulation: `python -m reproduce.judge.error_rates`.

Rewrites the tables of `docs/error_rates.md` (four minutes). The zero of the scale is 0, taken as
known, and the true mean of the reference is 1, so the gap is 1. Every reference counts as one that
has learned, however far its runs scatter. Everything else is as in a real check: the margin is a
tenth of the reference's measured mean, the interval uses the measured spreads. Every group of
tables has its own Generator, so each can be made alone.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from reproduce import ROOT
from reproduce.gather.references import single_runs
from reproduce.judge.inference import MARGIN_FRACTION
from reproduce.judge.simulation import (
    Rates,
    Sides,
    bimodal,
    failing,
    normal,
    resampled,
    simulate,
    simulate_adding,
    simulate_suite,
    skewed,
)
from suite.base.errors import UsageError
from suite.settings.command_line import run_main

PAGE = ROOT / "docs" / "error_rates.md"

SPREADS = (0.05, 0.08, 0.15, 0.30, 0.50)
"""Standard deviation over runs, as a fraction of the gap."""

COUNTS = ((3, 3), (3, 10), (3, 30), (5, 3), (5, 10), (10, 10))
"""Number of our seeds, and of the reference's runs."""

FAILING_COUNTS = ((5, 5), (10, 5), (30, 5), (100, 5), (10, 10))
"""The same where runs of both sides fail."""

NUM_TASKS = (1, 2, 5, 9, 26, 57)
"""Tasks of a suite."""

TAME_SPREAD = 0.05
"""Spread of the other tasks of a suite with a wild one."""

WILD_SPREADS = (0.50, 0.70)
"""Spreads of the wild task."""

RESAMPLED_AT = 1_000_000
"""Environment steps at which published runs are scored, to be resampled."""

SEED = 20_240_601


def published_runs() -> dict[str, np.ndarray]:
    """Return the scores of every source of SAC with ten single runs, by source and environment.

    They are divided by their mean, so that it is 1. The gap counts from a score of 0, which in
    these tasks is close to the score of a random policy.
    """
    runs = single_runs()
    window = (runs.env_steps > 0.9 * RESAMPLED_AT) & (runs.env_steps <= RESAMPLED_AT)
    of_sac = runs[window & (runs.agent == "sac")]
    scores = of_sac.groupby(["source", "env_id", "seed"])["mean_return"].mean()
    return {
        f"{source}, {env_id}": of_task.to_numpy() / of_task.mean()
        for (source, env_id), of_task in scores.groupby(["source", "env_id"])
        if len(of_task) == 10 and of_task.mean() > 0.0
    }


def normal_tables() -> str:
    """Return the tables of one task with normal runs."""
    rng = np.random.default_rng(SEED)
    columns = [f"{n} of ours, {m} of theirs" for n, m in COUNTS]
    rates = {
        (shortfall, spread): [simulate(normal(spread, shortfall), n, m, rng) for n, m in COUNTS]
        for shortfall in (MARGIN_FRACTION, 0.0)
        for spread in SPREADS
    }
    wanted = (
        ("`reproduced` although the true mean falls short by exactly the margin", 0.1, 0),
        ("`below` although the true mean falls short by no more than the margin", 0.1, 1),
        ("`reproduced` when the true means are equal", 0.0, 0),
        ("`below` although the true means are equal", 0.0, 1),
    )
    return "\n".join(
        _table(
            title,
            "spread",
            columns,
            {f"{spread:.0%}": [each[i] for each in rates[shortfall, spread]] for spread in SPREADS},
        )
        for title, shortfall, i in wanted
    )


def other_runs_tables() -> str:
    """Return the tables of `reproduced` for normal, skewed, bimodal and published runs."""
    rng = np.random.default_rng(SEED)
    columns = [f"{n} of ours, {m} of theirs" for n, m in COUNTS]
    made = {
        "normal": normal(0.15, MARGIN_FRACTION),
        "a few far below": skewed(0.15, MARGIN_FRACTION, -1),
        "a few far above": skewed(0.15, MARGIN_FRACTION, +1),
        "one in eight fails, on both sides": bimodal(0.03, theirs_fail=True),
        "one in eight of ours fails: short by 12.5 %": bimodal(0.03, theirs_fail=False),
    }
    found = {name: resampled(scores) for name, scores in published_runs().items()}

    def rows(sources: Mapping[str, Sides]) -> dict[str, list[float]]:
        return {
            name: [simulate(sides, n, m, rng).reproduced for n, m in COUNTS]
            for name, sides in sources.items()
        }

    return "\n".join(
        (
            _table(
                "`reproduced` although short by the margin or more", "runs", columns, rows(made)
            ),
            _table("The same, resampled from published runs", "runs", columns, rows(found)),
        )
    )


def failing_tables() -> str:
    """Return the tables of two equal agents, runs of both of which fail."""
    rng = np.random.default_rng(SEED)
    columns = [f"{n} of ours, {m} of theirs" for n, m in FAILING_COUNTS]
    rates = {
        f"one in {round(1.0 / share)} fails": [
            simulate(failing(0.03, share), n, m, rng) for n, m in FAILING_COUNTS
        ]
        for share in (1.0 / 8.0, 1.0 / 5.0)
    }
    return "\n".join(
        _table(title, "runs", columns, {name: [each[i] for each in rates[name]] for name in rates})
        for title, i in (
            ("`below` although both agents are equal", 1),
            ("`reproduced` when both agents are equal", 0),
        )
    )


def adding_tables() -> str:
    """Return the table of seeds that are added until a verdict appears."""
    rng = np.random.default_rng(SEED)
    added = range(3, 11)
    columns = [f"{title}, {m} of theirs" for m in (3, 10) for title in ("`reproduced`", "`below`")]
    rows = {
        "10 seeds, declared": [
            rate
            for m in (3, 10)
            for rate in simulate(normal(0.15, MARGIN_FRACTION), added[-1], m, rng)
        ],
        "3, 4, ... 10, until one decides": [
            rate
            for m in (3, 10)
            for rate in simulate_adding(normal(0.15, MARGIN_FRACTION), added, m, rng)
        ],
    }
    return _table("Short by exactly the margin, at a spread of 15 %", "seeds", columns, rows)


def suite_tables() -> str:
    """Return the tables of suites."""
    rng = np.random.default_rng(SEED)
    cases = {
        f"{spread:.0%}, {name}": (spread, n, m)
        for spread in (0.15, 0.30, 0.50)
        for name, n, m in (
            ("3 of ours, 3 of theirs", 3, 3),
            ("3, 10", 3, 10),
            ("10, 10", 10, 10),
        )
    }
    titles = (
        ("Suite `reproduced` although every task falls short by exactly the margin", 0.1, 0),
        ("Suite `below` although every task falls short by no more than the margin", 0.1, 1),
        ("Any task `below` after Holm's adjustment, in the same suites", 0.1, 2),
        ("Suite `reproduced` when the true means are equal", 0.0, 0),
        ("Suite `below` although the true means are equal", 0.0, 1),
    )
    results = {}
    for shortfall in (MARGIN_FRACTION, 0.0):
        for num_tasks in NUM_TASKS:
            for name, (spread, n, m) in cases.items():
                rates, any_below = simulate_suite(normal(spread, shortfall), n, m, num_tasks, rng)
                results[shortfall, num_tasks, name] = (*rates, any_below)
    return "\n".join(
        _table(
            title,
            "tasks",
            list(cases),
            {str(n): [results[shortfall, n, name][i] for name in cases] for n in NUM_TASKS},
        )
        for title, shortfall, i in titles
    )


def wild_tables() -> str:
    """Return the tables of suites in which one task scatters wildly."""
    rng = np.random.default_rng(SEED)
    counts = ((3, 3), (5, 3), (10, 3), (30, 3), (10, 10))
    columns = [f"{n} of ours, {m} of theirs" for n, m in counts]
    rates: dict[tuple[float, str], list[Rates]] = {}
    for shortfall in (MARGIN_FRACTION, 0.0):
        for wild in WILD_SPREADS:
            for num_tasks in (2, 5, 9):
                spreads = np.array([wild, *[TAME_SPREAD] * (num_tasks - 1)])
                rates[shortfall, f"{num_tasks} tasks, one of {wild:.0%}"] = [
                    simulate_suite(normal(spreads, shortfall), n, m, num_tasks, rng)[0]
                    for n, m in counts
                ]
    return "\n".join(
        _table(
            title,
            "suite",
            columns,
            {name: [each[i] for each in row] for (short, name), row in rates.items() if short == s},
        )
        for title, s, i in (
            ("Suite `below` although every task falls short by exactly the margin", 0.1, 1),
            ("Suite `reproduced` although every task falls short by exactly the margin", 0.1, 0),
            ("Suite `below` although the true means are equal", 0.0, 1),
        )
    )


def _table(
    title: str,
    corner: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[float]],
) -> str:
    """Return a table as markdown."""
    lines = [f"**{title}**", "", f"| {corner} | {' | '.join(columns)} |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | {' | '.join(map('{:.1%}'.format, row))} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


TABLES: Mapping[str, Callable[[], str]] = {
    "normal runs": normal_tables,
    "other runs": other_runs_tables,
    "failing runs": failing_tables,
    "adding seeds": adding_tables,
    "suites": suite_tables,
    "one wild task": wild_tables,
}
"""Groups of tables, in the order of the page."""


def fill(page: str) -> str:
    """Return the page with every group of tables, between its marks, computed again."""
    for name, make in TABLES.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise UsageError(f"the page lacks <!-- {name} --> and <!-- end -->, each on a line")
        page = before + mark + "\n" + make() + "\n" + end + after
    return page


def main(argv: Sequence[str]) -> int:
    """Rewrite the page's tables; `argv` must be empty."""
    if argv:
        raise UsageError(f"unexpected argument {argv[0]!r}: it rewrites {PAGE}")
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
