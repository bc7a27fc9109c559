"""Store the checksums of today's bytes, with which `test_golden.py` compares later ones.

    python -m tests.golden --update              # of all agents
    python -m tests.golden --agent a2c --update  # of one

`golden.json` keeps, for every agent, the checksums of the behaviour that its file names by
`BEHAVIOUR`. Other bytes are stored for a higher number alone. Under the same number new runs are
stored, if the old ones give the same bytes, and the checksums on a processor without any, if the
agent's code is committed. The exit status is 1 where bytes differ.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts threads, which add up otherwise

import torch

from suite.base import code
from suite.base.errors import UsageError
from suite.settings.command_line import run_main
from tests.golden import runner, trees
from tests.golden.configurations import RUNS


def main(argv: Sequence[str]) -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--agent", choices=RUNS, nargs="+", default=list(RUNS))
    text = "needed, so that nobody stores by accident"
    parser.add_argument("--update", action="store_true", required=True, help=text)
    options = parser.parse_args(argv)
    for agent in options.agent:
        trees.number_of(agent)
    return int(not all([update(agent) for agent in options.agent]))


def compare(agent: str, theirs: trees.Checksums, runs: trees.Orders) -> bool:
    """Return whether all runs give these checksums; print those that do not."""
    started = time.perf_counter()
    lines = trees.differences(theirs, runner.all_checksums(agent, runs))
    seconds = time.perf_counter() - started
    print(f"{agent}: {len(lines)} of {len(runs)} differ ({seconds:.0f} s)")
    print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    return not lines


def update(agent: str) -> bool:
    """Store the checksums of today's runs, unless their bytes need a higher number.

    A `UsageError` says that nobody can tell whether this is the code of the number.
    """
    number, stored = trees.number_of(agent), trees.stored(agent)
    is_same_number = stored is not None and stored["behaviour"] == number
    if is_same_number:
        known = trees.checksums(agent)
        if not known and (changed := code.uncommitted(code.sources(agent))):
            raise UsageError(
                f"{trees.MISSING}, and {changed[0]} has uncommitted changes: commit them first"
            )
        runs = trees.stored_runs(agent)
        if known and not compare(agent, known, {name: runs[name] for name in known}):
            print(f"  behaviour {number} has other bytes: set BEHAVIOUR = {number + 1} first")
            return False
    orders = trees.todays_runs(agent)
    trees.store(agent, orders, runner.all_checksums(agent, orders))
    print(f"{agent}: stored the checksums of behaviour {number} on {trees.machine()['cpu']}")
    return True


if __name__ == "__main__":
    os.fsync = lambda descriptor: None  # no power is lost here
    torch.set_num_threads(1)
    sys.exit(run_main(main))
