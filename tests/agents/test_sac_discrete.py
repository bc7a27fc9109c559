"""Discrete soft actor-critic: equations against slow derivations, then what training must do."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from agents import sac_discrete as sac
from suite.base.errors import UsageError
from suite.base.files import write_json
from suite.envs.vector_env import Spaces
from suite.step_replay import StepBatch
from tests.agents.trainings import CPU, table, tiny, train
from tests.perceptrons import linear
from tests.scripted import ScriptedEnv

VECTORS, FRAMES = Spaces((3,), 4), Spaces((4, 84, 84), 6)
TINY = tiny("sac_discrete")


def random_batch(seed: int, seeds: int, size: int, spaces: Spaces) -> StepBatch:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    return StepBatch(
        obs=draw(seeds, size, *spaces.obs_shape),
        actions=torch.from_numpy(rng.integers(0, spaces.num_outputs, (seeds, size))),
        rewards=draw(seeds, size),
        terminations=(draw(seeds, size) > 0.8).float(),
        next_obs=draw(seeds, size, *spaces.obs_shape),
    )


# Mathematics


@pytest.mark.parametrize("error", ["half_squared", "squared", "huber"])
@pytest.mark.parametrize("how", ["minimum", "mean"])
def test_targets_and_losses_equal_a_slow_float64_derivation(error: Any, how: Any) -> None:
    """Eqs. (2), (4), (10) to (12), element by element; any sign error shows."""
    rng = np.random.default_rng(0)
    seeds, critics, size, number, gamma, target = 2, 3, 5, 4, 0.9, 1.1
    logits, next_logits = rng.normal(size=(2, seeds, size, number))
    q_values, next_q = 2 * rng.normal(size=(2, seeds, critics, size, number))
    rewards = rng.normal(size=(seeds, size))
    terminations = (rng.uniform(size=(seeds, size)) < 0.4).astype(float)
    actions = rng.integers(0, number, (seeds, size))
    log_alpha = rng.normal(size=seeds)

    def chosen(values: np.ndarray) -> float:
        return min(values) if how == "minimum" else sum(values) / len(values)

    def soft_value(of_logits: np.ndarray, values: np.ndarray, alpha: float) -> float:
        total, value = sum(math.exp(x) for x in of_logits), 0.0
        for a in range(number):
            prob = math.exp(of_logits[a]) / total
            value += prob * (chosen(values[:, a]) - alpha * math.log(prob))
        return value

    targets = np.zeros((seeds, size))
    critic, actor, entropy, temperature = np.zeros((4, seeds))
    for s in range(seeds):
        alpha = math.exp(log_alpha[s])
        for b in range(size):
            value = soft_value(next_logits[s, b], next_q[s, :, b], alpha)
            targets[s, b] = rewards[s, b] + (0 if terminations[s, b] else gamma * value)
            for k in range(critics):
                gap = abs(q_values[s, k, b, actions[s, b]] - targets[s, b])
                losses = {"half_squared": gap**2 / 2, "squared": gap**2}
                losses["huber"] = gap**2 / 2 if gap < 1 else gap - 0.5
                critic[s] += losses[error] / size
            actor[s] -= soft_value(logits[s, b], q_values[s, :, b], alpha) / size
            entropy[s] += soft_value(logits[s, b], np.zeros((1, number)), 1.0) / size
        temperature[s] = alpha * (entropy[s] - target)

    alphas, ones = torch.from_numpy(log_alpha).exp(), torch.ones(seeds, dtype=torch.float64)
    next_log_probs = sac.log_policy(torch.from_numpy(next_logits), ones)
    next_values = sac.soft_values(
        sac.combine(torch.from_numpy(next_q), how), next_log_probs, alphas
    )
    ends, gained = torch.from_numpy(terminations), torch.from_numpy(rewards)
    ours = sac.q_targets(gained, ends, next_values, gamma)
    np.testing.assert_allclose(ours.numpy(), targets, rtol=1e-12)
    index = np.broadcast_to(actions[:, None, :, None], (seeds, critics, size, 1))
    taken = torch.from_numpy(np.take_along_axis(q_values, index, -1)[..., 0])
    loss = sac.critic_loss(taken, ours, error)
    np.testing.assert_allclose(loss.numpy(), critic, rtol=1e-12)
    log_probs = sac.log_policy(torch.from_numpy(logits), ones)
    loss = sac.actor_loss(log_probs, sac.combine(torch.from_numpy(q_values), how), alphas)
    np.testing.assert_allclose(loss.numpy(), actor, rtol=1e-12)
    entropies = sac.entropies(log_probs).mean(-1)
    np.testing.assert_allclose(entropies.numpy(), entropy, rtol=1e-12)
    loss = sac.alpha_loss(torch.from_numpy(log_alpha), entropies, target)
    np.testing.assert_allclose(loss.numpy(), temperature, rtol=1e-12)


def test_softmax_of_q_over_alpha_maximises_the_expected_soft_value() -> None:
    """Its value is alpha log sum exp(Q / alpha), which no other policy exceeds (Eq. 12)."""
    rng = np.random.default_rng(2)
    q_values, alpha = (
        torch.from_numpy(rng.normal(size=(2, 5, 4))),
        torch.tensor([0.2, 3.0]).double(),
    )
    values = sac.soft_values(q_values, sac.log_policy(q_values, alpha), alpha)
    closed = alpha[:, None] * (q_values / alpha[:, None, None]).logsumexp(-1)
    torch.testing.assert_close(values, closed)
    for _ in range(20):
        other = torch.from_numpy(rng.normal(size=(2, 5, 4))).log_softmax(-1)
        assert (sac.soft_values(q_values, other, alpha) < values).all()


def test_limits_of_the_temperature_are_greedy_and_uniform() -> None:
    """Alpha to 0: V is the largest Q; alpha large: the policy is uniform, its entropy log |A|."""
    q_values = torch.tensor([[[1.0, 3.0, -2.0]]])
    cold, hot = torch.tensor([1e-3]), torch.tensor([1e4])
    greedy = sac.log_policy(q_values, cold)
    assert sac.soft_values(q_values, greedy, cold).item() == pytest.approx(3.0)
    assert sac.entropies(greedy).item() == pytest.approx(0.0, abs=1e-6)
    assert sac.entropies(sac.log_policy(q_values, hot)).item() == pytest.approx(math.log(3))


# An update


@pytest.mark.parametrize("policy", ["network", "critics"])
@pytest.mark.parametrize("over_actions", [True, False])
def test_an_update_equals_plain_autograd_and_adam(policy: Any, over_actions: bool) -> None:
    """Critics, actor, temperature, target copies, written out with separate networks."""
    config = replace(
        TINY,
        seeds=(3,),
        policy=policy,
        gamma=0.9,
        tau=0.1,
        target_period=1,
        max_gradient_norm=0.5,
        adam_epsilon=1e-4,
        weight_decay=0.01,
        mean_over_actions=over_actions,
        initial_alpha=0.5,
        target_entropy_share=0.7,
    )
    learner = sac.make_learner(config, VECTORS, CPU)
    with torch.no_grad():  # else targets and critics agree
        for parameter in learner.target_critics.parameters():
            parameter.mul_(0.9)
    batch = random_batch(1, 1, 8, VECTORS)
    critics = [linear(learner.critics, 0, k) for k in range(2)]
    slow = [linear(learner.target_critics, 0, k) for k in range(2)]
    actor = linear(learner.actor, 0, 0) if learner.actor is not None else None
    log_alpha = torch.full((1,), math.log(0.5), requires_grad=True)
    obs, next_obs, actions = batch.obs[0], batch.next_obs[0], batch.actions[0]

    def log_probs(inputs: Tensor) -> Tensor:
        q_values = torch.minimum(critics[0](inputs), critics[1](inputs)) / 0.5
        return torch.log_softmax(q_values if actor is None else actor(inputs), -1)

    def descend(losses: Tensor, *parts: Sequence[Tensor]) -> None:
        weights = [tensor for part in parts for tensor in part]
        optimiser = torch.optim.AdamW(weights, lr=3e-4, eps=1e-4, weight_decay=0.01)
        losses.backward()
        for part in parts[: len(parts) if len(parts[0]) > 1 else 0]:
            torch.nn.utils.clip_grad_norm_(part, 0.5)
        optimiser.step()

    with torch.no_grad():
        logs = log_probs(next_obs)
        judged = torch.minimum(slow[0](next_obs), slow[1](next_obs))
        values = (logs.exp() * (judged - 0.5 * logs)).sum(-1)
        targets = batch.rewards[0] + 0.9 * (1 - batch.terminations[0]) * values
        entropy = torch.distributions.Categorical(logits=log_probs(obs)).entropy().mean()
    taken = [critic(obs)[torch.arange(8), actions] for critic in critics]
    errors = [0.5 * (each - targets).square().mean() for each in taken]
    descend(errors[0] + errors[1], *(list(critic.parameters()) for critic in critics))
    share = 4 if over_actions else 1
    if actor is not None:
        with torch.no_grad():
            judged = torch.minimum(critics[0](obs), critics[1](obs))
        logs = log_probs(obs)
        losses = (logs.exp() * (0.5 * logs - judged)).sum(-1)
        descend(losses.mean() / share, list(actor.parameters()))
    descend((log_alpha.exp() * (entropy - 0.7 * math.log(4)) / share).sum(), [log_alpha])

    metrics = sac.update(learner, config, batch, 0)
    assert metrics["entropy"].item() == pytest.approx(entropy.item(), rel=1e-5)
    pairs = [(linear(learner.critics, 0, k), critics[k]) for k in range(2)]
    if learner.actor is not None and actor is not None:
        pairs.append((linear(learner.actor, 0, 0), actor))
    for ours, reference in pairs:
        for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    for k in range(2):
        copies, fast = linear(learner.target_critics, 0, k).parameters(), critics[k].parameters()
        for copied, online, before in zip(copies, fast, slow[k].parameters(), strict=True):
            torch.testing.assert_close(copied, 0.1 * online + 0.9 * before, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(learner.log_alpha, log_alpha)


@pytest.mark.parametrize("spaces", [VECTORS, FRAMES], ids=["vectors", "frames"])
def test_gradients_reach_only_what_they_should(spaces: Spaces) -> None:
    """No gradient is left anywhere; a kept temperature and unlearned target copies stay."""
    config = replace(TINY, seeds=(1, 2), learn_alpha=False, target_period=2)
    learner = sac.make_learner(config, spaces, CPU)
    parts = {"actor": learner.actor, "critics": learner.critics, "slow": learner.target_critics}
    before = {name: [p.detach().clone() for p in net.parameters()] for name, net in parts.items()}
    sac.update(learner, config, random_batch(0, 2, 4, spaces), 0)
    for name, net in parts.items():
        for old, new in zip(before[name], net.parameters(), strict=True):
            assert torch.equal(old, new) == (name == "slow"), name
            assert new.grad is None
    assert learner.log_alpha.tolist() == [0.0, 0.0]
    sac.update(learner, config, random_batch(1, 2, 4, spaces), 1)
    for online, slow in zip(learner.critics.parameters(), parts["slow"].parameters(), strict=True):
        assert torch.equal(online, slow)  # tau = 1


# Acting


@pytest.mark.parametrize("policy", ["network", "critics"])
def test_actions_are_drawn_from_the_policy_or_are_its_mode(policy: Any) -> None:
    """By chance `epsilon` an action is drawn, else it is the mode (ALF's epsilon-greedy)."""
    config = replace(TINY, policy=policy)
    learner = sac.make_learner(config, VECTORS, CPU)
    obs = np.repeat(np.array([[[0.3, -1.0, 0.5]]], dtype=np.float32), 20_000, axis=1)
    networks, log_temperature = learner.acting
    with torch.no_grad():
        outputs = sac.combine(networks(torch.from_numpy(obs[:, :1])), "minimum")
        probs = sac.log_policy(outputs, log_temperature.exp()).exp()[0, 0].numpy()
    mode = probs.argmax()
    assert (sac.act(*learner.acting, config, obs) == mode).all()
    for epsilon in (1.0, 0.3):
        drawn = sac.act(*learner.acting, config, obs, [np.random.default_rng(0)], epsilon)
        shares = np.bincount(drawn[0], minlength=4) / 20_000
        wanted = epsilon * probs + (1 - epsilon) * np.eye(4)[mode]
        np.testing.assert_allclose(shares, wanted, atol=0.02)


def test_a_description_of_fewer_critics_is_refused(tmp_path: Path) -> None:
    """Without one of its critics it would be another policy."""
    config = replace(TINY, policy="critics", env_steps=48, evaluation_interval=1_000)
    folder = train(config, tmp_path)[1].seed_directories[0]
    description = json.loads((folder / "policy.json").read_text())
    write_json(folder / "policy.json", description | {"num_critics": 1})
    with pytest.raises(UsageError, match=r"^unreadable policy .* these networks: 1\.bias_0, "):
        agents.load_policy(folder)


def test_a_temperature_for_several_seeds_is_refused() -> None:
    """It would be broadcast, and only the first seed's actions be taken."""
    config = replace(TINY, policy="critics", seeds=(1, 2))
    learner = sac.make_learner(config, VECTORS, CPU)
    description = {name: getattr(config, name) for name in ("task", "protocol", *sac.ACTING)}
    description |= VECTORS._asdict()
    weights = learner.weights_of(0)
    assert sac.load(weights, description)(np.zeros((3, 3), dtype=np.float32)).shape == (3,)
    weights["temperature"] = learner.acting[1]
    with pytest.raises(ValueError, match=r"^temperature must have the shape \[1\], not \[2\]$"):
        sac.load(weights, description)


# Training where every value can be told beforehand


FAST = replace(
    TINY,
    env_steps=300,
    gamma=0.8,
    num_critics=1,
    batch_size=32,
    tau=0.05,
    target_period=1,
    hidden_sizes=(32,),
    initialisation="torch",
    actor_learning_rate=1e-2,
    critic_learning_rate=1e-2,
    alpha_learning_rate=2e-2,
)


@pytest.mark.parametrize("policy", ["network", "critics"])
@pytest.mark.parametrize("objective", ["alpha", "log_alpha"])
def test_the_temperature_moves_the_entropy_to_its_target(
    policy: Any, objective: Any, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """A bandit: the second action pays 1 more, and a share 0.5 of log 2 still remains."""
    scripted.reward = staticmethod(lambda actions: actions)
    config = replace(FAST, gamma=0.0, policy=policy, alpha_objective=objective)
    config = replace(config, target_entropy_share=0.5, log_interval=5)
    learner, recorder = train(config, tmp_path)
    rows = table(recorder, "updates.csv")
    assert rows.entropy.iloc[0] > 0.85 * math.log(2)
    assert rows.entropy[-10:].mean() == pytest.approx(0.5 * math.log(2), abs=0.05)
    # a difference of 1 in Q leaves this entropy at the temperature 1 / log(0.89 / 0.11)
    assert learner.log_alpha.exp().item() == pytest.approx(0.478, abs=0.08)


def test_a_bound_of_the_log_temperature_is_kept(tmp_path: Path) -> None:
    """From the start on, and at both ends."""
    low = replace(TINY, min_log_alpha=-0.001, target_entropy_share=0.01, alpha_learning_rate=0.1)
    learner, _ = train(low, tmp_path / "low")
    assert learner.log_alpha.item() == pytest.approx(-0.001)
    assert sac.make_learner(replace(TINY, max_log_alpha=-2.0), VECTORS, CPU).log_alpha.item() == -2
