"""A process that repeats a workload when told; see `pair.py`.

    PYTHONPATH=TREE python serve.py WORKLOAD

A tree is a commit of the project; it imports from there, and only `workloads.py` from this folder.
It answers every order, a line `{"count": 3}`, with the seconds of that many repetitions, and where
the work cannot be done with the error.
"""

import gc
import json
import os
import sys
import time
from typing import Any


def main(name: str) -> None:
    """Build a workload and serve.

    A simulator's thread and ours wait for each other; on one core they change places at once, while
    waking another core can take longer than a step.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the work's own output is not an answer
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        import workloads  # pyright: ignore[reportMissingImports] - beside this file

        repeat = workloads.build([name])[name]
        for line in sys.stdin:
            gc.disable()
            started = time.perf_counter()
            for _ in range(json.loads(line)["count"]):
                repeat()
            say({"seconds": time.perf_counter() - started})
            gc.enable()
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1])
