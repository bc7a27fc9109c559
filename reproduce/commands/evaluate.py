"""`evaluate RUN`: score a trained policy again, and film it.

An episode is filmed by playing its actions again, in an environment with the same seed. Its return
must be the one that was scored, to the last bit; otherwise there is no film.
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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy  # loads `scipy.stats` when it is first used
from rich.progress import track

import agents
from reproduce.commands import flags
from reproduce.gather.tables import read_table
from reproduce.words import counted, number
from suite.base.errors import UsageError, require
from suite.base.hardware import use_threads
from suite.base.randomness import environment_seeds, stream
from suite.envs.tasks import Task
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate
from suite.record.manifest import BEST
from suite.record.reading import read_record
from suite.settings.command_line import whole
from suite.settings.config import ENVIRONMENTS

if TYPE_CHECKING:
    from suite.policy import Policy  # torch


FORMATS = (".mp4", ".gif")
FASTEST_GIF = Fraction(50)
"""Frames per second; a GIF counts hundredths of a second, and players slow a single one down."""
FRESH = ("episodes", "seed", "sampled")
"""Options of fresh episodes, which `--recorded` has no use for."""
OTHER_HERTZ = 30
"""Frames per second of a task that states no rate."""
MODELS = {"mujoco": "assets_gym", "dmc": "assets_dmc"}
"""Folders of envpool's model files, by family."""


class Score(NamedTuple):
    """An evaluation of a policy, whose first episode can be played again."""

    task: Task
    rule: str
    """`sampled` or `deterministic`."""
    returns: np.ndarray
    """`[episodes]`."""
    env_seed: int
    """Of the first episode."""
    actions: Sequence[np.ndarray]
    """Of the first episode, for `VectorEnv.step`; those after its end are never taken."""
    recorded: float | None = None
    """The mean that was recorded of the same episodes; None: they are fresh."""

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % t-interval of the mean return; None of a single episode."""
        number = len(self.returns)
        if number < 2:
            return None
        half = scipy.stats.t.ppf(0.975, number - 1) * scipy.stats.sem(self.returns)
        return self.returns.mean() - half, self.returns.mean() + half


def evaluate_run(
    run: Path,
    *,
    episodes: int,
    sampled: bool | None = None,
    seed: int = 0,
    best: bool = False,
    recorded: bool = False,
    video: Path | None = None,
    task_from: str | None = None,
) -> Score:
    """Play episodes with the policy that a run saved.

    Arguments are those of the command. Each episode has an environment of its own; `sampled` None:
    actions as the run itself was scored.
    """
    require(episodes in ENVIRONMENTS, f"--episodes {ENVIRONMENTS}", episodes)
    require(seed >= 0, "--seed must be at least 0", seed)
    record, policy = read_record(run), agents.load_policy(policy_folder(run, best))
    flags.refuse_other_task(run, policy.task.name, task_from)
    env = VectorEnv(policy.task, environment_seeds([0], 1, "evaluate", 0))
    if not policy.fits(env.spaces):
        wrong = f"its observations or actions are not those of {policy.task.name}"
        raise UsageError(f"unreadable policy in {run}: {wrong}")
    if video is not None:
        check_film(video, policy.task)
    rule = record["config"].get("evaluation_rule") if record else None
    of_run = rule in ("sampled", "training")
    if not recorded:
        return _play(policy, seed, episodes, sampled=of_run if sampled is None else sampled)
    rows = read_table(run / "evaluations.csv").to_dict("records")
    if record is None or not rows:
        raise UsageError(f"{run} recorded no evaluation: leave out --recorded")
    row = max(rows, key=lambda row: row["mean_return"]) if best else rows[-1]
    episodes = sum(str(name).startswith("return_") for name in row)
    steps = int(row["env_steps"])
    score = _play(policy, record["seed"], episodes, sampled=of_run, env_steps=steps)
    return score._replace(recorded=float(row["mean_return"]))


def policy_folder(run: Path, best: bool) -> Path:
    """Return the folder of a run's policy, or of its best one, if it kept that (`UsageError`)."""
    folder = run / BEST if best else run
    if best and not folder.is_dir():
        raise UsageError(f"{run} kept no best policy: train with --keep-best")
    return folder


def _play(
    policy: "Policy", seed: int, episodes: int, *, sampled: bool, env_steps: int | None = None
) -> Score:
    """Play episodes side by side, and keep the actions of the first.

    With `env_steps` they are those of a training's evaluation after so many steps; else fresh ones.
    """
    # A training's streams have the names that `suite.session` gives them.
    name, counters = ("evaluate", ()) if env_steps is None else ("evaluation", (env_steps,))
    generator = stream(seed, f"{name} actions", *counters) if sampled else None
    taken: list[np.ndarray] = []

    def act(obs: np.ndarray) -> np.ndarray:
        actions = policy.act(obs, generator)
        taken.append(np.array(actions[0, 0]))
        return actions

    how: dict[str, Any] = {"episodes": episodes, "stream": name, "memory": policy.memory}
    ((returns,), _) = evaluate(policy.task, act, [seed], env_steps or 0, **how)
    first_seed = int(environment_seeds([seed], episodes, name, env_steps or 0)[0, 0])
    rule = "sampled" if sampled else "deterministic"
    return Score(policy.task, rule, returns, first_seed, taken)


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
    if not flags.is_installed("imageio_ffmpeg"):
        raise UsageError("--video needs an encoder: pip install 'encore-rl[video]'")
    first = VectorEnv(task, np.zeros((1, 1), dtype=np.int64), render=True)
    first.reset()
    first.render()


def film_first(score: Score, film: Path) -> str:
    """Write the first scored episode as a film; return a line on it.

    A `UsageError` says that the simulator does not repeat the return, or that writing failed.
    """
    frames = (env.render()[0, 0] for env in _steps(score))
    most = len(score.actions) + 1
    look: Any = {"total": most, "console": flags.make_console(), "transient": True}
    aside = film.with_name(f".{film.stem}.{uuid.uuid4().hex}{film.suffix}")
    try:
        rate = frames_per_second(score.task)
        num_frames = _encode(iter(track(frames, "filming", **look)), rate, aside)
        aside.replace(film)
    except OSError as error:
        said = " ".join(str(error).split())  # an encoder's may have lines
        raise UsageError(f"--video: cannot write {film}: {said}") from None
    finally:
        aside.unlink(missing_ok=True)
    first = f"the first of {counted(len(score.returns), 'episode')}"
    return f"filmed: {film} ({num_frames:,} frames), {first}: return {score.returns[0]:.6g}"


def _steps(score: Score) -> Iterator[VectorEnv]:
    """Play the first episode again; yield the environment before the first step and after each.

    Another return than was scored is refused at the end.
    """
    env = VectorEnv(score.task, np.array([[score.env_seed]]), render=True)
    scored = score.returns[0]
    env.reset()
    yield env
    for actions in score.actions:
        step = env.step(actions[None, None])
        yield env
        if step.episode_ends.all():
            found = step.episode_returns[0, 0]
            if found == scored:
                return
            raise UsageError(
                f"no film: the episode that scored {float(scored)!r} gives {float(found)!r} when "
                "it is played again"
            )
    raise UsageError("no film: the episode that was scored has no end when it is played again")


def _encode(frames: Iterator[np.ndarray], rate: Fraction, film: Path) -> int:
    """Pass frames to ffmpeg as they come; return their number. An OSError: it ended before."""
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
        num_frames = 0
        for frame in itertools.chain([first], frames):
            writer.send(np.ascontiguousarray(frame))
            num_frames += 1
    return num_frames


def main(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    parser = flags.make_parser("evaluate", "run", "--best", "--task-from")
    parser.add_argument("--episodes", type=whole, default=10, metavar="N", help="default: 10")
    actions = parser.add_mutually_exclusive_group()
    rule = {"dest": "sampled", "default": None}
    text = "draw actions from the policy"
    actions.add_argument("--sampled", action="store_true", help=text, **rule)
    text = "take its mode (default: as the run was scored)"
    actions.add_argument("--deterministic", action="store_false", help=text, **rule)
    parser.add_argument("--seed", type=whole, default=0, help="of the environments")
    text = "play the run's last evaluation again (with --best its best one), not fresh episodes"
    parser.add_argument("--recorded", action="store_true", help=text)
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode")
    options = parser.parse(argv)
    if options.recorded and any(
        getattr(options, name) != parser.get_default(name) for name in FRESH
    ):
        raise UsageError("--recorded plays as the run did: leave out the flags of fresh episodes")
    use_threads(1)  # as training by default; more would wait for each other, at so few rows
    score = evaluate_run(**vars(options))
    interval = score.interval()
    shown = f" (95 % interval {number(interval[0])} to {number(interval[1])})" if interval else ""
    shown += "" if score.recorded is None else f", recorded as {number(score.recorded)},"
    episodes = counted(len(score.returns), "episode")
    mean = f"{score.task.name}: mean return {number(score.returns.mean())}{shown}"
    print(f"{mean} over {episodes}, {score.rule} actions")
    if options.video:
        print(film_first(score, options.video))
    return 0
