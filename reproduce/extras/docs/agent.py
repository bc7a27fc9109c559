"""Blocks on an algorithm: from its docstring, its settings and its sources."""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import agents
from reproduce.extras.docs.markdown import code, table
from reproduce.plan.presets import check_agent
from reproduce.plan.status import NOT_SETTINGS
from suite.presets import REFERENCES, read_source
from suite.settings import Preset, UsageError
from suite.tasks import SUITES

MOST_TASKS = 10
"""Largest suite whose tasks are all named."""
SHARED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "episodes.csv": (
        "a row for every training episode, in the order in which they end",
        {
            "env_steps": "environment steps of the seed when the episode ended, over all its "
            "environments",
            "episode_return": "sum of the rewards as the task gave them; of a game, over all lives",
            "episode_length": "decisions of the episode",
        },
    ),
    "evaluations.csv": (
        "a row for every evaluation; none where `evaluation_rule` is `training`",
        {
            "env_steps": "environment steps of the seed before the evaluation",
            "mean_return": "mean over its episodes",
            "return_0": "return of the first episode; `return_1` and so on are the others'",
        },
    ),
    "timing.csv": (
        "a row for every log interval, the only table that depends on a clock",
        {
            "env_steps": "environment steps of the seed at the end of the interval",
            "num_updates": "updates since the start",
            "wall_seconds": "seconds since the start, those before a kill included",
            "env_steps_per_second": "speed within the interval, evaluations included",
            "environment_share": "share of the interval spent waiting for the simulator",
            "acting_share": "the same in the policy",
            "learning_share": "the same in updates",
            "evaluation_share": "the same in evaluations",
        },
    ),
}
"""Meanings of the columns that every agent's records have, by file."""


def table_of_agents(link: Any) -> str:
    """Return a table of every agent with its page, its paper, its suites and their sources."""
    rows = []
    for name in agents.AGENTS:
        module = _module(name)
        paper = re.search(r"arXiv:(\d+\.\d+)", module.__doc__ or "")
        cited = f"[arXiv:{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else ""
        sources: dict[str, list[str]] = {}
        for suite, source in module.PRESETS:
            sources.setdefault(suite, []).append(source)
        suites: dict[str, list[str]] = {}
        for suite, names in sources.items():
            suites.setdefault(code(names), []).append(suite)
        title = _title(module)
        page = f"[`{name}`]({link(f'docs/agents/{name}.md')})"
        file = f"[{name}.py]({link(f'agents/{name}.py')})"
        cells = "<br>".join(f"{code(group)}: {names}" for names, group in suites.items())
        rows.append((page, f"{title}, {cited}", file, cells))
    return table(("agent", "paper", "file", "suites: sources, the default first"), rows)


def table_of_suites(link: Any) -> str:
    """Return a table of every suite with its tasks, the first few of a large one."""
    rows = []
    for name, tasks in SUITES.items():
        shown = ", ".join(tasks[:MOST_TASKS])
        more = f" and {len(tasks) - MOST_TASKS} more" if len(tasks) > MOST_TASKS else ""
        rows.append((f"`{name}`", str(len(tasks)), shown + more))
    return table(("suite", "tasks", "names"), rows, right=[1])


def equations(link: Any, agent: str) -> str:
    """Return the docstring's table of equations.

    Raises:
        UsageError: naming a function, or a setting, that the agent's file does not have.
    """
    module, file = _module(agent), f"agents/{agent}.py"
    lines = [line for line in (module.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    if not rows:
        raise UsageError(f"{file}: its docstring has no table of equations")
    for row in rows:
        for name in re.findall(r"`([\w.]+)`", row[-1]):
            if not is_found(module, name):
                raise UsageError(f"{file}: its table of equations names {name}, which it lacks")
    return table(("what", "equation", f"function in [{file}]({link(file)})"), rows)


def is_found(module: ModuleType, name: str) -> bool:
    """Return whether a name is a function or setting of an agent, or a module of the project."""
    if "." in name:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # of the package
            return False
    return callable(getattr(module, name, None)) or hasattr(module.Config, name)


def deviations(link: Any, agent: str) -> str:
    """Return the docstring's numbered list of deviations.

    Raises:
        UsageError: if the docstring has none.
    """
    _, mark, after = (_module(agent).__doc__ or "").partition("\nDeviations")
    start = after.find("\n1. ")
    if not mark or start < 0:
        raise UsageError(f"agents/{agent}.py: its docstring lists no deviations")
    return after[start:]


def settings(link: Any, agent: str) -> str:
    """Describe each source, with a table of the agent's defaults that it changes."""
    module = _module(agent)
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    names = [f.name for f in dataclasses.fields(module.Config) if f.name not in NOT_SETTINGS]
    default = [_value(getattr(module.Config(), name)) for name in names]
    for (suite, source), preset in module.PRESETS.items():
        values = tuple(_value(getattr(preset.config, name)) for name in names)
        columns.setdefault((source, values), []).append(suite)
    sources = [source for source, _ in columns]
    header = ["setting", "default"]
    for (source, _), suites in columns.items():
        several = sources.count(source) > 1
        header.append(f"`{source}`" + f" on {code(suites)}" * several)
    rows = []
    for place, name in enumerate(names):
        cells = [values[place] for _, values in columns]
        if set(cells) != {default[place]}:
            shown = ("" if cell == default[place] else cell for cell in cells)
            rows.append((f"`{name}`", default[place], *shown))
    listed = "\n".join(_sources(link, agent, module.PRESETS))
    return f"{listed}\n\n{table(header, rows)}" if rows else listed


def record(link: Any) -> str:
    """Return tables of the columns that every agent's records have."""
    parts = []
    for file, (rows, columns) in SHARED.items():
        meanings = table(("column", "meaning"), ((f"`{k}`", v) for k, v in columns.items()))
        parts.append(f"`{file}`: {rows}.\n\n{meanings}")
    return "\n\n".join(parts)


def _sources(
    link: Any, agent: str, presets: Mapping[tuple[str, str], Preset[Any]]
) -> Iterator[str]:
    """Yield a line on every source: whose it is, its suites, its judge."""
    for source in dict.fromkeys(source for _, source in presets):
        path = REFERENCES / source / f"{agent}.toml"
        said = read_source(path)
        line = f"- [`{source}`]({link(f'results/references/{source}/{agent}.toml')}): "
        line += str(said["title"])
        if "repository" in said:
            place = f"{said['repository']}/tree/{said['commit']}"
            line += f", [{said['repository']} at {said['commit'][:7]}](https://github.com/{place})"
        judges: dict[str | None, list[str]] = {}
        for (suite, of), preset in presets.items():
            if of == source:
                judges.setdefault(preset.judged_by, []).append(suite)
        for judge, suites in judges.items():
            by = f"judged by `{judge}`" if judge else "without a curve that judges"
            line += f". On {code(suites)}: {by}"
        defaults = [suite for suite, table in said["suites"].items() if "default" in table]
        yield line + (f". Taken without `--like` on {code(defaults)}." if defaults else ".")


def _module(agent: str) -> ModuleType:
    """Return an agent's module.

    Raises:
        UsageError: naming the nearest agent.
    """
    check_agent(agent)
    return importlib.import_module(f"agents.{agent}")


def _title(module: ModuleType) -> str:
    """Return an agent's name in words: its docstring's first line without the paper."""
    first = (module.__doc__ or "").partition("\n")[0]
    return re.sub(r"\s*\([^)]*\)", "", first).strip().rstrip(".")


def _value(value: Any) -> str:
    """Return a setting's value for people."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return " x ".join(map(_value, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
