"""No verdict where nothing was learned yet: told by the reference and the settings alone."""

import dataclasses
import importlib
import math
from typing import Any

import pytest

from agents import AGENTS
from reproduce.gather.references import ReferenceScore, measured_steps
from reproduce.judge import zero as judged_zero
from reproduce.judge.zero import Zero, first_update, nothing_learned, share, zero_of
from reproduce.plan.unlearned import read_zeros
from suite.updates import updates_due
from tests.golden.runner import SEEDS_TOGETHER
from tests.reproduce import conftest

KNOWN = Zero(random=-20.0, idle=5.0, untrained=-10.0)
CHEETAH = "HalfCheetah-v4"


def config_of(agent: str, suite: str, source: str, task: str = "", **changes: Any) -> Any:
    """Return the settings of a preset on a task."""
    config = importlib.import_module(f"agents.{agent}").PRESETS[suite, source].config
    return dataclasses.replace(config, **{"task": task or config.task, **changes})


def reference(mean: float, std: float = 1.0, *, env_steps: int = 500_000) -> ReferenceScore:
    """Return a score of ten runs on HalfCheetah by rule `deterministic`."""
    return conftest.reference(mean, std, 10, env_steps=env_steps)


def of_source(agent: str, suite: str, source: str, task: str, env_steps: int) -> tuple[str, float]:
    """Return the reason at a step, empty if something was learned, and the share reached."""
    config = config_of(agent, suite, source, task)
    rule = config.evaluation_rule
    zero = zero_of(agent, source, task, "", rule, first_update(config))
    at = conftest.scored(agent, source, task, env_steps, rule)
    final = judged_zero.final_reference(agent, source, task, rule)
    return nothing_learned(at, zero, config), share(at, final, zero)


def test_the_zero_is_the_best_of_what_is_known() -> None:
    """Standing still may be the best of them, and may be impossible."""
    assert KNOWN.score == 5.0
    assert KNOWN._replace(idle=math.nan).score == -10.0
    assert math.isnan(Zero().score)


def test_the_source_s_untrained_policy_comes_before_ours() -> None:
    """Where its runs were evaluated before their first update, and not by training episodes."""
    theirs = zero_of("sac", "jaxrl", CHEETAH, "", "deterministic", 5_001)
    assert round(theirs.untrained, 3) == -0.381
    ours = read_zeros()[CHEETAH, ""].untrained
    for source, rule, first in (
        ("jaxrl", "deterministic", 5_000),
        ("jaxrl", "training", 10_001),
        (None, "deterministic", 10_001),
    ):
        assert zero_of("sac", source, CHEETAH, "", rule, first).untrained == ours


@pytest.mark.parametrize(
    ("agent", "changes", "expected"),
    [
        ("sac", {"learning_starts": 100, "update_ratio": 1.0}, 101),
        ("sac", {"learning_starts": 100, "update_ratio": 0.25}, 104),
        ("sac", {"learning_starts": 100, "update_ratio": 0.3}, 104),
        ("sac", {"learning_starts": 96, "num_envs": 8, "update_ratio": 0.1}, 112),
        ("sac_value", {"learning_starts": 50}, 51),
        ("a2c", {"unroll_length": 5, "num_envs": 16}, 80),
        ("ppo", {"unroll_length": 128, "num_envs": 8}, 1_024),
        ("impala", {"unroll_length": 20, "num_envs": 32}, 640),
        ("acer", {"unroll_length": 20, "num_envs": 16, "replay_start": 50}, 320),
        ("acer", {"unroll_length": 20, "num_envs": 16, "replay_start": 50, "online": False}, 960),
        ("acer", {"unroll_length": 20, "num_envs": 16, "replay_start": 0, "online": False}, 320),
        ("acer_continuous", {"unroll_length": 50, "num_envs": 2, "online": True}, 100),
    ],
)
def test_the_first_update_by_hand(agent: str, changes: dict[str, Any], expected: int) -> None:
    """Warm-up and ratio, or the first unroll; replay alone waits for its start."""
    changes = {name.replace("online", "online_updates"): value for name, value in changes.items()}
    module = importlib.import_module(f"agents.{agent}")
    config = next(iter(module.PRESETS.values())).config
    changes |= {"evaluation_interval": 8} if "num_envs" in changes and agent == "sac" else {}
    assert first_update(dataclasses.replace(config, env_steps=10_000_000, **changes)) == expected


@pytest.mark.parametrize("agent", SEEDS_TOGETHER)
def test_the_first_update_is_that_of_the_training_loop(agent: str) -> None:
    """By every preset: none is due a stride earlier, and one is due then."""
    for preset in importlib.import_module(f"agents.{agent}").PRESETS.values():
        config: Any = preset.config
        warm_up = getattr(config, "warm_up_steps", config.learning_starts)
        beyond = first_update(config) - warm_up
        assert updates_due(config.update_ratio, beyond) >= 1
        assert updates_due(config.update_ratio, beyond - config.num_envs) == 0


@pytest.mark.parametrize("agent", AGENTS)
def test_every_budget_goes_beyond_the_first_update(agent: str) -> None:
    """A budget whose runs learn nothing would only cost time."""
    for name, preset in importlib.import_module(f"agents.{agent}").PRESETS.items():
        for budget in preset.budgets.values():
            steps = min(budget.env_steps, *budget.env_steps_of.values(), math.inf)
            assert steps > first_update(preset.config), name


@pytest.mark.parametrize(
    ("at", "zero", "reason"),
    [
        (reference(9e3, env_steps=10_001), KNOWN, "the first update is at 10,001"),
        (reference(9e3, env_steps=10_002), KNOWN, ""),
        (reference(-8.1), KNOWN, "not clear of an untrained policy: -8.1 ± 1 beside -10"),
        (reference(-7.9), KNOWN, "not above an idle policy: -7.9 ± 1 beside 5"),
        (reference(5.0), KNOWN, "not above an idle policy"),
        (reference(5.1), KNOWN, ""),
        (reference(5.1, std=13.0), KNOWN, "not clear of an untrained policy"),
        (reference(5.1, std=13.0), Zero(random=-20.0, idle=5.0), "not clear of a random policy"),
        (reference(5.1, std=13.0), Zero(idle=5.0), ""),
        (reference(-30.0, std=math.nan), KNOWN, ""),
        (reference(-30.0, std=math.nan, env_steps=5_000), KNOWN, "the first update is at 10,001"),
    ],
)
def test_why_nothing_was_learned_by_hand(at: ReferenceScore, zero: Zero, reason: str) -> None:
    """Two deviations above what learned nothing, above what stands still; no spread, no word."""
    found = nothing_learned(at, zero, config_of("sac", "mujoco", "jaxrl", CHEETAH))
    assert (reason in found) if reason else not found


def test_training_episodes_count_once_all_can_have_ended() -> None:
    """At 5,920 of A2C's steps on MountainCarContinuous only short episodes have ended."""
    why, reached = of_source("a2c", "classic", "sb3_control", "MountainCarContinuous-v0", 5_920)
    assert why.startswith("only short episodes may end before 5,920 steps: by rule training 16 ")
    assert reached > 2.0  # it stands above the score at which it ends
    zero = KNOWN._replace(longest_episode=999)
    at = dataclasses.replace(reference(90.0, env_steps=10 * 999 * 16), rule="training")
    config = config_of("a2c", "classic", "sb3_control", "MountainCarContinuous-v0")
    assert nothing_learned(at, zero, config) == ""
    at = dataclasses.replace(at, env_steps=10 * 999 * 16 - 1)
    assert "only short episodes" in nothing_learned(at, zero, config)
    assert nothing_learned(dataclasses.replace(at, rule="sampled"), zero, config) == ""
    assert nothing_learned(at, KNOWN, config) == ""  # unknown: no bound


def test_the_first_judgeable_step_is_the_first_without_a_reason() -> None:
    """And every earlier one has a reason, or no reference."""
    config = config_of("sac", "mujoco", "jaxrl", CHEETAH)
    first = judged_zero.first_judgeable_step("sac", "jaxrl", config)
    assert first is not None
    steps = measured_steps("sac", "jaxrl", CHEETAH)
    assert steps[:2] == (5_000, 10_000)
    reasons = [of_source("sac", "mujoco", "jaxrl", CHEETAH, t)[0] for t in steps if t <= first]
    assert reasons[-1] == ""
    assert all(reasons[:-1])
    standing = config_of("sac", "classic", "sb3_control", "MountainCarContinuous-v0")
    assert judged_zero.first_judgeable_step("sac", "sb3_control", standing) is None
    unjudged = config_of("sac", "classic", "tuned")
    assert judged_zero.first_judgeable_step("sac", "jaxrl", unjudged) is None


def test_the_share_is_of_the_final_gap() -> None:
    """0 at the zero, 1 at the last step; without a gap there is none."""
    final = reference(105.0)
    assert share(reference(55.0), final, KNOWN) == 0.5
    assert share(reference(-5.0), final, KNOWN) == pytest.approx(-0.1)
    assert share(final, final, KNOWN) == 1.0
    assert math.isnan(share(final, reference(5.0), KNOWN))
    assert math.isnan(share(final, None, KNOWN))
    assert math.isnan(share(final, final, Zero()))
    last = judged_zero.final_reference("sac", "jaxrl", CHEETAH, "deterministic")
    assert last is not None
    assert last.env_steps == 1_000_000
