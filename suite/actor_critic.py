"""What actor-critics share: advantages, and log-probabilities and entropies of actions."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from suite.base.errors import require
from suite.nets.moments import DeviceMoments
from suite.unrolls import UnrollBatch


def gae(
    rewards: Float[Tensor, "T N"],
    discounts: Float[Tensor, "T N"],
    trace_mask: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    gae_lambda: float,
) -> Float[Tensor, "T N"]:
    """Return generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, Eq. 16).

    With `gae_lambda` 1 they are n-step returns minus values (arXiv:1602.01783, Algorithm S3).

    Args:
        rewards: as learned from.
        discounts: gamma, or 0 where no value follows.
        trace_mask: 1 where the trace passes from t + 1 to t, 0 at any end.
        values: V of the observation acted on.
        next_values: V of the observation each action led to, before any reset.
        gae_lambda: trace decay in [0, 1].

    Returns:
        advantages in reward units.

    Raises:
        ValueError: if `gae_lambda` is outside [0, 1].
    """
    require(0 <= gae_lambda <= 1, "gae_lambda must be in [0, 1]", gae_lambda)
    errors = torch.addcmul(rewards - values, discounts, next_values).unbind(0)
    decays = (gae_lambda * discounts * trace_mask).unbind(0)
    advantages = [errors[-1]]
    for error, decay in zip(errors[-2::-1], decays[-2::-1], strict=True):
        advantages.append(torch.addcmul(error, decay, advantages[-1]))
    return torch.stack(advantages[::-1])


def advantages_and_returns(
    batch: UnrollBatch,
    head_values: Float[Tensor, "T1 N"],
    gae_lambda: float,
    moments: DeviceMoments | None,
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return advantages in reward units, and returns in the units of the value head.

    Args:
        batch: an unroll.
        head_values: V of its observations, also of the one after it, in the units of the head.
        gae_lambda: trace decay in [0, 1].
        moments: statistics of the returns so far, whose deviation is the head's unit; this unroll's
            returns then enter them (Tianshou). None: the unit is that of rewards.
    """
    unit = None if moments is None else moments.std()
    values = head_values if unit is None else head_values * unit
    advantages = gae(
        batch.rewards, batch.discounts, batch.trace_mask, values[:-1], values[1:], gae_lambda
    )
    returns = advantages + values[:-1]
    if moments is not None:
        moments.add(returns, batch.weights)
    return advantages, returns if unit is None else returns / unit


def categorical(
    logits: Float[Tensor, "T N A"], actions: Int[Tensor, "T N"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a categorical policy, nats."""
    log_probs = torch.log_softmax(logits, -1)
    taken = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return taken, -(log_probs.exp() * log_probs).sum(-1)


def gaussian(
    means: Float[Tensor, "T N A"], log_stds: Float[Tensor, " A"], actions: Float[Tensor, "T N A"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a diagonal Gaussian policy, nats."""
    standardised = (actions - means) * torch.exp(-log_stds)
    dimensions, log_det = means.shape[-1], log_stds.sum()
    half_log_2_pi = 0.5 * math.log(2 * math.pi)
    log_probs = -0.5 * standardised.square().sum(-1) - log_det - dimensions * half_log_2_pi
    entropies = (log_det + dimensions * (0.5 + half_log_2_pi)).expand_as(log_probs)
    return log_probs, entropies


def log_probs_and_entropies(
    outputs: Float[Tensor, "T N A"], log_stds: Float[Tensor, " A"] | None, actions: Tensor
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s), summed over dimensions, and the entropies of either kind of policy.

    Args:
        outputs: logits, or means of continuous actions.
        log_stds: logarithms of continuous actions' deviations; None: actions are discrete.
        actions: those taken, `[T, N]` int64, or `[T, N, A]` before the environment clips them.
    """
    if log_stds is None:
        return categorical(outputs, actions)
    return gaussian(outputs, log_stds, actions)
