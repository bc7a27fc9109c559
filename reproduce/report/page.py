"""The page of a comparison, made only from the files in its directory.

`write_page(directory)` writes `index.html`: one file that needs no network and no other file. Its
charts need scripts, which it carries; the files of figures beside it need none. Names in the files
are treated as hostile: they are escaped, and the page runs no script but those whose checksums it
states.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from reproduce.judge.aggregates import LEAST, median_times, profile, sides_of
from reproduce.report import charts, frames
from reproduce.report.figures import FORMATS, OVER_TASKS
from reproduce.report.tables import COLUMNS, read_report, read_report_table, records
from reproduce.report.words import (
    explain,
    explain_suite,
    headline,
    losses,
    mean_and_spread,
    panel_remarks,
    verdict_words,
    with_interval,
)
from reproduce.words import MISSING, counted, duration, number, reached, visible
from suite.base.files import compressed, write_atomically
from suite.envs.tasks import folder_of

SECTIONS = {
    **{"verdicts": "Verdicts", "curves": "Curves", "scores": "Scores", "suite": "Over the tasks"},
    **{"improvement": "Improvement", "times": "Time to a score", "throughput": "Throughput"},
    **{"failures": "Failed runs", "departures": "Departures", "again": "Run this again"},
    "files": "Files",
}
"""Identifiers of the page's parts, with their names in its list of parts."""
ASSETS = {
    "plotly.min.js": get_plotlyjs,
    "charts.js": charts.script,
}
"""The page's scripts: how each is read."""
FIGURES = [
    f"{name}.{kind}"
    for name in ("curves", "curves_by_time", "scores", "throughput", *OVER_TASKS)
    for kind in FORMATS
]
UNFINISHED = ("running", "interrupted", "planned")


def write_page(directory: Path) -> Path:
    """Write `index.html` from the files beside it; all but `report.json` are optional."""
    path = directory / "index.html"
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
    report = read_report(directory)
    tables = {name: read_report_table(directory, name) for name in COLUMNS}
    rows = {name: records(table) for name, table in tables.items()}
    runs, verdicts, suite = rows["runs"], rows["verdicts"], next(iter(rows["suite"]), None)
    failures = [run for run in runs if run["status"] in ("failed", "diverged")]
    scripts = {name: read() for name, read in ASSETS.items()}
    sides = sides_of(tables["scores"], tables["reference_scores"])
    drawn = _charts(report, verdicts, tables, sides)
    sources, left_out = _published(tables, report["sources"])
    compared = set(tables["improvement"]["task"])
    absent = {name for name, chart in drawn.items() if not chart} - {"scores"}
    parts = {
        **{"suite": len(verdicts) >= LEAST, "failures": failures, "departures": report["config"]},
        "times": tables["times"]["wall_seconds"].notna().any(),
    }
    absent |= {name for name, part in parts.items() if not part}
    files = [*(f"{name}.csv" for name in COLUMNS), "report.json", *FIGURES]
    sums = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts.values())
    allowed = "'self'" if assets else " ".join(f"'sha256-{each.decode()}'" for each in sums)
    template = environment().get_template("index.html.j2")
    return template.render(
        report=report,
        sources=sources,
        left_out=left_out,
        style=Markup((charts.TEMPLATES / "page.css").read_text(encoding="utf-8")),
        home=home,
        scripts={assets + name: Markup(text) for name, text in scripts.items()},
        linked=bool(assets),
        allowed=Markup(allowed),
        headline=headline(report, verdicts, suite),
        sections={name: words for name, words in SECTIONS.items() if name not in absent},
        suite=suite,
        verdicts=verdicts,
        charts=drawn,
        sides={role: set(side["task"]) for role, side in sides.items()},
        without_improvement=[row["task"] for row in verdicts if row["task"] not in compared],
        failures=failures,
        unfinished=[run for run in runs if run["status"] in UNFINISHED],
        runs=[run | {"folder": _run_folder(directory, run)} for run in runs],
        summary=rows["summary"],
        times=records(median_times(tables["times"])),
        files=[
            path.name
            for name in files
            for path in (directory / name, compressed(directory / name))
            if path.exists()
        ],
    )


@functools.cache
def environment() -> jinja2.Environment:
    """Return the template environment of the page and the site."""
    own = jinja2.Environment(
        loader=jinja2.FileSystemLoader(charts.TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    named = (mean_and_spread, with_interval, losses, explain, explain_suite, verdict_words)
    own.globals |= {each.__name__: each for each in named}
    own.filters |= {each.__name__: each for each in (counted, number, reached)}
    own.filters |= {
        "duration": lambda seconds: MISSING if pd.isna(seconds) else duration(seconds),
        "percentage": lambda share: MISSING if pd.isna(share) else f"{100 * share:.0f} %",
        "plain": _plain,
    }
    return own


def _charts(
    report: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    tables: Mapping[str, pd.DataFrame],
    sides: Mapping[str, pd.DataFrame],
) -> dict[str, list[Markup]]:
    judged = pd.DataFrame(verdicts, columns=pd.Index(COLUMNS["verdicts"]))
    both = (tables["scores"], tables["reference_scores"])
    scores = frames.final_scores(*both, judged, report["sources"])
    improvement, throughput = tables["improvement"], tables["throughput"]
    planned = {str(row["task"]): int(row["env_steps"] or 0) for row in verdicts}
    parts = (tables["reference_curves"], planned, report["sources"])
    curves = frames.learning_curves({"ours": tables["curves"]}, *parts)
    remarks = panel_remarks(verdicts, curves)
    drawn = {
        "curves": [charts.curves_chart(curves, remarks)] if verdicts else [],
        "scores": charts.scores_charts(scores) if len(tables["scores"]) else [],
        "profile": [charts.profile_chart(profile(sides))] if sides else [],
        "improvement": charts.improvement_charts(improvement) if len(improvement) > LEAST else [],
        "throughput": charts.throughput_charts(throughput) if len(throughput) else [],
    }
    return {name: [*map(charts.fragment, figures)] for name, figures in drawn.items()}


def _published(
    tables: Mapping[str, pd.DataFrame], credits: frames.Credits
) -> tuple[list[tuple[str, str, dict[str, str]]], list[str]]:
    """Return names, words and links of the sources that are drawn, and names of the others."""
    curves, sources = tables["reference_curves"], []
    drawn = frames.comparable(tables["curves"]["rule"], curves)
    for source, rows in drawn.groupby("source", sort=False):
        runs = rows["num_runs"].max()
        words = "the judge, " * ("judge" in set(rows["role"]))
        words += "runs unknown" if pd.isna(runs) else counted(runs, "run")
        known = credits.get(str(source), {})
        links = {label: known[label] for label in ("paper", "code") if known.get(label)}
        sources.append((frames.name_of(source, credits), words, links))
    others = curves.loc[curves.index.difference(drawn.index)].itertuples()
    names = [f"{frames.name_of(row.source, credits)} ({row.rule})" for row in others]
    return sources, list(dict.fromkeys(names))


def _plain(value: Any) -> str:
    """Return a setting, a fact or a cell as text; a dash if it is missing."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _run_folder(directory: Path, run: Mapping[str, Any]) -> str:
    """Return a relative link to a run's folder, or "" without a folder to open."""
    parts = (folder_of(str(run["task"])), f"seed-{run['seed']}")
    is_safe = all(part not in ("", ".", "..") and "/" not in part for part in parts)
    exists = is_safe and directory.joinpath(*parts).is_dir()
    return f"./{'/'.join(quote(part, safe='') for part in parts)}/" if exists else ""
