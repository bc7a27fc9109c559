"""Settings: values of their types and in their ranges, beside their fields, older names known."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from suite.settings.config import (
    Count,
    Decay,
    Environments,
    Fraction,
    NotNegative,
    Positive,
    Rate,
    RunConfig,
    Whole,
    Widths,
)
from suite.settings.older import REMOVED, without_removed
from tests.messages import refused


@dataclass(frozen=True, kw_only=True)
class Settings(RunConfig):
    """One field of every kind of range."""

    task: str = "Pong-v5"
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    env_steps: Count = 100
    num_envs: Environments = 4
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
    ("name", "value"),
    [
        *(("num_envs", 0), ("log_interval", -3), ("gamma", 1.01), ("gamma", None)),
        *(("learning_rate", 0.0), ("learning_rate", 1.0), ("decay", 1.0), ("share", -0.01)),
        *(("scale", 0.0), ("scale", math.inf), ("clip", -1.0), ("weight", -0.5), ("start", -1)),
        *(("widths", (8, 0)), ("widths", (10**7,)), ("widths", ()), ("widths", None)),
        *(("free", math.nan), ("seeds", ()), ("seeds", (1, 1)), ("seeds", (2**31,))),
        *(("evaluation_rule", "deterministic"), ("protocol", "evil")),
        *(("num_envs", 10**6), ("evaluation_episodes", 10**9)),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:
    """The line says field, rule and value; nothing has begun."""
    with refused():
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("env_steps", 1e5), ("num_envs", True), ("seeds", [1]), ("seeds", (1.5,)), ("tf32", 1)),
        *(("widths", 64), ("widths", [8, 8]), ("clip", "0.5"), ("task", None)),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    """A record with it would be nobody's: JSON has no tuples, and 1e5 is no whole number."""
    with refused():
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("gamma", 0.0), ("gamma", 1.0), ("decay", 0.0), ("share", 1.0), ("weight", 0.0)),
        *(("clip", None), ("clip", 1e-9), ("start", 0), ("num_envs", 1), ("widths", (1,))),
        *(("free", -1e30), ("learning_rate", 1e-12), ("seeds", (0, 2**31 - 1))),
        *(("gamma", 1), ("clip", 2), ("free", -7), ("env_threads", None)),
    ],
)
def test_the_ends_of_a_range_belong_to_it_where_it_says_so(name: str, value: Any) -> None:
    """A closed end is allowed, None stays None, a whole number is a number."""
    assert getattr(Settings(**{name: value}), name) == value


def test_a_setting_that_is_gone_is_left_out_unless_it_made_a_difference() -> None:
    """A run with another value of it is not one of today's; an agent may have the name anew."""
    for name, value in [(name, each) for name, values in REMOVED.items() for each in values]:
        for said in (value, str(value).lower()):  # a plan has it as text
            assert without_removed({"gamma": 0.9, name: said}, known=("gamma",)) == {"gamma": 0.9}
        assert without_removed({name: "other"}, known=()) == {name: "other"}
        assert without_removed({name: value}, known=(name,)) == {name: value}
