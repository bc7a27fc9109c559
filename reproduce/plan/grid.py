"""What to run: the grid of tasks and seeds, where each run goes, and which are already finished."""

import dataclasses
import hashlib
import importlib
import json
import math
import shlex
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import agents
from reproduce import ROOT
from reproduce.plan.declared import Declared, read_declared, to_json, worth_declaring
from reproduce.plan.origin import Code, number_of, ways_on, why_left_out
from reproduce.plan.places import (
    Cluster,
    Room,
    choose_device,
    default_workers,
    gpus_of,
    refuse_unplaceable,
)
from reproduce.plan.speeds import Pace, pace
from suite.command_line import printable
from suite.files import CHECKPOINT, NO_SPACE, write_json
from suite.hardware import behaviour, gpu_memory_gib, machine, num_cores, sources, uncommitted
from suite.records import ENDED, read_record, seed_of
from suite.settings import (
    WITHOUT_EFFECT,
    Preset,
    UsageError,
    find_source,
    nearest,
    recorded_settings,
    refuse_old_agent,
)
from suite.tasks import Protocol

PUBLISHED = ROOT / "results" / "published"
NOT_SETTINGS = ("task", "seeds", "env_steps", "device", "num_threads", *WITHOUT_EFFECT)
"""Fields of a configuration that do not change what is learned per step and seed."""
PLAN_KEYS = (
    *("agent", "suite", "source", "budget", "env_steps", "seeds", "settings", "device"),
    *("workers", "published"),
)
"""Entries of `plan.json`, beside the `declared` seeds and, by task, `num_seeds`. Plans of older
versions may lack these two: they declared all their seeds."""


@dataclass(frozen=True)
class Run:
    """One agent, one task, one source, one seed."""

    task: str
    seed: int
    env_steps: int
    directory: Path
    """Where its record is, or will be."""
    status: str
    """`planned`, or the status of its record.

    A `damaged` run was finished; it is not what its folder says, or its files have changed since.
    A `left out` one was finished by other code than today's; see `reproduce/plan/origin.py`.
    """
    remark: str = ""
    """What is wrong with a finished run of this task and seed, wherever it lies."""

    @property
    def has_ended(self) -> bool:
        """Return whether its result is kept; other runs start or resume."""
        return self.status in ENDED


@dataclass(frozen=True)
class Group:
    """The runs that one process trains together, and its command."""

    runs: tuple[Run, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A grid of runs with everything needed to run, gather and judge it."""

    agent: str
    suite: str
    source: str
    budget: str
    env_steps: Mapping[str, int]
    """Environment steps of each run, by task; the order of the tasks is the plan's."""
    seeds: tuple[int, ...]
    """Every seed that may be run, in the order in which they are added."""
    num_seeds: Mapping[str, int]
    """Number of seeds that each task runs: all, or fewer, as it was begun."""
    declared: Mapping[str, tuple[int, ...]]
    """Seeds by which each task is judged, declared when it was first started."""
    settings: Mapping[str, str]
    """Changes by `--set`."""
    device: str
    workers: int
    directory: Path
    """`<runs-dir>/<agent>-<suite>/<source>`: tables, figures, page, and a folder per task."""
    published: bool
    """Whether finished runs under `results/published` count."""
    config: Any
    """The agent's configuration, all but task, seeds and steps."""
    preset: Preset[Any]
    checkpoint_minutes: float | None = None
    """Time between two checkpoints of a run; None: the agents' own."""
    drop_checkpoints: bool = False
    """Whether finished runs lose their checkpoint, so that they cannot be extended."""
    keep_best: bool = False
    """Whether runs keep the policy of their best evaluation beside the last."""
    cluster: Cluster | None = None
    """Where it runs; None: on this machine."""
    behaviours: Mapping[str, int] = field(default_factory=dict)
    """Of a published grid that is drawn again: by task, the number of the behaviour whose runs
    count; those of another number than today's are remarked. In other plans today's code counts."""

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """Return checksums of the agent's code, as it was when first asked for."""
        return self.code()

    def code(self) -> Mapping[str, str]:
        """Return checksums of the files that a run depends on, as they are now."""
        return sources(self.agent)

    @cached_property
    def today(self) -> Code:
        """Return the agent's code as it was when first asked for, by which runs count."""
        return Code(behaviour(self.agent), self.sources, uncommitted(self.sources))

    @property
    def has_presets_weights(self) -> bool:
        """Return whether the preset alone decides the initial weights."""
        return not self.settings

    @property
    def title(self) -> str:
        """Return the grid's name in words."""
        changes = "".join(f", {key} = {value}" for key, value in self.settings.items())
        return f"{self.agent} on {self.suite}, settings of {self.source}{changes}"

    @property
    def name_of_settings(self) -> str:
        """Return a name shared by plans with equal settings, whatever tasks, seeds and steps."""
        values = dataclasses.asdict(self.config)
        kept = {key: value for key, value in values.items() if key not in NOT_SETTINGS}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the task names, in the plan's order."""
        return tuple(self.env_steps)

    @property
    def rule(self) -> str:
        """Return the evaluation rule: `deterministic`, `sampled` or `training`."""
        return self.config.evaluation_rule

    @property
    def protocol(self) -> Protocol:
        """Return how Atari games are presented; tasks of other families ignore it."""
        return getattr(self.config, "protocol", None) or self.preset.protocol or "noframeskip"

    @property
    def departures(self) -> tuple[str, ...]:
        """Return the differences from the judging reference, listed beside every verdict."""
        changed = [f"{key} = {value}, set by --set" for key, value in self.settings.items()]
        return (*self.preset.departures, *changed)

    def runs(self) -> list[Run]:
        """Return every run with its present status, tasks in order, seeds within.

        Raises:
            UsageError: if a finished run was made with other settings.
        """
        runs: list[Run] = []
        for task in self.env_steps:
            runs += [self.run(task, n) for n in self.seeds[: self.num_seeds[task]]]
        return runs

    def expected_seconds(self, task: str, env_steps: int | None = None) -> float | None:
        """Return about how long one run takes here; None if its like was never measured.

        Args:
            task: the run's.
            env_steps: its length; default: the plan's.
        """
        steps = self.env_steps[task] if env_steps is None else env_steps
        expected = self.pace(task, steps)
        return expected and expected(steps)

    def pace(self, task: str, env_steps: int | None = None) -> Pace | None:
        """Return how one run goes on here; None if its like was never measured.

        Args:
            task: the run's.
            env_steps: its length; default: the plan's.
        """
        steps = self.env_steps[task] if env_steps is None else env_steps
        config = self.config_of(task, steps)
        return None if self.cluster else pace(self.agent, self.source, config, self.device)

    def config_of(self, task: str, env_steps: int) -> Any:
        """Return the agent's configuration on a task for so many environment steps."""
        return dataclasses.replace(self.config, task=task, env_steps=env_steps)

    def groups(self, runs: Sequence[Run] | None = None) -> list[Group]:
        """Return the processes still to be run: one per seed.

        On a GPU the seeds of a task share one process if the agent trains several at once; on
        several GPUs as many processes as it takes to occupy all of them. Seeds that were trained
        together go on together, for their checkpoint fits no others: those among them that have
        ended, too.

        Args:
            runs: what `runs()` returned; default: what it returns now.
        """
        runs = self.runs() if runs is None else runs
        waiting = [run for run in runs if not run.has_ended]
        if self.device == "cpu" or not self.preset.seeds_together:
            bundles = [(run,) for run in waiting]
        else:
            here = {run.directory: run for run in runs}
            companions = {run: _companions(run, here) for run in waiting}
            bound = dict.fromkeys(bundle for bundle in companions.values() if bundle)
            free = [[r for r in waiting if r.task == t and not companions[r]] for t in self.tasks]
            places = min(self.workers, len(self.gpus))
            bundles = [*bound, *_split([each for each in free if each], places - len(bound))]
            order = {run: i for i, run in enumerate(runs)}
            bundles.sort(key=lambda bundle: order[bundle[0]])
        side_by_side = min(self.workers, len(bundles))
        return [self.group(bundle, side_by_side) for bundle in bundles]

    def group(self, runs: Sequence[Run], side_by_side: int | None = None) -> Group:
        """Return one process for runs of one task.

        Args:
            runs: these.
            side_by_side: how many such processes run at once; default: `workers`.
        """
        threads = 1 if self.cluster else self._env_threads(side_by_side or self.workers)
        return Group(tuple(runs), self._command(tuple(runs), threads))

    def _env_threads(self, side_by_side: int) -> int:
        """Return the simulator's threads of each process: one, and its share of idle cores."""
        return max(1, num_cores() // side_by_side - self.preset.cores_per_run + 1)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs of this machine that its processes are dealt to, if any."""
        return () if self.cluster else gpus_of(self.device)

    @property
    def has_default_workers(self) -> bool:
        """Return whether as many processes run side by side as without `--workers`."""
        return self.workers == default_workers(self.device, self.preset.cores_per_run, self.cluster)

    def demand(self, group: Group) -> dict[str, float]:
        """Return the resources that a group takes, by Ray's names.

        CPU: the cores that a run keeps busy. GPU: on a cluster with fewer GPUs than workers, a
        share of one. Memory, in bytes: as the agent states it; 0 without a statement, or where the
        GPU keeps replay.
        """
        gpus = sum(node.get("GPU", 0.0) for node in self.cluster.nodes) if self.cluster else 1.0
        share = 0.0 if self.device == "cpu" else 1.0 / math.ceil(self.workers / max(gpus, 1.0))
        memory = 0.0 if self.keeps_on_gpu else self.kept_gib(group) * 2**30
        return {
            "CPU": float(self.preset.cores_per_run),
            "GPU": math.floor(share * 1e4) / 1e4,  # the finest share that Ray knows
            "memory": float(round(memory)),
        }

    @property
    def published_folder(self) -> Path:
        """Return where the published runs of this grid would lie."""
        return folder_of(PUBLISHED, self.agent, self.suite, self.source, self.preset)

    def refuse_mixture(self) -> None:
        """Refuse to add runs to a grid whose finished runs were made otherwise.

        Every finished run of the plan's folder must have the plan's settings, whether or not it is
        in the plan: `plan.json` names one set. Its code matters in the plan's tasks alone, for
        seeds of a task are judged together; a plan of other tasks asks for those again.

        Raises:
            UsageError: naming the run and what differs, code or settings.
        """
        for path in sorted(self.directory.glob("*/seed-*/run.json")):
            record = read_record(path.parent)
            if "." in path.parent.name or record is None:
                continue
            if record["status"] in ENDED:
                settings = self._differences(record)
                if settings:
                    raise UsageError(
                        f"{path.parent} was run with other settings ({settings}): start "
                        "anew beside it with --fresh, or choose another --runs-dir"
                    )
                if path.parents[1].name not in self.tasks:
                    continue
                why = why_left_out(self.today, path.parent, record)
                if why:
                    raise UsageError(
                        f"{path.parent} was run with other code ({why}): {ways_on(self.today)}"
                    )

    @property
    def keeps_on_gpu(self) -> bool:
        """Return whether a run's `memory_bytes`, its replay, lie on the GPU."""
        return self.device != "cpu" and getattr(self.config, "keeps_on_device", False)

    def check_memory(self) -> None:
        """Refuse runs that together keep more than this machine, or one more than any node, holds.

        What a run keeps beside its network is `memory_bytes` of the agent's configuration, where
        there is such a property; a replay of frames is gigabytes. On a GPU it is the GPU's memory
        that must hold it, if the agent keeps it there.

        Raises:
            UsageError: naming both sizes and the number of workers, or seeds, that would fit.
        """
        groups = self.groups()
        if self.cluster:
            for group in groups:
                refuse_unplaceable(self.demand(group), self.cluster)
            return
        room = self.room(groups)
        if room.fits:
            return
        fix, seeds = "make what it keeps smaller with --set", room.most_seeds or 0
        if room.most_workers:
            fix = f"use --workers {room.most_workers}"
        elif seeds:
            fix = f"use --num-seeds {seeds}"
        raise UsageError(
            f"{room.num_runs} runs side by side keep {room.needed:.1f} GiB, but {room.place} has "
            f"{room.available:.1f} GiB of memory: {fix}"
        )

    def room(self, groups: Sequence[Group] | None = None) -> Room:
        """Return the memory that parallel runs on this machine keep, and where.

        Args:
            groups: what `groups()` returned; default: what it returns now.
        """
        groups = self.groups() if groups is None else groups
        gpus = self.gpus if self.keeps_on_gpu else ()
        place = "this GPU" if gpus else "this machine"
        num_places, num_tasks = max(1, len(gpus)), len({group.runs[0].task for group in groups})
        return Room(
            place=f"each of {num_places} GPUs" if num_places > 1 else place,
            num_places=num_places,
            available=min(map(gpu_memory_gib, gpus)) if gpus else machine()["memory_gib"],
            processes=sorted(((self.kept_gib(g), len(g.runs)) for g in groups), reverse=True),
            at_once=math.ceil(min(self.workers, len(groups)) / num_places),
            task_parts=max(1, min(self.workers, num_places) // max(1, num_tasks)),
        )

    def kept_gib(self, group: Group) -> float:
        """Return the memory that a group's runs keep, GiB; 0 where the agent states none."""
        return (
            sum(
                getattr(
                    dataclasses.replace(self.config, task=run.task, env_steps=run.env_steps),
                    "memory_bytes",
                    0,
                )
                for run in group.runs
            )
            / 2**30
        )

    def command(self) -> str:
        """Return the command that makes, or goes on with, this plan."""
        words = [_python(), "-m", "reproduce", self.agent, self.suite, "--tasks", *self.tasks]
        words += ["--budget", self.budget]
        if min(self.num_seeds.values()) == len(self.seeds):
            words += ["--seeds", *map(str, self.seeds)]
        steps = set(self.env_steps.values())
        if any(self.preset.budgets[self.budget].steps(t) != n for t, n in self.env_steps.items()):
            words += ["--env-steps", str(steps.pop())]
        default = find_source(presets_of(self.agent), self.suite, None)
        words += ["--like", self.source] if self.source != default else []
        runs_dir = self.directory.parents[1]
        words += ["--runs-dir", str(runs_dir)] if str(runs_dir) != "runs" else []
        words += ["--no-published"] if not self.published else []
        if self.checkpoint_minutes is not None:
            words += ["--checkpoint-minutes", str(self.checkpoint_minutes)]
        words += ["--drop-checkpoints"] if self.drop_checkpoints else []
        words += ["--keep-best"] if self.keep_best else []
        if self.device != choose_device("auto", self.cluster):
            words += ["--device", self.device]
        if not self.has_default_workers:
            words += ["--workers", str(self.workers)]
        if self.cluster:
            words += ["--launcher", "ray"]
            words += ["--ray-address", self.cluster.address] if self.cluster.address else []
        words += ["--set", *(f"{k}={v}" for k, v in self.settings.items())] if self.settings else []
        return printable(shlex.join(words))  # a path need not be text

    def way_on(self, track: str = "") -> str:
        """Return how to go on with this plan after it was stopped, in words.

        Args:
            track: what runs are mirrored into while they are written, if anything.
        """
        return f"go on with:\n  {self.command()}{f' --track {track}' if track else ''}"

    def save(self) -> None:
        """Write `plan.json`, from which `report` works without being told the plan again.

        It keeps the declared seeds of every task that was ever started in its folder.
        """
        path = self.directory / "plan.json"
        declared: Declared = {
            (task, env_steps): self.declared[task] for task, env_steps in self.env_steps.items()
        }
        content = {key: getattr(self, key) for key in PLAN_KEYS}
        content["num_seeds"] = self.num_seeds
        content["declared"] = to_json(worth_declaring(declared) | read_declared(path))
        write_json(path, content)

    def run(self, task: str, seed: int) -> Run:
        """Return one run with its present status.

        Raises:
            UsageError: if it is finished and was made with other settings.
        """
        env_steps = self.env_steps[task]
        here = self.directory / task / f"seed-{seed}"
        remark = ""
        for place in (folder / here.name for folder in self._folders(task)):
            record = read_record(place)
            if record is not None and record["status"] == "damaged" and place != here:
                remark = f"in {place.parent} is damaged: seed-{seed} {record['error']}"
            if record is None or record["status"] not in ENDED:
                continue
            differs = self._differences(record)
            if differs and place == here:
                raise UsageError(
                    f"{place} was run with other settings ({differs}): "
                    "start anew beside it with --fresh, or choose another --runs-dir"
                )
            if differs or record["config"]["env_steps"] < env_steps:
                continue
            run = self._ended(task, seed, place, record)
            if run.has_ended or place == here:
                return run
            remark = run.remark
        record = read_record(here)
        status = record["status"] if record else "planned"
        status = "planned" if status == "finished" else status
        return Run(task, seed, env_steps, here, status, remark)

    def _ended(self, task: str, seed: int, place: Path, record: Mapping[str, Any]) -> Run:
        """Return a run that has ended, `damaged` or `left out` if it does not count."""
        run = Run(task, seed, self.env_steps[task], place, record["status"])
        number = self.behaviours.get(task)
        if number is None:
            remark = why_left_out(self.today, place, record)
            return replace(run, status="left out" if remark else run.status, remark=remark)
        remark = why_left_out(self.today._replace(uncommitted=()), place, record)
        counts = number_of(record) == number
        return replace(run, status=run.status if counts else "left out", remark=remark)

    def seeds_begun(self, task: str) -> set[int]:
        """Return the seeds of a task whose scores at the plan's step may be guessed.

        They have a record where the task's runs count, of these settings and of code that counts,
        at least half as long. Of one that cannot be read nobody knows what it was.
        """
        found = set()
        for path in (path for folder in self._folders(task) for path in folder.glob("seed-*")):
            seed, record = seed_of(path), read_record(path)
            if seed is None or not (path / "run.json").exists():
                continue
            if record is not None and record["status"] != "damaged":
                is_short = 2 * record["config"]["env_steps"] < self.env_steps[task]
                if is_short or self._differences(record):
                    continue
                if why_left_out(self.today, path, record):
                    continue
            found.add(seed)
        return found

    def _folders(self, task: str) -> list[Path]:
        """Return the folders that hold a task's runs: the plan's own, and the published."""
        folders = [self.directory / task]
        if self.published:
            folders.append(self.published_folder / task)
        return folders

    def _differences(self, record: Mapping[str, Any]) -> str:
        """Return which settings of a recorded run are not this plan's; empty if none."""
        ours = json.loads(json.dumps(dataclasses.asdict(self.config)))
        theirs = recorded_settings(type(self.config), record["config"])
        return ", ".join(
            f"{key} {theirs.get(key, 'unknown')} there, {ours.get(key, 'unknown')} here"
            for key in {**ours, **theirs}
            if key not in NOT_SETTINGS and theirs.get(key, "unknown") != ours.get(key, "unknown")
        )

    def _command(self, runs: Sequence[Run], env_threads: int) -> tuple[str, ...]:
        first, minutes, has_idle_cores = runs[0], self.checkpoint_minutes, env_threads > 1
        # A GPU's training kernel by kernel keeps Python's lock: a thread beside it gains little.
        by_kernel = self.device != "cpu" and not getattr(self.config, "cuda_graphs", False)
        beside = has_idle_cores and self.rule != "training" and not by_kernel
        return (
            *(sys.executable, "-m", f"agents.{self.agent}"),
            *("--suite", self.suite, "--like", self.source, "--task", first.task),
            *("--seeds", *(str(run.seed) for run in runs)),
            *("--env-steps", str(first.env_steps), "--device", self.device),
            *("--out", str(first.directory.parent)),
            *(() if minutes is None else ("--checkpoint-minutes", str(minutes))),
            *(("--drop-checkpoints",) if self.drop_checkpoints else ()),
            *(("--env-threads", str(env_threads)) if has_idle_cores else ()),
            *(("--evaluate-beside",) if beside else ()),
            *(("--keep-best",) if self.keep_best else ()),
            *flags_of(self.config, self.settings),
        )


def _split(bundles: Sequence[Sequence[Run]], number: int) -> list[tuple[Run, ...]]:
    """Return bundles of runs, cut until there are `number`: always the one with the largest parts.

    Those of one bundle are as large as each other, or larger by one.
    """
    parts = [1 for _ in bundles]
    while sum(parts) < number:
        largest = max(range(len(parts)), key=lambda i: len(bundles[i]) / parts[i], default=None)
        if largest is None or parts[largest] == len(bundles[largest]):
            break
        parts[largest] += 1
    return [
        tuple(bundle[len(bundle) * k // count : len(bundle) * (k + 1) // count])
        for bundle, count in zip(bundles, parts, strict=True)
        for k in range(count)
    ]


def _companions(run: Run, here: Mapping[Path, Run]) -> tuple[Run, ...]:
    """Return the runs whose checkpoint a run can go on from, in its order; none without one.

    Args:
        run: an unfinished run.
        here: the plan's runs by folder.
    """
    seeds = (read_record(run.directory) or {}).get("config", {}).get("seeds")
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        return ()
    folders = [run.directory.with_name(f"seed-{seed}") for seed in seeds]
    if not folders or not (folders[0] / CHECKPOINT).exists():
        return ()
    for folder in folders:
        record = read_record(folder) if folder in here else None
        if record is None or record["config"].get("seeds") != seeds:
            return ()
    return tuple(here[folder] for folder in folders)


def changed_sources(theirs: object, ours: Mapping[str, str]) -> str:
    """Return the files that differ between two answers of `suite.hardware.sources`, as text."""
    if not isinstance(theirs, Mapping):
        return "the list of sources"
    names = sorted(set(ours) | set(theirs))
    return ", ".join(name for name in names if ours.get(name) != theirs.get(name))


def presets_of(agent: str) -> Mapping[tuple[str, str], Preset[Any]]:
    """Return an agent's presets by suite and source.

    Raises:
        UsageError: naming its file, if that cannot be imported or has no `PRESETS`; every other
            agent still works.
    """
    file = f"agents/{agent}.py"
    try:
        module = importlib.import_module(f"agents.{agent}")
    except UsageError:  # of a source's file, which it names
        raise
    except SyntaxError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in NO_SPACE:
            raise  # says nothing about the file
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).name == f"{agent}.py"
        ]
        where = f" (line {lines[-1]})" if lines else ""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{file} cannot be imported: {why}{where}") from None
    presets = getattr(module, "PRESETS", None)
    if not isinstance(presets, Mapping):
        raise UsageError(
            f"{file} has no PRESETS: an agent's file has PRESETS = read_presets({agent!r}, Config)"
            " (see CONTRIBUTING.md); any other file belongs elsewhere"
        )
    return presets


def folder_of(root: Path, agent: str, suite: str, source: str, preset: Preset[Any]) -> Path:
    """Return a grid's folder: the one that an older name of the source has, if no other exists."""
    folder = root / f"{agent}-{suite}"
    names = (source, *preset.formerly)
    return folder / next((name for name in names if (folder / name).exists()), source)


def check_agent(agent: str) -> None:
    """Raise a `UsageError` that names the nearest agent if there is none of this name."""
    if agent not in agents.AGENTS:
        refuse_old_agent(agent)
        raise UsageError(f"unknown agent {agent!r}{nearest(agent, agents.AGENTS)}")


def _python() -> str:
    """Return how this Python is called: `python` where that finds it, else its relative path."""
    here = Path(sys.executable)
    found = shutil.which("python")
    if (found and Path(found) == here) or not here.is_relative_to(Path.cwd()):
        return "python"
    return str(here.relative_to(Path.cwd()))


def flags_of(config: Any, changes: Mapping[str, str]) -> list[str]:
    """Return `--set` as flags of the agent: `true` or `false` for a switch, commas in a list."""
    flags: list[str] = []
    for key, value in changes.items():
        flag, present = key.replace("_", "-"), getattr(config, key)
        if isinstance(present, bool):
            if value.lower() not in ("true", "false"):
                raise UsageError(f"--set: {key} is true or false, not {value!r}")
            flags.append(f"--{flag}" if value.lower() == "true" else f"--no-{flag}")
        elif isinstance(present, tuple) and "," in value:
            if any(part.startswith("--") for part in value.split(",")):
                raise UsageError(f"--set: {key} cannot be {value!r}")
            flags += [f"--{flag}", *value.split(",")]
        else:
            flags.append(f"--{flag}={value}")
    return flags
