"""Verdicts in words: for the page, the terminal and the figures.

Names in tables are treated as hostile: they are stripped of control characters in the terminal.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from reproduce.gather.references import name_of
from reproduce.judge.inference import LEVEL
from reproduce.judge.remarks import details, marks
from reproduce.judge.verdicts import UNJUDGED
from reproduce.report import frames
from reproduce.report.tables import COLUMNS, records
from reproduce.words import MISSING, counted, number, reached

JUDGEABLE = ("reproduced", "above", "below", "inconclusive")
"""Verdicts on tasks whose reference can judge."""

VERDICTS = (
    *("reproduced", "above", "below", "inconclusive", "nothing learned", "shown only"),
    "no reference",
    "not judged",
)
"""Every verdict, and `not judged` for a task that has none yet, in the order of the headline; the
first two both say that the result was reproduced."""

RATIO = "With the zero of the scale at 0 and the reference at 1, ours is at"

TERMINAL_STYLES = {"reproduced": "green", "above": "cyan", "below": "bold red"}


def mean_and_spread(mean: Any, spread: Any, count: Any = None, source: str | None = None) -> str:
    """Format `mean ± spread (count)`, rounded to two significant digits of the spread.

    Args:
        mean: The mean, or a missing value.
        spread: The standard deviation, or a missing value.
        count: Number of values behind the mean; left out if None.
        source: Name of their source; left out if None.

    Returns:
        The text; a dash if the mean is missing.
    """
    if pd.isna(mean):
        return MISSING
    decimals = _decimals(spread)
    text = number(mean)
    if decimals is not None:
        text = f"{float(mean):,.{decimals}f} ± {float(spread):,.{decimals}f}"
    elif spread == 0:
        text = f"{text} ± 0"
    entries = ([] if count is None else [number(count)]) + ([source] if source else [])
    return f"{text} ({', '.join(entries)})" if entries else text


def with_interval(value: Any, low: Any, high: Any) -> str:
    """Format `value [low, high]`, rounded to two significant digits of the interval's width."""
    if pd.isna(value) or pd.isna(low) or pd.isna(high):
        return number(value)
    decimals = _decimals(float(high) - float(low))
    if decimals is None:
        return f"{number(value)} [{number(low)}, {number(high)}]"
    first, second, third = (f"{float(part):,.{decimals}f}" for part in (value, low, high))
    return f"{first} [{second}, {third}]"


def explain(row: Mapping[str, Any]) -> str:
    """Explain a verdict: why it was given and, if it is open, how to settle it.

    Args:
        row: A row of `verdicts.csv`, missing cells as None.

    Returns:
        One to four sentences.
    """
    return " ".join(f"{sentence}." for sentence in _reasons(row))


def _reasons(row: Mapping[str, Any]) -> list[str]:
    """Return the sentences that explain a verdict, its remarks last, without their full stops."""
    said = [f"{each[0].upper()}{each[1:]}" for each in details(_remarks_of(row))]
    return [*_grounds(row), *said]


def _grounds(row: Mapping[str, Any]) -> list[str]:
    """Return why a verdict was given and, if it is open, how to settle it."""
    verdict, note = row["verdict"], str(row["note"] or "").strip(" .")
    if verdict == "inconclusive":
        return [f"These seeds cannot tell: {note or _what_would_decide(row)}"]
    if verdict == "nothing learned":
        return [f"Shown, not counted: {note}"]
    if verdict == "shown only":
        said = [f"Shown, not judged: {note or 'the reference cannot judge'}"]
        said += [] if row["ratio"] is None else [f"{RATIO} {number(row['ratio'])}"]
        return said
    if verdict == "no reference":
        steps = "" if row["env_steps"] is None else f" at {number(row['env_steps'])} steps"
        rule = f" under the rule '{row['rule']}'" if row["rule"] else ""
        said = f"Not judged: {note or 'nothing comparable is published'}"
        return [said, f"A published score{steps}{rule} would settle it"]
    said = {
        "reproduced": ["Not worse than the reference by more than the margin"],
        "above": [_settled("ahead by {}, more than the margin {}", row, 1)],
        "below": [
            _settled("short by {}, where {} is allowed", row, -1),
            "The departures from the source are the first suspects",
        ],
    }.get(verdict, ["Needs finished runs and a verdict"])
    if verdict == "below" and (row["p_below_holm"] or 0.0) > LEVEL:
        chance = f"(adjusted p-value {number(row['p_below_holm'])})"
        said.append(
            f"Among all tasks that may be chance {chance}, so the exit status does not count it"
        )
    return [*said, f"{note[0].upper()}{note[1:]}"] if note else said


def _settled(words: str, row: Mapping[str, Any], sign: int) -> str:
    """Return by how much a settled verdict lies on its side, as far as the row tells."""
    if row["difference"] is None or row["margin"] is None:
        return "Settled"
    return "Settled: " + words.format(number(sign * row["difference"]), number(row["margin"]))


def explain_suite(suite: Mapping[str, Any]) -> str:
    """Explain the verdict on a suite: the comparison, and the tasks left out.

    Args:
        suite: The row of `suite.csv`, missing cells as None.

    Returns:
        One to three sentences.
    """
    difference, margin = suite["difference"], number(suite["margin"])
    if difference is None:  # nor will there be one of too few tasks: the note says so
        sentences = ["No mean over tasks yet"] if suite["verdict"] != "not judged" else []
    else:
        interval = with_interval(difference, suite["ci_low"], suite["ci_high"])
        sentences = [
            f"Mean over {number(suite['num_tasks'])} tasks of the score, the zero at 0 and "
            f"the reference at 1, minus 1: {interval}, margin {margin}"
        ]
    sentences += [f"Left out: {_by_reason(suite['left_out'])}"] if suite["left_out"] else []
    sentences += [f"{suite['note'][0].upper()}{suite['note'][1:]}"] if suite["note"] else []
    return " ".join(f"{sentence}." for sentence in sentences)


def _by_reason(left_out: str) -> str:
    """Return `task: reason; ...` with the tasks of one reason together."""
    tasks: dict[str, list[str]] = {}
    for entry in left_out.split("; "):
        task, _, reason = entry.partition(": ")
        tasks.setdefault(reason, []).append(task)
    return "; ".join(
        f"{', '.join(names)}: {reason}" if reason else ", ".join(names)
        for reason, names in tasks.items()
    )


def is_exploratory(row: Mapping[str, Any]) -> bool:
    """Return whether a verdict counts seeds beyond the declared ones."""
    return pd.notna(row.get("exploratory")) and bool(row["exploratory"])


def verdict_words(row: Mapping[str, Any]) -> str:
    """Return a verdict as it is shown, with its marks: exploratory, older runs, remarks."""
    older = row.get("older_runs")
    words = [str(row.get("verdict", "not judged")), "exploratory" * is_exploratory(row)]
    words.append(f"older runs {older}" if older and pd.notna(older) else "")
    return ", ".join(filter(None, [*words, *marks(_remarks_of(row))]))


def panel_remarks(verdicts: Iterable[Mapping[str, Any]], curves: pd.DataFrame) -> dict[str, str]:
    """Return what stands under a task's title in a figure: verdict, seeds, losses, what is missing.

    Args:
        verdicts: Rows of `verdicts.csv`, missing cells as None.
        curves: The frame `frames.CURVES` of the figure.
    """
    lines = {}
    for row in verdicts:
        said = frames.gaps(curves, row["task"])
        if "verdict" in row:  # else there is a task alone
            seeds = f", {counted(row['num_seeds'], 'seed')}" if row["num_seeds"] else ""
            said = [verdict_words(row) + seeds + losses(row), *said]
        lines[row["task"]] = "\n".join(said)
    return lines


def score_remarks(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what stands under a task's name in the figure of scores: both sides, verdict, losses.

    Args:
        verdicts: Rows of `verdicts.csv`, missing cells as None.
    """
    lines = {}
    for row in verdicts:
        sides = {"": ("score_mean", "score_std", "num_seeds")}
        sides |= {"reference ": ("reference_mean", "reference_std", "reference_num_runs")}
        known = {side: names for side, names in sides.items() if row[names[0]] is not None}
        said = [side + mean_and_spread(*map(row.get, names)) for side, names in known.items()]
        said = said if "" in known else ["no score recorded", *said]
        lines[row["task"]] = f"{', '.join(said)}\n{verdict_words(row)}{losses(row)}"
    return lines


def _remarks_of(row: Mapping[str, Any]) -> str:
    remarks = row.get("remarks")
    return remarks if isinstance(remarks, str) else ""


def verdict_lines(verdicts: pd.DataFrame, suite: pd.DataFrame, title: str) -> Group:
    """Return the verdicts as they are shown in a terminal, the suite's first.

    Args:
        verdicts: The rows of `verdicts.csv`.
        suite: The rows of `suite.csv`.
        title: What was run; empty: no title.

    Returns:
        A table with a row for the suite, if it has a mean, and for each task; below it what is to
        be said of the suite and of every task that is marked or not `reproduced`. What holds of
        several tasks is said once.
    """
    rows = records(verdicts.reindex(columns=list(COLUMNS["verdicts"])))
    whole = next(iter(records(suite)), None)
    compared = any(row["reference_mean"] is not None for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    headings = ["task", "ours,\nmean ± std", "reference,\nmean ± std", "difference\n[interval]"]
    for name in headings if compared else headings[:2]:
        table.add_column(Text(name), justify="left" if name == "task" else "right", overflow="fold")
    table.add_column(Text("verdict\nmargin" if compared else "verdict"), overflow="fold")
    lines = []
    if whole:
        style = TERMINAL_STYLES.get(whole["verdict"], "yellow")
        if whole["difference"] is not None and compared:
            cells = (f"suite of {number(whole['num_tasks'])}", "", "", _two_lines(whole))
            verdict = Text(verdict_words(whole), style).append(_margin(whole), "none")
            table.add_row(*map(Text, cells), verdict)
        line = Text("suite", style).append(_printable(f" {verdict_words(whole)}. "), "none")
        lines.append(line.append(_printable(explain_suite(whole)), "none"))
    for row in rows:
        ours = mean_and_spread(row["score_mean"], row["score_std"]) + losses(row)
        theirs = mean_and_spread(row["reference_mean"], row["reference_std"])
        cells = (
            _printable(row["task"]) + _counted(row["env_steps"], "step"),
            ours + _counted(row["num_seeds"], "seed"),
            theirs + _counted(row["reference_num_runs"], "run") + _reached(row),
            _two_lines(row),
        )
        verdict = Text(_printable(verdict_words(row)), _style(row)).append(_margin(row), "none")
        cells = cells if compared else cells[:2]
        table.add_row(*map(Text, cells), verdict)
    heading = [Text(_printable(title))] if title else []
    return Group(*heading, table, *lines, *_explanations(rows))


def _style(row: Mapping[str, Any]) -> str:
    return TERMINAL_STYLES.get(row["verdict"], "yellow")


def _explanations(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a line for every task, or several, with what is to be said of it, or of all of them.

    First come those of one task, then those of several.
    """
    said: dict[str, list[Mapping[str, Any]]] = {}
    shown = (row for row in rows if row["verdict"] == "shown only" and row["ratio"] is not None)
    ratios = [f"{number(row['ratio'])} on {row['task']}" for row in shown]
    for row in rows:
        sentences = _reasons(row) if verdict_words(row) != "reproduced" else []
        if len(ratios) > 1:
            sentences = [sentence for sentence in sentences if not sentence.startswith(RATIO)]
        if row["reference_source"]:
            sentences = [*sentences, f"Reference: {name_of(row['reference_source'])}"]
        for sentence in sentences:
            said.setdefault(sentence, []).append(row)
    groups: dict[tuple[str, ...], list[str]] = {}
    for sentence, of in said.items():
        groups.setdefault(tuple(row["task"] for row in of), []).append(sentence)
    lines = []
    for tasks, sentences in sorted(groups.items(), key=lambda group: len(group[0])):
        of = said[sentences[0]]
        words = {verdict_words(row) for row in of}
        is_verdict = len(words) == 1 and sentences[0] in _reasons(of[0])
        line = Text()
        if len(tasks) < len(rows) or len(rows) == 1 or is_verdict:
            everyone = len(tasks) == len(rows) > 2
            line.append("all tasks" if everyone else _printable(", ".join(tasks)), _style(of[0]))
            line.append(_printable(f" {words.pop()}. " if is_verdict else ": "), "none")
        lines.append(line.append(_printable(" ".join(f"{each}." for each in sentences)), "none"))
    if len(ratios) > 1:
        lines.append(Text(_printable(f"{RATIO} {', '.join(ratios)}.")))
    return lines


def _two_lines(row: Mapping[str, Any]) -> str:
    """Return a difference with its interval below it."""
    value, _, interval = with_interval(row["difference"], row["ci_low"], row["ci_high"]).partition(
        " "
    )
    return f"{value}\n{interval}" if interval else value


def _margin(row: Mapping[str, Any]) -> str:
    return "" if row["margin"] is None else f"\n{number(row['margin'])}"


def _counted(count: Any, noun: str) -> str:
    """Return a number of things on a line of its own; nothing where it is missing."""
    if count is None or pd.isna(count):
        return ""
    return f"\n{counted(count, noun)}"


def _reached(row: Mapping[str, Any]) -> str:
    """Return how far the reference has come, on a line of its own; nothing where it is unknown."""
    words = reached(row["reference_share"])
    return f"\n{words}" if words else ""


class Counts(NamedTuple):
    """How many tasks came how far; each includes those that came further."""

    in_suite: int
    """Tasks of the suite, and those planned beside it."""
    planned: int
    run: int
    """At least one run of it has ended."""
    judgeable: int
    """Its reference can judge."""
    judged: int
    """Its seeds were compared with the reference, whatever came of it."""
    reproduced: int
    """Not below, or above."""


def count_tasks(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]] = (),
) -> Counts:
    """Count the tasks of a suite that were planned, run, judgeable, judged and reproduced.

    Args:
        report: Content of `report.json`.
        rows: What `verdict_rows` returned.
        runs: Rows of `runs.csv`.
    """
    ended = {run["task"] for run in runs if run["status"] in ("finished", "diverged", "failed")}
    judgeable = [row for row in rows if row["verdict"] in JUDGEABLE]
    names = {*report.get("suite_tasks", ()), *(row.get("task") for row in rows)}
    return Counts(
        in_suite=max(len(names), len(rows)),
        planned=len(rows),
        run=len(ended),
        judgeable=len(judgeable),
        judged=sum(pd.notna(row.get("ci_low")) for row in judgeable),
        reproduced=sum(row["verdict"] in VERDICTS[:2] for row in rows),
    )


def headline(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    suite: Mapping[str, Any] | None = None,
) -> str:
    """State the result in one sentence: settings, judge, the suite's verdict and each count."""
    verdicts = [row["verdict"] for row in rows]
    above, counts = verdicts.count("above"), count_tasks(report, rows)
    of_all = counted(counts.in_suite, "task")
    if verdicts and set(verdicts) <= set(UNJUDGED):
        parts = [f"none of {of_all} can be judged"]
    else:
        parts = [f"{counts.reproduced or 'none'} of {of_all} reproduced"]
    parts[0] += f" ({above} of them above the reference)" if above else ""
    others = [name for name in dict.fromkeys([*VERDICTS[2:], *verdicts]) if name in verdicts]
    parts += [f"{verdicts.count(name)} {name}" for name in others if name not in VERDICTS[:2]]
    unplanned = counts.in_suite - counts.planned
    parts += [f"{unplanned} not planned"] if unplanned else []
    num_exploratory = sum(map(is_exploratory, rows))
    parts += [f"{num_exploratory} exploratory"] if num_exploratory else []
    marks = [str(row.get("older_runs") or "") for row in rows]
    parts += [
        f"{marks.count(mark)} with older runs {mark}"
        for mark in ("counted", "left out")
        if mark in marks
    ]
    if suite and rows:
        parts.insert(0, f"the suite {verdict_words(suite)}")
    what = (
        f"{report['agent'].upper()} on {report['suite']} with the settings of '{report['source']}'"
    )
    judge = (
        f"judged by '{report['judged_by']}'" if report["judged_by"] else "judged by no reference"
    )
    return f"{what}, {judge}: {', '.join(parts) if rows else 'no task yet'}."


def _decimals(spread: Any) -> int | None:
    """Return the decimals that show two significant digits of a spread; None without a spread."""
    if pd.isna(spread) or not math.isfinite(spread) or spread == 0:
        return None
    return min(6, max(0, 1 - math.floor(math.log10(abs(spread)))))


def losses(row: Mapping[str, Any]) -> str:
    """Count failed and diverged runs, in words, so that a mean never hides them."""
    counts = [(row["num_failed"], "failed"), (row["num_diverged"], "diverged")]
    return "".join(f", {number(count)} {what}" for count, what in counts if count)


def _what_would_decide(row: Mapping[str, Any]) -> str:
    """Say how to settle an inconclusive task whose row lacks a note."""
    if row["seeds_to_settle"] is not None:
        return f"{counted(row['seeds_to_settle'], 'seed')} would settle it"
    return f"the reference has only {counted(row['reference_num_runs'], 'run')}"


def _printable(text: str) -> str:
    """Replace unprintable characters, which could move a terminal's cursor or hide a line."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
