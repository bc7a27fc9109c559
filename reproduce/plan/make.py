"""Make a plan from a request, and a request of a plan: as a command, and as `plan.json`."""

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from reproduce.plan import presets
from reproduce.plan.declared import MIN_SEEDS, PLAN, declared_in, keep_declared, read_plan
from reproduce.plan.grid import Plan
from reproduce.plan.presets import source_of, tasks_of
from reproduce.plan.request import FIELDS, OPTIONAL, SAVED, Request, check, words_of
from reproduce.plan.resources import Cluster, check_writable, choose_device, default_workers
from reproduce.plan.status import NOT_SETTINGS, number_of, records_below
from reproduce.plan.unlearned import known_zero
from reproduce.words import counted
from suite.base.errors import UsageError, nearest
from suite.base.files import check_inside, write_json
from suite.base.hardware import find_device, num_cores
from suite.envs.tasks import refuse_unimported
from suite.settings.command_line import printable, read_value
from suite.settings.config import refuse_no_evaluations
from suite.settings.older import without_removed

THREADS = {
    "num_threads": "is 1 in every process",
    "env_threads": "is 1 in every process, and its share of the cores that no run keeps busy",
}
"""Settings that the harness decides itself, and how."""


def make_plan(agent: str, suite: str, *, cluster: Cluster | None = None, **asked: Any) -> Plan:
    """Return the plan that a request asks for; nothing is written.

    It runs on this machine where there is no cluster; `asked` are the other fields of `Request`. A
    `UsageError` says the nearest valid value of what is unknown or impossible.
    """
    request = Request(agent=agent, suite=suite, **asked)
    check(request)
    plan = _decide(request, cluster)
    if plan.device == "cpu":
        find_device("cpu", tf32=plan.config.tf32)
    check_writable(plan.directory)
    return plan


def _decide(request: Request, cluster: Cluster | None = None) -> Plan:
    """Return the plan of a request, its choices made."""
    agent, suite, changes = request.agent, request.suite, changes_of(request.settings)
    source = source_of(agent, suite, request.source)
    preset, spent = source.preset, source.preset.budgets[request.budget]
    device = choose_device(request.device, cluster)
    steps, number = request.env_steps, request.num_seeds
    if not isinstance(steps, dict):
        tasks = request.tasks or tasks_of(preset, suite, request.budget)
        steps = {task: steps or spent.steps(task) for task in tasks}
    task, count = next(iter(steps.items()))
    config = configure(preset.config, changes, task=task, env_steps=count)
    for task, count in steps.items():  # refuses what the agent cannot do
        refuse_scoreless(dataclasses.replace(config, task=task, env_steps=count))
    if request.keep_best:
        refuse_no_evaluations(config)
    directory = source.folder(request.runs_dir)
    check_inside(request.runs_dir, directory)
    usual = number if isinstance(number, int) else spent.num_seeds
    seeds = tuple(request.seeds or range(1, usual + 1))
    decided = {
        "source": source.name,
        "tasks": tuple(steps),
        "env_steps": steps,
        "seeds": seeds,
        "num_seeds": number if isinstance(number, dict) else dict.fromkeys(steps, len(seeds)),
        "settings": changes,
        "device": device,
        "workers": request.workers or default_workers(device, preset.cores_per_run, cluster),
        "launcher": "ray" if cluster else request.launcher,
        "ray_address": cluster.address if cluster else request.ray_address,
        "declared": dict.fromkeys(steps, seeds),
        **{"directory": directory, "config": config, "preset": preset, "cluster": cluster},
    }
    return Plan(**vars(request) | decided)


def changes_of(settings: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the changes that `--set` asks for, by setting; a `UsageError` without a `=`."""
    if isinstance(settings, Mapping):
        return dict(settings)
    changes: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--set: {setting!r} is not key=value, such as gamma=0.99")
        if key.replace("-", "_") in changes:
            raise UsageError("--set: a setting is named twice")
        changes[key.replace("-", "_")] = value
    return changes


def configure(config: Any, changes: Mapping[str, str], **run: Any) -> Any:
    """Return a preset's configuration of a run, with the changes of `--set`, or a `UsageError`."""
    hints = get_type_hints(type(config))
    known = [field.name for field in dataclasses.fields(config)]
    for key in changes:
        if key in NOT_SETTINGS and key != "cuda_graphs":
            own = THREADS.get(key, "has a flag of its own")
            raise UsageError(f"--set: {key} {own} (see --help)")
        if key not in known:
            raise UsageError(f"--set: unknown setting {key!r}{nearest(key, known)}")
    values = {key: read_value(f"--set: {key}", hints[key], [v]) for key, v in changes.items()}
    return dataclasses.replace(config, **run, **values)


def refuse_scoreless(config: Any) -> None:
    """Refuse a run in which no training episode can end, if these are what is scored.

    Random actions tell how short an episode may be. Who learns to end one sooner, as on
    MountainCar, has learned all but nothing by then. The number of steps that the line names is
    enough where all episodes are as long: a multiple of `first` ends in its last tenth, before the
    step or unroll that is not begun for it might exceed the end.
    """
    task = config.find_task()
    known = known_zero(task.name, task.protocol)
    first = (known.shortest_episode or 0) * config.num_envs
    if config.evaluation_rule == "training" and config.env_steps < first:
        stride = config.num_envs * getattr(config, "unroll_length", 1)
        raise UsageError(
            f"{task.name}: {config.env_steps:,} steps give no score: no episode of "
            f"{counted(config.num_envs, 'environment')} ends before {first:,}; use --env-steps "
            f"{10 * (first + stride)} or more"
        )


def save_plan(plan: Plan) -> None:
    """Write `plan.json`, from which `report` works without being told the plan again.

    It keeps the declared seeds of every task that was ever started in its folder. Fewer than
    `MIN_SEEDS` give no verdict, so a plan may try one seed first and continue with more.
    """
    path = plan.directory / PLAN
    declared = {key: plan.declared[key[0]] for key in plan.env_steps.items()}
    declared = {key: seeds for key, seeds in declared.items() if len(seeds) >= MIN_SEEDS}
    declared |= declared_in(read_plan(path))
    content = {name: getattr(plan, name) for name in SAVED}
    for name in OPTIONAL:
        if getattr(plan, name) != FIELDS[name].default:
            content[name] = getattr(plan, name)
    if not plan.program.is_ours:
        content["control"] = plan.program.name
    content["declared"] = [
        {"task": task, "env_steps": env_steps, "seeds": seeds}
        for (task, env_steps), seeds in declared.items()
    ]
    write_json(path, content)


def commands(plan: Plan, **other: Any) -> list[str]:
    """Return what goes on with a plan: a command for the tasks of equal steps and seeds.

    Tasks and seeds are always named, other choices where they differ from the default; `other` are
    fields to replace.
    """
    usual, default = plan.preset.budgets[plan.budget].steps, source_of(plan.agent, plan.suite, None)
    is_ours = plan.program.is_ours
    has_usual_device = plan.device == choose_device("auto", plan.cluster)
    too_many = plan.launcher == "local" and plan.workers > num_cores()  # it was run elsewhere
    is_usual = plan.has_default_workers and (plan.cluster or plan.launcher == "local")
    asked = {name: getattr(plan, name) for name in FIELDS} | {
        "source": None if is_ours and plan.source == default.name else plan.source,
        "num_seeds": None,
        "device": "auto" if has_usual_device or not is_ours else plan.device,
        "workers": None if is_usual or too_many else plan.workers,
    }
    alike = dict[Any, list[str]]()
    for task, steps in plan.env_steps.items():
        kind = (None if steps == usual(task) else steps, plan.num_seeds[task])
        alike.setdefault(kind, []).append(task)
    parts = (
        {"tasks": tasks, "env_steps": steps, "seeds": plan.seeds[:number]}
        for (steps, number), tasks in alike.items()
    )
    return [command_of(Request(**asked | part | other), plan.program.verb) for part in parts]


def command_of(request: Request, verb: Sequence[str] = ()) -> str:
    """Return the command that asks for a request; `verb`: the words before agent and suite."""
    words = [_python(), "-m", "reproduce", *verb, *words_of(request)]
    return printable(shlex.join(words))  # a path need not be text


def way_on(plan: Plan) -> str:
    """Return how to go on with a plan after it was stopped, in words."""
    return "\n  ".join(["go on with:", *commands(plan)])


def _python() -> str:
    """Return how this Python is called: `python` where that finds it, else its relative path."""
    here, found = Path(sys.executable), shutil.which("python")
    if (found and Path(found) == here) or not here.is_relative_to(Path.cwd()):
        return "python"  # no path of this machine gets into a page
    return str(here.relative_to(Path.cwd()))


def load_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan:
    """Return the plan that was last run in its place; a `UsageError` if none was."""
    found = source_of(agent, suite, source)
    folder, published = found.folder(runs_dir), found.folder(presets.PUBLISHED)
    if (published / PLAN).exists() and not (folder / PLAN).exists():
        raise UsageError(f"nothing was run in {folder}; our runs are in {published}")
    return load_grid(folder)


def read_grid(folder: Path) -> dict[str, Any]:
    """Return the content of a grid's `plan.json`; a `UsageError` if there is none."""
    saved = read_plan(folder / PLAN)
    if saved is None:
        raise UsageError(
            f"no grid was started here: {folder / PLAN} is missing; give the grid's command once, "
            "finished runs are kept"
        )
    return saved


def load_grid(folder: Path) -> Plan:
    """Return the plan that was last run in a folder `<agent>-<suite>/<source>`, as `load_plan`.

    In `results/published` runs of older code count.
    """
    saved = read_grid(folder)
    if peer := saved.get("control"):
        fix = "give its own command again, which goes on and reports"
        raise UsageError(f"{folder} is a control, made by {peer}: {fix}")
    for task in saved["env_steps"]:
        refuse_unimported(task, PLAN)
    config = source_of(saved["agent"], saved["suite"], folder.name).preset.config
    known = {field.name for field in dataclasses.fields(config)}
    settings = {k: str(value) for k, value in without_removed(saved["settings"], known).items()}
    asked: dict[str, Any] = {name: saved[name] for name in (*SAVED, *OPTIONAL) if name in saved}
    asked |= {"source": folder.name, "settings": settings, "runs_dir": folder.parent.parent}
    asked |= {"device": "cpu"}  # its own may not be here
    request = Request(**asked)
    check(request)
    plan = keep_declared(dataclasses.replace(_decide(request), device=saved["device"]))
    is_published = folder.resolve().is_relative_to(presets.PUBLISHED.resolve())
    return dataclasses.replace(plan, behaviours=_newest(folder)) if is_published else plan


def _newest(folder: Path) -> dict[str, int]:
    """Return the newest number of a behaviour among the runs of each task."""
    found: dict[str, int] = {}
    for _, record in records_below(folder):
        if (number := number_of(record)) is not None:
            found[record["task"]] = max(number, found.get(record["task"], 0))
    return found
