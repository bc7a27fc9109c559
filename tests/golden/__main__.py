"""Compare today's bytes with the stored checksums; see `test_golden.py`.

    python -m tests.golden                       # all agents
    python -m tests.golden --agent a2c --update  # store the checksums of today's bytes of one

`golden.json` keeps, for every agent, the checksums of the behaviour that its file names by
`BEHAVIOUR`. `--update` stores other bytes for a higher number alone. Under the same number it
stores new runs, if the old ones give the same bytes, and the checksums on a processor without any,
if the agent's code is committed. The exit status is 1 where bytes differ.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts threads, which add up otherwise

import torch

from suite.base import hardware
from suite.base.errors import UsageError
from suite.settings.command_line import run_main
from tests.golden import runner, trees
from tests.golden.configurations import RUNS


def main(argv: Sequence[str]) -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--agent", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--run", nargs="+", default=[], help="names of runs; default: all")
    parser.add_argument("--update", action="store_true", help="store today's checksums")
    options = parser.parse_args(argv)
    if options.update and options.run:
        raise UsageError("--update stores all runs: leave out --run")
    if options.update:
        for agent in options.agent:
            trees.number_of(agent)
    is_same = True
    for agent in options.agent:
        is_same &= update(agent) if options.update else check(agent, options.run)
    return int(not is_same)


def check(agent: str, only: Sequence[str]) -> bool:
    """Return whether the runs give the bytes of the agent's number, as far as they are stored."""
    trees.check_stored(agent)
    runs = trees.stored_runs(agent, only)
    theirs = {name: sums for name, sums in trees.checksums(agent).items() if name in runs}
    if not theirs:
        print(f"{agent}: {trees.MISSING}; --update stores them")
        return True
    return compare(agent, theirs, {name: runs[name] for name in theirs})


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
        if not known and (changed := hardware.uncommitted(hardware.sources(agent))):
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
