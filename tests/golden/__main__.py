"""Compare this tree's bytes with the base commit's, or another tree's; see `test_golden.py`.

    python -m tests.golden                            # all agents, with the base commit
    python -m tests.golden --agent a2c --tree ../main # one agent, with another checkout
    python -m tests.golden --agent a2c --update       # the present commit becomes the base
    python -m tests.golden --agent a2c --raise        # it becomes the base of the next behaviour

Code that gives all the bytes of the base is listed in `results/behaviour.json`: it has the same
behaviour, and every run that was made by it stays valid. `--update` asks for the same bytes.
On a machine of a new kind the base commit's bytes are made first, and its checksums are stored.
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
    with trees.Runner(trees.ROOT) as here, there_of(options.tree) as there:
        for agent in options.agent:
            if options.next or (options.update and not behaviour.behaviours(agent)):
                make_base(agent, here, is_next=True)
                continue
            is_same = compare(agent, options.run, here, there)
            status = max(status, not is_same)
            if options.update and is_same:
                make_base(agent, here, is_next=False)
            elif is_same and not options.run and options.tree is None:
                note(agent)
            elif not is_same and options.tree is None:
                print(f"  if this is wanted: python -m tests.golden --agent {agent} --raise")
    return status


def there_of(tree: Path | None) -> trees.Bases | trees.Runner:
    """Return what this tree is compared with: another one, or the base commits."""
    return trees.Runner(tree.resolve()) if tree else trees.Bases()


def compare(
    agent: str, only: Sequence[str], here: trees.Runner, there: trees.Bases | trees.Runner
) -> bool:
    """Return whether all runs of the base give the same bytes; print those that do not.

    Where a base made all of its bytes because none are stored for such a machine, they are now.
    """
    started, runs = time.perf_counter(), trees.base_runs(agent, only)
    is_base = isinstance(there, trees.Bases)
    theirs = there.checksums(agent, runs) if is_base else there.run(agent, runs)
    lines = trees.differences(theirs, here.run(agent, runs))
    seconds = time.perf_counter() - started
    print(f"{agent}: {len(lines)} of {len(runs)} differ ({seconds:.0f} s)")
    print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    if is_base and not only and trees.add_machine(agent, theirs):
        print(f"  stored: the base's checksums on {trees.machine()['cpu']}")
    return not lines


def note(agent: str) -> None:
    """List the present code, which gave the base's bytes, as having today's behaviour."""
    known = behaviour.behaviours(agent)
    code = behaviour.fingerprint(hardware.sources(agent))
    if code not in known[max(known)]["sources"]:
        known[max(known)]["sources"].append(code)
        behaviour.declare(agent, known)
        print(f"  verified: {behaviour.DECLARED.name} lists this code for behaviour {max(known)}")


def make_base(agent: str, here: trees.Runner, *, is_next: bool) -> None:
    """Make the present commit the base of an agent's behaviour.

    Args:
        agent: the agent's name.
        here: runs this tree's code.
        is_next: whether it is another behaviour than before, with the next number.

    Raises:
        UsageError: if the code is not the commit's.
    """
    beside = (":!tests", f":!results/{behaviour.DECLARED.name}")
    if trees.git("status", "--porcelain", "--", ".", *beside):
        raise UsageError("there are changes beside the tests: commit them first")
    runs, known = trees.todays_runs(agent), behaviour.behaviours(agent)
    trees.store(agent, runs, here.run(agent, runs))
    number = max(known, default=0) + is_next
    known.setdefault(number, {"sources": [], "runs": {}})["base"] = trees.git("rev-parse", "HEAD")
    behaviour.declare(agent, known)
    print(f"{agent}: this commit is the base of behaviour {number}")
    note(agent)


if __name__ == "__main__":
    sys.exit(run_main(main))
