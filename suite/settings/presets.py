"""Sources as data: presets are read from `results/references/<source>/<agent>.toml`.

A file states one source's settings for one agent, each with the place that states it, or its
measurements, which lie in the tables beside the file, or both; `results/references/README.md` has
an example of either. Every mistake is a `UsageError` that names file and key.
"""

import dataclasses
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from suite.base.errors import UsageError, nearest, require
from suite.envs.tasks import SUITES, Protocol, find_suite, find_task

ConfigT = TypeVar("ConfigT")

BUDGETS = ("smoke", "laptop", "paper")
"""Names of a preset's budgets; see `Preset.budgets`."""
REFERENCES = Path(__file__).resolve().parents[2] / "results" / "references"
"""Holds a folder for each source."""
DEFAULTS = "defaults"
"""Source of an agent without a file: nobody but its own `Config`."""
COMMIT = re.compile("[0-9a-f]{40}")
CITATION = re.compile(
    r"arXiv:\d{4}\.\d{4,5}, .+"  # a place in a paper
    r"|(?P<elsewhere>[\w.-]+/[\w.-]+@[0-9a-f]{7,40}:)?[^\s:][^:]*:\d+(-\d+)?(, \d+(-\d+)?)*"
)
"""`file:line` or `file:first-last, line`, after `owner/name@commit:` if in another repository."""
_hints = cache(get_type_hints)
Rule = Literal["deterministic", "sampled", "training", "unstated"]
"""How returns were measured; `unstated` appears in sources that are drawn as context only."""


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
    protocol: Protocol | Literal[""] = ""
    """How the source presents an Atari game; the agent's `Config.protocol` says the same."""
    cores_per_run: int = 1
    """CPU cores that one run keeps busy; the harness divides the cores by it."""
    seeds_together: bool = False
    """Whether one process trains several seeds at once; a GPU then gets a task's seeds together."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A source's measurements of an agent: how they were taken, and where they were read."""

    judges: bool
    """Whether verdicts may rest on it; otherwise it is drawn as context."""
    rule: Rule
    """Evaluation rule."""
    evaluation_interval_steps: int | None = None
    """Steps between two evaluations; None if they are irregular."""
    stated_as: str | None = None
    """How the source took the scores of `scores.csv`, which it states itself; None: it has none."""
    commit: str | None = None
    """Commit the numbers were read from; None: the one of the settings."""
    path: str
    """Files the numbers were read from, as a pattern inside the repository."""
    notes: str
    """What the numbers are, how they were taken, and what is known of them."""


PRESET = {name: hint for name, hint in _hints(Preset).items() if name != "config"}
SHARED = {**PRESET, "task": str, "settings": Mapping[str, Any]}
"""Keys that a file has and its suites may replace; `task`: default of the agent's own command, else
its `Config`'s, or the suite's first."""
FACTS = {"title": str, "repository": str, "commit": str, "licence": str}
SOURCE = {**FACTS, **SHARED, "data": Data, "suites": Mapping[str, Any]}
SUITE = {**SHARED, "default": Literal["suite", "agent"]}
"""`default`: these settings are taken without `--like`; `agent`: and this suite's task without
`--task`."""
TOML_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
}


class _Entry(NamedTuple):
    suite: str
    source: str
    default: str
    preset: Any


class Presets(Mapping[tuple[str, str], Preset[ConfigT]]):
    """An agent's preset of every source, by (suite, source), read when they are first asked for.

    Suites come in the order of `SUITES`, but the one that is the agent's own default is first;
    within a suite its default comes first, then the others by name. An agent without a file has one
    source, `defaults`: its `Config`'s, on every suite with a task that it accepts. A mistake in a
    file is a `UsageError` that names file and key.
    """

    def __init__(self, agent: str, config_class: type[ConfigT], root: Path = REFERENCES) -> None:
        self.agent, self._config_class, self._root = agent, config_class, root

    @cached_property
    def _presets(self) -> dict[tuple[str, str], Preset[ConfigT]]:
        entries: list[_Entry] = []
        refuse_wrong_defaults(self._config_class)
        for path in sorted(self._root.glob(f"*/{self.agent}.toml")):
            entries += _read(path, self._config_class)
        if not entries:
            require(self._root.is_dir(), "the folder of sources must be there", f"at {self._root}")
            return _defaults(self.agent, self._config_class)
        places = {suite: place for place, suite in enumerate(SUITES)}
        own = [entry.suite for entry in entries if entry.default == "agent"]
        entries.sort(key=lambda e: (e.suite not in own, places[e.suite], not e.default, e.source))
        where = f"{self._root}/*/{self.agent}.toml"
        if len(own) != 1:
            raise UsageError(f'{where}: one suite must have default = "agent", not {own or "none"}')
        for suite in dict.fromkeys(entry.suite for entry in entries):
            names = [entry.source for entry in entries if entry.suite == suite and entry.default]
            if len(names) != 1:
                raise UsageError(f"{where}: {suite} must have one default, not {names or 'none'}")
        return {(entry.suite, entry.source): entry.preset for entry in entries}

    def __getitem__(self, key: tuple[str, str]) -> Preset[ConfigT]:
        return self._presets[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._presets)

    def __len__(self) -> int:
        return len(self._presets)


def replacements(preset: Any, config: Any) -> list[str]:
    """Return the settings of a configuration in which its preset replaces a default."""
    return [
        f"{field.name} = {value} (not {field.default})"
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) == getattr(preset, field.name)
        and field.name != "task"
        and value != field.default
    ]


def origin_of(presets: Mapping[Any, Any], agent: str) -> str:
    """Return the agent whose sources these presets are: those of a copy are its origin's."""
    return str(getattr(presets, "agent", agent))


def replaced(presets: Mapping[Any, Any], agent: str, key: tuple[str, str], config: Any) -> str:
    """Return a sentence on the defaults of a copy's `Config` that its origin's preset replaces.

    Nothing is said where the presets are the agent's own.
    """
    origin, changes = origin_of(presets, agent), replacements(presets[key].config, config)
    if origin == agent or not changes:
        return ""
    file = f"agents/{agent}.py"
    return (
        f"{file} takes the presets of {origin}: {key[1]} sets {', '.join(changes)}. To train with "
        f'the defaults of the file, write Presets("{agent}", Config) in it'
    )


def refuse_wrong_defaults(config_class: type) -> None:
    """Raise a `UsageError` that names an agent's file if its defaults are refused.

    Settings without a default are the sources' to give.
    """
    try:
        config_class()
    except TypeError:
        return
    except ValueError as error:
        file = getattr(sys.modules.get(config_class.__module__), "__file__", None)
        named = f"agents/{Path(file).name}" if file else config_class.__module__
        raise UsageError(f"{named}: Config needs valid defaults: {error}") from None


def _defaults(agent: str, config_class: type[ConfigT]) -> dict[tuple[str, str], Preset[ConfigT]]:
    """Return presets of an agent without a file: its defaults, where they can be trained."""
    try:
        config = config_class()
    except TypeError as error:
        raise UsageError(f"{agent}: Config needs a default for each setting: {error}") from None
    settings: Any = config
    most, own = settings.env_steps, settings.task
    budgets = {
        "smoke": Budget(env_steps=min(most, 100_000), num_seeds=3),
        "laptop": Budget(env_steps=most, num_seeds=5),
        "paper": Budget(env_steps=most, num_seeds=10),
    }
    presets = {}
    for suite in sorted(SUITES, key=lambda suite: own not in find_suite(suite)):
        able = tuple(task for task in find_suite(suite) if _accepts(settings, task))
        if able:
            first = dataclasses.replace(settings, task=own if own in able else able[0])
            preset = Preset(config=first, budgets=budgets, judged_by=None, tasks=able)
            presets[suite, DEFAULTS] = preset
    return presets


def _accepts(config: Any, task: str) -> bool:
    """Return whether settings can be trained on a task: a policy for its actions can be made."""
    try:
        dataclasses.replace(config, task=task)
    except ValueError:
        return False
    return True


def read_source(path: Path) -> dict[str, Any]:
    """Return one file's content, each value of its key's type; settings as they stand."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: {error}") from None
    source = _table(document, SOURCE, f"{path}: ")
    if not source.get("title"):
        raise UsageError(f"{path}: title is missing")
    if "data" not in source and not source.get("suites"):
        raise UsageError(f"{path}: data or suites is missing")
    for name in ("repository", "commit", "licence") if "data" in source else ():
        if name not in source:
            raise UsageError(f"{path}: {name} is missing")
    commits = {"commit": source.get("commit")}
    if "data" in source:
        commits["data.commit"] = source["data"].commit
    for key, commit in commits.items():
        if commit is not None and not COMMIT.fullmatch(commit):
            raise UsageError(f"{path}: {key} must be 40 hexadecimal digits, not {commit!r}")
    return source


def _read(path: Path, config_class: type) -> list[_Entry]:
    """Return the presets of one file."""
    source = read_source(path)
    has_commit = "repository" in source and "commit" in source
    _check_settings(source, config_class, has_commit, f"{path}: ")
    entries = []
    for suite, table in source.get("suites", {}).items():
        where = f"{path}: suites.{suite}."
        if suite not in SUITES:
            raise UsageError(f"{where[:-1]}: unknown suite{nearest(suite, SUITES)}")
        said = _table(table, SUITE, where)
        _check_settings(said, config_class, has_commit, where)
        own = {key: {**source.get(key, {}), **said.get(key, {})} for key in ("settings", "budgets")}
        preset = _preset({**source, **said, **own}, suite, config_class, path)
        entries.append(_Entry(suite, path.parent.name, said.get("default", ""), preset))
    return entries


def _preset(table: Mapping[str, Any], suite: str, config_class: type, path: Path) -> Preset[Any]:
    """Return the preset that a suite's merged table describes, of a file."""
    where = f"{path}: suites.{suite}."
    for task in table.get("tasks", ()):
        if task not in find_suite(suite):
            near = nearest(task, find_suite(suite))
            raise UsageError(f"{where}tasks: {suite} has no {task}{near}")
    if set(table["budgets"]) != set(BUDGETS):
        raise UsageError(f"{where}budgets must be {', '.join(BUDGETS)}")
    possible = table.get("tasks") or find_suite(suite)
    for name, budget in table["budgets"].items():
        if min(budget.num_seeds, budget.env_steps, *budget.env_steps_of.values()) < 1:
            raise UsageError(f"{where}budgets.{name}: steps and seeds must be at least 1")
        for task in budget.tasks:
            if task not in possible:
                near = nearest(task, possible)
                raise UsageError(f"{where}budgets.{name}.tasks: {suite} has no {task}{near}")
    if "judged_by" not in table:
        raise UsageError(f'{where}judged_by is missing; write "none" if no curve judges')
    judge = table["judged_by"]
    if judge is not None and not _measures(path.parents[1] / judge / path.name):
        others = path.parents[1].glob(f"*/{path.name}")
        near = nearest(judge, [other.parent.name for other in others if _measures(other)])
        raise UsageError(f"{where}judged_by: no source {judge!r} has [data] in {path.name}{near}")
    settings = dict(table["settings"])
    task = table.get("task", getattr(config_class, "task", ""))
    settings["task"] = task if task in possible else possible[0]
    fields = {field.name for field in dataclasses.fields(config_class)}
    if table.get("protocol") and "protocol" in fields:
        settings["protocol"] = table["protocol"]
    try:
        find_task(table.get("task", possible[0]))
        for budget in table["budgets"].values():
            for task in budget.env_steps_of:
                find_task(task)
        return Preset(
            config=config_class(**settings),
            **{name: table[name] for name in PRESET if name in table},
        )
    except ValueError as error:
        raise UsageError(f"{where[:-1]}: {error}") from None


def _measures(path: Path) -> bool:
    """Return whether there is a file with measurements."""
    return path.exists() and "data" in read_source(path)


def _check_settings(
    table: dict[str, Any], config_class: type, has_commit: bool, where: str
) -> None:
    """Check the citation of every setting; replace the table's settings by their values."""
    hints = _hints(config_class)
    values = {}
    for name, entry in table.get("settings", {}).items():
        here = f"{where}settings.{name}"
        if name not in hints:
            raise UsageError(f"{here}: unknown setting{nearest(name, hints)}")
        keys = {"value": hints[name], "at": str, "because": str}
        said = _table(entry, keys, f"{here}.")
        if "value" not in said:
            raise UsageError(f"{here}.value is missing")
        if bool(said.get("at")) == bool(said.get("because")):
            raise UsageError(f'{here}: give either at = "file:line" or because = "a reason"')
        cited = CITATION.fullmatch(said["at"]) if "at" in said else None
        if "at" in said and not cited:
            raise UsageError(f'{here}.at must be "file:line", not {said["at"]!r}')
        if cited and not (has_commit or cited["elsewhere"] or said["at"].startswith("arXiv:")):
            raise UsageError(f"{here}.at: the file names no repository and commit")
        values[name] = said["value"]
    table["settings"] = values


def _table(table: object, hints: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a table's values by key, converted to the types in `hints`."""
    if not isinstance(table, dict):
        raise UsageError(f"{where.rstrip('.: ')}: must be a table, not {table!r}")
    for name in table:
        if name not in hints:
            raise UsageError(f"{where}{name}: unknown key{nearest(name, hints)}")
    return {name: _fit(value, hints[name], where + name) for name, value in table.items()}


def _fit(value: Any, hint: Any, where: str) -> Any:
    """Convert a value of a TOML file to the type that a dataclass declares."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if hint is Any or type(value) is hint:
        return value
    if kind in (Union, UnionType):  # of None and one other, or of words
        if value == "none" and NoneType in arguments:
            return None
        other = next(argument for argument in arguments if argument is not NoneType)
        return _fit(value, other, where)
    if kind is float and type(value) is int:
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(_fit(item, arguments[0], where) for item in value)
    if kind is Literal:
        if value in arguments:
            return value
        raise UsageError(
            f"{where}: must be one of {', '.join(map(repr, arguments))}, not {value!r}"
        )
    if isinstance(kind, type) and issubclass(kind, Mapping):
        keys = dict.fromkeys(value, arguments[1]) if isinstance(value, dict) else {}
        return _table(value, keys, f"{where}.")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        said = _table(value, _hints(hint), f"{where}.")
        for field in dataclasses.fields(hint):
            required = field.default is field.default_factory is dataclasses.MISSING
            if required and field.name not in said:
                raise UsageError(f"{where}.{field.name} is missing")
        return hint(**said)
    raise UsageError(f"{where}: must be {TOML_TYPES[kind]}, not {value!r}")


def find_source(
    presets: Mapping[tuple[str, str], Preset[Any]], suite: str, asked: str | None
) -> str:
    """Return the name of a source on a suite; where none is asked for, its default, the first."""
    here = [source for known, source in presets if known == suite]
    if not here:
        suites = {known for known, _ in presets}
        raise UsageError(f"this agent has no suite {suite!r}{nearest(suite, suites)}")
    if asked is None:
        return here[0]
    if asked in here:
        return asked
    raise UsageError(f"unknown source {asked!r} for {suite}{nearest(asked, here)}")
