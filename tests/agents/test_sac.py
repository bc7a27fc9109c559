"""Soft actor-critic: every equation against a slow re-derivation; a seed's bits are its own."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents import sac
from suite.replay import Batch
from tests.agents.alf import squash
from tests.agents.trainings import CPU, learned, random_batch, tiny

TINY = tiny("sac")


def test_the_log_density_is_finite_where_the_naive_form_underflows() -> None:
    """At u = 30 the naive log(1 - tanh(u)^2) is -inf; the exact value is 2 (log 2 - 30)."""
    means = torch.full((1, 1, 1), 30.0)
    _, log_probs = sac.squash(means, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30)
    assert log_probs.item() == pytest.approx(expected, rel=1e-6)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "actor seldom, then twice": {"policy_period": 2},
    "bounds": {"initial_alpha": 0.01, "target_entropy_per_action": 5.0, "log_std_max": -0.2},
    "by tanh, three critics": {"log_std_bound": "tanh", "num_critics": 3, "log_std_min": -5.0},
    "fixed, slow": {"learn_alpha": False, "target_period": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_updates_do_what_the_settings_say(form: str) -> None:
    """Two seeds, four updates: every loss, bound and period written out once more."""
    config = replace(TINY, seeds=(1, 2), gamma=0.9, tau=0.1, **FORMS[form])
    ours, theirs = (sac.make_learner(config, 3, 2, CPU) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    steps = plain_steps(theirs, config)
    for number in range(4):
        batch = random_batch(generator, 2, 8, 3, 2)
        noise = torch.randn(1 + config.policy_period, 2, 8, 2, generator=generator)
        metrics = sac.update(ours, config, batch, noise, number)
        expected = steps(batch, noise, number)
        assert metrics.keys() == expected.keys()
        for name, value in metrics.items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)
    for new, old in zip(learned(ours), learned(theirs), strict=True):
        torch.testing.assert_close(new, old, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(ours.log_alpha, theirs.log_alpha)


def plain_steps(learner: sac.Learner, config: sac.Config) -> Any:
    """Return an update of a learner, in the plainest form."""
    actor_optimiser = torch.optim.Adam(learner.actor.parameters(), lr=config.actor_learning_rate)
    critic_optimiser = torch.optim.Adam(
        learner.critics.parameters(), lr=config.critic_learning_rate
    )
    alpha_optimiser = torch.optim.Adam([learner.log_alpha], lr=config.alpha_learning_rate)

    def descend(optimiser: torch.optim.Adam, losses: Tensor) -> None:
        optimiser.zero_grad()
        losses.sum().backward()
        optimiser.step()

    def policy(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = learner.actor(obs).squeeze(1).chunk(2, dim=-1)
        low, high = config.log_std_min, config.log_std_max
        if config.log_std_bound == "clip":
            log_stds = log_stds.clamp(low, high)
        else:
            log_stds = low + 0.5 * (high - low) * (torch.tanh(log_stds) + 1)
        return squash(means, log_stds, noise)

    def update(batch: Batch, noise: Tensor, number: int) -> dict[str, Tensor]:
        with torch.no_grad():
            next_actions, next_log_probs = policy(batch.next_obs, noise[0])
            next_q = learner.target_critics(torch.cat([batch.next_obs, next_actions], -1))
            next_values = next_q.squeeze(-1).amin(1)
            next_values -= learner.log_alpha.exp()[:, None] * next_log_probs
            targets = batch.rewards + config.gamma * (1 - batch.terminations) * next_values
        q_values = learner.critics(batch.obs_actions).squeeze(-1)
        losses = 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)
        descend(critic_optimiser, losses)
        metrics = {"critic_loss": losses.detach(), "q_value": q_values.detach().mean((1, 2))}
        for draws in noise[1:] if number % config.policy_period == 0 else ():
            alpha = learner.log_alpha.detach().exp()
            actions, log_probs = policy(batch.obs, draws)
            q_values = learner.critics(torch.cat([batch.obs, actions], -1)).squeeze(-1)
            losses = (alpha[:, None] * log_probs - q_values.amin(1)).mean(-1)
            descend(actor_optimiser, losses)
            entropy = -log_probs.detach().mean(-1)
            if config.learn_alpha:
                target_entropy = 2 * config.target_entropy_per_action
                descend(alpha_optimiser, learner.log_alpha.exp() * (entropy - target_entropy))
            metrics |= {"actor_loss": losses.detach(), "entropy": entropy, "alpha": alpha}
        if (number + 1) % config.target_period == 0:
            with torch.no_grad():
                slow, online = learner.target_critics.parameters(), learner.critics.parameters()
                for each, other in zip(slow, online, strict=True):
                    each.copy_((1 - config.tau) * each + config.tau * other)
        return metrics

    return update


def test_a_seed_has_the_same_bits_alone_and_beside_others() -> None:
    """HalfCheetah's sizes, nine seeds, over two updates: every weight, to the bit."""
    seeds = tuple(range(1, 10))
    config = sac.Config(device="cpu", seeds=seeds)
    together = sac.make_learner(config, 17, 6, CPU)
    alone = [sac.make_learner(replace(config, seeds=(seed,)), 17, 6, CPU) for seed in seeds]
    generator = torch.Generator().manual_seed(0)
    for number in range(2):
        batch = random_batch(generator, 9, 256, 17, 6)
        noise = torch.randn(2, 9, 256, 6, generator=generator)
        sac.update(together, config, batch, noise, number)
        for i, learner in enumerate(alone):
            own = Batch(*(each[[i]] for each in batch[:5]))
            sac.update(learner, config, own, noise[:, [i]], number)
    for i, learner in enumerate(alone):
        assert all(map(torch.equal, learned(together, i), learned(learner)))


@pytest.mark.parametrize("separate", [True, False])
def test_the_actors_last_layer_is_drawn_as_one_or_two(separate: bool) -> None:
    """Each is orthogonal by itself, with the policy head's gain; a critic's layers have another."""
    config = replace(TINY, initialisation="orthogonal", hidden_gain=2.0, policy_head_gain=0.1)
    learner = sac.make_learner(replace(config, separate_heads=separate), 3, 2, CPU)
    last = learner.actor.weights_of(0)["weight_2"]  # [16, 2 A]
    for head in (last[:, :2], last[:, 2:]):
        torch.testing.assert_close(head.T @ head, 0.01 * torch.eye(2))
    assert torch.allclose(last.T @ last, 0.01 * torch.eye(4), atol=1e-6) != separate
    for ensemble in (learner.actor, learner.critics):
        first = ensemble.weights_of(0)["weight_0"]
        torch.testing.assert_close(first @ first.T, 4 * torch.eye(len(first)), atol=1e-5, rtol=0)
    norms = torch.stack([learner.critics.weights_of(0, k)["weight_2"].norm() for k in range(2)])
    torch.testing.assert_close(norms, torch.full((2,), 2.0))
