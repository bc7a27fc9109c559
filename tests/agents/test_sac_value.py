"""Value-network SAC: every equation against a slow re-derivation; the settings of each task."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agents import sac_value
from suite.replay import Batch
from tests.agents.alf import assert_same_weights, descend, descent, squash
from tests.agents.trainings import CPU, random_batch, tiny
from tests.perceptrons import linear

TINY = tiny("sac_value")


def test_an_update_equals_plain_autograd() -> None:
    """Eqs. (3), (5), (7), (8), (12), in float64; the slow copy follows after the second update."""
    config = replace(TINY, seeds=(3,), gamma=0.9, tau=0.1, target_period=2)
    learner = sac_value.make_learner(config, 3, 2, CPU)
    learner.value_optimiser = descent(learner.value.parameters())
    learner.critic_optimiser = descent(learner.critics.parameters())
    learner.actor_optimiser = descent(learner.actor.parameters())
    with torch.no_grad():  # so that taking V for its slow copy would show
        for weight in learner.target_value.parameters():
            weight.mul_(1.5)
    generator = torch.Generator().manual_seed(1)
    actor, value, slow = (
        linear(ensemble).double()
        for ensemble in (learner.actor, learner.value, learner.target_value)
    )
    critics = [linear(learner.critics, 0, k).double() for k in range(2)]

    def act(obs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = actor(obs).chunk(2, -1)
        return squash(means, log_stds.clamp(-20, 2), draws.double())

    def judge(obs: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([obs, actions], -1)
        return torch.minimum(critics[0](inputs), critics[1](inputs)).squeeze(-1)

    for number in range(2):
        batch = random_batch(generator, 1, 8, 3, 2)
        noise = torch.randn(2, 1, 8, 2, generator=generator)
        exact = Batch(*(each.double() for each in batch))
        obs, obs_actions = exact.obs[0], exact.obs_actions[0]
        with torch.no_grad():
            actions, log_probs = act(obs, noise[0, 0])
            value_targets = judge(obs, actions) - log_probs
            expected = {"value": value(obs).mean()}
            expected["q_value"] = (critics[0](obs_actions) + critics[1](obs_actions)).mean() / 2
            followed = 0.9 * (1 - exact.terminations[0]) * slow(exact.next_obs[0]).squeeze(-1)
            targets = exact.rewards[0] + followed
        loss = 0.5 * (value(obs).squeeze(-1) - value_targets).square().mean()
        expected["value_loss"] = loss.detach()
        descend(value.parameters(), loss)
        losses = [0.5 * (c(obs_actions).squeeze(-1) - targets).square().mean() for c in critics]
        expected["critic_loss"] = (losses[0] + losses[1]).detach()
        descend([p for c in critics for p in c.parameters()], losses[0] + losses[1])
        actions, log_probs = act(obs, noise[1, 0])
        loss = (log_probs - judge(obs, actions)).mean()
        expected |= {"actor_loss": loss.detach(), "entropy": -log_probs.detach().mean()}
        descend(actor.parameters(), loss)
        metrics = sac_value.update(learner, config, batch, noise, number)
        assert metrics.keys() == expected.keys()
        for name, found in metrics.items():
            assert found.item() == pytest.approx(expected[name].item(), rel=1e-4), name
    with torch.no_grad():
        for slowly, online in zip(slow.parameters(), value.parameters(), strict=True):
            slowly.copy_(0.1 * online + 0.9 * slowly)
    pairs = [(learner.critics, 0, critics[0]), (learner.critics, 1, critics[1])]
    pairs += [(learner.actor, 0, actor), (learner.value, 0, value)]
    pairs += [(learner.target_value, 0, slow)]
    for pair in pairs:
        assert_same_weights(*pair)


@pytest.mark.parametrize(
    ("task", "scale", "starts"),
    [
        *[("Ant-v3", 5.0, 10_000), ("Hopper-v4", 5.0, 1_000), ("Humanoid-v5", 20.0, 1_000)],
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
