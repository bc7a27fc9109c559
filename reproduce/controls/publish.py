"""A finished control as a reference: `results/references/<peer>_control`.

What is written is what any source has there (see the README beside them), so `--like sb3_control`
trains ours with the settings that the peer ran with, and what the peer reached judges it.
"""

import dataclasses
import json
import lzma
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from reproduce.controls.peer import SUFFIX, peer_of
from reproduce.gather import collect
from reproduce.gather.baseline import mean_curves, rows_of_runs
from reproduce.gather.tables import runs_of
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands
from reproduce.run.lease import LOCK
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.record.reading import read_record
from suite.settings import presets
from suite.settings.presets import BUDGETS, CITATION, read_source

UNSTATED = ("task", "seeds", "env_steps", "device", "num_threads", "protocol")
"""Fields of a configuration that a source's settings leave out."""


def publish(plan: Plan) -> Path:
    """Write a finished control's settings, single runs and curves; return its folder.

    The runs are those that were declared before any was made: who adds some after a look at the
    others can choose the reference.

    What was published of other agents, suites and tasks stays. Every run must be finished.
    """
    check_publishable(plan)
    runs = collect.collect(plan, runs_of(plan))["runs"]
    for row in runs[runs["status"] != "finished"].to_dict("records"):
        raise UsageError(
            f"{row['task']} seed {row['seed']} is {row['status']}: a reference needs every run"
        )
    folder = presets.REFERENCES / f"{peer_of(plan).name}{SUFFIX}"
    path = folder / f"{plan.agent}.toml"
    measured = plan.agent, plan.rule, plan.runs()
    with FileLock(presets.REFERENCES / LOCK):  # tables are shared by agents, and sources
        document = _document(plan, path)
        folder.mkdir(exist_ok=True)
        write_atomically(path, _toml(document).encode())  # first: rows without it are refused
        _write_table(plan, folder / "curves_by_seed.csv.xz", rows_of_runs(*measured))
        _write_table(plan, folder / "curves.csv", mean_curves(*measured))
        _write_comparable(plan, folder.name)
    return folder


def check_publishable(plan: Plan) -> None:
    """Refuse a control that could not be published, before it runs.

    Such a control has runs that end between two evaluations, seeds other than the declared ones, a
    rule or interval other than before, or settings other than those of published tasks that it does
    not run again.
    """
    interval = plan.config.evaluation_interval
    for task, steps in plan.env_steps.items():
        if set(plan.declared[task]) != set(plan.seeds):
            started = " ".join(map(str, plan.declared[task]))
            raise UsageError(
                f"--publish: {task} was started with seeds {started}: a reference has the seeds "
                "that were declared before any was run; start anew with --fresh or "
                "another --runs-dir"
            )
        if plan.rule != "training" and steps % interval:
            raise UsageError(
                f"--publish: {task} would end between two evaluations: --env-steps must be a "
                f"multiple of {interval:,}, not {steps:,}"
            )
    _document(plan, presets.REFERENCES / f"{peer_of(plan).name}{SUFFIX}" / f"{plan.agent}.toml")


def _document(plan: Plan, path: Path) -> dict[str, Any]:
    """Return the content of a reference's file, with what it held before of other tasks."""
    peer, before = peer_of(plan), read_source(path) if path.exists() else {}
    earlier = dataclasses.asdict(before["data"]) if before else {}
    suites, settings = before.get("suites", {}), _settings(plan)
    interval = None if plan.rule == "training" else plan.config.evaluation_interval
    measured = {"rule": plan.rule, "evaluation_interval_steps": interval}
    if before and any(earlier[key] != value for key, value in measured.items()):
        raise UsageError(f"{path} was measured otherwise: delete it, with its rows, to replace it")
    here = suites.get(plan.suite, {"tasks": ()})
    _refuse_contradictions(plan, path, suites, settings)
    steps = {task: _length(here, task) for task in here["tasks"]} | dict(plan.env_steps)
    paths, notes = ["; ".join(commands(plan))], [_notes(plan)]
    if before:  # the rows that stay were made as is said there, in lines that belong together
        lines = zip(earlier["path"].splitlines(), earlier["notes"].splitlines(), strict=False)
        stay = {*steps} - {*plan.tasks}
        kept = [line for line in lines if _stays(line[0].replace(";", " ").split(), plan, stay)]
        paths, notes = [path for path, _ in kept] + paths, [note for _, note in kept] + notes
    data = {"judges": True, **measured, "path": "\n".join(paths), "notes": "\n".join(notes)}
    facts = {key: getattr(peer, key) for key in ("title", "repository", "commit", "licence")}
    together = {"seeds_together": True} if plan.preset.seeds_together else {}
    default = {key: here[key] for key in ("default",) if key in here}
    budgets = _budgets(plan, steps)
    suite = {**default, "tasks": list(steps), "settings": settings, "budgets": budgets}
    return {
        **facts,
        **{"judged_by": path.parent.name, "departures": peer.stated, **together},
        "data": {key: value for key, value in data.items() if value is not None},
        "suites": suites | {plan.suite: suite},
    }


def _refuse_contradictions(
    plan: Plan, path: Path, suites: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raise a `UsageError` if a task that stays would have other settings, or a task two suites."""
    for name, other in suites.items():
        stay = sorted(set(other["tasks"]) - set(plan.tasks))
        if name == plan.suite and stay and other["settings"] != settings:
            raise UsageError(
                f"{path} holds {', '.join(stay)} in other settings: run these again with the "
                "others, or delete it, with its rows, to replace it"
            )
        twice = [task for task in plan.tasks if task in other["tasks"]]
        if name != plan.suite and twice:
            raise UsageError(
                f"{path} holds {', '.join(twice)} of {name}, and a task has one curve: run them as "
                f"tasks of {name}"
            )


def _stays(words: Sequence[str], plan: Plan, tasks: Collection[str]) -> bool:
    """Return whether commands made rows of another suite, or of tasks that are not replaced."""
    return plan.suite not in words or not {*tasks}.isdisjoint(words)


def _length(suite: Mapping[str, Any], task: str) -> int:
    spent = suite["budgets"]["paper"]
    return spent.get("env_steps_of", {}).get(task, spent["env_steps"])


def _settings(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return every setting that the peer was given or has, or that a source states, with why."""
    peer, default = peer_of(plan), {"because": f"default of agents/{plan.agent}.py"}
    reasons = {name: default for name in peer.sets} | _stated(plan)
    reasons |= {name: {"because": "set by --set"} for name in plan.settings}
    origin = f"{peer.repository}@{peer.commit}:"
    reasons |= {name: _reason(entry, origin) for name, entry in peer.has.items()}
    settings = {}
    for field in dataclasses.fields(plan.config):
        if field.name in reasons and field.name not in UNSTATED:
            value = getattr(plan.config, field.name)
            value = list(value) if isinstance(value, tuple) else "none" if value is None else value
            settings[field.name] = {"value": value, **reasons[field.name]}
    return settings


def _stated(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the places of the settings that the plan's source states, for any reader."""
    source = read_source(presets.REFERENCES / plan.source / f"{plan.agent}.toml")
    tables = (source.get("settings", {}), source["suites"][plan.suite].get("settings", {}))
    own = f"{source.get('repository')}@{source.get('commit')}:"
    return {key: _reason(entry, own) for table in tables for key, entry in table.items()}


def _reason(entry: Mapping[str, Any], origin: str) -> dict[str, str]:
    """Return an entry's place, its repository named, or the reason that it gives."""
    if "at" not in entry:
        return {"because": entry["because"]}
    cited = CITATION.fullmatch(entry["at"])
    is_whole = entry["at"].startswith("arXiv:") or (cited and cited["elsewhere"])
    return {"at": entry["at"] if is_whole else origin + entry["at"]}


def _budgets(plan: Plan, steps: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the source's budgets, none longer than the control, which is that of `paper`.

    They end with an evaluation, as only such steps have a reference.
    """
    budgets: dict[str, dict[str, Any]] = {}
    interval = 1 if plan.rule == "training" else plan.config.evaluation_interval
    for name, budget in ((name, plan.preset.budgets[name]) for name in BUDGETS):
        each, number = dict(steps), len(plan.seeds)
        if name != "paper":
            each = {task: min(budget.steps(task), most) for task, most in steps.items()}
            each = {task: max(most // interval, 1) * interval for task, most in each.items()}
            number = min(budget.num_seeds, number)
        longest = max(each.values())
        shorter = {task: count for task, count in each.items() if count != longest}
        budgets[name] = {"env_steps": longest, "num_seeds": number}
        budgets[name] |= {"env_steps_of": shorter} if shorter else {}
    return budgets


def _notes(plan: Plan) -> str:
    facts = set()
    for said in filter(None, (read_record(run.directory) for run in plan.runs())):
        changed = " with changes" * bool(said["dirty"])
        made = f"Python {said['versions']['python']} on {said['machine']['cpu']}"
        facts.add(f"{made}, glue of commit {str(said['commit'])[:7]}{changed}")
    pins, packages = peer_of(plan).pins, ("torch", "gymnasium", "numpy", "mujoco")
    known = ", ".join(f"{name} {pins[name]}" for name in packages if name in pins)
    but = f", but for {'; '.join(plan.departures)}" if plan.departures else ""
    program = f"Trained here by the peer's own program, with {known}; {'; '.join(sorted(facts))}."
    return f"{program} Settings of {plan.source}{but}."


def _write_table(plan: Plan, path: Path, rows: pd.DataFrame) -> None:
    """Write rows in the place of those of the same agent and tasks."""
    if path.exists():
        before = pd.read_csv(path)
        replaced = (before["agent"] == plan.agent) & before["env_id"].isin(plan.tasks)
        rows = pd.concat([before[~replaced], rows])
    content = rows.to_csv(index=False, lineterminator="\n").encode()
    write_atomically(path, lzma.compress(content) if path.suffix == ".xz" else content)


def _write_comparable(plan: Plan, source: str) -> None:
    """Let every task compare with itself."""
    path = presets.REFERENCES / "comparable.csv"
    ours = [f"{plan.agent},{source},{task},{task}," for task in plan.tasks]
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(tuple(ours))]
    kept += [f"{start},,the same task and version" for start in ours]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def _toml(document: Mapping[str, Any]) -> str:
    """Return a reference's file as text: its own keys, `data`, then three tables of each suite."""
    tables = {"": _without(document, "data", "suites"), "data": document["data"]}
    for suite, table in document["suites"].items():
        tables[f"suites.{suite}"] = _without(table, "settings", "budgets")
        tables |= {f"suites.{suite}.{name}": table[name] for name in ("settings", "budgets")}
    parts = []
    for name, table in tables.items():
        rows = [f"{key} = {_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{name}]", *rows] if name else rows))
    return "\n\n".join(parts) + "\n"


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in names}


def _value(value: object) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(of)}' for key, of in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
