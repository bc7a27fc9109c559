"""Value-network SAC: every equation against a slow re-derivation, then what training must do."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import sac_value
from suite.nets.perceptrons import Stack
from suite.replay import Batch
from tests.agents.trainings import CPU, random_batch, tiny
from tests.perceptrons import linear, vector

TINY = tiny("sac_value")


def stacks_of(learner: sac_value.Learner) -> dict[str, Stack]:
    names = ("actor", "critics", "value", "target_value")
    return {name: getattr(learner, name) for name in names}


# Mathematics


def test_targets_and_losses_equal_a_slow_float64_derivation() -> None:
    """Eqs. (3), (5), (7), (8), (12), element by element; any sign error shows."""
    rng = np.random.default_rng(0)
    num_seeds, num_critics, size, gamma = 2, 3, 5, 0.9
    alpha = np.array([1.0, 0.3])  # the paper's, and a learned one
    rewards, next_values, log_probs, values = rng.normal(size=(4, num_seeds, size))
    terminations = (rng.uniform(size=(num_seeds, size)) < 0.4).astype(float)
    q_values, judged = rng.normal(size=(2, num_seeds, num_critics, size))
    of_value, of_q = np.zeros((2, num_seeds, size))
    value_losses, critic_losses, actor_losses = np.zeros((3, num_seeds))
    for s in range(num_seeds):
        for b in range(size):
            smallest = min(judged[s, k, b] for k in range(num_critics))
            of_value[s, b] = smallest - alpha[s] * log_probs[s, b]
            value_losses[s] += (values[s, b] - of_value[s, b]) ** 2 / 2 / size
            followed = 0 if terminations[s, b] else gamma * next_values[s, b]
            of_q[s, b] = rewards[s, b] + followed
            for k in range(num_critics):
                critic_losses[s] += (q_values[s, k, b] - of_q[s, b]) ** 2 / 2 / size
            actor_losses[s] += (alpha[s] * log_probs[s, b] - smallest) / size

    def equal(ours: Tensor, slow: np.ndarray) -> None:
        np.testing.assert_allclose(ours.numpy(), slow, rtol=1e-12)

    logs, judgements = torch.from_numpy(log_probs), torch.from_numpy(judged)
    temperature = torch.from_numpy(alpha)
    value_targets = sac_value.value_targets(judgements, logs, temperature)
    equal(value_targets, of_value)
    equal(sac_value.value_loss(torch.from_numpy(values), value_targets), value_losses)
    q_targets = sac_value.q_targets(
        torch.from_numpy(rewards),
        torch.from_numpy(terminations),
        torch.from_numpy(next_values),
        gamma,
    )
    equal(q_targets, of_q)
    equal(sac_value.critic_loss(torch.from_numpy(q_values), q_targets), critic_losses)
    equal(sac_value.actor_loss(logs, judgements, temperature), actor_losses)


def plain_bounds(outputs: Tensor) -> tuple[Tensor, Tensor]:
    means, log_stds = outputs.chunk(2, -1)
    return means, log_stds.clamp(-20, 2)


def stretched_bounds(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A tanh's -1 and 1 are moved to the bounds -3 and 1; means have a tanh of their own."""
    means, log_stds = outputs.chunk(2, -1)
    return torch.tanh(means), -3 + 4 * (torch.tanh(log_stds) + 1) / 2


FROM_SCRATCH: dict[str, Any] = {
    **{"learn_alpha": True, "initial_alpha": 0.3, "target_entropy_per_action": -0.5},
    **{"log_std_bound": "tanh", "log_std_min": -3.0, "log_std_max": 1.0, "bound_means": True},
    **{"alpha_learning_rate": 1e-2, "last_layer_bound": 0.5, "sample_without_replacement": True},
}
"""What the paper lacks: a learned temperature, and a policy network of tutorials."""


@pytest.mark.parametrize(
    ("options", "bounds"), [({}, plain_bounds), (FROM_SCRATCH, stretched_bounds)]
)
def test_an_update_equals_plain_autograd_and_adam(options: dict[str, Any], bounds: Any) -> None:
    """One update equals V, critics, actor, slow copy written out with separate networks."""
    config = replace(TINY, seeds=(3,), gamma=0.9, tau=0.1, **options)
    alpha = options.get("initial_alpha", 1.0)
    learner = sac_value.make_learner(config, 3, 2, CPU)
    with torch.no_grad():  # so that taking V for its slow copy would show
        for weight in learner.target_value.parameters():
            weight.mul_(1.5)
    generator = torch.Generator().manual_seed(1)
    batch = random_batch(generator, 1, 8, 3, 2)
    noise = torch.randn(2, 1, 8, 2, generator=generator)
    actor, value, slow = (
        linear(stack).double() for stack in (learner.actor, learner.value, learner.target_value)
    )
    critics = [linear(learner.critics, 0, k).double() for k in range(2)]
    exact = Batch(*(each.double() for each in batch))

    def act(obs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = bounds(actor(obs))
        normal = torch.distributions.Normal(means, log_stds.exp())
        pre_tanh = means + log_stds.exp() * draws.double()
        slope = torch.log(1 - torch.tanh(pre_tanh).square())
        return torch.tanh(pre_tanh), (normal.log_prob(pre_tanh) - slope).sum(-1)

    def judge(obs: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([obs, actions], -1)
        return torch.minimum(critics[0](inputs), critics[1](inputs)).squeeze(-1)

    def descend(loss: Tensor, *networks: torch.nn.Module) -> None:
        optimiser = torch.optim.Adam([p for n in networks for p in n.parameters()], lr=3e-4)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    obs, obs_actions = exact.obs[0], exact.obs_actions[0]
    with torch.no_grad():
        actions, log_probs = act(obs, noise[0, 0])
        value_targets = judge(obs, actions) - alpha * log_probs
        followed = 0.9 * (1 - exact.terminations[0]) * slow(exact.next_obs[0]).squeeze(-1)
        targets = exact.rewards[0] + followed
    descend(0.5 * (value(obs).squeeze(-1) - value_targets).square().mean(), value)
    losses = [0.5 * (c(obs_actions).squeeze(-1) - targets).square().mean() for c in critics]
    descend(losses[0] + losses[1], *critics)
    actions, log_probs = act(obs, noise[1, 0])
    descend((alpha * log_probs - judge(obs, actions)).mean(), actor)
    with torch.no_grad():
        for slowly, online in zip(slow.parameters(), value.parameters(), strict=True):
            slowly.copy_(0.1 * online + 0.9 * slowly)

    metrics = sac_value.update(learner, config, batch, noise, 0)
    if options:  # d/d log alpha is alpha (entropy - target), whose sign is Adam's first step
        excess = -log_probs.mean().item() - (-0.5) * 2
        expected = math.log(0.3) - 1e-2 * math.copysign(1.0, excess)
        assert learner.log_alpha.item() == pytest.approx(expected, abs=1e-6)
        assert metrics["alpha"].item() == pytest.approx(0.3)
    else:
        assert learner.log_alpha.item() == 0
        assert "alpha" not in metrics
    pairs = [(learner.critics, 0, critics[0]), (learner.critics, 1, critics[1])]
    pairs += [(learner.actor, 0, actor), (learner.value, 0, value)]
    pairs += [(learner.target_value, 0, slow)]
    for stack, member, reference in pairs:
        ours = vector(linear(stack, 0, member)).double()
        torch.testing.assert_close(ours, vector(reference), atol=1e-6, rtol=1e-5)


def test_each_loss_moves_its_own_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """V learns first, then critics, then the actor, each from a loss that moves nothing else."""
    config = replace(TINY, seeds=(1, 2))
    learner = sac_value.make_learner(config, 3, 1, CPU)
    generator = torch.Generator().manual_seed(0)
    minimise, moved = sac_value.minimise, []

    def watch(losses: Tensor, optimiser: torch.optim.Adam) -> None:
        before = {name: vector(stack) for name, stack in stacks_of(learner).items()}
        minimise(losses, optimiser)
        stacks = stacks_of(learner).items()
        moved.append([n for n, stack in stacks if not torch.equal(vector(stack), before[n])])

    monkeypatch.setattr(sac_value, "minimise", watch)
    noise = torch.randn(2, 2, 8, 1, generator=generator)
    sac_value.update(learner, config, random_batch(generator, 2, 8, 3, 1), noise, 0)
    assert moved == [["value"], ["critics"], ["actor"]]


def test_last_layers_are_drawn_within_their_own_bound() -> None:
    """Weights and biases of all three kinds of network; other layers stay as they were."""
    bound = 0.003
    config = replace(TINY, hidden_sizes=(200, 100), last_layer_bound=bound)
    learner = sac_value.make_learner(config, 3, 2, CPU)
    plain = sac_value.make_learner(replace(config, last_layer_bound=None), 3, 2, CPU)
    first = [stack.weights_of(0)["weight_0"] for stack in (learner.actor, plain.actor)]
    assert torch.equal(*first)
    for stack in (learner.actor, learner.critics, learner.value):
        weights = stack.weights_of(0)
        last = torch.cat([weights["weight_2"].flatten(), weights["bias_2"]])
        assert 0.9 * bound < last.abs().max().item() <= bound
        assert weights["bias_2"].abs().max() > 0
        assert weights["weight_1"].abs().max() > 10 * bound


def test_a_hard_update_copies_v_once_a_period() -> None:
    """Rate 1: the slow copy stays for `target_period` updates and then is V."""
    config = replace(TINY, tau=1.0, target_period=3)
    learner = sac_value.make_learner(config, 3, 1, CPU)
    generator = torch.Generator().manual_seed(0)
    is_copy = []
    for num_updates in range(6):
        noise = torch.randn(2, 1, 8, 1, generator=generator)
        batch = random_batch(generator, 1, 8, 3, 1)
        sac_value.update(learner, config, batch, noise, num_updates)
        is_copy.append(torch.equal(vector(learner.target_value), vector(learner.value)))
    assert is_copy == [False, False, True] * 2


@pytest.mark.parametrize(
    ("task", "scale", "starts"),
    [
        *[("HalfCheetah-v4", 5.0, 10_000), ("Ant-v3", 5.0, 10_000), ("Hopper-v4", 5.0, 1_000)],
        *[("Walker2d-v4", 5.0, 1_000), ("Humanoid-v5", 20.0, 1_000)],
        *[("HumanoidRun-v1", 5.0, 1_000), ("CheetahRun-v1", 5.0, 1_000)],
    ],
)
def test_a_task_has_the_papers_settings_unless_it_is_given_others(
    task: str, scale: float, starts: int
) -> None:
    """Table 2 and the authors' code; a version of a task counts as the same, another name not."""
    config = replace(sac_value.PRESETS["mujoco", "paper"].config, task=task)
    assert (config.reward_factor, config.warm_up_steps) == (scale, starts)
    given = replace(config, reward_scale=0.5, learning_starts=40)
    assert (given.reward_factor, given.warm_up_steps) == (0.5, 40)
