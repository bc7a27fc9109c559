"""What all tests share: GPU tests are skipped, by name, where there is no GPU."""

import signal

import pytest
import torch


def pytest_configure() -> None:
    """Take back what `nohup` or a shell's `&` has the tests ignore: some of them send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
