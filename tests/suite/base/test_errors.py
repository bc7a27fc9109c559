"""Presets, budgets, and the words of an error."""

import pytest

from suite.base.errors import nearest


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
    assert answer.endswith("task-038, task-039, ... (150 in all)")
    assert nearest("?", ["only"]) == "; choose from only"
