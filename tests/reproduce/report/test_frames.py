"""Frames hold what was measured, where it was measured, and say what is missing."""

import itertools

import numpy as np
import pandas as pd

from reproduce.report import frames
from reproduce.report.tables import COLUMNS
from tests.messages import refused
from tests.reproduce.report.tables import NAN, curve, no_rows, reference, score, verdict


def theirs(task: str, *values: float) -> pd.DataFrame:
    """Scores of a reference's runs 1, 2, ..."""
    rows = [(task, "published", run, 100, value, "deterministic", 0.0, 100.0, value / 100)
            for run, value in enumerate(values, 1)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS["reference_scores"]))


def test_seeds_align_only_on_steps_that_all_have() -> None:
    """A shorter seed, or an undefined value, ends the mean; its time is the seeds' median."""
    curves = pd.concat([curve("A", 1, [10, 20, 30, 40]), curve("A", 2, [20, 30], 2.0)])
    mean = frames.mean_of(curves.sample(frac=1.0, random_state=0))
    assert mean["env_steps"].tolist() == [20, 30]
    assert mean["mean_return"].tolist() == [30, 45]
    deviation = np.array([20, 30]) / np.sqrt(2)
    np.testing.assert_allclose(mean["lower"], mean["mean_return"] - deviation)
    np.testing.assert_allclose(mean["upper"], mean["mean_return"] + deviation)
    curves.loc[curves["env_steps"] == 30, "mean_return"] = np.inf
    assert frames.mean_of(curves)["env_steps"].tolist() == [20]
    assert frames.mean_of(pd.concat([curves, curve("A", 3, [20, 30], NAN)])).empty
    other = curve("A", 2, [10, 20]).assign(wall_seconds=[3.0, NAN])
    times = frames.mean_of(pd.concat([curve("A", 1, [10, 20]), other]))["wall_time"]
    assert times.fillna(-1).tolist() == [2, -1]


def test_both_bands_are_the_deviation_within_the_scores_of_the_task() -> None:
    """CartPole's returns go from 0 to 500: neither side's band leaves them; others' have no end."""
    steps = [10, 490]
    for task, ends in {"CartPole-v1": (0.0, 500.0), "A": (-25.0, 960.0)}.items():
        curves = pd.concat([curve(task, 1, steps, 0.1), curve(task, 2, steps, 1.9)])
        published = reference(task, steps, spread=35.0)
        frame = frames.learning_curves({"ours": curves}, published)
        means = frame[frame["kind"] == "mean"].set_index("role")
        ours, theirs = (means.loc[role] for role in ("ours", "judge"))
        std = np.std([0.1, 1.9], ddof=1) * np.array(steps)
        low, high = np.clip(np.array([steps - std, steps + std]), *frames.possible_returns(task))
        np.testing.assert_allclose(ours["lower"], low)
        np.testing.assert_allclose(ours["upper"], high)
        assert theirs["lower"].iloc[0] == max(ends[0], -25.0)
        assert theirs["upper"].iloc[1] == min(ends[1], 525.0)


def test_a_reference_is_cut_at_the_horizon_and_never_extended() -> None:
    """The last point is interpolated inside the source's range; a shorter source stays short."""
    published = reference("A", [0, 40, 80])
    clipped = frames.up_to(published, 50.0)
    assert clipped["env_steps"].tolist() == [0, 40, 50]
    assert clipped["mean_return"].tolist() == [0, 40, 50]
    assert clipped["lower"].tolist() == [-5, 35, 45]
    assert frames.up_to(published, 80.0)["env_steps"].tolist() == [0, 40, 80]
    assert frames.up_to(published, 1000.0)["env_steps"].tolist() == [0, 40, 80]
    assert frames.up_to(reference("A", [40, 80]), 30.0).empty
    assert frames.up_to(published, NAN).empty


def test_a_frame_has_every_task_in_order_and_every_source_by_its_name() -> None:
    """A task without a curve has its reference up to the planned step, or one bare row."""
    references = pd.concat([reference("B", [50, 100, 200]), reference("A", [0, 20], "context")])
    names = {"published": {"name": "The Zoo"}}
    planned = {"C": 10, "B": 100, "A": 20}
    frame = frames.learning_curves({"ours": curve("A", 1, [10, 20])}, references, planned, names)
    assert frame["task"].unique().tolist() == ["C", "B", "A"]
    assert frame.dtypes.astype(str).to_dict() == frames.CURVES
    assert frame.loc[frame["task"] == "B", "env_steps"].tolist() == [50, 100]
    assert frame.loc[frame["task"] == "B", "source"].unique().tolist() == ["reference: The Zoo"]
    assert frame.loc[frame["task"] == "C", "mean_return"].isna().tolist() == [True]
    assert frame.loc[frame["kind"] == "seed", "seed"].tolist() == ["1", "1"]
    assert [frames.gaps(frame, task) for task in "CBA"] == [["no curve recorded"]] * 2 + [[]]


def test_a_mean_that_ends_early_is_told() -> None:
    """The longer seed goes on; seeds without a common step have no mean."""
    curves = pd.concat([curve("A", 1, [10, 20, 30, 40]), curve("A", 2, [10, 20])])
    frame = frames.learning_curves({"ours": curves})
    ends = frame.groupby(["kind", "seed"])["env_steps"].max()
    assert ends.to_dict() == {("mean", ""): 20, ("seed", "1"): 40, ("seed", "2"): 20}
    assert frames.gaps(frame, "A") == ["ours: no mean beyond 20 steps, a seed ends there"]
    frame = frames.learning_curves({"x": pd.concat([curve("A", 1, [10]), curve("A", 2, [20])])})
    assert set(frame["kind"]) == {"seed"}
    assert frames.gaps(frame, "A") == ["x: the seeds share no step, so no mean"]


def test_rules_never_share_an_axis() -> None:
    """What was measured by another rule is in no frame; a source of two grids is there once."""
    other = reference("A", [0, 40], "context").assign(rule="training")
    both = pd.concat([reference("A", [0, 40]).assign(role="context"), reference("A", [0, 40])])
    frame = frames.learning_curves({"x": curve("A", 1, [40])}, pd.concat([other, both]))
    published = frame[frame["role"] != "ours"]
    assert published["role"].tolist() == ["judge", "judge"]


def test_a_table_that_fits_no_schema_is_refused() -> None:
    """In one line, before anything is drawn."""
    with refused():
        frames.learning_curves({"ours": curve("A", 1, [10]).assign(env_steps="ten")})


def test_every_source_has_a_look_of_its_own() -> None:
    """No two share a colour, with more sources than the palettes have colours."""
    grids = {f"gamma=0.{number}": curve("A", 1, [10]) for number in range(9)}
    others = [reference("A", [10], "context").assign(source=str(place)) for place in range(6)]
    frame = frames.learning_curves(grids, pd.concat([reference("A", [10]), *others]))
    colours, _ = frames.looks(frame)
    assert len({*colours.values()}) == len(colours) == 16
    assert len({*itertools.chain(*frames.PALETTES.values())}) == 13


def test_a_task_without_a_scale_keeps_its_units_and_a_far_score_stands_at_the_end() -> None:
    """One extreme seed does not squeeze the others, and its return stays true."""
    unknown = {"reference_mean": NAN, "margin": NAN, "reference_std": NAN, "zero_score": NAN}
    verdicts = pd.concat([verdict("A"), verdict("B", "no reference", **unknown), verdict("C")])
    scores = pd.concat([score("A", 95.0, 9000.0), score("B", 3000.0, 4000.0)])
    frame = frames.final_scores(scores, no_rows("reference_scores"), verdicts, {})
    runs = frame[frame["kind"] == "run"]
    assert runs["value"].tolist() == [0.95, frames.WIDEST[1], 3000, 4000]
    assert runs["score"].tolist() == [95, 9000, 3000, 4000]
    assert frame["axis"].unique().tolist() == [frames.NORMALISED, "B: return"]
    assert "C" in set(frame["task"])
