"""Command lines: honest types, one-line errors that name the fix, the suite found by the task."""

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from suite.base.errors import UsageError
from suite.envs.tasks import TASKS, Task
from suite.settings.command_line import (
    RunOptions,
    read_command_line,
    run_main,
    whole,
    whole_numbers,
)
from suite.settings.presets import Preset
from tests.messages import refused


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings as an agent states them."""

    task: str = "HalfCheetah-v4"
    """What to learn."""
    seeds: tuple[int, ...] = (1,)
    """Which runs."""
    gamma: float = 0.99
    """Discount."""
    num_envs: int = 1
    """How many."""
    alpha: float | None = None
    """Fixed, or learned."""
    reset: Literal["soft", "hard"] = "soft"
    """How."""
    compile: bool = True
    """Whether."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")


def preset(config: Config) -> Preset[Config]:
    return Preset(config=config, budgets={}, judged_by="authors")


PRESETS = {
    ("mujoco", "paper"): preset(Config(num_envs=2)),
    ("mujoco", "jaxrl"): preset(Config(num_envs=3)),
    ("mujoco-small", "paper"): preset(Config(num_envs=4)),
    ("dmc", "paper"): preset(Config(num_envs=5)),
    ("mujoco-9", "cleanrl"): preset(Config(num_envs=6)),
}


def read(*argv: str) -> tuple[Config, RunOptions]:
    return read_command_line(PRESETS, argv, agent="sac")


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        *(("", {}), ("--gamma=0.9", {"gamma": 0.9}), ("--gamma 1", {"gamma": 1.0})),
        *(("--alpha -2e-1", {"alpha": -0.2}), ("--alpha=none", {"alpha": None})),
        *(("--reset hard", {"reset": "hard"}), ("--no-compile", {"compile": False})),
        *(("--compile=False", {"compile": False}), ("--seeds 1,2 4-5", {"seeds": (1, 2, 4, 5)})),
        ("--num-envs 4 --gamma 0.5", {"num_envs": 4, "gamma": 0.5}),
    ],
)
def test_flags_change_what_they_name_and_nothing_else(flags: str, changes: dict[str, Any]) -> None:
    """Each value arrives with its field's type."""
    config, _ = read(*flags.split())
    expected = replace(PRESETS["mujoco", "paper"].config, **changes)
    assert config == expected
    types = [[type(value) for value in vars(each).values()] for each in (config, expected)]
    assert types[0] == types[1]


@pytest.mark.parametrize(
    ("argv", "suite", "num_envs"),
    [
        ((), "mujoco", 2),
        (("--task", "Hopper-v3"), "mujoco", 2),
        (("--task=Reacher-v2",), "mujoco-small", 4),
        (("--task", "WalkerRun-v1"), "dmc", 5),
        (("--task", "Hopper-v4", "--like", "jaxrl"), "mujoco", 3),
        (("--task", "Hopper-v4", "--like", "cleanrl"), "mujoco-9", 6),
        (("--like", "cleanrl"), "mujoco-9", 6),
        (("--task-from", "gymnasium:Pendulum-v1", "--like", "cleanrl"), "mujoco-9", 6),
        (("--task", "Pendulum-v1"), "mujoco", 2),
        (("--task-from", "gymnasium:Pendulum-v1"), "mujoco", 2),
    ],
)
def test_the_suite_is_found_by_the_task(argv: tuple[str, ...], suite: str, num_envs: int) -> None:
    """`--task Reacher-v4` alone takes the settings that the source used on that suite.

    With `--like` it is a suite on which the source has settings.
    """
    config, options = read(*argv)
    assert options.suite == suite
    assert config.num_envs == num_envs


def test_a_tasks_row_may_have_a_time_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its registration has none; spaces that no agent takes are refused all the same."""
    where: dict[str, Any] = {"family": "other", "simulator": "gymnasium", "time_limit": 7}
    names = ("Endless-v0", "Pairs-v0")
    rows = {n: Task(name=n, made_as=f"tests.suite.envs.elsewhere:{n}", **where) for n in names}
    monkeypatch.setattr("suite.envs.tasks.TASKS", {**TASKS, **rows})
    config, _ = read("--suite=mujoco", "--task=Endless-v0")
    assert config.task == "Endless-v0"
    with refused():
        read("--suite=mujoco", "--task=Pairs-v0")


@pytest.mark.parametrize(
    "flags",
    [
        *("--gama 0.9", "--num-envs 1.5", "--gamma high", "--reset sof"),
        *("--no-compile now", "--seeds 1 two", "--compile maybe", "--task Hoper-v4"),
        *("--like jaxlr", "--suite dmc --like jaxrl", "--suite mujoc", "--likes jaxrl"),
        *("--suite dmc --task Hopper-v4", "--task TMaze-v0", "--task Claw-v0", "--task Pong-v5"),
        *("--checkpoint-minutes=nan", "--checkpoint-minutes=soon", "--out="),
    ],
)
def test_a_bad_command_line_is_one_line_that_names_it(flags: str) -> None:
    """No value is rounded, guessed or ignored, and no page of usage hides the reason."""
    with refused():
        read(*flags.split())


@pytest.mark.parametrize("agent", ["sac", "acer_continuous"])
def test_a_task_that_no_preset_can_train_is_refused_with_the_reason(agent: str) -> None:
    """A suite to choose is named only if that leads on."""
    presets = importlib.import_module(f"agents.{agent}").PRESETS
    with refused():
        read_command_line(presets, ["--task=Pong-v5"], agent=agent)


def raising(error: BaseException) -> Callable[[Sequence[str]], int]:
    def main(argv: Sequence[str]) -> int:
        raise error

    return main


NO_MEMORY = "cannot allocate memory ({}): train less at once"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("unknown task 'x'"), 2, "unknown task 'x'"),
        (MemoryError("5 TiB"), 2, NO_MEMORY.format("5 TiB")),
        (RuntimeError("can't allocate memory: 5"), 2, NO_MEMORY.format("can't allocate memory: 5")),
        (OSError(28, "No space left on device"), 2, "no space: [Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts tell bad usage from a bad result by the status, people by the line."""
    assert run_main(raising(error)) == status
    assert capsys.readouterr() == ("", f"error: {said}\n" if said else "")


def test_an_error_of_the_program_keeps_its_traceback_and_is_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bug has status 2, as 1 is a verdict's; its last line, which a grid shows, tells all."""
    ends = {"a bug": "ValueError: a bug", "two\nlines": "error: ValueError: two lines"}
    for message, last in ends.items():
        assert run_main(raising(ValueError(message))) == 2
        error = capsys.readouterr().err
        assert error.startswith("Traceback")
        assert error.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("reads", "text", "value"),
    [
        (whole, "30_000", 30_000),
        (whole, "2.5e5", 250_000),
        (whole, "1.5M", 1_500_000),
        (whole, "-3", -3),
        (whole_numbers, "3", [3]),
        (whole_numbers, "-1", [-1]),
        (whole_numbers, "1,2,3", [1, 2, 3]),
        (whole_numbers, "1-3", [1, 2, 3]),
        (whole_numbers, "1-2,7", [1, 2, 7]),
    ],
)
def test_steps_and_seeds_are_read_as_people_write_them(
    reads: Callable[[str], object], text: str, value: object
) -> None:
    """Whole steps in full, in powers of ten, in thousands; seeds alone, in lists, as ranges."""
    assert reads(text) == value


@pytest.mark.parametrize(
    ("reads", "text", "needed"),
    [
        *((whole, text, "a whole number") for text in ("1.5", "k", "nan", "", "_1", "1e16")),
        *((whole_numbers, text, "whole numbers") for text in ("3-1", "1,,2", "one", "1-")),
    ],
)
def test_what_is_no_whole_number_list_or_range_is_refused(
    reads: Callable[[str], object], text: str, needed: str
) -> None:
    """Nothing is rounded or guessed."""
    with pytest.raises(argparse.ArgumentTypeError, match=f"needs {needed} such"):
        reads(text)
