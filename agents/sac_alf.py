"""Soft actor-critic with ALF's options (arXiv:1812.05905; HorizonRobotics/alf).

`agents/sac.py` with four options, all off by default: the policy is held near a prior policy, the
reward is a vector with weights, the entropy is paid less its running mean, replay is drawn by
priority. Lines are those of alf/algorithms/sac_algorithm.py, or a file beside it, at 23aca49.

    python -m agents.sac_alf --task Reacher-v4 --reward-weights 0.5 0.5 --out runs/parts

| what                                        | ALF                      | here                    |
|---------------------------------------------|--------------------------|-------------------------|
| prior that repeats the previous action      | prior_actor.py:27-157    | `same_action_log_probs` |
| log pi - log prior in place of log pi       | lines 405-416, 928-932   | `log_ratios`            |
| minimum over critics, part by part          | lines 763-767            | `lowest_q_values`       |
| entropy less its running mean               | lines 437-439, 1035-1036 | `update`                |
| targets of the parts, with entropy in each  | lines 1012-1044          | `q_targets`             |
| squared residual, mean over parts, its root | td_loss.py:225; 1046-1060 | `critic_loss`          |
| alpha log pi - weighted sum of parts' Q     | lines 726-729, 785-822   | `actor_loss`            |
| temperature objective                       | lines 887-893            | `alpha_loss`            |
| draws by priority, importance weights       | algorithm.py:1230-1250, 1845-1854 | `PriorityDraws`|

Seeds are an axis: weights are `[S, K * D, in, out]`, batches `[S, B, ...]`, losses are averaged
over B and summed over S, so the seeds of one process never touch each other. Each of the D parts of
the reward has K critics. With all options off an update is that of `agents.sac`.

Deviations from ALF, and details:
1. ALF's `normcdf(a, b)` is the probability of [a, b], as it must be. At an episode's first step the
   sharp part of the prior has weight 0 here, there e^-100 (prior_actor.py:135).
2. As in ALF, every part of the reward gets the whole entropy, so the weighted sum of values holds
   it as often as the weights add up to; the actor's loss holds it once.
3. A part with weight 0 is learned by the minimum; ALF's sign of 0 makes its next values 0.
4. The running mean is that of log pi in s', which is paid; ALF's is that of log pi in s as well.
5. As in ALF, importance weights multiply the losses of critics, actor and temperature.
6. Priorities are a seed's own. Of a transition drawn twice the last error counts. ALF divides an
   error by the root of 2, but at an episode's end (sac_algorithm.py:1057-1060).
7. The temperature's loss has the factor alpha, as in `agents.sac`; ALF's has log alpha.
8. Order within an update: critics, actor against the updated critics, temperature, target copies.
   ALF takes one gradient of all losses, and its actor and temperature learn from both states of a
   transition, with `reproduce_locomotion` from the second alone (lines 108-113, 985-992); here
   from the first. All else is as in `agents.sac`, numbers 1, 2, 4 to 7.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from suite import truncated_normal
from suite.checkpoint import Policy, config_of
from suite.command_line import run_main
from suite.config import Count, NotNegative, Positive, Range, Rate, TransitionConfig, Whole, Widths
from suite.journal import Journal
from suite.networks import StackedPerceptrons, draw_perceptron
from suite.noise import stacked_normal
from suite.optimisers import FusedAdam
from suite.presets import read_presets
from suite.priorities import Generators, PriorityDraws, UniformDraws
from suite.randomness import stream
from suite.recorder import Means, Recorder
from suite.replay import Batch, Replay, row_bytes
from suite.session import Session, train_together
from suite.settings import UsageError, require
from suite.squashed_gaussian import squash
from suite.updates import updates_due
from suite.vector_env import Spaces, Step

BEHAVIOUR = 1  # goes up when the bytes of a run change: see CONTRIBUTING.md

S = Float[Tensor, " S"]
SB = Float[Tensor, "S B"]
SBA = Float[Tensor, "S B A"]
SDB = Float[Tensor, "S D B"]
SKDB = Float[Tensor, "S K D B"]
Previous = Float[Tensor, "S B A1"]
"""The action before, and a last column: 1 at an episode's first step, which has none; else 0."""


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Every setting of a run; the defaults are those of `agents.sac`, and ALF's of its options."""

    task: str = "HalfCheetah-v4"
    """Name of a task with continuous actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions), warm-up included."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    num_critics: Count = 2
    """Critics of each part of the reward, K; targets and actor use their minimum."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, before the tanh."""
    learning_rate: Rate = 3e-4
    """Adam step size of the policy, the critics and the log temperature."""
    initial_alpha: Positive = 1.0
    """Temperature at the start."""
    target_entropy_per_action: float = -1.0
    """Target entropy in nats per action dimension, measured in [-1, 1]; unused with a prior."""
    entropy_in_target: bool = True
    """Whether the critics' target contains the next state's entropy or the reward only."""
    normalise_entropy: bool = False
    """Pay the entropy less its running mean, so that a longer episode earns no more of it."""
    prior: Literal["none", "uniform", "same_action"] = "none"
    """Policy near which ours is held; `same_action` mostly repeats the previous action."""
    target_kl_per_action: float = 3.0
    """Target divergence from the prior in nats per action dimension."""
    same_action_prob: Annotated[float, Range("[0, 1]")] = 0.9
    """Probability with which the prior `same_action` repeats a dimension."""
    same_action_noise: Positive = 0.1
    """Standard deviation of the repeated action as a share of the range of actions."""
    reward_weights: tuple[float, ...] | None = None
    """Learn the parts of the reward, with these weights; None: learn the reward."""
    prioritised_replay: bool = False
    """Draw transitions by their last error instead of uniformly."""
    priority_exponent: NotNegative = 0.7
    """Power of the error that makes a priority; 0: all are equal."""
    priority_epsilon: Positive = 1e-6
    """Added to the error, in reward units."""
    importance_exponent: NotNegative = 0.4
    """Power of the importance weights; 1 makes up for the draws in full, 0 not at all."""
    learning_starts: Whole = 10_000
    """Uniformly random environment steps before the first update."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `TransitionConfig`."""
        super().__post_init__()
        task = self.find_task()
        if task.actions != "continuous":
            raise UsageError(f"this agent needs continuous actions; {self.task} has discrete ones")
        lowest, highest = self.log_std_min, self.log_std_max
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)
        parts, weights = task.reward_parts or ("reward",), self.reward_weights
        fits = weights is None or (len(weights) == len(parts) and all(map(math.isfinite, weights)))
        rule = f"reward_weights must be {len(parts)} numbers, of {', '.join(parts)}"
        require(fits, rule, weights)

    @property
    def num_parts(self) -> int:
        """Return how many parts of the reward are learned, D."""
        return len(self.reward_weights or (1.0,))

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        obs_size, action_size = (task := self.find_task()).obs_size, task.action_size
        extra_size = self.num_parts + action_size + 1
        return self.replay_size * row_bytes(obs_size, action_size, extra_size)


PRESETS = read_presets("sac_alf", Config)


def same_action_log_probs(actions: SBA, previous: Previous, probability: float, noise: float) -> SB:
    """Return the log-density of actions in [-1, 1] under a policy that repeats the previous one.

    Each dimension is a mixture of two truncated normals: one around 0, with the range 2 as its
    deviation, and with `probability`, if there is a previous action, one around that, with `noise`
    times the range.
    """
    centres, is_first = previous[..., :-1], previous[..., -1:] > 0
    sharp_weights = torch.where(is_first, 0.0, probability)
    flat = truncated_normal.log_density(actions, torch.zeros_like(centres), 2.0)
    sharp = truncated_normal.log_density(actions, centres, 2.0 * noise)
    weighted = (torch.log1p(-sharp_weights) + flat, sharp_weights.log() + sharp)
    return torch.logaddexp(*weighted).sum(-1)


def log_ratios(log_probs: SB, actions: SBA, previous: Previous, config: Config) -> SB:
    """Return log pi(a|s) - log prior(a|s), whose mean is the divergence from the prior.

    Without a prior it is log pi(a|s), whose mean is the negative entropy.
    """
    if config.prior == "none":
        return log_probs
    if config.prior == "uniform":
        return log_probs + actions.shape[-1] * math.log(2)
    mixture = (config.same_action_prob, config.same_action_noise)
    return log_probs - same_action_log_probs(actions, previous, *mixture)


def lowest_q_values(q_values: SKDB, reward_weights: Float[Tensor, " D"]) -> tuple[SDB, Tensor]:
    """Return each part's most pessimistic value among K critics, and the critic that gave it.

    It is the smallest where the part's weight is 0 or positive, the greatest where it is negative.
    """
    signs = torch.where(reward_weights < 0, -1.0, 1.0)[:, None]
    lowest, which = (q_values * signs).min(1)
    return lowest * signs, which


def q_targets(
    rewards: SDB, terminations: SB, next_values: SDB, next_entropies: SB, gamma: float
) -> SDB:
    """Return soft Bellman targets r_d + gamma (min_k Q_kd(s', a') + entropy) (Eqs. 2, 3).

    The value is the target copies', at actions drawn from the current policy, and the entropy what
    is paid for these: -alpha times their log ratios. A time limit bootstraps.
    """
    return rewards + gamma * (1 - terminations)[:, None] * (next_values + next_entropies[:, None])


def critic_loss(q_values: SKDB, targets: SDB, weights: SB) -> tuple[S, SKDB, SB]:
    """Return the squared soft Bellman residual, its derivative by Q, and errors for priorities.

    The loss is halved, averaged over D and, with importance weights, over B, and summed over K. An
    error is the root of a transition's squared residuals, averaged over D and summed over K.
    """
    residuals, (num_parts, batch_size) = q_values - targets[:, None], targets.shape[1:]
    squares = residuals.square().mean(2).sum(1)  # [S, B]
    shares = weights[:, None, None] / (num_parts * batch_size)
    return (weights * squares).mean(-1) / 2, residuals * shares, squares.sqrt()


def actor_loss(
    ratios: SB, q_values: SKDB, alpha: S, reward_weights: Float[Tensor, " D"], weights: SB
) -> tuple[S, SB, SKDB]:
    """Return the mean of alpha log ratio(a|s) - sum_d w_d min_k Q_kd(s, a) at reparametrised a.

    Then its derivatives by the log ratio and by Q. The mean over B has importance weights.
    """
    lowest, which = lowest_q_values(q_values, reward_weights)
    values, shares = (reward_weights[:, None] * lowest).sum(1), weights / weights.shape[1]
    losses = (shares * (alpha[:, None] * ratios - values)).sum(-1)
    of_lowest = -reward_weights[:, None] * shares[:, None]  # [S, D, B]
    of_q_values = torch.zeros_like(q_values).scatter_(1, which[:, None], of_lowest[:, None])
    return losses, alpha[:, None] * shares, of_q_values


def alpha_loss(alpha: S, ratios: SB, target_entropy: float, weights: SB) -> S:
    """Return the mean of -alpha (log ratio + target): its own derivative by log alpha (Eq. 18)."""
    return -alpha * (weights * (ratios + target_entropy)).mean(-1)


def split_outputs(outputs: Float[Tensor, "S 1 B AA"], config: Config) -> tuple[SBA, SBA]:
    """Split the actor's outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    return means, F.hardtanh(log_stds, config.log_std_min, config.log_std_max)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: StackedPerceptrons
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`."""
    critics: StackedPerceptrons
    """The first critic of every part of the reward, then the second, `[S, K * D, B]`."""
    target_critics: StackedPerceptrons
    reward_weights: Tensor  # [D]
    log_alpha: Tensor  # [S]
    mean_log_ratio: Tensor  # [S], of the next actions
    actor_optimiser: FusedAdam
    critic_optimiser: FusedAdam
    alpha_optimiser: FusedAdam

    def by_part(self, q_values: Float[Tensor, "S KD B"]) -> SKDB:
        """Return the critics' outputs with an axis for the parts of the reward."""
        return q_values.unflatten(1, (-1, len(self.reward_weights)))


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        draw = partial(draw_perceptron, generator, scheme="glorot_uniform", gain=1.0)
        actors.append([draw(sizes, [(2 * action_size, 1.0)])])
        number = config.num_critics * config.num_parts
        critics.append([draw(pair_sizes, [(1, 1.0)]) for _ in range(number)])
    actor, online = StackedPerceptrons(actors, device), StackedPerceptrons(critics, device)
    log_alpha = torch.full((len(config.seeds),), math.log(config.initial_alpha), device=device)
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        reward_weights=torch.tensor(config.reward_weights or (1.0,), device=device),
        log_alpha=log_alpha,
        mean_log_ratio=torch.zeros_like(log_alpha),
        actor_optimiser=FusedAdam(actor.parts, config.learning_rate),
        critic_optimiser=FusedAdam(online.parts, config.learning_rate),
        alpha_optimiser=FusedAdam([log_alpha], config.learning_rate),
    )


@torch.no_grad()
def update(
    learner: Learner, config: Config, batch: Batch, weights: SB, noise: Tensor, num_updates: int
) -> tuple[dict[str, Tensor], SB]:
    """Make one gradient step: critics, then actor and temperature, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: transitions; their extras are the parts of the reward, and the previous action.
        weights: their importance weights.
        noise: standard normal draws, `[2, S, B, A]`: for the targets, for the actor.
        num_updates: updates made before this one.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device; errors for priorities.
    """
    rewards, previous = batch.extras[..., : config.num_parts], batch.extras[..., config.num_parts :]
    next_outputs = learner.actor.begin_pass(batch.next_obs).outputs
    next_actions, next_log_probs = squash(*split_outputs(next_outputs, config), noise[0])
    taken = F.pad(batch.obs_actions[..., batch.obs.shape[-1] :], (0, 1))
    next_ratios = log_ratios(next_log_probs, next_actions, taken, config)
    if config.normalise_entropy:
        rate = 8 / (8 + num_updates)  # the speed is 8 (alf/utils/normalizers.py:386)
        learner.mean_log_ratio.lerp_(next_ratios.mean(-1), rate)
        next_ratios = next_ratios - learner.mean_log_ratio[:, None]
    next_q_values = learner.target_critics.begin_pass(batch.next_obs, next_actions).outputs
    next_values, _ = lowest_q_values(learner.by_part(next_q_values), learner.reward_weights)
    paid = -float(config.entropy_in_target) * learner.log_alpha.exp()[:, None] * next_ratios
    targets = q_targets(rewards.mT, batch.terminations, next_values, paid, config.gamma)
    critics = learner.critics.begin_pass(batch.obs_actions)
    losses, of_q_values, errors = critic_loss(learner.by_part(critics.outputs), targets, weights)
    learner.critic_optimiser.step(critics.weight_gradients(of_q_values.flatten(1, 2)))
    metrics = {"critic_loss": losses, "q_value": critics.outputs.mean((1, 2))}
    metrics |= _update_actor(learner, config, batch.obs, previous, weights, noise[1])
    learner.target_critics.flat.lerp_(learner.critics.flat, config.tau)
    return metrics, errors


def _update_actor(
    learner: Learner, config: Config, obs: Tensor, previous: Tensor, weights: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against fixed critics, and one of the temperature."""
    alpha, actor = learner.log_alpha.exp(), learner.actor.begin_pass(obs)
    with torch.enable_grad():  # from the network's outputs to actions and their densities
        outputs = actor.outputs.requires_grad_()
        actions, log_probs = squash(*split_outputs(outputs, config), noise)
        ratios = log_ratios(log_probs, actions, previous, config)
    critics = learner.critics.begin_pass(obs, actions)
    judged = (learner.by_part(critics.outputs), alpha, learner.reward_weights, weights)
    losses, of_ratios, of_q_values = actor_loss(ratios, *judged)
    of_actions = critics.input_gradient(of_q_values.flatten(1, 2), part=1)  # -dQ/da
    (of_outputs,) = torch.autograd.grad((actions, ratios), outputs, (of_actions, of_ratios))
    learner.actor_optimiser.step(actor.weight_gradients(of_outputs))
    metrics = {"actor_loss": losses, "entropy": -log_probs.mean(-1), "alpha": alpha}
    target_entropy = config.target_entropy_per_action * actions.shape[-1]
    if config.prior != "none":
        metrics["prior_kl"] = ratios.mean(-1)
        target_entropy = -config.target_kl_per_action * actions.shape[-1]
    learner.alpha_optimiser.step([alpha_loss(alpha, ratios, target_entropy, weights)])
    return metrics


def weight_norms(learner: Learner) -> S:
    """Return each seed's Euclidean norm over all actor and critic weights; finite while healthy."""
    networks = (learner.actor, learner.critics)
    parameters = [p for net in networks for p in (*net.weights, *net.biases)]
    return torch.stack([p.detach().square().flatten(1).sum(1) for p in parameters]).sum(0).sqrt()


@torch.no_grad()
def act(
    actor: StackedPerceptrons, config: Config, obs: np.ndarray, streams: Generators | None = None
) -> np.ndarray:
    """Return actions in [-1, 1], `[S, N, A]`, for observations `[S, N, O]`.

    They are drawn with each seed's stream; without streams they are the policies' modes.
    """
    inputs = torch.from_numpy(obs).to(actor.flat.device)
    means, log_stds = split_outputs(actor(inputs), config)
    if streams is None:
        return torch.tanh(means).cpu().numpy()
    noise = stacked_normal(streams, means.shape[1:], inputs.device)
    return torch.tanh(means + log_stds.exp() * noise).cpu().numpy()


ACTING = ("log_std_min", "log_std_max")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, actor = config_of(Config, description, ACTING), StackedPerceptrons.from_weights(weights)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        rows = np.asarray(obs, dtype=np.float32)[None]
        return act(actor, config, rows, [generator] if generator else None)[0]

    return Policy(config.find_task(), Spaces.from_json(description), decide)


def store(
    replay: Replay, obs: np.ndarray, previous: np.ndarray, actions: np.ndarray, step: Step
) -> np.ndarray:
    """Add a vector step to replay; return the next step's `previous`."""
    parts = step.reward_parts if step.reward_parts.size else step.rewards[..., None]
    replay.add(obs, actions, step.rewards, step.terminations, step.next_obs, parts, previous)
    ends = (step.terminations | step.truncations)[..., None]
    return np.concatenate([np.where(ends, 0.0, actions), ends], axis=-1, dtype=np.float32)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner.

    Raises:
        UsageError: for a missing GPU.
    """
    num_envs, seeds, by_parts = config.num_envs, config.seeds, config.reward_weights is not None
    session = Session(config, recorder, num_envs, reset="same_step", reward_parts=by_parts)
    env, device, clock = session.env, session.device, recorder.clock
    obs = env.reset()  # [S, N, O]
    obs_size, action_size = obs.shape[-1], env.action_shape[0]
    previous = np.zeros((len(seeds), num_envs, action_size + 1), dtype=np.float32)
    previous[..., -1] = 1.0
    learner = make_learner(config, obs_size, action_size, device)
    sizes = (config.replay_size, num_envs, obs_size, action_size)
    replay = Replay(len(seeds), *sizes, device, config.num_parts + action_size + 1)
    draws = UniformDraws()
    if config.prioritised_replay:
        powers = (config.priority_exponent, config.priority_epsilon, config.importance_exponent)
        draws = PriorityDraws(len(seeds), replay.capacity, *powers)
    action_streams = [stream(seed, "action noise") for seed in seeds]
    replay_streams = [stream(seed, "replay sampling") for seed in seeds]
    noise_streams = [stream(seed, "update noise") for seed in seeds]
    noise_shape = (2, config.batch_size, action_size)

    means, reward_sums = Means(), np.zeros(len(seeds))
    streams = [action_streams, replay_streams, noise_streams, draws]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    for step, actions in journal.past():  # of a run that was killed
        previous = store(replay, obs, previous, actions, step)
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
            alphas = learner.log_alpha.exp().cpu().numpy()
            checks = {"reward": reward_sums, "alpha": alphas}
            recorder.log(env_steps, num_updates, metrics, checks)
        if not session.goes_on(env_steps):
            break

        if env_steps < config.learning_starts:
            uniform = [s.uniform(-1, 1, (num_envs, action_size)) for s in action_streams]
            actions = np.stack(uniform).astype(np.float32)
        else:
            actions = act(learner.actor, config, obs, action_streams)
        clock.lap("acting")

        step = env.step(actions)
        journal.record(actions)
        env_steps += num_envs
        previous = store(replay, obs, previous, actions, step)
        obs = step.obs
        draws.add(replay.newest)
        reward_sums += step.raw_rewards.sum(1)
        recorder.episodes(env_steps, step)
        clock.lap("environment")

        while num_updates < updates_due(config.update_ratio, env_steps - config.learning_starts):
            rows, weights = draws.draw(replay_streams, config.batch_size, replay.size)
            batch = replay.batch(torch.from_numpy(rows).to(device))
            importance = torch.from_numpy(weights).to(device)
            noise = stacked_normal(noise_streams, noise_shape, device).transpose(0, 1)
            diagnostics, errors = update(learner, config, batch, importance, noise, num_updates)
            draws.update(rows, errors)
            means.add(diagnostics)
            num_updates += 1
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
