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
from suite.base.errors import UsageError

FILM_SECONDS = 10.0
"""Seconds between two lines on a film's progress, where output is not a terminal."""


def evaluate(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    about = "score the policy that a run saved"
    parser = flags.make_parser("evaluate", about, "run", "--best", "--task-from")
    parser.add_argument("--episodes", type=int, default=10, metavar="N")
    actions = parser.add_mutually_exclusive_group()
    rule = {"dest": "sampled", "default": None}
    text = "draw actions from the policy"
    actions.add_argument("--sampled", action="store_true", help=text, **rule)
    text = "take its mode (default: as the run was scored)"
    actions.add_argument("--deterministic", action="store_false", help=text, **rule)
    parser.add_argument("--seed", type=int, default=0, help="of the environments")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode")
    options = parser.parse(argv)
    from reproduce.extras.evaluate import evaluate_run, film_first

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
        print(film_first(options.run, result, options.video, _follow).sentence())
    return 0


def video(argv: Sequence[str]) -> int:
    """Film an episode that a run of a grid was scored by."""
    about = "film an episode that a run of a grid was scored by"
    parser = flags.make_parser("video", about, "--best")
    add_flags(parser, GRID)
    parser.add_argument("--task", required=True, metavar="TASK")
    parser.add_argument("--seed", type=int, required=True, metavar="SEED")
    text = "default: films/<task>-seed-<k>.mp4 in the grid's folder, whose page then shows it"
    parser.add_argument("--video", type=Path, metavar="FILE", help=text)
    options = parser.parse(argv)
    from reproduce.extras.video import film_of_grid

    which, how = (options.task, options.seed), {"best": options.best, "video": options.video}
    print(film_of_grid(read_request(options), *which, follow=_follow, **how).sentence())
    return 0


def export(argv: Sequence[str]) -> int:
    """Write the policy that a run saved in another form."""
    about = "write the policy that a run saved in another form"
    parser = flags.make_parser("export", about, "run", "--best", "--task-from")
    text = "the file to write (default: <agent>-<task>-seed-<k>.onnx)"
    parser.add_argument("--onnx", type=Path, nargs="?", const=Path(), metavar="FILE", help=text)
    options = parser.parse(argv)
    if options.onnx is None:
        raise UsageError("say in which form: --onnx [FILE]")
    from reproduce.extras.export import export_onnx

    file = None if options.onnx == Path() else options.onnx
    file, lines = export_onnx(options.run, file, best=options.best)
    print("\n  ".join([f"written: {file}", *lines]))
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
