"""Figures over all tasks of a grid: their numbers, and that few tasks have none."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.report import figures, page
from tests.reproduce.report.tables import curve, no_rows, score, verdict

pytestmark = pytest.mark.usefixtures("svg_alone")

TASKS = ("A", "B", "C")


def tables(tasks: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    """Two seeds and two reference runs of each task, and their curves up to 100 steps."""
    theirs = [score(task, 90.0, 110.0) for task in tasks]
    wins = [(task, 0.5, 0.25, 0.75, 2, 2) for task in (*tasks, "")]
    columns = ["task", "probability", "ci_low", "ci_high", "num_seeds", "num_runs"]
    curves = [curve(task, seed, [50, 100], 0.5 * seed) for task in tasks for seed in (1, 2)]
    return {
        "scores": pd.concat([score(task, 50.0, 100.0) for task in tasks]),
        "reference_scores": pd.concat(theirs),
        "improvement": pd.DataFrame(wins, columns=columns),
        "curves": pd.concat(curves),
        "verdicts": pd.concat([verdict(task) for task in tasks]),
    }


def test_three_tasks_have_every_figure_and_two_have_none(tmp_path: Path) -> None:
    """What two tasks would say stands in their rows; figures of a larger grid do not stay."""
    drawn = figures.draw_over_tasks(tables(TASKS), tmp_path)
    assert [path.name for path in drawn] == [f"{name}.svg" for name in figures.OVER_TASKS]
    assert set(figures.OVER_TASKS) <= set(page.FIGURES)
    assert "95 % of the resamples" in drawn[0].read_text()
    assert figures.draw_over_tasks(tables(TASKS[:2]), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_profile_and_aggregates_are_those_of_the_runs() -> None:
    """Half of ours lie above 0.5 to 1; the reference has a side only with runs of all our tasks."""
    own = tables(TASKS)
    sides = figures.sides_of(own["scores"], own["reference_scores"])
    lines = figures.profile(sides)
    assert 0.0 <= lines["lower"].min() <= lines["upper"].max() <= 1.0
    for role, at, share in (("ours", 0.4, 1.0), ("ours", 0.8, 0.5), ("judge", 1.05, 0.5)):
        rows = lines[lines["role"] == role]
        place = int(np.abs(rows["x"].to_numpy() - at).argmin())
        assert rows["value"].to_numpy()[place] == share
    rows = figures.aggregates(sides).to_dict("records")
    found = {(row["role"], row["label"]): row["value"] for row in rows}
    assert (found["ours", "mean"], found["judge", "mean"]) == (0.75, 1.0)
    assert found["ours", "optimality gap"] == 0.25
    fewer = own["reference_scores"][own["reference_scores"]["task"] != "B"]
    assert list(figures.sides_of(own["scores"], fewer)) == ["ours"]


def test_sample_efficiency_stands_where_every_run_was_measured() -> None:
    """IQM over the share of a task's planned steps; a step that one run lacks has none."""
    own = tables(TASKS)
    curves = pd.concat([own["curves"], curve("A", 1, [75])])
    rows = figures.efficiency(curves, own["verdicts"])
    assert rows["x"].tolist() == [0.5, 1.0]
    np.testing.assert_allclose(rows["value"], [0.375, 0.75])
    assert figures.efficiency(no_rows("curves"), own["verdicts"]).empty
