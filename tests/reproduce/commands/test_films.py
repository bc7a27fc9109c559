"""A film shows an episode that was scored, at its task's speed, or there is no film."""

import csv
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image, ImageSequence

from reproduce import __main__ as command_line
from reproduce.commands import evaluate
from suite.base.errors import UsageError
from suite.envs import vector_env
from suite.envs.tasks import SUITES, find_task
from tests.messages import refused
from tests.reproduce.conftest import Say

pytestmark = pytest.mark.long

RED = np.full((11, 13, 3), (255, 0, 0), dtype=np.uint8)


def test_a_recorded_evaluation_is_played_and_filmed_again(run: Path, tmp_path: Path) -> None:
    """Its returns are the record's, to the last bit; 200 decisions are 201 pictures of 1/30 s."""
    film = tmp_path / "episode.gif"
    score = evaluate.evaluate_run(run, episodes=1, recorded=True, video=film)
    (row,) = csv.DictReader((run / "evaluations.csv").read_text().splitlines())
    assert [float(row["return_0"]), float(row["return_1"])] == score.returns.tolist()
    assert score.recorded == pytest.approx(score.returns.mean())
    said = f"filmed: {film} (201 frames), the first of 2 episodes: return {score.returns[0]:.6g}"
    assert evaluate.film_first(score, film) == said
    with Image.open(film) as pictures:
        lasts = [picture.info["duration"] for picture in ImageSequence.Iterator(pictures)]
    assert sum(lasts) == pytest.approx(1000 * 201 / 30, abs=40)


def test_a_score_is_filmed_with_its_own_draws(run: Path, tmp_path: Path, say: Say) -> None:
    """The first of three episodes, whose noise was drawn for all three, is the one in the film."""
    film = tmp_path / "a.mp4"
    words = ["evaluate", str(run), "--episodes", "3", "--seed", "5", "--video", str(film)]
    status, out, err = say(words)
    score = evaluate.evaluate_run(run, episodes=3, seed=5).returns[0]
    assert (status, err) == (0, "")
    assert out.endswith(f"the first of 3 episodes: return {score:.6g}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_an_episode_that_does_not_repeat_itself_is_not_filmed(run: Path, tmp_path: Path) -> None:
    """Other actions give another return: nothing is written, and an old film stays."""
    score = evaluate.evaluate_run(run, episodes=1)
    (tmp_path / "a.mp4").write_bytes(b"old")
    for other in (
        score._replace(actions=[-actions for actions in score.actions]),
        score._replace(actions=score.actions[:-1]),
        score._replace(returns=np.nextafter(score.returns, 0.0)),
    ):
        with pytest.raises(UsageError, match=r"^no film: the episode that "):
            evaluate.film_first(other, tmp_path / "a.mp4")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def film_refused(case: str, run: Path, film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a film where nothing may be played."""
    monkeypatch.setattr(evaluate, "evaluate", None)
    with refused(case):
        command_line.main(["evaluate", str(run), "--video", str(film)])
    assert not list(film.parent.glob("*"))


@pytest.mark.parametrize("name", ["a.jpg", "none/a.mp4"])
def test_a_wrong_file_is_refused_before_anything_is_played(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten episodes may take minutes; the name of a file takes none."""
    film_refused(name, run, tmp_path / name, monkeypatch)


def test_a_machine_without_egl_says_which_package_it_lacks(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, before anything is played."""

    class Pool:
        def __init__(self, pool: Any) -> None:
            self._pool = pool

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pool, name)

        def render(self, env_ids: np.ndarray) -> np.ndarray:
            raise RuntimeError("failed to initialize EGL")

    make = vector_env.make_pool
    monkeypatch.setattr(vector_env, "make_pool", lambda *args: Pool(make(*args)))
    film_refused("no EGL", run, tmp_path / "a.mp4", monkeypatch)


def test_frames_of_odd_size_are_filmed(tmp_path: Path) -> None:
    """The encoder wants even sizes: a column is added, and no warning."""
    evaluate._encode(iter([RED] * 3), Fraction(125), tmp_path / "a.mp4")
    command = [get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert re.search(r"Video: h264.*yuv420p.*, 14x12,.* 125 fps", said)


def test_a_film_runs_at_its_simulators_rate() -> None:
    """Those of MuJoCo's models, stated or not, of games, and of what gymnasium makes."""
    rates = {"Hopper-v5": 125, "HumanoidRun-v1": 40, "BallInCupCatch-v1": 50, "Walker2d-v4": 125}
    rates |= {"InvertedDoublePendulum-v4": 20, "Pong-v5": 15, "StatelessCartPole-v1": 50}
    for name, rate in rates.items():
        assert evaluate.frames_per_second(find_task(name)) == rate, name
    for name in (*SUITES["mujoco-9"], *SUITES["dmc"]):
        assert evaluate.frames_per_second(find_task(name)) != evaluate.OTHER_HERTZ
