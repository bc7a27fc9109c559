"""The files of a finished grid, small, with names that tests choose; what a page of them shows."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from reproduce.report.page import ASSETS
from reproduce.report.tables import COLUMNS
from tests.reproduce.report.tables import curve, reference, score, verdict

HOSTILE = (
    '<script>alert(1)</script></script>"onmouseover="alert(2)\'<img src=x onerror=alert(3)>'
    "\u202egnp.exe\x07\x1b[31m\u2028{{ 7 * 7 }}%{y}"
)
"""What a name, an error or a log may hold."""


def write_grid(folder: Path, *tasks: str, text: str = "", reference_name: str = "") -> Path:
    """Write the tables and the report of a grid of two seeds, and return its folder.

    Args:
        folder: ends in `<agent>-<suite>/<source>`.
        tasks: its tasks, each judged by a reference.
        text: if it is not empty, another seed of each task has failed and says so.
        reference_name: source of the reference; default: `published`.
    """
    folder.mkdir(parents=True)
    agent, _, suite = folder.parent.name.partition("-")
    source = reference_name or "published"
    steps = list(range(10, 101, 10))
    runs = [(task, seed, "finished", "") for task in tasks for seed in (1, 2)]
    runs += [(task, 3, "failed", text) for task in tasks if text]
    rows = {
        "curves": [curve(task, seed, steps, seed / 2) for task in tasks for seed in (1, 2)],
        "reference_curves": [
            rows.assign(source=name)
            for task in tasks
            for rows, name in (
                (reference(task, steps), source),
                (reference(task, steps, "context"), "another"),
            )
        ],
        "verdicts": [
            verdict(task, score_mean=75.0, score_std=35.0, difference=-1.0, note=text).assign(
                reference_source=source
            )
            for task in tasks
        ],
        "scores": [score(task, 50.0, 100.0) for task in tasks],
        "runs": [
            pd.DataFrame(
                [
                    dict.fromkeys(COLUMNS["runs"])
                    | {"task": task, "seed": seed, "status": status, "error": error}
                    | {"env_steps": 100, "wall_seconds": 36.0, "commit": "abc1234567"}
                    | {"command": f"run {error}", "log_tail": error}
                ]
            )
            for task, seed, status, error in runs
        ],
    }
    for name, tables in rows.items():
        table = pd.concat(tables).reindex(columns=list(COLUMNS[name]))
        (folder / f"{name}.csv").write_bytes(table.to_csv(index=False).encode())
    report = {"agent": agent, "suite": suite, "source": folder.name, "judged_by": source}
    report |= {"title": f"{agent} on {suite} {text}", "env_steps": dict.fromkeys(tasks, 100)}
    report |= {"config": {"name": text}, "departures": [text] if text else [], "seeds": [1, 2]}
    report |= {"command": f"python -m reproduce {text}"}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


class Page(HTMLParser):
    """What a browser would see: links, what it loads for other elements, and text."""

    def __init__(self, path: Path) -> None:
        """Parse a page, without the text of its own scripts and what is shown without them."""
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        source = path.read_text(encoding="utf-8")
        for asset in ASSETS.values():
            source = source.replace(f"<script>{asset()}</script>", "")
        self.source = re.sub(r'(?<=<script type="application/json">)[^<]*', "", source)
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep everything that a tag refers to."""
        addresses = [value or "" for name, value in attrs if name in ("href", "src")]
        (self.links if tag == "a" else self.loaded).extend(addresses)

    def handle_data(self, data: str) -> None:
        """Keep text, with white space as a browser shows it."""
        self.text += " ".join([*data.split(), ""])
