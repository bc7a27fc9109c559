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

from agents import sac
from reproduce import __main__ as command_line
from reproduce.commands import evaluate, films
from reproduce.commands.video import film_of_grid, film_run
from reproduce.plan.request import Request
from reproduce.report.films import films_of
from suite.base.errors import UsageError
from suite.envs import vector_env
from suite.envs.tasks import SUITES, find_task
from tests.messages import refused

RED = np.full((11, 13, 3), (255, 0, 0), dtype=np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 60 steps, scored by drawn actions of two episodes."""
    out = tmp_path_factory.mktemp("trained")
    flags = ["--learning-starts=40", "--batch-size=8", "--hidden-sizes=8", "--env-steps=60"]
    flags += ["--evaluation-episodes=2", "--evaluation-rule=sampled", "--device=cpu", "--seeds=3"]
    assert sac.main(["--task", "Pendulum-v1", "--out", str(out), *flags]) == 0
    return out / "seed-3"


def test_a_film_is_of_the_episode_that_was_recorded(run: Path, tmp_path: Path) -> None:
    """Its return is the record's, to the last bit; 200 decisions are 201 pictures of 1/30 s."""
    film = tmp_path / "episode.gif"
    (row,) = csv.DictReader((run / "evaluations.csv").read_text().splitlines())
    words = "the first of the 2 episodes scored after 60 steps"
    said = f"filmed: {film} (201 frames), {words}: return {float(row['return_0']):.6g}"
    assert film_run(run, film) == said
    with Image.open(film) as pictures:
        lasts = [picture.info["duration"] for picture in ImageSequence.Iterator(pictures)]
    assert sum(lasts) == pytest.approx(1000 * 201 / 30, abs=40)


def test_a_score_is_filmed_with_its_own_draws(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of three episodes, whose noise was drawn for all three, is the one in the film."""
    film = tmp_path / "a.mp4"
    words = ["evaluate", str(run), "--episodes", "3", "--seed", "5", "--video", str(film)]
    assert command_line.main(words) == 0
    score = evaluate.evaluate_run(run, episodes=3, seed=5).first.episode_return
    said = capsys.readouterr()
    assert said.out.endswith(f"the first of 3 episodes: return {score:.6g}\n")
    assert said.err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_an_episode_that_does_not_repeat_itself_is_not_filmed(run: Path, tmp_path: Path) -> None:
    """Other actions give another return: nothing is written, and an old film stays."""
    episode = evaluate.evaluate_run(run, episodes=1).first
    (tmp_path / "a.mp4").write_bytes(b"old")
    for other in (
        episode._replace(actions=[-actions for actions in episode.actions]),
        episode._replace(actions=episode.actions[:-1]),
        episode._replace(episode_return=float(np.nextafter(episode.episode_return, 0.0))),
    ):
        with pytest.raises(UsageError, match=r"^no film: the episode that "):
            films.film_episode(other, tmp_path / "a.mp4", "")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def film_refused(case: str, run: Path, film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a film where nothing may be played."""
    monkeypatch.setattr(evaluate, "evaluate", None)
    with refused(case):
        command_line.main(["evaluate", str(run), "--video", str(film)])
    assert not list(film.parent.glob("*"))


@pytest.mark.parametrize("name", ["a", "a.jpg", "none/a.mp4"])
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
    films._encode(iter([RED] * 3), Fraction(125), tmp_path / "a.mp4")
    command = [get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert re.search(r"Video: h264.*yuv420p.*, 14x12,.* 125 fps", said)


def test_rates_are_the_simulators() -> None:
    """Those of MuJoCo's models, stated or not, of games, and of what gymnasium makes."""
    rates = {"Hopper-v5": 125, "HumanoidRun-v1": 40, "BallInCupCatch-v1": 50, "Walker2d-v4": 125}
    rates |= {"InvertedDoublePendulum-v4": 20, "Pong-v5": 15, "StatelessCartPole-v1": 50}
    for name, rate in rates.items():
        assert films.frames_per_second(find_task(name)) == rate, name
    for name in (*SUITES["mujoco-9"], *SUITES["dmc"]):
        assert films.frames_per_second(find_task(name)) != films.OTHER_HERTZ


def test_a_grids_film_is_on_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published policy of MuJoCo, drawn without a display, is played on the page."""
    grid = tmp_path / "sac-mujoco-small" / "paper"
    grid.mkdir(parents=True)
    (grid / "report.json").write_text(
        '{"agent": "sac", "suite": "mujoco-small", "source": "paper"}'
    )
    words = ["video", "sac", "mujoco-small", "--like", "paper", "--task", "Reacher-v4"]
    words += ["--seed", "1"]
    try:
        films.check_drawn(find_task("Reacher-v4"))
    except UsageError as error:
        pytest.skip(str(error))
    assert command_line.main([*words, "--runs-dir", str(tmp_path)]) == 0
    film = grid / "films" / "Reacher-v4-seed-1.mp4"
    assert f"filmed: {film} (51 frames)" in capsys.readouterr().out
    assert films_of(grid) == [("Reacher-v4", 1, "./films/Reacher-v4-seed-1.mp4")]
    assert 'src="./films/Reacher-v4-seed-1.mp4"' in (grid / "index.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("sac_alf", "hybrid", "Claw-v0", 1),
        ("sac", "mujoco-small", "Reacher-v4", 77),
        ("sac", "mujoco-small", "Reecher-v4", 1),
    ],
)
def test_what_cannot_be_filmed_says_so_in_a_line(
    words: tuple[str, str, str, int], tmp_path: Path
) -> None:
    """A task without pictures, a run without a policy, a name that nobody knows."""
    request = Request(agent=words[0], suite=words[1], runs_dir=tmp_path)
    with refused(" ".join(map(str, words))):
        film_of_grid(request, *words[2:])
    assert not list(tmp_path.rglob("*"))
