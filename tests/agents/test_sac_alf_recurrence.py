"""ALF's SAC over several steps, with an LSTM or without: ALF's loop over steps, and memory."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from agents import sac_alf
from suite.envs.vector_env import Spaces
from suite.nets.perceptrons import Ensemble
from suite.nets.recurrence import EnsembleMemory
from suite.replay import Batch
from tests.agents.alf import descend, plain_learner, squash
from tests.agents.trainings import tiny

TINY = tiny("sac_alf, recurrent", hidden_sizes=(8,), td_lambda=0.7, gamma=0.9, tau=0.1)
TASKS = ["InvertedPendulum-v4", "CartPole-v1", "Claw-v0"]
"""Continuous, discrete and mixed actions; short episodes."""


class Slow(nn.Module):
    """A copy of one network in float64, of torch's own modules, which is given one step a call."""

    def __init__(self, ensemble: Ensemble, member: int = 0) -> None:
        super().__init__()
        named = {name: each.double() for name, each in ensemble.weights_of(0, member).items()}
        hidden, size = len(named["bias_0"]), len(named["weight_1"])
        self.first = nn.Linear(len(named["weight_0"]), hidden)
        self.last = nn.Linear(size, len(named["bias_1"]))
        self.cell = nn.LSTMCell(hidden, size).double() if "lstm.weight" in named else None
        self.double()
        order = {"weight_0": self.first.weight, "bias_0": self.first.bias}
        order |= {"weight_1": self.last.weight, "bias_1": self.last.bias}
        if self.cell is not None:
            order |= {"lstm.weight": self.cell.weight_ih, "lstm.bias": self.cell.bias_ih}
            order |= {"lstm.recurrent_weight": self.cell.weight_hh}
            self.cell.bias_hh.data.zero_()
            self.cell.bias_hh.requires_grad_(False)
        for name, weight in order.items():
            weight.data = named[name].T.clone() if named[name].dim() == 2 else named[name].clone()
        self.learned = [*order.values()]

    def forward(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden = torch.relu(self.first(inputs))
        if self.cell is None:
            return self.last(hidden), None
        state = self.cell(hidden, state)
        return self.last(state[0]), state

    def equals(self, ensemble: Ensemble, member: int = 0) -> bool:
        now = Slow(ensemble, member).learned
        return all(
            torch.allclose(*pair, atol=1e-6, rtol=1e-5)
            for pair in zip(now, self.learned, strict=True)
        )


LENGTHS = torch.tensor([1, 2, 3, 3, 2, 1])
"""Steps of the sequences that count; the first three end in a termination."""


def sequences(spaces: Spaces, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Return sequences and counts; each step's next observation is the next step's, up to the end.

    Beyond an end there is noise, which must change nothing.
    """
    size, (obs_size,), num_numbers = 6, spaces.obs_shape, spaces.num_outputs * spaces.continuous
    num_choices = spaces.num_choices if spaces.continuous else spaces.num_outputs
    states = torch.randn(4, size, obs_size, generator=generator)
    columns = [torch.tanh(torch.randn(3, size, num_numbers, generator=generator))]
    if num_choices:
        columns.insert(0, torch.randint(0, num_choices, (3, size, 1), generator=generator))
    actions = torch.cat(columns, -1)
    counts = (torch.arange(3)[:, None] < LENGTHS).float()  # [T, B]
    terminations = torch.zeros(3, size)
    terminations[LENGTHS - 1, torch.arange(size)] = torch.tensor([1.0, 1, 1, 0, 0, 0])
    rewards = torch.randn(3, size, 1, generator=generator)
    previous = torch.zeros(3, size, num_numbers + 1)
    batch = [states[:3], torch.cat([states[:3], actions], -1), rewards.squeeze(-1), terminations]
    batch += [states[1:], torch.cat([rewards, previous], -1)]
    return Batch(*(each.flatten(0, 1)[None] for each in batch)), counts


of_all_actions = pytest.mark.parametrize(
    "spaces",
    [Spaces.vectors(3, 2), Spaces((3,), 4), Spaces.vectors(3, 2)._replace(num_choices=4)],
    ids=["continuous", "discrete", "mixed"],
)


@of_all_actions
@pytest.mark.parametrize("lstm_size", [0, 4])
def test_an_update_equals_alfs_loop_over_steps(spaces: Spaces, lstm_size: int) -> None:
    """Float64, one sequence and one step at a time, as in ALF's `train_step` and its recursion.

    With torch's LSTM cell actor, target critics and the critics that judge fresh actions remember
    fresh actions, the critics' loss those of replay, and the policy learns of all steps; without,
    of the first. A slope dQ/da is one of its own step.
    """
    config = replace(TINY, initial_alpha=0.3, initial_choice_alpha=0.2, lstm_size=lstm_size)
    first = int(lstm_size > 0)  # a memory needs the first step's actions, too
    learner, generator = plain_learner(config, spaces), torch.Generator().manual_seed(3)
    batch, counts = sequences(spaces, generator)
    num_numbers = spaces.num_outputs * spaces.continuous
    weights = torch.rand(1, 6, generator=generator) + 0.5
    noise = torch.randn(3 + first + config.policy_steps, 1, 6, num_numbers, generator=generator)
    actor = None if learner.actor is None else Slow(learner.actor)
    critics, copies = (
        [Slow(ensemble, k) for k in range(2)]
        for ensemble in (learner.critics, learner.target_critics)
    )
    alpha_d, alpha_c = 0.2, 0.3
    chooses, num_choices = learner.chooses, len(critics[0].last.bias)

    def act(obs: Tensor, draws: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        if actor is None:
            return draws, torch.zeros(()).double(), None
        outputs, state = actor(obs, state)
        means, log_stds = outputs.chunk(2, -1)
        return *squash(means, log_stds, draws), state

    def judge(nets: list[Slow], obs: Tensor, action: Tensor, states: Any) -> tuple[list, Any]:
        pairs = [net(torch.cat([obs, action], -1), states[k]) for k, net in enumerate(nets)]
        return [q for q, _ in pairs], [state for _, state in pairs]

    def steps(b: int) -> list[list[Tensor]]:
        rows = [field[0, b::6].double() for field in batch]
        return [[field[t] for field in rows] for t in range(int(LENGTHS[b]))]

    losses, roots = [], []
    for b in range(6):
        way = steps(b)
        observations = [way[0][0], *(step[4] for step in way)]
        values, paid, states = [], [], [None, [None] * 2, [None] * 2]
        for t, obs in enumerate(observations):
            with torch.no_grad():
                draws = noise[max(t - 1 + first, 0), 0, b].double()
                action, log_prob, states[0] = act(obs, draws, states[0])
                now, states[1] = judge(critics, obs, action, states[1])
                slow, states[2] = judge(copies, obs, action, states[2])
            odds = Categorical(logits=torch.minimum(*now) / alpha_d)
            values.append((odds.probs * torch.minimum(*slow)).sum())
            paid.append(alpha_d * odds.entropy() - alpha_c * log_prob)
        target, targets = torch.zeros(()).double(), []
        for t in reversed(range(len(way))):
            continuing = 0.9 * (1 - way[t][3])
            one_step = way[t][2] + continuing * (values[t + 1] + paid[t + 1])
            gain = target - values[t + 1] if t + 1 < len(way) else 0.0
            target = one_step + 0.7 * continuing * gain
            targets.insert(0, target)
        taken, states, errors = slice(3 + chooses, None), [None] * 2, []
        for (obs, pair, *_), target in zip(way, targets, strict=True):
            outputs, states = judge(critics, obs, pair[taken], states)
            errors += [(q[int(pair[3]) if chooses else 0] - target).square() for q in outputs]
        square = torch.stack(errors).sum() / len(way)
        losses.append(weights[0, b].double() * square / 2)
        roots.append(square.detach().sqrt())
    descend([p for net in critics for p in net.learned], torch.stack(losses).mean())

    losses, choice_entropies, log_probs, entropies = [], [], [], []
    for b in range(6):
        way, states = steps(b)[: config.policy_steps], [None, [None] * 2]
        for t, (obs, *_) in enumerate(way):
            share = weights[0, b].double() / len(way)
            action, log_prob, states[0] = act(obs, noise[3 + first + t, 0, b].double(), states[0])
            here = action.detach().requires_grad_()  # earlier actions are constants to a step's Q
            outputs, states[1] = judge(critics, obs, here, states[1])
            odds = Categorical(logits=torch.minimum(*outputs).detach() / alpha_d)
            entropies.append(torch.stack([odds.entropy(), -log_prob.detach()]) / len(way) / 6)
            choice_entropies.append(share * (odds.entropy() - 0.3 * math.log(num_choices)))
            log_probs.append(share * (-log_prob.detach() + num_numbers))
            if actor is not None:
                value = (odds.probs * torch.minimum(*outputs)).sum()
                (slope,) = torch.autograd.grad(value, here, retain_graph=True)
                losses.append(share * (alpha_c * log_prob - (slope * action).sum()))
    if actor is not None:
        descend(actor.learned, torch.stack(losses).sum() / 6)
    slopes = [
        alpha * torch.stack(terms).sum().item() / 6
        for alpha, terms in ((alpha_d, choice_entropies), (alpha_c, log_probs))
    ]

    metrics, found_errors = sac_alf.update(learner, config, batch, weights, noise, 0, counts[None])
    torch.testing.assert_close(found_errors[0].double(), torch.stack(roots), atol=1e-5, rtol=1e-5)
    for k in range(2):
        assert critics[k].equals(learner.critics, k)
    assert actor is None or actor.equals(learner.actor)  # type: ignore[arg-type]
    moved = [math.log(a) - 0.1 * slope for a, slope in zip((alpha_d, alpha_c), slopes, strict=True)]
    found = learner.log_alphas[:, 0].tolist()
    choice_entropy, entropy = torch.stack(entropies).sum(0).tolist()
    if chooses:
        assert found[0] == pytest.approx(moved[0], abs=1e-5)
        assert metrics["choice_alpha"].item() == pytest.approx(alpha_d)
        assert metrics["choice_entropy"].item() == pytest.approx(choice_entropy, rel=1e-4)
    if actor is not None:
        assert found[1] == pytest.approx(moved[1], abs=1e-5)
        assert metrics["alpha"].item() == pytest.approx(alpha_c)
        assert metrics["entropy"].item() == pytest.approx(entropy, rel=1e-4)


@of_all_actions
@pytest.mark.parametrize("lstm_size", [0, 4])
def test_rows_that_do_not_count_change_nothing(spaces: Spaces, lstm_size: int) -> None:
    """No weight, no diagnostic and no running mean, whatever lies beyond a sequence's end."""
    config, found = replace(TINY, normalise_entropy=True, lstm_size=lstm_size), []
    for scale in (1.0, 3.0):
        learner, generator = plain_learner(config, spaces), torch.Generator().manual_seed(3)
        batch, counts = sequences(spaces, generator)
        num_numbers = spaces.num_outputs * spaces.continuous
        num_noises = 3 + int(lstm_size > 0) + config.policy_steps
        noise = torch.randn(num_noises, 1, 6, num_numbers, generator=generator)
        scales = torch.where(counts.flatten() > 0, 1.0, scale)[:, None]
        given = batch._replace(obs=batch.obs * scales, next_obs=batch.next_obs * scales)
        metrics, errors = sac_alf.update(
            learner, config, given, torch.ones(1, 6), noise, 0, counts[None]
        )
        networks = [
            ensemble for ensemble in (learner.actor, learner.critics) if ensemble is not None
        ]
        weights = [weight for ensemble in networks for weight in ensemble.parameters()]
        found.append([*metrics.values(), errors, *weights, learner.mean_log_ratios])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_actions_depend_on_the_episode_so_far_and_on_no_other(task: str) -> None:
    """Of two environments one begins an episode at the second step; then it acts as at a first."""
    config = replace(TINY, task=task)
    spaces = Spaces.of(config.find_task())
    learner = plain_learner(config, spaces)
    with torch.no_grad():  # actions that show what is remembered
        for ensemble in (learner.actor, learner.critics):
            for weight in ensemble.parameters() if ensemble is not None else ():
                weight.mul_(4)
        learner.log_alphas.fill_(-3.0)
    rng, memory = np.random.default_rng(0), EnsembleMemory()
    obs = rng.normal(size=(200, 1, 2, *spaces.obs_shape)).astype(np.float32)
    changed = False
    for first, second in zip(obs[::2], obs[1::2], strict=True):
        memory.forget()
        sac_alf.act(*learner.acting, config, first, memory=memory)
        memory.note(None, np.array([[False, True]]))
        actions = sac_alf.act(*learner.acting, config, second, memory=memory)
        fresh = sac_alf.act(*learner.acting, config, second)
        np.testing.assert_allclose(actions[:, 1], fresh[:, 1], rtol=1e-6)
        changed |= not np.allclose(actions[:, 0], fresh[:, 0], rtol=1e-3)
    assert changed
