"""Mirror recorded runs into TensorBoard or Weights & Biases (extra `tracking`).

`--track KIND` mirrors a grid's runs while they are written, `track KIND RUNS LOGDIR` any runs. The
recorded files stay the truth; a mirror can be deleted and made again at any time.
"""

import contextlib
import importlib.util
import os
import shutil
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.commands import flags
from reproduce.plan.grid import Plan
from reproduce.plan.places import check_writable
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.base.files import check_inside, open_plain, read_json, write_json
from suite.record.records import ENDED, LARGEST_RECORD

TABLES = ("episodes", "evaluations", "updates", "timing")
STATE = "mirrored.json"
"""In a run's mirror: which record it mirrors, and how many rows of each table."""
FOLLOW_SECONDS = 5.0
"""Time between two looks at runs that are being written."""


class Sink(ABC):
    """Takes the points of one run.

    Args:
        folder: where the mirror goes.
        name: the run's.
        key: a name that no other run has.
        config: the run's settings.
    """

    @abstractmethod
    def __init__(self, folder: Path, name: str, key: str, config: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Add values, by name, at a number of environment steps."""

    @abstractmethod
    def flush(self) -> None:
        """Hand over everything that was added."""

    @abstractmethod
    def close(self) -> None:
        """Flush, and take nothing more."""


class TensorBoard(Sink):
    """Writes event files; TensorBoard names a run by its folder."""

    def __init__(self, folder: Path, name: str, key: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Add a scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, env_steps)

    def flush(self) -> None:
        """Write queued values."""
        self._writer.flush()

    def close(self) -> None:
        """Write queued values and stop the writer's thread."""
        self._writer.close()


class Wandb(Sink):
    """Writes runs of Weights & Biases: files only, unless `WANDB_MODE` says otherwise."""

    def __init__(self, folder: Path, name: str, key: str, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")

        os.environ.setdefault(
            "WANDB_DISABLE_WEAVE", "true"
        )  # it takes `agents` for another package
        mode: Any = os.environ.get("WANDB_MODE") or "offline"
        quiet: dict[str, Any] = {"silent": True, "x_disable_stats": True, "x_disable_meta": True}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "encore",
            id=key,
            name=name,
            group=name.rpartition("/")[0],
            dir=folder,
            config=dict(config),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, **quiet),
        )
        self._run.define_metric("*", step_metric="env_steps")

    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Log the values together, beside the steps."""
        self._run.log({"env_steps": env_steps, **values})

    def flush(self) -> None:
        """Do nothing: wandb hands over values as they come."""

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "wandb": Wandb}
LOOK = {
    "tensorboard": "tensorboard --logdir {}",
    "wandb": "wandb sync --append $(find {} -name 'offline-run-*')",
}
"""How to look at a mirror, by kind."""


def check_kind(kind: str) -> None:
    """Raise a `UsageError` if nothing mirrors like this, or the package that would is missing."""
    if kind not in SINKS:
        raise UsageError(f"nothing tracks runs with {kind!r}{nearest(kind, SINKS)}")
    if importlib.util.find_spec(kind) is None:
        raise UsageError(f"{kind} is missing: pip install 'encore-rl[tracking]'")


class Mirror:
    """The mirror of one run, which goes on where an earlier one of the same record stopped.

    Args:
        run: the run's folder.
        root: where mirrors go.
        name: the run's; its mirror goes to `root / name`.
        kind: a key of `SINKS`.

    Raises:
        UsageError: if the mirror's folder is a run's, or lies elsewhere.
    """

    def __init__(self, run: Path, root: Path, name: str, kind: str) -> None:
        self._run, self._folder, self._name, self._kind = run, root / name, name, kind
        check_inside(root, self._folder)
        if (self._folder / "run.json").exists():
            raise UsageError(f"{self._folder} is a run's own folder: mirror into another")
        self._sink: Sink | None = None
        self._state: dict[str, Any] = {}
        self._tables: dict[str, _Rows] = {}

    def update(self) -> None:
        """Mirror the rows that were added since, once each.

        Raises:
            OSError: if writing fails.
        """
        try:
            record = read_json(self._run / "run.json", LARGEST_RECORD)
            begun, config, status = record["started_at"], record["config"], record["status"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # it has not begun
        if self._state.get("started_at") != begun:
            self._begin(begun)
        for table, rows in self._tables.items():
            for env_steps, values in rows.new():
                self._sink = self._sink or self._open(config)
                self._sink.add(env_steps, {f"{table}/{key}": v for key, v in values.items()})
        counts = {table: rows.count for table, rows in self._tables.items()}
        if self._sink and counts != self._state["rows"]:
            self._sink.flush()
            self._state["rows"] = counts
            write_json(self._folder / STATE, self._state)
        if status in ENDED:
            self.close()

    def close(self) -> None:
        """Hand over the mirrored rows."""
        if self._sink:
            self._sink.close()
            self._sink = None

    def _begin(self, begun: str) -> None:
        """Go on with the mirror of this record; begin anew if there is one of another record."""
        self.close()
        try:
            state = read_json(self._folder / STATE)
            counts = {table: int(state["rows"][table]) for table in TABLES}
            key = str(state["key"])
            if state["started_at"] != begun:
                shutil.rmtree(self._folder)
                raise KeyError(begun)
        except (OSError, ValueError, KeyError, TypeError):
            counts, key = dict.fromkeys(TABLES, 0), uuid.uuid4().hex[:16]
        self._state = {"started_at": begun, "key": key, "rows": counts}
        self._tables = {t: _Rows(self._run / f"{t}.csv", counts[t]) for t in TABLES}

    def _open(self, config: Mapping[str, Any]) -> Sink:
        self._folder.mkdir(parents=True, exist_ok=True)
        return SINKS[self._kind](self._folder, self._name, self._state["key"], config)


class _Rows:
    """The rows of a table that grows, each once.

    A run that goes on after a kill cuts its tables to those of its checkpoint, and writes the same
    rows again: they are told by their number.

    Args:
        path: the table, which may be absent.
        count: number of its first rows that are left out.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self.count = path, count
        self._stamp: object = None
        self._place = self._row = 0
        self._columns: list[str] = []

    def new(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the new rows: environment steps, and the other columns."""
        with contextlib.suppress(OSError), open_plain(self._path) as file:
            size = file.seek(0, os.SEEK_END)
            if size < self._place:
                self._place = self._row = 0
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._place += len(line)
                yield from self._read(line)

    def _read(self, line: bytes) -> Iterator[tuple[int, dict[str, float]]]:
        cells = line.decode(errors="replace").strip().split(",")
        if self._row == 0:
            self._columns = cells
        self._row += 1
        if self._row - 1 <= self.count:  # the header, or a row that is mirrored
            return
        self.count += 1
        with contextlib.suppress(ValueError, KeyError, OverflowError):  # a damaged row
            named = dict(zip(self._columns, cells, strict=True))
            steps = int(float(named.pop("env_steps")))
            yield steps, {key: float(cell) for key, cell in named.items() if cell}


def mirror(kind: str, runs: Path, logdir: Path) -> int:
    """Mirror every run below a folder; return their number.

    Args:
        kind: a key of `SINKS`.
        runs: a folder with runs somewhere below it.
        logdir: where the mirrors go, one folder per run, named as below `runs`.

    Raises:
        UsageError: for an unknown kind, without its package, if there is no run below `runs`, or
            if nothing can be written to `logdir`.
    """
    check_kind(kind)
    records = sorted(runs.rglob("run.json"))
    if not records:
        raise UsageError(f"{runs} holds no runs (<task>/seed-<k>/run.json)")
    check_writable(logdir, "logdir")
    for record in records:
        one = Mirror(record.parent, logdir, record.parent.relative_to(runs).as_posix(), kind)
        one.update()
        one.close()
    return len(records)


def folder_of_mirror(plan: Plan, kind: str) -> Path:
    """Return where the mirrors of all grids of a plan's runs directory go."""
    return plan.runs_dir / "tracking" / kind


@contextlib.contextmanager
def mirrored(plan: Plan, kind: str, say: Callable[[str], None]) -> Iterator[None]:
    """Mirror a plan's runs while they are written, beside the launcher.

    A mirror that fails harms no run: the reason is said at the end.

    Args:
        plan: the runs.
        kind: a key of `SINKS`; empty: mirror nothing.
        say: prints a line.
    """
    if not kind:
        yield
        return
    root = folder_of_mirror(plan, kind)
    grid = "/".join(plan.directory.parts[-2:])
    mirrors = [
        Mirror(run.directory, root, f"{grid}/{run.task}/seed-{run.seed}", kind)
        for run in plan.runs()
    ]
    over, problems = threading.Event(), list[str]()

    def follow() -> None:
        try:
            with contextlib.ExitStack() as stack:
                for one in mirrors:
                    stack.callback(one.close)
                last = False
                while not last:
                    last = over.wait(FOLLOW_SECONDS)
                    for one in mirrors:
                        one.update()
        except Exception as error:  # of another's package: whatever it is, runs go on
            problems.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=follow, name=f"mirror-{kind}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for problem in problems:
            say(f"The mirror is not complete ({problem}), the record is: {plan.directory}")
    say(f"Mirrored into {root}; look at it with: {LOOK[kind].format(root)}")


def main(argv: Sequence[str]) -> int:
    """Mirror recorded runs into TensorBoard or Weights & Biases."""
    parser = flags.make_parser("track", "mirror recorded runs into tensorboard or wandb")
    parser.add_argument("kind", help=", ".join(LOOK))
    parser.add_argument("runs", type=Path, help="a folder with runs below it, for example runs")
    parser.add_argument("logdir", type=Path, help="where the mirrors go")
    options = parser.parse(argv)
    num_runs = mirror(options.kind, options.runs, options.logdir)
    where = LOOK[options.kind].format(options.logdir)
    print(f"{counted(num_runs, 'run')} mirrored; look at them with: {where}")
    return 0
