"""Presets and budgets of an agent, and the error for bad settings."""

import dataclasses
import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

ConfigT = TypeVar("ConfigT")

BUDGETS = ("smoke", "laptop", "paper")
"""Names of a preset's budgets; see `Preset.budgets`."""


class UsageError(ValueError):
    """Bad input: one line that names the fix. Command lines print it and exit with status 2."""


def require(condition: bool, rule: str, value: object) -> None:
    """Raise a `UsageError` that states the rule and the offending value unless the rule is kept."""
    if not condition:
        raise UsageError(f"{rule}, not {value}")


def check_shape(name: str, tensor: Any, shape: Sequence[int]) -> None:
    """Raise a ValueError that names the tensor unless it has this shape."""
    if tensor.dim() != len(shape):
        raise ValueError(f"{name} must have rank {len(shape)}, not {tensor.dim()}")
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} must have the shape {[*shape]}, not {[*tensor.shape]}")


REMOVED: Mapping[str, Any] = {"device_draws": False, "fuse_kernels": False}
"""Settings of older records that are gone, and the value with which a run is as it is today."""
AGENTS_RENAMED: Mapping[str, str] = {"sac_hybrid": "sac_alf"}
"""Names of agents in older records and policies, and their names today."""


def todays_agent(name: str) -> str:
    """Return the name today of an agent that a record or a policy names."""
    return AGENTS_RENAMED.get(name, name)


def refuse_old_agent(name: str) -> None:
    """Raise a `UsageError` that says an agent's new name if this one is old."""
    if name in AGENTS_RENAMED:
        raise UsageError(f"the agent {name} is a part of {AGENTS_RENAMED[name]} now: name that")


def by_todays_names(settings: Mapping[str, Any], known: Collection[str] = ()) -> dict[str, Any]:
    """Return recorded settings but for those that are gone; see `REMOVED`.

    Args:
        settings: those of the record.
        known: names that an agent has today; they mean what they say.
    """
    return {
        name: value
        for name, value in settings.items()
        if name in known or name not in REMOVED or value != REMOVED[name]
    }


WITHOUT_EFFECT = ("env_threads", "evaluate_beside")
"""Settings that no result depends on: a run may go on with other values of them."""
YOUNGER: Mapping[str, Mapping[str, Any]] = {
    "a2c": {"initialisation": "orthogonal", "bfloat16": False},
    "acer": {"observation_clip": 10.0, "lstm_size": 0, "bfloat16": False},
    "acer_continuous": {
        **{"time_limit_is_terminal": False, "learning_rate_decay_steps": 0},
        **{"observation_clip": 10.0, "lstm_size": 0},
    },
    "impala": {
        **{"drop_last_row": False, "observation_clip": 10.0},
        **{"lstm_size": 0, "lstm_inputs": "action_and_reward", "bfloat16": False},
    },
    "sac": {"separate_heads": True},
    "sac_alf": {
        **{"num_critics": 2, "reward_weights": None, "log_std_bound": "clip"},
        **{"epsilon_greedy": 1.0, "evaluation_rule": "deterministic"},
    },
    "sac_value": {"log_std_bound": "clip", "bound_means": False},
}
"""Settings that an agent got after its first records, and the values that those ran with.

Of other younger settings it is the default.
"""


def younger_settings(config_class: type) -> Mapping[str, Any]:
    """Return an agent's entry of `YOUNGER`."""
    return YOUNGER.get(config_class.__module__.rpartition(".")[2], {})


def recorded_settings(config_class: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's settings of today, with those that are younger than the record.

    Values are those of JSON: a list for a tuple.
    """
    known = {field.name: field.default for field in dataclasses.fields(config_class)}
    defaults = {name: value for name, value in known.items() if value is not dataclasses.MISSING}
    todays = by_todays_names(settings, known)
    return {**json.loads(json.dumps(defaults)), **younger_settings(config_class), **todays}


NEAR = 0.55
"""Similarity from which on a word may have been meant; two words alike have 1."""
LISTED = 100
"""Choices that are listed whole."""


def near(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a mistyped word; None if none is similar."""
    by_lower = {choice.lower().lstrip("-"): choice for choice in sorted(choices)}
    match = difflib.get_close_matches(word.lower().lstrip("-"), by_lower, n=1, cutoff=NEAR)
    return by_lower[match[0]] if match else None


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean X?" or, if no choice is near, "; choose from X, Y, Z"."""
    options = sorted(choices)
    meant = near(word, options)
    if meant is not None:
        return f"; did you mean {meant}?"
    more = f", ... ({len(options):,} in all)" if len(options) > LISTED else ""
    return f"; choose from {', '.join(options[:LISTED])}{more}"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The cost of a grid: steps per run, number of seeds and, if it is small, the tasks."""

    env_steps: int
    """Environment steps of each run (agent decisions)."""
    num_seeds: int
    """Runs per task; seeds 1 to `num_seeds`."""
    env_steps_of: Mapping[str, int] = field(default_factory=dict)
    """Environment steps of tasks whose source used another number."""
    tasks: tuple[str, ...] = ()
    """Tasks that it covers where it cannot afford all; empty: every one of the preset's."""

    def steps(self, task: str) -> int:
        """Return the environment steps of one run of `task`."""
        return self.env_steps_of.get(task, self.env_steps)


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[ConfigT]):
    """The settings of one published source on one suite, and their budgets."""

    config: ConfigT
    """Every hyper-parameter; the plan fills in task, seeds and steps."""
    budgets: Mapping[str, Budget]
    """`smoke` (minutes on two CPU cores), `laptop` (at most twelve hours) or `paper` (as the
    source)."""
    judged_by: str | None
    """The stored reference whose curves decide the verdict; None: no curve judges."""
    tasks: tuple[str, ...] = ()
    """The suite's tasks that the agent can do; empty: all of them."""
    departures: tuple[str, ...] = ()
    """Differences between our run and that reference that could not be removed."""
    protocol: Literal["", "noframeskip", "sticky"] = ""
    """How the source presents an Atari game; the agent's `Config.protocol` says the same."""
    cores_per_run: int = 1
    """CPU cores that one run keeps busy; the harness divides the cores by it."""
    formerly: tuple[str, ...] = ()
    """Earlier names of the source, in older commands, records and folders."""
    seeds_together: bool = False
    """Whether one process trains several seeds at once; a GPU then gets a task's seeds together."""

    def __post_init__(self) -> None:
        """Refuse a configuration whose protocol differs from the preset's.

        Raises:
            ValueError: naming both protocols.
        """
        trained = getattr(self.config, "protocol", self.protocol)
        rule = f"the configuration's protocol must be the preset's {self.protocol!r}"
        require(self.protocol in ("", trained), rule, trained)


def find_source(
    presets: Mapping[tuple[str, str], Preset[Any]], suite: str, asked: str | None
) -> str:
    """Return the name of a source on a suite.

    Args:
        presets: an agent's; the first of a suite is its default.
        suite: name of the suite.
        asked: the source's name, of today or of before; None: the suite's default.

    Raises:
        UsageError: naming the nearest suite or source that the agent has.
    """
    here = {source: preset for (known, source), preset in presets.items() if known == suite}
    if not here:
        suites = {known for known, _ in presets}
        raise UsageError(f"this agent has no suite {suite!r}{nearest(suite, suites)}")
    if asked is None:
        return next(iter(here))
    for source, preset in here.items():
        if asked in (source, *preset.formerly):
            return source
    raise UsageError(f"unknown source {asked!r} for {suite}{nearest(asked, here)}")


def find_preset(
    presets: Mapping[tuple[str, str], Preset[ConfigT]], suite: str, source: str | None
) -> Preset[ConfigT]:
    """Return the preset of a source on a suite; arguments and errors are those of `find_source`."""
    return presets[suite, find_source(presets, suite, source)]
