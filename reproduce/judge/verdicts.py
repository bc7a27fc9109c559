"""Verdicts: was the published result reproduced?

A task is judged by its declared seeds (`plan/declared.py`), with Welch's interval of the difference
between the mean of our seeds and the mean of the reference's runs, against a margin of a tenth of
the gap between the reference and the zero of the scale, the best of the policies that learned
nothing (`zero.py`); a suite by the mean of those differences in units of their gaps. `inference.py`
has the arithmetic; `docs/verdicts.md` explains how to read a verdict and how often it errs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from reproduce.gather.references import ReferenceScore, spread
from reproduce.judge import inference
from reproduce.judge.inference import MARGIN_FRACTION, Sample
from reproduce.judge.zero import Scale
from reproduce.plan.declared import MIN_SEEDS
from reproduce.words import counted

VerdictName = Literal[
    "reproduced", "above", "below", "inconclusive", "nothing learned", "shown only", "no reference"
]
MAX_SEEDS = 10_000
"""Largest number of seeds tried when looking for the number that would settle a task."""
UNJUDGED = ("nothing learned", "shown only", "no reference")
MIN_TASKS = 2
"""A suite of fewer tasks is not judged: it would be a second verdict on the same task."""
STATUSES = (*("finished", "failed", "diverged", "running", "interrupted", "planned"), "left out")
TABLE_COLUMNS = (
    *("task", "verdict", "exploratory", "older_runs", "env_steps", "rule", "num_seeds"),
    *("num_failed", "num_diverged", "score_mean", "score_std", "reference_source"),
    *("reference_mean", "reference_std", "reference_num_runs", "how", "zero_score", "margin"),
    *("difference", "ci_low", "ci_high", "p_below", "p_below_holm"),
    *("seeds_to_settle", "ratio", "note", "remarks", "reference_share"),
)
"""Of `verdicts.csv`; `older_runs` and `remarks` are empty where scores alone are judged."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one task with every number it rests on; NaN where a number does not exist.

    `docs/columns.md` says what each of them is.
    """

    verdict: VerdictName
    num_seeds: int
    score_mean: float
    score_std: float
    reference_source: str
    """Empty without a reference."""
    reference_mean: float
    reference_std: float
    reference_num_runs: int
    how: str
    """How the reference's score was taken, see `references.ReferenceScore`; empty without one."""
    zero_score: float
    margin: float
    difference: float
    ci_low: float = math.nan
    ci_high: float = math.nan
    p_below: float = math.nan
    seeds_to_settle: int | None = None
    """Smallest number of our seeds with another verdict than `inconclusive` if our mean, both
    spreads and the reference stayed as they are; too few for a test: what a test needs; decided:
    their number. None: no number up to `MAX_SEEDS`, for more seeds of ours cannot make up for few
    runs of the reference, or a test is impossible."""
    ratio: float
    note: str = ""

    @property
    def ours(self) -> Sample:
        """Return our side of the test."""
        return Sample(self.score_mean, self.score_std, self.num_seeds)

    @property
    def theirs(self) -> Sample:
        """Return the reference's side of the test."""
        return Sample(self.reference_mean, self.reference_std, self.reference_num_runs)


class Judged(NamedTuple):
    """Verdicts on a task by its declared seeds, and by all."""

    declared: Verdict | None
    """Verdict by the declared seeds; None before each of them has a score."""
    shown: Verdict
    """Verdict in the table: `declared`, or one before it, or by more seeds."""
    is_exploratory: bool
    """Whether `shown` counts seeds beyond the declared ones."""
    left_out: str
    """Why the task takes no part in its suite's verdict; empty if it does."""


@dataclass(frozen=True, kw_only=True)
class SuiteVerdict:
    """Verdict on the mean over tasks of (ours - zero) / (reference - zero) - 1; as `Verdict`."""

    verdict: Literal["reproduced", "above", "below", "inconclusive", "not judged"]
    """As for a task; `not judged` where fewer than `MIN_TASKS` tasks count."""
    exploratory: bool = False
    num_tasks: int
    num_seeds: int = 0
    difference: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    margin: float = MARGIN_FRACTION
    p_below: float = math.nan  # by the declared seeds
    left_out: str = ""  # tasks that do not count, by the reason
    note: str = ""


def judge(scores: Float[np.ndarray, " seeds"], scale: Scale) -> Verdict:
    """Return the verdict on one task by a score for each seed, in reward units.

    The first case that holds decides:

    1. There is no reference at this step and rule: `no reference`.
    2. The reference has learned nothing by this step: `nothing learned`, whatever our scores.
    3. We have no score: `inconclusive`.
    4. There is no margin, as the reference has fewer than `MIN_REFERENCE_RUNS` runs or no spread,
       or the zero is unknown or not below the reference: `shown only`.
    5. We have fewer than `MIN_SEEDS` scores, or fewer than `MIN_SEEDS_APART` with an outlier:
       `inconclusive`.
    6. The interval's lower end lies above the margin: `above`. It lies at minus the margin or
       higher: `reproduced`.
    7. The interval's upper end lies below minus the margin: `below`.
    8. Otherwise: `inconclusive`.

    Raises:
        ValueError: if a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite, not {scores[~np.isfinite(scores)][0]}")
    untested, why = _untested(scores, scale), scale.obstacle
    if scale.reference is None:
        return replace(untested, verdict="no reference", note=why)
    if scale.nothing_learned:
        return replace(untested, verdict="nothing learned", note=scale.nothing_learned)
    if why and scores.size > 0:
        return replace(untested, verdict="shown only", note=why)
    is_apart = scores.size >= MIN_SEEDS and inference.lies_apart(scores, untested.margin)
    least = inference.MIN_SEEDS_APART if is_apart else MIN_SEEDS
    if scores.size < least:
        apart = ", for one run lies apart from the others" if is_apart else ""
        return replace(
            untested,
            note=f"{counted(scores.size, 'seed')}; at least {least} are needed{apart}",
            seeds_to_settle=None if why else least,
        )
    tested = _tested(untested)
    remark = _who_lies_apart(scores, scale.reference, untested.margin)
    return replace(tested, note="; ".join(filter(None, (tested.note, remark))))


def _who_lies_apart(
    scores: Float[np.ndarray, " seeds"], reference: ReferenceScore, margin: float
) -> str:
    """Return that a verdict may err more often than `LEVEL`, as one run lies apart; else nothing.

    Rates of error hold for normal runs. A reference without single runs cannot be looked at.
    """
    sides = (("one seed", scores), ("one run of the reference", np.array(reference.scores)))
    apart = [who for who, runs in sides if runs.size > 0 and inference.lies_apart(runs, margin)]
    if not apart:
        return ""
    who = f"{' and '.join(apart)} {'lies' if len(apart) == 1 else 'lie'} apart"
    return f"{who}: the verdict may err in more than {inference.LEVEL:.0%}"


def _untested(scores: Float[np.ndarray, " seeds"], scale: Scale) -> Verdict:
    """Return `inconclusive` without a test; unknown numbers are NaN."""
    nan, score_mean = math.nan, float(scores.mean()) if scores.size > 0 else math.nan
    reference, zero = scale.reference, scale.zero.score
    reference_mean = nan if reference is None else reference.mean
    gap = reference_mean - zero if reference_mean > zero else nan
    return Verdict(
        verdict="inconclusive",
        num_seeds=scores.size,
        score_mean=score_mean,
        score_std=float(spread(scores)),
        reference_source="" if reference is None else reference.source,
        reference_mean=reference_mean,
        reference_std=nan if reference is None else reference.std,
        reference_num_runs=0 if reference is None else reference.num_runs,
        how="" if reference is None else str(reference),
        zero_score=zero,
        margin=MARGIN_FRACTION * gap,
        difference=score_mean - reference_mean,
        ratio=(score_mean - zero) / gap,
    )


def _tested(untested: Verdict) -> Verdict:
    """Return the verdict by Welch's test; both sides have a spread and the margin is positive."""
    ours, theirs, margin = untested.ours, untested.theirs, untested.margin
    test = inference.welch(ours, theirs)
    verdict = inference.decide(test.ci_low, test.ci_high, margin).item()
    seeds_to_settle, note = untested.num_seeds, ""
    if verdict == "inconclusive":
        seeds_to_settle = _seeds_to_settle(ours, theirs, margin)
        note = (
            f"{seeds_to_settle} seeds would settle it if mean and spread stay as they are"
            if seeds_to_settle is not None
            else f"not even {MAX_SEEDS:,} seeds would settle it: the reference has "
            f"{theirs.num_runs} runs"
        )
    elif test.standard_error == 0.0:
        note = "neither side has a spread: the means are compared"
    return replace(
        untested,
        verdict=verdict,
        ci_low=float(test.ci_low),
        ci_high=float(test.ci_high),
        p_below=float(test.p_below(margin)),
        seeds_to_settle=seeds_to_settle,
        note=note,
    )


def _seeds_to_settle(ours: Sample, theirs: Sample, margin: float) -> int | None:
    # Every number is tried: the interval need not shrink with more seeds, because degrees of
    # freedom fall towards the reference's as its runs come to dominate the standard error.
    candidates = np.arange(int(ours.num_runs) + 1, MAX_SEEDS + 1)
    test = inference.welch(ours._replace(num_runs=candidates), theirs)
    settled = candidates[inference.decide(test.ci_low, test.ci_high, margin) != "inconclusive"]
    return int(settled[0]) if settled.size > 0 else None


def judge_declared(
    scores: Mapping[int, float], declared_seeds: Sequence[int], seeds: Sequence[int], scale: Scale
) -> Judged:
    """Judge a task by its declared seeds, and by all where there are more.

    The declared seeds decide once each of them has a score: a run that failed, or has not finished,
    leaves the task `inconclusive`. A verdict by more seeds, each with a score, is exploratory.
    """

    def scores_of(those: Iterable[int]) -> np.ndarray:
        return np.array([scores[seed] for seed in those if seed in scores], np.float64)

    every = list(dict.fromkeys([*declared_seeds, *seeds]))
    is_whole = scores.keys() >= set(declared_seeds)
    declared = judge(scores_of(declared_seeds), scale) if is_whole else None
    is_exploratory = len(every) > len(declared_seeds) and scores.keys() >= set(every)
    shown = judge(scores_of(every), scale) if is_exploratory or not declared else declared
    if declared is None and shown.verdict not in UNJUDGED:
        have = scores_of(declared_seeds).size
        note = f"{have} of its {counted(len(declared_seeds), 'declared seed')} have a score"
        shown = replace(_untested(scores_of(every), scale), note=note)
    left_out = scale.unjudged
    if not left_out and not inference.counts_in_suite(shown.theirs, shown.zero_score):
        left_out = "its reference is within two standard deviations of the zero"
    return Judged(declared, shown, is_exploratory, left_out)


def judge_suite(
    judged: Mapping[str, Judged], absent: Mapping[str, str] = MappingProxyType({})
) -> SuiteVerdict:
    """Judge the mean over tasks of (ours - zero) / (reference - zero) - 1, by declared seeds.

    Tasks are left out if they cannot be judged, or if their gap is below twice the reference's
    standard deviation over runs. Those that are `absent` from the plan are named, with the reason:
    who chooses the tasks can choose the verdict.
    """
    tasks = dict[str, list[str]]()
    for task, reason in (
        {name: each.left_out for name, each in judged.items()} | {**absent}
    ).items():
        if reason:
            tasks.setdefault(reason, []).append(task)
    left_out = "; ".join(f"{', '.join(named)}: {reason}" for reason, named in tasks.items())
    taken = [each for each in judged.values() if not each.left_out]
    declared = [each.declared for each in taken if each.declared is not None]
    if len(taken) < MIN_TASKS:
        verdict = SuiteVerdict(
            verdict="not judged",
            num_tasks=len(taken),
            note=f"a suite needs {MIN_TASKS} tasks that count",
        )
    elif len(declared) < len(taken) or any(each.num_seeds < MIN_SEEDS for each in declared):
        verdict = SuiteVerdict(
            verdict="inconclusive",
            num_tasks=len(taken),
            num_seeds=sum(each.shown.num_seeds for each in taken),
            note=f"a task lacks some of its declared seeds, or has fewer than {MIN_SEEDS}",
        )
    else:
        verdict = by_declared = _compare(declared)
        if any(each.is_exploratory for each in taken):
            verdict = replace(
                _compare([each.shown for each in taken]),
                exploratory=True,
                p_below=by_declared.p_below,
                note=f"by its declared seeds: {by_declared.verdict}",
            )
    return replace(verdict, left_out=left_out)


def _compare(verdicts: Sequence[Verdict]) -> SuiteVerdict:
    ours, theirs = (
        Sample(*np.array(sides, np.float64).T)
        for sides in ([each.ours for each in verdicts], [each.theirs for each in verdicts])
    )
    zeros = np.array([each.zero_score for each in verdicts])
    test = inference.compare_suite(ours, theirs, zeros, np.ones(len(verdicts), bool))
    return SuiteVerdict(
        verdict=inference.decide(test.ci_low, test.ci_high, MARGIN_FRACTION).item(),
        num_tasks=len(verdicts),
        num_seeds=sum(verdict.num_seeds for verdict in verdicts),
        difference=float(test.difference),
        ci_low=float(test.ci_low),
        ci_high=float(test.ci_high),
        p_below=float(test.p_below(MARGIN_FRACTION)),
    )


def judge_tasks(
    scores: pd.DataFrame,
    scales: Mapping[str, Scale],
    runs: pd.DataFrame,
    declared: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, Judged]:
    """Judge every task by `scores.csv` and `runs.csv`; by default all seeds are declared."""
    judged = {}
    for task, scale in scales.items():
        of_task = scores[scores["task"] == task]
        planned = [*runs.loc[runs["task"] == task, "seed"], *of_task["seed"]]
        seeds = list(dict.fromkeys(map(int, planned)))
        by_seed = dict(zip(map(int, of_task["seed"]), of_task["score"], strict=True))
        judged[task] = judge_declared(by_seed, declared.get(task) or seeds, seeds, scale)
    return judged


def verdict_table(
    judged: Mapping[str, Judged],
    scores: pd.DataFrame,
    scales: Mapping[str, Scale],
    runs: pd.DataFrame,
) -> pd.DataFrame:
    """Return one row per task with `TABLE_COLUMNS`.

    `p_below` belongs to the declared seeds, even if the verdict is exploratory and the other
    numbers count more; `p_below_holm` is adjusted for the number of tasks that were tested.
    """
    rows = []
    for task, each in judged.items():
        statuses = runs[runs["task"] == task].set_index("seed")["status"]
        scored = set(scores.loc[scores["task"] == task, "seed"])
        reference = scales[task].reference
        measured = scores.loc[scores["task"] == task, ["env_steps", "rule"]].values.tolist()
        measured += [[reference.env_steps, reference.rule]] if reference else [[None, ""]]
        rows.append(
            {
                **asdict(each.shown),
                "task": task,
                "exploratory": each.is_exploratory,
                "env_steps": measured[0][0],
                "rule": measured[0][1],
                "num_failed": int((statuses == "failed").sum()),
                "num_diverged": int((statuses == "diverged").sum()),
                "p_below": each.declared.p_below if each.declared else math.nan,
                "note": "; ".join(filter(None, _notes(each, statuses, scored))),
                "reference_share": scales[task].share,
                **{"older_runs": "", "remarks": ""},
            }
        )
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    table["p_below_holm"] = inference.holm(table["p_below"].to_numpy(np.float64))
    return table.astype({"env_steps": "Int64", "seeds_to_settle": "Int64"})


def _notes(judged: Judged, statuses: pd.Series, scored: set[int]) -> list[str]:
    """Return what is to be said of a task whose runs ended so, by seed; `scored` have a score."""
    notes = [judged.shown.note]
    if judged.is_exploratory and judged.declared:
        declared = counted(judged.declared.num_seeds, "declared seed")
        notes.append(f"by its {declared}: {judged.declared.verdict}")
    are_counted = scored.issuperset(statuses.index[statuses == "diverged"])
    how = "counted as a random policy" if are_counted else "left out: no random score is known"
    suffixes = {"diverged": f", {how}"}
    notes += [
        f"{(statuses == status).sum()} of {len(statuses)} runs {status}{suffixes.get(status, '')}"
        for status in STATUSES[1:]
        if (statuses == status).any()
    ]
    return notes
