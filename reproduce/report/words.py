"""Verdicts in words: for the page, the terminal and the figures.

A row is one of `verdicts.csv`, missing cells as None. Its remarks say how its runs were made: marks
(`settings changed`) stand beside the verdict's word, those with details (`settings changed: gamma =
0.98`) in sentences, too. Names in tables are hostile: their control characters are escaped in the
terminal.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import pandas as pd
from rich.console import Group
from rich.table import Table
from rich.text import Text

from reproduce.gather.references import name_of
from reproduce.judge.inference import LEVEL
from reproduce.judge.verdicts import UNJUDGED, VerdictName
from reproduce.plan.status import recorded_processor
from reproduce.report import frames
from reproduce.report.tables import COLUMNS, records
from reproduce.run.view import make_table
from reproduce.words import MISSING, counted, number, reached
from suite.settings.command_line import printable

OUR_SCORE = ("score_mean", "score_std", "num_seeds")
THEIR_SCORE = ("reference_mean", "reference_std", "reference_num_runs")
ABSENT = "none"
"""In place of a package's version, or a processor's name, that a record lacks."""
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
        text = f"{float(mean):z,.{decimals}f} ± {float(spread):,.{decimals}f}"
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
    first, second, third = (f"{float(part):z,.{decimals}f}" for part in (value, low, high))
    return f"{first} [{second}, {third}]"


def explain(row: Mapping[str, Any]) -> str:
    """Explain why a verdict was given and how to settle an open one, in a few sentences."""
    return _sentences(_reasons(row))


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{each[0].upper()}{each[1:]}." for each in said if each)


def _reasons(row: Mapping[str, Any]) -> list[str]:
    """Return the sentences that explain a verdict, its remarks last, without their full stops."""
    verdict, note = row["verdict"], str(row["note"] or "").strip(" .")
    by, margin = number(row["difference"]).removeprefix("-"), number(row["margin"])
    grounds = {
        "inconclusive": [f"these seeds cannot tell: {note}"],
        "nothing learned": [f"shown, not counted: {note}"],
        "shown only": [f"shown, not judged: {note}"],
        "no reference": [f"not judged: {note}"],
        "reproduced": ["not worse than the reference by more than the margin", note],
        "above": [f"settled: ahead by {by}, more than the margin {margin}", note],
        "below": [f"settled: short by {by}, where {margin} is allowed"],
    }
    said = grounds.get(verdict, [note])
    if verdict == "shown only" and row["ratio"] is not None:
        said.append(f"{RATIO} {number(row['ratio'])}")
    elif verdict == "no reference" and ":" in row["task"]:  # nobody publishes scores of an own one
        said.append("--baseline AGENT judges it by the runs of another agent")
    elif verdict == "no reference" and not row["num_failed"]:  # else it would not be enough
        steps = "" if row["env_steps"] is None else f" at {number(row['env_steps'])} steps"
        rule = f" under the rule '{row['rule']}'" if row["rule"] else ""
        said.append(f"a published score{steps}{rule} would settle it")
    elif verdict == "below":
        said.append("the departures from the source are the first suspects")
        if (row["p_below_holm"] or 0.0) > LEVEL:
            chance = f"(adjusted p-value {number(row['p_below_holm'])})"
            status = "so the exit status does not count it"
            said.append(f"among all tasks that may be chance {chance}, {status}")
        said.append(note)
    return [*said, *details(row.get("remarks") or "")]


def explain_suite(suite: Mapping[str, Any]) -> str:
    """Explain the verdict on a suite, a row of `suite.csv`, and what is left out."""
    said = []
    if suite["difference"] is not None:
        interval = with_interval(suite["difference"], suite["ci_low"], suite["ci_high"])
        said.append(
            f"Mean over {number(suite['num_tasks'])} tasks of the normalised score (zero 0, "
            f"reference 1), minus 1: {interval}, margin {number(suite['margin'])}"
        )
    elif suite["verdict"] != "not judged":  # of too few tasks the note says that there will be none
        said.append("No mean over tasks yet")
    left_out = f"Left out: {suite['left_out']}" if suite["left_out"] else ""
    return _sentences([*said, left_out, suite["note"] or ""])


def verdict_words(row: Mapping[str, Any]) -> str:
    """Return a verdict as it is shown, with its marks: exploratory, older runs, remarks."""
    older = row.get("older_runs")
    words = [str(row["verdict"]), "exploratory" * bool(row.get("exploratory"))]
    words.append(f"older runs {older}" if older else "")
    return ", ".join(filter(None, [*words, *marks(row.get("remarks") or "")]))


def panel_remarks(verdicts: Iterable[Mapping[str, Any]], curves: pd.DataFrame) -> dict[str, str]:
    """Return what stands under a task's title in a figure: verdict, seeds, losses, gaps."""
    lines = {}
    for row in verdicts:
        seeds = f", {counted(row['num_seeds'], 'seed')}" if row["num_seeds"] else ""
        said = [verdict_words(row) + seeds + losses(row), *frames.gaps(curves, row["task"])]
        lines[row["task"]] = "\n".join(said)
    return lines


def score_remarks(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what stands under a task's name in the figure of scores: both sides, verdict."""
    lines = {}
    for row in verdicts:
        ours, theirs = (mean_and_spread(*map(row.get, side)) for side in (OUR_SCORE, THEIR_SCORE))
        said = ["no score recorded" if row["score_mean"] is None else ours]
        said += [] if row["reference_mean"] is None else [f"reference {theirs}"]
        lines[row["task"]] = f"{', '.join(said)}\n{verdict_words(row)}{losses(row)}"
    return lines


def verdict_lines(verdicts: pd.DataFrame, suite: pd.DataFrame, title: str) -> Group:
    """Return the verdicts as they are shown in a terminal, the suite's first.

    Returns:
        A table with a row for the suite, if it has a mean, and for each task; below it what is to
        be said of the suite and of every task that is marked or not `reproduced`. What holds of
        several tasks is said once.
    """
    rows = records(verdicts.reindex(columns=list(COLUMNS["verdicts"])))
    compared = any(row["reference_mean"] is not None for row in rows)
    headings = ["task", "ours,\nmean ± std"]
    headings += ["reference,\nmean ± std", "difference\n[interval]"] if compared else []
    verdict = "verdict\nmargin" if compared else "verdict"
    table = make_table(*headings, verdict, left=[verdict])
    lines: list[Text | Table] = [Text(printable(title))] if title else []
    lines.append(table)
    for whole in records(suite):
        if whole["difference"] is not None and compared:
            of_all = Text(f"suite of {number(whole['num_tasks'])}")
            table.add_row(of_all, "", "", *_last_cells(whole))
        lines.append(_line("suite", whole, explain_suite(whole)))
    for row in rows:
        share = reached(row["reference_share"])
        theirs = mean_and_spread(row["reference_mean"], row["reference_std"])
        cells = (
            printable(row["task"]) + _counted(row["env_steps"], "step"),
            mean_and_spread(row["score_mean"], row["score_std"])
            + losses(row)
            + _counted(row["num_seeds"], "seed"),
            theirs + _counted(row["reference_num_runs"], "run") + (f"\n{share}" if share else ""),
        )
        last = _last_cells(row)
        table.add_row(*map(Text, cells if compared else cells[:2]), *last[not compared :])
    return Group(*lines, *_explanations(rows))


def _last_cells(row: Mapping[str, Any]) -> tuple[Text, Text]:
    difference = with_interval(row["difference"], row["ci_low"], row["ci_high"])
    margin = "" if row["margin"] is None else f"\n{number(row['margin'])}"
    verdict = Text(printable(verdict_words(row)), _style(row)).append(margin, "none")
    return Text(difference.replace(" ", "\n", 1)), verdict


def _style(row: Mapping[str, Any]) -> str:
    return TERMINAL_STYLES.get(row["verdict"], "yellow")


def _line(name: str, row: Mapping[str, Any], text: str) -> Text:
    """Return what is said of a suite, or of tasks with a verdict like this one."""
    words = printable(f" {verdict_words(row)}. {text}")
    return Text(printable(name), _style(row)).append(words, "none")


def _explanations(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a line for the tasks of which the same is to be said, and one for each reference."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    sources: dict[str, list[str]] = {}
    for row in rows:
        if (words := verdict_words(row)) != "reproduced":
            reasons = (each for each in _reasons(row) if not each.startswith(RATIO))
            alike.setdefault((words, _sentences(reasons)), []).append(row)
        if row["reference_source"]:
            sources.setdefault(row["reference_source"], []).append(row["task"])

    def named(tasks: Sequence[str]) -> str:
        return "all tasks" if len(tasks) == len(rows) > 2 else ", ".join(tasks)

    lines = []
    for (_, text), own in alike.items():
        lines.append(_line(named([row["task"] for row in own]), own[0], text))
    ratios = {row["task"]: row["ratio"] for row in rows if row["verdict"] == "shown only"}
    known = [f"{number(ratio)} on {task}" for task, ratio in ratios.items() if ratio is not None]
    lines += [Text(printable(f"{RATIO} {', '.join(known)}."))] if known else []
    for source, tasks in sources.items():
        where = "" if len(sources) == 1 else f"{named(tasks)}: "
        lines.append(Text(printable(f"{where}Reference: {name_of(source)}.")))
    return lines


def _counted(count: Any, noun: str) -> str:
    """Return a number of things on a line of its own; nothing where it is missing."""
    return "" if count is None else f"\n{counted(count, noun)}"


def headline(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    suite: Mapping[str, Any] | None = None,
) -> str:
    """State the result in one sentence: settings, judge, the suite's verdict, counts of tasks."""
    what = report["title"]
    judge = f"'{report['judged_by']}'" if report["judged_by"] else "no reference"
    if not rows:
        return f"{what}, judged by {judge}: no task yet."
    counts = Counter(row["verdict"] for row in rows)
    above, reproduced = counts.pop("above", 0), counts.pop("reproduced", 0)
    num_tasks = len({*report["suite_tasks"], *(row["task"] for row in rows)})
    first = f"{above + reproduced or 'none'} of {counted(num_tasks, 'task')} reproduced"
    if not above + reproduced and set(counts) <= set(UNJUDGED):
        first = f"none of {counted(num_tasks, 'task')} can be judged"
    first += f" ({above} of them above the reference)" if above else ""
    order = [name for name in dict.fromkeys([*get_args(VerdictName), *counts]) if name in counts]
    older = Counter(f"with older runs {row['older_runs']}" for row in rows if row["older_runs"])
    more = {name: counts[name] for name in order} | {"not planned": num_tasks - len(rows)}
    more["exploratory"] = sum(bool(row["exploratory"]) for row in rows)
    more |= dict(sorted(older.items()))
    parts = [first, *(f"{count} {name}" for name, count in more.items() if count)]
    if suite:
        parts.insert(0, f"the suite {verdict_words(suite)}")
    return f"{what}, judged by {judge}: {', '.join(parts)}."


def _decimals(spread: Any) -> int | None:
    """Return the decimals that show two significant digits of a spread; None without a spread."""
    if pd.isna(spread) or not math.isfinite(spread) or spread == 0:
        return None
    return min(6, max(0, 1 - math.floor(math.log10(abs(spread)))))


def losses(row: Mapping[str, Any]) -> str:
    """Count failed and diverged runs, in words, so that a mean never hides them."""
    counts = [(row["num_failed"], "failed"), (row["num_diverged"], "diverged")]
    return "".join(f", {number(count)} {what}" for count, what in counts if count)


def remarks_on(settings: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> str:
    """Return the remarks on a task's verdict, separated by semicolons; empty without any."""
    remarks = []
    if settings:
        changes = ", ".join(f"{key} = {value}" for key, value in settings.items())
        remarks.append(f"settings changed: {changes}")
    dirty = sum(record.get("dirty") is True for record in records)
    if dirty:
        remarks.append(f"uncommitted code: in {dirty} of {len(records)} runs")
    versions = [record.get("versions", {}) for record in records]
    different = [
        f"{package} {differing}"
        for package in sorted({package for each in versions for package in each})
        if (differing := _differing(each.get(package) for each in versions))
    ]
    if different:
        remarks.append(f"versions differ: {', '.join(different)}")
    if processors := _differing(_processors(records)):
        remarks.append(f"processors differ: {processors}")
    return printable("; ".join(remarks))


def marks(remarks: str) -> list[str]:
    """Return what remarks begin with, each once, which stands beside the verdict's word."""
    found = (remark.partition(": ")[0] for remark in remarks.split("; ") if remark)
    return list(dict.fromkeys(found))


def details(remarks: str) -> list[str]:
    """Return the remarks that have details, which are said in sentences."""
    return [remark for remark in remarks.split("; ") if ": " in remark]


def _processors(records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what each run computed on: its GPU, or its processor as far as all records tell."""
    machines = [record.get("machine", {}) for record in records]
    processors = [recorded_processor(machine) for machine in machines]
    if not all(processors):
        processors = [machine.get("cpu") for machine in machines]
    devices = [record["config"].get("device", "cpu") for record in records]
    told = zip(machines, processors, devices, strict=True)
    return [processor if device == "cpu" else each.get("gpu") for each, processor, device in told]


def _differing(values: Iterable[Any]) -> str:
    """Return values in words, each once, if there are several; else nothing."""
    words = (ABSENT if value is None else str(value).replace(";", ",") for value in values)
    found = dict.fromkeys(words)
    return " and ".join(sorted(found)) if len(found) > 1 else ""
