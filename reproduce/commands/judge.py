"""`judge AGENT CURVES`: verdicts on anybody's runs, from one table of their evaluations."""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import agents
from reproduce.commands import flags
from reproduce.gather import references
from reproduce.judge import remarks
from reproduce.judge.verdicts import SuiteVerdict, judge_suite, judge_tasks, verdict_table
from reproduce.judge.zero import Scale, first_update, scale_of, too_early
from reproduce.pipeline import exit_status
from reproduce.plan.presets import check_agent
from reproduce.report.words import verdict_lines
from reproduce.run.view import say
from suite.base.errors import UsageError, nearest
from suite.base.files import open_regular
from suite.envs.tasks import ATARI_PROTOCOLS, TASKS, Protocol, Task, find_task, nearest_task
from suite.settings.command_line import printable, whole
from suite.settings.config import MOST_STEPS

SUITE_COLUMNS = (*(field.name for field in dataclasses.fields(SuiteVerdict)), "remarks")
COLUMNS = ("task", "seed", "env_steps", "mean_return")


class Verdicts(NamedTuple):
    """What was found; the columns are those of `verdicts.csv` and `suite.csv` of a grid."""

    rule: str
    """Of the source, by which the curves are taken to be measured."""
    tasks: pd.DataFrame
    suite: pd.DataFrame
    """One row; none for a single task."""


def judge_curves(
    agent: str,
    curves: Path,
    source: str,
    *,
    env_steps: int | None = None,
    protocol: Protocol = "noframeskip",
) -> Verdicts:
    """Judge curves by a source, as the runs of a grid are judged, by all their seeds.

    A score is the mean of `mean_return` over (0.9 t, t], reward units, as `collect.score` makes it.
    `curves` is a CSV file with `COLUMNS`, one row for each evaluation of a run, or, for a source of
    rule `training`, for each of its training episodes. A grid's `curves.csv`, which has a column
    `rule`, gives the grid's own scores. Without `env_steps`, t is of each task the last step that
    all of its runs have reached.

    Raises:
        UsageError: for an unknown name, a table that cannot be read or whose column `rule` says
            another rule than the source's, or a run without a score at t.
    """
    check_agent(agent)
    judges = {each.source: each for each in references.sources(agent) if each.judges}
    if source not in judges:
        raise UsageError(f"no source {source!r} judges {agent}{nearest(source, judges)}")
    (rows, said), rule = read_curves(curves), judges[source].rule
    if said not in (None, rule):
        able = [name for name, each in judges.items() if each.rule == said]
        raise UsageError(
            f"{curves}: its rows are of rule {said!r}, and {source} judges by rule {rule}: "
            + (f"give --like {' or '.join(able)}" if able else f"give rows of rule {rule}")
        )
    _check_unique(curves, rows, rule, said)
    scores, scales = [], dict[str, Scale]()
    for name, of_task in rows.groupby("task", sort=False):
        if name not in TASKS:  # one that a module registers would be imported
            raise UsageError(f"{curves}: unknown task {name!r}{nearest_task(str(name), TASKS)}")
        task = find_task(str(name), protocol)
        try:
            steps, found = score_runs(of_task, rule, said is not None, env_steps)
        except UsageError as error:
            raise UsageError(f"{curves}: {name}, {error}") from None
        scores += [(task.name, seed, steps, score, rule) for seed, score in found.items()]
        config = _config_of(agent, source, task, rule, steps)
        if steps <= first_update(config):
            raise UsageError(f"{curves}: {task.name}: {too_early(agent, source, config)}")
        scales[task.name] = scale_of(agent, source, config, steps)
    table = pd.DataFrame(scores, columns=["task", "seed", "env_steps", "score", "rule"])
    runs = table[["task", "seed"]].assign(status="finished")
    judged = judge_tasks(table, scales, runs)
    suite = [dataclasses.asdict(judge_suite(judged, ()))] if len(judged) > 1 else []
    changed = bool(remarks.judge_of(agent, source).changed)
    said = remarks.of_task({}, [], judge_changed=changed)
    suite = [row | {"remarks": said} for row in suite]
    verdicts = verdict_table(judged, table, scales, runs).assign(remarks=said)
    verdicts["reference_share"] = [scales[name].share for name in verdicts["task"]]
    return Verdicts(rule, verdicts, pd.DataFrame(suite, columns=list(SUITE_COLUMNS)))


def _config_of(agent: str, source: str, task: Task, rule: str, env_steps: int) -> Any:
    """Return the settings that a source judges, on a task: a preset's, else the agent's defaults.

    They say when the first update is made and how many environments there are. How long a source
    without a preset warms up is unknown: none of its steps is refused for that.
    """
    module = importlib.import_module(f"agents.{agent}")
    judged = [preset.config for preset in module.PRESETS.values() if preset.judged_by == source]
    changes: dict[str, Any] = {"task": task.name, "env_steps": env_steps, "evaluation_rule": rule}
    if task.protocol:
        changes["protocol"] = task.protocol
    if judged:
        return dataclasses.replace(judged[0], **changes)
    names = {field.name for field in dataclasses.fields(module.Config)}
    unknown = dict.fromkeys(names & {"learning_starts", "warm_up_steps"}, 0)
    return module.Config(**changes, **unknown)


def score_runs(
    rows: pd.DataFrame, rule: str, from_grid: bool, env_steps: int | None
) -> tuple[int, dict[int, float]]:
    """Return t, and the score of each run of one task at t, by seed; reward units.

    By rule `training`, episodes that end on t itself are rare: a run that has one in (0.9 t, t]
    counts as one that reached t. A row of a grid's table is then the score at its own step.

    Args:
        rows: `seed`, `env_steps`, `mean_return` of the task.
        rule: that they were measured by.
        from_grid: whether a grid made the table, so that rows of rule `training` are scores.
        env_steps: t; None: the last step that all runs have reached.

    Raises:
        UsageError: if a run ends before t or has no score there, without the file and the task.
    """
    ends = rows.groupby("seed")["env_steps"].max()
    steps = int(ends.min()) if env_steps is None else env_steps
    if steps < 1:
        raise UsageError(f"seed {ends.idxmin()} ends at step 0: give rows of later steps")
    episodes = rule == "training" and not from_grid
    reached = 10 * ends > 9 * steps if episodes else ends >= steps
    if not reached.all():
        raise UsageError(
            f"seed {ends.idxmin()} ends at {ends.min():,}: use a smaller --env-steps than {steps:,}"
        )
    if rule == "training" and from_grid:
        at_step = rows[rows["env_steps"] == steps].set_index("seed")["mean_return"]
        for seed in ends.index.difference(at_step.index).tolist():
            raise UsageError(
                f"seed {seed} has no row at {steps:,}, and with a column rule each row is a mean "
                "over (0.9 t, t] at its own t: give an --env-steps that all runs have"
            )
        return steps, {seed: float(at_step[seed]) for seed in ends.index.tolist()}
    scores, rows = {}, rows.sort_values("env_steps", kind="stable")
    for seed in ends.index.tolist():
        run = rows[rows["seed"] == seed]
        run = run if episodes else _on_schedule(run, steps)
        inside = run[references.in_window(run["env_steps"], steps)]
        if inside.empty:
            raise UsageError(
                f"seed {seed} has no row behind {0.9 * steps:,.0f} and up to {steps:,} steps, "
                "which are scored"
            )
        scores[seed] = float(inside["mean_return"].to_numpy(np.float64).mean())
    return steps, scores


def _on_schedule(run: pd.DataFrame, env_steps: int) -> pd.DataFrame:
    """Return a run's evaluations, in order, without a last one that counts only where alone.

    That is one at no multiple of the interval, the greatest common divisor of the steps before; a
    single one before tells no interval.
    """
    before, last = run["env_steps"].to_numpy()[:-1], run["env_steps"].iloc[-1]
    alone = before.size < 2 or 10 * before[-1] <= 9 * env_steps
    return run if alone or last % (np.gcd.reduce(before) or 1) == 0 else run[:-1]


def _check_unique(path: Path, rows: pd.DataFrame, rule: str, said: str | None) -> None:
    """Raise UsageError for two rows of a run at one step, unless they are episodes."""
    twice = rows[rows.duplicated(["task", "seed", "env_steps"])]
    if twice.empty or (rule == "training" and said is None):
        return
    task, seed, step = twice[["task", "seed", "env_steps"]].iloc[0]
    where = f"{path}: {task}, seed {seed} has two"
    if rule == "training":
        raise UsageError(f"{where} means at {step:,}: leave out the column rule of episodes")
    raise UsageError(f"{where} evaluations at {step:,}")


class Curves(NamedTuple):
    """A table of curves as it was read."""

    rows: pd.DataFrame
    """Its `COLUMNS`; whole numbers are int64."""
    rule: str | None
    """What its column `rule` says, as that of a grid's table does; None without that column."""


def read_curves(path: Path) -> Curves:
    """Return a table of curves with `COLUMNS`; others but `rule` are dropped.

    Raises:
        UsageError: if it is none, naming the column, and the row if a cell is wrong.
    """
    needed = f"it needs {', '.join(COLUMNS)}"
    try:
        with open_regular(path):  # a pipe, or a device, might never end
            table = pd.read_csv(path)
    except pd.errors.EmptyDataError:
        raise UsageError(f"{path} is empty: {needed}") from None
    except OSError as error:
        raise UsageError(f"unreadable {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"unreadable {path}: {str(error).splitlines()[0]}") from None
    for column in COLUMNS:
        if column not in table:
            raise UsageError(f"{path} has no column {column}: {needed}")
    rules = table["rule"].fillna("").astype(str).unique() if "rule" in table else [""]
    table = table[list(COLUMNS)].reset_index(drop=True)
    if table.empty:
        raise UsageError(f"{path} has no row")
    if len(rules) > 1:
        both = " and ".join(map(repr, rules[:2]))
        raise UsageError(f"{path}: its column rule holds {both}: judge each rule by its own file")
    for column in COLUMNS:
        cells = table[column]
        numbers = pd.to_numeric(cells.astype(str), errors="coerce").astype(np.float64)
        right, must = numbers.between(-np.inf, np.inf, "neither"), "a finite number"
        if column == "task":
            right, must = cells.notna(), "a task's name"
        elif column != "mean_return":
            right = (np.floor(numbers) == numbers) & numbers.between(0, MOST_STEPS)
            must = f"a whole number from 0 to {MOST_STEPS:,}"
        if not right.all():
            row = int(right.to_numpy().argmin())
            cell = "missing" if cells.isna()[row] else repr(str(cells[row])[:40])
            raise UsageError(f"{path}, row {row + 1}: {column} is {cell}: give {must}")
    whole = {"seed": np.int64, "env_steps": np.int64}
    return Curves(table.astype({"task": str, **whole}), rules[0] or None)


def main(argv: Sequence[str]) -> int:
    """Judge anybody's curves by a source; the exit status is that of a grid."""
    about = "verdicts on runs of any program, from a table of curves"
    parser = flags.make_parser("judge", about)
    parser.add_argument("agent", help="whose sources judge: " + ", ".join(agents.AGENTS))
    text = "CSV file with columns task, seed, env_steps, mean_return, or a grid's curves.csv"
    parser.add_argument("curves", type=Path, help=text)
    parser.add_argument("--like", required=True, metavar="SOURCE", help="the source that judges")
    text = "default: the last step of all runs of a task"
    parser.add_argument("--env-steps", type=whole, metavar="N", help=text)
    presented: dict[str, Any] = {"choices": tuple(ATARI_PROTOCOLS), "default": "noframeskip"}
    parser.add_argument("--protocol", help="of Atari", **presented)
    options = parser.parse(argv)
    if options.env_steps is not None and options.env_steps < 1:
        raise UsageError(f"--env-steps must be positive, not {options.env_steps:,}")
    size = {"env_steps": options.env_steps, "protocol": options.protocol}
    found = judge_curves(options.agent, options.curves, options.like, **size)
    console = flags.make_console()
    console.print(verdict_lines(found.tasks, found.suite, printable(str(options.curves))))
    how = f"by rule {found.rule}, as {options.like} was; every seed counts."
    say(console, f"Taken as measured {how}")
    say(console, remarks.judge_of(options.agent, options.like).sentence())
    return exit_status(found.tasks, found.suite, found.tasks["task"].map(lambda _: "finished"))
