"""Make a plan from a command's arguments, or from a `plan.json`."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from reproduce.plan import grid as planning
from reproduce.plan.declared import (
    MIN_SEEDS,
    Declared,
    declare,
    read_declared,
    refuse_many,
    unreadable_plan,
)
from reproduce.plan.grid import (
    NOT_SETTINGS,
    PLAN_KEYS,
    Plan,
    check_agent,
    flags_of,
    folder_of,
    presets_of,
)
from reproduce.plan.places import Cluster, check_writable, choose_device, default_workers
from reproduce.plan.sweep import variants
from reproduce.words import counted
from suite.command_line import override
from suite.files import check_inside, read_json
from suite.recorder import refuse_no_evaluations
from suite.settings import (
    BUDGETS,
    Preset,
    UsageError,
    by_todays_names,
    find_preset,
    find_source,
    nearest,
)
from suite.tasks import SUITES, find_suite, find_task, nearest_task, shortest_episodes, tasks_in


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
    workers: int | None = None,
    device: str = "auto",
    runs_dir: Path = Path("runs"),
    settings: Sequence[str] = (),
    published: bool = True,
    checkpoint_minutes: float | None = None,
    drop_checkpoints: bool = False,
    keep_best: bool = False,
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
        workers: processes side by side; default: one per core, or one per GPU; on a cluster as
            many as it has room for.
        device: `auto`, `cpu`, `cuda`, which means every GPU, or `cuda:<i>`.
        runs_dir: where runs go.
        settings: `key=value` changes of the agent's configuration.
        published: count finished runs under `results/published`.
        checkpoint_minutes: time between two checkpoints; default: the agents' own.
        drop_checkpoints: let finished runs lose their checkpoint.
        keep_best: let runs keep the policy of their best evaluation beside the last.
        cluster: where it runs; default: on this machine.

    Raises:
        UsageError: for anything unknown or impossible, with the nearest valid value.
    """
    check_agent(agent)
    allowed = tasks_in(suite)
    for name in tasks or ():
        if name not in allowed:
            raise UsageError(f"--tasks: no task {name!r} in {suite}{nearest_task(name, allowed)}")
    if budget not in BUDGETS:
        raise UsageError(f"--budget: unknown budget {budget!r}{nearest(budget, BUDGETS)}")
    if seeds is None:
        refuse_many(num_seeds or 1, "--num-seeds")
    else:
        refuse_many(len(seeds), "--seeds")
    for seed in seeds or ():
        if not 0 <= seed < 2**31:
            raise UsageError(f"--seeds: {seed} is outside 0..2147483647")
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise UsageError("--seeds: a seed is named twice")
    changes = dict(_split(setting) for setting in settings)
    if len(changes) < len(settings):
        raise UsageError("--set: a setting is named twice")
    check_writable(runs_dir)
    source = _find_source(agent, suite, source)
    preset = find_preset(presets_of(agent), suite, source)
    device = choose_device(device, cluster)
    spent = preset.budgets[budget]
    names = tuple(tasks or tasks_of(preset, suite, budget))
    steps = {name: env_steps or spent.steps(name) for name in names}
    config = _configure(preset.config, names[0], changes)
    for name, count in steps.items():  # refuses what the agent cannot do
        _refuse_scoreless(dataclasses.replace(config, task=name, env_steps=count))
    if keep_best:
        refuse_no_evaluations(config)
    directory = folder_of(runs_dir, agent, suite, source, preset)
    check_inside(runs_dir, directory)
    check_writable(directory)
    chosen = tuple(seeds or range(1, (num_seeds or spent.num_seeds) + 1))
    return Plan(
        agent=agent,
        suite=suite,
        source=source,
        budget=budget,
        env_steps=steps,
        seeds=chosen,
        num_seeds=dict.fromkeys(names, len(chosen)),
        declared=dict.fromkeys(names, chosen),
        settings=changes,
        device=device,
        workers=workers or default_workers(device, preset.cores_per_run, cluster),
        directory=directory,
        published=published,
        config=config,
        preset=preset,
        checkpoint_minutes=checkpoint_minutes,
        drop_checkpoints=drop_checkpoints,
        keep_best=keep_best,
        cluster=cluster,
    )


def variants_of(
    agent: str, suite: str, source: str | None, settings: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the `--set` of every variant that is asked for; one where nothing varies.

    Raises:
        UsageError: for an unknown name, or values that make no sweep.
    """
    check_agent(agent)
    tasks_in(suite)
    for setting in settings:
        _split(setting)
    if not any(set(setting) & {",", "/"} for setting in settings):
        return [tuple(settings)]  # without torch, which presets need
    presets = presets_of(agent)
    source = _find_source(agent, suite, source)
    return variants(find_preset(presets, suite, source).config, settings)


def tasks_of(preset: Preset[Any], suite: str, budget: str) -> tuple[str, ...]:
    """Return the tasks of a suite that a budget trains where nobody names any."""
    return preset.budgets[budget].tasks or preset.tasks or find_suite(suite)


def left_out(plan: Plan) -> list[str]:
    """Return a line for the tasks of a suite that an agent, or a budget, leaves out, and why."""
    can = plan.preset.tasks or find_suite(plan.suite)
    cannot = [task for task in find_suite(plan.suite) if task not in can]
    lines = []
    if cannot:
        why = f"{plan.source} says nothing of them"
        kinds = _kinds(cannot)
        if not kinds & _kinds(can):
            why = f"they have {' and '.join(sorted(kinds))} actions"
        lines.append(f"Skipped, for {plan.agent} cannot do them ({why}): {' '.join(cannot)}")
    beyond = [task for task in can if task not in plan.tasks]
    if beyond:
        lines.append(f"Not in --budget {plan.budget}, but with --tasks: {' '.join(beyond)}")
    return lines


def _kinds(tasks: Iterable[str]) -> set[str]:
    """Return the kinds of action that tasks have."""
    return {find_task(task).actions for task in tasks}


def _find_source(agent: str, suite: str, asked: str | None) -> str:
    """Return the name of a source on a suite, as `find_source`.

    Raises:
        UsageError: for an agent without this suite, with the reason.
    """
    presets = presets_of(agent)
    suites = dict.fromkeys(known for known, _ in presets)
    if suite not in suites:
        learns = _kinds(
            task for (known, _), preset in presets.items() for task in preset.tasks or SUITES[known]
        )
        has = _kinds(find_suite(suite))
        why = f"no source has settings for it, see results/references/*/{agent}.toml"
        if not learns & has:
            why = f"it learns {' and '.join(sorted(learns))} actions, those are "
            why += " and ".join(sorted(has))
        raise UsageError(f"{agent} has no suite {suite!r}: {why}; choose from {', '.join(suites)}")
    return find_source(presets, suite, asked)


def load_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan:
    """Return the plan that was last run in its place.

    Raises:
        UsageError: if nothing was run there, or a name is unknown.
    """
    return _load(agent, suite, source, runs_dir, runs_dir)


def load_published_plan(agent: str, suite: str, source: str | None, runs_dir: Path) -> Plan | None:
    """Return the plan of a published grid, with its reports below `runs_dir`.

    None if the grid was run below `runs_dir`, or is not published.

    Raises:
        UsageError: if a name is unknown.
    """
    check_agent(agent)
    find_suite(suite)
    source = _find_source(agent, suite, source)
    preset = find_preset(presets_of(agent), suite, source)
    folders = [
        folder_of(root, agent, suite, source, preset) for root in (runs_dir, planning.PUBLISHED)
    ]
    if (folders[0] / "plan.json").exists() or not (folders[1] / "plan.json").exists():
        return None
    plan = _load(agent, suite, source, planning.PUBLISHED, runs_dir)
    return keep_declared(dataclasses.replace(plan, published=True))


def sweep_below(agent: str, suite: str, source: str | None, runs_dir: Path) -> str:
    """Return where the variants of a sweep lie that was run into a folder, in words.

    Empty if there are none, or if the folder has a grid of its own.

    Raises:
        UsageError: if a name is unknown.
    """
    check_agent(agent)
    find_suite(suite)
    source = _find_source(agent, suite, source)
    preset = find_preset(presets_of(agent), suite, source)

    def has_plan(root: Path) -> bool:
        return (folder_of(root, agent, suite, source, preset) / "plan.json").exists()

    variants = [path for path in sorted(runs_dir.glob("*=*")) if has_plan(path)]
    if not variants or has_plan(runs_dir):
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


def _load(agent: str, suite: str, source: str | None, root: Path, runs_dir: Path) -> Plan:
    """Return the plan that was last run below `root`, with its runs and reports in `runs_dir`."""
    check_agent(agent)
    find_suite(suite)
    source = _find_source(agent, suite, source)
    preset = find_preset(presets_of(agent), suite, source)
    path = folder_of(root, agent, suite, source, preset) / "plan.json"
    try:
        saved = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"nothing was run here: {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise unreadable_plan(path, error) from None
    if not _is_plan(saved):
        raise unreadable_plan(path)
    refuse_many(len(saved["seeds"]), f"unreadable {path}")
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
    return keep_declared(plan, own_first=True)


def keep_declared(plan: Plan, *, counts_begun: bool = False, own_first: bool = False) -> Plan:
    """Return the plan with the seeds that were declared when its tasks were first started.

    Where published runs count, the seeds that were declared for them hold: their scores are known.

    Args:
        plan: what is asked for now.
        counts_begun: whether each task also runs the seeds that it was declared, or begun, with.
        own_first: whether what its own folder declares holds before what is published.

    Raises:
        UsageError: if it cannot keep to what was declared, or picks seeds, see `_refuse_picking`.
    """
    own = read_declared(plan.directory / "plan.json")
    declared = dict(own)
    of_published: Declared = {}
    if plan.published:
        folder = plan.published_folder
        published = read_declared(folder / "plan.json")
        runs = plan.runs() if published else []
        taken = {run.task for run in runs if run.directory.is_relative_to(folder)}
        of_published = {key: seeds for key, seeds in published.items() if key[0] in taken}
        declared |= of_published
        declared |= own if own_first else {}
        of_published = {key: of for key, of in of_published.items() if declared[key] is of}
    if counts_begun:
        plan = _with_begun(plan, declared)
    of_tasks: dict[str, tuple[int, ...]] = {}
    for task, env_steps in plan.env_steps.items():
        seeds = plan.seeds[: plan.num_seeds[task]]
        of_tasks |= declare(declared, {task: env_steps}, seeds, of_published)
        is_new = (task, env_steps) not in declared
        if is_new and not counts_begun and len(seeds) >= MIN_SEEDS:
            _refuse_picking(plan, task, seeds)
    return dataclasses.replace(plan, declared=of_tasks)


def _with_begun(plan: Plan, declared: Declared) -> Plan:
    """Return the plan with every task's other seeds, which it was declared or begun with.

    Raises:
        UsageError: if a task would get seeds that only another one has.
    """
    more: dict[str, set[int]] = {}
    for task, env_steps in plan.env_steps.items():
        begun = set(declared.get((task, env_steps), ())) or plan.seeds_begun(task)
        more[task] = begun - set(plan.seeds) if begun & set(plan.seeds) else set()
    seeds = (*plan.seeds, *sorted(set().union(*more.values())))
    num_seeds = {task: plan.num_seeds[task] + len(others) for task, others in more.items()}
    for task, others in more.items():
        if set(seeds[len(plan.seeds) : num_seeds[task]]) != others:
            ours = " ".join(map(str, (*plan.seeds, *sorted(others))))
            raise UsageError(
                f"{task} was begun with other seeds than the other tasks: start it by itself, with "
                f"--tasks {task} --seeds {ours}"
            )
    return dataclasses.replace(plan, seeds=seeds, num_seeds=num_seeds)


def _refuse_picking(plan: Plan, task: str, seeds: Sequence[int]) -> None:
    """Refuse to declare some of the seeds that were begun without the others.

    Their scores may be guessed. Seeds of which none was begun are another experiment.

    Raises:
        UsageError: naming the seeds that are left out.
    """
    begun = plan.seeds_begun(task)
    others = sorted(begun - set(seeds))
    if others and begun & set(seeds):
        everything = " ".join(map(str, (*seeds, *others)))
        anew = "--fresh --no-published" if plan.published else "--fresh"
        raise UsageError(
            f"{task} was begun with seeds {' '.join(map(str, others))}, too, and a verdict leaves "
            f"none out: use --seeds {everything}, or start anew beside them with {anew} and other "
            "--seeds"
        )


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


THREADS = {
    "num_threads": "is 1 in every process",
    "env_threads": "is 1 in every process, and its share of the cores that no run keeps busy",
    "evaluate_beside": "is on where a process has idle cores, and a CPU or CUDA graphs to train",
}
"""Settings that the harness decides itself, and how."""


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not (key and equals and value):
        raise UsageError(f"--set: {setting!r} is not key=value, such as gamma=0.99")
    return key.replace("-", "_"), value


def _configure(config: Any, task: str, changes: Mapping[str, str]) -> Any:
    """Return the preset's configuration with `--set` applied."""
    for key in changes:
        if key in NOT_SETTINGS:
            own = THREADS.get(key, "has a flag of its own")
            raise UsageError(f"--set: {key} {own} (see --help)")
        known = [field.name for field in dataclasses.fields(config)]
        if key not in known:
            raise UsageError(f"--set: unknown setting {key!r}{nearest(key, known)}")
    for key, value in changes.items():
        words = re.split("[,/]", value)
        if len(words) > 1 and {"-h", "--help"} & set(words):  # each becomes a word of its own
            raise UsageError(f"--set: {key} cannot be {value!r}")
        _check_value(config, key, value)
    find_task(task)
    return _overridden(config, (*flags_of(config, changes), "--task", task))


def _check_value(config: Any, key: str, value: str) -> None:
    """Refuse a value of `--set` that is not of its setting's type.

    Raises:
        UsageError: naming the setting, the value and what is allowed.
    """
    hint = get_type_hints(type(config))[key]  # without the range, which the configuration checks
    parts = [part for part in get_args(hint) if part is not NoneType]
    is_optional = NoneType in get_args(hint)
    if is_optional and value in ("none", "None"):
        return
    if is_optional and len(parts) == 1:
        hint = parts[0]
    is_list = get_origin(hint) is tuple
    kind = get_args(hint)[0] if is_list else hint
    choices = [str(each) for each in get_args(hint)] if get_origin(hint) is Literal else []
    allowed = {int: "a whole number such as 256", float: "a number such as 0.99"}.get(kind, "")
    if is_list:
        many = {int: "whole numbers such as 64,64", float: "numbers such as 0.5,0.99"}
        allowed = many.get(kind, "")
    values = value.split(",") if is_list else [value]
    if choices:
        fits, allowed = value in choices, f"one of {', '.join(choices)}"
    else:
        fits = not allowed or all(_reads(kind, each) for each in values)
    if not fits:
        other = ", or none" if is_optional else ""
        raise UsageError(f"--set: {key} is {allowed}{other}, not {value!r}")


def _reads(kind: Callable[[str], object], text: str) -> bool:
    """Return whether a text is a number of a kind, `int` or `float`."""
    try:
        kind(text)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _overridden(config: Any, flags: tuple[str, ...]) -> Any:
    return override(config, flags)
