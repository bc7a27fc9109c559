"""Actor-critic with experience replay, ACER, for continuous actions (arXiv:1611.01224, Section 5).

N environments take T steps with one Gaussian policy; updates on unrolls from replay follow. A
stochastic duelling network estimates V and Q, and Retrace gives their targets. Truncated
importance weights with a bias correction give the policy gradient, and a trust region around an
average of past policies bounds each step.

    python -m agents.acer_continuous --task HalfCheetah-v4 --seeds 1 2 3 --out runs/mine

| what                                           | paper         | here               |
|------------------------------------------------|---------------|--------------------|
| Q of a stochastic duelling network             | Eq. 13        | `duel`             |
| Retrace targets, and Q_opc                     | Eq. 5, App. B | `retrace`          |
| bootstrap and trace at an end                  | numbers 2, 3  | `suite.unrolls`    |
| truncated policy gradient with its correction  | Eq. 16        | `policy_gradients` |
| projection into the trust region               | Eqs. 11, 12   | `trust_region`     |
| all targets (V's: Eq. 14), projected gradients | Algorithm 3   | `learning_signals` |
| one gradient step, average policy              | Algorithm 3   | `update`           |
| T steps, then updates on replayed unrolls      | Section 6     | `train`            |

Deviations from the paper, and details it leaves open:
1. Workers are synchronous: N new unrolls are followed by as many updates from replay, one after
   another, as N asynchronous workers would make; by Algorithm 1's updates on the new unrolls
   themselves only with `online_updates`. Seeds are trained one after another.
2. An unroll continues across the end of an episode, but no trace does. The step after an end only
   resets the simulator: losses, traces and `env_steps` leave its row out; all other rows are valid.
   Losses are means over valid rows (ChainerRL).
3. At a time limit targets bootstrap from the value, unless `time_limit_is_terminal`.
4. Without truncation importance weights above exp(20) count as exp(20), which keeps them finite.
5. Policy, V and A are three networks (ChainerRL, PFRL); the paper's policy and V share most layers.
6. Q of the action taken and Q of the correction's action use the same n draws of Eq. (13).
7. The trust region's statistics are the mean and, if it is learned, the logarithm of the deviation.
   The entropy's gradient is added after the projection (ChainerRL).
8. A run ends before the unrolls that could exceed `env_steps`. Replay draws whole unrolls; their
   number is Poisson, as in Algorithm 1 (Section 6: 4 on average).
9. The environment clips actions to [-1, 1]; their density is that of the unclipped draw.
10. Eq. 16 truncates ratios at c, as Algorithm 3 does; Section 5.1's ratios are only Retrace's.
"""

import copy
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from suite.base.errors import UsageError
from suite.base.randomness import stream
from suite.envs.vector_env import Spaces, Step
from suite.nets.gaussian import Gaussian, divergence_gradients, divergences
from suite.nets.moments import RunningMoments
from suite.nets.networks import Trunk
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
    Range,
    Rate,
    ReplayConfig,
    Whole,
    Widths,
)
from suite.settings.presets import Presets
from suite.unroll_session import UnrollSession
from suite.unrolls import UnrollBatch, UnrollReplay

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


def duel(
    values: Float[Tensor, " R"],
    advantages: Float[Tensor, "M R"],
    sampled_advantages: Float[Tensor, "K R"],
) -> Float[Tensor, "M R"]:
    """Return Q of a stochastic duelling network (Eq. 13), whose mean under the policy is V.

    Args:
        values: V.
        advantages: A of M actions.
        sampled_advantages: A of n actions that the policy drew.
    """
    return values + advantages - sampled_advantages.mean(0)


# Same in: acer.py
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
    policy: Gaussian,
    behaviour: Gaussian,
    actions: Float[Tensor, "*B A"],
    targets: Float[Tensor, "*B"],
    corrections: Float[Tensor, "*B A"],
    correction_q_values: Float[Tensor, "*B"],
    values: Float[Tensor, "*B"],
    clip_rho_threshold: float | None,
) -> Float[Tensor, "*B S"]:
    """Return ACER's policy gradient w.r.t. means and log deviations (Eq. 16).

    Args:
        policy: the one that learns.
        behaviour: the one that acted.
        actions: those taken.
        targets: Q_opc (or Q_ret) of the actions taken.
        corrections: one action each, drawn from the policy that learns; the paper's a'.
        correction_q_values: Q of those.
        values: V.
        clip_rho_threshold: c; None: neither truncation nor correction.

    Returns:
        gradients of the objective that is maximised.
    """
    log_rhos = policy.log_probs(actions) - behaviour.log_probs(actions)
    rhos = log_rhos.clamp(max=20).exp()  # ratios of densities have no bound
    if clip_rho_threshold is not None:
        rhos = rhos.clamp(max=clip_rho_threshold)
    gradients = (rhos * (targets - values)).unsqueeze(-1) * policy.scores(actions)
    if clip_rho_threshold is None:
        return gradients
    log_rhos = policy.log_probs(corrections) - behaviour.log_probs(corrections)
    shares = (1 - clip_rho_threshold * torch.exp(-log_rhos)).clamp_min(0)  # [(rho - c) / rho]+
    weights = shares * (correction_q_values - values)
    return gradients + weights.unsqueeze(-1) * policy.scores(corrections)


# Same in: acer.py
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
    """Settings beside `ReplayConfig`'s; the paper's where it has any (Section 6)."""

    task: str = "HalfCheetah-v4"
    """Name of a task with continuous actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    num_envs: Environments = 16
    """Environments, N (the paper's asynchronous workers; their number is not stated)."""
    unroll_length: Count = 50
    """Steps of every environment between two rounds of updates, T (the paper's k)."""
    online_updates: bool = False
    """Whether an update uses the newest unrolls at once, or only when replay draws them."""
    replay_ratio: NotNegative = 4.0
    """Unrolls drawn from replay for each new one (the paper)."""
    batch_unrolls: Count = 1
    """Unrolls that one update from replay learns from (the paper: 1, as each worker)."""
    replay_capacity: Capacity = 5_000
    """Steps of each environment that replay holds (the paper)."""
    replay_start: Whole = 50
    """Steps of each environment before the first update from replay."""
    reward_scale: Positive = 1.0
    """Factor on rewards before learning; recorded returns are unscaled."""
    num_action_samples: Count = 5
    """Draws from which the mean of A is estimated, n of Eq. (13) (the paper)."""
    clip_rho_threshold: Positive | None = 5.0
    """Truncation level c; the bias correction restores the excess. None: neither of the two."""
    advantage_target: Literal["q_opc", "q_retrace"] = "q_opc"
    """Target minus V is the advantage: Q_opc, which lacks c_t (the paper), or Q_ret."""
    trust_region_delta: NotNegative | None = 1.0
    """Bound of the rate at which a gradient raises KL(average || policy) (the paper: drawn from
    [0.1, 2] for each run); None: no trust region."""
    tau: Fraction = 0.005
    """Rate of the average policy, tau * policy + (1 - tau) * average (the paper: 1 - 0.995)."""
    q_coef: NotNegative = 1.0
    """Weight of half the squared error of Q (Algorithm 3)."""
    value_coef: NotNegative = 1.0
    """Weight of half the squared error of V (Algorithm 3)."""
    entropy_coef: NotNegative = 0.0
    """Weight of the policy's entropy, nats; it has no effect with a fixed deviation."""
    std: Literal["fixed", "learned", "state_dependent"] = "fixed"
    """Deviation: fixed (the paper), a weight per dimension, or one output of the network for all
    dimensions (ChainerRL)."""
    initial_std: Annotated[float, Range("[1e-6, 20]")] = 0.3
    """Standard deviation of actions in [-1, 1]; the one at the start if it is learned."""
    bounded_mean: bool = False
    """Whether a tanh keeps the policy's mean in [-1, 1] (ChainerRL)."""
    hidden_sizes: Widths = (200, 200)
    """Widths of the hidden layers of policy and V (PFRL)."""
    advantage_hidden_sizes: Widths = (50, 50)
    """Widths of the hidden layers of A (the paper: a small network of unstated size)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Between the layers."""
    value_head_gain: Positive = 1.0
    """Gain of the last layers of V and A."""
    learning_rate: Rate = 3e-4
    """RMSprop step size (the paper: drawn from [1e-4, 5e-4] for each run, uniform by logarithm)."""
    rmsprop_epsilon: Positive = 4e-3
    """Keeps the step finite where gradients are small (PFRL)."""
    max_gradient_norm: Positive | None = None
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "sampled"
    """Evaluate actions drawn from the policy, or its mean; `training`: score training episodes."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `ReplayConfig`."""
        super().__post_init__()
        if self.find_task().actions != "continuous":
            raise UsageError(f"{self.task} has discrete actions: use acer")

    @property
    def mean_replays(self) -> float:
        """Return the mean number of updates from replay after each unroll of every environment."""
        return self.replay_ratio * self.num_envs / self.batch_unrolls


PRESETS = Presets("acer_continuous", Config)  # a source's settings replace the defaults


class GaussianPolicy(PolicyNetwork):
    """The policy's network."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__(spaces)
        self._config, (obs_size,) = config, spaces.obs_shape
        heads = [(spaces.num_outputs, config.policy_head_gain)]
        if config.std == "state_dependent":
            heads.append((1, config.policy_head_gain))
        trunk = partial(Trunk, gain=config.hidden_gain, activation=config.activation)
        self.layers = trunk((obs_size,), heads, generator, hidden_sizes=config.hidden_sizes)
        log_stds = torch.full((spaces.num_outputs,), math.log(config.initial_std))
        if config.std == "learned":
            self.log_stds: Tensor = nn.Parameter(log_stds)
        elif config.std == "fixed":
            self.register_buffer("log_stds", log_stds)
        else:  # the output whose softplus is the initial variance
            with torch.no_grad():
                self.layers.biases[-1][-1] = math.log(math.expm1(config.initial_std**2))

    def forward(self, obs: Float[Tensor, "B O"]) -> Gaussian:
        """Return the distributions of actions, `[B, A]`."""
        outputs = self.layers(obs)
        means = outputs[:, : self.num_outputs]
        if self._config.bounded_mean:
            means = means.tanh()
        dependent = self._config.std == "state_dependent"
        log_stds = 0.5 * F.softplus(outputs[:, -1:]).log() if dependent else self.log_stds
        return Gaussian(means, log_stds.expand_as(means))

    def step(
        self, obs: Float[Tensor, "N O"], memory: Float[Tensor, "N M"]
    ) -> tuple[Float[Tensor, "N S"], Float[Tensor, "N M"]]:
        """Return means and log deviations of actions, side by side; there is no memory."""
        return torch.cat(self(obs), -1), memory

    def act(self, outputs: Float[Tensor, "N S"], noise: Tensor | None = None) -> Tensor:
        """Return actions drawn with normal noise, or the means."""
        policy = Gaussian(*outputs.chunk(2, -1))
        return policy.means if noise is None else policy.draw(noise)

    @property
    def trunk(self) -> Trunk:
        """Return the network that acts."""
        return self.layers


class ActorCritic(nn.Module):
    """Policy, V and A, a network each."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__()
        (size,), head = spaces.obs_shape, [(1, config.value_head_gain)]
        pair, widths = (size + spaces.num_outputs,), config.advantage_hidden_sizes
        trunk = partial(Trunk, gain=config.hidden_gain, activation=config.activation)
        self.policy = GaussianPolicy(config, spaces, generator)
        self.critic = trunk((size,), head, generator, hidden_sizes=config.hidden_sizes)
        self.advantage = trunk(pair, head, generator, hidden_sizes=widths)

    def predict(self, batch: UnrollBatch, noise: Tensor) -> "Predictions":
        """Return the networks' outputs on a batch of unrolls; `noise` is that of `update`."""
        length, size = batch.rewards.shape
        rows = batch.obs.flatten(0, 1)  # [(T + 1) * B, O]
        acted_on = rows[:-size]
        policy = self.policy(acted_on)
        with torch.no_grad():
            draws = policy.draw(noise.flatten(1, 2))  # [n + 1, T * B, A]
            actions = torch.cat([batch.actions.flatten(0, 1).unsqueeze(0), draws])
        values = self.critic(rows).squeeze(-1)
        advantages = self.advantage(acted_on, actions).squeeze(-1)  # [n + 2, T * B]
        q_values = duel(values[:-size], advantages[:2], advantages[2:])
        q_values = q_values.unflatten(1, (length, size))
        return Predictions(
            policy.unflatten(length),
            values.unflatten(0, (-1, size)),
            draws[0].unflatten(0, (-1, size)),
            q_values[0],
            q_values[1],
        )


class Predictions(NamedTuple):
    """Network outputs on a batch of unrolls."""

    policy: Gaussian
    """The policy at every observation that was acted on, `[T, B, A]`."""
    values: Float[Tensor, "T1 B"]
    """V, also of the observation after the unroll."""
    corrections: Float[Tensor, "T B A"]
    """The actions of the bias correction, drawn from the policy."""
    taken_q_values: Float[Tensor, "T B"]
    """Q of the actions taken."""
    correction_q_values: Float[Tensor, "T B"]
    """Q of `corrections`."""


@dataclass
class Learner:
    """Network, average policy, optimiser and running statistics of one seed."""

    network: ActorCritic
    average_policy: GaussianPolicy
    """The slow copy of the network's policy."""
    optimiser: RMSprop
    obs_moments: RunningMoments | None
    """Statistics that normalise observations; None: observations are not normalised."""


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build network and optimiser; initial weights come from the only seed's own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    average_policy = copy.deepcopy(network.policy).requires_grad_(False)
    optimiser = RMSprop(FlatWeights(network), config)
    obs_moments = RunningMoments(spaces.obs_shape) if config.normalise_observations else None
    return Learner(network, average_policy, optimiser, obs_moments)


class Signals(NamedTuple):
    """Targets and gradients for the network; no gradient flows through them."""

    q_retrace: Float[Tensor, "T B"]
    """Targets of Q of the actions taken."""
    value_targets: Float[Tensor, "T B"]
    """Targets of V."""
    gradients: Float[Tensor, "T B S"]
    """Of the objective that is maximised, by the policy's statistics, after projection."""
    diagnostics: dict[str, Tensor]
    """Of every row, `[T, B]` by name."""


@torch.no_grad()
def learning_signals(
    config: Config, batch: UnrollBatch, predictions: Predictions, average: Gaussian
) -> Signals:
    """Return targets of Q and V and projected policy gradients (Eqs. 5, 11, 12, 14, 16).

    Args:
        config: the run's settings.
        batch: the unrolls.
        predictions: of the networks that learn.
        average: the average policy.
    """
    policy, behaviour = predictions.policy, Gaussian(*batch.behaviour.chunk(2, -1))
    taken_q_values = predictions.taken_q_values
    values, next_values = predictions.values[:-1], predictions.values[1:]
    log_rhos = policy.log_probs(batch.actions) - behaviour.log_probs(batch.actions)
    num_dimensions = batch.actions.shape[-1]
    trace = partial(
        retrace, batch.rewards, batch.discounts, batch.trace_mask, taken_q_values, next_values
    )
    q_retrace = trace((log_rhos / num_dimensions).exp().clamp(max=1))  # Section 5.1
    errors = log_rhos.exp().clamp(max=1) * (q_retrace - taken_q_values)
    uses_q_opc = config.advantage_target == "q_opc"
    targets = trace(torch.ones_like(log_rhos)) if uses_q_opc else q_retrace
    threshold = config.clip_rho_threshold
    gradients = policy_gradients(
        policy,
        behaviour,
        batch.actions,
        targets,
        predictions.corrections,
        predictions.correction_q_values,
        values,
        threshold,
    )
    if config.std == "fixed":  # the mean alone is a statistic
        gradients = gradients[..., :num_dimensions]
    projected = gradients
    if config.trust_region_delta is not None:
        kl_gradients = divergence_gradients(average, policy)[..., : gradients.shape[-1]]
        projected = trust_region(gradients, kl_gradients, config.trust_region_delta)
    total = projected
    if config.std != "fixed":  # the entropy is the sum of log deviations and a constant
        of_means, of_log_stds = projected.chunk(2, -1)
        total = torch.cat([of_means, of_log_stds + config.entropy_coef], -1)
    log_threshold = math.inf if threshold is None else math.log(threshold)
    diagnostics = {
        "q_loss": 0.5 * (q_retrace - taken_q_values).square(),
        "value_loss": 0.5 * errors.square(),
        "q_value": taken_q_values,
        "value": values,
        "entropy": policy.entropies(),
        "kl": divergences(average, policy),
        "truncated_share": (log_rhos > log_threshold).float(),
        "statistics_gradient_norm": gradients.norm(dim=-1),
        "projected_gradient_norm": projected.norm(dim=-1),
    }
    return Signals(q_retrace, values + errors, total, diagnostics)  # Eq. (14)


def update(
    learner: Learner,
    config: Config,
    batch: UnrollBatch,
    noise: Float[Tensor, "K T B A"],
    learning_rate: float | Tensor,
) -> dict[str, Tensor]:
    """Make one gradient step on a batch of unrolls (Algorithm 3).

    Args:
        learner: network, average policy and optimiser; changed in place.
        config: the run's settings.
        batch: the unrolls, new or from replay.
        noise: standard normal, for one action of the bias correction and the n of Eq. (13).
        learning_rate: step size of this update.

    Returns:
        diagnostics by name, on the learner's device.
    """
    network, weights = learner.network, batch.weights
    predictions = network.predict(batch, noise)
    with torch.no_grad():
        average = learner.average_policy(batch.obs[:-1].flatten(0, 1)).unflatten(len(batch.rewards))
    signals = learning_signals(config, batch, predictions, average)
    policy = predictions.policy
    statistics = policy.means if config.std == "fixed" else torch.cat(policy, -1)
    objective = (statistics * (signals.gradients * weights.unsqueeze(-1))).sum()
    q_loss = 0.5 * ((predictions.taken_q_values - signals.q_retrace).square() * weights).sum()
    value_loss = 0.5 * ((predictions.values[:-1] - signals.value_targets).square() * weights).sum()
    loss = config.q_coef * q_loss + config.value_coef * value_loss - objective
    norm = learner.optimiser.minimise(loss, learning_rate, config.max_gradient_norm)
    with torch.no_grad():
        follow(learner.average_policy.parameters(), network.policy.parameters(), config.tau)
        means = (torch.stack([*signals.diagnostics.values()]) * weights).sum((1, 2))
        return dict(zip(signals.diagnostics, means, strict=True)) | {"gradient_norm": norm}


ACTING = ("std", "bounded_mean", "hidden_sizes", "activation", "observation_clip")
"""Settings that rebuild a policy, beside the task."""
load = partial(rebuild, GaussianPolicy, Config, ACTING)
"""Rebuild a policy from the weights and description that `train` saved."""


def train(config: Config, recorder: Recorder) -> Learner:
    """Train the only seed of `config` to its last step; return the learner."""
    session = UnrollSession(config, recorder)
    learner = make_learner(config, session.env.spaces, session.device)
    network, moments = learner.network.policy, learner.obs_moments
    sampler, player = ActionSampler(network, config), Player(network, moments, config)
    kept = 2 * network.num_outputs  # means and log deviations of the policy that acted
    replay = UnrollReplay(session.env.spaces, config, kept, session.device, moments)

    def store(actions: np.ndarray, behaviour: np.ndarray | None, step: Step) -> None:
        replay.add(actions, behaviour, step._replace(rewards=step.rewards * config.reward_scale))

    def learn(batch: UnrollBatch) -> None:
        if not batch.is_empty:
            shape = (config.num_action_samples + 1, *batch.rewards.shape)
            noise = network.draw_noise(sample_stream, shape)
            session.update(batch, noise, session.learning_rate)

    names = ("action noise", "replay", "replay counts", "policy samples")
    streams = [*map(session.stream, names)]
    action_stream, replay_stream, count_stream, sample_stream = streams
    state = {"streams": streams, "behaviour": replay.behaviour}
    replay.put_first_obs(session.obs)
    session.begin(learner, player, partial(update, learner, config), state, store)
    obs = replay.read_obs(session.obs, session.are_new)  # [N, O]
    while session.continues():
        for noise in network.draw_noise(action_stream, (config.unroll_length, config.num_envs)):
            actions, outputs = sampler(obs, noise)
            actions, behaviour = actions.cpu().numpy(), outputs.cpu().numpy()
            step = session.step(actions)
            store(actions, behaviour, step)
            obs = replay.read_obs(session.obs, session.are_new)
        if config.online_updates:
            learn(replay.newest())
        for _ in range(replay.draw_num_updates(count_stream)):
            learn(replay.sample_any(replay_stream, config.batch_unrolls))
    session.save_policies(player.weights, ACTING)
    return learner


main = partial(train_in_turn, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
