"""Perceptrons: affine layers with ReLU between them, with an LSTM before the last or without."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from suite.nets.initialisation import Scheme, draw_layer
from suite.nets.recurrence import LSTM

Heads = Sequence[tuple[int, float]]
"""Width of each output, and gain of its initial weights; heads share all layers but the last."""


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


class Perceptron(nn.Module):
    """Affine layers with ReLU between them.

    Args:
        layers: weights `[in, out]` and biases `[out]`, as `draw_perceptron` returns them. With one
            more axis N in front they are N perceptrons, which share nothing.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._layers = [(nn.Parameter(weight), nn.Parameter(bias)) for weight, bias in layers]
        for i, (weight, bias) in enumerate(self._layers):
            self.register_parameter(f"weight_{i}", weight)
            self.register_parameter(f"bias_{i}", bias)

    @classmethod
    def drawn(
        cls,
        generator: np.random.Generator,
        sizes: Sequence[int],
        heads: Heads,
        scheme: Scheme,
        gain: float,
        head_scheme: Scheme | None = None,
        lstm_size: int = 0,
    ) -> "Perceptron":
        """Return a perceptron with initial weights, recurrent if `lstm_size` is not 0.

        See `draw_perceptron` for the others.
        """
        drawn = (generator, sizes, heads, scheme, gain, head_scheme)
        layers = draw_perceptron(*drawn, head_inputs=lstm_size or None)
        if not lstm_size:
            return cls(layers)
        return RecurrentPerceptron(layers, LSTM(sizes[-1], lstm_size, generator, scheme))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor], prefix: str = "") -> "Perceptron":
        """Return the perceptron whose weights `state_dict` returned, with a prefix or without."""
        start = len(prefix)
        own = {name[start:]: each for name, each in weights.items() if name.startswith(prefix)}
        of_lstm = {name: own.pop(name) for name in list(own) if name.startswith("lstm.")}
        layers = [(own[f"weight_{i}"], own[f"bias_{i}"]) for i in range(len(own) // 2)]
        if not of_lstm:
            return cls(layers)
        num_inputs, size = len(of_lstm["lstm.weight"]), len(of_lstm["lstm.recurrent_weight"])
        lstm = LSTM(num_inputs, size, np.random.default_rng(0), "torch")
        lstm.load_state_dict({name.removeprefix("lstm."): each for name, each in of_lstm.items()})
        return RecurrentPerceptron(layers, lstm)

    @classmethod
    def joined(cls, networks: Sequence["Perceptron"]) -> "Perceptron":
        """Return perceptrons of the same sizes as one, with an axis N."""
        layers = [
            (torch.stack([weight for weight, _ in layer]), torch.stack([bias for _, bias in layer]))
            for layer in zip(*(network._layers for network in networks), strict=True)
        ]
        return cls(layers)

    def forward(self, inputs: Float[Tensor, "*N B I"]) -> Float[Tensor, "*N B O"]:
        """Return the outputs of the last layer."""
        return self._last(self._hidden(inputs))

    def _hidden(self, inputs: Tensor) -> Tensor:
        for weight, bias in self._layers[:-1]:
            inputs = _affine(bias, inputs, weight).relu_()
        return inputs

    def _last(self, hidden: Tensor) -> Tensor:
        weight, bias = self._layers[-1]
        return _affine(bias, hidden, weight)


class RecurrentPerceptron(Perceptron):
    """A perceptron with an LSTM between its hidden layers and its last one.

    Its memory, hidden units and cells side by side, is 0 where an episode begins.

    Args:
        layers: as a `Perceptron`'s; the last one has the LSTM's outputs as inputs.
        lstm: between them.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], lstm: LSTM) -> None:
        super().__init__(layers)
        self.lstm = lstm

    def forward(self, inputs: Float[Tensor, "*N B I"]) -> Float[Tensor, "*N B O"]:
        """Refuse inputs without a memory."""
        raise ValueError("a recurrent network needs its memory: call step")

    def begin(self, number: int) -> Float[Tensor, "B M"]:
        """Return the memory with which a number of episodes begins."""
        return self.lstm.weight.new_zeros(number, 2 * len(self.lstm.recurrent_weight))

    def step(
        self, inputs: Float[Tensor, "B I"], memory: Float[Tensor, "B M"]
    ) -> tuple[Float[Tensor, "B O"], Float[Tensor, "B M"]]:
        """Return the outputs of one step, and the memory after it."""
        state, no_starts = torch.stack(memory.chunk(2, -1)), torch.zeros_like(memory[None, :, 0])
        (hidden,), state = self.lstm(self._hidden(inputs)[None], state, no_starts)
        return self._last(hidden), torch.cat([*state], -1)


def _affine(bias: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """Return `bias + inputs @ weight`, of one layer or of N."""
    if weight.dim() == 2:
        return torch.addmm(bias, inputs, weight)
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight)
