"""An agent's output, read from its end: nothing that it holds costs memory or moves a cursor."""

import tracemalloc
from pathlib import Path

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


def test_a_line_keeps_its_text_and_commands_no_terminal() -> None:
    """Colours, titles, links and the cursor are shown, not done."""
    for line in ("\x1b[31mok", "\x1b]0;title\x07ok", "\x9b31mok", "\x08\x7fok", "\u202eok"):
        assert plain(line).endswith("ok")
        assert plain(line).isprintable()
    assert plain("a\tb") == "a       b"


def test_a_log_that_is_none_has_no_lines(tmp_path: Path) -> None:
    """It was never written, or is a folder."""
    assert last_lines(tmp_path / "absent") == last_lines(tmp_path) == []
