"""Which code makes a run: its commit, its files' checksums, the number of its behaviour."""

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

REVISION = "revision.json"
"""File that replaces git in a copy of the code; see `revision`."""
SETTINGS = "results/references/*/{agent}.toml"
"""Files with the sources' settings for an agent; see `suite/settings/presets.py`."""
NUMBER = re.compile(r"^BEHAVIOUR = (\d+)\b", re.MULTILINE)


@cache
def revision() -> dict[str, Any]:
    """Return `commit` (or None outside a git checkout) and `dirty`: uncommitted code changes.

    A copy of a checkout reads both from its `revision.json`.
    """
    root = _root()
    if (root / REVISION).exists():
        return json.loads((root / REVISION).read_bytes())
    try:
        _check_ours(root)
        commit = _git(root, "rev-parse", "HEAD")
        code = ("suite", "agents", "reproduce", ":(glob)" + SETTINGS.format(agent="*"))
        changed = _git(root, "status", "--porcelain", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changed)}


def sources(agent: str) -> dict[str, str]:
    """Return the SHA-256 of every file that an agent's run depends on, by path.

    These are the agent's file, all that it imports of this project, and the sources' settings for
    an agent of its name: a copy that takes another's presets has none. Unlike a commit's, the sums
    change with what is not committed, and not with pages, tests and figures.
    """
    root = _root()
    paths = sorted(imported(root, root / "agents" / f"{agent}.py"))
    paths += sorted(root.glob(SETTINGS.format(agent=agent)))
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def of_code(sources: object) -> dict[str, str]:
    """Return a record's checksums of code alone: its settings are in its configuration."""
    known = sources if isinstance(sources, Mapping) else {}
    return {path: checksum for path, checksum in known.items() if path.endswith(".py")}


def behaviour(agent: str) -> int | None:
    """Return the number in an agent's file that goes up when the bytes of its runs change.

    None for a file without `BEHAVIOUR`: runs of such an agent count until its code changes.
    """
    try:
        text = (_root() / "agents" / f"{agent}.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = NUMBER.search(text)
    return int(found[1]) if found else None


def uncommitted(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return which Python files differ from the last commit, or are in none.

    Without git, as where a wheel was installed, there are none; in a copy of a checkout with
    changes these are all files.
    """
    names = tuple(sorted(name for name in files if name.endswith(".py")))
    if (_root() / REVISION).exists():
        return names if revision()["dirty"] else ()
    return _uncommitted(_root(), names, tuple(files[name] for name in names))


@lru_cache(maxsize=64)  # every run that a process records asks
def _uncommitted(root: Path, names: tuple[str, ...], _sums: tuple[str, ...]) -> tuple[str, ...]:
    try:
        _check_ours(root)
        known = _git(root, "ls-files", "-z", "--", *names).split("\0")
        changed = _git(root, "diff", "--name-only", "--relative", "-z", "HEAD", "--", *names)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(name for name in names if name in changed.split("\0") or name not in known)


def imported(root: Path, file: Path) -> set[Path]:
    """Return a file and all files below `root` that it imports, directly or not."""
    found, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        if path not in found and path.exists():
            found.add(path)
            waiting += _imports(root, path, path.read_bytes())
    return found


@lru_cache(maxsize=1024)  # a grid asks before every run that it starts
def _imports(root: Path, path: Path, content: bytes) -> tuple[Path, ...]:
    """Return where the modules may be that a file imports, wherever in it, and their packages."""
    here = path.relative_to(root).parent.parts
    names = {(*here, "__init__")}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a file that is being edited
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = here[: len(here) - node.level + 1] if node.level else ()
            module = (*package, *(node.module.split(".") if node.module else ()))
            names |= {module, *((*module, alias.name) for alias in node.names)}
    parts = {name[: i + 1] for name in names for i in range(len(name))}
    modules = [root.joinpath(*part) for part in sorted(parts)]
    return tuple(
        place for it in modules for place in (it.with_name(f"{it.name}.py"), it / "__init__.py")
    )


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _check_ours(root: Path) -> None:
    """Raise git's error if the checkout around this code is not its own, but a host's."""
    _git(root, "ls-files", "--error-unmatch", "suite/base/code.py")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
