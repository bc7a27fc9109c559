"""What the program says to people, case by case, in one file: `messages.txt` beside this one.

`with refused():` holds what must end with a `UsageError`, `check(said, "sca classic")` gives what
was said. Where a sentence changes on purpose, `pytest --messages FILE ...` writes those of the
whole files anew; the diff of `messages.txt` is what a reviewer approves.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.base.errors import UsageError

KEPT = Path(__file__).with_suffix(".txt")
INDENT = "    "


class Running:
    """The test that runs in this process; pytest's fixture of every test says which."""

    item: pytest.Item
    places: Iterator[int]

    @classmethod
    def begin(cls, item: pytest.Item) -> None:
        """Count the messages of another test."""
        cls.item, cls.places = item, itertools.count(1)


def file_of(item: pytest.Item) -> str:
    """Return the file of a test, as keys name it."""
    return item.path.relative_to(Path(__file__).parent).as_posix()


def check(said: object, case: str = "") -> None:
    """Compare what is said with `messages.txt`.

    The test's own folder is `TMP` there, that of shared ones `BASE`, the project's `ROOT`. A
    case has a name of its own in a file; default: the test's, and which of its messages it is.
    """
    item = Running.item
    if not case:
        place = next(Running.places)
        case = item.name + (f", {place}" if place > 1 else "")
    key, plain = f"{file_of(item)}: {case}", str(said)
    folders = getattr(item, "funcargs", {})
    if "tmp_path" in folders:
        plain = plain.replace(str(folders["tmp_path"]), "TMP")
    if "tmp_path_factory" in folders:
        plain = plain.replace(str(folders["tmp_path_factory"].getbasetemp()), "BASE")
    plain = plain.replace(str(KEPT.parents[1]), "ROOT")
    text = "".join(f"{line.rstrip()}\n" for line in plain.splitlines())
    if item.config.getoption("--messages"):
        kept = read()
        assert key not in kept, f"two cases are called {key}"
        write(kept | {key: text})
    else:
        assert text == APPROVED.get(key), "approve it by --messages, see tests/messages.py"


@contextlib.contextmanager
def refused(case: str = "") -> Iterator[None]:
    """Hold what must end with a `UsageError` whose text is that of `messages.txt`; see `check`."""
    with pytest.raises(UsageError) as error:
        yield
    check(error.value, case)


def read() -> dict[str, str]:
    """Return every message by its key, `file: case`."""
    messages: dict[str, str] = {}
    key = ""
    for line in KEPT.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(INDENT):
            key = line
            messages[key] = ""
        else:
            messages[key] += line.removeprefix(INDENT) + "\n"
    return messages


def write(messages: dict[str, str]) -> None:
    """Write all messages, in the order of their keys."""
    text = ""
    for key, message in sorted(messages.items()):
        lines = [key, *(f"{INDENT}{line}".rstrip() for line in message.splitlines())]
        text += "".join(f"{line}\n" for line in lines)
    KEPT.write_text(text, encoding="utf-8")


APPROVED = read()
"""As the file was when the tests began: who edits it meanwhile does not disturb a long run."""
