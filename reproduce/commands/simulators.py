"""`simulators`: how fast engines step environments, beside each other and beside trainings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from reproduce.commands import flags
from reproduce.plan.resources import check_writable
from reproduce.run.view import make_table, say
from reproduce.simulators.engines import ENGINES
from reproduce.words import counted
from suite.base.code import revision
from suite.base.errors import UsageError
from suite.base.files import read_json, write_atomically, write_json
from suite.base.hardware import machine, num_cores, processor, versions
from suite.envs.tasks import find_suite, find_task
from suite.settings.command_line import whole, whole_numbers

TASKS = ("CartPole-v1", "Pong-v5", "HalfCheetah-v4")
MODES = ("random", "policy", "training")
OUT = Path("runs/simulators")
MORE = ("mujoco", "ale-py", "opencv-python-headless", "stable-baselines3")
"""Packages of engines, beside those that every run names."""
MOST_SECONDS = 3600


def main(argv: Sequence[str]) -> int:
    """Measure engines in turns, and write and show the table; 2 if nothing could be measured."""
    parser = flags.make_parser("simulators")
    parser.add_argument("suite", nargs="?", help="all tasks of a suite")
    parser.add_argument("--tasks", nargs="+", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--num-envs", type=whole_numbers, default=[1, 8, 64], metavar="N,N")
    parser.add_argument("--threads", type=whole_numbers, default=[1], metavar="N,N")
    several: Any = {"nargs": "+", "choices": ENGINES, "metavar": "ENGINE"}
    text = f"default: {', '.join(ENGINES)}"
    parser.add_argument("--engines", default=[*ENGINES], help=text, **several)
    several = {"nargs": "+", "choices": MODES, "metavar": "MODE"}
    parser.add_argument("--modes", default=["random", "policy"], help=" ".join(MODES), **several)
    parser.add_argument("--turns", type=whole, default=3, help="of each engine (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: 1)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}, by machine")
    parser.add_argument("--busy", action="store_true", help="measure beside other programs, too")
    text = "compare what engines give, not their speeds: 8 environments, one thread"
    parser.add_argument("--same-work", action="store_true", help=text)
    options = parser.parse(argv)
    if options.suite and options.tasks:
        raise UsageError("name a suite, or --tasks")
    tasks = options.tasks or (find_suite(options.suite) if options.suite else TASKS)
    for name in tasks:
        find_task(name)
    times_reports = "encore" in options.engines and {*options.modes} > {"training"}
    if "training" in options.modes and not times_reports:
        raise UsageError(
            "--modes training needs another mode and the engine encore, to time reports"
        )
    if min(*options.num_envs, *options.threads, options.turns) < 1:
        raise UsageError("--num-envs, --threads and --turns must be at least 1")
    if max(options.threads) > num_cores():
        raise UsageError(f"--threads: this machine lets us use {num_cores()} cores")
    if not 0 < options.seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds must be above 0, and at most {MOST_SECONDS}")
    speeds = ("num_envs", "threads", "modes", "turns", "seconds", "busy")
    given = [name for name in speeds if getattr(options, name) != parser.get_default(name)]
    if options.same_work and given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--same-work measures no speeds: leave out {named}")
    check_writable(options.out, "--out")
    facts = processor()  # its generation and its cores name the folder
    vendor = (facts["vendor_id"] or "cpu").lower()
    name = f"{vendor}-{facts['cpu family']}-{facts['model']}-{num_cores()}-cores"
    work = _compare_work if options.same_work else _measure
    return work(tasks, options, options.out / name, argv)


def _tell(folder: Path, what: str, argv: Sequence[str], **facts: Any) -> None:
    """Add to `machine.json` by which command, code and packages rows of a table were measured."""
    path = folder / "machine.json"
    try:
        known = read_json(path) if path.exists() else {}
        made = {"command": " ".join(argv), **facts, "versions": versions(MORE), **revision()}
        known = {**known, "machine": machine(), what: [*known.get(what, []), made]}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"unreadable {path} ({error}): delete it") from None
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, known)


def _compare_work(tasks: Sequence[str], options: Any, folder: Path, argv: Sequence[str]) -> int:
    from reproduce.simulators.same_work import COLUMNS, differences, same_work

    path, rows = folder / "same_work.csv", dict[tuple[str, str], dict[str, Any]]()
    if path.exists():
        try:
            table = pd.read_csv(path, dtype=dict.fromkeys(("obs", "actions", "autoreset"), str))
            stored: Any = table.replace({float("nan"): None}).to_dict("records")
            rows = {(row["task"], row["engine"]): row for row in stored}
        except (ValueError, KeyError) as error:
            raise UsageError(f"unreadable {path}: {error}") from None
    any_played = False
    for task in tasks:
        for row in same_work(task, options.engines):
            key, has_played = (task, row["engine"]), row["num_episodes"] is not None
            if has_played or not rows.get(key, row)["num_episodes"]:
                rows[key] = row  # an engine that is missing now keeps its row
            any_played |= has_played
            said = "compared" if has_played else f"not compared: {row['differs']}"
            print(f"{task}: {row['engine']}: {said}", flush=True)
        played = [row for row in rows.values() if row["task"] == task and row["num_episodes"]]
        for row in played:
            row["differs"] = ", ".join(differences(row, played[0]))
            said = f"differs: {row['differs']}" if row["differs"] else "the same"
            print(f"{task}: {row['engine']}, beside {played[0]['engine']}: {said}", flush=True)
        frame = pd.DataFrame(rows.values(), columns=pd.Index(COLUMNS))
        content = frame.to_csv(index=False, float_format="%.5g", lineterminator="\n")
        if task == tasks[0]:
            _tell(folder, "same_work", argv)
        write_atomically(path, content.encode())
    print(path)
    return 0 if any_played else 2


def _measure(tasks: Sequence[str], options: Any, folder: Path, argv: Sequence[str]) -> int:
    from reproduce.simulators import claims, figures, measure

    sizes = [(n, k) for n in options.num_envs for k in options.threads if k <= n]
    if not sizes:
        raise UsageError("--threads: a thread steps one environment or more: raise --num-envs")
    busy = measure.busy_cores()
    if busy > measure.MOST_BUSY and not options.busy:
        raise UsageError(f"{busy:.1f} cores are at work: wait until nothing runs, or --busy")
    _tell(folder, "turns", argv, busy_cores=round(busy, 2))
    path, console, any_turn = folder / "turns.csv", flags.make_console(), False
    for cell in (measure.Cell(task, *size) for task in tasks for size in sizes):
        found = list[dict[str, Any]]()
        turns = (cell, options.engines, options.modes, options.turns, options.seconds)
        for row in measure.measure(*turns):
            found.append(row)
            if row["note"]:
                say(console, f"{cell.task}, {cell.num_envs}: {row['engine']}: {row['note']}")
            measure.write(found, path)
        if any(row["turn"] for row in found):
            any_turn = True
            console.print(table_of(measure.medians(pd.DataFrame(found))))
    table = measure.read(path)
    for claim in claims.judge(table[table["task"].isin(tasks)], num_cores()):
        if claim["here"]:
            said = f"{claim['task']}, {claim['beside']}: claimed {claim['ratio']:g}, "
            said += f"measured {claim['here']}: {claim['outcome']}"
            say(console, f"{claim['says']}: {said}")
    if any_turn:
        figures.draw(table, folder)
    print(path)
    return 0 if any_turn else 2


def table_of(medians: pd.DataFrame) -> Table:
    """Return the table of a cell."""
    first = medians.iloc[0]
    title = f"{first.task}, {first.num_envs} environments, {counted(first.num_threads, 'thread')}"
    columns = ("engine", "actions", "steps/s", "range", "step, ms", "99 %", "cores", "MiB")
    table = make_table(*columns, title=title)
    for row in medians.itertuples():
        numbers = [f"{row.env_steps_per_second:,.0f}", f"{row.slowest:,.0f} to {row.fastest:,.0f}"]
        known = ((row.latency_median_ms, ".3f"), (row.latency_p99_ms, ".3f"), (row.cores, ".1f"))
        for value, form in (*known, (row.memory_mib, ",.0f")):
            numbers.append("" if pd.isna(value) else format(value, form))  # type: ignore[arg-type]
        table.add_row(str(row.engine), str(row.mode), *numbers)
    return table
