"""Command lines: every mistake gives one line that names the fix, and exit status 2."""

import argparse
import dataclasses
import errno
import io
import math
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from suite.base.errors import UsageError, near, nearest
from suite.base.files import NO_SPACE
from suite.envs.tasks import Task, find_task, folder_of, tasks_in
from suite.settings.config import MOST_STEPS
from suite.settings.presets import ConfigT, Preset, find_source, replaced

NO_MEMORY = re.compile(r"can(no|')t allocate memory", re.IGNORECASE)
"""What torch says where the machine has no more memory; Python has an error for it."""
MANY = 10_000
"""Numbers that a range may name."""
KINDS = {
    (int, False): "a whole number such as 256",
    (int, True): "whole numbers such as 64,64",
    (float, False): "a number such as 0.99",
    (float, True): "numbers such as 0.5,0.99",
    (bool, False): "true or false",
}
"""What a setting of a type, or a tuple of it, can be."""


def run_main(main: Callable[[Sequence[str]], int]) -> int:
    """Call `main` with this process's arguments and return its exit status.

    What a terminal's encoding lacks, such as a byte of a path that is not UTF-8, is escaped.

    A `UsageError`, a full disk, a full memory or a name too long for a disk gives one line on
    standard error and status 2. Any other error gives its traceback and status 2 (status 1 means
    that a score is below its reference). Ctrl-C gives status 130, and a reader that ends first,
    such as `head`, 141: a shell's for both.
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
        elif isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            size = f" ({error})" if str(error) else ""
            print(f"error: cannot allocate memory{size}: train less at once", file=sys.stderr)
        else:
            traceback.print_exc()
        return 2
    except KeyboardInterrupt:
        return 130


def printable(text: str) -> str:
    """Return `text` with control characters and other unprintable ones escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError` and rejects abbreviated flags."""

    hint = ""
    """What to add where a flag is like none that is known, in place of a list of these."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

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
            advice = nearest(flags[0], self.flags())
            if self.hint and near(flags[0], self.flags()) is None:
                advice = self.hint
            raise UsageError(f"unknown option {flags[0]}{advice}")
        if unknown:
            raise UsageError(f"unexpected argument {unknown[0]!r}")
        return options

    def flags(self) -> list[str]:
        """Return every flag this parser knows."""
        return [flag for action in self._actions for flag in action.option_strings]


def override(
    config: ConfigT,
    flags: Sequence[str],
    *,
    prog: str = "",
    about: str = "",
    beside: Mapping[str, tuple[str, str]] | None = None,
) -> ConfigT:
    """Return `config` with command-line flags such as `--gamma 0.9` applied.

    Args:
        config: the configuration to change.
        flags: the command line.
        prog: the program's name, for `--help`.
        about: what `--help` begins with; empty: what the configuration's class says.
        beside: flags that the caller has read already, with metavar and text, for `--help`.

    Raises:
        UsageError: for an unknown flag (with the nearest known one) or a value that does not fit.
        SystemExit: with status 0 after `--help`.
    """
    beside = beside or {}
    known = {f.name.replace("_", "-") for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    known |= {name.removeprefix("--") for name in beside}
    for flag in flags:
        if flag.startswith("--") and flag != "--help":
            _refuse_unknown(flag.split("=")[0], known)
    if {"-h", "--help"} & set(flags):
        from suite.settings.help import print_help

        print_help(config, prog, about or str(type(config).__doc__), beside)
        sys.exit(0)
    hints, values = get_type_hints(type(config)), dict[str, Any]()
    as_people_write = {"--env-steps": whole, "--seeds": whole_numbers}
    for flag, words in _by_flag(flags):
        name = flag[2:].replace("-", "_")
        is_off = name not in hints
        name = name.removeprefix("no_") if is_off else name
        if words and flag in as_people_write:
            try:
                read = [as_people_write[flag](word) for word in words]
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"argument {flag}: {error}") from None
            words = [str(n) for part in read for n in (part if isinstance(part, list) else [part])]
        if hints[name] is bool and not words:
            values[name] = not is_off
        elif is_off:
            raise UsageError(f"{flag}: expected no value, not {words[0]!r}")
        else:
            values[name] = read_value(flag, hints[name], words)
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise UsageError(str(error)) from None


def _refuse_unknown(flag: str, known: Collection[str]) -> None:
    """Raise a `UsageError` with the nearest known flag for an unknown one."""
    name = flag[2:].replace("_", "-").removeprefix("no-")
    if name not in known:
        advice = nearest("--" + name, ("--" + other for other in known))
        raise UsageError(f"unknown setting {flag}{advice}")


def _by_flag(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the flags of a command line, each with its values."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if flag:
            found.append((flag, [value] if equals else []))
        elif not found:
            raise UsageError(f"unexpected argument {word!r}")
        else:
            found[-1][1].append(word)
    return found


def read_value(where: str, hint: Any, words: Sequence[str]) -> Any:
    """Return what a command line says of a setting, in the setting's type.

    Args:
        where: what its errors begin with: `--gamma`, or `--set: gamma`.
        hint: its type: a number, a switch, a text, a choice, or a tuple of them, or None.
        words: its values; those of a tuple are words of their own, or have commas between them.

    Raises:
        UsageError: with the value and what is allowed.
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
        allowed = KINDS.get((kind, several)) or f"one of {', '.join(map(str, get_args(kind)))}"
        other = ", or none" if is_optional else ""
        raise UsageError(f"{where} is {allowed}{other}, not {','.join(words)!r}") from None
    return tuple(read) if several else read[0]


def flags_of(settings: Mapping[str, str]) -> list[str]:
    """Return settings as flags of an agent's command."""
    return [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]


def whole(text: str) -> int:
    """Return a whole number from a command line: 30000, 30_000, 3e4, 30k or 1.5M.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
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
    """Return whole numbers from a command line: 3, or 1,2,3, or from 1 to 3 as 1-3.

    Raises:
        argparse.ArgumentTypeError: for anything else, and for more than `MANY`.
    """
    numbers: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]+)-([0-9]+)", part)
        if ends and int(ends[2]) - int(ends[1]) >= MANY:
            raise argparse.ArgumentTypeError(f"{text!r} are more than {MANY:,}")
        if ends and int(ends[1]) <= int(ends[2]):
            numbers += range(int(ends[1]), int(ends[2]) + 1)
            continue
        try:
            numbers.append(int(part))
        except ValueError:
            example = "whole numbers such as 1 2 3, 1,2,3 or 1-3"
            raise argparse.ArgumentTypeError(f"needs {example}, not {text!r}") from None
    return numbers


def _suite_of(task: str, presets: Mapping[tuple[str, str], Preset[Any]]) -> str:
    """Return the first suite that has the task, else the first with tasks like it.

    Those are of its family; failing that, they share its kind of action, and neither shows frames.

    Raises:
        UsageError: if there is none: why no preset can train the task, or a suite whose preset can.
    """
    wanted, suites = find_task(task), list(dict.fromkeys(suite for suite, _ in presets))

    def likeness(other: Task) -> int:
        if other.name == task:
            return 3
        if other.family == wanted.family:
            return 2
        return int(other.actions == wanted.actions and "atari" not in (other.family, wanted.family))

    best = {suite: max(likeness(find_task(other)) for other in tasks_in(suite)) for suite in suites}
    nearest_suite = max(best, key=lambda suite: best[suite])  # the first of equals
    if not best[nearest_suite]:
        kinds = {find_task(other).actions for suite in suites for other in tasks_in(suite)}
        if wanted.actions not in kinds:
            those = f"{' or '.join(sorted(kinds))} actions, as in --suite {suites[0]}"
            raise UsageError(f"no preset covers {task}: choose a task with {those}")
        suite = _able_suite(task, presets)
        raise UsageError(f"no preset covers {task}: choose a suite, for example --suite {suite}")
    return nearest_suite


def _able_suite(task: str, presets: Mapping[tuple[str, str], Preset[Any]]) -> str:
    """Return the first suite whose preset takes the task as it is.

    Raises:
        UsageError: what most presets say against the task, if every one refuses it.
    """
    refusals: Counter[str] = Counter()
    for (suite, _), preset in presets.items():
        try:
            dataclasses.replace(preset.config, task=task)
            return suite
        except UsageError as error:
            refusals[str(error)] += 1
    raise UsageError(refusals.most_common(1)[0][0])


RUN_FLAGS = {
    "--task-from": (
        "MODULE:ID",
        "in place of --task: a task that importing this module registers with gymnasium",
    ),
    "--suite": (
        "SUITE",
        "suite whose preset gives the defaults (default: the first that has the task)",
    ),
    "--like": (
        "SOURCE",
        "published source whose preset gives the defaults (default: the suite's own)",
    ),
    "--out": (
        "DIR",
        "folder for the runs, one `seed-<k>` each (default: runs/alone/<agent>/<task>)",
    ),
    "--checkpoint-minutes": (
        "N",
        "time between two checkpoints; a killed command that is started again resumes from the "
        "last one (default: 5; 0: at every update)",
    ),
    "--drop-checkpoints": (
        "",
        "remove the last checkpoint at the end; where it is kept, a larger --env-steps extends a "
        "finished run",
    ),
    "--keep-best": ("", "keep the policy of the best evaluation, too, in `best` of the run"),
    "--plot": ("", "draw return, losses, entropy and temperature while training"),
}
"""Flags of an agent's command beside its settings, with metavar and text."""


@dataclass(frozen=True)
class RunOptions:
    """Options of an agent's command beside its settings: preset, folder, files to keep, drawing."""

    suite: str
    source: str
    out: Path
    checkpoint_minutes: float = 5.0
    drop_checkpoints: bool = False
    keep_best: bool = False
    plot: bool = False


def read_command_line(
    presets: Mapping[tuple[str, str], Preset[ConfigT]],
    argv: Sequence[str],
    *,
    agent: str,
) -> tuple[ConfigT, RunOptions]:
    """Read an agent's own command: `--task T --seeds 1 2 --like SOURCE --out DIR --gamma 0.9 ...`.

    Args:
        presets: the agent's `PRESETS`.
        argv: the arguments after the program's name.
        agent: the agent's name.

    Returns:
        the preset's configuration with every flag applied, and the run's options.

    Raises:
        UsageError: for any mistake in the command line.
    """
    prog = f"python -m agents.{agent}"
    parser = Parser(prog=prog, add_help=False)
    parser.add_argument("--suite")
    parser.add_argument("--like")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--task-from", type=task_from)
    parser.add_argument("--checkpoint-minutes", type=minutes, default=5.0)
    parser.add_argument("--drop-checkpoints", action="store_true")
    parser.add_argument("--keep-best", action="store_true")
    parser.add_argument("--plot", action="store_true")
    options, flags = parser.parse_known_args(argv)
    suites = dict.fromkeys(suite for suite, _ in presets)
    if options.task and options.task_from:
        raise UsageError("give either --task or --task-from")
    task = options.task_from or options.task
    suite = options.suite
    if suite is None:
        suite = next(iter(suites)) if task is None else _suite_of(task, presets)
    source = find_source(presets, suite, options.like)
    if task is None:
        task = str(getattr(presets[suite, source].config, "task", ""))
    _check_simulator(find_task(task))
    fitting = [other for other in suites if task in tasks_in(other)]
    if fitting and suite not in fitting:
        raise UsageError(f"--suite {suite} has no {task}{nearest(fitting[0], fitting)}")
    about = f"Defaults are the settings of {source} on {suite}; --like takes another source's."
    config = override(
        presets[suite, source].config,
        [*flags, "--task", task],
        prog=prog,
        about=about,
        beside=RUN_FLAGS,
    )
    if said := replaced(presets, agent, (suite, source), config):
        print(said, file=sys.stderr)
    out = options.out or Path("runs") / "alone" / agent / folder_of(task)
    kept = (options.checkpoint_minutes, options.drop_checkpoints, options.keep_best, options.plot)
    return config, RunOptions(suite, source, out, *kept)


def task_from(text: str) -> str:
    """Return a task `module:id` from a command line.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    module, _, name = text.partition(":")
    if not (module and name):
        raise argparse.ArgumentTypeError(f"needs module:id, not {text!r}; --task is for our tasks")
    return text


def _check_simulator(task: Task) -> None:
    """Refuse a task that cannot be made here, before a run's folder is."""
    if task.simulator == "gymnasium":
        from suite.envs.gymnasium_pool import describe

        describe(task.simulator_id)


def minutes(text: str) -> float:
    """Return a number of minutes from a command line.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"needs a number of minutes, 0 or more, not {text!r}")
    return number
