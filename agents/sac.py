"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

A tanh-Gaussian policy maximises reward plus entropy; K critics learn its soft action values from
uniform replay; a temperature keeps the entropy near a target. Equation numbers are the paper's.

    python -m agents.sac --task HalfCheetah-v4 --seeds 1 2 3 --env-steps 1000000 --out runs/mine

Seeds are an axis: weights are `[S, K, in, out]`, batches `[S, B, ...]`, losses are averaged over B
and summed over S, so the seeds of one process never touch each other.

Deviations from the paper, and details it leaves open:
- The log-density and the target entropy are measured in [-1, 1], where the policy acts. Scaling
  to the task's bounds happens in the environment and is not corrected for.
- The tanh correction log(1 - tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2u)), which is
  exact where the former underflows.
- Order within an update: critics, then the actor against the updated critics, then the temperature
  on the entropy just measured, then the target copies.
- The initial weights are uniform in the bounds of Glorot & Bengio (2010) with zero biases, as in
  the authors' code; the paper does not say. Mean and log standard deviation are drawn as two
  layers, as in jaxrl; nnabla_rl and pytorch_sac draw one, whose bounds are slightly narrower.
- A step cut by the time limit bootstraps; a termination does not.
- The update ratio counts transitions: `num_envs` environments make `num_envs` updates per vector
  step.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from suite.affine import Layers, perceptrons
from suite.checkpoint import Policy, save_policy
from suite.command_line import read_command_line, run_main
from suite.evaluation import evaluate
from suite.hardware import find_device, use_threads
from suite.journal import Journal
from suite.randomness import environment_seeds, stream
from suite.recorder import Means, Recorder, passed
from suite.settings import Budget, Preset, UsageError, above, at_least, check_run, require
from suite.tasks import SUITES, find_task
from suite.vector_env import Spaces, VectorEnv


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run.

    The defaults are the paper's hyper-parameters (arXiv:1812.05905, Appendix D). What it leaves
    open (warm-up, log-std bounds, initial weights, evaluation) is as in nnabla_rl's reproduction.
    """

    task: str = "HalfCheetah-v4"
    """envpool id of a task with continuous actions."""
    seeds: tuple[int, ...] = (1,)
    """Seeds trained side by side in this process; each equals its solo run up to rounding."""
    env_steps: int = 1_000_000
    """Environment steps of each seed (agent decisions); the warm-up counts if `count_warm_up`."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one."""
    num_threads: int = 1
    """CPU threads of torch and of the simulator."""
    num_envs: int = 1
    """Environments per seed, N."""
    gamma: float = 0.99
    """Discount per decision."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    num_critics: int = 2
    """Critics, K; targets and actor use their minimum."""
    initialisation: Literal["glorot_uniform", "orthogonal", "torch"] = "glorot_uniform"
    """Initial weights. `orthogonal` uses `orthogonal_gain`; `torch` is `nn.Linear`'s default."""
    orthogonal_gain: float = math.sqrt(2)
    """Gain of orthogonal weights, all layers but the actor's last."""
    actor_head_gain: float = 1e-3
    """Gain of the actor's last layer where weights are orthogonal."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation, before the tanh."""
    log_std_max: float = 2.0
    """Upper bound of the same."""
    log_std_bound: Literal["clip", "tanh"] = "clip"
    """How the bounds are kept: cut off, or a tanh stretched between them."""
    actor_learning_rate: float = 3e-4
    """Adam step size of the policy."""
    critic_learning_rate: float = 3e-4
    """Adam step size of the critics."""
    alpha_learning_rate: float = 3e-4
    """Adam step size of the log temperature."""
    initial_alpha: float = 1.0
    """Temperature at the start; 0 is allowed where it is not learned."""
    learn_alpha: bool = True
    """Learn the temperature (Section 5) or keep `initial_alpha`."""
    max_log_alpha: float | None = None
    """Upper bound of the log temperature; None: none."""
    target_entropy_per_action: float = -1.0
    """Target entropy in nats per action dimension, measured in [-1, 1]; the paper: -1."""
    entropy_in_target: bool = True
    """Whether the critics' target contains the next state's entropy (Eq. 3) or the reward only."""
    action_gradient_clip: float | None = None
    """Bound of each component of dQ/da in the actor's loss; None: none."""
    reward_scale: float = 1.0
    """Factor on rewards before learning; recorded returns are unscaled."""
    batch_size: int = 256
    """Transitions per update, B."""
    replay_capacity: int = 1_000_000
    """Transitions kept per seed."""
    learning_starts: int = 10_000
    """Uniformly random environment steps before the first update."""
    count_warm_up: bool = True
    """Whether those steps count towards `env_steps` and on every recorded axis."""
    update_ratio: float = 1.0
    """Critic updates per environment step after the warm-up."""
    policy_period: int = 1
    """Critic updates per actor (and temperature) update."""
    compensate_policy_period: bool = True
    """Whether an actor update is then repeated `policy_period` times on its batch."""
    tau: float = 0.005
    """Rate of the target copies: tau * online + (1 - tau) * slow."""
    target_period: int = 1
    """Critic updates per update of the target copies."""
    evaluation_rule: Literal["deterministic", "sampled"] = "deterministic"
    """Evaluate the mode of the policy, or actions drawn from it."""
    evaluation_interval: int = 5_000
    """Environment steps between two evaluations."""
    evaluation_episodes: int = 10
    """Episodes of one evaluation, one in each of as many fresh environments."""
    log_interval: int = 1_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ValueError: naming the field and the offending value.
        """
        task = find_task(self.task)
        if task.actions != "continuous":
            raise UsageError(f"sac needs continuous actions; {self.task} has {task.actions} ones")
        check_run(self)
        at_least(self, 1, "num_critics", "batch_size", "policy_period", "target_period")
        for name in ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"):
            require(0 < getattr(self, name) < 1, f"{name} must be in (0, 1)", getattr(self, name))
        require(0 < self.tau <= 1, "tau must be in (0, 1]", self.tau)
        above(self, 0, "update_ratio", "reward_scale", "orthogonal_gain", "actor_head_gain")
        above(self, 0, "action_gradient_clip")
        at_least(self, 0, "learning_starts", "initial_alpha")
        lowest, highest = self.log_std_min, self.log_std_max
        require(lowest < highest, f"log_std_min must be below log_std_max {highest}", lowest)
        alpha, learned = self.initial_alpha, self.learn_alpha
        require(alpha > 0 or not learned, "initial_alpha must be above 0 to be learned", alpha)
        num_envs = self.num_envs
        capacity = self.replay_capacity
        require(capacity >= num_envs, f"replay_capacity must hold {num_envs} transitions", capacity)
        for name in ("env_steps", "learning_starts", "evaluation_interval"):
            steps = getattr(self, name)
            require(
                steps % num_envs == 0, f"{name} must be a multiple of num_envs {num_envs}", steps
            )


def _presets() -> dict[tuple[str, str], Preset[Config]]:
    """Return every source's settings by (suite, source); `results/references/SOURCES.md` cites."""
    # arXiv:1812.05905, Figure 1; the small tasks, which it lacks, as the judging reference
    paper_steps = {"Hopper-v4": 1_000_000, "Humanoid-v4": 10_000_000}
    paper_steps |= dict.fromkeys(SUITES["mujoco-small"], 1_000_000)
    mujoco = {
        "smoke": Budget(env_steps=30_000, num_seeds=3),
        "laptop": Budget(env_steps=300_000, num_seeds=3),
        "paper": Budget(env_steps=3_000_000, num_seeds=5, env_steps_of=paper_steps),
    }
    million = {**mujoco, "paper": Budget(env_steps=1_000_000, num_seeds=10)}
    small = {**mujoco, "paper": Budget(env_steps=1_000_000, num_seeds=3)}
    simulator = "simulator: envpool 1.2.5 with v4 tasks; the source ran v2 or v3 with mujoco-py"
    paper = Preset(
        config=Config(),
        budgets=mujoco,
        judged_by="nnabla_rl",
        seeds_together=True,
        departures=(
            simulator,
            "initial temperature: 1; the source draws the log temperature from N(0, 1)",
        ),
    )
    jaxrl = Preset(
        config=Config(
            # The code beside the data has gain 1 (networks/common.py) and 1e-3 for both heads of
            # the actor (networks/policy.py); later versions have sqrt(2) everywhere. Its returns
            # before learning, close to 0, confirm the heads.
            initialisation="orthogonal",
            orthogonal_gain=1.0,
            target_entropy_per_action=-0.5,
        ),
        budgets=million,
        judged_by="jaxrl",
        seeds_together=True,
        departures=(simulator,),
    )
    tianshou = Preset(
        config=Config(
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            initial_alpha=0.2,
            learn_alpha=False,
            initialisation="torch",
        ),
        budgets=million,
        judged_by="tianshou_v3",
        seeds_together=True,
        departures=(simulator,),
    )
    simbav2 = Preset(
        config=Config(
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            alpha_learning_rate=1e-3,
            learning_starts=5_000,
            initialisation="torch",
            evaluation_interval=16_666,
            evaluation_episodes=1,
        ),
        budgets={**mujoco, "paper": Budget(env_steps=5_000_000, num_seeds=10)},
        judged_by="simbav2_baselines",
        seeds_together=True,
        departures=(
            "the source does not state its settings: these are inferred from its evaluation grid",
            "initial weights: torch's default; the source's are unknown",
        ),
    )
    pytorch_sac = Preset(
        config=Config(
            # config/agent/sac.yaml; warm-up: config/train.yaml; weights: utils.weight_init;
            # evaluation interval: the grid of its data
            hidden_sizes=(1024, 1024),
            batch_size=1024,
            actor_learning_rate=1e-4,
            critic_learning_rate=1e-4,
            alpha_learning_rate=1e-4,
            initial_alpha=0.1,
            target_period=2,
            learning_starts=5_000,
            log_std_min=-5.0,
            log_std_bound="tanh",
            initialisation="orthogonal",
            orthogonal_gain=1.0,
            actor_head_gain=1.0,
            evaluation_interval=20_000,
        ),
        budgets={
            "smoke": Budget(env_steps=20_000, num_seeds=3),
            "laptop": Budget(env_steps=100_000, num_seeds=3),
            "paper": Budget(env_steps=10_000_000, num_seeds=3),
        },
        judged_by="pytorch_sac",
        departures=(
            "simulator: envpool's dm_control tasks; the source ran dm_control itself",
            "replay: the newest 1,000,000 transitions; the source keeps all of its run",
        ),
        seeds_together=True,
    )
    classic = {
        "smoke": Budget(env_steps=5_000, num_seeds=3),
        "laptop": Budget(env_steps=50_000, num_seeds=5),
        "paper": Budget(env_steps=50_000, num_seeds=5),
    }
    presets: dict[tuple[str, str], Preset[Config]] = {}
    for suite, paper_budgets in (("mujoco", mujoco), ("mujoco-small", small), ("mujoco-9", mujoco)):
        presets[suite, "paper"] = replace(paper, budgets=paper_budgets)
        presets[suite, "tianshou_v3"] = tianshou
    for suite in ("mujoco", "mujoco-9"):
        presets[suite, "jaxrl"] = jaxrl
        presets[suite, "simbav2_baselines"] = simbav2
    presets["dmc", "paper"] = replace(paper, judged_by=None, departures=())
    presets["dmc", "pytorch_sac"] = pytorch_sac
    presets["classic", "paper"] = Preset(
        config=Config(learning_starts=1_000, evaluation_interval=1_000),
        budgets=classic,
        judged_by=None,
        seeds_together=True,
        tasks=("Pendulum-v1", "MountainCarContinuous-v0"),
    )
    return presets


PRESETS = _presets()


class StackedMLP(nn.Module):
    """Perceptrons with ReLU between layers: K independent ones for each of S seeds.

    Weights are `[S, K, in, out]`, biases `[S, K, out]`. Nothing is shared or mixed between members.
    All lie in one vector, which is the module's only parameter: one Adam step, one target copy.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        super().__init__()
        blocks = [*weights, *biases]
        self._shapes = [block.shape for block in blocks]
        self.flat = nn.Parameter(torch.cat([block.flatten() for block in blocks]))
        self.weights, self.biases = self._split(self.flat.detach())
        num_seeds, num_members = weights[0].shape[:2]
        self._members = [[self._layers(s, k) for k in range(num_members)] for s in range(num_seeds)]

    def forward(
        self, inputs: Float[Tensor, "S B I"], *, frozen: bool = False
    ) -> Float[Tensor, "S K B O"]:
        """Apply every member of seed s to that seed's batch.

        Args:
            inputs: one batch per seed, shared by its K members.
            frozen: treat the weights as constants; gradients reach the inputs alone.
        """
        flat = self.flat.detach() if frozen else self.flat
        if inputs.is_cuda and len(self._members) * len(self._members[0]) > 1:
            return batched_forward(inputs, *self._split(flat))
        return perceptrons(inputs, flat, self._members)

    def _split(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and biases of every layer as views of a vector."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        views = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return views[: len(views) // 2], views[len(views) // 2 :]

    def _layers(self, seed: int, member: int) -> Layers:
        pairs = zip(self.weights, self.biases, strict=True)
        return [(weight[seed, member], bias[seed, member]) for weight, bias in pairs]


def batched_forward(
    inputs: Float[Tensor, "S B I"], weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Float[Tensor, "S K B O"]:
    """Apply stacked perceptrons as one batched product per layer: the fastest way on a GPU."""
    num_seeds, num_members = weights[0].shape[:2]
    hidden = inputs.unsqueeze(1).expand(-1, num_members, -1, -1).flatten(0, 1)  # [S*K, B, I]
    last = len(weights) - 1
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = torch.baddbmm(bias.flatten(0, 1).unsqueeze(1), hidden, weight.flatten(0, 1))
        if layer < last:
            hidden = hidden.relu_()
    return hidden.unflatten(0, (num_seeds, num_members))


def initial_layer(
    generator: np.random.Generator, fan_in: int, fan_out: int, scheme: str, gain: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one linear layer: weights `[fan_in, fan_out]` and biases `[fan_out]`, float32.

    Args:
        generator: the seed's stream of initial weights.
        fan_in: inputs.
        fan_out: outputs.
        scheme: see `Config.initialisation`.
        gain: factor on orthogonal weights.
    """
    bias = np.zeros(fan_out)
    if scheme == "glorot_uniform":
        bound = math.sqrt(6 / (fan_in + fan_out))
        weight = generator.uniform(-bound, bound, (fan_in, fan_out))
    elif scheme == "torch":
        bound = math.sqrt(1 / fan_in)
        weight = generator.uniform(-bound, bound, (fan_in, fan_out))
        bias = generator.uniform(-bound, bound, fan_out)
    else:
        tall = generator.standard_normal((max(fan_in, fan_out), min(fan_in, fan_out)))
        columns, triangle = np.linalg.qr(tall)
        columns *= np.sign(np.diag(triangle))  # uniform over orthogonal matrices (Mezzadri 2007)
        weight = gain * (columns if fan_in >= fan_out else columns.T)
    return weight.astype(np.float32), bias.astype(np.float32)


def draw_perceptron(
    generator: np.random.Generator,
    config: Config,
    num_inputs: int,
    heads: Sequence[tuple[int, float]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw one perceptron layer by layer; its last layer joins the heads, (width, gain) each."""
    sizes = [num_inputs, *config.hidden_sizes]
    scheme, gain = config.initialisation, config.orthogonal_gain
    layers = [
        initial_layer(generator, fan_in, fan_out, scheme, gain)
        for fan_in, fan_out in pairwise(sizes)
    ]
    outputs = [initial_layer(generator, sizes[-1], width, scheme, g) for width, g in heads]
    weights, biases = zip(*outputs, strict=True)
    return [*layers, (np.concatenate(weights, axis=1), np.concatenate(biases))]


def stack(
    members: Sequence[Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]], device: torch.device
) -> StackedMLP:
    """Join the perceptrons `members[s][k]` into one module on `device`."""
    num_layers = len(members[0][0])

    def join(layer: int, part: int) -> Tensor:
        arrays = [[member[layer][part] for member in of_seed] for of_seed in members]
        return torch.from_numpy(np.array(arrays)).to(device)

    layers = range(num_layers)
    return StackedMLP([join(i, 0) for i in layers], [join(i, 1) for i in layers])


def gaussian(
    outputs: Float[Tensor, "S 1 B AA"], config: Config
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B A"]]:
    """Split the actor's outputs into means and bounded log standard deviations."""
    means, log_stds = outputs.squeeze(1).chunk(2, dim=-1)
    low, high = config.log_std_min, config.log_std_max
    if config.log_std_bound == "clip":
        return means, log_stds.clamp(low, high)
    return means, low + 0.5 * (high - low) * (torch.tanh(log_stds) + 1)


def squash(
    means: Float[Tensor, "S B A"], log_stds: Float[Tensor, "S B A"], noise: Float[Tensor, "S B A"]
) -> tuple[Float[Tensor, "S B A"], Float[Tensor, "S B"]]:
    """Reparametrised actions a = tanh(mean + std * noise) and their log-densities (Appendix C).

    Args:
        means: of the Gaussian before the tanh.
        log_stds: log standard deviations of the same.
        noise: standard normal draws.

    Returns:
        actions in (-1, 1), and log pi(a|s) in nats with respect to [-1, 1]^A.
    """
    pre_tanh = means + log_stds.exp() * noise
    log_normal = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(u)^2), in the form that does not underflow
    log_slope = 2 * (math.log(2) - pre_tanh - F.softplus(-2 * pre_tanh))
    return torch.tanh(pre_tanh), (log_normal - log_slope).sum(-1)


def q_targets(
    rewards: Float[Tensor, "S B"],
    terminations: Float[Tensor, "S B"],
    next_q_values: Float[Tensor, "S K B"],
    next_log_probs: Float[Tensor, "S B"],
    alpha: Float[Tensor, " S"],
    gamma: float,
    entropy_in_target: bool = True,
) -> Float[Tensor, "S B"]:
    """Soft Bellman targets r + gamma (min_k Q_k(s', a') - alpha log pi(a'|s')) (Eqs. 2, 3).

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
        next_values = next_values - alpha[:, None] * next_log_probs
    return rewards + gamma * (1 - terminations) * next_values


def critic_loss(
    q_values: Float[Tensor, "S K B"], targets: Float[Tensor, "S B"]
) -> Float[Tensor, " S"]:
    """Squared soft Bellman residual, halved, averaged over B and summed over K (Eq. 5)."""
    return 0.5 * (q_values - targets[:, None]).square().mean(-1).sum(-1)


def actor_loss(
    log_probs: Float[Tensor, "S B"], q_values: Float[Tensor, "S K B"], alpha: Float[Tensor, " S"]
) -> Float[Tensor, " S"]:
    """Mean of alpha log pi(a|s) - min_k Q_k(s, a) at reparametrised actions (Eq. 9)."""
    return (alpha[:, None] * log_probs - q_values.amin(1)).mean(-1)


def alpha_loss(
    log_alpha: Float[Tensor, " S"], log_probs: Float[Tensor, "S B"], target_entropy: float
) -> Float[Tensor, " S"]:
    """Temperature loss -alpha (log pi + target entropy), no gradient to the policy (Eq. 18)."""
    return -log_alpha.exp() * (log_probs.detach().mean(-1) + target_entropy)


class Batch(NamedTuple):
    """Transitions sampled for one update, per seed."""

    obs: Tensor  # [S, B, O]
    obs_actions: Tensor  # [S, B, O + A]
    rewards: Tensor  # [S, B]
    terminations: Tensor  # [S, B], 0 or 1
    next_obs: Tensor  # [S, B, O]


class Replay:
    """Uniform replay, one ring per seed, rows of (obs, action, reward, termination, next_obs).

    Args:
        num_seeds: S.
        capacity: transitions kept per seed; rounded down to a multiple of `num_envs`.
        num_envs: transitions added per seed and vector step, N.
        obs_size: width of an observation, O.
        action_size: width of an action, A.
        device: where the rows live.
    """

    def __init__(
        self,
        num_seeds: int,
        capacity: int,
        num_envs: int,
        obs_size: int,
        action_size: int,
        device: torch.device,
    ) -> None:
        self.capacity = capacity // num_envs * num_envs
        self.size = self._next = 0
        self._obs_size, self._action_size = obs_size, action_size
        self._rows = torch.empty(
            num_seeds, self.capacity, 2 * obs_size + action_size + 2, device=device
        )
        self._first_rows = torch.arange(num_seeds, device=device)[:, None] * self.capacity

    def add(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminations: np.ndarray,
        next_obs: np.ndarray,
    ) -> None:
        """Store one vector step, arrays `[S, N, ...]`; the oldest transitions are overwritten."""
        columns = (obs, actions, rewards[..., None], terminations[..., None], next_obs)
        rows = torch.from_numpy(np.concatenate(columns, axis=-1, dtype=np.float32))
        self._rows[:, self._next : self._next + rows.shape[1]] = rows.to(self._rows.device)
        self._next = (self._next + rows.shape[1]) % self.capacity
        self.size = min(self.size + rows.shape[1], self.capacity)

    def batch(self, indices: Tensor) -> Batch:
        """Return the transitions at `indices`, `[S, B]` int64 below `size`."""
        flat = (indices + self._first_rows).flatten()
        rows = self._rows.flatten(0, 1).index_select(0, flat).unflatten(0, indices.shape)
        obs_size, inputs = self._obs_size, self._obs_size + self._action_size
        return Batch(
            obs=rows[..., :obs_size],
            obs_actions=rows[..., :inputs],
            rewards=rows[..., inputs],
            terminations=rows[..., inputs + 1],
            next_obs=rows[..., inputs + 2 :],
        )


@dataclass
class Learner:
    """All that learns, for S seeds."""

    actor: StackedMLP
    critics: StackedMLP
    target_critics: StackedMLP
    log_alpha: Tensor  # [S]
    actor_optimiser: torch.optim.Adam
    critic_optimiser: torch.optim.Adam
    alpha_optimiser: torch.optim.Adam


def make_learner(config: Config, obs_size: int, action_size: int, device: torch.device) -> Learner:
    """Draw every seed's networks from that seed's own stream of initial weights."""
    actors, critics = [], []
    for seed in config.seeds:
        generator = stream(seed, "initial weights")
        heads = [(action_size, config.actor_head_gain)] * 2  # means, log standard deviations
        actors.append([draw_perceptron(generator, config, obs_size, heads)])
        heads = [(1, config.orthogonal_gain)]
        inputs = obs_size + action_size
        critics.append(
            [draw_perceptron(generator, config, inputs, heads) for _ in range(config.num_critics)]
        )
    actor, online, slow = stack(actors, device), stack(critics, device), stack(critics, device)
    initial = -math.inf if config.initial_alpha == 0 else math.log(config.initial_alpha)
    if config.max_log_alpha is not None:
        initial = min(initial, config.max_log_alpha)
    log_alpha = torch.full((len(config.seeds),), initial, device=device, requires_grad=True)
    return Learner(
        actor=actor,
        critics=online,
        target_critics=slow.requires_grad_(False),
        log_alpha=log_alpha,
        actor_optimiser=_adam(actor.flat, config.actor_learning_rate),
        critic_optimiser=_adam(online.flat, config.critic_learning_rate),
        alpha_optimiser=_adam(log_alpha, config.alpha_learning_rate),
    )


def _adam(parameters: Tensor, learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam([parameters], lr=learning_rate, fused=True)


def update(
    learner: Learner, config: Config, batch: Batch, noise: Tensor, num_updates: int
) -> dict[str, Tensor]:
    """Make one gradient step: critics, then actor and temperature, then the target copies.

    Args:
        learner: what learns; changed in place.
        config: the run's settings.
        batch: sampled transitions.
        noise: standard normal draws, `[1 + actor updates, S, B, A]`: the first for the targets.
        num_updates: updates made before this one; decides what the periods let happen.

    Returns:
        diagnostics by name, each `[S]`, on the learner's device.
    """
    alpha = learner.log_alpha.detach().exp()  # [S]
    with torch.no_grad():
        next_actions, next_log_probs = squash(
            *gaussian(learner.actor(batch.next_obs), config), noise[0]
        )
        next_q_values = learner.target_critics(torch.cat([batch.next_obs, next_actions], -1))
        targets = q_targets(
            batch.rewards,
            batch.terminations,
            next_q_values.squeeze(-1),
            next_log_probs,
            alpha,
            config.gamma,
            config.entropy_in_target,
        )
    q_values = learner.critics(batch.obs_actions).squeeze(-1)  # [S, K, B]
    critic_losses = critic_loss(q_values, targets)
    _descend(learner.critic_optimiser, critic_losses)
    metrics = {"critic_loss": critic_losses.detach(), "q_value": q_values.detach().mean((1, 2))}
    if num_updates % config.policy_period == 0:
        for actor_noise in noise[1:]:
            metrics |= _update_actor(learner, config, batch.obs, actor_noise)
    if (num_updates + 1) % config.target_period == 0:
        with torch.no_grad():
            learner.target_critics.flat.lerp_(learner.critics.flat, config.tau)
    return metrics


def _update_actor(
    learner: Learner, config: Config, obs: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Make one step of the actor against frozen critics, and one of the temperature."""
    alpha = learner.log_alpha.detach().exp()
    actions, log_probs = squash(*gaussian(learner.actor(obs), config), noise)
    judged_actions = actions
    if config.action_gradient_clip is not None:
        bound = config.action_gradient_clip / obs.shape[1]  # the loss is a mean over B
        judged_actions = actions.clone()
        judged_actions.register_hook(lambda gradient: gradient.clamp(-bound, bound))
    q_values = learner.critics(torch.cat([obs, judged_actions], -1), frozen=True).squeeze(-1)
    actor_losses = actor_loss(log_probs, q_values, alpha)
    _descend(learner.actor_optimiser, actor_losses)
    if config.learn_alpha:
        target_entropy = config.target_entropy_per_action * actions.shape[-1]
        _descend(learner.alpha_optimiser, alpha_loss(learner.log_alpha, log_probs, target_entropy))
        if config.max_log_alpha is not None:
            with torch.no_grad():
                learner.log_alpha.clamp_(max=config.max_log_alpha)
    entropy = -log_probs.detach().mean(-1)
    return {"actor_loss": actor_losses.detach(), "entropy": entropy, "alpha": alpha}


def _descend(optimiser: torch.optim.Adam, losses: Float[Tensor, " S"]) -> None:
    """Make one gradient step on the sum over seeds, which leaves every seed its own gradient."""
    losses.sum().backward()
    optimiser.step()
    optimiser.zero_grad()  # last: the next product then gets this gradient's memory, still cached


def weight_norms(learner: Learner) -> Float[Tensor, " S"]:
    """Return each seed's Euclidean norm over all actor and critic weights; finite while healthy."""
    networks = (learner.actor, learner.critics)
    parameters = [p for net in networks for p in (*net.weights, *net.biases)]
    return torch.stack([p.detach().square().flatten(1).sum(1) for p in parameters]).sum(0).sqrt()


@torch.no_grad()
def act(
    actor: StackedMLP,
    obs: np.ndarray,
    config: Config,
    streams: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Return actions in [-1, 1], `[S, N, A]`, for observations `[S, N, O]`.

    Args:
        actor: the policies of S seeds.
        obs: observations of each seed's environments.
        config: the run's settings.
        streams: each seed's noise, to draw from its policy; None: the policies' modes.
    """
    inputs = torch.from_numpy(obs).to(actor.weights[0].device)
    means, log_stds = gaussian(actor(inputs), config)
    if streams is None:
        return torch.tanh(means).cpu().numpy()
    noise = torch.from_numpy(_normal(streams, means.shape[1:])).to(inputs.device)
    return torch.tanh(means + log_stds.exp() * noise).cpu().numpy()


def _normal(streams: Sequence[np.random.Generator], shape: Sequence[int]) -> np.ndarray:
    """Return standard normal draws of `shape` from each seed's stream, `[S, *shape]` float32."""
    return np.stack([s.standard_normal(tuple(shape), dtype=np.float32) for s in streams])


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild the policy of one seed from what `save` wrote."""
    bounds = ("log_std_min", "log_std_max", "log_std_bound")
    config = Config(task=description["task"], **{name: description[name] for name in bounds})
    num_layers = len(weights) // 2
    actor = StackedMLP(
        [weights[f"weight_{i}"][None, None] for i in range(num_layers)],
        [weights[f"bias_{i}"][None, None] for i in range(num_layers)],
    )
    low, high = tuple(description["action_low"]), tuple(description["action_high"])
    spaces = Spaces((len(weights["weight_0"]),), len(low), low, high)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        rows = np.asarray(obs, dtype=np.float32)[None]
        return act(actor, rows, config, [generator] if generator else None)[0]

    return Policy(find_task(config.task), spaces, decide)


def save(
    config: Config, learner: Learner, bounds: Sequence[np.ndarray], recorder: Recorder
) -> None:
    """Write the policy of every seed that has not diverged into its run's folder."""
    description = {
        "agent": "sac",
        "task": config.task,
        "log_std_min": config.log_std_min,
        "log_std_max": config.log_std_max,
        "log_std_bound": config.log_std_bound,
        "action_low": bounds[0].tolist(),
        "action_high": bounds[1].tolist(),
    }
    for i in recorder.active:
        weights = {f"weight_{k}": w[i, 0] for k, w in enumerate(learner.actor.weights)}
        weights |= {f"bias_{k}": b[i, 0] for k, b in enumerate(learner.actor.biases)}
        save_policy(recorder.seed_directories[i], weights, description)


def score(config: Config, learner: Learner, env_steps: int) -> np.ndarray:
    """Return every seed's evaluation returns at `env_steps`, `[S, episodes]`, by its rule."""
    streams = None
    if config.evaluation_rule == "sampled":
        streams = [stream(seed, "evaluation actions", env_steps) for seed in config.seeds]
    return evaluate(
        find_task(config.task),
        lambda obs: act(learner.actor, obs, config, streams),
        config.seeds,
        env_steps,
        episodes=config.evaluation_episodes,
    )


def train(config: Config, recorder: Recorder) -> Learner:
    """Train every seed of `config` to its last step; the only loop that steps environments.

    Returns:
        what was learned.

    Raises:
        UsageError: for a GPU that is not there.
    """
    device = find_device(config.device)
    use_threads(config.num_threads)
    env = VectorEnv(
        find_task(config.task),
        environment_seeds(config.seeds, config.num_envs, "environments"),
        reset="same_step",
        num_threads=config.num_threads,
    )
    obs = env.reset()  # [S, N, O]
    obs_size, action_size = obs.shape[-1], env.action_shape[0]
    learner = make_learner(config, obs_size, action_size, device)
    uncounted = 0 if config.count_warm_up else config.learning_starts
    capacity = min(config.replay_capacity, config.env_steps + uncounted + config.num_envs)
    replay = Replay(len(config.seeds), capacity, config.num_envs, obs_size, action_size, device)
    action_streams = [stream(seed, "action noise") for seed in config.seeds]
    replay_streams = [stream(seed, "replay sampling") for seed in config.seeds]
    noise_streams = [stream(seed, "update noise") for seed in config.seeds]
    actor_updates = config.policy_period if config.compensate_policy_period else 1
    noise_shape = (1 + actor_updates, config.batch_size, action_size)

    means, clock = Means(), recorder.clock
    reward_sums = np.zeros(len(config.seeds))
    streams = [action_streams, replay_streams, noise_streams]
    state = {"learner": learner, "streams": streams, "means": means, "reward_sums": reward_sums}
    journal = Journal(recorder, env, state)
    for step, actions in journal.past():  # of a run that was killed
        rewards = step.rewards * config.reward_scale
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
    env_steps, num_updates = journal.resume(-uncounted, 0)
    clock.start()
    while env_steps < config.env_steps and recorder.active:
        if env_steps + uncounted < config.learning_starts:
            draws = [s.uniform(-1, 1, (config.num_envs, action_size)) for s in action_streams]
            actions = np.stack(draws).astype(np.float32)
        else:
            actions = act(learner.actor, obs, config, action_streams)
        clock.lap("acting")

        step = env.step(actions)
        journal.record(actions)
        env_steps += config.num_envs
        rewards = step.rewards * config.reward_scale
        replay.add(obs, actions, rewards, step.terminations, step.next_obs)
        obs = step.obs
        reward_sums += step.raw_rewards.sum(1)
        if env_steps > 0:
            recorder.episodes(env_steps, step)
        clock.lap("environment")

        learned_from = env_steps + uncounted - config.learning_starts
        while num_updates < math.floor(config.update_ratio * learned_from + 1e-6):
            indices = [s.integers(0, replay.size, config.batch_size) for s in replay_streams]
            batch = replay.batch(torch.from_numpy(np.stack(indices)).to(device))
            noise = torch.from_numpy(_normal(noise_streams, noise_shape)).to(device)
            means.add(update(learner, config, batch, noise.transpose(0, 1), num_updates))
            num_updates += 1
        clock.lap("learning")

        last = env_steps >= config.env_steps
        if last or passed(config.evaluation_interval, env_steps, config.num_envs):
            recorder.evaluation(env_steps, score(config, learner, env_steps))
            clock.lap("evaluation")
        if last or passed(config.log_interval, env_steps, config.num_envs):
            metrics = means.read()
            if metrics:
                metrics["weight_norm"] = weight_norms(learner).cpu().numpy()
            checks = {
                "reward": reward_sums,
                "alpha": learner.log_alpha.detach().exp().cpu().numpy(),
            }
            recorder.log(env_steps, num_updates, metrics, checks)
        if journal.due():
            journal.save(env_steps, num_updates)
    save(config, learner, (env.action_low, env.action_high), recorder)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    config, options = read_command_line(PRESETS, argv, prog="python -m agents.sac")
    recorder = Recorder.for_command("sac", config, options)
    train(config, recorder)
    return recorder.finish()


if __name__ == "__main__":
    sys.exit(run_main(main))
