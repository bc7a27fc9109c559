"""Networks of an ensemble, one by one and in torch's own layers, and what to give networks."""

import torch
from torch import Tensor, nn

from suite.nets.perceptrons import Ensemble


def draw(seed: int, *shape: int) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(ensemble: Ensemble, seed: int = 0, member: int = 0) -> nn.Sequential:
    """Return a copy of one perceptron as `nn.Linear`s with ReLU between them."""
    weights = ensemble.weights_of(seed, member)
    layers: list[nn.Module] = []
    for i in range(len(weights) // 2):
        inputs, outputs = weights[f"weight_{i}"].shape
        layer = nn.Linear(inputs, outputs)
        layer.weight.data = weights[f"weight_{i}"].T.clone()
        layer.bias.data = weights[f"bias_{i}"].clone()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vector(network: nn.Module) -> Tensor:
    """Return a copy of all weights."""
    return torch.cat([each.detach().flatten() for each in network.parameters()])
