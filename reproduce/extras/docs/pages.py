"""The written pages, and the generated blocks in them.

A block stands between two lines of its own:

    <!-- generated: settings sac -->
    ...
    <!-- end -->

The first word names a function of `BLOCKS`, the others are its arguments. All else on a page is
written by hand and stays as it is.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from reproduce.extras.docs import agent, api, controls, results, wanted
from suite.files import write_atomically
from suite.settings import UsageError, nearest

Link = Callable[[str], str]
"""Maps a path from the project's folder to the path from the page."""
BLOCKS: Mapping[str, Callable[..., str]] = {
    "agents": agent.table_of_agents,
    "suites": agent.table_of_suites,
    "equations": agent.equations,
    "deviations": agent.deviations,
    "settings": agent.settings,
    "record": agent.record,
    "results": results.of_agent,
    "judged": results.judged,
    "matrix": results.matrix,
    "grids": results.by_source,
    "missing": wanted.missing,
    "interchangeable": controls.interchangeable,
    "api": api.describe,
}
"""Functions of a `Link` and the block's arguments, which return Markdown."""
BEGIN, END = "<!-- generated: ", "<!-- end -->\n"
BLOCK = re.compile(r"<!-- generated: ([^\n]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def find_pages(root: Path) -> list[Path]:
    """Return every page with a generated block: README, `docs/` and `results/README.md`."""
    paths = [root / "README.md", *sorted((root / "docs").rglob("*.md")), root / "results/README.md"]
    return [path for path in paths if path.exists() and BEGIN in path.read_text(encoding="utf-8")]


def fill(path: Path, root: Path) -> str:
    """Return a page's text with its blocks generated again.

    Args:
        path: the page.
        root: the project's folder.

    Raises:
        UsageError: naming page and block, if the block is unknown, has no end, or what it describes
            is missing.
    """
    text = path.read_text(encoding="utf-8")

    def link(target: str) -> str:
        return Path(os.path.relpath(root / target, path.parent)).as_posix()

    def generate(found: re.Match[str]) -> str:
        name, *arguments = found[1].split()
        if BEGIN in found[2]:
            raise UsageError(f"{path}: the block {found[1]!r} has no {END.strip()}")
        if name not in BLOCKS:
            raise UsageError(f"{path}: unknown block {name!r}{nearest(name, BLOCKS)}")
        content = BLOCKS[name](link, *arguments).strip()
        return f"{BEGIN}{found[1]} -->\n\n{content}\n\n{END}"

    filled, count = BLOCK.subn(generate, text)
    if count != text.count(BEGIN):
        raise UsageError(f"{path}: its last block has no {END.strip()}")
    return filled


def stale_pages(root: Path) -> list[Path]:
    """Return the pages with outdated blocks: code and data give others today."""
    return list(_changes(root))


def write_pages(root: Path) -> list[Path]:
    """Generate every block again; return the pages that changed."""
    changes = _changes(root)
    for path, text in changes.items():
        write_atomically(path, text.encode())
    return list(changes)


def _changes(root: Path) -> dict[Path, str]:
    """Return the new text of every page that is out of date."""
    texts = {path: fill(path, root) for path in find_pages(root)}
    return {p: text for p, text in texts.items() if text != p.read_text(encoding="utf-8")}
