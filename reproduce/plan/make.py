"""Make a plan from a request; save it as `plan.json`, and load it from there."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reproduce.plan import grid as planning
from reproduce.plan.declared import (
    Declared,
    keep_declared,
    read_declared,
    refuse_many,
    to_json,
    unreadable_plan,
    worth_declaring,
)
from reproduce.plan.grid import Plan
from reproduce.plan.places import Cluster, check_writable, choose_device, default_workers
from reproduce.plan.presets import source_of, tasks_of
from reproduce.plan.request import SAVED, Request, check
from reproduce.plan.settings import changes_of, configure, variants
from reproduce.words import counted
from suite.files import check_inside, read_json, write_json
from suite.recorder import refuse_no_evaluations
from suite.settings import UsageError, by_todays_names
from suite.tasks import shortest_episodes

PLAN = "plan.json"
YOUNGER = ("num_seeds", "checkpoint_minutes", "drop_checkpoints", "keep_best")
"""Entries that plans of older versions may lack."""


def make_plan(agent: str, suite: str, *, cluster: Cluster | None = None, **asked: Any) -> Plan:
    """Return the plan that a request asks for. Nothing is written.

    Args:
        agent: name of a file in `agents/`.
        suite: name of a suite (`suite/tasks.py`).
        cluster: where it runs; default: on this machine.
        asked: the other fields of `Request`.

    Raises:
        UsageError: for anything unknown or impossible, with the nearest valid value.
    """
    request = Request(agent=agent, suite=suite, **asked)
    check(request)
    changes = changes_of(request.settings)
    check_writable(request.runs_dir)
    source = source_of(agent, suite, request.source)
    preset, spent = source.preset, source.preset.budgets[request.budget]
    device = choose_device(request.device, cluster)
    steps, number = request.env_steps, request.num_seeds
    if not isinstance(steps, dict):
        names = request.tasks or tasks_of(preset, suite, request.budget)
        steps = {name: steps or spent.steps(name) for name in names}
    config = configure(preset.config, next(iter(steps)), changes)
    for name, count in steps.items():  # refuses what the agent cannot do
        _refuse_scoreless(dataclasses.replace(config, task=name, env_steps=count))
    if request.keep_best:
        refuse_no_evaluations(config)
    directory = source.folder(request.runs_dir)
    check_inside(request.runs_dir, directory)
    check_writable(directory)
    usual = number if isinstance(number, int) else spent.num_seeds
    seeds = tuple(request.seeds or range(1, usual + 1))
    return Plan(
        **vars(request)
        | {
            "source": source.name,
            "tasks": tuple(steps),
            "env_steps": steps,
            "seeds": seeds,
            "num_seeds": number if isinstance(number, dict) else dict.fromkeys(steps, len(seeds)),
            "settings": changes,
            "device": device,
            "workers": request.workers or default_workers(device, preset.cores_per_run, cluster),
            "launcher": "ray" if cluster else "local",
            "ray_address": cluster.address if cluster else None,
        },
        declared=dict.fromkeys(steps, seeds),
        directory=directory,
        config=config,
        preset=preset,
        cluster=cluster,
    )


def variants_of(
    agent: str, suite: str, source: str | None, settings: Iterable[str]
) -> list[tuple[str, ...]]:
    """Return the `--set` of every variant that is asked for; one where nothing varies.

    Raises:
        UsageError: for an unknown name, or values that make no sweep.
    """
    settings = list(settings)
    if not any(set(setting) & {",", "/"} for setting in settings):
        return [tuple(settings)]  # without torch, which presets need
    for setting in settings:
        changes_of([setting])
    return variants(source_of(agent, suite, source).preset.config, settings)


def save_plan(plan: Plan) -> None:
    """Write `plan.json`, from which `report` works without being told the plan again.

    It keeps the declared seeds of every task that was ever started in its folder.
    """
    path = plan.directory / PLAN
    declared: Declared = {
        (task, env_steps): plan.declared[task] for task, env_steps in plan.env_steps.items()
    }
    content = {name: getattr(plan, name) for name in SAVED}
    content["declared"] = to_json(worth_declaring(declared) | read_declared(path))
    write_json(path, content)


def load_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan:
    """Return the plan that was last run in its place.

    Raises:
        UsageError: if nothing was run there, or a name is unknown.
    """
    return _load(source_of(agent, suite, source).folder(runs_dir), runs_dir, (agent, suite, source))


def load_grid(folder: Path) -> Plan:
    """Return the plan that was last run in a folder `<agent>-<suite>/<source>`.

    Raises:
        UsageError: if none was, or it cannot be read.
    """
    saved = _read(folder / PLAN)
    return load_plan(saved["agent"], saved["suite"], folder.name, folder.parent.parent)


def load_published_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan | None:
    """Return the plan of a published grid, with its reports below `runs_dir`.

    None if the grid was run below `runs_dir`, or is not published.

    Raises:
        UsageError: if a name is unknown.
    """
    found = source_of(agent, suite, source)
    own, published = (found.folder(root) for root in (runs_dir, planning.PUBLISHED))
    if (own / PLAN).exists() or not (published / PLAN).exists():
        return None
    plan = _load(published, runs_dir, (agent, suite, source))
    return keep_declared(dataclasses.replace(plan, published=True))


def sweep_below(agent: str, suite: str, source: str | None, runs_dir: Path) -> str:
    """Return where the variants of a sweep lie that was run into a folder, in words.

    Empty if there are none, or if the folder has a grid of its own.

    Raises:
        UsageError: if a name is unknown.
    """
    found = source_of(agent, suite, source)
    variants = [
        path for path in sorted(runs_dir.glob("*=*")) if (found.folder(path) / PLAN).exists()
    ]
    if not variants or (found.folder(runs_dir) / PLAN).exists():
        return ""
    table = runs_dir / f"sweep-{agent}-{suite}.csv"
    compared = f"{table} compares them; " if table.exists() else ""
    first, *others = map(str, variants)
    more = f", or {', '.join(others[:3])}" if others else ""
    more += f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"{runs_dir} has the variants of a sweep: {compared}report one with --runs-dir {first}"
        f"{more}"
    )


def _load(folder: Path, runs_dir: Path, names: tuple[str, str, str | None]) -> Plan:
    """Return the plan that was last run in a folder, with its runs and reports in `runs_dir`."""
    saved = _read(folder / PLAN)
    agent, suite, source = names
    asked = {name: saved[name] for name in SAVED[2:] if name in saved}
    asked |= {"source": source, "runs_dir": runs_dir, "device": "cpu"}  # or what is not here now
    asked["settings"] = {
        key: str(value) for key, value in by_todays_names(saved["settings"]).items()
    }
    plan = make_plan(agent, suite, **asked)
    return keep_declared(dataclasses.replace(plan, device=saved["device"]), own_first=True)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a `plan.json`.

    Raises:
        UsageError: if it is absent, or not what `save_plan` writes.
    """
    try:
        saved = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"nothing was run here: {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise unreadable_plan(path, error) from None
    if not _is_plan(saved):
        raise unreadable_plan(path)
    refuse_many(len(saved["seeds"]), f"unreadable {path}")
    return saved


def _is_plan(saved: Any) -> bool:
    """Return whether a file's content has what `save_plan`, or an older version, writes."""
    if not isinstance(saved, dict) or any(k not in saved for k in SAVED if k not in YOUNGER):
        return False
    steps, seeds, changes = saved["env_steps"], saved["seeds"], saved["settings"]
    num_seeds = saved.get("num_seeds", dict.fromkeys(steps, 1) if isinstance(steps, dict) else {})
    texts, switches = ("agent", "suite", "budget", "device"), ("drop_checkpoints", "keep_best")
    return (
        all(isinstance(value, dict) for value in (steps, changes, num_seeds))
        and isinstance(seeds, list)
        and list(num_seeds) == list(steps)
        and all(type(n) is int and 0 < n <= len(seeds) for n in num_seeds.values())
        and all(type(n) is int and n > 0 for n in (*steps.values(), saved["workers"]))
        and all(type(seed) is int for seed in seeds)
        and all(isinstance(text, str) for text in (*changes.values(), *map(saved.get, texts)))
        and all(isinstance(saved.get(key, False), bool) for key in ("published", *switches))
        and isinstance(saved.get("checkpoint_minutes"), (int, float, type(None)))
        and bool(steps and seeds)
    )


def _refuse_scoreless(config: Any) -> None:
    """Refuse a run in whose last tenth no training episode can end, if these are what is scored.

    A policy that learns is taken to play no shorter episodes than a random one. Where even those
    are nearly as long as the limit, most are nearer to it than to the shortest.

    Raises:
        UsageError: naming the number of steps that gives a score.
    """
    task = config.find_task()
    shortest = shortest_episodes().get((task.name, task.protocol), 0)
    if config.evaluation_rule != "training" or not shortest:
        return
    limit = task.time_limit
    shortest = (shortest + limit) // 2 if 2 * shortest > limit else shortest
    stride = getattr(config, "unroll_rows", config.num_envs)

    def is_scored(env_steps: int) -> bool:
        last, first = env_steps // stride * stride, 0.9 * env_steps  # of all environments
        most = last // (shortest * config.num_envs)  # episodes of one of them
        return most > 0 and most * limit * config.num_envs > first

    if not is_scored(config.env_steps):
        # Steps behind the last whole stride count for nothing, so the worst number is the last one
        # before the next stride. With a hundred strides and episodes every number is scored.
        counts = range(100 * (shortest * config.num_envs + stride) // stride, 0, -1)
        enough = next((n + 1 for n in counts if not is_scored((n + 1) * stride - 1)), 1) * stride
        strides = range(config.env_steps // stride + 1, enough // stride)
        first = next((f"{n * stride}, or " for n in strides if is_scored(n * stride)), "")
        raise UsageError(
            f"{task.name}: {config.env_steps:,} steps give no score: of episodes of {shortest:,} "
            f"steps or more, in {counted(config.num_envs, 'environment')}, none is sure to end in "
            f"the last tenth; use --env-steps {first}{enough} or more"
        )
