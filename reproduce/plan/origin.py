"""Whether a finished run counts for today's code, and what is said of one that does not.

CONTRIBUTING.md explains it: "Which code made a run".
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reproduce import ROOT
from reproduce.words import counted

if TYPE_CHECKING:
    from reproduce.plan.status import Run

COMMIT = re.compile("[0-9a-f]{7,40}")
Older = Literal["", "counted", "left out"]
"""Treatment of a task's older runs; empty if there are none."""
MOST_NAMES = 3
"""Changed files that are named; more are counted."""


class Code(NamedTuple):
    """An agent's code."""

    number: int | None
    """Its behaviour; see `suite.base.hardware.behaviour`."""
    sources: Mapping[str, str]
    """Checksums by path; see `suite.base.hardware.sources`."""
    uncommitted: tuple[str, ...]
    """Files that differ from the last commit; see `suite.base.hardware.uncommitted`."""


def why_left_out(today: Code, root: Path, record: Mapping[str, Any]) -> str:
    """Return why a run does not count, to be read after "3 runs"; empty if it counts.

    It counts if today's very files made it; or if the record has today's number and all of these
    files are committed, for then they passed the golden test.
    """
    theirs, ours = _python(record.get("sources")), _python(today.sources)
    number = number_of(record)
    is_same = number is not None and number == today.number and not today.uncommitted
    if theirs == ours or is_same:
        return ""
    is_inside = root.absolute().is_relative_to(ROOT)
    shown = root.absolute().relative_to(ROOT) if is_inside else root
    commit = record.get("commit")  # git, and a reader, get nothing else
    is_commit = isinstance(commit, str) and COMMIT.fullmatch(commit)
    made = f"from {shown}, made by commit {commit[:7] if is_commit else 'unknown'}"
    made += " with changes" if record.get("dirty") else ""
    if today.uncommitted:
        return f"{made}; {_names(today.uncommitted)} uncommitted changes"
    if None not in (number, today.number):
        return f"{made}; of behaviour {number}, today's is {today.number}"
    if not theirs:
        return f"{made}, which does not say its code"
    changed = sorted(changed_sources(theirs, ours), key=lambda path: not path.startswith("agents/"))
    return f"{made}; {_names(changed)} changed since"


def number_of(record: Mapping[str, Any]) -> int | None:
    """Return the behaviour's number in a record; None of a run of changed code, or of no number."""
    number = record.get("behaviour")
    return number if type(number) is int else None


def by_task(runs: "Iterable[Run]") -> dict[str, tuple[Older, str]]:
    """Return how each task's older runs were treated, and a sentence on them."""
    of_task: dict[str, Counter[tuple[str, Older]]] = {}
    for run in runs:
        remarks = of_task.setdefault(run.task, Counter())
        if run.remark and run.status != "damaged":
            remarks[run.remark, "counted" if run.has_ended else "left out"] += 1
    found: dict[str, tuple[Older, str]] = {}
    for task, remarks in of_task.items():
        said = [f"{counted(n, 'run')} {remark} ({how})" for (remark, how), n in remarks.items()]
        any_counts = any(how == "counted" for _, how in remarks)
        mark: Older = "counted" if any_counts else "left out" if remarks else ""
        found[task] = (mark, "; ".join(said))
    return found


def changed_sources(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Return the files that differ between two answers of `hardware.sources`."""
    return sorted(path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path))


def _python(sources: object) -> dict[str, str]:
    """Return the checksums of code; settings are left out, for a record has its own."""
    known = sources if isinstance(sources, Mapping) else {}
    return {path: sum_ for path, sum_ in known.items() if path.endswith(".py")}


def _names(paths: Sequence[str]) -> str:
    """Return files and a verb that says something of them."""
    more = len(paths) - MOST_NAMES
    *some, end = [*paths[:MOST_NAMES], *([counted(more, "more file")] if more > 0 else [])]
    return f"{', '.join(some)} and {end} have" if some else f"{end} has"
