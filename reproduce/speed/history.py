"""Shares over time: a CSV of all measurements, and the points where their level changed.

The history never alarms. Its figure shows slow drifts that no single comparison sees.
"""

import datetime
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy  # loads `scipy.stats` when it is first used
import seaborn as sns
from jaxtyping import Float

from reproduce.speed.shares import Share, machine_name
from suite import hardware
from suite.settings import UsageError

COLUMNS = ("measured_at", "commit", "machine", "work", "share")
SIGNIFICANCE = 0.01
"""A change point's p-value is below this."""
NUM_PERMUTATIONS = 999
FEWEST = 5
"""Fewest measurements on either side of a change point."""


def append(path: Path, shares: Sequence[Share]) -> str:
    """Append shares to a history, draw it beside the file, and say where levels changed.

    Args:
        path: the CSV; made if absent.
        shares: shares measured on this machine, at this commit.

    Returns:
        one line per change point of this machine, and the figure's path.

    Raises:
        UsageError: if the file is not a history, or cannot be written.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    commit = (hardware.revision()["commit"] or "")[:12]
    rows = [(now, commit, machine_name(), share.key, share.share.median) for share in shares]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        if not new and tuple(pd.read_csv(path, nrows=0).columns) != COLUMNS:
            raise UsageError(f"{path} is not a history: its columns must be {', '.join(COLUMNS)}")
        if not new and not path.read_bytes().endswith(b"\n"):
            raise UsageError(f"{path} ends within a row: delete that row, or choose another file")
        pd.DataFrame(rows, columns=COLUMNS).to_csv(path, mode="a", header=new, index=False)
        table = pd.read_csv(path)
        ours = table[table.machine == machine_name()]
        changes: dict[Hashable, Sequence[int]] = {
            work: change_points(of_work.share.to_numpy())
            for work, of_work in ours.groupby("work", sort=False)
        }
        figure = draw(ours, changes, path.with_suffix(".svg"))
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the history {path}: {error}") from None
    lines = []
    for work, of_work in ours.groupby("work", sort=False):
        levels = of_work.share.to_numpy()
        ends = [0, *changes[work], len(levels)]
        for before, at, after in zip(ends, ends[1:], ends[2:], strict=False):
            ratio = np.median(levels[at:after]) / np.median(levels[before:at])
            lines.append(f"{work} became {ratio:.2f} times as fast at {of_work.commit.iloc[at]}")
    return "\n".join([*lines, str(figure)])


def change_points(levels: Float[np.ndarray, " n"]) -> list[int]:
    """Return the indices at which the level of a series changes, in order.

    The Mann-Whitney statistic in units of its deviation judges every split: it is robust to
    outliers and assumes no distribution (Hawkins & Deng, Journal of Quality Technology 42, 2010).
    The p-value of the best split is by permutation. Both parts are then searched in turn.
    """
    if len(levels) < 2 * FEWEST:
        return []
    ranks = scipy.stats.rankdata(levels)
    observed = _split_statistics(ranks[None])[0]
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (NUM_PERMUTATIONS, 1)), axis=1)
    at_chance = _split_statistics(shuffled).max(1)
    if (1 + (at_chance >= observed.max()).sum()) / (1 + NUM_PERMUTATIONS) >= SIGNIFICANCE:
        return []
    at = FEWEST + int(observed.argmax())
    later = (at + index for index in change_points(levels[at:]))
    return [*change_points(levels[:at]), at, *later]


def _split_statistics(ranks: np.ndarray) -> np.ndarray:
    """Return the standardised |Mann-Whitney| of every allowed split, `[series, splits]`."""
    size = ranks.shape[1]
    before = np.arange(FEWEST, size - FEWEST + 1)
    excess = ranks.cumsum(1)[:, before - 1] - before * (size + 1) / 2
    return np.abs(excess) / np.sqrt(before * (size - before) * (size + 1) / 12)


def draw(table: pd.DataFrame, changes: Mapping[Hashable, Sequence[int]], path: Path) -> Path:
    """Draw one machine's history: a panel per workload, with a line at each change point."""
    table = table.assign(measurement=table.groupby("work", sort=False).cumcount())
    grid = sns.relplot(
        table,
        x="measurement",
        y="share",
        col="work",
        col_wrap=4,
        kind="line",
        marker="o",
        height=2.2,
        aspect=1.6,
        facet_kws={"sharey": False},
    )
    grid.set_titles("{col_name}", size=8)
    for work, panel in grid.axes_dict.items():
        for at in changes[work]:
            panel.axvline(at - 0.5, color="black", linewidth=1, linestyle="--")
    grid.savefig(path)
    plt.close(grid.figure)
    return path
