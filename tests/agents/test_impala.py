"""IMPALA: V-trace and losses against slow re-derivations, then acting beside learning."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import a2c, impala
from suite import actor_critic
from suite.collector import Experience
from suite.envs.vector_env import Spaces, Step, VectorEnv
from suite.nets.optimisers import FlatWeights
from suite.unroll_session import columns_of
from suite.unrolls import Unroll, UnrollBatch
from tests.agents.trainings import (
    CONTROL,
    CPU,
    SWINGING,
    Exact,
    doubled,
    outputs_of,
    random_flags,
    random_transitions,
    table,
    tiny,
    train,
)
from tests.runs import repeatable
from tests.slow_lstm import slow_unroll

TINY = tiny("impala")


def random_columns(seed: int, steps: int = 9, num_envs: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values = rng.normal(size=(3, steps, num_envs))
    terminations, truncations, _ = random_flags(rng, steps, num_envs)
    assert terminations[:-1].any()
    assert truncations[:-1].any()
    return {
        "log_rhos": log_rhos,
        "discounts": 0.9 * ~terminations,
        "rewards": rewards,
        "values": values,
        "bootstrap_value": rng.normal(size=num_envs),
        "trace_mask": (~(terminations | truncations)).astype(float),
    }


def slow_vtrace(
    columns: dict[str, Any], bounds: Sequence[float], lambda_: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (1) as it is printed: a sum over t of discounted products of c times delta V."""
    rho_bar, pg_rho_bar, c_bar = bounds
    rhos, values = np.exp(columns["log_rhos"]), columns["values"]
    rewards, discounts, mask = columns["rewards"], columns["discounts"], columns["trace_mask"]
    steps, num_envs = rhos.shape
    after = np.concatenate([values[1:], columns["bootstrap_value"][None]])
    vs, advantages = np.zeros((2, steps, num_envs))
    for i in range(num_envs):
        for s in range(steps):
            vs[s, i] = values[s, i]
            for t in range(s, steps):
                product = 1.0
                for j in range(s, t):
                    c = lambda_ * min(c_bar, rhos[j, i])
                    product *= discounts[j, i] * c * mask[j, i]
                rho = min(rho_bar, rhos[t, i])
                error = rewards[t, i] + discounts[t, i] * after[t, i] - values[t, i]
                vs[s, i] += product * rho * error
        for s in range(steps):
            whole = s + 1 < steps and mask[s, i] == 1
            value = vs[s + 1, i] if whole else after[s, i]
            target = rewards[s, i] + discounts[s, i] * value
            advantages[s, i] = min(pg_rho_bar, rhos[s, i]) * (target - values[s, i])
    return vs, advantages


@pytest.mark.parametrize(
    ("rho_bar", "pg_rho_bar", "c_bar", "lambda_"),
    [(1.0, 1.0, 1.0, 1.0), (2.0, 1.5, 0.7, 0.9), (None, None, None, 1.0), (0.5, None, 1.0, 0.0)],
)
def test_vtrace_equals_the_papers_double_sum(
    rho_bar: float | None, pg_rho_bar: float | None, c_bar: float | None, lambda_: float
) -> None:
    """Targets and advantages in float64, terminations and truncations inside the trace."""
    columns = random_columns(0)
    bounds = [math.inf if bound is None else bound for bound in (rho_bar, pg_rho_bar, c_bar)]
    vs, advantages = slow_vtrace(columns, bounds, lambda_)
    ours = impala.vtrace_from_importance_weights(
        **{name: torch.from_numpy(column) for name, column in columns.items()},
        clip_rho_threshold=rho_bar,
        clip_pg_rho_threshold=pg_rho_bar,
        clip_c_threshold=c_bar,
        lambda_=lambda_,
    )
    np.testing.assert_allclose(ours.vs.numpy(), vs, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(ours.pg_advantages.numpy(), advantages, rtol=1e-11, atol=1e-13)


def test_vtrace_from_logits_is_vtrace_from_their_importance_weights() -> None:
    """Gradients flow through the log-probabilities alone."""
    generator, shape = torch.Generator().manual_seed(0), (5, 4, 2)
    logits = torch.randn(2, *shape, 3, generator=generator, requires_grad=True)
    actions = torch.randint(0, 3, shape, generator=generator)
    rewards, values = torch.randn(2, *shape, generator=generator)
    bootstrap, discounts = torch.randn(shape[1:], generator=generator), torch.full(shape, 0.9)
    mask = torch.rand(shape, generator=generator) > 0.3
    columns = discounts, rewards, values.requires_grad_(), bootstrap, 1.2, 0.8, 0.9, 0.95, mask
    ours = impala.vtrace_from_logits(*logits, actions, *columns)
    taken = torch.distributions.Categorical(logits=logits).log_prob(actions)
    torch.testing.assert_close(ours.behaviour_action_log_probs, taken[0])
    torch.testing.assert_close(ours.target_action_log_probs, taken[1])
    torch.testing.assert_close(ours.log_rhos, taken[1] - taken[0])
    plain = impala.vtrace_from_importance_weights(ours.log_rhos.detach(), *columns)
    assert torch.equal(ours.vs, plain.vs)
    assert torch.equal(ours.pg_advantages, plain.pg_advantages)
    assert not ours.vs.requires_grad
    assert not ours.pg_advantages.requires_grad
    assert ours.target_action_log_probs.requires_grad


LONG = torch.long
WRONG: dict[str, list[Any]] = {
    "behaviour_policy_logits": [torch.zeros(5, 4)],
    "target_policy_logits": [torch.zeros(5, 4, 2), torch.zeros(5, 4)],
    "actions": [torch.zeros(5, 3, dtype=LONG), torch.zeros(5, 4, 1, dtype=LONG), torch.zeros(5, 4)],
    **{name: [torch.zeros(5, 3), torch.zeros(5)] for name in ("rewards", "values", "discounts")},
    "bootstrap_value": [torch.zeros(5, 4), torch.zeros(3)],
    "trace_mask": [torch.zeros(5), torch.zeros(4, 5)],
    **{f"clip_{name}_threshold": [0.0, -1.5] for name in ("rho", "pg_rho", "c")},
    "lambda_": [1.25, -0.5],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    """Whatever is wrong: its shape, its type or its size."""
    columns = {each: torch.zeros(5, 4) for each in ("discounts", "rewards", "values", "trace_mask")}
    logits = {f"{who}_policy_logits": torch.zeros(5, 4, 3) for who in ("behaviour", "target")}
    right = {**columns, **logits, "bootstrap_value": torch.zeros(4)}
    right["actions"] = torch.zeros(5, 4, dtype=LONG)
    impala.vtrace_from_logits(**right)
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=rf"^{name} must"):
            impala.vtrace_from_logits(**(right | {name: value}))


@pytest.mark.parametrize("spaces", [CONTROL, SWINGING])
@pytest.mark.parametrize("lstm_size", [0, 5])
def test_an_update_has_the_gradient_of_slow_losses(spaces: Spaces, lstm_size: int) -> None:
    """In float64, with targets held; an LSTM goes through its episodes one by one."""
    changes: dict[str, Any] = {"unroll_length": 6, "entropy_coef": 0.1, "loss_reduction": "mean"}
    config = replace(TINY, **changes, clip_rho_threshold=0.1, lstm_size=lstm_size)
    learner = impala.make_learner(config, spaces, CPU)
    network = learner.network.double()
    exact: Any = Exact(FlatWeights(network), config)
    learner.optimiser = exact
    batch = doubled(random_transitions(config, spaces, 0))
    size, generator = network.actor.initial_memory(0).shape[1], torch.Generator().manual_seed(2)
    memory = torch.randn(4, size, generator=generator, dtype=torch.float64)
    if lstm_size:
        heads = slow_unroll(network.actor, spaces, memory, batch)
    else:
        heads = network.actor(batch.obs.flatten(0, 1)).unflatten(0, (7, 4))
    outputs, values = heads[:-1, :, :-1], heads[:, :, -1]
    log_probs, entropies = actor_critic.log_probs_and_entropies(
        outputs, network.log_stds, batch.actions
    )
    log_rhos = (log_probs - batch.behaviour).detach()
    returns = impala.vtrace_from_importance_weights(
        log_rhos,
        *(batch.discounts, batch.rewards, values[:-1].detach(), values[-1].detach()),
        clip_rho_threshold=0.1,
        trace_mask=batch.trace_mask,
    )
    policy = -(log_probs * returns.pg_advantages * batch.weights).sum()
    value = 0.5 * ((returns.vs - values[:-1]).square() * batch.weights).sum()
    entropy = (entropies * batch.weights).sum()
    loss = policy + config.value_coef * value - config.entropy_coef * entropy
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    norm = expected.norm()
    if config.max_gradient_norm is not None:
        expected = expected * min(1.0, config.max_gradient_norm / float(norm))
    metrics = impala.update(learner, config, batch, 1e-3, memory)
    torch.testing.assert_close(exact.seen, expected, rtol=1e-6, atol=1e-9)
    valid = batch.valid > 0
    rhos, vs = log_rhos[valid].exp(), returns.vs[valid]
    clipped, residuals = (rhos > 0.1).double().mean(), vs - values[:-1].detach()[valid]
    slow = {
        **{"policy_loss": policy, "value_loss": value, "entropy": entropy},
        **{"mean_rho": rhos.mean(), "max_rho": rhos.max(), "clipped_share": clipped},
        "explained_variance": 1 - residuals.var(correction=0) / vs.var(correction=0),
        **{"gradient_norm": norm, "learning_rate": 0.1},
    }
    assert 0 < clipped < 1
    columns = columns_of({name: each.detach().numpy() for name, each in metrics.items()}, 0.1)
    found = {name: float(column[0]) for name, column in columns.items()}
    assert found == pytest.approx(
        {name: float(torch.as_tensor(each).detach()) for name, each in slow.items()}
    )


def test_on_policy_an_update_is_that_of_a2c() -> None:
    """The same weights, rows and coefficients: means, and 1.0 x half a square is 0.5 x a square."""
    shared: dict[str, Any] = {
        **{"task": "CartPole-v1", "num_envs": 4, "hidden_sizes": (16, 16), "gamma": 0.9},
        **{"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0},
        **{"max_gradient_norm": 0.5, "entropy_coef": 0.02, "unroll_length": 6},
    }
    own: dict[str, Any] = {
        **{"value_coef": 1.0, "loss_reduction": "mean", "rmsprop_epsilon": 1e-5},
        "initialisation": "orthogonal",
    }
    theirs_config = a2c.Config(**shared, shared_trunk=True)
    config = impala.Config(**shared, **own)
    learner = impala.make_learner(config, CONTROL, CPU)
    theirs = a2c.make_learner(theirs_config, CONTROL, CPU)
    ours, others = learner.optimiser.weights.vector, theirs.optimiser.weights.vector
    assert torch.equal(ours, others)
    batch = random_transitions(config, CONTROL, 0)
    with torch.no_grad():
        log_probs, *_ = a2c.evaluate_actions(theirs.network, batch.obs[:-1], batch.actions)
    impala.update(learner, config, batch._replace(behaviour=log_probs), 1e-2)
    a2c.update(theirs, theirs_config, batch, 1e-2)
    torch.testing.assert_close(ours, others, atol=2e-5, rtol=1e-4)


class Trace:
    """Keeps, for each unroll learned, what the learner and the collector had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[list[Tensor]] = []
        """The learner's weights before each unroll."""
        self.unrolls: list[tuple[Tensor, Tensor]] = []
        """Observations and the acting policy's outputs of each unroll."""
        self.rhos: list[float] = []
        update, transitions = impala.update, impala.transitions

        def read(collected: Experience, config: impala.Config) -> UnrollBatch:
            self.unrolls.append((collected.unroll.obs.clone(), collected.unroll.behaviour.clone()))
            return transitions(collected, config)

        def traced(learner: impala.Learner, *arguments: Any) -> dict[str, Tensor]:
            parameters = learner.network.parameters()
            self.weights.append([p.detach().clone() for p in parameters])
            metrics = update(learner, *arguments)
            self.rhos.append(metrics["max_rho"].item())
            return metrics

        monkeypatch.setattr(impala, "transitions", read)
        monkeypatch.setattr(impala, "update", traced)


@pytest.mark.parametrize("policy_lag", [0, 1, 3])
def test_the_lag_is_exactly_what_is_asked(
    policy_lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unroll k was collected with the weights after k - lag unrolls, bit by bit in its outputs."""
    trace = Trace(monkeypatch)
    _, recorder = train(replace(TINY, policy_lag=policy_lag), tmp_path)
    count = len(trace.unrolls)
    assert count >= 20
    network = impala.make_learner(TINY, Spaces((4,), 2), CPU).network
    for k in range(count):
        matches = []
        for version in (k - policy_lag, k - policy_lag + 1):
            with torch.no_grad():
                old = trace.weights[min(max(version, 0), count - 1)]
                for own, weight in zip(network.parameters(), old, strict=True):
                    own.copy_(weight)
                obs, outputs = trace.unrolls[k]
                again = torch.stack([outputs_of(network, row)[0] for row in obs[:-1]])
            matches.append(torch.equal(again, outputs))
        assert matches[0]
        assert not matches[1] or k - policy_lag < 0 or k + 1 == count
        if k:  # an unroll begins where the one before it ended
            assert torch.equal(obs[0], trace.unrolls[k - 1][0][-1])
    assert (
        len(trace.weights) * TINY.num_minibatches
        == table(recorder, "updates.csv").num_updates.iloc[-1]
    )


@pytest.mark.parametrize(("policy_lag", "num_on_policy"), [(0, 12), (1, 1)])
def test_without_a_lag_the_data_are_on_policy(
    policy_lag: int, num_on_policy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every importance weight is 1 to rounding, with memory too; with a lag, the first unroll's."""
    trace = Trace(monkeypatch)
    config = replace(TINY, env_steps=240, lstm_size=6, num_minibatches=2, policy_lag=policy_lag)
    train(config, tmp_path)
    first = trace.rhos[::2]  # of each unroll
    assert len(first) == 12
    near = [abs(rho - 1) < 1e-5 for rho in first]
    assert near == [True] * num_on_policy + [False] * (12 - num_on_policy)


class Inline:
    """Stands in for the second thread: collects at once, before the learner does anything."""

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(function(*arguments))
        return future


def test_timing_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow learner, a slow collector, or one after the other in one thread: the same bytes."""
    config = replace(TINY, policy_lag=2, lstm_size=6, num_minibatches=2)
    config = replace(config, env_steps=240, normalise_observations=True)

    def files_of(name: str, config: impala.Config = config) -> dict[str, bytes]:
        train(config, tmp_path / name)
        return repeatable(tmp_path / name)

    expected = files_of("plain")
    update, recv = impala.update, VectorEnv.recv

    def slow_update(*arguments: Any) -> Any:
        time.sleep(0.01)
        return update(*arguments)

    def slow_recv(env: Any) -> Step:
        time.sleep(0.003)
        return recv(env)

    with monkeypatch.context() as patch:
        patch.setattr(impala, "update", slow_update)
        assert files_of("slow learner") == expected
    with monkeypatch.context() as patch:
        patch.setattr(VectorEnv, "recv", slow_recv)
        assert files_of("slow collector") == expected
    with monkeypatch.context() as patch:
        patch.setattr(impala, "worker_thread", lambda: nullcontext(Inline()))
        assert files_of("inline") == expected
    threaded, episodes = files_of("threads", replace(config, num_threads=2)), "seed-1/episodes.csv"
    assert threaded[episodes] == expected[episodes]


def test_an_actor_that_fails_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in the second thread surfaces in the first."""
    recv, calls = VectorEnv.recv, []

    def failing(env: Any) -> Step:
        calls.append(None)
        if len(calls) > 12:
            raise RuntimeError("the simulator broke")
        return recv(env)

    monkeypatch.setattr(VectorEnv, "recv", failing)
    with pytest.raises(RuntimeError, match="the simulator broke"):
        train(TINY, tmp_path)


def test_the_last_row_can_be_the_bootstrap_alone() -> None:
    """RLlib learns from 49 of 50 rows: those before the last, whose observation follows them."""
    config = replace(TINY, drop_last_row=True)
    spaces = Spaces((1,), 2)
    unroll = Unroll(config, spaces, CPU, keeps_outputs=True)
    for tensor in (unroll.obs, unroll.behaviour):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    unroll.outcomes.rewards[:] = np.arange(config.unroll_length)[:, None]
    unroll.outcomes.valid[:] = True
    unroll.actions.zero_()
    collected = Experience(unroll, torch.zeros(config.num_envs, 0))
    whole = impala.transitions(collected, replace(config, drop_last_row=False))
    cut = impala.transitions(collected, config)
    for name in ("actions", "rewards", "discounts", "trace_mask", "valid", "behaviour"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)[:-1]), name
    assert torch.equal(cut.obs, whole.obs[:-1])
    assert len(cut.obs) == len(cut.rewards) + 1 == config.unroll_length
