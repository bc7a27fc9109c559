"""Curves that other programs recorded, as one table."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.commands.judge import judge_curves
from reproduce.gather import tables as recorded
from reproduce.gather.others import read_curves
from reproduce.plan.presets import PUBLISHED
from suite.base.errors import UsageError
from tests.bombs import Bomb
from tests.messages import refused

GRID = PUBLISHED / "a2c-classic" / "rl_zoo"
CART = "CartPole-v1"
RETURN = "charts/episodic_return"


def monitored(*episodes: tuple[float, int], task: str = CART) -> str:
    """Return what SB3's `Monitor` writes of episodes, each with its return and its length."""
    lines = ["#" + json.dumps({"t_start": 1.5, "env_id": task}), "r,l,t"]
    lines += [f"{total},{length},{place}.5" for place, (total, length) in enumerate(episodes)]
    return "\n".join(lines) + "\n"


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts into files of a folder; return their paths."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in files]


def as_rows(path: Path, *others: Path, **asked: object) -> list[tuple[object, ...]]:
    """Return the rows that are read, in order."""
    rows = read_curves([path, *others], **asked).rows  # type: ignore[arg-type]
    return list(rows.itertuples(index=False, name=None))


def test_environments_of_a_monitored_run_step_together(tmp_path: Path) -> None:
    """A step of each is two of the run; folders are seeds, and the file says the task."""
    files = {"a/0.monitor.csv": monitored((10.0, 10), (30.0, 30))}
    files |= {"a/1.monitor.csv": monitored((15.0, 15)), "b/monitor.csv": monitored((7.0, 7))}
    write(tmp_path, files)
    first = [(CART, 1, 20, 10.0), (CART, 1, 30, 15.0), (CART, 1, 80, 30.0)]
    assert as_rows(tmp_path) == [*first, (CART, 2, 7, 7.0)]
    assert read_curves([tmp_path]).episodes


def test_monitored_runs_with_names_are_runs(tmp_path: Path) -> None:
    """`Monitor` numbers the environments of a run; files of other names are a run each."""
    named = {f"seed{seed}.monitor.csv": monitored((float(seed), 10)) for seed in (1, 2, 3)}
    write(tmp_path, named)
    rows = [(CART, seed, 10, float(seed)) for seed in (1, 2, 3)]
    assert as_rows(tmp_path) == rows
    write(tmp_path, dict.fromkeys(("0.monitor.csv", "1.monitor.csv"), monitored((9.0, 10))))
    numbered = [(CART, 1, 20, 9.0)] * 2
    others = [(CART, seed + 1, 10, float(seed)) for seed in (1, 2, 3)]
    assert as_rows(tmp_path) == [*numbered, *others]


@pytest.mark.parametrize("name", ["", "a/evaluations.npz"])
def test_evaluations_are_read_where_they_judge(name: str, tmp_path: Path) -> None:
    """As a file or in a folder: a mean over episodes at each step; elsewhere `Monitor`'s count."""
    (tmp_path / "a").mkdir()
    returns = np.array([[1.0, 2.0], [3.0, 5.0]])
    np.savez(tmp_path / "a" / "evaluations.npz", timesteps=[10, 20], results=returns)
    write(tmp_path, {"monitor.csv": monitored((7.0, 7))})
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
    write(tmp_path, {"monitor.csv": monitored((10.0, 100))})
    with refused():
        judge_curves("a2c", read_curves([tmp_path]), "mushroom_rl")
    write(tmp_path, {"x.csv": f"task,seed,env_steps,mean_return\n{CART},7,100,10.0\n"})
    assert read_curves([tmp_path, tmp_path / "x.csv"], task=CART).episodes, "some of them are"


def test_evaluations_are_not_judged_as_training_episodes(tmp_path: Path) -> None:
    """stable-baselines3's name of an evaluation is known where evaluations judge."""
    paths = write(tmp_path, {"x.csv": f"task,seed,env_steps,eval/mean_reward\n{CART},1,100,10\n"})
    assert read_curves(paths, evaluated=True).rows["mean_return"].tolist() == [10.0]
    with refused():
        read_curves(paths)


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
    files = write(tmp_path, {"x.csv": "Step,score\n10,1\n", "y.csv": "Step,score\n10,2\n"})
    columns = {"env_steps": "Step", "mean_return": "score"}
    found = as_rows(*files, columns=columns, task=CART)
    assert found == [(CART, 1, 10, 1.0), (CART, 2, 10, 2.0)]


def test_files_are_numbered_as_seeds_of_each_task(tmp_path: Path) -> None:
    """A file may hold runs of several tasks."""
    texts = "task,env_steps,mean_return\nB,10,1\n", "task,env_steps,mean_return\nA,10,2\nB,10,3\n"
    files = write(tmp_path, dict(zip(("x.csv", "y.csv"), texts, strict=True)))
    assert as_rows(*files) == [("B", 1, 10, 1.0), ("A", 1, 10, 2.0), ("B", 2, 10, 3.0)]


@pytest.mark.parametrize(
    "files",
    [
        {"x.csv": "task,seed,env_steps,episode_return\nA,1,10,1\nB,1,10,2\n"},
        {
            n: f"task,seed,env_steps,episode_return\n{n[0]},{ord(n[0])},10,1\n"
            for n in ("A.csv", "B.csv")
        },
        {f"{n}/monitor.csv": monitored((7.0, 7), task=f"{n}-v0") for n in "AB"},
    ],
)
def test_one_task_for_all_refuses_runs_of_several(files: dict[str, str], tmp_path: Path) -> None:
    """They would count as one another's, in one file or in many."""
    paths = write(tmp_path, files)
    with pytest.raises(UsageError, match=r"hold runs of A.* and B.*: leave out --task"):
        read_curves(paths, task="A")


@pytest.mark.parametrize(
    ("monitors", "refuses"),
    [
        ("a b", True),
        ("a a/eval b", True),
        ("a a/eval", False),
        ("a a/train", False),
        ("c d", False),
    ],
)
@pytest.mark.parametrize("place", ["a", "a/eval"])
def test_a_run_without_evaluations_beside_runs_that_have_some_is_named(
    monitors: str, refuses: bool, place: str, tmp_path: Path
) -> None:
    """It stopped before its first; to leave it out would flatter the others."""
    write(tmp_path, {f"{name}/monitor.csv": monitored((7.0, 7)) for name in monitors.split()})
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    np.savez(tmp_path / place / "evaluations.npz", timesteps=[10], results=[[1.0]])
    if refuses:
        with pytest.raises(UsageError, match=r"b holds no evaluations\.npz"):
            read_curves([tmp_path], task=CART, evaluated=True)
    else:
        assert len(read_curves([tmp_path], task=CART, evaluated=True).rows) == 1


UNREADABLE: dict[str, dict[str, str]] = {
    "columns": {"x.csv": "Step,score\n10,1\n"},
    "no task": {"x.csv": "env_steps,mean_return\n10,1\n"},
    "same seed": dict.fromkeys(
        ("a/x.csv", "b/x.csv"), f"task,seed,env_steps,mean_return\n{CART},1,10,1\n"
    ),
    "no monitor": {"monitor.csv": "r,l,t\n1,1,1\n"},
    "one environment": dict.fromkeys(("1.monitor.csv", "0.monitor.csv"), monitored((1.0, 10))),
    "frames": {"1.monitor.csv": monitored((1.0, 10), task="PongNoFrameskip-v4")},
    "named": {"1.monitor.csv": monitored((1.0, 10))},
    "no archive": {"x.npz": "PK"},
}
"""Files by what is wrong with them."""


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_one_line(case: str, tmp_path: Path) -> None:
    """It names the file and the flag."""
    paths = write(tmp_path, UNREADABLE[case])
    columns = {"mean_return": "r"} if case == "named" else None
    with refused(case):
        read_curves(paths, columns, evaluated=case == "no archive")


def test_a_folder_without_curves_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    """The line says what is looked for."""
    (tmp_path / "empty").mkdir()
    with refused("no files"):
        read_curves([tmp_path / "empty"])
    with refused("nothing"):
        read_curves([tmp_path / "x.npz"], evaluated=True)


def test_no_pickle_in_an_archive_is_opened(tmp_path: Path) -> None:
    """It could run anything."""
    results = np.array([[Bomb(tmp_path / "opened")]], dtype=object)
    np.savez(tmp_path / "x.npz", timesteps=[1], results=results)
    with refused("a pickle"):
        read_curves([tmp_path / "x.npz"], evaluated=True)
    assert not (tmp_path / "opened").exists()
