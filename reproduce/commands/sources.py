"""`list --like SOURCE`: a source's settings, where it states them, and its measurements."""

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reproduce.gather.references import Source, coverage
from reproduce.gather.references import sources as held
from reproduce.plan.presets import presets_of
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.settings.presets import REFERENCES, Preset, read_source

WIDTH = 100


def describe_source(name: str) -> str:
    """Return a text on a source.

    Raises:
        UsageError: naming the nearest source.
    """
    folders = {path.parent.name for path in REFERENCES.glob("*/*.toml")}
    if name not in folders:
        raise UsageError(f"--like: unknown source {name!r}{nearest(name, folders)}")
    paths = sorted((REFERENCES / name).glob("*.toml"))
    return "\n".join(line for path in paths for line in _describe(path))


def _describe(path: Path) -> Iterator[str]:
    """Yield lines on what a source says of one agent."""
    agent, name, said = path.stem, path.parent.name, read_source(path)
    yield from _wrap(f"{name}, {agent}: {said['title']}")
    if "repository" in said:
        yield f"  {said['repository']} at {said['commit']}, licence {said['licence']}"
    yield from _wrap(f"read from results/references/{name}/{agent}.toml, which cites them", 2)
    if "suites" in said:
        title = f"settings; others are agents/{agent}.py's own"
        yield from _settings(said.get("settings", {}), title)
        try:
            presets = presets_of(agent)
        except UsageError as error:
            yield f"  {error}"
            return
        suites: dict[tuple[str, ...], list[str]] = {}
        for suite, table in said["suites"].items():
            own = _settings(table.get("settings", {}), "settings of its own", indent=4)
            text = (*own, *_preset(presets[suite, name]))
            suites.setdefault(text, []).append(suite + " (default)" * ("default" in table))
        for text, names in suites.items():
            yield f"  on {', '.join(names)}:"
            yield from text
    for source in held(agent):
        if source.source == name:
            yield from _data(source)
    yield ""


def _settings(table: Mapping[str, Any], title: str, indent: int = 2) -> Iterator[str]:
    """Yield settings, each with the place or the reason that the file gives."""
    if table:
        yield f"{' ' * indent}{title}:"
    for key, entry in table.items():
        value = entry["value"]
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield from _wrap(f"{key} = {shown}  ({entry.get('at') or entry['because']})", indent + 2)


def _preset(preset: Preset[Any]) -> Iterator[str]:
    """Yield what a preset says of one suite beside its settings."""
    yield from _wrap(f"tasks: {' '.join(preset.tasks) or 'all of the suite'}", 4)
    for name, budget in preset.budgets.items():
        others = "".join(f", {task} {steps:,}" for task, steps in budget.env_steps_of.items())
        seeds = counted(budget.num_seeds, "seed")
        only = f"; {', '.join(budget.tasks)}" if budget.tasks else ""
        yield from _wrap(f"budget {name}: {budget.env_steps:,} steps{others}; {seeds}{only}", 4)
    yield f"    judged by: {preset.judged_by or 'nothing'}"
    for departure in preset.departures:
        yield from _wrap(f"departs: {departure}", 4)


def _data(source: Source) -> Iterator[str]:
    """Yield what a source measured, and by which rule."""
    interval = source.evaluation_interval_steps
    every = f", every {interval:,} steps" if interval else ""
    role = "judges" if source.judges else "context only"
    yield f"  measured ({role}): {source.rule}{every}, at most {counted(source.num_runs, 'run')}"
    yield from _wrap(f"read from {source.path} at {source.commit}", 4)
    yield from _wrap(" ".join(source.notes.split()), 4)
    if source.stated_as:
        yield from _wrap(f"its own scores: {source.stated_as}", 4)
    for row in coverage(source.agent, source.source).to_dict("records"):
        steps = f"{row['first_step']:,} to {row['last_step']:,} steps"
        steps += f", {counted(row['num_runs'], 'run')}"
        protocol = f", {row['protocol']}" if row["protocol"] else ""
        yield f"    {row['task']}: {steps}{protocol} ({row['env_id']})"


def _wrap(text: str, indent: int = 0) -> list[str]:
    """Return a text as lines of at most `WIDTH`, those after the first set in."""
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
