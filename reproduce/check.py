"""Verdicts: was the published result reproduced?

One task is judged by Welch's 90 % interval of the difference between the mean of our seeds and
the mean of the reference's runs, against a margin of a tenth of the gap between the reference and
a random policy. `docs/verdicts.md` explains how to read a verdict and how often it errs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from reproduce import statistics
from reproduce.references import ReferenceScore

VerdictName = Literal["reproduced", "above", "below", "inconclusive", "shown only", "no reference"]

MARGIN_FRACTION = 0.1
"""Margin as a fraction of the gap between the reference and a random policy."""

CONFIDENCE = 0.90
"""Confidence of the two-sided interval; each of its ends is a one-sided test at 5 %."""

MIN_SEEDS = 3
"""With fewer seeds no test is made."""

MAX_SEEDS = 10_000
"""Largest number of seeds tried when looking for the number that would settle a task."""

DETECTION_POWER = 0.8
"""Probability with which the smallest detectable shortfall is declared `below`."""

STATUSES = ("finished", "failed", "diverged", "running", "planned")

TABLE_COLUMNS = (
    *("task", "verdict", "env_steps", "rule", "num_seeds", "num_failed", "num_diverged"),
    *("score_mean", "score_std", "reference_source", "reference_mean", "reference_std"),
    *("reference_num_runs", "random_score", "margin", "difference", "ci_low", "ci_high"),
    *("p_below", "p_below_holm", "smallest_detectable_shortfall", "seeds_to_settle", "ratio"),
    "note",
)

Numbers = float | Float[np.ndarray, " *tests"]


class Welch(NamedTuple):
    """Welch's comparison of two means; every field has one entry per test."""

    difference: Numbers
    """Mean of our seeds minus mean of the reference."""
    standard_error: Numbers
    """Of the difference."""
    degrees_of_freedom: Numbers
    """Welch-Satterthwaite."""
    ci_low: Numbers
    """Lower end of the interval of the difference."""
    ci_high: Numbers
    """Upper end of that interval."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one task with every number it rests on; NaN where a number does not exist."""

    verdict: VerdictName
    """`reproduced`, `above` (also reproduced), `below`, `inconclusive`, or no test was made."""
    num_seeds: int
    """Number of our scores."""
    score_mean: float
    """Mean of our scores, reward units."""
    score_std: float
    """Standard deviation of our scores (n - 1 in the denominator)."""
    reference_source: str
    """Name of the source that judges; empty without a reference."""
    reference_mean: float
    """Mean of the reference's runs."""
    reference_std: float
    """Standard deviation of the reference's runs."""
    reference_num_runs: int
    """Number of the reference's runs; 0 without a reference."""
    random_score: float
    """Score of a random policy."""
    margin: float
    """`MARGIN_FRACTION` of (reference - random)."""
    difference: float
    """Our mean minus the reference's."""
    ci_low: float
    """Lower end of Welch's interval of the difference."""
    ci_high: float
    """Upper end of Welch's interval of the difference."""
    p_below: float
    """One-sided p-value against "we fall short by at most the margin"."""
    smallest_detectable_shortfall: float
    """Shortfall of our true mean that would be found; see `judge`."""
    seeds_to_settle: int | None
    """Seeds that decide the task; see `judge`."""
    ratio: float
    """Our mean with the random policy at 0 and the reference at 1."""
    note: str
    """What a reader has to know beside the numbers."""


def welch(
    score_mean: Numbers,
    score_std: Numbers,
    num_seeds: int | np.ndarray,
    reference_mean: Numbers,
    reference_std: Numbers,
    reference_num_runs: int,
    confidence: float = CONFIDENCE,
) -> Welch:
    """Compares two means without assuming equal spreads (Welch 1947).

    Every argument may hold one entry per test. Where neither side has any spread, the interval
    shrinks to the difference.

    Args:
        score_mean: mean of our seeds.
        score_std: standard deviation of our seeds.
        num_seeds: number of our seeds, at least 2.
        reference_mean: mean of the reference's runs.
        reference_std: standard deviation of the reference's runs.
        reference_num_runs: number of the reference's runs, at least 2.
        confidence: of the two-sided interval.

    Returns:
        Difference, standard error, degrees of freedom and interval.
    """
    ours = np.square(score_std) / num_seeds
    theirs = np.square(reference_std) / reference_num_runs
    spread = np.square(ours) / (num_seeds - 1) + np.square(theirs) / (reference_num_runs - 1)
    degrees_of_freedom = np.where(
        spread > 0.0,
        np.square(ours + theirs) / np.where(spread > 0.0, spread, 1.0),
        num_seeds + reference_num_runs - 2.0,
    )
    difference = score_mean - reference_mean
    standard_error = np.sqrt(ours + theirs)
    half_width = standard_error * special.stdtrit(degrees_of_freedom, (1.0 + confidence) / 2.0)
    return Welch(
        difference,
        standard_error,
        degrees_of_freedom,
        difference - half_width,
        difference + half_width,
    )


def decide(ci_low: Numbers, ci_high: Numbers, margin: Numbers) -> np.ndarray:
    """Name of the verdict for intervals of the difference and positive margins, one per test."""
    return np.select(
        [ci_low > margin, ci_low >= -margin, ci_high < -margin],
        ["above", "reproduced", "below"],
        default="inconclusive",
    )


def judge(
    scores: Float[np.ndarray, " seeds"],
    reference: ReferenceScore | None,
    random_score: float | None,
) -> Verdict:
    """Judges one task.

    In this order:

    1. No reference at this step and rule: `no reference`.
    2. No score of ours: `inconclusive`.
    3. The reference has one run or no spread, or the margin cannot be declared because the score
       of a random policy is unknown or not below the reference: `shown only`.
    4. Fewer than `MIN_SEEDS` scores: `inconclusive`.
    5. The lower end of the interval is above the margin: `above`; not below minus the margin:
       `reproduced`. The upper end is below minus the margin: `below`. Else: `inconclusive`.

    `smallest_detectable_shortfall` is the shortfall of our true mean below the true mean of the
    reference, margin included, at which `below` would be declared with a probability of
    `DETECTION_POWER`, taking the measured spreads, degrees of freedom and margin as the true ones.

    `seeds_to_settle` is, for an inconclusive task, the smallest number of our seeds that would
    give another verdict if our mean, both spreads and the reference stayed as they are, and None
    if no number up to `MAX_SEEDS` would: more seeds of ours cannot make up for few runs of the
    reference. It is `MIN_SEEDS`, the least that is judged at all, where fewer scores exist; the
    number of our seeds for a task that is decided; None where no test is possible.

    Args:
        scores: one score per seed, reward units.
        reference: what to compare with, at the same step and by the same rule.
        random_score: score of a random policy; None or NaN if unknown.

    Returns:
        The verdict and its numbers.

    Raises:
        ValueError: if a score, or the mean of the reference, is not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite, not {scores[~np.isfinite(scores)][0]}")
    if reference is not None and not np.isfinite(reference.mean):
        raise ValueError(f"the reference's mean must be finite, not {reference.mean}")
    random = float("nan") if random_score is None else float(random_score)
    score_mean = float(scores.mean()) if scores.size > 0 else float("nan")
    score_std = float(scores.std(ddof=1)) if scores.size > 1 else float("nan")
    if reference is None:
        return _untested(
            "no reference",
            scores.size,
            score_mean,
            score_std,
            None,
            random,
            note="no comparable reference at this step and rule",
        )
    gap = reference.mean - random
    obstacle = ""
    if reference.num_runs < 2:
        obstacle = "the reference has a single run"
    elif not np.isfinite(reference.std):
        obstacle = "the reference states no spread"
    elif not np.isfinite(gap):
        obstacle = "no margin: the score of a random policy is unknown"
    elif gap <= 0.0:
        obstacle = "no margin: the reference is not above a random policy"
    if scores.size > 0 and obstacle:
        return _untested(
            "shown only", scores.size, score_mean, score_std, reference, random, note=obstacle
        )
    if scores.size < MIN_SEEDS:
        return _untested(
            "inconclusive",
            scores.size,
            score_mean,
            score_std,
            reference,
            random,
            note=f"{scores.size} seeds; at least {MIN_SEEDS} are needed",
            seeds_to_settle=None if obstacle else MIN_SEEDS,
        )
    return _tested(scores.size, score_mean, score_std, reference, random)


def _untested(
    verdict: VerdictName,
    num_seeds: int,
    score_mean: float,
    score_std: float,
    reference: ReferenceScore | None,
    random_score: float,
    *,
    note: str,
    seeds_to_settle: int | None = None,
) -> Verdict:
    """Verdict without a test: what can be shown is shown, the rest is NaN."""
    nan = float("nan")
    reference_mean = nan if reference is None else reference.mean
    gap = reference_mean - random_score
    return Verdict(
        verdict=verdict,
        num_seeds=num_seeds,
        score_mean=score_mean,
        score_std=score_std,
        reference_source="" if reference is None else reference.source,
        reference_mean=reference_mean,
        reference_std=nan if reference is None else reference.std,
        reference_num_runs=0 if reference is None else reference.num_runs,
        random_score=random_score,
        margin=MARGIN_FRACTION * gap if gap > 0.0 else nan,
        difference=score_mean - reference_mean,
        ci_low=nan,
        ci_high=nan,
        p_below=nan,
        smallest_detectable_shortfall=nan,
        seeds_to_settle=seeds_to_settle,
        ratio=(score_mean - random_score) / gap if gap > 0.0 else nan,
        note=note,
    )


def _tested(
    num_seeds: int,
    score_mean: float,
    score_std: float,
    reference: ReferenceScore,
    random_score: float,
) -> Verdict:
    """Verdict by Welch's test; both sides have a spread and the margin is positive."""
    gap = reference.mean - random_score
    margin = MARGIN_FRACTION * gap
    difference, standard_error, degrees_of_freedom, ci_low, ci_high = map(
        float,
        welch(score_mean, score_std, num_seeds, reference.mean, reference.std, reference.num_runs),
    )
    if standard_error > 0.0:
        p_below = float(special.stdtr(degrees_of_freedom, (difference + margin) / standard_error))
    else:
        p_below = 0.0 if difference < -margin else 1.0
    # The test rejects below -quantile; with a true mean short by d it is a noncentral t variable
    # with noncentrality (margin - d) / standard error.
    quantile = special.stdtrit(degrees_of_freedom, (1.0 + CONFIDENCE) / 2.0)
    noncentrality = special.nctdtrinc(degrees_of_freedom, 1.0 - DETECTION_POWER, quantile)
    verdict = decide(ci_low, ci_high, margin).item()
    seeds_to_settle, note = num_seeds, ""
    if verdict == "inconclusive":
        seeds_to_settle = _seeds_to_settle(num_seeds, score_mean, score_std, reference, margin)
        note = (
            f"{seeds_to_settle} seeds would settle it if mean and spread stay as they are"
            if seeds_to_settle is not None
            else f"not even {MAX_SEEDS:,} seeds would settle it: the reference has "
            f"{reference.num_runs} runs"
        )
    elif score_std == 0.0 and reference.std == 0.0:
        note = "neither side has a spread: the means are compared"
    return Verdict(
        verdict=verdict,
        num_seeds=num_seeds,
        score_mean=score_mean,
        score_std=score_std,
        reference_source=reference.source,
        reference_mean=reference.mean,
        reference_std=reference.std,
        reference_num_runs=reference.num_runs,
        random_score=random_score,
        margin=margin,
        difference=difference,
        ci_low=ci_low,
        ci_high=ci_high,
        p_below=p_below,
        smallest_detectable_shortfall=float(margin + noncentrality * standard_error),
        seeds_to_settle=seeds_to_settle,
        ratio=(score_mean - random_score) / gap,
        note=note,
    )


def _seeds_to_settle(
    num_seeds: int, score_mean: float, score_std: float, reference: ReferenceScore, margin: float
) -> int | None:
    """Smallest larger number of seeds with another verdict, all else unchanged."""
    # Every number is tried: the interval need not shrink with more seeds, because degrees of
    # freedom fall towards the reference's as its runs come to dominate the standard error.
    candidates = np.arange(num_seeds + 1, MAX_SEEDS + 1)
    test = welch(
        score_mean, score_std, candidates, reference.mean, reference.std, reference.num_runs
    )
    settled = candidates[decide(test.ci_low, test.ci_high, margin) != "inconclusive"]
    return int(settled[0]) if settled.size > 0 else None


def holm(p_values: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """P-values adjusted for the number of tests (Holm 1979); NaN is no test and stays NaN.

    Rejecting where the adjusted value is at most 0.05 keeps the probability of any false
    rejection among all tests at 5 %, whatever their dependence.

    Args:
        p_values: in [0, 1] or NaN.

    Returns:
        Adjusted p-values in the same order.

    Raises:
        ValueError: if a p-value lies outside [0, 1].
    """
    tested = np.flatnonzero(~np.isnan(p_values))
    values = p_values[tested]
    if ((values < 0.0) | (values > 1.0)).any():
        raise ValueError(
            f"p-values must lie in [0, 1], not {values[(values < 0.0) | (values > 1.0)][0]}"
        )
    order = np.argsort(values)
    remaining = np.arange(values.size, 0, -1)
    adjusted = p_values.copy()
    adjusted[tested[order]] = np.minimum(np.maximum.accumulate(remaining * values[order]), 1.0)
    return adjusted


def verdict_table(
    scores: pd.DataFrame,
    references: Mapping[str, ReferenceScore | None],
    random_scores: Mapping[str, float],
    runs_by_status: pd.DataFrame,
) -> pd.DataFrame:
    """Judges every task of a plan.

    Args:
        scores: columns task, seed, env_steps, score, rule; one row per seed of a task, and one
            step and one rule per task.
        references: by task; a task that is missing has no reference.
        random_scores: scores of a random policy by task; may lack tasks.
        runs_by_status: columns task, seed, status; one row per planned run, with the status
            finished, failed, diverged, running or planned.

    Returns:
        One row per task that any argument names, planned tasks first, with `TABLE_COLUMNS`.
        `p_below_holm` is adjusted for all tasks that were tested.

    Raises:
        ValueError: if a score is not finite, a seed counts twice, a task mixes steps or rules, a
            reference is of another step or rule than the scores, or a status is unknown.
    """
    unknown = set(runs_by_status["status"]) - set(STATUSES)
    if unknown:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {min(unknown)!r}")
    tasks = dict.fromkeys([*runs_by_status["task"], *scores["task"], *references])
    rows = []
    for task in tasks:
        reference = references.get(task)
        task_scores = scores.query("task == @task")
        statuses = runs_by_status.loc[runs_by_status["task"] == task, "status"]
        env_steps, rule = _step_and_rule(task, task_scores, reference)
        verdict = judge(
            task_scores["score"].to_numpy(np.float64), reference, random_scores.get(task)
        )
        notes = [
            f"{(statuses == status).sum()} of {len(statuses)} runs {status}"
            for status in ("failed", "diverged", "running", "planned")
            if (statuses == status).any()
        ]
        rows.append(
            {
                **asdict(verdict),
                "task": task,
                "env_steps": env_steps,
                "rule": rule,
                "num_failed": int((statuses == "failed").sum()),
                "num_diverged": int((statuses == "diverged").sum()),
                "note": "; ".join(filter(None, [verdict.note, *notes])),
            }
        )
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    table["p_below_holm"] = holm(table["p_below"].to_numpy(np.float64))
    return table.astype({"env_steps": "Int64", "seeds_to_settle": "Int64"})


def suite_summary(
    scores: pd.DataFrame,
    references: Mapping[str, ReferenceScore | None],
    random_scores: Mapping[str, float],
    human_scores: Mapping[str, tuple[float, float]] | None = None,
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
) -> pd.DataFrame:
    """Aggregates the scores of a suite, each normalised by its task.

    Reference-normalised: (score - random) / (reference - random). A task counts if it has scores,
    a reference and a random policy that scores below it. Human-normalised, for Atari: (score -
    random) / (human - random) with the published numbers, not with ours; a reference is not needed.

    Args:
        scores: as in `verdict_table`.
        references: as in `verdict_table`.
        random_scores: as in `verdict_table`.
        human_scores: published (random, human) scores by task, see `references.human_scores`;
            without any, the human-normalised rows are left out.
        seed: of the bootstrap, which resamples seeds within each task.
        num_resamples: of the bootstrap.

    Returns:
        One row per statistic (iqm, median, mean, optimality_gap of reference-normalised scores;
        human_normalised_median, human_normalised_iqm) with its 95 % interval, the number of tasks
        and the number of runs over all tasks; NaN if no task counts.

    Raises:
        ValueError: if a human score is not above the random one.
    """
    scales = {
        task: (random_scores.get(task, float("nan")), reference.mean)
        for task, reference in references.items()
        if reference is not None and reference.mean > random_scores.get(task, float("nan"))
    }
    human_scales = human_scores or {}
    for task, (random_score, human_score) in human_scales.items():
        if not human_score > random_score:
            raise ValueError(
                f"{task}: human score must be above random {random_score}, not {human_score}"
            )
    by_reference, by_human = _normalise(scores, scales), _normalise(scores, human_scales)
    aggregates: list[tuple[str, list[np.ndarray], statistics.Statistic]] = [
        ("iqm", by_reference, statistics.iqm),
        ("median", by_reference, statistics.median_score),
        ("mean", by_reference, statistics.mean_score),
        ("optimality_gap", by_reference, statistics.optimality_gap),
    ]
    if human_scales:
        aggregates += [
            ("human_normalised_median", by_human, statistics.median_score),
            ("human_normalised_iqm", by_human, statistics.iqm),
        ]
    none = statistics.Interval(float("nan"), float("nan"), float("nan"))
    rows = [
        {
            "statistic": name,
            **(
                statistics.stratified_bootstrap(
                    normalised, statistic, seed=seed, num_resamples=num_resamples
                )
                if normalised
                else none
            )._asdict(),
            "num_tasks": len(normalised),
            "num_seeds": sum(task_scores.size for task_scores in normalised),
        }
        for name, normalised, statistic in aggregates
    ]
    return pd.DataFrame(rows)


def _normalise(
    scores: pd.DataFrame, scales: Mapping[str, tuple[float, float]]
) -> list[Float[np.ndarray, " seeds"]]:
    """Scores of each task that has a scale, with the scale's ends at 0 and 1."""
    return [
        (scores.query("task == @task")["score"].to_numpy(np.float64) - zero) / (one - zero)
        for task in scores["task"].unique()
        if task in scales
        for zero, one in [scales[task]]
    ]


def _step_and_rule(
    task: str, task_scores: pd.DataFrame, reference: ReferenceScore | None
) -> tuple[int | None, str]:
    """The one step and rule of a task's scores; the reference's where there are no scores."""
    bad = task_scores[~np.isfinite(task_scores["score"].to_numpy(np.float64))]
    if not bad.empty:
        first = bad.iloc[0]
        raise ValueError(
            f"{task}, seed {first['seed']}: score must be finite, not {first['score']}"
        )
    twice = task_scores.loc[task_scores["seed"].duplicated(), "seed"]
    if not twice.empty:
        raise ValueError(f"{task}: seed {twice.iloc[0]} has more than one score")
    measured = set(zip(task_scores["env_steps"], task_scores["rule"], strict=True))
    if reference is not None:
        measured.add((reference.env_steps, reference.rule))
    if len(measured) > 1:
        raise ValueError(f"{task}: steps and rules must agree, not {_listed(measured)}")
    return next(((int(env_steps), rule) for env_steps, rule in measured), (None, ""))


def _listed(measured: Iterable[tuple[int, str]]) -> str:
    """Steps and rules as text, in a fixed order."""
    return ", ".join(f"{env_steps} {rule}" for env_steps, rule in sorted(measured))
