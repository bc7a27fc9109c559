"""Actor-critic with experience replay, ACER (Wang et al. 2017, arXiv:1611.01224), discrete actions.

N environments take T steps with one policy; one update follows on this unroll, then several on
unrolls from replay. Retrace gives targets of Q, truncated importance weights with a bias correction
give the policy gradient, and a trust region around an average of past policies limits each step.

    python -m agents.acer --task CartPole-v1 --seeds 1 2 3 --env-steps 100000 --out runs/mine

| what                                              | paper         | here               |
|---------------------------------------------------|---------------|--------------------|
| Retrace targets, and Q_opc                        | Eq. 5, App. B | `retrace`          |
| bootstrap and trace at an end                     | numbers 2, 4  | `suite.unrolls`    |
| truncated policy gradient with its correction     | Eqs. 7 to 9   | `policy_gradients` |
| gradients with respect to the policy's statistics | Eq. 10        | `by_statistics`    |
| projection into the trust region                  | Eqs. 11, 12   | `trust_region`     |
| targets and projected gradients of an unroll      | Algorithm 2   | `learning_signals` |
| one gradient step, average policy                 | Algorithm 2   | `update`           |
| T steps, then updates on new and replayed unrolls | Algorithm 1   | `train`            |

Deviations from the paper, and details it leaves open:
1. Workers are synchronous (OpenAI Baselines): one gradient comes from an unroll of every
   environment, new or replayed; losses are means over valid rows. Seeds are trained one after
   another.
2. An unroll continues across the end of an episode, but no trace does. Replay draws whole unrolls.
3. The step after an episode's end only resets the simulator, which ignores the action. Losses,
   traces and `env_steps` leave such rows out; all other rows are valid.
4. At a time limit targets bootstrap from the value, unless `time_limit_is_terminal`.
5. Retrace cuts ratios at 1, as Algorithm 2 does; the text under Eq. 5 has c. Probabilities below
   1e-8 count as 1e-8 where a gradient is divided by them.
6. An update uses the learning rate of the step at which the newest unroll began.
7. A run ends before the unroll that could exceed `env_steps`.
8. With an LSTM (the paper has none) policy and average policy both start the newest unroll from the
   memory of the acting policy; ChainerRL's average policy has a memory of its own
   (chainerrl@7eed375:chainerrl/agents/acer.py:611-614). On replayed unrolls memories start at 0, as
   there (523-524); in OpenAI Baselines they do so on all unrolls
   (baselines@ea25b9e:baselines/acer/acer.py:208, 260).
"""

import copy
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from suite.base.errors import UsageError
from suite.base.randomness import stream
from suite.envs.tasks import Protocol
from suite.envs.vector_env import Spaces
from suite.nets.moments import RunningMoments
from suite.nets.networks import FrameLayers, Trunk
from suite.nets.optimisers import FlatWeights, RMSprop, follow
from suite.player import ActionSampler, Player, PolicyNetwork, rebuild
from suite.record.recorder import Recorder
from suite.session import train_in_turn
from suite.settings.command_line import run_main
from suite.settings.config import (
    Capacity,
    Count,
    Environments,
    Fraction,
    NotNegative,
    Positive,
    Rate,
    ReplayConfig,
    Whole,
)
from suite.settings.presets import Presets
from suite.unroll_session import UnrollSession
from suite.unrolls import UnrollBatch, UnrollReplay

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


@torch.no_grad()
def retrace(
    rewards: Float[Tensor, "T N"],
    discounts: Float[Tensor, "T N"],
    trace_mask: Float[Tensor, "T N"],
    taken_q_values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    cs: Float[Tensor, "T N"],
) -> Float[Tensor, "T N"]:
    """Return Retrace targets of the actions taken (Eq. 5), or Q_opc if `cs` is 1 (Appendix B).

    Args:
        rewards: as learned from.
        discounts: gamma, or 0 where no value follows.
        trace_mask: 1 where the trace passes from t + 1 to t, 0 at any end.
        taken_q_values: Q of the observation and the action taken on it.
        next_values: V of the observation each action led to, before any reset.
        cs: importance ratio of each action, cut at 1; row t + 1 weighs the trace into row t.

    Returns:
        targets of Q of the actions taken, in reward units, detached.
    """
    targets = torch.addcmul(rewards, discounts, next_values).unbind(0)
    decays = ((discounts * trace_mask)[:-1] * cs[1:]).unbind(0)
    next_q_values = taken_q_values[1:].unbind(0)
    q_retrace = [targets[-1]]
    for target, decay, q in zip(targets[-2::-1], decays[::-1], next_q_values[::-1], strict=True):
        q_retrace.append(torch.addcmul(target, decay, q_retrace[-1] - q))
    return torch.stack(q_retrace[::-1])


@torch.no_grad()
def policy_gradients(
    log_probs: Float[Tensor, "T N A"],
    behaviour_log_probs: Float[Tensor, "T N A"],
    actions: Int[Tensor, "T N"],
    targets: Float[Tensor, "T N"],
    q_values: Float[Tensor, "T N A"],
    values: Float[Tensor, "T N"],
    clip_rho_threshold: float | None,
) -> Float[Tensor, "T N A"]:
    """Return ACER's gradient with respect to the log-probability of every action (Eq. 9).

    Args:
        log_probs: of every action by the policy that learns, nats.
        behaviour_log_probs: of every action by the policy that acted, nats.
        actions: those taken.
        targets: Q_ret (or Q_opc) of the actions taken.
        q_values: Q of every action, which replaces the target in the correction.
        values: V, the expectation of Q under the policy that learns.
        clip_rho_threshold: c; None: neither truncation nor correction.

    Returns:
        factors of grad log pi(a|x), one per action, of the objective that is maximised.
    """
    log_rhos = log_probs - behaviour_log_probs
    taken = actions.unsqueeze(-1)
    rhos, correction = log_rhos.gather(-1, taken).exp(), torch.zeros_like(log_probs)
    if clip_rho_threshold is not None:
        rhos = rhos.clamp(max=clip_rho_threshold)
        excess = (1 - clip_rho_threshold * torch.exp(-log_rhos)).clamp_min(0)  # [(rho - c) / rho]+
        correction = log_probs.exp() * excess * (q_values - values.unsqueeze(-1))
    return correction.scatter_add(-1, taken, rhos * (targets - values).unsqueeze(-1))


@torch.no_grad()
def by_statistics(
    gradients: Float[Tensor, "*B A"],
    log_probs: Float[Tensor, "*B A"],
    statistics: Literal["probabilities", "logits", "log_probabilities"],
) -> Float[Tensor, "*B A"]:
    """Turn gradients w.r.t. log-probabilities into those w.r.t. the policy's statistics (Eq. 10).

    Args:
        gradients: w.r.t. the logarithms of the probabilities, as if these were independent.
        log_probs: of every action, nats.
        statistics: the probabilities or their logarithms (as if independent), or the logits.
    """
    if statistics == "logits":
        return gradients - log_probs.exp() * gradients.sum(-1, keepdim=True)
    probs = log_probs.exp().clamp_min(1e-8)
    return gradients / probs if statistics == "probabilities" else gradients


def statistics_of(
    logits: Float[Tensor, "*B A"],
    statistics: Literal["probabilities", "logits", "log_probabilities"],
) -> Float[Tensor, "*B A"]:
    """Return the policy's statistics, phi of Eq. 10; gradients flow through them."""
    if statistics == "probabilities":
        return logits.softmax(-1)
    return logits.log_softmax(-1) if statistics == "log_probabilities" else logits


@torch.no_grad()
def trust_region(
    gradients: Float[Tensor, "*B A"], kl_gradients: Float[Tensor, "*B A"], delta: float
) -> Float[Tensor, "*B A"]:
    """Return the nearest z to each gradient that raises KL at a rate of at most `delta` (Eq. 12).

    Args:
        gradients: of the objective that is maximised, w.r.t. the policy's statistics.
        kl_gradients: of KL(average policy || policy), w.r.t. the same statistics.
        delta: bound of `(kl_gradients * z).sum(-1)`, at least 0.

    Returns:
        z: the gradients minus their excess over the bound, along `kl_gradients`.
    """
    squares = kl_gradients.square().sum(-1, keepdim=True)
    excess = (kl_gradients * gradients).sum(-1, keepdim=True) - delta
    tiny = torch.finfo(squares.dtype).tiny  # where KL is flat nothing exceeds the bound
    return gradients - (excess / squares.clamp_min(tiny)).clamp_min(0) * kl_gradients


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings beside `ReplayConfig`'s; the paper's where it has any (Section 4)."""

    task: str = "Pong-v5"
    """Name of a task with discrete actions."""
    protocol: Protocol = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 10_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    num_envs: Environments = 16
    """Environments, N (the paper: 16 workers)."""
    unroll_length: Count = 20
    """Steps of every environment between two rounds of updates, T (the paper's k)."""
    online_updates: bool = True
    """Whether an update uses the newest unroll at once, or only when replay draws it."""
    replay_capacity: Capacity = 50_000
    """Steps of each environment that replay holds."""
    replay_start: Whole = 10_000
    """Steps of each environment before the first update from replay (OpenAI Baselines)."""
    clip_rho_threshold: Positive | None = 10.0
    """Truncation level c; the bias correction restores the excess. None: neither of the two."""
    advantage_target: Literal["q_retrace", "q_opc"] = "q_retrace"
    """Target minus V is the advantage: Q_ret, or Q_opc, which lacks c_t (Appendix B)."""
    trust_region_delta: NotNegative | None = 1.0
    """Bound of the rate at which a gradient raises KL(average || policy); None: no trust region."""
    statistics: Literal["probabilities", "logits", "log_probabilities"] = "probabilities"
    """Statistics by which the trust region projects: the paper's, ChainerRL's or PFRL's."""
    entropy_in_trust_region: bool = True
    """Whether the entropy's gradient is projected, too (OpenAI Baselines), or added after the
    projection (ChainerRL)."""
    tau: Fraction = 0.01
    """Rate of the average policy, tau * policy + (1 - tau) * average (the paper: 1 - 0.99)."""
    q_coef: NotNegative = 0.5
    """Weight of half the squared error of Q (OpenAI Baselines; Eq. 6: 1)."""
    entropy_coef: NotNegative = 0.001
    """Weight of the policy's entropy, nats."""
    shared_trunk: bool = True
    """Whether policy and Q share all layers but their heads."""
    lstm_size: Whole = 0
    """Units of an LSTM between the last shared layer and the heads (ChainerRL: 256); 0: none."""
    q_head_gain: Positive = 1.0
    """Gain of the head of Q."""
    learning_rate: Rate = 7e-4
    """RMSprop step size at the start."""
    max_gradient_norm: Positive | None = 10.0
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "training"
    """Evaluate actions drawn from the policy, or its mode; `training`: score training episodes."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `ReplayConfig`."""
        super().__post_init__()
        if self.find_task().actions != "discrete":
            raise UsageError(f"{self.task} has continuous actions: use acer_continuous")
        if self.lstm_size and not self.shared_trunk:
            raise UsageError("lstm_size needs shared_trunk: policy and Q share the LSTM")


PRESETS = Presets("acer", Config)  # a source's settings replace the defaults


FRAME_LAYERS = FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512)
"""DQN's of 2015: channels, kernel size and stride of three convolutions, and 512 units."""


class ActorCritic(PolicyNetwork):
    """Policy and Q: one trunk with two heads, or one trunk each."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__(spaces)
        self.log_stds = None
        trunk = partial(
            Trunk,
            spaces.obs_shape,
            generator=generator,
            hidden_sizes=config.hidden_sizes,
            frame_layers=FRAME_LAYERS,
            gain=config.hidden_gain,
            activation=config.activation,
            lstm_size=config.lstm_size,
            bfloat16=config.bfloat16,
        )
        policy_head = (self.num_outputs, config.policy_head_gain)
        q_head, shared = (self.num_outputs, config.q_head_gain), config.shared_trunk
        self.actor = trunk([policy_head, q_head] if shared else [policy_head])
        self.critic = None if shared else trunk([q_head])

    def unroll(
        self, batch: UnrollBatch, memory: Float[Tensor, "N M"] | None
    ) -> tuple[Float[Tensor, "T1 N A"], Float[Tensor, "T1 N A"]]:
        """Return logits and Q of every action in an unroll that began with a memory."""
        outputs = self.actor.unroll(batch.obs, memory, batch.valid)
        if self.critic is None:
            return outputs[..., : self.num_outputs], outputs[..., self.num_outputs :]
        return outputs, self.critic.unroll(batch.obs, None, batch.valid)


@dataclass
class Learner:
    """Network, average policy, optimiser and running statistics of one seed."""

    network: ActorCritic
    average_policy: Trunk
    """The slow copy of the network's actor."""
    optimiser: RMSprop
    obs_moments: RunningMoments | None
    """Statistics that normalise observations; None: observations are not normalised."""


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build network and optimiser; initial weights come from the only seed's own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    average_policy = copy.deepcopy(network.actor).requires_grad_(False)
    optimiser = RMSprop(FlatWeights(network), config)
    obs_moments = RunningMoments(spaces.obs_shape) if config.normalise_observations else None
    return Learner(network, average_policy, optimiser, obs_moments)


class Signals(NamedTuple):
    """Targets and gradients for the network; no gradient flows through them."""

    q_retrace: Float[Tensor, "T N"]
    """Targets of Q of the actions taken."""
    gradients: Float[Tensor, "T N A"]
    """Of the objective that is maximised, w.r.t. the policy's statistics, after projection."""
    diagnostics: dict[str, Tensor]
    """Of every row, `[T, N]` by name."""


@torch.no_grad()
def learning_signals(
    config: Config,
    batch: UnrollBatch,
    logits: Float[Tensor, "T1 N A"],
    q_values: Float[Tensor, "T1 N A"],
    average_logits: Float[Tensor, "T N A"],
) -> Signals:
    """Return Retrace targets and projected policy gradients (Eqs. 5 to 12).

    Args:
        config: the run's settings.
        batch: the unrolls.
        logits: of the policy that learns, also for the observation after the unroll.
        q_values: Q of every action, likewise.
        average_logits: of the average policy.
    """
    values = (logits.softmax(-1) * q_values).sum(-1)  # [T + 1, N]
    log_probs, q_values = logits[:-1].log_softmax(-1), q_values[:-1]
    probs, average_log_probs = log_probs.exp(), average_logits.log_softmax(-1)
    average_probs = average_log_probs.exp()
    taken = batch.actions.unsqueeze(-1)
    taken_q_values = q_values.gather(-1, taken).squeeze(-1)
    rhos = (log_probs - batch.behaviour).gather(-1, taken).squeeze(-1).exp()
    trace = partial(
        retrace, batch.rewards, batch.discounts, batch.trace_mask, taken_q_values, values[1:]
    )
    q_retrace = trace(rhos.clamp(max=1))
    uses_q_opc = config.advantage_target == "q_opc"
    targets = trace(torch.ones_like(rhos)) if uses_q_opc else q_retrace
    threshold = config.clip_rho_threshold
    gradients = policy_gradients(
        log_probs, batch.behaviour, batch.actions, targets, q_values, values[:-1], threshold
    )
    entropy_gradients = -config.entropy_coef * probs * (log_probs + 1)
    if config.entropy_in_trust_region:
        gradients = gradients + entropy_gradients
    gradients = by_statistics(gradients, log_probs, config.statistics)
    projected = gradients
    if config.trust_region_delta is not None:
        # KL(average || policy) is a constant minus the sum of average_probs * log_probs
        kl_gradients = by_statistics(-average_probs, log_probs, config.statistics)
        projected = trust_region(gradients, kl_gradients, config.trust_region_delta)
    total = projected
    if not config.entropy_in_trust_region:
        total = projected + by_statistics(entropy_gradients, log_probs, config.statistics)
    diagnostics = {
        "q_loss": 0.5 * (q_retrace - taken_q_values).square(),
        "q_value": taken_q_values,
        "value": values[:-1],
        "entropy": -(probs * log_probs).sum(-1),
        "kl": (average_probs * (average_log_probs - log_probs)).sum(-1),
        "truncated_share": (rhos > (math.inf if threshold is None else threshold)).float(),
        "statistics_gradient_norm": gradients.norm(dim=-1),
        "projected_gradient_norm": projected.norm(dim=-1),
    }
    return Signals(q_retrace, total, diagnostics)


def update(
    learner: Learner,
    config: Config,
    batch: UnrollBatch,
    learning_rate: float | Tensor,
    memory: Float[Tensor, "N M"] | None = None,
) -> dict[str, Tensor]:
    """Make one gradient step on one unroll of every environment (Algorithm 2).

    Args:
        learner: network, average policy and optimiser; changed in place.
        config: the run's settings.
        batch: the unrolls, new or from replay.
        learning_rate: step size of this update.
        memory: the policy's memory before the unrolls; None: zeros.

    Returns:
        diagnostics by name, on the learner's device.
    """
    logits, q_values = learner.network.unroll(batch, memory)  # [T + 1, N, A]
    with torch.no_grad():
        average_outputs = learner.average_policy.unroll(batch.obs[:-1], memory, batch.valid)
    average_logits = average_outputs[..., : logits.shape[-1]]
    signals = learning_signals(config, batch, logits.detach(), q_values.detach(), average_logits)

    weights = batch.weights
    statistics = statistics_of(logits[:-1], config.statistics)
    objective = (statistics * (signals.gradients * weights.unsqueeze(-1))).sum()
    taken_q_values = q_values[:-1].gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    q_loss = 0.5 * ((taken_q_values - signals.q_retrace).square() * weights).sum()  # Eq. 6
    loss = config.q_coef * q_loss - objective
    norm = learner.optimiser.minimise(loss, learning_rate, config.max_gradient_norm)
    with torch.no_grad():
        follow(learner.average_policy.parameters(), learner.network.actor.parameters(), config.tau)
        means = (torch.stack([*signals.diagnostics.values()]) * weights).sum((1, 2))
        return dict(zip(signals.diagnostics, means, strict=True)) | {"gradient_norm": norm}


ACTING = "bfloat16", "hidden_sizes", "activation", "shared_trunk", "lstm_size", "observation_clip"
"""Settings that rebuild a policy, beside task and protocol."""
load = partial(rebuild, ActorCritic, Config, ACTING)
"""Rebuild a policy from the weights and description that `train` saved."""


def train(config: Config, recorder: Recorder) -> Learner:
    """Train the only seed of `config` to its last step; return the learner."""
    session = UnrollSession(config, recorder)
    learner = make_learner(config, session.env.spaces, session.device)
    network, moments = learner.network, learner.obs_moments
    sampler, player = ActionSampler(network, config), Player(network, moments, config)
    replay = UnrollReplay(session.env.spaces, config, network.num_outputs, session.device, moments)
    names = ("action noise", "replay", "replay counts")
    streams = action_stream, replay_stream, count_stream = [*map(session.stream, names)]
    state = {"streams": streams, "behaviour": replay.behaviour, "memory": sampler.memory}

    def learn(batch: UnrollBatch, memory: Tensor) -> None:
        if not batch.is_empty:
            session.update(batch, session.learning_rate, memory)

    replay.put_first_obs(session.obs)
    session.begin(learner, player, partial(update, learner, config), state, replay.add)
    obs = replay.read_obs(session.obs, session.are_new)  # [N, *obs]
    while session.continues():
        first_memory = sampler.memory.clone()
        for noise in network.draw_noise(action_stream, (config.unroll_length, config.num_envs)):
            actions, logits = sampler(obs, noise)
            actions, log_probs = actions.cpu().numpy(), logits.log_softmax(-1).cpu().numpy()
            step = session.step(actions)
            replay.add(actions, log_probs, step)
            obs = replay.read_obs(session.obs, session.are_new)
            sampler.remember(actions, step)
        if config.online_updates:
            learn(replay.newest(), first_memory)
        for _ in range(replay.draw_num_updates(count_stream)):
            learn(replay.sample(replay_stream), torch.zeros_like(first_memory))
    session.save_policies(player.weights, ACTING)
    return learner


main = partial(train_in_turn, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
