"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

K critics learn the soft value of every action from uniform replay, and a temperature keeps the
policy's entropy near a share of log |A|. The policy is a network that maximises the expected soft
value, or, as in ALF, it is softmax(Q / alpha) of the critics.

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

What differs from `agents/sac.py`: the expectation over actions is a sum, so an update draws no
actions; critics have an output for each action; `StepReplay` holds steps, of frames as well.

Seeds are an axis: each has networks of its own, batches are `[S, B, ...]`, losses are averaged over
B and summed over S, so the seeds of one process do not affect each other.

Deviations from the paper, and details it leaves open:
1. With `policy = "critics"` the policy is the optimum of Eq. 12, softmax(Q / alpha), without an
   actor loss. Its entropy is a sum over actions; ALF estimates it by one drawn action.
2. Order within an update: critics, then the actor against the updated critics, then the
   temperature on the entropy before either step, then the target copies.
3. Initial weights are He et al.'s (2015), as in the author's code; biases are 0, there torch's.
4. Frames pass through the layers of DQN (Nature 2015); actor and critics share no layers.
5. A lost life is a termination in games, but not under the protocol `sticky`.
6. Replay's capacity counts observations: the steps, and one more at the end of each episode.
7. Actions are drawn by Gumbel noise. All else is as in `agents/sac.py`, numbers 6 and 7.
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
from torch.optim import AdamW

from suite.base.errors import UsageError, check_shape, require
from suite.base.noise import choose
from suite.base.randomness import stream
from suite.envs.tasks import Protocol
from suite.envs.vector_env import Spaces
from suite.nets.networks import FrameLayers, Trunk, prepare
from suite.nets.perceptrons import Ensemble, Perceptron, weight_norms
from suite.policy import Policy, config_of, for_one_seed
from suite.record.recorder import Recorder
from suite.session import train_together
from suite.settings.command_line import run_main
from suite.settings.config import (
    Count,
    Fraction,
    OffPolicyConfig,
    Positive,
    Rate,
    Share,
    Whole,
    Widths,
)
from suite.settings.presets import Presets
from suite.step_replay import StepBatch, StepReplay, row_bytes
from suite.step_session import StepSession

BEHAVIOUR = 3  # goes up when the bytes of a run change: see CONTRIBUTING.md

S = Float[Tensor, " S"]
SB = Float[Tensor, "S B"]
SBA = Float[Tensor, "S B A"]


def combine(q_values: Float[Tensor, "S K B A"], how: Literal["minimum", "mean"]) -> SBA:
    """Return the critics' minimum or mean for every action."""
    return q_values.amin(1) if how == "minimum" else q_values.mean(1)


def log_policy(preferences: SBA, temperature: S) -> SBA:
    """Return log pi(a|s) of every action, nats: log softmax(preferences / temperature).

    Preferences are a network's outputs with the temperature 1, or Q with alpha (maximises Eq. 12).
    """
    return (preferences / temperature[:, None, None]).log_softmax(-1)


def soft_values(q_values: SBA, log_probs: SBA, alpha: S) -> SB:
    """Return V(s), the sum over actions of pi(a|s) (Q(s, a) - alpha log pi(a|s)) (Eq. 10)."""
    return (log_probs.exp() * (q_values - alpha[:, None, None] * log_probs)).sum(-1)


def entropies(log_probs: SBA) -> SB:
    """Return the policy's entropy at every observation, nats."""
    return -(log_probs.exp() * log_probs).sum(-1)


def q_targets(rewards: SB, terminations: SB, next_values: SB, gamma: float) -> SB:
    """Return soft Bellman targets r + gamma V(s') (Eq. 2); a time limit bootstraps."""
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(q_values: Float[Tensor, "S K B"], targets: SB, error: str = "half_squared") -> S:
    """Return the loss of the soft Bellman residual, averaged over B, summed over K (Eq. 4).

    A residual counts as half its square, its square (`squared`), or by Huber's loss (`huber`).
    """
    errors = q_values - targets[:, None]
    if error == "huber":
        losses = F.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    else:
        losses = (0.5 if error == "half_squared" else 1.0) * errors.square()
    return losses.mean(-1).sum(-1)


def actor_loss(log_probs: SBA, q_values: SBA, alpha: S) -> S:
    """Return minus the expected soft value, the mean of `soft_values` over B (Eq. 12)."""
    return -soft_values(q_values, log_probs, alpha).mean(-1)


def alpha_loss(log_alpha: S, entropy: S, target_entropy: float, factor_of: str = "alpha") -> S:
    """Return alpha (entropy - target entropy), without gradient to the policy (Eq. 11).

    With the factor `log_alpha` in place of `alpha`, steps do not shrink with the temperature.
    """
    factor = log_alpha.exp() if factor_of == "alpha" else log_alpha
    return factor * (entropy.detach() - target_entropy)


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    """Settings beside `OffPolicyConfig`'s; from the paper's equations and its author's code."""

    task: str = "Pong-v5"
    """Name of a task with discrete actions."""
    protocol: Protocol = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    env_steps: Count = 100_000
    """Environment steps of each seed (agent decisions), the warm-up included."""
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
    """AdamW step size of the policy."""
    critic_learning_rate: Rate = 3e-4
    """AdamW step size of the critics."""
    alpha_learning_rate: Rate = 3e-4
    """AdamW step size of the log temperature."""
    adam_epsilon: Positive = 1e-8
    """Keeps Adam's steps finite where gradients are small, in all three optimisers."""
    weight_decay: Fraction = 0.0
    """Weight decay of all three optimisers, decoupled from the gradient (AdamW)."""
    max_gradient_norm: Positive | None = None
    """Largest Euclidean norm of the gradient of each network; None: not clipped."""
    initial_alpha: Positive = 1.0
    """Temperature at the start."""
    learn_alpha: bool = True
    """Learn the temperature (Eq. 11) or keep `initial_alpha`."""
    alpha_objective: Literal["alpha", "log_alpha"] = "alpha"
    """Factor of the temperature objective: alpha (Eq. 11), or its logarithm (ALF; CleanRL at
    c3fc57d)."""
    min_log_alpha: float = -20.0
    """Lower bound of the log temperature."""
    max_log_alpha: float = 20.0
    """Upper bound of the log temperature."""
    target_entropy_share: Share = 0.98
    """Target entropy as a share of that of the uniform policy, log |A|."""
    critic_error: Literal["half_squared", "squared", "huber"] = "half_squared"
    """Loss of a critic's error: half its square (Eq. 4), its square, or Huber's with bound 1."""
    mean_over_actions: bool = False
    """Divide the losses of actor and temperature by |A|, as a mean over batch and actions does."""
    batch_size: Count = 64
    """Transitions per update, B."""
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

    def __post_init__(self) -> None:
        """Refuse invalid values; see `OffPolicyConfig`."""
        super().__post_init__()
        if self.find_task().actions != "discrete":
            raise UsageError(f"{self.task} has continuous actions: use sac")
        lowest, highest = self.min_log_alpha, self.max_log_alpha
        require(lowest < highest, f"min_log_alpha must be below max_log_alpha {highest}", lowest)
        num_envs, capacity = self.num_envs, self.replay_capacity
        rule = f"replay_capacity must hold 8 observations of each environment, {8 * num_envs}"
        require(capacity >= 8 * num_envs, rule, capacity)
        chance, draws = self.evaluation_epsilon, self.evaluation_rule == "sampled"
        rule = "evaluation_epsilon below 1 needs evaluation_rule sampled"
        require(draws or chance == 1, rule, chance)

    @property
    def replay_rows(self) -> int:
        """Return the observations kept per environment: at most a run's, two for each step."""
        most = 2 * self.env_steps // self.num_envs + 8  # so that a whole run never comes round
        return min(self.replay_capacity // self.num_envs, most)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        return self.replay_rows * self.num_envs * row_bytes(Spaces.of(self.find_task()))


PRESETS = Presets("sac_discrete", Config)  # a source's settings replace the defaults
NATURE = FrameLayers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), width=512)  # DQN's of Nature 2015


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: Ensemble | None
    """Logits, `[S, 1, B, A]`; None: the policy is read off the critics."""
    critics: Ensemble
    target_critics: Ensemble
    log_alpha: Tensor  # [S]
    actor_optimiser: AdamW | None
    critic_optimiser: AdamW
    alpha_optimiser: AdamW

    @property
    def acting(self) -> tuple[Ensemble, S]:
        """Return the networks that the policy is read off, and its log temperature."""
        log_alpha = self.log_alpha.detach()
        if self.actor is not None:
            return self.actor, torch.zeros_like(log_alpha)
        return self.critics, log_alpha

    def weights_of(self, seed: int) -> dict[str, Tensor]:
        """Return the tensors that a seed acts with, by name, for its file."""
        networks, log_temperature = self.acting
        return {**networks.all_weights_of(seed), "temperature": log_temperature[[seed]].exp()}

    def health(self) -> dict[str, Tensor]:
        """Return numbers that are finite unless a seed diverges."""
        norms = weight_norms(*(each for each in (self.critics, self.actor) if each is not None))
        return {"weight_norm": norms, "alpha": self.log_alpha.exp()}


def draw_networks(
    config: Config, spaces: Spaces, generator: np.random.Generator, number: int
) -> list[Perceptron | Trunk]:
    """Draw a seed's networks from observations to a number for each action."""
    kind: dict[str, Any] = {"scheme": config.initialisation, "gain": 2**0.5}
    shape, heads = spaces.obs_shape, [(spaces.num_outputs, 2**0.5)]
    if len(shape) == 3:
        kind |= {"frame_layers": NATURE, "hidden_sizes": ()}
        return [Trunk(shape, heads, generator, **kind) for _ in range(number)]
    sizes = (math.prod(shape), *config.hidden_sizes)
    return [Perceptron.drawn(generator, sizes, heads, **kind) for _ in range(number)]


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Build networks and optimisers; each seed's weights come from that seed's own stream."""
    learns_policy = config.policy == "network"
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        if learns_policy:
            actors.append(draw_networks(config, spaces, generator, 1))
        critics.append(draw_networks(config, spaces, generator, config.num_critics))
    actor, online = Ensemble(actors, device) if learns_policy else None, Ensemble(critics, device)
    initial = min(max(math.log(config.initial_alpha), config.min_log_alpha), config.max_log_alpha)
    log_alpha = torch.full((len(config.seeds),), initial, device=device, requires_grad=True)
    on_gpu = device.type == "cuda"
    constants = {"eps": config.adam_epsilon, "weight_decay": config.weight_decay}
    adam = partial(AdamW, **constants)
    actor_rate, critic_rate = config.actor_learning_rate, config.critic_learning_rate
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        log_alpha=log_alpha,
        actor_optimiser=adam(actor.parameters(), actor_rate, fused=True) if actor else None,
        critic_optimiser=adam(online.parameters(), critic_rate, fused=True),
        # not fused on a CPU: see sac.py
        alpha_optimiser=adam([log_alpha], config.alpha_learning_rate, fused=on_gpu),
    )


def minimise(
    losses: S, optimiser: AdamW, networks: Ensemble | None = None, bound: float | None = None
) -> None:
    """Make one gradient step, of at most `bound` for each network; each seed's loss is its own."""
    losses.sum().backward()
    if networks is not None and bound is not None:
        networks.clip_gradients(bound)
    optimiser.step()
    optimiser.zero_grad()  # last: the next product then gets this gradient's memory, still cached


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
    networks, log_temperature = learner.acting
    temperature = log_temperature.exp()  # the one before this update
    with torch.no_grad():
        # an actor's preferences are its logits
        preferences = combine(networks(batch.next_obs), config.q_of_critics)
        next_log_probs = log_policy(preferences, temperature)
        next_q_values = combine(learner.target_critics(batch.next_obs), config.q_of_critics)
        next_values = soft_values(next_q_values, next_log_probs, alpha)
        targets = q_targets(batch.rewards, batch.terminations, next_values, config.gamma)
    q_values = learner.critics(batch.obs)  # [S, K, B, A]
    taken_q_values = q_values.take_along_dim(batch.actions[:, None, :, None], -1).squeeze(-1)
    losses = critic_loss(taken_q_values, targets, config.critic_error)
    minimise(losses, learner.critic_optimiser, learner.critics, config.max_gradient_norm)
    metrics = {"critic_loss": losses.detach(), "q_value": taken_q_values.detach().mean((1, 2))}
    divisor = q_values.shape[-1] if config.mean_over_actions else 1
    if learner.actor is not None and learner.actor_optimiser is not None:
        with torch.no_grad():
            new_q_values = combine(learner.critics(batch.obs), config.q_of_critics)
        log_probs = log_policy(learner.actor(batch.obs).squeeze(1), temperature)
        losses = actor_loss(log_probs, new_q_values, alpha)
        most = config.max_gradient_norm
        minimise(losses / divisor, learner.actor_optimiser, learner.actor, most)
        metrics["actor_loss"] = losses.detach()
    else:
        log_probs = log_policy(combine(q_values, config.q_of_critics), temperature)
    entropy = entropies(log_probs.detach()).mean(-1)
    if config.learn_alpha:
        target_entropy = config.target_entropy_share * math.log(q_values.shape[-1])
        losses = alpha_loss(learner.log_alpha, entropy, target_entropy, config.alpha_objective)
        minimise(losses / divisor, learner.alpha_optimiser)
        learner.log_alpha.data.clamp_(config.min_log_alpha, config.max_log_alpha)
    if (num_updates + 1) % config.target_period == 0:
        learner.target_critics.follow(learner.critics, config.tau)
    return metrics | {"entropy": entropy, "alpha": alpha}


@torch.no_grad()
def act(
    networks: Ensemble,
    log_temperature: Tensor,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
    epsilon: float = 1.0,
) -> np.ndarray:
    """Return actions `[S, N]` for observations `[S, N, *obs]`.

    Args:
        networks: those that the policies of S seeds are read off.
        log_temperature: theirs, `[S]`.
        config: the run's settings.
        obs: observations of each seed's environments.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
        epsilon: probability of a draw; else an action is the mode.
    """
    joined = prepare(obs.reshape(-1, *obs.shape[2:]), log_temperature.device)
    outputs = networks(joined.unflatten(0, obs.shape[:2]))  # [S, K, N, A]
    log_probs = log_policy(combine(outputs, config.q_of_critics), log_temperature.exp())
    return choose(log_probs, streams, epsilon).cpu().numpy()


ACTING = ("policy", "num_critics", "q_of_critics", "hidden_sizes", "evaluation_epsilon")
ACTING += ("evaluation_rule",)
"""Settings that rebuild a policy, beside task and protocol."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    number = 1 if config.policy == "network" else config.num_critics
    networks = Ensemble([draw_networks(config, spaces, np.random.default_rng(0), number)])
    temperature = weights["temperature"]
    check_shape("temperature", temperature, (1,))
    networks.put_weights({name: each for name, each in weights.items() if name != "temperature"})
    policy = partial(act, networks, temperature.log(), config, epsilon=config.evaluation_epsilon)
    return Policy(config.find_task(), spaces, for_one_seed(policy))


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner."""
    session = StepSession(config, recorder)
    spaces, device = session.env.spaces, session.device
    learner = make_learner(config, spaces, device)
    replay = StepReplay(spaces, len(config.seeds), config.num_envs, config.replay_rows, device)
    replay_streams = [stream(seed, "replay sampling") for seed in config.seeds]
    policy = partial(act, *learner.acting, config)
    evaluated = partial(policy, epsilon=config.evaluation_epsilon)

    def learn(number: int) -> dict[str, Tensor]:
        return update(learner, config, replay.sample(replay_streams, config.batch_size), number)

    session.begin(
        learner, replay.store, learn, warm_up=config.learning_starts, further=replay_streams
    )
    while session.continues(evaluated, learner.weights_of, learner.health):
        if session.warms_up:
            actions = session.random_actions()
        else:
            actions = policy(session.obs, session.action_streams)
        session.step(actions)
        session.finish_updates()
    session.save_policies(learner.weights_of, ACTING)
    return learner


main = partial(train_together, __file__, train, PRESETS)
"""Train as the command line says; return 2 if a seed diverged, else 0."""

if __name__ == "__main__":
    sys.exit(run_main(main))
