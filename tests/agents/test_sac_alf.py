"""ALF's options: every equation against a slow re-derivation, then training; without them, SAC."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from agents import load_policy, sac, sac_alf
from suite import step_session
from suite.envs.vector_env import Spaces
from suite.policy import read_policy
from tests.agents.alf import assert_same_weights, descend, plain_learner, random_batch, squash
from tests.agents.trainings import ALF_OPTIONS, CPU, fields, same, table, tiny, train
from tests.perceptrons import linear, vector

TINY = tiny("sac_alf")
MIXED = tiny("sac_alf, mixed")
SHORT = replace(TINY, env_steps=60, log_interval=10)
"""20 updates."""


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
    """A mixture of truncated normals for each dimension; a uniform prior has the density 1 / 2."""
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(2, 50, 3, generator=generator).double() * 2 - 1
    first = torch.rand(2, 50, 1, generator=generator) < 0.3
    previous = torch.cat([torch.tanh(torch.randn(2, 50, 3, generator=generator)), first], -1)
    for odds in ((0.9, 0.1), (0.3, 0.7), (0.0, 0.1), (1.0, 0.05)):
        ours = sac_alf.same_action_log_probs(actions, previous.double(), *odds)
        torch.testing.assert_close(ours, slow_prior(actions, previous.double(), *odds))
    zeros, uniform = torch.zeros(2, 50), replace(TINY, prior="uniform")
    ratios = sac_alf.log_ratios(zeros, actions, previous, uniform)
    torch.testing.assert_close(ratios, zeros + 3 * math.log(2))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_updates_with_all_options_equal_plain_autograd(clip: float | None) -> None:
    """Two updates on Reacher's two parts: prior, running mean and weights as ALF writes them."""
    ceiling = 9.0 if clip is None else math.log(0.2)
    options: dict[str, Any] = {
        **ALF_OPTIONS,
        "reward_weights": (0.7, -1.5),
        "target_kl_per_action": 2.0,
        **{"action_gradient_clip": clip, "entropy_in_target": clip is None},
        "max_log_alpha": ceiling,
    }
    config = replace(TINY, task="Reacher-v4", gamma=0.9, tau=0.1, initial_alpha=0.3, **options)
    learner = plain_learner(config, Spaces.vectors(3, 2))
    assert learner.actor is not None
    actor = linear(learner.actor).double()
    critics, slow = (
        [[linear(ensemble, 0, 2 * k + d).double() for d in range(2)] for k in range(2)]
        for ensemble in (learner.critics, learner.target_critics)
    )
    log_alpha = torch.tensor(min(math.log(0.3), ceiling), dtype=torch.float64, requires_grad=True)
    mean = torch.zeros((), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)

    def ratio(obs: Tensor, previous: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = actor(obs).chunk(2, -1)
        actions, log_probs = squash(means, log_stds.clamp(-20, 2), draws)
        return actions, log_probs - slow_prior(actions, previous, 0.9, 0.1)

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
            entropy = -alpha * (next_ratios - mean) if clip is None else 0.0
            continuing = 0.9 * (1 - batch.terminations[0])
            nexts = [value([slow[k][d] for k in range(2)], inputs, choices[d]) for d in range(2)]
            targets = [rewards[:, d] + continuing * (nexts[d] + entropy) for d in range(2)]
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
        log_alpha.data.clamp_(max=ceiling)
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


def wait(self: step_session.Updates, number: int, until: int) -> None:
    """Make no update during a step."""
    self._number, self._until = number, until
    self._size, _ = self._replay.coming


@pytest.mark.parametrize("capacity", [1_000, 50])
def test_sequences_are_the_same_during_a_step_and_after_it(
    capacity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that would read rows of the step under way waits, though it draws earlier ones."""
    config = replace(SHORT, task="InvertedPendulum-v4", env_steps=120, evaluation_interval=120)
    config = replace(config, td_steps=4, num_envs=2, replay_capacity=capacity, batch_size=2)
    early, _ = train(config, tmp_path / "early")
    monkeypatch.setattr(step_session.Updates, "begin", wait)
    late, _ = train(config, tmp_path / "late")
    assert same(early, late)


@pytest.mark.parametrize("task", ["Pendulum-v1", "Claw-v0"])
def test_an_evaluation_draws_as_often_as_asked(task: str, tmp_path: Path) -> None:
    """Numbers and choices: never, always, or in between."""
    config = replace(SHORT, task=task, evaluation_rule="sampled", evaluation_episodes=1)
    _, recorder = train(config, tmp_path)
    weights, description = read_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(2_000, config.find_task().obs_size)).astype("f4")
    for epsilon in (0.0, 0.5, 1.0):
        policy = sac_alf.load(weights, description | {"evaluation_epsilon": epsilon})
        agree = policy.act(obs, np.random.default_rng(1)) == policy.act(obs)
        shares = agree.reshape(2_000, -1)[:, -1].mean()
        assert shares == pytest.approx(1 - epsilon, abs=0.04)


@pytest.mark.parametrize("task", ["Claw-v0", "CartPole-v1"])
def test_a_policy_without_a_temperature_can_be_loaded(task: str, tmp_path: Path) -> None:
    """Where there is no actor, its settings are unused."""
    config = replace(SHORT, task=task, initial_alpha=0.0, learn_alpha=False)
    _, recorder = train(replace(config, action_gradient_clip=1.0), tmp_path)
    load_policy(recorder.seed_directories[0])


def test_a_mixed_action_is_a_number_of_the_actor_and_the_choice_by_its_q() -> None:
    """Modes of both, or draws: a choice by the softmax of the critics' smallest Q over alpha_d."""
    learner = sac_alf.make_learner(
        replace(MIXED, log_std_max=-1.0), Spaces.vectors(2, 2)._replace(num_choices=3), CPU
    )
    with torch.no_grad():  # a policy with preferences
        for weight in learner.critics.parameters():
            weight.mul_(3)
        learner.log_alphas[0] = -1.0
    obs = np.repeat(np.array([[[0.7, -0.4]]], dtype=np.float32), 20_000, 1)
    assert learner.actor is not None
    with torch.no_grad():
        inputs = torch.from_numpy(obs)
        means, log_stds = sac_alf.split_outputs(learner.actor(inputs), MIXED)
        log_stds = log_stds.clamp(max=-1.0)
        noise = torch.randn(means.shape, generator=torch.Generator().manual_seed(0))
        numbers = torch.tanh(means + log_stds.exp() * noise)
        q_values, of_mode = (
            learner.critics(torch.cat([inputs, each], -1)).amin(1)[0]
            for each in (numbers, torch.tanh(means))
        )
    (modes,) = sac_alf.act(*learner.acting, MIXED, obs[:, :1])
    np.testing.assert_allclose(modes[0, 1:], torch.tanh(means)[0, 0], rtol=1e-5, atol=1e-6)
    assert modes[0, 0] == of_mode[0].argmax()
    config = replace(MIXED, log_std_max=-1.0)
    (draws,) = sac_alf.act(*learner.acting, config, obs, [np.random.default_rng(0)])
    np.testing.assert_allclose(draws[:, 1:].std(0), numbers[0].std(0), rtol=0.05)
    expected = torch.softmax(q_values / math.exp(-1), -1).mean(0)
    shares = np.bincount(draws[:, 0].astype(int), minlength=3) / 20_000
    np.testing.assert_allclose(shares, expected, atol=0.02)
    assert 0.4 < expected.amax() < 0.99  # the odds are not even


OF_SAC: tuple[dict[str, Any], ...] = (
    {
        **{"env_steps": 72, "hidden_sizes": (8, 8, 8), "num_envs": 2, "num_critics": 3},
        **{"initialisation": "orthogonal", "hidden_gain": 0.5, "policy_head_gain": 0.3},
        **{"separate_heads": True, "evaluation_rule": "sampled"},
        **{f"{name}_learning_rate": 3e-3 for name in ("actor", "critic", "alpha")},
        **{"target_entropy_per_action": 0.5, "gamma": 0.5, "tau": 0.5, "reward_scale": 3.0},
        **{"replay_capacity": 50, "learning_starts": 50, "update_ratio": 2.0, "seeds": (3, 1)},
    },
    {
        **{"initialisation": "lecun_normal", "log_std_bound": "tanh", "log_std_min": -0.2},
        **{"log_std_max": 0.1, "batch_size": 16, "log_interval": 20},
        **{"policy_period": 2, "target_period": 3},
        **{"evaluation_interval": 30, "evaluation_episodes": 2},
    },
    {**{"initialisation": "torch", "learn_alpha": False, "initial_alpha": 0.3}, "policy_period": 3},
)
"""Every setting of `agents.sac` at another value than the default's, in three runs."""
ELSEWHERE = {"task", "device", "tf32", "num_threads", "env_threads", "cuda_graphs"}
"""Settings that no agent reads itself, or only on a GPU."""


def test_every_setting_of_sac_is_compared() -> None:
    """A new one must be one of `agents.sac_alf` too, with the same default."""
    names, given = fields(sac.Config), {name for each in OF_SAC for name in each}
    assert names == given | ELSEWHERE
    theirs, ours = sac.Config(), sac_alf.Config()
    assert all(getattr(theirs, name) == getattr(ours, name) for name in names)
    assert all(getattr(theirs, n) != value for each in OF_SAC for n, value in each.items())


@pytest.mark.parametrize("changes", OF_SAC)
def test_a_training_is_that_of_sac_under_its_settings(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Ten updates or more, with all options off: tables, weights and temperature agree."""
    config = replace(SHORT, **changes)
    theirs = sac.Config(**{name: getattr(config, name) for name in fields(sac.Config)})
    ours, recorder = train(config, tmp_path / "ours")
    expected, other = train(theirs, tmp_path / "theirs")
    for ensemble in ("actor", "critics", "target_critics"):
        one, two = (vector(getattr(learner, ensemble)) for learner in (ours, expected))
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], expected.log_alpha, atol=1e-6, rtol=1e-5)
    for seed in range(len(theirs.seeds)):
        for name in ("episodes.csv", "evaluations.csv", "updates.csv"):
            one, two = (table(each, name, seed) for each in (recorder, other))
            pd.testing.assert_frame_equal(one, two, rtol=1e-4, atol=1e-5)
