"""The zero of the scale, and steps at which nothing was learned yet.

Where acting costs reward, a policy that stands still is far above a random one, and so is one that
was never trained. The zero of margins and normalised scores is the best of the three. A reference
that has not left them says nothing about learning: no run is judged by it. All of this is decided
by the reference and the settings alone, before any score of ours is seen.
"""

import math
from dataclasses import dataclass
from typing import Any

from reproduce.gather import references
from reproduce.gather.references import ReferenceScore, kept
from reproduce.judge.inference import MIN_REFERENCE_RUNS
from reproduce.plan.unlearned import Zero, known_zero
from reproduce.words import number

APART = 2.0
"""Standard deviations of its runs by which a reference's mean must exceed policies that learned
nothing: with standard errors many runs are soon above a random policy, and single ones are not."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the scores of a task are measured on at one step, before any of ours is seen."""

    reference: ReferenceScore | None
    """The source's score there; None: it has none."""
    zero: Zero
    nothing_learned: str = ""
    """Why nothing was learned yet; empty if something was, or nothing compares."""
    share: float = math.nan
    """Share of the source's final gap that it has reached, see `share`; NaN: unknown."""

    @property
    def obstacle(self) -> str:
        """Return why the reference cannot judge any scores of ours; empty if it can."""
        reference, zero = self.reference, self.zero.score
        if reference is None:
            return "no comparable reference at this step and rule"
        if reference.num_runs == 1:
            return "the reference has a single run"
        if reference.num_runs < MIN_REFERENCE_RUNS:
            return f"the reference has two runs; at least {MIN_REFERENCE_RUNS} are needed"
        if reference.how == "drawn curve":
            return "at this step the reference is a mean curve, without a spread of runs"
        if not math.isfinite(reference.std):
            return "the reference states no spread"
        if math.isnan(zero):
            return "no margin: the zero of the scale is unknown"
        return "" if reference.mean > zero else "no margin: the reference is not above the zero"

    @property
    def unjudged(self) -> str:
        """Return why no score of ours is judged at this step; empty if one is."""
        return self.nothing_learned or self.obstacle


@kept
def zero_of(
    agent: str, source: str | None, task: str, protocol: str, rule: str, first_update_step: int
) -> Zero:
    """Return the zero of a task's scale beside a source.

    The untrained policy is the source's where it was evaluated before it learned, else ours. By
    rule `training` the source has none: training episodes that ended so early are short ones. Nor
    has a baseline, whose own first update may come before ours.
    """
    ours = known_zero(task, protocol)
    if source is not None and rule != "training" and (agent, source) not in references.LENT:
        theirs = references.first_evaluations(agent, source, task, first_update_step - 1, protocol)
        ours = ours._replace(untrained=float(theirs.mean())) if theirs.size else ours
    return ours


def first_update(config: Any) -> int:
    """Return the environment steps after which the first gradient update has been made.

    A run that ends there, or is evaluated before, has learned nothing or all but nothing. Agents
    that learn from transitions update by their ratio after the warm-up; those that learn from
    unrolls after the first, or, if they learn from replay alone, after the first that fills it to
    its start. Rows of ignored actions count as steps here, so an unroll's update may come a little
    earlier.
    """
    if hasattr(config, "unroll_length"):
        rows = config.unroll_length
        if not getattr(config, "online_updates", True):
            rows *= max(math.ceil(config.replay_start / config.unroll_length), 1)
        return rows * config.num_envs
    warm_up = getattr(config, "warm_up_steps", config.learning_starts)
    strides = math.ceil((1 - 1e-6) / (config.update_ratio * config.num_envs))  # as `updates_due`
    return warm_up + strides * config.num_envs


def nothing_learned(reference: ReferenceScore, zero: Zero, config: Any) -> str:
    """Return why nothing was learned yet at a reference's step; empty if something was.

    In this order:

    1. The step is at or before the first update.
    2. By rule `training`, the window (0.9 t, t] is shorter than an episode of every environment, of
       the length of a random policy's longest: environments begin together, so that short episodes
       alone may end in it.
    3. The reference's mean does not exceed the random or the untrained policy by `APART` standard
       deviations of its runs.
    4. It does not exceed the idle policy.

    A reference without a spread, which judges nothing, is told by the first alone.
    """
    first = first_update(config)
    if reference.env_steps <= first:
        return (
            f"nothing is learned by {reference.env_steps:,} steps: the first update is at {first:,}"
        )
    if not math.isfinite(reference.std):
        return ""
    longest = zero.longest_episode or 0
    until = 10 * config.num_envs * longest  # (0.9 t, t] is a tenth of t
    if reference.rule == "training" and reference.env_steps < until:
        return (
            f"only short episodes may end before {reference.env_steps:,} steps: by rule training "
            f"{config.num_envs} environments with episodes of {longest:,} need {until:,}"
        )
    stands = f"{number(reference.mean)} ± {number(reference.std)} beside"
    for policy, score in (("an untrained", zero.untrained), ("a random", zero.random)):
        if reference.mean - score <= APART * reference.std:  # False where it is unknown
            return f"the reference is not clear of {policy} policy: {stands} {number(score)}"
    if reference.mean <= zero.score:
        return f"the reference is not above an idle policy: {stands} {number(zero.score)}"
    return ""


def final_reference(
    agent: str, source: str, task: str, rule: str, protocol: str = ""
) -> ReferenceScore | None:
    """Return a source's score at the last step at which it has one; None: it has none."""
    rows = references.coverage(agent, source)
    rows = rows[(rows["task"] == task) & (rows["protocol"] == protocol)]
    last = [] if rows.empty else [int(rows["last_step"].iloc[0])]
    for step in (*last, *reversed(references.measured_steps(agent, source, task, protocol))):
        found = references.reference_score(agent, source, task, step, rule, protocol)
        if found is not None:
            return found
    return None


def share(reference: ReferenceScore, final: ReferenceScore | None, zero: Zero) -> float:
    """Return the share of a source's final gap that it has reached: 0 at the zero; NaN: no gap."""
    gap = math.nan if final is None else final.mean - zero.score
    return (reference.mean - zero.score) / gap if gap > 0.0 else math.nan


@kept
def first_judgeable_step(agent: str, source: str, config: Any) -> int | None:
    """Return the first step at which a source judges what was learned; None: there is none."""
    task, first = config.find_task(), first_update(config)
    steps = references.measured_steps(agent, source, task.name, task.protocol)
    later = (step for step in steps if step > first)
    return next((t for t in later if not scale_of(agent, source, config, t).unjudged), None)


def too_early(agent: str, source: str, config: Any) -> str:
    """Return the refusal of a step at or before the first update, with the first that is judged."""
    step = first_judgeable_step(agent, source, config)
    first = f"{first_update(config):,}"
    way = f"{source} first judges at {step:,}" if step else f"{source} judges no step of this task"
    return f"the first update is at {first} environment steps: {way}"


def scale_of(agent: str, source: str | None, config: Any, env_steps: int) -> Scale:
    """Return the scale of a task at a step."""
    task, rule = config.find_task(), config.evaluation_rule
    zero = zero_of(agent, source, task.name, task.protocol, rule, first_update(config))
    reference = references.reference_score(agent, source, task.name, env_steps, rule, task.protocol)
    if source is None or reference is None:
        return Scale(reference=None, zero=zero)
    final = final_reference(agent, source, task.name, rule, task.protocol)
    return Scale(
        reference=reference,
        zero=zero,
        nothing_learned=nothing_learned(reference, zero, config),
        share=share(reference, final, zero),
    )
