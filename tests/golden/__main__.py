"""Compare this tree's bytes with the base commit's, or another tree's; see `test_golden.py`.

    python -m tests.golden                            # all agents, with the base commit
    python -m tests.golden --agent a2c --tree ../main # one agent, with another checkout
    python -m tests.golden --update                   # the present commit becomes the base

The exit status is 1 where bytes differ.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suite.command_line import run_main
from suite.files import write_atomically
from suite.settings import UsageError, nearest
from tests.golden import trees
from tests.golden.configurations import RUNS


def main(argv: Sequence[str]) -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--agent", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--run", nargs="+", default=[], help="names of runs; default: all")
    parser.add_argument("--tree", type=Path, help="root of the tree to compare with")
    parser.add_argument("--update", action="store_true", help="store this commit's checksums")
    options = parser.parse_args(argv)
    if options.update:
        update()
        return 0
    found = {name for agent in options.agent for name in RUNS[agent]}
    for name in options.run:
        if name not in found:
            raise UsageError(f"no run {name!r}{nearest(name, found)}")
    status = 0
    for agent in options.agent:
        only = [name for name in RUNS[agent] if name in options.run]
        if options.run and not only:
            continue
        started = time.perf_counter()
        if options.tree is None:
            before = trees.expected(agent)
            theirs = {name: before.get(name, {}) for name in only or before}
        else:
            theirs = trees.run(options.tree.resolve(), agent, only)
        lines = trees.differences(theirs, trees.run(trees.ROOT, agent, only))
        seconds = time.perf_counter() - started
        print(f"{agent}: {len(lines)} of {len(only or RUNS[agent])} differ ({seconds:.0f} s)")
        print("".join(f"  {line}\n" for line in lines), end="", flush=True)
        status = max(status, bool(lines))
    return status


def update() -> None:
    """Store the checksums of the present commit; the runs may have changed since.

    Raises:
        UsageError: if the code is not the commit's.
    """
    if trees.git("status", "--porcelain", "--", ".", ":!tests"):
        raise UsageError("there are changes beside the tests: commit them first")
    content = {
        "commit": trees.git("rev-parse", "HEAD"),
        "machine": trees.machine(),
        "checksums": {agent: trees.run(trees.ROOT, agent) for agent in RUNS},
    }
    write_atomically(trees.STORED, json.dumps(content, indent=1).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(run_main(main))
