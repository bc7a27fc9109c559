"""`evaluate RUN` and `video AGENT SUITE`: score a trained policy again, and film it."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used

import agents
from reproduce.commands import flags
from reproduce.commands.films import Episode, Follow, check_film, film_episode, follow
from reproduce.words import counted
from suite.base.errors import UsageError
from suite.base.files import read_plain
from suite.base.randomness import environment_seeds, stream
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate
from suite.record.manifest import BEST
from suite.record.records import read_record

if TYPE_CHECKING:
    from suite.resume.checkpoint import Policy  # torch


class Scores(NamedTuple):
    """Scores of one evaluation of a policy."""

    episode_returns: np.ndarray
    """`[episodes]`."""
    first: Episode
    """The first of them."""


class Film(NamedTuple):
    """A film that was made."""

    path: Path
    episode_return: float
    num_frames: int
    words: str
    """Which episode it shows."""

    def sentence(self) -> str:
        """Describe the film in a line."""
        sheet = self.path.with_suffix(".png").name
        return (
            f"filmed: {self.path} ({self.num_frames:,} frames), {self.words}: return "
            f"{self.episode_return:.6g}; first, middle and last frame: {sheet}"
        )


def evaluate_run(
    run: Path,
    *,
    episodes: int,
    sampled: bool | None = None,
    seed: int = 0,
    best: bool = False,
    video: Path | None = None,
) -> dict[str, Any]:
    """Play fresh episodes with the policy that a run saved.

    Args:
        run: the run's folder.
        episodes: number of episodes, each in an environment of its own.
        sampled: draw actions from the policy, or take its mode; None: as the run itself was scored.
        seed: seed of the environments and of the drawn actions.
        best: take the policy of the run's best evaluation, which `--keep-best` kept, not the last.
        video: a film that is wanted of the first episode, which is refused here if it cannot be
            made; `film_first` makes it.

    Returns:
        `task`, `rule`, `num_episodes`, `mean_return`, and `ci_low`, `ci_high`: the
        95 % t-interval of the mean (None for a single episode); `first`: the first episode.

    Raises:
        UsageError: if the folder holds no readable policy, or one that differs from its manifest,
            `episodes` is below 1, `seed` below 0, or the video cannot be made.
    """
    if episodes < 1:
        raise UsageError(f"--episodes must be at least 1, not {episodes}")
    if seed < 0:
        raise UsageError(f"--seed must be at least 0, not {seed}")
    policy, record = _load(run, best)
    if video is not None:
        check_film(video, policy.task)
    if sampled is None:
        sampled = _is_sampled(record)
    scores = _score(policy, seed, episodes, sampled=sampled)
    episode_returns = scores.episode_returns
    mean, low, high = float(episode_returns.mean()), None, None
    if episodes > 1:
        half = scipy.stats.t.ppf(0.975, episodes - 1) * scipy.stats.sem(episode_returns)
        low, high = mean - half, mean + half
    return {
        "task": policy.task.name,
        "rule": "sampled" if sampled else "deterministic",
        "num_episodes": episodes,
        "mean_return": mean,
        "ci_low": low,
        "ci_high": high,
        "first": scores.first,
    }


def film_first(run: Path, result: Mapping[str, Any], video: Path, follow: Follow) -> Film:
    """Film the first episode of an evaluation.

    Args:
        run: the run's folder.
        result: the evaluation, as `evaluate_run` returned it.
        video: the file to write, `.mp4` or `.gif`.
        follow: shows how far the film is.

    Raises:
        UsageError: if the film cannot be made.
    """
    episodes = result["num_episodes"]
    words = f"the first of {episodes} fresh episodes" if episodes > 1 else "a fresh episode"
    return _film(result["first"], video, run, words, f"{result['rule']} actions", follow)


def film_run(run: Path, video: Path, follow: Follow, *, best: bool = False) -> Film:
    """Film the first episode of a run's last evaluation, or of its best one.

    A run that was scored by its training's episodes has no evaluation, and nothing can play these
    again: a fresh episode is scored and filmed.

    Args:
        run: the run's folder.
        video: the file to write, `.mp4` or `.gif`.
        follow: shows how far the film is.
        best: film the best evaluation's policy, which `--keep-best` kept.

    Raises:
        UsageError: if the folder holds no finished run with a readable policy, or the film cannot
            be made.
    """
    policy, record = _load(run, best)
    check_film(video, policy.task)
    if record is None:
        raise UsageError(f"{run} has no record: film it by `evaluate {run} --video FILE`")
    sampled = _is_sampled(record)
    rule = f"{'sampled' if sampled else 'deterministic'} actions"
    rows = [] if record["config"].get("evaluation_rule") == "training" else _evaluations(run)
    if not rows:
        scores = _score(policy, 0, 1, sampled=sampled)
        words = "a fresh episode, as this run was scored by those of its training"
        return _film(scores.first, video, run, words, rule, follow)
    row = max(rows, key=lambda row: float(row["mean_return"])) if best else rows[-1]
    env_steps, recorded = int(row["env_steps"]), float(row["return_0"])
    episodes = sum(name.startswith("return_") for name in row)
    scores = _score(policy, record["seed"], episodes, sampled=sampled, env_steps=env_steps)
    words = f"the first of the {episodes} episodes scored after {env_steps:,} steps"
    if scores.first.episode_return != recorded:
        words += f" (recorded as {recorded:.8g}: processor or versions differ)"
    return _film(scores.first, video, run, words, rule, follow)


def policy_folder(run: Path, best: bool) -> Path:
    """Return the folder of a run's policy: the last, or that of its best evaluation.

    Raises:
        UsageError: if the best was not kept.
    """
    folder = run / BEST if best else run
    if best and not folder.is_dir():
        raise UsageError(f"{run} kept no best policy: train with --keep-best")
    return folder


def _load(run: Path, best: bool) -> tuple["Policy", dict[str, Any] | None]:
    """Return a run's policy and its record, None without one."""
    record = read_record(run)
    policy = agents.load_policy(policy_folder(run, best))
    env = VectorEnv(policy.task, environment_seeds([0], 1, "evaluate", 0))
    if not policy.fits(env.spaces):
        raise UsageError(
            f"unreadable policy in {run}: its observations or actions are not those of "
            f"{policy.task.name}"
        )
    return policy, record


def _is_sampled(record: dict[str, Any] | None) -> bool:
    """Return whether a run was scored by drawn actions."""
    rule = record["config"].get("evaluation_rule") if record else None
    return rule in ("sampled", "training")


def _evaluations(run: Path) -> list[dict[str, str]]:
    """Return the rows of a run's evaluations; none without the file."""
    try:
        return list(csv.DictReader(io.StringIO(read_plain(run / "evaluations.csv").decode())))
    except FileNotFoundError:
        return []


def _score(
    policy: "Policy", seed: int, episodes: int, *, sampled: bool, env_steps: int | None = None
) -> Scores:
    """Play episodes, and keep the actions of the first.

    Args:
        policy: decides.
        seed: of the environments and of the drawn actions.
        episodes: number of episodes, played side by side.
        sampled: draw actions, or take the modes.
        env_steps: play those of a training's evaluation after so many steps; None: fresh ones.
    """
    name, drawn = ("evaluate", "evaluate actions")
    if env_steps is not None:  # as `suite.session` names them
        name, drawn = ("evaluation", "evaluation actions")
    counters = () if env_steps is None else (env_steps,)
    generator = stream(seed, drawn, *counters) if sampled else None
    taken: list[np.ndarray] = []

    def act(obs: np.ndarray) -> np.ndarray:
        actions = policy.act(obs, generator)
        taken.append(np.array(actions[0, 0]))
        return actions

    returns = evaluate(
        policy.task,
        act,
        [seed],
        env_steps or 0,
        episodes=episodes,
        stream=name,
        memory=policy.memory,
    )[0]
    first_seed = int(environment_seeds([seed], episodes, name, env_steps or 0)[0, 0])
    return Scores(returns, Episode(policy.task, first_seed, float(returns[0]), taken))


def _film(episode: Episode, video: Path, run: Path, words: str, rule: str, follow: Follow) -> Film:
    """Film an episode of a run, under a caption."""
    score, name = episode.episode_return, episode.task.name
    caption = f"{name}, {run.name}: return {score:,.6g}. {words[0].upper()}{words[1:]}, {rule}."
    num_frames = film_episode(episode, video, f"{caption} First, middle, last frame.", follow)
    return Film(video, score, num_frames, words)


def main(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    about = "score the policy that a run saved"
    parser = flags.make_parser("evaluate", about, "run", "--best", "--task-from")
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="default: 10")
    actions = parser.add_mutually_exclusive_group()
    rule = {"dest": "sampled", "default": None}
    text = "draw actions from the policy"
    actions.add_argument("--sampled", action="store_true", help=text, **rule)
    text = "take its mode (default: as the run was scored)"
    actions.add_argument("--deterministic", action="store_false", help=text, **rule)
    parser.add_argument("--seed", type=int, default=0, help="of the environments")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode")
    options = parser.parse(argv)
    asked = {key: value for key, value in vars(options).items() if key not in ("run", "task_from")}
    result = evaluate_run(options.run, **asked)
    interval = ""
    if result["ci_low"] is not None:
        interval = f" (95 % interval {result['ci_low']:.4g} to {result['ci_high']:.4g})"
    print(
        f"{result['task']}: mean return {result['mean_return']:.4g}{interval} over "
        f"{counted(result['num_episodes'], 'episode')}, {result['rule']} actions"
    )
    if options.video:
        print(film_first(options.run, result, options.video, follow).sentence())
    return 0
