"""Synchronous advantage actor-critic, A2C (Mnih et al. 2016, arXiv:1602.01783).

N environments take T steps with one policy. Advantages come from n-step returns, or are generalised
advantage estimates (arXiv:1506.02438). One RMSprop step follows, on policy, value and entropy
losses. Discrete and continuous actions.

    python -m agents.a2c --task CartPole-v1 --seeds 1 2 3 --env-steps 500000 --out runs/mine

| what                             | paper                    | here                 |
|----------------------------------|--------------------------|----------------------|
| advantages, or n-step returns    | arXiv:1506.02438, Eq. 16 | `suite.actor_critic` |
| log-probabilities and entropies  | Sections 4 and S9        | `suite.actor_critic` |
| bootstrap at a time limit        | number 3                 | `suite.unrolls`      |
| policy, value and entropy losses | Section 4, Algorithm S3  | `losses`             |
| one gradient step on one unroll  | Algorithm S3             | `update`             |
| T steps and one update in turn   | Algorithm S3             | `train`              |

Deviations from the paper, and details it leaves open:
1. Workers are synchronous: one gradient comes from N * T steps, and losses are means over valid
   rows (OpenAI Baselines), not sums. An unroll continues across the end of an episode. The seeds
   of a process are trained one after another.
2. The step after an episode's end only resets the simulator, which ignores the action. Losses,
   traces, statistics and `env_steps` leave such rows out; all other rows are valid.
3. At a time limit the return bootstraps from the last observation's value; with
   `time_limit_is_terminal` no value follows, as in some sources.
4. An update uses the learning rate of the step at which its unroll began.
5. A run ends before the unroll that could exceed `env_steps` (OpenAI Baselines).
6. The environment clips continuous actions; their density is that of the unclipped draw.
7. The update evaluates the network again on the whole unroll, in one batch; that is cheaper than
   to keep autograd's graph of every acting step.
8. Continuous actions have one log standard deviation per dimension, as in the sources; the paper's
   network outputs a variance, and learns from whole episodes.
9. Defaults: value loss weighted by 0.5 (the paper: 1), separate trunks (the paper: shared), clipped
   gradients, a constant learning rate (the paper: falling to 0), RMSprop's averages start at 1.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.actor_critic import advantages_and_returns, log_probs_and_entropies
from suite.base.randomness import stream
from suite.envs.tasks import Protocol
from suite.envs.vector_env import Spaces
from suite.nets.moments import DeviceMoments, RewardScale, RunningMoments
from suite.nets.networks import FrameLayers, Trunk
from suite.nets.optimisers import FlatWeights, RMSprop
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
    RMSpropConfig,
)
from suite.settings.presets import Presets
from suite.unroll_session import UnrollSession, diagnostics
from suite.unrolls import Unroll, UnrollBatch

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


def losses(
    log_probs: Float[Tensor, "T N"],
    entropies: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    advantages: Float[Tensor, "T N"],
    returns: Float[Tensor, "T N"],
    weights: Float[Tensor, "T N"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Return policy loss, squared error of V, entropy in nats (Section 4 and Algorithm S3).

    Args:
        log_probs: of the actions taken.
        entropies: of the policy at each observation.
        values: of each observation, in the units of `returns`.
        advantages: of the actions taken; no gradient flows through them.
        returns: targets of the values; no gradient flows through them.
        weights: 1 over the number of valid rows, 0 for invalid rows.
    """
    policy_loss = -(log_probs * (advantages * weights)).sum()
    value_loss = ((values - returns).square() * weights).sum()
    return policy_loss, value_loss, (entropies * weights).sum()


@dataclass(frozen=True, kw_only=True)
class Config(RMSpropConfig):
    """Settings beside `RMSpropConfig`'s. Presets hold what sources set otherwise."""

    task: str = "CartPole-v1"
    """Name of a task."""
    protocol: Protocol = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 500_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    num_envs: Environments = 16
    """Environments, N (the paper: 16 workers)."""
    unroll_length: Count = 5
    """Steps of every environment between two updates, T (the paper's t_max: 5)."""
    gae_lambda: Fraction = 1.0
    """Trace decay of the advantages; 1 gives the n-step returns of the paper."""
    convolutions: Literal["nature", "a3c"] = "nature"
    """Layers for uint8 frames: DQN's of 2015 (three convolutions and 512 units) or of 2013 (two and
    256)."""
    shared_trunk: bool = False
    """Whether policy and value share all layers but their heads."""
    initialisation: Literal["orthogonal", "nnabla_rl"] = "orthogonal"
    """Initial weights; gains are for orthogonal ones. `nnabla_rl`: normal ones of unit norm, and
    Glorot's uniform ones in the heads."""
    value_head_gain: Positive = 1.0
    """Gain of the value's head where weights are orthogonal."""
    initial_log_std: LogStd = 0.0
    """Log standard deviation of continuous actions in [-1, 1] at the start; one per dimension."""
    learning_rate: Rate = 7e-4
    """RMSprop step size at the start."""
    value_coef: NotNegative = 0.5
    """Weight of the mean squared error of the values (not halved)."""
    entropy_coef: NotNegative = 0.01
    """Weight of the policy's mean entropy, nats (the paper: 0.01; on MuJoCo 1e-4)."""
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


PRESETS = Presets("a2c", Config)  # a source's settings replace the defaults


FRAME_LAYERS = {  # DQN's of Nature 2015, and those of the A3C paper, Section 8
    "nature": FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512),
    "a3c": FrameLayers(((16, 8, 4), (32, 4, 2)), width=256),
}


class ActorCritic(PolicyNetwork):
    """Policy and value: one trunk with two heads, or one trunk each."""

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__(spaces, config.initial_log_std)
        orthogonal = config.initialisation == "orthogonal"
        trunk = partial(
            Trunk,
            spaces.obs_shape,
            generator=generator,
            hidden_sizes=config.hidden_sizes,
            frame_layers=FRAME_LAYERS[config.convolutions],
            scheme="orthogonal" if orthogonal else "unit_norm",
            head_scheme=None if orthogonal else "glorot_uniform",
            gain=config.hidden_gain,
            activation=config.activation,
            bfloat16=config.bfloat16,
        )
        policy_head = (spaces.num_outputs, config.policy_head_gain)
        value_head = (1, config.value_head_gain)
        shared = config.shared_trunk
        self.actor = trunk([policy_head, value_head] if shared else [policy_head])
        self.critic = None if shared else trunk([value_head])

    def forward(
        self, obs: Float[Tensor, "B ..."]
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Return logits (or means of continuous actions) and values."""
        outputs = self.actor(obs)
        if self.critic is None:
            return outputs[:, :-1], outputs[:, -1]
        return outputs, self.critic(obs).squeeze(1)

    def value(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, " B"]:
        """Return values alone."""
        return self.actor(obs)[:, -1] if self.critic is None else self.critic(obs).squeeze(1)


@dataclass
class Learner:
    """Network, optimiser and running statistics of one seed."""

    network: ActorCritic
    optimiser: RMSprop
    obs_moments: RunningMoments | None
    """Statistics that normalise observations; None: observations are not normalised."""
    return_moments: DeviceMoments | None
    """Statistics of the returns, whose deviation is the value head's unit; None: it is 1."""


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build network and optimiser; initial weights come from the only seed's own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    optimiser = RMSprop(FlatWeights(network), config)
    obs_moments = RunningMoments(spaces.obs_shape) if config.normalise_observations else None
    scales_values = config.reward_normalisation == "value_targets"
    return_moments = DeviceMoments(device) if scales_values else None
    return Learner(network, optimiser, obs_moments, return_moments)


def evaluate_actions(
    network: ActorCritic, obs: Tensor, actions: Tensor
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s), entropies and values of `obs` `[T, N, *obs]` and `actions`."""
    outputs, values = network(obs.flatten(0, 1))
    outputs, values = outputs.unflatten(0, obs.shape[:2]), values.unflatten(0, obs.shape[:2])
    return *log_probs_and_entropies(outputs, network.log_stds, actions), values


@torch.no_grad()
def targets(
    learner: Learner, config: Config, batch: UnrollBatch, values: Float[Tensor, "T N"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return advantages in reward units, and returns in the units of the value head."""
    last_values = learner.network.value(batch.obs[-1])
    all_values = torch.cat([values.detach(), last_values.unsqueeze(0)])
    return advantages_and_returns(batch, all_values, config.gae_lambda, learner.return_moments)


def update(
    learner: Learner, config: Config, batch: UnrollBatch, learning_rate: float | Tensor
) -> dict[str, Tensor]:
    """Make one gradient step on one unroll (Algorithm S3).

    Args:
        learner: network, optimiser and statistics; changed in place.
        config: the run's settings.
        batch: the unroll.
        learning_rate: step size of this update.

    Returns:
        diagnostics by name, on the learner's device.
    """
    log_probs, entropies, values = evaluate_actions(learner.network, batch.obs[:-1], batch.actions)
    advantages, returns = targets(learner, config, batch, values)
    policy_loss, value_loss, entropy = losses(
        log_probs, entropies, values, advantages, returns, batch.weights
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
        return diagnostics(numbers, {}, returns, returns - values, batch.valid)


ACTING = (
    *("convolutions", "bfloat16", "hidden_sizes", "activation", "shared_trunk"),
    "observation_clip",
)
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
    action_stream = session.stream("action noise")
    state = {"stream": action_stream, "scale": scale}
    session.begin(learner, player, partial(update, learner, config), state)
    obs = unroll.put_obs(0, session.obs, session.are_new)  # [N, *obs]
    while session.continues():
        noise = network.draw_noise(action_stream, unroll.shape)
        for t in range(config.unroll_length):
            unroll.actions[t], _ = sampler(obs, noise[t])
            step = session.step(unroll.actions[t])
            unroll.outcomes.put(t, step if scale is None else scale.of(step))
            obs = unroll.put_obs(t + 1, session.obs, session.are_new)
        batch = unroll.transitions()
        if not batch.is_empty:
            session.update(batch, session.learning_rate)
        obs = unroll.begin_again()
    session.save_policies(player.weights, ACTING)
    return learner


main = partial(train_in_turn, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
