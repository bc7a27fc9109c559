"""Read a run's record and check it against its folder.

A record that ended and contradicts its folder, its manifest or its schema version is `damaged`: it
never counts as finished, nor does one of another schema version. `suite.settings.older` makes
older records' settings those of today.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from suite.base.errors import UsageError
from suite.base.files import read_json
from suite.envs.tasks import SUITES, folder_of, tasks_in
from suite.record.manifest import BEST, MANIFEST, damage
from suite.settings.config import MOST_STEPS

Status = Literal["running", "finished", "diverged", "failed"]
ENDED = ("finished", "diverged")
TYPES = {"task": str, "seed": int, "machine": dict, "versions": dict, "resumed_at": list}
TYPES |= {"log_tail": list}
"""Entries that a record must have in this type, if it has them."""
LARGEST_RECORD = 2**18
"""Bytes of a `run.json` that are read: 256 KiB; one of one seed has 10 KB."""
SCHEMA_VERSION = 3
KEYS = (
    *("agent", "suite", "source", "task", "config", "command", "seed", "status", "error"),
    *("started_at", "ended_at", "wall_seconds", "commit", "dirty", "versions", "machine"),
    *("sources", "resumed_at", "behaviour"),
)
"""Entries that a record of this version has; nothing reads older ones any more."""
SEED = re.compile(r"seed-(\d+)")
"""Name of a run's folder."""


def read_record(directory: Path) -> dict[str, Any] | None:
    """Return a run's `run.json`; None if it is absent or not a record.

    If a finished or diverged run is not what its folder says, or its manifest does not fit its
    files, `status` is `damaged`, `error` says why, and the rest of the record is invalid.
    """
    record = _read(directory)
    if record and record["status"] not in ENDED:
        return record
    changed = ""
    if record is None or record["status"] == "finished":
        changed = damage(directory) if record or (directory / MANIFEST).exists() else ""
    error = f"differs from its manifest: {changed}" if changed else ""
    if not error and record:
        error = _mismatch(directory, record)
    if not error:
        return record
    return {
        **{"task": "", "seed": -1, "config": {"env_steps": 0}},
        **{"status": "damaged", "error": error},
    }


def refuse_damaged(directory: Path) -> None:
    """Refuse a run's folder, or that of its best policy, if its record is damaged."""
    run = directory.parent if directory.name == BEST else directory
    record = read_record(run)
    if record and record["status"] == "damaged":
        raise UsageError(f"{run} {record['error']}; restore it from a copy, or train the run again")


def seed_of(folder: Path) -> int | None:
    """Return the seed that a run's folder is named after; None if it is not a run's folder."""
    number = SEED.fullmatch(folder.name)
    return int(number[1]) if number else None


def seeds_of(entries: Mapping[str, Any]) -> list[int]:
    """Return the seeds that a record was trained with; none if it does not say."""
    config = entries.get("config")
    seeds = config.get("seeds") if isinstance(config, dict) else None
    if "status" not in entries or not isinstance(seeds, list | tuple):
        return []
    return [*seeds] if all(type(seed) is int for seed in seeds) else []


def _read(directory: Path) -> dict[str, Any] | None:
    try:
        record = read_json(directory / "run.json", LARGEST_RECORD)
        json.dumps(record, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        return None
    typed = all(isinstance(record.get(key, kind()), kind) for key, kind in TYPES.items())
    named = {"task", "seed"} <= record.keys() and record.get("status") in get_args(Status)
    typed &= _is_number(record["config"].get("env_steps"), int, MOST_STEPS)
    typed &= record.get("wall_seconds") is None or _is_number(record["wall_seconds"], float, 10**12)
    return record if typed and named else None


def _is_number(value: Any, kind: type, most: int) -> bool:
    """Return whether a value is of a kind and 0 to `most`; a whole number is of any kind."""
    return type(value) in (int, kind) and 0 <= value <= most


def _mismatch(directory: Path, record: Mapping[str, Any]) -> str:
    """Return how a record contradicts its schema version or its folder; empty if it does not."""
    version = record.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        return f"has the schema version {version}, which is unknown here"
    if missing := [key for key in KEYS if key not in record]:
        return f"lacks {', '.join(missing)}, which schema version {SCHEMA_VERSION} has"
    seeds = record["config"].get("seeds", [record["seed"]])
    if not isinstance(seeds, list) or record["seed"] not in seeds:
        return f"says seed {record['seed']}, its settings say {seeds}"
    return misnamed(directory, record)


def misnamed(folder: Path, record: Mapping[str, Any]) -> str:
    """Return how a record contradicts its folder's path; empty if it does not."""
    said = {key: [record[key]] for key in ("agent", "suite", "task", "seed") if key in record}
    if "task" in record.get("config", {}):
        said.setdefault("task", []).append(record["config"]["task"])
    for key, name in _named_by(folder.absolute()).items():
        for value in said.get(key, ()):
            if (folder_of(str(value)) if key == "task" else str(value)) != name:
                return f"says {key} {value}, its folder says {name}"
    return ""


def _named_by(folder: Path) -> dict[str, str]:
    """Return what the path `<agent>-<suite>/<source>/<task>/seed-<k>`, or its end, says of a run.

    The source is left out: a user may copy a grid under a name of their own.
    """
    names: dict[str, str] = {}
    *_, grid, _, task, seed = ("", "", "", "", *folder.parts)
    agent, _, suite = grid.partition("-")
    if suite in SUITES:
        names = {"agent": agent, "suite": suite, "task": task}
    elif task in _tasks():
        names = {"task": task}
    number = SEED.fullmatch(seed)
    return names | ({"seed": number[1]} if number else {})


@lru_cache(maxsize=1)
def _tasks() -> frozenset[str]:
    return frozenset(task for suite in SUITES for task in tasks_in(suite))
