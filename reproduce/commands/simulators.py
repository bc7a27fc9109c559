"""`simulators`: how fast engines step environments, beside each other and beside a training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from reproduce.commands import flags
from reproduce.run.view import say
from reproduce.simulators.engines import ENGINES
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.base.files import read_json, write_atomically, write_json
from suite.base.hardware import machine, num_cores, processor, revision, versions
from suite.envs.tasks import find_suite, find_task
from suite.settings.command_line import whole, whole_numbers

TASKS = ("CartPole-v1", "Pong-v5", "HalfCheetah-v4")
MODES = ("random", "policy", "training")
OUT = Path("runs/simulators")
MORE = ("mujoco", "ale-py", "opencv-python-headless", "stable-baselines3")
"""Packages of engines, beside those that every run names."""


def main(argv: Sequence[str]) -> int:
    """Measure engines in turns, and write and show the table; 2 if nothing could be measured."""
    parser = flags.make_parser("simulators")
    parser.add_argument("suite", nargs="?", help="all tasks of a suite")
    parser.add_argument("--tasks", nargs="+", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--num-envs", type=whole_numbers, default=[1, 8, 64], metavar="N,N")
    parser.add_argument("--threads", type=whole_numbers, default=[1], metavar="N,N")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), help="default: all")
    parser.add_argument("--modes", nargs="+", default=["random", "policy"], help=" ".join(MODES))
    parser.add_argument("--turns", type=whole, default=3, help="of each engine (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: 1)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}, by machine")
    parser.add_argument("--busy", action="store_true", help="measure beside other programs, too")
    text = "compare what engines give, not their speeds"
    parser.add_argument("--same-work", action="store_true", help=text)
    options = parser.parse(argv)
    tasks = options.tasks or (find_suite(options.suite) if options.suite else TASKS)
    for name in tasks:
        find_task(name)
    for what, names, known in (
        ("engine", options.engines, ENGINES),
        ("mode", options.modes, MODES),
    ):
        for name in set(names) - set(known):
            raise UsageError(f"no {what} {name!r}{nearest(name, known)}")
    if min(*options.num_envs, *options.threads, options.turns) < 1:
        raise UsageError("--num-envs, --threads and --turns must be at least 1")
    if max(options.threads) > num_cores():
        raise UsageError(f"--threads: this machine lets us use {num_cores()} cores")
    if options.seconds <= 0:
        raise UsageError(f"--seconds must be above 0, not {options.seconds}")
    facts = processor()  # its generation and its cores name the folder
    vendor = (facts["vendor_id"] or "cpu").lower()
    name = f"{vendor}-{facts['cpu family']}-{facts['model']}-{num_cores()}-cores"
    work = _compare_work if options.same_work else _measure
    return work(tasks, options, options.out / name, argv)


def _tell(folder: Path, **facts: Any) -> None:
    path = folder / "machine.json"
    known = read_json(path) if path.exists() else {}
    known |= {"machine": machine(), "versions": versions(MORE), **revision()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, known | facts)


def _compare_work(tasks: Sequence[str], options: Any, folder: Path, argv: Sequence[str]) -> int:
    from reproduce.simulators.same_work import COLUMNS, same_work

    rows, path = [], folder / "same_work.csv"
    for task in tasks:
        for row in same_work(task, options.engines):
            rows.append(row)
            said = f"differs: {row['differs']}" if row["differs"] else "the same"
            if row["num_episodes"] is None:  # it did not play
                said = f"not compared: {row['differs']}"
            print(f"{task}: {row['engine']}: {said}", flush=True)
    _tell(folder, same_work=" ".join(argv))
    frame = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    if path.exists():  # what was not compared now stays
        both = pd.concat([pd.read_csv(path), frame])
        frame = both.drop_duplicates(["task", "engine"], keep="last")
    content = frame.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    write_atomically(path, content.encode())
    print(path)
    return 0 if any(row["num_episodes"] for row in rows) else 2


def _measure(tasks: Sequence[str], options: Any, folder: Path, argv: Sequence[str]) -> int:
    from reproduce.simulators import claims, figures, measure

    sizes = [(n, k) for n in options.num_envs for k in options.threads if k <= n]
    if not sizes:
        raise UsageError("--threads: a thread steps one environment or more: raise --num-envs")
    busy = measure.busy_cores()
    if busy > measure.MOST_BUSY and not options.busy:
        raise UsageError(f"{busy:.1f} cores are at work: wait until nothing runs, or --busy")
    _tell(folder, busy_cores=round(busy, 2), turns=" ".join(argv))
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
        if pd.isna(claim["found"]):
            continue
        said = f"{claim['task']}, {claim['beside']}: claimed {claim['ratio']:g}, "
        said += f"measured {claim['found']:.2f} [{claim['low']:.2f}, {claim['high']:.2f}]"
        say(console, f"{claim['says']}: {said}: {claim['outcome']}")
    if any_turn:
        figures.draw(table, folder)
    print(path)
    return 0 if any_turn else 2


def table_of(medians: pd.DataFrame) -> Table:
    """Return the table of a cell."""
    first = medians.iloc[0]
    title = f"{first.task}, {first.num_envs} environments, {counted(first.num_threads, 'thread')}"
    columns = ("engine", "actions", "steps/s", "range", "step, ms", "99 %", "cores", "MiB")
    table = flags.make_table(*columns, title=title)
    for row in medians.itertuples():
        numbers = [f"{row.env_steps_per_second:,.0f}", f"{row.slowest:,.0f} to {row.fastest:,.0f}"]
        known = ((row.latency_median_ms, ".3f"), (row.latency_p99_ms, ".3f"), (row.cores, ".1f"))
        for value, form in (*known, (row.memory_mib, ",.0f")):
            numbers.append("" if pd.isna(value) else format(value, form))  # type: ignore[arg-type]
        table.add_row(str(row.engine), str(row.mode), *numbers)
    return table
