"""`evaluate RUN`: score a trained policy again, and film it."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads `scipy.stats` when it is first used

import agents
from suite.evaluation import evaluate
from suite.randomness import environment_seeds, stream
from suite.records import read_record
from suite.settings import UsageError
from suite.vector_env import VectorEnv

FORMATS = (".mp4", ".gif")
"""Endings of a film's name."""


def evaluate_run(
    run: Path, *, episodes: int, sampled: bool | None = None, seed: int = 0
) -> dict[str, Any]:
    """Play fresh episodes with the policy that a run saved.

    Args:
        run: the run's folder.
        episodes: number of episodes, each in an environment of its own.
        sampled: draw actions from the policy, or take its mode; None: as the run itself was scored.
        seed: seed of the environments and of the drawn actions.

    Returns:
        `task`, `rule`, `num_episodes`, `mean_return`, `std_return`, and `ci_low`, `ci_high`: the
        95 % t-interval of the mean (None for a single episode).

    Raises:
        UsageError: if the folder holds no readable policy, or one that differs from its manifest,
            `episodes` is below 1 or `seed` below 0.
    """
    if episodes < 1:
        raise UsageError(f"--episodes must be at least 1, not {episodes}")
    if seed < 0:
        raise UsageError(f"--seed must be at least 0, not {seed}")
    policy, record = agents.load_policy(run), read_record(run)
    task = policy.task
    _check_spaces(run, policy, VectorEnv(task, environment_seeds([seed], 1, "evaluate", 0)))
    if record and record["status"] == "damaged":
        raise UsageError(f"{run} {record['error']}")
    if sampled is None:
        rule = record["config"].get("evaluation_rule") if record else None
        sampled = rule in ("sampled", "training")
    generator = stream(seed, "evaluate actions") if sampled else None
    episode_returns = evaluate(
        task,
        lambda obs: policy.act(obs, generator),
        [seed],
        0,
        episodes=episodes,
        stream="evaluate",
        memory=policy.memory,
    )[0]
    mean, low, high = float(episode_returns.mean()), None, None
    if episodes > 1:
        half = scipy.stats.t.ppf(0.975, episodes - 1) * scipy.stats.sem(episode_returns)
        low, high = mean - half, mean + half
    return {
        "task": task.name,
        "rule": "sampled" if sampled else "deterministic",
        "num_episodes": episodes,
        "mean_return": mean,
        "std_return": float(episode_returns.std(ddof=1)) if episodes > 1 else None,
        "ci_low": low,
        "ci_high": high,
    }


def film_run(run: Path, video: Path, *, seed: int = 0, frames_per_second: int = 50) -> None:
    """Write the first episode of a run's policy as a video (extra `video`).

    Args:
        run: the run's folder.
        video: the file to write, `.mp4` or `.gif`.
        seed: seed of the environment.
        frames_per_second: frames per second of the video.

    Raises:
        UsageError: without a readable policy or imageio, for another format, or an unwritable file.
    """
    if video.suffix not in FORMATS:
        raise UsageError(f"--video: {video} must end in {' or '.join(FORMATS)}")
    try:
        import imageio.v3 as imageio
    except ImportError:
        raise UsageError("--video needs imageio: pip install 'encore-rl[video]'") from None
    policy = agents.load_policy(run)
    task = policy.task
    env = VectorEnv(task, environment_seeds([seed], 1, "evaluate", 0), render=True)
    _check_spaces(run, policy, env)
    obs, frames, over = env.reset(), [], False
    rewards = starts = None
    while not over:
        frames.append(env.render()[0, 0])
        step = env.step(policy.act(obs, rewards=rewards, starts=starts))
        obs, over = step.obs, bool(step.episode_ends.all())
        rewards, starts = step.rewards, ~step.valid
    rate: dict[str, Any] = {"fps": frames_per_second}
    if video.suffix == ".gif":
        rate = {"duration": 1000 / frames_per_second}  # milliseconds
    try:
        imageio.imwrite(video, np.stack(frames), **rate)
    except (OSError, ValueError) as error:
        raise UsageError(f"--video: cannot write {video}: {error}") from None


def _check_spaces(run: Path, policy: Any, env: VectorEnv) -> None:
    if not policy.fits(env.spaces):
        raise UsageError(
            f"unreadable policy in {run}: its observations or actions are not those of "
            f"{policy.task.name}"
        )
