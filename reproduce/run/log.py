"""An agent's output: its last lines, as plain text, however long and whatever it holds."""

import os
from pathlib import Path
from typing import BinaryIO

from suite.base.files import open_regular
from suite.settings.command_line import printable

LAST_BYTES = 2**16
LONGEST_LINE = 2000


def tail(file: BinaryIO, most: int = LAST_BYTES) -> bytes:
    """Return the rest of a file, at most its last bytes."""
    file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - most))
    return file.read(most)


def last_lines(path: Path) -> list[str]:
    """Return the last lines of a log as plain text; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            content = tail(file).decode(errors="replace")
    except OSError:
        return []
    return [plain(line) for line in content.splitlines()]


def plain(line: str) -> str:
    """Return a line, unprintable characters escaped, cut to `LONGEST_LINE` characters."""
    line = printable(line[: LONGEST_LINE + 1].expandtabs())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
