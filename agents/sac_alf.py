"""Soft actor-critic with ALF's options (arXiv:1812.05905; HorizonRobotics/alf).

Actions are continuous, discrete or hybrid. A tanh-Gaussian policy draws the continuous action c;
critics have an output for every discrete action d; d is drawn from the softmax of their values over
a temperature of its own. Lines are those of alf/algorithms/sac_algorithm.py, or of a named file, at
23aca49; docs/notes/sac_with_hybrid_action_types.rst there has the derivation.

    python -m agents.sac_alf --task Reacher-v4 --reward-weights 0.5 0.5 --out runs/parts
    python -m agents.sac_alf --suite hybrid --task Claw-v0 --seeds 1 2 3 --out runs/mixed

| what                                        | ALF                      | here                    |
|---------------------------------------------|--------------------------|-------------------------|
| continuous actions, density under the tanh  | lines 575-583           | `squash` of `agents.sac` |
| pi_d = softmax(min_k Q_k(s, c, .) / alpha_d) | lines 598-601           | `choice_log_probs`      |
| prior that repeats the previous action      | prior_actor.py:27-157    | `same_action_log_probs` |
| log pi - log prior in place of log pi       | lines 405-416, 928-932   | `log_ratios`            |
| minimum over critics, part by part          | lines 763-767            | `lowest_q_values`       |
| entropy less its running mean               | lines 437-439, 1035-1036 | `make_targets`          |
| targets of the parts, with entropy in each  | lines 870-874, 1012-1044 | `q_targets`             |
| TD(lambda) targets over several steps       | td_loss.py:106-147       | `lambda_returns`        |
| squared residual, mean over parts, its root | td_loss.py:225; 1046-1060 | `critic_loss`          |
| alpha_c log pi_c - E_d[weighted sum of Q]   | lines 726-729, 785-822   | `actor_loss`            |
| temperature objective, for each entropy     | lines 887-893            | `alpha_loss`            |
| memories along a sequence, from 0 on        | algorithm.py:1762-1797   | `lstm_size`             |
| draws by priority, importance weights       | algorithm.py:1230-1250, 1845-1854 | `PriorityDraws`|
| modes and draws in evaluations              | dist_utils.py:1070-1095  | `noise_or_none`         |

What differs from `agents/sac.py`: discrete and hybrid actions, and options, all off by default: a
prior policy near which the policy is held; a reward that is a weighted vector; an entropy minus its
running mean, or left out of the targets; bounds of the temperatures and of dQ/da; prioritised
replay; targets over several steps; recurrent networks; evaluations that draw some actions. With all
of them off, an update is that of `agents.sac` for continuous actions, under every setting of that
agent. For discrete actions it is that of `agents.sac_discrete` with `policy = "critics"`, except
that the learned temperature there uses the entropy before the critics' step.

Seeds are an axis: each has networks of its own, batches are `[S, B, ...]`, losses are averaged over
B and summed over S, so the seeds of one process do not affect each other. Each of the D parts of
the reward has K critics. There are C discrete actions; C is 1 where actions are continuous.
Sequences have T steps: `[S, T * B, ...]` holds all first steps, then all second ones.

Deviations from ALF, and details:
1. ALF's `normcdf(a, b)` is taken as the probability of [a, b], as a density needs. At an episode's
   first step the prior's narrow part has weight 0 here, e^-100 in ALF (prior_actor.py:135).
2. As in ALF, every part of the reward gets the whole entropy; the actor's loss has it once.
3. A part with weight 0 learns from the minimum over critics; in ALF its next values are 0, by the
   sign of 0.
4. The entropy's running mean is over s', whose entropy enters the targets; ALF's is over s as well.
5. As in ALF, importance weights multiply the losses of critics, actor and temperatures.
6. Each seed has its own priorities. If a transition is drawn twice, its last error counts. ALF
   divides errors by the root of 2, except at an episode's end (sac_algorithm.py:1057-1060).
7. The temperatures' losses have the factor alpha, as in `agents.sac`; ALF's have log alpha.
8. Order within an update: critics, actor against the updated critics, temperatures on the entropies
   just measured, target copies. ALF takes one gradient of all losses and draws c once (line 103).
   Its actor and temperatures learn from both states of a transition, with `reproduce_locomotion`
   only from the second (lines 108-113, 985-992); here they learn from the first.
9. Entropy and log-probability of the discrete action are expectations over its C values; ALF takes
   those of one draw (lines 606, 918), in the targets and for the temperature.
10. As in ALF, the discrete policy uses the online critics, also in the targets, and gives the actor
    no gradient (line 803): the best policy for these critics has none.
11. Target entropies are a share of log C, and a number per dimension in [-1, 1]. ALF sets them by
    the probability of all choices but the best, and by a share of the range
    (dist_utils.py:1334-1360).
12. The deterministic policy takes tanh(mean) and the best discrete action for it. ALF's draws with
    probability `epsilon_greedy`, 0 by default (config.py:50); here the rule `sampled` does so.
13. Actions before the first update are uniform, in ALF only with `reproduce_locomotion` (line 630).
    All else is as in `agents.sac`, numbers 1, 2, 4 to 7.
14. Sequences begin anywhere and end with their episode or the newest transition. ALF's have exactly
    T + 1 steps, and losses skip an episode's last step. As in ALF, nothing corrects for older
    policies, and the critics learn at every step.
15. Without `reward_weights` the reward is learned as one. In ALF None means a weight of 1 for each
    part (rl_algorithm.py:209-223); give these ones here.
16. LSTMs start a sequence with memory 0, as in ALF without `use_rollout_state`, its default. As
    there, in the critics' loss memories come from replayed actions, elsewhere from fresh ones;
    gradients pass through time, but dQ/da does not (lines 808, 847-861). Acting keeps memory from
    the end of the warm-up on.
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

from agents import sac
from agents.sac import minimise, parts_due, split_outputs, squash
from suite.base.errors import UsageError, check_shape, require
from suite.base.noise import choose, noise_or_none, normal
from suite.base.randomness import stream
from suite.envs.vector_env import Spaces, Step
from suite.nets.gaussian import truncated_log_density
from suite.nets.perceptrons import Ensemble, Perceptron, weight_norms
from suite.nets.recurrence import EnsembleMemory
from suite.policy import Policy, config_of, for_one_seed
from suite.priorities import PriorityDraws
from suite.record.recorder import Recorder
from suite.replay import Batch, HistoryReplay
from suite.session import train_together
from suite.settings.command_line import run_main
from suite.settings.config import Count, Fraction, NotNegative, Positive, Range, Share, Whole
from suite.settings.presets import Presets
from suite.step_session import StepSession

BEHAVIOUR = 3  # goes up when the bytes of a run change: see CONTRIBUTING.md

S = Float[Tensor, " S"]
SB = Float[Tensor, "S B"]
SBA = Float[Tensor, "S B A"]
SBC = Float[Tensor, "S B C"]
SDB = Float[Tensor, "S D B"]
STB = Float[Tensor, "S T B"]
Previous = Float[Tensor, "S B A1"]
"""The continuous action before, and a last column: 1 at an episode's first step, else 0."""


def choice_log_probs(q_values: SBC, choice_alpha: S) -> SBC:
    """Return log pi_d = log softmax(Q(s, c, .) / alpha_d), nats; 0 where C is 1."""
    return (q_values / choice_alpha[:, None, None]).log_softmax(-1)


def same_action_log_probs(actions: SBA, previous: Previous, probability: float, noise: float) -> SB:
    """Return the log-density of actions in [-1, 1] under a policy that repeats the previous one.

    Each dimension is a mixture of two truncated normals: a wide one around 0, whose deviation is
    the range 2, and, with weight `probability` unless the step is an episode's first, a narrow one
    around the previous action, whose deviation is `noise` times the range.
    """
    centres, is_first = previous[..., :-1], previous[..., -1:] > 0
    sharp_weights = torch.where(is_first, 0.0, probability)
    flat = truncated_log_density(actions, torch.zeros_like(centres), 2.0)
    sharp = truncated_log_density(actions, centres, 2.0 * noise)
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

    The values are the target copies', at actions of the current policy; the entropy is that of
    these actions: -alpha times the log ratio, summed over c and d. A time limit bootstraps.
    """
    return rewards + gamma * (1 - terminations)[:, None] * (next_values + next_entropies[:, None])


def lambda_returns(
    targets: Float[Tensor, "S D T B"],
    next_values: Float[Tensor, "S D T B"],
    factors: Float[Tensor, "S T-1 B"],
) -> Float[Tensor, "S D T B"]:
    """Return G_t = y_t + factor_t (G_{t+1} - V(s_{t+1})), with the one-step targets y_t.

    A factor is gamma * lambda, and 0 at a termination and where no step of a sequence follows.
    """
    returns = [targets[:, :, -1]]
    for t in reversed(range(targets.shape[2] - 1)):
        gain = returns[0] - next_values[:, :, t]
        returns.insert(0, targets[:, :, t] + factors[:, None, t] * gain)
    return torch.stack(returns, 2)


def critic_loss(
    q_values: Float[Tensor, "S K D TB"],
    targets: Float[Tensor, "S D TB"],
    weights: SB,
    counts: STB,
) -> tuple[S, SB]:
    """Return the squared soft Bellman residual, and errors for priorities.

    The loss is halved, averaged over D, over the steps of a sequence that count and (with
    importance weights) over B, and summed over K. An error is the root of a sequence's squared
    residual, averaged over D and steps and summed over K.
    """
    squares = (q_values - targets[:, None]).square().mean(2).sum(1)  # [S, T B]
    squares = (squares.unflatten(1, counts.shape[1:]) * counts).sum(1) / counts.sum(1)  # [S, B]
    return 0.5 * (weights * squares).mean(-1), squares.detach().sqrt()


def actor_loss(ratios: SB, values: SB, alpha: S, weights: SB) -> S:
    """Return the mean of alpha_c log ratio_c - V_d(s, c) at reparametrised c.

    V_d is the expectation over discrete actions of their weighted values, plus alpha_d times their
    entropy.
    """
    return (weights * (alpha[:, None] * ratios - values)).mean(-1)


def alpha_loss(alpha: S, ratios: SB, target_entropy: float, weights: SB) -> S:
    """Return the mean of -alpha (log ratio + target), for either action (Eq. 18)."""
    return -alpha * (weights * (ratios + target_entropy)).mean(-1)


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Settings beside those of `agents.sac`, which keep its defaults: ALF's options, with ALF's."""

    takes_hybrid_actions: ClassVar[bool] = True
    cuda_graphs: bool = True
    """Whether a GPU gets each update as one CUDA graph. Ignored without a GPU, and with several
    `td_steps`, `normalise_entropy` or `prioritised_replay`."""
    initial_choice_alpha: Positive = 1.0
    """Temperature of the discrete action at the start, alpha_d; `initial_alpha` is alpha_c's."""
    max_log_alpha: float | None = None
    """Upper bound of both log temperatures; None: unbounded."""
    entropy_in_target: bool = True
    """Whether the critics' target contains the next state's entropy (Eq. 3) or the reward only."""
    action_gradient_clip: Positive | None = None
    """Bound of each component of dQ/da in the actor's loss; None: unbounded."""
    target_entropy_share: Share = 0.3
    """Target entropy of the discrete action as a share of log C, that of the uniform policy."""
    normalise_entropy: bool = False
    """Subtract the entropy's running mean from it, so that longer episodes earn no more of it."""
    prior: Literal["none", "uniform", "same_action"] = "none"
    """Policy near which the policy of the continuous action is held; `same_action` mostly repeats
    the previous action. With a prior `target_entropy_per_action` is unused."""
    target_kl_per_action: float = 3.0
    """Target divergence from the prior in nats per action dimension."""
    same_action_prob: Annotated[float, Range("[0, 1]")] = 0.9
    """Probability with which the prior `same_action` repeats a dimension."""
    same_action_noise: Positive = 0.1
    """Standard deviation of the repeated action as a share of the range of actions."""
    reward_weights: tuple[float, ...] | None = None
    """Learn the parts of the reward, with these weights; None: learn the reward as a whole."""
    td_steps: Count = 1
    """Transitions over which the critics' targets reach, T: ALF's `mini_batch_length` less 1."""
    td_lambda: Fraction = 0.95
    """Weight of longer returns in these targets; 1: the longest alone, 0: one step."""
    lstm_size: Whole = 0
    """Units of an LSTM before every network's last layer, trained on all T steps; 0: none."""
    evaluation_epsilon: Fraction = 1.0
    """Probability that an evaluation by the rule `sampled` draws an action, not its mode."""
    prioritised_replay: bool = False
    """Draw transitions by their last error instead of uniformly."""
    priority_exponent: NotNegative = 0.7
    """Power of the error that makes a priority; 0: all are equal."""
    priority_epsilon: Positive = 1e-6
    """Added to the error, in reward units."""
    importance_exponent: NotNegative = 0.4
    """Power of the importance weights; 1 makes up for the draws in full, 0 not at all."""

    def __post_init__(self) -> None:
        """Refuse invalid values; see `agents.sac.Config`."""
        super().__post_init__()
        task = self.find_task()
        if not task.obs_size:
            raise UsageError(f"this agent needs vector observations; {self.task} draws frames")
        rule = f"{self.task} has discrete actions, for which prior must be none"
        require(task.actions != "discrete" or self.prior == "none", rule, self.prior)
        parts, weights = task.reward_parts or ("reward",), self.reward_weights
        fits = weights is None or (len(weights) == len(parts) and all(map(math.isfinite, weights)))
        rule = f"reward_weights must be {len(parts)} numbers, of {', '.join(parts)}"
        require(fits, rule, weights)
        chance, draws = self.evaluation_epsilon, self.evaluation_rule == "sampled"
        rule = "evaluation_epsilon below 1 needs evaluation_rule sampled"
        require(draws or chance == 1, rule, chance)
        rule = "with lstm_size td_steps must be above 1"
        require(self.td_steps > 1 or not self.lstm_size, rule, self.td_steps)

    @property
    def num_parts(self) -> int:
        """Return how many parts of the reward are learned, D."""
        return len(self.reward_weights or (1.0,))

    @property
    def policy_steps(self) -> int:
        """Return of how many steps of a sequence the policy learns: the first; with an LSTM all."""
        return self.td_steps if self.lstm_size else 1

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        task = self.find_task()
        further = bool(task.num_actions) + self.num_parts + task.action_size + 1
        return super().memory_bytes + 4 * self.replay_size * further


PRESETS = Presets("sac_alf", Config)  # a source's settings replace the defaults


def log_ratios(log_probs: SB, actions: SBA, previous: Previous, config: Config) -> SB:
    """Return log pi(a|s) - log prior(a|s); without a prior log pi(a|s)."""
    if config.prior == "none":
        return log_probs
    if config.prior == "uniform":
        return log_probs + actions.shape[-1] * math.log(2)
    mixture = (config.same_action_prob, config.same_action_noise)
    return log_probs - same_action_log_probs(actions, previous, *mixture)


@dataclass
class Learner:
    """Networks, temperatures and optimisers of S seeds."""

    actor: Ensemble | None
    """Means and log standard deviations side by side, `[S, 1, B, 2 A]`; None: A is 0."""
    critics: Ensemble
    """The first critic of every part of the reward, then the second, `[S, K * D, B, C]`."""
    target_critics: Ensemble
    chooses: bool
    """Whether there are discrete actions."""
    reward_weights: Tensor  # [D]
    log_alphas: Tensor  # [2, S]: of the discrete action, of the continuous one
    mean_log_ratios: Tensor  # [2, S], of the next actions
    actor_optimiser: Adam | None
    critic_optimiser: Adam
    alpha_optimiser: Adam

    def q_values(
        self, critics: Ensemble, obs: Tensor, actions: SBA, num_steps: int = 1, cut: bool = False
    ) -> Float[Tensor, "S K D B C"]:
        """Return what critics give along `num_steps` steps, with an axis for the reward's parts."""
        outputs = critics.unroll(torch.cat([obs, actions], -1), num_steps, cut)
        return outputs.unflatten(1, (-1, len(self.reward_weights)))

    @property
    def acting(self) -> tuple[Ensemble | None, Ensemble | None, Tensor, Tensor]:
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
        """Return numbers that are finite unless a seed diverges."""
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
    """Build networks and optimisers; each seed's weights come from that seed's own stream."""
    obs_size, action_size, num_choices = sizes_of(spaces)
    scheme, gain = config.initialisation, config.hidden_gain
    sizes = (obs_size, *config.hidden_sizes)
    pair_sizes = (obs_size + action_size, *config.hidden_sizes)
    parts = 2 if config.separate_heads else 1  # means and log standard deviations
    policy_heads = [(2 * action_size // parts, config.policy_head_gain)] * parts
    num_networks = config.num_critics * config.num_parts
    actors, critics = [], []
    for seed in config.seeds:
        draw = partial(Perceptron.drawn, stream(seed, "initial weights"), scheme=scheme, gain=gain)
        draw = partial(draw, lstm_size=config.lstm_size)
        if action_size:
            actors.append([draw(sizes, policy_heads)])
        critics.append([draw(pair_sizes, [(num_choices, gain)]) for _ in range(num_networks)])
    actor, online = Ensemble(actors, device) if actors else None, Ensemble(critics, device)
    initial = torch.tensor([[config.initial_choice_alpha], [config.initial_alpha]]).log()
    initial = initial.clamp(-1e30, config.max_log_alpha)  # a saved policy is finite
    log_alphas = initial.repeat(1, len(config.seeds)).to(device).requires_grad_()
    on_gpu = device.type == "cuda"
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
        # not fused on a CPU: see sac.py
        alpha_optimiser=adam([log_alphas], config.alpha_learning_rate, fused=on_gpu),
    )


def sample(
    actor: Ensemble | None, config: Config, obs: Tensor, noise: SBA, num_steps: int
) -> tuple[SBA, SB]:
    """Return continuous actions and their log-densities; both are empty without an actor."""
    if actor is None:
        return noise, noise.sum(-1)
    return squash(*split_outputs(actor.unroll(obs, num_steps), config), noise)


def shares_of(counts: STB) -> Float[Tensor, "S TB"]:
    """Return weights of all rows: equal where a row counts, else 0; 1 in a sequence's mean."""
    return (counts.shape[1] * counts / counts.sum(1, keepdim=True)).flatten(1)


@torch.no_grad()
def make_targets(
    learner: Learner,
    config: Config,
    batch: Batch,
    counts: STB,
    noise: Float[Tensor, "S NB A"],
    num_updates: int,
) -> Float[Tensor, "S D TB"]:
    """Return the critics' targets at fresh actions in s'; with an option, update the running means.

    With an LSTM memories begin at the first s, and come from fresh actions after it.
    """
    steps, action_size, alphas = counts.shape[1:], noise.shape[-1], learner.log_alphas.exp()
    rewards = batch.extras[..., : config.num_parts].mT  # [S, D, T B]
    actions = batch.obs_actions[..., batch.obs_actions.shape[-1] - action_size :]
    # every s'; an LSTM's memory begins before them, at the first s
    states, num_states = batch.next_obs, counts.shape[1]
    skipped = noise.shape[1] - batch.next_obs.shape[1]
    if skipped:
        states, num_states = torch.cat([batch.obs[:, :skipped], states], 1), num_states + 1
    fresh_actions, log_probs = sample(learner.actor, config, states, noise, num_states)

    def next_q_values(critics: Ensemble) -> Float[Tensor, "S K D TB C"]:
        q_values = learner.q_values(critics, states, fresh_actions, num_states)
        return q_values[..., skipped:, :]

    # pi_d(s', c'), c' the fresh continuous action; 1 where there is nothing to choose
    log_pi_d = torch.zeros_like(log_probs[:, skipped:])[..., None]  # [S, T B, C]
    if learner.chooses:
        q_values = whole_values(next_q_values(learner.critics), learner.reward_weights)
        log_pi_d = choice_log_probs(q_values, alphas[0])
    # the entropies of both, or with a prior minus the divergence from it
    previous = F.pad(actions, (0, 1))  # the actions before c'; no c' is an episode's first
    ratios = log_ratios(log_probs[:, skipped:], fresh_actions[:, skipped:], previous, config)
    both_ratios = torch.stack([(log_pi_d.exp() * log_pi_d).sum(-1), ratios])  # [2, S, T B]
    if config.normalise_entropy:
        rate = 8 / (8 + num_updates)  # the speed is 8 (alf/utils/normalizers.py:386)
        learner.mean_log_ratios.lerp_((both_ratios * shares_of(counts)).mean(-1), rate)
        both_ratios = both_ratios - learner.mean_log_ratios[..., None]
    next_entropies = -float(config.entropy_in_target) * (alphas[..., None] * both_ratios).sum(0)

    lowest = lowest_q_values(next_q_values(learner.target_critics), learner.reward_weights)
    next_values = (log_pi_d.exp()[:, None] * lowest).sum(-1)  # [S, D, T B]
    one_step = q_targets(rewards, batch.terminations, next_values, next_entropies, config.gamma)
    continuing = (1 - batch.terminations).unflatten(1, steps)[:, :-1] * counts[:, 1:]
    return lambda_returns(
        one_step.unflatten(2, steps),
        next_values.unflatten(2, steps),
        config.gamma * config.td_lambda * continuing,
    ).flatten(2)


def update(
    learner: Learner,
    config: Config,
    batch: Batch,
    weights: SB,
    noise: Tensor,
    num_updates: int,
    counts: STB | None = None,
) -> tuple[dict[str, Tensor], SB]:
    """Make one gradient step: critics, then actor and temperatures, then the target copies.

    Args:
        learner: networks, temperatures and optimisers; changed in place.
        config: the run's settings.
        batch: transitions, `[S, T * B]`, those drawn first; with choices, their actions begin with
            the choice's number; their extras are the parts of the reward, and the previous action.
        weights: importance weights of the transitions drawn.
        noise: standard normal draws, `[.., S, B, A]`: T for the targets, with an LSTM T + 1, then
            `config.policy_steps` for each update of the policy.
        num_updates: updates made before this one, which the periods count.
        counts: 1 where a transition counts, else 0; None: T is 1, and all do.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device; errors for priorities.
    """
    counts = torch.ones_like(weights)[:, None] if counts is None else counts
    num_steps = counts.shape[1]
    num_states = num_steps + (config.lstm_size > 0)
    next_noise = noise[:num_states].transpose(0, 1).flatten(1, 2)
    targets = make_targets(learner, config, batch, counts, next_noise, num_updates)
    taken = batch.obs_actions[..., batch.obs_actions.shape[-1] - noise.shape[-1] :]
    q_values = learner.q_values(learner.critics, batch.obs, taken, num_steps)
    if learner.chooses:
        choices = batch.obs_actions[..., batch.obs.shape[-1]].long()  # [S, T B]
        q_values = q_values.take_along_dim(choices[:, None, None, :, None], -1)
    losses, errors = critic_loss(q_values.squeeze(-1), targets, weights, counts)
    minimise(losses, learner.critic_optimiser)
    q_values = q_values.detach() * shares_of(counts)[:, None, None, :, None]
    metrics = {"critic_loss": losses.detach(), "q_value": q_values.mean((1, 2, 3, 4))}
    policy_is_due, targets_are_due = parts_due(config, num_updates)
    if policy_is_due:
        used = counts[:, : config.policy_steps]  # [S, P, B]
        previous = batch.extras[:, : used[0].numel(), config.num_parts :]
        given = (batch.obs[:, : used[0].numel()], previous, weights)
        for draws in noise[num_states:].split(config.policy_steps):
            flat = draws.transpose(0, 1).flatten(1, 2)  # [S, P B, A]
            metrics |= _update_policy(learner, config, *given, flat, used)
    if targets_are_due:
        learner.target_critics.follow(learner.critics, config.tau)
    return metrics, errors


def _update_policy(
    learner: Learner,
    config: Config,
    obs: Float[Tensor, "S PB O"],
    previous: Tensor,
    weights: SB,
    noise: Float[Tensor, "S PB A"],
    counts: Float[Tensor, "S P B"],
) -> dict[str, Tensor]:
    """Make one step of the actor against fixed critics, and one of the temperatures."""
    (choice_alpha, alpha), num_steps = learner.log_alphas.detach().exp(), counts.shape[1]
    shares = shares_of(counts)
    weights = weights.repeat(1, num_steps) * shares  # [S, P B]
    actions, log_probs = sample(learner.actor, config, obs, noise, num_steps)
    ratios = log_ratios(log_probs, actions, previous, config)
    critics_actions = actions
    if config.action_gradient_clip is not None and learner.actor is not None:
        critics_actions = actions.clone()  # without the prior's part
        bounds = config.action_gradient_clip / obs.shape[1] * weights[..., None]
        critics_actions.register_hook(lambda gradient: gradient.clamp(-bounds, bounds))  # dQ/da
    with learner.critics.frozen():
        q_values = learner.q_values(learner.critics, obs, critics_actions, num_steps, cut=True)
    whole = whole_values(q_values, learner.reward_weights)
    log_pi_d = choice_log_probs(whole.detach(), choice_alpha)  # [S, B, C]
    choice_ratios = (log_pi_d.exp() * log_pi_d).sum(-1)  # [S, B]
    metrics: dict[str, Tensor] = {}
    if learner.actor_optimiser is not None:
        values = (log_pi_d.exp() * whole).sum(-1) - choice_alpha[:, None] * choice_ratios
        losses = actor_loss(ratios, values, alpha, weights)
        minimise(losses, learner.actor_optimiser)
        entropy = -(shares * log_probs.detach()).mean(-1)
        metrics |= {"actor_loss": losses.detach(), "entropy": entropy, "alpha": alpha}
    if learner.chooses:
        choice_entropy = -(shares * choice_ratios).mean(-1)
        metrics |= {"choice_entropy": choice_entropy, "choice_alpha": choice_alpha}
    target_entropy = config.target_entropy_per_action * actions.shape[-1]
    if config.prior != "none":
        metrics["prior_kl"] = (shares * ratios.detach()).mean(-1)
        target_entropy = -config.target_kl_per_action * actions.shape[-1]
    if config.learn_alpha:
        choice_alpha, alpha = learner.log_alphas.exp()
        of_choice = config.target_entropy_share * math.log(q_values.shape[-1])
        choice_losses = alpha_loss(choice_alpha, choice_ratios, of_choice, weights)
        losses = alpha_loss(alpha, ratios.detach(), target_entropy, weights)
        minimise(choice_losses + losses, learner.alpha_optimiser)
        if config.max_log_alpha is not None:
            learner.log_alphas.data.clamp_(max=config.max_log_alpha)
    return metrics


@torch.no_grad()
def act(
    actor: Ensemble | None,
    critics: Ensemble | None,
    reward_weights: Tensor,
    log_alphas: Tensor,
    config: Config,
    obs: np.ndarray,
    streams: Sequence[np.random.Generator] | None = None,
    epsilon: float = 1.0,
    memory: EnsembleMemory | None = None,
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
        epsilon: probability of a draw, otherwise the mode; independent for discrete and continuous.
        memory: what networks with an LSTM remember; None: the episodes begin.
    """
    memory = memory or EnsembleMemory()
    inputs = torch.as_tensor(obs, dtype=torch.float32, device=log_alphas.device)
    actions = inputs[..., :0]
    if actor is not None:
        means, log_stds = split_outputs(memory.outputs("actor", actor, inputs), config)
        noise = noise_or_none(normal, streams, means.shape[1:], inputs.device, epsilon)
        actions = torch.tanh(means + log_stds.exp() * noise)
    if critics is None:
        return actions.cpu().numpy()
    outputs = memory.outputs("critics", critics, torch.cat([inputs, actions], -1))
    values = whole_values(outputs.unflatten(1, (-1, len(reward_weights))), reward_weights)
    preferences = choice_log_probs(values, log_alphas[0].exp())  # [S, N, C]
    choices = choose(preferences, streams, epsilon)
    if actor is None:
        return choices.cpu().numpy()
    return torch.cat([choices[..., None], actions], -1).cpu().numpy()


ACTING = (*sac.ACTING, "num_critics", "reward_weights", "evaluation_epsilon", "evaluation_rule")
"""Settings that acting needs, beside the task."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from the weights and description that `train` saved."""
    config, spaces = config_of(Config, description, ACTING), Spaces.from_json(description)
    actor, critics = None, None
    log_alphas = weights.get("log_alphas", torch.zeros(2, 1))
    check_shape("log_alphas", log_alphas, (2, 1))
    if spaces.continuous and not spaces.num_choices:
        actor = Ensemble([[Perceptron.from_weights(weights)]])
    else:
        num_networks = config.num_critics * config.num_parts
        parts = ["actor."] * spaces.continuous + [f"critic_{i}." for i in range(num_networks)]
        strange = [key for key in weights if not key.startswith((*parts, "log_alphas"))]
        if strange:
            raise ValueError(f"not the weights of this policy: {', '.join(sorted(strange))}")
        networks = [Perceptron.from_weights(weights, part) for part in parts]
        actor = Ensemble([[networks.pop(0)]]) if spaces.continuous else None
        critics = Ensemble([networks])
    reward_weights, memory = torch.tensor(config.reward_weights or (1.0,)), EnsembleMemory()
    policy = partial(act, actor, critics, reward_weights, log_alphas, config)
    policy = partial(policy, epsilon=config.evaluation_epsilon, memory=memory)
    return Policy(config.find_task(), spaces, for_one_seed(policy), memory)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; return the learner."""
    by_parts, num_seeds = config.reward_weights is not None, len(config.seeds)
    memory, evaluation_memory = EnsembleMemory(), EnsembleMemory()  # in training, in evaluations
    session = StepSession(config, recorder, reward_parts=by_parts)
    learner = make_learner(config, session.env.spaces, session.device)
    obs_size, action_size, _ = sizes_of(session.env.spaces)
    sizes = (obs_size, action_size, int(learner.chooses))
    rows = (num_seeds, config.replay_size, config.num_envs)
    replay = HistoryReplay(*rows, sizes, config.num_parts, session.device)
    of_policy = config.policy_period * config.policy_steps
    num_draws = config.td_steps + (config.lstm_size > 0) + of_policy
    noise_shape = (num_draws, config.batch_size, action_size)
    powers = (config.priority_exponent, config.priority_epsilon, config.importance_exponent)
    prioritised = config.prioritised_replay
    priorities = PriorityDraws(num_seeds, replay.capacity, *powers) if prioritised else None
    reach = (config.td_steps - 1) * config.num_envs
    draws = session.draws(noise_shape, priorities=priorities, reach=reach)

    def store(obs: np.ndarray, actions: np.ndarray, step: Step) -> None:
        replay.store(obs, actions, step, scale=config.reward_scale)
        draws.add(replay.newest)
        memory.note(None, step.ends)

    def learn(number: int, rows: Tensor, noise: Tensor) -> dict[str, Tensor]:
        batch, counts = replay.sequences(rows, config.td_steps)
        diagnostics, errors = update(learner, config, batch, draws.weights, noise, number, counts)
        draws.update(errors)
        return diagnostics

    policy = partial(act, *learner.acting, config, memory=memory)
    evaluated = partial(policy, epsilon=config.evaluation_epsilon, memory=evaluation_memory)
    # a CUDA graph changes the learner alone, and reads nothing back to the host
    can_capture = not (prioritised or config.normalise_entropy or config.td_steps > 1)
    phase_of = partial(parts_due, config) if can_capture else None
    options = {"warm_up": config.learning_starts, "phase_of": phase_of, "further": [memory]}
    session.begin(learner, store, learn, replay, draws, **options)
    while session.continues(evaluated, learner.weights_of, learner.health, evaluation_memory):
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
