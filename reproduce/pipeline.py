"""From recorded runs to tables, verdicts, figures and the page: every stage after running."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pandas as pd

from reproduce.gather import collect, references
from reproduce.gather.tables import runs_of
from reproduce.judge import aggregates
from reproduce.judge.inference import LEVEL
from reproduce.judge.verdicts import STATUSES, SuiteVerdict, judge_suite, judge_tasks, verdict_table
from reproduce.judge.zero import Scale, scale_of
from reproduce.plan.declared import PLAN, declared_in, read_plan
from reproduce.plan.grid import Plan, Run
from reproduce.plan.make import commands
from reproduce.plan.request import RUNS
from reproduce.plan.status import Older, by_task
from reproduce.report import figures, frames
from reproduce.report.page import FIGURES, write_page
from reproduce.report.tables import COLUMNS, records
from reproduce.report.words import marks, panel_remarks, remarks_on, score_remarks
from suite.base.files import compress, write_atomically, write_json
from suite.base.hardware import machine, versions
from suite.envs.tasks import Task, find_suite, find_task
from suite.record.reading import read_record


def gather(
    plan: Plan, failures: collect.Failures = MappingProxyType({})
) -> dict[str, pd.DataFrame]:
    """Gather and judge the records of a plan's runs so far: every table by its file's stem.

    `verdicts` has a row per planned task, `suite` one for a plan of several, `summary` is of
    three tasks or more, `times` are those to shares of the reference.
    """
    judge, steps = plan.preset.judged_by, plan.env_steps
    tasks = {name: find_task(name, plan.protocol) for name in plan.tasks}
    found = runs_of(plan)
    recorded = collect.collect(plan, found, failures)
    scales = {n: scale_of(plan.agent, judge, plan.config_of(n), steps[n]) for n in tasks}
    begun = {task for task, _ in declared_in(read_plan(plan.directory / PLAN))}
    absent = {
        task: "declared here, and left out by --tasks" if task in begun else "not planned"
        for task in plan.preset.tasks or find_suite(plan.suite)
        if task not in tasks
    }
    scores, runs, curves = (recorded[name] for name in ("scores", "runs", "curves"))
    tables = judge_scores(scores, scales, runs, curves, plan.declared, absent)
    verdicts = _mark(plan, found, tables["verdicts"])
    suite = tables["suite"].assign(
        older_runs=max(verdicts["older_runs"], key=get_args(Older).index),
        remarks="; ".join(marks("; ".join(verdicts["remarks"]))),
    )
    return tables | {
        "reference_curves": curves_beside(plan.agent, judge, tasks),
        "throughput": recorded["throughput"],
        "verdicts": verdicts,
        "suite": suite.reindex(columns=list(COLUMNS["suite"])),
    }


def judge_scores(
    scores: pd.DataFrame,
    scales: Mapping[str, Scale],
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    declared: Mapping[str, Sequence[int]] = MappingProxyType({}),
    absent: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, pd.DataFrame]:
    """Return the tables that follow from scores, not normalised yet, and those given.

    A task that is missing in `declared` has declared all its seeds; tasks of the suite that are
    left out are `absent`, with the reason.
    """
    sides = (scores, aggregates.reference_scores(scales))
    scores, theirs = (aggregates.normalise(side, scales) for side in sides)
    judged = judge_tasks(scores, scales, runs, declared)
    verdicts = verdict_table(judged, scores, scales, runs)
    suite = [judge_suite(judged, absent)] if len(judged) > 1 else []
    return {
        "curves": curves,
        "scores": scores,
        "reference_scores": theirs,
        "verdicts": verdicts,
        "suite": pd.DataFrame(suite, columns=[field.name for field in fields(SuiteVerdict)]),
        "summary": aggregates.suite_summary(scores),
        "improvement": aggregates.improvements(scores, theirs),
        "times": aggregates.times_to_score(curves, scales, runs),
        "runs": runs,
    }


def curves_beside(agent: str, judge: str | None, tasks: Mapping[str, Task]) -> pd.DataFrame:
    """Return `reference_curves.csv`: every published curve that may be drawn beside ours."""
    return pd.concat(
        references.reference_curves(agent, name, judge, task.protocol).assign(task=name)
        for name, task in tasks.items()
    )


def _mark(plan: Plan, runs: Sequence[Run], verdicts: pd.DataFrame) -> pd.DataFrame:
    """Add what is to be said of a task's runs: `older_runs`, with a note, and `remarks`."""
    rows, older = [], by_task(runs)
    for task, note in verdicts[["task", "note"]].itertuples(index=False):
        ended = [run for run in runs if run.task == task and run.has_ended]
        records = [record for run in ended if (record := read_record(run.directory))]
        mark, sentence = older[task]
        note = "; ".join(filter(None, (note, sentence)))
        rows.append((note, remarks_on(plan.settings, records), mark))
    notes, said, marks = zip(*rows, strict=True)
    return verdicts.assign(note=notes, remarks=said, older_runs=marks)


def write_report(
    plan: Plan, tables: Mapping[str, pd.DataFrame], packed: Collection[str] = ()
) -> None:
    """Write the tables of `gather`, with what `write_tables` adds, into a plan's folder."""
    write_tables(plan.directory, tables, _describe(plan, tables["verdicts"]), plan.rule, packed)


def write_tables(
    directory: Path,
    tables: Mapping[str, pd.DataFrame],
    report: Mapping[str, Any],
    rule: str,
    packed: Collection[str] = (),
) -> None:
    """Write tables, `report.json`, figures and `index.html` into a folder.

    Figures show the published curves that judge; the page shows all. Tables whose names are in
    `packed` are compressed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        content = table.to_csv(index=False, float_format="%.9g", lineterminator="\n")
        write_atomically(directory / f"{name}.csv", content.encode())
        if name in packed:
            compress(directory / f"{name}.csv")
    for name in FIGURES:
        (directory / name).unlink(missing_ok=True)  # what is not drawn now must not stay
    curves, verdicts, theirs = (tables[name] for name in ("curves", "verdicts", "reference_curves"))
    named = dict.fromkeys(filter(None, [*theirs["source"], *verdicts["reference_source"].dropna()]))
    credits = references.credits_of(report["agent"], named)
    write_json(directory / "report.json", dict(report) | {"sources": credits})
    rows = records(verdicts)
    judges = theirs[theirs["role"] == "judge"]
    drawn = frames.learning_curves({"ours": curves}, judges, report["env_steps"], credits)
    said, unit = panel_remarks(rows, drawn), f"episode return ({rule})"
    figures.draw_curves(drawn, said, directory, unit=unit)
    if drawn["wall_time"].notna().any():
        figures.draw_curves(drawn, said, directory, "curves_by_time", unit, "wall_time")
    if len(tables["throughput"]):
        figures.draw_throughput(tables["throughput"], directory)
    figures.draw_over_tasks(aggregates.over_tasks(tables), directory)
    scores = (tables["scores"], tables["reference_scores"], verdicts)
    figures.draw_scores(frames.final_scores(*scores, credits), score_remarks(rows), directory)
    write_page(directory)


def departures(plan: Plan, verdicts: pd.DataFrame) -> list[str]:
    """Return the differences from the source: the plan's, and scores that it takes otherwise."""
    rules = [
        f"the reference's score at {row['env_steps']:,} steps is {row['how']}; ours is the mean "
        "over (0.9 t, t]"
        for row in verdicts.to_dict("records")
        if row["how"].startswith("stated")
    ]
    return list(dict.fromkeys([*plan.departures, *rules]))


def exit_status(verdicts: pd.DataFrame, suite: pd.DataFrame, runs: pd.Series) -> int:
    """Return 2 if any run has not finished, else 1 if anything is below its reference, else 0.

    A task counts as below if the p-value of its declared seeds, adjusted for the number of tasks,
    is at most the level; the suite, if its own is below it.
    """
    if (runs != "finished").any():
        return 2
    return int((verdicts.p_below_holm <= LEVEL).any() or (suite.p_below < LEVEL).any())


def tally(runs: pd.Series) -> str:
    """Return the number of runs of each status, in words; they add up to all planned runs."""
    counts = runs.value_counts().reindex([*STATUSES], fill_value=0).rename({"planned": "not run"})
    parts = [f"{n} {status}" for status, n in counts.items() if n or status == "finished"]
    return f"{len(runs)} planned = " + " + ".join(parts)


def _describe(plan: Plan, verdicts: pd.DataFrame) -> dict[str, Any]:
    records = [record for run in plan.runs() if (record := read_record(run.directory))]
    ends = [str(record["ended_at"]) for record in records if record.get("ended_at")]
    first = next((record for record in records if "machine" in record), {})
    config, judge = dataclasses.asdict(plan.config), plan.preset.judged_by
    other: dict[str, Any] = {"workers": None, "track": "", "open": False}
    other |= {"runs_dir": RUNS} if plan.behaviours else {}  # published runs are made in `runs`
    return {
        "title": plan.title,
        "agent": plan.agent,
        "suite": plan.suite,
        "source": plan.source,
        "judged_by": judge if judge in references.sources(plan.agent) else None,
        "budget": plan.budget,
        "suite_tasks": list(plan.preset.tasks or find_suite(plan.suite)),
        "env_steps": dict(plan.env_steps),
        "seeds": list(plan.seeds[: max(plan.num_seeds.values())]),
        "last_run_ended_at": max(ends, default=""),
        "config": {k: v for k, v in config.items() if k not in ("task", "seeds", "env_steps")},
        "departures": departures(plan, verdicts),
        "versions": first.get("versions", versions()),
        "hardware": first.get("machine", machine()),
        "command": "\n".join(commands(plan, **other)),
    }
