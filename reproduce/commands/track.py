"""`track`: mirror recorded runs into TensorBoard or Weights & Biases (extra `tracking`).

`--track KIND` mirrors a grid's runs while they are written, `track KIND RUNS LOGDIR` any runs. The
recorded files stay the truth: a mirror is made anew whenever one of them begins.
"""

import contextlib
import importlib
import math
import os
import shlex
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.commands import flags
from reproduce.plan.grid import Plan
from reproduce.plan.resources import check_writable
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.base.files import check_inside, write_atomically
from suite.record.live import read_growing_table
from suite.record.reading import ENDED, read_record

TABLES = ("episodes", "evaluations", "updates", "timing")
FOLLOW_SECONDS = 10.0
MARK = "mirror.txt"
"""File that marks the folder of a mirror: what lies there may be replaced."""

Add = Callable[[int, Mapping[str, float]], None]
Sink = tuple[Add, Callable[[], None]]
"""Adds points; closes."""


def tensorboard(folder: Path, name: str, record: Mapping[str, Any]) -> Sink:
    """Write event files; TensorBoard names a run by its folder."""
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = SummaryWriter(str(folder), flush_secs=int(FOLLOW_SECONDS) + 1)

    def add(env_steps: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, env_steps)

    return add, writer.close


def wandb(folder: Path, name: str, record: Mapping[str, Any]) -> Sink:
    """Write a run of Weights & Biases: files only, unless `WANDB_MODE` says otherwise."""
    os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # it takes `agents` for another package
    package = importlib.import_module("wandb")

    if (folder / "wandb").exists():
        shutil.rmtree(folder / "wandb")
    quiet: dict[str, Any] = {"silent": True, "x_disable_stats": True, "x_disable_meta": True}
    run = package.init(
        project=os.environ.get("WANDB_PROJECT") or "encore",
        id=uuid.uuid5(uuid.NAMESPACE_URL, f"{folder.absolute()} {record['started_at']}").hex[:16],
        name=name,
        group=name.rpartition("/")[0],
        dir=folder,
        config=dict(record["config"]),
        mode=os.environ.get("WANDB_MODE") or "offline",
        reinit="create_new",
        settings=package.Settings(console="off", disable_git=True, save_code=False, **quiet),
    )
    run.define_metric("*", step_metric="env_steps")
    return lambda env_steps, values: run.log({"env_steps": env_steps, **values}), run.finish


SINKS = {"tensorboard": tensorboard, "wandb": wandb}
LOOK = {
    "tensorboard": "tensorboard --logdir {}",
    "wandb": "wandb sync $(find {} -name 'offline-run-*')",
}


def check_kind(kind: str) -> None:
    """Raise a `UsageError` if nothing mirrors like this, or the package that would is missing."""
    if kind not in SINKS:
        raise UsageError(f"nothing tracks runs with {kind!r}{nearest(kind, SINKS)}")
    if not flags.is_installed(kind):
        raise UsageError(f"{kind} is missing: pip install 'encore-rl[tracking]'")


class Mirror:
    """The mirror of one run, in the folder `root / name`."""

    def __init__(self, run: Path, root: Path, name: str, kind: str) -> None:
        self._run, self._folder, self._name, self._kind = run, root / name, name, kind
        check_inside(root, self._folder)
        is_taken = self._folder.is_dir() and any(self._folder.iterdir())
        if is_taken and not (self._folder / MARK).exists():
            raise UsageError(
                f"{self._folder} holds files that are no mirror: move them, or mirror elsewhere"
            )
        self._sink: Sink | None = None
        self._begun: object = None
        self._rows = dict.fromkeys(TABLES, 0)

    def update(self) -> None:
        """Mirror the rows that were added since, once each.

        A run that goes on after a kill cuts its tables to those of its checkpoint, and writes the
        same rows again. One that begins anew, or goes on to more steps, has a mirror anew.
        """
        record = read_record(self._run)
        if record is None or record["status"] == "damaged":
            return
        begun = record.get("started_at")  # None: it never began
        begun = begun and (begun, record["config"]["env_steps"])
        if begun != self._begun:
            self.close()
            self._begun, self._rows = begun, dict.fromkeys(TABLES, 0)
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / MARK, b"Made by `python -m reproduce`.\n")
            self._sink = SINKS[self._kind](self._folder, self._name, record)
        if self._sink is None:  # it has ended
            return
        for name in TABLES:
            table = read_growing_table(self._run / f"{name}.csv")
            for row in table.iloc[self._rows[name] :].to_dict("records"):
                values = {f"{name}/{key}": v for key, v in row.items() if not math.isnan(v)}
                if (steps := values.pop(f"{name}/env_steps", None)) is not None:
                    self._sink[0](int(steps), values)
            self._rows[name] = max(self._rows[name], len(table))
        if record["status"] in ENDED:
            self.close()

    def close(self) -> None:
        """Hand over the mirrored rows."""
        if self._sink:
            self._sink[1]()
            self._sink = None


@contextlib.contextmanager
def mirrored(plan: Plan, kind: str, say: Callable[[str], None]) -> Iterator[None]:
    """Mirror a plan's runs while they are written, beside the launcher; no kind: do nothing.

    A mirror that fails harms no run: the reason is said at the end.
    """
    if not kind:
        yield
        return
    root = plan.runs_dir / "tracking" / kind
    try:
        mirrors = [
            Mirror(run.directory, root, run.directory.relative_to(plan.runs_dir).as_posix(), kind)
            for run in plan.runs()
        ]
    except UsageError as error:
        say(f"Nothing is mirrored: {error}")
        yield
        return
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
    if not problems:
        say(f"Mirrored into {root}; look at it with: {LOOK[kind].format(shlex.quote(str(root)))}")


def mirror(kind: str, runs: Path, logdir: Path) -> int:
    """Mirror every run below a folder into its own folder of `logdir`; return their number.

    The folder of one run alone is mirrored by the names of its task and seed.
    """
    check_kind(kind)
    found = {path.parent: read_record(path.parent) for path in sorted(runs.rglob("run.json"))}
    folders = [run for run, record in found.items() if record and record["status"] != "damaged"]
    if not folders:
        raise UsageError(f"{runs} holds no undamaged runs (<task>/seed-<k>/run.json)")
    check_writable(logdir, "logdir")
    alone = Path(*runs.resolve().parts[-2:])
    names = [folder.relative_to(runs) if folder != runs else alone for folder in folders]
    pairs = zip(folders, names, strict=True)
    for one in [Mirror(folder, logdir, name.as_posix(), kind) for folder, name in pairs]:
        one.update()
        one.close()
    return len(folders)


def main(argv: Sequence[str]) -> int:
    """Mirror recorded runs into TensorBoard or Weights & Biases."""
    parser = flags.make_parser("track")
    parser.add_argument("kind", help=", ".join(LOOK))
    parser.add_argument("runs", type=Path, help="a folder with runs below it, for example runs")
    parser.add_argument("logdir", type=Path, help="where the mirrors go")
    options = parser.parse(argv)
    number = counted(mirror(options.kind, options.runs, options.logdir), "run")
    look = LOOK[options.kind].format(shlex.quote(str(options.logdir)))
    print(f"{number} mirrored; look at them with: {look}")
    return 0
