"""Actor-critic with experience replay, ACER (Wang et al. 2017, arXiv:1611.01224), discrete actions.

N environments take T steps with one policy; one update follows on this unroll and several on
unrolls from replay. Retrace judges the actions, truncated importance weights with a bias correction
say how the policy should change, and a trust region around an average of past policies bounds the
change. Equation numbers are the paper's.

    python -m agents.acer --task CartPole-v1 --seeds 1 2 3 --env-steps 100000 --out runs/mine

The seeds of one process are trained one after another; each draws from streams of its own.

Deviations from the paper, and details it leaves open:
- Workers are synchronous (OpenAI Baselines): one gradient comes from one unroll of every
  environment, new ones or old ones, and losses are means over its valid rows.
- An unroll goes on across the end of an episode; nothing passes from one episode to the other.
- The simulator ignores the action that follows an end. Such a row is no transition: it enters
  neither loss, trace nor `env_steps`.
- A step cut by the time limit bootstraps from the value of the last observation; the setting
  `time_limit_is_terminal` takes that away where a source does so.
- Probabilities below 1e-8 count as 1e-8 where a gradient is divided by them.
- The learning rate of an update is that of the steps taken before the newest unroll.
- A run ends before the unroll that could exceed `env_steps`.
- Actions are the argmax of logits plus Gumbel noise from the seed's own stream.
"""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from suite.settings import Budget, Preset, UsageError, above, at_least, check_run, require, within
from suite.tasks import find_task
from suite.vector_env import Spaces, Step, VectorEnv

CONVOLUTIONS = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "a3c": (((16, 8, 4), (32, 4, 2)), 256),
}
"""Layers for frames, (channels, kernel, stride), and the width of the layer after them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run. The defaults are the paper's where it has any (Section 4)."""

    task: str = "Pong-v5"
    """envpool id of a task with discrete actions."""
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    """How an Atari game is presented; other tasks ignore it."""
    seeds: tuple[int, ...] = (1,)
    """Seeds trained one after another in this process."""
    env_steps: int = 10_000_000
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one."""
    num_threads: int = 1
    """CPU threads of torch and of the simulator. With several, set OMP_WAIT_POLICY=PASSIVE in the
    environment: torch's threads otherwise spin while the simulator's work."""
    num_envs: int = 16
    """Environments, N (the paper: 16 workers)."""
    unroll_length: int = 20
    """Steps of every environment between two rounds of updates, T (the paper's k)."""
    online_updates: bool = True
    """Whether the newest unroll is learned from at once, or only when replay draws it."""
    replay_ratio: float = 4.0
    """Updates from replay per unroll (the paper: 0, 1, 4 and 8)."""
    replay_count: Literal["poisson", "fixed"] = "poisson"
    """Whether that is the mean of a Poisson distribution (Algorithm 1) or the number itself."""
    replay_capacity: int = 50_000
    """Steps of each environment that replay holds."""
    replay_start: int = 10_000
    """Steps of each environment before the first update from replay (OpenAI Baselines)."""
    gamma: float = 0.99
    """Discount per decision."""
    clip_rho_threshold: float | None = 10.0
    """Bound of the importance weights, the paper's c; what it cuts, the correction term adds
    again. None: no truncation and no correction."""
    advantage_target: Literal["q_retrace", "q_opc"] = "q_retrace"
    """What advantages are measured from: Q_ret, or Q_opc, which has no c_t (Appendix B)."""
    trust_region_delta: float | None = 1.0
    """Bound of the linearised divergence from the average policy, nats; None: no trust region."""
    statistics: Literal["probabilities", "logits"] = "probabilities"
    """What the trust region measures gradients by: the paper's choice, or ChainerRL's."""
    entropy_in_trust_region: bool = True
    """Whether the entropy's gradient is projected too (OpenAI Baselines) or added afterwards
    (ChainerRL)."""
    tau: float = 0.01
    """Rate of the average policy, tau * policy + (1 - tau) * average (the paper: 1 - 0.99)."""
    policy_coef: float = 1.0
    """Weight of the policy's objective, entropy included."""
    q_coef: float = 0.5
    """Weight of half the squared error of Q (OpenAI Baselines)."""
    entropy_coef: float = 0.001
    """Weight of the policy's entropy, nats, within that objective."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Whether losses are averaged over an update's valid rows, or summed."""
    convolutions: Literal["nature", "a3c"] = "nature"
    """Layers for uint8 frames: DQN's (three and 512 units) or the A3C paper's (two and 256)."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for observations that are no frames."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers for observations that are no frames; convolutions have ReLU."""
    shared_trunk: bool = True
    """Whether policy and Q share all layers but their heads."""
    hidden_gain: float = math.sqrt(2)
    """Gain of the orthogonal initial weights of all layers but the heads; biases start at 0."""
    policy_head_gain: float = 0.01
    """Gain of the policy's head."""
    q_head_gain: float = 1.0
    """Gain of the head of Q."""
    learning_rate: float = 7e-4
    """RMSprop step size at the start."""
    learning_rate_decay_steps: int = 0
    """Environment steps over which it falls linearly to 0: the source's horizon; 0: constant."""
    rmsprop_form: Literal["tensorflow", "torch"] = "tensorflow"
    """`tensorflow`: epsilon inside the root and averages that start at 1; `torch`: epsilon outside
    and averages that start at 0."""
    rmsprop_decay: float = 0.99
    """Decay of the average of squared gradients."""
    rmsprop_epsilon: float = 1e-5
    """Keeps the step finite where gradients are small."""
    max_gradient_norm: float | None = 10.0
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    time_limit_is_terminal: bool = False
    """Treat a time limit as an end of the decision process: no value follows."""
    evaluation_rule: Literal["sampled", "deterministic", "training"] = "training"
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
        if task.actions != "discrete":
            raise UsageError(f"{self.task} has continuous actions: use acer_continuous")
        check_run(self)
        at_least(self, 1, "unroll_length")
        rule = f"env_steps must hold one unroll of num_envs * unroll_length = {self.unroll_rows}"
        require(self.env_steps >= self.unroll_rows, rule, self.env_steps)
        at_least(self, 0, "replay_ratio", "replay_start")
        delta = self.trust_region_delta
        require(delta is None or delta >= 0, "trust_region_delta must be >= 0", delta)
        learns = self.online_updates or self.replay_ratio > 0
        require(learns, "without online_updates replay_ratio must be above 0", self.replay_ratio)
        whole = self.replay_count == "poisson" or float(self.replay_ratio).is_integer()
        require(whole, "a fixed replay_ratio must be a whole number", self.replay_ratio)
        at_least(self, self.unroll_length, "replay_capacity")
        rule = f"replay_start must be within replay_capacity = {self.replay_capacity}"
        require(self.replay_start <= self.replay_capacity, rule, self.replay_start)
        above(self, 0, "clip_rho_threshold", "max_gradient_norm", "rmsprop_epsilon")
        above(self, 0, "hidden_gain", "policy_head_gain", "q_head_gain")
        at_least(self, 0, "policy_coef", "q_coef", "entropy_coef", "learning_rate_decay_steps")
        within(self, 0, 1, "tau")
        require(0 < self.learning_rate < 1, "learning_rate must be in (0, 1)", self.learning_rate)
        decay = self.rmsprop_decay
        require(0 <= decay < 1, "rmsprop_decay must be in [0, 1)", decay)

    @property
    def unroll_rows(self) -> int:
        """Rows of one unroll, T * N; as many steps unless an action is ignored."""
        return self.unroll_length * self.num_envs

    @property
    def replay_unrolls(self) -> int:
        """Unrolls that are kept: no more than a run makes, in which every second row may count."""
        if not self.replay_ratio:
            return 1
        rows = min(self.replay_capacity, 2 * self.env_steps // self.num_envs)
        return max(rows // self.unroll_length, 1)

    @property
    def memory_bytes(self) -> int:
        """What replay takes up, for a plan of several runs side by side."""
        atari = find_task(self.task, self.protocol).family == "atari"
        return replay_bytes(self, Spaces((4, 84, 84), 18) if atari else Spaces((6,), 3))


def _presets() -> dict[tuple[str, str], Preset[Config]]:
    """Return every source's settings by (suite, source); `results/references/SOURCES.md` cites."""
    classic = Preset(
        # No source: the paper has no such task and no curve of one is held. Chosen by hand on
        # CartPole-v1, where training episodes of the last 10,000 of 100,000 steps return 460 to 500
        # (five seeds); with the paper's 16 environments, 20 steps, shared trunk and RMSprop 200 to
        # 260 (two seeds). Tried beside these: 4 environments, learning rates 7e-4 and 1e-3, clip
        # 10, gamma 0.98, q_coef 0.05. MountainCar-v0 is not learned: nothing reaches the goal.
        config=Config(
            task="CartPole-v1",
            env_steps=100_000,
            num_envs=8,
            unroll_length=10,
            replay_capacity=5_000,
            replay_start=100,
            shared_trunk=False,
            learning_rate=2e-3,
            rmsprop_form="torch",
            max_gradient_norm=0.5,
        ),
        budgets={
            "smoke": Budget(env_steps=100_000, num_seeds=3),
            "laptop": Budget(env_steps=200_000, num_seeds=5),
            "paper": Budget(env_steps=500_000, num_seeds=5),
        },
        judged_by=None,
        tasks=("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
        departures=("no source: settings chosen here, on CartPole-v1",),
    )
    baselines = Preset(
        # openai/baselines, baselines/acer/acer.py: the defaults of `learn`, but for a constant
        # learning rate (acer/defaults.py); 16 environments are this file's. DQN's network is
        # shared by both heads, orthogonal weights have gain sqrt(2), heads 0.01 and 1, RMSprop is
        # TensorFlow's; the trust region measures by probabilities, entropy included.
        # `buffer_size` and `replay_start` count steps of each environment.
        config=Config(
            entropy_coef=0.01,
            time_limit_is_terminal=True,  # acer/runner.py knows only ends
        ),
        budgets={
            "smoke": Budget(env_steps=300_000, num_seeds=1),
            "laptop": Budget(env_steps=1_000_000, num_seeds=1),
            "paper": Budget(env_steps=10_000_000, num_seeds=6),
        },
        judged_by="openai_baselines_7bfbcf1",
        protocol="noframeskip",
        departures=(
            "environments: 16; the source's runs do not state theirs",
            "simulator: envpool's Atari, 27,000 decisions a game; the source's limit was 100,000",
            "after a lost life envpool presses FIRE and waits up to 29 frames; the source takes "
            "one step",
            "stacks of frames go on across a lost life; the source begins them anew, with zeros",
        ),
    )
    presets: dict[tuple[str, str], Preset[Config]] = {("classic", "paper"): classic}
    for suite in ("atari-7", "atari"):
        presets[suite, "paper"] = baselines
    return presets


PRESETS = _presets()


# Same in: a2c.py
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


# Same in: a2c.py
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
    """Policy and Q: one trunk with two heads, or one trunk each.

    Args:
        config: the run's settings.
        spaces: of the environment.
        generator: the seed's stream of initial weights.
    """

    def __init__(self, config: Config, spaces: Spaces, generator: np.random.Generator) -> None:
        super().__init__()
        self.num_actions = spaces.num_outputs
        heads = [(self.num_actions, config.policy_head_gain)]
        q_head = (self.num_actions, config.q_head_gain)
        self.critic: Trunk | None = None
        if config.shared_trunk:
            heads.append(q_head)
        self.actor = Trunk(config, spaces.obs_shape, heads, generator)
        if not config.shared_trunk:
            self.critic = Trunk(config, spaces.obs_shape, [q_head], generator)

    def forward(
        self, obs: Float[Tensor, "B ..."]
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Return logits and Q of every action."""
        outputs = self.actor(obs)
        if self.critic is None:
            return outputs[:, : self.num_actions], outputs[:, self.num_actions :]
        return outputs, self.critic(obs)

    def policy(self, obs: Float[Tensor, "B ..."]) -> Float[Tensor, "B A"]:
        """Return logits alone."""
        return self.actor(obs)[:, : self.num_actions]


@torch.no_grad()
def retrace(
    rewards: Float[Tensor, "T N"],
    discounts: Float[Tensor, "T N"],
    trace_mask: Float[Tensor, "T N"],
    taken_q_values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    cs: Float[Tensor, "T N"],
) -> Float[Tensor, "T N"]:
    """Retrace targets of the actions taken (Eq. 5); with `cs` of 1 they are Q_opc (Appendix B).

    Args:
        rewards: as learned from.
        discounts: gamma, or 0 where no value follows.
        trace_mask: 1 where the trace passes from t + 1 to t, 0 at any end.
        taken_q_values: Q of the observation and the action taken on it.
        next_values: V of the observation each action led to, before any reset.
        cs: truncated importance ratio of each action; row t + 1 weighs the trace into row t.

    Returns:
        what Q of the actions taken is to predict, in reward units, detached.
    """
    targets = torch.addcmul(rewards, discounts, next_values).unbind(0)
    decays = (discounts * trace_mask)[:-1].unbind(0)
    q_retrace = [targets[-1]]
    for target, decay, c, q in zip(
        targets[-2::-1], decays[::-1], cs[1:].flip(0), taken_q_values[1:].flip(0), strict=True
    ):
        q_retrace.append(torch.addcmul(target, decay * c, q_retrace[-1] - q))
    return torch.stack(q_retrace[::-1])


@torch.no_grad()
def policy_gradients(
    log_probs: Float[Tensor, "T N A"],
    behaviour_log_probs: Float[Tensor, "T N A"],
    actions: Int[Tensor, "T N"],
    targets: Float[Tensor, "T N"],
    q_values: Float[Tensor, "T N A"],
    values: Float[Tensor, "T N"],
    clip_rho_threshold: float | None,
) -> Float[Tensor, "T N A"]:
    """ACER's policy gradient, by the log-probability of every action (Eq. 9).

    Args:
        log_probs: of every action by the policy that learns, nats.
        behaviour_log_probs: of every action by the policy that acted, nats.
        actions: those taken.
        targets: Q_ret (or Q_opc) of the actions taken.
        q_values: Q of every action, which replaces the target in the correction.
        values: V, the expectation of Q under the policy that learns.
        clip_rho_threshold: c; None: no truncation, so nothing to correct.

    Returns:
        factors of grad log pi(a|x), one per action, of the objective that is maximised.
    """
    log_rhos = log_probs - behaviour_log_probs
    taken = actions.unsqueeze(-1)
    rhos, correction = log_rhos.gather(-1, taken).exp(), torch.zeros_like(log_probs)
    if clip_rho_threshold is not None:
        rhos = rhos.clamp(max=clip_rho_threshold)
        shares = (1 - clip_rho_threshold * torch.exp(-log_rhos)).clamp_min(0)  # [(rho - c) / rho]+
        correction = log_probs.exp() * shares * (q_values - values.unsqueeze(-1))
    return correction.scatter_add(-1, taken, rhos * (targets - values).unsqueeze(-1))


@torch.no_grad()
def by_statistics(
    gradients: Float[Tensor, "*B A"],
    log_probs: Float[Tensor, "*B A"],
    statistics: Literal["probabilities", "logits"],
) -> Float[Tensor, "*B A"]:
    """Turn gradients by log-probabilities into gradients by the policy's statistics (Eq. 10).

    Args:
        gradients: by the logarithms of the probabilities, each as if it were free.
        log_probs: of every action, nats.
        statistics: the probabilities (again as if free), or the logits that the network puts out.
    """
    probs = log_probs.exp()
    if statistics == "probabilities":
        return gradients / probs.clamp_min(1e-8)
    return gradients - probs * gradients.sum(-1, keepdim=True)


@torch.no_grad()
def trust_region(
    gradients: Float[Tensor, "*B A"], kl_gradients: Float[Tensor, "*B A"], delta: float
) -> Float[Tensor, "*B A"]:
    """Nearest `z` to each gradient that raises the divergence at most at rate `delta` (Eq. 12).

    Args:
        gradients: of the objective that is maximised, by the policy's statistics.
        kl_gradients: of KL(average policy || policy), by the same statistics.
        delta: bound of `(kl_gradients * z).sum(-1)`, at least 0.

    Returns:
        z: the gradients, less what exceeds the bound, along `kl_gradients`.
    """
    squares = kl_gradients.square().sum(-1, keepdim=True)
    excess = (kl_gradients * gradients).sum(-1, keepdim=True) - delta
    tiny = torch.finfo(squares.dtype).tiny  # where KL is flat nothing exceeds the bound
    return gradients - (excess / squares.clamp_min(tiny)).clamp_min(0) * kl_gradients


# Same in: a2c.py
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


# Same in: a2c.py
def _joined(tensors: Sequence[Tensor]) -> Float[Tensor, " P"]:
    """Return tensors as one vector, convolution kernels in the order of channels-last memory."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


class Transitions(NamedTuple):
    """One unroll of every environment as the update reads it."""

    obs: Tensor  # [(T + 1) * N, *obs]
    actions: Tensor  # [T, N]
    behaviour_log_probs: Tensor  # [T, N, A]
    rewards: Tensor  # [T, N]
    discounts: Tensor  # [T, N]
    trace_mask: Tensor  # [T, N]
    valid: Tensor  # [T, N], 1 or 0


class Replay:
    """The newest unrolls of every environment, and the observation after them.

    A ring of steps, time-major. Of frames that come in stacks only the newest is kept, and the
    stack is put together again from those before it. envpool fills the stack of a new game with its
    first frame; after a lost life, and at the end of a game, the stack goes on.

    Args:
        config: the run's settings.
        spaces: of the environment.
        device: where the network is; the ring stays in the machine's memory.
    """

    def __init__(self, config: Config, spaces: Spaces, device: torch.device) -> None:
        self._config, self._device = config, device
        self._stack, shape = _frame(spaces)
        self._length, self._num_unrolls = config.unroll_length, config.replay_unrolls
        # an unroll is read with the observation after it and the frames before it
        self._num_rows = self._num_unrolls * self._length + self._stack
        size = (self._num_rows, config.num_envs)
        self._obs = np.zeros((*size, *shape), dtype=np.uint8 if self._stack > 1 else np.float32)
        self._ages = np.zeros(size, dtype=np.uint8)
        self._actions = np.zeros(size, dtype=np.int64)
        self.behaviour_log_probs = np.zeros((*size, spaces.num_outputs), dtype=np.float32)
        self._rewards = np.zeros(size, dtype=np.float32)
        self._terminations, self._truncations, self._valid = np.zeros((3, *size), dtype=bool)
        self._envs = np.arange(config.num_envs)
        self._over = np.zeros(config.num_envs, dtype=bool)
        self.num_steps = 0

    @property
    def num_unrolls(self) -> int:
        """Whole unrolls so far, those included that were overwritten."""
        return self.num_steps // self._length

    def put_first_obs(self, obs: np.ndarray) -> None:
        """Store the observations `[N, *obs]` that the very first actions follow."""
        self._put_obs(0, obs, np.zeros(len(obs), dtype=np.uint8))

    def add(self, actions: np.ndarray, behaviour_log_probs: np.ndarray, step: Step) -> None:
        """Store the actions `[N]`, every action's log-probability `[N, A]` and what they caused."""
        row, following = self.num_steps % self._num_rows, (self.num_steps + 1) % self._num_rows
        self._actions[row], self.behaviour_log_probs[row] = actions, behaviour_log_probs
        self._rewards[row], self._valid[row] = step.rewards[0], step.valid[0]
        self._terminations[row], self._truncations[row] = step.terminations, step.truncations
        ages = np.where(self._over, 0, np.minimum(self._ages[row] + 1, self._stack - 1))
        self._put_obs(following, step.obs[0], ages)
        self._over = step.episode_ends[0]  # the next action is ignored, a new game follows it
        self.num_steps += 1

    def newest(self) -> Transitions:
        """Return the unroll that was added last."""
        return self.read(np.full(len(self._envs), self.num_unrolls - 1))

    def sample(self, generator: np.random.Generator) -> Transitions:
        """Return one of the unrolls that are kept, drawn for each environment."""
        oldest = max(self.num_unrolls - self._num_unrolls, 0)
        return self.read(generator.integers(oldest, self.num_unrolls, size=len(self._envs)))

    def read(self, numbers: np.ndarray) -> Transitions:
        """Return unroll `numbers[i]` of environment i, counted from the first; `numbers` `[N]`."""
        steps = numbers * self._length + np.arange(self._length + 1)[:, None]  # [T + 1, N]
        rows, envs = steps % self._num_rows, self._envs
        back = np.minimum(self._ages[rows, envs][..., None], np.arange(self._stack)[::-1])
        obs = self._obs[(steps[..., None] - back) % self._num_rows, envs[:, None]]  # [T + 1, N, C]
        obs = obs.reshape(-1, *(obs.shape[2:] if self._stack > 1 else obs.shape[3:]))
        rows = rows[:-1]
        terminations, cut = self._terminations[rows, envs], self._truncations[rows, envs]
        cut = cut | terminations
        ends = cut if self._config.time_limit_is_terminal else terminations
        columns = [self._rewards[rows, envs], self._config.gamma * ~ends, ~cut]
        columns.append(self._valid[rows, envs])
        tensors = np.stack(columns, dtype=np.float32, casting="unsafe")
        return Transitions(
            prepare(obs, self._device),
            torch.from_numpy(self._actions[rows, envs]).to(self._device),
            torch.from_numpy(self.behaviour_log_probs[rows, envs]).to(self._device),
            *torch.from_numpy(tensors).to(self._device),
        )

    def _put_obs(self, row: int, obs: np.ndarray, ages: np.ndarray) -> None:
        """Store observations and how many earlier frames of the same game each one holds."""
        self._obs[row] = obs[:, -1] if self._stack > 1 else obs
        self._ages[row] = ages


def _frame(spaces: Spaces) -> tuple[int, tuple[int, ...]]:
    """Return how many frames an observation stacks, and the shape of what is kept of it."""
    frames = len(spaces.obs_shape) == 3
    return (spaces.obs_shape[0], spaces.obs_shape[1:]) if frames else (1, spaces.obs_shape)


def replay_bytes(config: Config, spaces: Spaces) -> int:
    """Return about how much memory replay fills in a run; a lost life adds a row per life."""
    _, shape = _frame(spaces)
    obs = math.prod(shape) * (1 if len(spaces.obs_shape) == 3 else 4)
    rows = min(config.replay_unrolls * config.unroll_length, config.env_steps // config.num_envs)
    return rows * config.num_envs * (obs + 4 * spaces.num_outputs + 16)


@dataclass
class Learner:
    """All that learns, for one seed."""

    network: ActorCritic
    average_policy: Trunk
    """The slow copy of the network's actor."""
    optimiser: RMSprop


def make_learner(config: Config, spaces: Spaces, device: torch.device) -> Learner:
    """Draw the initial weights of the only seed of `config` from its own stream."""
    (seed,) = config.seeds
    network = ActorCritic(config, spaces, stream(seed, "initial weights")).to(device)
    average_policy = copy.deepcopy(network.actor).requires_grad_(False)
    return Learner(network, average_policy, RMSprop(network, config))


METRICS = (
    *("q_loss", "q_value", "value", "entropy", "kl", "truncated_share"),
    *("statistics_gradient_norm", "projected_gradient_norm", "gradient_norm"),
)
"""Per update, means over valid rows: half the squared error of Q, Q of the actions taken, V, the
policy's entropy and divergence from the average policy (nats), the share of importance weights that
were truncated, and the norm of a row's gradient before and after projection; the last column is the
norm of the whole gradient."""


class Signals(NamedTuple):
    """What goes back into the network; no gradient flows through it."""

    q_retrace: Float[Tensor, "T N"]
    """What Q of the actions taken is to predict."""
    gradients: Float[Tensor, "T N A"]
    """Of the objective that is maximised, by the policy's statistics, after projection."""
    diagnostics: Float[Tensor, "M T N"]
    """The rows behind `METRICS`, but for the last."""


@torch.no_grad()
def learning_signals(
    config: Config,
    batch: Transitions,
    logits: Float[Tensor, "T1 N A"],
    q_values: Float[Tensor, "T1 N A"],
    average_logits: Float[Tensor, "T N A"],
) -> Signals:
    """Return what the actions of unrolls say of how policy and Q should change (Eq. 5 to 12).

    Args:
        config: the run's settings.
        batch: the unrolls.
        logits: of the policy that learns, those of the observation after the unroll included.
        q_values: Q of every action, likewise.
        average_logits: of the average policy.
    """
    values = (logits.softmax(-1) * q_values).sum(-1)  # [T + 1, N]
    log_probs, q_values = logits[:-1].log_softmax(-1), q_values[:-1]
    probs, average_log_probs = log_probs.exp(), average_logits.log_softmax(-1)
    average_probs = average_log_probs.exp()
    taken = batch.actions.unsqueeze(-1)
    taken_q_values = q_values.gather(-1, taken).squeeze(-1)
    rhos = (log_probs - batch.behaviour_log_probs).gather(-1, taken).squeeze(-1).exp()

    def targets(cs: Tensor) -> Tensor:
        steps = (batch.rewards, batch.discounts, batch.trace_mask)
        return retrace(*steps, taken_q_values, values[1:], cs)

    q_retrace = targets(rhos.clamp(max=1))
    opc = config.advantage_target == "q_opc"
    gradients = policy_gradients(
        log_probs,
        batch.behaviour_log_probs,
        batch.actions,
        targets(torch.ones_like(rhos)) if opc else q_retrace,
        q_values,
        values[:-1],
        config.clip_rho_threshold,
    )
    entropy_gradients = -config.entropy_coef * probs * (log_probs + 1)
    if config.entropy_in_trust_region:
        gradients = gradients + entropy_gradients
    before = z = by_statistics(gradients, log_probs, config.statistics)
    if config.trust_region_delta is not None:
        # KL(average || policy) is a constant minus the sum of average_probs * log_probs
        k = by_statistics(-average_probs, log_probs, config.statistics)
        z = trust_region(before, k, config.trust_region_delta)
    norms = before.norm(dim=-1), z.norm(dim=-1)
    if not config.entropy_in_trust_region:
        z = z + by_statistics(entropy_gradients, log_probs, config.statistics)
    bound = math.inf if config.clip_rho_threshold is None else config.clip_rho_threshold
    diagnostics = torch.stack(
        [
            0.5 * (q_retrace - taken_q_values).square(),
            taken_q_values,
            values[:-1],
            -(probs * log_probs).sum(-1),
            (average_probs * (average_log_probs - log_probs)).sum(-1),
            (rhos > bound).float(),
            *norms,
        ]
    )
    return Signals(q_retrace, z, diagnostics)


def update(
    learner: Learner, config: Config, batch: Transitions, learning_rate: float
) -> Float[Tensor, " M"]:
    """Make one gradient step on one unroll of every environment (Algorithm 2).

    Args:
        learner: what learns; changed in place.
        config: the run's settings.
        batch: the unrolls, new or from replay.
        learning_rate: step size of this update.

    Returns:
        `METRICS`, on the learner's device.
    """
    num_envs = batch.rewards.shape[1]
    outputs = learner.network(batch.obs)
    logits, q_values = (output.unflatten(0, (-1, num_envs)) for output in outputs)  # [T + 1, N, A]
    with torch.no_grad():
        average_outputs = learner.average_policy(batch.obs[:-num_envs])
    average_logits = average_outputs[:, : logits.shape[-1]].unflatten(0, (-1, num_envs))
    signals = learning_signals(config, batch, logits.detach(), q_values.detach(), average_logits)

    shares = batch.valid / batch.valid.sum().clamp_min(1)
    weights = shares if config.loss_reduction == "mean" else batch.valid
    statistics = (logits.softmax(-1) if config.statistics == "probabilities" else logits)[:-1]
    objective = (statistics * (signals.gradients * weights.unsqueeze(-1))).sum()
    taken_q_values = q_values[:-1].gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    q_loss = 0.5 * ((taken_q_values - signals.q_retrace).square() * weights).sum()  # Eq. 6
    loss = config.q_coef * q_loss - config.policy_coef * objective
    gradient = learner.optimiser.gradient(loss)  # the one backward pass
    norm = learner.optimiser.step(gradient, learning_rate)
    with torch.no_grad():
        actor = learner.network.actor.parameters()
        for slow, fast in zip(learner.average_policy.parameters(), actor, strict=True):
            slow.lerp_(fast, config.tau)
        return torch.cat([(signals.diagnostics * shares).sum((1, 2)), norm.view(1)])


def choose(logits: Float[Tensor, "B A"], noise: Tensor | None) -> Int[Tensor, " B"]:
    """Return actions: the largest of logits plus Gumbel noise is a draw; no noise: the mode."""
    return (logits if noise is None else logits + noise).argmax(-1)


def draw_noise(
    generator: np.random.Generator, shape: Sequence[int], device: torch.device
) -> Tensor:
    """Return the noise that `choose` needs, of shape `[..., A]`."""
    return torch.from_numpy(generator.gumbel(size=tuple(shape)).astype(np.float32)).to(device)


def prepare(obs: np.ndarray, device: torch.device) -> Tensor:
    """Return observations `[B, *obs]` as the network reads them."""
    if obs.dtype == np.uint8:
        frames = torch.empty(obs.shape, device=device, memory_format=torch.channels_last)
        return torch.mul(torch.from_numpy(obs).to(device), 1 / 255, out=frames)
    return torch.from_numpy(np.asarray(obs, dtype=np.float32)).to(device)


ACTING = ("convolutions", "hidden_sizes", "activation", "shared_trunk")
"""Settings that rebuilding a policy needs, beside task and protocol."""


def load(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Policy:
    """Rebuild a policy from what `save` wrote."""
    settings = {name: description[name] for name in ("task", "protocol", *ACTING)}
    config = Config(**{**settings, "hidden_sizes": tuple(description["hidden_sizes"])})
    spaces = Spaces.from_json(description)
    network = ActorCritic(config, spaces, np.random.default_rng(0))  # every weight is replaced
    network.load_state_dict(dict(weights))

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return choose_actions(network, prepare(obs, torch.device("cpu")), generator)

    return Policy(find_task(config.task, config.protocol), spaces, decide)


@torch.no_grad()
def choose_actions(
    network: ActorCritic, inputs: Tensor, generator: np.random.Generator | None
) -> np.ndarray:
    """Return actions `[B]` for prepared observations, drawn or the mode."""
    logits, noise = network.policy(inputs), None
    if generator is not None:
        noise = draw_noise(generator, logits.shape, logits.device)
    return choose(logits, noise).cpu().numpy()


def save(config: Config, learner: Learner, spaces: Spaces, recorder: Recorder) -> None:
    """Write the policy into its run's folder, unless the run has diverged."""
    weights = {name: tensor.contiguous() for name, tensor in learner.network.state_dict().items()}
    description = {
        "agent": "acer",
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
        return choose_actions(learner.network, prepare(obs[0], device), generator)[None]

    task = find_task(config.task, config.protocol)
    return evaluate(task, decide, [seed], env_steps, episodes=config.evaluation_episodes)


def num_replays(config: Config, replay: Replay, generator: np.random.Generator) -> int:
    """Return how many updates from replay follow the newest unroll."""
    if replay.num_steps < config.replay_start:
        return 0
    if config.replay_count == "poisson":
        return int(generator.poisson(config.replay_ratio))
    return int(config.replay_ratio)


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
    learner, replay = make_learner(config, spaces, device), Replay(config, spaces, device)
    action_stream, replay_stream = stream(seed, "action noise"), stream(seed, "replay")
    count_stream = stream(seed, "replay counts")
    noise_shape = (config.unroll_length, config.num_envs, spaces.num_outputs)
    means, clock = Means(), recorder.clock

    state = {"learner": learner, "means": means, "log_probs": replay.behaviour_log_probs}
    streams = [action_stream, replay_stream, count_stream]
    journal = Journal(recorder, env, {**state, "streams": streams})
    replay.put_first_obs(env.reset()[0])
    for step, actions in journal.past():  # of a run that was killed
        replay.add(actions[0], replay.behaviour_log_probs[0], step)  # which the state replaces
    env_steps, num_updates, reward_sum, learning_rate = journal.resume(
        0, 0, 0.0, config.learning_rate
    )
    obs = env.obs[0]  # [N, *obs]
    clock.start()
    while env_steps + config.unroll_rows <= config.env_steps and recorder.active:
        steps_before = env_steps
        for noise in draw_noise(action_stream, noise_shape, device):
            with torch.no_grad():
                logits = learner.network.policy(prepare(obs, device))
                behaviour_log_probs = logits.log_softmax(-1).cpu().numpy()
                actions = choose(logits, noise).cpu().numpy()
            clock.lap("acting")
            step = env.step(actions[None])
            journal.record(actions)
            replay.add(actions, behaviour_log_probs, step)
            obs = step.obs[0]
            reward_sum += float(step.rewards.sum())
            env_steps += int(np.count_nonzero(step.valid))
            recorder.episodes(env_steps, step)
            clock.lap("environment")

        if config.learning_rate_decay_steps:
            left = 1 - steps_before / config.learning_rate_decay_steps
            learning_rate = config.learning_rate * max(left, 0.0)
        batches = [replay.newest] if config.online_updates else []
        batches += num_replays(config, replay, count_stream) * [
            lambda: replay.sample(replay_stream)
        ]
        for draw in batches:
            means.add({"update": update(learner, config, draw(), learning_rate)})
        num_updates += len(batches)
        clock.lap("learning")

        gained = env_steps - steps_before
        last = env_steps + config.unroll_rows > config.env_steps
        if config.evaluation_rule != "training" and (
            last or passed(config.evaluation_interval, env_steps, gained)
        ):
            recorder.evaluation(env_steps, score(config, learner, env_steps, device))
            clock.lap("evaluation")
        if last or passed(config.log_interval, env_steps, gained):
            rows = means.read().get("update")
            columns = {} if rows is None else dict(zip(METRICS, rows[:, None], strict=True))
            columns |= {"learning_rate": np.array([learning_rate])} if columns else {}
            norm = torch.linalg.vector_norm(learner.optimiser.parameters).item()
            checks = {"reward": np.array([reward_sum]), "weight_norm": np.array([norm])}
            recorder.log(env_steps, num_updates, columns, checks)
        if journal.due():
            journal.save(env_steps, num_updates, reward_sum, learning_rate)
    save(config, learner, spaces, recorder)
    return learner


def main(argv: Sequence[str]) -> int:
    """Train as the command line says; the exit status is 2 if a seed diverged."""
    return train_each_seed("acer", train, PRESETS, argv)


if __name__ == "__main__":
    sys.exit(run_main(main))
