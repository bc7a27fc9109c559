"""ACER: every equation against a slow re-derivation, then what training must do."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from agents import acer


def random_flags(generator: np.random.Generator, steps: int, num_envs: int) -> tuple[Any, ...]:
    """Ends of both kinds inside an unroll, and the ignored row after each of them."""
    kinds = generator.choice(3, size=(steps, num_envs), p=[0.6, 0.2, 0.2])
    valid = np.ones((steps, num_envs), dtype=bool)
    for t in range(1, steps):
        valid[t] = ~(valid[t - 1] & (kinds[t - 1] > 0))
        kinds[t][~valid[t]] = 0
    return kinds == 1, kinds == 2, valid


# Retrace


def random_columns(seed: int, steps: int = 9, num_envs: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    rewards, taken_q_values, next_values = rng.normal(size=(3, steps, num_envs))
    terminations, truncations, _ = random_flags(rng, steps, num_envs)
    assert terminations[:-1].any()
    assert truncations[:-1].any()
    return {
        "rewards": rewards,
        "discounts": 0.9 * ~terminations,
        "trace_mask": (~(terminations | truncations)).astype(float),
        "taken_q_values": taken_q_values,
        "next_values": next_values,
        "cs": np.minimum(1.0, np.exp(rng.normal(size=(steps, num_envs)))),
    }


def slow_retrace(columns: dict[str, np.ndarray], t: int, i: int) -> float:
    """Eq. (5) as printed: r + gamma c' [Q_ret' - Q'] + gamma V', one environment at a time.

    No value follows a termination, and nothing passes into the next episode.
    """
    c = {name: column[:, i] for name, column in columns.items()}
    target = c["rewards"][t] + c["discounts"][t] * c["next_values"][t]
    if t + 1 < len(c["rewards"]) and c["trace_mask"][t]:
        error = slow_retrace(columns, t + 1, i) - c["taken_q_values"][t + 1]
        target += c["discounts"][t] * c["cs"][t + 1] * error
    return float(target)


def test_retrace_equals_a_slow_recursion() -> None:
    """With terminations and truncations inside the unroll, float64."""
    columns = random_columns(0)
    ours = acer.retrace(**{name: torch.from_numpy(column) for name, column in columns.items()})
    steps, num_envs = ours.shape
    expected = [[slow_retrace(columns, t, i) for i in range(num_envs)] for t in range(steps)]
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_the_ratio_of_the_later_action_weighs_the_trace() -> None:
    """It is c of t + 1, not of t: 1 + 0.5 * (0 + 0.25 * (8 - 4)); c of t would give 2.5."""
    ours = acer.retrace(
        rewards=column(1.0, 8.0),
        discounts=column(0.5, 0.0),
        trace_mask=column(1.0, 0.0),
        taken_q_values=column(3.0, 4.0),
        next_values=column(0.0, 7.0),
        cs=column(0.75, 0.25),
    )
    assert ours.flatten().tolist() == [1.5, 8.0]


def test_retrace_stops_at_a_truncation_but_the_value_does_not() -> None:
    """A time limit at t=0 hides the reward of 100 but still bootstraps: 1 + 0.9 * 5."""
    ours = acer.retrace(
        column(1.0, 100.0),
        column(0.9, 0.9),
        column(0.0, 1.0),
        column(0.0, 0.0),
        column(5.0, 0.0),
        column(1.0, 1.0),
    )
    assert ours[0].item() == pytest.approx(5.5)


def test_with_values_for_q_and_ratios_of_one_the_target_is_the_n_step_return() -> None:
    """Where Q equals V the sum of corrected errors telescopes, for Q_opc and on-policy data."""
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=5), rng.normal(size=6)
    value, expected = values[5], np.zeros(5)
    for t in reversed(range(5)):
        value = expected[t] = rewards[t] + 0.9 * value
    ones = column(*np.ones(5))
    ours = acer.retrace(
        column(*rewards), 0.9 * ones, ones, column(*values[:5]), column(*values[1:]), ones
    )
    np.testing.assert_allclose(ours[:, 0].numpy(), expected, rtol=1e-12)


# Trust region


@pytest.mark.parametrize("delta", [0.0, 0.1, 1.0])
def test_the_projection_solves_the_quadratic_programme(delta: float) -> None:
    """Minimise |g - z|^2 / 2 subject to k.z <= delta, as a general solver finds it (Eq. 11)."""
    rng = np.random.default_rng(0)
    gradients, kl_gradients = rng.normal(size=(2, 20, 5))
    ours = acer.trust_region(torch.from_numpy(gradients), torch.from_numpy(kl_gradients), delta)
    active = 0
    for g, k, z in zip(gradients, kl_gradients, ours.numpy(), strict=True):
        solution = minimize(
            lambda x, g=g: 0.5 * np.square(x - g).sum(),
            np.zeros(5),
            jac=lambda x, g=g: x - g,
            constraints={
                "type": "ineq",
                "fun": lambda x, k=k: delta - k @ x,
                "jac": lambda x, k=k: -k,
            },
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 200},
        )
        assert solution.success
        np.testing.assert_allclose(z, solution.x, atol=1e-6)
        active += bool(k @ g > delta)
    assert 0 < active < 20


def test_the_projection_keeps_the_bound_and_is_idle_where_it_holds() -> None:
    """The linearised divergence never rises by more than delta; slack gradients keep their bits."""
    generator = torch.Generator().manual_seed(0)
    gradients = 3 * torch.randn(50, 4, 6, generator=generator)
    kl_gradients = torch.randn(50, 4, 6, generator=generator)
    z = acer.trust_region(gradients, kl_gradients, 1.0)
    slack = (kl_gradients * gradients).sum(-1) <= 1.0
    assert 0 < slack.sum() < slack.numel()
    assert torch.equal(z[slack], gradients[slack])
    torch.testing.assert_close(
        (kl_gradients * z).sum(-1)[~slack], torch.ones(int((~slack).sum())), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_the_projection_is_idle_where_the_divergence_is_flat(delta: float) -> None:
    """Right after a start the policy is its own average: no division by a norm of 0."""
    gradients = torch.ones(2, 3)
    assert torch.equal(acer.trust_region(gradients, torch.zeros(2, 3), delta), gradients)
