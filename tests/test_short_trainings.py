"""Each agent, through its own command, 2,000 steps past its learning start (`make train`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reproduce.collect import read_table
from suite.tasks import find_task

TRAININGS = {
    "sac": ("InvertedPendulum-v4", 2_500, ("--learning-starts=500",)),
}
"""Task, environment steps and flags by agent."""


@pytest.mark.training
@pytest.mark.parametrize("agent", TRAININGS)
def test_an_agent_learns_within_two_thousand_updates(agent: str, tmp_path: Path) -> None:
    """The default network, past its warm-up, scores far above a random policy and is recorded."""
    task, env_steps, flags = TRAININGS[agent]
    command = [sys.executable, "-m", f"agents.{agent}", "--task", task, "--device=cpu", *flags]
    command += [f"--env-steps={env_steps}", "--evaluation-interval=500", f"--out={tmp_path}"]
    subprocess.run(command, check=True, timeout=300)
    folder = tmp_path / "seed-1"
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert read_table(folder / "updates.csv").num_updates.iloc[-1] == 2_000
    best = read_table(folder / "evaluations.csv").mean_return.max()
    assert best > 5 * find_task(task).random_score
