"""A before-and-after table compares like with like, with Welch's interval of the difference."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduce import __main__ as command_line
from reproduce.commands import compare as comparing
from reproduce.commands.compare import compare
from reproduce.plan.grid import Plan
from reproduce.plan.presets import PUBLISHED
from reproduce.plan.unlearned import Zero, known_zero
from tests.messages import check, refused
from tests.reproduce.conftest import TASK, Say, pendulum, record_run, reseal

OTHER = "MountainCarContinuous-v0"


def write(plan: Plan, task: str, scores: Sequence[float | None], speed: float = 10.0) -> Plan:
    """Record a finished run per score, or without one, all of the same speed; return the plan."""
    for seed, score in enumerate(scores, start=1):
        evaluations = {900: 1e6} if score is None else {900: 1e6, 1000: score}
        folder = record_run(plan, task, seed, evaluations)
        header = (folder / "timing.csv").read_text().splitlines()[0]
        rows = [f"{step},{step},{step / speed},9,0.1,0.1,0.1,0.1" for step in (100, 500)]
        (folder / "timing.csv").write_text("\n".join([header, *rows]) + "\n")
        reseal(folder)
    return plan


def only_row(first: Plan, second: Plan) -> dict[str, Any]:
    """The only row of a comparison."""
    (row,) = compare(first.directory, second.directory)
    return row


@pytest.mark.parametrize(
    ("others", "cells"),
    [
        # Variances of the means are 100 / 3 and 2 / 2: the standard error is 5.85947, with 2.11791
        # degrees of freedom, whose 97.5 % point of Student's t is 4.08093.
        ([30.0, 32.0], ["31 (2)", "11 [-13, 35]"]),
        ([30.0, None, 32.0], ["31 (2)", "11 [-13, 35]"]),
        ([30.0, None], ["30 (1)", "10, no interval: one run on a side"]),
        ([None, None], ["no score", "none: no score on a side"]),
    ],
)
def test_a_task_is_a_line(
    others: list[float | None], cells: list[str], tmp_path: Path, say: Say
) -> None:
    """Means, the difference with Welch's interval by hand, the ratio of speeds, who is left out."""
    first = write(pendulum(tmp_path / "a"), TASK, [10.0, 20.0, 30.0], speed=10.0)
    second = write(pendulum(tmp_path / "b"), TASK, others, speed=25.0)
    status, out, _ = say(["compare", str(first.directory), str(second.directory)])
    assert status == 0
    lines = out.splitlines()
    (line,) = [line for line in lines if line.startswith(f" {TASK}")]
    found = re.split(" {2,}", line.strip())
    assert found == [TASK, "1,000", "20 (3)", *cells, "2.50"]
    if None in others:
        check(lines[-1], f"without a score: {cells[0]}")


def test_only_runs_that_ended_and_shared_tasks_are_compared(tmp_path: Path) -> None:
    """Unfinished runs, runs kept aside and tasks of one side have no part; the first are named."""
    first, second = pendulum(tmp_path / "a"), pendulum(tmp_path / "b")
    write(first, TASK, [1.0, 2.0])
    write(first, OTHER, [7.0])
    write(second, TASK, [3.0, 4.0])
    for seed, status in enumerate(["running", "failed"], start=3):
        record_run(second, TASK, seed, {1000: 1e6}, status=status)
    aside = record_run(second, TASK, 9, {1000: 1e6})
    aside.rename(aside.with_name("seed-9.1000"))
    row = only_row(first, second)
    assert (row["task"], row["num_seeds_b"], row["score_mean_b"]) == (TASK, 2, 3.5)
    named = {run.name: status for run, status in row["left_out"].items()}
    assert named == {"seed-3": "running", "seed-4": "failed"}


def test_a_diverged_run_counts_as_a_random_policy(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a verdict: without it the mean would be that of the others; it is named either way."""
    first, second = pendulum(tmp_path / "a"), pendulum(tmp_path / "b")
    write(first, TASK, [-200.0, -200.0])
    write(second, TASK, [-200.0, -200.0])
    record_run(second, TASK, 3, {1000: -100.0}, status="diverged")
    row = only_row(first, second)
    assert row["num_seeds_b"] == 3
    assert row["score_mean_b"] == pytest.approx((-400.0 + known_zero(TASK).random) / 3)
    status, printed, _ = say(["compare", str(first.directory), str(second.directory)])
    assert status == 0
    check(printed.splitlines()[-1])
    monkeypatch.setattr(comparing, "known_zero", lambda *_: Zero())
    assert only_row(first, second)["score_mean_b"] == -200.0
    printed = say(["compare", str(first.directory), str(second.directory)])[1]
    check(printed.splitlines()[-1])


def test_scores_are_taken_at_the_step_that_all_reached(tmp_path: Path) -> None:
    """What a longer run learned later is no advantage."""
    first, second = pendulum(tmp_path / "a"), pendulum(tmp_path / "b")
    for seed in (1, 2):
        record_run(first, TASK, seed, {1000: float(seed)})
        record_run(second, TASK, seed, {1000: 10.0 + seed, 5000: 1e6}, env_steps=5000)
    row = only_row(first, second)
    assert (row["env_steps"], row["difference"]) == (1000, 10.0)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """No folder, no run that ended, no shared task, two rules, two protocols, each told apart."""
    first, second, third = (pendulum(tmp_path / name) for name in ("a", "b", "c"))
    write(first, TASK, [1.0, 2.0])
    write(second, OTHER, [1.0, 2.0])
    record_run(third, TASK, 1, status="running")
    other = write(pendulum(tmp_path / "d", settings=["evaluation_rule=sampled"]), TASK, [1.0, 2.0])
    for folders in (
        (first.directory, tmp_path / "nowhere"),
        (third.directory, tmp_path / "nowhere"),  # where no run ended, too
        (third.directory, first.directory),
        (tmp_path / "a", first.directory),  # a folder of grids
        (first.directory, second.directory),
        (first.directory, other.directory),
        (PUBLISHED / "ppo-atari-7" / "tuned", PUBLISHED / "acer-atari-7" / "openai_baselines"),
    ):
        with refused():
            compare(*folders)


def test_the_command_takes_what_an_agents_own_command_wrote(tmp_path: Path, say: Say) -> None:
    """An `--out` holds seeds, also beside a checkpoint; its title says which agent made them."""
    first, second = pendulum(tmp_path / "a"), pendulum(tmp_path / "b")
    write(first, TASK, [10.0, 20.0])
    write(second, TASK, [30.0, 32.0])
    out = tmp_path / "mine"
    shutil.copytree(second.directory / TASK, out)
    for run in out.iterdir():
        reseal(run, agent="toy", source="sb3")
    (out / "seed-1" / "checkpoint").mkdir(exist_ok=True)
    status, printed, _ = say(["compare", str(first.directory), str(out)])
    assert status == 0
    assert "tuned(sac,tuned)" in "".join(printed.split())
    assert "mine(toy,sb3)" in "".join(printed.split())
    (line,) = [line for line in printed.splitlines() if line.startswith(f" {TASK}")]
    assert "31 (2)" in line
    shutil.move(out, tmp_path / "c" / "x")
    shutil.copytree(first.directory / TASK, tmp_path / "c" / "y")
    with refused():
        command_line.main(["compare", str(tmp_path / "c"), str(first.directory)])
