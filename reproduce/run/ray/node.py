"""A Ray task on its node: it runs an agent's own command and sends its files back in pieces.

A node needs only the project's Python environment: the driver sends this code, the agents' and the
suite's.
"""

import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import no_type_check

from reproduce.plan.origin import changed_sources
from reproduce.run.processes import AgentProcess, End
from reproduce.run.ray.mirror import LOG, Changes, Mirror
from suite.hardware import sources
from suite.settings import UsageError

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """An agent's command for a node."""

    agent: str
    sources: Mapping[str, str]
    """Checksums of the agent's code, the same as for the grid's other runs."""
    arguments: Sequence[str]
    """The agent's command without the Python that runs it."""
    out: str
    """The folder that the command writes into, relative to where it works."""
    folders: Sequence[str]
    """Names of the runs' folders in `out`."""
    files: Mapping[str, bytes] = field(repr=False)
    """Files of these runs that the driver has received before, by path in `out`."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Key by which the driver asks the agent to end; to cancel the task ends its messages, too."""


@no_type_check  # a type checker's wrapper would not be a generator function, which Ray needs
def work(task: Task) -> Iterator[str | Changes | End]:
    """Run an agent's command in a temporary folder.

    Args:
        task: the command and its files.

    Yields:
        the node's id once the agent has started, then changes of its files, last how it ended.

    Raises:
        UsageError: if the code here differs from the grid's.
        OSError: if writing fails.
    """
    import ray
    from ray.experimental.internal_kv import _internal_kv_exists

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
            stopping = False
            while end is None or changes is None:
                time.sleep(POLL_SECONDS if end is None else 0.0)
                if not stopping and _internal_kv_exists(task.name):
                    stopping = True
                    process.terminate()
                end = end or process.poll()  # before the last changes are read
                if end:
                    process.kill()
                changes = mirror.changes()
                if changes and (changes.pieces or changes.gone):
                    yield changes
            yield end
        finally:
            process.kill()
