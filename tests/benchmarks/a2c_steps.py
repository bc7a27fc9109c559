r"""What each update of an A2C run on discrete actions does to its policy, as rows of a CSV file.

    .venv/bin/python -m tests.benchmarks.a2c_steps steps.csv --begin 41654 -- \
        --suite atari-7 --like nnabla_rl --task Pong-v5 --seeds 3 --env-steps 5000000 --device cpu

Arguments after `--` are those of `agents.a2c`. With `--bound-from` and `--longest`, steps of the
weights are shortened from an update on, not before `--begin`: the run is the same up to there.
"""

import csv
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agents import a2c
from suite.settings.command_line import Parser, run_main

COLUMNS = "number", "kl", "largest_kl", "gradient_norm", "step", "root_mean_square", "rewards"


def main(argv: Sequence[str]) -> int:
    """Train, and write a row for each update from `--begin` on, numbered from 0."""
    parser = Parser(prog="python -m tests.benchmarks.a2c_steps", description=__doc__)
    parser.add_argument("out", type=Path, help="CSV file")
    parser.add_argument("--begin", type=int, default=0, help="first update with a row")
    parser.add_argument("--bound-from", type=int, help="first update whose step is bounded")
    parser.add_argument("--longest", type=float, default=math.inf, help="norm of such a step")
    parser.add_argument("flags", nargs="+", metavar="-- FLAG", help="of agents.a2c")
    options = parser.parse_args(argv)
    update, numbers = a2c.update, itertools.count()
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)

        def watched(learner: Any, config: Any, batch: Any, learning_rate: Any) -> torch.Tensor:
            number = next(numbers)
            if number < options.begin:
                return update(learner, config, batch, learning_rate)
            obs, optimiser = batch.obs[:-1].flatten(0, 1), learner.optimiser
            before = optimiser.weights.vector.clone()
            with torch.no_grad():
                old = learner.network(obs)[0].log_softmax(-1)
            metrics = update(learner, config, batch, learning_rate)
            step = optimiser.weights.vector - before
            if options.bound_from is not None and number >= options.bound_from:
                step *= min(1.0, options.longest / float(step.norm()))
                optimiser.weights.vector.copy_(before + step)
            with torch.no_grad():
                new = learner.network(obs)[0].log_softmax(-1)
            kl = (old.exp() * (old - new)).sum(-1)  # KL(before || after) at each observation
            mean_square = optimiser.square_averages.mean()
            row = (kl.mean(), kl.max(), metrics[3], step.norm(), mean_square.sqrt())
            writer.writerow([number, *map(float, row), float(batch.rewards.sum())])
            return metrics

        a2c.update = watched
        return a2c.main(options.flags)


if __name__ == "__main__":
    sys.exit(run_main(main))
