"""Settings: every number in its range, every range beside its field, older names understood."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from suite.base.errors import UsageError
from suite.settings.config import (
    Count,
    Decay,
    Fraction,
    NotNegative,
    Positive,
    Rate,
    RunConfig,
    Whole,
    Widths,
)
from suite.settings.recorded import REMOVED, without_removed


@dataclass(frozen=True, kw_only=True)
class Settings(RunConfig):
    """One field of every kind of range."""

    task: str = "Pong-v5"
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    env_steps: Count = 100
    num_envs: Count = 4
    evaluation_rule: Literal["sampled", "training"] = "training"
    learning_rate: Rate = 0.1
    decay: Decay = 0.9
    share: Fraction = 0.5
    scale: Positive = 1.0
    clip: Positive | None = None
    weight: NotNegative = 0.0
    start: Whole = 0
    widths: Widths = (8, 8)
    free: float = -7.0


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("num_envs", 0, "must be at least 1"),
        ("log_interval", -3, "must be at least 1"),
        ("gamma", 1.01, r"must be in \[0, 1\]"),
        ("learning_rate", 0.0, r"must be in \(0, 1\)"),
        ("learning_rate", 1.0, r"must be in \(0, 1\)"),
        ("decay", 1.0, r"must be in \[0, 1\)"),
        ("share", -0.01, r"must be in \[0, 1\]"),
        ("scale", 0.0, "must be above 0"),
        ("clip", -1.0, "must be above 0"),
        ("weight", -0.5, "must be at least 0"),
        ("start", -1, "must be at least 0"),
        ("widths", (8, 0), "must be at least 1"),
        ("widths", (), "must be at least 1"),
        ("free", math.nan, "must be finite"),
        ("gamma", None, r"must be in \[0, 1\]"),
        ("widths", None, "must be at least 1"),
        ("scale", math.inf, "must be finite"),
        ("seeds", (), "must be distinct, and at least one"),
        ("seeds", (1, 1), "must be distinct, and at least one"),
        ("seeds", (2**31,), r"must lie in 0\.\.2\*\*31-1"),
        ("evaluation_rule", "deterministic", "must be one of sampled, training"),
        ("protocol", "evil", "must be one of noframeskip, sticky"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: Any, rule: str) -> None:
    """The line says field, rule and value; nothing has begun."""
    with pytest.raises(UsageError, match=rf"^{name} {rule}, not "):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("gamma", 0.0), ("gamma", 1.0), ("decay", 0.0), ("share", 1.0), ("weight", 0.0)),
        *(("clip", None), ("clip", 1e-9), ("start", 0), ("num_envs", 1), ("widths", (1,))),
        *(("free", -1e30), ("learning_rate", 1e-12), ("seeds", (0, 2**31 - 1))),
    ],
)
def test_the_ends_of_a_range_belong_to_it_where_it_says_so(name: str, value: Any) -> None:
    """A closed end is allowed, None stays None."""
    assert getattr(Settings(**{name: value}), name) == value


def test_a_setting_that_is_gone_is_left_out_unless_it_made_a_difference() -> None:
    """A run with another value of it is not one of today's; an agent may have the name anew."""
    for name, value in [(name, each) for name, values in REMOVED.items() for each in values]:
        assert without_removed({"gamma": 0.9, name: value}) == {"gamma": 0.9}
        assert without_removed({name: "other"}) == {name: "other"}
        assert without_removed({name: value}, known=(name,)) == {name: value}
