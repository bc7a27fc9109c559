"""Each agent, through its own command, far enough to see that it learns."""

from pathlib import Path

import pytest

from agents import AGENTS
from reproduce.gather.tables import read_table
from reproduce.plan.unlearned import known_zero
from tests.agents.trainings import module_of
from tests.runs import run_json

SAMPLED = "--evaluation-rule=sampled"
EARLY = "--learning-starts=500"
TRAININGS = {
    "sac": ("InvertedPendulum-v4", 1_100, EARLY),
    "a2c": ("CartPole-v1", 10_000, SAMPLED),
    "ppo": ("CartPole-v1", 10_000, SAMPLED),
    "impala": ("CartPole-v1", 20_000, SAMPLED),
    "acer": ("CartPole-v1", 5_000, SAMPLED),
    "sac_discrete": ("CartPole-v1", 3_000, "--learning-starts=1000"),
    "acer_continuous": ("InvertedPendulum-v4", 10_000, SAMPLED),
    "sac_value": ("InvertedPendulum-v4", 1_500, EARLY),
    "sac_alf": ("InvertedPendulum-v4", 1_100, EARLY),
}
"""Task, environment steps and a flag by agent; one without an entry fails."""


@pytest.mark.long
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_soon_scores_far_above_a_random_policy(agent: str, tmp_path: Path) -> None:
    """The preset's own settings, through the agent's command; one evaluation, at the end."""
    task, env_steps, flag = TRAININGS[agent]
    steps = [f"--env-steps={env_steps}", f"--evaluation-interval={env_steps}"]
    command = ["--task", task, "--device=cpu", f"--out={tmp_path}", flag, *steps]
    assert module_of(agent).main(command) == 0
    assert run_json(tmp_path)["status"] == "finished"
    score = read_table(tmp_path / "seed-1" / "evaluations.csv").mean_return.iloc[-1]
    assert score > 7 * known_zero(task).random  # an untrained policy may have 5
