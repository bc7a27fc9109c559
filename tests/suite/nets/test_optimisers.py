"""Optimisers on one flat vector: what they do to the weights, against references written out."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.a2c import Config
from suite.base.snapshot import pack
from suite.nets.optimisers import Adam, FlatWeights, RMSprop
from tests.perceptrons import draw

FORMS = {"tensorflow": (True, 1.0), "torch": (False, 0.0), "chainer": (True, 0.0)}
"""Whether epsilon stands in the root, and the average of squared gradients at the start."""


class Convolutional(nn.Module):
    """A kernel in channels-last memory, its bias, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        kernel = torch.randn(5, 2, 3, 4, generator=generator)
        self.kernel = nn.Parameter(kernel.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(torch.randn(5, generator=generator))
        self.matrix = nn.Parameter(torch.randn(5, 3, generator=generator))

    def forward(self, frames: Tensor) -> Tensor:
        hidden = nn.functional.conv2d(frames, self.kernel, self.bias).tanh()
        return hidden.mean((2, 3)) @ self.matrix


def frames() -> Tensor:
    return draw(1, 6, 2, 8, 8).contiguous(memory_format=torch.channels_last)


def loss_of(module: nn.Module) -> Tensor:
    return module(frames()).square().sum()


def linear(gradient: np.ndarray, module: nn.Linear) -> Tensor:
    """Return a loss with that gradient by the eight weights of a layer."""
    by_weight, by_bias = torch.from_numpy(gradient.astype(np.float32)).split([6, 2])
    return (module.weight.flatten() * by_weight).sum() + (module.bias * by_bias).sum()


def test_kernels_lie_in_the_vector_in_channels_last_memory() -> None:
    """As convolutions want them, wherever they lay before."""
    for memory_format in (torch.channels_last, torch.contiguous_format):
        module = Convolutional()
        kernel = module.kernel.detach().contiguous(memory_format=memory_format)
        module.kernel = nn.Parameter(kernel)
        weights = FlatWeights(module)
        assert module.kernel.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(module.kernel, kernel)
        assert torch.equal(weights.vector[:120], kernel.permute(0, 2, 3, 1).flatten())


def test_the_norm_is_that_of_all_weights() -> None:
    """And no number as soon as one weight is none."""
    module = Convolutional()
    weights = FlatWeights(module)
    tensors = [tensor.detach().flatten().tolist() for tensor in module.parameters()]
    squares = sum(number**2 for numbers in tensors for number in numbers)
    assert weights.norm() == pytest.approx(math.sqrt(squares), rel=1e-6)
    with torch.no_grad():
        module.kernel[1, 1, 1, 1] = math.nan
    assert math.isnan(weights.norm())


@pytest.mark.parametrize(
    ("in_root", "initial_average"), [*FORMS.values(), (False, 1.0)], ids=[*FORMS, "fourth"]
)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_rmsprop_equals_a_reference_written_out(
    in_root: bool, initial_average: float, clip: float | None
) -> None:
    """A slow float64 loop, with epsilon in the root or not; a first gradient of 0 makes no NaN."""
    module = nn.Linear(3, 2)
    flat = FlatWeights(module)
    form = {"rmsprop_epsilon_in_root": in_root, "rmsprop_initial_average": initial_average}
    optimiser = RMSprop(flat, Config(rmsprop_decay=0.9, rmsprop_epsilon=1e-2, **form))
    weights = flat.vector.double().tolist()
    averages = [initial_average] * 8
    rng = np.random.default_rng(0)
    for step in range(5):
        gradient = rng.normal(size=8) * (step > 0)
        norm = optimiser.minimise(linear(gradient, module), 0.1, clip)
        length = math.sqrt(sum(g * g for g in gradient))
        assert float(norm) == pytest.approx(length, rel=1e-6)  # of what came, not what was left
        if clip is not None and length > clip:
            gradient = gradient * clip / length
        for i, g in enumerate(gradient):
            averages[i] = 0.9 * averages[i] + 0.1 * g**2
            root = averages[i] + 1e-2 if in_root else averages[i]
            divisor = math.sqrt(root) if in_root else math.sqrt(root) + 1e-2
            weights[i] -= 0.1 * g / divisor
    np.testing.assert_allclose(flat.vector.numpy(), weights, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(optimiser.square_averages, averages, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(module.weight.detach().flatten(), flat.vector[:6])


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_equals_torch(clip: float | None) -> None:
    """Every weight after each of eight steps at a rate of 0.01, and the norm of each gradient."""
    ours, theirs = Convolutional(), Convolutional()
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    optimiser = Adam(FlatWeights(ours))
    for _ in range(8):
        norm = optimiser.minimise(loss_of(ours), 0.01, clip)
        reference.zero_grad()
        loss_of(theirs).backward()
        length = nn.utils.clip_grad_norm_(theirs.parameters(), math.inf if clip is None else clip)
        reference.step()
        torch.testing.assert_close(norm, length)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("name", "num_averages"), [("rmsprop", 1), ("adam", 2)])
def test_a_checkpoint_holds_each_weight_once(name: str, num_averages: int) -> None:
    """The network's own, beside the averages."""
    module, tensors = Convolutional(), dict[str, Tensor]()
    flat = FlatWeights(module)
    optimiser = Adam(flat) if name == "adam" else RMSprop(flat, Config())
    pack({"network": module, "optimiser": optimiser}, tensors, "learner")
    sizes = [tensor.numel() for tensor in tensors.values() if tensor.dim()]
    assert sum(sizes) == (1 + num_averages) * flat.vector.numel()
