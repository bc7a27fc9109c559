"""`verify AGENT [RUN]`: make the beginning of a recorded run again and compare it byte by byte."""

import importlib
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import agents
from reproduce import ROOT
from reproduce.commands import flags
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.origin import commit_of, number_of
from reproduce.plan.presets import check_agent
from reproduce.run.log import last_lines
from reproduce.run.processes import AgentProcess
from reproduce.speed.pair import worktree
from suite.base import hardware
from suite.base.errors import UsageError
from suite.base.files import DAMAGED, read_plain
from suite.record.recorder import Recorder
from suite.record.records import read_record
from suite.settings.recorded import recorded_settings

SECONDS = 20.0
TABLES = ("episodes.csv", "evaluations.csv", "updates.csv")
"""Files that the same code and settings give byte by byte, on the same processor."""
DECISIVE = ("torch", "numpy", "envpool")
"""Packages whose version decides the bytes, beside the code and the processor."""
LEARNED = 1
"""Rows of `updates.csv` to wait for, however long: with no more, nothing was learned."""
LONGEST = 20
"""Times the asked seconds after which a run without such a row is given up."""


class Outcome(NamedTuple):
    """Result of a comparison, in one line."""

    same: bool
    text: str


def default_run(agent: str) -> Path | None:
    """Return the quickest of an agent's published runs of today's behaviour; None without any.

    Runs of committed code come first: the others can be verified on their own processor alone.

    Raises:
        UsageError: for an unknown agent.
    """
    check_agent(agent)
    found: list[tuple[bool, float, Path]] = []
    number = hardware.behaviour(agent)
    for path in PUBLISHED.glob(f"{agent}-*/*/*/seed-*/run.json"):
        record = read_record(path.parent)
        if not record or record["status"] != "finished":
            continue
        if number is not None and number_of(record) == number:
            found.append((record["dirty"] is not False, float(record["wall_seconds"]), path.parent))
    return min(found)[-1] if found else None


def verify(agent: str, run: Path, seconds: float = SECONDS) -> Outcome:
    """Make the beginning of a run again with today's code, and compare its rows.

    On the processor and with the packages of the record, the rows must be the record's. Elsewhere
    they may also be those that the record's commit makes here.

    Args:
        agent: the agent's name.
        run: the run's folder.
        seconds: how long to train; longer if nothing was learned by then.

    Raises:
        UsageError: if it is not a finished run of this agent, or cannot be made again here.
    """
    record = _finished(agent, run)
    with tempfile.TemporaryDirectory(prefix="encore-verify-") as folder:
        ours = _make_again(record, Path(folder), seconds)
        num_rows, difference = compare(ours, run)
        if not difference:
            text = f"the first {num_rows:,} rows are today's code's, byte by byte"
            return Outcome(True, f"{run}: {text}")
        elsewhere = _elsewhere(record)
        there = Path(folder) / "commit"
        there.mkdir()
        theirs = _make_at_commit(record, there, seconds)
        num_rows, unlike_commit = compare(ours, theirs, both_cut=True)
        commit = f"commit {record['commit'][:7]}"
    if unlike_commit:
        return Outcome(False, f"{run}: today's code differs from {commit} in {unlike_commit}")
    if not elsewhere:
        return Outcome(
            False,
            f"{run}: differs from today's code in {difference}; its own {commit} makes today's "
            "rows, too: the record was changed, or made on another processor of this name",
        )
    text = f"the first {num_rows:,} rows are those of its {commit} here ({elsewhere})"
    return Outcome(True, f"{run}: {text}")


def compare(ours: Path, theirs: Path, *, both_cut: bool = False) -> tuple[int, str]:
    """Compare the rows of two runs of which the first was cut.

    Args:
        ours: folder of the one that was cut.
        theirs: folder of the other.
        both_cut: whether the other was cut, too, somewhere else.

    Returns:
        the number of rows compared, and the first difference in words; empty if there is none.
    """
    num_rows = 0
    for name in TABLES:
        first, second = _lines(ours / name), _lines(theirs / name)
        if len(first) > len(second) and not both_cut:
            return num_rows, f"{name}: it has {len(second)} lines, today's {len(first)} or more"
        for number, (line, other) in enumerate(zip(first, second, strict=False)):
            if number == 0 and line.count(b",") == other.count(b","):
                continue  # a column may have been renamed
            if line != other:
                return num_rows, _describe(name, number, first[0], line, other)
        num_rows += max(0, min(len(first), len(second)) - 1)
    return num_rows, ""


def _finished(agent: str, run: Path) -> dict[str, Any]:
    record = read_record(run)
    if record is None:
        raise UsageError(f"{run} is not a run's folder: it holds no record")
    if record["status"] == "damaged":
        raise UsageError(f"{run} is damaged: it {record['error']}")
    if record["agent"] != agent:
        raise UsageError(f"{run} is a run of {record['agent']}, not of {agent}")
    if record["status"] != "finished":
        raise UsageError(f"{run} is {record['status']}: only a finished run can be verified")
    check_agent(agent)
    hardware.find_device(record["config"]["device"])
    return record


def _make_again(record: Mapping[str, Any], folder: Path, seconds: float) -> Path:
    """Train with today's code and return the folder of the record's seed."""
    order = folder / "order.json"
    order.write_text(json.dumps({"record": record, "out": str(folder / "today")}))
    command = (sys.executable, "-m", "reproduce.commands.verify", str(order))
    return _run(command, ROOT, folder / "today", record, seconds)


def _make_at_commit(record: Mapping[str, Any], folder: Path, seconds: float) -> Path:
    """Run the record's own command with the code of its commit; return its seed's folder.

    Raises:
        UsageError: if it has none.
    """
    if not commit_of(record) or record["dirty"]:
        raise UsageError("its code was never committed: it can only be verified where it was made")
    words = shlex.split(str(record["command"]))
    if words[:3] != ["python", "-m", f"agents.{record['agent']}"] or "--out" not in words:
        raise UsageError(f"its command cannot be run again: {record['command']}")
    words[words.index("--out") + 1] = str(folder)
    if "--seeds" in words:
        start = words.index("--seeds") + 1
        flags = (i for i in range(start, len(words)) if words[i].startswith("--"))
        seeds = [str(seed) for seed in record["config"]["seeds"]]
        words[start : next(flags, len(words))] = seeds
    with worktree(commit_of(record)) as tree:
        return _run((sys.executable, *words[1:]), tree, folder, record, seconds)


def _run(
    command: Sequence[str], tree: Path, out: Path, record: Mapping[str, Any], seconds: float
) -> Path:
    """Run a command until it ends, or the time is over and it has learned.

    Raises:
        UsageError: if it fails, with its last line.
    """
    folder, log = out / f"seed-{record['seed']}", out.with_suffix(".log")
    process, started = AgentProcess(command, log, tree), time.monotonic()
    try:
        end = None
        while end is None:
            time.sleep(0.1)
            end, passed = process.poll(), time.monotonic() - started
            has_learned = len(_lines(folder / "updates.csv")) > LEARNED
            if (passed > seconds and has_learned) or passed > LONGEST * seconds:
                break
    finally:
        process.kill()
    if end is not None and end.status:
        said = [line for line in last_lines(log) if line.strip()]
        raise UsageError(f"it cannot be made again: {said[-1] if said else 'no output'}")
    if len(_lines(folder / "updates.csv")) <= LEARNED:
        raise UsageError("it learned nothing in this time: give it more --seconds")
    return folder


def _elsewhere(record: Mapping[str, Any]) -> str:
    """Return what of this machine differs from the record's; empty if its bytes are expected."""
    here, versions = hardware.machine(), hardware.versions()
    key = "processor" if record["machine"].get("processor") else "cpu"  # older records: its name
    there = record["machine"].get(key)
    differs = [f"recorded on {there}"] if there != here[key] else []
    for name in DECISIVE:
        if record["versions"].get(name) != versions.get(name):
            differs.append(f"with {name} {record['versions'].get(name)}")
    return ", ".join(differs)


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file, or its compressed form; none of one that cannot be read."""
    try:
        content = read_plain(path)
    except (OSError, *DAMAGED):
        return []
    return content[: content.rfind(b"\n") + 1].splitlines()


def _describe(name: str, number: int, header: bytes, line: bytes, other: bytes) -> str:
    """Return the first cell in which two lines differ, in words."""
    ours, theirs = line.decode().split(","), other.decode().split(",")
    if number == 0 or len(ours) != len(theirs):
        return f"{name}, line {number + 1}: {other.decode()} there, {line.decode()} today"
    columns = header.decode().split(",")
    column = next(i for i, cell in enumerate(ours) if cell != theirs[i])
    return f"{name}, row {number}, {columns[column]}: {theirs[column]} there, {ours[column]} today"


def main(argv: Sequence[str]) -> int:
    """Make the beginning of recorded runs again; the exit status is 1 if one differs."""
    about = "make the beginning of a recorded run again, compare its rows"
    parser = flags.make_parser("verify", about)
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    text = "default: the quickest published one"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=text)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="N", help="for each run")
    words = list(argv)
    if "--seconds" in words:  # flags go last: argparse wants the folders in one piece
        place = words.index("--seconds")
        words = [*words[:place], *words[place + 2 :], *words[place : place + 2]]
    options = parser.parse(words)
    if not 0 < options.seconds < float("inf"):
        raise UsageError(f"--seconds must be above 0, not {options.seconds}")
    runs = options.runs or list(filter(None, [default_run(options.agent)]))
    if not runs:
        print(f"no published run of {options.agent} has today's number: name a RUN")
    status = 0
    for run in runs:
        outcome = verify(options.agent, run, options.seconds)
        print(f"{'ok' if outcome.same else 'DIFFERS'} {outcome.text}", flush=True)
        status = max(status, not outcome.same)
    return int(status)


def train_again(record: dict[str, Any], out: Path) -> int:
    """Train the runs of a record's process."""
    agent = importlib.import_module(f"agents.{record['agent']}")
    settings = recorded_settings(agent.Config, record["config"])
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    run = {key: record[key] for key in ("agent", "suite", "source", "task", "config", "command")}
    config = agent.Config(**values)
    recorder = Recorder(out, run, config.seeds, checkpoint_seconds=math.inf)
    agent.train(config, recorder)
    return recorder.finish()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(train_again(given["record"], Path(given["out"])))
