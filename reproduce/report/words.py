"""Verdicts in words: for the page, the terminal and the figures.

A row is one of `verdicts.csv`, missing cells as None. Names in tables are treated as hostile: their
control characters are escaped in the terminal.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from suite.settings.command_line import printable

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
    """Explain why a verdict was given and how to settle an open one, in one to four sentences."""
    return _sentences(_reasons(row))


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{each[0].upper()}{each[1:]}." for each in said)


def _reasons(row: Mapping[str, Any]) -> list[str]:
    """Return the sentences that explain a verdict, its remarks last, without their full stops."""
    verdict, note = row["verdict"], str(row["note"] or "").strip(" .")
    by, margin = number(row["difference"]).removeprefix("-"), number(row["margin"])
    steps = "" if row["env_steps"] is None else f" at {number(row['env_steps'])} steps"
    rule = f" under the rule '{row['rule']}'" if row["rule"] else ""
    grounds = {
        "inconclusive": [f"these seeds cannot tell: {note}"],
        "nothing learned": [f"shown, not counted: {note}"],
        "shown only": [f"shown, not judged: {note}"],
        "no reference": [f"not judged: {note}", _missing(row["task"], steps + rule)],
        "reproduced": ["not worse than the reference by more than the margin", note],
        "above": [f"settled: ahead by {by}, more than the margin {margin}", note],
        "below": [
            f"settled: short by {by}, where {margin} is allowed",
            "the departures from the source are the first suspects",
        ],
    }
    said = grounds.get(verdict, ["needs finished runs and a verdict", note])
    if verdict == "shown only" and row["ratio"] is not None:
        said.append(f"{RATIO} {number(row['ratio'])}")
    if verdict == "below" and (row["p_below_holm"] or 0.0) > LEVEL:
        chance = f"(adjusted p-value {number(row['p_below_holm'])})"
        said.append(
            f"among all tasks that may be chance {chance}, so the exit status does not count it"
        )
    said += [note] if verdict == "below" else []
    return [*filter(None, said), *details(_remarks_of(row))]


def _missing(task: str, where: str) -> str:
    """Return what would judge a task without a reference; nobody publishes scores of an own one."""
    if ":" in task:
        return "--baseline AGENT judges it by the runs of another agent"
    return f"a published score{where} would settle it"


def explain_suite(suite: Mapping[str, Any]) -> str:
    """Explain the verdict on a suite, a row of `suite.csv`, and what is left out."""
    difference, margin = suite["difference"], number(suite["margin"])
    if difference is None:  # nor will there be one of too few tasks: the note says so
        sentences = ["No mean over tasks yet"] if suite["verdict"] != "not judged" else []
    else:
        interval = with_interval(difference, suite["ci_low"], suite["ci_high"])
        sentences = [
            f"Mean over {number(suite['num_tasks'])} tasks of the normalised score (zero 0, "
            f"reference 1), minus 1: {interval}, margin {margin}"
        ]
    sentences += [f"Left out: {_by_reason(suite['left_out'])}"] if suite["left_out"] else []
    sentences += [suite["note"]] if suite["note"] else []
    return _sentences(sentences)


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
    """Return what stands under a task's title in a figure: verdict, seeds, losses, gaps."""
    lines = {}
    for row in verdicts:
        said = frames.gaps(curves, row["task"])
        if "verdict" in row:  # else there is a task alone
            seeds = f", {counted(row['num_seeds'], 'seed')}" if row["num_seeds"] else ""
            said = [verdict_words(row) + seeds + losses(row), *said]
        lines[row["task"]] = "\n".join(said)
    return lines


def score_remarks(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what stands under a task's name in the figure of scores: both sides, verdict."""
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

    Returns:
        A table with a row for the suite, if it has a mean, and for each task; below it what is to
        be said of the suite and of every task that is marked or not `reproduced`. What holds of
        several tasks is said once.
    """
    rows = records(verdicts.reindex(columns=list(COLUMNS["verdicts"])))
    compared = any(row["reference_mean"] is not None for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    headings = ["task", "ours,\nmean ± std", "reference,\nmean ± std", "difference\n[interval]"]
    for name in headings if compared else headings[:2]:
        table.add_column(Text(name), justify="left" if name == "task" else "right", overflow="fold")
    table.add_column(Text("verdict\nmargin" if compared else "verdict"), overflow="fold")
    lines = []
    for whole in records(suite):
        if whole["difference"] is not None and compared:
            suite_of = Text(f"suite of {number(whole['num_tasks'])}")
            table.add_row(suite_of, "", "", *_last_cells(whole))
        line = Text("suite", _style(whole)).append(
            printable(f" {verdict_words(whole)}. {explain_suite(whole)}"), "none"
        )
        lines.append(line)
    for row in rows:
        ours = mean_and_spread(row["score_mean"], row["score_std"]) + losses(row)
        theirs = mean_and_spread(row["reference_mean"], row["reference_std"])
        share = reached(row["reference_share"])
        cells = (
            printable(row["task"]) + _counted(row["env_steps"], "step"),
            ours + _counted(row["num_seeds"], "seed"),
            theirs + _counted(row["reference_num_runs"], "run") + (f"\n{share}" if share else ""),
        )
        last = _last_cells(row)
        table.add_row(*map(Text, cells if compared else cells[:2]), *last[not compared :])
    heading = [Text(printable(title))] if title else []
    return Group(*heading, table, *lines, *_explanations(rows))


def _last_cells(row: Mapping[str, Any]) -> tuple[Text, Text]:
    """Return a difference with its interval below it, and a verdict with its margin."""
    difference = with_interval(row["difference"], row["ci_low"], row["ci_high"])
    margin = "" if row["margin"] is None else f"\n{number(row['margin'])}"
    verdict = Text(printable(verdict_words(row)), _style(row)).append(margin, "none")
    return Text(difference.replace(" ", "\n", 1)), verdict


def _style(row: Mapping[str, Any]) -> str:
    return TERMINAL_STYLES.get(row["verdict"], "yellow")


def _explanations(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a line for the tasks of which the same is to be said, and one for each reference."""
    said: dict[tuple[str, str, str], list[str]] = {}
    sources: dict[str, list[str]] = {}
    for row in rows:
        if (words := verdict_words(row)) != "reproduced":
            reasons = [each for each in _reasons(row) if not each.startswith(RATIO)]
            said.setdefault((words, _style(row), _sentences(reasons)), []).append(row["task"])
        if row["reference_source"]:
            sources.setdefault(row["reference_source"], []).append(row["task"])
    lines = []
    for (words, style, text), tasks in said.items():
        line = Text(printable(_named(tasks, len(rows))), style)
        lines.append(line.append(printable(f" {words}. {text}"), "none"))
    ratios = {row["task"]: row["ratio"] for row in rows if row["verdict"] == "shown only"}
    known = [f"{number(ratio)} on {task}" for task, ratio in ratios.items() if ratio is not None]
    lines += [Text(printable(f"{RATIO} {', '.join(known)}."))] if known else []
    for source, tasks in sources.items():
        of = "" if len(sources) == 1 else f"{_named(tasks, len(rows))}: "
        lines.append(Text(printable(f"{of}Reference: {name_of(source)}.")))
    return lines


def _named(tasks: Sequence[str], num_all: int) -> str:
    return "all tasks" if len(tasks) == num_all > 2 else ", ".join(tasks)


def _counted(count: Any, noun: str) -> str:
    """Return a number of things on a line of its own; nothing where it is missing."""
    return "" if count is None else f"\n{counted(count, noun)}"


def headline(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    suite: Mapping[str, Any] | None = None,
) -> str:
    """State the result in one sentence: settings, judge, the suite's verdict, counts of tasks."""
    verdicts = [row["verdict"] for row in rows]
    above, reproduced = verdicts.count("above"), sum(map(verdicts.count, VERDICTS[:2]))
    in_suite = len({*report["suite_tasks"], *(row["task"] for row in rows)})
    of_all = counted(in_suite, "task")
    if verdicts and set(verdicts) <= set(UNJUDGED):
        parts = [f"none of {of_all} can be judged"]
    else:
        parts = [f"{reproduced or 'none'} of {of_all} reproduced"]
    parts[0] += f" ({above} of them above the reference)" if above else ""
    others = [name for name in dict.fromkeys([*VERDICTS[2:], *verdicts]) if name in verdicts]
    parts += [f"{verdicts.count(name)} {name}" for name in others if name not in VERDICTS[:2]]
    unplanned = in_suite - len(rows)
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
    if report["suite"]:
        what = f"{report['agent'].upper()} on {report['suite']}"
        what += f" with the settings of '{report['source']}'"
    else:  # anybody's curves
        what = report["title"]
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
