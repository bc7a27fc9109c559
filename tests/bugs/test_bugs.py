"""Every bug that can be planted has its place in the code."""

import pytest

from tests.bugs.__main__ import ROOMS, ROOT, bugs_of


@pytest.mark.parametrize("room", ROOMS)
def test_every_bug_has_one_place_and_tests_that_exist(room: str) -> None:
    """Changed code or a renamed test would leave a bug behind that nobody plants."""
    for bug in bugs_of(room):
        assert bug.planted((ROOT / bug.file).read_text()) != (ROOT / bug.file).read_text()
        for test in bug.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), test
            assert not name or f"def {name}(" in (ROOT / path).read_text(), test
