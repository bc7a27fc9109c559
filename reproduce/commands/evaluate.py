"""`evaluate RUN`: score a trained policy again, and film it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # loads `scipy.stats` when it is first used

import agents
from reproduce.commands import flags
from reproduce.commands.films import Episode, check_film, film_episode
from reproduce.plan.tables import read_table
from reproduce.words import counted
from suite.base.errors import UsageError, require
from suite.base.randomness import environment_seeds, stream
from suite.envs.tasks import Task
from suite.envs.vector_env import VectorEnv
from suite.evaluation import evaluate
from suite.record.manifest import BEST
from suite.record.records import read_record
from suite.settings.command_line import whole

if TYPE_CHECKING:
    from suite.resume.checkpoint import Policy  # torch


class Score(NamedTuple):
    """An evaluation of a policy."""

    task: Task
    rule: str
    """`sampled` or `deterministic`."""
    returns: np.ndarray
    """`[episodes]`."""
    first: Episode
    """The first of them."""
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
) -> Score:
    """Play episodes with the policy that a run saved.

    Args:
        run: the run's folder.
        episodes: number of episodes, each in an environment of its own.
        sampled: draw actions from the policy, or take its mode; None: as the run itself was scored.
        seed: seed of the environments and of the drawn actions.
        best: take the policy of the run's best evaluation, which `--keep-best` kept, not the last.
        recorded: play the episodes of that evaluation again, not fresh ones.
        video: a film that is wanted of the first episode: refused if it cannot be made.

    Raises:
        UsageError: if the folder holds no readable policy, or one that differs from its manifest,
            `episodes` is below 1, `seed` below 0, no evaluation was recorded, or the video cannot
            be made.
    """
    require(episodes >= 1, "--episodes must be at least 1", episodes)
    require(seed >= 0, "--seed must be at least 0", seed)
    record, policy = read_record(run), agents.load_policy(policy_folder(run, best))
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
    number = sum(str(name).startswith("return_") for name in row)
    steps = int(row["env_steps"])
    score = _play(policy, record["seed"], number, sampled=of_run, env_steps=steps)
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
    (returns,) = evaluate(policy.task, act, [seed], env_steps or 0, **how)
    first_seed = int(environment_seeds([seed], episodes, name, env_steps or 0)[0, 0])
    first = Episode(policy.task, first_seed, float(returns[0]), taken)
    return Score(policy.task, "sampled" if sampled else "deterministic", returns, first)


def main(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    about = "score the policy that a run saved"
    parser = flags.make_parser("evaluate", about, "run", "--best", "--task-from")
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
    score = evaluate_run(**{key: each for key, each in vars(options).items() if key != "task_from"})
    interval = score.interval()
    shown = f" (95 % interval {interval[0]:.4g} to {interval[1]:.4g})" if interval else ""
    shown += "" if score.recorded is None else f", recorded as {score.recorded:.4g},"
    number = counted(len(score.returns), "episode")
    mean = f"{score.task.name}: mean return {score.returns.mean():.4g}{shown}"
    print(f"{mean} over {number}, {score.rule} actions")
    if options.video:
        print(film_episode(score.first, options.video, f"the first of {number}"))
    return 0
