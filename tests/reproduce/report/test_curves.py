"""Curves are joined and cut where they were measured, and nowhere else."""

import numpy as np
import pandas as pd

from reproduce.report.curves import MOST_POINTS, align_seeds, clip_reference
from tests.reproduce.report.tables import NAN, curve, reference


def test_seeds_align_only_on_steps_that_all_have() -> None:
    """A shorter seed ends the common curve, and an undefined value leaves its step out."""
    curves = pd.concat([curve("A", 1, [10, 20, 30, 40]), curve("A", 2, [20, 30], 2.0)])
    aligned = align_seeds(curves.sample(frac=1.0, random_state=0))
    assert aligned.env_steps.tolist() == [20, 30]
    assert aligned.values.tolist() == [[20, 30], [40, 60]]
    curves.loc[curves["env_steps"] == 30, "mean_return"] = np.inf
    assert align_seeds(curves).env_steps.tolist() == [20]
    undefined = curve("A", 3, [20, 30], NAN)
    assert align_seeds(pd.concat([curves, undefined])).values.shape == (3, 0)


def test_a_reference_is_cut_at_the_horizon_and_never_extended() -> None:
    """The last point is interpolated inside the source's range; a shorter source stays short."""
    published = reference("A", [0, 40, 80])
    clipped = clip_reference(published, 50.0)
    assert clipped["env_steps"].tolist() == [0, 40, 50]
    assert clipped["return_mean"].tolist() == [0, 40, 50]
    assert clipped["return_low"].tolist() == [-5, 35, 45]
    assert clip_reference(published, 80.0)["env_steps"].tolist() == [0, 40, 80]
    assert clip_reference(published, 1000.0)["env_steps"].tolist() == [0, 40, 80]
    assert clip_reference(reference("A", [40, 80]), 30.0).empty
    assert clip_reference(published, NAN).empty


def test_many_points_are_thinned_and_keep_their_ends() -> None:
    """The time at a step is the median of the seeds'; without one of them there is none."""
    steps = list(range(1, 1001))
    other = curve("A", 2, steps).assign(wall_seconds=lambda rows: 3.0 * rows["wall_seconds"])
    aligned = align_seeds(pd.concat([curve("A", 1, steps), other]))
    assert (len(aligned.env_steps), aligned.values.shape) == (MOST_POINTS, (2, MOST_POINTS))
    assert aligned.env_steps[[0, -1]].tolist() == [1, 1000]
    assert aligned.wall_seconds[-1] == 200.0
    other.loc[999, "wall_seconds"] = NAN
    aligned = align_seeds(pd.concat([curve("A", 1, steps), other]))
    assert np.isnan(aligned.wall_seconds).sum() == 1
    assert len(clip_reference(reference("A", steps), 1000.0)) == MOST_POINTS
