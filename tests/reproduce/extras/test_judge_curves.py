"""Anybody's curves are judged as a grid's are."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from reproduce.__main__ import main
from reproduce.extras.docs.results import read_table
from reproduce.extras.judge_curves import COLUMNS, judge_curves
from reproduce.plan.grid import PUBLISHED
from suite.settings import UsageError

GRID = PUBLISHED / "sac-mujoco-small" / "paper"
TASKS = ("Reacher-v4", "InvertedPendulum-v4")


def write(folder: Path, tasks: Sequence[str] = TASKS) -> Path:
    """Write the evaluations of published runs as another program would."""
    runs = [(task, seed) for task in tasks for seed in (1, 2, 3)]
    tables = [
        pd.read_csv(GRID / task / f"seed-{seed}" / "evaluations.csv").assign(task=task, seed=seed)
        for task, seed in runs
    ]
    pd.concat(tables)[["seed", *(c for c in COLUMNS if c != "seed")]].to_csv(
        folder / "curves.csv", index=False
    )
    return folder / "curves.csv"


def test_a_table_of_a_grids_curves_has_the_grids_verdicts(tmp_path: Path) -> None:
    """Every number of a task and of the suite is that of the published page."""
    found = judge_curves("sac", write(tmp_path), "nnabla_rl")
    assert found.rule == "deterministic"
    for name, table in (("verdicts", found.tasks), ("suite", found.suite)):
        whole = read_table(GRID, name)
        shared = [c for c in table if c in whole and c not in ("note", "left_out")]
        assert {"verdict", "difference", "ci_low", "margin"} <= set(shared)
        pd.testing.assert_frame_equal(table[shared], whole[shared], check_dtype=False)


def test_the_command_says_by_what_rule_and_gives_a_grids_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 where nothing is below, 1 where something is; one task alone has no suite."""
    path = write(tmp_path, TASKS[:1])
    assert main(["judge", "sac", str(path), "--like", "nnabla_rl"]) == 0
    said = capsys.readouterr().out
    assert "reproduced" in said
    assert "suite" not in said
    assert "by rule deterministic, as nnabla_rl was" in said
    table = pd.read_csv(path)
    table.assign(mean_return=table["mean_return"] * 9).to_csv(path, index=False)
    assert main(["judge", "sac", str(path), "--like", "nnabla_rl"]) == 1
    assert "below" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        (
            lambda t: t.drop(columns="seed"),
            {},
            "has no column seed: it needs task, seed, env_steps",
        ),
        (lambda t: t[:0], {}, "has no row"),
        (lambda t: t.assign(seed="one"), {}, "seed holds what is no number, or not a whole one"),
        (lambda t: t.assign(mean_return=float("inf")), {}, "mean_return holds what is no number"),
        (
            lambda t: t.assign(env_steps=0.5),
            {},
            "env_steps holds what is no number, or not a whole",
        ),
        (lambda t: pd.concat([t, t[:1]]), {}, "Reacher-v4, seed 1 has two evaluations at "),
        (lambda t: t.assign(task="Reecher-v4"), {}, "did you mean Reacher-v4"),
        (lambda t: t.assign(task="this:Zen-v0"), {}, "unknown task 'this:Zen-v0'"),
        (lambda t: t.assign(task=""), {}, "a row has no task"),
        (lambda t: t, {"source": "jaxlr"}, "no source 'jaxlr' judges sac; did you mean jaxrl"),
        (lambda t: t, {"agent": "sca"}, "unknown agent 'sca'; did you mean sac"),
        (lambda t: t, {"env_steps": 99_000}, "ends at 30,000: use a smaller --env-steps than 99,"),
        (lambda t: t, {"env_steps": 999}, r"seed 1 has no row behind 899 and up to 999 steps"),
    ],
)
def test_what_cannot_be_judged_is_one_line(change, asked, message: str, tmp_path: Path) -> None:
    """It names the column, the run or the nearest name."""
    path = write(tmp_path, TASKS[:1])
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(UsageError, match=message):
        judge_curves(**{"agent": "sac", "curves": path, "source": "nnabla_rl", **asked})
