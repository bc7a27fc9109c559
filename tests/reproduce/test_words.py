"""One thing is not several."""

from typing import SupportsFloat

import numpy as np
import pytest

from reproduce.words import counted


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (0, "run", "0 runs"),
        (1, "seed", "1 seed"),
        (np.int64(2), "task", "2 tasks"),
        (1.0, "process", "1 process"),
        (10_000, "process", "10,000 processes"),
    ],
)
def test_a_number_of_things_is_read_in_words(count: SupportsFloat, noun: str, words: str) -> None:
    """Also where the number comes from a table, whose column may be of floats."""
    assert counted(count, noun) == words
