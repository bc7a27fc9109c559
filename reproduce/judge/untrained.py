"""Measure untrained policies: the initial networks of an agent that trains the task.

    python -m reproduce.judge.untrained --tasks Ant-v4 Hopper-v4

It writes the last columns of `suite/random_scores.csv`, which `python -m suite.random_policy`
begins. By the kind of actions they are SAC's, A2C's or IMPALA's, or `sac_alf`'s, by the default
preset of the task's suite (of a task without one, the agent's own default). Continuous policies
play their mode, discrete ones sample, for they begin near uniform and the mode is a single action.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reproduce.judge.fingerprints import untrained_returns
from suite.base.errors import UsageError
from suite.envs.tasks import TASKS, Task, baseline_scores, tasks_in
from suite.random_policy import in_every_protocol, put
from suite.settings.command_line import Parser, run_main

AGENTS_OF = {
    "continuous": (("sac",), "deterministic"),
    "discrete": (("a2c", "impala"), "sampled"),
    "hybrid": (("sac_alf",), "deterministic"),
}
"""Agents of each kind of actions, the first that trains a task plays it, and their rule."""


def untrained_config(task: Task) -> tuple[str, Any]:
    """Return the agent whose initial networks play a task, and its settings there.

    An evaluation has ten episodes; in a game, whose episodes are long, two.
    """
    agents, rule = AGENTS_OF[task.actions]
    presets = {agent: importlib.import_module(f"agents.{agent}").PRESETS for agent in agents}
    training = [
        (agent, preset.config)
        for agent in agents
        for (suite, _), preset in presets[agent].items()
        if task.name in (preset.tasks or tasks_in(suite))
    ]
    agent, config = (training or [(agents[0], next(iter(presets[agents[0]].values())).config)])[0]
    changes: dict[str, Any] = {"protocol": task.protocol} if task.family == "atari" else {}
    episodes = 2 if task.family == "atari" else 10
    changes |= {"evaluation_rule": rule, "evaluation_episodes": episodes}
    return agent, replace(config, task=task.name, **changes)


def main(argv: Sequence[str]) -> int:
    """Read the command line, measure and write; return the exit status."""
    parser = Parser(prog="python -m reproduce.judge.untrained", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="default: every task")
    tasks = in_every_protocol(parser.parse(argv).tasks)
    for task in tasks:
        if (task.name, task.protocol) not in baseline_scores():
            measure = f"run `python -m suite.random_policy --tasks {task.name}` first"
            raise UsageError(f"no random-policy score for {task.name}: {measure}")
    for task in tasks:
        agent, config = untrained_config(task)
        returns = untrained_returns(agent, config)
        measured = {
            "untrained_return": f"{returns.mean():.6g}",
            "untrained_agent": agent,
            "untrained_rule": config.evaluation_rule,
        }
        put(task, measured)
        print(task.name, task.protocol, *measured.values(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
