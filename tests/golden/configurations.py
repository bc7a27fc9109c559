"""The short runs whose bytes are compared: a source's settings, made small by `runs.toml`.

Between them an agent's runs use every choice that a setting offers and every branch of the agent;
`test_golden.py` counts the choices. Sizes of networks and batches stay the source's in at least one
run of every agent, as they decide how a processor adds up.

`python -m tests.golden --update` stores them: `golden.json` keeps every setting, so that what is
compared does not change with a preset.
"""

import ast
import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("runs.toml").read_text())
SMALL = TABLE.pop("small")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training; its seeds train in one process where the agent can, else in turn."""

    preset: tuple[str, str]
    """Suite and source."""
    settings: dict[str, Any]
    """What differs from the source's."""
    cut: bool = False
    """Whether it is killed in its second half, and goes on from a checkpoint."""


def configure(agent: Any, run: Run) -> Any:
    """Return the configuration of a run, with the presets that an agent's module has today."""
    return dataclasses.replace(agent.PRESETS[run.preset].config, **run.settings)


def _run(text: str) -> Run:
    """Read a run as `runs.toml` has it."""
    suite, source, *words = text.split()
    said = " ".join(SMALL.get(word, word) for word in ("COMMON", *words) if word != "cut").split()
    settings = {name: _value(value) for name, _, value in (word.partition("=") for word in said)}
    return Run(preset=(suite, source), settings=settings, cut="cut" in words)


def _value(text: str) -> Any:
    """Return a number, a tuple, a truth or None as Python writes it; else the word itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


RUNS = {agent: {name: _run(text) for name, text in runs.items()} for agent, runs in TABLE.items()}
"""By agent and name."""
