"""GPUs that are not there, for what asks torch how many there are."""

import pytest


def with_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let torch find so many GPUs."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: number > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: number)
    monkeypatch.setattr("torch.version.cuda", "12.8")
