"""Finished runs that are shorter than planned: a longer plan goes on from their checkpoint."""

from typing import Any

from reproduce.plan.grid import Plan, Run
from suite.files import CHECKPOINT
from suite.hardware import machine, versions
from suite.records import read_record
from suite.settings import UsageError


def shorter_record(run: Run) -> dict[str, Any] | None:
    """Return the record of a finished run in a planned run's place, if it is shorter; or None."""
    record = None if run.has_ended else read_record(run.directory)
    if record is None or record["status"] != "finished":
        return None
    return record if record["config"]["env_steps"] < run.env_steps else None


def check_extensions(plan: Plan, runs: list[Run]) -> None:
    """Refuse to plan a longer run where a finished one cannot go on.

    Raises:
        UsageError: naming its folder and the reason.
    """
    for run in runs:
        record = shorter_record(run)
        reason = record and _obstacle(plan, run, record)
        if record and reason:
            raise UsageError(
                f"{run.directory} ended at {record['config']['env_steps']:,} steps and cannot go "
                f"on to {run.env_steps:,}: {reason}; train it anew beside it with --fresh, or move "
                "that folder away"
            )


def _obstacle(plan: Plan, run: Run, record: dict[str, Any]) -> str:
    """Return why a finished run cannot go on with the same bytes; empty if nothing is known.

    What its agent alone can see, such as a damaged checkpoint, the agent refuses.
    """
    config = record["config"]
    seeds = config.get("seeds")
    seeds = seeds if isinstance(seeds, list) and seeds else [run.seed]
    together = plan.device != "cpu" and plan.preset.seeds_together
    planned = plan.seeds[: plan.num_seeds[run.task]] if together else (run.seed,)
    if not set(seeds) <= set(planned):
        return f"it was trained in one process with seeds {' '.join(map(str, seeds))}"
    if not (run.directory.with_name(f"seed-{seeds[0]}") / CHECKPOINT).exists():
        return "its checkpoint is gone"
    for name, here in (("device", plan.device), ("num_threads", plan.config.num_threads)):
        if config.get(name, here) != here:
            return f"its {name} was {config[name]}, not {here}"
    if plan.cluster:
        return ""  # the node's processor is not known yet
    for name in ("cpu", "gpu", "gpu_driver"):
        there = record.get("machine", {}).get(name)
        if there != machine(plan.device)[name]:
            return f"its {name} was {there}, not {machine(plan.device)[name]}"
    changed = [
        name for name, there in record.get("versions", {}).items() if versions().get(name) != there
    ]
    return f"other versions of {', '.join(changed)} made it" if changed else ""
