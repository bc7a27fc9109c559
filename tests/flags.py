"""Settings as words of a command line."""

from collections.abc import Mapping
from typing import Any


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the flags that say these settings, whatever their types."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return words
