"""`--keep-best` keeps the policy of each seed's best evaluation, beside its last."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import a2c, impala, sac, sac_alf
from reproduce import __main__ as command_line
from reproduce.commands.evaluate import evaluate_run
from suite.base.errors import UsageError
from suite.record.manifest import BEST, leave_out_policy
from suite.record.reading import read_record
from suite.record.recorder import Recorder
from suite.session import Session
from tests.runs import flags

SHORT = {
    **{"env_steps": 120, "evaluation_interval": 40, "log_interval": 60, "device": "cpu"},
    **{"evaluation_episodes": 2, "evaluation_rule": "sampled"},
}
SAC = {"learning_starts": 40, "batch_size": 8, "hidden_sizes": (8,), "seeds": (1, 2)}
UNROLLS = {"num_envs": 2, "unroll_length": 10, "hidden_sizes": (8,)}
AGENTS: dict[Any, dict[str, Any]] = {
    a2c: {**UNROLLS, "task": "Reacher-v4", "normalise_observations": True},
    impala: {**UNROLLS, "task": "CartPole-v1", "num_minibatches": 1, "lstm_size": 4},
    sac: {**SAC, "task": "Reacher-v4"},
    sac_alf: {**SAC, "task": "Claw-v0"},
}
"""Agents of both loops, with all that a policy keeps."""


def train(agent: Any, out: Path, **changes: Any) -> None:
    """Train by an agent's own command."""
    words = flags({**SHORT, **AGENTS[agent], **changes})
    assert agent.main([*words, "--out", str(out), "--keep-best"]) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("agent", AGENTS)
def test_the_best_policy_is_the_one_that_scored_best(agent: Any, tmp_path: Path) -> None:
    """It plays the episodes of its evaluation again, to the last bit; the last one plays others."""
    train(agent, tmp_path)
    for folder in sorted(tmp_path.glob("seed-*")):
        rows = csv.DictReader((folder / "evaluations.csv").read_text().splitlines())
        row = max(rows, key=lambda row: float(row["mean_return"]))
        said = json.loads((folder / BEST / "policy.json").read_text())
        assert said["env_steps"] == int(row["env_steps"])
        assert said["mean_return"] == float(row["mean_return"])
        score = evaluate_run(folder, episodes=1, best=True, recorded=True)
        assert score.returns.tolist() == [float(row["return_0"]), float(row["return_1"])]


def test_of_equals_the_first_is_kept_and_no_later_update_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy: training goes on with the tensors that scored."""
    config = a2c.Config(**{**SHORT, **UNROLLS, "task": "CartPole-v1", "evaluation_interval": 10})
    recorder = Recorder(tmp_path, {"agent": "a2c"}, config.seeds, keeps_best=True)
    session, scores = Session(config, recorder, 10), iter([1.0, 3.0, 3.0, 2.0])
    weights = torch.zeros(2)
    monkeypatch.setattr(session, "score", lambda *_: np.full((1, 1), next(scores)))
    for env_steps in (10, 20, 30, 40):
        weights.add_(1)
        session.evaluate_if_due(env_steps, 10, lambda obs, _: obs, lambda _: {"w": weights})
    (kept,) = recorder.best
    assert kept is not None
    assert (kept["env_steps"], kept["mean_return"]) == (20, 3.0)
    assert kept["weights"]["w"].tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("unchecked")
def test_evaluate_takes_the_best_where_it_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is under the manifest, and left out with the other policy; without it a line says why."""
    train(sac, tmp_path, seeds=(1,))
    run = tmp_path / "seed-1"
    assert command_line.main(["evaluate", str(run), "--episodes", "1", "--best"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Reacher-v4: mean return -")
    assert f"{BEST}/policy.safetensors" in (run / "SHA256SUMS").read_text()
    leave_out_policy(run)
    record = read_record(run)
    assert record is not None
    assert record["status"] == "finished"
    assert not [path for path in run.rglob("policy*")]
    (run / BEST).rmdir()
    with pytest.raises(UsageError, match="kept no best policy: train with --keep-best"):
        command_line.main(["evaluate", str(run), "--best"])


def test_a_run_that_keeps_its_best_goes_on_with_it_alone(tmp_path: Path) -> None:
    """Extended without the flag it would lose the best policy, and could not have it again."""
    train(a2c, tmp_path)
    words = flags({**SHORT, **AGENTS[a2c], "env_steps": 2 * SHORT["env_steps"]})
    with pytest.raises(UsageError, match="was begun with --keep-best: add it"):
        a2c.main([*words, "--out", str(tmp_path)])
    assert [*tmp_path.glob(f"seed-*/{BEST}/policy.json")]


def test_without_evaluations_there_is_no_best(tmp_path: Path) -> None:
    """An agent's command and a grid both refuse it, before anything is written."""
    hint = "--keep-best needs evaluations"
    with pytest.raises(UsageError, match=hint):
        a2c.main(["--evaluation-rule=training", "--keep-best", f"--out={tmp_path / 'a'}"])
    words = ["a2c", "classic", "--dry-run", "--keep-best", f"--runs-dir={tmp_path / 'b'}"]
    with pytest.raises(UsageError, match=hint):
        command_line.main(words)
    assert not list(tmp_path.rglob("*"))
