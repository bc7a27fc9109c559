"""Perceptrons, with an LSTM or without, and ensembles: networks of many seeds side by side."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from suite.base.errors import check_shape
from suite.nets.initialisation import Scheme, draw_layer
from suite.nets.optimisers import follow
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

    Sizes are widths, from the inputs to the last hidden layer. The last layer has the heads, with a
    scheme and a number of inputs of its own, or else as the others. See `draw_weight` for the rest.
    """
    layers = [
        draw_layer(generator, fan_in, [(width, gain)], scheme, kernel_area)
        for fan_in, width in pairwise(sizes)
    ]
    fan_in = sizes[-1] if head_inputs is None else head_inputs
    return [*layers, draw_layer(generator, fan_in, heads, head_scheme or scheme)]


class Perceptron(nn.Module):
    """Affine layers, weights `[in, out]` and biases `[out]`, with ReLU between them.

    With one more axis N in front they are N perceptrons, which share nothing.
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
        lstm_size: int = 0,
    ) -> "Perceptron":
        """Return a perceptron with initial weights, recurrent if `lstm_size` is not 0.

        See `draw_perceptron` for the others.
        """
        drawn = (generator, sizes, heads, scheme, gain)
        layers = draw_perceptron(*drawn, head_inputs=lstm_size or None)
        if not lstm_size:
            return cls(layers)
        return RecurrentPerceptron(layers, LSTM(sizes[-1], lstm_size, generator, scheme))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor], prefix: str = "") -> "Perceptron":
        """Return the perceptron whose weights `state_dict` returned, with a prefix or without.

        Raises:
            ValueError: if none begins with the prefix.
        """
        start = len(prefix)
        own = {name[start:]: each for name, each in weights.items() if name.startswith(prefix)}
        if not own:
            raise ValueError(f"not the weights of this policy: none begins with {prefix!r}")
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
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], lstm: LSTM) -> None:
        super().__init__(layers)
        self.lstm = lstm

    def forward(self, inputs: Float[Tensor, "*N B I"]) -> Float[Tensor, "*N B O"]:
        """Refuse inputs without a memory."""
        raise ValueError("a recurrent network needs its memory: call step")

    def initial_memory(self, number: int) -> Float[Tensor, "B M"]:
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


class Ensemble(nn.Module):
    """K networks for each of S seeds, `members[s][k]`: perceptrons, or trunks for frames.

    They share nothing. Each has parameters of its own, so a seed has the same numbers alone and
    beside others, bit by bit at most sizes. On a GPU perceptrons are joined, one batched product
    per layer for all of them, which is faster there.
    """

    def __init__(
        self, members: Sequence[Sequence[Any]], device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.shape = len(members), len(members[0])
        networks = [network for of_seed in members for network in of_seed]
        many = len(networks) > 1 and torch.device(device).type == "cuda"
        self.is_recurrent = isinstance(networks[0], RecurrentPerceptron)
        self._is_joined = many and isinstance(networks[0], Perceptron) and not self.is_recurrent
        if self._is_joined:
            networks = [Perceptron.joined(networks)]
        self.networks = nn.ModuleList(networks).to(device)
        self._weights = [*self.parameters()]  # to ask the modules in every update takes 0.2 ms

    @property
    def device(self) -> torch.device:
        """Return the weights' device."""
        return self._weights[0].device

    def forward(self, inputs: Float[Tensor, "S B ..."]) -> Float[Tensor, "S K B O"]:
        """Apply every network of seed s to that seed's batch."""
        per_seed = self.shape[1]
        if self._is_joined:
            repeated = inputs.unsqueeze(1).expand(-1, per_seed, -1, -1).flatten(0, 1)
            return self.networks[0](repeated).unflatten(0, self.shape)
        outputs = [network(inputs[i // per_seed]) for i, network in enumerate(self.networks)]
        return torch.stack(outputs).unflatten(0, self.shape)

    def initial_memory(self, number: int) -> Float[Tensor, "S K B M"]:
        """Return the memories with which a number of each seed's episodes begins."""
        members: list[Any] = [*self.networks]
        memories = [each.initial_memory(number) for each in members]
        return torch.stack(memories).unflatten(0, self.shape)

    def step(
        self, inputs: Float[Tensor, "S B I"], memories: Float[Tensor, "S K B M"]
    ) -> tuple[Float[Tensor, "S K B O"], Float[Tensor, "S K B M"]]:
        """Return the outputs of one step of recurrent networks, and their memories after it."""
        per_seed, rows = self.shape[1], memories.flatten(0, 1)
        members: list[Any] = [*self.networks]
        steps = [each.step(inputs[i // per_seed], rows[i]) for i, each in enumerate(members)]
        outputs, after = (torch.stack(each) for each in zip(*steps, strict=True))
        return outputs.unflatten(0, self.shape), after.unflatten(0, self.shape)

    def unroll(
        self, inputs: Float[Tensor, "S TB I"], num_steps: int, cut: bool = False
    ) -> Float[Tensor, "S K TB O"]:
        """Apply every network to T steps of episodes, whose memories begin with 0.

        Inputs are of all first steps, then of all second ones, up to T; without recurrence they are
        nothing but further rows. If `cut`, memories are constants: gradients of a step stay in it.
        """
        if not self.is_recurrent:
            return self(inputs)
        steps, outputs = inputs.unflatten(1, (num_steps, -1)).unbind(1), []
        memories = self.initial_memory(steps[0].shape[1])
        for each in steps:
            output, memories = self.step(each, memories.detach() if cut else memories)
            outputs.append(output)
        return torch.cat(outputs, 2)

    def weights_of(self, seed: int, member: int = 0) -> dict[str, Tensor]:
        """Return one network's weights by name, for a file."""
        place = seed * self.shape[1] + member
        if self._is_joined:
            return {name: each[place] for name, each in self.networks[0].state_dict().items()}
        return self.networks[place].state_dict()

    def all_weights_of(self, seed: int) -> dict[str, Tensor]:
        """Return the weights of all of a seed's networks by name, for a file."""
        members = [(k, self.weights_of(seed, k)) for k in range(self.shape[1])]
        return {f"{k}.{name}": weight for k, named in members for name, weight in named.items()}

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the only seed's weights by those that `all_weights_of` returned."""
        own = self.all_weights_of(0)
        if strange := sorted(own.keys() ^ weights.keys()):
            raise ValueError(f"not the weights of these networks: {', '.join(strange)}")
        for name, weight in own.items():
            check_shape(name, weights[name], weight.shape)
        for name, weight in own.items():
            weight.copy_(weights[name])

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Treat the weights as constants: gradients reach the inputs only."""
        for weight in self._weights:
            weight.requires_grad_(False)
        yield
        for weight in self._weights:
            weight.requires_grad_(True)

    def follow(self, online: "Ensemble", rate: float) -> None:
        """Move the weights towards those of another ensemble: rate * online + (1 - rate) * slow."""
        follow(self._weights, online._weights, rate)

    def clip_gradients(self, bound: float) -> None:
        """Scale the gradient of each network down to a Euclidean norm of at most `bound`."""
        if not self._is_joined:
            for network in self.networks:
                nn.utils.clip_grad_norm_(network.parameters(), bound)
            return
        gradients = [each.grad for each in self._weights if each.grad is not None]
        squares = [each.square().flatten(1).sum(1) for each in gradients]
        norms = torch.stack(squares).sum(0).sqrt()  # [S * K]
        factors = (bound / (norms + 1e-6)).clamp_(max=1)  # as `clip_grad_norm_`
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))

    def squared_norms(self) -> Float[Tensor, " S"]:
        """Return the sum of squares of each seed's weights."""
        weights = [each.detach() for each in self._weights]
        if self._is_joined:
            squares = torch.stack([each.square().flatten(1).sum(1) for each in weights], 1)
        else:
            squares = torch.stack([each.square().sum() for each in weights])
        return _in_order(squares.view(self.shape[0], -1).unbind(1))


def _in_order(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors in one order, whatever their shape: a seed's bits are its own."""
    return functools.reduce(torch.add, terms)


def weight_norms(*ensembles: Ensemble) -> Float[Tensor, " S"]:
    """Return each seed's Euclidean norm over all weights of ensembles; finite while healthy."""
    return _in_order(each.squared_norms() for each in ensembles).sqrt()
