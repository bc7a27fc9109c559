"""`video AGENT SUITE`: find a grid's run, film it, show the film on the grid's page."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags
from reproduce.commands.evaluate import Film, film_run
from reproduce.commands.films import Follow, check_drawn, follow
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.presets import source_of
from reproduce.plan.request import GRID, Request, add_flags, read_request
from reproduce.report.films import FOLDER, film_name
from reproduce.report.page import write_page
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import find_task, tasks_in
from suite.record.manifest import POLICY


def film_of_grid(
    request: Request,
    task: str,
    seed: int,
    *,
    follow: Follow,
    best: bool = False,
    video: Path | None = None,
) -> Film:
    """Film a run of a grid; without one in its runs directory, the published one.

    Args:
        request: the grid, by agent, suite, source and runs directory.
        task: one of its tasks.
        seed: the run's.
        follow: shows how far the film is.
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
        return film_run(run, video, follow, best=best)
    check_drawn(find_task(task))
    folder = grids[0] / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    film = film_run(run, folder / f"{film_name(task, seed)}.mp4", follow, best=best)
    if (grids[0] / "report.json").exists():
        write_page(grids[0])
    return film


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
    print(film_of_grid(read_request(options), *which, follow=follow, **how).sentence())
    return 0
