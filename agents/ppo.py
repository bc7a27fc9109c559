"""Proximal policy optimisation, PPO, in its clipped form (Schulman et al. 2017, arXiv:1707.06347).

N environments take T steps with one policy. Several epochs of minibatches then learn from them; a
clipped ratio of probabilities keeps the policy near the one that acted. Discrete and continuous
actions, vectors and frames, with or without an LSTM.

    python -m agents.ppo --task CartPole-v1 --seeds 1 2 3 --env-steps 100000 --out runs/mine

| what                                    | paper         | here                 |
|-----------------------------------------|---------------|----------------------|
| advantages                              | Eq. 11 and 12 | `suite.actor_critic` |
| log-probability and entropy of actions  | Section 5     | `suite.actor_critic` |
| bootstrap at a time limit               | number 2      | `suite.unrolls`      |
| clipped surrogate, value error, entropy | Eq. 7 and 9   | `losses`             |
| old log-probabilities, and advantages   | Algorithm 1   | `with_advantages`    |
| one gradient step on one minibatch      | Algorithm 1   | `update`             |
| T steps, then K epochs of minibatches   | Algorithm 1   | `train`              |

What differs from `a2c.py`: `num_epochs` epochs of `num_minibatches` minibatches learn from an
unroll; `losses` clips the ratio to the policy that acted, and values; Adam; standardised
advantages; a policy that moved too far ends the epochs; an LSTM.

Deviations from the paper, and details it leaves open:
1. The step after an episode's end only resets the simulator. Losses, traces, statistics and
   `env_steps` leave such rows out, so minibatches differ a little in their number of valid rows;
   one without any still moves the weights by Adam's momentum.
2. At a time limit the return bootstraps from the last observation's value; with
   `time_limit_is_terminal` no value follows, as in some sources.
3. An unroll's updates use the learning rate and the clip of the step at which it began.
4. A run ends before the unroll that could exceed `env_steps`.
5. The environment clips continuous actions; their density is that of the unclipped draw.
6. Old log-probabilities and values are computed in one batch when an unroll is complete.
7. With an LSTM a minibatch holds whole environments, from their memory at the start of the unroll.
8. The first update that finds a divergence above `max_kl` before its step is the unroll's last;
   stable-baselines3 stops before this step, at 1.5 times it, and CleanRL checks once an epoch.
9. A clipped value's error is the larger of two (OpenAI Baselines); the paper does not clip values.
10. Defaults: value loss weighted by 0.5 (the paper on Atari: 1), clipped gradients, standardised
   advantages, a constant learning rate and clip (the paper on Atari: falling to 0), Adam's epsilon
   1e-5 (OpenAI Baselines).
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.actor_critic import advantages_and_returns, log_probs_and_entropies
from suite.base.errors import UsageError, require
from suite.base.randomness import stream
from suite.envs.tasks import Protocol
from suite.envs.vector_env import Spaces
from suite.nets.moments import DeviceMoments, RewardScale, RunningMoments
from suite.nets.networks import FrameLayers, Trunk
from suite.nets.optimisers import Adam, FlatWeights
from suite.player import ActionSampler, Player, PolicyNetwork, rebuild
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
    UnrollConfig,
    Whole,
)
from suite.settings.presets import Presets
from suite.unroll_session import UnrollSession, diagnostics
from suite.unrolls import Unroll, UnrollBatch, shuffled

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


def losses(
    log_ratios: Float[Tensor, "T N"],
    entropies: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    old_values: Float[Tensor, "T N"],
    advantages: Float[Tensor, "T N"],
    returns: Float[Tensor, "T N"],
    weights: Float[Tensor, "T N"],
    clip: Any,
    clip_values: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Return policy loss (Eq. 7 with a minus), squared error of V, entropy in nats (Eq. 9).

    Args:
        log_ratios: log pi(a|s) of the actions taken, minus that of the policy that acted.
        entropies: of the policy at each observation.
        values: of each observation, in the units of the returns.
        old_values: those before the unroll's updates.
        advantages: of the actions taken; no gradient flows through them.
        returns: targets of the values; no gradient flows through them.
        weights: 1 over the number of valid rows, 0 for invalid rows.
        clip: largest change of the ratio that is rewarded, epsilon; a float or a tensor.
        clip_values: whether the clip bounds changes of values, too.
    """
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1 - clip, 1 + clip)
    surrogate = torch.minimum(ratios * advantages, clipped_ratios * advantages)
    errors = (values - returns).square()
    if clip_values:
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped_values - returns).square())
    return (-surrogate * weights).sum(), (errors * weights).sum(), (entropies * weights).sum()


def standardise(advantages: Tensor, valid: Tensor) -> Float[Tensor, "T N"]:
    """Return advantages `[T, N]` with mean 0 and deviation 1 over valid rows.

    With fewer than two valid rows they are returned unchanged.
    """
    number = valid.sum().clamp(min=1)
    centred = (advantages - (advantages * valid).sum() / number) * valid
    std = (centred.square().sum() / (number - 1).clamp(min=1)).sqrt()
    return torch.where(number > 1, centred / (std + 1e-8), advantages)


@dataclass(frozen=True, kw_only=True)
class Config(UnrollConfig):
    """Settings beside `UnrollConfig`'s. Presets hold what sources set otherwise."""

    task: str = "CartPole-v1"
    """Name of a task."""
    protocol: Protocol = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    num_envs: Environments = 8
    """Environments, N (the paper: 1 on MuJoCo, 8 on Atari)."""
    unroll_length: Count = 128
    """Steps of every environment between two rounds of updates, T (the paper: 2,048 and 128)."""
    num_epochs: Count = 4
    """Epochs of updates on each unroll, K (the paper: 10 and 3)."""
    num_minibatches: Count = 4
    """Minibatches of an epoch, an update each: shares of the rows, or with an LSTM of the
    environments."""
    gae_lambda: Fraction = 0.95
    """Trace decay of the advantages."""
    clip: Positive = 0.2
    """Largest change of the ratio of probabilities that is rewarded, epsilon, at the start."""
    decay_clip: bool = False
    """Whether the clip falls as the learning rate does."""
    clip_values: bool = False
    """Whether the clip also bounds the change of a value, in units of the value head."""
    normalise_advantages: bool = True
    """Whether to give the advantages of each minibatch mean 0 and deviation 1."""
    recompute_advantages: bool = False
    """Whether to compute advantages and returns again before every epoch, with the new values."""
    max_kl: Positive | None = None
    """Divergence from the policy that acted, nats, above which epochs end; None: they never do."""
    shared_trunk: bool = False
    """Whether policy and value share all layers but their heads."""
    lstm_size: Whole = 0
    """Units of an LSTM before the heads of a shared trunk; 0: none."""
    value_head_gain: Positive = 1.0
    """Gain of the value's head where weights are orthogonal."""
    initial_log_std: LogStd = 0.0
    """Log standard deviation of continuous actions in [-1, 1] at the start; one per dimension."""
    learning_rate: Rate = 3e-4
    """Adam's step size at the start."""
    adam_epsilon: Positive = 1e-5
    """Keeps the step finite where gradients are small."""
    value_coef: NotNegative = 0.5
    """Weight of the mean squared error of the values (not halved)."""
    entropy_coef: NotNegative = 0.0
    """Weight of the policy's mean entropy, nats (the paper: 0 on MuJoCo, 0.01 on Atari)."""
    max_gradient_norm: Positive | None = 0.5
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    reward_normalisation: Literal["none", "discounted_returns", "value_targets"] = "none"
    """`discounted_returns`: divide rewards by the running standard deviation of the discounted sum
    of past rewards; `value_targets`: the value head predicts returns divided by their running
    standard deviation, while advantages stay in reward units."""
    reward_clip: Positive = 10.0
    """Bound of a reward divided by `discounted_returns`."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "sampled"
    """Evaluate actions drawn from the policy, or its mode; `training`: score training episodes."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `UnrollConfig`."""
        super().__post_init__()
        recurrent = self.lstm_size > 0
        number = self.num_envs if recurrent else self.unroll_rows
        rule = f"num_minibatches must divide {'num_envs' if recurrent else 'T * N'} = {number}"
        require(number % self.num_minibatches == 0, rule, self.num_minibatches)
        if self.lstm_size and not self.shared_trunk:
            raise UsageError("lstm_size needs shared_trunk: policy and value share the LSTM")


PRESETS = Presets("ppo", Config)  # a source's settings replace the defaults
FRAME_LAYERS = {  # by the width of frames: DQN's of Nature 2015, RLlib's for small ones
    84: FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512),
    42: FrameLayers(((16, 4, 2), (32, 4, 2)), width=256, same_padding=True),
}


class ActorCritic(PolicyNetwork):
    """Policy and value: one trunk with two heads, or one trunk each."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__(spaces, config.initial_log_std)
        trunk = partial(
            Trunk,
            spaces.obs_shape,
            generator=generator,
            hidden_sizes=config.hidden_sizes,
            frame_layers=FRAME_LAYERS.get(spaces.obs_shape[-1]),
            gain=config.hidden_gain,
            activation=config.activation,
            lstm_size=config.lstm_size,
            bfloat16=config.bfloat16,
        )
        policy_head = (spaces.num_outputs, config.policy_head_gain)
        value_head = (1, config.value_head_gain)
        shared = config.shared_trunk
        self.actor = trunk([policy_head, value_head] if shared else [policy_head])
        self.critic = None if shared else trunk([value_head])

    def unroll(
        self,
        obs: Float[Tensor, "R N ..."],
        memory: Float[Tensor, "N M"],
        valid: Float[Tensor, "T N"],
    ) -> tuple[Float[Tensor, "R N A"], Float[Tensor, "R N"]]:
        """Return logits (or means) and values of steps that began with a memory."""
        outputs = self.actor.unroll(obs, memory, valid)
        if self.critic is None:
            return outputs[..., :-1], outputs[..., -1]
        return outputs, self.critic.unroll(obs, None, valid)[..., 0]


@dataclass
class Learner:
    """Network, optimiser and running statistics of one seed."""

    network: ActorCritic
    optimiser: Adam
    obs_moments: RunningMoments | None  # they normalise observations; None: as they come
    return_moments: DeviceMoments | None  # their deviation is the value head's unit; None: 1


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build network and optimiser; initial weights come from the only seed's own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    optimiser = Adam(FlatWeights(network), config.adam_epsilon)
    obs_moments = RunningMoments(spaces.obs_shape) if config.normalise_observations else None
    scales_values = config.reward_normalisation == "value_targets"
    return_moments = DeviceMoments(device) if scales_values else None
    return Learner(network, optimiser, obs_moments, return_moments)


class Rows(NamedTuple):
    """Steps to learn from: an unroll `[T, N]`, environments of it `[T, B]`, or rows `[1, B]`."""

    obs: Tensor
    actions: Tensor
    valid: Tensor
    log_probs: Tensor  # of the actions, by the policy that acted
    values: Tensor  # before the updates, in the units of the value head
    advantages: Tensor
    returns: Tensor  # in the units of the value head


@torch.no_grad()
def with_advantages(learner: Learner, config: Config, batch: UnrollBatch, memory: Tensor) -> Rows:
    """Return an unroll with the log-probabilities, values and advantages of the current network."""
    network = learner.network
    outputs, head_values = network.unroll(batch.obs, memory, batch.valid)
    log_probs, _ = log_probs_and_entropies(outputs[:-1], network.log_stds, batch.actions)
    advantages, returns = advantages_and_returns(
        batch, head_values, config.gae_lambda, learner.return_moments
    )
    of_batch = batch.obs[:-1], batch.actions, batch.valid
    return Rows(*of_batch, log_probs, head_values[:-1], advantages, returns)


def update(
    learner: Learner,
    config: Config,
    minibatch: Rows,
    memory: Float[Tensor, "B M"],
    learning_rate: float | Tensor,
    clip: Any,
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch (Algorithm 1).

    Args:
        learner: network, optimiser and statistics; changed in place.
        config: the run's settings.
        minibatch: rows of an unroll, with what acted on them.
        memory: of the policy that acted, before the first step.
        learning_rate: step size of this update.
        clip: largest change of a ratio that is rewarded.

    Returns:
        diagnostics by name, on the learner's device.
    """
    valid, advantages, returns = minibatch.valid, minibatch.advantages, minibatch.returns
    outputs, values = learner.network.unroll(minibatch.obs, memory, valid)
    log_probs, entropies = log_probs_and_entropies(
        outputs, learner.network.log_stds, minibatch.actions
    )
    if config.normalise_advantages:
        advantages = standardise(advantages, valid)
    log_ratios = (log_probs - minibatch.log_probs).where(valid > 0, 0.0)
    policy_loss, value_loss, entropy = losses(
        log_ratios,
        entropies,
        values,
        minibatch.values,
        advantages,
        returns,
        weights=valid / valid.sum().clamp(min=1),
        clip=clip,
        clip_values=config.clip_values,
    )
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    norm = learner.optimiser.minimise(loss, learning_rate, config.max_gradient_norm)
    with torch.no_grad():
        numbers = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "gradient_norm": norm,
        }
        of_rows = {
            "approximate_kl": log_ratios.expm1() - log_ratios,  # unbiased, never below 0
            "clipped_share": (log_ratios.expm1().abs() > clip).float(),
        }
        return diagnostics(numbers, of_rows, returns, returns - values, valid)


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
    unroll = Unroll(config, session.env.spaces, session.device, moments)
    scale: RewardScale | None = None
    if config.reward_normalisation == "discounted_returns":
        scale = RewardScale(config.num_envs, config.gamma, config.reward_clip)
    action_stream, order_stream = session.stream("action noise"), session.stream("minibatches")
    state = {
        "stream": action_stream,
        "order": order_stream,
        "scale": scale,
        "memory": sampler.memory,
    }
    session.begin(learner, player, partial(update, learner, config), state)
    obs = unroll.put_obs(0, session.obs, session.are_new)  # [N, *obs]

    def learn(memory: Tensor) -> None:
        batch = unroll.transitions()
        if batch.is_empty:
            return
        rows = with_advantages(learner, config, batch, memory)
        rate, clip = session.learning_rate, config.clip
        if config.decay_clip:
            clip *= rate / config.learning_rate
        for epoch in range(config.num_epochs):
            if epoch and config.recompute_advantages:
                again = with_advantages(learner, config, batch, memory)
                rows = again._replace(log_probs=rows.log_probs)
            minibatches = shuffled(rows, memory, config.num_minibatches, order_stream)
            for minibatch, first_memory in minibatches:
                metrics = session.update(Rows(*minibatch), first_memory, rate, clip)
                if config.max_kl is not None and metrics["approximate_kl"] > config.max_kl:
                    return

    while session.continues():
        noise, memory = network.draw_noise(action_stream, unroll.shape), sampler.memory.clone()
        for t in range(config.unroll_length):
            unroll.actions[t], _ = sampler(obs, noise[t])
            step = session.step(unroll.actions[t])
            sampler.remember(unroll.actions[t], step)
            unroll.outcomes.put(t, step if scale is None else scale.of(step))
            obs = unroll.put_obs(t + 1, session.obs, session.are_new)
        learn(memory)
        obs = unroll.begin_again()
    session.save_policies(player.weights, ACTING)
    return learner


main = partial(train_in_turn, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
