"""Curves of any program as one tidy table: CSV, TensorBoard, SB3's files, W&B's exports.

A run is a file, or a folder that holds the files of one run. What a file does not say, such as the
task and the seed, comes from its name, from flags or from the order of the files.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reproduce.gather.references import TooManyCells, read_cells
from reproduce.gather.tables import LARGEST_NUMBER
from suite.base.errors import UsageError
from suite.base.files import LARGEST_TABLE, open_regular
from suite.settings.config import MOST_STEPS

COLUMNS = ("task", "seed", "env_steps", "mean_return")
STEPS = ("env_steps", "global_step", "time/total_timesteps")
"""Ours, CleanRL's and stable-baselines3's names of the number of decisions."""
EPISODES = ("episode_return", "charts/episodic_return")
"""Ours and CleanRL's names of the return of one training episode."""
EVALUATION = "eval/mean_reward"
"""stable-baselines3's name of the mean of an evaluation."""
NAME = re.compile(r"(?P<task>.+?)__.+__(?P<seed>\d+)__\d+")
"""Of a run of CleanRL: task, file, seed, time."""
MONITOR = "*monitor.csv"
EVALUATIONS = "evaluations.npz"
EVENTS = "events.out.tfevents.*"


class Curves(NamedTuple):
    """Curves as they were read."""

    rows: pd.DataFrame
    """`COLUMNS`; whole numbers are int64."""
    rule: str | None
    """What the column `rule` of a grid's table says; None without that column."""
    episodes: bool
    """Whether it is known that some rows are training episodes."""
    name: str


Names = Mapping[str, str]
"""Names of columns in the files, by ours."""
Part = tuple[str, pd.DataFrame]
"""A run's name, and its rows: columns of ours, `episodes` where that is known, and `rule`."""


def read_curves(
    paths: Sequence[Path],
    columns: Names | None = None,
    task: str | None = None,
    *,
    evaluated: bool = False,
) -> Curves:
    """Return the curves of files and folders.

    Args:
        paths: CSV files, and files or folders of runs that TensorBoard or SB3 recorded.
        columns: names of columns in the files (TensorBoard: of values), by ours.
        task: that of all runs, whatever the files say.
        evaluated: whether evaluations are asked for, where SB3 recorded training episodes, too.
    """
    names, owners, tables = columns or {}, dict[tuple[str, int], str](), []
    stated = set[str]()
    for name, rows in (part for path in paths for part in _parts(path, names, evaluated)):
        said = NAME.fullmatch(name)
        if "task" not in rows and said is not None:
            rows = rows.assign(task=said["task"].rpartition("/")[2])
        if task is not None:
            stated |= {*rows.get("task", ())}
            rows = rows.assign(task=task)
        elif "task" not in rows:
            raise UsageError(f"{name} does not say its task: give --task")
        if "seed" not in rows:
            numbers = {
                name: 1 + sum(other == name for other, _ in owners) for name in {*rows["task"]}
            }
            rows = rows.assign(seed=int(said["seed"]) if said else rows["task"].map(numbers))
        for run in set(rows[["task", "seed"]].itertuples(index=False, name=None)):
            if run in owners:
                both = f"{owners[run]} and {name} are both {run[0]}, seed {run[1]}"
                raise UsageError(f"{both}: leave one out")
            owners[run] = name
        tables.append(rows)
    if len(stated) > 1:
        both = " and ".join(sorted(stated)[:2])
        raise UsageError(f"the files hold runs of {both}: leave out --task")
    table, name = pd.concat(tables, ignore_index=True), ", ".join(map(str, paths))
    rules = table["rule"].fillna("").unique() if "rule" in table else [""]
    if len(rules) > 1:
        both = " and ".join(map(repr, rules[:2]))
        raise UsageError(f"{name}: its column rule holds {both}: judge each rule by its own file")
    types: Any = {"task": str, "seed": np.int64, "env_steps": np.int64}
    rows = table[list(COLUMNS)].astype(types)
    return Curves(rows, rules[0] or None, bool(table["episodes"].any()), name)


def _refuse_lacking(path: Path, kept: Sequence[Path]) -> None:
    """Refuse monitored runs without evaluations beside such with some; a run is a folder of `path`.

    One that stopped before its first evaluation would be left out unseen.
    """
    holding, monitored = (
        {file.relative_to(path).parts[:-1][:1] for file in files}
        for files in (kept, path.rglob(MONITOR))
    )
    if (lacking := monitored - holding) and lacking < monitored:
        where = f"{path.joinpath(*min(lacking))} holds no {EVALUATIONS}"
        raise UsageError(f"{where}: finish that run, or name the folders that hold evaluations")


def _parts(path: Path, columns: Names, evaluated: bool) -> Iterator[Part]:
    kept = [path] if path.suffix == ".npz" else sorted(path.rglob(EVALUATIONS)) * evaluated
    if kept or not path.is_dir():
        if kept and not evaluated:
            raise UsageError(f"{path} holds evaluations: give --like a source that judges by them")
        if kept:
            _refuse_lacking(path, kept)
            yield from (_evaluations(file, columns) for file in kept)
        elif path.match(MONITOR):
            siblings = filter(_is_environment, path.parent.glob(MONITOR))
            if _is_environment(path) and len([*siblings]) > 1:
                raise UsageError(f"{path} is one environment of a run: name its folder")
            yield _monitors([path], path.absolute().parent.name, columns)
        else:
            yield from _csv(path, columns, evaluated)
        return
    folders = {file.parent for kind in (MONITOR, EVENTS) for file in path.rglob(kind)}
    if not folders:
        more = f" and no {EVALUATIONS}" if evaluated else ""
        raise UsageError(f"{path} holds no {EVENTS} and no {MONITOR}{more}: name a CSV file")
    for folder in sorted(folders):
        files = sorted(folder.glob(MONITOR))
        envs = [file for file in files if _is_environment(file)]
        others = [file for file in files if file not in envs]
        if not files:
            yield _events(folder, columns, evaluated)
        if envs:
            yield _monitors(envs, folder.name, columns)
        for file in others:
            own = folder.name if len(files) == 1 else file.name.partition(".")[0]
            yield _monitors([file], own, columns)


def _is_environment(file: Path) -> bool:
    """Return whether a monitor is of one environment of a run, as SB3's `make_vec_env` names it."""
    return file.name.partition(".")[0].isdecimal()


def _monitors(files: Sequence[Path], name: str, columns: Names) -> Part:
    """Return the training episodes of one run, whose environments, a file each, step together."""
    _refuse_names(files[0], columns)
    tables, tasks = [], set[str]()
    for file in files:
        first, _, rest = _text(file).partition("\n")
        try:
            env_id = str(json.loads(first.removeprefix("#"))["env_id"])
            table = pd.read_csv(io.StringIO(rest), usecols=["r", "l"], dtype=np.float64)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is no file of SB3's Monitor: {error}") from None
        if "NoFrameskip" in env_id or env_id.startswith("ALE/"):
            raise UsageError(
                f"{file} counts frames, not decisions: judge TensorBoard's or a CSV file"
            )
        tasks.add(env_id.rpartition("/")[2])
        steps = table["l"].cumsum() * len(files)
        tables.append(pd.DataFrame({"env_steps": steps, "mean_return": table["r"]}))
    rows = pd.concat(tables).sort_values("env_steps", kind="stable").assign(episodes=True)
    if len(tasks) == 1 and tasks != {"None"}:
        rows = rows.assign(task=tasks.pop())
    return name, _checked(files[0].parent, rows.reset_index(drop=True))


def _refuse_names(path: Path, columns: Names) -> None:
    if columns:
        raise UsageError(f"{path} has the columns that SB3 writes: leave out --columns")


def _evaluations(path: Path, columns: Names) -> Part:
    """Return what SB3's `EvalCallback` kept: steps `[E]`, and returns `[E, episodes]`."""
    _refuse_names(path, columns)
    content = io.BytesIO(_bytes(path))
    try:
        with np.load(content, allow_pickle=False) as arrays:
            if sum(each.file_size for each in arrays.zip.infolist()) > LARGEST_TABLE:
                raise ValueError
            means = arrays["results"].mean(1)
            rows = pd.DataFrame({"env_steps": arrays["timesteps"], "mean_return": means})
    except Exception:  # whatever numpy and zipfile raise where a file is none of theirs
        needed = "it needs arrays of numbers, timesteps and results, of at most 256 MiB"
        raise UsageError(f"{path} is no file of SB3's EvalCallback: {needed}") from None
    return path.parent.name or path.name, _checked(path, rows.assign(episodes=False))


def _events(folder: Path, columns: Names, evaluated: bool) -> Part:
    """Return the values of one name that TensorBoard recorded for a run."""
    try:
        reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError:
        raise UsageError(f"{folder} needs pip install 'encore-rl[tracking]'") from None
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    name = _first(folder, "mean_return", columns, _returns(evaluated), events.Tags()["scalars"])
    values = [(event.step, event.value) for event in events.Scalars(name)]
    rows = pd.DataFrame(values, columns=["env_steps", "mean_return"])
    return folder.name, _checked(folder, rows.assign(episodes=name in EPISODES))


def _csv(path: Path, columns: Names, evaluated: bool) -> Iterator[Part]:
    """Yield the runs of a CSV file: one table, or an export of W&B with a column for each run."""
    needed = f"it needs {', '.join(COLUMNS)}"
    text = _text(path)
    header, _, _ = text.partition("\n")
    if ";" in header and "," not in header:
        raise UsageError(f"{path} separates columns by ';': save it with commas")
    try:
        table = read_cells(io.StringIO(text))
    except pd.errors.EmptyDataError:
        raise UsageError(f"{path} is empty: {needed}") from None
    except TooManyCells:
        fix = f"name every column, row names too ({needed})"
        raise UsageError(f"{path}: its lines have more cells than its header: {fix}") from None
    except ValueError as error:
        why = str(error).splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"{path} is not a CSV table ({why}): {needed}") from None
    steps = _first(path, "env_steps", columns, STEPS, table)
    usual = [columns["mean_return"]] if "mean_return" in columns else _returns(evaluated)
    ends = tuple(f" - {name}" for name in usual)
    exported = [column for column in table if str(column).endswith(ends)]
    if exported and not set(usual) & set(table):
        for column in exported:
            name, _, value = str(column).rpartition(" - ")
            rows = table[[steps, column]].set_axis(["env_steps", "mean_return"], axis=1)
            yield name, _checked(path, rows.dropna().assign(episodes=value in EPISODES))
        return
    value = _first(path, "mean_return", columns, usual, table)
    rows = {"env_steps": table[steps], "mean_return": table[value]}
    for column in ("task", "seed"):
        name = columns.get(column, column)
        if name in table:
            rows[column] = table[name]
        elif column in columns:
            raise UsageError(f"{path} has no column {name}: it has {', '.join(map(str, table))}")
    if "rule" in table:
        rows["rule"] = table["rule"].fillna("").astype(str)
    read = pd.DataFrame(rows).assign(episodes=value in EPISODES)
    if value != "mean_return":  # other values are logged in rows of their own
        read = read.dropna(subset="mean_return").reset_index(drop=True)
    yield path.stem, _checked(path, read)


def _returns(evaluated: bool) -> Sequence[str]:
    """Return the usual names of returns: those of evaluations only where these are asked for."""
    return ("mean_return", *((EVALUATION,) if evaluated else ()), *EPISODES)


def _first(path: Path, column: str, columns: Names, usual: Sequence[str], known: Any) -> str:
    """Return the name of a column that is asked for, or the first of the usual ones in a file."""
    usual = [columns[column]] if column in columns else usual
    for name in usual:
        if name in known:
            return name
    has = ", ".join(map(str, known)) or "nothing"
    flag = f"--columns {column}=NAME"
    raise UsageError(f"{path} has no {' or '.join(usual)}: give {flag}; it has {has}")


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8: save it as UTF-8") from None


def _bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:  # a pipe, or a device, might never end
            return file.read()
    except OSError as error:
        raise UsageError(f"unreadable {path}: {error.strerror or error}") from None


def _checked(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose cells are what their columns must be; refuse the first that is not."""
    if table.empty:
        raise UsageError(f"{path} has no row")
    for column in (name for name in COLUMNS if name in table):
        cells = table[column]
        numbers = pd.to_numeric(cells.astype(str), errors="coerce").astype(np.float64)
        right = numbers.between(-LARGEST_NUMBER, LARGEST_NUMBER)
        must = f"a number from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"
        if column == "task":
            right, must = cells.notna(), "a task's name"
        elif column != "mean_return":
            right = (np.floor(numbers) == numbers) & numbers.between(0, MOST_STEPS)
            must = f"a whole number from 0 to {MOST_STEPS:,}"
        if not right.all():
            row = int(right.to_numpy().argmin())
            cell = "missing" if cells.isna().iloc[row] else repr(str(cells.iloc[row])[:40])
            raise UsageError(f"{path}, row {row + 1}: {column} is {cell}: give {must}")
    return table
