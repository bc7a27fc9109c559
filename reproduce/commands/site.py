"""`site`: build the documentation."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from reproduce import ROOT
from reproduce.commands import flags
from reproduce.plan.places import check_writable
from suite.base.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Build the documentation with all published grids; a broken link is an error."""
    about = "build the documentation, with all published grids"
    parser = flags.make_parser("site", about, "--open")
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="its folder")
    options = parser.parse(argv)
    check_writable(options.out, "--out")
    page = options.out / "index.html"
    if not (ROOT / "mkdocs.yml").exists():
        raise UsageError("the documentation is built in a clone of the project, with `make site`")
    marks = (page, options.out / "search")  # else what lies there is somebody's own
    if options.out.exists() and any(options.out.iterdir()) and not all(m.exists() for m in marks):
        raise UsageError(f"{options.out} holds no site: choose another --out, or delete it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme, on other programs
    if subprocess.run([*command, str(options.out.absolute())], cwd=ROOT, env=quiet).returncode:
        raise UsageError("the documentation was not built: the lines above say why")
    print(page)
    if options.open:
        flags.open_page(page)
    return 0
