"""PPO's losses, minibatches and epochs, against slow derivations and stable-baselines3's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from agents import ppo
from suite.envs.vector_env import Spaces
from suite.unrolls import shuffled
from tests.agents.trainings import (
    CONTROL,
    CPU,
    SWINGING,
    doubled,
    outputs_of,
    random_transitions,
    table,
    tiny,
    train,
    watch,
)
from tests.perceptrons import draw

CLIP = 0.2


def learned_from(
    spaces: Spaces, seed: int = 3, **changes: Any
) -> tuple[Any, ppo.Learner, ppo.Rows, Tensor]:
    """Return settings, a learner that moved away from the policy that acted, and what acted did."""
    config = tiny("ppo", unroll_length=8, **{"policy_head_gain": 1.0} | changes)
    learner = ppo.make_learner(config, spaces, CPU)
    batch = random_transitions(config, spaces, seed)
    memory = learner.network.actor.initial_memory(config.num_envs)
    rows = ppo.with_advantages(learner, config, batch, memory)
    vector = learner.optimiser.weights.vector
    vector += 0.1 * draw(seed, *vector.shape)
    return config, learner, rows, memory


def sb3_loss(
    config: Any, network: Any, rows: ppo.Rows, kept: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return stable-baselines3's loss (e05d2db: stable_baselines3/ppo/ppo.py:216-264) and parts.

    Its rows are those that `kept` names: it has none to ignore. Values are clipped as in OpenAI's
    baselines: the larger error counts.
    """
    obs, actions = rows.obs.flatten(0, 1)[kept], rows.actions.flatten(0, 1)[kept]
    old, returns = rows.log_probs.flatten()[kept], rows.returns.flatten()[kept]
    advantages = rows.advantages.flatten()[kept]
    outputs, values = outputs_of(network, obs)
    values = values.squeeze(1)
    if network.log_stds is None:
        policy: Any = torch.distributions.Categorical(logits=outputs)
        log_probs, entropies = policy.log_prob(actions), policy.entropy()
    else:
        policy = torch.distributions.Normal(outputs, network.log_stds.exp().expand_as(outputs))
        log_probs, entropies = policy.log_prob(actions).sum(1), policy.entropy().sum(1)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(log_probs - old)
    clipped = advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    policy_loss = -torch.min(advantages * ratio, clipped).mean()
    errors = F.mse_loss(returns, values, reduction="none")
    if config.clip_values:
        before = rows.values.flatten()[kept]
        near = before + torch.clamp(values - before, -CLIP, CLIP)
        assert (near != values).any()
        errors = torch.maximum(errors, F.mse_loss(returns, near, reduction="none"))
    value_loss, entropy_loss = errors.mean(), -torch.mean(entropies)
    loss = policy_loss + config.entropy_coef * entropy_loss + config.value_coef * value_loss
    log_ratio = log_probs - old
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": -entropy_loss,
        "approximate_kl": torch.mean((torch.exp(log_ratio) - 1) - log_ratio),
        "clipped_share": torch.mean((torch.abs(ratio - 1) > CLIP).float()),
        **{"target": returns.mean(), "squared_target": returns.square().mean()},
        "residual": (returns - values).mean(),
        "squared_residual": (returns - values).square().mean(),
    }


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("name", ["shared_trunk", "clip_values", "normalise_advantages"])
def test_an_update_is_stable_baselines3s(spaces: Spaces, name: str) -> None:
    """On identical data its losses, divergence, clipped share, and the weights after its Adam."""
    changes = {"entropy_coef": 0.01, "max_gradient_norm": 0.3, name: True}
    config, learner, rows, memory = learned_from(spaces, **changes)
    _, other, *_ = learned_from(spaces, **changes)
    kept = rows.valid.flatten().nonzero().squeeze(1)
    assert 0 < len(kept) < rows.valid.numel()
    loss, parts = sb3_loss(config, other.network, rows, kept)
    optimiser = torch.optim.Adam(other.network.parameters(), lr=1e-2, eps=1e-5)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(other.network.parameters(), 0.3)
    assert norm > 0.3
    optimiser.step()
    metrics = ppo.update(learner, config, rows, memory, 1e-2, CLIP)
    ours = {name: each.item() for name, each in metrics.items()}
    assert ours.pop("gradient_norm") == pytest.approx(norm.item(), abs=1e-6, rel=1e-5)
    expected = {key: each.item() for key, each in parts.items()}
    assert ours == pytest.approx(expected, abs=1e-6, rel=1e-5)
    assert 0 < ours["clipped_share"] < 1
    for mine, theirs in zip(learner.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_a_single_row_keeps_its_advantage() -> None:
    """Its own mean would be subtracted, and nothing left of the policy's gradient."""
    advantages = torch.tensor([[3.0, -1.0, 5.0]])
    one, two = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert ppo.standardise(advantages, one)[0, 0] == 3.0
    assert ppo.standardise(advantages, two)[0, :2].tolist() == pytest.approx(
        [0.5**0.5, -(0.5**0.5)]
    )
    config, learner, rows, memory = learned_from(CONTROL)
    for share, first in shuffled(rows, memory, 32, np.random.default_rng(1)):
        row = ppo.Rows(*share)
        metrics = ppo.update(learner, config, row, first, 0.0, CLIP)
        assert (metrics["policy_loss"] != 0.0) == (row.valid > 0)


@pytest.mark.parametrize(("how", "gae_lambda"), [("none", 1.0), ("value_targets", 0.9)])
def test_what_acted_is_judged_in_float64(how: str, gae_lambda: float) -> None:
    """Advantages and returns by the sum over later errors, Eq. 11; values in the head's unit."""
    config = tiny("ppo", unroll_length=8, reward_normalisation=how, gae_lambda=gae_lambda)
    learner = ppo.make_learner(config, CONTROL, CPU)
    unit, moments = 1.0, learner.return_moments
    assert (moments is None) == (how == "none")
    if moments is not None:
        moments.add(torch.tensor([1.0, 5.0]), torch.tensor([0.5, 0.5]))
        unit = moments.std().item()
    batch = random_transitions(config, CONTROL, 5)
    rows = ppo.with_advantages(learner, config, batch, learner.network.actor.initial_memory(4))
    exact = doubled(batch)
    with torch.no_grad():
        heads = outputs_of(learner.network, batch.obs.flatten(0, 1))[1].view(batch.obs.shape[:2])
    values = heads.double() * unit
    for n in range(4):
        for t in range(8):
            advantage, factor = 0.0, 1.0
            for k in range(t, 8):
                error = exact.rewards[k, n] + exact.discounts[k, n] * values[k + 1, n]
                advantage += factor * (error - values[k, n]).item()
                factor *= gae_lambda * (exact.discounts[k, n] * exact.trace_mask[k, n]).item()
            assert rows.advantages[t, n].item() == pytest.approx(advantage, abs=1e-5)
            returned = (advantage + values[t, n].item()) / unit
            assert rows.returns[t, n].item() == pytest.approx(returned, abs=1e-5)
    torch.testing.assert_close(rows.values, heads[:-1])


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("size", [0, 6])
def test_the_first_ratios_are_1(spaces: Spaces, size: int) -> None:
    """By the weights that acted there is neither divergence nor clip, with an LSTM too."""
    config = tiny("ppo", unroll_length=8, lstm_size=size, shared_trunk=True, policy_head_gain=1.0)
    learner = ppo.make_learner(config, spaces, CPU)
    batch = random_transitions(config, spaces, 5)
    memory = draw(1, 4, 2 * size)
    rows = ppo.with_advantages(learner, config, batch, memory)
    for share, first in shuffled(rows, memory, 2, np.random.default_rng(1)):
        metrics = ppo.update(learner, config, ppo.Rows(*share), first, 0.0, 1e-3)
        assert metrics["approximate_kl"].item() == pytest.approx(0.0, abs=1e-6)
        assert metrics["clipped_share"] == 0.0


@pytest.mark.parametrize("size", [0, 6])
def test_an_epoch_has_every_row_once(size: int) -> None:
    """In another order each time: rows one by one, or environments with all steps and memory."""
    numbers = torch.arange(8.0 * 4).view(8, 4)
    frames = numbers.view(8, 4, 1, 1, 1).expand(8, 4, 2, 3, 3)
    memory = torch.arange(4.0).unsqueeze(1).expand(4, size)
    generator, orders = np.random.default_rng(1), []
    for _ in range(2):
        found = []
        for (each, picture), first in shuffled((numbers, frames), memory, 2, generator):
            assert each.shape == ((8, 2) if size else (1, 16))
            assert torch.equal(picture[:, :, 1, 2, 0], each)
            if size:
                assert torch.equal(first[:, 0], each[0] % 4)
                assert torch.equal(each, each[:1] + 4 * torch.arange(8.0).unsqueeze(1))
            found += each.flatten().tolist()
        assert sorted(found) == list(range(32))
        orders.append(found)
    assert orders[0] != orders[1]


def test_epochs_end_with_the_update_that_finds_the_policy_too_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_kl` 0 leaves the updates up to the first that moved; without it all are made."""
    updates = watch(ppo, monkeypatch)
    changes = {"num_epochs": 3, "evaluation_rule": "training", "learning_rate": 0.01}
    _, recorder = train(tiny("ppo", **changes), tmp_path / "all")
    assert table(recorder, "updates.csv").num_updates.iloc[-1] == len(updates)
    assert len(updates) % 6 == 0
    updates.clear()
    train(tiny("ppo", max_kl=1e-6, **changes), tmp_path / "stopped")
    far = [metrics["approximate_kl"] > 1e-6 for *_, metrics in updates]
    assert far
    assert far == [False, True] * (len(far) // 2)


def test_the_clip_falls_with_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In proportion to it, down to 0."""
    updates = watch(ppo, monkeypatch)
    config = tiny("ppo", decay_clip=True, learning_rate_decay_steps=200, evaluation_rule="training")
    train(config, tmp_path)
    pairs = [(rate, clip) for *_, rate, clip, _ in updates]
    assert pairs[0] == (config.learning_rate, config.clip)
    for rate, clip in pairs:
        assert clip == pytest.approx(config.clip * rate / config.learning_rate)
    assert pairs[-1] == (0.0, 0.0)


def test_a_recurrent_policy_is_judged_with_the_memory_it_acted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole unroll gives the outputs that chose its actions; its first ratios are 1."""
    acted, gaps, kls = list[Tensor](), list[float](), dict[int, float]()
    judge, act, update = ppo.with_advantages, ppo.ActionSampler.__call__, ppo.update

    def noted(*given: Any) -> Any:
        found = act(*given)
        acted.append(found[1].clone())
        return found

    def compared(learner: Any, config: Any, batch: Any, memory: Tensor) -> Any:
        with torch.no_grad():
            outputs = learner.network.unroll(batch.obs, memory, batch.valid)[0][:-1]
        then = torch.stack(acted[-config.unroll_length :])
        gaps.append((outputs - then).abs().amax(-1)[batch.valid > 0].max().item())
        return judge(learner, config, batch, memory)

    def watched(*given: Any) -> dict[str, Tensor]:
        metrics = update(*given)
        kls.setdefault(len(gaps), metrics["approximate_kl"].item())
        return metrics

    monkeypatch.setattr(ppo.ActionSampler, "__call__", noted)
    monkeypatch.setattr(ppo, "with_advantages", compared)
    monkeypatch.setattr(ppo, "update", watched)
    train(tiny("ppo, recurrent", policy_head_gain=1.0, learning_rate=0.01), tmp_path)
    assert len(gaps) >= 10
    assert max(gaps) < 1e-5
    assert max(kls.values()) < 1e-8


def test_recomputed_advantages_keep_the_policy_that_acted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second epoch's values are new; the ratio's denominator stays that of the first."""
    updates = watch(ppo, monkeypatch)
    changes = {"num_epochs": 2, "num_minibatches": 1, "env_steps": 20, "learning_rate": 0.01}
    for recomputes in (False, True):
        updates.clear()
        config = tiny("ppo", **changes, recompute_advantages=recomputes, log_interval=20)
        train(config, tmp_path / str(recomputes))
        first, second = (
            {name: each.flatten().sort()[0] for name, each in rows._asdict().items()}
            for _, _, rows, *_ in updates
        )
        assert torch.equal(first["log_probs"], second["log_probs"])
        for name in ("values", "advantages", "returns"):
            assert torch.equal(first[name], second[name]) != recomputes
