"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

K critics learn the soft value of every action from uniform replay, a temperature keeps the
policy's entropy near a share of log |A|. The policy is a network that maximises the expected soft
value, or is read off the critics as softmax(Q / alpha), as ALF does.

    python -m agents.sac_discrete --task CartPole-v1 --seeds 1 2 3 --env-steps 50000 --out runs/mine

| what                                            | paper       | here              |
|-------------------------------------------------|-------------|-------------------|
| policy of a network, or softmax(Q / alpha)      | Section 3   | `log_policy`      |
| soft state values, a sum over actions           | Eq. 10      | `soft_values`     |
| soft Bellman targets                            | Eqs. 2, 10  | `q_targets`       |
| squared soft Bellman residual                   | Eq. 4       | `critic_loss`     |
| expected soft value, which the policy maximises | Eq. 12      | `actor_loss`      |
| temperature objective                           | Eq. 11      | `alpha_loss`      |
| environment steps and gradient steps in turn    | Algorithm 1 | `train`, `update` |

Seeds are an axis, also where observations are frames: batches are `[S, B, ...]`, outputs of
networks `[S, K, B, A]`, losses are averaged over B and summed over S, so the seeds of one process
never touch each other.

Deviations from the paper, and details it leaves open:
1. Without a network of its own (`policy = "critics"`) the policy is the one that Eq. 12 would reach
   against the critics, softmax(Q / alpha); there is no actor loss. ALF weighs a drawn action's
   entropy; here it is a sum over actions.
2. Order within an update: critics, then the actor against the updated critics, then the
   temperature on the entropy before either step, then the target copies.
3. Weights are drawn as He et al. (2015) do, as in the author's code; biases are 0, there torch's.
4. Frames pass through the layers of DQN (Nature 2015); actor and critics share none.
5. A step cut by the time limit bootstraps; a termination does not. In Atari games a lost life is a
   termination under the protocol `noframeskip`.
6. Replay counts its capacity in observations; the last one of an episode is one more.
7. The update ratio counts transitions: `num_envs` environments make `update_ratio * num_envs`
   updates per vector step. The period of the target copies counts updates from the first one.
8. Actions are the argmax of log-probabilities plus Gumbel noise from the seed's own stream.
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
from suite.config import Count, Fraction, Positive, Rate, RunConfig, Share, Whole, Widths
from suite.journal import Journal
from suite.networks import FrameLayers, Trunk, draw_perceptron, prepare
from suite.noise import stacked_gumbel
from suite.presets import read_presets
from suite.randomness import stream
from suite.recorder import Means, Recorder
from suite.session import Session, train_together
from suite.settings import UsageError, check_shape, require
from suite.stacks import Stack, all_weights_of, put_weights, stack
from suite.step_replay import StepBatch, StepReplay, row_bytes
from suite.updates import updates_due
from suite.vector_env import Spaces

BEHAVIOUR = 1  # goes up when the bytes of a run change: see CONTRIBUTING.md


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """Every setting of a run; the defaults: the paper's equations, its author's numbers."""

    task: str = "Pong-v5"
    """Name of a task with discrete actions."""
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 100_000
    """Environment steps of each seed (agent decisions), the warm-up included."""
    num_envs: Count = 1
    """Environments of each seed, N."""
    policy: Literal["network", "critics"] = "network"
    """A network trained by the expected soft value, or softmax(Q / alpha) (ALF)."""
    num_critics: Count = 2
    """Critics, K."""
    q_of_critics: Literal["minimum", "mean"] = "minimum"
    """How targets and policy combine the critics: by minimum, or by mean (SLM-Lab)."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics for vector observations."""
    initialisation: Literal["he_normal", "orthogonal", "torch"] = "he_normal"
    """Initial weights; orthogonal ones have gain sqrt(2). `torch`: as `nn.Linear` draws them."""
    actor_learning_rate: Rate = 3e-4
    """Adam step size of the policy."""
    critic_learning_rate: Rate = 3e-4
    """Adam step size of the critics."""
    alpha_learning_rate: Rate = 3e-4
    """Adam step size of the log temperature."""
    adam_epsilon: Positive = 1e-8
    """Keeps Adam's steps finite where gradients are small; of all three."""
    weight_decay: Fraction = 0.0
    """Share of all that is learned that a step removes, times the learning rate (AdamW)."""
    max_gradient_norm: Positive | None = None
    """Largest Euclidean norm of the gradient of each network; None: not clipped."""
    initial_alpha: Positive = 1.0
    """Temperature at the start."""
    learn_alpha: bool = True
    """Learn the temperature (Eq. 11) or keep `initial_alpha`."""
    alpha_objective: Literal["alpha", "log_alpha"] = "alpha"
    """Factor of the temperature objective: alpha (Eq. 11), or its logarithm (CleanRL, ALF)."""
    min_log_alpha: float = -20.0
    """Lower bound of the log temperature."""
    max_log_alpha: float = 20.0
    """Upper bound of the log temperature."""
    target_entropy_share: Rate = 0.98
    """Target entropy as a share of that of the uniform policy, log |A|."""
    critic_error: Literal["half_squared", "squared", "huber"] = "half_squared"
    """Loss of a critic's error: half its square (Eq. 4), its square, or Huber's with bound 1."""
    mean_over_actions: bool = False
    """Divide the losses of actor and temperature by |A|, as a mean over batch and actions does."""
    batch_size: Count = 64
    """Transitions per update, B."""
    replay_capacity: Count = 1_000_000
    """Observations kept per seed."""
    learning_starts: Whole = 20_000
    """Uniformly random environment steps before the first update; they count as steps."""
    update_ratio: Positive = 0.25
    """Updates per environment step after the warm-up."""
    tau: Share = 1.0
    """Rate of the target copies: tau * online + (1 - tau) * slow."""
    target_period: Count = 2_000
    """Updates per update of the target copies (the author's code: 8,000 steps)."""
    evaluation_rule: Literal["deterministic", "sampled", "training"] = "deterministic"
    """Evaluate the mode of the policy, or by `evaluation_epsilon`; `training`: score training."""
    evaluation_epsilon: Fraction = 1.0
    """Chance that a `sampled` action is drawn from the policy, else it is its mode (ALF: 0.05)."""
    evaluation_interval: Count = 10_000
    """Environment steps between two evaluations."""
    log_interval: Count = 1_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `RunConfig`."""
        super().__post_init__()
        if self.find_task().actions != "discrete":
            raise UsageError(f"{self.task} has continuous actions: use sac")
        lowest, highest = self.min_log_alpha, self.max_log_alpha
        require(lowest < highest, f"min_log_alpha must be below max_log_alpha {highest}", lowest)
        num_envs, capacity = self.num_envs, self.replay_capacity
        rule = f"replay_capacity must hold 8 observations of each environment, {8 * num_envs}"
        require(capacity >= 8 * num_envs, rule, capacity)
        for name in ("env_steps", "learning_starts", "evaluation_interval"):
            steps, rule = getattr(self, name), f"{name} must be a multiple of num_envs {num_envs}"
            require(steps % num_envs == 0, rule, steps)

    @property
    def replay_rows(self) -> int:
        """Return the observations kept per environment: at most a run's, two for each step."""
        most = 2 * self.env_steps // self.num_envs + 8  # so that a whole run never comes round
        return min(self.replay_capacity // self.num_envs, most)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        return self.replay_rows * self.num_envs * row_bytes(Spaces.of(self.find_task()))


PRESETS = read_presets("sac_discrete", Config)
PerSeed = Float[Tensor, " S"]
SB = Float[Tensor, "S B"]
SBA = Float[Tensor, "S B A"]


def combine(q_values: Float[Tensor, "S K B A"], how: Literal["minimum", "mean"]) -> SBA:
    """Return the critics' minimum or mean for every action."""
    return q_values.amin(1) if how == "minimum" else q_values.mean(1)


def log_policy(preferences: SBA, temperature: PerSeed) -> SBA:
    """Return log pi(a|s) of every action, nats: log softmax(preferences / temperature).

    Args:
        preferences: outputs of the policy's network, or soft action values.
        temperature: 1 for the network; alpha for the values, whose softmax maximises Eq. 12.
    """
    return (preferences / temperature[:, None, None]).log_softmax(-1)


def soft_values(q_values: SBA, log_probs: SBA, alpha: PerSeed) -> SB:
    """Return V(s), the sum over actions of pi(a|s) (Q(s, a) - alpha log pi(a|s)) (Eq. 10)."""
    return (log_probs.exp() * (q_values - alpha[:, None, None] * log_probs)).sum(-1)


def entropies(log_probs: SBA) -> SB:
    """Return the policy's entropy at every observation, nats."""
    return -(log_probs.exp() * log_probs).sum(-1)


def q_targets(rewards: SB, terminations: SB, next_values: SB, gamma: float) -> SB:
    """Return soft Bellman targets r + gamma V(s') (Eq. 2).

    Args:
        rewards: as learned from.
        terminations: 1 where no value follows; 0 at a time limit, which bootstraps.
        next_values: V of the target copies' values and the current policy.
        gamma: discount per decision.
    """
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(
    taken_q_values: Float[Tensor, "S K B"],
    targets: SB,
    error: Literal["half_squared", "squared", "huber"] = "half_squared",
) -> PerSeed:
    """Return the loss of the soft Bellman residual, averaged over B, summed over K (Eq. 4).

    The error counts as half its square, its square, or by Huber's loss.
    """
    errors = taken_q_values - targets[:, None]
    if error == "huber":
        losses = F.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    else:
        losses = (0.5 if error == "half_squared" else 1.0) * errors.square()
    return losses.mean(-1).sum(-1)


def actor_loss(log_probs: SBA, q_values: SBA, alpha: PerSeed) -> PerSeed:
    """Return minus the expected soft value, the mean of `soft_values` over B (Eq. 12)."""
    return -soft_values(q_values, log_probs, alpha).mean(-1)


def alpha_loss(
    log_alpha: PerSeed,
    entropy: PerSeed,
    target_entropy: float,
    objective: Literal["alpha", "log_alpha"] = "alpha",
) -> PerSeed:
    """Return alpha (entropy - target entropy), without gradient to the policy (Eq. 11).

    With the factor log alpha in place of alpha, steps do not shrink with the temperature.
    """
    factor = log_alpha.exp() if objective == "alpha" else log_alpha
    return factor * (entropy.detach() - target_entropy)


NATURE = FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512)
"""Layers for frames, DQN's of Nature 2015."""


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: Stack | None
    """Logits, `[S, 1, B, A]`; None: the policy is read off the critics."""
    critics: Stack
    target_critics: Stack
    log_alpha: Tensor  # [S]
    actor_optimiser: torch.optim.AdamW | None
    critic_optimiser: torch.optim.AdamW
    alpha_optimiser: torch.optim.AdamW

    @property
    def acting(self) -> tuple[Stack, PerSeed]:
        """Return the networks that the policy is read off, and its temperature."""
        if self.actor is not None:
            return self.actor, torch.ones_like(self.log_alpha)
        return self.critics, self.log_alpha.detach().exp()

    def weights_of(self, seed: int) -> dict[str, Tensor]:
        """Return the tensors that a seed acts with, by name, for its file."""
        networks, temperature = self.acting
        return {**all_weights_of(networks, seed), "temperature": temperature[[seed]]}


def draw_networks(
    config: Config, spaces: Spaces, generator: np.random.Generator, number: int
) -> list[Any]:
    """Draw a seed's networks from observations to a number for each action."""
    scheme, gain, shape = config.initialisation, 2**0.5, spaces.obs_shape
    heads, sizes = [(spaces.num_outputs, gain)], (math.prod(shape), *config.hidden_sizes)
    if len(shape) == 3:
        kind = {"frame_layers": NATURE, "hidden_sizes": (), "scheme": scheme, "gain": gain}
        return [Trunk(shape, heads, generator, **kind) for _ in range(number)]
    return [draw_perceptron(generator, sizes, heads, scheme, gain) for _ in range(number)]


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    learns_policy = config.policy == "network"
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        if learns_policy:
            actors.append(draw_networks(config, spaces, generator, 1))
        critics.append(draw_networks(config, spaces, generator, config.num_critics))
    actor, online = stack(actors, device) if learns_policy else None, stack(critics, device)
    initial = min(max(math.log(config.initial_alpha), config.min_log_alpha), config.max_log_alpha)
    log_alpha = torch.full((len(config.seeds),), initial, device=device, requires_grad=True)

    constants = {"eps": config.adam_epsilon, "weight_decay": config.weight_decay, "fused": True}
    adam = partial(torch.optim.AdamW, **constants)
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        log_alpha=log_alpha,
        actor_optimiser=adam(actor.parameters(), lr=config.actor_learning_rate) if actor else None,
        critic_optimiser=adam(online.parameters(), lr=config.critic_learning_rate),
        alpha_optimiser=adam([log_alpha], lr=config.alpha_learning_rate),
    )


def update(
    learner: Learner, config: Config, batch: StepBatch, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: critics, then actor and temperature, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        num_updates: updates made before this one, which the target period counts.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    alpha = learner.log_alpha.detach().exp()  # [S]
    networks, temperature = learner.acting
    how, bound = config.q_of_critics, config.max_gradient_norm
    with torch.no_grad():
        preferences = combine(networks(batch.next_obs), how)  # an actor's are its logits
        next_log_probs = log_policy(preferences, temperature)
        next_q_values = combine(learner.target_critics(batch.next_obs), how)
        next_values = soft_values(next_q_values, next_log_probs, alpha)
        targets = q_targets(batch.rewards, batch.terminations, next_values, config.gamma)
    q_values = learner.critics(batch.obs)  # [S, K, B, A]
    taken = batch.actions[:, None, :, None].expand(-1, q_values.shape[1], -1, -1)
    taken_q_values = q_values.gather(-1, taken).squeeze(-1)
    critic_losses = critic_loss(taken_q_values, targets, config.critic_error)
    _descend(learner.critic_optimiser, critic_losses, learner.critics, bound)
    metrics = {"critic_loss": critic_losses, "q_value": taken_q_values.mean((1, 2))}

    divisor = q_values.shape[-1] if config.mean_over_actions else 1
    if learner.actor is not None and learner.actor_optimiser is not None:
        with torch.no_grad():
            new_q_values = combine(learner.critics(batch.obs), how)
        log_probs = log_policy(learner.actor(batch.obs).squeeze(1), temperature)
        metrics["actor_loss"] = losses = actor_loss(log_probs, new_q_values, alpha)
        _descend(learner.actor_optimiser, losses / divisor, learner.actor, bound)
    else:
        log_probs = log_policy(combine(q_values, how), temperature)

    entropy = entropies(log_probs.detach()).mean(-1)
    if config.learn_alpha:
        target_entropy = config.target_entropy_share * math.log(q_values.shape[-1])
        losses = alpha_loss(learner.log_alpha, entropy, target_entropy, config.alpha_objective)
        _descend(learner.alpha_optimiser, losses / divisor)
        with torch.no_grad():
            learner.log_alpha.clamp_(config.min_log_alpha, config.max_log_alpha)
    if (num_updates + 1) % config.target_period == 0:
        online, slow = learner.critics.parameters(), learner.target_critics.parameters()
        with torch.no_grad():
            for target, parameter in zip(slow, online, strict=True):
                target.lerp_(parameter, config.tau)
    metrics = {name: losses.detach() for name, losses in metrics.items()}
    return metrics | {"entropy": entropy, "alpha": alpha}


def _descend(
    optimiser: torch.optim.AdamW,
    losses: PerSeed,
    networks: Stack | None = None,
    bound: float | None = None,
) -> None:
    """Make one gradient step on the sum over seeds; every seed has its own gradient in it."""
    losses.sum().backward()
    if networks is not None and bound is not None:
        networks.clip_gradients(bound)
    optimiser.step()
    optimiser.zero_grad()  # last: the next product then gets this gradient's memory, still cached


def weight_norms(learner: Learner) -> PerSeed:
    """Return each seed's Euclidean norm over all actor and critic weights; finite while healthy."""
    of_seeds = []
    for s in range(len(learner.log_alpha)):
        weights = list(all_weights_of(learner.critics, s).values())
        if learner.actor is not None:
            weights += learner.actor.weights_of(s).values()
        of_seeds.append(torch.cat([weight.flatten() for weight in weights]).norm())
    return torch.stack(of_seeds)


@torch.no_grad()
def act(
    networks: Stack,
    temperature: Tensor,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
    epsilon: float = 1.0,
) -> np.ndarray:
    """Return actions `[S, N]` for observations `[S, N, *obs]`.

    Args:
        networks: those that the policies of S seeds are read off.
        temperature: theirs, `[S]`.
        config: the run's settings.
        obs: observations of each seed's environments.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
        epsilon: chance that an action is drawn, else it is the mode; unused without streams.
    """
    joined = prepare(obs.reshape(-1, *obs.shape[2:]), temperature.device)
    outputs = networks(joined.unflatten(0, obs.shape[:2]))  # [S, K, N, A]
    log_probs = log_policy(combine(outputs, config.q_of_critics), temperature)
    if streams is not None:
        noise = stacked_gumbel(streams, log_probs.shape[1:], log_probs.device)
        if epsilon < 1:
            drawn = np.stack([s.random(obs.shape[1]) < epsilon for s in streams])
            noise = noise * torch.from_numpy(drawn).to(noise)[..., None]
        log_probs = log_probs + noise
    return log_probs.argmax(-1).cpu().numpy()


ACTING = ("policy", "num_critics", "q_of_critics", "hidden_sizes", "evaluation_epsilon")
"""Settings that rebuild a policy, beside task and protocol."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    number = 1 if config.policy == "network" else config.num_critics
    networks = stack([draw_networks(config, spaces, np.random.default_rng(0), number)])
    weights = dict(weights)
    temperature = weights.pop("temperature")
    check_shape("temperature", temperature, (1,))
    put_weights(networks, weights)
    policy = partial(act, networks, temperature, config, epsilon=config.evaluation_epsilon)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return policy(np.asarray(obs)[None], [generator] if generator else None)[0]

    return Policy(config.find_task(), spaces, decide)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner.

    Raises:
        UsageError: for a missing GPU.
    """
    num_envs, seeds = config.num_envs, config.seeds
    session = Session(config, recorder, stride=num_envs, reset="same_step")
    env, device, clock = session.env, session.device, recorder.clock
    learner = make_learner(config, env.spaces, device)
    replay = StepReplay(env.spaces, len(seeds), num_envs, config.replay_rows, device)
    action_streams = [stream(seed, "action noise") for seed in seeds]
    replay_streams = [stream(seed, "replay sampling") for seed in seeds]
    means, reward_sums = Means(), np.zeros(len(seeds))
    streams = [action_streams, replay_streams]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    replay.put_first_obs(env.reset())
    for step, actions in journal.past():  # of a run that was killed
        replay.add(actions, step)
    env_steps, num_updates = journal.resume(0, 0)
    clock.start()
    while True:
        policy = partial(act, *learner.acting, config)
        scored = partial(policy, epsilon=config.evaluation_epsilon)
        session.evaluate_if_due(env_steps, num_envs, scored, learner.weights_of)
        if session.log_is_due(env_steps, num_envs):
            metrics = means.read()
            if metrics:
                metrics["weight_norm"] = weight_norms(learner).cpu().numpy()
            alphas = learner.log_alpha.detach().exp().cpu().numpy()
            checks = {"reward": reward_sums, "alpha": alphas}
            recorder.log(env_steps, num_updates, metrics, checks)
        if not session.goes_on(env_steps):
            break

        if env_steps < config.learning_starts:
            draws = [s.integers(0, env.num_actions, num_envs) for s in action_streams]
            actions = np.stack(draws)
        else:
            actions = policy(env.obs, action_streams)
        clock.lap("acting")

        step = env.step(actions)
        journal.record(actions)
        env_steps += num_envs
        replay.add(actions, step)
        reward_sums += step.raw_rewards.sum(1)
        recorder.episodes(env_steps, step)
        clock.lap("environment")

        while num_updates < updates_due(config.update_ratio, env_steps - config.learning_starts):
            batch = replay.sample(replay_streams, config.batch_size)
            means.add(update(learner, config, batch, num_updates))
            num_updates += 1
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
