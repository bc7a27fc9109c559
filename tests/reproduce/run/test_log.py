"""An agent's output, read from its end: nothing that it holds costs memory or moves a cursor."""

import tracemalloc
from pathlib import Path

import pytest

from reproduce.run.log import last_lines, plain


def test_a_log_of_a_gigabyte_costs_nothing(tmp_path: Path) -> None:
    """Its end alone is read; a line is cut."""
    path = tmp_path / "seeds-1.log"
    with path.open("wb") as file:
        file.truncate(2**30)
        file.seek(0, 2)
        file.write(b"\nfirst\n" + b"x" * 10_000 + b"\n\xffend\n")
    tracemalloc.start()
    try:
        *_, first, cut, last = last_lines(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (first, len(cut), last) == ("first", 2000, "\ufffdend")
    assert peak < 2**20


@pytest.mark.parametrize(
    "line",
    [
        *("\x1b[31mok\x1b[0m", "\x1b]0;title\x07ok", "\x1b]8;;http://x\x1b\\ok", "\x1b[2J\x1b[Hok"),
        *("\x9b31mok", "\x1b(Bok", "ok\x1b", "ok\x1b[", "ok\x1b]0;endless", "\x07o\x08k\x7f"),
    ],
)
def test_a_line_keeps_its_text_and_loses_its_commands(line: str) -> None:
    """Colours, titles and links of a terminal, whole or torn."""
    assert plain(line) == "ok"


def test_a_log_that_is_none_has_no_lines(tmp_path: Path) -> None:
    """It was never written, or is a folder."""
    assert last_lines(tmp_path / "absent") == last_lines(tmp_path) == []
