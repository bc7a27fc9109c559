"""What a Ray task does on its node: an agent's own command, and its files sent back in pieces.

A node needs the project's Python environment only: this code, the agents' and the suite's come from
the driver.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import no_type_check

from reproduce.mirror import LOG, Changes, Mirror
from reproduce.plan import changed_sources
from reproduce.processes import AgentProcess, End
from suite.hardware import sources
from suite.settings import UsageError

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """What a node is told to do."""

    agent: str
    sources: Mapping[str, str]
    """Of the agent, as the grid's other runs were made with."""
    arguments: Sequence[str]
    """The agent's command without the Python that runs it."""
    out: str
    """The folder that the command writes into, relative to where it works."""
    folders: Sequence[str]
    """Of the runs, in that folder."""
    files: Mapping[str, bytes] = field(repr=False)
    """What has been received of these runs before, by path in that folder."""


@no_type_check  # whose wrapper would be no generator function, as Ray asks for
def work(task: Task) -> Iterator[str | Changes | End]:
    """Run an agent's command in a folder of its own that is removed in the end.

    Args:
        task: what to run.

    Yields:
        the node, once the agent has started; what has changed in its files; how it ended.

    Raises:
        UsageError: if the code here is not that of the grid.
        OSError: if the disk refuses.
    """
    import ray

    changed = changed_sources(task.sources, sources(task.agent))
    if changed:
        raise UsageError(f"{changed} changed since this grid was started")
    with tempfile.TemporaryDirectory(prefix="encore-", ignore_cleanup_errors=True) as directory:
        out = Path(directory, task.out)
        for name in task.folders:
            (out / name).mkdir(parents=True)
        for name, content in task.files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
        mirror = Mirror(out)
        process = AgentProcess((sys.executable, *task.arguments), out / LOG, Path(directory))
        try:
            yield ray.get_runtime_context().get_node_id()
            end = changes = None
            while end is None or changes is None:
                time.sleep(POLL_SECONDS if end is None else 0.0)
                end = end or process.poll()  # before the last changes are read
                if end:
                    process.kill()
                changes = mirror.changes()
                if changes and (changes.pieces or changes.gone):
                    yield changes
            yield end
        finally:
            process.kill()
