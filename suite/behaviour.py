"""Which code made a run: the behaviours of agents, declared in `results/behaviour.json`.

Code is compared by what it does. Two versions of an agent have the same behaviour if short runs
give the same bytes under the same settings; `tests/golden` finds out, and lists verified code:

    {"sac": {"1": {"base": "65d1473...",        the commit whose bytes this behaviour has
                   "sources": ["8f0c..."],      fingerprints of the code that was verified
                   "runs": {"sac-mujoco/...": "77ab..."}}}}     records verified one by one

The entry `runs` is for records of other code, or that do not say what code made them: `python -m
reproduce verify` makes their beginnings again. See docs/verdicts.md, "Which code made a run".
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from suite.files import write_atomically
from suite.manifest import digest
from suite.settings import UsageError

DECLARED = Path(__file__).resolve().parents[1] / "results" / "behaviour.json"
Behaviours = dict[int, dict[str, Any]]
"""An agent's behaviours by number; the last is today's."""


def fingerprint(sources: Mapping[str, str]) -> str:
    """Return one checksum of an agent's code; sources' settings are left out: a record has its own.

    Args:
        sources: what `suite.hardware.sources` returned.
    """
    lines = (f"{sum_}  {path}\n" for path, sum_ in sorted(sources.items()) if path.endswith(".py"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def behaviours(agent: str) -> Behaviours:
    """Return an agent's declared behaviours; none for an agent that has no golden runs.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        facts = DECLARED.stat()
    except OSError:
        return {}
    found = _read(DECLARED, facts.st_mtime_ns, facts.st_size).get(agent, {})
    return copy.deepcopy(found)


def number_of(agent: str, sources: Mapping[str, str]) -> int | None:
    """Return the number of the behaviour that code is known to have; None: it was not verified."""
    ours = fingerprint(sources)
    found = [number for number, each in behaviours(agent).items() if ours in each["sources"]]
    return max(found, default=None)


def code_name(agent: str, sources: Mapping[str, str]) -> str:
    """Return how code is called: by its behaviour, or by its fingerprint if it was not verified.

    Runs may be judged together only if the code that made them has the same name.
    """
    number = number_of(agent, sources)
    return f"code {fingerprint(sources)[:12]}" if number is None else f"behaviour {number}"


def code_of(folder: Path, record: Mapping[str, Any]) -> str:
    """Return the name of the code that made, or would make, a run, as `code_name`; else its commit.

    Args:
        folder: the run's folder.
        record: the run's record.
    """
    agent, sources = record["agent"], record.get("sources")
    for number, each in sorted(behaviours(agent).items(), reverse=True):
        if each["runs"] and digest(folder) in each["runs"].values():
            return f"behaviour {number}"
    if not isinstance(sources, Mapping):
        return f"commit {str(record.get('commit'))[:7]}"
    return code_name(agent, sources)


def declare(agent: str, content: Behaviours) -> None:
    """Write an agent's behaviours; those of the other agents stay."""
    whole: dict[str, Any] = {}
    if DECLARED.exists():
        whole = json.loads(DECLARED.read_bytes())
    whole[agent] = {
        str(number): {
            "base": each["base"],
            "sources": sorted(each["sources"]),
            "runs": dict(sorted(each["runs"].items())),
        }
        for number, each in sorted(content.items())
    }
    write_atomically(DECLARED, (json.dumps(whole, indent=1) + "\n").encode())


@lru_cache(maxsize=4)
def _read(path: Path, *_stamp: int) -> dict[str, Behaviours]:
    try:
        content = json.loads(path.read_bytes())
        return {
            agent: {
                int(number): {
                    "base": str(each["base"]),
                    "sources": list(each["sources"]),
                    "runs": dict(each["runs"]),
                }
                for number, each in numbers.items()
            }
            for agent, numbers in content.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"unreadable {path}: {error}; git restores it") from None
