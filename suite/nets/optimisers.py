"""Optimisers on a network's weights as one vector: a few long operations instead of many."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from suite.settings.config import RMSpropConfig

StepSize = float | Float[Tensor, ""]
"""A tensor's may change from replay to replay of a graph."""


class FlatWeights:
    """All weights of a module as one vector; the module's tensors become views of it.

    Parameters keep their order, kernels lie in channels-last memory.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tensors = list(module.parameters())
        self.vector = _joined([tensor.detach() for tensor in self._tensors])
        parts = self.vector.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            if tensor.dim() == 4:
                outputs, inputs, height, width = tensor.shape
                tensor.data = part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
            else:
                tensor.data = part.view(tensor.shape)

    def gradient(self, loss: Tensor) -> Float[Tensor, " P"]:
        """Return the gradient of `loss` with respect to the vector."""
        tensors = self._tensors  # the loss may leave some of them out
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        return _joined(gradients)

    def norm(self) -> float:
        """Return the vector's Euclidean norm; finite while a run is healthy."""
        return torch.linalg.vector_norm(self.vector).item()


@torch.no_grad()
def follow(slow: Iterable[Tensor], online: Iterable[Tensor], rate: float) -> None:
    """Move a network's weights towards another's: rate * online + (1 - rate) * slow."""
    for weight, target in zip(slow, online, strict=True):
        weight.lerp_(target, rate)


def _joined(tensors: Sequence[Tensor]) -> Float[Tensor, " P"]:
    """Return tensors as one vector, with convolution kernels in channels-last order."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


class Optimiser(ABC):
    """Makes steps against gradients, scaled by averages of squared gradients."""

    NOT_SAVED = ("weights", "_divisor")
    """What a checkpoint leaves out: the weights are the network's, a step sets the divisor."""

    def __init__(self, weights: FlatWeights, initial_average: float) -> None:
        self.weights = weights
        self.square_averages = torch.full_like(weights.vector, initial_average)
        self._divisor = torch.empty_like(weights.vector)

    def minimise(
        self, loss: Tensor, learning_rate: StepSize, max_gradient_norm: float | None = None
    ) -> Float[Tensor, ""]:
        """Make one step against the gradient of `loss`.

        Args:
            loss: a scalar; call no other backward pass on it.
            learning_rate: step size.
            max_gradient_norm: larger gradients are scaled down to this norm; None: no limit.

        Returns:
            the gradient's norm before it was scaled.
        """
        gradient = self.weights.gradient(loss)
        norm = torch.linalg.vector_norm(gradient)
        if max_gradient_norm is not None:
            gradient.mul_((max_gradient_norm / norm).clamp_(max=1.0))
        self.step(gradient, learning_rate)
        return norm

    @abstractmethod
    def step(self, gradient: Float[Tensor, " P"], learning_rate: StepSize) -> None:
        """Change the weights against a gradient."""

    def _descend(self, direction: Float[Tensor, " P"], step_size: StepSize) -> None:
        """Change the weights by `step_size * direction / divisor`.

        On a CPU a tensor as step size gives the same bits.
        """
        if isinstance(step_size, Tensor):
            direction, step_size = direction * step_size, 1.0
        self.weights.vector.addcdiv_(direction, self._divisor, value=-step_size)


class RMSprop(Optimiser):
    """RMSprop (Hinton 2012, Lecture 6e), without momentum and not centred, in its published forms.

    TensorFlow's divides by sqrt(average + epsilon), with averages that start at 1, torch's by
    sqrt(average) + epsilon with averages that start at 0; ChainerRL's has epsilon in the root and
    averages that start at 0.
    """

    def __init__(self, weights: FlatWeights, config: RMSpropConfig) -> None:
        super().__init__(weights, config.rmsprop_initial_average)
        self._decay, self._epsilon = config.rmsprop_decay, config.rmsprop_epsilon
        self._epsilon_in_root = config.rmsprop_epsilon_in_root

    def step(self, gradient: Float[Tensor, " P"], learning_rate: StepSize) -> None:
        """Change the weights against a gradient."""
        averages, divisor = self.square_averages, self._divisor
        averages.mul_(self._decay).addcmul_(gradient, gradient, value=1 - self._decay)
        if self._epsilon_in_root:
            torch.add(averages, self._epsilon, out=divisor).sqrt_()
        else:
            torch.sqrt(averages, out=divisor).add_(self._epsilon)
        self._descend(gradient, learning_rate)


class Adam(Optimiser):
    """Adam (arXiv:1412.6980, Algorithm 1) with its authors' decays, 0.9 and 0.999."""

    def __init__(self, weights: FlatWeights, epsilon: float = 1e-8) -> None:
        super().__init__(weights, initial_average=0.0)
        self._epsilon = epsilon
        self._averages = torch.zeros_like(weights.vector)
        self._num_steps = torch.zeros((), dtype=torch.float64, device=weights.vector.device)

    def step(self, gradient: Float[Tensor, " P"], learning_rate: StepSize) -> None:
        """Change the weights against a gradient."""
        self._num_steps += 1
        self._averages.lerp_(gradient, 0.1)
        self.square_averages.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        unbiased = (1 - 0.999**self._num_steps).sqrt()
        torch.sqrt(self.square_averages, out=self._divisor).div_(unbiased).add_(self._epsilon)
        self._descend(self._averages, learning_rate / (1 - 0.9**self._num_steps))
