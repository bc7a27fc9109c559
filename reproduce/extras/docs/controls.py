"""The table of interchangeability: controls beside our runs with their settings."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reproduce.extras.control import read_peer
from reproduce.extras.docs.markdown import table
from reproduce.extras.docs.results import Cell, cells
from reproduce.extras.publish_control import SPEEDS, SUFFIX
from reproduce.gather.references import ReferenceScore, name_of, reference_score
from reproduce.judge.verdicts import Verdict, judge
from reproduce.report.tables import read_table
from reproduce.report.words import mean_and_spread, verdict_words, with_interval
from reproduce.words import number
from suite import presets
from suite.presets import read_source

LIKE = re.compile(r" --like (\S+)(?:.* --set (.+))?")
"""In a control's command: the source whose settings the peer was given, and what was changed."""


class Pair(NamedTuple):
    """Our runs of a task, and those of a control, with the same settings."""

    ours: Cell
    theirs: ReferenceScore

    @property
    def reversed(self) -> Verdict:
        """Return the verdict on the control, judged by our runs."""
        row, scores = self.ours.row, read_table(self.ours.directory, "scores")
        own = scores.loc[scores["task"] == row["task"], "score"].to_numpy(float)
        reference = ReferenceScore(
            **{"source": "ours", "env_id": row["task"], "env_steps": self.theirs.env_steps},
            **{"mean": own.mean(), "std": own.std(ddof=1), "num_runs": len(own)},
            **{"rule": self.theirs.rule, "how": "single runs", "scores": tuple(own)},
        )
        return judge(np.array(self.theirs.scores), reference, row["zero_score"])

    @property
    def their_speed(self) -> float:
        """Return the median speed of the control's runs, steps/s with their evaluations."""
        speeds = pd.read_csv(presets.REFERENCES / self.theirs.source / SPEEDS)
        asked = (speeds["agent"] == self.ours.agent) & (speeds["env_id"] == self.theirs.env_id)
        return float(speeds.loc[asked, "env_steps_per_second"].item())

    @property
    def their_hours(self) -> float:
        """Return how long all runs of the control last one after another, at their own speed."""
        return self.theirs.num_runs * self.theirs.env_steps / self.their_speed / 3_600


def interchangeable(link: Any) -> str:
    """Return every control beside ours: scores, speeds, the verdicts both ways, and the costs."""
    every = list(pairs())
    if not every:
        return "No control is published yet."
    rows = [_row(link, pair) for pair in every]
    header = ("agent", "task", "steps", "ours", "control", "ours by the control's")
    header += ("the control by ours", "its own project", "steps/s, ours", "steps/s, control")
    ours = sum(pair.ours.core_hours for pair in every)
    theirs = sum(pair.their_hours for pair in every)
    costs = f"One after another the controls' runs would last {theirs:.0f} hours at these speeds, "
    costs += f"ours {ours:.0f}; what ran beside them made them longer."
    return f"{table(header, rows, right=[2, 3, 4, 8, 9])}\n\n{costs}"


def pairs() -> Iterator[Pair]:
    """Yield the published tasks of ours that a control judges."""
    for cell in cells():
        row = cell.row
        if cell.source.endswith(SUFFIX) and row["score_mean"] is not None:
            theirs = reference_score(
                cell.agent, cell.source, row["task"], int(row["env_steps"]), row["rule"]
            )
            if theirs is not None:
                yield Pair(cell, theirs)


def _row(link: Any, pair: Pair) -> tuple[str, ...]:
    """Return a line of the table."""
    cell, theirs, back = pair.ours, pair.theirs, asdict(pair.reversed)
    task = cell.row["task"]
    our_speeds = read_table(cell.directory, "throughput").query("task == @task")
    return (
        *(f"`{cell.agent}`", task, cell.steps, cell.ours, cell.reference),
        f"[{_verdict(cell.row)}]({link(cell.folder)})",
        _verdict(back),
        _beside_its_project(cell, theirs),
        number(our_speeds["env_steps_per_second"].median()),
        number(pair.their_speed),
    )


def _verdict(row: Any) -> str:
    """Return a verdict with the difference that it rests on."""
    interval = with_interval(row["difference"], row["ci_low"], row["ci_high"])
    return f"{verdict_words(row)}, {interval}"


def _beside_its_project(cell: Cell, theirs: ReferenceScore) -> str:
    """Return what the peer's own project has with the settings that it was given, and a verdict.

    The verdict is on the control. What `--set` changed is named: the project had it otherwise.
    """
    peer = read_peer(theirs.source.removesuffix(SUFFIX), cell.agent)
    data = read_source(presets.REFERENCES / theirs.source / f"{cell.agent}.toml")["data"]
    asked = {cell.suite, cell.row["task"]}
    made = [line for line in data.path.splitlines() if asked <= {*line.split()}]
    given = LIKE.search(made[-1]) if made else None
    if given is None or given[1] not in peer.publishes:
        return "—"
    task, steps = cell.row["task"], theirs.env_steps
    published = reference_score(cell.agent, given[1], task, steps, theirs.rule)
    if published is None:
        return "—"
    verdict = judge(np.array(theirs.scores), published, cell.row["zero_score"])
    score = mean_and_spread(
        published.mean, published.std, published.num_runs, name_of(published.source)
    )
    but = f"; here {given[2]}" if given[2] else ""
    return f"{score}: {verdict_words(asdict(verdict))}{but}"
