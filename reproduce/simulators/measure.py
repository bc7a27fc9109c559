"""Measure engines in turns: each in a process of its own, which waits between its turns.

An engine that fails or hangs ends its own rows with a line and leaves the others alone.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from reproduce import ROOT
from reproduce.gather.collect import throughput
from reproduce.run import processes
from reproduce.run.log import last_lines
from reproduce.run.processes import AgentProcess
from reproduce.simulators.engines import OF_PEERS, PROCESSES
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.base.hardware import num_cores
from suite.envs.tasks import find_task

PEERS = ROOT / ".venv-peers" / "bin" / "python"
LEAST_STEPS = 20
"""Vector steps of a turn, however long they take."""
ANSWER_SECONDS = 90.0
"""Time that a process has to start, and for a turn beyond what it was told."""
PROCESSES_PER_CORE = 32
"""Most worker processes of an engine with one for each environment."""
MOST_BUSY = 0.3
"""Cores at work, at which a machine still counts as quiet."""
COLUMNS = (
    *("task", "engine", "mode", "num_envs", "num_threads", "turn", "rows", "steps", "seconds"),
    *("env_steps_per_second", "env_frames_per_second", "latency_median_ms", "latency_p99_ms"),
    *("cores", "others", "memory_mib", "environment_share", "acting_share", "learning_share"),
    "note",
)
"""Of the tidy table, a row for each turn: `docs/columns.md`. Where an engine ended, `turn` is 0."""
COUNTS = ("num_envs", "num_threads", "turn", "rows", "steps")
KEYS = ["task", "num_envs", "num_threads", "engine", "mode"]


class Cell(NamedTuple):
    """What is measured together: the engines of a cell take turns."""

    task: str
    num_envs: int
    num_threads: int


class Server(processes.Server):
    """A process with one engine, once it is ready; see `serve.py`."""

    def __init__(self, engine: str, cell: Cell) -> None:
        if engine in PROCESSES and cell.num_envs > PROCESSES_PER_CORE * num_cores():
            raise UsageError(f"{cell.num_envs} processes are too many for {num_cores()} cores")
        python = str(PEERS) if engine in OF_PEERS else sys.executable
        if not Path(python).exists():
            raise UsageError(f"{engine} needs the peers' environment: make peers")
        numbers = (str(cell.num_envs), str(cell.num_threads))
        serve = ("-P", "-m", "reproduce.simulators.serve")
        super().__init__([python, *serve, engine, cell.task, *numbers], ROOT)
        self.rows = int(self.read(ANSWER_SECONDS)["rows"])
        """Environments of a vector step."""

    def ask(self, seconds: float, **order: Any) -> dict[str, Any]:
        """Give an order that takes about some seconds, and return the answer."""
        self.send({"seconds": seconds, **order})
        return self.read(seconds + ANSWER_SECONDS)

    def memory(self) -> float:
        """Return MiB of memory of this process and its workers, shared pages counted once."""
        kib = 0
        for number in processes.members(self.pid):
            with suppress(OSError, IndexError):  # it has ended
                rollup = (processes.PROC / str(number) / "smaps_rollup").read_text()
                kib += int(rollup.partition("\nPss:")[2].split()[0])
        return kib / 1024

    def processor_seconds(self) -> float:
        """Return processor seconds of this process and its workers."""
        return processes.cpu_seconds(self.pid) or 0.0


def measure(
    cell: Cell, engines: Sequence[str], modes: Sequence[str], turns: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a cell: a row for each engine, mode and turn, the trainings last.

    Engines take turns, forwards and backwards, so a machine that changes speed changes all.
    """
    steps_per_second, stepping = 0.0, [mode for mode in modes if mode != "training"]
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for engine in engines:  # one after another: a start may need all cores
            if engine in OF_PEERS and "random" not in modes:
                note = "its Python has none of our networks: measure it with --modes random"
                yield _row(cell, engine, "", note=note)
                continue
            try:
                servers[engine] = Server(engine, cell)
                stack.callback(servers[engine].close)
            except UsageError as error:
                yield _row(cell, engine, "", note=str(error))
        order = list(servers)
        for number in range(1, turns + 1):
            for engine in order:
                for mode in stepping if engine in servers else ():
                    if mode != "random" and engine in OF_PEERS:
                        continue
                    try:
                        row = _turn(cell, engine, servers[engine], mode, number, seconds)
                    except UsageError as error:
                        servers.pop(engine)
                        yield _row(cell, engine, mode, note=str(error))
                        break
                    if engine == "encore":
                        steps_per_second = row["env_steps_per_second"]
                    yield row
            order.reverse()
    if "training" in modes:
        yield from train(cell, turns, max(2.0, seconds), steps_per_second / 2)


def _turn(
    cell: Cell, engine: str, server: Server, mode: str, number: int, seconds: float
) -> dict[str, Any]:
    if number == 1:  # its first order also draws actions, or builds the network, and warms up
        server.ask(0.3, mode=mode, least=3)
    started, before, idle = time.perf_counter(), server.processor_seconds(), _idle_seconds()
    answer = server.ask(seconds, mode=mode, least=LEAST_STEPS)
    spent, lasted = server.processor_seconds() - before, time.perf_counter() - started
    cores = spent / answer["seconds"]
    busy = (os.cpu_count() or 1) - (_idle_seconds() - idle) / lasted
    answer |= {"cores": cores, "others": max(0.0, busy - cores)}
    if number == 1 and mode == "random":  # later, the network is in memory, too
        answer["memory_mib"] = server.memory()
    speed = answer["steps"] / answer["seconds"]
    own = {"turn": number, "rows": server.rows, "env_steps_per_second": speed}
    return _row(cell, engine, mode, **own, **answer)


def train(cell: Cell, turns: int, seconds: float, speed: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each of some trainings by A2C, with the default settings of the task.

    Networks have one thread. The speed that is expected decides how often a training reports.
    """
    rows = 5 * cell.num_envs
    interval = rows * max(1, round(speed / 10 / rows))
    command = [sys.executable, "-m", "agents.a2c", f"--task={cell.task}", "--device=cpu"]
    command += [f"--num-envs={cell.num_envs}", f"--env-threads={cell.num_threads}"]
    command += [f"--log-interval={interval}", "--env-steps=1000000000"]
    command += ["--evaluation-rule=training"]
    for number in range(1, turns + 1):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "seed-1"
            facts, said = _train_for([*command, f"--out={folder}"], run, seconds)
            if facts is None:
                yield _row(cell, "encore", "training", note=said)
                return
            facts |= {"turn": number, "rows": cell.num_envs, "seconds": facts["wall_seconds"]}
            yield _row(cell, "encore", "training", **facts, steps=facts["env_steps"])


def _train_for(command: list[str], run: Path, seconds: float) -> tuple[dict[str, Any] | None, str]:
    """Train until there are rows of so many seconds; return its speed, or None and why."""
    log, until = run.with_name("log"), time.monotonic() + seconds + ANSWER_SECONDS
    process, facts = AgentProcess(command, log), None
    try:
        while process.poll() is None:
            if time.monotonic() > until:
                return facts, "too slow: it reported nothing in time"
            time.sleep(0.25)
            with suppress(OSError, ValueError, KeyError):
                facts = throughput(run)
            if facts is not None and facts["wall_seconds"] >= seconds:
                return facts, ""
    finally:
        process.kill()
    return facts, (last_lines(log) or ["it said nothing"])[-1]


def _row(cell: Cell, engine: str, mode: str, note: str = "", **facts: Any) -> dict[str, Any]:
    if speed := facts.get("env_steps_per_second"):
        facts["env_frames_per_second"] = speed * find_task(cell.task).frame_skip
    said = {"turn": 0, **cell._asdict(), "engine": engine, "mode": mode, "note": note, **facts}
    return {name: said.get(name) for name in COLUMNS}


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows into a tidy table, in the place of those of the same cells, engines and modes."""
    table = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    if path.exists():
        old = read(path)
        kept = ~_index(old, KEYS).isin(_index(table, KEYS))
        kept &= old["note"].isna() | ~_index(old, KEYS[:-1]).isin(_index(table, KEYS[:-1]))
        table = pd.concat([old[kept], table]) if kept.any() else table
    path.parent.mkdir(parents=True, exist_ok=True)
    table = table.astype(dict.fromkeys(COUNTS, "Int64"))
    content = table.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    write_atomically(path, content.encode())


def _index(table: pd.DataFrame, keys: list[str]) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(table[keys].fillna(""))


def read(path: Path) -> pd.DataFrame:
    """Read a tidy table."""
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"note": "str"})
        return table[list(COLUMNS)]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"unreadable {path}: {error}") from None


def medians(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each engine and mode: medians over turns, and the range of speeds."""
    numbers = [name for name in COLUMNS if name not in (*KEYS, "turn", "note")]
    groups = table[table["turn"] > 0].groupby(KEYS, sort=False)
    speeds = groups["env_steps_per_second"].agg(slowest="min", fastest="max")
    return groups[numbers].median().join(speeds).reset_index()


def busy_cores() -> float:
    """Return the mean number of this machine's cores that work, or that others take from it."""
    before, started = _idle_seconds(), time.perf_counter()
    time.sleep(1.0)
    idle = (_idle_seconds() - before) / (time.perf_counter() - started)
    return max(0.0, (os.cpu_count() or 1) - idle)


def _idle_seconds() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
