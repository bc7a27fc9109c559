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
        ("?", ("only",), "; choose from only"),
    ],
)
def test_the_nearest_choice_is_named_or_else_all(
    word: str, choices: tuple[str, ...], answer: str
) -> None:
    """A wrong guess would send the user the wrong way; where nothing is near, all are listed."""
    assert nearest(word, choices) == answer
