"""The rules of a GPU that is not there; see `tests/stand_in_gpu.py`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.stand_in_gpu import DEVICE, installed, reads_nothing

pytestmark = pytest.mark.long


def on_both() -> tuple[Tensor, Tensor]:
    """Return a tensor on the GPU and one on the CPU."""
    return torch.ones(3, device=DEVICE), torch.ones(3)


def of_onednn() -> None:
    weights = torch.ones(3, 3, device=DEVICE)
    torch.ops.mkldnn._linear_pointwise(weights, weights, None, "none", [], "")


def backward() -> None:
    weights = torch.ones(3, device=DEVICE, requires_grad=True)
    (weights.exp().sum() * torch.ones(3)).sum().backward()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: sum(on_both()), "tensors of both devices"),
        (lambda: torch.where(on_both()[1] > 0, on_both()[0], 0.0), "both devices"),
        (backward, "both devices"),
        (of_onednn, "is a processor's"),
        (lambda: torch.ones(3, device="cuda"), "another GPU"),
        (lambda: torch.ones(3).to("cuda:0"), "another GPU"),
    ],
)
def test_what_a_gpu_refuses_is_refused(
    mistake: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's rules: a mistake that a GPU would refuse, or send to GPU 0."""
    with installed(monkeypatch), pytest.raises(AssertionError, match=message):
        mistake()


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.cpu(),
        lambda tensor: torch.zeros(3).copy_(tensor),
        lambda tensor: tensor[tensor > 0],
    ],
)
def test_what_waits_for_a_gpu_is_found(
    read: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's rules: every way to read a result back, also its size."""
    with installed(monkeypatch):
        tensor, _ = on_both()
        read(tensor)
        with reads_nothing(), pytest.raises(AssertionError, match="reads back to the host"):
            read(tensor)
