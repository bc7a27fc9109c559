"""Discrete soft actor-critic: updates against slow derivations, actions, and its policy's file."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import sac_discrete as sac
from suite.envs.vector_env import Spaces
from suite.policy import read_policy
from suite.step_replay import StepBatch
from tests.agents import trainings
from tests.agents.trainings import CPU, module_of, tiny, train
from tests.perceptrons import linear, vector

VECTORS = Spaces((3,), 4)
TINY = tiny("sac_discrete")


def random_batch(seed: int, seeds: int, size: int) -> StepBatch:
    """Return transitions with numbers of actions."""
    generator = torch.Generator().manual_seed(seed)
    obs, _, *outcomes, _ = trainings.random_batch(generator, seeds, size, 3, 0)
    return StepBatch(obs, torch.randint(0, 4, (seeds, size), generator=generator), *outcomes)


ERRORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "half_squared": lambda one, other: 0.5 * (one - other).square().mean(),
    "squared": torch.nn.functional.mse_loss,
    "huber": torch.nn.functional.smooth_l1_loss,
}
OPTIONS: dict[str, Any] = {
    **{"seeds": (3,), "gamma": 0.9, "tau": 0.1, "target_period": 2, "max_gradient_norm": 0.5},
    **{"adam_epsilon": 1e-4, "weight_decay": 0.01, "initial_alpha": 0.5},
    "target_entropy_share": 0.7,
}


@pytest.mark.parametrize("policy", ["network", "critics"])
@pytest.mark.parametrize("over_actions", [True, False])
@pytest.mark.parametrize(
    ("error", "how", "learn_alpha"),
    [("half_squared", "minimum", True), ("squared", "mean", False), ("huber", "minimum", True)],
)
def test_an_update_equals_plain_autograd_and_adam(
    policy: Any, over_actions: bool, error: Any, how: Any, learn_alpha: bool
) -> None:
    """Eqs. (2), (4), (10) to (12), separate networks; target copies follow the second update."""
    config = replace(TINY, policy=policy, mean_over_actions=over_actions, **OPTIONS)
    config = replace(config, critic_error=error, q_of_critics=how, learn_alpha=learn_alpha)
    learner = sac.make_learner(config, VECTORS, CPU)
    with torch.no_grad():  # else targets and critics agree
        for parameter in learner.target_critics.parameters():
            parameter.mul_(0.9)
    critics = [linear(learner.critics, 0, k) for k in range(2)]
    slow = [linear(learner.target_critics, 0, k) for k in range(2)]
    actor = linear(learner.actor, 0, 0) if learner.actor is not None else None
    log_alpha = torch.full((1,), math.log(0.5), requires_grad=True)

    def judge(networks: list[Any], inputs: Tensor) -> Tensor:
        pair = torch.stack([network(inputs) for network in networks])
        return pair.amin(0) if how == "minimum" else pair.mean(0)

    def log_probs(inputs: Tensor) -> Tensor:
        q_values = judge(critics, inputs) / log_alpha.detach().exp()
        return torch.log_softmax(q_values if actor is None else actor(inputs), -1)

    def descent(*parts: Iterable[Tensor]) -> Callable[[Tensor], None]:
        weights = [list(part) for part in parts]
        flat = [tensor for part in weights for tensor in part]
        optimiser = torch.optim.AdamW(flat, lr=3e-4, eps=1e-4, weight_decay=0.01)

        def descend(loss: Tensor) -> None:
            optimiser.zero_grad()
            loss.backward()
            for part in weights if len(flat) > 1 else ():
                torch.nn.utils.clip_grad_norm_(part, 0.5)
            optimiser.step()

        return descend

    move_critics = descent(*(critic.parameters() for critic in critics))
    move_actor = descent(actor.parameters()) if actor is not None else None
    move_alpha = descent([log_alpha])
    share = 4 if over_actions else 1
    for number in range(2):
        batch, alpha = random_batch(1 + number, 1, 8), log_alpha.detach().exp()
        obs, next_obs, actions = batch.obs[0], batch.next_obs[0], batch.actions[0]
        with torch.no_grad():
            logs = log_probs(next_obs)
            values = (logs.exp() * (judge(slow, next_obs) - alpha * logs)).sum(-1)
            targets = batch.rewards[0] + 0.9 * (1 - batch.terminations[0]) * values
            entropy = torch.distributions.Categorical(logits=log_probs(obs)).entropy().mean()
        taken = [critic(obs)[torch.arange(8), actions] for critic in critics]
        errors = [ERRORS[error](each, targets) for each in taken]
        expected = {"entropy": entropy, "critic_loss": (errors[0] + errors[1]).detach()}
        expected |= {"alpha": alpha, "q_value": torch.cat(taken).detach().mean()}
        move_critics(errors[0] + errors[1])
        if move_actor is not None:
            with torch.no_grad():
                judged = judge(critics, obs)
            logs = log_probs(obs)
            losses = (logs.exp() * (alpha * logs - judged)).sum(-1)
            expected["actor_loss"] = losses.detach().mean()
            move_actor(losses.mean() / share)
        if learn_alpha:
            move_alpha((log_alpha.exp() * (entropy - 0.7 * math.log(4)) / share).sum())

        metrics = sac.update(learner, config, batch, number)
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            assert metrics[name].item() == pytest.approx(value.item(), rel=1e-5), name
    with torch.no_grad():
        for k in range(2):
            for slowly, online in zip(slow[k].parameters(), critics[k].parameters(), strict=True):
                slowly.copy_(0.1 * online + 0.9 * slowly)
    pairs = [(linear(learner.critics, 0, k), critics[k]) for k in range(2)]
    pairs += [(linear(learner.target_critics, 0, k), slow[k]) for k in range(2)]
    if learner.actor is not None and actor is not None:
        pairs.append((linear(learner.actor, 0, 0), actor))
    for ours, reference in pairs:
        torch.testing.assert_close(vector(ours), vector(reference), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(learner.log_alpha, log_alpha)


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


@pytest.mark.parametrize("variant", ["sac_discrete, critics", "sac_alf, mixed"])
def test_a_policys_file_of_other_critics_or_several_seeds_is_refused(
    variant: str, tmp_path: Path
) -> None:
    """It would be another policy; another seed's temperature would be broadcast."""
    module, config = module_of(variant), tiny(variant, env_steps=48, evaluation_interval=1_000)
    folder = train(config, tmp_path)[1].seed_directories[0]
    weights, description = read_policy(folder)
    module.load(weights, description)
    with pytest.raises(ValueError, match=r"not the weights of .*1\.bias_0, "):
        module.load(weights, description | {"num_critics": 1})
    with pytest.raises(ValueError, match=r"not the weights of .*2\."):
        module.load(weights, description | {"num_critics": 3})
    name = "temperature" if "temperature" in weights else "log_alphas"
    weights[name] = weights[name].repeat_interleave(2, -1)
    with pytest.raises(ValueError, match=f"^{name} must have the shape"):
        module.load(weights, description)


def test_a_bound_of_the_log_temperature_is_kept(tmp_path: Path) -> None:
    """From the start on, and at both ends."""
    low = replace(TINY, min_log_alpha=-0.001, target_entropy_share=0.01, alpha_learning_rate=0.1)
    learner, _ = train(low, tmp_path / "low")
    assert learner.log_alpha.item() == pytest.approx(-0.001)
    assert sac.make_learner(replace(TINY, max_log_alpha=-2.0), VECTORS, CPU).log_alpha.item() == -2
