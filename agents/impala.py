"""IMPALA: actor-critic with V-trace targets (Espeholt et al. 2018, arXiv:1802.01561).

N environments collect unrolls of T steps under an older copy of the policy, while the learner works
on the previous unroll; V-trace corrects for the difference between the two policies.

    python -m agents.impala --task Pong-v5 --seeds 1 --env-steps 1000000 --out runs/mine

| what                                  | paper              | here                             |
|---------------------------------------|--------------------|----------------------------------|
| V-trace targets and advantages        | Eq. 1, Section 4.2 | `vtrace_from_importance_weights` |
| policy, value and entropy losses      | Section 4.2        | `losses`                         |
| a gradient step on part of an unroll  | Section 4.2        | `update`                         |
| an unroll under an older policy       | Section 3          | `suite.collector`                |
| acting and learning side by side      | Section 3          | `train`                          |
| LSTM, last action and reward          | Figure 3           | `suite.nets.recurrence`          |

A second thread acts and steps the simulator, with buffers and weights of its own; the two threads
meet at the end of every unroll. Unroll k is collected under the weights after `k - policy_lag`
unrolls, so no result depends on which thread is faster. Acting and learning use `num_threads` each,
the simulator `env_threads` (by default as many). Seeds are trained one after another.

Deviations from the paper, and details it leaves open (the authors' code: scalable_agent@6c0c8a7):
1. Actors do not run freely: the acting policy is exactly `policy_lag` unrolls older than the
   learner's (less at the start), and an update never waits for more than one unroll.
2. The step after an episode's end only resets the simulator. Losses, traces and `env_steps` leave
   such rows out. The authors' environment resets within the step.
3. At a time limit the return bootstraps from the last observation's value, and the trace stops
   there; with `time_limit_is_terminal` no value follows, as in experiment.py:372.
4. `trace_lambda` multiplies the c_i alone (Remark 2), not the advantage's bootstrap.
5. An update uses the learning rate of the step at which its unroll began (as the authors' does).
6. A run ends before the unroll that could exceed `env_steps`.
7. As in the authors' code: truncated normal weights (Sonnet's) and TensorFlow's RMSprop with decay
   0.99 (experiment.py:88, 401). Losses are sums over rows, as in the paper (Table D.1).
8. The environment clips continuous actions; their density is that of the unclipped draw.
9. An LSTM's state, last action and last reward are 0 when an episode begins; the authors' code
   zeroes the state alone (experiment.py:219-221). The learner starts from the memory with which the
   acting policy began the unroll.
"""

import copy
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.actor_critic import categorical, log_probs_and_entropies
from suite.base.errors import check_shape, require
from suite.base.hardware import worker_thread
from suite.base.randomness import stream
from suite.collector import Collector, Experience
from suite.envs.tasks import Protocol
from suite.envs.vector_env import Spaces
from suite.nets.moments import RunningMoments
from suite.nets.networks import FrameLayers, Trunk
from suite.nets.optimisers import Adam, FlatWeights, Optimiser, RMSprop
from suite.player import Player, PolicyNetwork, rebuild
from suite.record.recorder import Recorder
from suite.session import train_in_turn
from suite.settings.command_line import run_main
from suite.settings.config import (
    Count,
    Environments,
    Fraction,
    LogStd,
    NotNegative,
    Positive,
    Rate,
    RMSpropConfig,
    Whole,
)
from suite.settings.presets import Presets
from suite.unroll_session import UnrollSession, diagnostics
from suite.unrolls import UnrollBatch

BEHAVIOUR = 5  # goes up when the bytes of a run change: see CONTRIBUTING.md


class VTraceReturns(NamedTuple):
    """V-trace targets and advantages, `[T, N, ...]`; no gradient flows through them."""

    vs: Float[Tensor, "..."]  # targets of the values
    pg_advantages: Float[Tensor, "..."]  # weights of the policy gradient


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
    """Return V-trace targets and advantages, detached (Section 4.1, Eq. 1; Section 4.2).

    v_s = V_s + sum_t gamma^(t - s) c_s ... c_(t-1) delta_t over the steps t from s on, where
    delta_t = rho_t (r_t + gamma V_(t+1) - V_t); rho and c are the clipped ratios pi / mu.

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
            and advantage bootstrap from `values[t + 1]`: after a truncation row t + 1 holds the
            episode's last observation, with an ignored action. None: 1 everywhere.

    Raises:
        ValueError: for a wrong rank, shape, threshold or `lambda_`, naming the argument.
    """
    columns = {"discounts": discounts, "rewards": rewards, "values": values}
    _check_shapes(log_rhos, bootstrap_value, **columns, trace_mask=trace_mask)
    require(0 <= lambda_ <= 1, "lambda_ must be in [0, 1]", lambda_)
    rhos = log_rhos.exp()
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    errors = torch.addcmul(rewards - values, discounts, next_values)
    errors = errors * _clip(rhos, clip_rho_threshold, "clip_rho_threshold")  # delta_t V
    decays = lambda_ * discounts * _clip(rhos, clip_c_threshold, "clip_c_threshold")  # gamma c_t
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
    return VTraceReturns(
        vs, advantages * _clip(rhos, clip_pg_rho_threshold, "clip_pg_rho_threshold")
    )


def _check_shapes(log_rhos: Tensor, bootstrap_value: Tensor, **columns: Tensor | None) -> None:
    """Raise a ValueError, naming the argument, unless all shapes are those of V-trace."""
    if log_rhos.dim() < 2 or not log_rhos.shape[0]:
        raise ValueError(f"log_rhos must be [T, N, ...] with T > 0, not {[*log_rhos.shape]}")
    for name, column in columns.items():
        if column is not None:
            check_shape(name, column, log_rhos.shape)
    check_shape("bootstrap_value", bootstrap_value, log_rhos.shape[1:])


def _clip(rhos: Float[Tensor, "..."], threshold: float | None, name: str) -> Float[Tensor, "..."]:
    """Return importance weights clipped to the threshold, which must be above 0."""
    require(threshold is None or threshold > 0, f"{name} must be above 0", threshold)
    return rhos if threshold is None else rhos.clamp(max=threshold)


def losses(
    log_probs: Float[Tensor, "T N"],
    entropies: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    returns: VTraceReturns,
    weights: Float[Tensor, "T N"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Return policy loss, half the squared error of V, entropy in nats (Section 4.2).

    Args:
        log_probs: of the actions taken, by the policy that learns.
        entropies: of that policy at each observation.
        values: of each observation.
        returns: V-trace targets and advantages.
        weights: 1, or 1 over the number of valid rows; 0 for invalid rows.
    """
    policy_loss = -(log_probs * (returns.pg_advantages * weights)).sum()
    value_loss = 0.5 * ((values - returns.vs).square() * weights).sum()
    return policy_loss, value_loss, (entropies * weights).sum()


class VTraceFromLogitsReturns(NamedTuple):
    """V-trace targets and advantages, and the log-probabilities they came from, `[T, N, ...]`."""

    vs: Float[Tensor, "..."]  # no gradient
    pg_advantages: Float[Tensor, "..."]  # no gradient
    log_rhos: Float[Tensor, "..."]  # target minus behaviour; differentiable
    behaviour_action_log_probs: Float[Tensor, "..."]  # nats
    target_action_log_probs: Float[Tensor, "..."]  # nats; differentiable


def vtrace_from_logits(
    behaviour_policy_logits: Float[Tensor, "..."],
    target_policy_logits: Float[Tensor, "..."],
    actions: Tensor,
    *arguments: Any,
    **settings: Any,
) -> VTraceFromLogitsReturns:
    """Return V-trace targets and advantages for categorical policies.

    Args:
        behaviour_policy_logits: of the policy that acted, `[T, N, ..., A]`.
        target_policy_logits: of the policy that learns, `[T, N, ..., A]`.
        actions: numbers of the actions taken, `[T, N, ...]` int64.
        arguments: those of `vtrace_from_importance_weights` after `log_rhos`.
        settings: the same by name.

    Returns:
        targets and advantages, detached, and the log-probabilities, which are not.

    Raises:
        ValueError: for a wrong rank, shape, type, threshold or `lambda_`, naming the argument.
    """
    logits = behaviour_policy_logits
    if logits.dim() < 3:
        raise ValueError(f"behaviour_policy_logits must be [T, N, ..., A], not {[*logits.shape]}")
    check_shape("target_policy_logits", target_policy_logits, logits.shape)
    check_shape("actions", actions, logits.shape[:-1])
    if actions.is_floating_point():
        raise ValueError(f"actions must be integers, not {actions.dtype}")
    taken = actions.long().flatten(1)  # [T, N * ...]
    behaviour_log_probs, target_log_probs = (
        categorical(logits.flatten(1, -2), taken)[0].view(actions.shape)
        for logits in (behaviour_policy_logits, target_policy_logits)
    )
    log_rhos = target_log_probs - behaviour_log_probs
    returns = vtrace_from_importance_weights(log_rhos, *arguments, **settings)
    return VTraceFromLogitsReturns(*returns, log_rhos, behaviour_log_probs, target_log_probs)


@dataclass(frozen=True, kw_only=True)
class Config(RMSpropConfig):
    """Settings beside `RMSpropConfig`'s; the paper's for Atari, where it has any (Table G.1)."""

    task: str = "Pong-v5"
    """Name of a task."""
    protocol: Protocol = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 50_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    num_envs: Environments = 32
    """Environments, N."""
    unroll_length: Count = 20
    """Steps of every environment between two meetings of collector and learner, T."""
    num_minibatches: Count = 1
    """Updates per unroll, each on its share of the environments."""
    drop_last_row: bool = False
    """Learn from all rows of an unroll but the last, whose value is the bootstrap (RLlib)."""
    policy_lag: Whole = 1
    """Unrolls by which the acting policy is behind the learner's; 0: take turns, no overlap."""
    clip_rho_threshold: Positive | None = 1.0
    """Clip of the importance weights in the temporal differences, rho bar; None: no clip."""
    clip_c_threshold: Positive | None = 1.0
    """The same in the trace, c bar (the paper: at most rho bar); None: no clip."""
    clip_pg_rho_threshold: Positive | None = 1.0
    """The same in the policy gradient (the paper: rho bar); None: no clip."""
    trace_lambda: Fraction = 1.0
    """Factor on the trace's weights, lambda (Remark 2)."""
    value_coef: NotNegative = 0.5
    """Weight of half the squared error of the values."""
    entropy_coef: NotNegative = 0.01
    """Weight of the policy's entropy, nats."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Whether losses are summed over an update's valid rows, or averaged."""
    optimiser: Literal["rmsprop", "adam"] = "rmsprop"
    """`adam` has decays 0.9 and 0.999 and epsilon 1e-8 outside the root."""
    learning_rate: Rate = 6e-4
    """Step size at the start."""
    learning_rate_decay_steps: Whole = 50_000_000
    """Environment steps after which the rate is 0, whatever `env_steps` is; it falls linearly until
    then. 0: constant."""
    rmsprop_epsilon: Positive = 0.01
    """Keeps the step finite where gradients are small."""
    max_gradient_norm: Positive | None = 40.0
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    convolutions: Literal["shallow", "deep", "nature", "rllib", "rllib_42"] = "shallow"
    """Layers for uint8 frames: the paper's shallow or deep (residual) ones, DQN's, or RLlib's for
    frames of 84 x 84 and of 42 x 42."""
    lstm_size: Whole = 0
    """Units of an LSTM before the heads (the authors' code: 256); 0: none, as in Appendix G."""
    frame_divisor: Positive = 255.0
    """Divisor of frames before the first layer; 1 leaves them in 0 to 255."""
    initialisation: Literal["truncated_normal", "orthogonal", "cleanba", "glorot_uniform"] = (
        "truncated_normal"
    )
    """Initial weights; biases start at 0, gains are for orthogonal ones. `truncated_normal`: before
    the cut the deviation is fan_in^-1/2; `cleanba`: kernels are flax's, all else is orthogonal."""
    value_head_gain: Positive = 1.0
    """Gain of the value's head where weights are orthogonal."""
    initial_log_std: LogStd = 0.0
    """Log standard deviation of continuous actions in [-1, 1] at the start; one per dimension."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "training"
    """Evaluate actions drawn from the policy, or its mode; `training`: score training episodes."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `RMSpropConfig`."""
        super().__post_init__()
        rule = f"num_minibatches must divide num_envs = {self.num_envs}"
        require(self.num_envs % self.num_minibatches == 0, rule, self.num_minibatches)
        rule = "with drop_last_row unroll_length must be at least 2"
        require(self.unroll_length > self.drop_last_row, rule, self.unroll_length)


PRESETS = Presets("impala", Config)  # a source's settings replace the defaults


FRAME_LAYERS = {
    # "Equivalent to" A3C's (Section 5.3.2), whose third hidden layer is the affine one.
    "shallow": FrameLayers(((16, 8, 4), (32, 4, 2)), width=256),
    "deep": FrameLayers(sections=(16, 32, 32), width=256),  # Figure 3, right
    "nature": FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512),
    "rllib": FrameLayers(
        ((16, 8, 4), (32, 4, 2)), width=256, same_padding=True, drawn_as_kernel=True
    ),
    "rllib_42": FrameLayers(
        ((16, 4, 2), (32, 4, 2)), width=256, same_padding=True, drawn_as_kernel=True
    ),
}


class ActorCritic(PolicyNetwork):
    """Policy and value: one trunk with two heads."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__(spaces, config.initial_log_std)
        heads = [(spaces.num_outputs, config.policy_head_gain), (1, config.value_head_gain)]
        scheme = config.initialisation
        self.actor = Trunk(
            spaces.obs_shape,
            heads,
            generator,
            hidden_sizes=config.hidden_sizes,
            frame_layers=FRAME_LAYERS[config.convolutions],
            scheme="orthogonal" if scheme == "cleanba" else scheme,
            kernel_scheme="lecun_normal" if scheme == "cleanba" else None,
            gain=config.hidden_gain,
            activation=config.activation,
            lstm_size=config.lstm_size,
            lstm_actions_of=spaces,
            bfloat16=config.bfloat16,
        )

    def unroll(
        self, batch: UnrollBatch, memory: Float[Tensor, "N M"] | None
    ) -> tuple[Float[Tensor, "T1 N A"], Float[Tensor, "T1 N"]]:
        """Return logits (or means) and values of an unroll that began with a memory."""
        past = batch.valid, batch.actions, batch.rewards
        outputs = self.actor.unroll(batch.obs, memory, *past)
        return outputs[..., :-1], outputs[..., -1]


@dataclass
class Learner:
    """Network, optimiser and running statistics of one seed."""

    network: ActorCritic
    optimiser: Optimiser
    obs_moments: RunningMoments | None
    """Statistics that normalise observations, up to the newest unroll's end; None: observations are
    not normalised."""


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build network and optimiser; initial weights come from the only seed's own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    weights = FlatWeights(network)
    optimiser = Adam(weights) if config.optimiser == "adam" else RMSprop(weights, config)
    obs_moments = RunningMoments(spaces.obs_shape) if config.normalise_observations else None
    return Learner(network, optimiser, obs_moments)


def update(
    learner: Learner,
    config: Config,
    batch: UnrollBatch,
    learning_rate: float | Tensor,
    memory: Float[Tensor, "N M"] | None = None,
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch of an unroll (Section 4.2).

    Args:
        learner: network and optimiser; changed in place.
        config: the run's settings.
        batch: the minibatch; `behaviour` holds the log-probabilities of its actions, `[T, N]`.
        learning_rate: step size of this update.
        memory: the acting policy's memory before the minibatch; None: zeros.

    Returns:
        diagnostics by name, on the learner's device.
    """
    valid = batch.valid
    outputs, values = learner.network.unroll(batch, memory)  # [T + 1, N, A], [T + 1, N]
    log_probs, entropies = log_probs_and_entropies(
        outputs[:-1], learner.network.log_stds, batch.actions
    )
    log_rhos = (log_probs.detach() - batch.behaviour).where(valid > 0, 0.0)
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
    weights = batch.weights if config.loss_reduction == "mean" else valid
    policy_loss, value_loss, entropy = losses(log_probs, entropies, values[:-1], returns, weights)
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    norm = learner.optimiser.minimise(loss, learning_rate, config.max_gradient_norm)
    with torch.no_grad():
        rhos = log_rhos.exp() * valid
        bound = math.inf if config.clip_rho_threshold is None else config.clip_rho_threshold
        numbers = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "gradient_norm": norm,
            "max_rho": rhos.max(),
        }
        rows = {
            "entropy": entropies,
            "mean_rho": rhos,
            "clipped_share": (rhos > bound * (1 + 1e-4)).float(),  # not what rounding alone clips
        }
        return diagnostics(numbers, rows, returns.vs, returns.vs - values[:-1], valid)


def transitions(experience: Experience, config: Config) -> UnrollBatch:
    """Return an unroll's transitions, with the log-probabilities of the policy that acted."""
    batch = experience.unroll.transitions()
    log_probs, _ = log_probs_and_entropies(batch.behaviour, experience.log_stds, batch.actions)
    batch = batch._replace(behaviour=log_probs)
    return UnrollBatch(*(column[:-1] for column in batch)) if config.drop_last_row else batch


ACTING = (
    *("convolutions", "frame_divisor", "bfloat16", "hidden_sizes", "activation"),
    *("lstm_size", "observation_clip"),
)
"""Settings that rebuild a policy, beside task and protocol."""
load = partial(rebuild, ActorCritic, Config, ACTING)
"""Rebuild a policy from the weights and description that `train` saved."""


def train(config: Config, recorder: Recorder) -> Learner:
    """Train the only seed of `config` to its last step; return the learner."""
    recorder.clock.seconds |= {"learner_idle": 0.0, "actor_idle": 0.0}
    session = UnrollSession(config, recorder)
    learner = make_learner(config, session.env.spaces, session.device)
    player = Player(learner.network, learner.obs_moments, config)
    network = copy.deepcopy(learner.network)
    with worker_thread() as thread:  # the collector takes the T steps of each unroll
        collector = Collector(config, session, learner, network, thread)
        session.begin(learner, player, partial(update, learner, config), collector.state)
        collector.begin(session.obs, session.are_new)
        while session.continues():
            newest = collector.result()
            session.record_unroll(newest.steps, newest.unroll.actions.cpu().numpy(), newest.seconds)
            if config.policy_lag:  # at a checkpoint no unroll is in progress
                collector.start(waits=session.pauses())
            if learner.obs_moments is not None and newest.obs_moments is not None:
                learner.obs_moments.copy_from(newest.obs_moments)
            learned = transitions(newest, config)
            if learned.is_empty:
                continue
            batches = learned.minibatches(config.num_minibatches)
            memories = newest.memory.chunk(config.num_minibatches)
            for batch, memory in zip(batches, memories, strict=True):
                session.update(batch, session.learning_rate, memory)
    session.save_policies(player.weights, ACTING)
    return learner


main = partial(train_in_turn, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
