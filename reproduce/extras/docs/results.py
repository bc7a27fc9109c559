"""Blocks on published grids: verdicts, commits and costs, from the tables beside the records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agents
from reproduce.extras.docs.markdown import table
from reproduce.judge.verdicts import UNJUDGED
from reproduce.plan import grid as planning
from reproduce.plan.presets import presets_of
from reproduce.report.tables import read_table, suite_row, verdict_rows
from reproduce.report.words import mean_and_spread, verdict_words, with_interval
from reproduce.words import number, reached
from suite.settings import find_preset
from suite.tasks import SUITES, tasks_in

DECIDED = ("reproduced", "above", "below")


@dataclass(frozen=True)
class Cell:
    """One task of one published grid."""

    agent: str
    suite: str
    source: str
    directory: Path
    """Of the grid."""
    row: Mapping[str, Any]
    """Of `verdicts.csv`."""
    commits: tuple[str, ...]
    """Beginnings of those that made its runs."""
    core_hours: float
    """Wall time of its runs times the cores that one keeps busy, in hours."""

    @property
    def folder(self) -> str:
        """Return where a published grid lies, from the project's folder."""
        return f"results/published/{self.agent}-{self.suite}/{self.source}"

    @property
    def ours(self) -> str:
        """Return our score."""
        row = self.row
        return mean_and_spread(row["score_mean"], row["score_std"], row["num_seeds"])

    @property
    def reference(self) -> str:
        """Return the reference's score."""
        row = self.row
        spread = (row["reference_mean"], row["reference_std"], row["reference_num_runs"])
        return mean_and_spread(*spread, row["reference_source"])

    @property
    def steps(self) -> str:
        """Return the environment steps of one run, and how far the reference has come there."""
        share = reached(self.row["reference_share"])
        return number(self.row["env_steps"]) + (f" ({share})" if share else "")


def cells(root: Path | None = None) -> list[Cell]:
    """Return every task of every grid: by agent, suite and source.

    Args:
        root: a runs directory; default: what is published.
    """
    root, found = root or planning.PUBLISHED, []
    for path in root.glob("*/*/verdicts.csv"):
        source = path.parent
        agent, _, suite = source.parent.name.partition("-")
        found.append((agents.AGENTS.index(agent), list(SUITES).index(suite), source.name))
    return [cell for place in sorted(found) for cell in _cells(root, *place)]


def _cells(root: Path, agent_place: int, suite_place: int, source: str) -> Iterator[Cell]:
    """Yield the tasks of one grid."""
    agent, suite = agents.AGENTS[agent_place], list(SUITES)[suite_place]
    directory = root / f"{agent}-{suite}" / source
    cores = find_preset(presets_of(agent), suite, source).cores_per_run
    runs = read_table(directory, "runs")
    for row in verdict_rows(directory):
        own = runs[runs["task"] == row["task"]]
        commits = dict.fromkeys(str(commit)[:7] for commit in own["commit"].dropna())
        hours = float(own["wall_seconds"].sum()) * cores / 3600
        yield Cell(agent, suite, source, directory, row, tuple(commits), hours)


def of_agent(link: Any, agent: str) -> str:
    """Return an agent's published scores with their verdicts, and remarks on them."""
    own = [cell for cell in cells() if cell.agent == agent]
    if not own:
        return "Nothing is published yet."
    rows = []
    for cell in own:
        row = cell.row
        interval = with_interval(row["difference"], row["ci_low"], row["ci_high"])
        grid = f"[`{cell.suite}`]({link(cell.folder)})"
        judged = (cell.reference, interval, _words(row))
        rows.append((grid, f"`{cell.source}`", row["task"], cell.steps, cell.ours, *judged))
    header = ("suite", "settings of", "task", "steps", "ours, mean ± std (seeds)")
    header += ("reference (runs, source)", "difference [interval]", "verdict")
    parts = [table(header, rows, right=[3, 4, 5, 6]), "\n".join(_remarks(own))]
    return "\n\n".join(filter(None, parts))


def judged(link: Any) -> str:
    """Return every published score that was decided, and how many others a reference can judge."""
    rows, num_open = [], 0
    for cell in cells():
        row = cell.row
        if row["verdict"] in (*UNJUDGED, "not judged") or row["score_mean"] is None:
            continue
        num_open += row["verdict"] not in DECIDED
        if row["verdict"] in DECIDED:
            page = f"[`{cell.agent}`]({link(f'docs/agents/{cell.agent}.md')})"
            verdict = f"[{_words(row)}]({link(cell.folder)})"
            both = (cell.ours, cell.reference, verdict)
            rows.append((page, f"`{cell.source}`", row["task"], cell.steps, *both))
    header = ("agent", "settings of", "task", "steps", "ours (seeds)", "reference (runs, source)")
    body = table((*header, "verdict"), rows, right=[3, 4, 5])
    every = link("results/README.md")
    others = f"{num_open} more are [`inconclusive`]({every}): too few runs, here or there."
    return f"{body}\n\n{others}"


def matrix(link: Any) -> str:
    """Return a table of verdicts: a row for each task, a column for each agent."""
    names, places = by_task(cells())
    rows = []
    for task, of_agents in places.items():
        texts = (
            "<br>".join(f"[{_words(c.row)}]({link(c.folder)}), `{c.source}`" for c in own)
            for own in of_agents.values()
        )
        rows.append([task, *texts])
    return table(("task", *(f"`{name}`" for name in names)), rows)


def by_task(every: Sequence[Cell]) -> tuple[list[str], dict[str, dict[str, list[Cell]]]]:
    """Return the agents of cells, and the cells by task and agent, in the order of the suites."""
    names = [name for name in agents.AGENTS if any(cell.agent == name for cell in every)]
    order = [task for suite in SUITES for task in tasks_in(suite)]
    tasks = sorted(
        {c.row["task"] for c in every}, key=[*order, *(c.row["task"] for c in every)].index
    )
    places = {
        task: {
            name: [cell for cell in every if (cell.agent, cell.row["task"]) == (name, task)]
            for name in names
        }
        for task in tasks
    }
    return names, places


def by_source(link: Any) -> str:
    """Return everything published, a table for each source, with seeds, commits and core-hours."""
    every, parts = cells(), []
    header = ("agent", "suite", "task", "steps", "ours, mean ± std", "seeds")
    header += ("reference (runs, source)", "verdict", "commit", "core-hours")
    for source in sorted({cell.source for cell in every}):
        rows = []
        for cell in every:
            if cell.source == source:
                row = cell.row
                score = mean_and_spread(row["score_mean"], row["score_std"])
                ours = (row["task"], cell.steps, score, number(row["num_seeds"]))
                made = (", ".join(cell.commits), f"{cell.core_hours:.2f}")
                grid = (f"`{cell.agent}`", f"[`{cell.suite}`]({link(cell.folder)})")
                rows.append((*grid, *ours, cell.reference, _words(row), *made))
        parts.append(f"### `{source}`\n\n{table(header, rows, right=[3, 4, 5, 6, 9])}")
    hours = sum(cell.core_hours for cell in every)
    seeds = sum(int(cell.row["num_seeds"] or 0) for cell in every)
    total = f"In all {len(every)} cells, {seeds} runs that count, {hours:.1f} core-hours."
    return "\n\n".join([total, *parts])


def _words(row: Mapping[str, Any]) -> str:
    """Return a verdict; one that decides is set in bold."""
    words = verdict_words(row)
    return f"**{words}**" if row["verdict"] in DECIDED else words


def _remarks(own: Sequence[Cell]) -> Iterator[str]:
    """Yield the suites' verdicts, then the notes beside the tasks', each once."""
    for directory in dict.fromkeys(cell.directory for cell in own):
        cell = next(c for c in own if c.directory == directory)
        whole = suite_row(directory)
        if whole and whole["difference"] is not None:
            interval = with_interval(whole["difference"], whole["ci_low"], whole["ci_high"])
            text = f"`{cell.suite}` like `{cell.source}`, {number(whole['num_tasks'])} tasks"
            mean = f"mean of the normalised score minus 1: {interval}"
            yield f"- {text}: {_words(whole)} ({mean}, margin {number(whole['margin'])})."
    notes: dict[tuple[str, str], list[str]] = {}
    for cell in own:
        if note := str(cell.row["note"] or "").strip(" ."):
            notes.setdefault((cell.source, note), []).append(cell.row["task"])
    for (source, note), tasks in notes.items():
        yield f"- {', '.join(tasks)} like `{source}`: {note}."
