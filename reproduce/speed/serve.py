"""A process that repeats a workload on the code of any commit and times it; see `pair.Worker`.

It is started as a file, in the folder of the commit: what the workloads import is that commit's,
while the workloads themselves are those beside this file.

It answers every line "count" on stdin with the seconds of that many repetitions. Where the work
cannot be done, it ends with the error.
"""

import gc
import os
import sys
import time

import workloads  # pyright: ignore[reportMissingImports] - beside this file


def main(name: str) -> None:
    """Build a workload and serve.

    A simulator's thread and ours wait for each other; on one core they change places at once, while
    waking another core can take longer than a step.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the work's own output is not an answer
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    repeat = workloads.build([name])[name]
    for count in sys.stdin:
        gc.disable()
        started = time.perf_counter()
        for _ in range(int(count)):
            repeat()
        print(time.perf_counter() - started, file=answers, flush=True)
        gc.enable()


if __name__ == "__main__":
    main(sys.argv[1])
