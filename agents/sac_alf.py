"""Soft actor-critic as ALF has it (arXiv:1812.05905; HorizonRobotics/alf).

Actions are continuous, discrete, or mixed: a tanh-Gaussian policy draws the continuous action c,
critics with an output for every discrete action d judge it, and d is drawn from the softmax of
their values over a temperature of its own. Lines are those of alf/algorithms/sac_algorithm.py, or a
file beside it, at 23aca49; the note is docs/notes/sac_with_hybrid_action_types.rst.

    python -m agents.sac_alf --task Reacher-v4 --reward-weights 0.5 0.5 --out runs/parts
    python -m agents.sac_alf --suite hybrid --task Claw-v0 --seeds 1 2 3 --out runs/mixed

| what                                        | ALF                      | here                    |
|---------------------------------------------|--------------------------|-------------------------|
| continuous actions, density under the tanh  | lines 575-583            | `squash`                |
| pi_d = softmax(min_k Q_k(s, c, .) / alpha_d) | lines 598-601           | `choice_log_probs`      |
| prior that repeats the previous action      | prior_actor.py:27-157    | `same_action_log_probs` |
| log pi - log prior in place of log pi       | lines 405-416, 928-932   | `log_ratios`            |
| minimum over critics, part by part          | lines 763-767            | `lowest_q_values`       |
| entropy less its running mean               | lines 437-439, 1035-1036 | `update`                |
| targets of the parts, with entropy in each  | lines 870-874, 1012-1044 | `q_targets`             |
| squared residual, mean over parts, its root | td_loss.py:225; 1046-1060 | `critic_loss`          |
| alpha_c log pi_c - E_d[weighted sum of Q]   | lines 726-729, 785-822   | `actor_loss`            |
| temperature objective, for each entropy     | lines 887-893            | `alpha_loss`            |
| draws by priority, importance weights       | algorithm.py:1230-1250, 1845-1854 | `PriorityDraws`|

What differs from `agents/sac.py`: discrete and mixed actions; and options, all off by default, with
which the policy is held near a prior policy, the reward is a vector with weights, the entropy is
paid less its running mean, replay is drawn by priority. With all of them off, an update is that of
`agents.sac` for continuous actions. For discrete ones it is that of `agents.sac_discrete` read off
its critics, whose learned temperature measures the entropy before the critics' step.

Seeds are an axis: each has networks of its own, batches are `[S, B, ...]`, losses are averaged over
B and summed over S, so the seeds of one process never touch each other. Each of the D parts of the
reward has K critics. There are C discrete actions: C is 1 where actions are continuous.

Deviations from ALF, and details:
1. ALF's `normcdf(a, b)` is the probability of [a, b], as it must be. At an episode's first step the
   sharp part of the prior has weight 0 here, there e^-100 (prior_actor.py:135).
2. As in ALF, every part of the reward gets the whole entropy, so the weighted sum of values holds
   it as often as the weights add up to; the actor's loss holds it once.
3. A part with weight 0 is learned by the minimum; ALF's sign of 0 makes its next values 0.
4. The running mean is that of log pi in s', which is paid; ALF's is that of log pi in s as well.
5. As in ALF, importance weights multiply the losses of critics, actor and temperatures.
6. Priorities are a seed's own. Of a transition drawn twice the last error counts. ALF divides an
   error by the root of 2, but at an episode's end (sac_algorithm.py:1057-1060).
7. The temperatures' losses have the factor alpha, as in `agents.sac`; ALF's have log alpha.
8. Order within an update: critics, actor against the updated critics, temperatures on the entropies
   just measured, target copies. ALF takes one gradient of all losses and draws c once (line 103);
   its actor and temperatures learn from both states of a transition, with `reproduce_locomotion`
   from the second alone (lines 108-113, 985-992); here from the first.
9. Entropy and log-probability of the discrete action are expectations over its C values; ALF takes
   those of one draw (lines 606, 918), in the targets and for the temperature.
10. As in ALF, the discrete policy reads the online critics, in the targets as well, where it weighs
    values of the target copies. It gives the actor no gradient (line 803): the best policy for
    these very critics has none.
11. Target entropies are a share of log C, and a number per dimension in [-1, 1]. ALF states the
    probability of all choices but the best, and the share of the range that actions fill
    (alf/utils/dist_utils.py:1334-1360).
12. The deterministic policy takes tanh(mean) and the best discrete action there. ALF's draws with
    the probability `epsilon_greedy`, 0 by default (alf/algorithms/config.py:50).
13. Actions before the first update are uniform, in ALF only with `reproduce_locomotion` (line 630).
    All else is as in `agents.sac`, numbers 1, 2, 4 to 7.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from suite import truncated_normal
from suite.checkpoint import Policy, config_of, for_one_seed
from suite.command_line import run_main
from suite.config import Count, NotNegative, Positive, Range, Rate, TransitionConfig, Whole, Widths
from suite.networks import Perceptron, Stack, weight_norms
from suite.noise import stacked_gumbel, stacked_normal
from suite.presets import read_presets
from suite.priorities import PriorityDraws, UniformDraws
from suite.randomness import stream
from suite.recorder import Recorder
from suite.replay import Batch, Replay, row_bytes
from suite.session import Session, train_together
from suite.settings import UsageError, check_shape, require
from suite.vector_env import Spaces, Step

BEHAVIOUR = 2  # goes up when the bytes of a run change: see CONTRIBUTING.md

S = Float[Tensor, " S"]
SB = Float[Tensor, "S B"]
SBA = Float[Tensor, "S B A"]
SBC = Float[Tensor, "S B C"]
SDB = Float[Tensor, "S D B"]
Previous = Float[Tensor, "S B A1"]
"""The continuous action before, and a last column: 1 at an episode's first step, else 0."""


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


def choice_log_probs(q_values: SBC, choice_alpha: S) -> SBC:
    """Return log pi_d = log softmax(Q(s, c, .) / alpha_d), nats; 0 where C is 1."""
    return (q_values / choice_alpha[:, None, None]).log_softmax(-1)


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


def lowest_q_values(
    q_values: Float[Tensor, "S K D B C"], reward_weights: Float[Tensor, " D"]
) -> Float[Tensor, "S D B C"]:
    """Return each part's most pessimistic value among K critics.

    It is the smallest where the part's weight is 0 or positive, the greatest where it is negative.
    """
    signs = torch.where(reward_weights < 0, -1.0, 1.0)[:, None, None]
    return (q_values * signs).amin(1) * signs


def whole_values(q_values: Float[Tensor, "S K D B C"], reward_weights: Float[Tensor, " D"]) -> SBC:
    """Return the weighted sum of the parts' values."""
    return (reward_weights[:, None, None] * lowest_q_values(q_values, reward_weights)).sum(1)


def q_targets(
    rewards: SDB, terminations: SB, next_values: SDB, next_entropies: SB, gamma: float
) -> SDB:
    """Return soft Bellman targets r_d + gamma (E_d[min_k Q_kd(s', c', d)] + entropy) (Eqs. 2, 3).

    The values are the target copies', at actions of the current policy, and the entropy is what is
    paid for these: -alpha times the log ratio, for both actions. A time limit bootstraps.
    """
    return rewards + gamma * (1 - terminations)[:, None] * (next_values + next_entropies[:, None])


def critic_loss(q_values: Float[Tensor, "S K D B"], targets: SDB, weights: SB) -> tuple[S, SB]:
    """Return the squared soft Bellman residual, and errors for priorities.

    The loss is halved, averaged over D and, with importance weights, over B, and summed over K. An
    error is the root of a transition's squared residuals, averaged over D and summed over K.
    """
    squares = (q_values - targets[:, None]).square().mean(2).sum(1)  # [S, B]
    return 0.5 * (weights * squares).mean(-1), squares.detach().sqrt()


def actor_loss(ratios: SB, values: SB, alpha: S, weights: SB) -> S:
    """Return the mean of alpha_c log ratio_c - V_d(s, c) at reparametrised c.

    V_d is the expectation over discrete actions of their weighted values, and of the entropy's.
    """
    return (weights * (alpha[:, None] * ratios - values)).mean(-1)


def alpha_loss(alpha: S, ratios: SB, target_entropy: float, weights: SB) -> S:
    """Return the mean of -alpha (log ratio + target), for either action (Eq. 18)."""
    return -alpha * (weights * (ratios + target_entropy)).mean(-1)


@dataclass(frozen=True, kw_only=True)
class Config(TransitionConfig):
    """Every setting of a run; the defaults are those of `agents.sac`, and ALF's of its options."""

    takes_hybrid_actions: ClassVar[bool] = True
    task: str = "HalfCheetah-v4"
    """Name of a task with vector observations, and actions of any kind."""
    env_steps: Count = 1_000_000
    """Environment steps of each seed (agent decisions), warm-up included."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    num_critics: Count = 2
    """Critics of each part of the reward, K; targets and policies use their minimum."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, before the tanh."""
    actor_learning_rate: Rate = 3e-4
    """Adam step size of the policy."""
    critic_learning_rate: Rate = 3e-4
    """Adam step size of the critics."""
    alpha_learning_rate: Rate = 3e-4
    """Adam step size of the log temperatures."""
    initial_alpha: Positive = 1.0
    """Temperature of the continuous action at the start, alpha_c."""
    initial_choice_alpha: Positive = 1.0
    """Temperature of the discrete action at the start, alpha_d."""
    learn_alpha: bool = True
    """Learn the temperatures or keep the initial ones."""
    target_entropy_per_action: float = -1.0
    """Target entropy of the continuous action in nats per dimension, measured in [-1, 1]; unused
    with a prior."""
    target_entropy_share: Rate = 0.3
    """Target entropy of the discrete action as a share of log C, that of the uniform policy."""
    entropy_in_target: bool = True
    """Whether the critics' target contains the next state's entropy or the reward only."""
    normalise_entropy: bool = False
    """Pay the entropy less its running mean, so that a longer episode earns no more of it."""
    prior: Literal["none", "uniform", "same_action"] = "none"
    """Policy near which that of the continuous action is held; `same_action` mostly repeats the
    previous one."""
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
        if not task.obs_size:
            raise UsageError(f"this agent needs vector observations; {self.task} draws frames")
        rule = f"{self.task} has discrete actions, for which prior must be none"
        require(task.actions != "discrete" or self.prior == "none", rule, self.prior)
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
        task, num_parts = self.find_task(), self.num_parts
        widths = (task.obs_size, task.action_size + bool(task.num_actions))
        return self.replay_size * row_bytes(*widths, num_parts + task.action_size + 1)


PRESETS = read_presets("sac_alf", Config)


def log_ratios(log_probs: SB, actions: SBA, previous: Previous, config: Config) -> SB:
    """Return log pi(a|s) - log prior(a|s); without a prior log pi(a|s)."""
    if config.prior == "none":
        return log_probs
    if config.prior == "uniform":
        return log_probs + actions.shape[-1] * math.log(2)
    mixture = (config.same_action_prob, config.same_action_noise)
    return log_probs - same_action_log_probs(actions, previous, *mixture)


def split_outputs(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    return means, log_stds.clamp(config.log_std_min, config.log_std_max)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: Stack | None
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`; None: A is 0."""
    critics: Stack
    """The first critic of every part of the reward, then the second, `[S, K * D, B, C]`."""
    target_critics: Stack
    chooses: bool
    """Whether there are discrete actions."""
    reward_weights: Tensor  # [D]
    log_alphas: Tensor  # [2, S]: of the discrete action, of the continuous one
    mean_log_ratios: Tensor  # [2, S], of the next actions
    actor_optimiser: Adam | None
    critic_optimiser: Adam
    alpha_optimiser: Adam

    def q_values(self, critics: Stack, obs: Tensor, actions: SBA) -> Float[Tensor, "S K D B C"]:
        """Return what critics give, with an axis for the parts of the reward."""
        outputs = critics(torch.cat([obs, actions], -1))
        return outputs.unflatten(1, (-1, len(self.reward_weights)))

    @property
    def acting(self) -> tuple[Stack | None, Stack | None, Tensor, Tensor]:
        """Return what `act` takes first."""
        critics = self.critics if self.chooses else None
        return self.actor, critics, self.reward_weights, self.log_alphas

    def weights_of(self, seed: int) -> dict[str, Tensor]:
        """Return the tensors that a seed acts with, by name; choices are read off the critics."""
        if self.actor is not None and not self.chooses:
            return self.actor.weights_of(seed)
        named = {f"critic_{name}": each for name, each in self.critics.all_weights_of(seed).items()}
        if self.actor is not None:
            named |= {f"actor.{name}": each for name, each in self.actor.weights_of(seed).items()}
        return {**named, "log_alphas": self.log_alphas.detach()[:, [seed]]}

    def health(self) -> dict[str, Tensor]:
        """Return what is finite while a seed learns."""
        norms = weight_norms(*(each for each in (self.critics, self.actor) if each is not None))
        choice_alpha, alpha = self.log_alphas.exp()
        return {"weight_norm": norms, "choice_alpha": choice_alpha, "alpha": alpha}


def sizes_of(spaces: Spaces) -> tuple[int, int, int]:
    """Return the widths O of an observation and A of a continuous action, and the number C."""
    (obs_size,) = spaces.obs_shape
    if not spaces.continuous:
        return obs_size, 0, spaces.num_outputs
    return obs_size, spaces.num_outputs, max(spaces.num_choices, 1)


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    obs_size, action_size, num_choices = sizes_of(spaces)
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        draw = partial(Perceptron.drawn, generator, scheme="glorot_uniform", gain=1.0)
        if action_size:
            actors.append([draw(sizes, [(2 * action_size, 1.0)])])
        number = config.num_critics * config.num_parts
        critics.append([draw(pair_sizes, [(num_choices, 1.0)]) for _ in range(number)])
    actor, online = Stack(actors, device) if actors else None, Stack(critics, device)
    initial = torch.tensor([[config.initial_choice_alpha], [config.initial_alpha]]).log()
    log_alphas = initial.repeat(1, len(config.seeds)).to(device).requires_grad_()
    on_gpu = device.type == "cuda"  # on a CPU bits of a fused step depend on the number of seeds
    adam = partial(Adam, capturable=on_gpu)
    actor_rate, critic_rate = config.actor_learning_rate, config.critic_learning_rate
    return Learner(
        actor=actor,
        critics=online,
        target_critics=copy.deepcopy(online).requires_grad_(False),
        chooses=spaces.num_choices > 0 or not spaces.continuous,
        reward_weights=torch.tensor(config.reward_weights or (1.0,), device=device),
        log_alphas=log_alphas,
        mean_log_ratios=torch.zeros_like(log_alphas, requires_grad=False),
        actor_optimiser=adam(actor.parameters(), actor_rate, fused=True) if actor else None,
        critic_optimiser=adam(online.parameters(), critic_rate, fused=True),
        alpha_optimiser=adam([log_alphas], config.alpha_learning_rate, fused=on_gpu),
    )


# Same in: sac.py
def minimise(losses: Float[Tensor, " S"], optimiser: torch.optim.Optimizer) -> None:
    """Make one gradient step; each seed's loss is one of its own weights alone."""
    optimiser.zero_grad()
    losses.sum().backward()
    optimiser.step()


def sample(actor: Stack | None, config: Config, obs: Tensor, noise: SBA) -> tuple[SBA, SB]:
    """Return continuous actions and their log-densities; both are empty without an actor."""
    if actor is None:
        return noise, noise.sum(-1)
    return squash(*split_outputs(actor(obs), config), noise)


def update(
    learner: Learner, config: Config, batch: Batch, weights: SB, noise: Tensor, num_updates: int
) -> tuple[dict[str, Tensor], SB]:
    """Make one gradient step: critics, then actor and temperatures, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: transitions; with choices, their actions begin with the choice's number; their extras
            are the parts of the reward, and the previous action.
        weights: their importance weights.
        noise: standard normal draws, `[2, S, B, A]`: for the targets, for the actor.
        num_updates: updates made before this one.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device; errors for priorities.
    """
    rewards, previous = batch.extras[..., : config.num_parts], batch.extras[..., config.num_parts :]
    width, action_size = batch.obs_actions.shape[-1], noise.shape[-1]
    taken, alphas = batch.obs_actions[..., width - action_size :], learner.log_alphas.detach().exp()
    with torch.no_grad():
        next_actions, next_log_probs = sample(learner.actor, config, batch.next_obs, noise[0])
        next_pairs = (batch.next_obs, next_actions)
        choices = torch.zeros_like(next_log_probs)[..., None]  # log pi_d of the only one
        if learner.chooses:
            online = learner.q_values(learner.critics, *next_pairs)
            choices = choice_log_probs(whole_values(online, learner.reward_weights), alphas[0])
        repeated = F.pad(taken, (0, 1))  # the actions before the next ones, none of them a first
        ratios = log_ratios(next_log_probs, next_actions, repeated, config)
        next_ratios = torch.stack([(choices.exp() * choices).sum(-1), ratios])  # [2, S, B]
        if config.normalise_entropy:
            rate = 8 / (8 + num_updates)  # the speed is 8 (alf/utils/normalizers.py:386)
            learner.mean_log_ratios.lerp_(next_ratios.mean(-1), rate)
            next_ratios = next_ratios - learner.mean_log_ratios[..., None]
        paid = -float(config.entropy_in_target) * (alphas[..., None] * next_ratios).sum(0)
        copied = learner.q_values(learner.target_critics, *next_pairs)
        lowest = lowest_q_values(copied, learner.reward_weights)
        next_values = (choices.exp()[:, None] * lowest).sum(-1)  # [S, D, B]
        targets = q_targets(rewards.mT, batch.terminations, next_values, paid, config.gamma)
    q_values = learner.q_values(learner.critics, batch.obs, taken)
    if learner.chooses:
        numbers = batch.obs_actions[..., batch.obs.shape[-1]].long()  # [S, B]
        q_values = q_values.take_along_dim(numbers[:, None, None, :, None], -1)
    losses, errors = critic_loss(q_values.squeeze(-1), targets, weights)
    minimise(losses, learner.critic_optimiser)
    metrics = {"critic_loss": losses.detach(), "q_value": q_values.detach().mean((1, 2, 3, 4))}
    metrics |= _update_policy(learner, config, batch.obs, previous, weights, noise[1])
    learner.target_critics.follow(learner.critics, config.tau)
    return metrics, errors


def _update_policy(
    learner: Learner, config: Config, obs: Tensor, previous: Tensor, weights: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against fixed critics, and one of the temperatures."""
    alphas = learner.log_alphas.detach().exp()  # [2, S]
    choice_alpha, alpha = alphas
    actions, log_probs = sample(learner.actor, config, obs, noise)
    ratios = log_ratios(log_probs, actions, previous, config)
    with learner.critics.frozen():
        q_values = learner.q_values(learner.critics, obs, actions)
    whole = whole_values(q_values, learner.reward_weights)
    choices = choice_log_probs(whole.detach(), choice_alpha)  # [S, B, C]
    choice_ratios = (choices.exp() * choices).sum(-1)  # [S, B]
    metrics: dict[str, Tensor] = {}
    if learner.actor_optimiser is not None:
        values = (choices.exp() * whole).sum(-1) - choice_alpha[:, None] * choice_ratios
        losses = actor_loss(ratios, values, alpha, weights)
        minimise(losses, learner.actor_optimiser)
        entropy = -log_probs.detach().mean(-1)
        metrics |= {"actor_loss": losses.detach(), "entropy": entropy, "alpha": alpha}
    if learner.chooses:
        metrics |= {"choice_entropy": -choice_ratios.mean(-1), "choice_alpha": choice_alpha}
    target_entropy = config.target_entropy_per_action * actions.shape[-1]
    if config.prior != "none":
        metrics["prior_kl"] = ratios.detach().mean(-1)
        target_entropy = -config.target_kl_per_action * actions.shape[-1]
    if config.learn_alpha:
        choice_alpha, alpha = learner.log_alphas.exp()
        of_choice = config.target_entropy_share * math.log(q_values.shape[-1])
        choice_losses = alpha_loss(choice_alpha, choice_ratios, of_choice, weights)
        losses = alpha_loss(alpha, ratios.detach(), target_entropy, weights)
        minimise(choice_losses + losses, learner.alpha_optimiser)
    return metrics


@torch.no_grad()
def act(
    actor: Stack | None,
    critics: Stack | None,
    reward_weights: Tensor,
    log_alphas: Tensor,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Return actions for observations `[S, N, O]`: `[S, N, A]`, `[S, N]`, or mixed `[S, N, 1 + A]`.

    Args:
        actor: the continuous policies of S seeds; None: actions are discrete.
        critics: theirs, which choose discrete actions; None: actions are continuous.
        reward_weights: those of the parts that critics learn.
        log_alphas: the policies' temperatures, `[2, S]`.
        config: the run's settings.
        obs: observations of each seed's environments.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
    """
    inputs = torch.as_tensor(obs, dtype=torch.float32, device=log_alphas.device)
    actions = inputs[..., :0]
    if actor is not None:
        means, log_stds = split_outputs(actor(inputs), config)
        noise = 0.0 if streams is None else stacked_normal(streams, means.shape[1:], inputs.device)
        actions = torch.tanh(means + log_stds.exp() * noise)
    if critics is None:
        return actions.cpu().numpy()
    outputs = critics(torch.cat([inputs, actions], -1)).unflatten(1, (-1, len(reward_weights)))
    values = whole_values(outputs, reward_weights)
    preferences = choice_log_probs(values, log_alphas[0].exp())  # [S, N, C]
    if streams is not None:
        preferences = preferences + stacked_gumbel(streams, preferences.shape[1:], inputs.device)
    if actor is None:
        return preferences.argmax(-1).cpu().numpy()
    return torch.cat([preferences.argmax(-1, keepdim=True), actions], -1).cpu().numpy()


ACTING = ("log_std_min", "log_std_max", "num_critics", "reward_weights")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    reward_weights = torch.tensor(config.reward_weights or (1.0,))
    if spaces.continuous and not spaces.num_choices:
        actor = Stack([[Perceptron.from_weights(weights)]])
        policy = partial(act, actor, None, reward_weights, torch.zeros(2, 1), config)
        return Policy(config.find_task(), spaces, for_one_seed(policy))
    check_shape("log_alphas", weights["log_alphas"], (2, 1))
    parts = [f"critic_{number}." for number in range(config.num_critics * config.num_parts)]
    parts = ["actor."] * spaces.continuous + parts
    networks = [
        Perceptron.from_weights(
            {key.removeprefix(part): each for key, each in weights.items() if key.startswith(part)}
        )
        for part in parts
    ]
    strange = [key for key in weights if not key.startswith((*parts, "log_alphas"))]
    if strange:
        raise ValueError(f"not the weights of this policy: {', '.join(sorted(strange))}")
    actor = Stack([[networks.pop(0)]]) if spaces.continuous else None
    policy = partial(act, actor, Stack([networks]), reward_weights, weights["log_alphas"], config)
    return Policy(config.find_task(), spaces, for_one_seed(policy))


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner.

    Raises:
        UsageError: for a missing GPU.
    """
    by_parts, seeds = config.reward_weights is not None, config.seeds
    session = Session(config, recorder, reset="same_step", reward_parts=by_parts)
    spaces, device = session.env.spaces, session.device
    obs_size, action_size, _ = sizes_of(spaces)
    learner = make_learner(config, spaces, device)
    sizes = (config.replay_size, config.num_envs, obs_size, action_size + learner.chooses)
    replay = Replay(len(seeds), *sizes, device, config.num_parts + action_size + 1)
    previous = np.zeros((len(seeds), config.num_envs, action_size + 1), dtype=np.float32)
    previous[..., -1] = 1.0
    draws = UniformDraws()
    if config.prioritised_replay:
        powers = (config.priority_exponent, config.priority_epsilon, config.importance_exponent)
        draws = PriorityDraws(len(seeds), replay.capacity, *powers)
    replay_streams = [stream(seed, "replay sampling") for seed in seeds]
    noise_streams = [stream(seed, "update noise") for seed in seeds]

    def store(obs: np.ndarray, actions: np.ndarray, step: Step) -> None:
        nonlocal previous
        rows = actions if spaces.continuous else actions[..., None]
        parts = step.reward_parts if step.reward_parts.size else step.rewards[..., None]
        replay.add(obs, rows, step.rewards, step.terminations, step.next_obs, parts, previous)
        draws.add(replay.newest)
        ends = (step.terminations | step.truncations)[..., None]
        kept = np.where(ends, 0.0, rows[..., rows.shape[-1] - action_size :])
        previous = np.concatenate([kept, ends], axis=-1, dtype=np.float32)

    def learn(number: int) -> dict[str, Tensor]:
        rows, weights = draws.draw(replay_streams, config.batch_size, replay.size)
        batch = replay.batch(torch.from_numpy(rows).to(device))
        noise = stacked_normal(noise_streams, (2, config.batch_size, action_size), device)
        given = (batch, torch.from_numpy(weights).to(device), noise.transpose(0, 1), number)
        diagnostics, errors = update(learner, config, *given)
        draws.update(rows, errors)
        return diagnostics

    policy = partial(act, *learner.acting, config)
    further = [replay_streams, noise_streams, draws]
    session.begin(learner, store, warm_up=config.learning_starts, further=further)
    while session.continues(policy, learner.weights_of, learner.health):
        if session.warms_up:
            actions = session.random_actions()
        else:
            actions = policy(session.obs, session.action_streams)
        session.step(actions)
        session.learn(learn)
    session.save_policies(learner.weights_of, ACTING)
    return learner


# Same in: sac.py
def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_together(__file__, train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
