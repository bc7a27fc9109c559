"""Networks from tables of layers: the published ones, their inputs, and copies of them."""

import copy
import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from suite.nets.networks import FrameLayers, Trunk, join_steps, prepare
from tests.perceptrons import draw

CPU = torch.device("cpu")
NATURE = FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512)
A3C = FrameLayers(((16, 8, 4), (32, 4, 2)), width=256)
DEEP = FrameLayers(sections=(16, 32, 32), width=256)
SAME = FrameLayers(((8, 4, 2), (12, 5, 2), (16, 11, 1)), width=32, same_padding=True)
HEADS = [(6, 0.01), (1, 1.0)]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def channels_last(frames: Tensor) -> Tensor:
    return frames.contiguous(memory_format=torch.channels_last)


def frames_trunk(
    layers: FrameLayers, height: int = 84, width: int | None = None, **settings: Any
) -> Trunk:
    """Return a network of frames; biases that all differ, so that none can be forgotten."""
    settings = {"scheme": "glorot_uniform", **settings}
    trunk = Trunk(
        (4, height, width or height),
        HEADS,
        generator(),
        hidden_sizes=(),
        frame_layers=layers,
        **settings,
    )
    with torch.no_grad():
        for i, bias in enumerate([*trunk.kernel_biases, *trunk.biases]):
            bias.copy_(0.1 * draw(i, len(bias)))
    return trunk


class Copies:
    """A network's weights in ordinary memory, and its affine layers as one would write them."""

    def __init__(self, trunk: Trunk) -> None:
        self.all = [
            p.detach().clone(memory_format=torch.contiguous_format) for p in trunk.parameters()
        ]
        weights = iter([copy.requires_grad_() for copy in self.all])
        kernels, layers = [next(weights) for _ in trunk.kernels], len(trunk.weights)
        self.kernels = [(kernel, next(weights)) for kernel in kernels]
        affine = [next(weights) for _ in range(layers)]
        self.layers = [(weight, next(weights)) for weight in affine]

    def perceptron(self, hidden: Tensor) -> Tensor:
        for weight, bias in self.layers[:-1]:
            hidden = torch.relu(hidden @ weight + bias)
        weight, bias = self.layers[-1]
        return hidden @ weight + bias


def assert_same_network(trunk: Trunk, frames: Tensor, copies: Copies, plain: Tensor) -> None:
    """Outputs and gradients: neither work in place nor another order of memory changes any."""
    near = 1e-4 if frames.dtype == torch.float32 else 1e-9
    ours = trunk(channels_last(frames))
    torch.testing.assert_close(ours, plain, atol=near, rtol=near)
    for outputs in (ours, plain):
        outputs.square().sum().backward()
    for parameter, plain_copy in zip(trunk.parameters(), copies.all, strict=True):
        assert parameter.grad is not None
        assert plain_copy.grad is not None
        scale = float(plain_copy.grad.abs().max())
        assert scale > 0
        torch.testing.assert_close(
            parameter.grad, plain_copy.grad, atol=near * scale, rtol=10 * near
        )


@pytest.mark.parametrize(("space", "features"), [((84, 84), 3_872), ((84, 42), 2_112)])
def test_the_deep_network_is_the_residual_one_of_figure_3(
    space: tuple[int, int], features: int
) -> None:
    """15 kernels; pools as TensorFlow's "same"; for Atari's frames about a million weights.

    In float64: where float32 rounds, a unit near 0 turns on some processors, and its gradient.
    """
    trunk, frames = frames_trunk(DEEP, *space).double(), draw(0, 2, 4, *space).double()
    copies = Copies(trunk)
    kernels = copies.kernels
    assert [len(kernel) for kernel, _ in kernels] == [16] * 5 + [32] * 10
    assert [weight.shape for weight in trunk.weights] == [(features, 256), (256, 7)]
    size = sum(parameter.numel() for parameter in trunk.parameters())
    assert space != (84, 84) or size == pytest.approx(1e6, rel=0.1)
    hidden = frames
    for section in range(3):
        first, *blocks = kernels[5 * section : 5 * section + 5]
        hidden = F.conv2d(hidden, *first, padding=1)
        missing = [(math.ceil(size / 2) - 1) * 2 + 3 - size for size in hidden.shape[:1:-1]]
        pad = [part for each in missing for part in (each // 2, each - each // 2)]
        hidden = F.max_pool2d(F.pad(hidden, pad, value=-math.inf), 3, 2)
        for one, two in (blocks[:2], blocks[2:]):
            inner = F.conv2d(torch.relu(hidden), *one, padding=1)
            hidden = hidden + F.conv2d(torch.relu(inner), *two, padding=1)
    plain = copies.perceptron(torch.relu(hidden).flatten(1))
    assert_same_network(trunk, frames, copies, plain)


@pytest.mark.parametrize(
    ("layers", "space", "pads", "features"),
    [
        (NATURE, (84, 84), (0, 0, 0), 7 * 7 * 64),
        (A3C, (84, 84), (0, 0), 9 * 9 * 32),
        (A3C._replace(same_padding=True), (84, 84), ((2, 2, 2, 2), (1, 2, 1, 2)), 11 * 11 * 32),
        (SAME, (42, 42), ((1, 1, 1, 1), (2, 2, 2, 2), (5, 5, 5, 5)), 11 * 11 * 16),
        (SAME, (40, 42), ((1, 1, 1, 1), (2, 2, 1, 2), (5, 5, 5, 5)), 10 * 11 * 16),
    ],
)
def test_plain_layers_are_those_of_their_table(
    layers: FrameLayers, space: tuple[int, int], pads: Any, features: int
) -> None:
    """Kernels, strides and padding; an odd row or column of padding goes to the end."""
    trunk, frames = frames_trunk(layers, *space), draw(0, 2, 4, *space)
    copies = Copies(trunk)
    kernels = copies.kernels
    assert [(len(k), k.shape[2]) for k, _ in kernels] == [row[:2] for row in layers.convolutions]
    assert trunk.weights[0].shape == (features, layers.width)
    hidden = frames
    for (kernel, bias), pad, (_, _, stride) in zip(kernels, pads, layers.convolutions, strict=True):
        padded = F.pad(hidden, pad) if pad else hidden
        hidden = torch.relu(F.conv2d(padded, kernel, bias, stride))
    assert_same_network(trunk, frames, copies, copies.perceptron(hidden.flatten(1)))


def test_kernels_and_layers_are_drawn_by_their_own_schemes() -> None:
    """cleanba's: kernels of `lecun_normal`, all else orthogonal with gains, each head's its own."""
    orthogonal: Any = {"scheme": "orthogonal", "gain": math.sqrt(2)}
    trunk = frames_trunk(A3C, 42, kernel_scheme="lecun_normal", **orthogonal)
    alike = frames_trunk(A3C, 42, **orthogonal)
    patches = alike.kernels[0].detach().flatten(1)
    torch.testing.assert_close(patches @ patches.T, 2 * torch.eye(16), atol=1e-5, rtol=0)
    kernel, deviation = trunk.kernels[0].detach(), 1 / math.sqrt(4 * 64)
    assert kernel.std() == pytest.approx(deviation, rel=0.03)
    assert kernel.abs().max() <= 2 * deviation / 0.8796
    columns = trunk.weights[0].detach()
    torch.testing.assert_close(columns.T @ columns, 2 * torch.eye(256), atol=1e-4, rtol=0)
    norms = trunk.weights[-1].detach().norm(dim=0)
    np.testing.assert_allclose(
        norms, [gain for width, gain in HEADS for _ in range(width)], rtol=1e-5
    )


def test_a_layer_may_be_drawn_as_the_kernel_that_covers_its_input() -> None:
    """RLlib's is a convolution of 11 x 11: its fans count 121 outputs per channel (Glorot)."""
    layers = FrameLayers(((16, 8, 4), (32, 4, 2)), width=256, same_padding=True)
    bounds = {
        drawn: frames_trunk(layers._replace(drawn_as_kernel=drawn), 84, scheme="glorot_uniform")
        .weights[0]
        .abs()
        .max()
        .item()
        for drawn in (False, True)
    }
    assert bounds[False] == pytest.approx(math.sqrt(6 / (3872 + 256)), rel=1e-3)
    assert bounds[True] == pytest.approx(math.sqrt(6 / (3872 + 256 * 121)), rel=1e-3)


def test_heads_may_be_drawn_by_a_scheme_of_their_own() -> None:
    """nnabla-rl's: hidden layers of unit norm, heads of Glorot's bounds."""
    trunk = frames_trunk(A3C, 42, scheme="unit_norm", head_scheme="glorot_uniform")
    hidden, last = (weight.detach() for weight in trunk.weights)
    torch.testing.assert_close(hidden.norm(dim=0), torch.ones(256), atol=1e-5, rtol=0)
    bound = last.abs().amax(0)
    assert (bound < math.sqrt(6 / (256 + 1))).all()
    assert (bound > 0.9 * math.sqrt(6 / (256 + 7))).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("layers", [A3C, DEEP])
def test_convolutions_in_bfloat16_are_near_those_in_float32(
    layers: FrameLayers, device: str
) -> None:
    """Outputs to a hundredth, all else in float32; gradients of noise point the same way."""
    obs = channels_last(draw(0, 8, 4, 42, 42)).to(device)
    of_outputs = draw(1, 8, 7).to(device)
    exact = frames_trunk(layers, 42).to(device)
    rounded = frames_trunk(layers, 42, bfloat16=True).to(device)
    pairs = []
    for trunk in (exact, rounded):
        outputs = trunk(obs)
        gradients = torch.autograd.grad((outputs * of_outputs).sum(), [*trunk.parameters()])
        pairs.append([outputs.detach(), *gradients])
    (theirs, *of_theirs), (ours, *of_ours) = pairs
    assert 0 < (ours - theirs).norm() / theirs.norm() < 0.01
    for our, their in zip(of_ours, of_theirs, strict=True):
        assert our.dtype == torch.float32
        assert F.cosine_similarity(our.flatten(), their.flatten(), dim=0) > 0.95
    assert ours.dtype == torch.float32
    assert all(torch.equal(*both) for both in zip(exact.kernels, rounded.kernels, strict=True))


@pytest.mark.parametrize("layers", [A3C, DEEP])
def test_a_copy_is_freed_at_once(layers: FrameLayers) -> None:
    """On a GPU nothing else would make room: torch's memory wakes no garbage collector."""
    trunk = frames_trunk(layers, 42)
    gc.disable()
    try:
        copied = weakref.ref(copy.deepcopy(trunk))
        assert copied() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("factor", [1 / 255, 1 / 256])
def test_bytes_are_scaled_into_channels_last_memory(factor: float) -> None:
    """The order in which convolutions are fast; 255 becomes 1 unless a source divides by 256."""
    frames = generator().integers(0, 256, (3, 4, 6, 5), dtype=np.uint8)
    inputs = prepare(frames, CPU, factor)
    assert (inputs.dtype, inputs.shape) == (torch.float32, (3, 4, 6, 5))
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(inputs, frames.astype(np.float32) * np.float32(factor))
    assert prepare(np.full((1, 1, 1, 1), 255, np.uint8), CPU).item() == 1.0


def test_frames_are_joined_in_channels_last_memory() -> None:
    """A whole unroll is not copied; of some of its environments the order stays."""
    rows = torch.arange(2 * 4 * 3 * 3 * 2).float().reshape(2, 4, 3, 3, 2).permute(0, 1, 4, 2, 3)
    for obs in (rows, rows[:, 1:3]):
        joined = join_steps(obs)
        assert torch.equal(joined, obs.flatten(0, 1))
        assert joined.is_contiguous(memory_format=torch.channels_last)
    assert join_steps(rows).data_ptr() == rows.data_ptr()
    vectors = draw(0, 3, 2, 5)
    assert torch.equal(join_steps(vectors), vectors.reshape(6, 5))
    assert join_steps(vectors).data_ptr() == vectors.data_ptr()
