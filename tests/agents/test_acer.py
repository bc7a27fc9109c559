"""ACER: every equation against a slow re-derivation, then what training must do."""

import dataclasses
import inspect
import math
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import agents
from agents import a2c, acer
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces, VectorEnv
from suite.nets.optimisers import FlatWeights
from suite.record.recorder import Recorder
from suite.unrolls import Outcomes, Transitions, UnrollReplay
from tests.scripted import ScriptedEnv
from tests.slow_lstm import slow_unroll

CPU = torch.device("cpu")
TINY = acer.Config(
    task="CartPole-v1",
    device="cpu",
    env_steps=400,
    num_envs=4,
    unroll_length=5,
    replay_start=20,
    hidden_sizes=(16, 16),
    evaluation_interval=200,
    evaluation_episodes=2,
    log_interval=100,
)
CONTROL = Spaces((4,), 3)
"""Spaces with three discrete actions."""


def train(config: acer.Config, directory: Path) -> tuple[acer.Learner, Recorder]:
    recorder = Recorder(directory, {"agent": "acer", "task": config.task}, config.seeds)
    learner = acer.train(config, recorder)
    recorder.finish()
    return learner, recorder


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


# The policy's gradient


def draw_policies(rows: int, actions: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of three policies that differ widely, float64 `[T, N, A]`: pi, mu and the average."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, rows, 1, actions, generator=generator, dtype=torch.float64)
    return logits[0], logits[1], logits[2]


@pytest.mark.parametrize("threshold", [0.5, 1.0, 10.0, None])
def test_truncation_and_correction_leave_the_expected_gradient_exact(
    threshold: float | None,
) -> None:
    """Over actions drawn from mu, with one Q in both terms: sum of pi(a) grad log pi(a) (Q - V)."""
    logits, behaviour_logits, _ = draw_policies(40)
    logits.requires_grad_()
    q_values = torch.randn(40, 1, 4, generator=torch.Generator().manual_seed(1)).double()
    probs = logits.softmax(-1)
    values = (probs * q_values).sum(-1)
    exact = torch.autograd.grad(values.sum(), logits)[0]
    log_probs, behaviour = logits.detach().log_softmax(-1), behaviour_logits.log_softmax(-1)
    largest = (log_probs - behaviour).exp().max()
    assert largest > 10
    expected = torch.zeros_like(exact)
    for action in range(4):
        actions = torch.full((40, 1), action)
        gradients = acer.policy_gradients(
            log_probs,
            behaviour,
            actions,
            q_values[..., action],
            q_values,
            values.detach(),
            threshold,
        )
        weight = behaviour[..., action].exp().unsqueeze(-1)
        expected += weight * acer.by_statistics(gradients, log_probs, "logits")
    torch.testing.assert_close(expected, exact, rtol=1e-9, atol=1e-12)


def test_gradients_by_statistics_are_those_of_autograd() -> None:
    """A weighted sum of log-probabilities, by probabilities as free numbers and by logits."""
    logits, weights, _ = draw_policies(10)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp().requires_grad_()
    (expected,) = torch.autograd.grad((weights * probs.log()).sum(), probs)
    torch.testing.assert_close(
        acer.by_statistics(weights, log_probs, "probabilities"), expected, rtol=1e-9, atol=1e-9
    )
    free = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad((weights * free.log_softmax(-1)).sum(), free)
    torch.testing.assert_close(
        acer.by_statistics(weights, log_probs, "logits"), expected, rtol=1e-9, atol=1e-9
    )


def one_row(
    actions: int, behaviour: list[float], rewards: float = 1.0, discounts: float = 1.0
) -> Transitions:
    """A single step of a single environment, and nothing of it traced."""
    ones = torch.ones(1, 1)
    return Transitions(
        obs=torch.zeros(2, 1, 4),
        actions=torch.tensor([[actions]]),
        behaviour=torch.tensor([[behaviour]]).log(),
        rewards=rewards * ones,
        discounts=discounts * ones,
        trace_mask=0 * ones,
        valid=ones,
        weights=ones,
    )


@pytest.mark.parametrize("statistics", ["probabilities", "logits", "log_probabilities"])
def test_a_policy_without_doubt_keeps_the_update_finite(statistics: Any) -> None:
    """Probabilities of e^-200: nothing divides by 0, in float32."""
    logits = torch.tensor([[[200.0, 0.0, 0.0]], [[0.0, 200.0, 0.0]]])
    config = replace(TINY, unroll_length=1, statistics=statistics)
    batch = one_row(1, [0.1, 0.8, 0.1])
    average = torch.tensor([[[-200.0, 0.0, 0.0]]])
    signals = acer.learning_signals(config, batch, logits, torch.ones(2, 1, 3), average)
    assert torch.isfinite(signals.gradients).all()
    assert torch.isfinite(signals.diagnostics).all()


# One update


def random_batch(config: acer.Config, seed: int) -> Transitions:
    """One unroll of random steps, with ends of both kinds and ignored rows."""
    rng, shape = np.random.default_rng(seed), (config.unroll_length, config.num_envs)

    def numbers(steps: int, size: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(steps, shape[1], size)).astype(np.float32))

    rewards = rng.normal(size=shape).astype(np.float32)
    outcomes = Outcomes(rewards, *random_flags(rng, *shape))
    return Transitions(
        numbers(shape[0] + 1, *CONTROL.obs_shape),
        torch.from_numpy(rng.integers(0, CONTROL.num_outputs, shape)),
        numbers(shape[0], CONTROL.num_outputs).log_softmax(-1),
        *outcomes.tensors(CPU, config.gamma, config.time_limit_is_terminal),
    )


def doubled(batch: Transitions) -> Transitions:
    """The batch in float64."""
    parts = (part.double() if part.is_floating_point() else part for part in batch)
    batch = Transitions(*parts)
    return batch._replace(weights=batch.valid / batch.valid.sum())


def make_exact(module: ModuleType, config: Any, network: Any) -> tuple[Any, Any]:
    """A learner in float64 that keeps its gradient; a step only adds the rate to all weights."""

    class Exact(module.RMSprop):
        seen: Any = None

        def step(self, gradient: Tensor, learning_rate: float) -> None:
            self.seen = gradient
            self.weights.vector += learning_rate

    rng = np.random.default_rng(3)
    average = module.ActorCritic(config, CONTROL, rng).actor.double().requires_grad_(False)
    exact = Exact.configured(FlatWeights(network.double()), config)
    return module.Learner(network, average, exact, None), exact


def slow_outputs(network: Any, average: Any, batch: Any, memory: Tensor) -> list[Tensor]:
    """Logits, Q and the average policy's logits; an LSTM's episode by episode."""
    num_envs = batch.rewards.shape[1]
    if memory.shape[1]:
        ours, theirs = (slow_unroll(each, None, memory, batch) for each in (network.actor, average))
        return [*ours.chunk(2, -1), theirs.chunk(2, -1)[0]]
    obs = batch.obs.flatten(0, 1)
    logits, q_values = network(obs)
    outputs = logits, q_values, average(obs)[:, : logits.shape[-1]]
    return [each.unflatten(0, (-1, num_envs)) for each in outputs]


def slow_gradient(config: Any, network: Any, average: Any, batch: Any, memory: Any) -> Tensor:
    """The gradient of one update, row by row from the paper's equations, by autograd."""
    steps, num_envs = batch.rewards.shape
    logits, q_values, average_logits = slow_outputs(network, average, batch, memory)
    num_actions = logits.shape[-1]
    values = (logits.softmax(-1) * q_values).sum(-1).detach()
    num_rows = batch.valid.sum() if config.loss_reduction == "mean" else 1.0
    loss = torch.zeros((), dtype=torch.float64)

    def ratios(t: int, i: int) -> Tensor:  # pi(a|x) / mu(a|x)
        return logits[t, i].softmax(-1).detach() / batch.behaviour[t, i].exp()

    @cache
    def target(t: int, i: int, traced: bool) -> Tensor:  # Eq. (5), or Q_opc
        estimate = values[t + 1, i]
        if t + 1 < steps and batch.trace_mask[t, i]:
            a = batch.actions[t + 1, i]
            error = target(t + 1, i, traced) - q_values[t + 1, i, a].detach()
            estimate = estimate + (min(1.0, float(ratios(t + 1, i)[a])) if traced else 1) * error
        return batch.rewards[t, i] + batch.discounts[t, i] * estimate

    for t in range(steps):
        for i in range(num_envs):
            if not batch.valid[t, i]:
                continue
            out, policy_of = logits[t, i], partial(torch.softmax, dim=-1)
            if config.statistics == "probabilities":
                out, policy_of = out.softmax(-1), torch.clone
            elif config.statistics == "log_probabilities":
                out, policy_of = out.log_softmax(-1), torch.exp
            phi = out.detach().requires_grad_()  # the statistics of Eq. (10)
            f = policy_of(phi)
            pi, rho, a = f.detach(), ratios(t, i), batch.actions[t, i]
            c = config.clip_rho_threshold or math.inf
            advantage = target(t, i, config.advantage_target == "q_retrace") - values[t, i]
            objective = min(c, float(rho[a])) * advantage * f[a].log()
            for b in range(num_actions):
                if rho[b] > c:
                    better = q_values[t, i, b].detach() - values[t, i]
                    objective = objective + pi[b] * (rho[b] - c) / rho[b] * better * f[b].log()
            bonus = -config.entropy_coef * (f * f.log()).sum()
            if config.entropy_in_trust_region:
                objective = objective + bonus
            (g,) = torch.autograd.grad(objective, phi, retain_graph=True)
            z = g
            if config.trust_region_delta is not None:
                slow = average_logits[t, i].softmax(-1)
                divergence = (slow * (slow.log() - f.log())).sum()  # KL(average || policy)
                (k,) = torch.autograd.grad(divergence, phi, retain_graph=True)
                excess = (k @ g - config.trust_region_delta) / (k @ k)  # Eq. (12)
                z = g - max(0.0, float(excess)) * k
            if not config.entropy_in_trust_region:
                z = z + torch.autograd.grad(bonus, phi)[0]
            error = target(t, i, True) - q_values[t, i, a]
            loss = loss - config.policy_coef * (z @ out) / num_rows
            loss = loss + config.q_coef * 0.5 * error**2 / num_rows
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def check_update(module: ModuleType, carried: bool = True, **settings: Any) -> None:
    """Fail unless the module's update is what the paper's equations say.

    Args:
        module: `acer`, or a version of it.
        carried: whether an LSTM goes on from a state, or begins with 0.
        settings: what differs from the standard.
    """
    standard = {"unroll_length": 6, "policy_head_gain": 1.0, "entropy_coef": 0.1}
    standard |= {"clip_rho_threshold": 1.5, "trust_region_delta": 0.05, "replay_capacity": 100}
    config = replace(TINY, **(standard | settings))
    batch = doubled(random_batch(config, 4))
    own = module.Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    network = module.ActorCritic(own, CONTROL, np.random.default_rng(2))
    learner, exact = make_exact(module, own, network)
    before = exact.weights.vector.clone()
    average = [p.clone() for p in learner.average_policy.parameters()]
    memory = torch.randn(4, 2 * config.lstm_size, generator=torch.Generator().manual_seed(5))
    memory = memory.double() * carried
    expected = slow_gradient(config, network, learner.average_policy, batch, memory)
    norm = expected.norm()
    metrics = module.update(learner, own, batch, 0.1, memory if carried else None)
    assert metrics[-1] == pytest.approx(float(norm))
    if config.max_gradient_norm is not None:
        expected = expected * min(1.0, config.max_gradient_norm / float(norm))
    torch.testing.assert_close(exact.seen, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(exact.weights.vector, before + 0.1)
    # theta_a <- alpha theta_a + (1 - alpha) theta, after the step
    policy = list(network.actor.parameters())
    for new, old, fast in zip(learner.average_policy.parameters(), average, policy, strict=True):
        torch.testing.assert_close(new, 0.99 * old + 0.01 * fast)


UPDATES: list[dict[str, Any]] = [
    {},
    {"statistics": "logits"},
    {"statistics": "log_probabilities"},
    {"statistics": "log_probabilities", "entropy_in_trust_region": False},
    {"statistics": "logits", "entropy_in_trust_region": False},
    {"entropy_in_trust_region": False},
    {"trust_region_delta": None, "clip_rho_threshold": None},
    {"trust_region_delta": None, "statistics": "logits", "shared_trunk": False},
    {"advantage_target": "q_opc"},
    {"loss_reduction": "sum", "policy_coef": 0.3, "q_coef": 2.0},
    {"shared_trunk": False, "time_limit_is_terminal": True},
    {"max_gradient_norm": 0.01},
    {"max_gradient_norm": None},
    {"lstm_size": 5, "activation": "tanh"},
    {"lstm_size": 5, "activation": "tanh", "carried": False, "statistics": "logits"},
]


@pytest.mark.parametrize("settings", UPDATES, ids=str)
def test_an_update_is_what_the_equations_say(settings: dict[str, Any]) -> None:
    """Gradient of all weights and the average policy, in float64, with ends inside the unroll."""
    check_update(acer, **settings)


MISTAKES = {
    "the trust region pulls away": (
        "by_statistics(-average_probs, log_probs, config.statistics)",
        "by_statistics(average_probs, log_probs, config.statistics)",
    ),
    "the divergence is KL(policy || average)": (
        "by_statistics(-average_probs, log_probs, config.statistics)",
        "by_statistics(probs * (1 + log_probs - average_log_probs), log_probs, config.statistics)",
    ),
    "the objective descends": (
        "- config.policy_coef * objective",
        "+ config.policy_coef * objective",
    ),
    "Retrace weighs by c of t": ("cs[1:].flip(0)", "cs[:-1].flip(0)"),
    "the average policy follows at the wrong rate": (
        "slow.lerp_(fast, config.tau)",
        "slow.lerp_(fast, 1 - config.tau)",
    ),
    "the trace's ratio is the average policy's": (
        "rhos = (log_probs - batch.behaviour)",
        "rhos = (average_log_probs - batch.behaviour)",
    ),
    "the gradient's ratio is the average policy's": (
        "log_probs,\n        batch.behaviour,\n",
        "average_log_probs,\n        batch.behaviour,\n",
    ),
    "the ratio is upside down": (
        "log_rhos = log_probs - behaviour_log_probs",
        "log_rhos = behaviour_log_probs - log_probs",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_classic_mistakes_are_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the source one by one, each fails the comparison with the equations."""
    right, wrong = MISTAKES[mistake]
    source = Path(inspect.getfile(acer)).read_text()
    assert source.count(right) == 1
    planted = ModuleType("planted")
    monkeypatch.setitem(sys.modules, "planted", planted)  # dataclasses look themselves up
    exec(compile(source, "planted", "exec"), planted.__dict__)
    check_update(planted)
    exec(compile(source.replace(right, wrong), "planted", "exec"), planted.__dict__)
    with pytest.raises(AssertionError):
        check_update(planted)


def test_on_policy_with_one_q_for_all_actions_it_is_a2c() -> None:
    """Ratio 0, no truncation, no trust region: the policy's gradient is A2C's, to rounding."""
    config = replace(
        TINY,
        unroll_length=8,
        shared_trunk=False,
        policy_head_gain=1.0,
        replay_ratio=0.0,
        clip_rho_threshold=None,
        trust_region_delta=None,
        entropy_coef=0.1,
        max_gradient_norm=None,
    )
    names = ("task", "num_envs", "hidden_sizes", "policy_head_gain", "entropy_coef")
    theirs = a2c.ActorCritic(
        a2c.Config(**{name: getattr(config, name) for name in names}),
        CONTROL,
        np.random.default_rng(0),
    ).double()
    ours = acer.ActorCritic(config, CONTROL, np.random.default_rng(2)).double()
    assert ours.critic is not None
    assert theirs.critic is not None
    ours.actor.load_state_dict(theirs.actor.state_dict())
    for own, value in zip(ours.critic.parameters(), theirs.critic.parameters(), strict=True):
        own.data = value.detach().clone()
    for name in ("weights", "biases"):  # the head of V, once for each action
        head = getattr(ours.critic, name)[-1]
        head.data = head.data.repeat_interleave(CONTROL.num_outputs, -1)

    batch = doubled(random_batch(config, 5))
    assert not batch.valid.all()
    behaviour = theirs.actor(batch.obs[:-1].flatten(0, 1)).log_softmax(-1)
    behaviour = behaviour.detach().unflatten(0, batch.actions.shape)
    learner, exact = make_exact(acer, config, ours)
    acer.update(learner, config, batch._replace(behaviour=behaviour), 1e-3)

    log_probs, entropies, values = a2c.evaluate_actions(theirs, batch.obs[:-1], batch.actions)
    last = theirs.value(batch.obs[-1]).unsqueeze(0)
    all_values = torch.cat([values, last]).detach()
    steps = (batch.rewards, batch.discounts, batch.trace_mask)
    advantages = a2c.gae(*steps, all_values[:-1], all_values[1:], 1.0)
    parts = a2c.losses(log_probs, entropies, values, advantages, advantages, batch.weights)
    loss = parts.policy - config.entropy_coef * parts.entropy
    gradients = torch.autograd.grad(loss, list(theirs.actor.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(exact.seen[: len(expected)], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lstm_size", [0, 6])
def test_ignored_rows_change_nothing(lstm_size: int) -> None:
    """Everything recorded in them may be anything: weights and diagnostics keep their bits."""
    config = replace(TINY, unroll_length=8, lstm_size=lstm_size)
    outcomes = []
    for scramble in (False, True):
        batch, learner = random_batch(config, 5), acer.make_learner(config, CONTROL, CPU)
        ignored = batch.valid == 0
        assert ignored.sum() >= 4
        if scramble:
            batch.rewards[ignored] = 1e3
            batch.actions[ignored] = 1
            batch.discounts[ignored] = 0.0
            batch.behaviour[ignored] = -3.0
        metrics = acer.update(learner, config, batch, 1e-2)
        outcomes.append((learner.optimiser.weights.vector, metrics))
    for plain, scrambled in zip(*outcomes, strict=True):
        assert torch.equal(plain, scrambled)


def test_diagnostics_are_what_they_are_called() -> None:
    """Of one state: divergence, entropy, values, the truncated share, and both norms."""
    config = replace(TINY, unroll_length=1, clip_rho_threshold=2.0, trust_region_delta=0.1)
    policy, average = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    q_values = torch.tensor([3.0, 1.0, -1.0])
    batch = one_row(0, [0.1, 0.8, 0.1], rewards=5.0, discounts=0.0)
    rows = acer.learning_signals(
        config,
        batch,
        policy.log().expand(2, 1, 3),
        q_values.expand(2, 1, 3),
        average.log().view(1, 1, 3),
    ).diagnostics[:, 0, 0]
    seen = dict(zip(acer.METRICS, rows.tolist(), strict=False))
    assert seen["q_loss"] == pytest.approx(0.5 * (5 - 3) ** 2)
    assert (seen["q_value"], seen["value"]) == pytest.approx((3.0, 2.2))
    assert seen["entropy"] == pytest.approx(float(-(policy * policy.log()).sum()))
    assert seen["kl"] == pytest.approx(float((average * (average / policy).log()).sum()))
    assert seen["truncated_share"] == 1.0
    assert seen["projected_gradient_norm"] <= seen["statistics_gradient_norm"]


def test_the_memory_of_a_run_is_known() -> None:
    """That of its replay: with the settings of OpenAI Baselines 5 GB, 22 GB as stacks of four."""
    baselines = acer.PRESETS["atari-7", "openai_baselines"].config
    assert 5.2 < baselines.memory_bytes / 2**30 < 5.5
    assert replace(baselines, env_steps=100_000).memory_bytes < 0.7 * 2**30
    assert replace(baselines, replay_ratio=0.0).memory_bytes < 2**22
    spaces = Spaces((4, 84, 84), 18)  # the most actions a game has
    config = replace(baselines, replay_capacity=400, replay_start=0)
    replay = UnrollReplay(spaces, config, spaces.num_outputs, CPU)
    parts = [*vars(replay).values(), *vars(replay)["_outcomes"]]
    size = sum(part.nbytes for part in parts if isinstance(part, np.ndarray | torch.Tensor))
    assert config.memory_bytes == pytest.approx(size, rel=0.02)
    classic = acer.PRESETS["classic", "tuned"].config
    assert 0 < classic.memory_bytes < 2**22
    rows = classic.memory_bytes / (4 * 4 + 8 + 4 * 2 + 8)  # 4 numbers and 2 actions
    assert replace(classic, task="Acrobot-v1").memory_bytes == rows * (4 * 6 + 8 + 4 * 3 + 8)
    assert (config.keeps_on_device, classic.keeps_on_device) == (True, False)  # frames, vectors


# Training on a scripted task


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "terminal", "value"),
    [("truncation", False, 5.0), ("truncation", True, 4.161), ("termination", False, 4.161)],
)
def test_a_time_limit_bootstraps_unless_it_is_terminal(
    kind: str, terminal: bool, value: float, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Reward 1, gamma 0.8: 1 / (1 - 0.8) = 5, or (1 - 0.8^8) / 0.2 where a limit is an end."""
    scripted.kind = kind
    config = replace(
        TINY,
        env_steps=2_800,
        gamma=0.8,
        hidden_sizes=(32, 32),
        learning_rate=5e-3,
        learning_rate_decay_steps=2_800,
        evaluation_rule="training",
        time_limit_is_terminal=terminal,
    )
    learner, recorder = train(config, tmp_path)
    with torch.no_grad():
        logits, q_values = learner.network(torch.tensor([[0.0]]))
    assert (logits.softmax(-1) * q_values).sum().item() == pytest.approx(value, rel=0.05)
    episodes = table(recorder, "episodes.csv")
    assert episodes.env_steps.tolist()[::4] == list(
        range(32, int(episodes.env_steps.max()) + 1, 32)
    )


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(TINY, tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()


# Training on the real simulator


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("env_steps", "least"), [(12_000, 120), pytest.param(25_000, 250, marks=pytest.mark.slow)]
)
def test_cartpole_is_learned_within_seconds(env_steps: int, least: int, tmp_path: Path) -> None:
    """With the preset's settings the last steps of a run hold longer and longer episodes."""
    config = replace(acer.PRESETS["classic", "tuned"].config, env_steps=env_steps, device="cpu")
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert episodes.episode_return[:50].mean() < 60
    since = 4 / 5 * env_steps
    num_ends = max((episodes.env_steps > since).sum(), 1)  # most episodes may still go on
    assert (env_steps - since) / num_ends > least


def test_training_records_everything(tmp_path: Path) -> None:
    config = replace(TINY, evaluation_rule="sampled")
    learner, recorder = train(config, tmp_path)
    before = acer.make_learner(config, Spaces((4,), 2), CPU)
    for old, new in zip(before.network.parameters(), learner.network.parameters(), strict=True):
        assert not torch.equal(old, new)
    updates = table(recorder, "updates.csv")
    expected = ["env_steps", "num_updates", *acer.METRICS, "learning_rate"]
    assert updates.columns.tolist() == expected
    assert np.isfinite(updates.to_numpy()).all()
    assert updates.env_steps.iloc[-1] <= 400
    evaluations = table(recorder, "evaluations.csv")
    assert evaluations.env_steps.iloc[-1] == updates.env_steps.iloc[-1]


def test_steps_are_those_of_episodes(tmp_path: Path) -> None:
    """`env_steps` counts real transitions: episode lengths add up to it, one environment alone."""
    config = replace(TINY, num_envs=1, env_steps=400, unroll_length=7, replay_ratio=1.0)
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert len(episodes) > 10
    assert episodes.episode_length.cumsum().tolist() == episodes.env_steps.tolist()


def count_updates(config: acer.Config, directory: Path) -> tuple[int, int]:
    """Return how many updates a run made, and how many unrolls it collected."""
    unrolls = []

    class Counted(UnrollReplay):
        def read(self, numbers: np.ndarray, envs: np.ndarray) -> Transitions:
            unrolls.append(self.num_unrolls)
            np.testing.assert_array_equal(envs, np.arange(config.num_envs))
            return super().read(numbers, envs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acer, "UnrollReplay", Counted)
        _, recorder = train(config, directory)
    assert len(unrolls) == table(recorder, "updates.csv").num_updates.iloc[-1]
    return len(unrolls), max(unrolls)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", ["poisson", "fixed"])
def test_replay_follows_its_ratio(count: Any, tmp_path: Path) -> None:
    """As many updates per unroll as the setting says, on average or each time."""
    config = replace(TINY, env_steps=900, replay_start=0, replay_ratio=3.0, replay_count=count)
    updates, unrolls = count_updates(config, tmp_path)
    assert unrolls >= 40
    if count == "fixed":
        assert updates == 4 * unrolls
    else:
        assert updates != 4 * unrolls
        assert updates / unrolls == pytest.approx(4, abs=3 * math.sqrt(3 / unrolls))


def test_replay_waits_until_it_has_enough(tmp_path: Path) -> None:
    """`replay_start` counts steps of each environment: with unrolls of 5, 60 are 12 unrolls."""
    config = replace(TINY, env_steps=400, replay_start=60, replay_ratio=2.0, replay_count="fixed")
    updates, unrolls = count_updates(config, tmp_path)
    assert unrolls >= 15
    assert updates == unrolls + 2 * (unrolls - 11)


def test_updates_may_be_online_alone_or_from_replay_alone(tmp_path: Path) -> None:
    config = replace(TINY, replay_start=0, replay_count="fixed", replay_ratio=2.0)
    updates, unrolls = count_updates(replace(config, replay_ratio=0.0), tmp_path / "online")
    assert updates == unrolls
    updates, unrolls = count_updates(replace(config, online_updates=False), tmp_path / "replay")
    assert updates == 2 * unrolls


@pytest.mark.usefixtures("unchecked")
def test_the_same_command_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nothing but the command decides, not even a global generator that was used in between."""
    config = replace(TINY, evaluation_rule="sampled")
    _, one = train(config, tmp_path / "one")
    torch.manual_seed(99)
    torch.rand(3)
    _, two = train(config, tmp_path / "two")
    _, other = train(replace(config, seeds=(2,)), tmp_path / "other")
    for name in ("evaluations.csv", "updates.csv", "policy.safetensors", "episodes.csv"):
        first, second, third = (
            r.seed_directories[0].joinpath(name).read_bytes() for r in (one, two, other)
        )
        assert first == second
        assert first != third


@pytest.mark.parametrize("lstm_size", [0, 6])
def test_seeds_of_one_command_are_those_trained_alone(lstm_size: int, tmp_path: Path) -> None:
    flags = ["--task=CartPole-v1", "--device=cpu", "--env-steps=300", "--num-envs=4"]
    flags += [f"--lstm-size={lstm_size}", "--shared-trunk"]
    assert acer.main([*flags, "--seeds", "1", "2", f"--out={tmp_path / 'both'}"]) == 0
    assert acer.main([*flags, "--seeds", "2", f"--out={tmp_path / 'alone'}"]) == 0
    for name in ("episodes.csv", "policy.safetensors"):
        both = (tmp_path / "both" / "seed-2" / name).read_bytes()
        assert both == (tmp_path / "alone" / "seed-2" / name).read_bytes()


def test_the_learning_rate_falls_to_zero_and_stays_there(tmp_path: Path) -> None:
    """The horizon is its own setting: past it nothing is learned, whatever the budget."""
    config = replace(TINY, learning_rate_decay_steps=200)
    shorter, _ = train(replace(config, env_steps=220), tmp_path / "shorter")
    longer, recorder = train(config, tmp_path / "longer")
    assert torch.equal(shorter.optimiser.weights.vector, longer.optimiser.weights.vector)
    rates = table(recorder, "updates.csv").learning_rate
    assert rates.iloc[-1] == 0.0
    assert 0.4 * 7e-4 < rates.iloc[0] < 0.65 * 7e-4  # the row at 100 of 200 steps


SETTINGS: dict[str, Any] = {
    "num_envs": 5,
    "unroll_length": 6,
    "online_updates": False,
    "replay_ratio": 1.0,
    "replay_count": "fixed",
    "replay_capacity": 20,
    "replay_start": 40,
    "gamma": 0.9,
    "clip_rho_threshold": 0.9,
    "advantage_target": "q_opc",
    "trust_region_delta": None,
    "statistics": "logits",
    "entropy_in_trust_region": False,
    "tau": 0.5,
    "policy_coef": 0.5,
    "q_coef": 0.1,
    "entropy_coef": 0.1,
    "loss_reduction": "sum",
    "hidden_sizes": (8, 8, 8),
    "lstm_size": 5,
    "activation": "relu",
    "shared_trunk": False,
    "hidden_gain": 1.0,
    "policy_head_gain": 0.5,
    "q_head_gain": 0.5,
    "learning_rate": 3e-3,
    "learning_rate_decay_steps": 2_000,
    "rmsprop_epsilon_in_root": False,
    "rmsprop_initial_average": 0.0,
    "rmsprop_decay": 0.9,
    "rmsprop_epsilon": 0.1,
    "max_gradient_norm": 0.01,
    "time_limit_is_terminal": True,
    "normalise_observations": True,
}
MOVING = dict(env_steps=140, policy_head_gain=1.0, trust_region_delta=1e-3, learning_rate=2e-2) | {
    "evaluation_rule": "training"
}
"""A policy that moves away from its average and its past, so that every setting is felt."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> acer.Learner:
    return train(replace(TINY, **MOVING), tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, plain: acer.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    config = replace(TINY, **(MOVING | {name: SETTINGS[name]}))
    if name == "time_limit_is_terminal":
        config = replace(config, task="MountainCar-v0", env_steps=220, num_envs=1, unroll_length=20)
        plain, _ = train(replace(config, time_limit_is_terminal=False), tmp_path / "plain")
    changed, recorder = train(config, tmp_path / "changed")
    assert recorder.statuses == ["finished"]
    old, new = plain.optimiser.weights.vector, changed.optimiser.weights.vector
    assert old.shape != new.shape or not torch.equal(old, new)


def test_the_protocol_reaches_the_simulator(tmp_path: Path) -> None:
    """`sticky` has all 18 actions, `noframeskip` Pong's six; frames train and a policy loads."""
    small = replace(
        TINY, task="Pong-v5", num_envs=1, env_steps=10, replay_start=0, replay_ratio=1.0
    )
    for protocol, num_actions in (("noframeskip", 6), ("sticky", 18)):
        config = replace(small, protocol=protocol, convolutions="a3c")
        learner, recorder = train(config, tmp_path / protocol)
        assert learner.network.num_outputs == num_actions
        policy = agents.load_policy(recorder.seed_directories[0])
        assert policy.task.protocol == protocol
        frames = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84)).astype(np.uint8)
        prepared = torch.from_numpy(frames / 255).float()
        expected = learner.network(prepared)[0].argmax(-1)
        torch.testing.assert_close(torch.from_numpy(policy.act(frames)), expected)


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_a_saved_policy_acts_like_the_learner(shared_trunk: bool, tmp_path: Path) -> None:
    """The mode is the largest logit; draws have the policy's probabilities."""
    config = replace(TINY, shared_trunk=shared_trunk, policy_head_gain=1.0)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    logits = learner.network(torch.from_numpy(obs).flatten(0, 1))[0].detach()
    np.testing.assert_array_equal(policy(obs).flatten(), logits.argmax(-1))
    assert policy(obs[0, 0], np.random.default_rng(1)).shape == ()
    draws = policy(np.tile(obs[0, 0], (20_000, 1)), np.random.default_rng(1))
    assert draws.mean() == pytest.approx(logits[0].softmax(-1)[1].item(), abs=0.015)


def test_a_recurrent_policy_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest unroll begins with the actor's state: before any update it is on policy.

    The first of its updates gives the very probabilities that it was acted with, over ends and from
    unroll to unroll; an unroll from replay begins with 0. The saved policy acts so as well.
    """
    update, sample, gaps, replayed = acer.update, acer.UnrollReplay.sample, [], []
    drawn: list[Any] = []

    def noted(replay: Any, generator: np.random.Generator) -> Any:
        drawn.append(sample(replay, generator))
        return drawn[-1]

    def checked(learner: Any, config: Any, batch: Any, rate: float, memory: Any) -> Tensor:
        with torch.no_grad():
            logits, _ = learner.network.unroll(batch, memory)
        gap = (logits[:-1].log_softmax(-1) - batch.behaviour).abs().amax(-1)[batch.valid > 0]
        is_drawn = any(batch is each for each in drawn)
        assert not (is_drawn and memory.any())
        (replayed if is_drawn else gaps).append(gap.max().item())
        return update(learner, config, batch, rate, memory)

    monkeypatch.setattr(acer, "update", checked)
    monkeypatch.setattr(acer.UnrollReplay, "sample", noted)
    config = replace(TINY, lstm_size=6, policy_head_gain=1.0, learning_rate=0.01)
    learner, recorder = train(config, tmp_path)
    assert len(gaps) > 15
    assert max(gaps) < 1e-5
    assert min(replayed) > 1e-4
    network, policy = learner.network, agents.load_policy(recorder.seed_directories[0])
    env = VectorEnv(policy.task, np.array([[3, 4, 5]]))
    obs, memory, starts = env.reset(), network.actor.begin(3), None
    for _ in range(60):
        with torch.no_grad():
            logits, memory = network.step(torch.from_numpy(obs[0]), memory)
        actions = policy.act(obs, starts=starts)
        assert torch.equal(torch.from_numpy(actions[0]), logits.argmax(-1))
        step = env.step(actions)
        memory = network.actor.remember(memory, actions[0], step.rewards[0], step.valid[0])
        obs, starts = step.obs, ~step.valid


def test_evaluation_may_be_deterministic(tmp_path: Path) -> None:
    """The same weights are scored by their mode or by draws, and no evaluation disturbs them."""
    config = replace(TINY, env_steps=200, policy_head_gain=1.0)
    weights, returns = {}, {}
    for rule in ("sampled", "deterministic", "training"):
        learner, recorder = train(replace(config, evaluation_rule=rule), tmp_path / rule)
        weights[rule] = learner.optimiser.weights.vector
        if rule != "training":
            returns[rule] = table(recorder, "evaluations.csv").to_numpy()[-1]
    assert torch.equal(weights["sampled"], weights["deterministic"])
    assert torch.equal(weights["sampled"], weights["training"])
    assert not np.array_equal(returns["sampled"], returns["deterministic"])


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("env_steps", 19), ("seeds", ()), ("hidden_sizes", (0,))],
        *[("unroll_length", 0), ("replay_ratio", -1.0), ("replay_capacity", 4)],
        *[("replay_start", 60_000), ("replay_start", -1), ("clip_rho_threshold", 0.0)],
        *[("trust_region_delta", -0.5), ("tau", 1.5), ("policy_coef", -1.0), ("q_coef", -0.5)],
        *[("entropy_coef", -0.01), ("learning_rate", 0.0), ("learning_rate_decay_steps", -1)],
        *[("rmsprop_decay", 1.0), ("rmsprop_epsilon", 0.0), ("max_gradient_norm", 0.0)],
        *[("rmsprop_initial_average", -0.5)],
        *[("hidden_gain", 0.0), ("q_head_gain", 0.0), ("policy_head_gain", 0.0)],
        *[("num_envs", 0), ("task", "CartPol-v1"), ("task", "Pendulum-v1")],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    assert str(shown) in str(error.value)


def test_replay_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="online_updates"):
        replace(TINY, online_updates=False, replay_ratio=0.0)
    with pytest.raises(UsageError, match=r"must be whole, not 0\.5"):
        replace(TINY, replay_count="fixed", replay_ratio=0.5)
    with pytest.raises(UsageError, match="lstm_size needs shared_trunk"):
        replace(TINY, lstm_size=8, shared_trunk=False)


def test_presets_state_their_sources_settings() -> None:
    """The numbers that decide whether published curves come out."""
    atari = acer.PRESETS["atari-7", "openai_baselines"]
    ours = atari.config
    assert (atari.judged_by, atari.protocol) == ("openai_baselines", "noframeskip")
    assert (ours.num_envs, ours.unroll_length, ours.replay_ratio) == (16, 20, 4.0)
    assert (ours.replay_capacity, ours.replay_start, ours.replay_count) == (
        50_000,
        10_000,
        "poisson",
    )
    assert (ours.rmsprop_epsilon_in_root, ours.rmsprop_initial_average) == (True, 1.0)
    assert ours.rmsprop_epsilon == 1e-5
    assert (ours.learning_rate, ours.learning_rate_decay_steps) == (7e-4, 0)
    assert (ours.entropy_coef, ours.q_coef, ours.max_gradient_norm) == (0.01, 0.5, 10.0)
    assert (ours.clip_rho_threshold, ours.trust_region_delta, ours.tau) == (10.0, 1.0, 0.01)
    assert (ours.statistics, ours.entropy_in_trust_region) == ("probabilities", True)
    assert ours.shared_trunk
    assert ours.evaluation_rule == "training"
    for preset in acer.PRESETS.values():
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)
        assert not preset.seeds_together


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [{"lstm_size": 6}, {"normalise_observations": True}, {"task": "Pong-v5"}]
)
def test_a_gpu_learns_what_the_cpu_learns(settings: dict[str, Any], tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after a few updates."""
    config = replace(TINY, env_steps=60, replay_start=0, **settings)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    ours, theirs = gpu.optimiser.weights.vector.cpu(), cpu.optimiser.weights.vector
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
