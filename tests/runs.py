"""Settings as flags, what ends a run in the middle, and what runs leave in their folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """What ends a run in the middle."""


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the flags that say these settings, whatever their types."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


def run_json(folder: Path, seed: int = 1) -> dict[str, Any]:
    """Return the record of a seed."""
    return json.loads((folder / f"seed-{seed}" / "run.json").read_bytes())


def repeatable(folder: Path) -> dict[str, bytes]:
    """Return the tables and policies of all seeds, which the same settings always give, by path."""
    paths = [*folder.glob("seed-*/*.csv"), *folder.glob("seed-*/**/policy.*")]
    paths = [path for path in paths if path.name != "timing.csv"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
