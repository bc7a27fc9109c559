"""Films of a grid's runs, as its page shows them: a contact sheet each, beside the film.

`python -m reproduce video` writes both into the grid's folder `films`; it may be absent.
"""

import base64
import contextlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from suite.base.files import read_whole
from suite.record.records import SEED

FOLDER = "films"
"""A grid's folder of films, inside its own."""
FORMATS = (".mp4", ".gif")
"""Endings of a film's name."""
LARGEST_SHEET = 2**21
"""Bytes of a contact sheet that the page shows: 2 MiB."""


class ContactSheet(NamedTuple):
    """First, middle and last frame of a film."""

    task: str
    seed: int
    image: str
    """The sheet as a data URI."""
    film: str
    """Relative link to the film."""


def film_name(task: str, seed: int) -> str:
    """Return the name of a run's film, without its ending."""
    return f"{task}-seed-{seed}"


def contact_sheets(directory: Path) -> list[ContactSheet]:
    """Return the sheets of a grid's films by task and seed, but for those too large for a page.

    Args:
        directory: the grid's folder.
    """
    sheets = []
    for path in (directory / FOLDER).glob("*-seed-*.png"):
        task, _, _ = path.stem.rpartition("-seed-")
        seed = SEED.fullmatch(path.stem.removeprefix(f"{task}-"))
        films = [path.with_suffix(ending).name for ending in FORMATS]
        film = next((name for name in films if (path.parent / name).exists()), None)
        if seed is None or film is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            image = base64.b64encode(read_whole(path, LARGEST_SHEET)).decode()
            link = f"./{FOLDER}/{quote(film, safe='')}"
            sheets.append(ContactSheet(task, int(seed[1]), f"data:image/png;base64,{image}", link))
    return sorted(sheets)
