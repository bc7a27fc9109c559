"""ACER: an update against a slow re-derivation, equation by equation, and its memory."""

import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import acer
from suite.nets.optimisers import FlatWeights
from suite.unrolls import UnrollBatch
from tests.agents.trainings import (
    ACER_UPDATE,
    CONTROL,
    Exact,
    check_update,
    doubled,
    outputs_of,
    random_transitions,
    tiny,
    train,
    watch,
)
from tests.perceptrons import draw
from tests.slow_lstm import slow_unroll

TINY = tiny("acer")


def random_batch(config: acer.Config, seed: int) -> UnrollBatch:
    """Return random steps, with the log-probabilities of a policy that acted."""
    batch = random_transitions(config, CONTROL, seed, 3)
    return batch._replace(behaviour=batch.behaviour.log_softmax(-1))


@pytest.mark.parametrize("statistics", ["probabilities", "logits", "log_probabilities"])
def test_a_policy_without_doubt_keeps_the_update_finite(statistics: Any) -> None:
    """Probabilities of e^-200, or a divergence that is flat: nothing divides by 0, in float32."""
    logits = torch.tensor([[[200.0, 0.0, 0.0]], [[0.0, 200.0, 0.0]]])
    config = replace(TINY, unroll_length=1, num_envs=1, statistics=statistics)
    batch = random_batch(config, 0)._replace(actions=torch.tensor([[1]]))
    average = torch.tensor([[[-200.0, 0.0, 0.0]]])
    signals = acer.learning_signals(config, batch, logits, torch.ones(2, 1, 3), average)
    assert torch.isfinite(signals.gradients).all()
    assert all(torch.isfinite(rows).all() for rows in signals.diagnostics.values())
    ones = torch.ones(2, 3)
    assert torch.equal(acer.trust_region(ones, torch.zeros(2, 3), 0.0), ones)


def make_exact(config: Any, network: Any) -> Any:
    """A learner in float64, whose optimiser keeps its gradient."""
    rng = np.random.default_rng(3)
    average = acer.ActorCritic(config, CONTROL, rng).actor.double().requires_grad_(False)
    exact = Exact(FlatWeights(network.double()), config)
    return acer.Learner(network, average, exact, None)


def slow_outputs(network: Any, average: Any, batch: Any, memory: Tensor) -> list[Tensor]:
    """Logits, Q and the average policy's logits; an LSTM's episode by episode."""
    num_envs = batch.rewards.shape[1]
    if memory.shape[1]:
        ours, theirs = (slow_unroll(each, None, memory, batch) for each in (network.actor, average))
        return [*ours.chunk(2, -1), theirs.chunk(2, -1)[0]]
    obs = batch.obs.flatten(0, 1)
    logits, q_values = outputs_of(network, obs)
    outputs = logits, q_values, average(obs)[:, : logits.shape[-1]]
    return [each.unflatten(0, (-1, num_envs)) for each in outputs]


def slow_update(
    config: Any, network: Any, average: Any, batch: Any, memory: Any
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Gradient and rows' diagnostics, row by row from the paper's equations, by autograd."""
    steps, num_envs = batch.rewards.shape
    logits, q_values, average_logits = slow_outputs(network, average, batch, memory)
    num_actions = logits.shape[-1]
    values = (logits.softmax(-1) * q_values).sum(-1).detach()
    num_rows, loss, rows = batch.valid.sum(), torch.zeros((), dtype=torch.float64), []

    def ratios(t: int, i: int) -> Tensor:  # pi(a|x) / mu(a|x)
        return logits[t, i].softmax(-1).detach() / batch.behaviour[t, i].exp()

    @cache
    def target(t: int, i: int, traced: bool) -> Tensor:  # Eq. (5), or Q_opc
        estimate = values[t + 1, i]
        if t + 1 < steps and batch.trace_mask[t, i]:
            a = batch.actions[t + 1, i]
            error = target(t + 1, i, traced) - q_values[t + 1, i, a].detach()
            estimate = estimate + (min(1.0, float(ratios(t + 1, i)[a])) if traced else 1) * error
        return batch.rewards[t, i] + batch.discounts[t, i] * estimate

    for t in range(steps):
        for i in range(num_envs):
            if not batch.valid[t, i]:
                continue
            out, policy_of = logits[t, i], partial(torch.softmax, dim=-1)
            if config.statistics == "probabilities":
                out, policy_of = out.softmax(-1), torch.clone
            elif config.statistics == "log_probabilities":
                out, policy_of = out.log_softmax(-1), torch.exp
            phi = out.detach().requires_grad_()  # the statistics of Eq. (10)
            f = policy_of(phi)
            pi, rho, a = f.detach(), ratios(t, i), batch.actions[t, i]
            c = config.clip_rho_threshold or math.inf
            advantage = target(t, i, config.advantage_target == "q_retrace") - values[t, i]
            objective = min(c, float(rho[a])) * advantage * f[a].log()
            for b in range(num_actions):
                if rho[b] > c:
                    better = q_values[t, i, b].detach() - values[t, i]
                    objective = objective + pi[b] * (rho[b] - c) / rho[b] * better * f[b].log()
            bonus = -config.entropy_coef * (f * f.log()).sum()
            if config.entropy_in_trust_region:
                objective = objective + bonus
            (g,) = torch.autograd.grad(objective, phi, retain_graph=True)
            slow, z = average_logits[t, i].softmax(-1), g
            divergence = (slow * (slow.log() - f.log())).sum()  # KL(average || policy)
            if config.trust_region_delta is not None:
                (k,) = torch.autograd.grad(divergence, phi, retain_graph=True)
                excess = (k @ g - config.trust_region_delta) / (k @ k)  # Eq. (12)
                z = g - max(0.0, float(excess)) * k
            projected_norm = z.norm()
            if not config.entropy_in_trust_region:
                z = z + torch.autograd.grad(bonus, phi)[0]
            error = target(t, i, True) - q_values[t, i, a]
            rows.append(
                {
                    **{"q_loss": 0.5 * error**2, "q_value": q_values[t, i, a]},
                    **{"value": values[t, i], "entropy": -(pi * pi.log()).sum()},
                    **{"kl": divergence, "truncated_share": (rho[a] > c).double()},
                    "statistics_gradient_norm": g.norm(),
                    "projected_gradient_norm": projected_norm,
                }
            )
            loss = loss - (z @ out) / num_rows
            loss = loss + config.q_coef * 0.5 * error**2 / num_rows
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients]), rows


UPDATES: list[dict[str, Any]] = [
    {},
    {"statistics": "logits"},
    {"statistics": "log_probabilities"},
    {"statistics": "log_probabilities", "entropy_in_trust_region": False},
    {"statistics": "logits", "entropy_in_trust_region": False},
    {"entropy_in_trust_region": False},
    {"trust_region_delta": None, "clip_rho_threshold": None},
    {"trust_region_delta": None, "statistics": "logits", "shared_trunk": False},
    {"advantage_target": "q_opc"},
    {"q_coef": 2.0},
    {"shared_trunk": False, "time_limit_is_terminal": True},
    {"max_gradient_norm": 0.01},
    {"max_gradient_norm": None},
    {"lstm_size": 5, "activation": "tanh"},
]
FROM_REPLAY: dict[str, Any] = {"lstm_size": 5, "activation": "tanh", "statistics": "logits"}
"""Of an unroll whose memory was not kept: it begins with 0."""


@pytest.mark.parametrize(
    ("settings", "carried"), [*((each, True) for each in UPDATES), (FROM_REPLAY, False)], ids=str
)
def test_an_update_is_what_the_equations_say(settings: dict[str, Any], carried: bool) -> None:
    """Gradient, diagnostics and the average policy, in float64, with ends inside the unroll."""
    config = replace(TINY, **(ACER_UPDATE | settings))
    batch = doubled(random_batch(config, 4))
    network = acer.ActorCritic(config, CONTROL, np.random.default_rng(2))
    learner = make_exact(config, network)
    memory = draw(5, 4, 2 * config.lstm_size).double() * carried
    expected = slow_update(config, network, learner.average_policy, batch, memory)
    given = learner, config, batch, 0.1, memory if carried else None
    check_update(learner, network.actor, config, *expected, partial(acer.update, *given))


def test_a_recurrent_policy_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newest unroll begins with the sampler's memory, so on policy; a replayed one with 0."""
    update, drawn = acer.update, watch(acer.UnrollReplay, monkeypatch, "sample")
    gaps: dict[bool, list[float]] = {False: [], True: []}

    def checked(learner: Any, config: Any, batch: Any, *others: Any) -> Any:
        *_, memory = others
        with torch.no_grad():
            outputs = learner.network.unroll(batch, memory)[0][:-1].log_softmax(-1)
        gap = (outputs - batch.behaviour).abs().amax(-1)[batch.valid > 0]
        is_drawn = any(batch is each[-1] for each in drawn)
        assert not (is_drawn and memory.any())
        gaps[is_drawn].append(gap.max().item())
        return update(learner, config, batch, *others)

    monkeypatch.setattr(acer, "update", checked)
    changes = {"online_updates": True, "policy_head_gain": 1.0, "learning_rate": 0.01}
    train(tiny("acer", lstm_size=6, **changes), tmp_path)
    assert len(gaps[False]) >= 10
    assert max(gaps[False]) < 1e-5
    assert min(gaps[True]) > 1e-4
