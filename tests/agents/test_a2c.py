"""A2C: every equation against a slow re-derivation, then what training must do."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import agents
from agents import a2c, sac
from reproduce.gather.collect import collect_scores, collect_throughput
from reproduce.plan.make import make_plan
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces
from suite.nets.networks import prepare
from suite.nets.optimisers import FlatWeights, InTurn, RMSprop
from suite.record.recorder import Recorder
from suite.settings.presets import Budget, Preset
from suite.unrolls import Transitions, Unroll
from tests.reproduce.conftest import make_report
from tests.scripted import ScriptedEnv

CPU = torch.device("cpu")
TINY = a2c.Config(
    task="CartPole-v1",
    device="cpu",
    env_steps=400,
    num_envs=4,
    hidden_sizes=(16, 16),
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
TORCH_FORM: dict[str, Any] = {"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0}
"""RMSprop as torch has it."""


def train(config: a2c.Config, directory: Path) -> tuple[a2c.Learner, Recorder]:
    recorder = Recorder(directory, {"agent": "a2c", "task": config.task}, config.seeds)
    learner = a2c.train(config, recorder)
    recorder.finish()
    return learner, recorder


def table(recorder: Recorder, name: str) -> pd.DataFrame:
    return pd.read_csv(recorder.seed_directories[0] / name)


CONTROL, SWINGING = Spaces((4,), 3), Spaces((4,), 2, (-1.0, -1.0), (1.0, 1.0))
"""Spaces with three discrete actions, and with two continuous dimensions."""


def make_learner(config: a2c.Config, spaces: Spaces) -> a2c.Learner:
    return a2c.make_learner(config, spaces, CPU)


def random_flags(generator: np.random.Generator, steps: int, num_envs: int) -> tuple[Any, ...]:
    """Ends of both kinds inside an unroll, and the ignored row after each of them."""
    kinds = generator.choice(3, size=(steps, num_envs), p=[0.5, 0.25, 0.25])
    valid = np.ones((steps, num_envs), dtype=bool)
    for t in range(1, steps):
        valid[t] = ~(valid[t - 1] & (kinds[t - 1] > 0))
        kinds[t][~valid[t]] = 0
    return kinds == 1, kinds == 2, valid


# Mathematics


@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
def test_advantages_equal_a_slow_double_loop(gae_lambda: float) -> None:
    """Sum of (gamma lambda)^k times the errors up to the first end, values after truncations."""
    rng = np.random.default_rng(0)
    steps, num_envs, gamma = 12, 5, 0.9
    rewards, values, next_values = rng.normal(size=(3, steps, num_envs))
    terminations, truncations, _ = random_flags(rng, steps, num_envs)
    assert terminations.any()
    assert truncations[:-1].any()
    expected = np.zeros((steps, num_envs))
    for t in range(steps):
        for i in range(num_envs):
            for k in range(t, steps):
                value = 0.0 if terminations[k, i] else gamma * next_values[k, i]
                error = rewards[k, i] + value - values[k, i]
                expected[t, i] += (gamma * gae_lambda) ** (k - t) * error
                if terminations[k, i] or truncations[k, i]:
                    break
    ours = a2c.gae(
        torch.from_numpy(rewards),
        torch.from_numpy(gamma * ~terminations),
        torch.from_numpy((~(terminations | truncations)).astype(float)),
        torch.from_numpy(values),
        torch.from_numpy(next_values),
        gae_lambda,
    )
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12)


def test_with_lambda_one_advantages_are_n_step_returns_minus_values() -> None:
    """R = r + gamma r' + ... + gamma^n V(last), as Algorithm S3 computes it backwards."""
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=5), rng.normal(size=6)
    value, expected = values[5], np.zeros(5)
    for t in reversed(range(5)):
        value = rewards[t] + 0.9 * value
        expected[t] = value - values[t]

    def column(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers)[:, None]

    discounts, ones = column(np.full(5, 0.9)), column(np.ones(5))
    ours = a2c.gae(column(rewards), discounts, ones, column(values[:5]), column(values[1:]), 1.0)
    np.testing.assert_allclose(ours[:, 0].numpy(), expected, rtol=1e-12)


def test_a_trace_decay_outside_its_range_is_refused() -> None:
    column = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"1\.5"):
        a2c.gae(column, column, column, column, column, 1.5)


def test_losses_equal_a_slow_float64_derivation() -> None:
    """Means over valid rows, element by element; any sign error shows in its own term."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5, 4, 3))
    valid = rng.uniform(size=(4, 3)) < 0.7
    log_probs, entropies, values, advantages, returns = columns
    tensors = torch.from_numpy(columns)
    weights = torch.from_numpy(valid / valid.sum())
    parts = a2c.losses(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], weights)
    policy = value = entropy = 0.0
    for t in range(4):
        for i in range(3):
            if valid[t, i]:
                policy -= log_probs[t, i] * advantages[t, i] / valid.sum()
                value += (returns[t, i] - values[t, i]) ** 2 / valid.sum()
                entropy += entropies[t, i] / valid.sum()
    np.testing.assert_allclose([float(p) for p in parts], [policy, value, entropy], rtol=1e-12)
    config = replace(TINY, value_coef=0.3, entropy_coef=0.2)
    assert float(parts.total(config)) == pytest.approx(policy + 0.3 * value - 0.2 * entropy)


def test_each_term_of_the_loss_pulls_its_own_way() -> None:
    """Descent makes a good action likelier, the value error smaller, the policy more random."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 1, 3, generator=generator).requires_grad_()
    values = torch.zeros(1, 1, requires_grad=True)
    one, actions = torch.ones(1, 1), torch.tensor([[1]])

    def gradients(value_coef: float, entropy_coef: float, advantage: float) -> list[Tensor]:
        log_probs, entropies = a2c.categorical(logits, actions)
        parts = a2c.losses(log_probs, entropies, values, advantage * one, 3 * one, one)
        config = replace(TINY, value_coef=value_coef, entropy_coef=entropy_coef)
        return list(torch.autograd.grad(parts.total(config), [logits, values]))

    assert gradients(0.0, 0.0, 1.0)[0][0, 0, 1] < 0  # a gradient step raises this logit
    assert gradients(0.0, 0.0, -1.0)[0][0, 0, 1] > 0
    assert gradients(0.5, 0.0, 0.0)[1].item() == pytest.approx(-3.0)
    spread = gradients(0.0, 1.0, 0.0)[0][0, 0]
    assert spread[logits[0, 0].argmax()] > 0 > spread[logits[0, 0].argmin()]


def test_log_probabilities_and_entropies_equal_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, generator=generator)
    actions = torch.randint(0, 4, (3, 2), generator=generator)
    reference = torch.distributions.Categorical(logits=logits)
    log_probs, entropies = a2c.categorical(logits, actions)
    torch.testing.assert_close(log_probs, reference.log_prob(actions))
    torch.testing.assert_close(entropies, reference.entropy())

    means, log_stds = logits, torch.tensor([-1.0, 0.0, 0.5, 0.2])
    draws = torch.randn(3, 2, 4, generator=generator)
    normal = torch.distributions.Normal(means, log_stds.exp().expand_as(means))
    log_probs, entropies = a2c.gaussian(means, log_stds, draws)
    torch.testing.assert_close(log_probs, normal.log_prob(draws).sum(-1))
    torch.testing.assert_close(entropies, normal.entropy().sum(-1))


@pytest.mark.parametrize("shared_trunk", [True, False])
@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
def test_gradients_equal_finite_differences_with_targets_held(
    spaces: Spaces, shared_trunk: bool
) -> None:
    """Along random directions in the space of all weights, in float64."""
    config = replace(TINY, shared_trunk=shared_trunk, policy_head_gain=1.0, entropy_coef=0.1)
    network = make_learner(config, spaces).network.double()
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    obs, advantages, returns = draw(5, 3, 4), draw(5, 3), draw(5, 3)
    taken = draw(5, 3, 2) if spaces.continuous else torch.randint(0, 3, (5, 3))
    weights = (draw(5, 3) > -0.5).double()
    parameters = list(network.parameters())

    def loss() -> Tensor:
        parts = a2c.evaluate_actions(network, obs, taken)
        return a2c.losses(*parts, advantages, returns, weights / weights.sum()).total(config)

    gradients = torch.autograd.grad(loss(), parameters)
    for _ in range(4):
        directions = [draw(*p.shape) for p in parameters]
        expected = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
        ends = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                for p, direction in zip(parameters, directions, strict=True):
                    p += step * direction
            ends.append(loss().item())
        with torch.no_grad():
            for p, direction in zip(parameters, directions, strict=True):
                p += 1e-6 * direction
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("convolutions", "shared_trunk"), [("nature", True), ("a3c", False)])
def test_frames_go_through_the_published_layers(convolutions: Any, shared_trunk: bool) -> None:
    """The network equals plain convolutions, and one step moves weights as plain RMSprop does."""
    config = replace(TINY, **TORCH_FORM, convolutions=convolutions, shared_trunk=shared_trunk)
    learner = make_learner(config, Spaces((4, 84, 84), 6))
    frames = torch.rand(2, 4, 84, 84, generator=torch.Generator().manual_seed(0))
    strides = {"nature": (4, 2, 1), "a3c": (4, 2)}[convolutions]
    trunk = learner.network.actor
    sizes = {"nature": [32, 64, 64], "a3c": [16, 32]}[convolutions]
    assert [len(kernel) for kernel in trunk.kernels] == sizes
    assert trunk.weights[0].shape[1] == {"nature": 512, "a3c": 256}[convolutions]
    copies = [p.detach().clone().contiguous().requires_grad_() for p in trunk.parameters()]
    count = len(strides)
    kernels, kernel_biases = copies[:count], copies[count : 2 * count]
    weights, biases = copies[2 * count : 2 * count + 2], copies[2 * count + 2 :]

    def plain() -> Tensor:
        hidden = frames
        for kernel, bias, stride in zip(kernels, kernel_biases, strides, strict=True):
            hidden = torch.relu(F.conv2d(hidden, kernel, bias, stride))
        hidden = torch.relu(hidden.flatten(1) @ weights[0] + biases[0])
        return hidden @ weights[1] + biases[1]

    channels_last = frames.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(trunk(channels_last), plain(), atol=1e-5, rtol=1e-4)
    if not shared_trunk:
        return
    assert isinstance(learner.optimiser, RMSprop)
    learner.optimiser.minimise(trunk(channels_last).square().sum(), 0.01, 0.5)
    plain().square().sum().backward()
    torch.nn.utils.clip_grad_norm_(copies, 0.5)
    torch.optim.RMSprop(copies, lr=0.01, alpha=0.99, eps=1e-5).step()
    for ours, theirs in zip(trunk.parameters(), copies, strict=True):
        # the first step is lr times 10 times the gradient's sign: rounding shows where it is 0
        assert ((ours - theirs).abs() < 1e-3).float().mean() > 0.99


def test_heads_have_gains_of_their_own() -> None:
    """A shared trunk's last layer joins a policy of gain 0.01 and a value of gain 1."""
    network = make_learner(replace(TINY, shared_trunk=True), CONTROL).network
    norms = network.actor.weights[-1].detach().norm(dim=0)
    np.testing.assert_allclose(norms, [0.01, 0.01, 0.01, 1.0], rtol=1e-5)


def test_drawn_actions_have_the_policys_probabilities() -> None:
    """Gumbel noise draws each action as often as its probability says; so does the Gaussian."""
    network = make_learner(replace(TINY, policy_head_gain=1.0), CONTROL).network
    obs = torch.randn(1, 4, generator=torch.Generator().manual_seed(3)).expand(20_000, 4)
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    shares = torch.bincount(network.act(network(obs)[0], noise), minlength=3) / 20_000
    torch.testing.assert_close(shares, network(obs[:1])[0].softmax(-1)[0], atol=0.015, rtol=0)

    config = replace(TINY, initial_log_std=-0.7)
    network = make_learner(config, SWINGING).network
    noise = network.draw_noise(np.random.default_rng(0), (20_000,))
    actions = network.act(network(obs)[0], noise)
    torch.testing.assert_close(actions.std(0), torch.full((2,), math.exp(-0.7)), atol=0.01, rtol=0)
    torch.testing.assert_close(actions.mean(0), network(obs[:1])[0][0], atol=0.02, rtol=0)


def test_values_in_units_of_returns_leave_advantages_in_reward_units() -> None:
    """A head that predicts V / 3, with deviation 3, gives the advantages of a head with V."""
    config = replace(TINY, reward_normalisation="value_targets")
    rng = np.random.default_rng(0)
    batch = transitions(config, filled_unroll(config, CONTROL, rng)[0])
    learner = make_learner(config, CONTROL)
    learner.return_moments.values[2] = 9.0
    _, _, values = a2c.evaluate_actions(learner.network, batch.obs[:-1], batch.actions)
    advantages, returns = a2c.targets(learner, config, batch, values)
    plain = make_learner(replace(config, reward_normalisation="none"), CONTROL)
    critic = plain.network.critic
    assert critic is not None
    with torch.no_grad():
        critic.weights[-1].mul_(3)
    _, _, unscaled = a2c.evaluate_actions(plain.network, batch.obs[:-1], batch.actions)
    expected = a2c.targets(plain, TINY, batch, unscaled)
    torch.testing.assert_close(advantages, expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(3 * returns, expected[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_separate_optimisers_are_two_of_torchs_one_after_the_other(shared_trunk: bool) -> None:
    """nnabla-rl's update in float64: each loss has its own bound and averages of all weights."""
    config = replace(TINY, **TORCH_FORM, shared_trunk=shared_trunk, unroll_length=8)
    config = replace(config, separate_optimisers=True, max_gradient_norm=0.05, entropy_coef=0.1)
    learner = make_learner(config, CONTROL)
    network, optimiser = learner.network.double(), learner.optimiser
    assert isinstance(optimiser, InTurn)
    weights = FlatWeights(network)
    optimiser = learner.optimiser = InTurn(
        RMSprop.configured(weights, config), RMSprop.configured(weights, config)
    )
    slow = make_learner(config, CONTROL).network.double()
    slow.load_state_dict(network.state_dict())
    parameters = list(slow.parameters())
    theirs = [torch.optim.RMSprop(parameters, lr=1e-2, alpha=0.99, eps=1e-5) for _ in range(2)]
    for seed in range(3):
        batch = transitions(config, filled_unroll(config, CONTROL, np.random.default_rng(seed))[0])
        batch = Transitions(*(c.double() if c.is_floating_point() else c for c in batch))
        with torch.no_grad():
            values = slow.value(batch.obs.flatten(0, 1)).unflatten(0, batch.obs.shape[:2])
            columns = batch.rewards, batch.discounts, batch.trace_mask, values[:-1], values[1:]
            advantages = a2c.gae(*columns, 1.0)
            returns = advantages + values[:-1]
        norms = []
        for i, torchs in enumerate(theirs):
            outputs = a2c.evaluate_actions(slow, batch.obs[:-1], batch.actions)
            log_probs, entropies, values = outputs
            policy = -(log_probs * advantages + 0.1 * entropies) * batch.weights
            value = 0.5 * (values - returns).square() * batch.weights
            torchs.zero_grad()
            (value if i else policy).sum().backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())
            for parameter, gradient in zip(parameters, gradients, strict=True):
                # torch's own bound adds 1e-6 to the norm, its step leaves out what has no gradient
                parameter.grad = gradient * (0.05 / norms[-1])
            torchs.step()
        row = a2c.update(learner, config, batch, 1e-2)
        assert min(norms) > 0.05
        assert row[3].item() == pytest.approx(math.hypot(*norms), rel=1e-9)
        for ours, other in zip(network.parameters(), parameters, strict=True):
            torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)


# Ignored rows


def filled_unroll(
    config: a2c.Config, spaces: Spaces, rng: np.random.Generator
) -> tuple[Unroll, Any]:
    steps, num_envs = config.unroll_length, config.num_envs
    unroll = Unroll(spaces, num_envs, steps, CPU)
    for t in range(steps + 1):
        unroll.put_obs(t, rng.normal(size=(num_envs, *spaces.obs_shape)).astype(np.float32))
    if spaces.continuous:
        unroll.actions.normal_(generator=torch.Generator().manual_seed(0))
    else:
        unroll.actions[:] = torch.from_numpy(rng.integers(0, spaces.num_outputs, (steps, num_envs)))
    outcomes = unroll.outcomes
    outcomes.rewards[:] = rng.normal(size=(steps, num_envs))
    flags = random_flags(rng, steps, num_envs)
    outcomes.terminations[:], outcomes.truncations[:], outcomes.valid[:] = flags
    return unroll, flags


def transitions(config: a2c.Config, unroll: Unroll) -> Transitions:
    return unroll.transitions(config.gamma, config.time_limit_is_terminal)


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("reward_normalisation", ["none", "value_targets"])
def test_ignored_rows_change_nothing(spaces: Spaces, reward_normalisation: Any) -> None:
    """Everything recorded in them may be anything: weights and diagnostics keep their bits."""
    config = replace(
        TINY, unroll_length=8, gae_lambda=0.9, reward_normalisation=reward_normalisation
    )
    outcomes = []
    for scramble in (False, True):
        learner = make_learner(config, spaces)
        unroll, (terminations, _, valid) = filled_unroll(config, spaces, np.random.default_rng(5))
        assert (~valid).sum() >= 4
        if scramble:
            unroll.outcomes.rewards[~valid] = 1e3
            unroll.actions[torch.from_numpy(~valid)] = 1
            unroll.outcomes.terminations[~valid] = True
            after_termination = np.zeros_like(valid)
            after_termination[1:] = terminations[:-1]  # nothing bootstraps from this observation
            unroll.obs[:-1][torch.from_numpy(after_termination)] = 7.0
        diagnostics = a2c.update(learner, config, transitions(config, unroll), 1e-2)
        moments = learner.return_moments.values
        outcomes.append((learner.optimiser.weights.vector, diagnostics, moments))
    for plain, scrambled in zip(*outcomes, strict=True):
        torch.testing.assert_close(plain, scrambled, atol=1e-7, rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "terminal", "value"),
    [("truncation", False, 5.0), ("truncation", True, 4.161), ("termination", False, 4.161)],
)
def test_a_time_limit_bootstraps_unless_it_is_terminal(
    kind: str,
    terminal: bool,
    value: float,
    scripted: type[ScriptedEnv],
    tmp_path: Path,
) -> None:
    """Reward 1, gamma 0.8: 1 / (1 - 0.8) = 5, or (1 - 0.8^8) / 0.2 where a limit is an end."""
    scripted.kind = kind
    config = replace(
        TINY,
        env_steps=2_000,
        gamma=0.8,
        entropy_coef=0.0,
        hidden_sizes=(32, 32),
        learning_rate=6e-3,
        learning_rate_decay_steps=2_000,
        **TORCH_FORM,
        time_limit_is_terminal=terminal,
        evaluation_rule="training",
    )
    learner, recorder = train(config, tmp_path)
    assert learner.network.value(torch.tensor([[0.0]])).item() == pytest.approx(value, rel=0.05)
    episodes = table(recorder, "episodes.csv")
    assert episodes.env_steps.tolist()[::4] == list(range(32, 2_000, 32))


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, evaluation_rule="training"), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()


# Training on the real simulator


@pytest.mark.usefixtures("unchecked")
def test_cartpole_is_learned_within_seconds(tmp_path: Path) -> None:
    """With the preset's settings the last of 20,000 steps hold almost whole episodes."""
    config = replace(a2c.PRESETS["classic", "rl_zoo"].config, env_steps=20_000, device="cpu")
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert episodes.episode_return[:50].mean() < 60
    assert episodes.episode_return[episodes.env_steps > 15_000].mean() > 250


def test_training_records_everything(tmp_path: Path) -> None:
    learner, recorder = train(TINY, tmp_path)
    with torch.no_grad():
        before = make_learner(TINY, Spaces((4,), 2)).network
        for old, new in zip(before.parameters(), learner.network.parameters(), strict=True):
            assert not torch.equal(old, new)
    updates = table(recorder, "updates.csv")
    expected = ["env_steps", "num_updates", *a2c.METRICS, "explained_variance", "learning_rate"]
    assert updates.columns.tolist() == expected
    assert np.isfinite(updates.to_numpy()).all()
    assert updates.env_steps.iloc[-1] <= 400
    evaluations = table(recorder, "evaluations.csv")
    assert len(evaluations) == 2
    assert evaluations.env_steps.iloc[-1] == updates.env_steps.iloc[-1]


def test_steps_are_those_of_episodes(tmp_path: Path) -> None:
    """`env_steps` counts real transitions: episode lengths add up to it, one environment alone."""
    config = replace(TINY, num_envs=1, env_steps=400, unroll_length=7)
    _, recorder = train(config, tmp_path)
    episodes = table(recorder, "episodes.csv")
    assert len(episodes) > 10
    assert episodes.episode_length.cumsum().tolist() == episodes.env_steps.tolist()


def test_explained_variance_is_that_of_the_interval() -> None:
    """One minus the variance of residuals over that of returns, from their moments."""
    rng = np.random.default_rng(0)
    returns = rng.normal(2, 3, size=1000)
    residuals = 0.5 * rng.normal(size=1000) + 0.1
    moments = [returns.mean(), residuals.mean(), (returns**2).mean(), (residuals**2).mean()]
    columns = a2c.describe({"update": np.array([0.0, 0.0, 0.0, 0.0, *moments])}, 1e-3)
    expected = 1 - residuals.var() / returns.var()
    assert columns["explained_variance"][0] == pytest.approx(expected)


NORMALISED = replace(SWING, normalise_observations=True, reward_normalisation="value_targets")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("config", [TINY, NORMALISED])
def test_the_same_command_gives_the_same_bytes(config: a2c.Config, tmp_path: Path) -> None:
    """Nothing but the command decides, not even a global generator that was used in between."""
    _, one = train(config, tmp_path / "one")
    torch.manual_seed(99)
    torch.rand(3)
    _, two = train(config, tmp_path / "two")
    _, other = train(replace(config, seeds=(2,)), tmp_path / "other")
    names = ["evaluations.csv", "updates.csv", "policy.safetensors", "episodes.csv"]
    for name in names:
        first, second, third = (
            r.seed_directories[0].joinpath(name).read_bytes() for r in (one, two, other)
        )
        assert first == second
        assert first != third


def test_seeds_of_one_command_are_those_trained_alone(tmp_path: Path) -> None:
    flags = ["--task=CartPole-v1", "--device=cpu", "--env-steps=500", "--num-envs=4"]
    assert a2c.main([*flags, "--seeds", "1", "2", f"--out={tmp_path / 'both'}"]) == 0
    assert a2c.main([*flags, "--seeds", "2", f"--out={tmp_path / 'alone'}"]) == 0
    for name in ("episodes.csv", "policy.safetensors"):
        both = (tmp_path / "both" / "seed-2" / name).read_bytes()
        assert both == (tmp_path / "alone" / "seed-2" / name).read_bytes()


def test_the_learning_rate_falls_linearly_to_its_horizon() -> None:
    """A rate of 0.4 over 200 steps; past them it is 0, and without a horizon it never changes."""
    config = replace(TINY, learning_rate=0.4, learning_rate_decay_steps=200)
    rates = [config.learning_rate_at(env_steps) for env_steps in (0, 50, 100, 199, 200, 300)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.002, 0.0, 0.0], abs=1e-15)
    config = replace(config, learning_rate_decay_steps=0)
    assert [config.learning_rate_at(env_steps) for env_steps in (0, 10**9)] == [0.4, 0.4]


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
    "gamma": 0.9,
    "gae_lambda": 0.5,
    "hidden_sizes": (8, 8, 8),
    "activation": "relu",
    "shared_trunk": True,
    "hidden_gain": 1.0,
    "policy_head_gain": 1.0,
    "value_head_gain": 0.5,
    "initial_log_std": -1.0,
    "learning_rate": 3e-3,
    "learning_rate_decay_steps": 2_000,
    "rmsprop_epsilon_in_root": False,
    "rmsprop_initial_average": 0.0,
    "rmsprop_decay": 0.9,
    "rmsprop_epsilon": 0.1,
    "value_coef": 0.1,
    "entropy_coef": 0.1,
    "max_gradient_norm": 0.01,
    "separate_optimisers": True,
    "time_limit_is_terminal": True,
    "normalise_observations": True,
    "reward_normalisation": "discounted_returns",
}
UNSCORED = replace(SWING, num_envs=4, env_steps=160, evaluation_rule="training")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> a2c.Learner:
    return train(UNSCORED, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, plain: a2c.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    config = UNSCORED
    if name == "time_limit_is_terminal":  # the environment reaches the limit of 200 steps
        config = replace(UNSCORED, num_envs=1, env_steps=220, unroll_length=20)
        plain, _ = train(config, tmp_path / "plain")
    changed, recorder = train(replace(config, **{name: SETTINGS[name]}), tmp_path / "changed")
    assert recorder.statuses == ["finished"]
    old, new = plain.optimiser.weights.vector, changed.optimiser.weights.vector
    assert old.shape != new.shape or not torch.equal(old, new)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("observation_clip", 10.0, 0.3), ("reward_clip", 10.0, 0.01)],
)
def test_bounds_of_normalised_numbers_do_something(
    name: str, first: float, second: float, tmp_path: Path
) -> None:
    config = replace(
        UNSCORED, normalise_observations=True, reward_normalisation="discounted_returns"
    )
    one, _ = train(replace(config, **{name: first}), tmp_path / "one")
    two, _ = train(replace(config, **{name: second}), tmp_path / "two")
    assert not torch.equal(one.optimiser.weights.vector, two.optimiser.weights.vector)


def test_ways_of_normalising_rewards_differ(tmp_path: Path) -> None:
    kinds = ("none", "discounted_returns", "value_targets")
    learned = [
        train(replace(UNSCORED, reward_normalisation=kind), tmp_path / kind)[
            0
        ].optimiser.weights.vector
        for kind in kinds
    ]
    assert not any(torch.equal(learned[i], learned[i - 1]) for i in range(3))


def test_the_protocol_reaches_the_simulator(tmp_path: Path) -> None:
    """`sticky` has all 18 actions, `noframeskip` Pong's six; frames train and a policy loads."""
    small = replace(TINY, task="Pong-v5", num_envs=1, env_steps=10, evaluation_rule="training")
    for protocol, num_actions in (("noframeskip", 6), ("sticky", 18)):
        config = replace(small, protocol=protocol, shared_trunk=True, convolutions="a3c")
        learner, recorder = train(config, tmp_path / protocol)
        assert learner.network.num_outputs == num_actions
        policy = agents.load_policy(recorder.seed_directories[0])
        assert policy.task.protocol == protocol
        frames = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84)).astype(np.uint8)
        prepared = torch.from_numpy(frames / 255).float()
        torch.testing.assert_close(
            torch.from_numpy(policy.act(frames)), learner.network(prepared)[0].argmax(-1)
        )


def test_a_policy_in_bfloat16_acts_as_it_was_trained_to(tmp_path: Path) -> None:
    """From its file, to the last bit; in float32 the same weights prefer nearly the same."""
    config = replace(TINY, task="Pong-v5", num_envs=2, env_steps=20, convolutions="a3c")
    config = replace(config, evaluation_rule="training", bfloat16=True)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    frames = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84)).astype(np.uint8)
    prepared = prepare(frames, torch.device("cpu"))
    logits = learner.network(prepared)[0].detach()
    assert np.array_equal(policy.act(frames), logits.argmax(-1).numpy())
    plain = a2c.ActorCritic(
        replace(config, bfloat16=False), policy._spaces, np.random.default_rng()
    )
    plain.load_state_dict(learner.network.state_dict())
    exact = plain(prepared)[0].detach()
    assert not torch.equal(logits, exact)
    torch.testing.assert_close(logits, exact, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("config", [TINY, SWING, NORMALISED, replace(TINY, shared_trunk=True)])
def test_a_saved_policy_acts_like_the_learner(config: a2c.Config, tmp_path: Path) -> None:
    """Mode, draws, the task's units, and the frozen statistics are what was trained."""
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(2, 3, *policy._spaces.obs_shape)).astype(np.float32)
    rows = torch.from_numpy(obs).flatten(0, 1)
    if learner.obs_moments is not None:
        deviation = np.sqrt(learner.obs_moments.variance + 1e-8)
        rows = torch.from_numpy(np.clip((obs - learner.obs_moments.mean) / deviation, -10, 10))
        rows = rows.float().flatten(0, 1)
    outputs = learner.network(rows)[0].detach()
    generator = np.random.default_rng(1)
    if config.task == "CartPole-v1":
        assert policy(obs).shape == (2, 3)
        np.testing.assert_array_equal(policy(obs).flatten(), outputs.argmax(-1))
        assert policy(obs[0, 0], generator).shape == ()
    else:
        np.testing.assert_allclose(
            policy(obs).reshape(6, 1), 2 * outputs.clamp(-1, 1), rtol=1e-5, atol=1e-6
        )
        draws = policy.act(obs, generator)
        assert draws.shape == (2, 3, 1)
        assert np.abs(draws).max() <= 1


def test_evaluation_leaves_statistics_alone(tmp_path: Path) -> None:
    """Twice as many evaluations: the same policy, the same statistics."""
    one, _ = train(NORMALISED, tmp_path / "one")
    two, _ = train(replace(NORMALISED, evaluation_interval=225), tmp_path / "two")
    assert torch.equal(one.optimiser.weights.vector, two.optimiser.weights.vector)
    assert one.obs_moments is not None
    assert two.obs_moments is not None
    np.testing.assert_array_equal(one.obs_moments.mean, two.obs_moments.mean)


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("gamma", -0.1), ("gae_lambda", 1.1), ("env_steps", -5)],
        *[("env_steps", 19), ("seeds", ()), ("seeds", (1, 1)), ("seeds", (2**31,))],
        *[("seeds", (-1,)), ("hidden_sizes", ()), ("hidden_sizes", (0,)), ("num_envs", 0)],
        *[("unroll_length", 0), ("learning_rate", 0.0), ("learning_rate", 1.0)],
        *[("learning_rate_decay_steps", -1), ("rmsprop_decay", 1.0), ("rmsprop_epsilon", 0.0)],
        *[("rmsprop_initial_average", -1.0), ("gae_lambda", -0.1)],
        *[("value_coef", -0.5), ("entropy_coef", -0.01), ("max_gradient_norm", 0.0)],
        *[("observation_clip", 0.0), ("reward_clip", -1.0), ("initial_log_std", 3.0)],
        *[("num_threads", 0), ("evaluation_episodes", 0), ("log_interval", 0)],
        *[("hidden_gain", 0.0), ("task", "CartPol-v1")],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    assert str(shown) in str(error.value)


def test_presets_state_their_sources_settings() -> None:
    """The numbers that decide whether published curves come out."""
    atari = a2c.PRESETS["atari-7", "openai_baselines"]
    ours = atari.config
    assert (ours.rmsprop_epsilon_in_root, ours.rmsprop_initial_average) == (True, 1.0)
    assert (ours.rmsprop_epsilon, ours.learning_rate) == (1e-5, 7e-4)
    assert (ours.learning_rate_decay_steps, ours.entropy_coef) == (10_000_000, 0.01)
    assert (atari.judged_by, atari.protocol) == ("openai_baselines", "noframeskip")
    assert ours.evaluation_rule == "training"
    mujoco = a2c.PRESETS["mujoco", "tianshou_v3"].config
    assert (mujoco.learning_rate_decay_steps, mujoco.gae_lambda) == (3_000_000, 0.95)
    assert mujoco.reward_normalisation == "value_targets"
    assert mujoco.evaluation_rule == "sampled"
    for preset in a2c.PRESETS.values():
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)
        assert not preset.seeds_together
    assert all(preset.seeds_together for preset in sac.PRESETS.values())


# The harness


def test_seeds_share_a_process_only_where_an_agent_trains_them_together(tmp_path: Path) -> None:
    """On a GPU SAC's seeds go together, A2C's one by one; on a CPU always one by one."""
    sizes = {}
    for agent, task in (("sac", "Pendulum-v1"), ("a2c", "Pendulum-v1")):
        plan = make_plan(
            agent, "classic", tasks=[task], num_seeds=3, device="cpu", runs_dir=tmp_path
        )
        for device in ("cpu", "cuda"):
            groups = replace(plan, device=device, published=False).groups()
            sizes[agent, device] = [len(group.runs) for group in groups]
    assert sizes["sac", "cuda"] == [3]
    assert sizes["a2c", "cuda"] == sizes["a2c", "cpu"] == sizes["sac", "cpu"] == [1, 1, 1]


def test_a_preset_and_its_configuration_name_one_protocol() -> None:
    config = replace(TINY, protocol="sticky")
    budgets = {"smoke": Budget(env_steps=1000, num_seeds=1)}
    assert Preset(config=config, budgets=budgets, judged_by="x", protocol="sticky")
    with pytest.raises(UsageError, match="sticky"):
        Preset(config=config, budgets=budgets, judged_by="x", protocol="noframeskip")


def test_a_plan_knows_its_protocol(tmp_path: Path) -> None:
    """It comes from the preset, and from `--set` where that changes it."""
    plan = make_plan("a2c", "atari-7", tasks=["Pong-v5"], device="cpu", runs_dir=tmp_path)
    assert plan.protocol == "noframeskip"
    settings = ["protocol=sticky"]
    plan = make_plan(
        "a2c", "atari-7", tasks=["Pong-v5"], device="cpu", runs_dir=tmp_path, settings=settings
    )
    assert plan.protocol == "sticky"
    assert "--protocol=sticky" in plan.groups()[0].command


def test_training_episodes_are_scored_from_plan_to_report(tmp_path: Path) -> None:
    """Rule `training`: the mean of the episodes that end in (0.9 t, t]; frames beside decisions."""
    plan = make_plan(
        *("a2c", "classic"),
        tasks=["CartPole-v1"],
        env_steps=3_000,
        num_seeds=1,
        device="cpu",
        runs_dir=tmp_path,
        settings=["log_interval=500"],
        published=False,
    )
    assert plan.rule == "training"
    for group in plan.groups():
        assert a2c.main(list(group.command[3:])) == 0
    folder = plan.runs()[0].directory
    assert not (folder / "evaluations.csv").exists()
    episodes = pd.read_csv(folder / "episodes.csv")
    window = episodes[(episodes.env_steps > 2_700) & (episodes.env_steps <= 3_000)]
    assert collect_scores(plan).score.tolist() == [pytest.approx(window.episode_return.mean())]
    speed = collect_throughput(plan)
    assert speed.env_frames_per_second.tolist() == speed.env_steps_per_second.tolist()
    assert make_report(plan).task.tolist() == ["CartPole-v1"]
    assert "env_frames_per_second" in pd.read_csv(plan.directory / "throughput.csv")


def test_finished_seeds_are_refused_before_any_is_trained(tmp_path: Path) -> None:
    """Seed 2 has finished with other settings: the command stops before it trains seed 1."""
    flags = ["--task=CartPole-v1", "--device=cpu", "--env-steps=500", "--num-envs=4"]
    assert a2c.main([*flags, "--seeds", "2", f"--out={tmp_path}"]) == 0
    with pytest.raises(UsageError, match="seed-2"):
        a2c.main([*flags, "--gamma=0.9", "--seeds", "1", "2", f"--out={tmp_path}"])
    assert not (tmp_path / "seed-1").exists()


@pytest.mark.gpu
def test_a_gpu_learns_what_the_cpu_learns_from_frames(tmp_path: Path) -> None:
    """Convolutions in float32 on both devices: weights agree to rounding after five updates."""
    config = replace(TINY, task="Pong-v5", num_envs=2, env_steps=50, evaluation_rule="training")
    ours, _ = train(config, tmp_path / "cpu")
    theirs, _ = train(replace(config, device="cuda"), tmp_path / "cuda")
    torch.testing.assert_close(
        ours.optimiser.weights.vector, theirs.optimiser.weights.vector.cpu(), atol=1e-3, rtol=1e-3
    )


@pytest.mark.gpu
def test_a_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after five updates."""
    config = replace(NORMALISED, num_envs=4, env_steps=100)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    ours, theirs = gpu.optimiser.weights.vector.cpu(), cpu.optimiser.weights.vector
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
