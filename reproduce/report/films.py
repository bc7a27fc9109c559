"""Films of a grid's runs, which its page plays.

`python -m reproduce video` writes them into the grid's folder `films`; it may be absent.
"""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from suite.record.records import SEED

FOLDER = "films"
"""A grid's folder of films, inside its own."""


class Film(NamedTuple):
    """A film of a run."""

    task: str
    seed: int
    address: str
    """Relative link."""


def film_name(task: str, seed: int) -> str:
    """Return the name of a run's film."""
    return f"{task}-seed-{seed}.mp4"


def films_of(directory: Path) -> list[Film]:
    """Return the films in a grid's folder, by task and seed."""
    found = []
    for path in (directory / FOLDER).glob("*-seed-*.mp4"):
        task, _, _ = path.stem.rpartition("-seed-")
        if seed := SEED.fullmatch(path.stem.removeprefix(f"{task}-")):
            found.append(Film(task, int(seed[1]), f"./{FOLDER}/{quote(path.name, safe='')}"))
    return sorted(found)
