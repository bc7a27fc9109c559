"""Do work while the process goes on: in a copy of it, or on a GPU by another thread.

A copy (`fork`) keeps the state that the process had: its work sees no later weights, statistics or
random numbers, and gives the bits that the process would have given. It cannot use a GPU. A thread
can, on a queue of its own, but shares the process's state: who calls it gives it copies.
"""

import contextlib
import ctypes
import gc
import inspect
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

from suite.base.hardware import on_queue, worker_thread

PR_SET_PDEATHSIG = 1


class Beside(ABC):
    """Work that goes on beside the process."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether `result` would answer at once."""

    @abstractmethod
    def result(self) -> Any:
        """Wait for the end of the work and return its result, once.

        Raises:
            Exception: if the work failed.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Ask for no result any more: the process is about to end."""


class OnGpu(Beside):
    """Work that a thread does on a queue of a GPU of its own; the process goes on with its own.

    Kernels run in turns, or side by side where they leave room; the host's work in both threads
    shares Python's lock.

    Args:
        work: what to do; it begins after all that the process has queued, and nothing that the
            process changes from now on may be read by it. It is given a function that tells
            whether it is abandoned, and asks it often: Python waits for all threads as it ends.
        queue: the GPU's queue, a `torch.cuda.Stream` that nothing else uses.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], Any], queue: Any) -> None:
        import torch

        self._abandoned = threading.Event()
        queue.wait_stream(torch.cuda.current_stream(queue.device))

        def run() -> Any:
            try:
                with on_queue(queue):
                    return work(self._abandoned.is_set)
            finally:
                queue.synchronize()  # what it read may be freed now

        thread = worker_thread()
        self._future = thread.submit(run)
        thread.shutdown(wait=False)

    def has_ended(self) -> bool:
        """Return whether `result` would answer at once."""
        return self._future.done()

    def result(self) -> Any:
        """Wait for the end of the work and return its result, or raise its own failure."""
        return self._future.result()

    def abandon(self) -> None:
        """Let the work stop when it next asks."""
        self._abandoned.set()


def is_copyable(value: Any) -> bool:
    """Return whether `copy.deepcopy` copies a function with all, and only, what it was given.

    It leaves what a closure holds, and takes along the whole object that a method belongs to. So
    functions of a module are copyable, and `partial`s of them.
    """
    if isinstance(value, partial):
        return all(map(is_copyable, (value.func, *value.args, *value.keywords.values())))
    function = inspect.unwrap(value) if callable(value) else None
    return not inspect.ismethod(function) and getattr(function, "__closure__", None) is None


def can_copy() -> bool:
    """Return whether a copy of this process could work as the process would, without a GPU.

    It lacks the other threads, and a lock that one of them held stays closed. So torch must have
    one thread, and Python too, which IMPALA has not: its actor works meanwhile. The simulators'
    threads sleep between steps. Linux ends it when the process dies.
    """
    import torch

    alone = torch.get_num_threads() == 1 and threading.active_count() == 1
    return alone and sys.platform == "linux"


class InCopy(Beside):
    """Work that a copy of this process does; the copy ends with the process, however that ends.

    Where the system grants no copy, for want of memory or processes, the work is done at once, and
    its failure is raised as it is.

    Args:
        work: what to do; its result must be picklable.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reader, writer = Pipe(duplex=False)
        parent = os.getpid()
        self._copy, self._done = None, None
        try:
            with warnings.catch_warnings():  # of threads: see `can_copy`
                warnings.simplefilter("ignore", DeprecationWarning)
                self._copy = os.fork()
        except OSError:
            self._done = work()
        if self._copy == 0:
            _serve(work, writer, parent)
        writer.close()

    def has_ended(self) -> bool:
        """Return whether `result` would answer at once."""
        return self._reader.poll()

    def abandon(self) -> None:
        """Do nothing: the copy ends with the process."""

    def result(self) -> Any:
        """Wait for the end of the work and return its result, once.

        Raises:
            RuntimeError: with the copy's traceback if the work failed, or its status if it died.
        """
        result, error = self._done, ""
        with contextlib.suppress(EOFError, OSError):  # it ended before, or while, it sent
            result, error = self._reader.recv()
        self._reader.close()
        if self._copy is None:
            return result
        _, status = os.waitpid(self._copy, 0)
        if status:
            number = os.waitstatus_to_exitcode(status)
            error = "out of memory?" if number == -signal.SIGKILL else f"exit status {number}"
        if error:
            raise RuntimeError(f"work beside training failed (--evaluate-beside): {error}")
        return result


def _serve(work: Callable[[], Any], writer: Connection, parent: int) -> NoReturn:
    """Send the result of the work, or the traceback of its failure, and end."""
    status = 1
    try:
        gc.freeze()  # a simulator among the process's garbage would wait for its threads to end
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            for number in (signal.SIGINT, signal.SIGTERM):  # the process needs the result to stop
                signal.signal(number, signal.SIG_IGN)
            try:
                answer = pickle.dumps((work(), ""))
            except BaseException:
                answer = pickle.dumps((None, traceback.format_exc()))
            writer.send_bytes(answer)  # as `Connection.recv` expects it
            status = 0
    finally:
        os._exit(status)
