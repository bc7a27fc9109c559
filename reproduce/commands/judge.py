"""`judge AGENT CURVES`: verdicts on curves that any program recorded."""

import dataclasses
import hashlib
import importlib
import math
import os
import shlex
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import agents
from reproduce.commands import flags
from reproduce.gather import references
from reproduce.gather.collect import on_schedule, window_means
from reproduce.gather.others import COLUMNS, Curves, read_curves
from reproduce.judge.zero import Scale, first_update, scale_of, too_early
from reproduce.pipeline import curves_beside, exit_status, judge_scores, write_tables
from reproduce.plan.presets import check_agent, presets_of
from reproduce.plan.resources import check_writable
from reproduce.report import tables
from reproduce.report.words import verdict_lines
from reproduce.run.view import say
from suite.base.errors import UsageError, nearest
from suite.envs.tasks import TASKS, Task, find_task, nearest_task, tasks_in
from suite.settings.command_line import whole
from suite.settings.presets import origin_of


def judge_curves(
    agent: str, curves: Curves, source: str, *, env_steps: int | None = None
) -> dict[str, pd.DataFrame]:
    """Judge curves by a source, as the runs of a grid are judged; return a grid's tables.

    A score is the mean of `mean_return` over (0.9 t, t], reward units, as `collect.score` makes it.
    `curves` has a row for each evaluation of a run, or, for a source of rule `training`, for each
    of its training episodes; or it is a grid's `curves.csv`, which has a column `rule` and gives
    the grid's own scores. Without `env_steps`, t is of each task the last step that all of its runs
    have reached.
    """
    rule, from_grid = _rule_of(agent, curves, source), curves.rule is not None
    are_episodes = rule == "training" and not from_grid
    if not are_episodes:
        _check_unique(curves, rule)
    scores, scales, drawn, presented = [], dict[str, Scale](), [], dict[str, Task]()
    covered = references.coverage(agent, source)
    protocols = dict(zip(covered["task"], covered["protocol"], strict=True))
    last_steps = dict(zip(covered["task"], covered["last_step"], strict=True))
    for name, rows in ((str(name), rows) for name, rows in curves.rows.groupby("task", sort=False)):
        if name not in TASKS:  # one that a module registers would be imported
            raise UsageError(f"{curves.name}: unknown task {name!r}{nearest_task(name, TASKS)}")
        presented[name] = task = find_task(name, protocols.get(name) or "noframeskip")
        try:
            steps, found = score_runs(rows, rule, from_grid, env_steps)
            config = _config_of(agent, source, task, rule)
            if steps <= first_update(config):
                raise UsageError(too_early(agent, source, config))
        except UsageError as error:
            raise UsageError(f"{curves.name}: {name}, {error}") from None
        scores += [(name, seed, steps, score, rule) for seed, score in found.items()]
        scales[name] = scale_of(agent, source, config, steps)
        last = last_steps.get(name, steps)
        if are_episodes and env_steps is None and not scales[name].reference and last < steps:
            raise UsageError(
                f"{curves.name}: {name}, {source} has no score at {steps:,} steps, where its seeds "
                f"end: give --env-steps {last}"
            )
        for seed, run in rows.groupby("seed"):
            inside = run[run["env_steps"] <= steps].sort_values("env_steps", kind="stable")
            line = window_means(run, steps) if are_episodes else inside
            drawn.append(line.assign(task=name, seed=seed, rule=rule))
    table = pd.DataFrame(scores, columns=["task", "seed", "env_steps", "score", "rule"])
    lines = pd.concat(drawn, ignore_index=True).reindex(columns=list(tables.COLUMNS["curves"]))
    runs = table[["task", "seed", "env_steps"]].assign(status="finished")
    return judge_scores(table, scales, runs, lines) | {
        "reference_curves": curves_beside(agent, source, presented),
        "throughput": pd.DataFrame(columns=pd.Index(tables.COLUMNS["throughput"])),
    }


def _rule_of(agent: str, curves: Curves, source: str) -> str:
    """Return the rule of a source; refuse an unknown name, or curves of another rule."""
    check_agent(agent)
    judges = {name: each for name, each in references.sources(agent).items() if each.judges}
    if source not in judges:
        presets = presets_of(agent)
        known = {
            name: preset.judged_by for (_, name), preset in presets.items() if preset.judged_by
        }
        other = nearest(source, judges)
        if source in known:
            whose, judge = origin_of(presets, agent), known[source]
            place = f"--like {judge}" if whose == agent else f"{whose} as agent, --like {judge}"
            other = f", but {judge} judges its settings: give {place}"
        raise UsageError(f"no source {source!r} judges {agent}{other}")
    rule, said = judges[source].rule, "training" if curves.episodes else curves.rule
    if said not in (None, rule):
        able = [name for name, each in judges.items() if each.rule == said]
        fix = f"give --like {' or '.join(able)}" if able else f"give rows of rule {rule}"
        raise UsageError(
            f"{curves.name}: its rows are of rule {said!r}, and {source} judges by rule {rule}: "
            + fix
        )
    return rule


def _check_unique(curves: Curves, rule: str) -> None:
    rows = curves.rows
    for row in rows[rows.duplicated(["task", "seed", "env_steps"])].itertuples():
        what = "evaluations at {:,}"
        if rule == "training":
            what = "means at {:,}: leave out the column rule of episodes"
        where = f"{curves.name}: {row.task}, seed {row.seed} has two"
        raise UsageError(f"{where} {what.format(row.env_steps)}")


def _config_of(agent: str, source: str, task: Task, rule: str) -> Any:
    """Return the settings that a source judges, on a task: a preset's, else the agent's defaults.

    A preset of a suite that has the task comes first: those of other suites may differ.

    They say when the first update is made and how many environments there are. How long a source
    without a preset warms up is unknown: none of its steps is refused for that.
    """
    module = importlib.import_module(f"agents.{agent}")
    judged = {key: each for key, each in module.PRESETS.items() if each.judged_by == source}
    own = {key: p for key, p in judged.items() if task.name in (p.tasks or tasks_in(key[0]))}
    changes: dict[str, Any] = {"task": task.name, "evaluation_rule": rule}
    if task.protocol:
        changes["protocol"] = task.protocol
    if judged:
        best = max(own, key=lambda key: key[1] == source) if own else next(iter(judged))
        return dataclasses.replace(judged[best].config, **changes)
    names = {field.name for field in dataclasses.fields(module.Config)}
    unknown = dict.fromkeys(names & {"learning_starts", "warm_up_steps"}, 0)
    return module.Config(**changes, **unknown)


def score_runs(
    rows: pd.DataFrame, rule: str, from_grid: bool, env_steps: int | None
) -> tuple[int, dict[int, float]]:
    """Return t, and the score of each run of one task at t, by seed; reward units.

    By rule `training`, episodes that end on t itself are rare: a run that has one in (0.9 t, t]
    counts as one that reached t. A row of a grid's table is then the score at its own step. Errors
    do not name file and task.

    Args:
        rows: `seed`, `env_steps`, `mean_return` of the task.
        rule: that they were measured by.
        from_grid: whether a grid made the table, so that rows of rule `training` are scores.
        env_steps: t; None: the last step that all runs have reached.
    """
    ends = rows.groupby("seed")["env_steps"].max()
    steps = int(ends.min()) if env_steps is None else env_steps
    if steps < 1:
        raise UsageError(f"seed {ends.idxmin()} ends at step 0: give rows of later steps")
    are_scores = rule == "training" and from_grid
    are_episodes = rule == "training" and not from_grid
    if not (10 * ends > 9 * steps if are_episodes else ends >= steps).all():
        raise UsageError(
            f"seed {ends.idxmin()} ends at {ends.min():,}: use a smaller --env-steps than {steps:,}"
        )
    scores, rows = {}, rows.sort_values("env_steps", kind="stable")
    for seed in ends.index.tolist():
        run = rows[rows["seed"] == seed]
        if rule != "training" and len(run) > 2:  # a single one before the last tells no interval
            run = on_schedule(run, steps, math.gcd(*run["env_steps"].tolist()[:-1]))
        at = run["env_steps"]
        inside = run[at == steps if are_scores else references.in_window(at, steps)]
        if inside.empty:
            lacks = f"behind {0.9 * steps:,.0f} and up to {steps:,} steps, which are scored"
            if are_scores:
                lacks = f"at {steps:,}, and with a column rule each row is a mean over (0.9 t, t] "
                lacks += "at its own t: give an --env-steps that all runs have"
            raise UsageError(f"seed {seed} has no row {lacks}")
        scores[seed] = float(inside["mean_return"].to_numpy(np.float64).mean())
    return steps, scores


def _name_of(paths: Sequence[Path]) -> str:
    """Return a folder's name after the first file, with a digest of all: `curves.csv` is common."""
    places = [os.fsencode(path.resolve()) for path in paths]
    return f"{paths[0].resolve().stem[:100]}-{hashlib.sha256(b'|'.join(places)).hexdigest()[:8]}"


def _check_replaceable(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse a folder in which a page would replace anything but an earlier page of `judge`."""
    is_page = (out / "report.json").exists() and not (out / "plan.json").exists()
    if out.exists() and any(out.iterdir()) and not is_page:
        raise UsageError(f"--out: {out} holds other files: choose an empty folder")
    for path in inputs:
        if path.resolve().is_relative_to(out.resolve()):
            raise UsageError(f"--out: {path} lies in {out}: choose another folder")


def _column_of(text: str) -> tuple[str, str]:
    """Return our name of a column and the one in the files, from `--columns`."""
    ours, _, theirs = text.partition("=")
    if not theirs or ours not in COLUMNS:
        known = f"OURS=THEIRS, where OURS is one of {', '.join(COLUMNS)}"
        raise ArgumentTypeError(f"needs {known}, not {text!r}")
    return ours, theirs


def main(argv: Sequence[str]) -> int:
    """Judge the curves of any program by a source; the exit status is that of a grid."""
    parser = flags.make_parser("judge")
    parser.add_argument("agent", help="whose sources judge: " + ", ".join(agents.AGENTS))
    text = "CSV files (a grid's curves.csv, W&B's exports), or folders of runs with TensorBoard's "
    text += "events or SB3's monitor.csv or evaluations.npz"
    parser.add_argument("curves", type=Path, nargs="+", help=text)
    parser.add_argument("--like", required=True, metavar="SOURCE", help="the source that judges")
    text = f"names in CSV files of {', '.join(COLUMNS)}; in TensorBoard's, of mean_return alone"
    columns: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--columns", type=_column_of, metavar="OURS=THEIRS", help=text, **columns)
    parser.add_argument("--task", help="the task of all runs; default: as the files or names say")
    text = "default: the last step of all runs of a task"
    parser.add_argument("--env-steps", type=whole, metavar="N", help=text)
    text = "new folder, or an earlier page's (default: runs/judged/<agent>/<source>/<file>)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    options = parser.parse(argv)
    check_agent(options.agent)
    if options.env_steps is not None and options.env_steps < 1:
        raise UsageError(f"--env-steps must be positive, not {options.env_steps:,}")
    rules = {name: each.rule for name, each in references.sources(options.agent).items()}
    evaluated, columns = rules.get(options.like) != "training", dict(options.columns)
    curves = read_curves(options.curves, columns, options.task, evaluated=evaluated)
    found = judge_curves(options.agent, curves, options.like, env_steps=options.env_steps)
    out = options.out or Path(
        "runs", "judged", options.agent, options.like, _name_of(options.curves)
    )
    check_writable(out, "--out")
    if options.out:
        _check_replaceable(out, options.curves)
    rows, suite, rule = found["verdicts"], found["suite"], found["scores"]["rule"].iloc[0]
    report = {"title": curves.name, "agent": options.agent, "judged_by": options.like}
    report |= {"env_steps": dict(zip(rows["task"], map(int, rows["env_steps"]), strict=True))}
    report["command"] = shlex.join([*flags.program().split(), "judge", *argv])
    write_tables(out, found, report, rule)
    console = flags.make_console()
    console.print(verdict_lines(rows, suite, curves.name))
    ends = curves.rows.groupby(["task", "seed"])["env_steps"].max()
    for task, steps in report["env_steps"].items() if rule != "training" else ():
        if ends[task].max() > steps:
            say(console, f"{task} is judged at {steps:,} steps, though some seeds have more.")
    say(console, f"Assumed: scored by the rule {rule}, as {options.like}; every seed counts.")
    say(console, f"Tables, figures and page: {out / 'index.html'}")
    return exit_status(rows, suite, found["runs"]["status"])
