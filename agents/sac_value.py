"""Soft actor-critic with a state-value network (Haarnoja et al. 2018, arXiv:1801.01290).

The first SAC paper: a tanh-Gaussian policy maximises reward plus entropy, and the scale of the
rewards fixes the weight of the entropy. A network V learns soft state values, K critics learn soft
action values from V's slow copy; all learn from uniform replay.

    python -m agents.sac_value --task HalfCheetah-v4 --seeds 1 2 3 --env-steps 1000000 --out runs/v

| what                                         | paper       | here              |
|----------------------------------------------|-------------|-------------------|
| actions and their density under the tanh     | Appendix C  | `squash`          |
| soft state values; the minimum: Section 4.2  | Eq. 3       | `value_targets`   |
| squared residual of V                        | Eq. 5       | `value_loss`      |
| soft Bellman targets from V's slow copy      | Eq. 8       | `q_targets`       |
| squared soft Bellman residual                | Eq. 7       | `critic_loss`     |
| reparametrised policy objective              | Eqs. 11, 12 | `actor_loss`      |
| environment steps and gradient steps in turn | Algorithm 1 | `train`, `update` |

What differs from `agents/sac.py`, the second paper: V's slow copy replaces the critics' copies, the
temperature is fixed, the inverse of `reward_scale`, and there are fewer options.

Seeds are an axis: each has networks of its own, batches are `[S, B, ...]`, losses are averaged over
B and summed over S, so the seeds of one process do not affect each other.

Deviations from the paper, and details it leaves open:
1. Order within an update: V, critics, then the actor against the updated critics, then V's slow
   copy (Algorithm 1). V's target and the actor's loss have draws of their own, as in nnabla_rl's
   reproduction; the authors' code takes all gradients at once, with the same draws.
2. The actor's loss has the minimum over critics, as the text of Section 4.2 says; in the authors'
   code it is the first critic alone.
3. Initial weights are uniform in the bounds of Glorot & Bengio (2010) with zero biases, as in
   nnabla_rl's reproduction; the paper states none. The actor's last layer is drawn as one.
4. Bounds of the log standard deviation, evaluation and warm-up (`BY_TASK`) are as in nnabla_rl's
   reproduction. The paper scores one episode every 1,000 steps. The authors' code takes as many
   random actions, but learns from step 1,000 on (haarnoja/sac@8258e33:examples/variants.py:266).
5. All else is as in `agents/sac.py`, numbers 1, 2, 6 and 7.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from suite.base.errors import UsageError, require
from suite.base.noise import normal, stacked
from suite.base.randomness import stream
from suite.envs.vector_env import Spaces
from suite.nets.perceptrons import Ensemble, Perceptron, weight_norms
from suite.policy import Policy, config_of, for_one_seed
from suite.record.recorder import Recorder
from suite.replay import Batch, Replay
from suite.session import train_together
from suite.settings.command_line import run_main
from suite.settings.config import Count, Positive, Rate, TransitionConfig, Whole, Widths
from suite.settings.presets import Presets
from suite.step_session import StepSession

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


# Same in: sac.py
def squash(
    means: Float[Tensor, "S B A"], log_stds: Float[Tensor, "S B A"], noise: Float[Tensor, "S B A"]
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B"]]:
    """Return actions tanh(u), u = mean + std * noise, and log pi(a|s) in nats (Appendix C)."""
    u = means + log_stds.exp() * noise
    log_normal = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    size = u.abs()
    log_slope = 2 * (math.log(2) - size - torch.log1p(torch.exp(-2 * size)))  # log(1 - tanh(u)^2)
    return torch.tanh(u), (log_normal - log_slope).sum(-1)


def value_targets(
    q_values: Float[Tensor, "S K B"], log_probs: Float[Tensor, "S B"]
) -> Float[Tensor, "S B"]:
    """Return soft values min_k Q_k(s, a) - log pi(a|s) at one action of pi each (Eq. 3)."""
    return q_values.amin(1) - log_probs


def value_loss(values: Float[Tensor, "S B"], targets: Float[Tensor, "S B"]) -> Float[Tensor, " S"]:
    """Return the squared residual of V, halved, averaged over B (Eq. 5)."""
    return 0.5 * (values - targets).square().mean(-1)


def q_targets(
    rewards: Float[Tensor, "S B"],
    terminations: Float[Tensor, "S B"],
    next_values: Float[Tensor, "S B"],
    gamma: float,
) -> Float[Tensor, "S B"]:
    """Return soft Bellman targets r + gamma V(s') with V's slow copy (Eq. 8)."""
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(
    q_values: Float[Tensor, "S K B"], targets: Float[Tensor, "S B"]
) -> Float[Tensor, " S"]:
    """Return the squared soft Bellman residual, halved, averaged over B, summed over K (Eq. 7)."""
    return 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)


def actor_loss(
    log_probs: Float[Tensor, "S B"], q_values: Float[Tensor, "S K B"]
) -> Float[Tensor, " S"]:
    """Return the mean of log pi(a|s) - min_k Q_k(s, a) at reparametrised a (Eqs. 11, 12)."""
    return (log_probs - q_values.amin(1)).mean(-1)


BY_TASK = {"HalfCheetah": (5.0, 10_000), "Ant": (5.0, 10_000), "Humanoid": (20.0, 1_000)}
"""Factor on rewards (Table 2) and random steps before the first update, by task of any version."""
OTHERWISE = (5.0, 1_000)
"""Those of Hopper and Walker2d, and here of every task that the paper lacks."""


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Settings beside `TransitionConfig`'s; the paper's, where it has any (Appendix D)."""

    task: str = "HalfCheetah-v4"
    """Name of a task with continuous actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions); the warm-up counts."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor, critics and V."""
    num_critics: Count = 2
    """Critics, K; V and the actor learn from their minimum."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, before the tanh."""
    learning_rate: Rate = 3e-4
    """Adam step size of actor, critics and V."""
    reward_scale: Positive | None = None
    """Factor on rewards before learning, the inverse of a temperature; None: as in `BY_TASK`."""
    learning_starts: Whole | None = None
    """Uniformly random environment steps before the first update; None: as in `BY_TASK`."""
    target_period: Count = 1
    """Updates of V per update of its slow copy."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `TransitionConfig`."""
        super().__post_init__()
        if self.find_task().actions != "continuous":
            raise UsageError(f"this agent needs continuous actions; {self.task} has discrete ones")
        lowest, highest = self.log_std_min, self.log_std_max
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)
        rule = f"learning_starts must be a multiple of num_envs {self.num_envs}"
        require(self.warm_up_steps % self.num_envs == 0, rule, self.warm_up_steps)

    @property
    def reward_factor(self) -> float:
        """Return the factor on rewards: `reward_scale`, or that of the task."""
        return self._of_task[0] if self.reward_scale is None else self.reward_scale

    @property
    def warm_up_steps(self) -> int:
        """Return the steps before the first update: `learning_starts`, or those of the task."""
        return self._of_task[1] if self.learning_starts is None else self.learning_starts

    @property
    def _of_task(self) -> tuple[float, int]:
        return BY_TASK.get(self.task.rpartition(":")[2].rpartition("-")[0], OTHERWISE)


PRESETS = Presets("sac_value", Config)


def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's 2 A outputs into means and clipped log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    return means, log_stds.clamp(config.log_std_min, config.log_std_max)


@dataclass
class Learner:
    """Networks and optimisers of S seeds."""

    actor: Ensemble  # means and log standard deviations side by side, [S, 1, B, 2 A]
    critics: Ensemble
    value: Ensemble  # V of observations, [S, 1, B, 1]
    target_value: Ensemble
    actor_optimiser: Adam
    critic_optimiser: Adam
    value_optimiser: Adam

    def health(self) -> dict[str, Tensor]:
        """Return numbers that are finite unless a seed diverges."""
        return {"weight_norm": weight_norms(self.actor, self.critics, self.value)}


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Build networks and optimisers; each seed's weights come from that seed's own stream."""
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    actors, critics, values = [], [], []
    for seed in config.seeds:
        draw = partial(Perceptron.drawn, stream(seed, "initial weights"))
        draw = partial(draw, scheme="glorot_uniform", gain=1.0)
        actors.append([draw(sizes, [(2 * action_size, 1.0)])])
        critics.append([draw(pair_sizes, [(1, 1.0)]) for _ in range(config.num_critics)])
        values.append([draw(sizes, [(1, 1.0)])])
    actor, online, value = (Ensemble(each, device) for each in (actors, critics, values))
    adam = partial(Adam, lr=config.learning_rate, fused=True)
    return Learner(
        actor=actor,
        critics=online,
        value=value,
        target_value=copy.deepcopy(value).requires_grad_(False),
        actor_optimiser=adam(actor.parameters()),
        critic_optimiser=adam(online.parameters()),
        value_optimiser=adam(value.parameters()),
    )


# Same in: sac.py
def minimise(losses: Float[Tensor, " S"], optimiser: torch.optim.Optimizer) -> None:
    """Make one gradient step; each seed's loss depends on its own weights alone."""
    optimiser.zero_grad()
    losses.sum().backward()
    optimiser.step()


def update(
    learner: Learner, config: Config, batch: Batch, noise: Tensor, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: V, then critics, then the actor, then V's slow copy.

    Args:
        learner: networks and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        noise: standard normal draws, `[2, S, B, A]`: for V's targets, and for the actor.
        num_updates: updates made before this one, which `target_period` counts.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    policy = split_outputs(learner.actor(batch.obs), config)  # for V's targets and the actor
    with torch.no_grad():
        actions, log_probs = squash(*policy, noise[0])
        drawn_q_values = learner.critics(torch.cat([batch.obs, actions], -1)).squeeze(-1)
        next_values = learner.target_value(batch.next_obs).flatten(1)
        targets = q_targets(batch.rewards, batch.terminations, next_values, config.gamma)
    values = learner.value(batch.obs).flatten(1)  # [S, B]
    value_losses = value_loss(values, value_targets(drawn_q_values, log_probs))
    minimise(value_losses, learner.value_optimiser)
    q_values = learner.critics(batch.obs_actions).squeeze(-1)  # [S, K, B]
    losses = critic_loss(q_values, targets)
    minimise(losses, learner.critic_optimiser)
    metrics = {"value_loss": value_losses.detach(), "critic_loss": losses.detach()}
    metrics |= {"value": values.detach().mean(-1), "q_value": q_values.detach().mean((1, 2))}
    actions, log_probs = squash(*policy, noise[1])
    with learner.critics.frozen():
        q_values = learner.critics(torch.cat([batch.obs, actions], -1)).squeeze(-1)
    losses = actor_loss(log_probs, q_values)
    minimise(losses, learner.actor_optimiser)
    metrics |= {"actor_loss": losses.detach(), "entropy": -log_probs.detach().mean(-1)}
    if (num_updates + 1) % config.target_period == 0:
        learner.target_value.follow(learner.value, config.tau)
    return metrics


@torch.no_grad()
def act(
    actor: Ensemble,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Return actions in [-1, 1], `[S, N, A]`, for observations `[S, N, O]`.

    Args:
        actor: the policies of S seeds.
        config: the run's settings.
        obs: observations of each seed's environments.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
    """
    inputs = torch.as_tensor(obs, dtype=torch.float32, device=actor.device)
    means, log_stds = split_outputs(actor(inputs), config)
    if streams is None:
        return torch.tanh(means).cpu().numpy()
    noise = stacked(normal, streams, means.shape[1:], means.device)
    return torch.tanh(means + log_stds.exp() * noise).cpu().numpy()


ACTING = ("log_std_min", "log_std_max")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    decide = for_one_seed(partial(act, Ensemble([[Perceptron.from_weights(weights)]]), config))
    return Policy(config.find_task(), spaces, decide)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner."""
    session = StepSession(config, recorder)
    (obs_size,), (action_size,) = session.env.obs_shape, session.env.action_shape
    learner = make_learner(config, obs_size, action_size, session.device)
    sizes = (config.replay_size, config.num_envs, obs_size, action_size)
    replay = Replay(len(config.seeds), *sizes, session.device)
    store = partial(replay.store, scale=config.reward_factor)
    policy = partial(act, learner.actor, config)

    def learn(number: int, rows: Tensor, noise: Tensor) -> dict[str, Tensor]:
        return update(learner, config, replay.batch(rows), noise, number)

    draws = session.draws((2, config.batch_size, action_size))
    session.begin(learner, store, learn, replay, draws, warm_up=config.warm_up_steps)
    while session.continues(policy, learner.actor.weights_of, learner.health):
        if session.warms_up:
            actions = session.random_actions()
        else:
            actions = policy(session.obs, session.action_streams)
        session.step(actions)
        session.finish_updates()
    session.save_policies(learner.actor.weights_of, ACTING)
    return learner


main = partial(train_together, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
