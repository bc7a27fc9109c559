"""Curves that other programs recorded, as one table."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.commands.judge import judge_curves
from reproduce.gather import tables as recorded
from reproduce.gather.others import read_curves
from reproduce.plan.presets import PUBLISHED
from tests.bombs import Bomb
from tests.messages import refused

GRID = PUBLISHED / "a2c-classic" / "rl_zoo"
CART = "CartPole-v1"
ARCHIVES = ("no archive", "a pickle", "nothing")
RETURN = "charts/episodic_return"


def write_monitor(path: Path, episodes: list[tuple[float, int]], task: str = CART) -> None:
    """Write what SB3's `Monitor` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["#" + json.dumps({"t_start": 1.5, "env_id": task}), "r,l,t"]
    lines += [f"{total},{length},{place}.5" for place, (total, length) in enumerate(episodes)]
    path.write_text("\n".join(lines) + "\n")


def as_rows(path: Path, *others: Path, **asked: object) -> list[tuple[object, ...]]:
    """Return the rows that are read, in order."""
    rows = read_curves([path, *others], **asked).rows  # type: ignore[arg-type]
    return list(rows.itertuples(index=False, name=None))


def test_environments_of_a_monitored_run_step_together(tmp_path: Path) -> None:
    """A step of each is two of the run; folders are seeds, and the file says the task."""
    write_monitor(tmp_path / "a" / "0.monitor.csv", [(10.0, 10), (30.0, 30)])
    write_monitor(tmp_path / "a" / "1.monitor.csv", [(15.0, 15)])
    write_monitor(tmp_path / "b" / "monitor.csv", [(7.0, 7)])
    first = [(CART, 1, 20, 10.0), (CART, 1, 30, 15.0), (CART, 1, 80, 30.0)]
    assert as_rows(tmp_path) == [*first, (CART, 2, 7, 7.0)]
    assert read_curves([tmp_path]).episodes


def test_monitored_runs_with_names_are_runs(tmp_path: Path) -> None:
    """`Monitor` numbers the environments of a run; files of other names are a run each."""
    for seed in (1, 2, 3):
        write_monitor(tmp_path / f"seed{seed}.monitor.csv", [(float(seed), 10)])
    rows = [(CART, seed, 10, float(seed)) for seed in (1, 2, 3)]
    assert as_rows(tmp_path) == rows
    for env in (0, 1):
        write_monitor(tmp_path / f"{env}.monitor.csv", [(9.0, 10)])
    numbered = [(CART, 1, 20, 9.0)] * 2
    others = [(CART, seed + 1, 10, float(seed)) for seed in (1, 2, 3)]
    assert as_rows(tmp_path) == [*numbered, *others]


@pytest.mark.parametrize("name", ["", "a/evaluations.npz"])
def test_evaluations_are_read_where_they_judge(name: str, tmp_path: Path) -> None:
    """As a file or in a folder: a mean over episodes at each step; elsewhere `Monitor`'s count."""
    (tmp_path / "a").mkdir()
    returns = np.array([[1.0, 2.0], [3.0, 5.0]])
    np.savez(tmp_path / "a" / "evaluations.npz", timesteps=[10, 20], results=returns)
    write_monitor(tmp_path / "monitor.csv", [(7.0, 7)])
    found = read_curves([tmp_path / name], task=CART, evaluated=True)
    assert not found.episodes
    assert found.rows.to_numpy().tolist() == [[CART, 1, 10, 1.5], [CART, 1, 20, 4.0]]
    if name:
        with refused():
            read_curves([tmp_path / name], task=CART)
    else:
        assert read_curves([tmp_path]).rows.to_numpy().tolist() == [[CART, 1, 7, 7.0]]


def test_a_run_of_cleanrl_is_read_by_its_columns(tmp_path: Path) -> None:
    """They and its name suffice: task, seed, and every episode; rows without a return are none."""
    files, expected = list[Path](), list[tuple[object, ...]]()
    for seed in (1, 2):
        table = recorded.read_table(GRID / CART / f"seed-{seed}" / "episodes.csv")
        columns = (table["env_steps"], table["episode_return"])
        expected += [(CART, seed, *row) for row in zip(*columns, strict=True)]
        table = table.rename(columns={"env_steps": "global_step", "episode_return": RETURN})
        losses = pd.DataFrame({"global_step": [1, 2], "losses/value_loss": [0.5, 0.25]})
        files.append(tmp_path / f"{CART}__a2c__{seed}__17.csv")
        pd.concat([losses, table]).to_csv(files[-1], index=False)
    assert as_rows(*files) == expected


def test_training_episodes_are_not_judged_as_evaluations(tmp_path: Path) -> None:
    """The line names who judges training episodes."""
    write_monitor(tmp_path / "monitor.csv", [(10.0, 100)])
    with refused():
        judge_curves("a2c", read_curves([tmp_path]), "mushroom_rl")
    (tmp_path / "x.csv").write_text(f"task,seed,env_steps,mean_return\n{CART},7,100,10.0\n")
    assert read_curves([tmp_path, tmp_path / "x.csv"], task=CART).episodes, "some of them are"


def test_evaluations_are_not_judged_as_training_episodes(tmp_path: Path) -> None:
    """stable-baselines3's name of an evaluation is known where evaluations judge."""
    path = tmp_path / "x.csv"
    path.write_text(f"task,seed,env_steps,eval/mean_reward\n{CART},1,100,10.0\n")
    assert read_curves([path], evaluated=True).rows["mean_return"].tolist() == [10.0]
    with refused():
        read_curves([path])


def test_an_export_of_wandb_has_a_run_in_each_column(tmp_path: Path) -> None:
    """Ends of bands are left out; so are the steps at which a run has no value."""
    path, names = tmp_path / "export.csv", [f"{CART}__ppo - a__{seed}__17" for seed in (4, 5)]
    columns = {"global_step": [10, 20, 30], f"{names[0]} - {RETURN}": [1.0, None, 3.0]}
    columns |= {f"{name} - {RETURN}__{end}": [0, 0, 0] for name in names for end in ("MIN", "MAX")}
    columns |= {f"{names[1]} - {RETURN}": [None, 2.0, None]}
    pd.DataFrame(columns).to_csv(path, index=False)
    assert as_rows(path) == [(CART, 4, 10, 1.0), (CART, 4, 30, 3.0), (CART, 5, 20, 2.0)]


def test_other_columns_are_named(tmp_path: Path) -> None:
    """Files without a name of task and seed take the flag, and are numbered."""
    for name, total in (("x", 1.0), ("y", 2.0)):
        (tmp_path / f"{name}.csv").write_text(f"Step,score\n10,{total}\n")
    columns = {"env_steps": "Step", "mean_return": "score"}
    files = (tmp_path / "x.csv", tmp_path / "y.csv")
    found = as_rows(*files, columns=columns, task=CART)
    assert found == [(CART, 1, 10, 1.0), (CART, 2, 10, 2.0)]


def test_files_are_numbered_as_seeds_of_each_task(tmp_path: Path) -> None:
    """A file may hold runs of several tasks."""
    files = tmp_path / "x.csv", tmp_path / "y.csv"
    files[0].write_text("task,env_steps,mean_return\nB,10,1\n")
    files[1].write_text("task,env_steps,mean_return\nA,10,2\nB,10,3\n")
    assert as_rows(*files) == [("B", 1, 10, 1.0), ("A", 1, 10, 2.0), ("B", 2, 10, 3.0)]


@pytest.mark.parametrize(
    "case",
    [
        *("columns", "no task", "same seed", "no monitor", "one environment", "frames", "named"),
        *("no files", *ARCHIVES),
    ],
)
def test_what_cannot_be_read_is_one_line(case: str, tmp_path: Path) -> None:
    """It names the file and the flag."""
    path = tmp_path / "x.csv"
    path.write_text("Step,score\n10,1\n" if case == "columns" else "env_steps,mean_return\n10,1\n")
    paths = [path]
    if case == "same seed":
        paths = [tmp_path / name / "x.csv" for name in ("a", "b")]
        for each in paths:
            each.parent.mkdir()
            each.write_text(f"task,seed,env_steps,mean_return\n{CART},1,10,1\n")
    if case == "no monitor":
        paths = [tmp_path / "monitor.csv"]
        paths[0].write_text("r,l,t\n1,1,1\n")
    if case in ("one environment", "frames", "named"):
        paths = [tmp_path / "1.monitor.csv"]
        write_monitor(paths[0], [(1.0, 10)], "PongNoFrameskip-v4" if case == "frames" else CART)
    if case == "one environment":
        write_monitor(tmp_path / "0.monitor.csv", [(1.0, 10)])
    if case == "no files":
        paths = [tmp_path / "empty"]
        paths[0].mkdir()
    if case in ARCHIVES:
        paths = [tmp_path / "x.npz"]
    if case == "no archive":
        paths[0].write_bytes(b"PK")
    if case == "a pickle":
        results = np.array([[Bomb(tmp_path / "opened")]], dtype=object)
        np.savez(paths[0], timesteps=[1], results=results)
    columns = {"mean_return": "r"} if case == "named" else None
    with refused(case):
        read_curves(paths, columns, evaluated=case in ARCHIVES)
    assert not (tmp_path / "opened").exists()
