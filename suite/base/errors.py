"""The error for bad input, and the words of its hints."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

NEAR = 0.7
"""Similarity from which on a word may have been meant; two words alike have 1."""
LISTED = 40
"""Choices that are named at most."""


class UsageError(ValueError):
    """Bad input: one line that names the fix. Command lines print it and exit with status 2."""


class UnreadableError(UsageError):
    """A file that may be whole, and that this machine cannot read now."""


def require(condition: bool, rule: str, value: object) -> None:
    """Raise a `UsageError` that states the rule and the offending value unless the rule is kept."""
    if not condition:
        raise UsageError(f"{rule}, not {value}")


def check_shape(name: str, tensor: Any, shape: Sequence[int]) -> None:
    """Raise a ValueError that names the tensor unless it has this shape."""
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} must have the shape {[*shape]}, not {[*tensor.shape]}")


def near(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a mistyped word; None if none is similar."""
    word = word.lower().lstrip("-")
    by_lower = {choice.lower().lstrip("-"): choice for choice in sorted(choices)}
    match = difflib.get_close_matches(word, by_lower, n=1, cutoff=NEAR)
    return by_lower[match[0]] if match else None


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean X?" or, if none is near, "; choose from X, Y, Z"; "" without any."""
    options = sorted(choices)
    meant = near(word, options)
    if meant is not None or not options:
        return f"; did you mean {meant}?" if meant else ""
    more = f", ... ({len(options):,} in all)" if len(options) > LISTED else ""
    return f"; choose from {', '.join(options[:LISTED])}{more}"
