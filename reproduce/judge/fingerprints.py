"""Fingerprints of initial weights: do untrained policies return what the source's did?

A preset is a claim about how networks start. Where a source's runs were evaluated before their
first update, those returns are evidence: ours, of ten initial policies by the same rule of
evaluation, must be compatible with them (forty where the source has fewer than ten runs).

    python -m reproduce.judge.fingerprints      # every pair of preset and task (nine minutes)
    python -m reproduce.judge.fingerprints --agent sac --source sb3_control

It writes `results/references/fingerprints.csv`; a test refuses a pair that is missing, out of
date or incompatible.
"""

import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy  # loads `scipy.stats` when it is first used
from jaxtyping import Float

from agents import AGENTS
from reproduce.gather.references import first_evaluations
from reproduce.judge.inference import holm
from reproduce.judge.zero import first_update
from reproduce.plan.presets import check_agent
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.tasks import SUITES
from suite.record.recorder import Recorder
from suite.settings.command_line import Parser, run_main
from suite.settings.presets import REFERENCES

LEVEL = 0.01
"""Probability of refusing any of the pairs although all presets are true (Holm's adjustment)."""
PATH = REFERENCES / "fingerprints.csv"
SEEDS = tuple(range(101, 111))
MORE_SEEDS = tuple(range(101, 141))
"""Where the judge has fewer than ten runs: else not even complete separation were refused."""
NO_LEARNING_RATE = 1e-30
"""A step size that moves no weight; agents of unrolls make an update before they are scored."""


def read_fingerprints() -> pd.DataFrame:
    """Return the table with `p_holm`, p-values adjusted for all pairs."""
    table = pd.read_csv(PATH)
    return table.assign(p_holm=holm(table["p"].to_numpy(dtype=float)))


class Pair(NamedTuple):
    """A preset and a task on which its judge was evaluated before it learned."""

    agent: str
    source: str
    """Name of the preset."""
    judge: str
    task: str
    config: Any
    theirs: Float[np.ndarray, " runs"]
    """First evaluation of each of the judge's runs."""


def pairs(agent: str) -> Iterator[Pair]:
    """Yield every pair of an agent that has evidence, each once."""
    found = set()
    for (suite, source), preset in importlib.import_module(f"agents.{agent}").PRESETS.items():
        for task in preset.tasks or SUITES[suite]:
            if preset.judged_by is None or (source, task) in found:
                continue
            config = replace(preset.config, task=task)
            before_update = first_update(config) - 1
            theirs = first_evaluations(agent, preset.judged_by, task, before_update)
            if theirs.size > 1 and config.evaluation_rule != "training":
                found.add((source, task))
                yield Pair(agent, source, preset.judged_by, task, config, theirs)


def untrained_returns(
    agent: str, config: Any, seeds: Sequence[int] = SEEDS
) -> Float[np.ndarray, " seeds"]:
    """Return the mean evaluation return of each seed's initial policy."""
    changes: dict[str, Any] = {"env_steps": config.num_envs, "num_threads": 1, "device": "cpu"}
    if hasattr(config, "unroll_length"):
        changes |= {"env_steps": config.unroll_rows, "learning_rate": NO_LEARNING_RATE}
    if hasattr(config, "num_epochs"):
        changes |= {"num_epochs": 1}
    train = importlib.import_module(f"agents.{agent}").train
    returns = []
    for seed in seeds:
        short = replace(config, seeds=(seed,), **changes)
        with tempfile.TemporaryDirectory() as folder:
            run = {"agent": agent, "task": config.task}
            recorder = Recorder(Path(folder), run, short.seeds)
            train(short, recorder)
            recorder.finish()
            table = pd.read_csv(Path(folder) / f"seed-{seed}" / "evaluations.csv")
        returns.append(table.loc[0, "mean_return"])
    return np.array(returns, dtype=float)


def p_value(ours: Float[np.ndarray, " seeds"], theirs: Float[np.ndarray, " runs"]) -> float:
    """Return the two-sided p-value of Mann and Whitney's test, exact unless returns are tied."""
    returns = np.concatenate([ours, theirs])
    method = "exact" if np.unique(returns).size == returns.size else "asymptotic"
    return float(scipy.stats.mannwhitneyu(ours, theirs, method=method).pvalue)


def main(argv: Sequence[str]) -> int:
    """Measure and write the table; the exit status is 1 if a pair is incompatible."""
    parser = Parser(prog="python -m reproduce.judge.fingerprints", description=__doc__)
    parser.add_argument("--agent", nargs="+", default=AGENTS, help="default: all")
    parser.add_argument("--source", help="measure the settings of this one alone")
    options = parser.parse(argv)
    for agent in options.agent:
        check_agent(agent)
    asked = [
        pair
        for agent in options.agent
        for pair in pairs(agent)
        if options.source in (None, pair.source)
    ]
    if not asked:
        named = f"no preset {options.source!r}" if options.source else "no preset"
        agents = ", ".join(options.agent)
        raise UsageError(f"{named} of {agents} has a judge with evaluations at its start")
    rows = []
    for pair in asked:
        seeds = SEEDS if pair.theirs.size >= len(SEEDS) else MORE_SEEDS
        ours = untrained_returns(pair.agent, pair.config, seeds).round(2)
        shown = {
            "agent": pair.agent,
            "source": pair.source,
            "judge": pair.judge,
            "task": pair.task,
            "num_runs": pair.theirs.size,
            "their_median": round(float(np.median(pair.theirs)), 2),
            "our_median": round(float(np.median(ours)), 2),
            "p": float(f"{p_value(ours, pair.theirs):.3g}"),
        }
        print(*shown.values(), sep="  ", flush=True)
        rows.append(shown | {"our_returns": " ".join(f"{value:.2f}" for value in ours)})
    before = pd.read_csv(PATH)  # now: measuring takes minutes
    replaced = before["agent"].isin(options.agent)
    if options.source is not None:
        replaced &= before["source"] == options.source
    table = pd.concat([before[~replaced], pd.DataFrame(rows)]).sort_values(
        ["agent", "source", "task"]
    )
    write_atomically(PATH, table.to_csv(index=False, lineterminator="\n").encode())
    refused = read_fingerprints().query("p_holm <= @LEVEL").to_dict("records")
    for each in refused:
        pair, p = f"{each['agent']} --like {each['source']}, {each['task']}", each["p_holm"]
        print(f"incompatible: {pair}: p = {p:.2g}")
    return int(len(refused) > 0)


if __name__ == "__main__":
    sys.exit(run_main(main))
