"""Soft actor-critic for hybrid actions, discrete and continuous together (arXiv:1812.05905, ALF).

A tanh-Gaussian policy draws the continuous action c; K critics with a head for every discrete
action d judge it, and d is drawn from softmax(Q(s, c, .) / alpha_d). Two temperatures keep the two
entropies near targets. Lines below are those of alf/algorithms/sac_algorithm.py, the note is
docs/notes/sac_with_hybrid_action_types.rst, both in HorizonRobotics/alf at 23aca49.

    python -m agents.sac_hybrid --task Claw-v0 --seeds 1 2 3 --out runs/mine

| what                                               | ALF                   | here                |
|----------------------------------------------------|-----------------------|---------------------|
| actions c and log pi_c(c given s) under the tanh   | lines 575-583         | `squash` (suite)    |
| log pi_d = log softmax(min_k Q_k(s, c, .) / alpha_d) | lines 598-601       | `choice_log_probs`  |
| V_d(s, c) = E_d[min_k Q_k - alpha_d log pi_d]      | note, q*(s, b)        | `expected_q_values` |
| targets r + gamma (V_d(s', c') - alpha_c log pi_c) | note, V(s); 870-874   | `q_targets`         |
| squared soft Bellman residual of Q_k(s, c, d)      | lines 825-842, 871    | `critic_loss`       |
| alpha_c log pi_c - V_d(s, c) at reparametrised c   | lines 798-822         | `actor_loss`        |
| temperature objective, once for each entropy       | lines 887-893         | `alpha_loss`        |
| environment steps and gradient steps in turn       | lines 677-724, 895-964 | `train`, `update`  |

Seeds are an axis: weights are `[S, K, in, out]`, batches `[S, B, ...]`, losses are averaged over B
and summed over S, so the seeds of one process never touch each other. With D discrete actions and
A dimensions of the continuous one, D = 1 gives `agents.sac`. A = 0 gives `agents.sac_discrete` read
off its critics, whose learned temperature measures the entropy before the critics' step.

Deviations from ALF, and details:
1. Entropy and log-probability of the discrete action are expectations over its D values; ALF takes
   those of one draw (lines 606, 918), in the targets and for the temperature.
2. As in ALF, the discrete policy reads the online critics, in the targets as well, where it weighs
   values of the target copies. It gives the actor no gradient (line 803): the best policy for
   these very critics has none.
3. The temperatures' losses have the factor alpha, as in `agents.sac`; ALF's have log alpha.
4. Order within an update: critics, actor against the updated critics, temperatures on the entropies
   just measured, target copies. ALF takes one gradient of all losses and draws c once (line 103);
   its actor and temperatures learn from both states of a transition, with `reproduce_locomotion`
   from the second alone (lines 108-113, 985-992), here from the first.
5. The target entropies are a share of log D, and a number per dimension in [-1, 1]. ALF states the
   probability of all choices but the best, and the share of the range that actions fill
   (alf/utils/dist_utils.py:1334-1360).
6. The deterministic policy takes tanh(mean) and the best discrete action there. ALF's draws with
   the probability `epsilon_greedy`, 0 by default (alf/algorithms/config.py:50).
7. Actions before the first update are uniform, in ALF only with `reproduce_locomotion` (line 630).
   All else is as in `agents.sac`, numbers 1, 2, 4, 6 and 7.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.checkpoint import Policy, config_of
from suite.command_line import run_main
from suite.config import Count, Positive, Rate, TransitionConfig, Whole, Widths
from suite.draws import HostDraws
from suite.journal import Journal
from suite.networks import StackedPerceptrons, draw_perceptron
from suite.noise import stacked_gumbel, stacked_normal
from suite.optimisers import FusedAdam
from suite.presets import read_presets
from suite.randomness import stream
from suite.recorder import Means, Recorder
from suite.replay import Batch, Replay, row_bytes
from suite.session import Session, train_together
from suite.settings import UsageError, check_shape, require
from suite.squashed_gaussian import squash
from suite.updates import Updates, updates_due
from suite.vector_env import Spaces

BEHAVIOUR = 1  # goes up when the bytes of a run change: see CONTRIBUTING.md


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Every setting of a run; the defaults are those of `agents.sac`."""

    takes_hybrid_actions: ClassVar[bool] = True
    task: str = "Claw-v0"
    """Name of a task with hybrid actions."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions), warm-up included."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    num_critics: Count = 2
    """Critics, K; targets, actor and discrete policy use their minimum."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, before the tanh."""
    actor_learning_rate: Rate = 3e-4
    """Adam step size of the continuous policy."""
    critic_learning_rate: Rate = 3e-4
    """Adam step size of the critics."""
    alpha_learning_rate: Rate = 3e-4
    """Adam step size of both log temperatures."""
    initial_alpha: Positive = 1.0
    """Temperature of the continuous action at the start, alpha_c."""
    initial_choice_alpha: Positive = 1.0
    """Temperature of the discrete action at the start, alpha_d."""
    learn_alpha: bool = True
    """Learn both temperatures or keep the initial ones."""
    target_entropy_per_action: float = -1.0
    """Target entropy of the continuous action in nats per dimension, measured in [-1, 1]."""
    target_entropy_share: Rate = 0.3
    """Target entropy of the discrete action as a share of log D, that of the uniform policy."""
    learning_starts: Whole = 10_000
    """Uniformly random environment steps before the first update."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `TransitionConfig`."""
        super().__post_init__()
        kind = self.find_task().actions
        if kind != "hybrid":
            raise UsageError(f"this agent needs hybrid actions; {self.task} has {kind} ones")
        lowest, highest = self.log_std_min, self.log_std_max
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        task = self.find_task()
        return self.replay_size * row_bytes(task.obs_size, 1 + task.action_size)


PRESETS = read_presets("sac_hybrid", Config)


def choice_log_probs(
    q_values: Float[Tensor, "S K B D"], choice_alpha: Float[Tensor, " S"]
) -> Float[Tensor, "S B D"]:
    """Return log softmax(min_k Q_k(s, c, .) / alpha_d), nats."""
    return (q_values.amin(1) / choice_alpha[:, None, None]).log_softmax(-1)


def expected_q_values(
    q_values: Float[Tensor, "S K B D"],
    log_probs: Float[Tensor, "S B D"],
    choice_alpha: Float[Tensor, " S"],
) -> Float[Tensor, "S B"]:
    """Return V_d = E_d[min_k Q_k(s, c, d) - alpha_d log pi_d(d|s, c)] over all discrete actions.

    If `log_probs` are read off these very values, it is alpha_d log sum_d exp(min_k Q_k / alpha_d).
    """
    return (log_probs.exp() * (q_values.amin(1) - choice_alpha[:, None, None] * log_probs)).sum(-1)


def q_targets(
    rewards: Float[Tensor, "S B"],
    terminations: Float[Tensor, "S B"],
    next_q_values: Float[Tensor, "S K B D"],
    next_choice_log_probs: Float[Tensor, "S B D"],
    next_log_probs: Float[Tensor, "S B"],
    alphas: Float[Tensor, "2 S"],
    gamma: float,
) -> Float[Tensor, "S B"]:
    """Return soft Bellman targets r + gamma (V_d(s', c') - alpha_c log pi_c(c'|s')).

    Args:
        rewards: as learned from.
        terminations: 1 where no value follows; 0 at a time limit, which bootstraps.
        next_q_values: of the target copies, at continuous actions drawn from the current policy.
        next_choice_log_probs: log pi_d of every discrete action there, nats.
        next_log_probs: log pi_c of those continuous actions, nats.
        alphas: temperatures of the discrete and the continuous action.
        gamma: discount per decision.
    """
    choice_alpha, alpha = alphas
    next_values = expected_q_values(next_q_values, next_choice_log_probs, choice_alpha)
    next_values = next_values - alpha[:, None] * next_log_probs
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(
    q_values: Float[Tensor, "S K B"], targets: Float[Tensor, "S B"]
) -> Float[Tensor, " S"]:
    """Return the squared soft Bellman residual, halved, averaged over B, summed over K (Eq. 5)."""
    return 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)


def actor_loss(
    log_probs: Float[Tensor, "S B"],
    q_values: Float[Tensor, "S K B D"],
    choice_log_probs: Float[Tensor, "S B D"],
    alphas: Float[Tensor, "2 S"],
) -> Float[Tensor, " S"]:
    """Return the mean of alpha_c log pi_c(c|s) - V_d(s, c) at reparametrised c."""
    choice_alpha, alpha = alphas
    values = expected_q_values(q_values, choice_log_probs.detach(), choice_alpha)
    return (alpha[:, None] * log_probs - values).mean(-1)


def alpha_loss(
    log_alpha: Float[Tensor, " S"], log_probs: Float[Tensor, "S B"], target_entropy: float
) -> Float[Tensor, " S"]:
    """Return -alpha (log pi + target entropy), without gradient to the policy (Eq. 18)."""
    return -log_alpha.exp() * (log_probs.detach().mean(-1) + target_entropy)


# Same in: sac_value.py
def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    return means, log_stds.clamp(config.log_std_min, config.log_std_max)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: StackedPerceptrons
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`."""
    critics: StackedPerceptrons
    """Q of every discrete action at an observation and a continuous action, `[S, K, B, D]`."""
    target_critics: StackedPerceptrons
    log_alphas: Tensor  # [2, S]: of the discrete action, of the continuous one
    actor_optimiser: FusedAdam
    critic_optimiser: FusedAdam
    alpha_optimiser: FusedAdam

    def weights_of(self, seed: int) -> dict[str, Tensor]:
        """Return the tensors that a seed acts with, by name: the discrete policy needs critics."""
        parts = {"actor": self.actor.weights_of(seed)}
        for member in range(self.critics.weights[0].shape[1]):
            parts[f"critic_{member}"] = self.critics.weights_of(seed, member)
        named = {f"{part}.{name}": w for part, of in parts.items() for name, w in of.items()}
        return {**named, "log_alphas": self.log_alphas[:, [seed]]}


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    (obs_size,), action_size = spaces.obs_shape, spaces.num_outputs
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        draw = partial(draw_perceptron, generator, scheme="glorot_uniform", gain=1.0)
        actors.append([draw(sizes, [(2 * action_size, 1.0)])])
        heads = [(spaces.num_choices, 1.0)]
        critics.append([draw(pair_sizes, heads) for _ in range(config.num_critics)])
    actor, online = StackedPerceptrons(actors, device), StackedPerceptrons(critics, device)
    initial = torch.tensor([[config.initial_choice_alpha], [config.initial_alpha]]).log()
    log_alphas = initial.repeat(1, len(config.seeds)).to(device).requires_grad_()
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        log_alphas=log_alphas,
        actor_optimiser=FusedAdam([actor.flat], config.actor_learning_rate),
        critic_optimiser=FusedAdam([online.flat], config.critic_learning_rate),
        alpha_optimiser=FusedAdam([log_alphas], config.alpha_learning_rate),
    )


def update(learner: Learner, config: Config, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    """Make one gradient step: critics, then actor and temperatures, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions; their actions begin with the number of the discrete one.
        noise: standard normal draws, `[2, S, B, A]`: for the targets, for the actor.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    alphas = learner.log_alphas.detach().exp()  # [2, S]
    choice_alpha, _ = alphas
    with torch.no_grad():
        means, log_stds = split_outputs(learner.actor(batch.next_obs), config)
        next_actions, next_log_probs = squash(means, log_stds, noise[0])
        next_pairs = torch.cat([batch.next_obs, next_actions], -1)
        targets = q_targets(
            batch.rewards,
            batch.terminations,
            learner.target_critics(next_pairs),
            choice_log_probs(learner.critics(next_pairs), choice_alpha),
            next_log_probs,
            alphas,
            config.gamma,
        )
    obs_size = batch.obs.shape[-1]
    choices = batch.obs_actions[..., obs_size].long()  # [S, B]
    q_values = learner.critics(torch.cat([batch.obs, batch.obs_actions[..., obs_size + 1 :]], -1))
    taken_q_values = q_values.take_along_dim(choices[:, None, :, None], -1).squeeze(-1)  # [S, K, B]
    critic_losses = critic_loss(taken_q_values, targets)
    learner.critic_optimiser.minimise(critic_losses)
    metrics = {"critic_loss": critic_losses.detach()}
    metrics["q_value"] = taken_q_values.detach().mean((1, 2))
    metrics |= _update_actor(learner, config, batch.obs, noise[1])
    with torch.no_grad():
        learner.target_critics.flat.lerp_(learner.critics.flat, config.tau)
    return metrics


def _update_actor(
    learner: Learner, config: Config, obs: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against frozen critics, and one of both temperatures."""
    alphas = learner.log_alphas.detach().exp()
    choice_alpha, alpha = alphas
    actions, log_probs = squash(*split_outputs(learner.actor(obs), config), noise)
    q_values = learner.critics(torch.cat([obs, actions], -1), frozen=True)
    all_log_probs = choice_log_probs(q_values.detach(), choice_alpha)  # [S, B, D]
    actor_losses = actor_loss(log_probs, q_values, all_log_probs, alphas)
    learner.actor_optimiser.minimise(actor_losses)
    mean_log_probs = (all_log_probs.exp() * all_log_probs).sum(-1)  # [S, B]
    if config.learn_alpha:
        log_choice_alpha, log_alpha = learner.log_alphas
        of_choice = config.target_entropy_share * math.log(q_values.shape[-1])
        choice_losses = alpha_loss(log_choice_alpha, mean_log_probs, of_choice)
        target_entropy = config.target_entropy_per_action * actions.shape[-1]
        losses = alpha_loss(log_alpha, log_probs, target_entropy)
        learner.alpha_optimiser.minimise(choice_losses + losses)
    metrics = {"actor_loss": actor_losses.detach(), "choice_entropy": -mean_log_probs.mean(-1)}
    entropy = -log_probs.detach().mean(-1)
    return {**metrics, "entropy": entropy, "choice_alpha": choice_alpha, "alpha": alpha}


# Same in: sac.py
def weight_norms(learner: Learner) -> Float[Tensor, " S"]:
    """Return each seed's Euclidean norm over all actor and critic weights; finite while healthy."""
    networks = (learner.actor, learner.critics)
    parameters = [p for net in networks for p in (*net.weights, *net.biases)]
    return torch.stack([p.detach().square().flatten(1).sum(1) for p in parameters]).sum(0).sqrt()


@torch.no_grad()
def act(
    actor: StackedPerceptrons,
    critics: StackedPerceptrons,
    log_alphas: Tensor,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Return hybrid actions, `[S, N, 1 + A]`, for observations `[S, N, O]`.

    Args:
        actor: the continuous policies of S seeds.
        critics: theirs, which choose the discrete actions.
        log_alphas: their temperatures, `[2, S]`.
        config: the run's settings.
        obs: observations of each seed's environments.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
    """
    inputs = torch.from_numpy(obs).to(actor.flat.device)
    means, log_stds = split_outputs(actor(inputs), config)
    noise = 0.0 if streams is None else stacked_normal(streams, means.shape[1:], inputs.device)
    actions = torch.tanh(means + log_stds.exp() * noise)
    q_values = critics(torch.cat([inputs, actions], -1))
    log_choice_alpha, _ = log_alphas
    log_probs = choice_log_probs(q_values, log_choice_alpha.exp())  # [S, N, D]
    if streams is not None:
        log_probs = log_probs + stacked_gumbel(streams, log_probs.shape[1:], inputs.device)
    return torch.cat([log_probs.argmax(-1, keepdim=True), actions], -1).cpu().numpy()


ACTING = ("log_std_min", "log_std_max", "num_critics")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config = config_of(Config, description, ACTING)
    parts = ["actor.", *(f"critic_{member}." for member in range(config.num_critics))]
    weights = dict(weights)
    log_alphas = weights.pop("log_alphas")
    check_shape("log_alphas", log_alphas, (2, 1))
    actor, *critics = [
        {name.removeprefix(part): weights.pop(name) for name in [*weights] if name.startswith(part)}
        for part in parts
    ]
    if weights:
        raise ValueError(f"not the weights of this policy: {', '.join(sorted(weights))}")
    stacks = [StackedPerceptrons.from_weights(*members) for members in ([actor], critics)]
    policy = partial(act, *stacks, log_alphas, config)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        rows = np.asarray(obs, dtype=np.float32)[None]
        return policy(rows, [generator] if generator else None)[0]

    return Policy(config.find_task(), Spaces.from_json(description), decide)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner.

    Raises:
        UsageError: for a missing GPU.
    """
    num_envs, seeds = config.num_envs, config.seeds
    session = Session(config, recorder, stride=num_envs, reset="same_step")
    env, device, clock = session.env, session.device, recorder.clock
    obs = env.reset()  # [S, N, O]
    (obs_size,), action_size = env.obs_shape, env.action_shape[0] - 1
    learner = make_learner(config, env.spaces, device)
    policy = partial(act, learner.actor, learner.critics, learner.log_alphas, config)
    replay = Replay(len(seeds), config.replay_size, num_envs, obs_size, 1 + action_size, device)
    action_streams = [stream(seed, "action noise") for seed in seeds]
    draw = HostDraws(seeds, (2, config.batch_size, action_size), device)

    def learn(number: int, indices: Tensor, noise: Tensor) -> dict[str, Tensor]:
        return update(learner, config, replay.batch(indices), noise)

    means, reward_sums = Means(), np.zeros(len(seeds))
    updates = Updates(learn, draw, means)
    streams = [action_streams, *draw.streams]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    for step, actions in journal.past():  # of a run that was killed
        replay.add(obs, actions, step.rewards, step.terminations, step.next_obs)
        obs = step.obs
    env_steps, num_updates = journal.resume(0, 0)
    clock.start()
    while True:
        session.evaluate_if_due(env_steps, num_envs, policy, learner.weights_of)
        if session.log_is_due(env_steps, num_envs):
            metrics = means.read()
            if metrics:
                metrics["weight_norm"] = weight_norms(learner).cpu().numpy()
            choice_alpha, alpha = learner.log_alphas.detach().exp().cpu().numpy()
            checks = {"reward": reward_sums, "choice_alpha": choice_alpha, "alpha": alpha}
            recorder.log(env_steps, num_updates, metrics, checks)
        if not session.goes_on(env_steps):
            break

        if env_steps < config.learning_starts:
            draws = [s.uniform(-1, 1, (num_envs, 1 + action_size)) for s in action_streams]
            actions = np.stack(draws).astype(np.float32)
            choices = [s.integers(0, env.num_actions, num_envs) for s in action_streams]
            actions[..., 0] = np.stack(choices)
        else:
            actions = policy(obs, action_streams)
        clock.lap("acting")

        env.send(actions)
        env_steps += num_envs
        until = updates_due(config.update_ratio, env_steps - config.learning_starts)
        updates.begin(num_updates, until, replay)  # those that draw no row of this step
        clock.lap("learning")

        step = env.recv()
        journal.record(actions)
        replay.add(obs, actions, step.rewards, step.terminations, step.next_obs)
        obs = step.obs
        reward_sums += step.raw_rewards.sum(1)
        recorder.episodes(env_steps, step)
        clock.lap("environment")

        num_updates = updates.finish()
        clock.lap("learning")
        if journal.is_due(at_end=not session.goes_on(env_steps)):
            journal.save(env_steps, num_updates)
    session.save_policies(learner.weights_of, ACTING)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_together(__file__, train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
