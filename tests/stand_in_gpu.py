"""A GPU that is not there: its tensors compute on the processor and keep a GPU's rules.

torch's own stand-in, `torch._subclasses.FakeTensorMode`, serves where torch was built with CUDA. In
a build for CPUs, `to("cuda")` raises in it and a backward pass aborts the process: "PyTorch is not
linked with support for cuda devices". This one needs no such build, and its numbers are real, so
whole trainings run on it, with environments, records and checkpoints. It refuses

- an operator on tensors of both devices, but for what CUDA takes: copies, indices, and numbers for
  the elements of others; an operator of oneDNN's or MKL's; another GPU than `DEVICE`;
- within `reads_nothing`, to wait for a result: a copy to the host, a number, a size that depends on
  values;
- an operator on memory that another stream may still be writing, or that writes what another may
  still be reading;
- within the capture of a graph, to wait, or to copy from the host. Capturing computes nothing, and
  a replay repeats the operators on the memory that they had: numbers of Python are frozen.

What it cannot see: a kernel that CUDA lacks or that rounds differently; memory that the allocator
gives to one tensor while a stream still reads the one before; the time that anything takes.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tag, Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from suite import session

DEVICE = torch.device("cuda", 1)
"""The GPU in use; what names no GPU would land on GPU 0."""
Times = dict["Stream", int]
"""Of every stream, the number of its last operator that is known to have ended."""


class Stream:
    """A queue of the GPU: its operators run one after another, beside those of other queues."""

    def __init__(self, device: torch.device = DEVICE) -> None:
        self.device = device
        self.known: Times = {}
        """What ends before the next operator begins."""
        self.length = 0

    def wait_stream(self, other: "Stream") -> None:
        """Begin nothing more before all has ended that `other` now holds."""
        merge(self.known, other.known)

    def synchronize(self) -> None:
        """Make the calling thread wait until all has ended."""
        merge(thread.known, self.known)


def merge(times: Times, others: Times) -> None:
    """Add what others know."""
    for stream, number in others.items():
        times[stream] = max(times.get(stream, 0), number)


class Thread(threading.local):
    """A thread of the host."""

    def __init__(self) -> None:
        self.known: Times = {}
        """What it has waited for."""
        self.stream = DEFAULT_STREAM
        """Where its operators go."""
        self.device = torch.device("cuda", 0)
        """Where leaving a stream leads to: a thread begins on GPU 0."""
        self.graph: Graph | None = None
        """What captures them instead."""
        self.reads_nothing = False


DEFAULT_STREAM = Stream()
thread = Thread()


class Memory:
    """When each tensor's memory was last written, and read since then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[StorageWeakRef, tuple[Stream, int]] = {}
        self._read: defaultdict[StorageWeakRef, Times] = defaultdict(dict)

    def run(self, name: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Take note of an operator on the thread's stream, which must wait for other streams'."""
        stream, known = thread.stream, thread.stream.known
        reads = {StorageWeakRef(tensor.untyped_storage()) for tensor in read}
        writes = {StorageWeakRef(tensor.untyped_storage()) for tensor in written}
        with self._lock:
            merge(known, thread.known)
            before = [self._written[each] for each in reads | writes if each in self._written]
            before += [pair for each in writes for pair in self._read.pop(each, {}).items()]
            for other, number in before:
                assert number <= known.get(other, 0), f"{name} does not wait for another stream"
            stream.length += 1
            known[stream] = stream.length
            for each in reads:
                self._read[each][stream] = stream.length
            self._written |= dict.fromkeys(writes, (stream, stream.length))


memory = Memory()


class Operator(NamedTuple):
    """What the rules ask about an operator."""

    names: list[str]
    """Of its arguments."""
    reads: list[str]
    writes: list[str]
    """Those whose memory it reads or writes; a view does neither."""
    is_copy: bool
    is_index: bool
    takes_numbers: bool
    """Whether a tensor without axes may lie on the host."""
    waits: bool
    """Whether the host needs a result to go on."""


@cache
def facts(func: Any) -> Operator:
    """Return what the rules ask about an operator of torch's."""
    arguments = func._schema.arguments
    reads = [each.name for each in arguments if each.alias_info is None]
    is_index = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_)
    return Operator(
        names=[each.name for each in arguments],
        reads=[] if func.is_view else reads,
        writes=[each.name for each in arguments if each.alias_info and each.alias_info.is_write],
        is_copy=func is torch.ops.aten.copy_.default,
        is_index=is_index,
        takes_numbers=is_index or Tag.pointwise in func.tags,
        waits=bool({Tag.data_dependent_output, Tag.dynamic_output_shape} & {*func.tags}),
    )


def tensors_in(value: Any) -> list[Tensor]:
    """Return a tensor, or all in a list of them."""
    if isinstance(value, Tensor):
        return [value]
    nests = type(value) is list or type(value) is tuple
    return [each for part in value for each in tensors_in(part)] if nests else []


class Captured(NamedTuple):
    """An operator of a graph."""

    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    read: list[Tensor]
    made: list[Tensor]
    """What it writes, or else its results."""
    results: Any


class Graph:
    """Operators that run again, on the memory that they had when they were captured."""

    def __init__(self) -> None:
        self.operators: list[Captured] = []
        self._made: dict[StorageWeakRef, Tensor] = {}
        self._before: dict[StorageWeakRef, tuple[Any, Any]] = {}

    def keep(self, written: Sequence[Tensor]) -> None:
        """Keep what memory holds that an operator is about to write."""
        for tensor in written:
            storage = tensor.untyped_storage()
            if StorageWeakRef(storage) not in self._made:
                self._before.setdefault(StorageWeakRef(storage), (storage, storage.clone()))

    def add(self, operator: Captured) -> None:
        """Add an operator that has run."""
        self.operators.append(operator)
        known = {StorageWeakRef(tensor.untyped_storage()) for tensor in operator.read}
        for tensor in tensors_in(operator.results):
            place = StorageWeakRef(tensor.untyped_storage())
            if place not in known and place not in self._before:
                self._made.setdefault(place, tensor)

    def end_capture(self) -> None:
        """Undo and spoil what was computed: a capture computes nothing."""
        for tensor in self._made.values():
            floats = tensor.is_floating_point()
            on_cpu(tensor).detach().fill_(torch.nan if floats else 0)
        for storage, content in self._before.values():
            storage.copy_(content)

    def replay(self) -> None:
        """Run the operators on the thread's stream."""
        read = [tensor for each in self.operators for tensor in each.read]
        memory.run("a graph", read, [made for each in self.operators for made in each.made])
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            for each in self.operators:
                again = tensors_in(each.func(*each.args, **each.kwargs))
                for tensor, value in zip(tensors_in(each.results), again, strict=True):
                    if tensor.data_ptr() != value.data_ptr():
                        tensor.copy_(value)


@contextlib.contextmanager
def captured(graph: Graph, stream: "Stream", capture_error_mode: str = "global") -> Iterator[None]:
    """Capture the thread's operators on a stream, as `torch.cuda.graph` does.

    A `RuntimeError` takes the place of what was raised within, as ending such a capture does.
    """
    assert capture_error_mode == "thread_local", "a thread that waits would end the capture"
    thread.stream.synchronize()
    thread.graph = graph
    try:
        with current(stream):
            yield
    except RuntimeError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    finally:
        thread.graph = None
        graph.end_capture()


class OnGpu(Tensor):
    """A tensor on the GPU. Every operator that meets one comes by."""

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        operator, name, kwargs = facts(func), str(func), kwargs or {}
        values = [*zip(operator.names, args, strict=False), *kwargs.items()]
        arguments = {argument: tensors_in(value) for argument, value in values}
        indices = arguments.pop("indices", []) if operator.is_index else []  # of either device
        here = [each for of in arguments.values() for each in of if not isinstance(each, OnGpu)]
        numbers = operator.takes_numbers and all(each.dim() == 0 for each in here)
        assert not here or operator.is_copy or numbers, f"{name} has tensors of both devices"
        assert func.namespace not in ("mkldnn", "mkl"), f"{name} is a processor's"
        if any(each.dtype == torch.bool for each in indices) if indices else operator.waits:
            wait(name)
        if operator.is_copy and here and here[0] is args[0]:
            wait(name)
        read = [each for argument in operator.reads for each in arguments.get(argument, ())]
        read += [each for each in indices if isinstance(each, OnGpu)]
        written = [each for argument in operator.writes for each in arguments.get(argument, ())]
        if thread.graph is not None:
            refuse_in_graph(f"{name} copies from the host", operator.is_copy and here)
            thread.graph.keep(written)
        with torch._C._DisableTorchDispatch():
            results = func(*args, **kwargs)
        if operator.reads or written:
            made = written or tensors_in(results)
            if thread.graph is None:
                memory.run(name, read, made)
            else:
                thread.graph.add(Captured(func, args, kwargs, read, made, results))
        if operator.is_copy and here:
            thread.stream.synchronize()  # as the host does where memory is pageable
        return tree_map(lambda each: on_gpu(each) if isinstance(each, Tensor) else each, results)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Convert, or copy to the host."""
        device, kind = target(args, kwargs)
        tensor = self.cpu() if device is not None and device.type == "cpu" else self
        return tensor if kind is None else Tensor.to(tensor, kind)

    def cpu(self, memory_format: object = None) -> Tensor:
        """Copy to the host."""
        wait("cpu()")
        return on_cpu(self).clone()

    def tolist(self) -> Any:
        """Copy to the host."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> NoReturn:
        """Refuse, as torch does."""
        raise TypeError("can't convert cuda:1 device type tensor to numpy")

    __array__ = numpy  # type: ignore[assignment]

    def __deepcopy__(self, memo: object) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        return (
            nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{on_cpu(self)!r} on {DEVICE}"


def on_gpu(tensor: Tensor) -> Tensor:
    """Return the same numbers in the same memory as the GPU's."""
    if isinstance(tensor, OnGpu):
        return tensor
    return torch.Tensor._make_subclass(OnGpu, tensor, tensor.requires_grad)


def on_cpu(tensor: Tensor) -> Tensor:
    """Return the same numbers in the same memory as the processor's."""
    with torch._C._DisableTorchDispatch():
        return torch.Tensor._make_subclass(Tensor, tensor)


def uploaded(tensor: Tensor) -> Tensor:
    """Return a copy on the GPU, for which the host waits."""
    if isinstance(tensor, OnGpu):
        return tensor
    refuse_in_graph("a copy from the host")
    copied = on_gpu(tensor.clone())
    memory.run("upload", [], [copied])
    thread.stream.synchronize()
    return copied


def wait(name: str) -> None:
    """Make the host wait for a result."""
    assert not thread.reads_nothing, f"{name} reads back to the host"
    refuse_in_graph(name)
    thread.stream.synchronize()


def refuse_in_graph(name: str, refused: object = True) -> None:
    """Refuse what a capture cannot hold, as torch does."""
    if refused and thread.graph is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {name}")


def target(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the type that arguments name, or those of a tensor among them."""
    values = [*args, *kwargs.values()]
    values += [
        part for each in args if isinstance(each, Tensor) for part in (each.device, each.dtype)
    ]
    named = [torch.device(each) for each in values if isinstance(each, str | torch.device)]
    assert {each for each in named if each.type == "cuda"} <= {DEVICE}, f"{named}: another GPU"
    return next(iter(named), None), next(
        (each for each in values if isinstance(each, torch.dtype)), None
    )


class Gpu(TorchFunctionMode):
    """Makes tensors on the GPU, and copies tensors there, where a device is asked for."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.one_hot and isinstance(args[0], OnGpu):  # it asks torch for the device
            where, size = args[0].unsqueeze(-1), args[1]
            return where.new_zeros(*where.shape[:-1], size).scatter_(-1, where, 1)
        moves = func is Tensor.to
        if not moves and kwargs.get("device") is None:
            return func(*args, **kwargs)
        device, kind = target(args[1:], kwargs) if moves else target([kwargs["device"]], {})
        if moves:
            result = args[0] if kind is None else func(args[0], kind)
        else:
            result = func(*args, **(kwargs | {"device": "cpu"}))
        if device is None or device.type == "cpu":
            return result
        return uploaded(result)


class Pool(ThreadPoolExecutor):
    """Threads that use the GPU, too; work and its result pass on what is known."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in one of the threads."""
        began, ended = dict(thread.known), Times()

        def call() -> Any:
            merge(thread.known, began)
            try:
                with Gpu():
                    return function(*args, **kwargs)
            finally:
                merge(ended, thread.known)

        future = super().submit(call)
        result = future.result

        def joined(timeout: float | None = None) -> Any:
            found = result(timeout)
            merge(thread.known, ended)
            return found

        future.result = joined  # type: ignore[method-assign]
        return future


def move_to(device: torch.device) -> None:
    """Make a GPU the thread's, as `torch.cuda.set_device` does."""
    thread.device = device


@contextlib.contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Send the thread's operators to a stream, as `torch.cuda.stream` does."""
    assert thread.device == DEVICE, "leaving the stream would wake GPU 0"
    before, thread.stream = thread.stream, stream
    try:
        yield
    finally:
        thread.stream = before


@contextlib.contextmanager
def reads_nothing() -> Iterator[None]:
    """Refuse that this thread waits for a result."""
    thread.reads_nothing = True
    try:
        yield
    finally:
        thread.reads_nothing = False


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this GPU in the place of `cuda`, for trainings too."""
    monkeypatch.setattr(session, "use_device", lambda name, tf32: DEVICE)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr(torch.cuda, "set_device", move_to)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: thread.stream)
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the same objects
    thread.device = DEVICE
    try:
        with Gpu():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
