"""The history of shares: a level that changed is found where it did, and noise is left alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reproduce.speed import history
from reproduce.speed.shares import Ratio, Share
from suite.settings import UsageError


def shares(level: float) -> list[Share]:
    """One measurement of two pieces of work."""
    ratio = Ratio(level, level, level)
    return [Share(name, "matmul", 1.0, 1.0, "FLOP", ratio) for name in ("update-sac", "affine")]


@pytest.mark.parametrize("at", [8, 20, 32])
def test_a_step_is_found_where_it_happened(at: int) -> None:
    """5 % lower from one measurement on, in noise of 1 % with an outlier in each part."""
    levels = np.random.default_rng(0).normal(1.0, 0.01, 40)
    levels[at:] *= 0.95
    levels[[3, -3]] = 0.3
    (found,) = history.change_points(levels)
    assert abs(found - at) <= 1


def test_two_steps_are_both_found() -> None:
    """The halves are searched again."""
    levels = np.random.default_rng(0).normal(1.0, 0.01, 60)
    levels[20:40] *= 0.9
    assert history.change_points(levels) == pytest.approx([20, 40], abs=1)


def test_noise_seldom_looks_like_a_step() -> None:
    """Of 300 histories without a change, at most 3 % show one, whatever the distribution."""
    generator = np.random.default_rng(0)
    for draw in (generator.standard_normal, generator.standard_cauchy):
        assert sum(bool(history.change_points(draw(50))) for _ in range(300)) <= 9


def test_a_split_is_judged_by_mann_and_whitney() -> None:
    """The best split is the one with the smallest p-value of scipy's two-sample test."""
    levels = np.random.default_rng(1).normal(size=30)
    levels[13:] += 2.0
    splits = range(history.FEWEST, 31 - history.FEWEST)
    p_values = [
        stats.mannwhitneyu(levels[:t], levels[t:], method="asymptotic", use_continuity=False).pvalue
        for t in splits
    ]
    assert history.change_points(levels) == [splits[int(np.argmin(p_values))]]


def test_a_short_history_has_no_change_points() -> None:
    """Fewer than five measurements on either side are no level."""
    assert history.change_points(np.array([1.0] * 4 + [0.1] * 5)) == []


def append_all(path: Path, levels: list[float]) -> None:
    """One measurement after the other, not drawn, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "draw", lambda table, changes, path: path)
        for level in levels:
            history.append(path, shares(level))


def test_measurements_are_appended_and_drawn(tmp_path: Path) -> None:
    """Every call adds its rows, a change of level is said and drawn."""
    path = tmp_path / "new" / "history.csv"
    append_all(path, [0.8] * 8 + [0.6] * 7)
    text = history.append(path, shares(0.6))
    table = pd.read_csv(path)
    assert tuple(table.columns) == history.COLUMNS
    assert table.groupby("work").size().to_dict() == {
        "affine / matmul": 16,
        "update-sac / matmul": 16,
    }
    assert "update-sac / matmul became 0.75 times as fast at " in text
    assert text.splitlines()[-1] == str(path.with_suffix(".svg"))
    assert path.with_suffix(".svg").read_text().startswith("<?xml")


def test_another_machines_history_is_kept_and_not_compared(tmp_path: Path) -> None:
    """Its rows stay in the file; a level is one machine's."""
    path = tmp_path / "history.csv"
    append_all(path, [0.8] * 8)
    table = pd.read_csv(path).assign(machine="another")
    table.to_csv(path, index=False)
    append_all(path, [0.4] * 7)
    text = history.append(path, shares(0.4))
    assert "times as fast" not in text
    assert len(pd.read_csv(path)) == 32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "^[^ ]*mine.csv is not a history"),
        ("", "cannot write the history"),
        (",".join(history.COLUMNS) + "\n1,2,3,4,0.5", "^[^ ]*mine.csv ends within a row"),
    ],
)
def test_a_file_that_is_no_history_is_left_alone(content: str, says: str, tmp_path: Path) -> None:
    """One line, and not a byte written."""
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        history.append(path, shares(1.0))
    assert path.read_text() == content
