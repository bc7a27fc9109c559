"""The page and the terminal table of a comparison, made only from the files in its directory.

`write_page(directory)` writes `index.html`: one file that needs no network and no other file. Its
charts need scripts, which it carries; the files of figures beside it need none.
`verdict_lines` returns the same verdicts as a table for the terminal. Names in the files
are treated as hostile: they are escaped on the page and stripped of control characters in the
terminal; the page runs no script but those whose checksums it states.
"""

import base64
import functools
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import markupsafe
import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from reproduce.gather.references import name_of
from reproduce.judge.inference import LEVEL
from reproduce.judge.remarks import details, marks
from reproduce.judge.verdicts import UNJUDGED
from reproduce.report import charts, frames
from reproduce.report.films import contact_sheets
from reproduce.words import MISSING, counted, number, reached, visible
from suite.files import read_json, read_whole, write_atomically
from suite.settings import UsageError

LARGEST_INPUT = 2**28
"""Bytes of one table that the page reads: 256 MiB."""

FAILURES_SHOWN_OPEN = 3
"""Log tails shown unfolded; the others are one click away."""

SECTIONS = {
    **{"verdicts": "Verdicts", "curves": "Curves", "scores": "Scores", "suite": "Over the tasks"},
    **{"improvement": "Improvement", "throughput": "Throughput", "failures": "Failed runs"},
    **{"departures": "Departures", "again": "Run this again", "files": "Files"},
}
"""Identifiers of the page's parts, with their names in its list of parts."""

TEMPLATES = Path(__file__).parent / "templates"

ASSETS = {
    "plotly.min.js": charts.library,
    "charts.js": charts.script,
    "page.js": lambda: (TEMPLATES / "page.js").read_text(encoding="utf-8"),
}
"""The page's scripts: how each is read."""

COLUMNS = {
    "curves": ("task", "seed", "env_steps", "mean_return", "wall_seconds", "rule"),
    "reference_curves": (
        *("task", "source", "env_id", "env_steps", "return_mean", "return_low", "return_high"),
        *("num_runs", "rule", "role"),
    ),
    "scores": (
        *("task", "seed", "env_steps", "score", "rule", "zero_score", "reference_score"),
        "normalised_score",
    ),
    "reference_scores": (
        *("task", "source", "run", "env_steps", "score", "rule", "zero_score"),
        *("reference_score", "normalised_score"),
    ),
    "throughput": (
        *("task", "seed", "device", "env_steps", "num_updates", "wall_seconds"),
        *("env_steps_per_second", "updates_per_second", "environment_share", "acting_share"),
        *("learning_share", "other_share", "env_frames_per_second"),
    ),
    "verdicts": (
        *("task", "verdict", "exploratory", "older_runs", "env_steps", "rule", "num_seeds"),
        *("num_failed", "num_diverged", "score_mean", "score_std"),
        *("reference_source", "reference_mean", "reference_std", "reference_num_runs", "how"),
        *("zero_score", "margin", "difference", "ci_low", "ci_high", "p_below", "p_below_holm"),
        *("smallest_detectable_shortfall", "seeds_to_settle", "ratio", "note"),
        *("area_mean", "area_std", "reference_area", "fingerprint"),
        *("remarks", "reference_share"),
    ),
    "suite": (
        *("verdict", "exploratory", "older_runs", "num_tasks", "num_seeds"),
        *("difference", "ci_low", "ci_high", "margin", "p_below", "left_out", "note"),
        "remarks",
    ),
    "summary": ("statistic", "estimate", "ci_low", "ci_high", "num_tasks", "num_seeds"),
    "improvement": ("task", "probability", "ci_low", "ci_high", "num_seeds", "num_runs"),
    "runs": (
        *("task", "seed", "status", "error", "remark", "env_steps", "wall_seconds", "device"),
        *("cpu", "gpu", "commit", "dirty", "command", "log_tail"),
    ),
}
"""Columns of every tidy file, by its stem."""

TEXT_COLUMNS = frozenset(
    (
        *("task", "rule", "source", "env_id", "role", "device", "verdict", "reference_source"),
        *("remarks", "note", "statistic", "status", "error", "cpu", "gpu", "commit"),
        *("dirty", "command", "log_tail", "left_out", "how", "older_runs", "remark"),
    )
)

JUDGEABLE = ("reproduced", "above", "below", "inconclusive")
"""Verdicts on tasks whose reference can judge."""

UNFINISHED = ("running", "interrupted", "planned", "left out")
"""Statuses of runs without a result."""

VERDICTS = (
    *("reproduced", "above", "below", "inconclusive", "nothing learned", "shown only"),
    "no reference",
    "not judged",
)
"""Every verdict, and `not judged` for a task that has none yet, in the order of the headline; the
first two both say that the result was reproduced."""

RATIO = "With the zero of the scale at 0 and the reference at 1, ours is at"

TERMINAL_STYLES = {"reproduced": "green", "above": "cyan", "below": "bold red"}


def read_table(directory: Path, name: str) -> pd.DataFrame:
    """Read one tidy file of a comparison.

    Args:
        directory: Where the files of the comparison lie.
        name: Stem of the file, a key of `COLUMNS`.

    Returns:
        The rows with every column of `COLUMNS[name]`; empty if the file is missing. Only an empty
        cell counts as missing, so a task may be called `NA`.

    Raises:
        UsageError: If the file is larger than `LARGEST_INPUT`, or none.
    """
    columns = list(COLUMNS[name])
    path = directory / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=pd.Index(columns))
    text: Any = {name: str for name in columns if name in TEXT_COLUMNS}
    try:
        content = read_whole(path, LARGEST_INPUT)
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable {path}: {error}") from None
    table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=[""])
    return table.reindex(columns=columns)


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


def duration(seconds: Any) -> str:
    """Format wall time in hours, minutes or seconds."""
    if pd.isna(seconds):
        return MISSING
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def percentage(share: Any) -> str:
    """Format a fraction as a percentage."""
    return MISSING if pd.isna(share) else f"{100 * share:.0f} %"


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
            said = [verdict_words(row) + seeds + _losses(row), *said]
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
        lines[row["task"]] = f"{', '.join(said)}\n{verdict_words(row)}{_losses(row)}"
    return lines


def _remarks_of(row: Mapping[str, Any]) -> str:
    remarks = row.get("remarks")
    return remarks if isinstance(remarks, str) else ""


def verdict_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of `verdicts.csv`, and a row `not judged` for every other planned task."""
    table = read_table(directory, "verdicts")
    rows = records(table)
    planned = [*read_table(directory, "runs")["task"], *read_report(directory)["env_steps"]]
    for task in dict.fromkeys(planned):
        if task not in set(table["task"]):
            rows.append(
                dict.fromkeys(COLUMNS["verdicts"]) | {"task": task, "verdict": "not judged"}
            )
    return rows


def suite_row(directory: Path) -> dict[str, Any] | None:
    """Return the row of `suite.csv`; None without one."""
    rows = records(read_table(directory, "suite"))
    return rows[0] if rows else None


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
        ours = mean_and_spread(row["score_mean"], row["score_std"]) + _losses(row)
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


def write_page(directory: Path) -> Path:
    """Write `index.html` from the tidy files, `report.json` and the figures in a directory.

    Args:
        directory: Where the files of the comparison lie; all but `report.json` are optional.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If the directory holds no `report.json`.
    """
    path = Path(directory) / "index.html"
    write_atomically(path, render(directory).encode())
    return path


def render(directory: Path, assets: str = "", home: str = "") -> str:
    """Return the page of a comparison.

    Args:
        directory: As for `write_page`.
        assets: Relative address of a folder that holds `ASSETS`, which pages share and link to;
            empty: the page carries them.
        home: Address of the start page of a site that the page is part of.
    """
    directory = Path(directory)
    report, verdicts = read_report(directory), verdict_rows(directory)
    tables = {name: read_table(directory, name) for name in COLUMNS}
    rows = {name: records(table) for name, table in tables.items()}
    runs, suite = rows["runs"], suite_row(directory)
    failures = [run for run in runs if run["status"] in ("failed", "diverged")]
    scripts = {name: read() for name, read in ASSETS.items()}
    drawn, profile_note = _charts(report, verdicts, tables)
    compared = set(tables["improvement"]["task"])
    absent = {name for name, chart in drawn.items() if not chart} - {"scores"}
    absent |= {"suite"} if len(verdicts) < 2 else set()
    absent |= set() if failures else {"failures"}
    page = (
        environment()
        .get_template("index.html.j2")
        .render(
            report=report,
            credits=report["sources"],
            style=markupsafe.Markup(style()),
            home=home,
            scripts=[_script_element(name, text, assets) for name, text in scripts.items()],
            allowed=markupsafe.Markup(
                "'self'" if assets else " ".join(map(_checksum, scripts.values()))
            ),
            headline=headline(report, verdicts, suite),
            counts=_in_words(count_tasks(report, verdicts, runs)),
            sections={name: words for name, words in SECTIONS.items() if name not in absent},
            suite=suite,
            verdicts=verdicts,
            charts=drawn,
            profile_note=profile_note,
            without_improvement=[row["task"] for row in verdicts if row["task"] not in compared],
            failures=failures,
            failures_shown_open=FAILURES_SHOWN_OPEN,
            unfinished=[run for run in runs if run["status"] in UNFINISHED],
            runs=[run | {"folder": _run_folder(directory, run)} for run in runs],
            **{name: rows[name] for name in ("scores", "throughput", "summary")},
            films=contact_sheets(directory),
            files=[
                *(f"{name}.csv" for name in COLUMNS if (directory / f"{name}.csv").exists()),
                "report.json",
            ],
            figure_files=[
                name
                for name in (
                    "curves.svg",
                    "curves.png",
                    "curves.pdf",
                    "scores.svg",
                    "scores.png",
                    "scores.pdf",
                )
                if (directory / name).exists()
            ],
        )
    )
    return page


def style() -> str:
    """Return the style sheet of the page and its charts."""
    return (TEMPLATES / "page.css").read_text(encoding="utf-8")


@functools.cache
def environment() -> jinja2.Environment:
    """Return the template environment of the page and the site."""
    own = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    own.filters = own.filters | {
        "counted": counted,
        "number": number,
        "duration": duration,
        "percentage": percentage,
        "plain": _plain,
        "reached": reached,
    }
    own.globals = own.globals | {
        "mean_and_spread": mean_and_spread,
        "with_interval": with_interval,
        "losses": _losses,
        "explain": explain,
        "explain_suite": explain_suite,
        "verdict_words": verdict_words,
    }
    return own


def _charts(
    report: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    tables: Mapping[str, pd.DataFrame],
) -> tuple[dict[str, list[markupsafe.Markup]], str]:
    """Return the page's charts by their section, and what the performance profile leaves out."""
    judged = pd.DataFrame(verdicts, columns=pd.Index(COLUMNS["verdicts"]))
    both = (tables["scores"], tables["reference_scores"])
    scores = frames.final_scores(*both, judged, report["sources"])
    profile, note = charts.profile_chart(scores)
    improvement, throughput = tables["improvement"], tables["throughput"]
    drawn = {
        "scores": charts.scores_charts(scores) if len(tables["scores"]) else [],
        "profile": [profile] if profile else [],
        "improvement": charts.improvement_charts(improvement),
        "throughput": charts.throughput_charts(throughput) if len(throughput) else [],
    }
    made = {name: [*map(charts.fragment, figures)] for name, figures in drawn.items()}
    grids = {"ours": tables["curves"]}
    parts = (tables["reference_curves"], verdicts, report["sources"])
    return made | {"curves": [learning_curves(grids, *parts)] if verdicts else []}, note


def learning_curves(
    grids: Mapping[str, pd.DataFrame],
    reference_curves: pd.DataFrame,
    verdicts: Sequence[Mapping[str, Any]],
    credits: frames.Credits,
) -> markupsafe.Markup:
    """Return the chart of learning curves, and words on the sources that are and are not on it.

    Args:
        grids: Rows of `curves.csv` by the name that the legend shows.
        reference_curves: Rows of `reference_curves.csv`, of one grid or of several.
        verdicts: Rows of `verdicts.csv`, missing cells as None; each of their tasks has a panel.
        credits: What is known of sources, as `references.credits_of` returns it.
    """
    planned = {str(row["task"]): int(row["env_steps"] or 0) for row in verdicts}
    curves = frames.learning_curves(grids, reference_curves, planned, credits)
    rules = [rule for rows in grids.values() for rule in rows["rule"]]
    drawn = frames.comparable(rules, reference_curves)
    others = reference_curves.loc[reference_curves.index.difference(drawn.index)]
    names = {
        source: credits.get(source, {}).get("name", source) for source in reference_curves["source"]
    }
    sources = []
    for source, rows in drawn.groupby("source", sort=False):
        runs = rows["num_runs"].max()
        words = "runs unknown" if pd.isna(runs) else counted(runs, "run")
        words = "the judge, " * ("judge" in set(rows["role"])) + words
        known = credits.get(str(source), {})
        links = {label: known[label] for label in ("paper", "code") if known.get(label)}
        sources.append((names[str(source)], words, links))
    left_out = {f"{names[row.source]} ({row.rule})": None for row in others.itertuples()}
    text = (
        environment()
        .get_template("curves.html.j2")
        .render(
            chart=charts.fragment(charts.curves_chart(curves, panel_remarks(verdicts, curves))),
            sources=sources,
            left_out=list(left_out),
        )
    )
    return markupsafe.Markup(text)


def _in_words(counts: Counts) -> list[tuple[str, int]]:
    """Return the counts with their words."""
    return [(name.replace("_", " "), count) for name, count in counts._asdict().items()]


def _checksum(script: str) -> str:
    """Return what a content security policy calls a script that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _script_element(name: str, text: str, assets: str) -> markupsafe.Markup:
    if assets:
        return markupsafe.Markup('<script src="{}{}"></script>').format(assets, name)
    return markupsafe.Markup(f"<script>{text}</script>")


def read_report(directory: Path) -> dict[str, Any]:
    """Read `report.json`; missing entries are empty.

    Raises:
        UsageError: If it cannot be read.
        FileNotFoundError: If there is none.
    """
    try:
        report = read_json(directory / "report.json")
    except ValueError as error:
        raise UsageError(f"unreadable {directory / 'report.json'}: {error}") from None
    names = ("agent", "suite", "source", "judged_by", "judge", "budget", "last_run_ended_at")
    text = dict.fromkeys(names, "")
    tables = {name: {} for name in ("env_steps", "config", "versions", "hardware", "sources")}
    title = f"{report.get('agent', '')} on {report.get('suite', '')}"
    defaults = {
        **text,
        **tables,
        "suite_tasks": [],
        "seeds": [],
        "departures": [],
        "title": title,
        "command": "",
    }
    return defaults | {name: value for name, value in report.items() if value is not None}


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; missing cells become None."""
    rows = table.to_dict("records")
    return [{str(key): None if pd.isna(row[key]) else row[key] for key in row} for row in rows]


def _decimals(spread: Any) -> int | None:
    """Return the decimals that show two significant digits of a spread; None without a spread."""
    if pd.isna(spread) or not math.isfinite(spread) or spread == 0:
        return None
    return min(6, max(0, 1 - math.floor(math.log10(abs(spread)))))


def _losses(row: Mapping[str, Any]) -> str:
    """Count failed and diverged runs, in words, so that a mean never hides them."""
    counts = [(row["num_failed"], "failed"), (row["num_diverged"], "diverged")]
    return "".join(f", {number(count)} {what}" for count, what in counts if count)


def _what_would_decide(row: Mapping[str, Any]) -> str:
    """Say how to settle an inconclusive task whose row lacks a note."""
    if row["seeds_to_settle"] is not None:
        return f"{counted(row['seeds_to_settle'], 'seed')} would settle it"
    return f"the reference has only {counted(row['reference_num_runs'], 'run')}"


def _plain(value: Any) -> str:
    """Return a setting, a fact or a cell as text; a dash if it is missing."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _printable(text: str) -> str:
    """Replace unprintable characters, which could move a terminal's cursor or hide a line."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _run_folder(directory: Path, run: Mapping[str, Any]) -> str:
    """Return a relative link to a run's folder, or "" without a folder to open."""
    parts = (str(run["task"]), f"seed-{run['seed']}")
    is_safe = all(part not in ("", ".", "..") and "/" not in part for part in parts)
    exists = is_safe and directory.joinpath(*parts).is_dir()
    return f"./{'/'.join(quote(part, safe='') for part in parts)}/" if exists else ""
