"""Actions between -1 and 1: a Gaussian's draws behind a tanh, with their density."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_LOG_NORMALISERS = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)
"""Those of the Gaussian and of cosh: constants of the log-density, for each dimension."""
_tanh_gradient: Any = torch.ops.aten.tanh_backward


def squash(
    means: Float[Tensor, "S B A"], log_stds: Float[Tensor, "S B A"], noise: Float[Tensor, "S B A"]
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B"]]:
    """Return reparametrised actions tanh(mean + std * noise), and log-densities (Appendix C).

    Args:
        means: of the Gaussian before the tanh.
        log_stds: log standard deviations of the same.
        noise: standard normal draws.

    Returns:
        actions in (-1, 1), and log pi(a|s) in nats with respect to [-1, 1]^A.
    """
    return _Squash.apply(means, log_stds, noise)


class _Squash(torch.autograd.Function):
    """`squash` as one node of the graph, with half the operators that autograd would take.

    With u = mean + std * noise, log pi(a|s) is the sum over dimensions of log N(noise) - log std
    - log(1 - tanh(u)^2). The last is -2 log cosh(u), with log cosh(u) = logaddexp(u, -u) - log 2.
    """

    @staticmethod
    def forward(ctx: Any, means: Tensor, log_stds: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        stds = log_stds.exp()
        pre_tanh = torch.addcmul(means, stds, noise)
        actions = pre_tanh.tanh()
        surprisals = torch.addcmul(log_stds, noise, noise, value=0.5)
        surprisals.sub_(torch.logaddexp(pre_tanh, -pre_tanh), alpha=2)
        ctx.save_for_backward(actions, stds, noise)
        return actions, -_LOG_NORMALISERS * means.shape[-1] - surprisals.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (actions, stds, noise), of_actions = ctx.saved_tensors, grad_outputs[0]
        of_log_probs = grad_outputs[1].unsqueeze(-1)
        # d tanh(u) = 1 - tanh(u)^2, and d 2 log cosh(u) = 2 tanh(u)
        of_means = _tanh_gradient(of_actions, actions).addcmul_(of_log_probs, actions, value=2)
        return of_means, (stds * noise).mul_(of_means).sub_(of_log_probs), None
