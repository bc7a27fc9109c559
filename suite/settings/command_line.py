"""Command lines: every mistake gives one line that names the fix, and exit status 2."""

import argparse
import ast
import dataclasses
import errno
import inspect
import io
import itertools
import math
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from suite.base.errors import UsageError, near, nearest
from suite.base.files import NO_SPACE
from suite.envs.tasks import Task, find_task, folder_of, tasks_in
from suite.settings.config import MOST_STEPS
from suite.settings.presets import ConfigT, Preset, find_source, origin_of, replaced, replacements

NO_MEMORY = re.compile(r"can(no|')t allocate memory", re.IGNORECASE)
"""What torch says where the machine has no more memory; Python has an error for it."""
WRONG_PLACES = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of which the file's name says all that a user needs."""
MOST_NUMBERS = 10_000
"""Numbers that a range may name, and seeds of a task."""
WORDS_OF_FLAGS = {
    (int, False): "a whole number such as 256",
    (int, True): "whole numbers such as 64,64",
    (float, False): "a number such as 0.99",
    (float, True): "numbers such as 0.5,0.99",
    (bool, False): "true or false",
}
"""What a setting of a type, or a tuple of it, can be."""
GROUPS = {
    **dict.fromkeys(("task", "seeds", "env_steps", "protocol", "log_interval"), "run"),
    **dict.fromkeys(("evaluation_rule", "evaluation_interval", "evaluation_episodes"), "run"),
    **dict.fromkeys(("device", "tf32", "bfloat16", "cuda_graphs"), "speed"),
    **dict.fromkeys(("num_threads", "env_threads"), "speed"),
}
"""Settings by their place in the help; all others are the algorithm's."""
WIDTH = 100
CHECKPOINT_MINUTES = 5.0
"""Time between two checkpoints, where a command does not say."""


def run_main(main: Callable[[Sequence[str]], int]) -> int:
    """Call `main` with this process's arguments and return its exit status.

    What a terminal's encoding lacks, such as a byte of a path that is not UTF-8, is escaped.

    A `UsageError`, a full disk, a full memory, or a file that may not be used or whose name is too
    long gives one line on standard error and status 2. Any other error gives its traceback and
    status 2 (status 1 means that a score is below its reference). Ctrl-C gives status 130, and a
    reader that ends first, such as `head`, 141: a shell's for both.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # where Python's own last flush goes
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
    except UsageError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            print(f"error: no space: {error}", file=sys.stderr)
        elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = printable(str(error.filename))
            print(f"error: this name is too long for a file: {name[:60]}...", file=sys.stderr)
        elif isinstance(error, WRONG_PLACES) and error.filename:
            place = printable(str(error.filename2 or error.filename))
            print(f"error: {place}: {error.strerror}", file=sys.stderr)
        elif isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            size = f" ({error})" if str(error) else ""
            print(f"error: cannot allocate memory{size}: train less at once", file=sys.stderr)
        else:
            traceback.print_exc()
            if "\n" in str(error):  # a log's last line tells how a run ended
                print("error:", *f"{type(error).__name__}: {error}".split(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def printable(text: str) -> str:
    """Return `text` with control characters and other unprintable ones escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError`, rejects abbreviated flags and keeps lines.

    Those of the description stay as they are unless another `formatter_class` is given.
    """

    hint = ""
    """What to add where a flag is like none that is known, in place of a list of these."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {"formatter_class": argparse.RawDescriptionHelpFormatter} | kwargs
        super().__init__(allow_abbrev=False, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse's own knows no -2e1

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a `UsageError`; its page of usage is in the help."""
        raise UsageError(message + (f"; see {self.prog} --help" if "required" in message else ""))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Refuse `--flag=--`, which argparse reads as a flag without a value."""
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):
                raise UsageError(f"argument {word.removesuffix('=--')}: '--' is not a value")
        return super().parse_known_args(args, namespace)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options of `argv`; for an unknown flag, name the nearest known one."""
        options, unknown = self.parse_known_args(argv)
        flags = [word for word in unknown if word.startswith("-")]
        if flags:
            flag, known = flags[0].partition("=")[0], self._option_string_actions
            advice = nearest(flag, known)
            if self.hint and near(flag, known) is None:
                advice = self.hint
            raise UsageError(f"unknown option {flag}{advice}")
        if unknown:
            raise UsageError(f"unexpected argument {unknown[0]!r}")
        return options


class _Setting(argparse.Action):
    """Keeps a setting as `read_value` reads it."""

    def __init__(self, *, hint: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hint = hint

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Read the flag's words; numbers of `AS_PEOPLE_WRITE` are numbers already."""
        parts = values if isinstance(values, list) else [values]
        words = [str(n) for part in parts for n in (part if isinstance(part, list) else [part])]
        setattr(namespace, self.dest, read_value(str(option_string), self.hint, words))


def add_settings(parser: Parser, config: Any, *, explains: bool = False) -> Any:
    """Add a flag for each field of a configuration, in three groups; return the run's group.

    The help has the fields' texts, for which their source is read, where it `explains`.
    """
    groups = {title: parser.add_argument_group(title) for title in ("run", "algorithm", "speed")}
    hints, texts = get_type_hints(type(config)), _texts(type(config)) if explains else {}
    for field in dataclasses.fields(config):
        name, hint, value = field.name, hints[field.name], getattr(config, field.name)
        flag = name.replace("_", "-")
        words = " ".join(map(str, value)) if isinstance(value, tuple) else value
        text = f"{texts.get(name, '')} (default: {words})".replace("%", "%%")
        how: dict[str, Any] = {"metavar": "VALUE", "type": AS_PEOPLE_WRITE.get(name), "help": text}
        if hint is bool:
            how |= {"nargs": "?", "const": "true", "metavar": "true|false"}
            off: dict[str, Any] = {"dest": name, "action": "store_false", "help": argparse.SUPPRESS}
            parser.add_argument(f"--no-{flag}", default=argparse.SUPPRESS, **off)
        elif get_origin(hint) is Literal:
            how["metavar"] = f"{{{','.join(map(str, get_args(hint)))}}}"
        elif any(get_origin(each) is tuple for each in (hint, *get_args(hint))):
            how["nargs"] = "+"
        group = groups[GROUPS.get(name, "algorithm")]
        group.add_argument(
            f"--{flag}", action=_Setting, hint=hint, default=argparse.SUPPRESS, **how
        )
    return groups["run"]


def override(config: ConfigT, options: argparse.Namespace) -> ConfigT:
    """Return `config` with the settings that a parser with `add_settings` has read."""
    names = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    values = {name: value for name, value in vars(options).items() if name in names}
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def _texts(config_class: type) -> dict[str, str]:
    """Return the text below each field of a configuration, those of its bases too."""
    found: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(defined, ast.ClassDef)
        for field, text in itertools.pairwise(defined.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def read_value(where: str, hint: Any, words: Sequence[str]) -> Any:
    """Return what a command line's words say of a setting, in the setting's type.

    Values of a tuple are words of their own, or have commas between them. Errors begin with
    `where`: `--gamma`, or `--set: gamma`.
    """
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    is_optional = NoneType in get_args(hint)
    if is_optional and list(words) in (["none"], ["None"]):
        return None
    hint = kinds[0] if is_optional and len(kinds) == 1 else hint
    several = get_origin(hint) is tuple
    kind = get_args(hint)[0] if several else hint
    if several:
        words = [part for word in words for part in word.split(",")]
    elif len(words) != 1:
        asked = f"unexpected argument {words[1]!r}" if words else "expected one argument"
        raise UsageError(f"{where}: {asked}")
    try:
        if kind is bool:
            read = [{"true": True, "false": False}[word.lower()] for word in words]
        elif get_origin(kind) is Literal:
            read = [{str(each): each for each in get_args(kind)}[word] for word in words]
        else:
            read = [kind(word) for word in words]
    except (KeyError, ValueError):
        choices = ", ".join(map(str, get_args(kind)))
        allowed = WORDS_OF_FLAGS.get((kind, several)) or f"one of {choices}"
        other = ", or none" if is_optional else ""
        raise UsageError(f"{where} is {allowed}{other}, not {','.join(words)!r}") from None
    return tuple(read) if several else read[0]


def whole(text: str) -> int:
    """Return a whole number from a command line: 30000, 30_000, 3e4, 30k or 1.5M."""
    words = re.fullmatch(
        r"([+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[+]?[0-9]{1,2})?)([km]?)", text.strip().lower()
    )
    try:
        if not words:
            raise ValueError
        number = Decimal(words[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[words[2]]
        if number != int(number) or abs(number) > MOST_STEPS:
            raise ValueError
        return int(number)
    except (ValueError, ArithmeticError):
        example = "a whole number such as 30000, 30k or 1e6"
        raise argparse.ArgumentTypeError(f"needs {example}, not {text!r}") from None


def whole_numbers(text: str) -> list[int]:
    """Return whole numbers from a command line: 3, or 1,2,3, or from 1 to 3 as 1-3."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", part)
        if ends and int(ends[2]) - int(ends[1]) >= MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"{text!r} are more than {MOST_NUMBERS:,}")
        if ends and int(ends[1]) <= int(ends[2]):
            numbers += range(int(ends[1]), int(ends[2]) + 1)
            continue
        try:
            numbers.append(int(part))
        except ValueError:
            example = "whole numbers such as 1 2 3, 1,2,3 or 1-3"
            raise argparse.ArgumentTypeError(f"needs {example}, not {text!r}") from None
    return numbers


def _suite_of(
    task: str | None, source: str | None, presets: Mapping[tuple[str, str], Preset[Any]]
) -> str:
    """Return the first suite that has the task and settings of the source, else the first like it.

    That has tasks of its family; failing that, they share its kind of action, and neither shows
    frames. Where only suites without the source have the task, the source is not asked for.
    """
    asked = {key: preset for key, preset in presets.items() if source in (None, key[1])}
    of_task = {key for key in presets if task in tasks_in(key[0])}
    is_elsewhere = of_task and not of_task & asked.keys()
    presets = presets if is_elsewhere or not asked else asked
    if task is None:
        return next(iter(presets))[0]
    wanted, suites = find_task(task), list(dict.fromkeys(suite for suite, _ in presets))

    def likeness(other: Task) -> int:
        if other.name == task:
            return 3
        if other.family == wanted.family:
            return 2
        return int(other.actions == wanted.actions and "atari" not in (other.family, wanted.family))

    best = {suite: max(likeness(find_task(other)) for other in tasks_in(suite)) for suite in suites}
    nearest_suite = max(best, key=lambda suite: best[suite])  # the first of equals
    if best[nearest_suite]:
        return nearest_suite
    kinds = {find_task(other).actions for suite in suites for other in tasks_in(suite)}
    if wanted.actions in kinds:
        type(next(iter(presets.values())).config)(task=task)  # may say why not
        example = f"--suite {suites[0]}"
        raise UsageError(f"no preset covers {task}: choose a suite, for example {example}")
    those = f"{' or '.join(sorted(kinds))} actions, as in --suite {suites[0]}"
    raise UsageError(f"no preset covers {task}: choose a task with {those}")


AS_PEOPLE_WRITE: Mapping[str, Any] = {"env_steps": whole, "seeds": whole_numbers}
"""Settings that are read so: 30k, 1-3."""


def _add_run_flags(place: Any) -> None:
    """Add the flags of an agent's command beside its settings."""
    text = "in place of --task: a task that importing this module registers with gymnasium"
    place.add_argument("--task-from", type=task_from, metavar="MODULE:ID", help=text)
    text = "suite whose preset gives the defaults (default: the first that has task and source)"
    place.add_argument("--suite", metavar="SUITE", help=text)
    text = "published source whose preset gives the defaults (default: the suite's own)"
    place.add_argument("--like", metavar="SOURCE", help=text)
    text = "folder for the runs, one `seed-<k>` each (default: runs/alone/<agent>/<task>)"
    place.add_argument("--out", type=folder, metavar="DIR", help=text)
    text = "time between two checkpoints; a killed command that is started again resumes from the "
    text += f"last one (default: {CHECKPOINT_MINUTES:g}; 0: after every step or unroll)"
    place.add_argument(
        "--checkpoint-minutes", type=minutes, default=CHECKPOINT_MINUTES, metavar="N", help=text
    )
    text = "remove the last checkpoint at the end; where it is kept, a larger --env-steps extends "
    text += "a finished run"
    place.add_argument("--drop-checkpoints", action="store_true", help=text)
    text = "keep the policy of the best evaluation, too, in `best` of the run"
    place.add_argument("--keep-best", action="store_true", help=text)
    text = "draw return, losses, entropy and temperature while training"
    place.add_argument("--plot", action="store_true", help=text)


@dataclass(frozen=True)
class RunOptions:
    """Options of an agent's command beside its settings: preset, folder, files to keep, drawing."""

    suite: str
    source: str
    out: Path
    checkpoint_minutes: float = CHECKPOINT_MINUTES
    drop_checkpoints: bool = False
    keep_best: bool = False
    plot: bool = False


def read_command_line(
    presets: Mapping[tuple[str, str], Preset[ConfigT]], argv: Sequence[str], *, agent: str
) -> tuple[ConfigT, RunOptions]:
    """Read an agent's own command: `--task T --seeds 1 2 --like SOURCE --out DIR --gamma 0.9 ...`.

    Returns:
        the preset's configuration with every flag applied, and the run's options.
    """
    argv = [re.sub("^--[^=]*", lambda flag: flag[0].replace("_", "-"), word) for word in argv]
    first = Parser(add_help=False)
    first.add_argument("--task")
    _add_run_flags(first)
    options, _ = first.parse_known_args(argv)
    suites = dict.fromkeys(suite for suite, _ in presets)
    if options.task and options.task_from:
        raise UsageError("give either --task or --task-from")
    task = options.task_from or options.task
    if (suite := options.suite) is None:
        suite = _suite_of(task, options.like, presets)
    source = find_source(presets, suite, options.like)
    if task is None:
        task = str(getattr(presets[suite, source].config, "task", ""))
    if (found := find_task(task)).simulator == "gymnasium" and ":" not in task:
        from suite.envs.gymnasium_pool import describe

        describe(found.simulator_id, found.time_limit)  # refuses it, as `find_task` does a module's
    fitting = [other for other in suites if task in tasks_in(other)]
    if fitting and suite not in fitting:
        raise UsageError(f"--suite {suite} has no {task}{nearest(fitting[0], fitting)}")
    preset = presets[suite, source].config
    prog = f"python -m agents.{agent}"
    parser = Parser(
        prog=prog,
        usage=f"{prog} [flags]",
        description=f"Defaults are the settings of {source} on {suite}; --like takes others'.",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=30, width=WIDTH),
    )
    _add_run_flags(add_settings(parser, preset, explains=bool({"-h", "--help"} & {*argv})))
    config = override(preset, argparse.Namespace(**vars(parser.parse(argv)) | {"task": task}))
    if said := replaced(presets, agent, (suite, source), config):
        print(said, file=sys.stderr)
    elif (number := len(replacements(preset, config))) and not options.plot:
        said = f"{source} on {suite} changes {number} of the file's defaults"
        whose = origin_of(presets, agent)
        print(f"{said}: see python -m reproduce list {whose} --like {source}")
    out = options.out or Path("runs") / "alone" / agent / folder_of(task)
    kept = (options.checkpoint_minutes, options.drop_checkpoints, options.keep_best, options.plot)
    return config, RunOptions(suite, source, out, *kept)


def task_from(text: str) -> str:
    """Return a task `module:id` from a command line."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise argparse.ArgumentTypeError(f"needs module:id, not {text!r}; --task is for our tasks")
    return text


def folder(text: str) -> Path:
    """Return a folder from a command line; an unset shell variable names none."""
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    return Path(text)


def minutes(text: str) -> float:
    """Return a number of minutes from a command line."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"needs a number of minutes, 0 or more, not {text!r}")
    return number
