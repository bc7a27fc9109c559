"""The status of a plan's runs, by their folders, and which of them count.

CONTRIBUTING.md explains what counts: "Which code made a run".
"""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reproduce.words import counted
from suite.base.code import of_code
from suite.base.errors import UsageError
from suite.base.files import CHECKPOINT
from suite.envs.tasks import folder_of
from suite.record.manifest import BEST, POLICY
from suite.record.reading import ENDED, read_record, seed_of, seeds_of
from suite.settings.older import WITHOUT_EFFECT, todays_settings

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan

NOT_SETTINGS = ("task", "seeds", "env_steps", "device", "cuda_graphs", "num_threads")
NOT_SETTINGS += WITHOUT_EFFECT
"""Fields of a configuration that do not change what is learned per step and seed."""
COMMIT = re.compile("[0-9a-f]{7,40}")
Older = Literal["", "left out", "counted"]
"""Treatment of a task's older runs; a suite has the last of these among its tasks."""
MOST_NAMES = 3
"""Changed files that are named; more are counted."""


class Code(NamedTuple):
    """An agent's code, as `suite.base.code` tells it."""

    number: int | None
    sources: Mapping[str, str]
    uncommitted: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One agent, one task, one source, one seed."""

    task: str
    seed: int
    env_steps: int
    directory: Path
    status: str = "planned"
    """What its folder says; `left out` if it has ended and does not count: `why_left_out`."""
    error: str = ""
    remark: str = ""
    """What is to be said of a run that has ended: that older code made it, or its damage."""
    steps_done: int = 0
    """Steps from whose end a `shorter` run goes on."""

    @property
    def key(self) -> tuple[str, int]:
        """Return what tells it from the plan's other runs."""
        return self.task, self.seed

    @property
    def name(self) -> str:
        """Return its name in words."""
        return f"{self.task} seed {self.seed}"

    @property
    def has_ended(self) -> bool:
        """Return whether its result is kept; other runs start or resume."""
        return self.status in ENDED


def records_below(folder: Path, pattern: str = "*/seed-*") -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the runs' folders of a pattern, in order, with their records; not those without one."""
    for path in sorted(folder.glob(pattern)):
        record = read_record(path) if seed_of(path) is not None else None
        if record is not None:
            yield path, record


def with_status(run: Run, record: Mapping[str, Any] | None) -> Run:
    """Return a run as its record says: planned, running, finished, diverged, failed or damaged.

    `shorter`: it finished with fewer steps than are planned now, and goes on from its checkpoint.
    `damaged`: it was finished; it is not what its folder says, or its files have changed since.
    """
    if record is None:
        return replace(run, status="planned", error="")
    steps, error = record["config"]["env_steps"], str(record.get("error") or "")
    if record["status"] == "finished" and steps < run.env_steps:
        return replace(run, status="shorter", error=error, steps_done=steps)
    return replace(run, status=record["status"], error=error)


def run_of(plan: "Plan", task: str, seed: int) -> Run:
    """Return a run as its folder says; a `UsageError` if other settings made it."""
    folder = plan.directory / folder_of(task) / f"seed-{seed}"
    record = read_record(folder)
    run = with_status(Run(task, seed, plan.env_steps[task], folder), record)
    if record is None:
        return run
    goes_on = "seeds" in record["config"] and (folder / CHECKPOINT).exists()
    if record["status"] not in ENDED and not goes_on:
        return run
    if differs := differences(plan, record):
        raise _other_settings(folder, differs)
    if not run.has_ended:
        return run
    number, remark = plan.behaviours.get(task), why_left_out(plan, record)
    counts = not remark if number is None else number_of(record) == number
    return replace(run, status=run.status if counts else "left out", remark=remark)


def seeds_begun(plan: "Plan", task: str) -> set[int]:
    """Return the seeds of a task whose scores at the plan's step may be guessed.

    They have a record in the task's folder, of these settings and of code that counts, at least
    half as long. An unreadable record counts, too: it may have been any run.
    """
    found = set()
    for file in (plan.directory / folder_of(task)).glob("seed-*/run.json"):
        path = file.parent
        if (seed := seed_of(path)) is None:
            continue
        record = read_record(path)
        if record is not None and record["status"] != "damaged":
            is_short = 2 * record["config"]["env_steps"] < plan.env_steps[task]
            if is_short or differences(plan, record) or why_left_out(plan, record):
                continue
        found.add(seed)
    return found


def companions(run: Run, here: Mapping[Path, Run]) -> tuple[Run, ...]:
    """Return the runs whose checkpoint a run can go on from, in its order; none without one."""
    seeds = seeds_of(read_record(run.directory) or {})
    folders = [run.directory.with_name(f"seed-{seed}") for seed in seeds]
    if not folders or not (folders[0] / CHECKPOINT).exists():
        return ()
    for folder in folders:
        record = read_record(folder) if folder in here else None
        if record is None or seeds_of(record) != seeds:
            return ()
    return tuple(here[folder] for folder in folders)


def settings_of(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that change what is learned, as JSON has them."""
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    return {key: value for key, value in values.items() if key not in NOT_SETTINGS}


def name_of_settings(config: Any) -> str:
    """Return a name shared by plans with equal settings, whatever tasks, seeds and steps."""
    return hashlib.sha256(json.dumps(settings_of(config), sort_keys=True).encode()).hexdigest()[:16]


def differences(plan: "Plan", record: Mapping[str, Any]) -> str:
    """Return which settings, or pinned packages, of a record are not the plan's; empty if none."""
    ours = settings_of(plan.config)
    theirs = todays_settings(type(plan.config), record["config"])
    found = record.get("versions", {})
    pairs = [(k, theirs.get(k, "unknown"), ours.get(k, "unknown")) for k in {**ours, **theirs}]
    pairs += [(name, found.get(name, "unknown"), pin) for name, pin in plan.program.pins.items()]
    return ", ".join(
        f"{key} {there} there, {here} here"
        for key, there, here in pairs
        if there != here and key not in NOT_SETTINGS
    )


def _other_settings(folder: Path, differs: str) -> UsageError:
    fix = "start anew beside it with --fresh, or choose another --runs-dir"
    return UsageError(f"{folder} was run with other settings ({differs}): {fix}")


def refuse_mixture(plan: "Plan") -> None:
    """Refuse to add runs to a grid whose finished runs were made otherwise.

    Every finished run of the plan's folder must have the plan's settings, whether or not it is in
    the plan: `plan.json` names one set. Its code matters in the plan's tasks alone, for seeds of a
    task are judged together; a plan of other tasks asks for those again.
    """
    planned = [folder_of(task) for task in plan.tasks]
    for folder, record in records_below(plan.directory):
        if record["status"] not in ENDED:
            continue
        if differs := differences(plan, record):
            raise _other_settings(folder, differs)
        if folder.parent.name in planned and (why := why_left_out(plan, record)):
            back = " or take back the changes" if plan.today.uncommitted else ""
            fix = f"start anew beside it with --fresh{back}"
            raise UsageError(f"{folder} was run with other code ({why}): {fix}")


def check_extensions(plan: "Plan", runs: Iterable[Run]) -> None:
    """Refuse to plan a longer run where a finished one cannot go on."""
    for run in runs:
        record = read_record(run.directory) if run.status == "shorter" else None
        if record and (reason := _obstacle(plan, run, record)):
            raise UsageError(
                f"{run.directory} ended at {run.steps_done:,} steps and cannot go on to "
                f"{run.env_steps:,}: {reason}; train it anew beside it with --fresh, or move that "
                "folder away"
            )


def _obstacle(plan: "Plan", run: Run, record: Mapping[str, Any]) -> str:
    """Return why a finished run cannot go on with the same bytes; empty if nothing is known.

    What a checkpoint itself says, such as another processor, its agent refuses.
    """
    seeds = record["config"].get("seeds", [run.seed])
    together = plan.device != "cpu" and plan.preset.seeds_together
    planned = plan.seeds[: plan.num_seeds[run.task]] if together else (run.seed,)
    if not all(seed in planned for seed in seeds):
        return f"it was trained in one process with seeds {' '.join(map(str, seeds))}"
    if (run.directory / BEST / POLICY[0]).exists() != plan.keep_best:
        return f"it was begun with{'out' * plan.keep_best} --keep-best"
    checkpoint = run.directory.with_name(f"seed-{seeds[0]}") / CHECKPOINT
    return "" if checkpoint.exists() else "its checkpoint is gone"


def why_left_out(plan: "Plan", record: Mapping[str, Any]) -> str:
    """Return why a run does not count, to be read after "3 runs"; empty if it counts.

    It counts if today's very files made it; or if the record has today's number and all of these
    files are committed, for then they passed the golden test.
    """
    today = plan.today
    theirs, ours = of_code(record.get("sources")), of_code(today.sources)
    number = number_of(record)
    is_same = number is not None and number == today.number and not today.uncommitted
    if theirs == ours or is_same:
        return ""
    commit = COMMIT.fullmatch(str(record.get("commit")))
    made = f"made by commit {commit[0][:7] if commit else 'unknown'}"
    made += " with changes" if record.get("dirty") else ""
    if today.uncommitted:
        return f"{made}; {_names(today.uncommitted)} uncommitted changes"
    if None not in (number, today.number):
        return f"{made}; of behaviour {number}, today's is {today.number}"
    if not theirs:
        return f"{made}, which does not say its code"
    changed = sorted(changed_sources(theirs, ours), key=lambda path: not path.startswith("agents/"))
    return f"{made}; {_names(changed)} changed since"


def number_of(record: Mapping[str, Any]) -> int | None:
    """Return the behaviour's number in a record; None of a run of changed code, or of no number."""
    number = record.get("behaviour")
    return number if type(number) is int else None


def recorded_processor(machine: Mapping[str, Any]) -> str | None:
    """Return a record's processor; older records name a checksum of what a hypervisor lets through.

    Of records before those it is None: "AMD EPYC" alone names processors that round otherwise.
    """
    return str(machine.get("processor") or "").partition(" flags ")[0] or None


def by_task(runs: Iterable[Run]) -> dict[str, tuple[Older, str]]:
    """Return how each task's older runs were treated, and a sentence on them."""
    of_task: dict[str, Counter[tuple[str, Older]]] = {}
    for run in runs:
        remarks = of_task.setdefault(run.task, Counter())
        if run.remark and run.status != "damaged":
            remarks[run.remark, "counted" if run.has_ended else "left out"] += 1
    found: dict[str, tuple[Older, str]] = {}
    for task, remarks in of_task.items():
        said = [f"{counted(n, 'run')} {remark} ({how})" for (remark, how), n in remarks.items()]
        any_counts = any(how == "counted" for _, how in remarks)
        mark: Older = "counted" if any_counts else "left out" if remarks else ""
        found[task] = (mark, "; ".join(said))
    return found


def changed_sources(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Return the files that differ between two answers of `code.sources`."""
    return sorted(path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path))


def refuse_changed(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse code that changed since a command was started."""
    if changed := changed_sources(before, now):
        raise UsageError(f"{', '.join(changed)} changed since this command was started")


def _names(paths: Sequence[str]) -> str:
    """Return files and a verb that says something of them."""
    more = len(paths) - MOST_NAMES
    *some, end = [*paths[:MOST_NAMES], *([counted(more, "more file")] if more > 0 else [])]
    return f"{', '.join(some)} and {end} have" if some else f"{end} has"
