"""Whether today's code would make a finished run again, and what to say if nobody knows.

A run counts if its code has the name of today's: the same behaviour, or the very same files
(`suite.behaviour`). docs/verdicts.md explains it: "Which code made a run".
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduce import ROOT
from reproduce.words import counted
from suite.behaviour import behaviours, code_name, code_of, fingerprint

COMMIT = re.compile("[0-9a-f]{7,40}")


def code_that_made(
    agent: str, ours: Mapping[str, str], folder: Path, record: Mapping[str, Any]
) -> str:
    """Return the name of the code that made a run: today's name if today's very files made it.

    Args:
        agent: the agent's name.
        ours: checksums of today's code; see `suite.hardware.sources`.
        folder: the run's folder.
        record: its record.
    """
    theirs = record.get("sources")
    if isinstance(theirs, Mapping) and fingerprint(theirs) == fingerprint(ours):
        return code_name(agent, ours)
    return code_of(folder, record)


def why_older(agent: str, ours: Mapping[str, str], folder: Path, record: Mapping[str, Any]) -> str:
    """Return why a run is not today's code's, to be read after "3 runs"; empty if it is.

    Arguments are those of `code_that_made`.
    """
    theirs, todays = code_that_made(agent, ours, folder, record), code_name(agent, ours)
    if theirs == todays:
        return ""
    commit = commit_of(record)
    made = f"from {_shown(folder.parents[3])}, made by commit {commit[:7] or 'unknown'}"
    if record.get("dirty"):
        made += " with changes"
    if theirs.startswith("behaviour") and todays.startswith("behaviour"):
        return f"{made}; of {theirs}, today's is {todays}"
    files = _changed(agent, ours, record)
    if not files:
        return f"{made}, which was not verified"
    more = len(files) - 1
    if not more:
        return f"{made}; {files[0]} has changed since and was not verified"
    others = counted(more, "more file")
    return f"{made}; {files[0]} and {others} have changed since and were not verified"


def ways_on(agent: str) -> str:
    """Return what somebody can do who finds runs of other code, to be read after a colon.

    An agent without a declared behaviour has no short runs with which code is verified.
    """
    anew, knowingly = "start anew beside it with --fresh", "count such runs knowingly with "
    if not behaviours(agent):
        return f"{anew}, or {knowingly}--accept-older-code"
    verify = f"verify today's code with `python -m tests.golden --agent {agent}`"
    return f"{anew}, {verify}, or {knowingly}--accept-older-code"


def commit_of(record: Mapping[str, Any]) -> str:
    """Return the commit that a record names; empty if it names none. git gets nothing else."""
    commit = record.get("commit")
    return commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else ""


def _changed(agent: str, ours: Mapping[str, str], record: Mapping[str, Any]) -> list[str]:
    """Return the files of an agent's code that differ from a run's, its own first."""
    ours = {path: sum_ for path, sum_ in ours.items() if path.endswith(".py")}
    own = f"agents/{agent}.py"
    theirs = record.get("sources")
    if isinstance(theirs, Mapping):
        code = {path for path in {**ours, **theirs} if path.endswith(".py")}
        found = {path for path in code if ours.get(path) != theirs.get(path)}
    elif not commit_of(record):
        return []
    else:
        command = ["git", "-C", str(ROOT), "diff", "--name-only", commit_of(record), "--"]
        try:
            done = subprocess.run([*command, *ours], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError):
            return []
        found = set(done.stdout.split("\n")) & set(ours)
    return sorted(found, key=lambda path: (path != own, path))


def _shown(folder: Path) -> str:
    """Return a folder's path, from the root of this project if it is inside."""
    inside = folder.absolute().is_relative_to(ROOT)
    return str(folder.absolute().relative_to(ROOT) if inside else folder)
