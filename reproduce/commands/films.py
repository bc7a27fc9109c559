"""Films of episodes that were scored.

An episode is filmed by playing its actions again, in an environment with the same seed. Its return
must be the one that was scored, to the last bit; otherwise there is no film. Frames go to the
encoder one by one.
"""

import contextlib
import importlib.util
import itertools
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from rich.progress import track

from reproduce.commands import flags
from suite.base.errors import UsageError
from suite.envs.tasks import Task
from suite.envs.vector_env import VectorEnv

FORMATS = (".mp4", ".gif")
"""Endings of a film's name."""
FASTEST_GIF = Fraction(50)
"""Frames per second; a GIF counts hundredths of a second, and players slow a single one down."""
OTHER_HERTZ = 30
"""Frames per second of a task that states no rate."""
MODELS = {"mujoco": "assets_gym", "dmc": "assets_dmc"}
"""Folders of envpool's model files, by family."""


class Episode(NamedTuple):
    """An episode that was scored, as it can be played again."""

    task: Task
    env_seed: int
    episode_return: float
    actions: Sequence[np.ndarray]
    """For `VectorEnv.step`, one for each step; those after the episode's end are never taken."""


def frames_per_second(task: Task) -> Fraction:
    """Return how many decisions a task takes in a second, as its simulator counts time.

    MuJoCo's models state a timestep, or have its default, 0.002 s; tasks of classic control and of
    gymnasium state their rate; games run at 60 frames.
    """
    if task.family == "atari":
        return Fraction(60, task.frame_skip)
    if task.family in MODELS:
        assets = cast(Any, importlib.util.find_spec("envpool_assets")).submodule_search_locations[0]
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", task.name).lower()
        files = Path(assets, "mujoco", MODELS[task.family]).glob("*.xml")
        fitting = [file for file in files if words.startswith(file.stem)]
        if fitting:
            text = max(fitting, key=lambda file: len(file.stem)).read_text()
            stated = re.search(r'timestep="([^"]+)"', text)
            return 1 / (Fraction(stated[1] if stated else "0.002") * task.frame_skip)
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    creator: Any = gymnasium.spec(task.simulator_id).entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    return Fraction(getattr(creator, "metadata", {}).get("render_fps") or OTHER_HERTZ)


def check_film(film: Path, task: Task) -> None:
    """Raise a `UsageError` for another format, a missing folder, encoder or renderer."""
    if film.suffix not in FORMATS:
        raise UsageError(f"--video: {film} must end in {' or '.join(FORMATS)}")
    if not film.parent.is_dir() or not os.access(film.parent, os.W_OK):
        raise UsageError(f"--video: cannot write {film}: {film.parent} is no folder to write to")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError("--video needs an encoder: pip install 'encore-rl[video]'")
    first = VectorEnv(task, np.zeros((1, 1), dtype=np.int64), render=True)
    first.reset()
    first.render()


def film_episode(episode: Episode, film: Path, words: str) -> str:
    """Write a scored episode as a film; return a line on it.

    A `UsageError` says that the simulator does not repeat the return, or that writing failed.
    """
    num_frames = 1 + sum(1 for _ in _steps(episode))
    frames = (env.render()[0, 0] for env in _steps(episode, render=True))
    look: Any = {"total": num_frames, "console": flags.make_console(), "transient": True}
    aside = film.with_name(f".{film.stem}.{uuid.uuid4().hex}{film.suffix}")
    try:
        _encode(iter(track(frames, "filming", **look)), frames_per_second(episode.task), aside)
        aside.replace(film)
    except OSError as error:
        raise UsageError(f"--video: cannot write {film}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)
    return f"filmed: {film} ({num_frames:,} frames), {words}: return {episode.episode_return:.6g}"


def _steps(episode: Episode, *, render: bool = False) -> Iterator[VectorEnv]:
    """Play an episode again; yield the environment after each step, to render before the first too.

    Raises:
        UsageError: at the end, if the return is not the one that was scored.
    """
    env = VectorEnv(episode.task, np.array([[episode.env_seed]]), render=render)
    env.reset()
    if render:
        yield env
    for actions in episode.actions:
        step = env.step(actions[None, None])
        yield env
        if step.episode_ends.all():
            found = float(step.episode_returns[0, 0])
            if found == episode.episode_return:
                return
            raise UsageError(
                f"no film: the episode that scored {episode.episode_return!r} gives {found!r} when "
                "it is played again"
            )
    raise UsageError("no film: the episode that was scored has no end when it is played again")


def _encode(frames: Iterator[np.ndarray], rate: Fraction, film: Path) -> None:
    """Pass frames to ffmpeg as they come; an OSError says that it ended before they do."""
    from imageio_ffmpeg import write_frames

    first = next(frames)
    height, width = first.shape[:2]
    how: dict[str, Any] = {"codec": "libx264", "output_params": ["-movflags", "+faststart"]}
    if film.suffix == ".gif":  # every frame with the 256 colours that suit it
        palette = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
        filters = ["-filter_complex", f"fps={min(rate, FASTEST_GIF)},{palette}"]
        how = {"codec": "gif", "pix_fmt_out": "pal8", "output_params": filters, "quality": None}
    else:  # the pixels that all players know come in squares of four
        how["output_params"] += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    how |= {"fps": float(rate), "macro_block_size": 1, "ffmpeg_log_level": "error"}
    writer = write_frames(film, (width, height), **how)
    with contextlib.closing(writer):
        writer.send(None)
        for frame in itertools.chain([first], frames):
            writer.send(np.ascontiguousarray(frame))
