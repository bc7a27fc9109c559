"""ALF's options: every equation against a slow re-derivation, their limits, then training."""

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import agents
from agents import sac, sac_alf
from suite import session
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces
from suite.nets.networks import Stack
from suite.record.recorder import Recorder
from suite.replay import Batch, HistoryReplay, Replay
from tests.perceptrons import linear, vector, weights_in
from tests.scripted import ScriptedEnv

CPU = torch.device("cpu")
TINY = sac_alf.Config(
    task="Pendulum-v1",
    device="cpu",
    env_steps=120,
    hidden_sizes=(16, 16),
    batch_size=8,
    learning_starts=40,
    evaluation_interval=120,
    evaluation_episodes=1,
    log_interval=40,
)
SHORT = replace(TINY, env_steps=60, evaluation_interval=60, log_interval=10)
"""20 updates."""
OPTIONS: dict[str, Any] = {
    "prior": "same_action",
    "normalise_entropy": True,
    "prioritised_replay": True,
}
"""All that work on a task whose reward has one part."""


def rates(each: float) -> dict[str, Any]:
    """Return one step size for all."""
    return {f"{name}_learning_rate": each for name in ("actor", "critic", "alpha")}


def train(config: sac_alf.Config, directory: Path) -> tuple[sac_alf.Learner, Recorder]:
    run = {"agent": "sac_alf", "task": config.task}
    recorder = Recorder(directory, run, config.seeds, keeps_checkpoint=False)
    learner = sac_alf.train(config, recorder)
    recorder.finish()
    return learner, recorder


def random_batch(
    generator: torch.Generator, seeds: int, size: int, obs: int, act: int, parts: int = 1
) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observations, actions = draw(seeds, size, obs), torch.tanh(draw(seeds, size, act))
    rewards = draw(seeds, size, parts)
    previous = torch.cat([torch.tanh(draw(seeds, size, act)), draw(seeds, size, 1) > 0.5], -1)
    previous[..., :-1] *= 1 - previous[..., -1:]
    return Batch(
        obs=observations,
        obs_actions=torch.cat([observations, actions], -1),
        rewards=rewards.sum(-1),
        terminations=(draw(seeds, size) > 0.8).float(),
        next_obs=draw(seeds, size, obs),
        extras=torch.cat([rewards, previous], -1),
    )


def parameters_of(learner: Any) -> list[Tensor]:
    stacks = (learner.actor, learner.critics, learner.target_critics)
    return weights_in(*(stack for stack in stacks if stack is not None))


# Mathematics


def slow_prior(actions: Tensor, previous: Tensor, probability: float, noise: float) -> Tensor:
    """Return the prior's log-density in float64, a component and a dimension at a time."""
    total = torch.zeros(actions.shape[:-1], dtype=torch.float64)
    for i in range(actions.shape[-1]):
        density = 0.0
        for centre, std, weight in (
            (torch.zeros(()), 2.0, 1 - probability),
            (previous[..., i], 2.0 * noise, probability),
        ):
            normal = Normal(centre.double(), std)
            within = normal.cdf(torch.ones(())) - normal.cdf(-torch.ones(()))
            alone = float(std == 2.0)  # an episode's first step has the flat component only
            share = torch.where(previous[..., -1] == 1, alone, weight)
            density += share * normal.log_prob(actions[..., i]).exp() / within
        total = total + torch.as_tensor(density).log()
    return total


def test_the_prior_equals_a_slow_float64_derivation() -> None:
    """A mixture for each dimension, of truncated normals whose scale is the range times a share."""
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(2, 50, 3, generator=generator).double() * 2 - 1
    first = torch.rand(2, 50, 1, generator=generator) < 0.3
    previous = torch.cat([torch.tanh(torch.randn(2, 50, 3, generator=generator)), first], -1)
    for odds in ((0.9, 0.1), (0.3, 0.7), (0.0, 0.1), (1.0, 0.05)):
        ours = sac_alf.same_action_log_probs(actions, previous.double(), *odds)
        torch.testing.assert_close(ours, slow_prior(actions, previous.double(), *odds))


def test_the_prior_is_a_density() -> None:
    """Its integral over an action's range is 1, at a first step and after any action."""
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[None, :, None]
    for before, first in ((0.0, 1.0), (0.0, 0.0), (0.95, 0.0), (-1.0, 0.0)):
        previous = torch.tensor([before, first], dtype=torch.float64).expand(1, 20_001, 2)
        densities = sac_alf.same_action_log_probs(grid, previous, 0.9, 0.1).exp()
        assert torch.trapezoid(densities, grid[..., 0]).item() == pytest.approx(1, abs=1e-6)


def test_losses_and_targets_equal_a_slow_float64_derivation() -> None:
    """Element by element, three parts with a positive, a negative and no weight, K = 2."""
    rng = np.random.default_rng(0)
    num_seeds, num_critics, num_parts, size, gamma = 2, 2, 3, 5, 0.9
    of_parts = np.array([0.7, -1.5, 0.0])
    q_values = rng.normal(size=(num_seeds, num_critics, num_parts, size))
    rewards, targets = rng.normal(size=(2, num_seeds, num_parts, size))
    ratios, paid = rng.normal(size=(2, num_seeds, size))
    weights, alpha = rng.uniform(0.5, 2, (num_seeds, size)), rng.uniform(0.1, 1, num_seeds)
    terminations = (rng.uniform(size=(num_seeds, size)) < 0.4).astype(float)
    of_target = np.zeros((num_seeds, num_parts, size))
    critic_losses, actor_losses, alpha_losses = np.zeros((3, num_seeds))
    errors = np.zeros((num_seeds, size))
    for s in range(num_seeds):
        for b in range(size):
            value = 0.0
            for d in range(num_parts):
                choose = max if of_parts[d] < 0 else min
                lowest = choose(q_values[s, k, d, b] for k in range(num_critics))
                value += of_parts[d] * lowest
                followed = 0 if terminations[s, b] else gamma * (lowest + paid[s, b])
                of_target[s, d, b] = rewards[s, d, b] + followed
                for k in range(num_critics):
                    errors[s, b] += (q_values[s, k, d, b] - targets[s, d, b]) ** 2 / num_parts
            critic_losses[s] += weights[s, b] * errors[s, b] / 2 / size
            actor_losses[s] += weights[s, b] * (alpha[s] * ratios[s, b] - value) / size
            alpha_losses[s] -= alpha[s] * weights[s, b] * (ratios[s, b] - 4.0) / size

    def equal(ours: Tensor, slow: np.ndarray) -> None:
        np.testing.assert_allclose(ours.numpy(), slow, rtol=1e-12, atol=1e-12)

    q, w, r = (torch.from_numpy(each) for each in (q_values, weights, ratios))
    a, v = torch.from_numpy(alpha), torch.from_numpy(of_parts)
    single = q[..., None]  # one discrete action
    lowest_values = sac_alf.lowest_q_values(single, v).squeeze(-1)
    ends = torch.from_numpy(terminations)
    given = (torch.from_numpy(rewards), ends, lowest_values, torch.from_numpy(paid), gamma)
    equal(sac_alf.q_targets(*given), of_target)
    every = torch.ones_like(w)[:, None]
    losses, roots = sac_alf.critic_loss(q, torch.from_numpy(targets), w, every)
    equal(losses, critic_losses)
    equal(roots, np.sqrt(errors))
    equal(sac_alf.actor_loss(r, sac_alf.whole_values(single, v).squeeze(-1), a, w), actor_losses)
    equal(sac_alf.alpha_loss(a, r, -4.0, w), alpha_losses)


def descent(parameters: Iterable[Tensor]) -> Any:
    """Plain gradient descent: a step shows the size of a gradient, and not only its sign."""
    return torch.optim.SGD([*parameters], lr=0.1)


def descend(parameters: Iterable[Tensor], loss: Tensor) -> None:
    weights = list(parameters)
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.data -= 0.1 * gradient


def assert_same_weights(stack: Stack, member: int, slow: torch.nn.Module) -> None:
    ours = vector(linear(stack, 0, member)).double()
    torch.testing.assert_close(ours, vector(slow), atol=1e-6, rtol=1e-5)


def plain_learner(config: sac_alf.Config, obs_size: int, action_size: int) -> sac_alf.Learner:
    """Return a learner whose steps show a gradient's size, with target copies that differ."""
    learner = sac_alf.make_learner(config, Spaces.vectors(obs_size, action_size), CPU)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in learner.target_critics.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    assert learner.actor is not None
    learner.actor_optimiser = descent(learner.actor.parameters())
    learner.critic_optimiser = descent(learner.critics.parameters())
    learner.alpha_optimiser = descent([learner.log_alphas])
    return learner


@pytest.mark.parametrize("clip", [None, 0.02])
def test_updates_with_all_options_equal_plain_autograd(clip: float | None) -> None:
    """Two updates on Reacher's two parts: prior, running mean and weights as ALF writes them.

    ALF clips what critics say of an action, each component of each transition's, and no more.
    """
    options: dict[str, Any] = {
        **OPTIONS,
        "reward_weights": (0.7, -1.5),
        "target_kl_per_action": 2.0,
        "action_gradient_clip": clip,
    }
    config = replace(TINY, task="Reacher-v4", gamma=0.9, tau=0.1, initial_alpha=0.3, **options)
    learner = plain_learner(config, 3, 2)
    assert learner.actor is not None
    actor = linear(learner.actor).double()
    critics, slow = (
        [[linear(stack, 0, 2 * k + d).double() for d in range(2)] for k in range(2)]
        for stack in (learner.critics, learner.target_critics)
    )
    log_alpha = torch.tensor(math.log(0.3), dtype=torch.float64, requires_grad=True)
    mean = torch.zeros((), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)

    def ratio(obs: Tensor, previous: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = actor(obs).chunk(2, -1)
        pre_tanh = means + log_stds.clamp(-20, 2).exp() * draws
        log_probs = Normal(means, log_stds.clamp(-20, 2).exp()).log_prob(pre_tanh)
        log_probs = (log_probs - torch.log(1 - torch.tanh(pre_tanh).square())).sum(-1)
        return torch.tanh(pre_tanh), log_probs - slow_prior(
            torch.tanh(pre_tanh), previous, 0.9, 0.1
        )

    def value(nets: list[torch.nn.Sequential], inputs: Tensor, choose: Any) -> Tensor:
        return choose(*(net(inputs).squeeze(-1) for net in nets))

    for num_updates in range(2):
        batch = random_batch(generator, 1, 8, 3, 2, parts=2)
        weights = torch.rand(1, 8, generator=generator) + 0.5
        noise = torch.randn(2, 1, 8, 2, generator=generator)
        obs, pairs, next_obs = (
            t[0].double() for t in (batch.obs, batch.obs_actions, batch.next_obs)
        )
        rewards, previous = batch.extras[0, :, :2].double(), batch.extras[0, :, 2:].double()
        alpha, w = log_alpha.detach().exp(), weights[0].double()
        choices = (torch.minimum, torch.maximum)
        with torch.no_grad():
            never_first = torch.cat([pairs[:, 3:], torch.zeros(8, 1)], -1)
            next_actions, next_ratios = ratio(next_obs, never_first, noise[0, 0].double())
            mean += 8 / (8 + num_updates) * (next_ratios.mean() - mean)
            inputs = torch.cat([next_obs, next_actions], -1)
            entropy = -alpha * (next_ratios - mean)
            goes_on = 0.9 * (1 - batch.terminations[0])
            nexts = [value([slow[k][d] for k in range(2)], inputs, choices[d]) for d in range(2)]
            targets = [rewards[:, d] + goes_on * (nexts[d] + entropy) for d in range(2)]
        residuals = [
            critics[k][d](pairs).squeeze(-1) - targets[d] for k in range(2) for d in range(2)
        ]
        errors = torch.stack(residuals).square().sum(0) / 2  # a mean over parts, a sum over K
        every = [p for of_k in critics for net in of_k for p in net.parameters()]
        descend(every, (w * errors).mean() / 2)
        actions, ratios = ratio(obs, previous, noise[1, 0].double())
        inputs = torch.cat([obs, actions], -1)
        judged = [value([critics[k][d] for k in range(2)], inputs, choices[d]) for d in range(2)]
        whole = 0.7 * judged[0] - 1.5 * judged[1]
        (slopes,) = torch.autograd.grad(whole.sum(), actions, retain_graph=True)
        if clip is not None:
            assert (slopes.abs() > clip).any()
            assert (slopes.abs() < clip).any()
            slopes = slopes.clamp(-clip, clip)
        objective = alpha * ratios - (slopes * actions).sum(-1)
        descend(actor.parameters(), (w * objective).mean())
        descend([log_alpha], -(log_alpha.exp() * w * (ratios.detach() - 2.0 * 2)).mean())
        for k in range(2):
            for d in range(2):
                pairs_of = zip(slow[k][d].parameters(), critics[k][d].parameters(), strict=True)
                for target, online in pairs_of:
                    target.data = 0.1 * online.data + 0.9 * target.data

        metrics, found = sac_alf.update(learner, config, batch, weights, noise, num_updates)
        torch.testing.assert_close(found[0].double(), errors.detach().sqrt(), atol=1e-5, rtol=1e-5)
        assert metrics["prior_kl"].item() == pytest.approx(ratios.mean().item(), rel=1e-5)
    for k in range(2):
        for d in range(2):
            assert_same_weights(learner.critics, 2 * k + d, critics[k][d])
            assert_same_weights(learner.target_critics, 2 * k + d, slow[k][d])
    assert_same_weights(learner.actor, 0, actor)
    log_alphas, means = learner.log_alphas[1, 0], learner.mean_log_ratios[1, 0]
    torch.testing.assert_close(log_alphas.double(), log_alpha, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(means.double(), mean, atol=1e-6, rtol=1e-5)


def lambda_targets_of_alf(
    rewards: np.ndarray, discounts: np.ndarray, last: np.ndarray, values: np.ndarray, decay: float
) -> np.ndarray:
    """Return a sequence's targets as in ALF's td_loss.py:106-147 and value_ops.py:210-268.

    Step t of T + 1 has the reward and the discount on the way into it; `last` are an episode's last
    steps, whose successor begins another.
    """
    advantages = np.zeros(len(values))
    for t in reversed(range(len(values) - 1)):
        delta = rewards[t + 1] + discounts[t + 1] * values[t + 1] - values[t]
        later = discounts[t + 1] * decay * advantages[t + 1]
        advantages[t] = (1 - last[t]) * (delta + later)
    return advantages[:-1] + values[:-1]


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("end", [None, "termination", "truncation"])
def test_targets_over_several_steps_are_alfs(end: str | None, decay: float) -> None:
    """Four steps in float64, of two parts; the episode ends at the second, or goes on."""
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 2, 5))  # of parts and of steps 0 to 4
    ended = 1.0 if end else 0.0
    terminations = np.array([0.0, ended if end == "termination" else 0.0, 0.0, 0.0])
    discounts = 0.9 * np.concatenate([[1.0], 1 - terminations])
    last = np.array([0.0, 0.0, ended, 0.0, 0.0])
    slow = [lambda_targets_of_alf(rewards[d], discounts, last, values[d], decay) for d in range(2)]
    one_step = rewards[:, 1:] + discounts[1:] * values[:, 1:]
    factors = decay * discounts[1:4] * (1 - last[1:4])
    ours = sac_alf.lambda_returns(
        torch.from_numpy(one_step)[None, :, :, None],
        torch.from_numpy(values[:, 1:])[None, :, :, None],
        torch.from_numpy(factors)[None, :, None],
    )
    valid = slice(0, 2 if end else 4)  # beyond an end a sequence does not count
    np.testing.assert_allclose(ours[0, :, valid, 0], np.stack(slow)[:, valid], rtol=1e-12)


def test_an_update_over_several_steps_equals_plain_autograd() -> None:
    """Critics learn at every step that counts, each by its own return; the rest is of the first.

    Three steps in float64, by ALF's recursion, where entropy is a part of the rewards on the way;
    sequences of one, two and three steps, some of which end in a termination.
    """
    config = replace(TINY, gamma=0.9, tau=0.1, initial_alpha=0.3, td_steps=3, td_lambda=0.7)
    learner = plain_learner(config, 3, 2)
    assert learner.actor is not None
    actor = linear(learner.actor).double()
    critics, slow = (
        [linear(stack, 0, k).double() for k in range(2)]
        for stack in (learner.critics, learner.target_critics)
    )
    generator, size = torch.Generator().manual_seed(3), 6
    batch = random_batch(generator, 1, 3 * size, 3, 2)
    lengths = torch.tensor([1, 2, 3, 3, 2, 1])
    counts = (torch.arange(3)[:, None] < lengths).float()  # [T, B]
    terminations = torch.zeros(3, size)
    terminations[lengths - 1, torch.arange(size)] = torch.tensor([1.0, 1, 1, 0, 0, 0])
    batch = batch._replace(terminations=terminations.reshape(1, -1))
    weights = torch.rand(1, size, generator=generator) + 0.5
    noise = torch.randn(4, 1, size, 2, generator=generator)

    means, log_stds = actor(batch.next_obs[0].double()).chunk(2, -1)
    pre_tanh = means + log_stds.exp() * noise[:3, 0].reshape(-1, 2).double()
    log_probs = Normal(means, log_stds.exp()).log_prob(pre_tanh)
    log_probs = (log_probs - torch.log(1 - torch.tanh(pre_tanh).square())).sum(-1)
    inputs = torch.cat([batch.next_obs[0].double(), torch.tanh(pre_tanh)], -1)
    nexts = torch.minimum(*(net(inputs).squeeze(-1) for net in slow)).reshape(3, size)
    goes_on = 0.9 * (1 - terminations.double())
    paid = batch.extras[0, :, 0].double().reshape(3, size)
    paid = paid + goes_on * -0.3 * log_probs.reshape(3, size)
    targets, pairs = torch.zeros(3, size).double(), batch.obs_actions[0].double()
    for b in range(size):
        n = int(lengths[b])
        ways, discounts, values = (
            np.array([0.0, *each[:n, b].tolist()]) for each in (paid, goes_on, nexts)
        )
        exact = lambda_targets_of_alf(ways, discounts, np.zeros(n + 1), values, 0.7)
        targets[:n, b] = torch.from_numpy(exact)
    squares = sum((net(pairs).reshape(3, size) - targets).square() for net in critics)
    squares = (squares * counts).sum(0) / counts.sum(0)
    every = [p for net in critics for p in net.parameters()]
    descend(every, (weights[0].double() * squares).mean() / 2)

    _, errors = sac_alf.update(learner, config, batch, weights, noise, 0, counts[None])
    torch.testing.assert_close(errors[0].double(), squares.detach().sqrt(), atol=1e-5, rtol=1e-5)
    for k in range(2):
        assert_same_weights(learner.critics, k, critics[k])
    alone = plain_learner(config, 3, 2)
    alone.critics.load_state_dict(learner.critics.state_dict())
    given = (batch.obs[:, :size], batch.extras[:, :size, 1:], weights, noise[3])
    sac_alf._update_policy(alone, config, *given)
    assert torch.equal(alone.log_alphas, learner.log_alphas)
    assert alone.actor is not None
    assert torch.equal(vector(alone.actor), vector(learner.actor))


# Limits

SHARED: dict[str, Any] = {"seeds": (1, 2), "hidden_sizes": (16, 16), "gamma": 0.9, "tau": 0.1}


def follow(
    config: sac_alf.Config, plain: sac.Config, shift: float = 0.0
) -> Iterable[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Yield the metrics of five updates, ours and `agents.sac`'s; then compare all weights.

    `agents.sac` gets rewards that are greater by `shift` where a value follows.
    """
    ours, theirs = (
        sac_alf.make_learner(config, Spaces.vectors(3, 2), CPU),
        sac.make_learner(plain, 3, 2, CPU),
    )
    for one, other in zip(parameters_of(ours), parameters_of(theirs), strict=True):
        assert torch.equal(one, other)
    generator, weights = torch.Generator().manual_seed(0), torch.ones(2, 8)
    for num_updates in range(5):
        batch, noise = random_batch(generator, 2, 8, 3, 2), torch.randn(2, 2, 8, 2)
        alpha = theirs.log_alpha.exp()[:, None]
        rewards = batch.rewards + shift * alpha * (1 - batch.terminations)
        metrics, _ = sac_alf.update(ours, config, batch, weights, noise, num_updates)
        yield (
            metrics,
            sac.update(theirs, plain, batch._replace(rewards=rewards), noise, num_updates),
        )
    for one, other in zip(parameters_of(ours), parameters_of(theirs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], theirs.log_alpha)


@pytest.mark.parametrize("weights", [None, (1.0,)])
def test_with_all_options_off_it_is_sac(weights: tuple[float, ...] | None) -> None:
    """Updates of `agents.sac` to rounding; so are those of a reward with one part."""
    config = replace(TINY, reward_weights=weights, num_critics=3, **SHARED)
    plain = sac.Config(task="Pendulum-v1", num_critics=3, **SHARED)
    for metrics, expected in follow(config, plain):
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, atol=1e-6, rtol=1e-5)


OF_SAC: dict[str, Any] = {
    **{"env_steps": 72, "hidden_sizes": (8, 8, 8), "num_envs": 2, "num_critics": 3},
    **{"initialisation": "orthogonal", "hidden_gain": 0.5, "policy_head_gain": 0.3},
    **{"separate_heads": True, "log_std_min": -0.2, "log_std_max": 0.1, "log_std_bound": "tanh"},
    **{f"{name}_learning_rate": 3e-3 for name in ("actor", "critic", "alpha")},
    **{"initial_alpha": 0.3, "learn_alpha": False, "max_log_alpha": -1.5, "gamma": 0.5},
    **{"target_entropy_per_action": 0.5, "entropy_in_target": False, "tau": 0.5},
    **{"action_gradient_clip": 1e-3, "reward_scale": 3.0, "batch_size": 16},
    **{"replay_capacity": 50, "learning_starts": 50, "count_warm_up": False, "update_ratio": 2.0},
    **{"policy_period": 2, "compensate_policy_period": False, "target_period": 3},
    **{"evaluation_rule": "sampled", "evaluation_interval": 30, "evaluation_episodes": 2},
    **{"log_interval": 20, "seeds": (3, 1)},
}
"""Every setting of `agents.sac`, and another value than the default's."""
ELSEWHERE = {"task", "device", "tf32", "num_threads", "env_threads", "evaluate_beside"}
"""Settings that no agent reads itself, and of which `cuda_graphs` needs a GPU."""
NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"initialisation": "orthogonal"} for name in ("hidden_gain", "policy_head_gain")},
    "compensate_policy_period": {"policy_period": 2},
}
"""Settings that another one needs to take effect."""


def test_every_setting_of_sac_is_compared() -> None:
    """A new one must be one of `agents.sac_alf` too, with the same default."""
    names = {field.name for field in fields(sac.Config)}
    assert names == OF_SAC.keys() | ELSEWHERE | {"cuda_graphs"}
    theirs, ours = sac.Config(), sac_alf.Config()
    assert all(getattr(theirs, name) == getattr(ours, name) for name in names)
    assert all(getattr(theirs, name) != value for name, value in OF_SAC.items())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OF_SAC)
def test_a_training_is_that_of_sac_under_each_of_its_settings(name: str, tmp_path: Path) -> None:
    """Ten updates or more, with all options off: tables, weights and temperature agree."""
    changes = {**NEEDED.get(name, {}), name: OF_SAC[name]}
    if name == "initialisation":  # all of them
        for scheme in ("orthogonal", "lecun_normal", "torch"):
            compare_with_sac({"initialisation": scheme}, tmp_path / scheme)
        return
    compare_with_sac(changes, tmp_path)


def compare_with_sac(changes: dict[str, Any], directory: Path) -> None:
    config = replace(SHORT, task="InvertedPendulum-v4", **changes)
    theirs = sac.Config(**{field.name: getattr(config, field.name) for field in fields(sac.Config)})
    ours, recorder = train(config, directory / "ours")
    run = {"agent": "sac", "task": theirs.task}
    other = Recorder(directory / "theirs", run, theirs.seeds, keeps_checkpoint=False)
    expected = sac.train(theirs, other)
    other.finish()
    for one, two in zip(parameters_of(ours), parameters_of(expected), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], expected.log_alpha, atol=1e-6, rtol=1e-5)
    for seed in range(len(theirs.seeds)):
        for name in ("episodes.csv", "evaluations.csv", "updates.csv"):
            tables = [
                np.genfromtxt(each.seed_directories[seed] / name, delimiter=",", names=True)
                for each in (recorder, other)
            ]
            assert tables[0].dtype.names == tables[1].dtype.names
            for column in tables[0].dtype.names or ():
                np.testing.assert_allclose(*(t[column] for t in tables), rtol=1e-4, atol=1e-5)


def test_a_uniform_prior_is_entropy_up_to_a_constant() -> None:
    """The target moves by log 2 a dimension, a reward by what the constant is worth in s'."""
    config = replace(TINY, prior="uniform", target_kl_per_action=1.5, **SHARED)
    plain = sac.Config(task="Pendulum-v1", target_entropy_per_action=math.log(2) - 1.5, **SHARED)
    for metrics, expected in follow(config, plain, shift=-0.9 * 2 * math.log(2)):
        torch.testing.assert_close(metrics["entropy"], expected["entropy"])
        divergence = 2 * math.log(2) - expected["entropy"]
        torch.testing.assert_close(metrics["prior_kl"], divergence, atol=1e-6, rtol=1e-5)


def test_a_constant_entropy_earns_nothing_if_it_is_normalised() -> None:
    """The running mean of equal numbers is that number, whatever the weights of the past."""
    batch = random_batch(torch.Generator().manual_seed(0), 1, 8, 3, 2)
    batch = batch._replace(next_obs=batch.next_obs[:, :1].expand(-1, 8, -1))
    noise = torch.zeros(2, 1, 8, 2)
    weights, config = torch.ones(1, 8), replace(TINY, normalise_entropy=True, **rates(1e-9))
    found = []
    for each in (config, replace(config, normalise_entropy=False, entropy_in_target=False)):
        learner = sac_alf.make_learner(each, Spaces.vectors(3, 2), CPU)
        updates = [sac_alf.update(learner, each, batch, weights, noise, n) for n in range(4)]
        found.append([errors for _, errors in updates])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


# Semantics


@pytest.fixture
def scripted(scripted: type[ScriptedEnv], monkeypatch: pytest.MonkeyPatch) -> type[ScriptedEnv]:
    """Make SAC train on continuous actions, with evaluations that score 0."""
    scripted.spaces = Spaces.vectors(1, 1)
    monkeypatch.setattr(session, "evaluate", lambda *args, **kwargs: np.zeros((1, 1)))
    return scripted


def test_replay_knows_the_previous_action_and_first_steps(
    scripted: type[ScriptedEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transition has the action before it, and none at the first of eight steps."""
    kept: list[Replay] = []

    class Kept(HistoryReplay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept.append(self)

    monkeypatch.setattr(sac_alf, "HistoryReplay", Kept)
    train(replace(TINY, env_steps=40, num_envs=2), tmp_path)
    batch = kept[0].batch(torch.arange(40)[None])
    actions, extras = batch.obs_actions[0, :, 1], batch.extras[0]
    steps, previous, is_first = (
        actions.unflatten(0, (20, 2)),
        *extras[:, 1:].T.unflatten(1, (20, 2)),
    )
    assert torch.equal(extras[:, 0], batch.rewards[0])
    for t in range(20):
        assert is_first[t].tolist() == [t % 8 == 0] * 2
        expected = torch.zeros(2) if t % 8 == 0 else steps[t - 1]
        assert torch.equal(previous[t], expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("option", ["prior", "entropy"])
def test_the_temperature_moves_the_policy_to_its_target(
    option: str, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """With a prior the divergence from it ends at its target, else the entropy at its own."""
    config = replace(
        TINY,
        prior="same_action" if option == "prior" else "none",
        target_kl_per_action=1.0,
        target_entropy_per_action=-0.5,
        env_steps=500,
        learning_starts=100,
        log_interval=20,
        initial_alpha=0.5,
        **rates(1e-2),
        batch_size=32,
        gamma=0.5,
    )
    scripted.reward = staticmethod(lambda actions: -4 * (actions - 0.3) ** 2)
    _, recorder = train(config, tmp_path)
    rows = np.genfromtxt(recorder.seed_directories[0] / "updates.csv", delimiter=",", names=True)
    name, target = ("prior_kl", 1.0) if option == "prior" else ("entropy", -0.5)
    assert rows[name][-10:].mean() == pytest.approx(target, abs=0.2)


@pytest.mark.usefixtures("unchecked")
def test_values_of_parts_are_those_of_their_rewards(
    tmp_path: Path, scripted: type[ScriptedEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit bootstraps: a part that pays 1 a step is worth 2 at gamma 1/2, one of 3 is 6."""
    recv = ScriptedEnv.recv

    def recv_parts(env: ScriptedEnv) -> Any:
        step = recv(env)
        return step._replace(reward_parts=np.stack([step.rewards, 3 * step.rewards], -1))

    monkeypatch.setattr(ScriptedEnv, "recv", recv_parts)
    config = replace(
        TINY,
        task="Reacher-v4",
        reward_weights=(0.5, 0.5),
        entropy_in_target=False,
        env_steps=250,
        gamma=0.5,
        **rates(1e-2),
        tau=0.05,
    )
    learner, _ = train(config, tmp_path)
    inputs = torch.cat([torch.rand(1, 50, 1), torch.zeros(1, 50, 1)], -1)
    obs, actions = inputs.split(1, -1)
    q_values = learner.q_values(learner.critics, obs, actions).detach()[0].mean((0, 2, 3))
    assert q_values.tolist() == pytest.approx([2.0, 6.0], rel=0.1)


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """NaN in the rewards, and so in the priorities, is found; nothing is saved as a policy."""
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, env_steps=400, **OPTIONS), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()


# Training on the task

ALL_ON = replace(SHORT, task="Reacher-v4", reward_weights=(0.5, 0.5), **OPTIONS)


def test_training_changes_every_network_and_records_everything(tmp_path: Path) -> None:
    """Past the start of learning, actor, critics, targets and temperature have moved."""
    config = replace(TINY, task="Reacher-v4", reward_weights=(0.5, 0.5), **OPTIONS)
    before = sac_alf.make_learner(config, Spaces.vectors(11, 2), CPU)
    learner, recorder = train(config, tmp_path)
    for old, new in zip(parameters_of(before), parameters_of(learner), strict=True):
        assert not torch.equal(old, new)
    assert learner.log_alphas[1].item() != 0
    folder = recorder.seed_directories[0]
    updates = np.genfromtxt(folder / "updates.csv", delimiter=",", names=True)
    assert updates["num_updates"].tolist() == [40, 80]
    assert {"prior_kl", "entropy", "alpha"} <= {*(updates.dtype.names or ())}
    episodes = np.genfromtxt(folder / "episodes.csv", delimiter=",", names=True)
    assert len(episodes) == 2


@pytest.mark.usefixtures("unchecked")
def test_a_seed_in_a_batch_has_the_bytes_of_the_seed_alone(tmp_path: Path) -> None:
    """With every option on: every table, and the policy."""
    _, recorder = train(replace(ALL_ON, seeds=(1, 2)), tmp_path / "together")
    for i, seed in enumerate((1, 2)):
        _, solo = train(replace(ALL_ON, seeds=(seed,)), tmp_path / f"alone-{seed}")
        for name in ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors"):
            ours = (recorder.seed_directories[i] / name).read_bytes()
            assert ours == (solo.seed_directories[0] / name).read_bytes()


@pytest.mark.usefixtures("unchecked")
def test_the_same_command_gives_the_same_bytes_and_a_sick_seed_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 2 is poisoned the second time: all bytes of seeds 1 and 3 stay, seed 2 is `diverged`."""
    config = replace(SHORT, task="InvertedPendulum-v4", seeds=(1, 2, 3), **OPTIONS)
    _, healthy = train(config, tmp_path / "healthy")
    make_learner = sac_alf.make_learner

    def poisoned(*args: Any) -> sac_alf.Learner:
        learner = make_learner(*args)
        learner.critics.weights_of(1)["weight_0"].fill_(math.nan)
        return learner

    monkeypatch.setattr(sac_alf, "make_learner", poisoned)
    _, recorder = train(config, tmp_path / "sick")
    assert recorder.statuses == ["finished", "diverged", "finished"]
    for i in (0, 2):
        for name in ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors"):
            one, two = (each.seed_directories[i] / name for each in (healthy, recorder))
            assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 10), (2.0, 40)])
def test_updates_keep_pace_with_transitions(ratio: float, expected: int, tmp_path: Path) -> None:
    """With four environments: as many updates as `update_ratio` times transitions after warm-up."""
    _, recorder = train(replace(SHORT, num_envs=4, update_ratio=ratio, **OPTIONS), tmp_path)
    folder = recorder.seed_directories[0]
    updates = np.genfromtxt(folder / "updates.csv", delimiter=",", names=True)
    assert updates["num_updates"][-1] == expected


SETTINGS: dict[str, Any] = {
    **{"initial_alpha": 0.3, **rates(3e-3), "hidden_sizes": (8, 8, 8), "num_critics": 3},
    **{"log_std_min": 0.5, "log_std_max": -1.0, "batch_size": 16, "learning_starts": 50},
    **{"tau": 0.5, "gamma": 0.5, "replay_capacity": 50, "update_ratio": 2.0, "num_envs": 2},
    **{"entropy_in_target": False, "normalise_entropy": False, "prior": "uniform"},
    **{"target_kl_per_action": 1.0, "same_action_prob": 0.5, "same_action_noise": 0.5},
    **{"reward_weights": (1.0, 0.0), "prioritised_replay": False, "priority_exponent": 0.2},
    **{"priority_epsilon": 1.0, "importance_exponent": 1.0, "td_steps": 3, "reward_scale": 3.0},
    **{"action_gradient_clip": 1e-3, "max_log_alpha": -1.0, "policy_period": 2, "target_period": 2},
}


@pytest.fixture(scope="module")
def all_on(tmp_path_factory: pytest.TempPathFactory) -> sac_alf.Learner:
    return train(ALL_ON, tmp_path_factory.mktemp("plain"))[0]


def differ(one: sac_alf.Learner, other: sac_alf.Learner) -> bool:
    old, new = parameters_of(one), parameters_of(other)
    if [p.shape for p in old] != [p.shape for p in new]:
        return True
    pairs = [*zip(old, new, strict=True), (one.log_alphas, other.log_alphas)]
    return not all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, all_on: sac_alf.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone, all options on, changes what is learned."""
    changed, recorder = train(replace(ALL_ON, **{name: SETTINGS[name]}), tmp_path)
    assert recorder.statuses == ["finished"]
    assert differ(all_on, changed)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_longer_returns_count_as_much_as_asked(
    decay: float, all_on: sac_alf.Learner, tmp_path: Path
) -> None:
    """The decay of several steps' returns changes what is learned from them."""
    config = replace(ALL_ON, td_steps=3)
    learned = [
        train(each, tmp_path / str(i))[0]
        for i, each in enumerate((config, replace(config, td_lambda=decay)))
    ]
    assert differ(*learned)
    assert differ(all_on, learned[0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("capacity", [1_000, 50])
def test_sequences_are_the_same_during_a_step_and_after_it(
    capacity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that would read rows of the step under way waits, though it draws earlier ones."""
    config = replace(SHORT, task="InvertedPendulum-v4", env_steps=120, evaluation_interval=120)
    config = replace(config, td_steps=4, num_envs=2, replay_capacity=capacity, batch_size=2)
    early, _ = train(config, tmp_path / "early")
    updates = session.Updates
    monkeypatch.setattr(session, "Updates", lambda *given: updates(*given[:4], late=True))
    late, _ = train(config, tmp_path / "late")
    assert not differ(early, late)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("task", ["Pendulum-v1", "CartPole-v1", "Claw-v0"])
def test_an_evaluation_draws_as_often_as_asked(task: str, tmp_path: Path) -> None:
    """Never: the modes' returns; always: all draws; between: neither. Training stays the same."""
    found, learned = {}, []
    for rule, epsilon in (("deterministic", 1.0), *(("sampled", e) for e in (0.0, 0.5, 1.0))):
        changes = {"evaluation_rule": rule, "epsilon_greedy": epsilon, "evaluation_episodes": 3}
        config = replace(SHORT, task=task, **changes)
        learner, recorder = train(config, tmp_path / f"{rule}-{epsilon}")
        learned.append(learner)
        found[rule, epsilon] = (recorder.seed_directories[0] / "evaluations.csv").read_text()
        policy = agents.load_policy(recorder.seed_directories[0])
        obs = (
            np.random.default_rng(0).normal(size=(2_000, config.find_task().obs_size)).astype("f4")
        )
        drawn = policy.act(obs, np.random.default_rng(1)).reshape(2_000, -1)
        agree = (drawn == policy.act(obs).reshape(2_000, -1))[:, -1].mean()
        if task != "CartPole-v1":  # else a draw may be the mode
            assert agree == pytest.approx(1 - epsilon if rule == "sampled" else 0.0, abs=0.04)
    assert not any(differ(learned[0], each) for each in learned[1:])
    assert found["deterministic", 1.0] == found["sampled", 0.0]
    if task != "CartPole-v1":
        assert len({*found.values()}) == 3


@pytest.mark.usefixtures("unchecked")
def test_the_target_entropy_counts_without_a_prior(tmp_path: Path) -> None:
    """With a prior the divergence has a target, else the entropy."""
    for prior, matters in (("none", True), ("same_action", False)):
        learned = []
        for target in (-1.0, -3.0):
            config = replace(SHORT, prior=prior, target_entropy_per_action=target)
            learned.append(train(config, tmp_path / f"{prior} {target}")[0])
        assert differ(*learned) == matters


def test_a_saved_policy_acts_like_the_learner(tmp_path: Path) -> None:
    """`load_policy` gives the mode in the task's units, and draws with the policy's deviation."""
    config = replace(TINY, prior="same_action", log_std_max=-1.0)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    actor = learner.actor
    assert actor is not None
    means, log_stds = sac_alf.split_outputs(actor(torch.from_numpy(obs)[None]), config)
    modes = 2 * torch.tanh(means)[0].detach()
    np.testing.assert_allclose(policy(obs), modes, rtol=1e-5, atol=1e-6)
    assert policy(obs[0]).shape == (1,)
    draws = np.stack([policy.act(obs, np.random.default_rng(k)) for k in range(400)])
    noise = torch.randn(5_000, 4, 1, generator=torch.Generator().manual_seed(0))
    expected = torch.tanh(means + log_stds.exp() * noise).std(0).detach()  # in [-1, 1]
    np.testing.assert_allclose(draws.std(0), expected, rtol=0.2)


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("tau", 0.0), ("batch_size", 0), ("seeds", (1, 1)), ("log_std_min", 3.0)],
        *[("td_steps", 0), ("td_lambda", 1.1), ("epsilon_greedy", -0.1), ("epsilon_greedy", 0.5)],
        *[("initial_alpha", 0.0), ("replay_capacity", 0), ("update_ratio", 0.0), ("num_envs", 7)],
        *[("same_action_prob", 1.5), ("same_action_noise", 0.0), ("priority_exponent", -1.0)],
        *[("priority_epsilon", 0.0), ("reward_weights", (1.0, 2.0)), ("reward_weights", ())],
        *[("reward_weights", (math.inf,)), ("task", "Pong-v5"), ("target_entropy_share", 1.0)],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    """The message names the offending value."""
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    shown = value[0] if field == "seeds" else value
    assert str(shown) in str(error.value)


@pytest.mark.parametrize(
    "option", [{"prioritised_replay": True}, {"normalise_entropy": True}, {"td_steps": 2}]
)
def test_options_that_no_graph_can_hold_are_refused_with_them(option: dict[str, Any]) -> None:
    """What changes from update to update on the host would be frozen."""
    with pytest.raises(UsageError, match=r"^cuda_graphs is not for prioritised_replay"):
        replace(TINY, cuda_graphs=True, **option)
    assert replace(TINY, cuda_graphs=True).cuda_graphs


def test_weights_that_do_not_fit_name_the_parts() -> None:
    """Whoever has to give two numbers is told of what."""
    with pytest.raises(UsageError, match="must be 2 numbers, of reward_run, reward_ctrl, not"):
        sac_alf.Config(task="HalfCheetah-v4", reward_weights=(1.0,))


def test_the_memory_of_a_run_is_known() -> None:
    """That of its replay, and no more than a run fills."""
    config = replace(TINY, task="Reacher-v4", env_steps=20_000, reward_weights=(1.0, 1.0))
    replay = Replay(1, config.replay_size, 1, 11, 2, CPU, extra_size=2 + 3)
    assert config.memory_bytes == pytest.approx(vars(replay)["_rows"].nbytes)
    assert replace(config, replay_capacity=100).memory_bytes == 100 * 4 * (2 * 11 + 2 + 2 + 5)


@pytest.mark.gpu
def test_a_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after 40 updates."""
    config = replace(TINY, seeds=(1, 2), env_steps=80, **OPTIONS)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    for ours, theirs in zip(parameters_of(gpu), parameters_of(cpu), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-4, rtol=1e-3)
