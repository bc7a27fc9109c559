"""Soft actor-critic: every equation against a slow re-derivation, then what training must do."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from agents import sac
from suite import session
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces
from suite.record.recorder import Recorder
from suite.replay import Batch, Replay
from tests.perceptrons import linear, vector, weights_in
from tests.scripted import ScriptedEnv

CPU = torch.device("cpu")
TINY = sac.Config(
    task="Pendulum-v1",
    device="cpu",
    env_steps=120,
    hidden_sizes=(16, 16),
    batch_size=8,
    learning_starts=40,
    evaluation_interval=60,
    evaluation_episodes=1,
    log_interval=40,
)
SHORT = replace(TINY, task="InvertedPendulum-v4", env_steps=60, evaluation_interval=60)
SHORT = replace(SHORT, log_interval=10)
"""20 updates; episodes end after a few steps."""


def recorder_for(config: sac.Config, directory: Path) -> Recorder:
    run = {"agent": "sac", "task": config.task}
    return Recorder(directory, run, config.seeds, keeps_checkpoint=False)


def train(config: sac.Config, directory: Path) -> tuple[sac.Learner, Recorder]:
    recorder = recorder_for(config, directory)
    learner = sac.train(config, recorder)
    recorder.finish()
    return learner, recorder


def random_batch(generator: torch.Generator, seeds: int, size: int, obs: int, act: int) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observations, actions = draw(seeds, size, obs), torch.tanh(draw(seeds, size, act))
    return Batch(
        obs=observations,
        obs_actions=torch.cat([observations, actions], -1),
        rewards=draw(seeds, size),
        terminations=(draw(seeds, size) > 0.8).float(),
        next_obs=draw(seeds, size, obs),
    )


def parameters_of(learner: sac.Learner) -> list[Tensor]:
    modules = (learner.actor, learner.critics, learner.target_critics)
    return weights_in(*modules)


# Mathematics


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.5, 0.7)])
def test_the_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    """exp(log pi(a|s)) is a density on [-1, 1]: with a wrong tanh correction it is none."""
    pre_tanh = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    noise = (pre_tanh - mean) / math.exp(log_std)
    shape = (1, pre_tanh.numel(), 1)
    actions, log_probs = sac.squash(
        torch.full(shape, mean, dtype=torch.float64),
        torch.full(shape, log_std, dtype=torch.float64),
        noise.reshape(shape),
    )
    mass = torch.trapezoid(log_probs.exp().flatten(), actions.flatten())
    assert mass.item() == pytest.approx(1.0, abs=2e-4)


def test_the_log_density_is_finite_where_the_naive_form_underflows() -> None:
    """At u = 30 the naive log(1 - tanh(u)^2) is -inf; the exact value is 2 (log 2 - 30)."""
    means = torch.full((1, 1, 1), 30.0)
    _, log_probs = sac.squash(means, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30)
    assert log_probs.item() == pytest.approx(expected, rel=1e-6)


def test_log_densities_of_action_dimensions_add_up() -> None:
    """The policy is a product over action dimensions: its log-density is their sum."""
    generator = torch.Generator().manual_seed(0)
    means, log_stds, noise = (torch.randn(2, 3, 4, generator=generator) for _ in range(3))
    _, joint = sac.squash(means, log_stds, noise)
    single = [sac.squash(means[..., [i]], log_stds[..., [i]], noise[..., [i]])[1] for i in range(4)]
    torch.testing.assert_close(joint, torch.stack(single).sum(0))


def test_log_std_bounds_are_kept_in_both_ways() -> None:
    """Cut off, the bound is met exactly; by tanh it is approached and the middle maps to 0."""
    outputs = torch.tensor([-100.0, 100.0, 0.0, 0.0, -30.0, 30.0]).reshape(1, 1, 1, 6)
    outputs[..., 3:] = torch.tensor([-30.0, 30.0, 0.0])
    for bound, expected in (("clip", [-5.0, 2.0, 0.0]), ("tanh", [-5.0, 2.0, -1.5])):
        config = replace(TINY, log_std_min=-5.0, log_std_max=2.0, log_std_bound=bound)  # type: ignore[arg-type]
        _, log_stds = sac.split_outputs(outputs, config)
        torch.testing.assert_close(log_stds.flatten(), torch.tensor(expected))


def test_targets_and_losses_equal_a_slow_float64_derivation() -> None:
    """Eqs. (2), (3), (5), (9), (18), element by element; any sign error shows."""
    rng = np.random.default_rng(0)
    num_seeds, num_critics, size, gamma, target_entropy = 2, 3, 5, 0.9, -2.0
    rewards, next_log_probs, log_probs = rng.normal(size=(3, num_seeds, size))
    terminations = (rng.uniform(size=(num_seeds, size)) < 0.4).astype(float)
    next_q, q_values = rng.normal(size=(2, num_seeds, num_critics, size))
    log_alpha = rng.normal(size=num_seeds)

    for entropy_in_target in (True, False):
        targets = np.zeros((num_seeds, size))
        critic_losses, actor_losses, alpha_losses = np.zeros((3, num_seeds))
        for s in range(num_seeds):
            alpha = math.exp(log_alpha[s])
            for b in range(size):
                value = min(next_q[s, k, b] for k in range(num_critics))
                if entropy_in_target:
                    value -= alpha * next_log_probs[s, b]
                targets[s, b] = rewards[s, b] + (0 if terminations[s, b] else gamma * value)
                for k in range(num_critics):
                    critic_losses[s] += (q_values[s, k, b] - targets[s, b]) ** 2 / 2 / size
                judged = min(q_values[s, k, b] for k in range(num_critics))
                actor_losses[s] += (alpha * log_probs[s, b] - judged) / size
                alpha_losses[s] += -alpha * (log_probs[s, b] + target_entropy) / size

        alphas = torch.from_numpy(log_alpha).exp()
        ours = sac.q_targets(
            torch.from_numpy(rewards),
            torch.from_numpy(terminations),
            torch.from_numpy(next_q),
            torch.from_numpy(next_log_probs),
            alphas if entropy_in_target else torch.zeros_like(alphas),
            gamma,
        )
        np.testing.assert_allclose(ours.numpy(), targets, rtol=1e-12)
        loss = sac.critic_loss(torch.from_numpy(q_values), ours)
        np.testing.assert_allclose(loss.numpy(), critic_losses, rtol=1e-12)
        logs = torch.from_numpy(log_probs)
        loss = sac.actor_loss(logs, torch.from_numpy(q_values), alphas)
        np.testing.assert_allclose(loss.numpy(), actor_losses, rtol=1e-12)
        loss = sac.alpha_loss(alphas, -logs.mean(-1), target_entropy)
        np.testing.assert_allclose(loss.numpy(), alpha_losses, rtol=1e-12)


def test_an_update_equals_plain_autograd_and_adam() -> None:
    """One update equals critics, actor, temperature, targets written out with separate networks."""
    config = replace(TINY, seeds=(3,), gamma=0.9, tau=0.1)
    learner = sac.make_learner(config, 3, 2, CPU)
    generator = torch.Generator().manual_seed(1)
    batch = random_batch(generator, 1, 8, 3, 2)
    noise = torch.randn(2, 1, 8, 2, generator=generator)

    actor = linear(learner.actor)
    critics = [linear(learner.critics, 0, k) for k in range(2)]
    slow = [linear(learner.target_critics, 0, k) for k in range(2)]
    log_alpha = torch.zeros(1, requires_grad=True)

    def act(obs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(means, log_stds.clamp(-20, 2).exp())
        pre_tanh = means + log_stds.clamp(-20, 2).exp() * draws
        slope = torch.log(1 - torch.tanh(pre_tanh).square())
        return torch.tanh(pre_tanh), (normal.log_prob(pre_tanh) - slope).sum(-1)

    obs, obs_actions, next_obs = batch.obs[0], batch.obs_actions[0], batch.next_obs[0]
    with torch.no_grad():
        next_actions, next_log_probs = act(next_obs, noise[0, 0])
        inputs = torch.cat([next_obs, next_actions], -1)
        next_q = torch.minimum(slow[0](inputs), slow[1](inputs)).squeeze(-1)
        targets = batch.rewards[0] + 0.9 * (1 - batch.terminations[0]) * (next_q - next_log_probs)
    critic_parameters = [p for critic in critics for p in critic.parameters()]
    optimiser = torch.optim.Adam(critic_parameters, lr=3e-4)
    losses = [0.5 * (c(obs_actions).squeeze(-1) - targets).square().mean() for c in critics]
    (losses[0] + losses[1]).backward()
    optimiser.step()
    actions, log_probs = act(obs, noise[1, 0])
    inputs = torch.cat([obs, actions], -1)
    judged = torch.minimum(critics[0](inputs), critics[1](inputs)).squeeze(-1)
    optimiser = torch.optim.Adam(actor.parameters(), lr=3e-4)
    (log_probs - judged).mean().backward()
    optimiser.step()
    optimiser = torch.optim.Adam([log_alpha], lr=3e-4)
    (-log_alpha.exp() * (log_probs.detach().mean() - 2.0)).backward()
    optimiser.step()

    sac.update(learner, config, batch, noise, 0)
    for k in range(2):
        updated, copied = (
            vector(linear(s, 0, k)) for s in (learner.critics, learner.target_critics)
        )
        torch.testing.assert_close(updated, vector(critics[k]), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(copied, 0.1 * updated + 0.9 * vector(slow[k]))
    ours = vector(linear(learner.actor))
    torch.testing.assert_close(ours, vector(actor), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(learner.log_alpha, log_alpha)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "actor seldom, then twice": {"policy_period": 2},
    "bounds": {
        "action_gradient_clip": 0.05,
        "initial_alpha": 0.01,
        "max_log_alpha": math.log(0.01),
        "target_entropy_per_action": 5.0,
        "log_std_max": -0.2,
    },
    "by tanh, three critics": {"log_std_bound": "tanh", "num_critics": 3, "log_std_min": -5.0},
    "no entropy, fixed, slow": {
        "entropy_in_target": False,
        "learn_alpha": False,
        "target_period": 2,
    },
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
    for new, old in zip(parameters_of(ours), parameters_of(theirs), strict=True):
        torch.testing.assert_close(new, old, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(ours.log_alpha, theirs.log_alpha)


def plain_steps(learner: sac.Learner, config: sac.Config) -> Any:
    """Return an update of a learner, in the plainest form."""
    ceiling = math.inf if config.max_log_alpha is None else config.max_log_alpha
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
        pre_tanh = means + log_stds.exp() * noise
        log_normal = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - pre_tanh - torch.nn.functional.softplus(-2 * pre_tanh))
        return torch.tanh(pre_tanh), (log_normal - log_slope).sum(-1)

    def update(batch: Batch, noise: Tensor, number: int) -> dict[str, Tensor]:
        with torch.no_grad():
            next_actions, next_log_probs = policy(batch.next_obs, noise[0])
            next_q = learner.target_critics(torch.cat([batch.next_obs, next_actions], -1))
            next_values = next_q.squeeze(-1).amin(1)
            if config.entropy_in_target:
                next_values -= learner.log_alpha.exp()[:, None] * next_log_probs
            targets = batch.rewards + config.gamma * (1 - batch.terminations) * next_values
        q_values = learner.critics(batch.obs_actions).squeeze(-1)
        losses = 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)
        descend(critic_optimiser, losses)
        metrics = {"critic_loss": losses.detach(), "q_value": q_values.detach().mean((1, 2))}
        for draws in noise[1:] if number % config.policy_period == 0 else ():
            alpha = learner.log_alpha.detach().exp()
            actions, log_probs = policy(batch.obs, draws)
            judged = actions.clone()
            if config.action_gradient_clip is not None:
                bound = config.action_gradient_clip / 8
                judged.register_hook(lambda gradient, bound=bound: gradient.clamp(-bound, bound))
            inputs = torch.cat([batch.obs, judged], -1)
            q_values = learner.critics(inputs).squeeze(-1)
            losses = (alpha[:, None] * log_probs - q_values.amin(1)).mean(-1)
            descend(actor_optimiser, losses)
            entropy = -log_probs.detach().mean(-1)
            if config.learn_alpha:
                target_entropy = 2 * config.target_entropy_per_action
                descend(alpha_optimiser, learner.log_alpha.exp() * (entropy - target_entropy))
                with torch.no_grad():
                    learner.log_alpha.clamp_(max=ceiling)
            metrics |= {"actor_loss": losses.detach(), "entropy": entropy, "alpha": alpha}
        if (number + 1) % config.target_period == 0:
            with torch.no_grad():
                slow, online = learner.target_critics.parameters(), learner.critics.parameters()
                for each, other in zip(slow, online, strict=True):
                    each.copy_((1 - config.tau) * each + config.tau * other)
        return metrics

    return update


def test_the_actor_step_builds_no_critic_gradients() -> None:
    """dQ/da needs no weight gradients; building them would waste a third of the actor's step."""
    learner = sac.make_learner(replace(TINY, seeds=(1, 2)), 3, 1, CPU)
    before = vector(learner.critics)
    sac._update_actor(learner, TINY, torch.randn(2, 8, 3), torch.randn(2, 8, 1))
    assert all(weight.grad is None for weight in learner.critics.parameters())
    assert all(weight.grad is not None for weight in learner.actor.parameters())
    assert torch.equal(vector(learner.critics), before)
    assert all(weight.requires_grad for weight in learner.critics.parameters())


def test_a_seed_has_the_same_bits_alone_and_beside_others() -> None:
    """HalfCheetah's sizes, three seeds and then nine, over 20 updates: every weight, to the bit."""
    for num_seeds in (3, 9):
        seeds = tuple(range(1, num_seeds + 1))
        config = sac.Config(device="cpu", seeds=seeds)
        together = sac.make_learner(config, 17, 6, CPU)
        alone = [sac.make_learner(replace(config, seeds=(seed,)), 17, 6, CPU) for seed in seeds]
        generator = torch.Generator().manual_seed(0)
        for number in range(20 if num_seeds == 3 else 5):
            batch = random_batch(generator, num_seeds, 256, 17, 6)
            noise = torch.randn(2, num_seeds, 256, 6, generator=generator)
            sac.update(together, config, batch, noise, number)
            for i, learner in enumerate(alone):
                own = Batch(*(each[[i]] for each in batch[:5]))
                sac.update(learner, config, own, noise[:, [i]], number)
        for i, learner in enumerate(alone):
            assert torch.equal(together.log_alpha[[i]], learner.log_alpha)
            for name in ("actor", "critics", "target_critics"):
                ours, theirs = getattr(together, name), getattr(learner, name)
                for member in range(ours.shape[1]):
                    weights = theirs.weights_of(0, member)
                    for key, weight in ours.weights_of(i, member).items():
                        assert torch.equal(weight, weights[key])


@pytest.mark.parametrize("separate", [True, False])
def test_the_actors_last_layer_is_drawn_as_one_or_two(separate: bool) -> None:
    """Each is orthogonal by itself, with the policy head's gain; a critic's layers have another."""
    config = replace(TINY, initialisation="orthogonal", hidden_gain=2.0, policy_head_gain=0.1)
    learner = sac.make_learner(replace(config, separate_heads=separate), 3, 2, CPU)
    last = learner.actor.weights_of(0)["weight_2"]  # [16, 2 A]
    for head in (last[:, :2], last[:, 2:]):
        torch.testing.assert_close(head.T @ head, 0.01 * torch.eye(2))
    assert torch.allclose(last.T @ last, 0.01 * torch.eye(4), atol=1e-6) != separate
    for stack in (learner.actor, learner.critics):
        first = stack.weights_of(0)["weight_0"]
        torch.testing.assert_close(first @ first.T, 4 * torch.eye(len(first)), atol=1e-5, rtol=0)
    norms = torch.stack([learner.critics.weights_of(0, k)["weight_2"].norm() for k in range(2)])
    torch.testing.assert_close(norms, torch.full((2,), 2.0))


def test_target_critics_begin_as_copies_that_do_not_learn() -> None:
    """Equal weights in other memory, without gradients; critics differ from each other."""
    learner = sac.make_learner(replace(TINY, seeds=(1, 2)), 3, 2, CPU)
    pairs = zip(learner.target_critics.parameters(), learner.critics.parameters(), strict=True)
    for slow, online in pairs:
        assert torch.equal(slow, online)
        assert slow.data_ptr() != online.data_ptr()
        assert not slow.requires_grad
    first = [vector(network) for network in learner.critics.networks]
    assert not any(torch.equal(first[i], first[i - 1]) for i in range(4))


@pytest.mark.parametrize("clip", [1e-3, 0.1])
def test_the_action_gradient_is_clipped_per_component(clip: float) -> None:
    """dQ/da enters the actor's gradient bounded by `clip`, whatever the batch size."""
    config = replace(TINY, action_gradient_clip=clip, learn_alpha=False, initial_alpha=0.0)
    learner = sac.make_learner(config, 3, 1, CPU)
    with torch.no_grad():
        for weight in learner.critics.parameters():
            weight.mul_(20)
    obs, noise = torch.randn(1, 8, 3), torch.zeros(1, 8, 1)
    sac._update_actor(learner, config, obs, noise)
    gradients = [weight.grad for weight in learner.actor.parameters()]
    # d loss / d mean = -mean over B of clipped dQ/da times d tanh/du, which is at most 1
    assert gradients[-1] is not None
    assert gradients[-1].shape == (2,)  # the last layer's biases
    assert 0 < gradients[-1][0].abs().item() <= clip


# Training on scripted environments


@pytest.fixture
def scripted(scripted: type[ScriptedEnv], monkeypatch: pytest.MonkeyPatch) -> type[ScriptedEnv]:
    """Make SAC train on continuous actions, with evaluations that score 0."""
    scripted.spaces = Spaces.vectors(1, 1)
    monkeypatch.setattr(session, "evaluate", lambda *args, **kwargs: np.zeros((1, 1)))
    return scripted


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("kind", "value"), [("truncation", 5.0), ("termination", 4.161)])
def test_a_time_limit_bootstraps_and_a_termination_does_not(
    kind: str, value: float, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Reward 1, gamma 0.8, no entropy: 1 / (1 - 0.8) = 5, or (1 - 0.8^8) / 0.2 where it ends."""
    scripted.kind = kind
    config = replace(
        TINY,
        env_steps=350,
        learning_starts=100,
        gamma=0.8,
        initial_alpha=0.0,
        learn_alpha=False,
        critic_learning_rate=1e-2,
        hidden_sizes=(32, 32),
        batch_size=32,
        tau=0.1,
    )
    learner, _ = train(config, tmp_path)
    inputs = torch.tensor([[[0.0, 0.0]]])
    q_values = learner.critics(inputs).flatten()
    assert q_values.tolist() == pytest.approx([value, value], rel=0.05)


@pytest.mark.usefixtures("unchecked")
def test_the_temperature_moves_the_entropy_to_its_target(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """A reward that wants no entropy at all is held at the target by the temperature alone."""
    scripted.reward = staticmethod(lambda actions: -4 * (actions - 0.3) ** 2)
    config = replace(
        TINY,
        env_steps=500,
        learning_starts=100,
        log_interval=20,
        target_entropy_per_action=-0.5,
        actor_learning_rate=1e-2,
        critic_learning_rate=1e-2,
        alpha_learning_rate=3e-2,
        batch_size=32,
        gamma=0.5,
    )
    _, recorder = train(config, tmp_path)
    rows = np.genfromtxt(recorder.seed_directories[0] / "updates.csv", delimiter=",", names=True)
    assert rows["entropy"][0] > 0  # it starts near that of the uniform policy, log 2
    assert rows["entropy"][-10:].mean() == pytest.approx(-0.5, abs=0.15)


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """NaN in the rewards is found within one log interval and nothing is saved as a policy."""
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, env_steps=400), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()
    record = (recorder.seed_directories[0] / "run.json").read_text()
    assert "non-finite reward at 40 env_steps" in record


# Training on the real simulator


def test_training_changes_every_network_and_records_everything(tmp_path: Path) -> None:
    """Past the start of learning, actor, critics, targets and temperature have all moved."""
    before = sac.make_learner(TINY, 3, 1, CPU)
    learner, recorder = train(TINY, tmp_path)
    for old, new in zip(parameters_of(before), parameters_of(learner), strict=True):
        assert not torch.equal(old, new)
    assert learner.log_alpha.item() != 0
    folder = recorder.seed_directories[0]
    evaluations = np.genfromtxt(folder / "evaluations.csv", delimiter=",", names=True)
    assert evaluations["env_steps"].tolist() == [60, 120]
    updates = np.genfromtxt(folder / "updates.csv", delimiter=",", names=True)
    assert updates["num_updates"].tolist() == [40, 80]


@pytest.mark.usefixtures("unchecked")
def test_the_same_command_gives_the_same_bytes(tmp_path: Path) -> None:
    """Episodes, evaluations, updates and weights do not depend on anything but the command."""
    config = replace(SHORT, env_steps=80, seeds=(1, 2))
    _, one = train(config, tmp_path / "one")
    _, two = train(config, tmp_path / "two")
    for first, second in zip(one.seed_directories, two.seed_directories, strict=True):
        names = ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors")
        for name in names:
            assert (first / name).read_bytes() == (second / name).read_bytes()


HOPPER = replace(TINY, task="Hopper-v4", env_steps=160, learning_starts=100, hidden_sizes=(32, 32))
HOPPER = replace(HOPPER, evaluation_interval=160)


@pytest.mark.usefixtures("unchecked")
def test_a_seed_in_a_batch_has_the_bytes_of_the_seed_alone(tmp_path: Path) -> None:
    """Past several terminations and 60 updates: every table, and the policy."""
    _, recorder = train(replace(HOPPER, seeds=(1, 2)), tmp_path / "together")
    for i, seed in enumerate((1, 2)):
        _, solo = train(replace(HOPPER, seeds=(seed,)), tmp_path / f"alone-{seed}")
        for name in ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors"):
            ours = (recorder.seed_directories[i] / name).read_bytes()
            assert ours == (solo.seed_directories[0] / name).read_bytes()
        assert len((solo.seed_directories[0] / "episodes.csv").read_text().splitlines()) > 5


@pytest.mark.usefixtures("unchecked")
def test_a_diverging_seed_leaves_the_other_bits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 2 is poisoned at the start: seeds 1 and 3 keep their bits, seed 2 is `diverged`."""
    config = replace(HOPPER, seeds=(1, 2, 3))
    healthy, _ = train(config, tmp_path / "healthy")
    make_learner = sac.make_learner

    def poisoned(*args: Any) -> sac.Learner:
        learner = make_learner(*args)
        with torch.no_grad():
            learner.critics.weights_of(1)["weight_0"].fill_(math.nan)
        return learner

    monkeypatch.setattr(sac, "make_learner", poisoned)
    sick, recorder = train(config, tmp_path / "sick")
    assert recorder.statuses == ["finished", "diverged", "finished"]
    for seed in (0, 2):
        for name in ("actor", "critics", "target_critics"):
            ours, theirs = (getattr(each, name).all_weights_of(seed) for each in (healthy, sick))
            assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_updates_keep_pace_with_transitions(tmp_path: Path) -> None:
    """Update ratio 1 with four environments: as many updates as transitions after the warm-up."""
    for ratio, expected in ((1.0, 20), (0.5, 10), (2.0, 40)):
        config = replace(SHORT, num_envs=4, update_ratio=ratio)
        _, recorder = train(config, tmp_path / str(ratio))
        updates = np.genfromtxt(
            recorder.seed_directories[0] / "updates.csv", delimiter=",", names=True
        )
        assert updates["num_updates"][-1] == expected


def test_a_warm_up_that_does_not_count_is_on_no_axis(tmp_path: Path) -> None:
    """With `count_warm_up` off, 60 recorded steps follow 40 unrecorded ones: 60 updates."""
    _, recorder = train(replace(SHORT, count_warm_up=False), tmp_path)
    folder = recorder.seed_directories[0]
    updates = np.genfromtxt(folder / "updates.csv", delimiter=",", names=True)
    assert updates["env_steps"].tolist() == [10, 20, 30, 40, 50, 60]
    assert updates["num_updates"][-1] == 60


SETTINGS: dict[str, Any] = {
    "initial_alpha": 0.3,
    "learn_alpha": False,
    "max_log_alpha": -0.5,
    "target_entropy_per_action": -3.0,
    "actor_learning_rate": 3e-3,
    "critic_learning_rate": 3e-3,
    "alpha_learning_rate": 3e-3,
    "hidden_sizes": (8, 8, 8),
    "num_critics": 3,
    "initialisation": "orthogonal",
    "log_std_max": -1.0,
    "log_std_bound": "tanh",
    "batch_size": 16,
    "learning_starts": 50,
    "tau": 0.5,
    "target_period": 2,
    "policy_period": 2,
    "entropy_in_target": False,
    "action_gradient_clip": 1e-4,
    "reward_scale": 5.0,
    "gamma": 0.5,
    "replay_capacity": 50,
    "update_ratio": 2.0,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> sac.Learner:
    return train(SHORT, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_sources_vary_does_something(
    name: str, plain: sac.Learner, tmp_path: Path
) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    changed, recorder = train(replace(SHORT, **{name: SETTINGS[name]}), tmp_path)
    assert recorder.statuses == ["finished"]
    old, new = parameters_of(plain), parameters_of(changed)
    shapes_differ = [p.shape for p in old] != [p.shape for p in new]
    same = not shapes_differ and all(torch.equal(p, q) for p, q in zip(old, new, strict=True))
    assert not (same and torch.equal(plain.log_alpha, changed.log_alpha))


def test_a_policy_period_compensates_only_if_asked(tmp_path: Path) -> None:
    """Period 2: the actor takes as many steps as the critics with compensation, half without."""
    counts = []
    for compensate in (True, False):
        config = replace(SHORT, policy_period=2, compensate_policy_period=compensate)
        learner, _ = train(config, tmp_path / str(compensate))
        counts.append(int(next(iter(learner.actor_optimiser.state.values()))["step"]))
    assert counts == [20, 10]


def test_the_log_temperature_never_exceeds_its_bound(tmp_path: Path) -> None:
    """A bound below the start binds at once."""
    learner, _ = train(replace(SHORT, max_log_alpha=-1.0), tmp_path)
    assert learner.log_alpha.item() <= -1.0


def test_a_saved_policy_acts_like_the_learner(tmp_path: Path) -> None:
    """Three lines load it: mode, bounds of the space, and sampling agree with what was trained."""
    learner, recorder = train(TINY, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    means, log_stds = sac.split_outputs(learner.actor(torch.from_numpy(obs)[None]), TINY)
    mode = torch.tanh(means)[0].detach().numpy()
    np.testing.assert_allclose(policy(obs), 2 * mode, rtol=1e-5, atol=1e-6)
    assert policy(obs[0]).shape == (1,)
    draws = np.stack([policy.act(obs, np.random.default_rng(k)) for k in range(200)])
    spread = torch.tanh(means + log_stds.exp() * torch.randn(5000, 4, 1)).std(0)
    np.testing.assert_allclose(draws.std(0), spread.detach().numpy(), rtol=0.25)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("gamma", -0.1), ("tau", 0.0), ("batch_size", 0), ("env_steps", -5)],
        *[("seeds", ()), ("seeds", (1, 1)), ("seeds", (2**31,)), ("seeds", (-1,))],
        *[("hidden_sizes", ()), ("hidden_sizes", (0,)), ("initial_alpha", 0.0)],
        *[("learning_starts", -1), ("log_std_min", 3.0), ("action_gradient_clip", 0.0)],
        *[("task", "CartPole-v1"), ("task", "Hoper-v4"), ("reward_scale", 0.0)],
        *[("replay_capacity", 0), ("actor_learning_rate", 0.0), ("update_ratio", 0.0)],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    """The message names the offending value."""
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    assert str(shown) in str(error.value)


def test_presets_differ_from_the_paper_where_their_source_does() -> None:
    """Each source's departures from the paper's settings, and nothing else."""
    paper = sac.PRESETS["mujoco", "paper"].config

    def changed(suite: str, source: str) -> set[str]:
        ours = sac.PRESETS[suite, source].config
        return {name for name in vars(paper) if getattr(ours, name) != getattr(paper, name)}

    assert changed("mujoco", "jaxrl") == {
        *("initialisation", "hidden_gain", "target_entropy_per_action")
    }
    assert "separate_heads" in changed("mujoco", "simbav2_baselines")
    assert changed("mujoco", "tianshou_v3") == {
        *("actor_learning_rate", "critic_learning_rate", "initial_alpha", "learn_alpha"),
        *("initialisation", "separate_heads"),
    }
    assert {"hidden_sizes", "batch_size", "target_period"} <= changed("dmc", "pytorch_sac")
    assert changed("mujoco-small", "paper") == {"task"}


def test_budgets_change_steps_and_seeds_only() -> None:
    """Every preset has the three budgets, in growing order."""
    for preset in sac.PRESETS.values():
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)
    paper = sac.PRESETS["mujoco", "paper"].budgets["paper"]
    assert (paper.steps("Hopper-v4"), paper.steps("Humanoid-v4")) == (1_000_000, 10_000_000)


@pytest.mark.gpu
def test_a_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after 40 updates."""
    config = replace(TINY, seeds=(1, 2), env_steps=80)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    for ours, theirs in zip(parameters_of(gpu), parameters_of(cpu), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_a_gpu_learns_from_graphs_what_it_learns_from_kernels(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    """The same weights to 1e-5 after 100 updates, in both phases of an actor that learns seldom."""
    config = replace(TINY, seeds=seeds, env_steps=140, learning_starts=40, policy_period=2)
    config = replace(config, device="cuda")
    plain, _ = train(config, tmp_path / "plain")
    graphs, _ = train(replace(config, cuda_graphs=True), tmp_path / "graphs")
    for ours, theirs in zip(parameters_of(graphs), parameters_of(plain), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_graphs_without_a_gpu_are_refused(tmp_path: Path) -> None:
    """In one line, with the remedy: an update kernel by kernel must not pass for a graph."""
    with pytest.raises(UsageError, match=r"cuda_graphs needs a GPU, and .* on cpu: leave it out"):
        train(replace(TINY, device="cpu", cuda_graphs=True), tmp_path)


def test_the_memory_of_a_run_is_known() -> None:
    """That of its replay: 2.9 GiB for a million steps of Humanoid, and no more than a run fills."""
    config = replace(sac.PRESETS["mujoco", "paper"].config, task="Humanoid-v4", env_steps=10**6)
    assert 2.8 < config.memory_bytes / 2**30 < 2.9
    small = replace(config, env_steps=20_000)
    replay = Replay(1, small.replay_size, 1, 376, 17, torch.device("cpu"))
    assert small.memory_bytes == pytest.approx(vars(replay)["_rows"].nbytes)
    uncounted = replace(small, count_warm_up=False)
    assert uncounted.replay_size == small.replay_size + small.learning_starts


def test_a_process_imports_nothing_that_it_never_uses(tmp_path: Path) -> None:
    """Neither drawing nor tables of others: they would take longer than all else that starts."""
    script = """
import sys
from agents import sac
words = "--task=Pendulum-v1 --device=cpu --env-steps=20 --learning-starts=10 --batch-size=4"
sac.main([*words.split(), "--evaluation-episodes=1", "--out", sys.argv[1]])
unused = {"matplotlib", "pandas", "scipy"} & set(sys.modules)
assert not unused, unused
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
