"""ALF's SAC with discrete and mixed actions: equations, the two limits, then what it must do."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from agents import sac, sac_alf, sac_discrete
from suite.base.errors import UsageError
from suite.base.files import write_json
from suite.envs.vector_env import Spaces
from suite.replay import Batch
from suite.resume.checkpoint import save_policy
from suite.step_replay import StepBatch
from tests.agents import trainings
from tests.agents.alf import assert_same_weights, descend, plain_learner
from tests.agents.trainings import CPU, networks, tiny, train
from tests.perceptrons import linear
from tests.scripted import ScriptedEnv

TINY = tiny("sac_alf, mixed")


def spaces(obs_size: int, num_dimensions: int, num_choices: int) -> Spaces:
    return Spaces.vectors(obs_size, num_dimensions)._replace(num_choices=num_choices)


def random_batch(generator: torch.Generator, seeds: int, size: int, of: Spaces) -> Batch:
    """Return transitions with the choice's number before each continuous action."""
    (obs_size,), action_size = of.obs_shape, of.num_outputs
    batch = trainings.random_batch(generator, seeds, size, obs_size, action_size)
    choices = torch.randint(0, of.num_choices, (seeds, size, 1), generator=generator)
    extras = torch.zeros(seeds, size, 1 + action_size + 1)
    extras[..., 0] = batch.rewards
    obs, actions = batch.obs_actions.split([obs_size, action_size], -1)
    return batch._replace(obs_actions=torch.cat([obs, choices, actions], -1), extras=extras)


def update(
    learner: sac_alf.Learner, config: sac_alf.Config, batch: Batch, noise: Tensor
) -> dict[str, Tensor]:
    """Make an update with equal weights; return the diagnostics."""
    return sac_alf.update(learner, config, batch, torch.ones(batch.rewards.shape), noise, 0)[0]


# Mathematics


def test_an_update_equals_plain_autograd() -> None:
    """Critics, actor, both temperatures, targets: float64, one transition and choice at a time."""
    of, config = spaces(3, 2, 4), replace(TINY, seeds=(3,), gamma=0.9, tau=0.1)
    config = replace(config, initial_alpha=0.5, initial_choice_alpha=0.2)
    learner, generator = plain_learner(config, of), torch.Generator().manual_seed(1)
    batch, noise = random_batch(generator, 1, 8, of), torch.randn(2, 1, 8, 2, generator=generator)
    assert learner.actor is not None
    actor = linear(learner.actor).double()
    critics = [linear(learner.critics, 0, k).double() for k in range(2)]
    slow = [linear(learner.target_critics, 0, k).double() for k in range(2)]
    log_alphas = torch.tensor([0.2, 0.5], dtype=torch.float64).log().requires_grad_()
    alpha_d, alpha_c = log_alphas.detach().exp()

    def act(obs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(means, log_stds.exp())
        pre_tanh = means + log_stds.exp() * draws
        slope = torch.log(1 - torch.tanh(pre_tanh).square())
        return torch.tanh(pre_tanh), (normal.log_prob(pre_tanh) - slope).sum()

    def least(networks: list[torch.nn.Sequential], obs: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(*(net(torch.cat([obs, action])) for net in networks))

    rows = [[field[0, b].double() for field in batch[:-1]] for b in range(8)]  # without extras
    draws, losses = noise.double(), []
    for b, (obs, obs_action, reward, end, next_obs) in enumerate(rows):
        with torch.no_grad():
            action, log_prob = act(next_obs, draws[0, 0, b])
            odds = torch.softmax(least(critics, next_obs, action) / alpha_d, -1)
            copies = least(slow, next_obs, action)
            value = sum(odds[d] * (copies[d] - alpha_d * odds[d].log()) for d in range(4))
            target = reward + 0.9 * (1 - end) * (value - alpha_c * log_prob)
        pair, taken = torch.cat([obs, obs_action[4:]]), int(obs_action[3])
        losses += [0.5 * (critic(pair)[taken] - target).square() / 8 for critic in critics]
    descend([p for critic in critics for p in critic.parameters()], torch.stack(losses).sum())
    losses, entropies, log_probs = [], [], []
    for b, (obs, *_) in enumerate(rows):
        action, log_prob = act(obs, draws[1, 0, b])
        q_values = least(critics, obs, action)
        odds = torch.softmax(q_values.detach() / alpha_d, -1)
        losses.append((alpha_c * log_prob - (odds * q_values).sum()) / 8)
        entropies.append(-(odds * odds.log()).sum())
        log_probs.append(log_prob.detach())
    descend(actor.parameters(), torch.stack(losses).sum())
    of_choice = torch.stack(entropies).mean() - 0.3 * math.log(4)
    of_action = -torch.stack(log_probs).mean() - (-2.0)
    descend([log_alphas], (log_alphas.exp() * torch.stack([of_choice, of_action])).sum())

    update(learner, config, batch, noise)
    for k in range(2):
        assert_same_weights(learner.critics, k, critics[k])
        for online, copied in zip(critics[k].parameters(), slow[k].parameters(), strict=True):
            copied.data = 0.1 * online.data + 0.9 * copied.data
        assert_same_weights(learner.target_critics, k, slow[k])
    assert_same_weights(learner.actor, 0, actor)
    torch.testing.assert_close(learner.log_alphas[:, 0].double(), log_alphas, atol=1e-6, rtol=1e-5)


# Limits


def test_with_one_discrete_action_it_is_sac() -> None:
    """Updates of `agents.sac` from the same streams, with its batches and noise: to rounding."""
    shared = {"seeds": (1, 2), "hidden_sizes": (16, 16), "num_critics": 3, "gamma": 0.9, "tau": 0.1}
    hybrid = sac_alf.Config(**shared)
    plain = sac.Config(task="Pendulum-v1", **shared)
    ours, theirs = (
        sac_alf.make_learner(hybrid, spaces(3, 2, 1), CPU),
        sac.make_learner(plain, 3, 2, CPU),
    )
    for one, other in zip(networks(ours), networks(theirs), strict=True):
        assert torch.equal(one, other)
    generator = torch.Generator().manual_seed(0)
    for num_updates in range(5):
        batch = random_batch(generator, 2, 8, spaces(3, 2, 1))
        noise = torch.randn(2, 2, 8, 2, generator=generator)
        metrics = update(ours, hybrid, batch, noise)
        pairs = batch.obs_actions[..., [0, 1, 2, 4, 5]]
        expected = sac.update(theirs, plain, batch._replace(obs_actions=pairs), noise, num_updates)
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, atol=1e-6, rtol=1e-5)
        assert metrics["choice_entropy"].tolist() == [0.0, 0.0]
    for one, other in zip(networks(ours), networks(theirs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.log_alphas[1], theirs.log_alpha)
    assert torch.equal(ours.log_alphas[0], torch.zeros(2))


def test_without_a_continuous_action_it_is_discrete_sac() -> None:
    """Updates of `agents.sac_discrete` read off its critics, at a fixed temperature."""
    shared = {"seeds": (1, 2), "hidden_sizes": (16, 16), "num_critics": 3, "learn_alpha": False}
    shared |= {"gamma": 0.9, "tau": 0.1}
    of, hybrid = spaces(3, 0, 4), sac_alf.Config(initial_choice_alpha=0.3, **shared)
    discrete = sac_discrete.Config(
        task="CartPole-v1", policy="critics", initial_alpha=0.3, target_period=1, **shared
    )
    ours = sac_alf.make_learner(hybrid, Spaces((3,), 4), CPU)
    theirs = sac_discrete.make_learner(discrete, Spaces((3,), 4), CPU)
    for mine, other in (
        (ours.critics, theirs.critics),
        (ours.target_critics, theirs.target_critics),
    ):
        with torch.no_grad():
            for weight, copied in zip(mine.parameters(), other.parameters(), strict=True):
                copied.copy_(weight)
    generator = torch.Generator().manual_seed(0)
    for num_updates in range(5):
        batch = random_batch(generator, 2, 8, of)
        metrics = update(ours, hybrid, batch, torch.zeros(2, 2, 8, 0))
        taken = batch.obs_actions[..., 3].long()
        steps = StepBatch(batch.obs, taken, batch.rewards, batch.terminations, batch.next_obs)
        expected = sac_discrete.update(theirs, discrete, steps, num_updates)
        for name in ("critic_loss", "q_value"):
            torch.testing.assert_close(metrics[name], expected[name], atol=1e-6, rtol=1e-5)
    for mine, other in (
        (ours.critics, theirs.critics),
        (ours.target_critics, theirs.target_critics),
    ):
        for weight, copied in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(weight, copied, atol=1e-6, rtol=1e-5)


# Training on the task


def test_the_warm_up_is_uniform_in_choices_and_numbers(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Every choice, and numbers from -1 to 1, before there is anything to prefer."""
    seen: list[np.ndarray] = []
    scripted.spaces = spaces(1, 1, 3)
    scripted.reward = staticmethod(lambda rows: seen.append(rows.copy()) or rows[..., 0])
    train(replace(TINY, env_steps=400, learning_starts=400, num_envs=4), tmp_path)
    choices, numbers = np.concatenate(seen, axis=1)[0].T
    assert np.bincount(choices.astype(int), minlength=3) == pytest.approx([133] * 3, abs=33)
    assert np.histogram(numbers, 4, (-1, 1))[0] == pytest.approx([100] * 4, abs=30)
    assert set(choices) == {0.0, 1.0, 2.0}


def test_a_saved_policy_acts_like_the_learner(tmp_path: Path) -> None:
    """Modes, units and draws: the number from the actor, then the choice by that number's Q."""
    config = replace(TINY, num_critics=3, log_std_max=-1.0)
    learner, recorder = train(config, tmp_path)
    with torch.no_grad():  # a policy with preferences
        for member in range(3):
            learner.critics.weights_of(0, member)["weight_2"].mul_(3)
        learner.log_alphas[0] = -1.0
    agents_folder = recorder.seed_directories[0]
    weights = {name: w.contiguous() for name, w in learner.weights_of(0).items()}
    changed = tmp_path / "changed"  # a run's own folder keeps to its manifest
    changed.mkdir()
    save_policy(changed, weights, json.loads((agents_folder / "policy.json").read_text()))
    policy = agents.load_policy(changed)
    obs = np.random.default_rng(0).uniform(-1, 1, (4, 2)).astype(np.float32)
    inputs = torch.from_numpy(obs)[None]
    assert learner.actor is not None
    means, log_stds = sac_alf.split_outputs(learner.actor(inputs), config)
    modes = torch.tanh(means)
    least = learner.critics(torch.cat([inputs, modes], -1)).amin(1)
    np.testing.assert_allclose(policy(obs)[:, 1:], modes[0].detach(), rtol=1e-5, atol=1e-6)
    assert policy(obs)[:, 0].tolist() == least.argmax(-1)[0].tolist()
    assert policy(obs[0]).shape == (3,)

    draws = np.stack([policy.act(obs, np.random.default_rng(k)) for k in range(400)])
    noise = torch.randn(5_000, 4, 2, generator=torch.Generator().manual_seed(0))
    numbers = torch.tanh(means + log_stds.exp() * noise)
    np.testing.assert_allclose(draws[..., 1:].std(0), numbers.std(0).detach(), rtol=0.2)
    pairs = torch.cat([inputs.expand(5_000, -1, -1), numbers], -1).flatten(0, 1)[None]
    odds = torch.softmax(learner.critics(pairs).amin(1) / math.exp(-1), -1)[0]
    expected = odds.unflatten(0, (5_000, 4)).mean(0).detach()  # [4, 3]
    counts = [(draws[..., 0] == choice).mean(0) for choice in range(3)]
    np.testing.assert_allclose(np.stack(counts, -1), expected, atol=0.08)
    assert expected.amax() > 0.5  # the odds are not even


@pytest.mark.parametrize("num_critics", [1, 3])
def test_a_description_of_other_critics_is_refused(num_critics: int, tmp_path: Path) -> None:
    """Without one of its critics it would be another policy; one that it lacks is nowhere."""
    folder = train(TINY, tmp_path)[1].seed_directories[0]
    description = json.loads((folder / "policy.json").read_text())
    write_json(folder / "policy.json", description | {"num_critics": num_critics})
    message = "of this policy: critic_1.bias_0, " if num_critics == 1 else ""
    with pytest.raises(UsageError, match=f"^unreadable policy in .*{message}"):
        agents.load_policy(folder)


def test_temperatures_of_several_seeds_are_refused() -> None:
    """They would be broadcast, and only the first seed's actions be taken."""
    of, config = spaces(2, 2, 3), replace(TINY, seeds=(1, 2))
    learner = sac_alf.make_learner(config, of, CPU)
    description = {name: getattr(config, name) for name in ("task", *sac_alf.ACTING)}
    description |= of._asdict()
    weights = learner.weights_of(0)
    assert sac_alf.load(weights, description)(np.zeros(2, dtype=np.float32)).shape == (3,)
    weights["log_alphas"] = learner.log_alphas
    with pytest.raises(ValueError, match=r"^log_alphas must have the shape \[2, 1\]"):
        sac_alf.load(weights, description)
