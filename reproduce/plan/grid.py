"""What to run: the grid of tasks and seeds, where each run goes, and which are already finished."""

import dataclasses
import importlib
import itertools
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import agents
from reproduce import ROOT
from reproduce.plan.looks import Declared, Looks, declare, read_declared, to_json, worth_declaring
from reproduce.plan.origin import code_that_made, why_older
from reproduce.plan.speeds import expected_seconds
from suite.behaviour import code_name
from suite.command_line import override
from suite.files import CHECKPOINT, write_json
from suite.hardware import find_device, gpu_memory_gib, machine, num_cores, sources
from suite.records import ENDED, read_record, seed_of, twin_of
from suite.settings import (
    BUDGETS,
    Preset,
    UsageError,
    by_todays_names,
    find_preset,
    find_source,
    nearest,
    recorded_settings,
)
from suite.tasks import Protocol, find_suite, find_task, shortest_episodes, tasks_in

PUBLISHED = ROOT / "results" / "published"
NOT_SETTINGS = ("task", "seeds", "env_steps", "device", "num_threads")
"""Fields of a configuration that do not change what is learned per step and seed."""
PLAN_KEYS = (
    *("agent", "suite", "source", "budget", "env_steps", "seeds", "settings", "device"),
    *("workers", "published"),
)
"""Entries of `plan.json`, beside the declared `looks` and, by task, `num_seeds`. Plans of older
versions lack these two: they had one look at all their seeds."""


@dataclass(frozen=True)
class Run:
    """One agent, one task, one source, one seed."""

    task: str
    seed: int
    env_steps: int
    directory: Path
    """Where its record is, or will be."""
    status: str
    """`planned`, or what its record says.

    A `damaged` run was finished; it is not what its folder says, or its files have changed since.
    An `unverified` one was finished by code that nobody compared with today's.
    """
    remark: str = ""
    """What is wrong with a finished run of this task and seed, wherever it lies; `older` says which
    finished runs count in spite of it."""
    code: str = ""
    """Name of the code that made it, if it counts; see `suite.behaviour.code_name`."""

    @property
    def has_ended(self) -> bool:
        """Return whether its result is kept; other runs start or resume."""
        return self.status in ENDED


@dataclass(frozen=True)
class Group:
    """The runs that one process trains together, and its command."""

    runs: tuple[Run, ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster that a plan runs on, as it was when the plan was made."""

    address: str | None
    """Value of `--ray-address`."""
    nodes: tuple[Mapping[str, float], ...]
    """Resources of every node that is alive, in Ray's words: `CPU`, `GPU`, `memory` (bytes)."""

    def most(self, resource: str) -> float:
        """Return how much of a resource the node with the most of it has."""
        return max((node.get(resource, 0.0) for node in self.nodes), default=0.0)

    def num_places(self, demand: Mapping[str, float]) -> int:
        """Return how many groups that each take `demand` can run at the same time.

        A share of a GPU is of one GPU: three shares of 0.4 need two.
        """

        def places(name: str, there: float, need: float) -> int:
            if name == "GPU" and need < 1:
                return int(there) * int(1 / need)
            return int(there / need)

        return sum(
            min(places(name, node.get(name, 0.0), need) for name, need in demand.items() if need)
            for node in self.nodes
        )


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
    """Number of seeds that each task runs: all, or those up to its present look."""
    looks: Mapping[str, Looks]
    """Looks at which each task is judged, declared when it was first started."""
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
    drop_checkpoints: bool = False
    """Whether finished runs lose their checkpoint, so that they cannot be extended."""
    cluster: Cluster | None = None
    """Where it runs; None: on this machine."""
    accept_older_code: bool = False
    """Whether finished runs count although nobody knows whether today's code would make them."""

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """Checksums of the agent's code when the plan was first asked about its runs."""
        return sources(self.agent)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Task names, in the plan's order."""
        return tuple(self.env_steps)

    @property
    def rule(self) -> str:
        """Evaluation rule of every score: `deterministic`, `sampled` or `training`."""
        return self.config.evaluation_rule

    @property
    def protocol(self) -> Protocol:
        """How Atari games are presented; tasks of other families ignore it."""
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
        runs = [
            self.run(task, seed)
            for task in self.env_steps
            for seed in self.seeds[: self.num_seeds[task]]
        ]
        for task in self.env_steps:
            self._refuse_pooling([run for run in runs if run.task == task])
        return runs

    def expected_seconds(self, task: str, env_steps: int | None = None) -> float | None:
        """Return about how long one run takes here; None if its like was never measured.

        Args:
            task: the run's.
            env_steps: its length; default: the plan's.
        """
        steps = self.env_steps[task] if env_steps is None else env_steps
        config = dataclasses.replace(self.config, task=task, env_steps=steps)
        return (
            None if self.cluster else expected_seconds(self.agent, self.source, config, self.device)
        )

    def groups(self, runs: Sequence[Run] | None = None) -> list[Group]:
        """Return the processes still to be run: one per seed.

        On a GPU the seeds of a task share one process if the agent trains several at once. Seeds
        that were trained together go on together, for their checkpoint fits no others: those among
        them that have ended, too.

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
            bundles = dict.fromkeys(
                bundle or tuple(r for r in waiting if r.task == run.task and not companions[r])
                for run, bundle in companions.items()
            )
        return [self.group(bundle) for bundle in bundles]

    def group(self, runs: Sequence[Run]) -> Group:
        """Return one process for runs of one task."""
        return Group(tuple(runs), self._command(tuple(runs)))

    @property
    def has_default_workers(self) -> bool:
        """Return whether as many processes run side by side as without `--workers`."""
        return self.workers == _workers(self.device, self.preset.cores_per_run, self.cluster)

    def demand(self, group: Group) -> dict[str, float]:
        """Return what a group occupies of a machine, in Ray's words.

        CPU: the cores that a run keeps busy. GPU: on a cluster with fewer GPUs than workers, a
        share of one. Memory, in bytes: what the agent says that it keeps; nothing, if not.
        """
        gpus = sum(node.get("GPU", 0.0) for node in self.cluster.nodes) if self.cluster else 1.0
        share = 0.0 if self.device == "cpu" else 1.0 / math.ceil(self.workers / max(gpus, 1.0))
        memory = 0.0 if self.replay_on_gpu else self._kept_gib(group) * 2**30
        return {
            "CPU": float(self.preset.cores_per_run),
            "GPU": math.floor(share * 1e4) / 1e4,  # the finest share that Ray knows
            "memory": float(round(memory)),
        }

    def refuse_mixture(self) -> None:
        """Refuse to add runs to a grid whose finished runs were made otherwise.

        Every finished run of the plan's folder is looked at, whether or not it is in the plan.

        Raises:
            UsageError: naming the run and what differs, code or settings.
        """
        for path in sorted(self.directory.glob("*/seed-*/run.json")):
            record = read_record(path.parent)
            if "." in path.parent.name or record is None:
                continue
            if record["status"] in ENDED:
                settings = self._differences(record)
                older = why_older(self.agent, self.sources, path.parent, record)
                if settings:
                    raise UsageError(
                        f"{path.parent} was run with other settings ({settings}): start "
                        "anew beside it with --fresh, or choose another --runs-dir"
                    )
                if older and not self.accept_older_code:
                    raise UsageError(
                        f"{path.parent} was run with other code ({older}): start anew beside it "
                        "with --fresh, verify today's code with `python -m tests.golden --agent "
                        f"{self.agent}`, or count such runs knowingly with --accept-older-code"
                    )

    @property
    def replay_on_gpu(self) -> bool:
        """Return whether what a run keeps lies in the GPU's memory."""
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
                _refuse_unplaceable(self.demand(group), self.cluster)
            return
        place = "this GPU" if self.replay_on_gpu else "this machine"
        available = gpu_memory_gib(self.device) if self.replay_on_gpu else machine()["memory_gib"]
        sizes = [(self._kept_gib(group), len(group.runs)) for group in groups]
        sizes.sort(reverse=True)
        needed = sum(size for size, _ in sizes[: self.workers])
        if available is None or needed <= available:
            return
        largest, num_seeds = sizes[0]
        fitting = sum(sum(s for s, _ in sizes[: i + 1]) <= available for i in range(len(sizes)))
        seeds = int(available / (largest / num_seeds))
        fix = "make what it keeps smaller with --set"
        if fitting:
            fix = f"use --workers {fitting}"
        elif 0 < seeds < num_seeds:
            fix = f"use --num-seeds {seeds}"
        raise UsageError(
            f"{sum(count for _, count in sizes[: self.workers])} runs side by side keep "
            f"{needed:.1f} GiB, but {place} has {available:.1f} GiB of memory: {fix}"
        )

    def _kept_gib(self, group: Group) -> float:
        """Return what a group's runs keep, by their agent's own account; 0 where it gives none."""
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
        if min(self.num_seeds.values()) < len(self.seeds):
            words += ["--until-decided", "--max-seeds", str(len(self.seeds))]
        else:
            words += ["--seeds", *map(str, self.seeds)]
        steps = set(self.env_steps.values())
        if any(self.preset.budgets[self.budget].steps(t) != n for t, n in self.env_steps.items()):
            words += ["--env-steps", str(steps.pop())]
        default = find_source(_presets(self.agent), self.suite, None)
        words += ["--like", self.source] if self.source != default else []
        runs_dir = self.directory.parents[1]
        words += ["--runs-dir", str(runs_dir)] if str(runs_dir) != "runs" else []
        words += ["--no-published"] if not self.published else []
        words += ["--accept-older-code"] if self.accept_older_code else []
        words += ["--drop-checkpoints"] if self.drop_checkpoints else []
        if self.device != _find_device("auto", self.cluster):
            words += ["--device", self.device]
        if not self.has_default_workers:
            words += ["--workers", str(self.workers)]
        if self.cluster:
            words += ["--launcher", "ray"]
            words += ["--ray-address", self.cluster.address] if self.cluster.address else []
        words += ["--set", *(f"{k}={v}" for k, v in self.settings.items())] if self.settings else []
        return shlex.join(words)

    def save(self) -> None:
        """Write `plan.json`, from which `report` works without being told the plan again.

        It keeps the looks of every task that was ever started in its folder.
        """
        path = self.directory / "plan.json"
        declared: Declared = {
            (task, env_steps): self.looks[task] for task, env_steps in self.env_steps.items()
        }
        content = {key: getattr(self, key) for key in PLAN_KEYS}
        content["num_seeds"] = self.num_seeds
        content["looks"] = to_json(worth_declaring(declared) | read_declared(path))
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
        """Return a run that has ended, `damaged` or `unverified` if it does not count."""
        run = Run(task, seed, self.env_steps[task], place, record["status"])
        others = [path for folder in self._folders(task) for path in folder.glob("seed-*")]
        earlier = [path for path in sorted(others) if seed_of(path) in range(seed)]
        twin = twin_of(place, earlier) if run.status == "finished" else None
        if twin is not None:
            return replace(run, status="damaged", remark=f"has the updates of {twin}, row by row")
        code = code_that_made(self.agent, self.sources, place, record)
        remark = why_older(self.agent, self.sources, place, record)
        if remark and not self.accept_older_code:
            return replace(run, status="unverified", remark=remark)
        return replace(run, remark=remark, code=code)

    def _folders(self, task: str) -> list[Path]:
        """Return the folders that hold a task's runs: the plan's own, and the published."""
        folders = [self.directory / task]
        if self.published:
            published = _folder(PUBLISHED, self.agent, self.suite, self.source, self.preset)
            folders.append(published / task)
        return folders

    def _refuse_pooling(self, runs: Sequence[Run]) -> None:
        """Refuse a task whose runs are of several codes, of which nobody knows that they agree.

        Raises:
            UsageError: naming them.
        """
        codes: dict[str, list[int]] = {}
        today = code_name(self.agent, self.sources)
        for run in runs:
            codes.setdefault(run.code or today, []).append(run.seed)
        if len(codes) > 1:
            each = "; ".join(f"{code}: {' '.join(map(str, of))}" for code, of in codes.items())
            raise UsageError(
                f"{runs[0].task}: seeds of different code are never judged together ({each}): "
                "choose --seeds of one, or leave out --accept-older-code"
            )

    def _differences(self, record: Mapping[str, Any]) -> str:
        """Return which settings of a recorded run are not this plan's; empty if none."""
        ours = json.loads(json.dumps(dataclasses.asdict(self.config)))
        theirs = recorded_settings(type(self.config), record["config"])
        return ", ".join(
            f"{key} {theirs.get(key, 'unknown')} there, {ours.get(key, 'unknown')} here"
            for key in {**ours, **theirs}
            if key not in NOT_SETTINGS and theirs.get(key, "unknown") != ours.get(key, "unknown")
        )

    def _command(self, runs: Sequence[Run]) -> tuple[str, ...]:
        first = runs[0]
        return (
            *(sys.executable, "-m", f"agents.{self.agent}"),
            *("--suite", self.suite, "--like", self.source, "--task", first.task),
            *("--seeds", *(str(run.seed) for run in runs)),
            *("--env-steps", str(first.env_steps), "--device", self.device),
            *("--out", str(first.directory.parent)),
            *(("--drop-checkpoints",) if self.drop_checkpoints else ()),
            *_flags(self.config, self.settings),
        )


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


def make_plan(
    agent: str,
    suite: str,
    *,
    source: str | None = None,
    tasks: Sequence[str] | None = None,
    budget: str = "laptop",
    env_steps: int | None = None,
    num_seeds: int | None = None,
    seeds: Sequence[int] | None = None,
    until_decided: bool = False,
    workers: int | None = None,
    device: str = "auto",
    runs_dir: Path = Path("runs"),
    settings: Sequence[str] = (),
    published: bool = True,
    accept_older_code: bool = False,
    drop_checkpoints: bool = False,
    cluster: Cluster | None = None,
) -> Plan:
    """Return the plan that the command line asks for. Nothing is written.

    Args:
        agent: name of a file in `agents/`.
        suite: name of a suite (`suite/tasks.py`).
        source: published implementation whose settings are used; default: the suite's.
        tasks: tasks of the suite, or their other versions; default: the suite's.
        budget: `smoke`, `laptop` or `paper`.
        env_steps: environment steps of each run instead of the budget's.
        num_seeds: seeds 1 to `num_seeds` instead of the budget's.
        seeds: these seeds instead.
        until_decided: declare several looks at these seeds, and begin with those of the first.
        workers: processes side by side; default: one per core, or one on a GPU; on a cluster as
            many as it has room for.
        device: `auto`, `cpu`, `cuda` or `cuda:<i>`.
        runs_dir: where runs go.
        settings: `key=value` changes of the agent's configuration.
        published: count finished runs under `results/published`.
        accept_older_code: count finished runs of code that was not verified.
        drop_checkpoints: let finished runs lose their checkpoint.
        cluster: where it runs; default: on this machine.

    Raises:
        UsageError: for anything unknown or impossible, with the nearest valid value.
    """
    _check_agent(agent)
    allowed = tasks_in(suite)
    for name in tasks or ():
        if name not in allowed:
            raise UsageError(f"--tasks: no task {name!r} in {suite}{nearest(name, allowed)}")
    if budget not in BUDGETS:
        raise UsageError(f"--budget: unknown budget {budget!r}{nearest(budget, BUDGETS)}")
    for seed in seeds or ():
        if not 0 <= seed < 2**31:
            raise UsageError(f"--seeds: {seed} is outside 0..2147483647")
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise UsageError("--seeds: a seed is named twice")
    changes = dict(_split(setting) for setting in settings)
    if len(changes) < len(settings):
        raise UsageError("--set: a setting is named twice")
    check_writable(runs_dir)
    source = find_source(_presets(agent), suite, source)
    preset = find_preset(_presets(agent), suite, source)
    device = _find_device(device, cluster)
    spent = preset.budgets[budget]
    names = tuple(tasks or tasks_of(preset, suite, budget))
    steps = {name: env_steps or spent.steps(name) for name in names}
    config = _configure(preset.config, names[0], changes)
    for name, count in steps.items():  # refuses what the agent cannot do
        _refuse_scoreless(dataclasses.replace(config, task=name, env_steps=count))
    chosen = tuple(seeds or range(1, (num_seeds or spent.num_seeds) + 1))
    looks = declare({}, steps, chosen, until_decided=until_decided)
    return Plan(
        agent=agent,
        suite=suite,
        source=source,
        budget=budget,
        env_steps=steps,
        seeds=chosen,
        num_seeds={name: looks[name].counts[0] if until_decided else len(chosen) for name in names},
        looks=looks,
        settings=changes,
        device=device,
        workers=workers or _workers(device, preset.cores_per_run, cluster),
        directory=_folder(runs_dir, agent, suite, source, preset),
        published=published,
        accept_older_code=accept_older_code,
        config=config,
        preset=preset,
        drop_checkpoints=drop_checkpoints,
        cluster=cluster,
    )


def tasks_of(preset: Preset[Any], suite: str, budget: str) -> tuple[str, ...]:
    """Return the tasks of a suite that a budget trains where nobody names any."""
    return preset.budgets[budget].tasks or preset.tasks or find_suite(suite)


def load_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan:
    """Return the plan that was last run in its place.

    Raises:
        UsageError: if nothing was run there, or a name is unknown.
    """
    _check_agent(agent)
    find_suite(suite)
    source = find_source(_presets(agent), suite, source)
    preset = find_preset(_presets(agent), suite, source)
    path = _folder(runs_dir, agent, suite, source, preset) / "plan.json"
    try:
        saved = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"nothing was run here: {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable {path}: {error}") from None
    if not _is_plan(saved):
        raise UsageError(f"unreadable {path}: not the plan of a grid of runs")
    plan = make_plan(
        agent,
        suite,
        source=source,
        tasks=list(saved["env_steps"]),
        budget=saved["budget"],
        seeds=saved["seeds"],
        device="cpu",
        runs_dir=runs_dir,
        settings=[f"{key}={value}" for key, value in by_todays_names(saved["settings"]).items()],
        published=saved["published"],
    )
    plan = dataclasses.replace(
        plan,
        env_steps=saved["env_steps"],
        num_seeds=saved.get("num_seeds", plan.num_seeds),
        device=saved["device"],
        workers=saved["workers"],
    )
    return keep_looks(plan)


def keep_looks(plan: Plan, *, until_decided: bool = False) -> Plan:
    """Return the plan with the looks that were declared when its tasks were first started.

    Where published runs count, so do the looks that were declared for them: their scores are known.

    Args:
        plan: what is asked for now.
        until_decided: whether it asks for several looks.

    Raises:
        UsageError: if it cannot keep to what was declared.
    """
    declared = read_declared(plan.directory / "plan.json")
    if plan.published:
        folder = _folder(PUBLISHED, plan.agent, plan.suite, plan.source, plan.preset)
        published = read_declared(folder / "plan.json")
        runs = plan.runs() if published else []
        taken = {run.task for run in runs if run.directory.is_relative_to(folder)}
        declared = {key: looks for key, looks in published.items() if key[0] in taken} | declared
    looks = declare(declared, plan.env_steps, plan.seeds, until_decided=until_decided)
    return dataclasses.replace(plan, looks=looks)


def _is_plan(saved: Any) -> bool:
    """Return whether a file's content has what `Plan.save` writes."""
    if not isinstance(saved, dict) or any(key not in saved for key in PLAN_KEYS):
        return False
    steps, seeds, changes = saved["env_steps"], saved["seeds"], saved["settings"]
    num_seeds = saved.get("num_seeds", dict.fromkeys(steps, 1) if isinstance(steps, dict) else {})
    return (
        all(isinstance(value, dict) for value in (steps, changes, num_seeds))
        and isinstance(seeds, list)
        and list(num_seeds) == list(steps)
        and all(type(n) is int and 0 < n <= len(seeds) for n in num_seeds.values())
        and all(type(n) is int and n > 0 for n in (*steps.values(), saved["workers"]))
        and all(type(seed) is int for seed in seeds)
        and all(isinstance(text, str) for text in (*changes.values(), saved["budget"]))
        and isinstance(saved["device"], str)
        and isinstance(saved["published"], bool)
        and bool(steps and seeds)
    )


def changed_sources(theirs: object, ours: Mapping[str, str]) -> str:
    """Return the files that differ between two answers of `suite.hardware.sources`, as text."""
    if not isinstance(theirs, Mapping):
        return "the list of sources"
    names = sorted(set(ours) | set(theirs))
    return ", ".join(name for name in names if ours.get(name) != theirs.get(name))


def fresh_directory(runs_dir: Path) -> Path:
    """Return a folder for runs inside `runs_dir` that does not exist: `fresh-1`, `fresh-2`, ..."""
    numbers = itertools.count(1)
    places = (runs_dir / f"fresh-{number}" for number in numbers)
    return next(place for place in places if not place.exists())


def check_writable(directory: Path) -> None:
    """Raise a `UsageError` unless files can be made in `directory`, which need not exist yet."""
    existing = directory
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"--runs-dir: cannot write to {existing}: {reason}") from None


def _presets(agent: str) -> Mapping[tuple[str, str], Preset[Any]]:
    return importlib.import_module(f"agents.{agent}").PRESETS


def _folder(root: Path, agent: str, suite: str, source: str, preset: Preset[Any]) -> Path:
    """Return a grid's folder: the one that an older name of the source has, if no other exists."""
    folder = root / f"{agent}-{suite}"
    names = (source, *preset.formerly)
    return folder / next((name for name in names if (folder / name).exists()), source)


def _check_agent(agent: str) -> None:
    if agent not in agents.AGENTS:
        raise UsageError(f"unknown agent {agent!r}{nearest(agent, agents.AGENTS)}")


def _python() -> str:
    """Return how this Python is called: `python` where that finds it, else its relative path."""
    here = Path(sys.executable)
    found = shutil.which("python")
    if (found and Path(found) == here) or not here.is_relative_to(Path.cwd()):
        return "python"
    return str(here.relative_to(Path.cwd()))


def _find_device(name: str, cluster: Cluster | None) -> str:
    """Return `cpu`, `cuda` or `cuda:<i>`; for `auto` what this machine, or the cluster, has."""
    if cluster is None:
        return find_device(name).type if name == "auto" else str(find_device(name))
    if name == "auto":
        return "cuda" if cluster.most("GPU") else "cpu"
    if name not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: on a Ray cluster it is auto, cpu or cuda")
    return name


def _workers(device: str, cores_per_run: int, cluster: Cluster | None) -> int:
    """Return how many processes run side by side where `--workers` does not say."""
    if cluster:
        demand = {"CPU": float(cores_per_run), "GPU": float(device != "cpu")}
        _refuse_unplaceable(demand, cluster)
        return cluster.num_places(demand)
    return max(1, num_cores() // cores_per_run) if device == "cpu" else 1


def _refuse_unplaceable(demand: Mapping[str, float], cluster: Cluster) -> None:
    """Raise a `UsageError` unless some node of the cluster has what a group takes."""
    if cluster.num_places(demand):
        return
    units = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (2**30, "GiB of memory")}
    needs = " and ".join(
        f"{demand[name] / unit:.4g} {what}"
        for name, (unit, what) in units.items()
        if demand.get(name)
    )
    there = "; ".join(
        ", ".join(
            f"{node.get(name, 0.0) / unit:.4g} {what}" for name, (unit, what) in units.items()
        )
        for node in cluster.nodes
    )
    raise UsageError(
        f"a process needs {needs}, which no node of the Ray cluster has ({there}): add one with "
        "`ray start --address`, or choose another --device"
    )


def _refuse_scoreless(config: Any) -> None:
    """Refuse a run that ends before any training episode could, if these are what is scored.

    A policy that learns is taken to play no shorter episodes than a random one.

    Raises:
        UsageError: naming the number of steps that gives a score.
    """
    task = config.find_task()
    shortest = shortest_episodes().get((task.name, task.protocol), 0)
    least = shortest * config.num_envs
    if config.evaluation_rule == "training" and config.env_steps < least:
        raise UsageError(
            f"{task.name}: {config.env_steps:,} steps give no score: each of {config.num_envs} "
            f"environments makes {config.env_steps // config.num_envs:,}, and no episode is "
            f"known to end before {shortest:,}; use --env-steps {least} or more"
        )


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not (key and equals and value):
        raise UsageError(f"--set: {setting!r} is not key=value")
    return key.replace("-", "_"), value


def _configure(config: Any, task: str, changes: Mapping[str, str]) -> Any:
    """Return the preset's configuration with `--set` applied."""
    for key in changes:
        if key in NOT_SETTINGS:
            own = "is 1 in every process" if key == "num_threads" else "has a flag of its own"
            raise UsageError(f"--set: {key} {own} (see --help)")
        known = [field.name for field in dataclasses.fields(config)]
        if key not in known:
            raise UsageError(f"--set: unknown setting {key!r}{nearest(key, known)}")
    find_task(task)
    return override(config, [*_flags(config, changes), "--task", task])


def _flags(config: Any, changes: Mapping[str, str]) -> list[str]:
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
