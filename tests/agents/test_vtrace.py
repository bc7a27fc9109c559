# Wrong arguments are passed on purpose.
# pyright: reportArgumentType=false, reportCallIssue=false
"""V-trace against slow re-derivations, and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from agents import impala
from tests.agents.trainings import random_flags


def random_columns(seed: int, steps: int = 9, num_envs: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values = rng.normal(size=(3, steps, num_envs))
    terminations, truncations, valid = random_flags(rng, steps, num_envs)
    assert terminations[:-1].any()
    assert truncations[:-1].any()
    return {
        "log_rhos": log_rhos,
        "discounts": 0.9 * ~terminations,
        "rewards": rewards,
        "values": values,
        "bootstrap_value": rng.normal(size=num_envs),
        "trace_mask": (~(terminations | truncations)).astype(float),
        "valid": valid,
    }


def slow_vtrace(
    columns: dict[str, Any], rho_bar: float, pg_rho_bar: float, c_bar: float, lambda_: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (1) as it is printed: a sum over t of discounted products of c times delta V."""
    rhos, values = np.exp(columns["log_rhos"]), columns["values"]
    rewards, discounts, mask = columns["rewards"], columns["discounts"], columns["trace_mask"]
    steps, num_envs = rhos.shape
    after = np.concatenate([values[1:], columns["bootstrap_value"][None]])
    vs, advantages = np.zeros((2, steps, num_envs))
    for i in range(num_envs):
        for s in range(steps):
            vs[s, i] = values[s, i]
            for t in range(s, steps):
                product = 1.0
                for j in range(s, t):
                    c = lambda_ * min(c_bar, rhos[j, i])
                    product *= discounts[j, i] * c * mask[j, i]
                rho = min(rho_bar, rhos[t, i])
                error = rewards[t, i] + discounts[t, i] * after[t, i] - values[t, i]
                vs[s, i] += product * rho * error
        for s in range(steps):
            whole = s + 1 < steps and mask[s, i] == 1
            value = vs[s + 1, i] if whole else after[s, i]
            target = rewards[s, i] + discounts[s, i] * value
            advantages[s, i] = min(pg_rho_bar, rhos[s, i]) * (target - values[s, i])
    return vs, advantages


def tensors(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(c) for name, c in columns.items() if name != "valid"}


@pytest.mark.parametrize(
    ("rho_bar", "pg_rho_bar", "c_bar", "lambda_"),
    [(1.0, 1.0, 1.0, 1.0), (2.0, 1.5, 0.7, 0.9), (None, None, None, 1.0), (0.5, None, 1.0, 0.0)],
)
def test_vtrace_equals_the_papers_double_sum(
    rho_bar: float | None, pg_rho_bar: float | None, c_bar: float | None, lambda_: float
) -> None:
    """Targets and advantages in float64, terminations and truncations inside the trace."""
    columns = random_columns(0)
    bounds = [math.inf if bound is None else bound for bound in (rho_bar, pg_rho_bar, c_bar)]
    vs, advantages = slow_vtrace(columns, *bounds, lambda_)
    ours = impala.vtrace_from_importance_weights(
        **tensors(columns),
        clip_rho_threshold=rho_bar,
        clip_pg_rho_threshold=pg_rho_bar,
        clip_c_threshold=c_bar,
        lambda_=lambda_,
    )
    np.testing.assert_allclose(ours.vs.numpy(), vs, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(ours.pg_advantages.numpy(), advantages, rtol=1e-11, atol=1e-13)


def test_vtrace_from_logits_is_vtrace_from_their_importance_weights() -> None:
    """Gradients flow through the log-probabilities alone."""
    generator, shape = torch.Generator().manual_seed(0), (5, 4, 2)
    logits = torch.randn(2, *shape, 3, generator=generator, requires_grad=True)
    actions = torch.randint(0, 3, shape, generator=generator)
    rewards, values = torch.randn(2, *shape, generator=generator)
    bootstrap, discounts = torch.randn(shape[1:], generator=generator), torch.full(shape, 0.9)
    mask = torch.rand(shape, generator=generator) > 0.3
    columns = discounts, rewards, values.requires_grad_(), bootstrap, 1.2, 0.8, 0.9, 0.95, mask
    ours = impala.vtrace_from_logits(*logits, actions, *columns)
    taken = torch.distributions.Categorical(logits=logits).log_prob(actions)
    torch.testing.assert_close(ours.behaviour_action_log_probs, taken[0])
    torch.testing.assert_close(ours.target_action_log_probs, taken[1])
    torch.testing.assert_close(ours.log_rhos, taken[1] - taken[0])
    plain = impala.vtrace_from_importance_weights(ours.log_rhos.detach(), *columns)
    assert torch.equal(ours.vs, plain.vs)
    assert torch.equal(ours.pg_advantages, plain.pg_advantages)
    assert not ours.vs.requires_grad
    assert not ours.pg_advantages.requires_grad
    assert ours.target_action_log_probs.requires_grad


LONG = torch.long
WRONG: dict[str, list[Any]] = {
    "behaviour_policy_logits": [torch.zeros(5, 4)],
    "target_policy_logits": [torch.zeros(5, 4, 2), torch.zeros(5, 4)],
    "actions": [torch.zeros(5, 3, dtype=LONG), torch.zeros(5, 4, 1, dtype=LONG), torch.zeros(5, 4)],
    **{name: [torch.zeros(5, 3), torch.zeros(5)] for name in ("rewards", "values", "discounts")},
    "bootstrap_value": [torch.zeros(5, 4), torch.zeros(3)],
    "trace_mask": [torch.zeros(5), torch.zeros(4, 5)],
    **{f"clip_{name}_threshold": [0.0, -1.5] for name in ("rho", "pg_rho", "c")},
    "lambda_": [1.25, -0.5],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    columns = {each: torch.zeros(5, 4) for each in ("discounts", "rewards", "values", "trace_mask")}
    logits = {f"{who}_policy_logits": torch.zeros(5, 4, 3) for who in ("behaviour", "target")}
    right = {**columns, **logits, "bootstrap_value": torch.zeros(4)}
    right["actions"] = torch.zeros(5, 4, dtype=LONG)
    impala.vtrace_from_logits(**right)
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=rf"^{name} must"):
            impala.vtrace_from_logits(**(right | {name: value}))
