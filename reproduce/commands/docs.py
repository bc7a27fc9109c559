"""Tables of the documentation, made from code and published results.

A page has a link alone on a line, to what a table is made of; its title names a table of `TABLES`
and what it is for: `[Settings](../../results/references "settings sac")`. Building the site puts
the table there. Addresses in tables begin at the project's folder, with a slash. README has one
table itself, and `results/verdicts.csv` has every verdict.
"""

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import agents
from reproduce import ROOT
from reproduce.commands import flags
from reproduce.judge import error_rates as rates
from reproduce.judge.inference import LEVEL, holm
from reproduce.plan.presets import PUBLISHED, presets_of
from reproduce.plan.status import NOT_SETTINGS
from reproduce.report import figures, frames
from reproduce.report.tables import read_report_table, records
from reproduce.report.words import mean_and_spread, verdict_words
from reproduce.report.words import with_interval as interval
from reproduce.simulators.tables import simulators
from reproduce.words import number, table
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.tasks import SUITES, folder_of
from suite.record.seed_folder import read_entries
from suite.settings.presets import REFERENCES, read_source

DECIDED = ("reproduced", "above", "below")
SCORES = ("agent", "settings of", "task", "steps", "ours (seeds)", "reference (runs)", "verdict")
BESIDE = {"jaxrl": "jaxrl", "sb3_control": "stable-baselines3", "tianshou_control": "Tianshou"}
"""Sources beside which README's figure shows SAC, and their names."""
BLOCK = re.compile(r"(?<=<!-- generated: scores -->\n)(.*?)(?=<!-- end -->\n)", re.DOTALL)
CALL = re.compile(r"^\[[^]]+\]\(\S+ \"(\w+)(?: (\w+))?\"\)$", re.MULTILINE)
CELL = (
    *("agent", "suite", "source", "task", "env_steps", "score_mean", "score_std", "num_seeds"),
    *("reference_source", "reference_mean", "reference_std", "reference_num_runs", "difference"),
    *("ci_low", "ci_high", "verdict", "note", "core_hours"),
)
"""Columns of `results/verdicts.csv`."""


@cache
def cells() -> tuple[Mapping[str, Any], ...]:
    """Return the row of `verdicts.csv` of every published task, with its grid, by agent."""
    found = []
    for path in sorted(PUBLISHED.glob("*/*/verdicts.csv")):
        agent, _, suite = path.parents[1].name.partition("-")
        grid = {"agent": agent, "source": path.parent.name, "folder": path.parent}
        cores = presets_of(agent)[suite, path.parent.name].cores_per_run
        for row in records(read_report_table(path.parent, "verdicts")):
            runs = [
                read_entries(run) for run in path.parent.glob(f"{folder_of(row['task'])}/seed-*")
            ]
            hours = sum(
                run["wall_seconds"] * max(cores, run["config"]["num_threads"]) for run in runs
            )
            found.append({**row, **grid, "suite": suite, "core_hours": hours / 3600})
    order = [*agents.AGENTS, *SUITES].index
    return tuple(sorted(found, key=lambda cell: (order(cell["agent"]), order(cell["suite"]))))


def _scores(cell: Mapping[str, Any], source: str | None = None) -> list[str]:
    """Return a line of `SCORES`; with a source, its name stands beside the reference's runs."""
    share = cell["reference_share"]
    theirs = (cell[f"reference_{name}"] for name in ("mean", "std", "num_runs"))
    return [
        f"[`{cell['agent']}`](/docs/agents/{cell['agent']}.md)",
        f"`{cell['source']}`",
        cell["task"],
        number(cell["env_steps"]) + ("" if share is None else f" ({share:.0%})"),
        mean_and_spread(cell["score_mean"], cell["score_std"], cell["num_seeds"]),
        mean_and_spread(*theirs, source=source),
        _verdict(cell),
    ]


def _verdict(cell: Mapping[str, Any]) -> str:
    """Return a verdict that leads to its grid; one that decides is set in bold."""
    mark = "**" if cell["verdict"] in DECIDED else ""
    folder = cell["folder"].relative_to(PUBLISHED).as_posix()
    return f"[{mark}{verdict_words(cell)}{mark}](/results/published/{folder})"


def scores() -> str:
    """Return each agent's decided scores with the most steps, and the counts of all verdicts."""
    every = Counter(cell["verdict"] for cell in cells())
    counts = ", ".join(f"{count} `{verdict}`" for verdict, count in every.most_common())
    p_values = np.array([cell["p_below"] for cell in cells()], np.float64)
    stays = np.count_nonzero(holm(p_values) <= LEVEL)
    decided = [cell for cell in cells() if cell["verdict"] in DECIDED]
    longest = sorted(decided, key=lambda cell: -cell["env_steps"])
    by_agent = [[c for c in longest if c["agent"] == agent][:2] for agent in agents.AGENTS]
    rows = [_scores(cell) for own in by_agent for cell in own]
    said = f"All {len(cells())} verdicts: {counts}. Holm's adjustment over all "
    said += f"{np.count_nonzero(~np.isnan(p_values))} tests leaves {stays} `below`. Each agent's "
    said += f"two longest of {len(decided)} decided tasks (in brackets: the reference's "
    return f"{said}share of its final gain):\n\n{table(SCORES, rows)}"


def results(which: str = "") -> str:
    """Return the scores of an agent, of a kind of source or all, with differences and costs."""
    own = [c for c in cells() if which in ("", c["agent"]) or c["source"].endswith(f"_{which}")]
    rows = []
    for cell in own:
        apart = interval(cell["difference"], cell["ci_low"], cell["ci_high"])
        more = (apart, escape(cell["note"] or ""), f"{cell['core_hours']:.2f}")
        rows.append((*_scores(cell, cell["reference_source"]), *more))
    hours = sum(cell["core_hours"] for cell in own)
    seeds = sum(int(cell["num_seeds"] or 0) for cell in own)
    text = table((*SCORES, "difference [interval]", "note", "core-hours"), rows)
    return f"{text}\n\n{len(own)} tasks, {seeds} runs that count, {hours:.1f} core-hours."


def matrix() -> str:
    """Return the verdicts: a row for each task, a column for each agent."""
    names = list(dict.fromkeys(cell["agent"] for cell in cells()))
    places: dict[str, dict[str, list[str]]] = {}
    for cell in cells():
        words = f"{_verdict(cell)}, `{cell['source']}`"
        places.setdefault(cell["task"], {}).setdefault(cell["agent"], []).append(words)
    rows = [(task, *("<br>".join(own.get(n, ())) for n in names)) for task, own in places.items()]
    return table(("task", *(f"[`{name}`](/docs/agents/{name}.md)" for name in names)), rows)


def suites() -> str:
    """Return every suite with its tasks."""
    return table(("suite", "tasks"), [(f"`{name}`", ", ".join(of)) for name, of in SUITES.items()])


def sources() -> str:
    """Return every source of settings or measurements."""
    rows = []
    for path in sorted(REFERENCES.glob("*/*.toml")):
        name, said = path.parent.name, read_source(path)
        whose = (said["title"], said.get("repository", ""), said.get("licence", ""))
        rows.append((f"[`{name}`](/results/references/{name})", f"`{path.stem}`", *whose))
    return table(("source", "agent", "whose", "repository", "licence"), rows)


def equations(agent: str) -> str:
    """Return the docstring's table of equations, which names the functions of the file."""
    lines = [line for line in _module(agent).__doc__.splitlines() if line.startswith("|")]
    return "\n".join([*lines, f"\nThe functions are those of [{agent}.py](/agents/{agent}.py)."])


def deviations(agent: str) -> str:
    """Return the docstring's numbered list of deviations."""
    after = _module(agent).__doc__.partition("\nDeviations")[2]
    return after[after.index("\n1. ") :].strip()


def _module(agent: str) -> Any:
    return importlib.import_module(f"agents.{agent}")


def settings(agent: str) -> str:
    """Return the settings in which an agent's sources differ from its defaults."""
    module = _module(agent)
    names = [field.name for field in fields(module.Config) if field.name not in NOT_SETTINGS]
    columns: dict[tuple[str, ...], list[str]] = {}
    for (suite, source), preset in module.PRESETS.items():
        values = (_value(getattr(preset.config, name)) for name in names)
        columns.setdefault((source, *values), []).append(f"`{suite}`")
    header = [
        f"[`{source}`](/results/references/{source}/{agent}.toml) on {', '.join(on)}"
        for (source, *_), on in columns.items()
    ]
    rows = []
    for place, name in enumerate(names, 1):
        default, values = _value(getattr(module.Config(), name)), [key[place] for key in columns]
        if set(values) != {default}:
            shown = ("" if value == default else value for value in values)
            rows.append((f"`{name}`", default, *shown))
    return table(("setting", "default", *header), rows)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(_value, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def error_rates(group: str) -> str:
    """Return a group of tables of simulated error rates."""
    parts = []
    groups = rates.stored().query("group == @group").groupby(["title", "corner"], sort=False)
    for (title, corner), own in groups:
        rows = [(name, *row["rates"]) for name, row in own.groupby("row", sort=False)]
        header = [str(corner), *map(str, own["column"].unique())]
        parts.append(f"**{title}**\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def beside(turns: pd.DataFrame) -> str:
    """Return our speeds beside other libraries', by the rows of `tests/benchmarks/peers.py`.

    Speeds are medians over turns; so is the ratio, with its range.
    """
    turns = turns.assign(ratio=turns["ours"] / turns["theirs"])
    rows = []
    for (name, who), own in turns.groupby(["comparison", "beside"], sort=False):
        speeds = (f"{own[column].median():,.0f}" for column in ("ours", "theirs"))
        low, middle, high = own["ratio"].quantile([0, 0.5, 1])
        ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        rows.append((f"`{name}`", own["cores"].iloc[0], who, *speeds, ratio, len(own)))
    return table(("loop", "cores", "other", "Encore", "theirs", "ratio (range)", "turns"), rows)


def peers() -> str:
    """Return the speeds stored in `results/throughput/peers.csv`."""
    return beside(pd.read_csv(ROOT / "results" / "throughput" / "peers.csv"))


TABLES = {
    made.__name__: made
    for made in (
        *(scores, results, matrix, suites, sources),
        *(equations, deviations, settings, simulators, error_rates, peers),
    )
}


def fill(text: str) -> str:
    """Return a page with its tables."""
    return CALL.sub(lambda call: TABLES[call[1]](*filter(None, [call[2]])), text)


def draw_overview(directory: Path) -> list[Path]:
    """Draw README's figure: SAC on HalfCheetah beside three references; return its files."""
    curves, references, remarks = [], [], {}
    for source, name in BESIDE.items():
        panel, grid = f"HalfCheetah, beside {name}", PUBLISHED / "sac-mujoco" / source
        tables = (read_report_table(grid, n) for n in ("curves", "reference_curves", "verdicts"))
        ours, theirs, verdicts = (
            rows[rows["task"] == "HalfCheetah-v4"].assign(task=panel) for rows in tables
        )
        curves.append(ours)
        references.append(theirs[theirs["role"] == "judge"].assign(source="theirs"))
        remarks[panel] = verdicts["verdict"].item()
    frame = frames.learning_curves({"ours": pd.concat(curves)}, pd.concat(references))
    return figures.draw_curves(frame, remarks, directory, "overview")


def verdicts() -> str:
    """Return every verdict, as CSV."""
    table = pd.DataFrame(cells(), columns=list(CELL))
    return table.to_csv(index=False, float_format="%.4g", lineterminator="\n")


def main(argv: Sequence[str]) -> int:
    """Write README's scores and figure and the table of verdicts, or say what is out of date."""
    options = flags.make_parser("docs", "--check").parse(argv)
    readme, csv = ROOT / "README.md", ROOT / "results" / "verdicts.csv"
    before = readme.read_text(encoding="utf-8")
    after, count = BLOCK.subn(lambda _: f"\n{scores()}\n\n".replace("](/", "]("), before)
    if count != 1:
        raise UsageError("README.md needs one block, <!-- generated: scores --> to <!-- end -->")
    texts = {readme: after, csv: verdicts()}
    stale = [p for p in texts if not p.exists() or p.read_text(encoding="utf-8") != texts[p]]
    if options.check:
        return flags.say_stale(stale, "docs")
    draw_overview(ROOT / "docs" / "images")
    for path in stale:
        write_atomically(path, texts[path].encode())
        print(path)
    return 0
