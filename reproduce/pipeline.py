"""From recorded runs to tables, verdicts, figures and the page: every stage after running."""

import dataclasses
import datetime
from types import MappingProxyType
from typing import Any

import pandas as pd

from reproduce import check, collect, plot, references, report
from reproduce.check import STATUSES
from reproduce.plan import Plan
from suite.files import write_atomically, write_json
from suite.hardware import machine, versions
from suite.tasks import find_task, random_scores


def make_report(plan: Plan, failures: collect.Failures = MappingProxyType({})) -> pd.DataFrame:
    """Gather, compare and draw what a plan's runs have recorded so far.

    Writes `curves.csv`, `reference_curves.csv`, `scores.csv`, `throughput.csv`, `verdicts.csv`,
    `summary.csv`, `runs.csv`, `report.json`, the figures and `index.html` into the plan's folder.

    Args:
        plan: whose runs to report.
        failures: what the launcher knows of failed runs beyond their records.

    Returns:
        the verdicts, one row per planned task.
    """
    directory = plan.directory
    directory.mkdir(parents=True, exist_ok=True)
    runs = collect.collect_runs(plan, failures)
    scores = collect.collect_scores(plan)
    curves = collect.collect_curves(plan)
    speed = collect.collect_throughput(plan)
    tasks = {name: find_task(name, plan.protocol) for name in plan.tasks}
    measured = {name: random_scores().get((name, task.protocol)) for name, task in tasks.items()}
    zeros = {name: score for name, score in measured.items() if score is not None}
    judge = plan.preset.judged_by
    judging = {
        name: references.reference_score(
            plan.agent, judge, name, plan.env_steps[name], plan.rule, task.protocol
        )
        for name, task in tasks.items()
    }
    verdicts = check.verdict_table(scores, judging, zeros, runs[["task", "seed", "status"]])
    summary = check.suite_summary(scores, judging, zeros, references.human_scores(plan.tasks))
    drawn = pd.concat(
        [
            references.reference_curves(plan.agent, name, judge, task.protocol).assign(task=name)
            for name, task in tasks.items()
        ]
    )
    tables = {
        "curves": curves,
        "reference_curves": drawn,
        "scores": _normalise(scores, judging, zeros),
        "throughput": speed,
        "verdicts": verdicts,
        "summary": summary,
        "runs": runs,
    }
    for name, table in tables.items():
        content = table.to_csv(index=False, lineterminator="\n").encode()
        write_atomically(directory / f"{name}.csv", content)
    write_json(directory / "report.json", _describe(plan))
    plot.draw_curves(curves, drawn, verdicts, directory)
    plot.draw_scores(tables["scores"], verdicts, directory)
    plot.draw_throughput(speed, directory)
    report.write_page(directory)
    return verdicts


def exit_status(verdicts: pd.DataFrame, runs: pd.Series) -> int:
    """Return 0 if nothing is below its reference, 1 if something is, 2 if a run is missing.

    Args:
        verdicts: what `make_report` returned.
        runs: the status of every planned run.
    """
    if (runs != "finished").any():
        return 2
    return 1 if (verdicts.verdict == "below").any() else 0


def tally(runs: pd.Series) -> str:
    """Return what became of every planned run, in words; the numbers add up.

    Args:
        runs: the status of every planned run.
    """
    counts = [(int((runs == status).sum()), status) for status in STATUSES]
    words = {"planned": "not run"}
    parts = [
        f"{count} {words.get(status, status)}"
        for count, status in counts
        if count or status == "finished"
    ]
    return f"{len(runs)} planned = " + " + ".join(parts)


def _normalise(
    scores: pd.DataFrame,
    judging: dict[str, references.ReferenceScore | None],
    zeros: dict[str, float],
) -> pd.DataFrame:
    """Add random-policy, reference and normalised scores to the table of scores."""
    means = {task: score.mean for task, score in judging.items() if score}
    table = scores.assign(
        random_score=scores.task.map(zeros).astype(float),
        reference_score=scores.task.map(means).astype(float),
    )
    gap = table.reference_score - table.random_score
    return table.assign(normalised_score=(table.score - table.random_score) / gap.where(gap > 0))


def _describe(plan: Plan) -> dict[str, Any]:
    """Return what the page says beyond the tables."""
    record = collect.first_record(plan)
    config = dataclasses.asdict(plan.config)
    return {
        "title": f"{plan.agent} on {plan.suite}, settings of {plan.source}",
        "agent": plan.agent,
        "suite": plan.suite,
        "source": plan.source,
        "judged_by": plan.preset.judged_by,
        "protocol": find_task(plan.tasks[0], plan.protocol).protocol,
        "budget": plan.budget,
        "env_steps": dict(plan.env_steps),
        "seeds": list(plan.seeds),
        "generated_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": {k: v for k, v in config.items() if k not in ("task", "seeds", "env_steps")},
        "departures": list(plan.departures),
        "versions": record.get("versions", versions()),
        "hardware": record.get("machine", machine()),
        "command": plan.command(),
    }
