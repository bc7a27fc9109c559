"""`--baseline`: the runs of another grid judge, in the place of a published curve.

What they measured becomes the tables that a source has in `results/references`, and is lent to
`references` under the name of the agent that is judged. Nothing is judged or drawn otherwise.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from agents import AGENTS
from reproduce.gather import collect
from reproduce.gather.references import COLUMNS, lend
from reproduce.plan import presets
from reproduce.plan.declared import PLAN, declared_in
from reproduce.plan.grid import Plan, Run
from reproduce.plan.make import read_grid
from reproduce.plan.presets import Source, presets_of, source_of
from reproduce.plan.status import NOT_SETTINGS, settings_of
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import find_task, folder_of
from suite.record.reading import read_record
from suite.settings.older import todays_settings
from suite.settings.presets import Data

MEASURES = ("evaluation_rule", "evaluation_interval", "evaluation_episodes")
"""How returns are measured; of training episodes' the first alone has an effect."""


class Baseline(NamedTuple):
    """The runs of a grid that judge another."""

    name: str
    """Of the source that they become."""
    folder: Path
    settings: Mapping[str, Any]
    """What their agent was configured with."""
    runs: tuple[Run, ...]
    """The declared ones, of tasks that both grids have."""


def with_baseline(plan: Plan) -> Plan:
    """Return a plan that is judged by its baseline, whose runs are lent; without one, the plan.

    A baseline that cannot judge, or is the plan itself, is refused by a `UsageError`.
    """
    if plan.baseline is None:
        return plan
    folder = _find(plan)
    if folder.resolve() == plan.directory.resolve():
        raise _refusal(plan, "it is this grid itself: name another")
    found = _read(plan, folder)
    _refuse_other_measures(plan, found)
    _lend(plan, found)
    departures = _departures(plan, found.settings)
    preset = dataclasses.replace(plan.preset, judged_by=found.name, departures=departures)
    named = plan.baseline if plan.baseline in AGENTS else str(Path(plan.baseline).resolve())
    return dataclasses.replace(plan, preset=preset, baseline=named)


def _departures(plan: Plan, theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a plan's settings, but for those of `--set`, are not the baseline's."""
    ours = settings_of(plan.config)
    differ = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    said = [
        f"{key} = {ours[key]} ({theirs[key]} in the baseline)"
        for key in differ
        if key not in plan.settings
    ]
    if others := sorted(ours.keys() ^ theirs.keys()):
        said.append(f"settings of one agent alone: {', '.join(others)}")
    return tuple(said)


def rows_of_runs(agent: str, rule: str, runs: Iterable[Run]) -> pd.DataFrame:
    """Return what runs measured, their evaluations or training episodes, as `curves_by_seed`."""
    frames = []
    for run in runs:
        table = collect.measured(run.directory, rule, run.env_steps)
        table = table[table["env_steps"] <= run.env_steps]
        frames.append(table.assign(agent=agent, env_id=run.task, seed=run.seed))
    return pd.concat(frames)[["agent", "env_id", "seed", "env_steps", "mean_return"]]


def mean_curves(agent: str, rule: str, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the mean curve of every task over the steps that all its runs have, as `curves`."""
    drawn = [
        collect.curve(run.directory, rule, run.env_steps).assign(task=run.task) for run in runs
    ]
    points = pd.concat(drawn).groupby(["task", "env_steps"], sort=False)["mean_return"]
    curve = points.agg(return_mean="mean", std="std", num_runs="count").reset_index()
    sizes = pd.Series([run.task for run in runs]).value_counts()
    curve = curve[curve["num_runs"] == curve["task"].map(sizes)].rename(columns={"task": "env_id"})
    ends = {"return_low": -curve["std"], "return_high": curve["std"]}
    ends = {name: curve["return_mean"] + std for name, std in ends.items()}
    return curve.assign(agent=agent, **ends)[[*COLUMNS["curves"]]]


def _refusal(plan: Plan, problem: str) -> UsageError:
    return UsageError(f"--baseline {plan.baseline}: {problem}")


def _find(plan: Plan) -> Path:
    """Return the folder of the baseline's grid.

    Of an agent it is that of the same suite, and source if it has it, below `--runs-dir` or the
    folder that holds it (that of a sweep, or of `--fresh`), or else the published one.
    """
    asked = str(plan.baseline)
    if asked not in AGENTS:
        here = Source(plan.agent, plan.suite, plan.source, plan.preset)
        places = (Path(asked), here.folder(Path(asked)))
        for folder in places:
            if (folder / PLAN).exists():
                return folder
        near = nearest(asked, AGENTS)
        raise _refusal(plan, f"it is no folder of a grid, and no agent{near}")
    has_source = (plan.suite, plan.source) in presets_of(asked)
    theirs = source_of(asked, plan.suite, plan.source if has_source else None)
    for root in (plan.runs_dir, plan.runs_dir.parent, presets.PUBLISHED):
        folder = theirs.folder(root)
        if (folder / PLAN).exists() and folder != plan.directory:
            return folder
    raise _refusal(plan, f"it has no grid of {plan.suite} yet: train it first")


def _read(plan: Plan, folder: Path) -> Baseline:
    saved = read_grid(folder)
    declared = declared_in(saved)
    tasks = [task for task in plan.tasks if task in saved["env_steps"]]
    if not tasks:
        problem = f"{folder} has none of the tasks {', '.join(plan.tasks)}"
        way = "give that grid's command with them first, finished runs are kept"
        raise _refusal(plan, f"{problem}: {way}")
    runs, records = [], []
    for task in tasks:
        steps, there = saved["env_steps"][task], folder / folder_of(task)
        planned = tuple(saved["seeds"][: saved["num_seeds"][task]])
        for seed in declared.get((task, steps), planned):
            run = Run(task, seed, steps, there / f"seed-{seed}")
            record = read_record(run.directory) or {"status": "planned"}
            if (status := record["status"]) != "finished":
                way = "leave out its task" if status == "diverged" else "go on with that grid first"
                raise _refusal(
                    plan,
                    f"{task} seed {seed} in {folder} is {status}, and a baseline needs every run: "
                    + way,
                )
            if (end := record["config"]["env_steps"]) < plan.env_steps[task]:
                raise _refusal(
                    plan,
                    f"{task} ends there at {end:,} steps, here at {plan.env_steps[task]:,}: use "
                    f"--env-steps {end}, or give that grid more steps first",
                )
            runs.append(run)
            records.append(record)
    first = records[0]
    name = f"{first.get('control') or first['agent']} (baseline)"
    known = presets_of(first["agent"]).values() if first["agent"] in AGENTS else [plan.preset]
    settings = todays_settings(type(next(iter(known)).config), first["config"])
    settings = {key: value for key, value in settings.items() if key not in NOT_SETTINGS}
    return Baseline(name, folder, settings, tuple(runs))


def _refuse_other_measures(plan: Plan, found: Baseline) -> None:
    ours = settings_of(plan.config)
    names = MEASURES[:1] if plan.rule == "training" else MEASURES
    theirs = {name: found.settings.get(name) for name in names}
    if any(find_task(task, plan.protocol).protocol for task in plan.tasks):
        ours |= {"protocol": plan.protocol}
        theirs |= {"protocol": found.settings.get("protocol", plan.protocol)}
    differ = {name: value for name, value in theirs.items() if value != ours.get(name)}
    if differ:
        said = [f"{name} is {differ[name]} there and {ours.get(name)} here" for name in differ]
        way = " ".join(f"{name}={value}" for name, value in differ.items())
        raise _refusal(plan, f"{', '.join(said)}: use --set {way}")


def _lend(plan: Plan, found: Baseline) -> None:
    runs, agent = found.runs, plan.agent
    of_runs = rows_of_runs(agent, plan.rule, runs)
    interval = None if plan.rule == "training" else found.settings["evaluation_interval"]
    if interval:
        due = of_runs.assign(due=of_runs["env_steps"] / interval)
        by_seed = due.groupby(["env_id", "seed"])["due"]
        is_whole = (due["due"] % 1 == 0).all() and (by_seed.diff().fillna(1) == 1).all()
        begin_together = (by_seed.min().groupby("env_id").nunique() == 1).all()
        interval = interval if is_whole and begin_together else None
    tasks = list(dict.fromkeys(run.task for run in runs))
    commits = {str((read_record(run.directory) or {}).get("commit")) for run in runs}
    data = Data(
        judges=True,
        rule=plan.config.evaluation_rule,
        evaluation_interval_steps=interval,
        path=str(found.folder),
        notes=f"Runs in {found.folder}, of commit {', '.join(sorted(commits))}",
    )
    comparable = pd.DataFrame({"env_id": tasks, "task": tasks}).assign(
        agent=agent,
        protocol=[find_task(task, plan.protocol).protocol for task in tasks],
        max_env_steps=float("nan"),
        why="the same task and version",
    )
    curves = mean_curves(agent, plan.rule, runs)
    tables = {"comparable": comparable, "curves_by_seed": of_runs, "curves": curves}
    lend(agent, found.name, data, tables)
