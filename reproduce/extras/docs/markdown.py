"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a table.

    Args:
        header: the columns' titles.
        rows: cells, as many as columns each; a `|` in them is escaped.
        right: columns that are flushed right.
    """
    marks = ["---:" if i in set(right) else "---" for i in range(len(header))]
    lines = [header, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0].strip(), "|" + "|".join(marks) + "|", *texts[1:]])


def code(names: Iterable[str]) -> str:
    """Return names as code, with commas between."""
    return ", ".join(f"`{name}`" for name in names)
