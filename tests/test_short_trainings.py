"""Each agent, through its own command, far enough to see that it learns."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agents import AGENTS
from reproduce.plan.tables import read_table
from suite.envs.tasks import find_task

SAMPLED = "--evaluation-rule=sampled"
EARLY = "--learning-starts=500"
TRAININGS = {
    "sac": ("InvertedPendulum-v4", 1_500, 500, EARLY),
    "a2c": ("CartPole-v1", 10_000, 5_000, SAMPLED),
    "ppo": ("CartPole-v1", 10_000, 5_000, SAMPLED),
    "impala": ("CartPole-v1", 20_000, 10_000, SAMPLED),
    "acer": ("CartPole-v1", 5_000, 2_500, SAMPLED),
    "sac_discrete": ("CartPole-v1", 3_000, 1_000, "--learning-starts=1000"),
    "acer_continuous": ("InvertedPendulum-v4", 10_000, 5_000, SAMPLED),
    "sac_value": ("InvertedPendulum-v4", 1_500, 500, EARLY),
    "sac_alf": ("InvertedPendulum-v4", 1_500, 500, EARLY),
}
"""Task, environment steps, evaluation interval and a flag by agent."""


@pytest.mark.long
@pytest.mark.parametrize("agent", TRAININGS)
def test_an_agent_soon_scores_far_above_a_random_policy(agent: str, tmp_path: Path) -> None:
    """The preset's own settings, through the agent's command; its last evaluation counts."""
    task, env_steps, interval, flag = TRAININGS[agent]
    command = [sys.executable, "-m", f"agents.{agent}", "--task", task, "--device=cpu", flag]
    command += [f"--env-steps={env_steps}", f"--evaluation-interval={interval}"]
    subprocess.run([*command, f"--out={tmp_path}"], check=True, timeout=300)
    folder = tmp_path / "seed-1"
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert len(read_table(folder / "updates.csv"))
    last = read_table(folder / "evaluations.csv").mean_return.iloc[-1]
    assert last > 7 * find_task(task).random_score  # an untrained policy may have 5


@pytest.mark.long
@pytest.mark.skipif(find_spec("Box2D") is None, reason="needs the extra box2d")
@pytest.mark.parametrize(
    ("agent", "task", "flags"),
    [
        ("a2c", "LunarLander-v3", ()),
        ("sac", "BipedalWalker-v3", ("--learning-starts=1800", "--evaluation-episodes=1")),
    ],
)
def test_an_agent_trains_on_what_gymnasium_simulates(
    agent: str, task: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Without a preset of its own: 2,000 steps through the agent's command, to the end."""
    command = [sys.executable, "-m", f"agents.{agent}", "--task", task, "--device=cpu", *flags]
    subprocess.run([*command, "--env-steps=2000", f"--out={tmp_path}"], check=True, timeout=300)
    record = json.loads((tmp_path / "seed-1" / "run.json").read_text())
    assert (record["status"], record["task"]) == ("finished", task)
    assert len(read_table(tmp_path / "seed-1" / "updates.csv")) > 0


def test_every_agent_is_trained() -> None:
    """An agent without an entry above would never be trained here."""
    assert set(TRAININGS) == set(AGENTS)
