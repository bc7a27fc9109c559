"""Soft actor-critic with a state-value network (Haarnoja et al. 2018, arXiv:1801.01290).

The first SAC paper: a tanh-Gaussian policy maximises reward plus entropy, whose weight is fixed by
the scale of the rewards; a network V learns soft state values, K critics learn soft action values
from V's slow copy, all from uniform replay. `agents/sac.py` is the second paper: without V, with a
learned temperature.

    python -m agents.sac_value --task HalfCheetah-v4 --seeds 1 2 3 --env-steps 1000000 --out runs/v

| what                                         | paper       | here              |
|----------------------------------------------|-------------|-------------------|
| actions and their density under the tanh     | Appendix C  | `squash` (suite)  |
| soft state values; the minimum: Section 4.2  | Eq. 3       | `value_targets`   |
| squared residual of V                        | Eq. 5       | `value_loss`      |
| soft Bellman targets from V's slow copy      | Eq. 8       | `q_targets`       |
| squared soft Bellman residual                | Eq. 7       | `critic_loss`     |
| reparametrised policy objective              | Eqs. 11, 12 | `actor_loss`      |
| environment steps and gradient steps in turn | Algorithm 1 | `train`, `update` |

Seeds are an axis: weights are `[S, K, in, out]`, batches `[S, B, ...]`, losses are averaged over B
and summed over S, so the seeds of one process never touch each other.

Deviations from the paper, and details it leaves open:
1. The log-density is measured in [-1, 1], where the policy acts. Scaling to the task's bounds
   happens in the environment and is not corrected for.
2. The tanh correction log(1 - tanh(u)^2) is computed as 2 (log 2 - logaddexp(u, -u)), which is
   exact where the former underflows.
3. Order within an update: V, critics, then the actor against the updated critics, then V's slow
   copy (Algorithm 1). V's target and the actor's loss have draws of their own, as in nnabla_rl's
   reproduction; the authors' code takes all gradients at once, with the same draws.
4. The actor's loss has the minimum over critics, as the text of Section 4.2 says; in the authors'
   code it is the first critic alone.
5. Initial weights are uniform in the bounds of Glorot & Bengio (2010) with zero biases, as in
   nnabla_rl's reproduction; the paper does not say. The actor's last layer is drawn as one.
6. Bounds of the log standard deviation, evaluation and warm-up (`BY_TASK`) are as in nnabla_rl's
   reproduction. The paper scores one episode every 1,000 steps. The authors' code has as many
   random actions, but learns from step 1,000 on (haarnoja/sac@8258e33:sac/algos/base.py:96-100).
7. A step cut by the time limit bootstraps; a termination does not.
8. The update ratio counts transitions: `num_envs` environments make `update_ratio * num_envs`
   updates per vector step.
9. The policy may be updated less often than V and critics (`policy_period`); the paper does not.
"""

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.checkpoint import Policy, config_of
from suite.command_line import run_main
from suite.config import Count, Positive, Rate, Share, TransitionConfig, Whole, Widths
from suite.draws import HostDraws
from suite.journal import Journal
from suite.networks import StackedPerceptrons, draw_perceptron
from suite.noise import stacked_normal
from suite.optimisers import FusedAdam
from suite.presets import read_presets
from suite.randomness import stream
from suite.recorder import Means, Recorder
from suite.replay import Batch, Replay, row_bytes
from suite.session import Session, train_together
from suite.settings import UsageError, require
from suite.squashed_gaussian import squash
from suite.updates import Updates, updates_due
from suite.vector_env import Spaces

BEHAVIOUR = 1  # goes up when the bytes of a run change: see CONTRIBUTING.md

BY_TASK = {"HalfCheetah": (5.0, 10_000), "Ant": (5.0, 10_000), "Humanoid": (20.0, 1_000)}
"""Factor on rewards (Table 2) and random steps before the first update, by task of any version."""
OTHERWISE = (5.0, 1_000)
"""Those of Hopper and Walker2d, and here of every task that the paper lacks."""


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Every setting of a run; the defaults are the paper's, where it has any (Appendix D)."""

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
    """Factor on rewards before learning, the inverse of a temperature; None: as in `BY_TASK`.
    Recorded returns are unscaled."""
    learning_starts: Whole | None = None
    """Uniformly random environment steps before the first update; None: as in `BY_TASK`."""
    update_ratio: Positive = 1.0
    """Updates of V and critics per environment step after the warm-up."""
    policy_period: Count = 1
    """Updates of V and critics per actor update."""
    tau: Share = 0.005
    """Rate of V's slow copy: tau * online + (1 - tau) * slow."""
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

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        task = self.find_task()
        return self.replay_size * row_bytes(task.obs_size, task.action_size)


PRESETS = read_presets("sac_value", Config)


def value_targets(
    q_values: Float[Tensor, "S K B"], log_probs: Float[Tensor, "S B"]
) -> Float[Tensor, "S B"]:
    """Return soft state values min_k Q_k(s, a) - log pi(a|s) at one drawn action each (Eq. 3).

    Args:
        q_values: of the critics that learn, at actions drawn from the current policy.
        log_probs: of those actions, nats.
    """
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
    """Return soft Bellman targets r + gamma V(s') (Eq. 8).

    Args:
        rewards: as learned from, after scaling.
        terminations: 1 where no value follows; 0 at a time limit, which bootstraps.
        next_values: of V's slow copy.
        gamma: discount per decision.
    """
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


def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    return means, log_stds.clamp(config.log_std_min, config.log_std_max)


@dataclass
class Learner:
    """Networks and optimisers of S seeds."""

    actor: StackedPerceptrons
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`."""
    critics: StackedPerceptrons
    value: StackedPerceptrons
    """V of observations, `[S, 1, B, 1]`."""
    target_value: StackedPerceptrons
    actor_optimiser: FusedAdam
    critic_optimiser: FusedAdam
    value_optimiser: FusedAdam


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    actors, critics, values = [], [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        draw = partial(draw_perceptron, generator, scheme="glorot_uniform", gain=1.0)
        actors.append([draw(sizes, [(2 * action_size, 1.0)])])
        critics.append([draw(pair_sizes, [(1, 1.0)]) for _ in range(config.num_critics)])
        values.append([draw(sizes, [(1, 1.0)])])
    actor, online = StackedPerceptrons(actors, device), StackedPerceptrons(critics, device)
    value = StackedPerceptrons(values, device)
    return Learner(
        actor=actor,
        critics=online,
        value=value,
        target_value=copy.deepcopy(value).requires_grad_(False),
        actor_optimiser=FusedAdam([actor.flat], config.learning_rate),
        critic_optimiser=FusedAdam([online.flat], config.learning_rate),
        value_optimiser=FusedAdam([value.flat], config.learning_rate),
    )


def update(
    learner: Learner, config: Config, batch: Batch, noise: Tensor, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: V, then critics, then the actor, then V's slow copy.

    Args:
        learner: networks and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        noise: standard normal draws, `[2, S, B, A]`: for V's targets, and for the actor.
        num_updates: updates made before this one, which the periods count.

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
    learner.value_optimiser.minimise(value_losses)
    q_values = learner.critics(batch.obs_actions).squeeze(-1)  # [S, K, B]
    critic_losses = critic_loss(q_values, targets)
    learner.critic_optimiser.minimise(critic_losses)
    metrics = {
        "value_loss": value_losses.detach(),
        "critic_loss": critic_losses.detach(),
        "value": values.detach().mean(-1),
        "q_value": q_values.detach().mean((1, 2)),
    }
    if num_updates % config.policy_period == 0:
        metrics |= _update_actor(learner, batch.obs, squash(*policy, noise[1]))
    if (num_updates + 1) % config.target_period == 0:
        with torch.no_grad():
            learner.target_value.flat.lerp_(learner.value.flat, config.tau)
    return metrics


def _update_actor(learner: Learner, obs: Tensor, draws: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Make one step of the actor against frozen critics, from its draws: actions, log-densities."""
    actions, log_probs = draws
    q_values = learner.critics(torch.cat([obs, actions], -1), frozen=True).squeeze(-1)
    actor_losses = actor_loss(log_probs, q_values)
    learner.actor_optimiser.minimise(actor_losses)
    return {"actor_loss": actor_losses.detach(), "entropy": -log_probs.detach().mean(-1)}


def weight_norms(learner: Learner) -> Float[Tensor, " S"]:
    """Return each seed's Euclidean norm over all online weights; finite while healthy."""
    networks = (learner.actor, learner.critics, learner.value)
    parameters = [p for net in networks for p in (*net.weights, *net.biases)]
    return torch.stack([p.detach().square().flatten(1).sum(1) for p in parameters]).sum(0).sqrt()


# Same in: sac.py
@torch.no_grad()
def act(
    actor: StackedPerceptrons,
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
    inputs = torch.from_numpy(obs).to(actor.flat.device)
    means, log_stds = split_outputs(actor(inputs), config)
    if streams is None:
        return torch.tanh(means).cpu().numpy()
    noise = stacked_normal(streams, means.shape[1:], inputs.device)
    return torch.tanh(means + log_stds.exp() * noise).cpu().numpy()


ACTING = ("log_std_min", "log_std_max")
"""Settings that acting needs, beside the task."""


# Same in: sac.py
def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, actor = config_of(Config, description, ACTING), StackedPerceptrons.from_weights(weights)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        rows = np.asarray(obs, dtype=np.float32)[None]
        return act(actor, config, rows, [generator] if generator else None)[0]

    shapes = {"obs_shape": weights["weight_0"].shape[:1], "num_outputs": len(description["low"])}
    return Policy(config.find_task(), Spaces.from_json({**description, **shapes}), decide)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner.

    Raises:
        UsageError: for a missing GPU.
    """
    num_envs, seeds = config.num_envs, config.seeds
    session = Session(config, recorder, stride=num_envs, reset="same_step")
    env, device, clock = session.env, session.device, recorder.clock
    obs = env.reset()  # [S, N, O]
    obs_size, action_size = obs.shape[-1], env.action_shape[0]
    learner = make_learner(config, obs_size, action_size, device)
    replay = Replay(len(seeds), config.replay_size, num_envs, obs_size, action_size, device)
    action_streams = [stream(seed, "action noise") for seed in seeds]
    draw = HostDraws(seeds, (2, config.batch_size, action_size), device)

    def learn(number: int, indices: Tensor, noise: Tensor) -> dict[str, Tensor]:
        return update(learner, config, replay.batch(indices), noise, number)

    means, reward_sums = Means(), np.zeros(len(seeds))
    updates = Updates(learn, draw, means)
    streams = [action_streams, *draw.streams]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    for step, actions in journal.past():  # of a run that was killed
        rewards = step.rewards * config.reward_factor
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
    env_steps, num_updates = journal.resume(0, 0)
    clock.start()
    while True:
        policy = partial(act, learner.actor, config)
        session.evaluate_if_due(env_steps, num_envs, policy, learner.actor.weights_of)
        if session.log_is_due(env_steps, num_envs):
            metrics = means.read()
            if metrics:
                metrics["weight_norm"] = weight_norms(learner).cpu().numpy()
            recorder.log(env_steps, num_updates, metrics, {"reward": reward_sums})
        if not session.goes_on(env_steps):
            break

        if env_steps < config.warm_up_steps:
            draws = [s.uniform(-1, 1, (num_envs, action_size)) for s in action_streams]
            actions = np.stack(draws).astype(np.float32)
        else:
            actions = act(learner.actor, config, obs, action_streams)
        clock.lap("acting")

        env.send(actions)
        env_steps += num_envs
        until = updates_due(config.update_ratio, env_steps - config.warm_up_steps)
        updates.begin(num_updates, until, replay)  # those that draw no row of this step
        clock.lap("learning")

        step = env.recv()
        journal.record(actions)
        rewards = step.rewards * config.reward_factor
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
        reward_sums += step.raw_rewards.sum(1)
        recorder.episodes(env_steps, step)
        clock.lap("environment")

        num_updates = updates.finish()
        clock.lap("learning")
        if journal.is_due(at_end=not session.goes_on(env_steps)):
            journal.save(env_steps, num_updates)
    session.save_policies(learner.actor.weights_of, ACTING)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_together(__file__, train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
