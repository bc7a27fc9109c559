"""Words for numbers, as tables, pages and messages say them."""

from typing import SupportsFloat


def counted(count: SupportsFloat, noun: str) -> str:
    """Return a number of things: `1 run`, `2 runs`, `10,000 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{float(count):,.0f} {noun}{ending * (float(count) != 1)}"
