"""The part of a launch that runs on a node of a Ray cluster: an agent's own command.

A node needs only the project's Python environment: the driver sends this code, the agents' and the
suite's. Where the node shares the disk with the runs, the agent writes there; elsewhere it writes
into a temporary folder, and its runs are sent back after each checkpoint and in the end.
"""

import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import no_type_check

from reproduce.plan.status import refuse_changed
from reproduce.run.log import tail
from reproduce.run.processes import AgentProcess, End
from reproduce.run.ray.folders import checkpoint_of, read_folders, read_while_written, write_folders
from suite.base.code import sources
from suite.base.files import open_regular

POLL_SECONDS = 0.5
LOG_BYTES = 2**20
"""Bytes of an agent's output that are sent: of more than 1 MiB the end."""


@dataclass(frozen=True)
class Order:
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
    log: str
    """The driver's file for the agent's output, beside these folders, which begins with `sign`."""
    files: Mapping[str, bytes] = field(repr=False)
    """Files of these runs that the driver has, by path in `out`."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Key by which the driver asks the agent to end; to cancel the task ends its messages, too."""

    @property
    def sign(self) -> bytes:
        """Return the line by which a node knows that it shares the driver's disk."""
        return f"waits for a place in the Ray cluster, as {self.name}\n".encode()


@dataclass(frozen=True)
class Sent:
    """An agent's runs as they were after a checkpoint, or in the end."""

    files: Mapping[str, bytes]
    log: bytes


@no_type_check  # a type checker's wrapper would not be a generator function, which Ray needs
def work(order: Order) -> Iterator[str | Sent | End]:
    """Run an agent's command, in the driver's folder or in a temporary one.

    Yields:
        the node's id once the agent has started, then its runs if it shares no disk with the
        driver, last how it ended.

    Raises:
        UsageError: if the code here differs from the grid's.
        OSError: if writing fails.
    """
    import ray
    from ray.experimental.internal_kv import _internal_kv_exists

    refuse_changed(order.sources, sources(order.agent))
    with tempfile.TemporaryDirectory(prefix="encore-", ignore_cleanup_errors=True) as directory:
        out = Path(directory, order.out)
        is_shared = _prepare(order, out)
        log = Path(order.log) if is_shared else out / "log"
        runs = [out / name for name in order.folders]
        process = AgentProcess((sys.executable, *order.arguments), log, Path(directory))
        try:
            yield ray.get_runtime_context().get_node_id()
            end, sent, stopping = None, checkpoint_of(runs[0]), False
            while end is None:
                time.sleep(POLL_SECONDS)
                if not stopping and _internal_kv_exists(order.name):
                    stopping = True
                    process.terminate()
                end = process.poll()
                now = checkpoint_of(runs[0])
                if not is_shared and (end or now != sent):
                    files = read_folders(runs) if end else read_while_written(runs)
                    if files is not None:
                        sent = now
                        with open_regular(log) as file:
                            said = tail(file, LOG_BYTES)
                        yield Sent(files, said)
            yield end
        finally:
            process.kill()


def _prepare(order: Order, out: Path) -> bool:
    """Make the folder that an agent writes into; return whether it is the driver's."""
    log = Path(order.log)
    try:
        with open_regular(log) as file:
            is_shared = file.read(len(order.sign)) == order.sign
    except OSError:
        is_shared = False
    if is_shared:
        out.parent.mkdir(parents=True)
        out.symlink_to(log.parent)
        return True
    write_folders(order.files, out)
    for name in order.folders:
        (out / name).mkdir(parents=True, exist_ok=True)
    return False
