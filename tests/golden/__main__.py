"""Compare this tree's bytes with the base commit's, or another tree's; see `test_golden.py`.

    python -m tests.golden                            # all agents, with the base commit
    python -m tests.golden --agent a2c --tree ../main # one agent, with another checkout
    python -m tests.golden --agent a2c --update       # the present commit becomes the base
    python -m tests.golden --agent a2c --raise        # it becomes the base of the next behaviour

Code that gives all the bytes of the base is listed in `results/behaviour.json`: it has the same
behaviour, and every run that was made by it stays valid. `--update` asks for the same bytes.
The exit status is 1 where bytes differ.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suite import behaviour, hardware
from suite.command_line import run_main
from suite.settings import UsageError
from tests.golden import trees
from tests.golden.configurations import RUNS


def main(argv: Sequence[str]) -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--agent", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--run", nargs="+", default=[], help="names of runs; default: all")
    parser.add_argument("--tree", type=Path, help="root of the tree to compare with")
    become = parser.add_mutually_exclusive_group()
    become.add_argument("--update", action="store_true", help="this commit becomes the base")
    become.add_argument(
        "--raise", action="store_true", dest="next", help="and the number goes up: bytes may differ"
    )
    options = parser.parse_args(argv)
    if (options.update or options.next) and (options.run or options.tree):
        raise UsageError("a base has all runs of this tree: leave out --run and --tree")
    status = 0
    for agent in options.agent:
        if options.next:
            make_base(agent, is_next=True)
            continue
        if options.update and not behaviour.behaviours(agent):
            make_base(agent, is_next=True)
            continue
        lines = compare(agent, options.run, options.tree)
        status = max(status, bool(lines))
        if options.update and not lines:
            make_base(agent, is_next=False)
        elif not lines and not options.run and options.tree is None:
            note(agent)
        elif lines and options.tree is None:
            print(f"  if this is wanted: python -m tests.golden --agent {agent} --raise")
    return status


def compare(agent: str, only: Sequence[str], tree: Path | None) -> list[str]:
    """Return, and print, a line for every run of the base that gives other bytes here."""
    started, runs = time.perf_counter(), trees.base_runs(agent, only)
    there = trees.run(tree.resolve(), agent, runs) if tree else trees.expected(agent, runs)
    lines = trees.differences(there, trees.run(trees.ROOT, agent, runs))
    seconds = time.perf_counter() - started
    print(f"{agent}: {len(lines)} of {len(runs)} differ ({seconds:.0f} s)")
    print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    return lines


def note(agent: str) -> None:
    """List the present code, which gave the base's bytes, as having today's behaviour."""
    known = behaviour.behaviours(agent)
    code = behaviour.fingerprint(hardware.sources(agent))
    if code not in known[max(known)]["sources"]:
        known[max(known)]["sources"].append(code)
        behaviour.declare(agent, known)
        print(f"  verified: {behaviour.DECLARED.name} lists this code for behaviour {max(known)}")


def make_base(agent: str, *, is_next: bool) -> None:
    """Make the present commit the base of an agent's behaviour.

    Args:
        agent: the agent's name.
        is_next: whether it is another behaviour than before, with the next number.

    Raises:
        UsageError: if the code is not the commit's.
    """
    beside = (":!tests", f":!results/{behaviour.DECLARED.name}")
    if trees.git("status", "--porcelain", "--", ".", *beside):
        raise UsageError("there are changes beside the tests: commit them first")
    runs, known = trees.todays_runs(agent), behaviour.behaviours(agent)
    trees.store(agent, runs, trees.run(trees.ROOT, agent, runs))
    number = max(known, default=0) + is_next
    known.setdefault(number, {"sources": [], "runs": {}})["base"] = trees.git("rev-parse", "HEAD")
    behaviour.declare(agent, known)
    print(f"{agent}: this commit is the base of behaviour {number}")
    note(agent)


if __name__ == "__main__":
    sys.exit(run_main(main))
