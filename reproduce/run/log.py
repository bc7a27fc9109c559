"""An agent's output: its last lines, as plain text, however long and whatever it holds."""

import os
import re
from pathlib import Path
from typing import BinaryIO

from suite.base.files import open_regular

LAST_BYTES = 2**16
LONGEST_LINE = 2000
CONTROL = re.compile(
    r"\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and other strings, such as a window's title
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, the cursor
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]",
    re.DOTALL,
)
"""Sequences by which output moves a terminal's cursor, names its window or worse; not tabs."""


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
    """Return a line without control sequences, cut to `LONGEST_LINE` characters."""
    line = CONTROL.sub("", line[: 2 * LONGEST_LINE])
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
