"""What runs recorded becomes tables without a row too many, too few or made up."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.gather import collect
from reproduce.gather.tables import SHARES, read_table
from reproduce.plan.grid import Plan
from reproduce.plan.unlearned import Zero, known_zero
from reproduce.report.tables import COLUMNS
from suite.record.clock import TIMING_COLUMNS
from tests.reproduce.conftest import TASK, pendulum, record_run, recorded, reseal


def plan_of(runs_dir: Path, seeds: list[int]) -> Plan:
    """Runs of 1,000 steps with an evaluation every 50."""
    return pendulum(runs_dir, seeds, settings=["evaluation_interval=50"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b", []),
        ("a,b\n1,2", []),
        ("a,b\n1,2\n", [[1, 2]]),
        ("a,b\n1,2\n3", [[1, 2]]),
        ("a,b\n1,2\n3,4", [[1, 2]]),
        ("a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
    ],
)
def test_a_torn_line_is_no_row(content: str, expected: list[list[int]], tmp_path: Path) -> None:
    """A line without its end may be half a number: it is dropped even where it looks whole."""
    path = tmp_path / "table.csv"
    assert read_table(path).empty
    path.write_text(content)
    assert read_table(path).to_numpy().tolist() == expected


@pytest.mark.parametrize(
    ("rule", "file", "columns"),
    [
        ("deterministic", "evaluations.csv", "env_steps,mean_return,return_0"),
        ("sampled", "evaluations.csv", "env_steps,mean_return,return_0"),
        ("training", "episodes.csv", "env_steps,episode_return,episode_length"),
    ],
)
@pytest.mark.parametrize("scale", [1, 7, 12_345, 300_000])
def test_a_score_is_the_mean_of_its_window_and_nothing_else(
    rule: str, file: str, columns: str, scale: int, tmp_path: Path
) -> None:
    """The window is (0.9 t, t]: 0.9 t itself is out, t is in, at every magnitude of t."""
    steps = 10 * scale
    inside = {9 * scale + 1: 2.0, steps: 6.0}
    outside = {1: 1e6, 9 * scale - 1: 1e6, 9 * scale: 1e6, steps + 1: 1e6}
    rows = sorted({**outside, **inside}.items())
    lines = [columns, *(f"{step},{value},0.5" for step, value in rows)]
    (tmp_path / file).write_text("\n".join(lines) + "\n")
    assert collect.score(tmp_path, rule, steps) == np.mean(list(inside.values()))


def test_a_late_evaluation_counts_at_the_step_it_was_due(tmp_path: Path) -> None:
    """The one due at 0.9 t falls out of the window, as the reference's does; the last is at t."""
    plan = pendulum(tmp_path, [1, 2, 3], settings=["evaluation_interval=300", "num_envs=10"])
    folder = record_run(plan, TASK, 1, {304: 3.0, 600: 6.0, 904: 9.0, 998: 10.0})
    record_run(plan, TASK, 2, {301: 3.0, 607: 6.0, 900: 9.0, 993: 10.0})
    record_run(plan, TASK, 3, {302: 3.0, 601: 6.0, 903: 9.0}, status="running")
    assert collect.score(folder, "deterministic", 1000) == 10.0
    steps = recorded(plan)["curves"].groupby("seed").env_steps.apply(list).to_dict()
    assert steps == {1: [300, 600, 900, 1000], 2: [300, 600, 900, 1000], 3: [300, 600, 900]}


@pytest.mark.parametrize("rule", ["deterministic", "training"])
@pytest.mark.parametrize("rows", ["", "900,5.0,9\n", "950,,9\n1000,6.0,9\n"])
def test_a_window_without_its_values_is_no_score(rule: str, rows: str, tmp_path: Path) -> None:
    """Nothing is extrapolated to the end, and a missing return is not the mean of the rest."""
    if rows:
        (tmp_path / "evaluations.csv").write_text(f"env_steps,mean_return,return_0\n{rows}")
        header = "env_steps,episode_return,episode_length"
        (tmp_path / "episodes.csv").write_text(f"{header}\n{rows}")
    assert math.isnan(collect.score(tmp_path, rule, 1000))


def test_a_curve_of_evaluations_is_the_evaluations_up_to_the_plans_steps(tmp_path: Path) -> None:
    """A longer run is cut, and no point is made up."""
    rows = "100,1.5,9\n200,2.5,9\n1000,3.5,9\n1001,9.0,9\n"
    (tmp_path / "evaluations.csv").write_text("env_steps,mean_return,return_0\n" + rows)
    table = collect.curve(tmp_path, "deterministic", 1000)
    assert table.to_dict("list") == {"env_steps": [100, 200, 1000], "mean_return": [1.5, 2.5, 3.5]}


def test_a_curve_of_episodes_has_the_score_at_each_of_its_points(tmp_path: Path) -> None:
    """Points are hundredths of the plan; where no episode ended there is none."""
    rows = "95,10.0,9\n100,20.0,9\n500,30.0,9\n1000,50.0,9\n1100,9.0,9\n"
    (tmp_path / "episodes.csv").write_text("env_steps,episode_return,episode_length\n" + rows)
    table = collect.curve(tmp_path, "training", 1000).set_index("env_steps").mean_return
    expected = {100: 15.0, 500: 30.0, 510: 30.0, 550: 30.0, 1000: 50.0}
    assert table[list(expected)].to_dict() == expected
    assert not set(table.index) & {90, 120, 490, 560, 990, 1100}
    assert set(table.index) <= {10 * k for k in range(1, 101)}


def test_a_curve_of_episodes_ends_where_a_run_does(tmp_path: Path) -> None:
    """The window (900, 1000] is not over after 910 steps, nor of a run to be extended from 950."""
    plan = plan_of(tmp_path, [1, 2])
    rows = "905,10.0,9\n910,20.0,9\n"
    ends = ((1, "running", 1000, 910), (2, "finished", 1000, 1000), (3, "finished", 950, 950))
    for seed, status, env_steps, last in ends:
        run = record_run(plan, TASK, seed, status=status, env_steps=env_steps)
        (run / "episodes.csv").write_text("env_steps,episode_return,episode_length\n" + rows)
        if status == "finished":
            reseal(run)
        assert collect.curve(run, "training", 1000)["env_steps"].max() == last


def timed(folder: Path, rows: str, *more: str) -> None:
    """Write `timing.csv`; `more` are columns beside those of all agents."""
    header = ",".join([*TIMING_COLUMNS, *more])
    (folder / "timing.csv").write_text(f"{header}\n{rows}")


def test_speed_excludes_the_warm_up(tmp_path: Path) -> None:
    """From the first row with updates: 600 steps and 300 updates in 30 s, shares by duration."""
    timed(
        tmp_path,
        "1000,0,2.0,500.0,0.9,0.1,0.0,0.0\n"  # warm-up: fast
        "1200,100,20.0,11.1,0.9,0.05,0.05,0.0\n"  # compiles: slow
        "1400,200,30.0,20.0,0.1,0.2,0.5,0.1\n"  # 10 s
        "1800,400,50.0,20.0,0.4,0.2,0.2,0.1\n"  # 20 s
        "2000,500,99.0,2",  # torn
    )
    speed = {"env_steps": 1800, "num_updates": 400, "wall_seconds": 50.0}
    speed |= {"env_steps_per_second": 600 / 30, "updates_per_second": 300 / 30}
    speed |= {"environment_share": (0.1 * 10 + 0.4 * 20) / 30, "acting_share": 0.2}
    speed |= {"learning_share": (0.5 * 10 + 0.2 * 20) / 30, "other_share": 0.2}
    assert collect.throughput(tmp_path) == pytest.approx(speed)


@pytest.mark.parametrize(
    ("shares", "more", "expected"),
    [
        ("0.7,0.2,0.6,0.0,0.4,0.1", collect.IDLE_SHARES, [0.7, 0.2, 0.6, 0.4, 0.1, 0.5]),
        (",,,", (), [math.nan] * 4),
    ],
    ids=["two threads", "another program"],
)
def test_shares_are_of_all_threads_or_unknown(
    shares: str, more: Sequence[str], expected: list[float], tmp_path: Path
) -> None:
    """Where one acts while another learns they add up to two; what is not told is not 0."""
    timed(tmp_path, f"100,10,1.0,,{shares}\n200,20,2.0,,{shares}\n", *more)
    speed = collect.throughput(tmp_path)
    assert speed is not None
    assert speed["env_steps_per_second"] == 100.0
    names = [*SHARES, *more, "other_share"]
    assert [speed[name] for name in names] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_no_speed_without_two_rows_of_learning(num_rows: int, tmp_path: Path) -> None:
    """One row after the warm-up has no duration."""
    rows = ["1000,0,2.0,500.0,0.5,0.5,0.0,0.0\n", "2000,1,3.0,500.0,0.5,0.5,0.0,0.0\n"]
    timed(tmp_path, "".join(rows[:num_rows]))
    assert collect.throughput(tmp_path) is None
    assert collect.throughput(tmp_path / "nowhere") is None


def test_a_finished_run_without_a_score_counts_as_failed(tmp_path: Path) -> None:
    """A longer run evaluated at other steps has no score here: it says so, and none is lost."""
    plan = plan_of(tmp_path, [1, 2])
    record_run(plan, TASK, 1, {950: 4.0, 1000: 6.0})
    record_run(plan, TASK, 2, {900: 5.0, 1100: 7.0, 2000: 9.0}, env_steps=2000)
    assert recorded(plan)["scores"][["seed", "score"]].to_numpy().tolist() == [[1.0, 5.0]]
    table = recorded(plan)["runs"]
    assert table.status.tolist() == ["finished", "failed"]
    fix = "use a larger --env-steps"
    assert table.error.tolist() == ["", f"no deterministic score in (900, 1,000]: {fix}"]


def test_a_machine_that_is_gone_runs_nothing(tmp_path: Path) -> None:
    """One look cannot see a heartbeat, so a lease of another machine counts by its age."""
    plan = plan_of(tmp_path, [1, 2])
    for seed, minutes in ((1, 1), (2, 60)):
        lease = record_run(plan, TASK, seed, status="running").with_name(f"seed-{seed}.lease")
        lease.write_text('{"machine": "elsewhere", "pid": 1}')
        beat = time.time() - 60 * minutes
        os.utime(lease, (beat, beat))
    assert recorded(plan)["runs"].status.tolist() == ["running", "interrupted"]


def test_every_planned_run_has_one_row_and_those_that_ended_have_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed and crashed runs have evaluations in the window, and still no score."""
    plan = plan_of(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8])
    for seed, status in enumerate(["finished", "diverged", "running", "failed"], start=1):
        record_run(plan, TASK, seed, {950: 10.0 * seed, 1000: 20.0 * seed}, status=status)
    for seed in (7, 8):  # to be extended
        record_run(plan, TASK, seed, {500: 1.0}, env_steps=500)
    (plan.directory / TASK / "seed-5").mkdir()
    (plan.directory / TASK / "seed-5" / "run.json").write_text("{")
    tables = recorded(plan, {(TASK, 8): "cannot go on"})
    table = tables["runs"]
    assert tuple(table.columns) == COLUMNS["runs"]
    assert table[["seed", "status", "error", "log_tail"]].to_numpy().tolist() == [
        [1, "finished", "", ""],
        [2, "diverged", "non-finite critic_loss at 1000 env_steps", ""],
        [3, "interrupted", "", ""],
        [4, "failed", "exit 1: no memory", "no memory"],
        [5, "planned", "", ""],
        [6, "planned", "", ""],
        [7, "planned", "", ""],
        [8, "failed", "cannot go on", ""],
    ]
    assert table["command"][3] == f"python -m agents.sac --task {TASK} --seeds 4"
    assert table["cpu"][0] != ""
    sizes = tables["curves"].groupby("seed").size().to_dict()
    assert sizes == {1: 2, 2: 2, 3: 2, 4: 2, 7: 1, 8: 1}
    standard = {"task": TASK, "env_steps": 1000, "rule": "deterministic"}
    random = known_zero(TASK).random
    finished, diverged = ({**standard, "seed": s, "score": v} for s, v in ((1, 15.0), (2, random)))
    assert tables["scores"].to_dict("records") == [finished, diverged]
    monkeypatch.setattr(collect, "known_zero", lambda *_: Zero())
    assert recorded(plan)["scores"].to_dict("records") == [finished]


def test_the_time_of_a_step_is_read_between_two_recorded_lines(tmp_path: Path) -> None:
    """From the beginning on; a step far beyond the last line has none."""
    asked = pd.Series([50, 100, 150, 220, 301])
    assert np.isnan(collect.wall_clock(tmp_path, asked)).all()
    timed(tmp_path, "100,1,2.0,50.0,1.0,0.0,0.0,0.0\n200,2,6.0,25.0,1.0,0.0,0.0,0.0\n")
    times = collect.wall_clock(tmp_path, asked)
    assert times[:4].tolist() == [1.0, 2.0, 4.0, 6.0]
    assert np.isnan(times[4])
