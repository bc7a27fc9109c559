"""Settings that all agents share, and the ranges of settings.

A setting states its range in its type, `gamma: Fraction = 0.99`; every new configuration checks
both for each field. The fields are flags, `--gamma 0.9`, which `suite/settings/command_line.py`
reads.
"""

import dataclasses
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from suite.base.errors import UsageError, require
from suite.envs.tasks import Task, find_task
from suite.envs.vector_env import Spaces

MOST_STEPS = 2**53
"""No run is longer; whole numbers up to this are exact in every table."""


@dataclass(frozen=True)
class Range:
    """An interval in mathematical notation: `[0, 1)` holds 0 but not 1."""

    text: str

    def __contains__(self, number: int | float) -> bool:
        """Return whether the number lies in the interval."""
        low, high = map(float, self.text[1:-1].split(","))
        above = number >= low if self.text.startswith("[") else number > low
        return above and (number <= high if self.text.endswith("]") else number < high)

    def __str__(self) -> str:
        """Return the rule in words."""
        low, high = self.text[1:-1].split(", ")
        if high != "inf":
            return f"must be in {self.text}"
        return f"must be {'at least' if self.text.startswith('[') else 'above'} {low}"


class Words(tuple[str, ...]):
    """The words of which a setting is one."""

    def __str__(self) -> str:
        """Return the rule in words."""
        return f"must be one of {', '.join(self)}"


Count = Annotated[int, Range("[1, inf)")]
ENVIRONMENTS = Range("[1, 1e5]")
Environments = Annotated[int, ENVIRONMENTS]
"""Simulators side by side: of `num_envs`, or of an evaluation's episodes."""
Threads = Annotated[int, Range("[1, 1024]")]
Capacity = Annotated[int, Range("[1, 1e9]")]
"""Transitions or steps that a replay holds."""
Whole = Annotated[int, Range("[0, inf)")]
Positive = Annotated[float, Range("(0, inf)")]
NotNegative = Annotated[float, Range("[0, inf)")]
Fraction = Annotated[float, Range("[0, 1]")]
Rate = Annotated[float, Range("(0, 1)")]
Share = Annotated[float, Range("(0, 1]")]
Decay = Annotated[float, Range("[0, 1)")]
Widths = Annotated[tuple[int, ...], Range("[1, 1e6]")]
"""Widths of hidden layers; at least one."""
LogStd = Annotated[float, Range("[-20, 2]")]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Task, seeds, device, evaluation and logging of a run. Every agent's `Config` extends it."""

    takes_hybrid_actions: ClassVar[bool] = False
    """Whether the agent can learn a task with hybrid actions, as with any other."""
    task: str
    """Name of a task in `suite/envs/tasks.py`, or `module:id` of one registered with gymnasium."""
    seeds: tuple[int, ...] = (1,)
    """Seeds that this process trains; each draws from random streams of its own."""
    env_steps: Count
    """Environment steps of each seed (agent decisions; ignored actions do not count)."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one."""
    tf32: bool = False
    """Whether a GPU rounds the factors of products and convolutions to TF32, 10 bits of mantissa
    in place of 23, which is faster."""
    num_threads: Threads = 1
    """CPU threads of torch. With several, set OMP_WAIT_POLICY=PASSIVE in the environment: otherwise
    torch's idle threads take cores from the simulator's."""
    env_threads: Threads | None = None
    """CPU threads of the simulator, in training and evaluation; None: as many as torch has. Results
    do not depend on it."""
    num_envs: Environments
    """Environments of each seed, N."""
    gamma: Fraction = 0.99
    """Discount per decision."""
    evaluation_rule: Literal["deterministic", "sampled", "training"]
    """Evaluate the mode of the policy, or actions drawn from it; `training`: score the training
    episodes instead."""
    evaluation_interval: Count = 10_000
    """Environment steps between two evaluations; unused with `training`."""
    evaluation_episodes: Environments = 10
    """Episodes of one evaluation, each in a fresh environment of its own."""
    log_interval: Count = 10_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse values of other types or outside their ranges, and unknown words."""
        for name, hint, rules in _rules(type(self)):
            value = getattr(self, name)
            if not _has_type(value, hint):
                kind = inspect.formatannotation(hint)
                raise UsageError(f"{name} must be of type {kind}, not {value!r}")
            values = value if isinstance(value, tuple) else (value,)
            infinite = any(isinstance(each, float) and not math.isfinite(each) for each in values)
            require(not infinite, f"{name} must be finite", value)
            for allowed in rules if value is not None else ():
                fits = bool(values) and all(each in allowed for each in values)
                require(fits, f"{name} {allowed}", value)
        if self.find_task().actions == "hybrid" and not self.takes_hybrid_actions:
            raise UsageError(f"this agent cannot learn {self.task}, which has hybrid actions")
        distinct = len(self.seeds) == len(set(self.seeds)) > 0
        require(distinct, "seeds must be distinct, and at least one", self.seeds)
        for seed in self.seeds:
            require(0 <= seed < 2**31, "seeds must lie in 0..2**31-1", seed)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that one seed keeps beside its networks, where an agent says so."""
        return 0

    @property
    def keeps_on_device(self) -> bool:
        """Return whether `memory_bytes` are the device's, not the machine's."""
        return False

    def find_task(self) -> Task:
        """Return the task; an Atari game has the agent's `protocol`."""
        return find_task(self.task, getattr(self, "protocol", "noframeskip"))


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(RunConfig):
    """Settings shared by agents that learn from replayed transitions, at a ratio to new ones."""

    num_envs: Environments = 1
    """Environments of each seed, N."""
    batch_size: Count = 256
    """Transitions per update, B."""
    replay_capacity: Capacity = 1_000_000
    """Transitions kept per seed; `sac_discrete` counts observations."""
    learning_starts: Whole | None
    """Uniformly random environment steps before the first update."""
    update_ratio: Positive = 1.0
    """Updates of the critics per environment step after the warm-up."""
    tau: Share = 0.005
    """Rate of the target copies: tau * online + (1 - tau) * slow."""
    log_interval: Count = 1_000
    """Environment steps between two rows of `updates.csv` and `timing.csv`."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges, and steps that are not whole vector steps."""
        super().__post_init__()
        num_envs, capacity = self.num_envs, self.replay_capacity
        least = max(num_envs, self.batch_size)
        require(capacity >= least, f"replay_capacity must hold {least} transitions", capacity)
        for name in ("env_steps", "learning_starts"):
            steps, rule = getattr(self, name), f"{name} must be a multiple of num_envs {num_envs}"
            require(steps is None or steps % num_envs == 0, rule, steps)


@dataclass(frozen=True, kw_only=True)
class TransitionConfig(OffPolicyConfig):
    """Settings shared by agents whose replay holds single transitions, on the training device."""

    evaluation_rule: Literal["deterministic", "sampled", "training"] = "deterministic"
    """Evaluate the mode of the policy, or actions drawn from it; `training`: score the training
    episodes instead."""
    evaluation_interval: Count = 5_000
    """Environment steps between two evaluations; unused with `training`."""

    @property
    def replay_size(self) -> int:
        """Return the transitions that one seed's replay has room for: at most a run's."""
        return min(self.replay_capacity, self.env_steps + self.num_envs)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of one seed's replay."""
        task = self.find_task()
        return 4 * self.replay_size * (2 * task.obs_size + task.action_size + 2)

    @property
    def keeps_on_device(self) -> bool:
        """Return True: replay lies in the device's memory."""
        return True


@dataclass(frozen=True, kw_only=True)
class UnrollConfig(RunConfig):
    """Settings shared by agents that learn from unrolls of T steps."""

    unroll_length: Count
    """Steps of every environment between two rounds of updates, T."""
    time_limit_is_terminal: bool = False
    """Treat a time limit as an end of the decision process: no value follows."""
    hidden_sizes: Widths = (64, 64)
    """Widths of the hidden layers for vector observations."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers for vector observations; ReLU follows convolutions."""
    hidden_gain: Positive = 2**0.5
    """Gain of orthogonal initial weights of all layers but the heads and an LSTM, whose
    gain is 1; biases start at 0, an LSTM's forget gates at 1."""
    policy_head_gain: Positive = 0.01
    """Gain of the policy's head where weights are orthogonal."""
    learning_rate: Rate
    """Step size at the start."""
    learning_rate_decay_steps: Whole = 0
    """Environment steps after which the rate is 0, whatever `env_steps` is; it falls linearly until
    then. 0: constant."""
    max_gradient_norm: Positive | None
    """Largest Euclidean norm of the whole gradient; None: not clipped."""
    normalise_observations: bool = False
    """Whether to subtract the running mean and divide by the running deviation: a pixel's own."""
    observation_clip: Positive = 10.0
    """Bound of a normalised observation's components."""
    bfloat16: bool = False
    """Whether convolutions compute in bfloat16, 7 bits of mantissa in place of 23, forwards and
    backwards, which is faster on a GPU; all else, weights too, stays in float32."""
    cuda_graphs: bool = True
    """Whether a GPU is given each choice of actions and each update as one CUDA graph, not kernel
    by kernel; without a GPU it is ignored."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges, and a run that is shorter than an unroll."""
        super().__post_init__()
        if self.bfloat16 and self.find_task().family != "atari":
            raise UsageError(f"bfloat16 is for convolutions, and {self.task} has none")
        rule = f"env_steps must hold one unroll of num_envs * unroll_length = {self.unroll_rows}"
        require(self.env_steps >= self.unroll_rows, rule, self.env_steps)

    @property
    def unroll_rows(self) -> int:
        """Return the rows of one unroll, T * N, including the rows of ignored actions."""
        return self.unroll_length * self.num_envs

    def learning_rate_at(self, env_steps: int) -> float:
        """Return the learning rate of an unroll that began after `env_steps` steps."""
        horizon = self.learning_rate_decay_steps
        return self.learning_rate * (max(1 - env_steps / horizon, 0.0) if horizon else 1.0)


@dataclass(frozen=True, kw_only=True)
class RMSpropConfig(UnrollConfig):
    """Settings shared by agents that learn from unrolls with RMSprop."""

    rmsprop_decay: Decay = 0.99
    """Decay of the average of squared gradients."""
    rmsprop_epsilon: Positive = 1e-5
    """Keeps the step finite where gradients are small."""
    rmsprop_epsilon_in_root: bool = True
    """Whether epsilon stands in the root (TensorFlow, ChainerRL) or outside (torch)."""
    rmsprop_initial_average: NotNegative = 1.0
    """Average of squared gradients at the start: 1 in TensorFlow, 0 in torch and ChainerRL."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(RMSpropConfig):
    """Settings shared by agents that also learn from unrolls in replay."""

    online_updates: bool
    """Whether an update uses the newest unrolls at once, or only when replay draws them."""
    replay_ratio: NotNegative = 4.0
    """Updates from replay per unroll (the paper: 0, 1, 4 and 8)."""
    replay_count: Literal["poisson", "fixed"] = "poisson"
    """Whether `replay_ratio` is a Poisson distribution's mean (Algorithm 1) or the exact number."""
    replay_capacity: Capacity
    """Steps of each environment that replay holds."""
    replay_start: Whole
    """Steps of each environment before the first update from replay, those with ignored actions
    among them."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges, and those that contradict each other."""
        super().__post_init__()
        learns = self.online_updates or self.replay_ratio > 0
        require(learns, "without online_updates replay_ratio must be above 0", self.replay_ratio)
        capacity, length = self.replay_capacity, self.unroll_length
        require(capacity >= length, f"replay_capacity must be at least {length}", capacity)
        rule = f"replay_start must be within replay_capacity = {capacity}"
        require(self.replay_start <= capacity, rule, self.replay_start)
        whole = self.replay_count == "poisson" or self.mean_replays.is_integer()
        rule = "with a fixed replay_count the updates from replay per unroll must be whole"
        require(whole, rule, self.mean_replays)

    @property
    def mean_replays(self) -> float:
        """Return the mean number of updates from replay after each unroll."""
        return float(self.replay_ratio)

    @property
    def memory_bytes(self) -> int:
        """Return roughly how many bytes replay takes, for a plan of several runs side by side.

        Those of a GPU (`device`) are taken at once, those of the machine as rows come.
        """
        spaces = Spaces.of(self.find_task())
        outputs = (2 if spaces.continuous else 1) * spaces.num_outputs  # of the policy that acted
        action = 4 * spaces.num_outputs if spaces.continuous else 8
        rows = self.kept_unrolls * self.unroll_length
        if self.device == "cpu" or not self.keeps_on_device:
            rows = min(rows, self.env_steps // self.num_envs)
        return rows * self.num_envs * (spaces.stored_bytes + action + 4 * outputs + 8)

    @property
    def keeps_on_device(self) -> bool:
        """Return whether replay holds frames, which lie in the device's memory."""
        return self.find_task().family == "atari"

    @property
    def kept_unrolls(self) -> int:
        """Return how many unrolls of each environment replay keeps, at most those of a whole run.

        At most every second row is an ignored action.
        """
        if not self.replay_ratio:
            return 1
        rows = min(self.replay_capacity, 2 * self.env_steps // self.num_envs)
        return max(rows // self.unroll_length, 1)


def refuse_no_evaluations(config: Any) -> None:
    """Refuse, by a `UsageError`, to keep the best policy of a run without evaluations."""
    if config.evaluation_rule == "training":
        raise UsageError(
            "--keep-best needs evaluations, and these settings score the training's own episodes "
            "(evaluation_rule training)"
        )


@cache
def _rules(config_class: type) -> tuple[tuple[str, Any, tuple[Range | Words, ...]], ...]:
    """Return the name of every field, its type, and the rules that this states."""
    hints = get_type_hints(config_class)
    stated = get_type_hints(config_class, include_extras=True)
    names = [field.name for field in dataclasses.fields(config_class)]
    return tuple((name, hints[name], tuple(_stated(stated[name]))) for name in names)


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value is what a field's type says; a whole number is a `float`, too."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_has_type(value, part) for part in parts)
    if kind is Literal:  # which of its words, a rule says
        return type(value) in map(type, parts)
    if kind is tuple:
        return isinstance(value, tuple) and all(_has_type(each, parts[0]) for each in value)
    if kind in (int, float):  # True is no number
        return type(value) is int or (kind is float and isinstance(value, float))
    return not isinstance(kind, type) or isinstance(value, kind)


def _stated(hint: Any) -> Iterator[Range | Words]:
    """Yield the rules that a type states, also inside a union."""
    if isinstance(hint, Range):
        yield hint
    elif get_origin(hint) is Literal:
        yield Words(get_args(hint))
    else:
        for part in get_args(hint):
            yield from _stated(part)
