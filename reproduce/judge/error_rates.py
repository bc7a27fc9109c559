"""How often a verdict errs, by simulation: `python -m reproduce.judge.error_rates`.

Rewrites the tables of `docs/verdicts.md` (four minutes). The random policy scores 0 and the true
mean of the reference is 1, so the gap is 1. Everything else is as in a real check: the margin is a
tenth of the reference's measured mean, the interval uses the measured spreads, looks are taken as
declared. Every group of tables has its own Generator, so each can be made alone.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from reproduce import ROOT
from reproduce.gather.references import single_runs
from reproduce.judge.inference import (
    MARGIN_FRACTION,
    MIN_SEEDS_APART,
    Comparison,
    Sample,
    compare_suite,
    counts_in_suite,
    decide,
    lies_apart,
    sample,
    welch,
)
from reproduce.plan.looks import LEVELS, SCHEDULE
from suite.command_line import run_main
from suite.settings import UsageError

PAGE = ROOT / "docs" / "verdicts.md"

SPREADS = (0.05, 0.08, 0.15, 0.30, 0.50)
"""Standard deviation over runs, as a fraction of the gap."""

COUNTS = ((3, 3), (3, 10), (5, 3), (5, 10), (10, 10))
"""Number of our seeds, and of the reference's runs."""

REFERENCE_RUNS = (3, 5, 10, 30, 0)
"""Number of the reference's runs under looks; 0: a control with as many as ours."""

SPREAD_RATIOS = (0.5, 1.0, 2.0)
"""Standard deviation of our runs over that of the reference's."""

NUM_TASKS = (1, 2, 5, 9, 26, 57)
"""Tasks of a suite."""

FAILING_SHARE = 1.0 / 8.0
"""Share of failing seeds of the bimodal scores."""

RESAMPLED_AT = 1_000_000
"""Environment steps at which published runs are scored, to be resampled."""

NUM_REPETITIONS = 40_000
NUM_SUITES = 10_000
SEED = 20_240_601
CHUNK = 2_000
"""Repetitions held in memory at a time."""

Scores = Float[np.ndarray, "*repetitions _"]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Function that draws scores of the given shape."""


class Sides(NamedTuple):
    """Sources of the scores of a simulated check."""

    ours: Draw
    theirs: Draw


class Look(NamedTuple):
    """Many simulated tasks after one of their looks."""

    ours: Sample
    """Our side, at this look or at the earlier one that decided the task."""
    theirs: Sample
    """The reference's side."""
    verdicts: np.ndarray
    """Verdicts' names, at this look or the earlier one."""
    test: Comparison
    """Test at this look, even if an earlier one decided."""
    is_tested: np.ndarray
    """Whether this look tested the task: it was undecided, and a test was possible."""


class Rates(NamedTuple):
    """Outcomes of many simulated checks."""

    reproduced: float
    """Share that was `reproduced` or `above`."""
    below: float
    """Share that was `below`."""
    num_seeds: float
    """Mean number of our seeds per task at its last look."""


def normal(spread: float, shortfall: float, ratio: float = 1.0) -> Sides:
    """Return normal runs.

    Args:
        spread: standard deviation of the reference's runs; the gap is 1.
        shortfall: true mean of the reference minus ours.
        ratio: standard deviation of our runs over `spread`.
    """
    return Sides(
        lambda rng, shape: rng.normal(1.0 - shortfall, spread * ratio, shape),
        lambda rng, shape: rng.normal(1.0, spread, shape),
    )


def skewed(spread: float, shortfall: float, direction: int) -> Sides:
    """Return exponential runs: most lie together, a few far below (-1) or above (1) the others."""
    return Sides(
        lambda rng, shape: (
            1.0 - shortfall + direction * spread * (rng.standard_exponential(shape) - 1.0)
        ),
        lambda rng, shape: 1.0 + direction * spread * (rng.standard_exponential(shape) - 1.0),
    )


def bimodal(spread: float, *, theirs_fail: bool) -> Sides:
    """Return runs of which one in eight is as poor as a random policy, the others normal.

    If only ours fail, we fall short by an eighth of the gap, more than the margin. If theirs fail
    as well, our other runs are lowered so that our mean falls short by exactly the margin.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...], mean: float) -> np.ndarray:
        fails = rng.random(shape) < FAILING_SHARE
        return np.where(fails, 0.0, rng.normal(mean, spread, shape))

    if theirs_fail:
        mean = 1.0 / (1.0 - FAILING_SHARE)
        return Sides(
            lambda rng, shape: draw(rng, shape, mean * (1.0 - MARGIN_FRACTION)),
            lambda rng, shape: draw(rng, shape, mean),
        )
    return Sides(lambda rng, shape: draw(rng, shape, 1.0), normal(spread, 0.0).theirs)


def resampled(scores: Float[np.ndarray, " runs"]) -> Sides:
    """Return runs drawn from published ones; ours are short by exactly the margin."""
    return Sides(
        lambda rng, shape: rng.choice(scores, shape) - MARGIN_FRACTION,
        lambda rng, shape: rng.choice(scores, shape),
    )


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


def looks(
    ours: Scores, theirs: Scores, counts: Sequence[int], level: float, *, control: bool = False
) -> Iterator[Look]:
    """Judge many tasks at their looks, as `verdicts.judge_looks` judges one.

    Args:
        ours: scores of our seeds, in the last axis, in the order in which they are added.
        theirs: scores of the reference's runs, in the last axis.
        counts: numbers of seeds of the looks.
        level: one-sided level of each.
        control: whether the runs of `theirs` are added at the same looks.
    """
    shape = ours.shape[:-1]
    verdicts, judged = np.full(shape, "inconclusive"), Sample(*np.zeros((3, *shape)))
    for count in counts:
        is_open = verdicts == "inconclusive"
        now = sample(ours[..., :count])
        reference = sample(theirs[..., :count] if control else theirs)
        margin = MARGIN_FRACTION * np.asarray(reference.mean)
        test = welch(now, reference, level)
        names = decide(test.ci_low, test.ci_high, margin)
        untested = margin <= 0.0
        if count < MIN_SEEDS_APART:
            untested |= lies_apart(ours[..., :count], margin)
        names[untested] = "inconclusive"
        judged = Sample(
            *(np.where(is_open, new, old) for new, old in zip(now, judged, strict=True))
        )
        verdicts = np.where(is_open, names, verdicts)
        yield Look(judged, reference, verdicts, test, is_open & ~untested)


def simulate(
    sides: Sides,
    counts: Sequence[int],
    reference_num_runs: int,
    rng: np.random.Generator,
    *,
    level: float | None = None,
    num_repetitions: int = NUM_REPETITIONS,
) -> Rates:
    """Return the rates of one task, checked many times.

    Args:
        sides: draws the scores.
        counts: numbers of our seeds at the looks.
        reference_num_runs: number of the reference's runs; 0: as many as ours at every look.
        rng: draws all scores.
        level: one-sided level of each look; default: from `LEVELS`.
        num_repetitions: number of simulated checks.
    """
    ours = sides.ours(rng, (num_repetitions, counts[-1]))
    theirs = sides.theirs(rng, (num_repetitions, reference_num_runs or counts[-1]))
    level = LEVELS[len(counts) - 1] if level is None else level
    *_, last = looks(ours, theirs, counts, level, control=reference_num_runs == 0)
    reproduced = np.isin(last.verdicts, ["reproduced", "above"])
    return Rates(
        float(reproduced.mean()),
        float((last.verdicts == "below").mean()),
        float(np.mean(last.ours.num_runs)),
    )


def simulate_suite(
    sides: Sides,
    counts: Sequence[int],
    reference_num_runs: int,
    num_tasks: int,
    rng: np.random.Generator,
    *,
    num_repetitions: int = NUM_SUITES,
) -> tuple[Rates, float]:
    """Return the rates of a suite, and how often any of its tasks is below after Holm.

    A suite is inconclusive if none of its tasks counts.

    Args:
        sides: draws the scores of every task.
        counts: numbers of our seeds at the looks of every task.
        reference_num_runs: number of the reference's runs.
        num_tasks: number of tasks.
        rng: draws all scores.
        num_repetitions: number of simulated checks.
    """
    level, parts = LEVELS[len(counts) - 1], []
    for first in range(0, num_repetitions, CHUNK):
        shape = (min(CHUNK, num_repetitions - first), num_tasks)
        ours = sides.ours(rng, (*shape, counts[-1]))
        theirs = sides.theirs(rng, (*shape, reference_num_runs))
        verdicts, any_below = np.full(shape[0], "inconclusive"), np.zeros(shape[0], bool)
        num_seeds = np.zeros(shape[0])
        for look in looks(ours, theirs, counts, level):
            margin = MARGIN_FRACTION * np.asarray(look.theirs.mean)
            p_below = np.where(look.is_tested, look.test.p_below(margin), 1.0)
            # Holm rejects something if the smallest p-value passes Bonferroni's bound.
            num_tested = look.is_tested.sum(axis=1)
            any_below |= (p_below.min(axis=1) * num_tested <= level) & (num_tested > 0)
            counted = np.asarray(counts_in_suite(look.theirs, 0.0))
            is_judged = np.any(counted, axis=1, keepdims=True)
            counted = counted | ~is_judged
            test = compare_suite(look.ours, look.theirs, np.zeros(shape), counted, level)
            now = decide(test.ci_low, test.ci_high, MARGIN_FRACTION)
            is_open = (verdicts == "inconclusive") & is_judged[:, 0]
            verdicts[is_open] = now[is_open]
            num_seeds = np.asarray(look.ours.num_runs).mean(axis=1)
        reproduced = np.isin(verdicts, ["reproduced", "above"])
        parts.append(np.stack([reproduced, verdicts == "below", num_seeds, any_below]))
    *rates, any_below = np.concatenate(parts, axis=1).mean(axis=1)
    return Rates(*map(float, rates)), float(any_below)


def looks_at_margin(
    counts: Sequence[int], level: float, *, num_repetitions: int = NUM_REPETITIONS
) -> dict[tuple[int, float], Rates]:
    """Return the rates of looks at the margin; `LEVELS` are chosen to keep errors to 5 %.

    Args:
        counts: numbers of seeds of the looks.
        level: one-sided level of each.
        num_repetitions: number of simulated checks for each pair.

    Returns:
        Rates by the number of the reference's runs and the ratio of the spreads.
    """
    rng = np.random.default_rng(SEED)
    return {
        (num_runs, ratio): simulate(
            normal(0.15, MARGIN_FRACTION, ratio),
            counts,
            num_runs,
            rng,
            level=level,
            num_repetitions=num_repetitions,
        )
        for num_runs in REFERENCE_RUNS
        for ratio in SPREAD_RATIOS
    }


def one_look_tables() -> str:
    """Return the tables of one task with normal runs at one look."""
    rng = np.random.default_rng(SEED)
    columns = [f"{n} of ours, {m} of theirs" for n, m in COUNTS]
    rates = {
        (shortfall, spread): [simulate(normal(spread, shortfall), (n,), m, rng) for n, m in COUNTS]
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
            name: [simulate(sides, (n,), m, rng).reproduced for n, m in COUNTS]
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


def looks_tables() -> str:
    """Return the tables of one task at several looks."""
    every = tuple(range(3, 11))
    schedules = {
        "5 seeds at 5 %": (SCHEDULE[:1], LEVELS[0]),
        f"5 and 10 at {LEVELS[1]:.1%}": (SCHEDULE[:2], LEVELS[1]),
        f"5, 10 and 20 at {LEVELS[2]:.1%}": (SCHEDULE, LEVELS[2]),
        "3, 4, ... 10 at 5 % each, until one decides": (every, LEVELS[0]),
    }
    columns = [f"{m} of theirs" if m else "as many as ours" for m in REFERENCE_RUNS]
    worst: list[dict[str, list[float]]] = [{}, {}]
    for name, (counts, level) in schedules.items():
        rates = looks_at_margin(counts, level)
        for i, table in enumerate(worst):
            table[name] = [
                max(rates[m, ratio][i] for ratio in SPREAD_RATIOS) for m in REFERENCE_RUNS
            ]
    rng = np.random.default_rng(SEED)
    match, seeds = {}, {}
    for spread in SPREADS:
        rates = [
            simulate(normal(spread, 0.0), counts, m, rng, level=level)
            for counts, level in list(schedules.values())[:3]
            for m in (10, 0)
        ]
        match[f"{spread:.0%}"] = [each.reproduced for each in rates]
        seeds[f"{spread:.0%}"] = [each.num_seeds for each in rates]
    both = [
        f"{name}, {other}"
        for name in list(schedules)[:3]
        for other in ("10 of theirs", "as many as ours")
    ]
    titles = ("`reproduced`", "`below`")
    return "\n".join(
        (
            *(
                _table(
                    f"{title} at the margin, the worst of three ratios of spreads",
                    "looks",
                    columns,
                    table,
                )
                for title, table in zip(titles, worst, strict=True)
            ),
            _table("`reproduced` when the true means are equal", "spread", both, match),
            _table("Mean number of our seeds, then", "spread", both, seeds, "{:.1f}"),
        )
    )


def suite_tables() -> str:
    """Return the tables of suites."""
    rng = np.random.default_rng(SEED)
    cases = {
        f"{spread:.0%}, {name}": (spread, counts, m)
        for spread in (0.15, 0.30, 0.50)
        for name, counts, m in (
            ("3 of ours, 3 of theirs", (3,), 3),
            ("3, 10", (3,), 10),
            ("5, 10 and 20, 10", SCHEDULE, 10),
        )
    }
    titles = (
        ("Suite `reproduced` although every task falls short by exactly the margin", 0.1, 0),
        ("Suite `below` although every task falls short by no more than the margin", 0.1, 1),
        ("Any task `below` after Holm's adjustment, in the same suites", 0.1, 3),
        ("Suite `reproduced` when the true means are equal", 0.0, 0),
        ("Suite `below` although the true means are equal", 0.0, 1),
    )
    results = {}
    for shortfall in (MARGIN_FRACTION, 0.0):
        for num_tasks in NUM_TASKS:
            for name, (spread, counts, m) in cases.items():
                rates, any_below = simulate_suite(
                    normal(spread, shortfall), counts, m, num_tasks, rng
                )
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


def _table(
    title: str,
    corner: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[float]],
    form: str = "{:.1%}",
) -> str:
    """Return a table as markdown."""
    lines = [f"**{title}**", "", f"| {corner} | {' | '.join(columns)} |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | {' | '.join(map(form.format, row))} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


TABLES: Mapping[str, Callable[[], str]] = {
    "one look": one_look_tables,
    "other runs": other_runs_tables,
    "looks": looks_tables,
    "suites": suite_tables,
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
