"""What the program says to people, case by case, in one file: `messages.txt` beside this one.

A test names the case and gives what was said: `message("sca classic", err)`. Where a sentence
changes on purpose, `pytest --messages FILE ...` writes those of the whole files anew; the diff of
`messages.txt` is what a reviewer approves.
"""

from pathlib import Path

KEPT = Path(__file__).with_suffix(".txt")
INDENT = "    "


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
