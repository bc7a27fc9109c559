"""How often a verdict errs, by simulation: `python -m reproduce.error_rates`.

Prints the tables of `docs/verdicts.md`. The random policy scores 0 and the true mean of the
reference is 1, so the gap is 1. Runs on both sides are normal with the same spread. Everything
else is as in a real check: the margin is a tenth of the reference's measured mean, and the
interval uses the measured spreads.
"""

import numpy as np
from jaxtyping import Float

from reproduce.check import MARGIN_FRACTION, decide, welch

SPREADS = (0.05, 0.08, 0.15, 0.30, 0.50)
"""Standard deviation over runs, as a fraction of the gap."""

COUNTS = ((3, 3), (3, 10), (5, 3), (5, 10), (10, 10))
"""Number of our seeds, and of the reference's runs."""

NUM_REPETITIONS = 40_000
SEED = 20_240_601


def simulate(
    spread: float,
    num_seeds: int,
    reference_num_runs: int,
    *,
    shortfall: float,
    num_repetitions: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " verdicts"]:
    """Rates of `reproduced` (with `above`), `below` and `inconclusive`, in this order.

    Args:
        spread: standard deviation of a run's score on both sides; the gap is 1.
        num_seeds: number of our seeds.
        reference_num_runs: number of the reference's runs.
        shortfall: true mean of the reference minus ours.
        num_repetitions: number of simulated checks.
        rng: draws all scores.

    Returns:
        Three rates that sum to 1. A check whose reference is not above the random policy has no
        margin and counts as inconclusive.
    """
    ours = rng.normal(1.0 - shortfall, spread, size=(num_repetitions, num_seeds))
    theirs = rng.normal(1.0, spread, size=(num_repetitions, reference_num_runs))
    reference_mean = theirs.mean(axis=1)
    test = welch(
        ours.mean(axis=1),
        ours.std(axis=1, ddof=1),
        num_seeds,
        reference_mean,
        theirs.std(axis=1, ddof=1),
        reference_num_runs,
    )
    verdicts = decide(test.ci_low, test.ci_high, MARGIN_FRACTION * reference_mean)
    verdicts[reference_mean <= 0.0] = "inconclusive"
    reproduced = np.isin(verdicts, ["reproduced", "above"])
    below = verdicts == "below"
    return np.array([reproduced.mean(), below.mean(), (~reproduced & ~below).mean()])


def tables(num_repetitions: int) -> str:
    """All tables as markdown, each with a row per spread and a column per pair of counts."""
    rng = np.random.default_rng(SEED)
    shortfalls = (MARGIN_FRACTION, 0.0)
    rates = {
        (shortfall, spread, counts): simulate(
            spread, *counts, shortfall=shortfall, num_repetitions=num_repetitions, rng=rng
        )
        for shortfall in shortfalls
        for spread in SPREADS
        for counts in COUNTS
    }
    wanted = (
        ("`reproduced` although the true mean falls short by exactly the margin", shortfalls[0], 0),
        ("`below` although the true mean falls short by no more than the margin", shortfalls[0], 1),
        ("`reproduced` when the true means are equal", shortfalls[1], 0),
        ("`below` although the true means are equal", shortfalls[1], 1),
    )
    header = "| spread | " + " | ".join(f"{n} of ours, {m} of theirs" for n, m in COUNTS) + " |"
    lines = []
    for title, shortfall, index in wanted:
        lines += [f"**{title}**", "", header, "|---|" + "---|" * len(COUNTS)]
        for spread in SPREADS:
            cells = [f"{rates[shortfall, spread, counts][index]:.1%}" for counts in COUNTS]
            lines.append(f"| {spread:.0%} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(tables(NUM_REPETITIONS), end="")
