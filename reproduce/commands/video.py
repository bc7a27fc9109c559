"""`video AGENT SUITE`: find a grid's run, film it, show the film on the grid's page."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags
from reproduce.commands.evaluate import is_sampled, load, play
from reproduce.commands.films import check_drawn, check_film, film_episode
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.presets import source_of
from reproduce.plan.request import GRID, Request, add_flags, read_request
from reproduce.report.films import FOLDER, film_name
from reproduce.report.page import write_page
from suite.base.errors import UsageError, nearest
from suite.base.files import read_plain
from suite.envs.tasks import find_task, tasks_in
from suite.record.manifest import POLICY


def film_run(run: Path, video: Path, *, best: bool = False) -> str:
    """Film the first episode of a run's last evaluation, or of its best one; return a line on it.

    A run that was scored by its training's episodes has no evaluation, and nothing can play these
    again: a fresh episode is scored and filmed.

    Args:
        run: the run's folder.
        video: the file to write, `.mp4` or `.gif`.
        best: film the best evaluation's policy, which `--keep-best` kept.

    Raises:
        UsageError: if the folder holds no finished run with a readable policy, or the film cannot
            be made.
    """
    policy, record = load(run, best)
    check_film(video, policy.task)
    if record is None:
        raise UsageError(f"{run} has no record: film it by `evaluate {run} --video FILE`")
    sampled = is_sampled(record)
    rows = [] if record["config"].get("evaluation_rule") == "training" else evaluations(run)
    if not rows:
        words = "a fresh episode, as this run was scored by those of its training"
        return film_episode(play(policy, 0, 1, sampled=sampled).first, video, words)
    row = max(rows, key=lambda row: float(row["mean_return"])) if best else rows[-1]
    env_steps, recorded = int(row["env_steps"]), float(row["return_0"])
    number = sum(name.startswith("return_") for name in row)
    first = play(policy, record["seed"], number, sampled=sampled, env_steps=env_steps).first
    words = f"the first of the {number} episodes scored after {env_steps:,} steps"
    if first.episode_return != recorded:
        words += f" (recorded as {recorded:.8g}: processor or versions differ)"
    return film_episode(first, video, words)


def evaluations(run: Path) -> list[dict[str, str]]:
    """Return the rows of a run's evaluations; none without the file."""
    try:
        return list(csv.DictReader(io.StringIO(read_plain(run / "evaluations.csv").decode())))
    except FileNotFoundError:
        return []


def film_of_grid(
    request: Request, task: str, seed: int, *, best: bool = False, video: Path | None = None
) -> str:
    """Film a run of a grid; without one in its runs directory, the published one.

    Args:
        request: the grid, by agent, suite, source and runs directory.
        task: one of its tasks.
        seed: the run's.
        best: film the best evaluation's policy, which `--keep-best` kept.
        video: the file to write; None: into the grid's folder, whose page then shows it.

    Raises:
        UsageError: for an unknown name, a run without a policy, or a film that cannot be made.
    """
    agent, suite = request.agent, request.suite
    if task not in tasks_in(suite):
        raise UsageError(f"{suite} has no task {task!r}{nearest(task, tasks_in(suite))}")
    source = source_of(agent, suite, request.source)
    grids = [source.folder(root) for root in (request.runs_dir, PUBLISHED)]
    runs = [grid / task / f"seed-{seed}" for grid in grids]
    run = next((run for run in runs if (run / POLICY[0]).exists()), None)
    if run is None:
        raise UsageError(
            f"no policy in {runs[0]}, nor in {runs[1]}: train it by `python -m reproduce {agent} "
            f"{suite} --like {source.name} --tasks {task} --seeds {seed} --no-published`"
        )
    if video is not None:
        return film_run(run, video, best=best)
    check_drawn(find_task(task))
    video = grids[0] / FOLDER / film_name(task, seed)
    video.parent.mkdir(parents=True, exist_ok=True)
    said = film_run(run, video, best=best)
    if (grids[0] / "report.json").exists():
        write_page(grids[0])
    return said


def main(argv: Sequence[str]) -> int:
    """Film an episode that a run of a grid was scored by."""
    about = "film an episode that a run of a grid was scored by"
    parser = flags.make_parser("video", about, "--best")
    add_flags(parser, GRID)
    parser.add_argument("--task", required=True, metavar="TASK")
    parser.add_argument("--seed", type=int, required=True, metavar="SEED")
    text = "default: films/<task>-seed-<k>.mp4 in the grid's folder, whose page then shows it"
    parser.add_argument("--video", type=Path, metavar="FILE", help=text)
    options = parser.parse(argv)
    which, how = (options.task, options.seed), {"best": options.best, "video": options.video}
    print(film_of_grid(read_request(options), *which, **how))
    return 0
