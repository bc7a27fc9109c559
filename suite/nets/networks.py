"""Trunks: networks of a table of layers, for vectors or frames, with all heads in the last layer.

An agent's file holds its paper's table of layers. This module builds the network of such a table;
frames lie in channels-last memory.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from suite.envs.vector_env import Spaces
from suite.nets.initialisation import Scheme, draw_convolution
from suite.nets.perceptrons import Heads, draw_perceptron
from suite.nets.recurrence import Core


class FrameLayers(NamedTuple):
    """A table of layers for frames, with ReLU activations."""

    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(channels, kernel size, stride) of plain layers."""
    sections: tuple[int, ...] = ()
    """Channels of residual sections, which replace plain layers: a convolution, a pool and two
    blocks of two convolutions each (IMPALA, arXiv:1802.01561, Figure 3, right)."""
    width: int = 512
    """Units of the affine layer after the convolutions."""
    same_padding: bool = False
    """Pad plain layers as TensorFlow's "same" does: an odd row or column goes to the end."""
    drawn_as_kernel: bool = False
    """Draw the affine layer's weights as those of a convolution whose kernel covers its input."""


class Trunk(nn.Module):
    """Convolutions, if observations are frames, then affine layers; the last one holds all heads.

    Args:
        obs_shape: shape of one observation; three axes are frames `[C, H, W]`.
        heads: the outputs.
        generator: the seed's stream of initial weights.
        hidden_sizes: widths of the hidden layers for vector observations.
        frame_layers: layers for frames.
        scheme: scheme of the initial weights.
        kernel_scheme: scheme of convolutions' initial weights; default: `scheme`.
        head_scheme: scheme of the last layer's initial weights; default: `scheme`.
        gain: gain of the initial weights of all layers but the last.
        activation: activation between the layers for vector observations.
        lstm_size: units of an LSTM before the heads; 0: none, the network is feed-forward.
        lstm_actions_of: see `suite.nets.recurrence.Core`.
        bfloat16: whether convolutions compute in bfloat16, forwards and backwards. Their weights
            and features are float32; their gradients are rounded to bfloat16, then float32.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        heads: Heads,
        generator: np.random.Generator,
        *,
        hidden_sizes: Sequence[int],
        frame_layers: FrameLayers | None = None,
        scheme: Scheme = "orthogonal",
        kernel_scheme: Scheme | None = None,
        head_scheme: Scheme | None = None,
        gain: float = 1.0,
        activation: Literal["tanh", "relu"] = "relu",
        lstm_size: int = 0,
        lstm_actions_of: Spaces | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self._bfloat16 = bfloat16
        self.kernels, self.kernel_biases = nn.ParameterList(), nn.ParameterList()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self._convolutions: Literal["none", "plain", "residual"] = "none"
        sizes, area = [math.prod(obs_shape), *hidden_sizes], 1
        if len(obs_shape) == 3:
            if frame_layers is None:
                raise ValueError("frames need a table of layers")
            self._convolutions = "residual" if frame_layers.sections else "plain"
            shapes, self._steps, space = _plan(frame_layers, obs_shape)
            for shape in shapes:
                kernel, bias = draw_convolution(generator, shape, kernel_scheme or scheme, gain)
                self.kernels.append(kernel)
                self.kernel_biases.append(bias)
            area = math.prod(space) if frame_layers.drawn_as_kernel else 1
            num_features = shapes[-1][0] * math.prod(space)
            sizes, activation = [num_features, frame_layers.width], "relu"
        for weight, bias in draw_perceptron(
            generator, sizes, heads, scheme, gain, head_scheme, area, lstm_size or sizes[-1]
        ):
            self.weights.append(weight)
            self.biases.append(bias)
        self.core: Core | None = None
        if lstm_size:
            self.core = Core(sizes[-1], lstm_size, generator, scheme, lstm_actions_of)
        self._activation = torch.tanh if activation == "tanh" else torch.relu
        # a ParameterList costs microseconds an access
        self._kernels = list(zip(self.kernels, self.kernel_biases, strict=True))
        self._layers = list(zip(self.weights, self.biases, strict=True))

    @property
    def device(self) -> torch.device:
        """Return the network's device."""
        return self._layers[0][0].device

    def forward(
        self, obs: Float[Tensor, "B ..."], actions: Float[Tensor, "M B A"] | None = None
    ) -> Float[Tensor, "*MB O"]:
        """Return the outputs of all heads, side by side.

        Args:
            obs: a batch of observations, as `prepare` returns them.
            actions: M actions on each observation, for a network of pairs; outputs: `[M, B, O]`.
        """
        if self.core is not None:
            raise ValueError("a recurrent network needs its memory: call step or unroll")
        features = self._flat(obs)
        weight, bias = self._layers[0]
        if actions is None:
            hidden = torch.addmm(bias, features, weight)
        else:  # the observations' share of the first layer is computed once
            shares = torch.addmm(bias, features, weight[: features.shape[1]])
            hidden = (shares + actions @ weight[features.shape[1] :]).flatten(0, 1)
        for weight, bias in self._layers[1:]:
            hidden = torch.addmm(bias, self._activation(hidden), weight)
        return hidden if actions is None else hidden.unflatten(0, actions.shape[:2])

    def initial_memory(self, number: int) -> Float[Tensor, "N M"]:
        """Return the memory with which a number of episodes begins."""
        if self.core is None:
            return torch.zeros(number, 0, device=self.device)
        return self.core.initial_memory(number)

    def step(
        self, obs: Float[Tensor, "N ..."], memory: Float[Tensor, "N M"]
    ) -> tuple[Float[Tensor, "N O"], Float[Tensor, "N M"]]:
        """Return the outputs of one step of N environments, and the memory for `remember`."""
        if self.core is None:
            return self(obs), memory
        hidden, memory = self.core.step(self._features(obs), memory)
        weight, bias = self._layers[-1]
        return torch.addmm(bias, hidden, weight), memory

    def remember(
        self, memory: Float[Tensor, "N M"], actions: Any, rewards: np.ndarray, valid: np.ndarray
    ) -> Float[Tensor, "N M"]:
        """Return the memory after the outcome of a step; see `Core.remember`."""
        return memory if self.core is None else self.core.remember(memory, actions, rewards, valid)

    def unroll(
        self,
        obs: Float[Tensor, "R N ..."],
        memory: Float[Tensor, "N M"] | None,
        valid: Float[Tensor, "T N"],
        actions: Tensor | None = None,
        rewards: Float[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, "R N O"]:
        """Return the outputs of R steps of N environments; see `Core.unroll`."""
        joined = join_steps(obs)
        if self.core is None:
            return self(joined).unflatten(0, obs.shape[:2])
        features = self._features(joined).unflatten(0, obs.shape[:2])
        hidden = self.core.unroll(features, memory, valid, actions, rewards)
        weight, bias = self._layers[-1]
        return torch.addmm(bias, hidden.flatten(0, 1), weight).unflatten(0, obs.shape[:2])

    def _features(self, obs: Tensor) -> Float[Tensor, "B F"]:
        """Return the outputs of the last hidden layer."""
        hidden = self._flat(obs)
        for weight, bias in self._layers[:-1]:
            hidden = self._activation(torch.addmm(bias, hidden, weight))
        return hidden

    def _flat(self, obs: Tensor) -> Float[Tensor, "B I"]:
        """Return the inputs of the first affine layer."""
        if self._convolutions == "none":
            return obs.flatten(1)
        convolve = self._plain if self._convolutions == "plain" else self._residual
        if not self._bfloat16:
            return convolve(obs).flatten(1)
        with torch.autocast(obs.device.type, torch.bfloat16):
            return convolve(obs).flatten(1).float()

    def _plain(self, hidden: Tensor) -> Tensor:
        layers = zip(self._kernels, self._steps, strict=True)
        for (kernel, bias), (stride, padding, more) in layers:
            if any(more):
                hidden = F.pad(hidden, (0, more[1], 0, more[0]))
            hidden = F.conv2d(hidden, kernel, bias, stride, padding).relu_()
        return hidden

    def _residual(self, hidden: Tensor) -> Tensor:
        kernels = iter(self._kernels)
        for _ in range(len(self._kernels) // 5):
            hidden = F.conv2d(hidden, *next(kernels), padding=1)
            # TensorFlow's "same" padding: none before an even size
            padding = [size % 2 for size in hidden.shape[2:]]
            hidden = F.max_pool2d(hidden, 3, 2, padding=padding, ceil_mode=True)
            for _ in range(2):
                inner = F.conv2d(torch.relu(hidden), *next(kernels), padding=1)
                hidden = hidden + F.conv2d(inner.relu_(), *next(kernels), padding=1)
        return torch.relu(hidden)


def _plan(
    table: FrameLayers, obs_shape: Sequence[int]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, list[int], list[int]]], list[int]]:
    """Return kernels' shapes, plain layers' steps, and the last map's two sides.

    A shape is (filters, channels, size). A step is a stride, the padding above and left, and what
    is added to it below and right.
    """
    channels, *space = obs_shape
    shapes, steps = [], []
    for filters in table.sections:
        shapes += [(filters, inputs, 3) for inputs in (channels, *[filters] * 4)]
        channels, space = filters, [-(-n // 2) for n in space]
    for filters, size, stride in () if table.sections else table.convolutions:
        missing = [0, 0]
        if table.same_padding:
            missing = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in space]
        shapes.append((filters, channels, size))
        steps.append((stride, [n // 2 for n in missing], [n % 2 for n in missing]))
        space = [(n + more - size) // stride + 1 for n, more in zip(space, missing, strict=True)]
        channels = filters
    return shapes, steps, space


def prepare(
    obs: np.ndarray | Tensor,
    device: torch.device,
    frame_factor: float = 1 / 255,
    out: Tensor | None = None,
) -> Tensor:
    """Return vectors, or frames, as networks read them: float32 on the device.

    Bytes are scaled there by a factor. `out` is filled; else new memory, channels-last for frames.
    """
    rows = torch.as_tensor(obs)
    is_bytes = rows.dtype == torch.uint8
    if out is not None:
        return torch.mul(rows.to(device), frame_factor, out=out) if is_bytes else out.copy_(rows)
    layout = torch.channels_last if rows.dim() == 4 else torch.contiguous_format
    rows = rows.to(device).to(torch.float32, memory_format=layout)
    return rows.mul_(frame_factor) if is_bytes else rows  # a copy of ours


def join_steps(obs: Float[Tensor, "T N ..."]) -> Float[Tensor, "B ..."]:
    """Join the first two axes; frames stay channels-last, and whole unrolls are not copied."""
    if obs.dim() < 5:
        return obs.flatten(0, 1)
    return obs.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)
