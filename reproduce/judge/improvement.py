"""How probably a run of ours scores above one of the reference's: described, never judged by."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from reproduce.gather.references import ReferenceScore
from reproduce.judge.statistics import probability_of_improvement

COLUMNS = ("task", "probability", "ci_low", "ci_high", "num_seeds", "num_runs")


def reference_scores(references: Mapping[str, ReferenceScore | None]) -> pd.DataFrame:
    """Return the score of every single run of the references, numbered within its task.

    Args:
        references: those that judge, by task.

    Returns:
        Columns task, source, run, env_steps, score, rule; no row for a task whose reference is not
        computed from single runs.
    """
    rows = [
        (task, reference.source, run, reference.env_steps, score, reference.rule)
        for task, reference in references.items()
        if reference is not None
        for run, score in enumerate(reference.scores, 1)
    ]
    columns = ["task", "source", "run", "env_steps", "score", "rule"]
    return pd.DataFrame(rows, columns=columns)


def improvements(scores: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return the probability of improvement (Agarwal et al. 2021) of each task, and their mean.

    A task counts if at least two runs of either side have a score; a tie counts half.

    Args:
        scores: rows of `scores.csv`.
        theirs: what `reference_scores` returned.

    Returns:
        A row for each task that counts, with 95 % of the resamples of both sides, and where there
        are several a last one for their mean, whose task is empty.
    """
    sides = {
        task: tuple(
            table.loc[table["task"] == task, "score"].to_numpy(np.float64)
            for table in (scores, theirs)
        )
        for task in dict.fromkeys(theirs["task"])
    }
    sides = {task: pair for task, pair in sides.items() if min(map(len, pair)) > 1}
    groups = [(task, [pair]) for task, pair in sides.items()]
    groups += [("", [*sides.values()])] if len(sides) > 1 else []
    rows = [
        (
            task,
            *probability_of_improvement(*map(list, zip(*pairs, strict=True)), seed=0),
            *(sum(map(len, side)) for side in zip(*pairs, strict=True)),
        )
        for task, pairs in groups
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))
