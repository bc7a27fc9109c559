"""What is made of stored turns: outcomes of claims, figures, the page, and the same work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reproduce.__main__ import main
from reproduce.report import figures as report_figures
from reproduce.simulators import claims, figures, measure, same_work, tables
from reproduce.simulators.engines import ENGINES
from reproduce.simulators.measure import COLUMNS, Cell
from suite.base.errors import UsageError
from suite.base.hardware import num_cores
from suite.envs.tasks import find_task


def stored(
    speeds: dict[str, tuple[float, ...]], num_envs: int = 8, threads: int = 1
) -> list[dict[str, Any]]:
    """Rows as `measure` gives them, with the speed of each turn by engine."""
    cell = Cell("CartPole-v1", num_envs, threads)
    return [
        measure._row(cell, engine, "random", turn=turn, env_steps_per_second=speed, rows=num_envs)
        for engine, each in speeds.items()
        for turn, speed in enumerate(each, 1)
    ]


def claimed(path: Path, ratio: float, cores: int = 2) -> Path:
    """A file with one claim: envpool beside gymnasium."""
    header = "says,where,source,commit,file,line,task,faster,num_envs,slower,slower_envs,ratio"
    row = f"s,w,https://x,c,f,3,CartPole-v1,envpool,8,gymnasium-sync,8,{ratio},{cores}"
    path.write_text(f"{header},cores\n{row}\n")
    return path


def test_a_ratio_and_its_interval_are_those_of_the_turns() -> None:
    """By hand: ratios 2, 4 and 8 have the mean 4 and t of two degrees of freedom, 4.3027."""
    fast, slow = np.array([2.0, 8.0, 16.0]), np.array([1.0, 2.0, 2.0])
    half = 4.302652730 * np.log(2) / 3**0.5
    assert claims.ratio(fast, slow) == pytest.approx((4, 4 * np.exp(-half), 4 * np.exp(half)))
    assert np.isnan(claims.ratio(fast[:1], slow)).all()


@pytest.mark.parametrize(
    ("ratio", "cores", "outcome"),
    [
        (2.0, 2, "holds"),
        (2.18, 2, "holds"),
        (2.25, 2, "undecided"),
        (2.4, 2, "does not hold here"),
        (2.0, 3, "not judged: needs 3 cores"),
    ],
)
def test_an_interval_judges_a_claim(tmp_path: Path, ratio: float, cores: int, outcome: str) -> None:
    """Speeds are twice as high in every turn; a tenth is given to "about"."""
    speeds = {"envpool": (20.0, 22.0, 20.5), "gymnasium-sync": (10.0, 11.0, 10.1)}
    table = pd.DataFrame(stored(speeds, threads=2))
    (one_thread,) = claims.judge(
        pd.DataFrame(stored(speeds)), 2, claimed(tmp_path / "claims.csv", ratio)
    )
    assert one_thread["outcome"] == "not measured", "claims are of all cores"
    (judged,) = claims.judge(table, 2, claimed(tmp_path / "claims.csv", ratio, cores))
    assert judged["outcome"] == outcome
    assert judged["link"] == "https://x/blob/c/f#L3"
    (absent,) = claims.judge(table[:3], 2, claimed(tmp_path / "claims.csv", ratio))
    assert absent["outcome"] == "not measured"


def test_claims_name_a_line_of_a_commit() -> None:
    """Each of ours can be looked up and compares engines that exist."""
    for claim in pd.read_csv(claims.CLAIMS).to_dict("records"):
        assert len(claim["commit"]) == 40
        assert claim["line"] > 0
        assert {claim["faster"], claim["slower"]} <= set(ENGINES)
        assert find_task(claim["task"])


def test_what_is_not_the_same_is_named() -> None:
    """Means that differ by four standard errors of the difference, types, and what is unknown."""
    known = {"obs": "a", "actions": "2", "frame_skip": 1, "autoreset": "next step"}
    numbers = {"length_mean": 10.0, "length_se": 0.3, "return_mean": 1.0, "return_se": 0.0}
    first = known | numbers
    assert same_work.differences(first, first) == []
    other = first | {"obs": "b", "length_mean": 12.0, "length_se": 0.4}
    assert same_work.differences(other, first) == ["obs", "length"]
    assert same_work.differences(first | {"return_se": None}, first) == ["return not known"]


def test_engines_do_the_same_work_on_cartpole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter differs in nothing; an engine that ends has a row that says so."""
    monkeypatch.setattr(same_work, "EPISODES", {"classic": 5})
    names = ["envpool", "encore", "envpool-async-2", "gymnasium-sync", "nothing"]
    *played, ended = same_work.same_work("CartPole-v1", names)
    assert [same_work.differences(row, played[0]) for row in played] == [[]] * 4
    assert ended["differs"]
    assert [row["num_episodes"] for row in played] == [40] * 4
    means = [row["length_mean"] for row in played]
    assert means[0] == means[1] == means[2] != means[3]  # envpool's starts, reward by reward
    assert len({row["tape_return"] for row in played[:3]}) == 1


def test_a_page_shows_work_without_speeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command writes is what the page reads: machine, spaces and means."""
    monkeypatch.setattr(same_work, "EPISODES", {"classic": 1})

    def measured(*engines: str, status: int = 0) -> pd.DataFrame:
        """Give the command; return the rows that its file holds then."""
        flags = ["--same-work", "--tasks", "CartPole-v1", "--out", str(tmp_path), "--engines"]
        assert main(["simulators", *flags, *engines]) == status
        (path,) = tmp_path.rglob("same_work.csv")
        return pd.read_csv(path, dtype={"actions": str})

    rows = measured("encore")
    (work,) = tmp_path.rglob("same_work.csv")
    rows.replace("CartPole-v1", "Acrobot-v1").to_csv(work, index=False)
    rows = measured("encore")
    assert rows["task"].tolist() == ["Acrobot-v1", "CartPole-v1"], "others stay"
    said = json.loads(work.with_name("machine.json").read_text())["same_work"]
    assert [each["command"].split()[0] for each in said] == ["--same-work"] * 2
    rows.assign(engine="envpool", obs="float64[4]").to_csv(work, index=False)
    rows = measured("encore", "envpool")
    assert rows["engine"].tolist() == ["envpool", "envpool", "encore"], "in their places"
    assert rows["differs"].isna().all(), "beside the new row of the first engine"
    rows.replace({"float32[4]": "float64[4]"}).to_csv(work, index=False)
    rows = measured("encore")
    assert rows["differs"].iloc[2] == "obs", "beside the first engine's row"

    def missing(*_: object) -> None:
        raise UsageError("encore needs what is not here")

    with monkeypatch.context() as patched:
        patched.setattr(same_work, "Server", missing)
        assert measured("encore", status=2).equals(rows), "one that is missing now keeps its row"
    monkeypatch.setattr(tables, "SIMULATORS", tmp_path)
    text = tables.simulators()
    assert f", {num_cores()} cores\n\nSpeeds are not measured yet." in text
    assert "| CartPole-v1 | encore | float32[4] | 2 | 1 | next step |" in text


def test_figures_and_page_show_all_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves of speed, threads, trainings; the page has each cell's medians and the claims."""
    rows = stored({"envpool": (10, 30, 20), "encore": (5, 6, 7)})
    rows += stored({"envpool": (1000, 3000, 2000), "encore": (500, 600, 700)}, 64)
    rows += stored({"envpool": (1900, 1900, 1800)}, 64, threads=2)
    shares: dict[str, Any] = {"environment_share": 0.5, "acting_share": 0.2, "learning_share": 0.2}
    cell = Cell("CartPole-v1", 8, 1)
    speed: dict[str, Any] = {"turn": 1, "env_steps_per_second": 3.0, "rows": 8}
    rows.append(measure._row(cell, "encore", "training", **speed, **shares))
    folder = tmp_path / "results" / "simulators" / "a-machine"
    measure.write(rows, folder / "turns.csv")
    (folder / "machine.json").write_text('{"machine": {"processor": "P", "cores": 2}}')
    table = measure.read(folder / "turns.csv")
    assert list(table.columns) == list(COLUMNS)
    monkeypatch.setattr(report_figures, "FORMATS", ("svg",))
    paths = figures.draw(table, folder)
    assert [path.stem for path in paths] == ["speeds", "threads", "training"]
    said = [path.read_text() for path in paths]
    assert "encore" in said[0]
    assert "encore" not in said[1]  # it was measured with one thread
    assert "CartPole-v1, 8" in said[2]
    apart = stored({"envpool": (10, 30, 20)}, 64) + stored({"encore": (5, 6, 7)}, 64, threads=2)
    measure.write(apart, tmp_path / "apart.csv")  # no engine with two numbers of threads
    paths = figures.draw(measure.read(tmp_path / "apart.csv"), tmp_path)
    assert [path.stem for path in paths] == ["speeds"]
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "SIMULATORS", folder.parent)
    text = tables.simulators()
    assert "## P, 2 cores" in text
    assert "| CartPole-v1 | 8 | 1 | 20 | 6 | 3 |" in text
    assert "| CartPole-v1 | 64 | 2 | 1,900 |  |  |" in text
    assert "not judged: needs 12 cores" in text
    assert "](/results/simulators/a-machine/speeds.svg)" in text
