"""A plan: a request with every choice made. It is a grid of runs, and the processes for them."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduce.plan import speeds
from reproduce.plan.request import Request
from reproduce.plan.resources import Cluster, default_workers, gpus_of
from reproduce.plan.status import Code, Run, companions, run_of
from suite.base.code import behaviour, sources, uncommitted
from suite.base.hardware import num_cores
from suite.envs.tasks import Protocol
from suite.settings.presets import Preset

Group = tuple[Run, ...]
"""The runs that one process trains together: of one task."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program that trains: our agents' own commands; `controls/peer.py` has the others."""

    name: str = ""
    """The peer's; empty: our agents'."""
    verb: Sequence[str] = ()
    """Words of the harness's command before agent and suite."""
    prefix: str = ""
    """What the title of its grids begins with."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages that its runs must have been made with."""

    @property
    def is_ours(self) -> bool:
        """Return whether speeds are tabulated, and its sources looked up."""
        return not self.name

    def code(self, agent: str) -> Mapping[str, str]:
        """Return checksums of the files that a run depends on, as they are now."""
        return sources(agent)

    def today(self, agent: str) -> Code:
        """Return the code by which runs count, as it is now."""
        ours = self.code(agent)
        return Code(behaviour(agent), ours, uncommitted(ours))

    def departures(self, plan: "Plan") -> Sequence[str]:
        """Return the differences from the source, but for those of `--set`."""
        return plan.preset.departures

    def command(self, plan: "Plan", runs: Sequence[Run], env_threads: int) -> tuple[str, ...]:
        """Return the command of a process that trains runs of one task together."""
        first, minutes, has_idle_cores = runs[0], plan.checkpoint_minutes, env_threads > 1
        return (
            *(sys.executable, "-m", f"agents.{plan.agent}"),
            *("--suite", plan.suite, "--like", plan.source, "--task", first.task),
            *("--seeds", *(str(run.seed) for run in runs)),
            *("--env-steps", str(first.env_steps), "--device", plan.device),
            *("--out", str(first.directory.parent)),
            *(() if minutes is None else ("--checkpoint-minutes", str(minutes))),
            *(("--drop-checkpoints",) if plan.drop_checkpoints else ()),
            *(("--env-threads", str(env_threads)) if has_idle_cores else ()),
            *(("--keep-best",) if plan.keep_best else ()),
            *(f"--{key.replace('_', '-')}={value}" for key, value in plan.settings.items()),
        )


OUR_AGENTS = Program()


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """A grid of runs with everything needed to run, gather and judge it."""

    source: str = field()
    tasks: tuple[str, ...] = field()
    env_steps: Mapping[str, int] = field()
    """Environment steps of each run, by task."""
    seeds: tuple[int, ...] = field()
    """Every seed that may be run, in the order in which they are added."""
    num_seeds: Mapping[str, int] = field()
    """Number of seeds that each task runs: all, or fewer, as it was begun."""
    workers: int = field()
    settings: Mapping[str, str] = field()
    declared: Mapping[str, tuple[int, ...]]
    """Seeds by which each task is judged, declared when it was first started."""
    directory: Path
    """`<runs-dir>/<agent>-<suite>/<source>`: tables, figures, page, and a folder per task."""
    config: Any
    """The agent's configuration, all but task, seeds and steps."""
    preset: Preset[Any]
    cluster: Cluster | None = None
    program: Program = OUR_AGENTS
    behaviours: Mapping[str, int] = field(default_factory=dict)
    """Of a published grid: by task, the number of the behaviour (`BEHAVIOUR`) whose runs count.
    In other grids it is empty, and those of today's code count."""

    @cached_property
    def today(self) -> Code:
        """Return the code as it was when first asked for, by which runs count.

        Of a published grid it is taken as committed.
        """
        today = self.program.today(self.agent)
        return today._replace(uncommitted=()) if self.behaviours else today

    @property
    def name(self) -> str:
        """Return the grid's folder below any root: `<agent>-<suite>/<source>`."""
        return f"{self.agent}-{self.suite}/{self.source}"

    @property
    def title(self) -> str:
        """Return the grid's name in words."""
        changes = "".join(f", {key} = {value}" for key, value in self.settings.items())
        grid = f"{self.agent} on {self.suite}, settings of {self.source}{changes}"
        return f"{self.program.prefix}{grid}"

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
        """Return the differences from the source, listed beside every verdict."""
        changed = [f"{key} = {value}, set by --set" for key, value in self.settings.items()]
        return (*self.program.departures(self), *changed)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs of this machine that its processes are dealt to, if any."""
        return () if self.cluster else gpus_of(self.device)

    @property
    def has_default_workers(self) -> bool:
        """Return whether as many processes run side by side as without `--workers`."""
        return self.workers == default_workers(self.device, self.preset.cores_per_run, self.cluster)

    def config_of(self, task: str) -> Any:
        """Return the configuration on a task."""
        return dataclasses.replace(self.config, task=task, env_steps=self.env_steps[task])

    def expected_seconds(self, task: str) -> float | None:
        """Return about how long one run takes here; None if its like was never measured.

        On a GPU none was, and several seeds may train in one process there.
        """
        if self.cluster or self.device != "cpu" or not self.program.is_ours:
            return None
        speed = speeds.find_speed(self.agent, self.source, task)
        return speed and speeds.run_seconds(speed, self.config_of(task))

    def runs(self) -> list[Run]:
        """Return every run with its present status, tasks in order, seeds within; as `run_of`."""
        wanted = ((task, n) for task in self.tasks for n in self.seeds[: self.num_seeds[task]])
        return [run_of(self, task, seed) for task, seed in wanted]

    def groups(self, runs: Sequence[Run] | None = None) -> list[Group]:
        """Return the runs still to be made, those of one process together: one per seed.

        On a GPU the seeds of a task share one process if the agent trains several at once; where
        there are more GPUs than tasks, several. Seeds that were trained together go on together,
        for their checkpoint fits no others: those among them that have ended, too.
        """
        runs = self.runs() if runs is None else runs
        waiting = [run for run in runs if not run.has_ended]
        if self.device == "cpu" or not self.preset.seeds_together:
            return [(run,) for run in waiting]
        here = {run.directory: run for run in runs}
        bound_to = {run: companions(run, here) for run in waiting}
        bound = dict.fromkeys(group for group in bound_to.values() if group)
        free: dict[str, list[Run]] = {}
        for run in waiting:
            if not bound_to[run]:
                free.setdefault(run.task, []).append(run)
        places = min(self.workers, len(self.gpus)) - len(bound)
        parts = max(1, math.ceil(places / max(1, len(free))))
        groups = [*bound, *(part for each in free.values() for part in _split(each, parts))]
        order = {run: i for i, run in enumerate(runs)}
        return sorted(groups, key=lambda group: order[group[0]])

    def command(self, group: Group, side_by_side: int) -> tuple[str, ...]:
        """Return the command of a process that trains a group beside others.

        Its simulator has its share of idle cores.
        """
        cores = num_cores() // side_by_side
        threads = 1 if self.cluster else max(1, cores - self.preset.cores_per_run + 1)
        return self.program.command(self, group, threads)


def _split(runs: Sequence[Run], parts: int) -> list[Group]:
    """Return runs in so many parts, if there are so many; some are larger by one."""
    parts = min(parts, len(runs))
    ends = [len(runs) * k // parts for k in range(parts + 1)]
    return [tuple(runs[start:end]) for start, end in itertools.pairwise(ends)]
