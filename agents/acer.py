"""Actor-critic with experience replay, ACER (Wang et al. 2017, arXiv:1611.01224), discrete actions.

Retrace judges the actions of rollouts old and new; truncated importance weights with a bias
correction say how the policy should change, and a trust region around an average of past policies
bounds the change. Equation numbers are the paper's.
"""

import torch
from jaxtyping import Float
from torch import Tensor


@torch.no_grad()
def retrace(
    rewards: Float[Tensor, "T N"],
    discounts: Float[Tensor, "T N"],
    trace_mask: Float[Tensor, "T N"],
    taken_q_values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    cs: Float[Tensor, "T N"],
) -> Float[Tensor, "T N"]:
    """Retrace targets of the actions taken (Eq. 5); with `cs` of 1 they are Q_opc (Section 5).

    Args:
        rewards: as learned from.
        discounts: gamma, or 0 where no value follows.
        trace_mask: 1 where the trace passes from t + 1 to t, 0 at any end.
        taken_q_values: Q of the observation and the action taken on it.
        next_values: V of the observation each action led to, before any reset.
        cs: truncated importance ratio of each action; row t + 1 weighs the trace into row t.

    Returns:
        what Q of the actions taken is to predict, in reward units, detached.
    """
    targets = torch.addcmul(rewards, discounts, next_values).unbind(0)
    decays = (discounts * trace_mask)[:-1].unbind(0)
    q_retrace = [targets[-1]]
    for target, decay, c, q in zip(
        targets[-2::-1], decays[::-1], cs[1:].flip(0), taken_q_values[1:].flip(0), strict=True
    ):
        q_retrace.append(torch.addcmul(target, decay * c, q_retrace[-1] - q))
    return torch.stack(q_retrace[::-1])


@torch.no_grad()
def trust_region(
    gradients: Float[Tensor, "*B A"], kl_gradients: Float[Tensor, "*B A"], delta: float
) -> Float[Tensor, "*B A"]:
    """Nearest `z` to each gradient that raises the divergence at most at rate `delta` (Eq. 12).

    Args:
        gradients: of the objective that is maximised, by the policy's statistics.
        kl_gradients: of KL(average policy || policy), by the same statistics.
        delta: bound of `(kl_gradients * z).sum(-1)`, at least 0.

    Returns:
        z: the gradients, less what exceeds the bound, along `kl_gradients`.
    """
    squares = kl_gradients.square().sum(-1, keepdim=True)
    excess = (kl_gradients * gradients).sum(-1, keepdim=True) - delta
    tiny = torch.finfo(squares.dtype).tiny  # where KL is flat nothing exceeds the bound
    return gradients - (excess / squares.clamp_min(tiny)).clamp_min(0) * kl_gradients
