"""Initial weights are the sources': untrained policies return what theirs did."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agents import AGENTS
from reproduce.judge import fingerprints
from reproduce.judge.fingerprints import Pair
from tests.messages import refused

pytestmark = pytest.mark.long

Pairs = dict[tuple[str, str, str], Pair]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """Return every pair with evidence, by agent, source and task."""
    found = [pair for agent in AGENTS for pair in fingerprints.pairs(agent)]
    return {(pair.agent, pair.source, pair.task): pair for pair in found}


@pytest.fixture
def hopper(pairs: Pairs) -> Pair:
    """Return SAC's pair of jaxrl's settings on Hopper."""
    return pairs["sac", "jaxrl", "Hopper-v4"]


def test_every_pair_with_evidence_is_in_the_table(pairs: Pairs) -> None:
    """A new preset or a new reference is compared before it is believed."""
    table = fingerprints.read_fingerprints()
    assert set(table[["agent", "source", "task"]].itertuples(index=False, name=None)) == set(pairs)
    assert {"jaxrl", "nnabla_rl", "tianshou_v3", "simbav2_baselines"} <= set(table["judge"])


def test_no_preset_is_refuted_by_its_source(pairs: Pairs) -> None:
    """At 1 % over all pairs; the table's p-values are those of its returns and the references."""
    for row in fingerprints.read_fingerprints().to_dict("records"):
        pair = pairs[row["agent"], row["source"], row["task"]]
        ours = np.array(row["our_returns"].split(), dtype=float)
        assert row["p"] == pytest.approx(fingerprints.p_value(ours, pair.theirs), rel=0.01)
        assert row["p_holm"] > fingerprints.LEVEL, row


@pytest.mark.usefixtures("unchecked")
def test_the_table_is_of_todays_initial_weights(hopper: Pair) -> None:
    """A seed's return is as it stands: a changed preset needs a new table."""
    table = fingerprints.read_fingerprints().query("source == 'jaxrl' and task == 'Hopper-v4'")
    (returns,) = table["our_returns"]
    (ours,) = fingerprints.untrained_returns(hopper.agent, hopper.config, fingerprints.SEEDS[:1])
    assert ours == pytest.approx(float(returns.split()[0]), rel=0.02)


@pytest.mark.usefixtures("unchecked")
def test_a_false_claim_is_found(hopper: Pair) -> None:
    """Heads of gain 1e-3, as a later commit of jaxrl has them, are not those of its runs."""
    false: Any = replace(hopper.config, policy_head_gain=1e-3)
    returns = fingerprints.untrained_returns(hopper.agent, false)
    level = fingerprints.LEVEL / len(fingerprints.read_fingerprints())
    assert fingerprints.p_value(returns, hopper.theirs) < level


def test_every_pair_could_be_refused(pairs: Pairs) -> None:
    """Returns that lie apart from those of the source's runs are: also of three runs."""
    table = fingerprints.read_fingerprints()
    for row in table.to_dict("records"):
        theirs = pairs[row["agent"], row["source"], row["task"]].theirs
        ours = theirs.max() + np.arange(1.0, 1.0 + len(row["our_returns"].split()))
        assert fingerprints.p_value(ours, theirs) < fingerprints.LEVEL / len(table), row


def test_one_source_is_measured_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new reference costs its own pairs; every other row stays as it is."""
    path, before = tmp_path / "fingerprints.csv", pd.read_csv(fingerprints.PATH)
    stale = before.assign(p=before["p"].where(before["source"] != "sb3_control", 0.5))
    stale.to_csv(path, index=False)
    monkeypatch.setattr(fingerprints, "PATH", path)
    returns = {
        (row["agent"], row["task"]): np.array(row["our_returns"].split(), dtype=float)
        for row in before.query("source == 'sb3_control'").to_dict("records")
    }
    monkeypatch.setattr(
        fingerprints, "untrained_returns", lambda agent, config, seeds: returns[agent, config.task]
    )
    assert fingerprints.main(["--agent", "sac", "--source", "sb3_control"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(path), before)
    with refused():
        fingerprints.main(["--source", "sb3"])
