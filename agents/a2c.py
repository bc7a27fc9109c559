"""Synchronous advantage actor-critic, A2C (Mnih et al. 2016, arXiv:1602.01783).

N environments take T steps with one policy; n-step returns (or generalised advantage estimates,
arXiv:1506.02438) judge the actions; one RMSprop step follows on policy, value and entropy losses
(Algorithm S3 of the paper, its workers made synchronous). Discrete and continuous actions.

    python -m agents.a2c --task CartPole-v1 --seeds 1 2 3 --env-steps 500000 --out runs/mine

The seeds of one process are trained one after another; each draws from streams of its own.

Deviations from the paper, and details it leaves open:
- Workers are synchronous, so one gradient comes from N * T steps; losses are means over the valid
  rows of a rollout (OpenAI Baselines), not sums.
- The simulator ignores the action that follows an end. Such a row is no transition: it enters
  neither loss, trace, running statistics nor `env_steps`.
- A step cut by the time limit bootstraps from the value of the last observation; the setting
  `time_limit_is_terminal` takes that away where a source does so.
- The learning rate of an update is that of the steps taken before its rollout.
- A run ends before the rollout that could exceed `env_steps`, as OpenAI Baselines' does.
- Actions are the argmax of logits plus Gumbel noise, or mean plus deviation times normal noise; the
  noise comes from the seed's own stream. Continuous actions are clipped by the environment; their
  density is that of the unclipped draw.
- Acting leaves no graph: the update computes the rollout again in one batch, which is cheaper.
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
from jaxtyping import Float, Int
from torch import Tensor, nn

from suite.affine import affine
from suite.checkpoint import Policy, save_policy
from suite.command_line import run_main
from suite.evaluation import evaluate
from suite.hardware import find_device, use_threads
from suite.journal import Journal
from suite.randomness import environment_seeds, stream
from suite.recorder import Means, Recorder, passed, train_each_seed
from suite.settings import (
    Budget,
    Preset,
    UsageError,
    above,
    at_least,
    check_run,
    require,
    within,
)
from suite.tasks import find_task
from suite.vector_env import Spaces, VectorEnv

CONVOLUTIONS = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "a3c": (((16, 8, 4), (32, 4, 2)), 256),
}
"""Layers for frames, (channels, kernel, stride), and the width of the layer after them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run. Sources that differ from these defaults are presets."""

    task: str = "CartPole-v1"
    """envpool id of a task."""
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    seeds: tuple[int, ...] = (1,)
    """Seeds trained one after another in this process."""
    env_steps: int = 500_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one."""
    num_threads: int = 1
    """CPU threads of torch and of the simulator. With several, set OMP_WAIT_POLICY=PASSIVE in the
    environment: torch's threads otherwise spin while the simulator's work."""
    num_envs: int = 16
    """Environments, N (the paper: 16 workers)."""
    rollout_length: int = 5
    """Steps of every environment between two updates, T (the paper's t_max: 5)."""
    gamma: float = 0.99
    """Discount per decision."""
    gae_lambda: float = 1.0
    """Trace decay of the advantages; 1 gives the n-step returns of the paper."""
    convolutions: Literal["nature", "a3c"] = "nature"
    """Layers for uint8 frames: DQN's (three and 512 units) or the A3C paper's (two and 256)."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for observations that are no frames."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers for observations that are no frames; convolutions have ReLU."""
    shared_trunk: bool = False
    """Whether policy and value share all layers but their heads."""
    hidden_gain: float = math.sqrt(2)
    """Gain of the orthogonal initial weights of all layers but the heads; biases start at 0."""
    policy_head_gain: float = 0.01
    """Gain of the policy's head."""
    value_head_gain: float = 1.0
    """Gain of the value's head."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions in [-1, 1] at the start; one per dimension."""
    learning_rate: float = 7e-4
    """RMSprop step size at the start."""
    learning_rate_decay_steps: int = 0
    """Environment steps over which it falls linearly to 0: the source's horizon; 0: constant."""
    rmsprop_form: Literal["tensorflow", "torch"] = "tensorflow"
    """`tensorflow`: epsilon inside the root and averages that start at 1; `torch`: epsilon outside
    and averages that start at 0."""
    rmsprop_decay: float = 0.99
    """Decay of the average of squared gradients (the paper's alpha)."""
    rmsprop_epsilon: float = 1e-5
    """Keeps the step finite where gradients are small."""
    value_coef: float = 0.5
    """Weight of the mean squared error of the values (not halved)."""
    entropy_coef: float = 0.01
    """Weight of the policy's mean entropy, nats (the paper: 0.01)."""
    max_gradient_norm: float | None = 0.5
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    time_limit_is_terminal: bool = False
    """Treat a time limit as an end of the decision process: no value follows."""
    normalise_observations: bool = False
    """Subtract the running mean and divide by the running deviation; not for frames."""
    observation_clip: float = 10.0
    """Bound of a normalised observation's components."""
    reward_normalisation: Literal["none", "discounted_returns", "value_targets"] = "none"
    """`discounted_returns`: divide rewards by the running deviation of the discounted sum of past
    rewards; `value_targets`: the value head predicts returns divided by their running deviation,
    while advantages stay in reward units."""
    reward_clip: float = 10.0
    """Bound of a reward divided by `discounted_returns`."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "sampled"
    """Evaluate actions drawn from the policy, or its mode; `training`: score training episodes."""
    evaluation_interval: int = 10_000
    """Environment steps between two evaluations; `training` has none."""
    evaluation_episodes: int = 10
    """Episodes of one evaluation, one in each of as many fresh environments."""
    log_interval: int = 10_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ValueError: naming the field and the offending value.
        """
        task = find_task(self.task, self.protocol)
        check_run(self)
        rows = self.num_envs * self.rollout_length
        rule = f"env_steps must hold one rollout of num_envs * rollout_length = {rows}"
        at_least(self, 1, "rollout_length")
        require(self.env_steps >= rows, rule, self.env_steps)
        within(self, 0, 1, "gae_lambda")
        require(0 < self.learning_rate < 1, "learning_rate must be in (0, 1)", self.learning_rate)
        decay = self.rmsprop_decay
        require(0 <= decay < 1, "rmsprop_decay must be in [0, 1)", decay)
        above(self, 0, "hidden_gain", "policy_head_gain", "value_head_gain", "rmsprop_epsilon")
        above(self, 0, "observation_clip", "reward_clip", "max_gradient_norm")
        at_least(self, 0, "value_coef", "entropy_coef", "learning_rate_decay_steps")
        within(self, -20, 2, "initial_log_std")
        if self.normalise_observations and task.family == "atari":
            raise UsageError(f"normalise_observations is not for frames: {self.task}")


def _presets() -> dict[tuple[str, str], Preset[Config]]:
    """Return every source's settings by (suite, source); `results/references/SOURCES.md` cites."""
    classic = Preset(
        # stable-baselines3's defaults for A2C (stable_baselines3/a2c/a2c.py): 5 steps, 7e-4
        # constant, RMSprop in torch's form with 0.99 and 1e-5, value 0.5, clip 0.5, gamma 0.99,
        # two separate tanh layers of 64, head gains 0.01 and 1, log deviation 0. From the zoo
        # (hyperparams/a2c.yml), for Acrobot-v1 and MountainCar-v0: 16 environments, entropy 0,
        # observations and rewards normalised (VecNormalize: both clipped at 10).
        config=Config(
            rmsprop_form="torch",
            entropy_coef=0.0,
            normalise_observations=True,
            reward_normalisation="discounted_returns",
            evaluation_rule="training",
        ),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=3),
            "laptop": Budget(
                env_steps=500_000,
                num_seeds=5,
                env_steps_of={"MountainCarContinuous-v0": 100_000},
            ),
            "paper": Budget(
                env_steps=1_000_000,
                num_seeds=5,
                env_steps_of={
                    "CartPole-v1": 500_000,
                    "Acrobot-v1": 500_000,
                    "MountainCarContinuous-v0": 100_000,
                },
            ),
        },
        judged_by="sb3_rl_trained_agents",
        departures=(
            "one set of settings for all tasks, the zoo's for Acrobot-v1 and MountainCar-v0: the "
            "zoo has 8 environments and no normalisation for CartPole-v1, and state-dependent "
            "exploration (gSDE) with settings of their own for the two continuous tasks",
            "continuous actions are drawn in [-1, 1] and scaled; the source draws in task units",
        ),
    )
    mujoco = Preset(
        # thu-ml/tianshou, examples/mujoco/mujoco_a2c.py, all of this preset
        config=Config(
            task="HalfCheetah-v4",
            gae_lambda=0.95,
            policy_head_gain=0.01 * math.sqrt(2),  # orthogonal of gain sqrt(2), then times 0.01
            value_head_gain=math.sqrt(2),
            initial_log_std=-0.5,
            learning_rate_decay_steps=3_000_000,
            rmsprop_form="torch",
            normalise_observations=True,
            reward_normalisation="value_targets",
            evaluation_interval=30_000,
        ),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=3),
            "laptop": Budget(env_steps=1_000_000, num_seeds=3),
            "paper": Budget(env_steps=3_000_000, num_seeds=10),
        },
        judged_by="tianshou_v3",
        departures=(
            "simulator: envpool 1.2.5 with v4 tasks; the source ran v2 or v3 with mujoco-py",
            "the paper has no table of settings for MuJoCo: 'paper' means tianshou's here",
            "last observations of episodes do not enter the running statistics",
        ),
    )
    baselines = Preset(
        # openai/baselines, baselines/a2c/a2c.py: the defaults of `learn`, and common/models.py:
        # DQN's network shared by both heads, orthogonal weights of gain sqrt(2), heads 0.01 and 1
        config=Config(
            task="Pong-v5",
            shared_trunk=True,
            learning_rate_decay_steps=10_000_000,  # `--num_timesteps` of the benchmarked runs
            time_limit_is_terminal=True,  # a2c/runner.py knows only ends
            evaluation_rule="training",
        ),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=1),
            "laptop": Budget(env_steps=1_000_000, num_seeds=1),
            "paper": Budget(env_steps=10_000_000, num_seeds=6),
        },
        judged_by="openai_baselines_7bfbcf1",
        protocol="noframeskip",
        departures=(
            "environments: 16; the source's runs used as many as their machine had cores, unstated",
            "simulator: envpool's Atari, 27,000 decisions a game; the source's limit was 100,000",
            "after a lost life envpool presses FIRE and waits up to 29 frames; the source takes "
            "one step",
        ),
    )
    nnabla = replace(
        baselines,
        # sony/nnabla-rl, algorithms/a2c.py and reproductions/algorithms/atari/a2c
        config=replace(
            baselines.config,
            convolutions="a3c",
            rmsprop_form="torch",
            learning_rate_decay_steps=50_000_000,
            time_limit_is_terminal=False,
            evaluation_rule="sampled",
            evaluation_interval=250_000,
        ),
        budgets={**baselines.budgets, "paper": Budget(env_steps=50_000_000, num_seeds=3)},
        judged_by="nnabla_rl",
        tasks=("Breakout-v5", "Pong-v5", "Qbert-v5", "Seaquest-v5"),
        departures=(
            "one optimiser for all weights; the source steps and clips policy and value one by one",
            "initial weights: orthogonal; the source draws normal columns of equal norm",
            "evaluation: ten whole games; the source plays 125,000 steps",
            "simulator: envpool's Atari presses FIRE after a reset or a lost life; the source does "
            "not",
        ),
    )
    presets: dict[tuple[str, str], Preset[Config]] = {("classic", "paper"): classic}
    for suite in ("mujoco", "mujoco-small", "mujoco-9"):
        presets[suite, "paper"] = presets[suite, "tianshou_v3"] = mujoco
    for suite in ("atari-7", "atari"):
        presets[suite, "paper"] = baselines
    presets["atari-7", "nnabla_rl"] = nnabla
    presets["atari", "nnabla_rl"] = replace(nnabla, tasks=("Asterix-v5", *nnabla.tasks))
    return presets


PRESETS = _presets()


def orthogonal(
    generator: np.random.Generator, fan_in: int, fan_out: int, gain: float
) -> np.ndarray:
    """Draw weights `[fan_in, fan_out]`, float32, uniform over matrices with orthonormal columns.

    Where there are more columns than rows, the rows are orthonormal. `gain` multiplies them.
    """
    tall = generator.standard_normal((max(fan_in, fan_out), min(fan_in, fan_out)))
    columns, triangle = np.linalg.qr(tall)
    columns *= np.sign(np.diag(triangle))  # uniform over orthogonal matrices (Mezzadri 2007)
    return (gain * (columns if fan_in >= fan_out else columns.T)).astype(np.float32)


class Trunk(nn.Module):
    """Convolutions (for frames only), then linear layers, the last of which gives every head.

    Args:
        config: the run's settings.
        obs_shape: of one observation; three axes are frames `[C, H, W]`.
        heads: widths and gains of the outputs, which share the last layer.
        generator: the seed's stream of initial weights.
    """

    def __init__(
        self,
        config: Config,
        obs_shape: Sequence[int],
        heads: Sequence[tuple[int, float]],
        generator: np.random.Generator,
    ) -> None:
        super().__init__()
        self.kernels, self.kernel_biases = nn.ParameterList(), nn.ParameterList()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self._strides: list[int] = []
        sizes = [math.prod(obs_shape), *config.hidden_sizes]
        self._activation = torch.tanh if config.activation == "tanh" else torch.relu
        if len(obs_shape) == 3:
            layers, width = CONVOLUTIONS[config.convolutions]
            channels, *space = obs_shape
            for filters, kernel, stride in layers:
                columns = orthogonal(
                    generator, channels * kernel**2, filters, config.hidden_gain
                ).T.reshape(filters, channels, kernel, kernel)
                # channels last: twice the speed of the backward pass on a CPU
                weight = torch.from_numpy(columns).contiguous(memory_format=torch.channels_last)
                self.kernels.append(weight)
                self.kernel_biases.append(torch.zeros(filters))
                self._strides.append(stride)
                space = [(size - kernel) // stride + 1 for size in space]
                channels = filters
            sizes = [channels * math.prod(space), width]
            self._activation = torch.relu
        for fan_in, fan_out in pairwise(sizes):
            weight = orthogonal(generator, fan_in, fan_out, config.hidden_gain)
            self.weights.append(torch.from_numpy(weight))
            self.biases.append(torch.zeros(fan_out))
        outputs = [orthogonal(generator, sizes[-1], width, gain) for width, gain in heads]
        self.weights.append(torch.from_numpy(np.concatenate(outputs, axis=1)))
        self.biases.append(torch.zeros(sum(width for width, _ in heads)))
        # a ParameterList costs microseconds an access
        self._kernels = list(zip(self.kernels, self.kernel_biases, self._strides, strict=True))
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, "B O"]:
        """Return all heads' outputs for a batch of prepared observations."""
        hidden = obs
        for weight, bias, stride in self._kernels:
            hidden = F.conv2d(hidden, weight, bias, stride).relu_()
        hidden = hidden.flatten(1)
        for weight, bias in self._layers[:-1]:
            hidden = self._activation(affine(bias, hidden, weight))
        weight, bias = self._layers[-1]
        return affine(bias, hidden, weight)


class ActorCritic(nn.Module):
    """Policy and value: one trunk with two heads, or one trunk each.

    Args:
        config: the run's settings.
        spaces: of the environment; log deviations of continuous actions are weights as well.
        generator: the seed's stream of initial weights.
    """

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__()
        self.num_outputs = spaces.num_outputs
        heads = [(spaces.num_outputs, config.policy_head_gain)]
        value_head = (1, config.value_head_gain)
        self.critic: Trunk | None = None
        if config.shared_trunk:
            heads.append(value_head)
        self.actor = Trunk(config, spaces.obs_shape, heads, generator)
        if not config.shared_trunk:
            self.critic = Trunk(config, spaces.obs_shape, [value_head], generator)
        self.log_stds: Tensor | None = None
        if spaces.continuous:
            initial = torch.full((spaces.num_outputs,), config.initial_log_std)
            self.log_stds = nn.Parameter(initial)

    def forward(
        self, obs: Float[Tensor, "B ..."]
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Return logits (or means of continuous actions) and values."""
        outputs = self.actor(obs)
        if self.critic is None:
            return outputs[:, :-1], outputs[:, -1]
        return outputs, self.critic(obs).squeeze(1)

    def policy(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, "B A"]:
        """Return logits or means alone."""
        outputs = self.actor(obs)
        return outputs[:, :-1] if self.critic is None else outputs

    def value(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, " B"]:
        """Return values alone."""
        return self.actor(obs)[:, -1] if self.critic is None else self.critic(obs).squeeze(1)


def categorical(
    logits: Float[Tensor, "T N A"], actions: Int[Tensor, "T N"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a categorical policy, nats."""
    log_probs = torch.log_softmax(logits, -1)
    taken = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return taken, -(log_probs.exp() * log_probs).sum(-1)


def gaussian(
    means: Float[Tensor, "T N A"], log_stds: Float[Tensor, " A"], actions: Float[Tensor, "T N A"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s) and the entropies of a diagonal Gaussian policy, nats."""
    standardised = (actions - means) * torch.exp(-log_stds)
    dimensions, log_det = means.shape[-1], log_stds.sum()
    half_log_2_pi = 0.5 * math.log(2 * math.pi)
    log_probs = -0.5 * standardised.square().sum(-1) - log_det - dimensions * half_log_2_pi
    entropies = (log_det + dimensions * (0.5 + half_log_2_pi)).expand_as(log_probs)
    return log_probs, entropies


def gae(
    rewards: Float[Tensor, "T N"],
    discounts: Float[Tensor, "T N"],
    trace_mask: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    gae_lambda: float,
) -> Float[Tensor, "T N"]:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, Eq. 16).

    With `gae_lambda` 1 they are n-step returns minus values (arXiv:1602.01783, Algorithm S3).

    Args:
        rewards: as learned from.
        discounts: gamma, or 0 where no value follows.
        trace_mask: 1 where the trace passes from t + 1 to t, 0 at any end.
        values: V of the observation acted on.
        next_values: V of the observation each action led to, before any reset.
        gae_lambda: trace decay in [0, 1].

    Returns:
        advantages in reward units.

    Raises:
        ValueError: if `gae_lambda` is outside [0, 1].
    """
    require(0 <= gae_lambda <= 1, "gae_lambda must be in [0, 1]", gae_lambda)
    errors = torch.addcmul(rewards - values, discounts, next_values).unbind(0)
    decays = (gae_lambda * discounts * trace_mask).unbind(0)
    advantages = [errors[-1]]
    for error, decay in zip(errors[-2::-1], decays[-2::-1], strict=True):
        advantages.append(torch.addcmul(error, decay, advantages[-1]))
    return torch.stack(advantages[::-1])


class Losses(NamedTuple):
    """The parts of the loss, each a mean over valid rows."""

    policy: Float[Tensor, ""]
    """Minus log pi(a|s) times the advantage."""
    value: Float[Tensor, ""]
    """Squared error of the value."""
    entropy: Float[Tensor, ""]
    """Entropy of the policy, nats; enters with a minus."""

    def total(self, config: Config) -> Tensor:
        """Return what is minimised."""
        return self.policy + config.value_coef * self.value - config.entropy_coef * self.entropy


def losses(
    log_probs: Float[Tensor, "T N"],
    entropies: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    advantages: Float[Tensor, "T N"],
    returns: Float[Tensor, "T N"],
    weights: Float[Tensor, "T N"],
) -> Losses:
    """Policy, value and entropy losses (arXiv:1602.01783, Section 4 and Algorithm S3).

    Args:
        log_probs: of the actions taken.
        entropies: of the policy at each observation.
        values: of each observation, in the units of `returns`.
        advantages: of the actions taken; no gradient flows through them.
        returns: what the values are to predict; no gradient flows through them.
        weights: 1 over the number of valid rows, 0 for rows that are no transitions.
    """
    return Losses(
        policy=-(log_probs * (advantages * weights)).sum(),
        value=((values - returns).square() * weights).sum(),
        entropy=(entropies * weights).sum(),
    )


class RMSprop:
    """RMSprop in two published forms, on all weights as one vector.

    The TensorFlow form divides by the root of (average + epsilon), where the average of squared
    gradients starts at 1; torch's by epsilon plus the root, where it starts at 0.

    Args:
        module: its parameters become views of one vector, `parameters`.
        config: the run's settings.
    """

    def __init__(self, module: nn.Module, config: Config) -> None:
        self._config = config
        self._inside = config.rmsprop_form == "tensorflow"
        self._tensors = list(module.parameters())
        self.parameters = _joined([tensor.detach() for tensor in self._tensors])
        self.square_averages = torch.full_like(self.parameters, float(self._inside))
        self._divisor = torch.empty_like(self.parameters)
        parts = self.parameters.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            if tensor.dim() == 4:  # in the order of channels-last memory, as `_joined` puts it
                outputs, inputs, height, width = tensor.shape
                tensor.data = part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
            else:
                tensor.data = part.view(tensor.shape)

    def gradient(self, loss: Tensor) -> Float[Tensor, " P"]:
        """Return the gradient of `loss` as one vector."""
        return _joined(torch.autograd.grad(loss, self._tensors))

    def step(self, gradient: Float[Tensor, " P"], learning_rate: float) -> Float[Tensor, ""]:
        """Clip the gradient in place, make one step along it, and return its norm before."""
        config, averages = self._config, self.square_averages
        norm = torch.linalg.vector_norm(gradient)
        if config.max_gradient_norm is not None:
            gradient.mul_((config.max_gradient_norm / norm).clamp_(max=1.0))
        averages.mul_(config.rmsprop_decay)
        averages.addcmul_(gradient, gradient, value=1 - config.rmsprop_decay)
        if self._inside:
            torch.add(averages, config.rmsprop_epsilon, out=self._divisor).sqrt_()
        else:
            torch.sqrt(averages, out=self._divisor).add_(config.rmsprop_epsilon)
        self.parameters.addcdiv_(gradient, self._divisor, value=-learning_rate)
        return norm


def _joined(tensors: Sequence[Tensor]) -> Float[Tensor, " P"]:
    """Return tensors as one vector, convolution kernels in the order of channels-last memory."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


class RunningMoments:
    """Mean and variance of all rows seen so far (Chan et al. 1979), float64.

    Args:
        shape: of a row.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0.0
        self.mean, self.variance = np.zeros(tuple(shape)), np.ones(tuple(shape))

    def add(self, rows: np.ndarray) -> None:
        """Take in rows `[M, *shape]`."""
        num_rows = len(rows)
        if not num_rows:
            return
        mean = rows.mean(0, dtype=np.float64)
        square = np.square(rows - mean).sum(0)
        self.count += num_rows
        share = num_rows / self.count
        change = mean - self.mean
        self.mean = self.mean + share * change
        squares = (1 - share) * (self.variance + share * np.square(change))
        self.variance = squares + square / self.count

    def standardise(self, rows: np.ndarray, clip: float) -> np.ndarray:
        """Return rows minus the mean, over the deviation, within +-`clip`, float32."""
        scaled = (rows - self.mean) / np.sqrt(self.variance + 1e-8)
        return np.clip(scaled, -clip, clip).astype(np.float32)


class RewardScale:
    """Divides rewards by the running deviation of each environment's discounted sum of rewards.

    Args:
        num_envs: environments, N.
        config: the run's settings.
    """

    def __init__(self, num_envs: int, config: Config) -> None:
        self._config = config
        self._sums = np.zeros(num_envs)
        self._moments = RunningMoments(())

    def __call__(self, rewards: np.ndarray, valid: np.ndarray, dones: np.ndarray) -> np.ndarray:
        """Take in one step's rewards `[N]` and return them divided and clipped."""
        self._sums = self._sums * self._config.gamma + rewards
        self._moments.add(self._sums[valid])
        self._sums[dones] = 0.0
        clip = self._config.reward_clip
        return np.clip(rewards / np.sqrt(self._moments.variance + 1e-8), -clip, clip)


class Rollout:
    """T steps of N environments, time-major, and the observation after them.

    Args:
        config: the run's settings.
        spaces: of the environment.
        device: where the network is.
    """

    def __init__(self, config: Config, spaces: Spaces, device: torch.device) -> None:
        steps, num_envs = config.rollout_length, config.num_envs
        self._config, self._device = config, device
        self.obs = torch.empty(steps + 1, num_envs, *spaces.obs_shape, device=device)
        if len(spaces.obs_shape) == 3:  # channels-last memory, as the kernels have it
            channels, height, width = spaces.obs_shape
            rows = torch.empty(steps + 1, num_envs, height, width, channels, device=device)
            self.obs = rows.permute(0, 1, 4, 2, 3)
        kind = torch.float32 if spaces.continuous else torch.int64
        size = (spaces.num_outputs,) if spaces.continuous else ()
        self.actions = torch.empty(steps, num_envs, *size, dtype=kind, device=device)
        self.rewards = np.zeros((steps, num_envs), dtype=np.float32)
        self.terminations, self.truncations, self.valid = np.zeros((3, steps, num_envs), dtype=bool)

    def put_obs(self, t: int, obs: np.ndarray) -> Tensor:
        """Store observations `[N, *obs]` at `t` and return them as the network reads them."""
        row = self.obs[t]
        if obs.dtype == np.uint8:  # converted once, on the device
            torch.mul(torch.from_numpy(obs).to(self._device), 1 / 255, out=row)
        else:
            row.copy_(torch.from_numpy(obs))
        return row

    def transitions(self) -> "Transitions":
        """Return what the update needs, on the device."""
        cut = self.terminations | self.truncations
        ends = cut if self._config.time_limit_is_terminal else self.terminations
        columns = np.stack(
            [self.rewards, self._config.gamma * ~ends, ~cut, self.valid / self.valid.sum()],
            dtype=np.float32,
            casting="unsafe",
        )
        rewards, discounts, trace_mask, weights = torch.from_numpy(columns).to(self._device)
        return Transitions(self.obs, self.actions, rewards, discounts, trace_mask, weights)


class Transitions(NamedTuple):
    """One rollout as the update reads it."""

    obs: Tensor  # [T + 1, N, *obs]
    actions: Tensor  # [T, N] or [T, N, A]
    rewards: Tensor  # [T, N]
    discounts: Tensor  # [T, N]
    trace_mask: Tensor  # [T, N]
    weights: Tensor  # [T, N], 1 over the number of valid rows, or 0


@dataclass
class Learner:
    """All that learns, for one seed."""

    network: ActorCritic
    optimiser: RMSprop
    obs_moments: RunningMoments | None
    """Statistics that normalise observations; None: they are used as they come."""
    return_moments: Tensor  # [3], float64: count, mean and variance of returns so far


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Draw the initial weights of the only seed of `config` from its own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    return Learner(
        network=network,
        optimiser=RMSprop(network, config),
        obs_moments=RunningMoments(spaces.obs_shape) if config.normalise_observations else None,
        return_moments=torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=device),
    )


METRICS = ("policy_loss", "value_loss", "entropy", "gradient_norm")
MOMENTS = ("target", "residual", "squared_target", "squared_residual")


def evaluate_actions(
    network: ActorCritic, obs: Tensor, actions: Tensor
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return log pi(a|s), entropies and values of `obs` `[T, N, *obs]` and `actions`."""
    outputs, values = network(obs.flatten(0, 1))
    outputs, values = outputs.unflatten(0, obs.shape[:2]), values.unflatten(0, obs.shape[:2])
    if network.log_stds is None:
        log_probs, entropies = categorical(outputs, actions)
    else:
        log_probs, entropies = gaussian(outputs, network.log_stds, actions)
    return log_probs, entropies, values


@torch.no_grad()
def targets(
    learner: Learner, config: Config, batch: Transitions, values: Float[Tensor, "T N"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return advantages in reward units, and returns in the units of the value head.

    With `value_targets` the head's unit is the deviation of the returns seen before this rollout,
    whose own returns then enter the statistics.
    """
    last_values = learner.network.value(batch.obs[-1])
    all_values = torch.cat([values.detach(), last_values.unsqueeze(0)])
    unit = None
    if config.reward_normalisation == "value_targets":
        unit = (learner.return_moments[2] + 1e-8).sqrt().float()
        all_values = all_values * unit
    advantages = gae(
        batch.rewards,
        batch.discounts,
        batch.trace_mask,
        all_values[:-1],
        all_values[1:],
        config.gae_lambda,
    )
    returns = advantages + all_values[:-1]
    if unit is not None:
        _add_moments(learner.return_moments, returns, batch.weights)
        returns = returns / unit
    return advantages, returns


def _add_moments(moments: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Take rows with their weights, which add up to 1, into count, mean and variance."""
    count, mean, variance = moments.unbind(0)
    num_rows = (weights > 0).sum()
    batch_mean = (rows * weights).sum().double()
    batch_variance = ((rows - batch_mean).square() * weights).sum()
    share, change = num_rows / (count + num_rows), batch_mean - mean
    within = (1 - share) * variance + share * batch_variance
    between = share * (1 - share) * change.square()
    moments.copy_(torch.stack([count + num_rows, mean + share * change, within + between]))


def update(
    learner: Learner, config: Config, batch: Transitions, learning_rate: float
) -> Float[Tensor, " M"]:
    """Make one gradient step on one rollout (Algorithm S3).

    Args:
        learner: what learns; changed in place.
        config: the run's settings.
        batch: the rollout.
        learning_rate: step size of this update.

    Returns:
        `METRICS` and `MOMENTS`, on the learner's device.
    """
    log_probs, entropies, values = evaluate_actions(learner.network, batch.obs[:-1], batch.actions)
    advantages, returns = targets(learner, config, batch, values)
    parts = losses(log_probs, entropies, values, advantages, returns, batch.weights)
    gradient = learner.optimiser.gradient(parts.total(config))
    norm = learner.optimiser.step(gradient, learning_rate)
    with torch.no_grad():
        rows = torch.stack([returns, returns - values]).double()
        moments = torch.cat([rows, rows.square()]) * batch.weights
        diagnostics = torch.stack([parts.policy, parts.value, parts.entropy, norm])
        return torch.cat([diagnostics.double(), moments.sum((1, 2))])


def describe(means: Mapping[str, np.ndarray], learning_rate: float) -> dict[str, np.ndarray]:
    """Return the columns of `updates.csv`, `[1]` each, from the means over a log interval."""
    if not means:
        return {}
    values = dict(zip((*METRICS, *MOMENTS), means["update"].tolist(), strict=True))
    unexplained = values["squared_residual"] - values["residual"] ** 2
    variance = values["squared_target"] - values["target"] ** 2
    columns = {name: values[name] for name in METRICS}
    columns["explained_variance"] = 1 - unexplained / variance if variance > 0 else 0.0
    columns["learning_rate"] = learning_rate
    return {name: np.array([value]) for name, value in columns.items()}


@torch.no_grad()
def act(network: ActorCritic, obs: Float[Tensor, "B ..."], noise: Tensor | None = None) -> Tensor:
    """Return actions, `[B]` or `[B, A]`, for prepared observations.

    Args:
        network: what decides.
        obs: as `prepare` or `Rollout.put_obs` returns them.
        noise: what `draw_noise` returned, `[B, A]`; None: the mode of the policy.
    """
    outputs = network.policy(obs)
    if network.log_stds is None:  # the largest of logits plus Gumbel noise is a draw
        return (outputs if noise is None else outputs + noise).argmax(-1)
    return outputs if noise is None else torch.addcmul(outputs, network.log_stds.exp(), noise)


def draw_noise(
    generator: np.random.Generator, network: ActorCritic, shape: Sequence[int]
) -> Float[Tensor, "..."]:
    """Return what drawing actions needs, of shape `[..., A]`, on the network's device."""
    if network.log_stds is None:
        noise = torch.from_numpy(generator.gumbel(size=tuple(shape)).astype(np.float32))
    else:
        noise = torch.from_numpy(generator.standard_normal(tuple(shape), dtype=np.float32))
    return noise.to(network.actor.weights[0].device)


def prepare(
    obs: np.ndarray, moments: RunningMoments | None, config: Config, device: torch.device
) -> Tensor:
    """Return observations `[B, *obs]` as the network reads them; statistics stay as they are."""
    if obs.dtype == np.uint8:
        frames = torch.from_numpy(obs).to(device) * (1 / 255)
        return frames.contiguous(memory_format=torch.channels_last)
    if moments is not None:
        obs = moments.standardise(obs, config.observation_clip)
    return torch.from_numpy(np.asarray(obs, dtype=np.float32)).to(device)


ACTING = ("convolutions", "hidden_sizes", "activation", "shared_trunk", "observation_clip")
"""Settings that rebuilding a policy needs, beside task and protocol."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild a policy from what `save` wrote."""
    settings = {name: description[name] for name in ("task", "protocol", *ACTING)}
    config = Config(**{**settings, "hidden_sizes": tuple(description["hidden_sizes"])})
    spaces, weights, moments = Spaces.from_json(description), dict(weights), None
    if "obs_mean" in weights:
        moments = RunningMoments(spaces.obs_shape)
        moments.mean = weights.pop("obs_mean").numpy()
        moments.variance = weights.pop("obs_variance").numpy()
    network = ActorCritic(config, spaces, np.random.default_rng(0))  # every weight is replaced
    network.load_state_dict(weights)

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return choose_actions(
            network, prepare(obs, moments, config, torch.device("cpu")), generator
        )

    return Policy(find_task(config.task, config.protocol), spaces, decide)


def choose_actions(
    network: ActorCritic, inputs: Tensor, generator: np.random.Generator | None
) -> np.ndarray:
    """Return actions for prepared observations, drawn or the mode; continuous in [-1, 1]."""
    noise = None
    if generator is not None:
        noise = draw_noise(generator, network, (len(inputs), network.num_outputs))
    actions = act(network, inputs, noise)
    return (actions if network.log_stds is None else actions.clamp(-1, 1)).cpu().numpy()


def save(config: Config, learner: Learner, spaces: Spaces, recorder: Recorder) -> None:
    """Write the policy into its run's folder, unless the run has diverged."""
    weights = {name: tensor.contiguous() for name, tensor in learner.network.state_dict().items()}
    if learner.obs_moments is not None:
        weights["obs_mean"] = torch.from_numpy(learner.obs_moments.mean)
        weights["obs_variance"] = torch.from_numpy(learner.obs_moments.variance)
    description = {
        "agent": "a2c",
        "task": config.task,
        "protocol": config.protocol,
        **{name: getattr(config, name) for name in ACTING},
        **spaces._asdict(),
    }
    for i in recorder.active:
        save_policy(recorder.seed_directories[i], weights, description)


def score(config: Config, learner: Learner, env_steps: int, device: torch.device) -> np.ndarray:
    """Return the evaluation returns at `env_steps`, `[1, episodes]`, by the run's rule."""
    (seed,) = config.seeds
    generator = None
    if config.evaluation_rule == "sampled":
        generator = stream(seed, "evaluation actions", env_steps)

    def decide(obs: np.ndarray) -> np.ndarray:
        inputs = prepare(obs[0], learner.obs_moments, config, device)
        return choose_actions(learner.network, inputs, generator)[None]

    task = find_task(config.task, config.protocol)
    return evaluate(task, decide, [seed], env_steps, episodes=config.evaluation_episodes)


def train(config: Config, recorder: Recorder) -> Learner:
    """Train the only seed of `config` to its last step; the only loop that steps environments.

    Returns:
        what was learned.

    Raises:
        UsageError: for a GPU that is not there.
    """
    (seed,) = config.seeds
    device = find_device(config.device)
    use_threads(config.num_threads)
    env = VectorEnv(
        find_task(config.task, config.protocol),
        environment_seeds([seed], config.num_envs, "environments"),
        num_threads=config.num_threads,
    )
    spaces = env.spaces
    learner = make_learner(config, spaces, device)
    network, obs_moments = learner.network, learner.obs_moments
    rollout, action_stream = Rollout(config, spaces, device), stream(seed, "action noise")
    scale: RewardScale | None = None
    if config.reward_normalisation == "discounted_returns":
        scale = RewardScale(config.num_envs, config)
    length = config.rollout_length
    noise_shape = (length, config.num_envs, network.num_outputs)
    means, clock = Means(), recorder.clock

    def store_obs(t: int, obs: np.ndarray, acts: np.ndarray) -> Tensor:
        """Store observations; those that real actions follow (`acts`) enter the statistics."""
        if obs_moments is not None:
            obs_moments.add(obs[acts])
            obs = obs_moments.standardise(obs, config.observation_clip)
        return rollout.put_obs(t, obs)

    store_obs(0, env.reset()[0], np.ones(config.num_envs, dtype=bool))
    state = {"learner": learner, "stream": action_stream, "means": means, "scale": scale}
    journal = Journal(recorder, env, state)
    env_steps, num_updates, reward_sum, learning_rate = journal.resume(
        0, 0, 0.0, config.learning_rate
    )
    obs = store_obs(0, env.obs[0], np.zeros(config.num_envs, dtype=bool))  # [N, *obs]
    clock.start()
    while env_steps + length * config.num_envs <= config.env_steps and recorder.active:
        steps_before = env_steps
        noise = draw_noise(action_stream, network, noise_shape)
        for t in range(length):
            actions = act(network, obs, noise[t])
            rollout.actions[t] = actions
            clock.lap("acting")
            step = env.step(actions.cpu().numpy()[None])
            dones = step.terminations[0] | step.truncations[0]
            rewards, rollout.valid[t] = step.rewards[0], step.valid[0]
            rollout.terminations[t], rollout.truncations[t] = step.terminations, step.truncations
            rollout.rewards[t] = scale(rewards, step.valid[0], dones) if scale else rewards
            env_steps += int(np.count_nonzero(step.valid))
            recorder.episodes(env_steps, step)
            clock.lap("environment")
            obs = store_obs(t + 1, step.obs[0], ~dones)
        journal.record(rollout.actions.cpu().numpy())
        reward_sum += float(rollout.rewards.sum())

        if rollout.valid.any():
            if config.learning_rate_decay_steps:
                left = 1 - steps_before / config.learning_rate_decay_steps
                learning_rate = config.learning_rate * max(left, 0.0)
            metrics = update(learner, config, rollout.transitions(), learning_rate)
            means.add({"update": metrics})
            num_updates += 1
        rollout.obs[0] = rollout.obs[-1]
        obs = rollout.obs[0]
        clock.lap("learning")

        gained = env_steps - steps_before
        last = env_steps + length * config.num_envs > config.env_steps
        if config.evaluation_rule != "training" and (
            last or passed(config.evaluation_interval, env_steps, gained)
        ):
            recorder.evaluation(env_steps, score(config, learner, env_steps, device))
            clock.lap("evaluation")
        if last or passed(config.log_interval, env_steps, gained):
            columns = describe(means.read(), learning_rate)
            norm = torch.linalg.vector_norm(learner.optimiser.parameters).item()
            checks = {"reward": np.array([reward_sum]), "weight_norm": np.array([norm])}
            recorder.log(env_steps, num_updates, columns, checks)
        if journal.due():
            journal.save(env_steps, num_updates, reward_sum, learning_rate)
    save(config, learner, spaces, recorder)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_each_seed("a2c", train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
