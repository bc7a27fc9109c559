"""Scores without learning: stored numbers can be measured again; measuring keeps the others."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from reproduce.judge import zero_scores
from reproduce.judge.zero_scores import COLUMNS, main
from reproduce.plan.unlearned import ZEROS, read_zeros
from suite.envs.tasks import TASKS, find_task
from tests.messages import refused


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["CartPole-v1", "Reacher-v4", "InvertedPendulum-v4", "Claw-v0"])
def test_a_stored_score_is_measured_again(name: str) -> None:
    """The committed numbers are what the documented command gives, lengths included."""
    (stored,) = [row for row in rows(ZEROS) if row["task"] == name]
    episodes = int(stored["num_episodes"])
    returns, lengths = zero_scores.random_returns(find_task(name), episodes=episodes)
    assert returns.shape == (episodes,)
    assert returns.mean() == pytest.approx(float(stored["mean_return"]), rel=1e-4)
    assert returns.std(ddof=1) == pytest.approx(float(stored["std_return"]), rel=1e-4)
    ends = (stored["shortest_episode"], stored["longest_episode"])
    assert (str(lengths.min()), str(lengths.max())) == ends


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MountainCarContinuous-v0", 0.0),  # nothing is paid, and nothing gained
        ("Acrobot-v1", -500.0),
        ("CartPole-v1", None),  # it must push
    ],
)
def test_standing_still_where_it_is_possible(name: str, expected: float | None) -> None:
    """Known by hand; stored as measured, or empty."""
    returns = zero_scores.idle_returns(find_task(name), episodes=3)
    (stored,) = [row["idle_return"] for row in rows(ZEROS) if row["task"] == name]
    if expected is None:
        assert returns is None
        assert stored == ""
        assert math.isnan(read_zeros()[name, ""].idle)
    else:
        assert returns is not None
        assert returns.tolist() == [expected] * 3
        assert float(stored) == expected == read_zeros()[name, ""].idle


def test_stored_scores_are_of_known_tasks_and_enough_episodes() -> None:
    """Each row names a task in its protocol, once, from a hundred episodes but for long games."""
    stored = rows(ZEROS)
    keys = [(row["task"], row["protocol"]) for row in stored]
    assert keys == sorted(set(keys))
    measured = {(task.name, task.protocol) for task in zero_scores.in_every_protocol(list(TASKS))}
    assert measured >= set(keys)
    assert ("Pong-v5", "small_frames") not in measured  # its row would hide that of large frames
    for row in stored:
        atari = TASKS[row["task"]].family == "atari"
        assert int(row["num_episodes"]) >= (2 if atari else 100)
        assert float(row["mean_return"]) == read_zeros()[row["task"], row["protocol"]].random


def test_measuring_a_task_keeps_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are replaced by task and protocol, and stay sorted, so that a diff shows the change."""
    path = tmp_path / "unlearned.csv"
    path.write_text(f"{','.join(COLUMNS)}\n")
    monkeypatch.setattr(zero_scores, "ZEROS", path)
    monkeypatch.setattr(zero_scores, "untrained_returns", lambda agent, config: np.full(10, -7.0))
    main(["--tasks", "Pendulum-v1", "--episodes", "2"])
    (pendulum,) = rows(path)
    main(["--tasks", "CartPole-v1", "Reacher-v4", "--episodes", "2", "--only", "random"])
    assert [row["task"] for row in rows(path)] == ["CartPole-v1", "Pendulum-v1", "Reacher-v4"]
    assert rows(path)[1] == pendulum
    assert rows(path)[0]["untrained_return"] == ""
    main(["--tasks", "Pendulum-v1", "--episodes", "3", "--only", "random"])
    replaced = rows(path)[1]
    assert replaced["untrained_return"] == "-7"
    assert len(rows(path)) == 3
    assert replaced["num_episodes"] == "3"
    assert tuple(replaced) == COLUMNS
    main(["--tasks", "CartPole-v1", "--only", "untrained"])
    assert rows(path)[0]["untrained_return"] == "-7"
    assert rows(path)[0]["num_episodes"] == "2"
    assert b"\r" not in (before := path.read_bytes())
    with refused():
        main(["--tasks", "Pendulum-v1", "--episodes", "1"])
    assert path.read_bytes() == before


def test_the_untrained_policy_is_of_an_agent_that_trains_the_task() -> None:
    """By the kind of its actions; a game's is presented as asked for."""
    for name, agent in {
        "HalfCheetah-v4": "sac",
        "CheetahRun-v1": "sac",
        "CartPole-v1": "a2c",
        "TMaze-v0": "impala",
        "Claw-v0": "sac_alf",
        "LunarLander-v3": "a2c",
    }.items():
        found, config = zero_scores.untrained_config(find_task(name))
        assert (found, config.task) == (agent, name)
    sticky = zero_scores.untrained_config(find_task("Pong-v5", "sticky"))[1]
    assert (sticky.protocol, sticky.evaluation_rule) == ("sticky", "sampled")


def test_small_frames_change_no_random_score() -> None:
    """Play that does not see the frames has the same returns; an untrained network sees them."""
    plain, small = (read_zeros()["Qbert-v5", name] for name in ("noframeskip", "small_frames"))
    assert small._replace(untrained=0.0) == plain._replace(untrained=0.0)
    assert math.isnan(small.untrained)
