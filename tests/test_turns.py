"""Which tests one process of pytest-xdist runs."""

from typing import Any

from tests.conftest import BY_CASE, TOGETHER, OneByOne


def scope(nodeid: str) -> str:
    """Return the name that all tests of one process share."""
    scheduler: Any = object.__new__(OneByOne)
    return scheduler._split_scope(nodeid)


def test_a_file_whose_tests_share_a_cluster_has_one_process() -> None:
    """Two clusters of Ray on one machine disturb each other."""
    for file in TOGETHER:
        assert scope(f"{file}::test_one[apart]") == scope(f"{file}::test_other"), file


def test_cases_that_share_a_training_have_one_process() -> None:
    """Another case's tests, and other files', may run beside them."""
    (file,) = BY_CASE
    assert scope(f"{file}::test_one[sac]") == scope(f"{file}::test_other[sac]")
    scopes = [f"{file}::test_one[sac]", f"{file}::test_one[a2c]", f"{file}::test_two", "b.py::test"]
    assert len({scope(nodeid) for nodeid in scopes}) == len(scopes)
