"""How often a verdict errs: many verdicts are simulated at once, by the rule of real ones.

`python -m reproduce.judge.error_rates` rewrites `results/error_rates.csv`, the tables of
`docs/error_rates.md` (four minutes). The zero of the scale is 0, taken as known, and the true mean
of the reference is 1, so the gap is 1. Every reference counts as one that has learned, however far
its runs scatter. Everything else is as in a real verdict: the margin is a tenth of the reference's
measured mean, the interval uses the measured spreads. Every group of tables has its own Generator,
so each can be made alone. `outlook.py` finds by the same simulation what a plan can decide.
"""

import itertools
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from reproduce import ROOT
from reproduce.gather.references import in_window, single_runs
from reproduce.judge import inference
from reproduce.judge.inference import MARGIN_FRACTION, Sample
from reproduce.judge.verdicts import MIN_TASKS
from suite.base.files import write_atomically

FILE = ROOT / "results" / "error_rates.csv"
COLUMNS = ("title", "corner", "row", "column", "rates")
"""Of a table: its title and the heading of its rows; of a cell: row, column, percentages."""

SPREADS = (0.05, 0.08, 0.15, 0.30, 0.50)
"""Standard deviation over runs, as a fraction of the gap."""
COUNTS = ((3, 3), (3, 10), (3, 30), (5, 3), (5, 10), (10, 10))
"""Number of our seeds, and of the reference's runs."""
RESAMPLED_AT = 1_000_000
"""Environment steps at which published runs are scored, to be resampled."""
TRUTHS = {"Short by exactly the margin": MARGIN_FRACTION, "Equal": 0.0}
"""True means of ours beside theirs, by the titles of their tables."""
SEED = 20_240_601
NUM_REPETITIONS = 40_000
NUM_SUITES = 10_000
CHUNK = 2_000
"""Repetitions held in memory at a time."""

Scores = Float[np.ndarray, "*repetitions _"]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Sides = tuple[Draw, Draw]
"""Draw our scores, and the reference's, in a simulated check."""
Rates = tuple[float, float]
"""Shares of simulated checks that were `reproduced` or `above`, and `below`."""
Cells = Iterator[tuple[str, str, str, Sequence[float]]]
"""Cells of tables: the table's title, row, column, and shares of simulated checks."""


class ManyVerdicts(NamedTuple):
    """Many simulated tasks, each judged by all its seeds."""

    ours: Sample
    theirs: Sample
    verdicts: np.ndarray
    test: inference.Comparison
    """Welch's test, even of tasks that are not tested."""
    is_tested: np.ndarray


def normal(spread: inference.Numbers, shortfall: float) -> Sides:
    """Return normal runs of this spread, or of one per task; ours fall short; the gap is 1."""
    per_run = np.asarray(spread)[..., None]
    return (
        lambda rng, shape: rng.normal(1.0 - shortfall, per_run, shape),
        lambda rng, shape: rng.normal(1.0, per_run, shape),
    )


def skewed(spread: float, shortfall: float, direction: int) -> Sides:
    """Return exponential runs: most lie together, a few far below (-1) or above (1) the others."""

    def runs(mean: float) -> Draw:
        return lambda rng, shape: (
            mean + direction * spread * (rng.standard_exponential(shape) - 1.0)
        )

    return runs(1.0 - shortfall), runs(1.0)


def failing(spread: float, share: float, mean: float = 1.0) -> Draw:
    """Draw runs of which `share` scores 0, as a random policy, and the others are normal."""
    others = mean / (1.0 - share)

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.where(rng.random(shape) < share, 0.0, rng.normal(others, spread, shape))

    return draw


def resampled(scores: Float[np.ndarray, " runs"]) -> Sides:
    """Return runs drawn from published ones; ours are short by exactly the margin."""
    return (
        lambda rng, shape: rng.choice(scores, shape) - MARGIN_FRACTION,
        lambda rng, shape: rng.choice(scores, shape),
    )


def judge_many(ours: Scores, theirs: Scores) -> ManyVerdicts:
    """Judge many tasks as `verdicts.judge` judges one."""
    now, reference = inference.sample(ours), inference.sample(theirs)
    margin = MARGIN_FRACTION * np.asarray(reference.mean)
    test = inference.welch(now, reference)
    names = inference.decide(test.ci_low, test.ci_high, margin)
    untested = margin <= 0.0
    if ours.shape[-1] < inference.MIN_SEEDS_APART:
        untested |= inference.lies_apart(ours, margin)
    names[untested] = "inconclusive"
    return ManyVerdicts(now, reference, names, test, ~untested)


def simulate(
    sides: Sides, num_seeds: int | range, reference_num_runs: int, rng: np.random.Generator
) -> Rates:
    """Return the rates of one task, checked many times.

    Where `num_seeds` are several, seeds are added, and the first number decides at which somebody
    who looks at each finds a verdict.
    """
    looks = [num_seeds] if isinstance(num_seeds, int) else num_seeds
    draw_ours, draw_theirs = sides
    ours = draw_ours(rng, (NUM_REPETITIONS, looks[-1]))
    theirs = draw_theirs(rng, (NUM_REPETITIONS, reference_num_runs))
    verdicts = np.full(NUM_REPETITIONS, "inconclusive")
    for count in looks:
        now = judge_many(ours[:, :count], theirs).verdicts
        verdicts = np.where(verdicts == "inconclusive", now, verdicts)
    return share_reproduced(verdicts), float((verdicts == "below").mean())


def share_reproduced(verdicts: np.ndarray) -> float:
    """Return the share of verdicts that are `reproduced` or `above`."""
    return float(np.isin(verdicts, ["reproduced", "above"]).mean())


def simulate_suite(
    sides: Sides,
    num_seeds: int,
    reference_num_runs: int,
    num_tasks: int,
    rng: np.random.Generator,
    *,
    num_repetitions: int = NUM_SUITES,
) -> tuple[float, float, float]:
    """Return the rates of a suite, and how often any of its tasks is below after Holm.

    A suite is inconclusive if fewer than `MIN_TASKS` of its tasks count.
    """
    (draw_ours, draw_theirs), verdicts, any_below = sides, [], []
    for first in range(0, num_repetitions, CHUNK):
        shape = (min(CHUNK, num_repetitions - first), num_tasks)
        ours = draw_ours(rng, (*shape, num_seeds))
        judged = judge_many(ours, draw_theirs(rng, (*shape, reference_num_runs)))
        margin = MARGIN_FRACTION * np.asarray(judged.theirs.mean)
        p_below = np.where(judged.is_tested, judged.test.p_below(margin), 1.0)
        # Holm rejects something if the smallest p-value passes Bonferroni's bound.
        num_tested = judged.is_tested.sum(axis=1)
        any_below.append((p_below.min(axis=1) * num_tested <= inference.LEVEL) & (num_tested > 0))
        counted = np.asarray(inference.counts_in_suite(judged.theirs, 0.0))
        is_judged = counted.sum(axis=1) >= MIN_TASKS
        counted = counted | ~is_judged[:, None]
        test = inference.compare_suite(judged.ours, judged.theirs, np.zeros(shape), counted)
        now = inference.decide(test.ci_low, test.ci_high, MARGIN_FRACTION)
        verdicts.append(np.where(is_judged, now, "inconclusive"))
    names = np.concatenate(verdicts)
    below = float((names == "below").mean())
    return share_reproduced(names), below, float(np.concatenate(any_below).mean())


def published_runs() -> dict[str, np.ndarray]:
    """Return the scores of every source of SAC with ten single runs, by source and environment.

    They are divided by their mean, so that it is 1. The gap counts from a score of 0, which in
    these tasks is close to the score of a random policy.
    """
    runs = single_runs()
    of_sac = runs[in_window(runs.env_steps, RESAMPLED_AT) & (runs.agent == "sac")]
    scores = of_sac.groupby(["source", "env_id", "seed"])["mean_return"].mean()
    return {
        f"{source}, {env_id}": of_task.to_numpy() / of_task.mean()
        for (source, env_id), of_task in scores.groupby(["source", "env_id"])
        if len(of_task) == 10 and of_task.mean() > 0.0
    }


def normal_runs(rng: np.random.Generator) -> Cells:
    """Yield the tables of one task with normal runs."""
    for title, shortfall in TRUTHS.items():
        for spread in SPREADS:
            for n, m in COUNTS:
                rates = simulate(normal(spread, shortfall), n, m, rng)
                yield title, f"{spread:.0%}", f"{n}, {m}", rates


def other_runs(rng: np.random.Generator) -> Cells:
    """Yield the table of `reproduced` for normal, skewed, bimodal and published runs."""
    eighth = 1.0 / 8.0
    theirs, short = failing(0.03, eighth), failing(0.03, eighth, 1.0 - MARGIN_FRACTION)
    sources = {
        "normal": normal(0.15, MARGIN_FRACTION),
        "a few far below": skewed(0.15, MARGIN_FRACTION, -1),
        "a few far above": skewed(0.15, MARGIN_FRACTION, +1),
        "one in eight fails, on both sides": (short, theirs),
        "one in eight of ours fails: short by 12.5 %": (
            failing(0.03, eighth, 1.0 - eighth),
            normal(0.03, 0.0)[1],
        ),
        **{name: resampled(scores) for name, scores in published_runs().items()},
    }
    title = "`reproduced` although short by the margin or more, in %"
    for name, sides in sources.items():
        for n, m in COUNTS:
            yield title, name, f"{n}, {m}", simulate(sides, n, m, rng)[:1]


def failing_runs(rng: np.random.Generator) -> Cells:
    """Yield the table of two equal agents, runs of both of which fail."""
    for one_in in (8, 5):
        equal = failing(0.03, 1.0 / one_in)
        for n, m in ((5, 5), (10, 5), (30, 5), (100, 5), (10, 10)):
            rates = simulate((equal, equal), n, m, rng)
            yield "Both agents are equal", f"one in {one_in} fails", f"{n}, {m}", rates


def added_seeds(rng: np.random.Generator) -> Cells:
    """Yield the table of seeds that are added until a verdict appears."""
    title = "Short by exactly the margin, at a spread of 15 %"
    looks = {"10 seeds, declared": 10, "3, 4, ... 10, until one decides": range(3, 11)}
    for name, num_seeds in looks.items():
        for m in (3, 10):
            rates = simulate(normal(0.15, MARGIN_FRACTION), num_seeds, m, rng)
            yield title, name, f"{m} of theirs", rates


def suites(rng: np.random.Generator) -> Cells:
    """Yield the tables of suites; the third rate is that of a task below, by Holm's adjustment."""
    for title, shortfall in TRUTHS.items():
        for num_tasks, spread in itertools.product((2, 5, 9, 26, 57), (0.15, 0.30, 0.50)):
            for n, m in ((3, 3), (3, 10), (10, 10)):
                rates = simulate_suite(normal(spread, shortfall), n, m, num_tasks, rng)
                shown = rates if shortfall else rates[:2]
                yield title, str(num_tasks), f"{spread:.0%}: {n}, {m}", shown


def wild_suites(rng: np.random.Generator) -> Cells:
    """Yield the table of suites in which one task scatters wildly, the others at 5 %."""
    title, shortfall = next(iter(TRUTHS.items()))
    for wild, num_tasks in itertools.product((0.50, 0.70), (2, 5, 9)):
        sides = normal(np.array([wild, *[0.05] * (num_tasks - 1)]), shortfall)
        for n, m in ((3, 3), (5, 3), (10, 3), (30, 3), (10, 10)):
            rates = simulate_suite(sides, n, m, num_tasks, rng)[:2]
            yield title, f"{num_tasks} tasks, {wild:.0%}", f"{n}, {m}", rates


GROUPS: Mapping[str, tuple[str, Callable[[np.random.Generator], Cells]]] = {
    "normal": ("spread", normal_runs),
    "others": ("runs", other_runs),
    "failing": ("runs", failing_runs),
    "adding": ("seeds", added_seeds),
    "suites": ("tasks", suites),
    "wild": ("suite", wild_suites),
}
"""Groups of tables, in the order of the page: the heading of their rows, and what makes them."""


def simulated(group: str) -> pd.DataFrame:
    """Return a group of tables, simulated anew; its Generator is its own."""
    corner, make = GROUPS[group]
    cells = [
        (title, corner, row, column, ", ".join(f"{100 * rate:.1f}" for rate in rates))
        for title, row, column, rates in make(np.random.default_rng(SEED))
    ]
    return pd.DataFrame(cells, columns=list(COLUMNS))


def stored() -> pd.DataFrame:
    """Return the stored tables; `group` is a name of `GROUPS`."""
    return pd.read_csv(FILE, dtype=str)


if __name__ == "__main__":
    ArgumentParser(description="simulate all error rates anew: four minutes").parse_args()
    made = pd.concat([simulated(group).assign(group=group) for group in GROUPS])
    content = made[["group", *COLUMNS]].to_csv(index=False, lineterminator="\n")
    write_atomically(FILE, content.encode())
