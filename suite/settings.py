"""How an agent's settings are stated: presets and budgets, and the error for bad ones."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

ConfigT = TypeVar("ConfigT")

BUDGETS = ("smoke", "laptop", "paper")
"""What a preset may spend; see `Preset.budgets`."""


class UsageError(ValueError):
    """Bad input: one line that names the fix. Command lines print it and exit with status 2."""


def require(condition: bool, rule: str, value: object) -> None:
    """Raise a `UsageError` that states the rule and the offending value unless it is kept."""
    if not condition:
        raise UsageError(f"{rule}, not {value}")


def at_least(config: object, bound: int, *names: str) -> None:
    """Refuse a configuration in which a named field is below `bound`; see `require`."""
    for name in names:
        require(
            getattr(config, name) >= bound,
            f"{name} must be at least {bound}",
            getattr(config, name),
        )


def above(config: object, bound: int, *names: str) -> None:
    """Refuse a configuration in which a named field is neither None nor above `bound`."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value > bound, f"{name} must be above {bound}", value)


def within(config: object, low: int, high: int, *names: str) -> None:
    """Refuse a configuration in which a named field lies outside [low, high]."""
    for name in names:
        value = getattr(config, name)
        require(low <= value <= high, f"{name} must be in [{low}, {high}]", value)


def check_run(config: Any) -> None:
    """Refuse values that no agent can run with, in the fields that all agents share.

    Raises:
        UsageError: naming the field and the offending value.
    """
    distinct = len(config.seeds) == len(set(config.seeds)) > 0
    require(distinct, "seeds must be distinct, and at least one", config.seeds)
    for seed in config.seeds:
        require(0 <= seed < 2**31, "seeds must lie in 0..2**31-1", seed)
    for name, value in vars(config).items():
        require(
            not isinstance(value, float) or math.isfinite(value), f"{name} must be finite", value
        )
    at_least(config, 1, "env_steps", "num_threads", "num_envs")
    at_least(config, 1, "evaluation_interval", "evaluation_episodes", "log_interval")
    within(config, 0, 1, "gamma")
    widths = config.hidden_sizes
    require(min(widths, default=0) >= 1, "hidden_sizes must be widths of 1 or more", widths)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean X?" or, where nothing is near, "; choose from X, Y, ..."."""
    options = sorted(choices)
    by_lower = {option.lower(): option for option in options}
    match = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {by_lower[match[0]]}?"
    return "; choose from " + ", ".join(options[:20]) + (", ..." if len(options) > 20 else "")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a grid spends: steps of each run and number of seeds, nothing else."""

    env_steps: int
    """Environment steps of each run (agent decisions)."""
    num_seeds: int
    """Runs per task; seeds 1 to `num_seeds`."""
    env_steps_of: Mapping[str, int] = field(default_factory=dict)
    """Tasks whose source spent another number of steps."""

    def steps(self, task: str) -> int:
        """Return the environment steps of one run of `task`."""
        return self.env_steps_of.get(task, self.env_steps)


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[ConfigT]):
    """The settings of one published source on one suite, and what it spent."""

    config: ConfigT
    """Every hyper-parameter; task, seeds and steps are filled in by the plan."""
    budgets: Mapping[str, Budget]
    """`smoke` (minutes on two CPU cores), `laptop` (an evening) or `paper` (as the source)."""
    judged_by: str | None
    """The stored reference whose curves decide the verdict; None: nothing compares."""
    tasks: tuple[str, ...] = ()
    """The suite's tasks that the agent can do; empty: all of them."""
    departures: tuple[str, ...] = ()
    """What differs between our run and that reference and could not be matched."""
    protocol: Literal["", "noframeskip", "sticky"] = ""
    """How the source presents an Atari game; the agent's `Config.protocol` says the same."""
    cores_per_run: int = 1
    """CPU cores that one run keeps busy; the harness then starts so many fewer side by side."""
    seeds_together: bool = False
    """Whether one process trains several seeds at once; a GPU then gets a task's seeds together."""

    def __post_init__(self) -> None:
        """Refuse a configuration whose protocol is not the preset's.

        Raises:
            ValueError: naming both protocols.
        """
        trained = getattr(self.config, "protocol", self.protocol)
        rule = f"the configuration's protocol must be the preset's {self.protocol!r}"
        require(self.protocol in ("", trained), rule, trained)


def find_preset(
    presets: Mapping[tuple[str, str], Preset[ConfigT]], suite: str, source: str
) -> Preset[ConfigT]:
    """Return the preset of `(suite, source)`.

    Raises:
        UsageError: naming the nearest suite or source that the agent has.
    """
    suites = {known for known, _ in presets}
    if suite not in suites:
        raise UsageError(f"this agent has no suite {suite!r}{nearest(suite, suites)}")
    sources = {known for of, known in presets if of == suite}
    if source not in sources:
        raise UsageError(f"unknown source {source!r} for {suite}{nearest(source, sources)}")
    return presets[suite, source]
