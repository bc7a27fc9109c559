"""Engines on CartPole, in turns of a moment: numbers, rows, and engines that end."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.__main__ import main
from reproduce.simulators import figures, measure
from reproduce.simulators.engines import ENGINES, OF_PEERS, make_engine
from reproduce.simulators.measure import COLUMNS, Cell, Server
from reproduce.simulators.serve import work
from suite.base.errors import UsageError
from tests.messages import refused

pytestmark = pytest.mark.long

OURS = [name for name in ENGINES if name not in OF_PEERS]
CELL = Cell("CartPole-v1", 4, 1)


@pytest.mark.parametrize("name", OURS)
def test_an_engine_plays_the_cartpole_that_all_others_play(name: str) -> None:
    """Random episodes last 22.3 steps in the mean, whatever steps them, and a step earns 1."""
    engine = make_engine(name, "CartPole-v1", 4, 1)
    found = work(engine, episodes=60, seconds=30.0)
    engine.close()
    assert found["num_episodes"] == 240
    assert found["length_mean"] == pytest.approx(found["return_mean"])
    assert found["length_mean"] == pytest.approx(22.3, abs=4 * found["length_se"])
    assert found["obs"] == "float32[4]"
    assert found["actions"] == "2"


def test_actions_of_all_engines_mean_the_same() -> None:
    """-1, 0 and 1 are the ends and the middle of Pendulum's torques, in every engine."""
    for name in ("envpool", "gymnasium-sync"):
        engine = make_engine(name, "Pendulum-v1", 3, 1)
        given = engine.units(np.array([[-1.0], [0.0], [3.0]]))
        assert given.ravel().tolist() == [-2.0, 0.0, 2.0]
        engine.close()


def test_the_command_writes_a_row_for_each_engine_mode_and_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers agree, medians are shown, and a cell measured again takes its old rows' place."""
    monkeypatch.setattr(figures, "draw", lambda *_: [])  # `test_tables.py` draws them
    flags = ["simulators", "--tasks", "CartPole-v1", "--num-envs", "4", "--seconds", "0.05"]
    flags += ["--busy", "--out", str(tmp_path), "--engines"]
    assert main([*flags, "envpool-async-2", "encore", "--turns", "2"]) == 0
    (path,) = tmp_path.glob("*/turns.csv")
    rows, said = measure.read(path), capsys.readouterr().out
    assert list(rows.columns) == list(COLUMNS)
    assert rows.groupby(["engine", "mode"])["turn"].agg(list).tolist() == [[1, 2]] * 4
    assert rows.set_index("engine")["rows"].to_dict() == {"envpool-async-2": 2, "encore": 4}
    assert np.allclose(rows["steps"] / rows["seconds"], rows["env_steps_per_second"], rtol=1e-3)
    assert (rows["latency_median_ms"] <= rows["latency_p99_ms"]).all()
    latencies = rows["seconds"] * 1e3 / (rows["steps"] / rows["rows"])
    assert (rows["latency_median_ms"] < 3 * latencies).all()
    alone = (rows["turn"] == 1) & (rows["mode"] == "random")  # before a network is in memory
    assert (rows["memory_mib"] > 20).tolist() == alone.tolist()
    assert rows["cores"].between(0.1, os.cpu_count() or 1).any()
    lines = [line.split()[:3] for line in said.splitlines() if line.startswith(" en")]
    shown = {(engine, mode): speed for engine, mode, speed in lines[1:]}
    for row in measure.medians(rows).itertuples():
        speed = float(shown[row.engine, row.mode].replace(",", ""))  # type: ignore[index]
        assert speed == pytest.approx(row.env_steps_per_second, rel=1e-4, abs=1)
        assert row.slowest <= row.env_steps_per_second <= row.fastest  # type: ignore[operator]
    assert (path.parent / "machine.json").exists()
    assert main([*flags, "encore", "--modes", "random", "--turns", "1"]) == 0
    turns = measure.read(path).groupby(["engine", "mode"])["turn"].max().to_dict()
    assert turns.pop(("encore", "random")) == 1
    assert [*turns.values()] == [2] * 3


def test_an_engine_that_ends_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of one are killed after its first turn: one row says so, others go on."""
    asked = Server.ask

    def ask(server: Server, seconds: float, **order: object) -> dict[str, object]:
        answer = asked(server, seconds, **order)
        workers = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        if order["least"] == measure.LEAST_STEPS and workers:  # envpool has threads
            os.kill(int(workers[0]), signal.SIGKILL)
            monkeypatch.setattr(measure, "ANSWER_SECONDS", 20.0)
        return answer

    monkeypatch.setattr(Server, "ask", ask)
    names = ["gymnasium-async", "envpool"]
    rows = pd.DataFrame(measure.measure(CELL, names, ["random"], turns=3, seconds=0.05))
    assert rows[rows["engine"] == "envpool"]["turn"].tolist() == [1, 2, 3]
    ended = rows[rows["engine"] == "gymnasium-async"]
    assert ended["turn"].tolist() == [1, 0]
    assert ended["note"].iloc[1]


def test_an_engine_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process gives no answer; it and its memory are gone after the limit."""
    server = Server("envpool", CELL)
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(measure, "ANSWER_SECONDS", 0.5)
    with pytest.raises(UsageError, match=r"gave no answer for 0\.6 s"):
        server.ask(0.1, mode="random", least=1)
    assert not Path(f"/proc/{server.pid}").exists()


@pytest.mark.parametrize(
    ("engine", "task", "num_envs", "why"),
    [
        ("envpool", "TMaze-v0", 2, "envpool lacks TMaze-v0"),
        ("gymnasium-sync", "WalkerWalk-v1", 2, "gymnasium lacks WalkerWalk-v1"),
        ("gymnasium-own", "Pendulum-v1", 2, "gymnasium has no vector of Pendulum-v1's own"),
        ("envpool-async-2", "CartPole-v1", 3, "3 environments are no 2 batches"),
    ],
)
def test_an_engine_that_cannot_says_why(engine: str, task: str, num_envs: int, why: str) -> None:
    """Before it is measured, in one line."""
    with pytest.raises(UsageError, match=why):
        make_engine(engine, task, num_envs, 1)


def test_a_cell_that_cannot_be_measured_has_a_row_that_says_why() -> None:
    """Before a process starts, where it would need too many, or has no such mode."""
    cell = Cell("CartPole-v1", 4096, 1)
    (row,) = measure.measure(cell, ["gymnasium-async"], ["random"], 1, 0.01)
    assert row["note"].startswith("4096 processes are too many for ")
    (row,) = measure.measure(CELL, ["sb3-dummy"], ["policy"], 1, 0.01)
    assert row["note"].endswith("measure it with --modes random")


def test_a_training_tells_its_speed_and_shares() -> None:
    """A2C's shares of time are parts of it."""
    (row,) = measure.train(CELL, turns=1, seconds=0.5, speed=5000.0)
    assert row["note"] == ""
    assert row["mode"] == "training"
    assert row["env_steps_per_second"] > 100
    shares = [row[f"{part}_share"] for part in ("environment", "acting", "learning")]
    assert all(0 < share < 1 for share in shares)
    assert sum(shares) <= 1.01


WRONG = """
--engines envpol
--modes training randm
--modes training
--num-envs 0,8
--num-envs 1 --threads 2
--threads 3
--seconds 0
--seconds nan
--out FILE/x
--same-work --num-envs 64 --turns 5
classic --tasks CartPole-v1
"""


@pytest.mark.parametrize("flags", WRONG.split("\n")[1:-1])
def test_bad_input_is_one_line(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured and nothing written."""
    monkeypatch.setattr("reproduce.commands.simulators.num_cores", lambda: 2)
    (tmp_path / "FILE").touch()
    words = flags.replace("FILE", str(tmp_path / "FILE"))
    with refused(f"simulators {flags}"):
        main(["simulators", "--out", str(tmp_path / "out"), *words.split(), "--busy"])
    assert list(tmp_path.iterdir()) == [tmp_path / "FILE"]


def test_a_loaded_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that computes is seen; one that sleeps is not."""
    monkeypatch.setattr(measure, "busy_cores", lambda: 0.31)
    with pytest.raises(UsageError, match=r"^0\.3 cores are at work: .* or --busy$"):
        main(["simulators"])
    monkeypatch.undo()

    def compute(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    monkeypatch.setattr("time.sleep", compute)
    assert measure.busy_cores() > 0.9
