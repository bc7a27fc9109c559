"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

A tanh-Gaussian policy maximises reward plus entropy; K critics learn its soft action values from
uniform replay; a temperature keeps the entropy near a target.

    python -m agents.sac --task HalfCheetah-v4 --seeds 1 2 3 --env-steps 1000000 --out runs/mine

| what                                         | paper       | here              |
|----------------------------------------------|-------------|-------------------|
| actions and their density under the tanh     | Appendix C  | `squash` (suite)  |
| soft Bellman targets; the minimum: Section 6 | Eqs. 2, 3   | `q_targets`       |
| squared soft Bellman residual, derivative    | Eqs. 5, 6   | `critic_loss`     |
| policy objective and its derivatives         | Eqs. 7 - 10 | `actor_loss`      |
| temperature objective                        | Eq. 18      | `alpha_loss`      |
| environment steps and gradient steps in turn | Algorithm 1 | `train`, `update` |

Seeds are an axis: weights are `[S, K, in, out]`, batches `[S, B, ...]`, losses are averaged over B
and summed over S, so the seeds of one process never touch each other.

Deviations from the paper, and details it leaves open:
1. The log-density and the target entropy are measured in [-1, 1], where the policy acts. Scaling
   to the task's bounds happens in the environment and is not corrected for.
2. The density of a = tanh(u) is log N(u; mean, std) - sum_i log(1 - tanh(u_i)^2) (Appendix C). The
   correction is computed as 2 (log 2 - logaddexp(u, -u)), exact where the former underflows.
3. Order: critics, actor against the updated critics, temperature on its entropy, target copies.
4. Initial weights are uniform in the bounds of Glorot & Bengio (2010) with zero biases, as in the
   authors' code; the paper does not say. `separate_heads` draws the actor's two outputs apart.
5. Warm-up, bounds of the log standard deviation and evaluation are as in nnabla_rl's reproduction.
   The temperature starts at 1, as in the authors' code, and is learned as its logarithm.
6. A step cut by the time limit bootstraps; a termination does not.
7. The update ratio counts transitions: `num_envs` environments make `update_ratio * num_envs`
   updates per vector step.
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
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from suite.checkpoint import Policy, config_of
from suite.command_line import run_main
from suite.config import Count, GpuConfig, NotNegative, Positive, Rate, Whole, Widths
from suite.draws import DeviceDraws, HostDraws
from suite.graphs import Graphs, fused
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

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md


@dataclass(frozen=True, kw_only=True)
class Config(GpuConfig):
    """Every setting of a run; the defaults are the paper's, where it has any (Appendix D)."""

    task: str = "HalfCheetah-v4"
    """Name of a task with continuous actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions); the warm-up counts if `count_warm_up`."""
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
    max_log_alpha: float | None = None
    """Upper bound of the log temperature; None: unbounded."""
    target_entropy_per_action: float = -1.0
    """Target entropy in nats per action dimension, measured in [-1, 1]; the paper: -1."""
    entropy_in_target: bool = True
    """Whether the critics' target contains the next state's entropy (Eq. 3) or the reward only."""
    action_gradient_clip: Positive | None = None
    """Bound of each component of dQ/da in the actor's loss; None: unbounded."""
    reward_scale: Positive = 1.0
    """Factor on rewards before learning; recorded returns are unscaled."""
    learning_starts: Whole = 10_000
    """Uniformly random environment steps before the first update."""
    count_warm_up: bool = True
    """Whether those steps count towards `env_steps` and on every recorded axis."""
    policy_period: Count = 1
    """Critic updates per actor (and temperature) update."""
    compensate_policy_period: bool = True
    """Whether an actor update is then repeated `policy_period` times on its batch."""
    target_period: Count = 1
    """Critic updates per update of the target copies."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `TransitionConfig`."""
        super().__post_init__()
        if self.find_task().actions != "continuous":
            raise UsageError(f"this agent needs continuous actions; {self.task} has discrete ones")
        lowest, highest, alpha = self.log_std_min, self.log_std_max, self.initial_alpha
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)
        require(alpha > 0 or not self.learn_alpha, "a learned initial_alpha must be above 0", alpha)

    @property
    def replay_size(self) -> int:
        """Return the transitions that one seed's replay has room for: at most a run's."""
        uncounted = 0 if self.count_warm_up else self.learning_starts
        return min(self.replay_capacity, self.env_steps + uncounted + self.num_envs)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        task = self.find_task()
        return self.replay_size * row_bytes(task.obs_size, task.action_size)


PRESETS = read_presets("sac", Config)


# Explicit backward passes cost less than autograd's: `of_x` is the gradient with respect to x.


def q_targets(
    rewards: Float[Tensor, "S B"],
    terminations: Float[Tensor, "S B"],
    next_q_values: Float[Tensor, "S K B"],
    next_log_probs: Float[Tensor, "S B"],
    alpha: Float[Tensor, " S"],
    gamma: float,
    entropy_in_target: bool = True,
) -> Float[Tensor, "S B"]:
    """Return soft Bellman targets r + gamma (min_k Q_k(s', a') - alpha log pi(a'|s')) (Eqs. 2, 3).

    Args:
        rewards: as learned from, after scaling.
        terminations: 1 where no value follows; 0 at a time limit, which bootstraps.
        next_q_values: of the target copies, at actions drawn from the current policy.
        next_log_probs: of those actions, nats.
        alpha: temperature of each seed.
        gamma: discount per decision.
        entropy_in_target: False leaves the entropy term out.
    """
    next_values = next_q_values.amin(1)
    if entropy_in_target:
        next_values = torch.addcmul(next_values, alpha[:, None], next_log_probs, value=-1)
    return torch.addcmul(rewards, 1 - terminations, next_values, value=gamma)  # r + gamma (1 - d) V


def critic_loss(
    q_values: Float[Tensor, "S K B"], targets: Float[Tensor, "S B"]
) -> tuple[Float[Tensor, " S"], Float[Tensor, "S K B"]]:
    """Return the squared soft Bellman residual (Eq. 5) and its gradient `of_q_values` (Eq. 6).

    The loss is halved, averaged over B and summed over K.
    """
    residuals, batch_size = q_values - targets[:, None], targets.shape[1]
    return residuals.square().sum((1, 2)) / (2 * batch_size), residuals / batch_size


def actor_loss(
    log_probs: Float[Tensor, "S B"], q_values: Float[Tensor, "S K B"], alpha: Float[Tensor, " S"]
) -> tuple[Float[Tensor, " S"], Float[Tensor, "S B"], Float[Tensor, "S K B"]]:
    """Return the mean of alpha log pi(a|s) - min_k Q_k(s, a) at reparametrised a (Eq. 9).

    Then its gradients `of_log_probs` and `of_q_values`, which are factors of Eq. 10.
    """
    alphas, batch_size = alpha[:, None], log_probs.shape[1]
    lowest, which = q_values.min(1, keepdim=True)  # [S, 1, B]
    losses = (alphas * log_probs - lowest.squeeze(1)).mean(-1)
    of_q_values = torch.zeros_like(q_values).scatter_(1, which, -1 / batch_size)
    return losses, (alphas / batch_size).expand_as(log_probs), of_q_values


def alpha_loss(
    alpha: Float[Tensor, " S"], entropy: Float[Tensor, " S"], target_entropy: float
) -> Float[Tensor, " S"]:
    """Return alpha (entropy - target entropy), with the entropy the mean of -log pi (Eq. 18).

    Proportional to alpha, it is its own gradient with respect to log alpha.
    """
    return alpha * (entropy - target_entropy)


def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's 2 A outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    low, high = config.log_std_min, config.log_std_max
    if config.log_std_bound == "clip":
        return means, F.hardtanh(log_stds, low, high)
    return means, low + 0.5 * (high - low) * (torch.tanh(log_stds) + 1)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: StackedPerceptrons
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`."""
    critics: StackedPerceptrons
    target_critics: StackedPerceptrons
    log_alpha: Tensor  # [S]
    actor_optimiser: FusedAdam
    critic_optimiser: FusedAdam
    alpha_optimiser: FusedAdam


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    scheme, gain = config.initialisation, config.hidden_gain
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    parts = 2 if config.separate_heads else 1  # means and log standard deviations
    policy_heads = [(2 * action_size // parts, config.policy_head_gain)] * parts
    actors, critics = [], []
    for seed in config.seeds:
        draw = partial(draw_perceptron, stream(seed, "initial weights"), scheme=scheme, gain=gain)
        actors.append([draw(sizes, policy_heads)])
        critics.append([draw(pair_sizes, [(1, gain)]) for _ in range(config.num_critics)])
    actor, online = StackedPerceptrons(actors, device), StackedPerceptrons(critics, device)
    initial = -math.inf if config.initial_alpha == 0 else math.log(config.initial_alpha)
    if config.max_log_alpha is not None:
        initial = min(initial, config.max_log_alpha)
    log_alpha = torch.full((len(config.seeds),), initial, device=device)
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        log_alpha=log_alpha,
        actor_optimiser=FusedAdam(actor.parts, config.actor_learning_rate),
        critic_optimiser=FusedAdam(online.parts, config.critic_learning_rate),
        alpha_optimiser=FusedAdam([log_alpha], config.alpha_learning_rate),
    )


@torch.no_grad()
def update(
    learner: Learner, config: Config, batch: Batch, noise: Tensor, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: critics, then actor and temperature, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        noise: standard normal draws, `[1 + actor updates, S, B, A]`: the first for the targets.
        num_updates: updates made before this one, which the periods count.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    alpha, (next_noise, *actor_noise) = learner.log_alpha.exp(), noise
    next_outputs = learner.actor.begin_pass(batch.next_obs).outputs
    next_actions, next_log_probs = squash(*split_outputs(next_outputs, config), next_noise)
    targets = q_targets(
        batch.rewards,
        batch.terminations,
        learner.target_critics.begin_pass(batch.next_obs, next_actions).outputs,
        next_log_probs,
        alpha,
        config.gamma,
        config.entropy_in_target,
    )
    metrics = _update_critics(learner, batch.obs_actions, targets)
    if num_updates % config.policy_period == 0:
        for draws in actor_noise:
            metrics |= _update_actor(learner, config, batch.obs, draws)
    if (num_updates + 1) % config.target_period == 0:
        learner.target_critics.flat.lerp_(learner.critics.flat, config.tau)
    return metrics


def _update_critics(learner: Learner, obs_actions: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Make one step of the critics towards their targets (Eq. 6)."""
    critics = learner.critics.begin_pass(obs_actions)
    losses, of_q_values = critic_loss(critics.outputs, targets)
    learner.critic_optimiser.step(critics.weight_gradients(of_q_values))
    return {"critic_loss": losses, "q_value": critics.outputs.mean((1, 2))}


def _update_actor(
    learner: Learner, config: Config, obs: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against fixed critics (Eq. 10), and one of the temperature."""
    alpha, actor = learner.log_alpha.exp(), learner.actor.begin_pass(obs)
    with torch.enable_grad():  # from the network's outputs to actions and their densities
        outputs = actor.outputs.requires_grad_()
        actions, log_probs = squash(*split_outputs(outputs, config), noise)
    critics = learner.critics.begin_pass(obs, actions)
    losses, of_log_probs, of_q_values = actor_loss(log_probs, critics.outputs, alpha)
    of_actions = critics.input_gradient(of_q_values, part=1)  # -dQ/da / B, part 0 is observations
    if config.action_gradient_clip is not None:
        bound = config.action_gradient_clip / obs.shape[1]  # the loss is a mean over B
        of_actions.clamp_(-bound, bound)
    derivatives = (of_actions, of_log_probs)
    (of_outputs,) = torch.autograd.grad((actions, log_probs), outputs, derivatives)
    learner.actor_optimiser.step(actor.weight_gradients(of_outputs))
    entropy = -log_probs.mean(-1)
    if config.learn_alpha:
        target_entropy = config.target_entropy_per_action * actions.shape[-1]
        of_log_alpha = alpha_loss(alpha, entropy, target_entropy)  # its own derivative
        learner.alpha_optimiser.step([of_log_alpha])
        if config.max_log_alpha is not None:
            learner.log_alpha.clamp_(max=config.max_log_alpha)
    return {"actor_loss": losses, "entropy": entropy, "alpha": alpha}


def weight_norms(learner: Learner) -> Float[Tensor, " S"]:
    """Return each seed's Euclidean norm over all actor and critic weights; finite while healthy."""
    networks = (learner.actor, learner.critics)
    parameters = [p for net in networks for p in (*net.weights, *net.biases)]
    return torch.stack([p.detach().square().flatten(1).sum(1) for p in parameters]).sum(0).sqrt()


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


ACTING = ("log_std_min", "log_std_max", "log_std_bound")
"""Settings that acting needs, beside the task."""


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
    uncounted = 0 if config.count_warm_up else config.learning_starts  # at negative `env_steps`
    replay = Replay(len(seeds), config.replay_size, num_envs, obs_size, action_size, device)
    action_streams = [stream(seed, "action noise") for seed in seeds]
    actor_updates = config.policy_period if config.compensate_policy_period else 1
    noise_shape = (1 + actor_updates, config.batch_size, action_size)
    draw = (DeviceDraws if config.device_draws else HostDraws)(seeds, noise_shape, device)

    make = fused(update, device) if config.fuse_kernels else update

    def learn(number: int, indices: Tensor, noise: Tensor) -> dict[str, Tensor]:
        return make(learner, config, replay.batch(indices), noise, number)

    def parts_due(number: int) -> tuple[bool, bool]:  # the actor, the target copies
        return number % config.policy_period == 0, (number + 1) % config.target_period == 0

    launch = Graphs(learn, parts_due, learner, device) if config.cuda_graphs else learn
    means, reward_sums = Means(), np.zeros(len(seeds))
    updates = Updates(launch, draw, means)
    streams = [action_streams, *draw.streams]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    for step, actions in journal.past():  # of a run that was killed
        rewards = step.rewards * config.reward_scale
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
    env_steps, num_updates = journal.resume(-uncounted, 0)
    clock.start()
    while True:
        policy = partial(act, learner.actor, config)
        session.evaluate_if_due(env_steps, num_envs, policy, learner.actor.weights_of)
        if session.log_is_due(env_steps, num_envs):
            metrics = means.read()
            if metrics:
                metrics["weight_norm"] = weight_norms(learner).cpu().numpy()
            checks = {"reward": reward_sums, "alpha": learner.log_alpha.exp().cpu().numpy()}
            recorder.log(env_steps, num_updates, metrics, checks)
        if not session.goes_on(env_steps):
            break

        if env_steps + uncounted < config.learning_starts:
            draws = [s.uniform(-1, 1, (num_envs, action_size)) for s in action_streams]
            actions = np.stack(draws).astype(np.float32)
        else:
            actions = act(learner.actor, config, obs, action_streams)
        clock.lap("acting")

        env.send(actions)
        env_steps += num_envs
        until = updates_due(config.update_ratio, env_steps + uncounted - config.learning_starts)
        updates.begin(num_updates, until, replay)  # those that draw no row of this step
        clock.lap("learning")

        step = env.recv()
        journal.record(actions)
        rewards = step.rewards * config.reward_scale
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
        reward_sums += step.raw_rewards.sum(1)
        if env_steps > 0:
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
