"""`verify AGENT [RUN]`: make the beginning of a recorded run again and compare it byte by byte."""

import importlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import agents
from reproduce.commands import flags
from reproduce.plan.presets import PUBLISHED, check_agent
from reproduce.plan.status import number_of, recorded_processor, records_below
from reproduce.run.log import last_lines
from reproduce.run.processes import AgentProcess
from suite.base import code, hardware
from suite.base.errors import UsageError
from suite.base.files import DAMAGED, read_plain
from suite.envs.tasks import refuse_unimported
from suite.record.reading import read_record
from suite.record.recorder import Recorder
from suite.settings.older import todays_settings

SECONDS = 20.0
TABLES = ("episodes.csv", "evaluations.csv", "updates.csv")
"""Files that the same code and settings give byte by byte, on the same processor."""
DECISIVE = ("torch", "numpy", "envpool")
"""Packages whose version decides the bytes, beside the code and the processor."""
LONGEST = 60
"""Times the asked seconds after which a run that has learned nothing is given up."""


def default_run(agent: str) -> Path | None:
    """Return the quickest of an agent's published runs of today's behaviour; None without any.

    Runs that were made on this processor, with these packages, come first.
    """
    check_agent(agent)
    found, today = list[tuple[bool, float, Path]](), code.behaviour(agent)
    if today is None:
        return None
    for run, record in records_below(PUBLISHED, f"{agent}-*/*/*/seed-*"):
        if record["status"] == "finished" and number_of(record) == today:
            found.append((bool(elsewhere(record)), float(record["wall_seconds"]), run))
    return min(found)[-1] if found else None


def verify(agent: str, run: Path, seconds: float, task_from: str | None = None) -> tuple[int, str]:
    """Make the beginning of a run again with today's code, and compare its rows.

    Returns:
        the exit status, 1 if a row differs where none may, and the result in a line.
    """
    check_agent(agent)
    record = read_record(run)
    if record is None:
        raise UsageError(f"{run} is not a run's folder: it holds no record")
    if record["status"] == "damaged":
        raise UsageError(f"{run} is damaged: it {record['error']}")
    task = str(record["config"].get("task", ""))
    refuse_unimported(task, "run.json")
    flags.refuse_other_task(run, task, task_from)
    trained = record.get("control") or record.get("agent", agent)  # None before a run began
    if (trained, record["status"]) != (agent, "finished"):
        found = f"a run of {trained} that is {record['status']}"
        raise UsageError(f"{run} is {found}: name a finished run of {agent}")
    with tempfile.TemporaryDirectory(prefix="encore-verify-") as folder:
        ours = _make_again(record, Path(folder), seconds)
        num_rows, difference = compare(ours, run)
    if not difference:
        return 0, f"ok {run}: the first {num_rows:,} rows are today's code's, byte by byte"
    if there := elsewhere(record):
        here = hardware.machine()["processor"]
        why = f"it was {there}, where rounding differs from that on {here}"
        return 0, f"not decided {run}: {why}; {difference}"
    return 1, f"DIFFERS {run}: {difference}"


def compare(ours: Path, theirs: Path) -> tuple[int, str]:
    """Compare the rows of two runs of which the first was cut.

    Returns:
        the number of rows compared, and the first difference in words; empty if there is none.
    """
    num_rows = 0
    for name in TABLES:
        first, second = _lines(ours / name), _lines(theirs / name)
        if len(first) > len(second):
            return num_rows, f"{name}: it has {len(second)} lines, today's {len(first)} or more"
        for number, (line, other) in enumerate(zip(first, second, strict=False)):
            if number == 0 and line.count(b",") == other.count(b","):
                continue  # a column may have been renamed
            if line != other:
                there, today = other.decode(), line.decode()
                return num_rows, f"{name}, line {number + 1}: {there} there, {today} today"
        num_rows += max(0, len(first) - 1)
    return num_rows, ""


def _make_again(record: Mapping[str, Any], folder: Path, seconds: float) -> Path:
    """Train until the time is over and it has learned; return the folder of the record's seed.

    It is given up after `LONGEST` times the time.
    """
    order, out, log = folder / "order.json", folder / "today", folder / "today.log"
    order.write_text(json.dumps({"record": record, "out": str(out)}))
    command = (sys.executable, "-m", "reproduce.commands.verify", str(order))
    run = out / f"seed-{record['seed']}"
    process, started = AgentProcess(command, log), time.monotonic()
    try:
        end, passed, has_learned = None, 0.0, False
        while end is None and passed <= (seconds if has_learned else LONGEST * seconds):
            time.sleep(0.1)
            end, passed = process.poll(), time.monotonic() - started
            has_learned = len(_lines(run / "updates.csv")) > 1
    finally:
        process.kill()
    if end is not None and end.status:
        said = [line for line in last_lines(log) if line.strip()]
        raise UsageError(f"it cannot be made again: {said[-1] if said else 'no output'}")
    if not has_learned:
        raise UsageError("it learned nothing in this time: give it more --seconds")
    return run


def elsewhere(record: Mapping[str, Any]) -> str:
    """Return what of this machine differs from the record's; empty if its bytes are expected."""
    device, machine = record["config"]["device"], record["machine"]
    ours = {**hardware.versions(), **hardware.machine(device)}
    theirs = {**record["versions"], **machine}
    there = recorded_processor(machine) or f"some {machine.get('cpu')}"
    differs = [f"recorded on {there}"] if there != ours["processor"] else []
    names = (*DECISIVE, *(() if device == "cpu" else ("gpu", "gpu_driver")))
    differs += [f"with {n} {theirs.get(n)}" for n in names if theirs.get(n) != ours.get(n)]
    return ", ".join(differs)


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file, or its compressed form; none of one that cannot be read."""
    try:
        content = read_plain(path)
    except (OSError, *DAMAGED):
        return []
    return content[: content.rfind(b"\n") + 1].splitlines()


def main(argv: Sequence[str]) -> int:
    """Make the beginning of a recorded run again; the exit status is 1 if it differs."""
    parser = flags.make_parser("verify", "--task-from")
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    text = "default: the quickest published one"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help=text)
    text = f"how long to train, or until it has learned (default: {SECONDS:g})"
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help=text)
    options = parser.parse(argv)
    if not 0 < options.seconds < math.inf:
        raise UsageError(f"--seconds must be above 0, not {options.seconds}")
    run = options.run or default_run(options.agent)
    if run is None:
        print(f"no published run of {options.agent} has today's number: name a RUN")
        return 0
    status, said = verify(options.agent, run, options.seconds, options.task_from)
    print(said)
    return status


def train_again(record: Mapping[str, Any], out: str) -> int:
    """Train the runs of a record's process."""
    agent = importlib.import_module(f"agents.{record['agent']}")
    settings = todays_settings(agent.Config, record["config"])
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    run = {key: record[key] for key in ("agent", "suite", "source", "task", "config", "command")}
    config = agent.Config(**values)
    recorder = Recorder(Path(out), run, config.seeds, checkpoint_seconds=math.inf)
    agent.train(config, recorder)
    return recorder.finish()


if __name__ == "__main__":
    sys.exit(train_again(**json.loads(Path(sys.argv[1]).read_bytes())))
