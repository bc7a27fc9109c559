"""IMPALA: actor-critic with V-trace targets (Espeholt et al. 2018, arXiv:1802.01561).

N environments collect unrolls of T steps under an older copy of the policy while the learner works
on the unroll before; V-trace corrects for the difference. Equation numbers are the paper's.

    python -m agents.impala --task Pong-v5 --seeds 1 --env-steps 1000000 --out runs/mine

One process: a second thread acts and steps the simulator, in buffers and with weights that are
its own; the two meet at the end of every unroll. Unroll k is collected under the weights after
`k - policy_lag` unrolls, so nothing depends on which thread is faster. The seeds of one process
are trained one after another; each draws from streams of its own.

Deviations from the paper, and details it leaves open:
- Actors do not run freely: every unroll is exactly `policy_lag` unrolls old when it is learned
  from (the first ones are younger), and an update never waits for more than one unroll.
- The simulator ignores the action that follows an end. Such a row is no transition: it enters
  neither loss, trace nor `env_steps`.
- A step cut by the time limit bootstraps from the value of the last observation, in the value's
  target and in the policy's advantage; the trace stops there. `time_limit_is_terminal` takes the
  value away where a source does so.
- `trace_lambda` multiplies the c_i alone (Remark 2), not the advantage's bootstrap.
- The learning rate of an update is that of the steps taken before its unroll.
- A run ends before the unroll that could exceed `env_steps`.
- Initial weights are not stated: truncated normal as in the authors' library (Sonnet).
- Actions are drawn as in `agents/a2c.py`: argmax of logits plus Gumbel noise, or mean plus
  deviation times normal noise; continuous actions are clipped by the environment, their density
  is that of the unclipped draw, summed over dimensions.
"""

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from suite.affine import affine
from suite.checkpoint import Policy, save_policy
from suite.command_line import run_main
from suite.evaluation import evaluate
from suite.hardware import find_device, use_threads
from suite.journal import Journal
from suite.randomness import environment_seeds, stream
from suite.recorder import Recorder, passed, train_each_seed
from suite.settings import Budget, Preset, above, at_least, check_run, require, within
from suite.tasks import find_task
from suite.vector_env import Spaces, Step, VectorEnv

CONVOLUTIONS = {
    "shallow": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),  # three layers, as DQN's
    "rllib": (((16, 8, 4), (32, 4, 2)), 256),  # with TensorFlow's "same" padding
}
"""Plain layers for frames, (channels, kernel, stride), and the width of the layer after them."""
DEEP_CHANNELS, DEEP_WIDTH = (16, 32, 32), 256
"""Sections of the deep network (Figure 3, right), and the width of the layer after them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run. The defaults are the paper's for Atari (Table G.1)."""

    task: str = "Pong-v5"
    """envpool id of a task."""
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    seeds: tuple[int, ...] = (1,)
    """Seeds trained one after another in this process."""
    env_steps: int = 50_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one."""
    num_threads: int = 1
    """CPU threads of the simulator, of torch when acting, and of torch when learning: each. With
    several, set OMP_WAIT_POLICY=PASSIVE in the environment; see a2c.py."""
    num_envs: int = 32
    """Environments, N."""
    unroll_length: int = 20
    """Steps of every environment between two meetings of actor and learner, T."""
    num_minibatches: int = 1
    """Updates per unroll, each on its share of the environments."""
    policy_lag: int = 1
    """Unrolls by which the acting policy is behind the learner's; 0: take turns, no overlap."""
    gamma: float = 0.99
    """Discount per decision."""
    clip_rho_threshold: float | None = 1.0
    """Clip of the importance weights in the temporal differences, rho bar; None: none."""
    clip_c_threshold: float | None = 1.0
    """Clip of the importance weights in the trace, c bar; None: none."""
    clip_pg_rho_threshold: float | None = 1.0
    """Clip of the importance weights in the policy gradient; None: none."""
    trace_lambda: float = 1.0
    """Factor on the trace's weights, lambda (Remark 2)."""
    value_coef: float = 0.5
    """Weight of half the squared error of the values."""
    entropy_coef: float = 0.01
    """Weight of the policy's entropy, nats."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Whether losses are summed over an update's valid rows, or averaged."""
    optimiser: Literal["rmsprop", "adam"] = "rmsprop"
    """`adam` has decays 0.9 and 0.999 and epsilon 1e-8 outside the root."""
    learning_rate: float = 6e-4
    """Step size at the start."""
    learning_rate_decay_steps: int = 50_000_000
    """Environment steps over which it falls linearly to 0: the source's horizon; 0: constant."""
    rmsprop_form: Literal["tensorflow", "torch"] = "tensorflow"
    """`tensorflow`: epsilon inside the root and averages that start at 1; `torch`: epsilon outside
    and averages that start at 0."""
    rmsprop_decay: float = 0.99
    """Decay of the average of squared gradients (the authors' code; the paper does not say)."""
    rmsprop_epsilon: float = 0.01
    """Keeps the step finite where gradients are small."""
    max_gradient_norm: float | None = 40.0
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    convolutions: Literal["shallow", "deep", "rllib"] = "shallow"
    """Layers for uint8 frames: the paper's shallow or deep (residual) network, or RLlib's."""
    frame_divisor: float = 255.0
    """Frames are divided by it before the first layer; 1 leaves them as bytes, 0 to 255."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for observations that are no frames."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers for observations that are no frames; convolutions have ReLU."""
    initialisation: Literal["truncated_normal", "orthogonal", "cleanba", "glorot_uniform"] = (
        "truncated_normal"
    )
    """Initial weights; biases start at 0. `truncated_normal`: deviation fan_in^-1/2, cut at two of
    them; `cleanba`: kernels like that, all else orthogonal; gains are for orthogonal ones."""
    hidden_gain: float = math.sqrt(2)
    """Gain of orthogonal initial weights of all layers but the heads."""
    policy_head_gain: float = 0.01
    """Gain of the policy's head where weights are orthogonal."""
    value_head_gain: float = 1.0
    """Gain of the value's head where weights are orthogonal."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions in [-1, 1] at the start; one per dimension."""
    time_limit_is_terminal: bool = False
    """Treat a time limit as an end of the decision process: no value follows."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "training"
    """Evaluate actions drawn from the policy, or its mode; `training`: score training episodes."""
    evaluation_interval: int = 10_000
    """Environment steps between two evaluations; `training` has none."""
    evaluation_episodes: int = 10
    """Episodes of one evaluation, one in each of as many fresh environments."""
    log_interval: int = 10_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ValueError: naming the field and the offending value.
        """
        find_task(self.task, self.protocol)
        check_run(self)
        at_least(self, 1, "unroll_length", "num_minibatches")
        rule = f"env_steps must hold one unroll of num_envs * unroll_length = {self.unroll_rows}"
        require(self.env_steps >= self.unroll_rows, rule, self.env_steps)
        share, rest = divmod(self.num_envs, self.num_minibatches)
        rule = f"num_minibatches must divide num_envs = {self.num_envs}"
        require(share >= 1 and rest == 0, rule, self.num_minibatches)
        within(self, 0, 1, "trace_lambda")
        require(0 < self.learning_rate < 1, "learning_rate must be in (0, 1)", self.learning_rate)
        decay = self.rmsprop_decay
        require(0 <= decay < 1, "rmsprop_decay must be in [0, 1)", decay)
        above(self, 0, "hidden_gain", "policy_head_gain", "value_head_gain", "rmsprop_epsilon")
        above(self, 0, "clip_rho_threshold", "clip_c_threshold", "clip_pg_rho_threshold")
        above(self, 0, "max_gradient_norm", "frame_divisor")
        at_least(self, 0, "policy_lag", "value_coef", "entropy_coef", "learning_rate_decay_steps")
        within(self, -20, 2, "initial_log_std")

    @property
    def unroll_rows(self) -> int:
        """Rows of one unroll, T * N; as many steps unless an action is ignored."""
        return self.unroll_length * self.num_envs


def _presets() -> dict[tuple[str, str], Preset[Config]]:
    """Return every source's settings by (suite, source); `results/references/SOURCES.md` cites."""
    simulator = "simulator: envpool's Atari, 27,000 decisions a game; the source's limit is unknown"
    lives = (
        "after a lost life envpool presses FIRE and waits up to 29 frames; the source's "
        "wrappers take one step"
    )
    paper = Preset(
        # arXiv:1802.01561, Table G.1, as SOURCES.md has it: unroll 20, batch of 32 trajectories,
        # RMSprop with epsilon 0.01 and no momentum, 6e-4 to 0 over 200 million frames, entropy
        # 0.01, baseline 0.5, global norm 40, rewards clipped to [-1, 1], discount 0.99. Losses are
        # sums, the squared error is halved, decay 0.99 and RMSprop is TensorFlow's in the authors'
        # code (deepmind/scalable_agent, experiment.py).
        config=Config(),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=1),
            "laptop": Budget(env_steps=1_000_000, num_seeds=1),
            "paper": Budget(env_steps=50_000_000, num_seeds=3),
        },
        judged_by="rllib_2018",
        protocol="noframeskip",
        cores_per_run=2,
        departures=(
            "settings: the paper's; the judging source has Adam, batches of 500 with unrolls of 50 "
            "and a network of its own (--like rllib_2018 has them)",
            "tasks and steps: the judging source has four games and learns for 20,000,000 steps",
            "environments: 32, one batch of trajectories; the paper does not state its actors",
            "policy lag: one unroll; the paper's actors run freely",
            simulator,
            lives,
        ),
    )
    cleanba = Preset(
        # vwxyzjn/cleanba, cleanba/cleanba_impala.py: 2 x 64 environments, 20 steps, 4 minibatches,
        # RMSprop in torch's form with 0.99 and 0.01, 6e-4 linear to 0 at 50M steps, entropy 0.01,
        # 0.5 x half squared error, sums, clip 40; every end of an episode has discount 0; kernels
        # are flax's default, dense layers orthogonal with gain sqrt(2), heads 0.01 and 1.
        config=Config(
            protocol="sticky",
            num_envs=128,
            num_minibatches=4,
            rmsprop_form="torch",
            convolutions="deep",
            initialisation="cleanba",
            time_limit_is_terminal=True,
        ),
        budgets=paper.budgets,
        judged_by="cleanba_impala_1gpu_10cpu",
        protocol="sticky",
        cores_per_run=2,
        departures=(
            "rewards stand with the action that caused them; the source stores each with the "
            "action after it, and masks the first action of an episode instead of the ignored one",
            "policy lag: one unroll (4 updates) from the first unroll on",
        ),
    )
    rllib = Preset(
        # ray-project/rl-experiments, atari-impala/atari-impala.yaml: 32 workers x 5 environments,
        # fragments of 50 steps, batches of 500, 5e-4 linear to 0 at 20M steps; RLlib's defaults of
        # 2018: Adam, clip 40, value 0.5 x half squared error, entropy 0.01, sums, V-trace clips 1.
        # Its preprocessing leaves frames as bytes (rllib/env/atari_wrappers.py).
        config=Config(
            num_envs=160,
            unroll_length=50,
            num_minibatches=16,
            optimiser="adam",
            learning_rate=5e-4,
            learning_rate_decay_steps=20_000_000,
            convolutions="rllib",
            frame_divisor=1.0,
            initialisation="glorot_uniform",
            time_limit_is_terminal=True,
        ),
        budgets={**paper.budgets, "paper": Budget(env_steps=20_000_000, num_seeds=1)},
        judged_by="rllib_2018",
        protocol="noframeskip",
        cores_per_run=2,
        tasks=("BeamRider-v5", "Breakout-v5", "Qbert-v5", "SpaceInvaders-v5"),
        departures=(
            "policy lag: one unroll (16 updates) exactly; the source's workers run freely",
            "initial weights of the value head: Glorot; the source normalises its columns",
            simulator,
            lives,
        ),
    )
    classic = Preset(
        # No source: the paper has no such task and no IMPALA curve of one is held. Chosen by hand
        # on CartPole-v1, where values are large: with the paper's value_coef 0.5, discount 0.99 and
        # TensorFlow's RMSprop the return reaches 110 after 150,000 steps, with these 490 to 500
        # (tried: value_coef 0.01, 0.02, 0.05, 0.5; learning rates 1e-3, 2e-3, 3e-3; Adam).
        config=Config(
            task="CartPole-v1",
            num_envs=16,
            num_minibatches=4,
            gamma=0.98,
            value_coef=0.02,
            loss_reduction="mean",
            learning_rate=2e-3,
            learning_rate_decay_steps=500_000,
            rmsprop_form="torch",
            rmsprop_epsilon=1e-5,
            max_gradient_norm=0.5,
            initialisation="orthogonal",
        ),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=3),
            "laptop": Budget(env_steps=500_000, num_seeds=3),
            "paper": Budget(env_steps=500_000, num_seeds=5),
        },
        judged_by=None,
        cores_per_run=2,
        departures=("no source: settings chosen here, on CartPole-v1",),
    )
    presets: dict[tuple[str, str], Preset[Config]] = {}
    for suite in ("atari-7", "atari"):
        presets[suite, "paper"], presets[suite, "cleanba"] = paper, cleanba
    presets["atari-7", "rllib_2018"] = rllib
    presets["classic", "paper"] = classic
    return presets


PRESETS = _presets()


class VTraceReturns(NamedTuple):
    """V-trace targets and advantages; no gradient flows through them."""

    vs: Float[Tensor, "..."]
    """Targets of the values, `[T, N, ...]`."""
    pg_advantages: Float[Tensor, "..."]
    """Weights of the policy gradient, `[T, N, ...]`."""


class VTraceFromLogitsReturns(NamedTuple):
    """V-trace targets and advantages, and the log-probabilities they came from, `[T, N, ...]`."""

    vs: Float[Tensor, "..."]
    """Targets of the values; no gradient."""
    pg_advantages: Float[Tensor, "..."]
    """Weights of the policy gradient; no gradient."""
    log_rhos: Float[Tensor, "..."]
    """Log importance weights, target minus behaviour; differentiable."""
    behaviour_action_log_probs: Float[Tensor, "..."]
    """Of the actions taken, by the policy that took them; nats."""
    target_action_log_probs: Float[Tensor, "..."]
    """Of the actions taken, by the policy that learns; differentiable, nats."""


@torch.no_grad()
def vtrace_from_importance_weights(
    log_rhos: Float[Tensor, "..."],
    discounts: Float[Tensor, "..."],
    rewards: Float[Tensor, "..."],
    values: Float[Tensor, "..."],
    bootstrap_value: Float[Tensor, "..."],
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    clip_c_threshold: float | None = 1.0,
    lambda_: float = 1.0,
    trace_mask: Tensor | None = None,
) -> VTraceReturns:
    """V-trace targets and policy-gradient advantages (Section 4.1, Eq. 1; Section 4.2).

    All arguments but the bootstrap value are `[T, N]` or `[T, N, ...]`. For continuous actions,
    sum the log-probabilities of their dimensions before subtracting.

    Args:
        log_rhos: log pi(a|s) - log mu(a|s) of the actions taken, target minus behaviour, nats.
        discounts: gamma, or 0 where no value follows.
        rewards: as learned from.
        values: V of the observation acted on.
        bootstrap_value: V of the observation after the last step, `[N, ...]`.
        clip_rho_threshold: rho bar; None: no clip.
        clip_pg_rho_threshold: the same in the advantages; None: no clip.
        clip_c_threshold: c bar; None: no clip.
        lambda_: factor on the c_i (Remark 2).
        trace_mask: 1 (or True) where the trace passes from t + 1 to t; 0 at an end, where target
            and advantage take `values[t + 1]` alone: at a truncation that is the value of the last
            observation, beside an ignored action. None: 1 everywhere.

    Returns:
        the targets and advantages, detached.

    Raises:
        ValueError: for a wrong rank, shape, threshold or `lambda_`, naming the argument.
    """
    arguments = {"discounts": discounts, "rewards": rewards, "values": values}
    if trace_mask is not None:
        arguments["trace_mask"] = trace_mask
    _check_shapes(log_rhos, arguments, bootstrap_value)
    thresholds = (clip_rho_threshold, clip_pg_rho_threshold, clip_c_threshold)
    _check_settings(*thresholds, lambda_)
    rhos = log_rhos.exp()
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    errors = torch.addcmul(rewards - values, discounts, next_values)
    errors = errors * _clip(rhos, clip_rho_threshold)  # delta_t V
    decays = lambda_ * discounts * _clip(rhos, clip_c_threshold)  # gamma c_t
    if trace_mask is not None:
        decays = decays * trace_mask
    sums = [errors[-1]]
    for error, decay in zip(errors.unbind(0)[-2::-1], decays.unbind(0)[-2::-1], strict=True):
        sums.append(torch.addcmul(error, decay, sums[-1]))
    vs = values + torch.stack(sums[::-1])
    next_vs = torch.cat([vs[1:], bootstrap_value.unsqueeze(0)])
    if trace_mask is not None:
        next_vs = torch.where(trace_mask.bool(), next_vs, next_values)
    advantages = torch.addcmul(rewards - values, discounts, next_vs)
    return VTraceReturns(vs, advantages * _clip(rhos, clip_pg_rho_threshold))


def _clip(rhos: Float[Tensor, "..."], threshold: float | None) -> Float[Tensor, "..."]:
    """Return importance weights, none above the threshold."""
    return rhos if threshold is None else rhos.clamp(max=threshold)


def _check_shapes(
    log_rhos: Tensor, arguments: Mapping[str, Tensor], bootstrap_value: Tensor
) -> None:
    """Raise a ValueError that names the first argument of a wrong rank or shape."""
    if log_rhos.dim() < 2 or not log_rhos.shape[0]:
        raise ValueError(f"log_rhos must be [T, N, ...] with T > 0, not {[*log_rhos.shape]}")
    for name, argument in arguments.items():
        _check_shape(name, argument, log_rhos.shape)
    _check_shape("bootstrap_value", bootstrap_value, log_rhos.shape[1:])


def _check_settings(
    clip_rho_threshold: float | None,
    clip_pg_rho_threshold: float | None,
    clip_c_threshold: float | None,
    lambda_: float,
) -> None:
    """Raise a ValueError that names a threshold or `lambda_` outside its range, and the number."""
    for name, threshold in (
        ("clip_rho_threshold", clip_rho_threshold),
        ("clip_pg_rho_threshold", clip_pg_rho_threshold),
        ("clip_c_threshold", clip_c_threshold),
    ):
        require(threshold is None or threshold > 0, f"{name} must be above 0", threshold)
    require(0 <= lambda_ <= 1, "lambda_ must be in [0, 1]", lambda_)


def _check_shape(name: str, argument: Tensor, shape: Sequence[int]) -> None:
    """Raise a ValueError that names an argument of another rank or shape."""
    if argument.dim() != len(shape):
        raise ValueError(f"{name} must have rank {len(shape)}, not {argument.dim()}")
    if argument.shape != tuple(shape):
        raise ValueError(f"{name} must have the shape {[*shape]}, not {[*argument.shape]}")


def vtrace_from_logits(
    behaviour_policy_logits: Float[Tensor, "..."],
    target_policy_logits: Float[Tensor, "..."],
    actions: Tensor,
    discounts: Float[Tensor, "..."],
    rewards: Float[Tensor, "..."],
    values: Float[Tensor, "..."],
    bootstrap_value: Float[Tensor, "..."],
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    clip_c_threshold: float | None = 1.0,
    lambda_: float = 1.0,
    trace_mask: Tensor | None = None,
) -> VTraceFromLogitsReturns:
    """V-trace for categorical policies; see `vtrace_from_importance_weights`.

    Args:
        behaviour_policy_logits: of the policy that acted, `[T, N, ..., A]`.
        target_policy_logits: of the policy that learns, `[T, N, ..., A]`.
        actions: numbers of the actions taken, `[T, N, ...]` int64.
        discounts: gamma, or 0 where no value follows.
        rewards: as learned from.
        values: V of the observation acted on.
        bootstrap_value: V of the observation after the last step, `[N, ...]`.
        clip_rho_threshold: rho bar; None: no clip.
        clip_pg_rho_threshold: the same in the advantages; None: no clip.
        clip_c_threshold: c bar; None: no clip.
        lambda_: factor on the c_i.
        trace_mask: 1 where the trace passes from t + 1 to t; None: everywhere.

    Returns:
        targets and advantages, detached, and the log-probabilities, which are not.

    Raises:
        ValueError: for a wrong rank, shape, type, threshold or `lambda_`, naming the argument.
    """
    logits = behaviour_policy_logits
    if logits.dim() < 3:
        raise ValueError(f"behaviour_policy_logits must be [T, N, ..., A], not {[*logits.shape]}")
    _check_shape("target_policy_logits", target_policy_logits, logits.shape)
    _check_shape("actions", actions, logits.shape[:-1])
    if actions.is_floating_point():
        raise ValueError(f"actions must be integers, not {actions.dtype}")
    taken = actions.long().flatten(1)  # [T, N * ...]
    behaviour_log_probs, target_log_probs = (
        categorical(logits.flatten(1, -2), taken)[0].view(actions.shape)
        for logits in (behaviour_policy_logits, target_policy_logits)
    )
    log_rhos = target_log_probs - behaviour_log_probs
    vs, pg_advantages = vtrace_from_importance_weights(
        log_rhos,
        discounts,
        rewards,
        values,
        bootstrap_value,
        clip_rho_threshold,
        clip_pg_rho_threshold,
        clip_c_threshold,
        lambda_,
        trace_mask,
    )
    return VTraceFromLogitsReturns(
        vs, pg_advantages, log_rhos, behaviour_log_probs, target_log_probs
    )


# Same in: a2c.py
def categorical(
    logits: Float[Tensor, "T N A"], actions: Int[Tensor, "T N"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a categorical policy, nats."""
    log_probs = torch.log_softmax(logits, -1)
    taken = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return taken, -(log_probs.exp() * log_probs).sum(-1)


# Same in: a2c.py
def gaussian(
    means: Float[Tensor, "T N A"], log_stds: Float[Tensor, " A"], actions: Float[Tensor, "T N A"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a diagonal Gaussian policy, nats."""
    standardised = (actions - means) * torch.exp(-log_stds)
    dimensions, log_det = means.shape[-1], log_stds.sum()
    half_log_2_pi = 0.5 * math.log(2 * math.pi)
    log_probs = -0.5 * standardised.square().sum(-1) - log_det - dimensions * half_log_2_pi
    entropies = (log_det + dimensions * (0.5 + half_log_2_pi)).expand_as(log_probs)
    return log_probs, entropies


class Losses(NamedTuple):
    """The parts of the loss, each a sum over rows with their weights."""

    policy: Float[Tensor, ""]
    """Minus log pi(a|s) times the advantage."""
    value: Float[Tensor, ""]
    """Half the squared error of the value."""
    entropy: Float[Tensor, ""]
    """Entropy of the policy, nats; enters with a minus."""

    def total(self, config: Config) -> Tensor:
        """Return what is minimised."""
        return self.policy + config.value_coef * self.value - config.entropy_coef * self.entropy


def losses(
    log_probs: Float[Tensor, "T N"],
    entropies: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    returns: VTraceReturns,
    weights: Float[Tensor, "T N"],
) -> Losses:
    """Policy, value and entropy losses (Section 4.2).

    Args:
        log_probs: of the actions taken, by the policy that learns.
        entropies: of that policy at each observation.
        values: of each observation.
        returns: V-trace targets and advantages.
        weights: 1, or 1 over the number of valid rows; 0 for rows that are no transitions.
    """
    return Losses(
        policy=-(log_probs * (returns.pg_advantages * weights)).sum(),
        value=0.5 * ((values - returns.vs).square() * weights).sum(),
        entropy=(entropies * weights).sum(),
    )


# Same in: a2c.py
def orthogonal(
    generator: np.random.Generator, fan_in: int, fan_out: int, gain: float
) -> np.ndarray:
    """Draw weights `[fan_in, fan_out]`, float32, uniform over matrices with orthonormal columns.

    Where there are more columns than rows, the rows are orthonormal. `gain` multiplies them.
    """
    tall = generator.standard_normal((max(fan_in, fan_out), min(fan_in, fan_out)))
    columns, triangle = np.linalg.qr(tall)
    columns *= np.sign(np.diag(triangle))  # uniform over orthogonal matrices (Mezzadri 2007)
    return (gain * (columns if fan_in >= fan_out else columns.T)).astype(np.float32)


def initial_weight(
    generator: np.random.Generator, shape: Sequence[int], config: Config, gain: float
) -> Tensor:
    """Draw a kernel `[out, in, K, K]` in channels-last memory, or a matrix `[in, out]`, float32."""
    kernel, scheme = len(shape) == 4, config.initialisation
    area = shape[2] * shape[3] if kernel else 1
    fan_in, outputs = (shape[1] * area, shape[0]) if kernel else (shape[0], shape[1])
    if scheme == "glorot_uniform":
        bound = math.sqrt(6 / (fan_in + outputs * area))
        matrix = generator.uniform(-bound, bound, (fan_in, outputs))
    elif scheme == "truncated_normal" or (scheme == "cleanba" and kernel):
        matrix = generator.standard_normal((fan_in, outputs))
        while (far := np.abs(matrix) > 2).any():
            matrix[far] = generator.standard_normal(np.count_nonzero(far))
        matrix /= math.sqrt(fan_in)
        if kernel and scheme == "cleanba":  # flax makes up for the cut
            matrix /= 0.87962566103423978
    else:
        matrix = orthogonal(generator, fan_in, outputs, gain)
    weight = torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))
    if not kernel:
        return weight
    # channels last: faster on a CPU, and the order of the rows of `fan_in` does not matter
    return weight.T.reshape(*shape).contiguous(memory_format=torch.channels_last)


class Trunk(nn.Module):
    """Convolutions (for frames only), then linear layers, the last of which gives every head.

    Args:
        config: the run's settings.
        obs_shape: of one observation; three axes are frames `[C, H, W]`.
        heads: widths and gains of the outputs, which share the last layer.
        generator: the seed's stream of initial weights.
    """

    def __init__(
        self,
        config: Config,
        obs_shape: Sequence[int],
        heads: Sequence[tuple[int, float]],
        generator: np.random.Generator,
    ) -> None:
        super().__init__()
        self.kernels, self.kernel_biases = nn.ParameterList(), nn.ParameterList()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self._activation = torch.tanh if config.activation == "tanh" else torch.relu
        self._convolve: Callable[[Tensor], Tensor] | None = None
        sizes = [math.prod(obs_shape), *config.hidden_sizes]
        if len(obs_shape) == 3:
            channels, height, width = obs_shape
            deep = config.convolutions == "deep"
            add = self._add_deep if deep else self._add_plain
            shape, units = add(config, channels, [height, width], generator)
            self._convolve = self._deep if deep else self._plain
            sizes, self._activation = [math.prod(shape), units], torch.relu
        for fan_in, fan_out in pairwise(sizes):
            weight = initial_weight(generator, (fan_in, fan_out), config, config.hidden_gain)
            self.weights.append(weight)
            self.biases.append(torch.zeros(fan_out))
        outputs = [initial_weight(generator, (sizes[-1], w), config, gain) for w, gain in heads]
        self.weights.append(torch.cat(outputs, 1))
        self.biases.append(torch.zeros(sum(width for width, _ in heads)))
        # a ParameterList costs microseconds an access
        self._kernels = list(zip(self.kernels, self.kernel_biases, strict=True))
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, "B O"]:
        """Return all heads' outputs for a batch of prepared observations."""
        hidden = (obs if self._convolve is None else self._convolve(obs)).flatten(1)
        for weight, bias in self._layers[:-1]:
            hidden = self._activation(affine(bias, hidden, weight))
        weight, bias = self._layers[-1]
        return affine(bias, hidden, weight)

    def _add_kernel(
        self, config: Config, shape: Sequence[int], generator: np.random.Generator
    ) -> None:
        self.kernels.append(initial_weight(generator, shape, config, config.hidden_gain))
        self.kernel_biases.append(torch.zeros(shape[0]))

    def _add_plain(
        self, config: Config, channels: int, space: list[int], generator: np.random.Generator
    ) -> tuple[Sequence[int], int]:
        """Draw the plain layers; return the shape of their output and the width after them."""
        layers, units = CONVOLUTIONS[config.convolutions]
        self._strides, self._padding = [stride for _, _, stride in layers], list[list[int]]()
        for filters, size, stride in layers:
            self._add_kernel(config, (filters, channels, size, size), generator)
            padded = [0] * 4
            if config.convolutions == "rllib":  # TensorFlow's "same": the odd one at the end
                missing = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in space[::-1]]
                padded = [part for n in missing for part in (n // 2, n - n // 2)]
            self._padding.append(padded)
            padding = (padded[2] + padded[3], padded[0] + padded[1])
            space = [(n + p - size) // stride + 1 for n, p in zip(space, padding, strict=True)]
            channels = filters
        return (channels, *space), units

    def _plain(self, hidden: Tensor) -> Tensor:
        layers = zip(self._kernels, self._strides, self._padding, strict=True)
        for (weight, bias), stride, padding in layers:
            padded = F.pad(hidden, padding) if any(padding) else hidden
            hidden = F.conv2d(padded, weight, bias, stride).relu_()
        return hidden

    def _add_deep(
        self, config: Config, channels: int, space: list[int], generator: np.random.Generator
    ) -> tuple[Sequence[int], int]:
        """Draw the residual layers; return the shape of their output and the width after them."""
        for filters in DEEP_CHANNELS:
            for inputs in (channels, *[filters] * 4):
                self._add_kernel(config, (filters, inputs, 3, 3), generator)
            space = [-(-n // 2) for n in space]
            channels = filters
        return (channels, *space), DEEP_WIDTH

    def _deep(self, hidden: Tensor) -> Tensor:
        """Figure 3, right: three sections of a convolution, a pool and two residual blocks."""
        kernels = iter(self._kernels)
        for _ in DEEP_CHANNELS:
            weight, bias = next(kernels)
            hidden = F.conv2d(hidden, weight, bias, padding=1)
            # TensorFlow's "same" padding: none before an even size
            hidden = F.max_pool2d(hidden, 3, 2, padding=hidden.shape[-1] % 2, ceil_mode=True)
            for _ in range(2):
                weight, bias = next(kernels)
                inner = F.conv2d(torch.relu(hidden), weight, bias, padding=1)
                weight, bias = next(kernels)
                hidden = hidden + F.conv2d(inner.relu_(), weight, bias, padding=1)
        return torch.relu(hidden)


class ActorCritic(nn.Module):
    """Policy and value: one trunk with two heads.

    Args:
        config: the run's settings.
        spaces: of the environment; log deviations of continuous actions are weights as well.
        generator: the seed's stream of initial weights.
    """

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__()
        self.num_outputs = spaces.num_outputs
        heads = [(spaces.num_outputs, config.policy_head_gain), (1, config.value_head_gain)]
        self.actor = Trunk(config, spaces.obs_shape, heads, generator)
        self.log_stds: Tensor | None = None
        if spaces.continuous:
            initial = torch.full((spaces.num_outputs,), config.initial_log_std)
            self.log_stds = nn.Parameter(initial)

    def forward(
        self, obs: Float[Tensor, "B ..."]
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Return logits (or means of continuous actions) and values."""
        outputs = self.actor(obs)
        return outputs[:, :-1], outputs[:, -1]


def evaluate_actions(
    outputs: Float[Tensor, "T N A"], log_stds: Tensor | None, actions: Tensor
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s), summed over dimensions, and the entropies of either kind of policy."""
    if log_stds is None:
        return categorical(outputs, actions)
    return gaussian(outputs, log_stds, actions)


def choose(outputs: Float[Tensor, "B A"], log_stds: Tensor | None, noise: Tensor | None) -> Tensor:
    """Return actions, `[B]` or `[B, A]`: drawn with the noise of `draw_noise`, or the modes."""
    if log_stds is None:  # the largest of logits plus Gumbel noise is a draw
        return (outputs if noise is None else outputs + noise).argmax(-1)
    return outputs if noise is None else torch.addcmul(outputs, log_stds.exp(), noise)


# Same in: a2c.py
def draw_noise(
    generator: np.random.Generator, network: ActorCritic, shape: Sequence[int]
) -> Float[Tensor, "..."]:
    """Return what drawing actions needs, of shape `[..., A]`, on the network's device."""
    if network.log_stds is None:
        noise = torch.from_numpy(generator.gumbel(size=tuple(shape)).astype(np.float32))
    else:
        noise = torch.from_numpy(generator.standard_normal(tuple(shape), dtype=np.float32))
    return noise.to(network.actor.weights[0].device)


# Same in: a2c.py
class RMSprop:
    """RMSprop in two published forms, on all weights as one vector.

    The TensorFlow form divides by the root of (average + epsilon), where the average of squared
    gradients starts at 1; torch's by epsilon plus the root, where it starts at 0.

    Args:
        module: its parameters become views of one vector, `parameters`.
        config: the run's settings.
    """

    def __init__(self, module: nn.Module, config: Config) -> None:
        self._config = config
        self._inside = config.rmsprop_form == "tensorflow"
        self._tensors = list(module.parameters())
        self.parameters = _joined([tensor.detach() for tensor in self._tensors])
        self.square_averages = torch.full_like(self.parameters, float(self._inside))
        self._divisor = torch.empty_like(self.parameters)
        parts = self.parameters.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            if tensor.dim() == 4:  # in the order of channels-last memory, as `_joined` puts it
                outputs, inputs, height, width = tensor.shape
                tensor.data = part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
            else:
                tensor.data = part.view(tensor.shape)

    def gradient(self, loss: Tensor) -> Float[Tensor, " P"]:
        """Return the gradient of `loss` as one vector."""
        return _joined(torch.autograd.grad(loss, self._tensors))

    def step(self, gradient: Float[Tensor, " P"], learning_rate: float) -> Float[Tensor, ""]:
        """Clip the gradient in place, make one step along it, and return its norm before."""
        config, averages = self._config, self.square_averages
        norm = torch.linalg.vector_norm(gradient)
        if config.max_gradient_norm is not None:
            gradient.mul_((config.max_gradient_norm / norm).clamp_(max=1.0))
        averages.mul_(config.rmsprop_decay)
        averages.addcmul_(gradient, gradient, value=1 - config.rmsprop_decay)
        if self._inside:
            torch.add(averages, config.rmsprop_epsilon, out=self._divisor).sqrt_()
        else:
            torch.sqrt(averages, out=self._divisor).add_(config.rmsprop_epsilon)
        self.parameters.addcdiv_(gradient, self._divisor, value=-learning_rate)
        return norm


class Adam(RMSprop):
    """Adam (arXiv:1412.6980) on all weights as one vector, with its authors' constants."""

    def __init__(self, module: nn.Module, config: Config) -> None:
        super().__init__(module, config)
        self._averages, self._num_steps = torch.zeros_like(self.parameters), 0
        self.square_averages.zero_()

    def step(self, gradient: Float[Tensor, " P"], learning_rate: float) -> Float[Tensor, ""]:
        """Clip the gradient, make one step along it, and return its norm before clipping."""
        norm = torch.linalg.vector_norm(gradient)
        if self._config.max_gradient_norm is not None:
            gradient.mul_((self._config.max_gradient_norm / norm).clamp_(max=1.0))
        self._num_steps += 1
        self._averages.lerp_(gradient, 0.1)
        self.square_averages.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        unbiased = math.sqrt(1 - 0.999**self._num_steps)
        torch.sqrt(self.square_averages, out=self._divisor).div_(unbiased).add_(1e-8)
        step_size = learning_rate / (1 - 0.9**self._num_steps)
        self.parameters.addcdiv_(self._averages, self._divisor, value=-step_size)
        return norm


# Same in: a2c.py
def _joined(tensors: Sequence[Tensor]) -> Float[Tensor, " P"]:
    """Return tensors as one vector, convolution kernels in the order of channels-last memory."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


class Unroll:
    """T steps of N environments, time-major, with the observation after them; see `collect`.

    Args:
        config: the run's settings.
        spaces: of the environment.
        device: where the network is.
    """

    def __init__(self, config: Config, spaces: Spaces, device: torch.device) -> None:
        steps, num_envs = config.unroll_length, config.num_envs
        self._config, self._device = config, device
        self._frame_factor = 1 / config.frame_divisor
        self.obs = torch.empty(steps + 1, num_envs, *spaces.obs_shape, device=device)
        if len(spaces.obs_shape) == 3:  # channels-last memory, as the kernels have it
            channels, height, width = spaces.obs_shape
            rows = torch.empty(steps + 1, num_envs, height, width, channels, device=device)
            self.obs = rows.permute(0, 1, 4, 2, 3)
        kind = torch.float32 if spaces.continuous else torch.int64
        size = (spaces.num_outputs,) if spaces.continuous else ()
        self.actions = torch.empty(steps, num_envs, *size, dtype=kind, device=device)
        self.outputs = torch.empty(steps, num_envs, spaces.num_outputs, device=device)
        self.log_stds: Tensor | None = None
        self.rewards = np.zeros((steps, num_envs), dtype=np.float32)
        self.terminations, self.truncations, self.valid = np.zeros((3, steps, num_envs), dtype=bool)
        self.version = self.first_env_steps = self.env_steps = 0
        """Unrolls learned by the policy that acted; environment steps before and after."""
        self.ends: list[tuple[int, Step]] = []
        """Steps in which an episode ended, with the environment steps until then."""
        self.seconds: dict[str, float] = {}
        """How long the actor waited, acted and stepped the simulator."""

    def put_obs(self, t: int, obs: np.ndarray) -> Tensor:
        """Store observations `[N, *obs]` at `t` and return them as the network reads them."""
        row = self.obs[t]
        if obs.dtype == np.uint8:  # converted once, on the device
            torch.mul(torch.from_numpy(obs).to(self._device), self._frame_factor, out=row)
        else:
            row.copy_(torch.from_numpy(obs))
        return row

    def transitions(self) -> "Transitions":
        """Return what the updates need, on the device."""
        cut = self.terminations | self.truncations
        ends = cut if self._config.time_limit_is_terminal else self.terminations
        columns = np.stack(
            [self.rewards, self._config.gamma * ~ends, ~cut, self.valid],
            dtype=np.float32,
            casting="unsafe",
        )
        rewards, discounts, trace_mask, valid = torch.from_numpy(columns).to(self._device)
        log_probs, _ = evaluate_actions(self.outputs, self.log_stds, self.actions)
        return Transitions(self.obs, self.actions, log_probs, rewards, discounts, trace_mask, valid)


class Transitions(NamedTuple):
    """One unroll as the updates read it."""

    obs: Tensor  # [T + 1, N, *obs]
    actions: Tensor  # [T, N] or [T, N, A]
    behaviour_log_probs: Tensor  # [T, N]
    rewards: Tensor  # [T, N]
    discounts: Tensor  # [T, N]
    trace_mask: Tensor  # [T, N]
    valid: Tensor  # [T, N], 1 or 0

    def minibatches(self, number: int) -> list["Transitions"]:
        """Return as many shares of the environments, in their order."""
        chunks = [column.chunk(number, dim=1) for column in self]
        return [Transitions(*columns) for columns in zip(*chunks, strict=True)]


@dataclass
class Learner:
    """All that learns, for one seed."""

    network: ActorCritic
    optimiser: RMSprop


def make_network(config: Config, spaces: Spaces, device: torch.device) -> ActorCritic:
    """Draw the initial network of the only seed of `config` from its own stream."""
    (seed,) = config.seeds
    return ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Return the initial network with its optimiser."""
    network = make_network(config, spaces, device)
    return Learner(network, (Adam if config.optimiser == "adam" else RMSprop)(network, config))


METRICS = (
    *("policy_loss", "value_loss", "entropy", "gradient_norm"),
    *("mean_rho", "max_rho", "clipped_share"),
)
MOMENTS = ("target", "residual", "squared_target", "squared_residual", "num_rows")


def update(
    learner: Learner, config: Config, batch: Transitions, learning_rate: float
) -> Float[Tensor, " M"]:
    """Make one gradient step on one minibatch of an unroll (Section 4.2).

    Args:
        learner: what learns; changed in place.
        config: the run's settings.
        batch: the minibatch.
        learning_rate: step size of this update.

    Returns:
        `METRICS` and `MOMENTS`, on the learner's device.
    """
    valid, num_rows = batch.valid, batch.valid.sum().clamp(min=1)
    outputs, values = learner.network(flatten(batch.obs))
    outputs = outputs.unflatten(0, batch.obs.shape[:2])[:-1]
    values = values.unflatten(0, batch.obs.shape[:2])  # [T + 1, N]
    log_probs, entropies = evaluate_actions(outputs, learner.network.log_stds, batch.actions)
    log_rhos = (log_probs.detach() - batch.behaviour_log_probs).where(valid > 0, 0.0)
    returns = vtrace_from_importance_weights(
        log_rhos,
        batch.discounts,
        batch.rewards,
        values[:-1].detach(),
        values[-1].detach(),
        config.clip_rho_threshold,
        config.clip_pg_rho_threshold,
        config.clip_c_threshold,
        config.trace_lambda,
        batch.trace_mask,
    )
    weights = valid / num_rows if config.loss_reduction == "mean" else valid
    parts = losses(log_probs, entropies, values[:-1], returns, weights)
    gradient = learner.optimiser.gradient(parts.total(config))
    norm = learner.optimiser.step(gradient, learning_rate)
    with torch.no_grad():
        rhos = log_rhos.exp() * valid
        bound = math.inf if config.clip_rho_threshold is None else config.clip_rho_threshold
        residuals = returns.vs - values[:-1]
        clipped = rhos > bound * (1 + 1e-4)  # more than rounding clips
        rows = torch.stack([entropies, rhos, clipped.float(), returns.vs, residuals]).double()
        rows = torch.cat([rows, rows[-2:].square()]) * valid
        entropy, mean_rho, clipped_share, *moments = (rows.sum((1, 2)) / num_rows).unbind(0)
        metrics = [parts.policy, parts.value, entropy, norm, mean_rho, rhos.max(), clipped_share]
        return torch.stack([number.double() for number in (*metrics, *moments, valid.sum())])


def flatten(obs: Float[Tensor, "T N ..."]) -> Float[Tensor, "B ..."]:
    """Join the first two axes; frames stay in channels-last memory, whole unrolls in place."""
    if obs.dim() < 5:
        return obs.flatten(0, 1)
    return obs.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)


def describe(updates: Sequence[Tensor], learning_rate: float, lag: int) -> dict[str, np.ndarray]:
    """Return the columns of `updates.csv`, `[1]` each, from the updates of a log interval."""
    table = torch.stack(list(updates)).cpu().numpy()  # [U, M], the one transfer
    columns = dict(zip((*METRICS, *MOMENTS), table.T, strict=True))
    means = {name: columns[name].mean() for name in METRICS}
    means["max_rho"] = columns["max_rho"].max()
    share = columns["num_rows"] / max(columns["num_rows"].sum(), 1.0)
    pooled = {name: float((columns[name] * share).sum()) for name in MOMENTS}
    unexplained = pooled["squared_residual"] - pooled["residual"] ** 2
    variance = pooled["squared_target"] - pooled["target"] ** 2
    means["explained_variance"] = 1 - unexplained / variance if variance > 1e-12 else 0.0
    means |= {"policy_lag": lag, "learning_rate": learning_rate}
    return {name: np.array([value]) for name, value in means.items()}


@dataclass
class Actor:
    """All that acts, for one seed; the learner touches it only while `collect` is not running."""

    network: ActorCritic
    """Its own copy of the policy."""
    env: Any
    """A `VectorEnv`."""
    generator: np.random.Generator
    """The seed's action noise."""
    obs: Tensor
    """To act on next, `[N, *obs]`: the last ones of the unroll before."""
    cuda_stream: Any = None
    """Its own queue of a GPU, so that acting does not wait for learning."""
    version: int = 0
    """Unrolls learned by `network`."""
    env_steps: int = 0
    finished_at: float = field(default_factory=time.perf_counter)

    def load(self, version: int, weights: Sequence[Tensor]) -> None:
        """Take over the policy as it was after `version` unrolls."""
        with torch.no_grad():
            for own, new in zip(self.network.parameters(), weights, strict=True):
                own.copy_(new)
        if self.cuda_stream is not None:
            torch.cuda.current_stream(self.obs.device).synchronize()
        self.version = version


@torch.no_grad()
def collect(actor: Actor, unroll: Unroll) -> None:
    """Fill an unroll; runs beside the learner and touches nothing of it."""
    started = time.perf_counter()
    acting = stepping = 0.0
    env, network = actor.env, actor.network
    unroll.version, unroll.first_env_steps, unroll.ends = actor.version, actor.env_steps, []
    unroll.log_stds = None if network.log_stds is None else network.log_stds.clone()
    steps = len(unroll.rewards)
    with nullcontext() if actor.cuda_stream is None else torch.cuda.stream(actor.cuda_stream):
        noise = draw_noise(actor.generator, network, (steps, env.num_envs, network.num_outputs))
        obs = unroll.obs[0].copy_(actor.obs)
        now = time.perf_counter()
        for t in range(steps):
            outputs, _ = network(obs)
            actions = choose(outputs, network.log_stds, noise[t])
            env.send(actions.cpu().numpy()[None])
            acting, now = acting - now + (sent := time.perf_counter()), sent
            unroll.outputs[t], unroll.actions[t] = outputs, actions  # while the simulator works
            step = env.recv()
            unroll.rewards[t], unroll.valid[t] = step.rewards[0], step.valid[0]
            unroll.terminations[t], unroll.truncations[t] = step.terminations, step.truncations
            actor.env_steps += int(np.count_nonzero(step.valid))
            if step.episode_ends.any():
                unroll.ends.append((actor.env_steps, step))
            obs = unroll.put_obs(t + 1, step.obs[0])
            stepping, now = stepping - now + (done := time.perf_counter()), done
        if actor.cuda_stream is not None:
            actor.cuda_stream.synchronize()
    actor.obs, unroll.env_steps = obs, actor.env_steps
    unroll.seconds = {"actor_idle": started - actor.finished_at, "acting": acting}
    unroll.seconds["environment"] = stepping
    actor.finished_at = time.perf_counter()


def prepare(obs: np.ndarray, config: Config, device: torch.device) -> Tensor:
    """Return observations `[B, *obs]` as the network reads them."""
    if obs.dtype == np.uint8:
        frames = torch.from_numpy(obs).to(device) * (1 / config.frame_divisor)
        return frames.contiguous(memory_format=torch.channels_last)
    return torch.from_numpy(np.asarray(obs, dtype=np.float32)).to(device)


ACTING = ("convolutions", "frame_divisor", "hidden_sizes", "activation")
"""Settings that rebuilding a policy needs, beside task and protocol."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild a policy from what `save` wrote."""
    settings = {name: description[name] for name in ("task", "protocol", *ACTING)}
    config = Config(**{**settings, "hidden_sizes": tuple(description["hidden_sizes"])})
    spaces = Spaces.from_json(description)
    network = ActorCritic(config, spaces, np.random.default_rng(0))  # every weight is replaced
    network.load_state_dict(dict(weights))

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return choose_actions(network, prepare(obs, config, torch.device("cpu")), generator)

    return Policy(find_task(config.task, config.protocol), spaces, decide)


@torch.no_grad()
def choose_actions(
    network: ActorCritic, inputs: Tensor, generator: np.random.Generator | None
) -> np.ndarray:
    """Return actions for prepared observations, drawn or the mode; continuous in [-1, 1]."""
    noise = None
    if generator is not None:
        noise = draw_noise(generator, network, (len(inputs), network.num_outputs))
    actions = choose(network(inputs)[0], network.log_stds, noise)
    return (actions if network.log_stds is None else actions.clamp(-1, 1)).cpu().numpy()


def save(config: Config, learner: Learner, spaces: Spaces, recorder: Recorder) -> None:
    """Write the policy into its run's folder, unless the run has diverged."""
    weights = {name: tensor.contiguous() for name, tensor in learner.network.state_dict().items()}
    description = {
        "agent": "impala",
        "task": config.task,
        "protocol": config.protocol,
        **{name: getattr(config, name) for name in ACTING},
        **spaces._asdict(),
    }
    for i in recorder.active:
        save_policy(recorder.seed_directories[i], weights, description)


def score(config: Config, learner: Learner, env_steps: int, device: torch.device) -> np.ndarray:
    """Return the evaluation returns at `env_steps`, `[1, episodes]`, by the run's rule."""
    (seed,) = config.seeds
    generator = None
    if config.evaluation_rule == "sampled":
        generator = stream(seed, "evaluation actions", env_steps)

    def decide(obs: np.ndarray) -> np.ndarray:
        return choose_actions(learner.network, prepare(obs[0], config, device), generator)[None]

    task = find_task(config.task, config.protocol)
    return evaluate(task, decide, [seed], env_steps, episodes=config.evaluation_episodes)


def learn(
    learner: Learner, config: Config, unroll: Unroll, learning_rate: float
) -> list[Float[Tensor, " M"]]:
    """Make every update of one unroll; return the diagnostics of each."""
    batches = unroll.transitions().minibatches(config.num_minibatches)
    return [update(learner, config, batch, learning_rate) for batch in batches]


def rate_at(config: Config, env_steps: int) -> float:
    """Return the learning rate of an unroll that began after `env_steps` steps."""
    if not config.learning_rate_decay_steps:
        return config.learning_rate
    left = 1 - env_steps / config.learning_rate_decay_steps
    return config.learning_rate * max(left, 0.0)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train the only seed of `config` to its last step; the only loop that learns.

    Returns:
        what was learned.

    Raises:
        UsageError: for a GPU that is not there.
    """
    (seed,) = config.seeds
    device = find_device(config.device)
    use_threads(config.num_threads)
    env = VectorEnv(
        find_task(config.task, config.protocol),
        environment_seeds([seed], config.num_envs, "environments"),
        num_threads=config.num_threads,
    )
    spaces = env.spaces
    learner = make_learner(config, spaces, device)
    unrolls = [Unroll(config, spaces, device) for _ in range(2 if config.policy_lag else 1)]
    actor = Actor(
        network=make_network(config, spaces, device).requires_grad_(False),
        env=env,
        generator=stream(seed, "action noise"),
        obs=unrolls[0].put_obs(0, env.reset()[0]),
        cuda_stream=torch.cuda.Stream(device) if device.type == "cuda" else None,
    )
    # Weights after 0, 1, 2, ... unrolls; the oldest of those kept acts next.
    versions: deque[tuple[int, list[Tensor]]] = deque(maxlen=max(config.policy_lag, 1))
    updates: list[Tensor] = []
    clock = recorder.clock
    clock.seconds |= {"learner_idle": 0.0, "actor_idle": 0.0}

    def renew(learned: int) -> None:
        """Give the actor the policy that is due when `learned` unrolls are."""
        versions.append((learned, [p.detach().clone() for p in learner.network.parameters()]))
        actor.load(*versions[0])

    renew(0)
    state = {"learner": learner, "stream": actor.generator, "updates": updates}
    journal = Journal(recorder, env, {**state, "versions": versions})
    first, actor.env_steps, num_updates, reward_sum = journal.resume(0, 0, 0, 0.0)
    actor.load(*versions[0])
    actor.obs = unrolls[first % len(unrolls)].put_obs(0, env.obs[0])

    with ThreadPoolExecutor(max_workers=1) as actor_thread:
        clock.start()
        collected = actor_thread.submit(collect, actor, unrolls[first % len(unrolls)])
        for k in itertools.count(first):
            collected.result()
            clock.lap("learner_idle")
            unroll, following = unrolls[k % len(unrolls)], unrolls[(k + 1) % len(unrolls)]
            env_steps = unroll.env_steps
            journal.record(unroll.actions.cpu().numpy())
            last = env_steps + config.unroll_rows > config.env_steps or not recorder.active
            # At a checkpoint the two take turns: the actor has nothing half done.
            pausing = journal.due() or not config.policy_lag
            if config.policy_lag:
                renew(k)
            if not (pausing or last):  # while the learner works on unroll k
                collected = actor_thread.submit(collect, actor, following)

            learning_rate = rate_at(config, unroll.first_env_steps)
            updates += learn(learner, config, unroll, learning_rate)
            num_updates += config.num_minibatches
            clock.lap("learning")

            reward_sum += float(unroll.rewards.sum())
            for section, seconds in unroll.seconds.items():
                clock.seconds[section] += seconds
            for steps_until, step in unroll.ends:
                recorder.episodes(steps_until, step)
            gained = env_steps - unroll.first_env_steps
            if config.evaluation_rule != "training" and (
                last or passed(config.evaluation_interval, env_steps, gained)
            ):
                recorder.evaluation(env_steps, score(config, learner, env_steps, device))
                clock.lap("evaluation")
            if last or passed(config.log_interval, env_steps, gained):
                columns = describe(updates, learning_rate, k - unroll.version)
                norm = torch.linalg.vector_norm(learner.optimiser.parameters).item()
                checks = {"reward": np.array([reward_sum]), "weight_norm": np.array([norm])}
                recorder.log(env_steps, num_updates, columns, checks)
                updates.clear()
            if last:
                break
            if not config.policy_lag:
                renew(k + 1)
            if pausing:
                if journal.due():
                    journal.save(k + 1, env_steps, num_updates, reward_sum)
                collected = actor_thread.submit(collect, actor, following)
    save(config, learner, spaces, recorder)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_each_seed("impala", train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
