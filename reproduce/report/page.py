"""The page and the terminal table of a comparison, made only from the files in its directory.

`write_page(directory)` writes `index.html`: one file, readable without scripts, a network or other
files. `verdict_lines(directory)` returns the same verdicts as a table for the terminal. Names in
the files are treated as hostile: they are escaped on the page and stripped of control characters
in the terminal, and figures are embedded as images, in which scripts cannot run.
"""

import base64
import contextlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from reproduce.report.films import contact_sheets
from suite.files import read_json, read_whole, write_atomically
from suite.settings import UsageError

MISSING = "\N{EM DASH}"
LARGEST_INLINE_SVG = 3_000_000
"""Bytes above which the page shows the PNG of a figure instead, so that it still opens quickly."""
LARGEST_FIGURE = 2**25
"""Bytes of a figure that the page shows: 32 MiB."""

LARGEST_INPUT = 2**28
"""Bytes of one table that the page reads: 256 MiB."""

FAILURES_SHOWN_OPEN = 3
"""Log tails shown unfolded; the others are one click away."""

COLUMNS = {
    "curves": ("task", "seed", "env_steps", "mean_return", "rule"),
    "reference_curves": (
        *("task", "source", "env_id", "env_steps", "return_mean", "return_low", "return_high"),
        *("num_runs", "rule", "role"),
    ),
    "scores": (
        *("task", "seed", "env_steps", "score", "rule", "random_score", "reference_score"),
        "normalised_score",
    ),
    "throughput": (
        *("task", "seed", "device", "env_steps", "num_updates", "wall_seconds"),
        *("env_steps_per_second", "updates_per_second", "environment_share", "acting_share"),
        *("learning_share", "other_share", "env_frames_per_second"),
    ),
    "verdicts": (
        *("task", "verdict", "exploratory", "older_runs", "env_steps", "rule", "num_seeds"),
        *("num_failed", "num_diverged", "looks", "look", "level", "score_mean", "score_std"),
        *("reference_source", "reference_mean", "reference_std", "reference_num_runs", "how"),
        *("random_score", "margin", "difference", "ci_low", "ci_high", "p_below", "p_below_holm"),
        *("smallest_detectable_shortfall", "seeds_to_settle", "ratio", "note"),
        *("area_mean", "area_std", "reference_area", "fingerprint"),
    ),
    "suite": (
        *("verdict", "exploratory", "older_runs", "num_tasks", "num_seeds", "level"),
        *("difference", "ci_low", "ci_high", "margin", "p_below", "left_out", "note"),
    ),
    "summary": ("statistic", "estimate", "ci_low", "ci_high", "num_tasks", "num_seeds"),
    "runs": (
        *("task", "seed", "status", "error", "remark", "env_steps", "wall_seconds", "device"),
        *("cpu", "gpu", "commit", "dirty", "command", "log_tail"),
    ),
}
"""Columns of every tidy file, by its stem."""

TEXT_COLUMNS = frozenset(
    (
        *("task", "rule", "source", "env_id", "role", "device", "verdict", "reference_source"),
        *("note", "statistic", "status", "error", "cpu", "gpu", "commit"),
        *("dirty", "command", "log_tail", "looks", "left_out", "how", "older_runs", "remark"),
    )
)

VERDICTS = (
    *("reproduced", "above", "below", "inconclusive", "shown only", "no reference"),
    "not judged",
)
"""Every verdict, and `not judged` for a task that has none yet, in the order of the headline; the
first two both say that the result was reproduced."""

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


def number(value: Any) -> str:
    """Format a number for people: three significant digits, or all before the point."""
    if pd.isna(value):
        return MISSING
    value = float(value)
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


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
    verdict, margin = row["verdict"], number(row["margin"])
    note = str(row["note"] or "").strip(" .")
    if verdict == "inconclusive":
        return f"These seeds cannot tell: {note or _what_would_decide(row)}."
    if verdict == "shown only":
        reason = note or "the reference cannot judge"
        return (
            f"Shown, not judged: {reason}. With a random policy at 0 and the reference at 1, ours "
            f"is at {number(row['ratio'])}."
        )
    if verdict == "no reference":
        reason = note or "nothing comparable is published"
        steps = number(row["env_steps"])
        return (
            f"Not judged: {reason}. A published score at {steps} steps under the rule "
            f"'{row['rule'] or MISSING}' would settle it."
        )
    shortfall = None if row["difference"] is None else -row["difference"]
    sentences = {
        "reproduced": "Not worse than the reference by more than the margin.",
        "above": f"Settled: ahead by {number(row['difference'])}, more than the margin {margin}.",
        "below": f"Settled: short by {number(shortfall)}, where {margin} is allowed. "
        "The departures from the source are the first suspects.",
    }
    sentence = sentences.get(verdict, "Needs finished runs and a verdict.")
    if verdict == "below" and (row["p_below_holm"] or 0.0) > (row["level"] or 1.0):
        sentence += (
            " Among all tasks of its look that may be chance (adjusted p-value "
            f"{number(row['p_below_holm'])}), so the exit status does not count it."
        )
    return f"{sentence} {note[0].upper()}{note[1:]}." if note else sentence


def explain_suite(suite: Mapping[str, Any]) -> str:
    """Explain the verdict on a suite: the comparison, and the tasks left out.

    Args:
        suite: The row of `suite.csv`, missing cells as None.

    Returns:
        One to three sentences.
    """
    difference, margin = suite["difference"], number(suite["margin"])
    if difference is None:
        sentences = [f"No mean over {number(suite['num_tasks'])} tasks yet"]
    else:
        interval = with_interval(difference, suite["ci_low"], suite["ci_high"])
        sentences = [
            f"Mean over {number(suite['num_tasks'])} tasks of the score, a random policy at 0 and "
            f"the reference at 1, minus 1: {interval}, margin {margin}"
        ]
    sentences += [f"Left out: {suite['left_out']}"] if suite["left_out"] else []
    sentences += [f"{suite['note'][0].upper()}{suite['note'][1:]}"] if suite["note"] else []
    return " ".join(f"{sentence}." for sentence in sentences)


def is_exploratory(row: Mapping[str, Any]) -> bool:
    """Return whether a verdict counts seeds beyond the declared looks."""
    return pd.notna(row.get("exploratory")) and bool(row["exploratory"])


def verdict_words(row: Mapping[str, Any]) -> str:
    """Return a verdict as it is shown, marked if it is exploratory or older code made runs."""
    older = row.get("older_runs")
    words = [str(row.get("verdict", "not judged")), "exploratory" * is_exploratory(row)]
    words.append(f"older runs {older}" if older and pd.notna(older) else "")
    return ", ".join(filter(None, words))


def verdict_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of `verdicts.csv`, and a row `not judged` for every other planned task."""
    table = read_table(directory, "verdicts")
    rows = _records(table)
    planned = [*read_table(directory, "runs")["task"], *_read_report(directory)["env_steps"]]
    for task in dict.fromkeys(planned):
        if task not in set(table["task"]):
            rows.append(
                dict.fromkeys(COLUMNS["verdicts"]) | {"task": task, "verdict": "not judged"}
            )
    return rows


def suite_row(directory: Path) -> dict[str, Any] | None:
    """Return the row of `suite.csv`; None without one."""
    rows = _records(read_table(directory, "suite"))
    return rows[0] if rows else None


def verdict_lines(comparison: Path | pd.DataFrame, suite: pd.DataFrame | None = None) -> Table:
    """Return the verdicts as a table for the terminal, the suite's first.

    Args:
        comparison: Directory of a comparison, or the rows of its `verdicts.csv`.
        suite: The rows of its `suite.csv`; read where `comparison` is a directory.

    Returns:
        A row for the suite and for each task; below them, explanations of the suite and of every
        task that is marked or not `reproduced`.
    """
    if isinstance(comparison, pd.DataFrame):
        rows = _records(comparison.reindex(columns=list(COLUMNS["verdicts"])))
        whole = next(iter(_records(suite)), None) if suite is not None else None
    else:
        rows, whole = verdict_rows(Path(comparison)), suite_row(Path(comparison))
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left", pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("ours, mean ± std (seeds)", justify="right")
    table.add_column("reference, mean ± std (runs, source)", justify="right")
    table.add_column(Text("difference [interval], margin"), justify="right")
    table.add_column("verdict")
    caption = Text()
    if whole:
        style = TERMINAL_STYLES.get(whole["verdict"], "yellow")
        interval = with_interval(whole["difference"], whole["ci_low"], whole["ci_high"])
        cells = (f"suite of {number(whole['num_tasks'])}", "", "")
        cells += (f"{interval}, {number(whole['margin'])}",)
        table.add_row(*map(Text, map(_printable, cells)), Text(verdict_words(whole), style))
        caption.append("suite", style).append(_printable(f" {verdict_words(whole)}. "))
        caption.append(_printable(explain_suite(whole)))
    for row in rows:
        reference = (row["reference_mean"], row["reference_std"], row["reference_num_runs"])
        cells = (
            row["task"],
            mean_and_spread(row["score_mean"], row["score_std"], row["num_seeds"]) + _losses(row),
            mean_and_spread(*reference, row["reference_source"]),
            with_interval(row["difference"], row["ci_low"], row["ci_high"])
            + ("" if row["margin"] is None else f", {number(row['margin'])}"),
        )
        style = TERMINAL_STYLES.get(row["verdict"], "yellow")
        table.add_row(
            *(Text(_printable(cell)) for cell in cells), Text(_printable(verdict_words(row)), style)
        )
        if verdict_words(row) != "reproduced":
            caption.append("\n" if caption else "").append(_printable(row["task"]), style)
            caption.append(_printable(f" {verdict_words(row)}. {explain(row)}"))
    table.caption = caption if caption else None
    return table


def headline(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    suite: Mapping[str, Any] | None = None,
) -> str:
    """State the result in one sentence: settings, judge, the suite's verdict and each count."""
    verdicts = [row["verdict"] for row in rows]
    above, total = verdicts.count("above"), len(verdicts)
    matched = verdicts.count("reproduced") + above
    parts = [f"{matched or 'none'} of {total} task{'s' * (total != 1)} reproduced" if total else ""]
    parts[0] += f" ({above} of them above the reference)" if above else ""
    others = [name for name in dict.fromkeys([*VERDICTS[2:], *verdicts]) if name in verdicts]
    parts += [f"{verdicts.count(name)} {name}" for name in others if name not in VERDICTS[:2]]
    num_exploratory = sum(map(is_exploratory, rows))
    parts += [f"{num_exploratory} exploratory"] if num_exploratory else []
    marks = [str(row.get("older_runs") or "") for row in rows]
    parts += [
        f"{marks.count(mark)} with older runs {mark}"
        for mark in ("counted", "left out")
        if mark in marks
    ]
    if suite and total:
        parts.insert(0, f"the suite {verdict_words(suite)}")
    what = (
        f"{report['agent'].upper()} on {report['suite']} with the settings of '{report['source']}'"
    )
    judge = (
        f"judged by '{report['judged_by']}'" if report["judged_by"] else "judged by no reference"
    )
    return f"{what}, {judge}: {', '.join(parts) if total else 'no task yet'}."


def write_page(directory: Path) -> Path:
    """Write `index.html` from the tidy files, `report.json` and the figures in a directory.

    Args:
        directory: Where the files of the comparison lie; all but `report.json` are optional.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If the directory holds no `report.json`.
    """
    directory = Path(directory)
    report, verdicts = _read_report(directory), verdict_rows(directory)
    suite = suite_row(directory)
    tables = {name: read_table(directory, name) for name in COLUMNS}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "duration": duration,
        "percentage": percentage,
        "plain": _plain,
    }
    environment.globals |= {
        "mean_and_spread": mean_and_spread,
        "with_interval": with_interval,
        "losses": _losses,
        "explain": explain,
        "explain_suite": explain_suite,
        "verdict_words": verdict_words,
    }
    runs = _records(tables["runs"])
    page = environment.get_template("index.html.j2").render(
        report=report,
        headline=headline(report, verdicts, suite),
        suite=suite,
        verdicts=verdicts,
        failures=[run for run in runs if run["status"] in ("failed", "diverged")],
        failures_shown_open=FAILURES_SHOWN_OPEN,
        unfinished=[run for run in runs if run["status"] in ("running", "planned", "unverified")],
        runs=[run | {"folder": _run_folder(directory, run)} for run in runs],
        scores=_records(tables["scores"]),
        throughput=_records(tables["throughput"]),
        films=contact_sheets(directory),
        summary=_records(tables["summary"]),
        figures={name: _embedded(directory, name) for name in ("curves", "scores", "throughput")},
        files=[
            *(f"{name}.csv" for name in COLUMNS if (directory / f"{name}.csv").exists()),
            "report.json",
        ],
        figure_files=[
            name
            for name in ("curves.svg", "curves.png", "scores.png", "throughput.png")
            if (directory / name).exists()
        ],
    )
    path = directory / "index.html"
    write_atomically(path, page.encode())
    return path


def _read_report(directory: Path) -> dict[str, Any]:
    try:
        report = read_json(directory / "report.json")
    except ValueError as error:
        raise UsageError(f"unreadable {directory / 'report.json'}: {error}") from None
    names = ("agent", "suite", "source", "judged_by", "budget", "last_run_ended_at")
    text = dict.fromkeys(names, "")
    tables = {name: {} for name in ("env_steps", "config", "versions", "hardware")}
    title = f"{report.get('agent', '')} on {report.get('suite', '')}"
    defaults = {**text, **tables, "seeds": [], "departures": [], "title": title, "command": ""}
    return defaults | {name: value for name, value in report.items() if value is not None}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
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
        return f"{number(row['seeds_to_settle'])} seeds would settle it"
    return f"the reference has only {number(row['reference_num_runs'])} runs"


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


def _embedded(directory: Path, name: str) -> str:
    """Return a figure as a data URI, the SVG if it is small or alone; "" without a figure.

    One that is too large for a page is left out; the page still links to its file.
    """
    svg, png = directory / f"{name}.svg", directory / f"{name}.png"
    largest = LARGEST_INLINE_SVG if png.exists() else LARGEST_FIGURE
    for path, kind, most in ((svg, "svg+xml", largest), (png, "png", LARGEST_FIGURE)):
        with contextlib.suppress(OSError, ValueError):
            content = base64.b64encode(read_whole(path, most)).decode()
            return f"data:image/{kind};base64,{content}"
    return ""
