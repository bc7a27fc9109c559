"""Numbers, counts and tables as text for pages and messages."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, SupportsFloat

MISSING = "\N{EM DASH}"


def counted(count: SupportsFloat, noun: str) -> str:
    """Return a number of things: `1 run`, `2 runs`, `10,000 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{float(count):,.0f} {noun}{ending * (float(count) != 1)}"


def duration(seconds: float | None) -> str:
    """Return a duration in words, for example `1 h 05 min`; `measuring` where it is None."""
    if seconds is None or not math.isfinite(seconds):
        return "measuring"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def reached(share: Any) -> str:
    """Return how far a reference has come by a step; empty where nobody knows."""
    import pandas as pd

    return "" if pd.isna(share) else f"{float(share):z.0%} of its final gain"


def number(value: Any) -> str:
    """Format a number for people: three significant digits, or all before the point."""
    import pandas as pd

    if pd.isna(value):
        return MISSING
    value = float(value)
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if abs(value) >= 100 or value == round(value):
        return f"{value:z,.0f}"
    return f"{value:.3g}"


def visible(text: str) -> str:
    """Replace invisible characters, which may reorder or hide others, by U+FFFD."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = ([str(cell).replace("|", r"\|") for cell in line] for line in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))
