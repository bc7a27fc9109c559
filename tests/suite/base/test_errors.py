"""Presets, budgets, and the words of an error."""

import pytest
import torch

from suite.base.errors import UsageError, check_shape, nearest, require
from suite.settings.presets import Budget, Preset, find_preset


def preset(settings: str) -> Preset[str]:
    return Preset(config=settings, budgets={}, judged_by="authors")


PRESETS = {
    ("mujoco", "paper"): preset("mujoco as the paper"),
    ("mujoco", "jaxrl"): preset("mujoco as jaxrl"),
    ("dmc", "paper"): preset("dmc as the paper"),
}


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("mujco", "; did you mean mujoco?"),
        ("MUJOCO", "; did you mean mujoco?"),
        ("atari7", "; did you mean atari-7?"),
        ("zzzzzz", "; choose from atari-7, dmc, mujoco"),
        ("", "; choose from atari-7, dmc, mujoco"),
    ],
)
def test_the_nearest_choice_is_named_or_else_all(word: str, answer: str) -> None:
    """A wrong guess would send the user the wrong way; where nothing is near, all are listed."""
    assert nearest(word, ["mujoco", "dmc", "atari-7"]) == answer


def test_a_version_in_common_makes_no_two_names_alike() -> None:
    """Half of `Nope-v0` is in `Line-v0`, but nobody who writes one means the other."""
    assert nearest("Nope-v0", ["Line-v0", "Walk-v1"]) == "; choose from Line-v0, Walk-v1"
    assert nearest("Lime-v0", ["Line-v0", "Line-v1"]) == "; did you mean Line-v0?"


def test_a_long_list_of_choices_is_cut() -> None:
    """An error stays one line of a readable length."""
    answer = nearest("?", [f"task-{number:03}" for number in range(150)])
    assert answer.endswith("task-098, task-099, ... (150 in all)")
    assert nearest("?", ["only"]) == "; choose from only"


def test_a_budget_may_differ_by_task() -> None:
    """A source that ran Humanoid longer than Hopper is followed in both."""
    budget = Budget(env_steps=1_000_000, num_seeds=5, env_steps_of={"Humanoid-v4": 3_000_000})
    assert (budget.steps("Hopper-v4"), budget.steps("Humanoid-v4")) == (1_000_000, 3_000_000)


def test_a_preset_is_found_by_suite_and_source() -> None:
    """The settings of one source must never stand in for another's."""
    for key, expected in PRESETS.items():
        assert find_preset(PRESETS, *key) is expected


@pytest.mark.parametrize(
    ("suite", "source", "message"),
    [
        ("mujocco", "paper", r"this agent has no suite 'mujocco'; did you mean mujoco\?"),
        ("mujoco", "jaxlr", r"unknown source 'jaxlr' for mujoco; did you mean jaxrl\?"),
        ("dmc", "jaxrl", "unknown source 'jaxrl' for dmc; choose from paper"),
    ],
)
def test_an_unknown_preset_names_the_nearest_of_that_suite(
    suite: str, source: str, message: str
) -> None:
    """A source that exists for another suite only is not offered for this one."""
    with pytest.raises(UsageError, match=f"^{message}$"):
        find_preset(PRESETS, suite, source)


def test_a_usage_error_is_a_value_error() -> None:
    """Code that knows nothing of command lines may treat it as what it is: a bad value."""
    assert issubclass(UsageError, ValueError)


def test_a_rule_that_is_kept_says_nothing_and_a_broken_one_names_the_number() -> None:
    """Whoever gave the value sees it again, beside what it should have been."""
    require(0.5 <= 1.0, "gamma must be at most 1", 0.5)
    with pytest.raises(UsageError, match=r"^gamma must be at most 1, not 1\.5$"):
        require(1.5 <= 1.0, "gamma must be at most 1", 1.5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 2, 1), "rewards must have rank 2, not 3"),
        ((6,), "rewards must have rank 2, not 1"),
        ((2, 3), r"rewards must have the shape \[3, 2\], not \[2, 3\]"),
        ((1, 2), r"rewards must have the shape \[3, 2\], not \[1, 2\]"),
    ],
)
def test_a_tensor_of_another_shape_is_refused_by_name(shape: tuple[int, ...], message: str) -> None:
    """Broadcasting would otherwise make numbers of it; the mistake is no user's."""
    check_shape("rewards", torch.zeros(3, 2), (3, 2))
    with pytest.raises(ValueError, match=f"^{message}$") as refusal:
        check_shape("rewards", torch.zeros(shape), (3, 2))
    assert not isinstance(refusal.value, UsageError)
