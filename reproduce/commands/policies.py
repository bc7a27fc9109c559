"""`evaluate`, `video` and `export`: use a run's policy."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from reproduce.commands import flags
from reproduce.plan.request import GRID, add_flags, read_request
from reproduce.run.view import say
from reproduce.words import counted
from suite.settings import UsageError

FILM_SECONDS = 10.0
"""Seconds between two lines on a film's progress, where output is not a terminal."""


def evaluate(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    parser = flags.make_parser("evaluate", "score the policy that a run saved")
    parser.add_argument("run", type=Path, help="a run's folder: .../<task>/seed-<k>")
    parser.add_argument("--episodes", type=int, default=10, metavar="N")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--sampled", action="store_true", help="draw actions from the policy")
    actions.add_argument(
        "--deterministic",
        action="store_true",
        help="take its mode (default: as the run was scored)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the environments")
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode")
    flags.add_task_from(parser)
    options = parser.parse(argv)
    flags.import_task(options)
    from reproduce.extras.evaluate import evaluate_run, film_first

    sampled = options.sampled if options.sampled or options.deterministic else None
    result = evaluate_run(
        options.run,
        episodes=options.episodes,
        sampled=sampled,
        seed=options.seed,
        best=options.best,
        video=options.video,
    )
    interval = ""
    if result["ci_low"] is not None:
        interval = f" (95 % interval {result['ci_low']:.4g} to {result['ci_high']:.4g})"
    print(
        f"{result['task']}: mean return {result['mean_return']:.4g}{interval} over "
        f"{counted(result['num_episodes'], 'episode')}, {result['rule']} actions"
    )
    if options.video:
        print(film_first(options.run, result, options.video, _follow).sentence())
    return 0


def video(argv: Sequence[str]) -> int:
    """Film an episode that a run of a grid was scored by."""
    parser = flags.make_parser("video", "film an episode that a run of a grid was scored by")
    add_flags(parser, GRID)
    parser.add_argument("--task", required=True, metavar="TASK")
    parser.add_argument("--seed", type=int, required=True, metavar="SEED")
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    parser.add_argument(
        "--video",
        type=Path,
        metavar="FILE",
        help="default: films/<task>-seed-<k>.mp4 in the grid's folder, whose page then shows it",
    )
    options = parser.parse(argv)
    from reproduce.extras.video import film_of_grid

    film = film_of_grid(
        read_request(options),
        options.task,
        options.seed,
        follow=_follow,
        best=options.best,
        video=options.video,
    )
    print(film.sentence())
    return 0


def export(argv: Sequence[str]) -> int:
    """Write the policy that a run saved in another form."""
    parser = flags.make_parser("export", "write the policy that a run saved in another form")
    parser.add_argument("run", type=Path, help="a run's folder: .../<task>/seed-<k>")
    parser.add_argument(
        "--onnx",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="the file to write (default: <agent>-<task>-seed-<k>.onnx)",
    )
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    flags.add_task_from(parser)
    options = parser.parse(argv)
    flags.import_task(options)
    if options.onnx is None:
        raise UsageError("say in which form: --onnx [FILE]")
    from reproduce.extras.export import export_onnx

    file = None if options.onnx == Path() else options.onnx
    file, lines = export_onnx(options.run, file, best=options.best)
    print(f"written: {file}")
    for line in lines:
        print(f"  {line}")
    return 0


def _follow(frames: Iterable[Any], number: int) -> Iterator[Any]:
    """Show how many of a film's frames are drawn; without a terminal, a line now and then."""
    console, said = flags.make_console(), time.monotonic()
    if console.is_terminal:
        yield from track(frames, "filming", number, console=console, transient=True)
        return
    for count, frame in enumerate(frames):
        if time.monotonic() - said >= FILM_SECONDS:
            said = time.monotonic()
            say(console, f"filming: {count:,} of {number:,} frames")
        yield frame
