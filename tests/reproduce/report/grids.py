"""The files of a finished grid, small, with names that tests choose; what a page of them shows."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

from reproduce.report.page import ASSETS
from tests.reproduce.report.tables import curve, reference, score, verdict, write

HOSTILE = (
    '<script>alert(1)</script></script>"onmouseover="alert(2)\'<img src=x onerror=alert(3)>'
    "\u202egnp.exe\x07\x1b[31m\u2028{{ 7 * 7 }}%{y}"
)
"""What a name, an error or a log may hold."""


def write_grid(folder: Path, *tasks: str, text: str = "") -> Path:
    """Write the tables and the report of a grid of two seeds, and return its folder.

    Args:
        folder: ends in `<agent>-<suite>/<source>`.
        tasks: its tasks, each judged by a reference.
        text: the reference's name, and what a third seed of each task says, which failed; default:
            none did.
    """
    folder.mkdir(parents=True)
    agent, _, suite = folder.parent.name.partition("-")
    judge, steps = text or "published", list(range(10, 101, 10))
    curves, runs = list[pd.DataFrame](), list[dict[str, object]]()
    for task in tasks:
        curves += [curve(task, seed, steps, seed / 2) for seed in (1, 2)]
        ends = [(1, "finished", ""), (2, "finished", ""), *([(3, "failed", text)] if text else [])]
        for seed, status, error in ends:
            row = {"task": task, "seed": seed, "status": status, "error": error, "env_steps": 100}
            row |= {"wall_seconds": 36.0, "commit": "abc1234567", "log_tail": error}
            runs.append({**row, "command": f"run {error}"})
    numbers: dict[str, Any] = {"score_mean": 75.0, "score_std": 35.0, "difference": -1.0}
    numbers |= {"note": text, "reference_source": judge}
    references = [reference(task, steps).assign(source=judge) for task in tasks]
    references += [reference(task, steps, "context") for task in tasks]
    facts = {"agent": agent, "suite": suite, "source": folder.name, "judged_by": judge}
    facts |= {"title": f"{agent} on {suite} {text}", "env_steps": dict.fromkeys(tasks, 100)}
    facts |= {"config": {"name": text}, "departures": [text] if text else [], "seeds": [1, 2]}
    return write(
        folder,
        facts | {"command": f"python -m reproduce {text}"},
        curves=pd.concat(curves),
        reference_curves=pd.concat(references),
        verdicts=pd.concat([verdict(task, **numbers) for task in tasks]),
        scores=pd.concat([score(task, 50.0, 100.0) for task in tasks]),
        runs=runs,
    )


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
