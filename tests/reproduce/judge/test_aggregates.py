"""Tables that describe a grid: times to shares of the reference."""

import numpy as np
import pandas as pd
import pytest

from reproduce.gather.references import ReferenceScore
from reproduce.judge.aggregates import times_to_score
from reproduce.judge.zero import Scale, Zero
from reproduce.report.frames import median_times

NAN = float("nan")


def scale(mean: float, zero: float) -> Scale:
    """The scale of a task."""
    said = {"source": "s", "env_id": "e", "rule": "deterministic", "how": "stated", "env_steps": 30}
    reference = ReferenceScore(mean=mean, std=1.0, num_runs=5, **said)
    return Scale(reference=reference, zero=Zero(random=zero))


def curve(task: str, seed: int, *returns: float) -> pd.DataFrame:
    """A point every ten steps, which take a second more each."""
    steps = 10 * np.arange(1, len(returns) + 1)
    return pd.DataFrame(
        {"env_steps": steps, "mean_return": returns, "wall_seconds": seed + steps / 10}
    ).assign(task=task, seed=seed)


def test_a_time_is_that_of_the_first_point_at_the_score() -> None:
    """From zero 100 to 200: 150 and 190; it counts once reached, and never where it is not."""
    curves = [curve("A", 1, 100.0, 150.0, 120.0, 195.0), curve("A", 2, 190.0, 0.0)]
    curves += [curve("A", 3, 149.0), curve("B", 1, 9.0), curve("C", 1, 9.0)]
    scales = {
        "A": scale(200.0, 100.0),
        "B": scale(1.0, 2.0),
        "C": Scale(reference=None, zero=Zero(random=0.0)),
    }
    shuffled = pd.concat(curves).sample(frac=1.0, random_state=0)
    times = times_to_score(shuffled, scales)
    assert set(times["task"]) == {"A"}  # B's reference lies below its zero, C has none
    assert times["score"].tolist() == [150.0, 190.0] * 3
    assert times["env_steps"].fillna(-1).tolist() == [20, 40, 10, 10, -1, -1]
    assert times["wall_seconds"].fillna(-1).tolist() == [3, 5, 3, 3, -1, -1]
    half, most = median_times(times).to_dict("records")
    assert (half["num_reached"], half["num_seeds"], half["median"]) == (2, 3, 3.0)
    assert (most["fastest"], most["slowest"], most["median"]) == (3.0, 5.0, 5.0)


@pytest.mark.parametrize(("reached", "median"), [(1, NAN), (2, 5.0), (3, 5.0)])
def test_a_median_needs_half_of_the_seeds(reached: int, median: float) -> None:
    """Seeds that do not get there count as later, so they do not make a task look faster."""
    seconds = [4.0, 5.0, 6.0][:reached] + [NAN] * (3 - reached)
    times = pd.DataFrame({"task": "A", "share": 0.5, "score": 1.0, "wall_seconds": seconds})
    assert median_times(times)["median"].tolist() == pytest.approx([median], nan_ok=True)
