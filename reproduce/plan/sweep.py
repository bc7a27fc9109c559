"""Sweeps: `--set gamma=0.98,0.99 tau=0.005,0.01` asks for every combination of the values."""

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from suite.settings import UsageError

LARGEST = 100
"""Variants of one sweep."""
LONGEST_NAME = 120
"""Characters of a folder's name before it is shortened."""


def variants(config: Any, settings: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the `--set` of every variant, the first values first; one where nothing varies.

    Commas separate the values of a setting. Where a value is a list of its own they separate its
    entries, and slashes the values: `hidden_sizes=64,64/256,256`.

    Args:
        config: the preset's configuration, which tells lists from single values.
        settings: `key=value` changes of it.

    Raises:
        UsageError: for an empty value, one that is named twice, or too many variants.
    """
    choices = [_values(config, setting) for setting in settings]
    count = math.prod(map(len, choices))
    if count > LARGEST:
        each = " x ".join(str(len(values)) for values in choices if len(values) > 1)
        raise UsageError(
            f"--set: {each} = {count:,} variants are more than {LARGEST}: name fewer values"
        )
    return list(itertools.product(*choices))


def folder_name(settings: Sequence[str]) -> str:
    """Return the name of a variant's runs folder: its settings."""
    name = ",".join(re.sub(r"[^\w.=+-]", "-", setting) for setting in settings)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _values(config: Any, setting: str) -> list[str]:
    """Return a setting with each of its values."""
    key, _, text = setting.partition("=")
    is_list = isinstance(getattr(config, key.replace("-", "_"), None), tuple)
    separator = "/" if is_list else ","
    if separator not in text:
        return [setting]
    values = text.split(separator)
    if not all(values):
        raise UsageError(f"--set: {setting!r} has an empty value")
    if len(set(values)) < len(values):
        raise UsageError(f"--set: {setting!r} names a value twice")
    return [f"{key}={value}" for value in values]
