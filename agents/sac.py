"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

A tanh-Gaussian policy maximises reward plus entropy; K critics learn its soft action values from
uniform replay; a temperature keeps the entropy near a target.

    python -m agents.sac --task HalfCheetah-v4 --seeds 1 2 3 --env-steps 1000000 --out runs/mine

| what                                         | paper       | here              |
|----------------------------------------------|-------------|-------------------|
| actions and their density under the tanh     | Appendix C  | `squash`          |
| soft Bellman targets; the minimum: Section 6 | Eqs. 2, 3   | `q_targets`       |
| squared soft Bellman residual                | Eq. 5       | `critic_loss`     |
| policy objective at reparametrised actions   | Eqs. 7 - 9  | `actor_loss`      |
| temperature objective                        | Eq. 18      | `alpha_loss`      |
| environment steps and gradient steps in turn | Algorithm 1 | `train`, `update` |

Seeds are an axis: each has networks of its own, batches are `[S, B, ...]`, losses are averaged over
B and summed over S, so the seeds of one process do not affect each other.

Deviations from the paper, and details it leaves open:
1. The log-density and the target entropy are measured in [-1, 1], where the policy acts. Scaling
   to the task's bounds happens in the environment and is not corrected for.
2. The density of a = tanh(u) is log N(u; mean, std) - sum_i log(1 - tanh(u_i)^2) (Appendix C). The
   correction is computed as 2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact where it would underflow.
3. Order: critics; actor, by the updated critics; temperature, by its entropy; target copies.
4. Initial weights are uniform in the bounds of Glorot & Bengio (2010) with zero biases, as in the
   authors' code; the paper states none. `separate_heads` draws the actor's outputs as two layers.
5. Warm-up, bounds of the log standard deviation and evaluation are as in nnabla_rl's reproduction.
   The temperature starts at 1, as in the authors' code, and is learned as its logarithm. Its loss
   has alpha as its factor (Eq. 18); stable-baselines3's and Tianshou's have log alpha.
6. A step cut by the time limit bootstraps; a termination does not.
7. The update ratio counts transitions: a vector step has `update_ratio * num_envs` updates.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from suite.base.errors import UsageError, require
from suite.base.noise import normal, stacked
from suite.base.randomness import stream
from suite.envs.vector_env import Spaces
from suite.graphs import as_graph
from suite.nets.perceptrons import Ensemble, Perceptron, weight_norms
from suite.policy import Policy, config_of, for_one_seed
from suite.record.recorder import Recorder
from suite.replay import Batch, Replay
from suite.session import Act, train_together
from suite.settings.command_line import run_main
from suite.settings.config import (
    Count,
    NotNegative,
    Positive,
    Rate,
    TransitionConfig,
    Whole,
    Widths,
)
from suite.settings.presets import Presets
from suite.step_session import StepSession

BEHAVIOUR = 3  # goes up when the bytes of a run change: see CONTRIBUTING.md


def squash(
    means: Float[Tensor, "S B A"], log_stds: Float[Tensor, "S B A"], noise: Float[Tensor, "S B A"]
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B"]]:
    """Return actions tanh(u), u = mean + std * noise, and log pi(a|s) in nats (Appendix C)."""
    u = means + log_stds.exp() * noise
    log_normal = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    size = u.abs()
    log_slope = 2 * (math.log(2) - size - torch.log1p(torch.exp(-2 * size)))  # log(1 - tanh(u)^2)
    return torch.tanh(u), (log_normal - log_slope).sum(-1)


def q_targets(
    rewards: Float[Tensor, "S B"],
    terminations: Float[Tensor, "S B"],
    next_q_values: Float[Tensor, "S K B"],
    next_log_probs: Float[Tensor, "S B"],
    alpha: Float[Tensor, " S"],
    gamma: float,
) -> Float[Tensor, "S B"]:
    """Return soft Bellman targets r + gamma (min_k Q_k(s', a') - alpha log pi(a'|s')) (Eqs. 2, 3).

    Args:
        rewards: as learned from, after scaling.
        terminations: 1 where no value follows; 0 at a time limit, which bootstraps.
        next_q_values: of the target copies, at actions drawn from the current policy.
        next_log_probs: of those actions, nats.
        alpha: temperature of each seed.
        gamma: discount per decision.
    """
    next_values = next_q_values.amin(1) - alpha[:, None] * next_log_probs
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(
    q_values: Float[Tensor, "S K B"], targets: Float[Tensor, "S B"]
) -> Float[Tensor, " S"]:
    """Return the squared soft Bellman residual, halved, averaged over B, summed over K (Eq. 5)."""
    return 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)


def actor_loss(
    log_probs: Float[Tensor, "S B"], q_values: Float[Tensor, "S K B"], alpha: Float[Tensor, " S"]
) -> Float[Tensor, " S"]:
    """Return the mean of alpha log pi(a|s) - min_k Q_k(s, a) at reparametrised a (Eq. 9)."""
    return (alpha[:, None] * log_probs - q_values.amin(1)).mean(-1)


def alpha_loss(
    alpha: Float[Tensor, " S"], entropy: Float[Tensor, " S"], target_entropy: float
) -> Float[Tensor, " S"]:
    """Return alpha (entropy - target entropy), with the entropy the mean of -log pi (Eq. 18)."""
    return alpha * (entropy - target_entropy)


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Settings beside `TransitionConfig`'s; the paper's, where it has any (Appendix D)."""

    task: str = "HalfCheetah-v4"
    """Name of a task with continuous actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions); the warm-up counts."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    num_critics: Count = 2
    """Critics, K; targets and actor use their minimum."""
    initialisation: Literal["glorot_uniform", "orthogonal", "lecun_normal", "torch"] = (
        "glorot_uniform"
    )
    """Initial weights; gains are for orthogonal ones. `torch`: as `nn.Linear` draws them."""
    hidden_gain: Positive = 2**0.5
    """Gain of orthogonal weights, all layers but the actor's last."""
    policy_head_gain: Positive = 1.0
    """Gain of the actor's last layer where weights are orthogonal."""
    separate_heads: bool = False
    """Draw the actor's means and log deviations as two layers, not as one of twice the width."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, before the tanh."""
    log_std_bound: Literal["clip", "tanh"] = "clip"
    """How the bounds are enforced: clipping, or a tanh stretched between them."""
    actor_learning_rate: Rate = 3e-4
    """Adam step size of the policy."""
    critic_learning_rate: Rate = 3e-4
    """Adam step size of the critics."""
    alpha_learning_rate: Rate = 3e-4
    """Adam step size of the log temperature."""
    initial_alpha: NotNegative = 1.0
    """Temperature at the start; 0 is allowed where it is not learned."""
    learn_alpha: bool = True
    """Learn the temperature (Section 5) or keep `initial_alpha`."""
    target_entropy_per_action: float = -1.0
    """Target entropy in nats per action dimension, measured in [-1, 1]; the paper: -1."""
    reward_scale: Positive = 1.0
    """Factor on rewards before learning; recorded returns are unscaled."""
    learning_starts: Whole = 10_000
    """Uniformly random environment steps before the first update."""
    policy_period: Count = 1
    """Critic updates per turn of actor and temperature; a turn makes as many updates of each, on
    the same batch."""
    target_period: Count = 1
    """Critic updates per update of the target copies."""
    cuda_graphs: bool = True
    """Whether a GPU is given each choice of actions and each update as one CUDA graph, not kernel
    by kernel; without a GPU it is ignored."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `TransitionConfig`."""
        super().__post_init__()
        if self.find_task().actions != "continuous" and not self.takes_hybrid_actions:
            raise UsageError(f"this agent needs continuous actions; {self.task} has discrete ones")
        lowest, highest, alpha = self.log_std_min, self.log_std_max, self.initial_alpha
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)
        require(alpha > 0 or not self.learn_alpha, "a learned initial_alpha must be above 0", alpha)


PRESETS = Presets("sac", Config)  # a source's settings replace the defaults


def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's 2 A outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    low, high = config.log_std_min, config.log_std_max
    if config.log_std_bound == "clip":
        return means, log_stds.clamp(low, high)
    return means, low + 0.5 * (high - low) * (torch.tanh(log_stds) + 1)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: Ensemble
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`."""
    critics: Ensemble
    target_critics: Ensemble
    log_alpha: Tensor  # [S]
    actor_optimiser: Adam
    critic_optimiser: Adam
    alpha_optimiser: Adam

    def health(self) -> dict[str, Tensor]:
        """Return numbers that are finite unless a seed diverges."""
        norms = weight_norms(self.actor, self.critics)
        return {"weight_norm": norms, "alpha": self.log_alpha.exp()}


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Build networks and optimisers; each seed's weights come from that seed's own stream."""
    scheme, gain = config.initialisation, config.hidden_gain
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    num_heads = 2 if config.separate_heads else 1  # means and log standard deviations
    policy_heads = [(2 * action_size // num_heads, config.policy_head_gain)] * num_heads
    actors, critics = [], []
    for seed in config.seeds:
        draw = partial(Perceptron.drawn, stream(seed, "initial weights"), scheme=scheme, gain=gain)
        actors.append([draw(sizes, policy_heads)])
        critics.append([draw(pair_sizes, [(1, gain)]) for _ in range(config.num_critics)])
    actor, online = Ensemble(actors, device), Ensemble(critics, device)
    initial = -math.inf if config.initial_alpha == 0 else math.log(config.initial_alpha)
    log_alpha = torch.full((len(config.seeds),), initial, device=device, requires_grad=True)
    on_gpu = device.type == "cuda"
    adam = partial(Adam, capturable=on_gpu)
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        log_alpha=log_alpha,
        actor_optimiser=adam(actor.parameters(), config.actor_learning_rate, fused=True),
        critic_optimiser=adam(online.parameters(), config.critic_learning_rate, fused=True),
        # fused on a CPU, the bits of a seed's number would depend on how many there are
        alpha_optimiser=adam([log_alpha], config.alpha_learning_rate, fused=on_gpu),
    )


def minimise(losses: Float[Tensor, " S"], optimiser: torch.optim.Optimizer) -> None:
    """Make one gradient step; each seed's loss depends on its own weights alone."""
    optimiser.zero_grad()
    losses.sum().backward()
    optimiser.step()


def parts_due(config: Config, number: int) -> tuple[bool, bool]:
    """Return whether update `number`, from 0, also moves the actor, and the target copies."""
    return number % config.policy_period == 0, (number + 1) % config.target_period == 0


def update(
    learner: Learner, config: Config, batch: Batch, noise: Tensor, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: critics, then actor and temperature, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        noise: standard normal draws, `[1 + policy_period, S, B, A]`: the first for the targets.
        num_updates: updates made before this one, which the periods count.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    alpha = learner.log_alpha.detach().exp()
    next_noise, *actor_noise = noise
    actor_is_due, targets_are_due = parts_due(config, num_updates)
    with torch.no_grad():
        means, log_stds = split_outputs(learner.actor(batch.next_obs), config)
        next_actions, next_log_probs = squash(means, log_stds, next_noise)
        next_pairs = torch.cat([batch.next_obs, next_actions], -1)
        next_q_values = learner.target_critics(next_pairs).squeeze(-1)  # [S, K, B]
        targets = q_targets(
            batch.rewards, batch.terminations, next_q_values, next_log_probs, alpha, config.gamma
        )
    q_values = learner.critics(batch.obs_actions).squeeze(-1)  # [S, K, B]
    losses = critic_loss(q_values, targets)
    minimise(losses, learner.critic_optimiser)
    metrics = {"critic_loss": losses.detach(), "q_value": q_values.detach().mean((1, 2))}
    if actor_is_due:
        for draws in actor_noise:
            metrics |= _update_actor(learner, config, batch.obs, draws)
    if targets_are_due:
        learner.target_critics.follow(learner.critics, config.tau)
    return metrics


def _update_actor(
    learner: Learner, config: Config, obs: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against fixed critics, and one of the temperature."""
    alpha = learner.log_alpha.detach().exp()
    actions, log_probs = squash(*split_outputs(learner.actor(obs), config), noise)
    with learner.critics.frozen():
        q_values = learner.critics(torch.cat([obs, actions], -1)).squeeze(-1)
    losses, entropy = actor_loss(log_probs, q_values, alpha), -log_probs.detach().mean(-1)
    minimise(losses, learner.actor_optimiser)
    if config.learn_alpha:
        target_entropy = config.target_entropy_per_action * actions.shape[-1]
        alpha_losses = alpha_loss(learner.log_alpha.exp(), entropy, target_entropy)
        minimise(alpha_losses, learner.alpha_optimiser)
    return {"actor_loss": losses.detach(), "entropy": entropy, "alpha": alpha}


def policy_of(actor: Ensemble, config: Config, action_size: int) -> Act:
    """Return a function from S seeds' observations `[S, N, O]` to actions in [-1, 1], `[S, N, A]`.

    Given each seed's stream of noise, it draws from the policies; otherwise it returns the modes.
    """

    @torch.no_grad()
    def draw_actions(obs: Tensor, noise: Tensor | None = None) -> Tensor:
        means, log_stds = split_outputs(actor(obs), config)
        return torch.tanh(means if noise is None else means + log_stds.exp() * noise)

    launch = as_graph(draw_actions, (), config, actor.device)

    def act(obs: np.ndarray, streams: Sequence[np.random.Generator] | None = None) -> np.ndarray:
        inputs = [torch.as_tensor(obs, dtype=torch.float32, device=actor.device)]
        if streams is not None:
            shape = obs.shape[1], action_size
            inputs.append(stacked(normal, streams, shape, actor.device))
        return launch(*inputs).cpu().numpy()

    return act


ACTING = ("log_std_min", "log_std_max", "log_std_bound")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    actor = Ensemble([[Perceptron.from_weights(weights)]])
    decide = for_one_seed(policy_of(actor, config, spaces.num_outputs))
    return Policy(config.find_task(), spaces, decide)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner."""
    session = StepSession(config, recorder)
    (obs_size,), (action_size,) = session.env.obs_shape, session.env.action_shape
    learner = make_learner(config, obs_size, action_size, session.device)
    sizes = (config.replay_size, config.num_envs, obs_size, action_size)
    replay = Replay(len(config.seeds), *sizes, session.device)
    store = partial(replay.store, scale=config.reward_scale)
    policy = policy_of(learner.actor, config, action_size)

    def learn(number: int, rows: Tensor, noise: Tensor) -> dict[str, Tensor]:
        return update(learner, config, replay.batch(rows), noise, number)

    noise_shape = (1 + config.policy_period, config.batch_size, action_size)
    draws, due = session.draws(noise_shape), partial(parts_due, config)
    session.begin(
        learner, store, learn, replay, draws, warm_up=config.learning_starts, phase_of=due
    )
    while session.continues(policy, learner.actor.weights_of, learner.health):
        if session.warms_up:
            actions = session.random_actions()
        else:
            actions = policy(session.obs, session.action_streams)
        session.step(actions)  # into replay; due updates that draw older rows run meanwhile
        session.finish_updates()
    session.save_policies(learner.actor.weights_of, ACTING)
    return learner


main = partial(train_together, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
