"""The words of an error."""

import pytest

from suite.base.errors import nearest

SUITES, TASKS = ("mujoco", "dmc", "atari-7"), ("Line-v0", "Line-v1", "Walk-v1")
ALL = "; choose from atari-7, dmc, mujoco"


@pytest.mark.parametrize(
    ("word", "choices", "answer"),
    [
        *((word, SUITES, "; did you mean mujoco?") for word in ("mujco", "MUJOCO")),
        ("atari7", SUITES, "; did you mean atari-7?"),
        *((word, SUITES, ALL) for word in ("zzzzzz", "")),
        ("Lime-v0", TASKS, "; did you mean Line-v0?"),
        ("Nope-v0", TASKS, "; choose from Line-v0, Line-v1, Walk-v1"),  # a version is no likeness
    ],
)
def test_the_nearest_choice_is_named_or_else_all(
    word: str, choices: tuple[str, ...], answer: str
) -> None:
    """A wrong guess would send the user the wrong way; where nothing is near, all are listed."""
    assert nearest(word, choices) == answer


def test_a_long_list_of_choices_is_cut() -> None:
    """An error stays one line of a readable length."""
    answer = nearest("?", [f"task-{number:03}" for number in range(150)])
    assert answer.endswith("task-038, task-039, ... (150 in all)")
    assert nearest("?", ["only"]) == "; choose from only"
