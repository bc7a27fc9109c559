"""Anybody's curves are judged as a grid's are."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reproduce.__main__ import main
from reproduce.commands.judge import judge_curves as judge_read
from reproduce.commands.judge import score_runs
from reproduce.gather.others import COLUMNS, read_curves
from reproduce.plan.presets import PUBLISHED
from reproduce.report.tables import read_report_table
from suite.base.errors import UsageError
from tests.messages import check, refused
from tests.reproduce.conftest import TASK, Say, pendulum, record_run, recorded

GRID = PUBLISHED / "sac-mujoco-small" / "paper"
TASKS = ("Reacher-v4", "InvertedPendulum-v4")
CART = "CartPole-v1"
GRIDS = sorted(path.parent for path in PUBLISHED.glob("*/*/curves.csv"))


def judge_curves(agent: str, path: Path, source: str, **asked: Any) -> dict[str, pd.DataFrame]:
    return judge_read(agent, read_curves([path]), source, **asked)


def judge_rows(
    rows: Sequence[tuple[str, int, int, float]], folder: Path, agent: str, source: str, **asked: Any
) -> dict[str, pd.DataFrame]:
    """Judge task, seed, step and return of made-up evaluations or episodes."""
    pd.DataFrame(rows, columns=[*COLUMNS]).to_csv(folder / "curves.csv", index=False)
    return judge_curves(agent, folder / "curves.csv", source, **asked)


def write(folder: Path, tasks: Sequence[str] = TASKS) -> Path:
    """Write the evaluations of published runs as another program would."""
    runs = [(task, seed) for task in tasks for seed in (1, 2, 3)]
    tables = [
        pd.read_csv(GRID / task / f"seed-{seed}" / "evaluations.csv").assign(task=task, seed=seed)
        for task, seed in runs
    ]
    columns = ["seed", *(name for name in COLUMNS if name != "seed")]
    pd.concat(tables)[columns].to_csv(folder / "curves.csv", index=False)
    return folder / "curves.csv"


def test_a_table_of_a_grids_curves_has_the_grids_verdicts(tmp_path: Path) -> None:
    """Every number of a task and of the suite is that of the published page."""
    found = judge_curves("sac", write(tmp_path), "nnabla_rl")
    assert set(found["scores"]["rule"]) == {"deterministic"}
    for name, table in (("verdicts", found["verdicts"]), ("suite", found["suite"])):
        whole = read_report_table(GRID, name)
        of_runs = ("note", "left_out", "remarks", "older_runs")
        shared = [c for c in table if c in whole and c not in of_runs]
        assert {"verdict", "difference", "ci_low", "margin"} <= set(shared)
        pd.testing.assert_frame_equal(table[shared], whole[shared], check_dtype=False)


@pytest.mark.parametrize(("agent", "height"), [("sac", 0.0), ("sac", -100.0), ("a2c", 90.0)])
def test_no_reference_without_learning_judges(agent: str, height: float, tmp_path: Path) -> None:
    """Three zeros by hand were `reproduced`; neither they nor better scores are any more."""
    rows = [("MountainCarContinuous-v0", seed, 20_000, height) for seed in (1, 2, 3)]
    found = judge_rows(rows, tmp_path, agent, "sb3_control")
    (row,) = found["verdicts"].to_dict("records")
    assert row["verdict"] == "nothing learned"
    assert row["zero_score"] == 0.0, "who stands still is the best that learned nothing"
    assert pd.isna(row["p_below_holm"])
    assert pd.isna(row["ci_low"])


def test_curves_that_end_before_the_first_update_are_refused(tmp_path: Path) -> None:
    """The line names the first step that is judged, whose share is small but known."""

    def judge(step: int) -> dict[str, pd.DataFrame]:
        rows = [("HalfCheetah-v4", seed, step, 0.0) for seed in (1, 2, 3)]
        return judge_rows(rows, tmp_path, "sac", "jaxrl")

    said = r"the first update is at 10,001 environment steps: jaxrl first judges at ([\d,]+)$"
    with pytest.raises(UsageError, match=said) as error:
        judge(5_000)
    first = int(re.findall(said, str(error.value))[0].replace(",", ""))
    (row,) = judge(first)["verdicts"].to_dict("records")
    assert row["verdict"] != "nothing learned"
    assert 0.0 < row["reference_share"] < 0.2


def test_a_task_is_judged_by_the_settings_of_its_own_suite(tmp_path: Path) -> None:
    """stable-baselines3's of Pendulum warm up for 1,000 steps, those of MuJoCo for 10,000."""
    rows = [("Pendulum-v1", seed, 5_000, -300.0) for seed in (1, 2, 3)]
    (row,) = judge_rows(rows, tmp_path, "sac", "sb3_control")["verdicts"].itertuples()
    assert row.env_steps == 5_000


def test_episodes_that_end_past_the_references_last_step_need_a_step(tmp_path: Path) -> None:
    """They end anywhere: the line names the step, at which they are judged."""
    rows = [(CART, seed, step, 500.0) for seed in (1, 2, 3) for step in (99_950, 100_073)]
    with refused():
        judge_rows(rows, tmp_path, "a2c", "sb3_control")
    found = judge_rows(rows, tmp_path, "a2c", "sb3_control", env_steps=100_000)
    assert found["verdicts"]["verdict"].tolist() == ["reproduced"]


def test_a_step_need_not_be_one_at_which_our_agent_may_end(tmp_path: Path) -> None:
    """Others' episodes end where they end, at no multiple of our number of environments."""
    rows = [(CART, seed, 99_990, 400.0 + seed) for seed in (1, 2, 3)]
    for asked in (None, 99_991):
        found = judge_rows(rows, tmp_path, "a2c", "rl_zoo", env_steps=asked)
        assert found["scores"]["score"].tolist() == [401.0, 402.0, 403.0]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.parent.name}-{grid.name}")
def test_every_published_table_gives_its_grids_scores(grid: Path) -> None:
    """To the digits of a table, by every rule, without being told the step."""
    table, rule, *_ = read_curves([grid / "curves.csv"])
    scores = pd.read_csv(grid / "scores.csv")
    assert rule is not None
    assert rule == scores["rule"].iloc[0]
    for task, rows in table.groupby("task"):
        own = scores[scores["task"] == task]
        expected = dict(zip(own["seed"], own["score"], strict=True))
        env_steps, found = score_runs(rows, rule, True, None)
        assert env_steps == own["env_steps"].iloc[0]
        assert found == pytest.approx(expected, rel=1e-8)


def test_a_run_whose_last_episode_is_in_the_window_reached_it() -> None:
    """(0.9 t, t] without its lower end; one row of evaluations, or of a grid, must be at t."""
    rows = pd.DataFrame({"seed": [7, 7], "env_steps": [500, 901], "mean_return": [1.0, 3.0]})
    assert score_runs(rows, "training", False, 1000) == (1000, {7: 3.0})
    for rule, from_grid in (("training", True), ("sampled", False)):
        with refused():
            score_runs(rows, rule, from_grid, 1000)
    with refused():
        score_runs(rows.replace(901, 900), "training", False, 1000)


def test_an_evaluation_off_the_schedule_counts_in_neither_score(tmp_path: Path) -> None:
    """A last one at no multiple of the interval counts only where it is alone, as in a grid."""
    for env_steps, interval, expected in ((1030, 50, 975.0), (1030, 150, 1030.0)):
        settings = [f"evaluation_interval={interval}"]
        plan = pendulum(tmp_path / str(interval), [1], env_steps=env_steps, settings=settings)
        steps = [*range(interval, env_steps, interval), env_steps]
        record_run(plan, TASK, 1, {step: float(step) for step in steps})
        recorded(plan)["curves"].to_csv(tmp_path / "curves.csv", index=False)
        curves = read_curves([tmp_path / "curves.csv"])
        (own,) = recorded(plan)["scores"]["score"]
        assert score_runs(curves.rows, plan.rule, True, None) == (env_steps, {1: own})
        assert own == expected


def test_a_game_is_compared_as_its_source_presents_it(tmp_path: Path) -> None:
    """With sticky actions or without: Cleanba's runs have them."""
    rows = [("Alien-v5", seed, 50_000_000, 1_000.0 + seed) for seed in (1, 2, 3)]
    (judge,) = judge_rows(rows, tmp_path, "impala", "cleanba")["verdicts"].reference_source
    assert judge == "cleanba"


Change = Callable[[pd.DataFrame], pd.DataFrame]
OF_GRID: dict[str, tuple[Change, dict[str, Any]]] = {
    "between two rows": (lambda t: t, {"env_steps": 499_999}),
    "behind the last row": (lambda t: t, {"env_steps": 500_001}),
    "episodes": (lambda t: pd.concat([t, t[-1:]]), {}),
    "two rules": (lambda t: t.assign(rule=["sampled", *t["rule"][1:]]), {}),
    "nobody's rule": (lambda t: t.assign(rule="deterministic"), {}),
    "another source's rule": (lambda t: t.assign(rule="sampled"), {}),
}


@pytest.mark.parametrize("case", OF_GRID)
def test_a_grids_table_is_taken_as_what_it_says(case: str, tmp_path: Path) -> None:
    """A step between its rows, another rule than the source's, or episodes: refused in one line."""
    change, asked = OF_GRID[case]
    table = pd.read_csv(PUBLISHED / "a2c-classic/rl_zoo/curves.csv").query("task == @CART")
    change(table).to_csv(tmp_path / "curves.csv", index=False)
    with refused(case):
        judge_curves("a2c", tmp_path / "curves.csv", "rl_zoo", **asked)


WRONG = {
    "nothing": "",
    "no row": "H\n",
    "no column": "task,seed,env_steps\nReacher-v4,1,5\n",
    "negative seed": "H\nReacher-v4,-1,5,1\n",
    "no whole seed": "H\nReacher-v4,one,5,1\n",
    "too many steps": "H\nReacher-v4,1,99999999999999999999,1\n",
    "ends at 0": "H\nReacher-v4,1,0,1\n",
    "infinite": "H\nReacher-v4,1,5,inf\n",
    "too large": "H\nReacher-v4,1,5,1\nReacher-v4,1,10,-1.5e16\n",
    "a cell too many": "H\nReacher-v4,1,5,1,\nReacher-v4,1,10,2,3\n",
    "a cell too many in a line": "H\nReacher-v4,1,5,1\nReacher-v4,1,10,2,3\n",
    "semicolons": "task;seed;env_steps;mean_return\nReacher-v4;1;5;1,5\n",
    "UTF-16": "H\nReacher-v4,1,5,1\n",
    "unknown task": "H\nReecher-v4,1,5,1\n",
    "module's task": "H\nthis:Zen-v0,1,5,1\n",
    "twice": "H\nReacher-v4,1,5,1\nReacher-v4,1,5,2\n",
    "settings alone --like paper": "H\nReacher-v4,1,5,1\n",
    "unknown source --like jaxlr": "H\nReacher-v4,1,5,1\n",
    "no such column --columns task=game": "H\nReacher-v4,1,5,1\n",
    "no step --env-steps 0": "H\nReacher-v4,1,5,1\n",
    "too short --env-steps 9": "H\nReacher-v4,1,5,1\n",
    "nothing in the window --env-steps 9": "H\nReacher-v4,1,5,1\nReacher-v4,1,10,1\n",
}
"""Tables by what is wrong with them; H is a whole header."""


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_judged_is_one_line(case: str, tmp_path: Path, say: Say) -> None:
    """It names the row, the column, the run or the nearest name; nothing is written."""
    path = tmp_path / "mine.csv"
    encoding = case if case == "UTF-16" else "utf-8"
    path.write_text(WRONG[case].replace("H", ",".join(COLUMNS)), encoding)
    _, *asked = re.split(" (?=--)", case)
    words = " ".join(["--like nnabla_rl", *asked]).split()
    status, out, err = say(["judge", "sac", str(path), *words, "--out", str(tmp_path / "page")])
    assert (status, out, err.count("\n"), list(tmp_path.iterdir())) == (2, "", 1, [path])
    check(err, case)


@pytest.mark.usefixtures("undrawn")
def test_files_of_one_name_have_own_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every grid's table is called `curves.csv`; several files share one."""
    monkeypatch.chdir(tmp_path)
    first, second = Path("first", "curves.csv"), Path("second", "curves.csv")
    for path, task in ((first, TASKS[1]), (second, TASKS[0])):
        path.parent.mkdir()
        write(tmp_path, [task]).rename(path)
    for files in ([first], [second], [first, second]):
        assert main(["judge", "sac", *map(str, files), "--like", "nnabla_rl"]) == 0
    names = [path.name[:-9] for path in Path("runs/judged/sac/nnabla_rl").iterdir()]
    assert names == ["curves"] * 3


@pytest.mark.usefixtures("undrawn")
def test_a_page_replaces_nothing_but_a_page(tmp_path: Path, say: Say) -> None:
    """A folder with other files, a grid's, and one that holds the curves stay as they are."""
    path, page = write(tmp_path, TASKS[1:]), tmp_path / "page"
    grid = tmp_path / "grid"
    grid.mkdir()
    for name in ("plan.json", "report.json"):
        (grid / name).write_text("{}")

    def judge(curves: Path, out: Path) -> tuple[int, str, str]:
        return say(["judge", "sac", str(curves), "--like", "nnabla_rl", "--out", str(out)])

    assert [judge(path, page)[0] for _ in range(2)] == [0, 0], "a page may be drawn again"
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for curves, out in ((path, tmp_path), (path, grid), (page / "curves.csv", page)):
        status, _, said = judge(curves, out)
        assert status == 2
        check(said)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


@pytest.mark.usefixtures("undrawn")
def test_the_command_has_a_grids_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 where nothing is below, 1 where something is; one task alone has no suite."""
    path = write(tmp_path, TASKS[1:])
    words = ["judge", "sac", str(path), "--like", "nnabla_rl", "--out", str(tmp_path / "page")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "reproduced" in said
    assert "suite" not in said
    assert "by the rule deterministic, as nnabla_rl" in said
    table = pd.read_csv(path)
    table.assign(mean_return=table["mean_return"] / 9).to_csv(path, index=False)
    assert main(words) == 1
    assert "below" in capsys.readouterr().out
