"""Who makes a plan's runs: an agent of ours, or somebody else's program; and by which commands."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reproduce.plan.origin import Code
from suite.command_line import flags_of
from suite.hardware import behaviour, num_cores, sources, uncommitted

if TYPE_CHECKING:
    from reproduce.plan.grid import Plan
    from reproduce.plan.status import Run


@dataclass(frozen=True, kw_only=True)
class Maker:
    """An agent of ours, which its own command trains; `extras/control.py` has the others."""

    is_ours: bool = True
    """Whether presets give the initial weights, and speeds are tabulated."""
    verb: Sequence[str] = ()
    """Words of the harness's command before agent and suite."""
    prefix: str = ""
    """What the title of its grids begins with."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages that its runs must have been made with."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request that its command has no flag for, as they are by default."""

    def code(self, agent: str) -> Mapping[str, str]:
        """Return checksums of the files that a run depends on, as they are now."""
        return sources(agent)

    def today(self, agent: str) -> Code:
        """Return the code by which runs count, as it is now."""
        ours = self.code(agent)
        return Code(behaviour(agent), ours, uncommitted(ours))

    def departures(self, plan: "Plan") -> Sequence[str]:
        """Return the differences from the judging reference, but for those of `--set`."""
        return plan.preset.departures

    def command(self, plan: "Plan", runs: Sequence["Run"], env_threads: int) -> tuple[str, ...]:
        """Return the command of a process that trains runs of one task together.

        Args:
            plan: the grid.
            runs: those that the process trains.
            env_threads: threads of its simulator; more than one where cores are idle.
        """
        first, minutes, has_idle_cores = runs[0], plan.checkpoint_minutes, env_threads > 1
        # A GPU's training kernel by kernel keeps Python's lock: a thread beside it gains little.
        by_kernel = plan.device != "cpu" and not getattr(plan.config, "cuda_graphs", False)
        beside = has_idle_cores and plan.rule != "training" and not by_kernel
        return (
            *(sys.executable, "-m", f"agents.{plan.agent}"),
            *("--suite", plan.suite, "--like", plan.source, "--task", first.task),
            *("--seeds", *(str(run.seed) for run in runs)),
            *("--env-steps", str(first.env_steps), "--device", plan.device),
            *("--out", str(first.directory.parent)),
            *(() if minutes is None else ("--checkpoint-minutes", str(minutes))),
            *(("--drop-checkpoints",) if plan.drop_checkpoints else ()),
            *(("--env-threads", str(env_threads)) if has_idle_cores else ()),
            *(("--evaluate-beside",) if beside else ()),
            *(("--keep-best",) if plan.keep_best else ()),
            *flags_of(plan.settings),
        )


OURS = Maker()


def env_threads(plan: "Plan", side_by_side: int) -> int:
    """Return the simulator's threads of each process: one, and its share of idle cores."""
    if plan.cluster:
        return 1
    return max(1, num_cores() // side_by_side - plan.preset.cores_per_run + 1)
