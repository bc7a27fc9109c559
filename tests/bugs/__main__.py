"""Plant bugs one at a time, and count how many the tests find.

    .venv/bin/python -m tests.bugs                 # every room: hours
    .venv/bin/python -m tests.bugs suite --only 3  # the third bug of one room

`ROOM.toml` beside this file lists each room's bugs: the property that breaks, the file, its text
with and without the bug, and the tests that should find it. Each is planted in a copy of the tree.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))
SECONDS = 900
"""A test that a bug keeps from ending has found it."""


@dataclass(frozen=True)
class Bug:
    """One change of one file that breaks one property."""

    breaks: str
    file: str
    old: str
    new: str
    tests: list[str]

    def planted(self, source: str) -> str:
        """Return the file's text with the bug.

        Raises:
            ValueError: for a text without exactly one place for it.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} has {source.count(self.old)} places for: {self.breaks}")
        return source.replace(self.old, self.new)


def bugs_of(room: str) -> list[Bug]:
    """Return the bugs that a room's list holds."""
    listed = tomllib.loads((Path(__file__).parent / f"{room}.toml").read_text())
    return [Bug(**bug) for bug in listed["bug"]]


def found(bug: Bug, tree: Path) -> bool:
    """Plant a bug in a tree, run its tests, take it out again; return whether one failed."""
    file = tree / bug.file
    source = file.read_text()
    file.write_text(bug.planted(source))
    options = ["-q", "-x", "--benchmark-disable", "-p", "no:cacheprovider"]
    command = [sys.executable, "-P", "-m", "pytest", *options, *bug.tests]
    # the copy, not the installed tree, in the tests and in the programs that they start
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(source)
    if run.returncode not in (0, 1):
        raise RuntimeError(f"pytest did not run for: {bug.breaks}\n{run.stdout[-2000:]}")
    return run.returncode == 1


def main(argv: Sequence[str]) -> int:
    """Count what is found; the exit status is 1 if a bug is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.bugs", description=__doc__)
    parser.add_argument("rooms", nargs="*", help=", ".join(ROOMS))
    parser.add_argument("--only", type=int, nargs="*", help="numbers of bugs, from 1")
    options = parser.parse_args(argv)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        skipped = shutil.ignore_patterns(".*", "runs", "site", "build", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=skipped)
        for room in options.rooms or ROOMS:
            for number, bug in enumerate(bugs_of(room), start=1):
                if options.only is None or number in options.only:
                    is_found = found(bug, tree)
                    missed += not is_found
                    said = "found" if is_found else "NOT FOUND"
                    print(f"{room} {number}: {said}: {bug.breaks}", flush=True)
    print(f"{missed} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
