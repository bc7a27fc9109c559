"""Networks given as tables of layers: trunks with heads, and stacks of perceptrons for many seeds.

An agent's file holds its paper's table of layers. This module builds the network of such a table
and computes it fast: frames in channels-last memory, large products by `suite/affine.py`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from suite.affine import Layer, Layers, Pass, affine, perceptrons, relu_gradient
from suite.initialisation import Scheme, draw_kernel, draw_layer
from suite.recurrence import Core
from suite.vector_env import Spaces

Heads = Sequence[tuple[int, float]]
"""Width of each output, and gain of its initial weights; heads share all layers but the last."""


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
        lstm_actions_of: see `suite.recurrence.Core`.
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
                kernel = draw_kernel(generator, shape, kernel_scheme or scheme, gain)
                self.kernels.append(kernel)
                self.kernel_biases.append(torch.zeros(len(kernel)))
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
            hidden = affine(bias, features, weight)
        else:  # the observations' share of the first layer is computed once
            shares = affine(bias, features, weight[: features.shape[1]])
            hidden = (shares + actions @ weight[features.shape[1] :]).flatten(0, 1)
        for weight, bias in self._layers[1:]:
            hidden = affine(bias, self._activation(hidden), weight)
        return hidden if actions is None else hidden.unflatten(0, actions.shape[:2])

    def begin(self, number: int) -> Float[Tensor, "N M"]:
        """Return the memory with which a number of episodes begins."""
        size = 0 if self.core is None else self.core.memory_size
        return torch.zeros(number, size, device=self.device)

    def step(
        self, obs: Float[Tensor, "N ..."], memory: Float[Tensor, "N M"]
    ) -> tuple[Float[Tensor, "N O"], Float[Tensor, "N M"]]:
        """Return the outputs of one step of N environments, and the memory for `remember`."""
        if self.core is None:
            return self(obs), memory
        hidden, memory = self.core.step(self._features(obs), memory)
        weight, bias = self._layers[-1]
        return affine(bias, hidden, weight), memory

    def remember(
        self, memory: Float[Tensor, "N M"], actions: Any, rewards: np.ndarray, valid: np.ndarray
    ) -> Float[Tensor, "N M"]:
        """Return the memory after the outcome of a step; see `suite.recurrence.Core.remember`."""
        return memory if self.core is None else self.core.remember(memory, actions, rewards, valid)

    def unroll(
        self,
        obs: Float[Tensor, "R N ..."],
        memory: Float[Tensor, "N M"] | None,
        actions: Tensor,
        rewards: Float[Tensor, "T N"],
        valid: Float[Tensor, "T N"],
    ) -> Float[Tensor, "R N O"]:
        """Return the outputs of R steps of N environments; see `suite.recurrence.Core.unroll`."""
        joined = join_steps(obs)
        if self.core is None:
            return self(joined).unflatten(0, obs.shape[:2])
        features = self._features(joined).unflatten(0, obs.shape[:2])
        hidden = self.core.unroll(features, memory, actions, rewards, valid)
        weight, bias = self._layers[-1]
        return affine(bias, hidden.flatten(0, 1), weight).unflatten(0, obs.shape[:2])

    def _features(self, obs: Tensor) -> Float[Tensor, "B F"]:
        """Return the outputs of the last hidden layer."""
        hidden = self._flat(obs)
        for weight, bias in self._layers[:-1]:
            hidden = self._activation(affine(bias, hidden, weight))
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
        for (kernel, bias), (stride, padding) in zip(self._kernels, self._steps, strict=True):
            padded = F.pad(hidden, padding) if any(padding) else hidden
            hidden = F.conv2d(padded, kernel, bias, stride).relu_()
        return hidden

    def _residual(self, hidden: Tensor) -> Tensor:
        kernels = iter(self._kernels)
        for _ in range(len(self._kernels) // 5):
            hidden = F.conv2d(hidden, *next(kernels), padding=1)
            # TensorFlow's "same" padding: none before an even size
            hidden = F.max_pool2d(hidden, 3, 2, padding=hidden.shape[-1] % 2, ceil_mode=True)
            for _ in range(2):
                inner = F.conv2d(torch.relu(hidden), *next(kernels), padding=1)
                hidden = hidden + F.conv2d(inner.relu_(), *next(kernels), padding=1)
        return torch.relu(hidden)


def _plan(
    table: FrameLayers, obs_shape: Sequence[int]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, list[int]]], list[int]]:
    """Return kernels' shapes, plain layers' strides and paddings, and the last map's two sides.

    A shape is (filters, channels, size).
    """
    channels, *space = obs_shape
    shapes, steps = [], []
    for filters in table.sections:
        shapes += [(filters, inputs, 3) for inputs in (channels, *[filters] * 4)]
        channels, space = filters, [-(-n // 2) for n in space]
    for filters, size, stride in () if table.sections else table.convolutions:
        padding = [0] * 4  # left, right, above, below
        if table.same_padding:
            missing = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in space[::-1]]
            padding = [part for n in missing for part in (n // 2, n - n // 2)]
        shapes.append((filters, channels, size))
        steps.append((stride, padding))
        added = (padding[2] + padding[3], padding[0] + padding[1])
        space = [(n + more - size) // stride + 1 for n, more in zip(space, added, strict=True)]
        channels = filters
    return shapes, steps, space


def draw_perceptron(
    generator: np.random.Generator,
    sizes: Sequence[int],
    heads: Heads,
    scheme: Scheme,
    gain: float,
    head_scheme: Scheme | None = None,
    kernel_area: int = 1,
    head_inputs: int | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Draw a perceptron layer by layer: weights `[in, out]` and biases `[out]`, float32.

    Args:
        generator: the seed's stream of initial weights.
        sizes: widths, from the inputs to the last hidden layer.
        heads: the outputs.
        scheme: scheme of the initial weights.
        gain: gain of the initial weights of hidden layers.
        head_scheme: scheme of the last layer; default: `scheme`.
        kernel_area: of the hidden layers, see `draw_weight`.
        head_inputs: inputs of the last layer; default: the last hidden layer's outputs.
    """
    layers = [
        draw_layer(generator, fan_in, [(width, gain)], scheme, kernel_area)
        for fan_in, width in pairwise(sizes)
    ]
    fan_in = sizes[-1] if head_inputs is None else head_inputs
    return [*layers, draw_layer(generator, fan_in, heads, head_scheme or scheme)]


class StackedPerceptrons(nn.Module):
    """Perceptrons with ReLU between layers: K independent ones for each of S seeds.

    Weights are `[S, K, in, out]`, biases `[S, K, out]`. Members share nothing. All weights and
    biases lie in one vector, the module's only parameter: one Adam step or copy covers them all.

    Args:
        members: `members[s][k]`, layer by layer, as `draw_perceptron` returns them.
        device: the weights' device.
    """

    def __init__(
        self, members: Sequence[Sequence[Layers]], device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        parts = range(len(members[0][0]))
        blocks = [_stacked(members, layer, 0) for layer in parts]
        blocks += [_stacked(members, layer, 1) for layer in parts]
        self._shapes = [block.shape for block in blocks]
        self.flat = nn.Parameter(torch.cat([block.flatten() for block in blocks]).to(device))
        self.weights, self.biases = self._split(self.flat.detach())
        self._members = [
            [self._layers(s, k) for k in range(len(of_seed))] for s, of_seed in enumerate(members)
        ]
        self._is_batched = self.flat.is_cuda and len(members) * len(members[0]) > 1

    @classmethod
    def from_weights(cls, *weights: Mapping[str, Tensor]) -> "StackedPerceptrons":
        """Return a stack of one seed's perceptrons, whose weights `weights_of` returned."""
        layers = range(len(weights[0]) // 2)
        return cls([[[(w[f"weight_{i}"], w[f"bias_{i}"]) for i in layers] for w in weights]])

    def weights_of(self, seed: int, member: int = 0) -> dict[str, Tensor]:
        """Return one perceptron's weights by name, for a file."""
        layers = self._members[seed][member]
        named = {f"weight_{i}": layer.weight for i, layer in enumerate(layers)}
        return named | {f"bias_{i}": layer.bias for i, layer in enumerate(layers)}

    def __deepcopy__(self, memo: dict[int, Any]) -> "StackedPerceptrons":
        """Return a copy whose weights are views of its own vector."""
        pairs = [[[(w, b) for w, b, _ in layers] for layers in seed] for seed in self._members]
        return StackedPerceptrons(pairs, self.flat.device)

    def forward(
        self, inputs: Float[Tensor, "S B I"], *, frozen: bool = False
    ) -> Float[Tensor, "S K B O"]:
        """Apply every member of seed s to that seed's batch.

        Args:
            inputs: one batch per seed, shared by its K members.
            frozen: treat the weights as constants; gradients reach the inputs only.
        """
        flat = self.flat.detach() if frozen else self.flat
        if self._is_batched:
            return batched_forward(inputs, *self._split(flat))
        return perceptrons(inputs, flat, self._members)

    def begin_pass(self, *inputs: Float[Tensor, "S B _"]) -> Pass:
        """Apply every member outside autograd's graph; gradients are the pass's to give.

        Args:
            inputs: columns side by side of one batch per seed, shared by its K members.
        """
        if self._is_batched:
            return BatchedPass(self.weights, self.biases, inputs)
        return Pass(self._members, inputs)

    @property
    def parts(self) -> list[Tensor]:
        """Return all weights, then all biases, views of the vector, as passes give gradients."""
        if self._is_batched:
            return [*self.weights, *self.biases]
        members = [layers for of_seed in self._members for layers in of_seed]
        layers = [layer for of_members in zip(*members, strict=True) for layer in of_members]
        return [layer.weight for layer in layers] + [layer.bias for layer in layers]

    def clip_gradients(self, bound: float) -> None:
        """Scale the gradient of each member down to a Euclidean norm of at most `bound`."""
        if self.flat.grad is None:
            return
        weights, biases = self._split(self.flat.grad)
        squares = [block.square().flatten(2).sum(-1) for block in (*weights, *biases)]
        norms = torch.stack(squares).sum(0).sqrt()  # [S, K]
        factors = (bound / (norms + 1e-6)).clamp_(max=1)  # as `torch.nn.utils.clip_grad_norm_`
        for weight, bias in zip(weights, biases, strict=True):
            weight.mul_(factors[..., None, None])
            bias.mul_(factors[..., None])

    def _split(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and biases of every layer as views of a vector."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        views = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return views[: len(views) // 2], views[len(views) // 2 :]

    def _layers(self, seed: int, member: int) -> list[Layer]:
        pairs = zip(self.weights, self.biases, strict=True)
        cut = [(weight[seed, member], bias[seed, member]) for weight, bias in pairs]
        return [Layer(weight, bias, weight.t()) for weight, bias in cut]


def _stacked(members: Sequence[Sequence[Layers]], layer: int, part: int) -> Tensor:
    """Return one layer's weights (part 0) or biases (1) of all members, `[S, K, ...]`."""
    return torch.stack(
        [torch.stack([member[layer][part] for member in of_seed]) for of_seed in members]
    )


def batched_forward(
    inputs: Float[Tensor, "S B I"], weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Float[Tensor, "S K B O"]:
    """Apply stacked perceptrons as one batched product per layer: the fastest way on a GPU."""
    num_seeds, num_members = weights[0].shape[:2]
    hidden = inputs.unsqueeze(1).expand(-1, num_members, -1, -1).flatten(0, 1)  # [S*K, B, I]
    last = len(weights) - 1
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = torch.baddbmm(bias.flatten(0, 1).unsqueeze(1), hidden, weight.flatten(0, 1))
        if layer < last:
            hidden = hidden.relu_()
    return hidden.unflatten(0, (num_seeds, num_members))


class BatchedPass(Pass):
    """The same by one batched product per layer: the fastest way on a GPU.

    Args:
        weights: stacked weights, layer by layer.
        biases: stacked biases.
        inputs: as those of `Pass`.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> None:
        self._widths = [columns.shape[-1] for columns in inputs]
        self._weights = [weight.flatten(0, 1) for weight in weights]  # [S*K, in, out]
        self._members_shape = weights[0].shape[:2]
        num_members = weights[0].shape[1]
        batches = torch.cat([*inputs], -1) if len(inputs) > 1 else inputs[0]
        hidden = batches.unsqueeze(1).expand(-1, num_members, -1, -1).flatten(0, 1)  # [S*K, B, I]
        self._inputs: list[Tensor] = []
        for weight, bias in zip(self._weights, biases, strict=True):
            self._inputs.append(hidden.relu_() if self._inputs else hidden)
            hidden = torch.baddbmm(bias.flatten(0, 1).unsqueeze(1), hidden, weight)
        self.outputs = hidden.unflatten(0, self._members_shape).squeeze(-1)

    def weight_gradients(self, of_outputs: Tensor) -> list[Tensor]:
        """Return the gradients of all weights, then of all biases, layer by layer."""
        of_layers = self._of_layers(of_outputs)
        pairs = zip(self._inputs, of_layers, strict=True)
        of_weights = [torch.bmm(hidden.mT, gradient) for hidden, gradient in pairs]
        of_biases = [gradient.sum(1) for gradient in of_layers]
        return [each.unflatten(0, self._members_shape) for each in of_weights + of_biases]

    def input_gradient(self, of_outputs: Tensor, part: int = 0) -> Float[Tensor, "S B _"]:
        """Return the gradient of one part of the inputs: each seed's sum over its members."""
        end = sum(self._widths[: part + 1])
        columns = self._weights[0][:, end - self._widths[part] : end]
        of_inputs = torch.bmm(self._of_layers(of_outputs)[0], columns.mT)
        return of_inputs.unflatten(0, self._members_shape).sum(1)

    def _of_layers(self, of_outputs: Tensor) -> list[Tensor]:
        """Return the gradient of what every layer gives before its ReLU, `[S*K, B, out]`."""
        num_rows, width = self._inputs[0].shape[1], self._weights[-1].shape[-1]
        gradients = [of_outputs.reshape(-1, num_rows, width)]
        for weight, hidden in zip(self._weights[:0:-1], self._inputs[:0:-1], strict=True):
            gradient = torch.bmm(gradients[-1], weight.mT)
            gradients.append(relu_gradient(gradient, hidden, 0, grad_input=gradient))
        return gradients[::-1]


def prepare(
    obs: np.ndarray | Tensor,
    device: torch.device,
    frame_factor: float = 1 / 255,
    out: Tensor | None = None,
) -> Tensor:
    """Return observations in the form that networks read, float32 on the device.

    Args:
        obs: a batch of vectors, or of frames of bytes, which are scaled on the device.
        device: the network's device.
        frame_factor: factor on the bytes.
        out: tensor to fill; default: new memory, channels-last for frames.
    """
    rows = torch.as_tensor(obs)
    if rows.dtype != torch.uint8:
        rows = rows.float()
        return rows.to(device) if out is None else out.copy_(rows)
    if out is None:
        out = torch.empty(obs.shape, device=device, memory_format=torch.channels_last)
    return torch.mul(rows.to(device), frame_factor, out=out)


def join_steps(obs: Float[Tensor, "T N ..."]) -> Float[Tensor, "B ..."]:
    """Join the first two axes; frames stay channels-last, and whole unrolls are not copied."""
    if obs.dim() < 5:
        return obs.flatten(0, 1)
    return obs.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)
