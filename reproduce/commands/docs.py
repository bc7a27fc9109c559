"""Tables of the documentation, made from code and published results.

A page says `{{ settings("sac") }}` alone on a line; building the site puts that table of `TABLES`
there. Addresses in tables begin at the project's folder, with a slash. README has one table, too.
"""

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

import agents
from reproduce import ROOT
from reproduce.commands import flags
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.presets import presets_of
from reproduce.plan.status import NOT_SETTINGS
from reproduce.report import figures, frames
from reproduce.report.tables import read_table, verdict_rows
from reproduce.report.words import mean_and_spread, verdict_words
from reproduce.report.words import with_interval as interval
from reproduce.simulators import claims, measure
from reproduce.words import number, reached
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.tasks import SUITES
from suite.settings.presets import REFERENCES, find_preset, read_source

OVERVIEW = {"jaxrl": "jaxrl", "sb3_control": "stable-baselines3", "tianshou_control": "Tianshou"}
"""Sources beside which README's figure shows SAC, and their names."""
SHOWN = 6
"""Rows of README's table."""
SIMULATORS = ROOT / "results" / "simulators"
MODES = {"random": "", "policy": ", A2C acts", "training": ", A2C trains"}
FIGURES = {
    "speeds": "Steps/s over the number of environments",
    "threads": "Steps/s over threads",
    "training": "Speed and shares of time of A2C's trainings",
}
THEIRS = ("mean", "std", "num_runs")
DECIDED = ("reproduced", "above", "below")
SCORES = ("agent", "settings of", "task", "steps", "ours (seeds)", "reference (runs)", "verdict")
BLOCK = re.compile(r"(?<=<!-- generated: scores -->\n)(.*?)(?=<!-- end -->\n)", re.DOTALL)
CALL = re.compile(r"^\{\{ (\w+)\((?:\"(\w+)\")?\) \}\}$", re.MULTILINE)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = ([str(cell).replace("|", r"\|") for cell in line] for line in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


@cache
def cells() -> tuple[Mapping[str, Any], ...]:
    """Return the row of `verdicts.csv` of every published task, with its grid, by agent."""
    found = []
    for path in sorted(PUBLISHED.glob("*/*/verdicts.csv")):
        agent, _, suite = path.parents[1].name.partition("-")
        grid = {"agent": agent, "source": path.parent.name, "folder": path.parent}
        cores = find_preset(presets_of(agent), suite, path.parent.name).cores_per_run
        seconds = read_table(path.parent, "runs").groupby("task")["wall_seconds"].sum()
        for row in verdict_rows(path.parent):
            hours = seconds.get(row["task"], 0) * cores / 3600
            found.append({**row, **grid, "suite": suite, "core_hours": hours})
    order = [*agents.AGENTS, *SUITES].index
    return tuple(sorted(found, key=lambda cell: (order(cell["agent"]), order(cell["suite"]))))


def _scores(cell: Mapping[str, Any]) -> list[str]:
    """Return a line of `SCORES`."""
    share = reached(cell["reference_share"])
    theirs = (cell["reference_mean"], cell["reference_std"], cell["reference_num_runs"])
    return [
        f"[`{cell['agent']}`](/docs/agents/{cell['agent']}.md)",
        f"`{cell['source']}`",
        cell["task"],
        number(cell["env_steps"]) + (f" ({share})" if share else ""),
        mean_and_spread(cell["score_mean"], cell["score_std"], cell["num_seeds"]),
        mean_and_spread(*theirs, cell["reference_source"]),
        _verdict(cell),
    ]


def _verdict(cell: Mapping[str, Any]) -> str:
    """Return a verdict that leads to its grid; one that decides is set in bold."""
    mark = "**" if cell["verdict"] in DECIDED else ""
    folder = cell["folder"].relative_to(PUBLISHED).as_posix()
    return f"[{mark}{verdict_words(cell)}{mark}](/results/published/{folder})"


def scores() -> str:
    """Return the decided scores that took longest, and the counts of all verdicts."""
    every = Counter(cell["verdict"] for cell in cells())
    counts = ", ".join(f"{count} `{verdict}`" for verdict, count in every.most_common())
    decided = [cell for cell in cells() if cell["verdict"] in DECIDED]
    longest = sorted(decided, key=lambda cell: -cell["core_hours"])[:SHOWN]
    rows = []
    for cell in (each for each in decided if each in longest):
        agent, settings_of, task, _, ours, *_ = _scores(cell)
        steps = f"{number(cell['env_steps'])} ({cell['reference_share']:.0%})"
        theirs = mean_and_spread(*(cell[f"reference_{name}"] for name in THEIRS))
        rows.append((agent, settings_of, task, steps, ours, theirs, _verdict(cell)))
    said = f"The {len(rows)} of {len(decided)} decided tasks whose runs took longest;"
    said += " in brackets: how much of the reference's final gain it has at that step"
    return f"All {len(cells())} verdicts: {counts}. {said}:\n\n{table(SCORES, rows)}"


def draw_overview(directory: Path) -> list[Path]:
    """Draw README's figure: SAC on HalfCheetah beside three references, and all scores."""
    curves, references, remarks = [], [], {}
    for source, name in OVERVIEW.items():
        panel, grid = f"HalfCheetah, beside {name}", PUBLISHED / "sac-mujoco" / source
        ours, theirs = (
            rows[rows["task"] == "HalfCheetah-v4"].assign(task=panel)
            for rows in (read_table(grid, "curves"), read_table(grid, "reference_curves"))
        )
        curves.append(ours)
        references.append(theirs[theirs["role"] == "judge"].assign(source="theirs"))
        (cell,) = (row for row in verdict_rows(grid) if row["task"] == "HalfCheetah-v4")
        remarks[panel] = cell["verdict"]
    last = "Normalised scores"
    planned = {**dict.fromkeys(remarks, 0), last: 0}
    remarks[last] = "of all tasks that have a deciding interval; dots: runs\n"
    remarks[last] += "green: reproduced, blue: above, red: below, brown: inconclusive"
    frame = frames.learning_curves({"ours": pd.concat(curves)}, pd.concat(references), planned)
    return figures.draw_overview(frame, remarks, _normalised(), directory)


def _normalised() -> pd.DataFrame:
    """Return rows of the frame `SCORES` of our runs and means that have a deciding interval.

    `label` names agent, task and source; `verdict` is the task's.
    """
    parts = []
    for folder, grid in {cell["folder"]: cell for cell in cells()}.items():
        decided = read_table(folder, "verdicts").dropna(subset="ci_low")
        if decided.empty:
            continue
        ours, theirs = (read_table(folder, name) for name in ("scores", "reference_scores"))
        scores = frames.final_scores(ours, theirs, decided, {}).query("role == 'ours'")
        names = grid["agent"] + " " + scores["task"].str.rpartition("-")[0] + ", " + grid["source"]
        verdicts = scores["task"].map(decided.set_index("task")["verdict"])
        parts.append(scores.assign(label=names, verdict=verdicts))
    return pd.concat(parts, ignore_index=True)


def results(which: str = "") -> str:
    """Return the scores of an agent, of a kind of source or all, with differences and costs."""
    own = [c for c in cells() if which in ("", c["agent"]) or c["source"].endswith(f"_{which}")]
    rows = [
        (
            *_scores(cell),
            interval(cell["difference"], cell["ci_low"], cell["ci_high"]),
            escape(cell["note"] or ""),
            f"{cell['core_hours']:.2f}",
        )
        for cell in own
    ]
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
    rows = [(f"`{name}`", ", ".join(tasks)) for name, tasks in SUITES.items()]
    return table(("suite", "tasks"), rows)


def sources() -> str:
    """Return every source of settings or measurements."""
    rows = []
    for path in sorted(REFERENCES.glob("*/*.toml")):
        name, agent, said = path.parent.name, path.stem, read_source(path)
        row = (said["title"], said.get("repository", ""), said.get("licence", ""))
        rows.append((f"[`{name}`](/results/references/{name})", f"`{agent}`", *row))
    return table(("source", "agent", "whose", "repository", "licence"), rows)


def equations(agent: str) -> str:
    """Return the docstring's table of equations, which names the functions of the file."""
    lines = [line for line in _docstring(agent).splitlines() if line.startswith("|")]
    return "\n".join([*lines, f"\nThe functions are those of [{agent}.py](/agents/{agent}.py)."])


def deviations(agent: str) -> str:
    """Return the docstring's numbered list of deviations."""
    _, _, after = _docstring(agent).partition("\nDeviations")
    return after[after.index("\n1. ") :].strip()


def _docstring(agent: str) -> str:
    return str(importlib.import_module(f"agents.{agent}").__doc__)


def settings(agent: str) -> str:
    """Return the settings in which an agent's sources differ from its defaults."""
    module = importlib.import_module(f"agents.{agent}")
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
    """Return a setting's value for people."""
    if isinstance(value, tuple):
        return " x ".join(map(_value, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def simulators() -> str:
    """Return the speeds, claims and differences measured on each machine."""
    parts = []
    for path in sorted(SIMULATORS.glob("*/machine.json")):
        about = json.loads(path.read_bytes())["machine"]
        parts.append(f"## {about['processor']}, {about['cores']} cores")
        turns, same_work = path.parent / "turns.csv", path.parent / "same_work.csv"
        if turns.exists():
            rows = measure.read(turns)
            others = rows["others"].median()
            if others > measure.MOST_BUSY:
                parts.append(f"Other programs used {others:.1f} cores beside the median turn.")
            parts += [_speeds(rows), *_figures(path.parent)]
            parts += ["### Claims", _claims(rows, about["cores"])]
        else:
            parts.append("Speeds are not measured yet.")
        if same_work.exists():
            parts += ["### The same work?", _same_work(same_work)]
    return "\n\n".join(parts) or "No machine's results are published yet."


def _speeds(turns: pd.DataFrame) -> str:
    """Return steps/s, medians over turns: a line for each cell, a column for each engine."""
    medians = measure.medians(turns)
    medians["engine"] = medians["engine"] + medians["mode"].map(MODES)
    keys = ["task", "num_envs", "num_threads"]
    order = medians["engine"].unique()
    wide = medians.pivot(index=keys, columns="engine", values="env_steps_per_second")[order]
    rows = []
    for key, row in wide.iterrows():
        speeds = ["" if pd.isna(speed) else f"{speed:,.0f}" for speed in row]
        rows.append([*key, *speeds])
    return table(["task", "environments", "threads", *order], rows)


def _figures(folder: Path) -> list[str]:
    """Return the figures of a machine."""
    place = folder.relative_to(ROOT).as_posix()
    names = [name for name in FIGURES if (folder / f"{name}.svg").exists()]
    return [f"![{FIGURES[name]}](/{place}/{name}.svg)" for name in names]


def _claims(turns: pd.DataFrame, num_cores: int) -> str:
    rows = []
    for each in claims.judge(turns, num_cores):
        found = f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"
        found = "" if pd.isna(each.ratio) else found
        said = f"[{each.says}]({each.link})"
        numbers = [f"{each.claimed:g}", found, each.verdict]
        rows.append([said, each.where, each.task, each.beside, *numbers])
    header = ["claim", "measured with", "task", "speeds", "claimed", "here", "verdict"]
    return table(header, rows)


def _same_work(path: Path) -> str:
    frame = pd.read_csv(path, dtype="str", keep_default_na=False)
    rows = []
    for row in frame[frame["num_episodes"] != ""].itertuples():
        means = [f"{row.length_mean} ± {row.length_se}", f"{row.return_mean} ± {row.return_se}"]
        spaces = [row.obs, row.actions, row.frame_skip, row.autoreset]
        rows.append([row.task, row.engine, *spaces, row.tape_return, *means])
        rows[-1].append(row.differs or "nothing")
    header = ["task", "engine", "observation", "actions", "frame skip", "resets in"]
    return table([*header, "tape", "length", "return", "differs"], rows)


TABLES = {each.__name__: each for each in (scores, results, matrix, suites, sources)}
TABLES |= {each.__name__: each for each in (equations, deviations, settings, simulators)}


def fill(text: str) -> str:
    """Return a page with its tables."""
    return CALL.sub(lambda call: TABLES[call[1]](*filter(None, [call[2]])), text)


def with_scores(readme: str) -> str:
    """Return README with its block of scores made anew.

    Raises:
        UsageError: if it has no such block.
    """
    text, count = BLOCK.subn(lambda _: f"\n{scores()}\n\n".replace("](/", "]("), readme)
    if count != 1:
        raise UsageError("README.md needs one block, <!-- generated: scores --> to <!-- end -->")
    return text


def main(argv: Sequence[str]) -> int:
    """Write README's scores and figure anew, or say that the scores are out of date."""
    about = "write the scores and the figure of README.md anew"
    options = flags.make_parser("docs", about, "--check").parse(argv)
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = with_scores(before)
    if options.check:
        return flags.say_stale([path] if after != before else [], "docs")
    draw_overview(ROOT / "docs" / "images")
    if after != before:
        write_atomically(path, after.encode())
        print(path)
    return 0
