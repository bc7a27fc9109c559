"""Decision power and cost of a plan, stated before anything is trained.

For each task: the reference that judges it, why no verdict can be reached if none can, and else how
probable `reproduced` is if our runs are draws of the reference's own distribution. For the plan:
their time on this machine, from `reproduce.plan.speeds`.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from reproduce.gather import references
from reproduce.judge import inference
from reproduce.judge.error_rates import judge_many, share_reproduced
from reproduce.judge.inference import MARGIN_FRACTION, Sample
from reproduce.judge.verdicts import MIN_TASKS
from reproduce.judge.zero import Scale, first_judgeable_step, first_update, scale_of, too_early
from reproduce.plan.declared import MIN_SEEDS
from reproduce.plan.grid import Plan
from reproduce.plan.speeds import side_by_side
from reproduce.plan.status import Run
from reproduce.run.view import make_table
from reproduce.words import counted, duration, number, reached
from suite.base.errors import UsageError
from suite.envs.tasks import find_task

NUM_REPETITIONS = 4_000
"""Simulated plans of one task: the probability's standard error is below one per cent."""
MOST_DRAWN = 1_000
"""Seeds of a simulated plan; with more, what is left to chance is the reference's."""
SEED = 20_261_121
BESIDE = "but --baseline AGENT takes the runs of another agent"


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Decision power of a task's planned runs, and the duration of one of them."""

    task: str
    env_steps: int
    num_seeds: int
    """Declared seeds."""
    scale: Scale
    obstacle: str
    """Why no verdict can be reached; empty: one can."""
    chance: float
    """Probability of `reproduced` or `above` if ours are equal; NaN without a verdict."""
    run_seconds: float | None
    """About how long one run takes here; None: never measured."""


def outlooks(plan: Plan) -> list[Outlook]:
    """Return the outlook of every task of a plan."""
    return [_outlook(plan, task) for task in plan.tasks]


def refuse_early(plan: Plan) -> None:
    """Refuse a plan that ends a judged task before anything is learned."""
    judge = plan.preset.judged_by
    for task, env_steps in plan.env_steps.items():
        config = plan.config_of(task)
        if judge is None or env_steps > first_update(config):
            continue
        if first_judgeable_step(plan.agent, judge, config) is not None:
            early = too_early(plan.agent, judge, config)
            raise UsageError(f"--env-steps: {task} ends at {env_steps:,}; {early}")


def chance_if_equal(scale: Scale, num_seeds: int) -> float:
    """Return the probability of `reproduced` or `above` if ours are draws of the reference's runs.

    The true mean is known only as well as the reference's runs tell it: it is drawn anew for every
    simulated plan, with their standard error, then our scores with their standard deviation. Normal
    scores; level, margin and the rule for runs that lie apart are those of the verdict.
    """
    ours, theirs = _draws(np.random.default_rng(SEED), scale, num_seeds)
    return share_reproduced(judge_many(ours, theirs).verdicts)


def suite_chance(rows: Sequence[Outlook]) -> tuple[float, int]:
    """Return the probability that a suite is `reproduced` or `above`, and how many tasks count.

    As `chance_if_equal`, of all tasks together. NaN where fewer than `MIN_TASKS` count.
    """
    rng, sides = np.random.default_rng(SEED), []
    for row in rows:
        if not row.obstacle:
            ours, theirs = map(inference.sample, _draws(rng, row.scale, row.num_seeds))
            if np.all(inference.counts_in_suite(theirs, 0.0)):
                sides.append((ours, theirs))
    if len(sides) < MIN_TASKS:
        return math.nan, len(sides)
    ours, theirs = (
        Sample(*(np.stack(np.broadcast_arrays(*field), -1) for field in zip(*side, strict=True)))
        for side in zip(*sides, strict=True)
    )
    shape = (NUM_REPETITIONS, len(sides))
    test = inference.compare_suite(ours, theirs, np.zeros(shape), np.ones(shape, bool))
    verdicts = inference.decide(test.ci_low, test.ci_high, MARGIN_FRACTION)
    return share_reproduced(verdicts), len(sides)


def _draws(rng: np.random.Generator, scale: Scale, num_seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return simulated scores of ours, and any runs with the reference's statistics."""
    reference = scale.reference
    assert reference is not None
    spread = reference.std / (reference.mean - scale.zero.score)  # gap 1, as in `error_rates`
    means = rng.normal(1.0, spread / math.sqrt(reference.num_runs), (NUM_REPETITIONS, 1))
    ours = means + rng.normal(0.0, spread, (NUM_REPETITIONS, min(num_seeds, MOST_DRAWN)))
    steps = np.arange(reference.num_runs) - (reference.num_runs - 1) / 2
    runs = 1.0 + spread * steps / steps.std(ddof=1)  # any runs with this mean and deviation
    return ours, np.broadcast_to(runs, (NUM_REPETITIONS, runs.size))


def suite_line(plan: Plan, rows: Sequence[Outlook]) -> str:
    """Return how probably the suite is decided, in words; empty for a single task."""
    chance, number = suite_chance(rows)
    said = f"The suite, of {counted(number, 'task')}: {_chance(chance)}."
    if math.isnan(chance):
        said = f"The suite cannot be decided: {number} of at least {MIN_TASKS} tasks count."
    return said if len(plan.tasks) >= MIN_TASKS else ""


def _chance(chance: float) -> str:
    return f'{chance:.0%} chance of "reproduced" if we truly match'


def why_no_reference(plan: Plan, task: str) -> str:
    """Explain why a task has no reference at its step, and the nearest steps with one, if any."""
    judge, protocol = plan.preset.judged_by, find_task(task, plan.protocol).protocol
    if judge is None:
        return f"no curve judges these settings, {BESIDE}"
    rows = references.coverage(plan.agent, judge)
    rows = rows[(rows.task == task) & (rows.protocol == protocol)]
    if rows.empty:
        held = references.sources(plan.agent)
        if all(references.coverage(plan.agent, source).empty for source in held):
            return f"{plan.agent} has no references of its own, {BESIDE}"
        return f"{judge} has nothing on this task" + (f", {BESIDE}" if ":" in task else "")
    rule = references.sources(plan.agent)[judge].rule
    if rule != plan.rule:
        return f"{judge} has scores by rule {rule}, these settings by rule {plan.rule}"
    steps = references.measured_steps(plan.agent, judge, task, protocol)
    place, config = bisect(steps, plan.env_steps[task]), plan.config_of(task)

    def is_judged(step: int) -> bool:
        return not scale_of(plan.agent, judge, config, step).unjudged

    sides = (reversed(steps[:place]), steps[place:])
    near = [next(filter(is_judged, side), None) for side in sides]
    named = " or ".join(f"{step:,}" for step in near if step)
    return f"{judge} has no score at this step" + (f"; the nearest: {named}" if named else "")


def table_of(rows: Sequence[Outlook]) -> Table:
    """Return the table that is printed before a plan runs."""
    columns = ("task", "reference (runs, source)", "verdict", "one run takes")
    table = make_table(*columns, left=columns, title="Can it be decided?")
    for row in rows:
        reference, text = row.scale.reference, "none"
        if reference is not None:
            spread = "" if math.isnan(reference.std) else f" ± {number(reference.std)}"
            text = f"{number(reference.mean)}{spread} ({reference.num_runs}, {reference.source})"
            if share := reached(row.scale.share):
                text += f"; {share}"
        verdict = f"impossible: {row.obstacle}" if row.obstacle else _chance(row.chance)
        table.add_row(row.task, text, verdict, about(row.run_seconds))
    return table


def cost(plan: Plan, rows: Sequence[Outlook]) -> str:
    """Return the time of the runs that are left, in words."""
    waiting = [run for run in plan.runs() if not run.has_ended]
    if not waiting:
        return "Time: nothing is left to run."
    left = seconds_left(plan, {row.task: row.run_seconds for row in rows}, waiting)
    text = f"Time: {about(left)}; refined once training starts."
    if shorter := sum(run.status == "shorter" for run in waiting):
        text += f" {counted(shorter, 'finished run')} to be extended."
    return text


def about(seconds: float | None) -> str:
    """Return an estimated time in words, with two digits: an estimate has no more."""
    return "not measured yet" if seconds is None else f"about {duration(float(f'{seconds:.1e}'))}"


def seconds_left(
    plan: Plan, seconds: Mapping[str, float | None], waiting: Sequence[Run]
) -> float | None:
    """Return about how long runs take together; None if the like of one was never measured."""
    left = [(seconds[run.task], 1 - run.steps_done / run.env_steps) for run in waiting]
    return side_by_side([whole and whole * part for whole, part in left], plan.workers)


def _outlook(plan: Plan, task: str) -> Outlook:
    env_steps, num_seeds = plan.env_steps[task], len(plan.declared[task])
    scale = scale_of(plan.agent, plan.preset.judged_by, plan.config_of(task), env_steps)
    why = scale.unjudged
    if scale.reference is None:
        why = why_no_reference(plan, task)
    if not why and num_seeds < MIN_SEEDS:
        why = f"{num_seeds} of at least {MIN_SEEDS} seeds"
    return Outlook(
        task=task,
        env_steps=env_steps,
        num_seeds=num_seeds,
        scale=scale,
        obstacle=why,
        chance=math.nan if why else chance_if_equal(scale, num_seeds),
        run_seconds=plan.expected_seconds(task),
    )
