"""What all tests share: their turns side by side, and GPU tests skipped where there is no GPU."""

import fcntl
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

DOOR, ROOM = Path(__file__), Path(__file__).parents[1] / "pyproject.toml"
"""Files whose locks the turns are; nothing is written."""
TOGETHER = ("tests/reproduce/run/ray/test_pool.py",)
"""Files whose tests one process runs in turns: they share a cluster."""


def pytest_configure() -> None:
    """Take back what `nohup` or a shell's `&` has the tests ignore: some of them send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


class OneByOne(LoadScopeScheduling):
    """Gives every process its next test when it is free, and first what belongs together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne:
    return OneByOne(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run tests of several workers side by side, but a `quiet` one alone."""
    alone = item.get_closest_marker("quiet")
    with DOOR.open() as door, ROOM.open() as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # whoever waits here is not overtaken
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a process that the test forked may have it open


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checks of types and shapes: of a training's time they take more than the training."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
