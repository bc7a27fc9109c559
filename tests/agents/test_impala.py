# Wrong arguments are passed on purpose.
# pyright: reportArgumentType=false, reportCallIssue=false
"""IMPALA: V-trace against slow re-derivations, then what acting beside learning must keep."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import agents
from agents import a2c, impala
from reproduce.plan.make import command, make_plan
from suite.base.errors import UsageError
from suite.collector import Collector, Experience
from suite.envs.vector_env import Spaces, Step, VectorEnv
from suite.record.recorder import Recorder
from suite.unrolls import Transitions, Unroll
from tests.scripted import ScriptedEnv
from tests.slow_lstm import slow_unroll

CPU = torch.device("cpu")
TINY = impala.Config(
    task="CartPole-v1",
    device="cpu",
    env_steps=480,
    num_envs=4,
    unroll_length=5,
    learning_rate=3e-3,
    initialisation="orthogonal",
    policy_head_gain=1.0,
    hidden_sizes=(16, 16),
    evaluation_rule="sampled",
    evaluation_interval=200,
    evaluation_episodes=2,
    log_interval=100,
)
SWING = replace(
    TINY,
    task="Pendulum-v1",
    num_envs=2,
    env_steps=450,
    evaluation_interval=450,
    evaluation_episodes=1,
)
CONTROL, SWINGING = Spaces((4,), 3), Spaces((4,), 2, (-1.0, -1.0), (1.0, 1.0))
"""Spaces with three discrete actions, and with two continuous dimensions."""
RECURRENT = replace(TINY, lstm_size=6, num_minibatches=2)


def train(config: impala.Config, directory: Path) -> tuple[impala.Learner, Recorder]:
    recorder = Recorder(directory, {"agent": "impala", "task": config.task}, config.seeds)
    learner = impala.train(config, recorder)
    recorder.finish()
    return learner, recorder


def weights(learner: impala.Learner | a2c.Learner) -> Tensor:
    return learner.optimiser.weights.vector


def table(recorder: Recorder, name: str) -> pd.DataFrame:
    return pd.read_csv(recorder.seed_directories[0] / name)


def random_flags(generator: np.random.Generator, steps: int, num_envs: int) -> tuple[Any, ...]:
    """Ends of both kinds inside an unroll, and the ignored row after each of them."""
    kinds = generator.choice(3, size=(steps, num_envs), p=[0.6, 0.2, 0.2])
    valid = np.ones((steps, num_envs), dtype=bool)
    for t in range(1, steps):
        valid[t] = ~(valid[t - 1] & (kinds[t - 1] > 0))
        kinds[t][~valid[t]] = 0
    return kinds == 1, kinds == 2, valid


# V-trace


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


def test_a_trace_mask_of_ones_is_no_mask_and_may_be_boolean() -> None:
    columns = tensors(random_columns(1))
    mask = columns.pop("trace_mask")
    for ours, theirs in (
        (impala.vtrace_from_importance_weights(**columns), torch.ones_like(mask)),
        (impala.vtrace_from_importance_weights(**columns, trace_mask=mask), mask.bool()),
    ):
        again = impala.vtrace_from_importance_weights(**columns, trace_mask=theirs)
        assert torch.equal(ours.vs, again.vs)
        assert torch.equal(ours.pg_advantages, again.pg_advantages)


def test_on_policy_targets_are_n_step_bellman_targets() -> None:
    """With pi = mu and all thresholds 1: sum of discounted rewards plus the last value."""
    columns = random_columns(2)
    columns["log_rhos"][:] = 0.0
    columns["trace_mask"][:] = 1.0
    steps = len(columns["rewards"])
    expected, value = np.zeros_like(columns["rewards"]), columns["bootstrap_value"]
    for t in reversed(range(steps)):
        value = columns["rewards"][t] + columns["discounts"][t] * value
        expected[t] = value
    ours = impala.vtrace_from_importance_weights(**tensors(columns))
    np.testing.assert_allclose(ours.vs.numpy(), expected, rtol=1e-12)
    advantages = expected - columns["values"]
    np.testing.assert_allclose(ours.pg_advantages.numpy(), advantages, rtol=1e-10, atol=1e-13)


def test_without_thresholds_targets_are_per_decision_importance_weighted_returns() -> None:
    """With V = 0 inside: sum of gamma^k (rho_s ... rho_{s+k}) r, plus the weighted last value."""
    columns = random_columns(3)
    columns["values"][:] = 0.0
    columns["trace_mask"][:] = 1.0
    rhos, discounts = np.exp(columns["log_rhos"]), columns["discounts"]
    steps, num_envs = rhos.shape
    expected = np.zeros((steps, num_envs))
    for s in range(steps):
        weight = np.ones(num_envs)
        for t in range(s, steps):
            weight = weight * rhos[t]
            expected[s] += weight * columns["rewards"][t]
            weight = weight * discounts[t]
        expected[s] += weight * columns["bootstrap_value"]
    ours = impala.vtrace_from_importance_weights(
        **tensors(columns),
        clip_rho_threshold=None,
        clip_pg_rho_threshold=None,
        clip_c_threshold=None,
    )
    np.testing.assert_allclose(ours.vs.numpy(), expected, rtol=1e-11, atol=1e-13)


def test_the_trace_stops_at_a_truncation_but_the_value_does_not() -> None:
    """A time limit at t=0 hides the reward of 100 at t=2 but bootstraps: 1 + 0.9 * 5."""
    rewards, values = torch.tensor([[1.0], [0.0], [100.0]]), torch.tensor([[2.0], [5.0], [0.0]])
    ours = impala.vtrace_from_importance_weights(
        torch.zeros(3, 1),
        torch.full((3, 1), 0.9),
        rewards,
        values,
        torch.zeros(1),
        trace_mask=torch.tensor([[0.0], [1.0], [1.0]]),
    )
    assert ours.vs[0].item() == pytest.approx(5.5)
    assert ours.pg_advantages[0].item() == pytest.approx(5.5 - 2.0)


def test_further_dimensions_are_computed_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    log_rhos, rewards, values = torch.randn(3, 5, 4, 2, 3, generator=generator)
    mask = (torch.rand(5, 4, 2, 3, generator=generator) > 0.3).float()
    bootstrap, discounts = torch.randn(4, 2, 3, generator=generator), 0.9 * mask
    whole = impala.vtrace_from_importance_weights(
        log_rhos, discounts, rewards, values, bootstrap, trace_mask=mask
    )
    for i in range(2):
        for j in range(3):
            part = impala.vtrace_from_importance_weights(
                *(c[..., i, j] for c in (log_rhos, discounts, rewards, values, bootstrap)),
                trace_mask=mask[..., i, j],
            )
            assert torch.equal(whole.vs[..., i, j], part.vs)
            assert torch.equal(whole.pg_advantages[..., i, j], part.pg_advantages)


@pytest.mark.parametrize("trailing", [(), (2,)])
def test_vtrace_from_logits_is_vtrace_from_their_importance_weights(
    trailing: tuple[int, ...],
) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (5, 4, *trailing)
    behaviour, target = torch.randn(2, *shape, 3, generator=generator)
    actions = torch.randint(0, 3, shape, generator=generator)
    rewards, values = torch.randn(2, *shape, generator=generator)
    bootstrap, discounts = torch.randn(shape[1:], generator=generator), torch.full(shape, 0.9)
    mask = torch.rand(shape, generator=generator) > 0.3
    settings = (1.2, 0.8, 0.9, 0.95, mask)
    ours = impala.vtrace_from_logits(
        behaviour, target, actions, discounts, rewards, values, bootstrap, *settings
    )
    taken = [
        torch.distributions.Categorical(logits=logits).log_prob(actions)
        for logits in (behaviour, target)
    ]
    torch.testing.assert_close(ours.behaviour_action_log_probs, taken[0])
    torch.testing.assert_close(ours.target_action_log_probs, taken[1])
    torch.testing.assert_close(ours.log_rhos, taken[1] - taken[0])
    plain = impala.vtrace_from_importance_weights(
        ours.log_rhos, discounts, rewards, values, bootstrap, *settings
    )
    assert torch.equal(ours.vs, plain.vs)
    assert torch.equal(ours.pg_advantages, plain.pg_advantages)


def test_no_gradient_flows_through_targets_but_through_log_probabilities() -> None:
    logits = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    behaviour, target = (part.clone().requires_grad_() for part in logits)
    rewards, values = torch.zeros(4, 3), torch.ones(4, 3, requires_grad=True)
    bootstrap = torch.ones(3, requires_grad=True)
    actions, discounts = torch.zeros(4, 3, dtype=torch.long), torch.full((4, 3), 0.9)
    ours = impala.vtrace_from_logits(
        behaviour, target, actions, discounts, rewards, values, bootstrap
    )
    assert not ours.vs.requires_grad
    assert not ours.pg_advantages.requires_grad
    (gradient,) = torch.autograd.grad(ours.target_action_log_probs.sum(), target)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[("log_rhos", (5,)), ("log_rhos", (0, 4)), ("discounts", (5, 3)), ("rewards", (4, 4))],
        *[("rewards", (5,)), ("values", (5, 4, 1)), ("bootstrap_value", (5, 4))],
        *[("bootstrap_value", (3,)), ("trace_mask", (5,)), ("trace_mask", (4, 5))],
    ],
)
def test_a_wrong_shape_is_refused_by_name(name: str, shape: tuple[int, ...]) -> None:
    names = ("log_rhos", "discounts", "rewards", "values", "trace_mask")
    arguments: dict[str, Any] = {argument: torch.zeros(5, 4) for argument in names}
    arguments["bootstrap_value"] = torch.zeros(4)
    impala.vtrace_from_importance_weights(**arguments)
    arguments[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=rf"^{name} must") as error:
        impala.vtrace_from_importance_weights(**arguments)
    assert str([*shape]) in str(error.value) or f"not {len(shape)}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("behaviour_policy_logits", torch.zeros(5, 4)),
        ("target_policy_logits", torch.zeros(5, 4, 2)),
        ("target_policy_logits", torch.zeros(5, 4)),
        ("actions", torch.zeros(5, 3, dtype=torch.long)),
        ("actions", torch.zeros(5, 4, 1, dtype=torch.long)),
        ("actions", torch.zeros(5, 4)),
        ("rewards", torch.zeros(5, 3)),
    ],
)
def test_wrong_logits_and_actions_are_refused_by_name(name: str, value: Tensor) -> None:
    names = ("discounts", "rewards", "values")
    arguments: dict[str, Any] = {argument: torch.zeros(5, 4) for argument in names}
    arguments |= {f"{who}_policy_logits": torch.zeros(5, 4, 3) for who in ("behaviour", "target")}
    arguments |= {"bootstrap_value": torch.zeros(4)}
    arguments |= {"actions": torch.zeros(5, 4, dtype=torch.long), name: value}
    with pytest.raises(ValueError, match=rf"^{name} must"):
        impala.vtrace_from_logits(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("clip_rho_threshold", 0.0), ("clip_pg_rho_threshold", -1.5)],
        *[("clip_c_threshold", -2.0), ("lambda_", 1.25), ("lambda_", -0.5)],
    ],
)
def test_thresholds_that_make_no_sense_are_refused(name: str, value: float) -> None:
    columns = tensors(random_columns(0))
    with pytest.raises(ValueError, match=name) as error:
        impala.vtrace_from_importance_weights(**columns, **{name: value})
    assert str(value) in str(error.value)


# Losses and updates


def test_losses_equal_a_slow_float64_derivation() -> None:
    """Sums over rows with their weights; any sign error shows in its own term."""
    rng = np.random.default_rng(0)
    log_probs, entropies, values, advantages, vs = columns = rng.normal(size=(5, 4, 3))
    weights = rng.uniform(size=(4, 3)) * (rng.uniform(size=(4, 3)) < 0.7)
    policy = value = entropy = 0.0
    for t in range(4):
        for i in range(3):
            policy -= weights[t, i] * log_probs[t, i] * advantages[t, i]
            value += weights[t, i] * (vs[t, i] - values[t, i]) ** 2 / 2
            entropy += weights[t, i] * entropies[t, i]
    first, second, third, pg_advantages, targets = (torch.from_numpy(c) for c in columns)
    returns = impala.VTraceReturns(targets, pg_advantages)
    parts = impala.losses(first, second, third, returns, torch.from_numpy(weights))
    np.testing.assert_allclose([float(p) for p in parts], [policy, value, entropy], rtol=1e-12)
    config = replace(TINY, value_coef=0.3, entropy_coef=0.2)
    assert float(parts.total(config)) == pytest.approx(policy + 0.3 * value - 0.2 * entropy)


def test_each_term_of_the_loss_pulls_its_own_way() -> None:
    """Descent makes a good action likelier, the value error smaller, the policy more random."""
    logits = torch.randn(1, 1, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    values = torch.zeros(1, 1, requires_grad=True)
    one, actions = torch.ones(1, 1), torch.tensor([[1]])

    def gradients(value_coef: float, entropy_coef: float, advantage: float) -> list[Tensor]:
        log_probs, entropies = impala.categorical(logits, actions)
        returns = impala.VTraceReturns(3 * one, advantage * one)
        parts = impala.losses(log_probs, entropies, values, returns, one)
        config = replace(TINY, value_coef=value_coef, entropy_coef=entropy_coef)
        return list(torch.autograd.grad(parts.total(config), [logits, values]))

    assert gradients(0.0, 0.0, 1.0)[0][0, 0, 1] < 0  # a gradient step raises this logit
    assert gradients(0.0, 0.0, -1.0)[0][0, 0, 1] > 0
    assert gradients(0.5, 0.0, 0.0)[1].item() == pytest.approx(-1.5)
    spread = gradients(0.0, 1.0, 0.0)[0][0, 0]
    assert spread[logits[0, 0].argmax()] > 0 > spread[logits[0, 0].argmin()]


def random_unroll(
    config: impala.Config, spaces: Spaces, seed: int = 0
) -> tuple[Experience, tuple[Any, ...]]:
    steps, num_envs = config.unroll_length, config.num_envs
    rng, unroll = (
        np.random.default_rng(seed),
        Unroll(spaces, num_envs, steps, CPU, keeps_outputs=True),
    )
    collected = Experience(unroll, torch.zeros(num_envs, 0))
    for t in range(steps + 1):
        unroll.put_obs(t, rng.normal(size=(num_envs, *spaces.obs_shape)).astype(np.float32))
    unroll.behaviour[:] = torch.from_numpy(rng.normal(size=unroll.behaviour.shape))
    if spaces.continuous:
        collected.log_stds = torch.zeros(spaces.num_outputs)
        unroll.actions[:] = torch.from_numpy(rng.normal(size=unroll.actions.shape))
    else:
        draws = rng.integers(0, spaces.num_outputs, (steps, num_envs))
        unroll.actions[:] = torch.from_numpy(draws)
    outcomes = unroll.outcomes
    outcomes.rewards[:] = rng.normal(size=(steps, num_envs))
    flags = random_flags(rng, steps, num_envs)
    outcomes.terminations[:], outcomes.truncations[:], outcomes.valid[:] = flags
    return collected, flags


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("lstm_inputs", [None, "features", "action_and_reward"])
def test_gradients_equal_finite_differences_with_targets_held(
    spaces: Spaces, lstm_inputs: Any
) -> None:
    """The update's own gradient, along random directions in the space of all weights, float64.

    With an LSTM, the loss differentiated goes through every episode of the unroll alone.
    """
    config = replace(TINY, unroll_length=6, entropy_coef=0.1, loss_reduction="mean")
    if lstm_inputs is not None:
        config = replace(config, lstm_size=5, lstm_inputs=lstm_inputs)
    learner = impala.make_learner(config, spaces, CPU)
    network = learner.network.double()
    batch = impala.transitions(random_unroll(config, spaces)[0], config)
    batch = Transitions(*(c.double() if c.is_floating_point() else c for c in batch))
    generator = torch.Generator().manual_seed(2)
    size = network.actor.begin(0).shape[1]
    memory = torch.randn(4, size, generator=generator, dtype=torch.float64)
    inputs_of = spaces if lstm_inputs == "action_and_reward" else None
    held: list[impala.VTraceReturns] = []

    def loss() -> Tensor:
        """The loss as `update` has it, its targets those of the first call."""
        if lstm_inputs is None:
            heads = network.actor(batch.obs.flatten(0, 1)).unflatten(0, (7, 4))
        else:
            heads = slow_unroll(network.actor, inputs_of, memory, batch)
        outputs, values = heads[:-1, :, :-1], heads[:, :, -1]
        log_probs, entropies = impala.evaluate_actions(outputs, network.log_stds, batch.actions)
        if not held:
            held.append(
                impala.vtrace_from_importance_weights(
                    log_probs - batch.behaviour,
                    *(batch.discounts, batch.rewards, values[:-1], values[-1]),
                    trace_mask=batch.trace_mask,
                )
            )
        weights = batch.valid / batch.valid.sum()
        return impala.losses(log_probs, entropies, values[:-1], held[0], weights).total(config)

    seen: list[Tensor] = []

    class Spy:
        """Stands in for the optimiser: keeps the gradient and makes no step."""

        def minimise(self, total: Tensor, learning_rate: float, bound: float | None) -> Tensor:
            seen.extend(torch.autograd.grad(total, list(network.parameters())))
            return torch.cat([part.flatten() for part in seen]).norm()

    learner.optimiser = Spy()  # type: ignore[assignment]
    loss()
    impala.update(learner, config, batch, 1e-3, memory)
    parameters = list(network.parameters())
    for _ in range(4):
        directions = [
            torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters
        ]
        expected = sum(float((g * d).sum()) for g, d in zip(seen, directions, strict=True))
        ends = []
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                for p, direction in zip(parameters, directions, strict=True):
                    p += step * direction
            ends.append(float(loss().detach()))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_on_policy_an_update_is_that_of_a2c() -> None:
    """The same weights, rows and coefficients: means, and 1.0 x half a square is 0.5 x a square."""
    shared: dict[str, Any] = {
        "task": "CartPole-v1",
        "num_envs": 4,
        "hidden_sizes": (16, 16),
        "gamma": 0.9,
    }
    shared |= {"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0}
    shared |= {"max_gradient_norm": 0.5, "entropy_coef": 0.02, "unroll_length": 8}
    theirs_config = a2c.Config(**shared, shared_trunk=True)
    config = impala.Config(
        **shared,
        value_coef=1.0,
        loss_reduction="mean",
        rmsprop_epsilon=1e-5,
        initialisation="orthogonal",
    )
    learner = impala.make_learner(config, CONTROL, CPU)
    theirs = a2c.make_learner(theirs_config, CONTROL, CPU)
    assert torch.equal(weights(learner), weights(theirs))
    collected, _ = random_unroll(config, CONTROL)
    unroll = collected.unroll
    with torch.no_grad():
        outputs, _ = learner.network(unroll.obs[:-1].flatten(0, 1))
        unroll.behaviour[:] = outputs.unflatten(0, (8, 4))  # on policy
    batch = unroll.transitions(config.gamma, config.time_limit_is_terminal)
    impala.update(learner, config, impala.transitions(collected, config), 1e-2)
    a2c.update(theirs, theirs_config, batch, 1e-2)
    torch.testing.assert_close(weights(learner), weights(theirs), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("loss_reduction", ["sum", "mean"])
def test_ignored_rows_change_nothing(spaces: Spaces, loss_reduction: Any) -> None:
    """Everything recorded in them may be anything: weights and diagnostics keep their bits."""
    config = replace(TINY, unroll_length=8, loss_reduction=loss_reduction)
    outcomes = []
    for scramble in (False, True):
        learner = impala.make_learner(config, spaces, CPU)
        collected, (terminations, _, valid) = random_unroll(config, spaces, 5)
        unroll, outcome = collected.unroll, collected.unroll.outcomes
        assert (~valid).sum() >= 4
        if scramble:
            ignored = torch.from_numpy(~valid)
            outcome.rewards[~valid] = 1e3
            unroll.actions[ignored] = 1
            unroll.behaviour[ignored] = 30 * torch.randn_like(unroll.behaviour[ignored])
            outcome.terminations[~valid] = True
            after_termination = np.zeros_like(valid)
            after_termination[1:] = terminations[:-1]  # nothing bootstraps from this observation
            unroll.obs[:-1][torch.from_numpy(after_termination)] = 7.0
        diagnostics = impala.update(learner, config, impala.transitions(collected, config), 1e-2)
        outcomes.append((weights(learner), diagnostics))
    for plain, scrambled in zip(*outcomes, strict=True):
        torch.testing.assert_close(plain, scrambled, atol=1e-6, rtol=1e-5)


def test_diagnostics_are_those_of_valid_rows() -> None:
    """Mean and largest rho, share above the clip, entropy and explained variance, by hand."""
    config = replace(TINY, unroll_length=8, clip_rho_threshold=0.9)
    learner = impala.make_learner(config, CONTROL, CPU)
    collected, (_, _, valid) = random_unroll(config, CONTROL)
    batch = impala.transitions(collected, config)
    with torch.no_grad():
        outputs, values = learner.network(batch.obs.flatten(0, 1))
    policy = torch.distributions.Categorical(logits=outputs.unflatten(0, (9, 4))[:-1])
    log_rhos = policy.log_prob(batch.actions) - batch.behaviour
    rhos = log_rhos.exp().numpy()[valid]
    values = values.unflatten(0, (9, 4))
    returns = impala.vtrace_from_importance_weights(
        log_rhos,
        *(batch.discounts, batch.rewards, values[:-1], values[-1]),
        clip_rho_threshold=0.9,
        trace_mask=batch.trace_mask,
    )
    vs = returns.vs.numpy()[valid]
    residuals = vs - values[:-1].numpy()[valid]
    row = impala.update(learner, config, batch, 1e-2)
    columns = {
        name: column.item()
        for name, column in impala.describe({"update": row[None].numpy()}, 0.1, 3).items()
    }
    assert columns["mean_rho"] == pytest.approx(rhos.mean(), rel=1e-5)
    assert columns["max_rho"] == pytest.approx(rhos.max(), rel=1e-5)
    assert 0 < columns["clipped_share"] == pytest.approx((rhos > 0.9).mean(), rel=1e-5)
    assert columns["entropy"] == pytest.approx(policy.entropy().numpy()[valid].mean(), rel=1e-5)
    explained = 1 - residuals.var() / vs.var()
    assert columns["explained_variance"] == pytest.approx(explained, rel=1e-3)
    assert (columns["policy_lag"], columns["learning_rate"]) == (3, 0.1)


def test_minibatches_share_out_the_environments() -> None:
    """Each environment is in exactly one, whole in time; sums of gradients are the whole's."""
    config = replace(TINY, unroll_length=6)
    batch = impala.transitions(random_unroll(config, CONTROL)[0], config)
    parts = batch.minibatches(2)
    for name, column in batch._asdict().items():
        joined = torch.cat([getattr(part, name) for part in parts], 1)
        assert torch.equal(joined, column)
    learner = impala.make_learner(replace(config, max_gradient_norm=None), CONTROL, CPU)
    gradients: list[Tensor] = []
    learner.optimiser.step = lambda gradient, _: gradients.append(gradient)  # type: ignore
    for part in (*parts, batch):
        impala.update(learner, config, part, 1e-3)
    torch.testing.assert_close(gradients[0] + gradients[1], gradients[2], atol=1e-5, rtol=1e-4)


# Networks


@pytest.mark.parametrize("scheme", ["orthogonal", "cleanba"])
def test_dense_layers_are_orthogonal_with_gains_of_their_own(scheme: Any) -> None:
    """Cleanba's kernels alone are flax's; gains are those of each head."""
    config = replace(TINY, initialisation=scheme, policy_head_gain=0.01, value_head_gain=0.7)
    network = impala.make_learner(config, CONTROL, CPU).network
    first = network.actor.weights[0].detach()
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(4), atol=1e-5, rtol=0)
    norms = network.actor.weights[-1].detach().norm(dim=0)
    np.testing.assert_allclose(norms, [0.01, 0.01, 0.01, 0.7], rtol=1e-5)
    frames = impala.make_learner(replace(config, hidden_gain=1.0), Spaces((4, 84, 84), 3), CPU)
    kernel = frames.network.actor.kernels[0].detach()
    gram = kernel.flatten(1) @ kernel.flatten(1).T
    assert torch.allclose(gram, torch.eye(16), atol=1e-5) == (scheme == "orthogonal")


@pytest.mark.parametrize(
    ("convolutions", "num_kernels", "features", "width"),
    [
        ("shallow", 2, 9 * 9 * 32, 256),
        ("deep", 15, 11 * 11 * 32, 256),
        ("nature", 3, 7 * 7 * 64, 512),
        ("rllib", 2, 11 * 11 * 32, 256),
    ],
)
def test_frames_go_through_the_layers_of_their_source(
    convolutions: Any, num_kernels: int, features: int, width: int
) -> None:
    """The tables, not what they mean: that is tested where the layers are."""
    config = replace(TINY, convolutions=convolutions)
    trunk = impala.make_learner(config, Spaces((4, 84, 84), 6), CPU).network.actor
    assert len(trunk.kernels) == num_kernels
    assert trunk.weights[0].shape == (features, width)


def test_log_probabilities_of_continuous_actions_are_summed() -> None:
    generator = torch.Generator().manual_seed(0)
    means, draws = torch.randn(2, 3, 2, 4, generator=generator)
    log_stds = torch.tensor([-1.0, 0.0, 0.5, 0.2])
    normal = torch.distributions.Normal(means, log_stds.exp().expand_as(means))
    log_probs, entropies = impala.evaluate_actions(means, log_stds, draws)
    torch.testing.assert_close(log_probs, normal.log_prob(draws).sum(-1))
    torch.testing.assert_close(entropies, normal.entropy().sum(-1))


def test_drawn_actions_have_the_policys_probabilities() -> None:
    outputs = torch.tensor([[0.3, -1.0, 1.2]]).expand(20_000, 3)
    network = impala.make_learner(TINY, CONTROL, CPU).network
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    shares = torch.bincount(network.act(outputs, noise), minlength=3) / 20_000
    torch.testing.assert_close(shares, outputs[0].softmax(-1), atol=0.015, rtol=0)
    network = impala.make_learner(TINY, SWINGING, CPU).network
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    assert network.log_stds is not None
    with torch.no_grad():
        network.log_stds.copy_(torch.tensor([-0.7, 0.1]))
        actions = network.act(outputs[:, :2], noise)
    torch.testing.assert_close(
        actions.std(0), torch.tensor([-0.7, 0.1]).exp(), atol=0.01, rtol=0.01
    )
    torch.testing.assert_close(actions.mean(0), outputs[0, :2], atol=0.02, rtol=0)


# Acting beside learning


class Trace:
    """Keeps, for each unroll learned, what the learner and the collector had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[list[Tensor]] = []
        """The learner's weights before each unroll."""
        self.unrolls: list[tuple[Tensor, Tensor]] = []
        """Observations and the acting policy's outputs of each unroll."""
        self.rhos: list[float] = []
        update, transitions = impala.update, impala.transitions

        def read(collected: Experience, config: impala.Config) -> Transitions:
            self.unrolls.append((collected.unroll.obs.clone(), collected.unroll.behaviour.clone()))
            return transitions(collected, config)

        def traced(learner: impala.Learner, *arguments: Any) -> Tensor:
            parameters = learner.network.parameters()
            self.weights.append([p.detach().clone() for p in parameters])
            row = update(learner, *arguments)
            self.rhos.append(row[impala.METRICS.index("max_rho")].item())
            return row

        monkeypatch.setattr(impala, "transitions", read)
        monkeypatch.setattr(impala, "update", traced)


@pytest.mark.parametrize("policy_lag", [0, 1, 3])
def test_the_lag_is_exactly_what_is_asked(
    policy_lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unroll k was collected with the weights after k - lag unrolls, bit by bit in its outputs."""
    trace = Trace(monkeypatch)
    _, recorder = train(replace(TINY, policy_lag=policy_lag), tmp_path)
    count = len(trace.unrolls)
    assert count > 20
    network = impala.make_network(TINY, Spaces((4,), 2), CPU)
    for k in range(count):
        matches = []
        for version in (k - policy_lag, k - policy_lag + 1):
            with torch.no_grad():
                old = trace.weights[min(max(version, 0), count - 1)]
                for own, weight in zip(network.parameters(), old, strict=True):
                    own.copy_(weight)
                obs, outputs = trace.unrolls[k]
                again = torch.stack([network(row)[0] for row in obs[:-1]])
            matches.append(torch.equal(again, outputs))
        assert matches[0]
        assert not matches[1] or k - policy_lag < 0 or k + 1 == count
        if k:  # an unroll begins where the one before it ended
            assert torch.equal(obs[0], trace.unrolls[k - 1][0][-1])
    assert table(recorder, "updates.csv").policy_lag.iloc[-1] == policy_lag
    assert (
        len(trace.weights) * TINY.num_minibatches
        == table(recorder, "updates.csv").num_updates.iloc[-1]
    )


@pytest.mark.parametrize("lstm_size", [0, 6])
def test_without_a_lag_the_data_are_on_policy(
    lstm_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lag 0: every importance weight is 1 to rounding. Lag 1: only those of the first unroll.

    So the learner's LSTM sees what the collector's saw, across ends and from unroll to unroll.
    """
    trace = Trace(monkeypatch)
    config = replace(TINY, env_steps=240, lstm_size=lstm_size)
    train(replace(config, policy_lag=0), tmp_path / "0")
    assert trace.rhos == pytest.approx([1.0] * len(trace.rhos), abs=1e-5)
    trace = Trace(monkeypatch)
    train(config, tmp_path / "1")
    assert trace.rhos[0] == pytest.approx(1.0, abs=1e-5)
    assert min(trace.rhos[1:]) > 1.0 + 1e-4


def test_the_memory_goes_on_from_unroll_to_unroll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unroll carries what the steps before it left, the last action and reward included."""
    collect, carried = Collector.collect, []

    def checked(collector: Collector, experience: Experience) -> None:
        before, network = collector.actor.memory.clone(), collector.network
        collect(collector, experience)
        assert torch.equal(experience.memory, before)
        unroll, memory = experience.unroll, before
        outcomes = zip(unroll.actions, unroll.outcomes.rewards, unroll.outcomes.valid, strict=True)
        for obs, outcome in zip(unroll.obs, outcomes, strict=False):
            with torch.no_grad():
                _, memory = network.step(obs, memory)
            memory = network.actor.remember(memory, *outcome)
        assert torch.equal(collector.actor.memory, memory)
        carried.append(memory)

    monkeypatch.setattr(Collector, "collect", checked)
    train(replace(RECURRENT, env_steps=240), tmp_path)
    rows = torch.cat(carried)
    assert rows[:, -3:].sum(-1).unique().tolist() == [0.0, 2.0]  # an action and a reward of 1
    assert torch.equal(rows.eq(0).all(1), rows[:, -1] == 0)


class Inline:
    """Stands in for the second thread: collects at once, before the learner does anything."""

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        function(*arguments)
        future: Future[None] = Future()
        future.set_result(None)
        return future


RECORDED = ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors")


def recorded(recorder: Recorder) -> list[bytes]:
    return [(recorder.seed_directories[0] / name).read_bytes() for name in RECORDED]


@pytest.mark.parametrize(("policy_lag", "lstm_size"), [(1, 6), (2, 0)])
def test_timing_changes_no_bit(
    policy_lag: int, lstm_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow learner, a slow collector, or one after the other in one thread: the same bytes."""
    config = replace(TINY, policy_lag=policy_lag, lstm_size=lstm_size, num_minibatches=2)
    config = replace(config, env_steps=240, normalise_observations=True)
    expected = recorded(train(config, tmp_path / "plain")[1])
    update, recv = impala.update, VectorEnv.recv

    def slow_update(*arguments: Any) -> Any:
        time.sleep(0.01)
        return update(*arguments)

    def slow_recv(env: Any) -> Step:
        time.sleep(0.003)
        return recv(env)

    with monkeypatch.context() as patch:
        patch.setattr(impala, "update", slow_update)
        assert recorded(train(config, tmp_path / "slow learner")[1]) == expected
    with monkeypatch.context() as patch:
        patch.setattr(VectorEnv, "recv", slow_recv)
        assert recorded(train(config, tmp_path / "slow collector")[1]) == expected
    with monkeypatch.context() as patch:
        patch.setattr(impala, "worker_thread", Inline)
        assert recorded(train(config, tmp_path / "inline")[1]) == expected
    threads = replace(config, num_threads=2)
    assert recorded(train(threads, tmp_path / "threads")[1])[0] == expected[0]


def test_an_actor_that_fails_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in the second thread surfaces in the first."""
    recv, calls = VectorEnv.recv, []

    def failing(env: Any) -> Step:
        calls.append(None)
        if len(calls) > 12:
            raise RuntimeError("the simulator broke")
        return recv(env)

    monkeypatch.setattr(VectorEnv, "recv", failing)
    with pytest.raises(RuntimeError, match="the simulator broke"):
        train(TINY, tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("config", [TINY, SWING])
def test_the_same_command_gives_the_same_bytes(config: impala.Config, tmp_path: Path) -> None:
    """Nothing but the command decides, not even a global generator that was used in between."""
    _, one = train(config, tmp_path / "one")
    torch.manual_seed(99)
    before = torch.get_rng_state()
    _, two = train(config, tmp_path / "two")
    assert torch.equal(torch.get_rng_state(), before)
    _, other = train(replace(config, seeds=(2,)), tmp_path / "other")
    assert recorded(one) == recorded(two)
    assert all(a != b for a, b in zip(recorded(one), recorded(other), strict=True))


@pytest.mark.parametrize("lstm_size", [0, 6])
def test_seeds_of_one_command_are_those_trained_alone(lstm_size: int, tmp_path: Path) -> None:
    flags = ["--task=CartPole-v1", "--device=cpu", "--env-steps=400", f"--lstm-size={lstm_size}"]
    assert impala.main([*flags, "--seeds", "1", "2", f"--out={tmp_path / 'both'}"]) == 0
    assert impala.main([*flags, "--seeds", "2", f"--out={tmp_path / 'alone'}"]) == 0
    for name in ("episodes.csv", "policy.safetensors"):
        both = (tmp_path / "both" / "seed-2" / name).read_bytes()
        assert both == (tmp_path / "alone" / "seed-2" / name).read_bytes()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "terminal", "value"),
    [("truncation", False, 5.0), ("truncation", True, 4.161), ("termination", False, 4.161)],
)
def test_a_time_limit_bootstraps_unless_it_is_terminal(
    kind: str, terminal: bool, value: float, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Reward 1, gamma 0.8: 1 / (1 - 0.8) = 5, or (1 - 0.8^8) / 0.2 where a limit is an end.

    The ignored row's reward of 1,000 shows nowhere, and its steps are not counted.
    """
    scripted.kind = kind
    config = replace(
        TINY,
        env_steps=2_000,
        learning_rate=6e-3,
        gamma=0.8,
        entropy_coef=0.0,
        hidden_sizes=(32, 32),
        loss_reduction="mean",
        learning_rate_decay_steps=2_000,
        rmsprop_epsilon_in_root=False,
        rmsprop_initial_average=0.0,
        rmsprop_epsilon=1e-5,
        max_gradient_norm=0.5,
        time_limit_is_terminal=terminal,
        evaluation_rule="training",
    )
    learner, recorder = train(config, tmp_path)
    assert learner.network(torch.tensor([[0.0]]))[1].item() == pytest.approx(value, rel=0.05)
    episodes = table(recorder, "episodes.csv")
    assert episodes.env_steps.tolist()[::4] == list(range(32, 2_000, 32))


def test_the_last_row_can_be_the_bootstrap_alone() -> None:
    """RLlib learns from 49 of 50 rows: those before the last, whose observation follows them."""
    config = replace(TINY, drop_last_row=True)
    spaces = Spaces((1,), 2)
    unroll = Unroll(spaces, config.num_envs, config.unroll_length, CPU, keeps_outputs=True)
    for tensor in (unroll.obs, unroll.behaviour):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    unroll.outcomes.rewards[:] = np.arange(config.unroll_length)[:, None]
    unroll.outcomes.valid[:] = True
    unroll.actions.zero_()
    collected = Experience(unroll, torch.zeros(config.num_envs, 0))
    whole = impala.transitions(collected, replace(config, drop_last_row=False))
    cut = impala.transitions(collected, config)
    for name in ("actions", "rewards", "discounts", "trace_mask", "valid", "behaviour"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)[:-1]), name
    assert torch.equal(cut.obs, whole.obs[:-1])
    assert len(cut.obs) == len(cut.rewards) + 1 == config.unroll_length


def test_an_unroll_without_a_row_to_learn_from_is_refused() -> None:
    """Of one row none is left without the last."""
    with pytest.raises(UsageError, match=r"^with drop_last_row unroll_length .* 2, not 1$"):
        replace(TINY, drop_last_row=True, unroll_length=1)
    assert replace(TINY, unroll_length=1).unroll_length == 1


def test_rows_hold_the_action_and_everything_it_caused(
    scripted: type[ScriptedEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that repeats the action stands beside it; ends and ignored rows follow the tape."""
    scripted.reward = staticmethod(lambda actions: actions.copy())
    transitions, seen = impala.transitions, []

    def checked(collected: Experience, config: impala.Config) -> Transitions:
        unroll, outcomes = collected.unroll, collected.unroll.outcomes
        actions, valid = unroll.actions.numpy().astype(np.float32), outcomes.valid
        np.testing.assert_array_equal(outcomes.rewards[valid], actions[valid])
        seen.append(np.stack([unroll.obs[1:, :, 0], outcomes.truncations, valid], axis=-1))
        return transitions(collected, config)

    monkeypatch.setattr(impala, "transitions", checked)
    train(replace(TINY, evaluation_rule="training"), tmp_path)
    rows = np.concatenate(seen)
    tape = [(t / 8, t == 8, t > 0) for t in (*range(1, 9), 0)] * len(rows)
    np.testing.assert_array_equal(rows, np.repeat(np.array(tape[: len(rows)])[:, None], 4, 1))


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, evaluation_rule="training"), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()


# Training on the real simulator


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("env_steps", "least"), [(40_000, 130), pytest.param(80_000, 300, marks=pytest.mark.slow)]
)
def test_cartpole_is_learned_within_seconds(env_steps: int, least: int, tmp_path: Path) -> None:
    """With the preset's settings the last steps of a run hold longer and longer episodes."""
    preset = impala.PRESETS["classic", "tuned"].config
    config = replace(preset, env_steps=env_steps, learning_rate_decay_steps=env_steps, device="cpu")
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert episodes.episode_return[:50].mean() < 60
    assert episodes.episode_return[episodes.env_steps > 7 / 8 * env_steps].mean() > least


def test_training_records_everything(tmp_path: Path) -> None:
    learner, recorder = train(TINY, tmp_path)
    before = impala.make_network(TINY, Spaces((4,), 2), CPU)
    for old, new in zip(before.parameters(), learner.network.parameters(), strict=True):
        assert not torch.equal(old, new)
    updates = table(recorder, "updates.csv")
    expected = ["env_steps", "num_updates", *impala.METRICS, "explained_variance"]
    assert updates.columns.tolist() == [*expected, "policy_lag", "learning_rate"]
    assert np.isfinite(updates.to_numpy()).all()
    assert 460 <= updates.env_steps.iloc[-1] <= 480
    evaluations = table(recorder, "evaluations.csv")
    assert evaluations.env_steps.iloc[-1] == updates.env_steps.iloc[-1]


def test_steps_are_those_of_episodes(tmp_path: Path) -> None:
    """`env_steps` counts real transitions: episode lengths add up to it, one environment alone."""
    config = replace(TINY, num_envs=1, env_steps=400, unroll_length=7)
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert len(episodes) > 10
    assert episodes.episode_length.cumsum().tolist() == episodes.env_steps.tolist()


@pytest.mark.parametrize("policy_lag", [0, 1])
def test_timing_says_who_waited(
    policy_lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of learner and actor add up to at most the wall time; turns leave both waiting."""
    update = impala.update

    def slow_update(*arguments: Any) -> Any:
        time.sleep(0.05)
        return update(*arguments)

    monkeypatch.setattr(impala, "update", slow_update)
    _, recorder = train(
        replace(TINY, policy_lag=policy_lag, log_interval=480, evaluation_rule="training"), tmp_path
    )
    timing = table(recorder, "timing.csv").iloc[-1]
    learner = timing.learning_share + timing.learner_idle_share
    actor = timing.acting_share + timing.environment_share + timing.actor_idle_share
    assert 0.5 < learner < 1.02
    assert 0.5 < actor < 1.02
    assert timing.actor_idle_share > 0.3
    assert (timing.learner_idle_share < 0.15) == (policy_lag == 1) or policy_lag == 0


def test_the_learning_rate_falls_to_zero_and_stays_there(tmp_path: Path) -> None:
    """The horizon is its own setting: past it nothing is learned, whatever the budget."""
    config = replace(TINY, learning_rate_decay_steps=200)
    shorter, _ = train(replace(config, env_steps=240), tmp_path / "shorter")
    longer, recorder = train(config, tmp_path / "longer")
    assert torch.equal(weights(shorter), weights(longer))
    updates = table(recorder, "updates.csv")
    assert updates.learning_rate.iloc[-1] == 0.0
    steps, rows = updates.env_steps.iloc[0], TINY.unroll_rows
    left = updates.learning_rate.iloc[0] / 3e-3
    assert 1 - steps / 200 < left <= 1 - (steps - rows) / 200


SETTINGS: dict[str, Any] = {
    "num_envs": 6,
    "unroll_length": 8,
    "num_minibatches": 2,
    "policy_lag": 2,
    "gamma": 0.9,
    "clip_rho_threshold": 0.9,
    "clip_c_threshold": 0.9,
    "clip_pg_rho_threshold": 0.9,
    "trace_lambda": 0.5,
    "value_coef": 0.1,
    "entropy_coef": 0.1,
    "loss_reduction": "mean",
    "optimiser": "adam",
    "learning_rate": 1e-3,
    "learning_rate_decay_steps": 2_000,
    "rmsprop_epsilon_in_root": False,
    "rmsprop_initial_average": 0.0,
    "rmsprop_decay": 0.9,
    "rmsprop_epsilon": 0.1,
    "max_gradient_norm": 0.01,
    "hidden_sizes": (8, 8, 8),
    "lstm_size": 5,
    "lstm_inputs": "features",
    "activation": "relu",
    "initialisation": "truncated_normal",
    "hidden_gain": 1.0,
    "policy_head_gain": 0.5,
    "value_head_gain": 0.5,
    "initial_log_std": -1.0,
    "time_limit_is_terminal": True,
    "normalise_observations": True,
}
UNSCORED = replace(SWING, num_envs=4, env_steps=200, evaluation_rule="training")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> impala.Learner:
    return train(UNSCORED, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, plain: impala.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    config = UNSCORED
    if name == "lstm_inputs":
        config = replace(UNSCORED, lstm_size=5)
        plain, _ = train(config, tmp_path / "plain")
    if name == "time_limit_is_terminal":  # the environment reaches the limit of 200 steps
        config = replace(UNSCORED, num_envs=1, env_steps=220, unroll_length=20)
        plain, _ = train(config, tmp_path / "plain")
    changed, recorder = train(replace(config, **{name: SETTINGS[name]}), tmp_path / "changed")
    assert recorder.statuses == ["finished"]
    old, new = weights(plain), weights(changed)
    assert old.shape != new.shape or not torch.equal(old, new)


@pytest.mark.parametrize("name", ["clip_rho_threshold", "clip_c_threshold"])
def test_a_threshold_may_be_none(name: str, plain: impala.Learner, tmp_path: Path) -> None:
    changed, _ = train(replace(UNSCORED, **{name: None}), tmp_path)
    assert not torch.equal(weights(plain), weights(changed))


def test_the_protocol_reaches_the_simulator(tmp_path: Path) -> None:
    """`sticky` has all 18 actions, `noframeskip` Pong's six; frames train and a policy loads.

    Training and acting divide frames by the same number.
    """
    small = replace(TINY, task="Pong-v5", num_envs=2, env_steps=20, evaluation_rule="training")
    small = replace(small, initialisation="truncated_normal")
    for protocol, num_actions, convolutions, divisor in (
        ("noframeskip", 6, "shallow", 255.0),
        ("sticky", 18, "deep", 255.0),
        ("noframeskip", 6, "rllib", 1.0),
    ):
        config = replace(small, protocol=protocol, convolutions=convolutions, num_minibatches=2)
        config = replace(config, frame_divisor=divisor)
        learner, recorder = train(config, tmp_path / f"{protocol}-{convolutions}")
        assert learner.network.num_outputs == num_actions
        policy = agents.load_policy(recorder.seed_directories[0])
        assert policy.task.protocol == protocol
        frames = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84)).astype(np.uint8)
        prepared = torch.from_numpy(frames / divisor).float()
        outputs, _ = learner.network(prepared)
        assert policy.act(frames).tolist() == outputs.argmax(-1).tolist()


@pytest.mark.parametrize("config", [TINY, SWING])
def test_a_saved_policy_acts_like_the_learner(config: impala.Config, tmp_path: Path) -> None:
    """Mode, draws and the task's units are what was trained."""
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(2, 3, *policy._spaces.obs_shape)).astype(np.float32)
    outputs = learner.network(torch.from_numpy(obs).flatten(0, 1))[0].detach()
    generator = np.random.default_rng(1)
    if config.task == "CartPole-v1":
        assert policy(obs).shape == (2, 3)
        np.testing.assert_array_equal(policy(obs).flatten(), outputs.argmax(-1))
        assert policy(obs[0, 0], generator).shape == ()
    else:
        mode = 2 * outputs.clamp(-1, 1)
        np.testing.assert_allclose(policy(obs).reshape(6, 1), mode, rtol=1e-5, atol=1e-6)
        draws = policy.act(obs, generator)
        assert draws.shape == (2, 3, 1)
        assert np.abs(draws).max() <= 1


@pytest.mark.parametrize(
    "config", [RECURRENT, replace(RECURRENT, task="Pendulum-v1", env_steps=240)]
)
def test_a_saved_recurrent_policy_acts_as_in_training(
    config: impala.Config, tmp_path: Path
) -> None:
    """Step by step, over ends: with the memory that acting beside learning would have."""
    learner, recorder = train(config, tmp_path)
    network, policy = learner.network, agents.load_policy(recorder.seed_directories[0])
    env = VectorEnv(replace(policy.task, time_limit=40), np.array([[3, 4, 5]]))
    obs, memory, num_ends = env.reset(), network.actor.begin(3), 0
    rewards = starts = None
    for _ in range(60):
        with torch.no_grad():
            outputs, memory = network.step(torch.from_numpy(obs[0]), memory)
        actions = network.act(outputs)
        played = policy.act(obs, rewards=rewards, starts=starts)
        expected = actions if network.log_stds is None else actions.clamp(-1, 1)
        np.testing.assert_allclose(played[0], expected, rtol=1e-6)
        step = env.step(played)
        memory = network.actor.remember(memory, actions, step.rewards[0], step.valid[0])
        obs, rewards, starts = step.obs, step.rewards, ~step.valid
        num_ends += int(step.episode_ends.sum())
    assert num_ends >= 3
    policy.reset()
    assert np.array_equal(
        policy.act(obs), agents.load_policy(recorder.seed_directories[0]).act(obs)
    )


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("gamma", -0.1), ("trace_lambda", 1.1), ("env_steps", -5)],
        *[("env_steps", 19), ("seeds", ()), ("seeds", (1, 1)), ("seeds", (2**31,))],
        *[("seeds", (-1,)), ("hidden_sizes", ()), ("hidden_sizes", (0,)), ("num_envs", 0)],
        *[("unroll_length", 0), ("num_minibatches", 3), ("num_minibatches", 0)],
        *[("policy_lag", -1), ("clip_rho_threshold", 0.0), ("clip_c_threshold", -1.0)],
        *[("clip_pg_rho_threshold", -0.5), ("learning_rate", 0.0), ("learning_rate", 1.0)],
        *[("learning_rate_decay_steps", -1), ("rmsprop_decay", 1.0), ("rmsprop_epsilon", 0.0)],
        *[("value_coef", -0.5), ("entropy_coef", -0.01), ("max_gradient_norm", 0.0)],
        *[("initial_log_std", 3.0), ("num_threads", 0), ("evaluation_episodes", 0)],
        *[("log_interval", 0), ("hidden_gain", 0.0), ("task", "CartPol-v1")],
        *[("policy_head_gain", -1.0), ("value_head_gain", 0.0), ("evaluation_interval", 0)],
        *[("lstm_size", -1)],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    assert str(shown) in str(error.value)


def test_presets_differ_from_the_paper_where_their_source_does() -> None:
    """Each source's departures from the paper's settings, and nothing else."""
    paper = impala.PRESETS["atari", "paper"].config

    def changed(source: str) -> set[str]:
        ours = impala.PRESETS["atari-7", source].config
        return {name for name in vars(paper) if getattr(ours, name) != getattr(paper, name)}

    assert changed("paper") == set()
    assert changed("cleanba") == {
        *("protocol", "num_envs", "num_minibatches", "convolutions"),
        *("rmsprop_epsilon_in_root", "rmsprop_initial_average"),
        *("initialisation", "time_limit_is_terminal"),
    }
    assert changed("rllib_2018") == {
        *("task", "num_envs", "unroll_length", "num_minibatches", "optimiser", "learning_rate"),
        *("learning_rate_decay_steps", "convolutions", "frame_divisor", "initialisation"),
        *("time_limit_is_terminal", "drop_last_row"),
    }
    protocols = {
        source: impala.PRESETS["atari-7", source].protocol
        for source in ("paper", "cleanba", "rllib_2018")
    }
    assert protocols == {"paper": "noframeskip", "cleanba": "sticky", "rllib_2018": "noframeskip"}
    for source in ("paper", "cleanba", "rllib_2018"):
        config = impala.PRESETS["atari-7", source].config
        trajectories = config.num_envs // config.num_minibatches
        assert trajectories * config.unroll_length == {"rllib_2018": 500}.get(source, 640)
        assert config.evaluation_rule == "training"


def test_budgets_change_steps_and_seeds_only() -> None:
    for preset in impala.PRESETS.values():
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)


def test_a_grid_leaves_both_cores_to_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread acts while another learns: half as many processes as cores, at least one."""
    for cores, workers in ((8, 4), (1, 1)):
        monkeypatch.setattr("reproduce.plan.places.num_cores", lambda cores=cores: cores)
        plan = make_plan(
            "impala", "classic", tasks=["CartPole-v1"], device="cpu", runs_dir=tmp_path
        )
        assert plan.workers == workers
        assert "--workers" not in command(plan)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [{"policy_lag": 0}, {}, {"lstm_size": 6}, {"normalise_observations": True}]
)
def test_a_gpu_learns_what_the_cpu_learns(settings: dict[str, Any], tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after 24 unrolls."""
    config = replace(SWING, num_envs=4, env_steps=480, **settings)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    torch.testing.assert_close(weights(gpu).cpu(), weights(cpu), atol=1e-3, rtol=1e-2)
