"""Continuous ACER: every equation against a slow re-derivation, then what training must do."""

import dataclasses
import inspect
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

import agents
from agents import acer_continuous as acer
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces, VectorEnv
from suite.nets.optimisers import FlatWeights
from suite.record.recorder import Recorder
from suite.unrolls import Outcomes, Transitions, UnrollReplay
from tests.scripted import ScriptedEnv
from tests.slow_lstm import slow_lstm

CPU = torch.device("cpu")
TINY = acer.Config(
    task="Pendulum-v1",
    device="cpu",
    env_steps=240,
    num_envs=4,
    unroll_length=5,
    replay_ratio=2.0,
    replay_start=20,
    hidden_sizes=(16, 16),
    advantage_hidden_sizes=(8, 8),
    evaluation_interval=240,
    evaluation_episodes=1,
    log_interval=60,
)
CONTROL = Spaces.vectors(4, 3)
"""Spaces with three dimensions of action."""


def train(config: acer.Config, directory: Path) -> tuple[acer.Learner, Recorder]:
    recorder = Recorder(directory, {"agent": "acer_continuous", "task": config.task}, config.seeds)
    learner = acer.train(config, recorder)
    recorder.finish()
    return learner, recorder


def table(recorder: Recorder, name: str) -> pd.DataFrame:
    return pd.read_csv(recorder.seed_directories[0] / name)


def draw(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def distribution(gaussian: acer.Gaussian) -> Independent:
    return Independent(Normal(gaussian.means, gaussian.log_stds.exp()), 1)


# Gaussians


def test_densities_and_entropies_equal_torch_distributions() -> None:
    gaussian, actions = acer.Gaussian(draw(0, 5, 3), 0.5 * draw(1, 5, 3)), draw(2, 7, 5, 3)
    reference = distribution(gaussian)
    torch.testing.assert_close(gaussian.log_probs(actions), reference.log_prob(actions))
    torch.testing.assert_close(gaussian.entropies(), reference.entropy())
    expected = gaussian.means + gaussian.log_stds.exp() * actions
    torch.testing.assert_close(gaussian.draw(actions), expected)


def test_scores_are_the_gradients_of_densities() -> None:
    """By means first, then by log deviations."""
    means, log_stds = draw(0, 5, 3).requires_grad_(), (0.5 * draw(1, 5, 3)).requires_grad_()
    gaussian, actions = acer.Gaussian(means, log_stds), draw(2, 5, 3)
    gradients = torch.autograd.grad(distribution(gaussian).log_prob(actions).sum(), gaussian)
    torch.testing.assert_close(gaussian.scores(actions).detach(), torch.cat(gradients, -1))


def test_divergence_and_its_gradient_equal_torch_distributions() -> None:
    """KL(average || policy), by the policy's statistics; the other order differs."""
    average = acer.Gaussian(draw(0, 5, 3), 0.5 * draw(1, 5, 3))
    means, log_stds = draw(2, 5, 3).requires_grad_(), (0.5 * draw(3, 5, 3)).requires_grad_()
    policy = acer.Gaussian(means, log_stds)
    expected = kl_divergence(distribution(average), distribution(policy))
    torch.testing.assert_close(acer.divergences(average, policy), expected)
    assert (acer.divergences(policy, average) - expected).abs().min() > 0.01
    gradients = torch.cat(torch.autograd.grad(expected.sum(), policy), -1)
    torch.testing.assert_close(acer.divergence_gradients(average, policy).detach(), gradients)


def test_the_divergence_from_itself_is_flat() -> None:
    """Right after a start: no divergence, no gradient, and so nothing to project."""
    policy = acer.Gaussian(draw(0, 5, 3), 0.5 * draw(1, 5, 3))
    assert torch.equal(acer.divergences(policy, policy), torch.zeros(5).double())
    flat = acer.divergence_gradients(policy, policy)
    assert torch.equal(flat, torch.zeros(5, 6).double())
    gradients = 100 * draw(2, 5, 6)
    assert torch.equal(acer.trust_region(gradients, flat, 0.1), gradients)


# Stochastic duelling network


def test_with_a_linear_advantage_the_duel_is_exact() -> None:
    """Draws in pairs around the mean: A of the mean cancels, so Q of the mean action is V."""
    policy, slope = acer.Gaussian(draw(0, 6, 2), 0.3 * draw(1, 6, 2)), draw(2, 2)
    noise = draw(3, 4, 6, 2)
    draws = policy.draw(torch.cat([noise, -noise]))
    values, actions = draw(4, 6), torch.stack([policy.means, policy.means + 1])
    q_values = acer.duel(values, actions @ slope, draws @ slope)
    torch.testing.assert_close(q_values[0], values)
    torch.testing.assert_close(q_values[1], values + slope.sum())


@pytest.mark.parametrize("num_samples", [1, 5])
def test_under_the_policy_the_mean_of_q_is_v(num_samples: int) -> None:
    """Whatever network A is: 40,000 actions and draws of their own, within 4 standard errors."""
    network = acer.make_learner(replace(TINY, initial_std=0.8), CONTROL, CPU).network
    obs, count = draw(0, 1, 4).float().expand(40_000, 4), 40_000
    with torch.no_grad():
        policy = network.policy(obs)
        noise = draw(1, num_samples + 1, count, 3).float()
        advantages = 10 * network.advantage(obs, policy.draw(noise)).squeeze(-1)
        values = network.critic(obs).squeeze(-1)
        terms = acer.duel(values, advantages[:1], advantages[1:])[0] - values
        single = advantages[0] - advantages[0].mean()
    assert single.std() > 0.5
    error = float(single.std()) * math.sqrt((1 + 1 / num_samples) / count)
    assert abs(float(terms.mean())) < 4 * error
    # one action's Q is spread by the n draws, as little as their number says
    ratio = float(terms.std() / single.std())
    assert ratio == pytest.approx(math.sqrt(1 + 1 / num_samples), rel=0.02)


def plain_layers(layers: Any, inputs: Tensor) -> Tensor:
    """The layers as one would write them down."""
    *hidden, (weight, bias) = zip(layers.weights, layers.biases, strict=True)
    for hidden_weight, hidden_bias in hidden:
        inputs = torch.relu(inputs @ hidden_weight + hidden_bias)
    return inputs @ weight + bias


def test_the_advantage_is_a_network_of_both_observation_and_action() -> None:
    """Computing the observation's share once is the network on both side by side."""
    layers = acer.make_learner(TINY, CONTROL, CPU).network.advantage
    obs, actions = draw(0, 6, 4).float(), draw(1, 5, 6, 3).float()
    pairs = torch.cat([obs.expand(5, 6, 4), actions], -1)
    torch.testing.assert_close(layers(obs, actions), plain_layers(layers, pairs))


# The policy's gradient


def integrate(integrand: Tensor, step: float) -> Tensor:
    return (integrand.sum(0) - (integrand[0] + integrand[-1]) / 2) * step


@pytest.mark.parametrize("threshold", [0.5, 1.0, 10.0, None])
def test_truncation_and_correction_leave_the_expected_gradient_exact(
    threshold: float | None,
) -> None:
    """Over a ~ mu and a' ~ pi, with one Q in both terms, it is the gradient of E_pi[Q].

    By numerical integration in one dimension; importance weights go beyond 10.
    """
    grid = torch.linspace(-12, 12, 24_001, dtype=torch.float64)[:, None]
    step = 24 / 24_000
    means, log_stds = (torch.tensor([[x]], dtype=torch.float64) for x in (0.9, math.log(0.5)))
    behaviour = acer.Gaussian(torch.full_like(means, -0.3), torch.full_like(means, math.log(0.7)))
    q_values = (grid**3 - grid + torch.sin(3 * grid)).squeeze(-1)
    means.requires_grad_()
    log_stds.requires_grad_()
    learning = acer.Gaussian(means, log_stds)
    value = integrate(learning.log_probs(grid).exp() * q_values, step)
    exact = torch.cat(torch.autograd.grad(value, learning), -1).squeeze(0)

    rows = len(grid)
    policy, behaviour = (
        acer.Gaussian(*(part.detach().expand(rows, 1) for part in gaussian))
        for gaussian in (learning, behaviour)
    )
    log_rhos = policy.log_probs(grid) - behaviour.log_probs(grid)
    values = value.detach().expand(rows)

    def gradients(targets: Tensor, correction_q_values: Tensor) -> Tensor:
        arguments = (policy, behaviour, grid, targets, grid, correction_q_values, values)
        return acer.policy_gradients(*arguments, threshold)

    truncated, corrections = gradients(q_values, values), gradients(values, q_values)
    expected = integrate(behaviour.log_probs(grid).exp().unsqueeze(-1) * truncated, step)
    expected += integrate(policy.log_probs(grid).exp().unsqueeze(-1) * corrections, step)
    torch.testing.assert_close(expected, exact, rtol=1e-6, atol=1e-8)
    likely = policy.log_probs(grid) > -8
    assert log_rhos[likely].max() > math.log(10)
    assert (corrections.abs().max() > 0) == (threshold is not None)


# One update


def random_flags(generator: np.random.Generator, steps: int, num_envs: int) -> tuple[Any, ...]:
    """Ends of both kinds inside an unroll, and the ignored row after each of them."""
    kinds = generator.choice(3, size=(steps, num_envs), p=[0.6, 0.2, 0.2])
    valid = np.ones((steps, num_envs), dtype=bool)
    for t in range(1, steps):
        valid[t] = ~(valid[t - 1] & (kinds[t - 1] > 0))
        kinds[t][~valid[t]] = 0
    return kinds == 1, kinds == 2, valid


def random_batch(config: acer.Config, seed: int) -> Transitions:
    """One unroll of random steps, with ends of both kinds and ignored rows."""
    rng, shape = np.random.default_rng(seed), (config.unroll_length, config.num_envs)

    def numbers(steps: int, size: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(steps, shape[1], size)).astype(np.float32))

    rewards = rng.normal(size=shape).astype(np.float32)
    outcomes = Outcomes(rewards, *random_flags(rng, *shape))
    behaviour = acer.Gaussian(0.3 * numbers(shape[0], 3), 0.3 * numbers(shape[0], 3) - 1)
    return Transitions(
        numbers(shape[0] + 1, 4),
        behaviour.draw(numbers(shape[0], 3)),
        torch.cat(behaviour, -1),
        *outcomes.tensors(CPU, config.gamma, config.time_limit_is_terminal),
    )


def doubled(batch: Transitions) -> Transitions:
    """The batch in float64."""
    batch = Transitions(*(part.double() for part in batch))
    return batch._replace(weights=batch.valid / batch.valid.sum())


def make_exact(module: Any, config: Any) -> tuple[Any, Any]:
    """A learner in float64 that keeps its gradient; a step only adds the rate to all weights."""

    class Exact(module.RMSprop):
        seen: Any = None

        def step(self, gradient: Tensor, learning_rate: float) -> None:
            self.seen = gradient
            self.weights.vector += learning_rate

    rng = np.random.default_rng(2)
    network = module.ActorCritic(config, CONTROL, rng).double()
    average = module.ActorCritic(config, CONTROL, rng).policy.double().requires_grad_(False)
    if config.std == "learned":
        network.policy.log_stds.data += draw(7, 3)
    exact = Exact.configured(FlatWeights(network), config)
    return module.Learner(network, average, exact, None), exact


def statistics(config: Any, policy: Any, obs: Tensor) -> Tensor:
    """Means and log deviations of one observation, side by side, as one would write them down."""
    outputs = plain_layers(policy.layers, obs)
    means = outputs[:3].tanh() if config.bounded_mean else outputs[:3]
    if config.std == "state_dependent":
        log_stds = (1 + outputs[3].exp()).log().sqrt().log().expand(3)
    else:
        log_stds = policy.log_stds
    return torch.cat([means, log_stds])


def slow_features(policy: Any, batch: Any, memory: Tensor) -> Tensor:
    """What the networks read of every step: observations, or the LSTM's outputs on them."""
    if not memory.shape[1]:
        return batch.obs
    return slow_lstm(policy.lstm.lstm, batch.obs, None, memory, batch)


def slow_gradient(
    config: Any, network: Any, average: Any, batch: Any, noise: Tensor, memory: Tensor
) -> Tensor:
    """The gradient of one update, row by row from the paper's equations, by autograd."""
    steps, size = batch.rewards.shape
    seen, slow_seen = (slow_features(each, batch, memory) for each in (network.policy, average))
    num_rows, loss = batch.valid.sum(), torch.zeros((), dtype=torch.float64)

    def normal(phi: Tensor) -> Independent:
        return Independent(Normal(phi[:3], phi[3:].exp()), 1)

    @cache
    def policy(t: int, i: int) -> Independent:
        return normal(statistics(config, network.policy, seen[t, i]).detach())

    def ratio(t: int, i: int, action: Tensor) -> float:  # pi(a|x) / mu(a|x)
        behaviour = normal(batch.behaviour[t, i])
        return float((policy(t, i).log_prob(action) - behaviour.log_prob(action)).exp())

    @cache
    def value(t: int, i: int) -> Tensor:
        return plain_layers(network.critic, seen[t, i])[0]

    def q_value(t: int, i: int, action: Tensor) -> Tensor:  # Eq. (13)
        def advantage(a: Tensor) -> Tensor:
            return plain_layers(network.advantage, torch.cat([seen[t, i], a]))[0]

        pi = policy(t, i).base_dist
        draws = [pi.loc + pi.scale * noise[k, t, i] for k in range(1, len(noise))]
        others = sum((advantage(u) for u in draws), torch.zeros(())) / len(draws)
        return value(t, i) + advantage(action) - others

    @cache
    def target(t: int, i: int, traced: bool) -> Tensor:  # Eq. (5), or Q_opc
        estimate = value(t + 1, i).detach()
        if t + 1 < steps and batch.trace_mask[t, i]:
            a = batch.actions[t + 1, i]
            c = min(1.0, ratio(t + 1, i, a) ** (1 / 3)) if traced else 1.0
            estimate = estimate + c * (target(t + 1, i, traced) - q_value(t + 1, i, a).detach())
        return batch.rewards[t, i] + batch.discounts[t, i] * estimate

    for t in range(steps):
        for i in range(size):
            if not batch.valid[t, i]:
                continue
            a, v, pi = batch.actions[t, i], value(t, i), policy(t, i).base_dist
            out = statistics(config, network.policy, seen[t, i])
            phi = out.detach().requires_grad_()
            c = config.clip_rho_threshold or math.inf
            advantage = target(t, i, config.advantage_target == "q_retrace") - v.detach()
            objective = min(c, ratio(t, i, a)) * advantage * normal(phi).log_prob(a)
            b = pi.loc + pi.scale * noise[0, t, i]
            share = max(0.0, 1 - c / ratio(t, i, b))
            better = (q_value(t, i, b) - v).detach()
            objective = objective + share * better * normal(phi).log_prob(b)
            (g,) = torch.autograd.grad(objective, phi)
            slow = normal(statistics(config, average, slow_seen[t, i]))
            (k,) = torch.autograd.grad(kl_divergence(slow, normal(phi)), phi)
            if config.std == "fixed":
                g, k, out = g[:3], k[:3], out[:3]
            z = g
            if config.trust_region_delta is not None:
                excess = (k @ g - config.trust_region_delta) / (k @ k)  # Eq. (12)
                z = g - max(0.0, float(excess)) * k
            if config.std != "fixed":
                bonus = config.entropy_coef * normal(phi).entropy()
                z = z + torch.autograd.grad(bonus, phi)[0]
            q, q_retrace = q_value(t, i, a), target(t, i, True)
            better_value = (min(1.0, ratio(t, i, a)) * (q_retrace - q) + v).detach()  # Eq. (14)
            loss = loss - (z @ out) / num_rows
            loss = loss + config.q_coef * 0.5 * (q_retrace - q) ** 2 / num_rows
            loss = loss + config.value_coef * 0.5 * (better_value - v) ** 2 / num_rows
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def check_update(module: Any, carried: bool = True, **settings: Any) -> None:
    """Fail unless the module's update is what the paper's equations say.

    Args:
        module: `acer_continuous`, or a version of it.
        carried: whether an LSTM goes on from a state, or begins with 0.
        settings: what differs from the standard.
    """
    standard = {"unroll_length": 6, "policy_head_gain": 1.0, "entropy_coef": 0.1}
    standard |= {"clip_rho_threshold": 1.5, "trust_region_delta": 0.05, "replay_capacity": 100}
    config = replace(TINY, **(standard | settings))
    batch = doubled(random_batch(config, 4))
    noise = draw(3, config.num_action_samples + 1, *batch.actions.shape)
    own = module.Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    learner, exact = make_exact(module, own)
    before = exact.weights.vector.clone()
    average = [p.clone() for p in learner.average_policy.parameters()]
    memory = draw(6, config.num_envs, 2 * config.lstm_size) * carried
    policies = learner.network, learner.average_policy
    expected = slow_gradient(config, *policies, batch, noise, memory)
    norm = expected.norm()
    metrics = module.update(learner, own, batch, noise, 0.1, memory if carried else None)
    assert metrics[-1] == pytest.approx(float(norm))
    if config.max_gradient_norm is not None:
        expected = expected * min(1.0, config.max_gradient_norm / float(norm))
    torch.testing.assert_close(exact.seen, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(exact.weights.vector, before + 0.1)
    # theta_a <- alpha theta_a + (1 - alpha) theta, after the step
    policy = list(learner.network.policy.parameters())
    for new, old, fast in zip(learner.average_policy.parameters(), average, policy, strict=True):
        torch.testing.assert_close(new, 0.995 * old + 0.005 * fast)


UPDATES: list[dict[str, Any]] = [
    {},
    {"std": "learned"},
    {"std": "state_dependent", "bounded_mean": True},
    {"trust_region_delta": None, "clip_rho_threshold": None, "std": "learned"},
    {"advantage_target": "q_retrace", "num_action_samples": 1},
    {"q_coef": 0.3, "value_coef": 2.0, "max_gradient_norm": 0.01},
    {"time_limit_is_terminal": True},
    {"lstm_size": 5},
    {"lstm_size": 5, "carried": False, "std": "learned", "advantage_target": "q_retrace"},
]


@pytest.mark.parametrize("settings", UPDATES, ids=str)
def test_an_update_is_what_the_equations_say(settings: dict[str, Any]) -> None:
    """Gradient of all weights and the average policy, in float64, with ends inside the unroll."""
    check_update(acer, **settings)


MISTAKES = {
    "the trust region pulls away": (
        "trust_region(before, k, config",
        "trust_region(before, -k, config",
    ),
    "the divergence is KL(policy || average)": (
        "divergence_gradients(average, policy)",
        "-divergence_gradients(policy, average)",
    ),
    "the objective descends": ("value_loss - objective", "value_loss + objective"),
    "Retrace weighs by c of t": ("cs[1:].flip(0)", "cs[:-1].flip(0)"),
    "c has no exponent 1/d": ("(log_rhos / num_dimensions).exp()", "log_rhos.exp()"),
    "the average policy follows at the wrong rate": (
        "slow.lerp_(fast, config.tau)",
        "slow.lerp_(fast, 1 - config.tau)",
    ),
    "the trace's ratio is the average policy's": (
        "log_rhos = policy.log_probs(batch.actions)",
        "log_rhos = average.log_probs(batch.actions)",
    ),
    "the gradient's ratio is upside down": (
        "log_rhos = policy.log_probs(actions) - behaviour.log_probs(actions)",
        "log_rhos = behaviour.log_probs(actions) - policy.log_probs(actions)",
    ),
    "the correction takes the ratio of the action taken": (
        "policy.log_probs(corrections) - behaviour.log_probs(corrections)",
        "policy.log_probs(actions) - behaviour.log_probs(actions)",
    ),
    "the policy learns from Retrace": ("if opc else q_retrace", "if not opc else q_retrace"),
    "V takes the trace's weight": (
        "errors = log_rhos.exp().clamp(max=1)",
        "errors = (log_rhos / num_dimensions).exp().clamp(max=1)",
    ),
    "the average policy reads the other's LSTM": (
        "learner.average_policy(slow_rows[:-size])",
        "learner.average_policy(acted_on)",
    ),
    "the draws of the duel are not centred": (
        "values + advantages - sampled_advantages.mean(0)",
        "values + advantages",
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
    check_update(planted, std="learned", lstm_size=5)
    exec(compile(source.replace(right, wrong), "planted", "exec"), planted.__dict__)
    with pytest.raises(AssertionError):
        check_update(planted, std="learned", lstm_size=5)


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
            batch.actions[ignored] = 1.0
            batch.discounts[ignored] = 0.0
            batch.behaviour[ignored] = 0.5
        metrics = acer.update(learner, config, batch, draw(1, 6, 8, 4, 3).float(), 1e-2)
        outcomes.append((learner.optimiser.weights.vector, metrics))
    for plain, scrambled in zip(*outcomes, strict=True):
        assert torch.equal(plain, scrambled)


def single(number: float, *shape: int) -> Tensor:
    return torch.full(shape, number)


def test_diagnostics_are_what_they_are_called() -> None:
    """Of one state: divergence, entropy, values, errors, the truncated share, and both norms."""
    config = replace(TINY, unroll_length=1, clip_rho_threshold=2.0, trust_region_delta=0.1)
    policy = acer.Gaussian(single(0.5, 1, 1, 2), single(-1.0, 1, 1, 2))
    average = acer.Gaussian(single(0.3, 1, 1, 2), single(-1.0, 1, 1, 2))
    ones = torch.ones(1, 1)
    batch = Transitions(
        obs=torch.zeros(2, 1, 4),
        actions=single(0.5, 1, 1, 2),
        behaviour=torch.cat([single(-0.5, 1, 1, 2), single(-1.0, 1, 1, 2)], -1),
        rewards=5 * ones,
        discounts=0 * ones,
        trace_mask=0 * ones,
        valid=ones,
        weights=ones,
    )
    behaviour = acer.Gaussian(*batch.behaviour.chunk(2, -1))
    values, q_values = torch.tensor([[2.0], [9.0]]), torch.tensor([[[3.0]], [[7.0]]])
    corrections = single(0.4, 1, 1, 2)
    policies = (behaviour, policy, average)
    signals = acer.learning_signals(config, batch, *policies, values, corrections, q_values)
    seen = dict(zip(acer.METRICS, signals.diagnostics[:, 0, 0].tolist(), strict=False))
    assert signals.value_targets.item() == pytest.approx(2 + (5 - 3))  # a ratio beyond 1
    assert seen["q_loss"] == seen["value_loss"] == pytest.approx(0.5 * (5 - 3) ** 2)
    assert (seen["q_value"], seen["value"]) == pytest.approx((3.0, 2.0))
    assert seen["entropy"] == pytest.approx(float(distribution(policy).entropy()))
    divergence = kl_divergence(distribution(average), distribution(policy))
    assert seen["kl"] == pytest.approx(float(divergence), rel=1e-5)
    assert seen["truncated_share"] == 1.0
    assert seen["projected_gradient_norm"] <= seen["statistics_gradient_norm"]


@pytest.mark.parametrize("clip_rho_threshold", [5.0, None])
def test_far_away_behaviour_keeps_the_update_finite(clip_rho_threshold: float | None) -> None:
    """Ratios beyond the reach of float32, both ways."""
    for shift in (-30.0, 30.0):
        config = replace(TINY, unroll_length=6, clip_rho_threshold=clip_rho_threshold)
        batch, learner = random_batch(config, 4), acer.make_learner(config, CONTROL, CPU)
        batch.behaviour[..., :3] += shift  # the means
        metrics = acer.update(learner, config, batch, draw(1, 6, 6, 4, 3).float(), 1e-3)
        assert torch.isfinite(metrics).all()
        assert torch.isfinite(learner.optimiser.weights.vector).all()


def test_the_memory_of_a_run_is_known() -> None:
    """That of its replay, by the sizes of the task's own observations and actions."""
    config = replace(TINY, env_steps=10**6, num_envs=16, replay_capacity=5_000)
    sizes = {"HalfCheetah-v4": (17, 6), "Humanoid-v4": (376, 17), "Pendulum-v1": (3, 1)}
    for task, (obs_size, num_actions) in sizes.items():
        config = replace(config, task=task)
        replay = UnrollReplay(Spaces.vectors(obs_size, num_actions), config, 2 * num_actions, CPU)
        parts = [*vars(replay).values(), *vars(replay)["_outcomes"]]
        size = sum(part.nbytes for part in parts if isinstance(part, np.ndarray | torch.Tensor))
        assert config.memory_bytes == pytest.approx(size, rel=0.02), task
    assert replace(config, env_steps=10_000).memory_bytes < config.memory_bytes / 3
    assert replace(config, replay_ratio=0.0, online_updates=True).memory_bytes < 2**18


# Training on a scripted task


@pytest.fixture
def scripted(scripted: type[ScriptedEnv]) -> type[ScriptedEnv]:
    """Make the agent train on continuous actions."""
    scripted.spaces = Spaces.vectors(1, 1)
    return scripted


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
        env_steps=2_400,
        gamma=0.8,
        hidden_sizes=(32, 32),
        replay_ratio=4.0,
        batch_unrolls=8,
        rmsprop_epsilon=1e-5,
        learning_rate=5e-3,
        time_limit_is_terminal=terminal,
        evaluation_rule="training",
    )
    learner, recorder = train(config, tmp_path)
    with torch.no_grad():
        estimate = learner.network.critic(torch.tensor([[0.0]])).item()
    assert estimate == pytest.approx(value, rel=0.06)
    episodes = table(recorder, "episodes.csv")
    assert episodes.env_steps.tolist()[::4] == list(
        range(32, int(episodes.env_steps.max()) + 1, 32)
    )


def test_rewards_are_scaled_for_learning_alone(
    scripted: type[ScriptedEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the factor asked for, in new unrolls as in replayed ones; episodes keep their returns."""
    update, seen = acer.update, []

    def watched(learner: Any, config: Any, batch: Transitions, *others: Any) -> Tensor:
        seen.append(batch.rewards[batch.valid > 0])
        return update(learner, config, batch, *others)

    monkeypatch.setattr(acer, "update", watched)
    config = replace(TINY, reward_scale=0.25, online_updates=True, replay_start=0, env_steps=100)
    _, recorder = train(replace(config, evaluation_rule="training"), tmp_path)
    assert set(torch.cat(seen).tolist()) == {0.25}
    assert set(table(recorder, "episodes.csv").episode_return) == {8.0}


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, evaluation_rule="training"), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()


# Training on the real simulator


@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
def test_training_records_everything(std: Any, tmp_path: Path) -> None:
    config = replace(TINY, std=std)
    learner, recorder = train(config, tmp_path)
    before = acer.make_learner(config, Spaces((3,), 1, (-2.0,), (2.0,)), CPU)
    for old, new in zip(before.network.parameters(), learner.network.parameters(), strict=True):
        assert not torch.equal(old, new)
    for old, new in zip(
        before.average_policy.parameters(), learner.average_policy.parameters(), strict=True
    ):
        assert not torch.equal(old, new)
    updates = table(recorder, "updates.csv")
    assert updates.columns.tolist() == ["env_steps", "num_updates", *acer.METRICS]
    assert np.isfinite(updates.to_numpy()).all()
    assert (updates.entropy.std() < 1e-6) == (std == "fixed")
    evaluations = table(recorder, "evaluations.csv")
    assert evaluations.env_steps.iloc[-1] == updates.env_steps.iloc[-1] <= 240


@pytest.mark.usefixtures("unchecked")
def test_steps_are_those_of_episodes(tmp_path: Path) -> None:
    """`env_steps` counts real transitions: episode lengths add up to it, one environment alone."""
    config = replace(TINY, num_envs=1, env_steps=620, unroll_length=7, replay_ratio=1.0)
    _, recorder = train(replace(config, evaluation_rule="training"), tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert episodes.episode_length.tolist() == [200] * 3
    assert episodes.env_steps.tolist() == [200, 400, 600]


def count_updates(config: acer.Config, directory: Path) -> tuple[int, int]:
    """Return how many updates a run made, and how many unrolls of each environment it collected."""
    unrolls, sizes = [], set()

    class Counted(UnrollReplay):
        def read(self, numbers: np.ndarray, envs: np.ndarray) -> Transitions:
            unrolls.append(self.num_unrolls)
            sizes.add(len(envs))
            return super().read(numbers, envs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acer, "UnrollReplay", Counted)
        _, recorder = train(replace(config, evaluation_rule="training"), directory)
    assert len(unrolls) == table(recorder, "updates.csv").num_updates.iloc[-1]
    online = {config.num_envs} if config.online_updates else set()
    assert sizes == online | ({config.batch_unrolls} if config.replay_ratio else set())
    return len(unrolls), max(unrolls)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", ["poisson", "fixed"])
def test_replay_follows_its_ratio(count: Any, tmp_path: Path) -> None:
    """Of four new unrolls 3 * 4 are learned from again, two in each update: 6 updates."""
    config = replace(TINY, env_steps=600, replay_start=0, replay_ratio=3.0, replay_count=count)
    updates, unrolls = count_updates(replace(config, batch_unrolls=2), tmp_path)
    assert unrolls >= 25
    if count == "fixed":
        assert updates == 6 * unrolls
    else:
        assert updates != 6 * unrolls
        assert updates / unrolls == pytest.approx(6, abs=3 * math.sqrt(6 / unrolls))


def test_replay_waits_until_it_has_enough(tmp_path: Path) -> None:
    """`replay_start` counts steps of each environment: with unrolls of 5, 60 are 12 unrolls."""
    config = replace(TINY, env_steps=320, replay_start=60, replay_count="fixed")
    updates, unrolls = count_updates(config, tmp_path)
    assert unrolls >= 15
    assert updates == 8 * (unrolls - 11)


def test_updates_may_be_online_as_well_or_alone(tmp_path: Path) -> None:
    """All of the newest unrolls make one update."""
    config = replace(TINY, replay_start=0, replay_count="fixed", online_updates=True)
    updates, unrolls = count_updates(replace(config, replay_ratio=0.0), tmp_path / "alone")
    assert updates == unrolls
    updates, unrolls = count_updates(replace(config, replay_ratio=2.0), tmp_path / "as well")
    assert updates == 9 * unrolls


@pytest.mark.usefixtures("unchecked")
def test_the_same_command_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nothing but the command decides, not even a global generator that was used in between."""
    config = replace(TINY, env_steps=450, num_envs=2, std="learned", batch_unrolls=4)
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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("lstm_size", [0, 6])
def test_seeds_of_one_command_are_those_trained_alone(lstm_size: int, tmp_path: Path) -> None:
    flags = [f"--lstm-size={lstm_size}"]
    flags += ["--task=Pendulum-v1", "--device=cpu", "--env-steps=450", "--num-envs=2"]
    flags += ["--unroll-length=10", "--batch-unrolls=8", "--evaluation-episodes=1"]
    flags += ["--hidden-sizes", "16", "16", "--advantage-hidden-sizes", "8"]
    assert acer.main([*flags, "--seeds", "1", "2", f"--out={tmp_path / 'both'}"]) == 0
    assert acer.main([*flags, "--seeds", "2", f"--out={tmp_path / 'alone'}"]) == 0
    for name in ("episodes.csv", "policy.safetensors"):
        both = (tmp_path / "both" / "seed-2" / name).read_bytes()
        assert both == (tmp_path / "alone" / "seed-2" / name).read_bytes()


def test_the_learning_rate_falls_linearly_to_zero_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before the newest unroll decide; past the horizon nothing is learned."""
    update, rates = acer.update, []

    def watched(learner: Any, config: Any, batch: Any, noise: Any, *others: Any) -> Tensor:
        rates.append(others[0])
        return update(learner, config, batch, noise, *others)

    monkeypatch.setattr(acer, "update", watched)
    settings: dict[str, Any] = {"evaluation_rule": "training", "online_updates": True}
    config = replace(TINY, learning_rate_decay_steps=200, replay_ratio=1.0, **settings)
    shorter, _ = train(replace(config, env_steps=220), tmp_path / "shorter")
    expected = [3e-4 * (1 - env_steps / 200) for env_steps in range(0, 220, 20)]
    assert list(dict.fromkeys(rates)) == pytest.approx(expected)
    longer, _ = train(config, tmp_path / "longer")
    assert rates[-1] == 0.0
    assert torch.equal(shorter.optimiser.weights.vector, longer.optimiser.weights.vector)
    rates.clear()
    constant, _ = train(replace(config, learning_rate_decay_steps=0), tmp_path / "constant")
    assert set(rates) == {3e-4}
    assert not torch.equal(constant.optimiser.weights.vector, longer.optimiser.weights.vector)


SETTINGS: dict[str, Any] = {
    "num_envs": 5,
    "unroll_length": 6,
    "online_updates": True,
    "replay_ratio": 1.0,
    "replay_count": "fixed",
    "batch_unrolls": 4,
    "replay_capacity": 20,
    "replay_start": 40,
    "gamma": 0.9,
    "reward_scale": 0.1,
    "num_action_samples": 2,
    "clip_rho_threshold": 0.9,
    "advantage_target": "q_retrace",
    "trust_region_delta": None,
    "tau": 0.5,
    "q_coef": 0.1,
    "value_coef": 0.1,
    "entropy_coef": 0.1,
    "std": "fixed",
    "initial_std": 0.5,
    "bounded_mean": True,
    "hidden_sizes": (8, 8, 8),
    "advantage_hidden_sizes": (8,),
    "activation": "tanh",
    "lstm_size": 5,
    "hidden_gain": 1.0,
    "policy_head_gain": 0.5,
    "value_head_gain": 0.5,
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
MOVING = dict(env_steps=140, policy_head_gain=1.0, trust_region_delta=0.01, learning_rate=1e-3) | {
    "std": "learned",
    "evaluation_rule": "training",
    "batch_unrolls": 2,
}
"""A policy that moves away from its average and its past, so that every setting is felt."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> acer.Learner:
    return train(replace(TINY, **MOVING), tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, plain: acer.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    config = replace(TINY, **(MOVING | {name: SETTINGS[name]}))
    if name == "time_limit_is_terminal":  # the environment reaches the limit of 200 steps
        config = replace(config, env_steps=220, num_envs=1, unroll_length=20)
        config = replace(config, online_updates=True, replay_ratio=0.0)
        plain, _ = train(replace(config, time_limit_is_terminal=False), tmp_path / "plain")
    changed, recorder = train(config, tmp_path / "changed")
    assert recorder.statuses == ["finished"]
    old, new = plain.optimiser.weights.vector, changed.optimiser.weights.vector
    assert old.shape != new.shape or not torch.equal(old, new)


@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
def test_the_policy_starts_with_the_deviation_asked_for(std: Any) -> None:
    """Whatever holds the deviation; it is exact but for the head's small weights."""
    config = replace(TINY, std=std, initial_std=0.6)
    policy = acer.make_learner(config, CONTROL, CPU).network.policy
    log_stds = policy(draw(0, 5, 4).float()).log_stds.detach()
    torch.testing.assert_close(log_stds.exp(), torch.full((5, 3), 0.6), rtol=0.03, atol=0)


@pytest.mark.parametrize("settings", [{}, {"std": "learned"}, {"std": "state_dependent"}])
def test_a_saved_policy_acts_like_the_learner(settings: dict[str, Any], tmp_path: Path) -> None:
    """Mode, draws and the task's units are what was trained."""
    config = replace(TINY, policy_head_gain=1.0, bounded_mean=True, initial_std=0.6, **settings)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    trained = learner.network.policy(torch.from_numpy(obs).flatten(0, 1))
    means = trained.means.detach()
    np.testing.assert_allclose(policy(obs).reshape(6, 1), 2 * means.clamp(-1, 1), rtol=1e-5)
    assert policy(obs[0, 0], np.random.default_rng(1)).shape == (1,)
    draws = policy.act(np.tile(obs[0, 0], (20_000, 1)), np.random.default_rng(1))
    assert np.abs(draws).max() == 1
    normal = distribution(acer.Gaussian(*(part[0].detach() for part in trained)))
    torch.manual_seed(0)
    expected = normal.sample(torch.Size([20_000])).clamp(-1, 1)
    assert draws.mean() == pytest.approx(float(expected.mean()), abs=0.02)
    assert draws.std() == pytest.approx(float(expected.std()), abs=0.02)


def test_a_recurrent_policy_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest unroll begins with the actor's state: before any update it is on policy.

    The first of its updates gives the very distributions that it was acted with, over ends and from
    unroll to unroll; an unroll from replay begins with 0. The saved policy acts so as well.
    """
    update, sample, gaps, replayed = acer.update, acer.UnrollReplay.sample_any, [], []
    drawn: list[Any] = []

    def noted(replay: Any, generator: np.random.Generator, number: int) -> Any:
        drawn.append(sample(replay, generator, number))
        return drawn[-1]

    def checked(
        learner: Any, config: Any, batch: Any, noise: Any, rate: Any, memory: Any
    ) -> Tensor:
        policy = learner.network.policy
        with torch.no_grad():
            rows = policy.features(batch, memory)[:-1]
            outputs = torch.cat(policy(rows.flatten(0, 1)), -1).unflatten(0, rows.shape[:2])
        gap = (outputs - batch.behaviour).abs().amax(-1)[batch.valid > 0]
        is_drawn = any(batch is each for each in drawn)
        assert not (is_drawn and memory.any())
        (replayed if is_drawn else gaps).append(gap.max().item())
        return update(learner, config, batch, noise, rate, memory)

    monkeypatch.setattr(acer, "update", checked)
    monkeypatch.setattr(acer.UnrollReplay, "sample_any", noted)
    config = replace(TINY, task="InvertedPendulum-v4", lstm_size=6, policy_head_gain=1.0)
    config = replace(config, online_updates=True, learning_rate=0.01, std="learned")
    learner, recorder = train(config, tmp_path)
    assert len(gaps) >= 10
    assert max(gaps) < 1e-5
    assert min(replayed) > 1e-4
    policy, network = agents.load_policy(recorder.seed_directories[0]), learner.network.policy
    env = VectorEnv(policy.task, np.array([[3, 4, 5]]))
    obs, memory, starts = env.reset(), network.actor.begin(3), None
    for _ in range(60):
        with torch.no_grad():
            outputs, memory = network.step(torch.from_numpy(obs[0]), memory)
        actions = policy.act(obs, starts=starts)
        expected = outputs[:, :1].clamp(-1, 1)
        torch.testing.assert_close(torch.from_numpy(actions[0]), expected, rtol=0, atol=0)
        step = env.step(actions)
        memory = network.actor.remember(memory, actions[0], step.rewards[0], step.valid[0])
        obs, starts = step.obs, ~step.valid


@pytest.mark.usefixtures("unchecked")
def test_evaluation_disturbs_nothing(tmp_path: Path) -> None:
    """Scored by the mean, by draws or not at all: the same weights."""
    weights, returns = {}, {}
    for rule in ("sampled", "deterministic", "training"):
        config = replace(TINY, policy_head_gain=1.0, evaluation_rule=rule, evaluation_interval=120)
        learner, recorder = train(config, tmp_path / rule)
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
        *[("advantage_hidden_sizes", ()), ("advantage_hidden_sizes", (0,))],
        *[("unroll_length", 0), ("replay_ratio", -1.0), ("replay_capacity", 4)],
        *[("replay_start", 60_000), ("replay_start", -1), ("clip_rho_threshold", 0.0)],
        *[("trust_region_delta", -0.5), ("tau", 1.5), ("value_coef", -1.0), ("q_coef", -0.5)],
        *[("entropy_coef", -0.01), ("learning_rate", 0.0), ("batch_unrolls", 0)],
        *[("rmsprop_decay", 1.0), ("rmsprop_epsilon", 0.0), ("max_gradient_norm", 0.0)],
        *[("hidden_gain", 0.0), ("value_head_gain", 0.0), ("policy_head_gain", 0.0)],
        *[("learning_rate_decay_steps", -1), ("rmsprop_initial_average", -0.5)],
        *[("num_action_samples", 0), ("initial_std", 0.0), ("reward_scale", -1.0)],
        *[("num_envs", 0), ("task", "Pendulum-v0"), ("task", "CartPole-v1")],
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
    with pytest.raises(UsageError, match=r"whole, not 2\.666"):
        replace(TINY, replay_count="fixed", batch_unrolls=3)


def test_presets_state_their_sources_settings() -> None:
    """The paper's numbers where it has any, and what two public examples changed."""
    suites = ("mujoco", "mujoco-small", "mujoco-9")
    assert set(acer.PRESETS) == {
        *((suite, source) for suite in suites for source in ("tuned", "chainerrl", "pfrl")),
        *(("classic", source) for source in ("tuned", "chainerrl", "pfrl_control")),
    }
    control, origin = (acer.PRESETS["classic", name] for name in ("pfrl_control", "chainerrl"))
    assert (control.judged_by, control.tasks) == ("pfrl_control", ("Pendulum-v1",))
    changes = {"num_envs": 1, "time_limit_is_terminal": False, "evaluation_interval": 5_000}
    assert control.config == replace(origin.config, **changes, env_steps=control.config.env_steps)
    for (suite, source), preset in acer.PRESETS.items():
        if source == "pfrl_control":
            continue
        ours = preset.config
        tuned = (suite, source) == ("classic", "tuned")
        assert (ours.replay_ratio, ours.batch_unrolls) == ((8.0, 8) if tuned else (4.0, 1))
        assert ours.unroll_length == 50
        assert (ours.num_action_samples, ours.clip_rho_threshold) == (5, 5.0)
        assert ours.advantage_target == ("q_retrace" if source == "chainerrl" else "q_opc")
        assert preset.judged_by is None
        assert preset.departures
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)
        if suite == "classic":
            assert preset.tasks == ("Pendulum-v1", "MountainCarContinuous-v0")
        if source == "chainerrl":
            assert (ours.std, ours.bounded_mean) == ("state_dependent", True)
            assert (ours.learning_rate, ours.rmsprop_epsilon) == (7e-4, 1e-2)
            assert (ours.trust_region_delta, ours.tau, ours.entropy_coef) == (0.1, 0.01, 0.01)
            continue
        assert (ours.std, ours.initial_std, ours.tau) == ("fixed", 0.3, 0.005)
        assert not ours.online_updates
        if source == "pfrl":
            assert (ours.learning_rate, ours.rmsprop_epsilon) == (1e-4, 4e-3)
            assert (ours.trust_region_delta, ours.q_coef, ours.value_coef) == (0.2, 0.5, 0.5)
        else:
            assert (ours.replay_capacity, ours.replay_count) == (5_000, "poisson")
            assert ours.trust_region_delta == 1.0
            assert suite == "classic" or 1e-4 <= ours.learning_rate <= 10**-3.3


@pytest.mark.gpu
@pytest.mark.parametrize("normalised", [False, True])
def test_a_gpu_learns_what_the_cpu_learns(normalised: bool, tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after a few updates."""
    config = replace(TINY, env_steps=60, replay_start=0, normalise_observations=normalised)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    ours, theirs = gpu.optimiser.weights.vector.cpu(), cpu.optimiser.weights.vector
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
