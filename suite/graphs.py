"""A GPU's work as one CUDA graph: launched at once, not kernel by kernel.

An update of small networks is some hundred kernels. Each takes a GPU a microsecond or two and the
host five or more to launch, so the GPU waits for the host. A graph is launched as a whole. It
repeats the same kernels on the same memory, so results are those of the step that was captured.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from suite.base.errors import UsageError
from suite.base.hardware import fills_gpu_memory
from suite.base.snapshot import pack, unpack

WARM_UPS = 3
"""Steps before a capture, in which libraries choose their kernels and ask for memory."""


class Graphs:
    """A step as CUDA graphs, one for each phase and shape of inputs, captured as they first come.

    What a step does may depend on its phase and on its inputs, and on nothing else that changes:
    other numbers of Python are frozen.

    Args:
        step: `step(number, *inputs)`, which may change tensors in place; inputs and results are
            tensors on the device, or tuples and the like of them; a `float` among the inputs
            becomes a tensor without axes. It reads nothing back to the host.
        phase_of: maps a step's number to its phase; steps of one phase do the same.
        state: all that the step changes, as `suite.base.snapshot.pack` takes it; steps that warm
            up are undone in it.
        device: the GPU.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        phase_of: Callable[[int], Hashable],
        state: Any,
        device: torch.device,
    ) -> None:
        self._step, self._phase_of, self._state = step, phase_of, state
        self._device, self._captured = device, dict[Hashable, Captured]()
        # Its own, for torch's is shared: a graph that is freed takes its stream's workspaces along,
        # which others that were captured there still read (pytorch issue 193402).
        self._stream = torch.cuda.Stream(device)

    def __call__(self, number: int, *inputs: Any) -> Any:
        """Make a step with these inputs.

        Returns:
            the results, which the next step of the same phase and shapes overwrites.
        """
        values, structure = tree_flatten(inputs)
        phase = self._phase_of(number), *(each.shape for each in values if torch.is_tensor(each))
        if phase not in self._captured:
            self._captured[phase] = self._capture(number, values, structure)
        captured = self._captured[phase]
        for place, value in zip(captured.places, values, strict=True):
            place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)
        captured.graph.replay()
        return captured.results

    def _capture(self, number: int, values: list[Tensor | float], structure: Any) -> "Captured":
        """Return the graph of a step's phase, with the state as it was."""
        number_at = partial(torch.full, (), dtype=torch.float64, device=self._device)
        places = [each.clone() if isinstance(each, Tensor) else number_at(each) for each in values]
        inputs = tree_unflatten(places, structure)
        tensors: dict[str, Tensor] = {}
        before = pack(self._state, tensors, "state")
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                self._step(number, *inputs)
        main.wait_stream(self._stream)
        unpack(before, tensors, self._state)
        graph = torch.cuda.CUDAGraph()
        try:
            # another thread may wait for the GPU meanwhile: IMPALA's actor does
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode=mode):
                results = self._step(number, *inputs)
        except RuntimeError as error:
            cause = error.__context__ or error  # ending a capture that failed raises once more
            if fills_gpu_memory(cause):
                raise cause from None
            reason = str(cause).partition("\n")[0]
            raise UsageError(
                f"a step cannot be captured as a CUDA graph ({reason}): "
                "--no-cuda-graphs, or in a grid --set cuda_graphs=false"
            ) from error
        return Captured(graph, places, results)


def as_graph(
    step: Callable[..., Any],
    state: Any,
    config: Any,
    device: torch.device,
    phase_of: Callable[[int], Hashable] | None = None,
) -> Callable[..., Any]:
    """Return a step as CUDA graphs on a GPU, if `cuda_graphs` says so; else as it is.

    `state` is all that the step changes. With `phase_of` its first input is its number, see
    `Graphs`; without, it has none and does the same in every call.
    """
    if device.type != "cuda" or not getattr(config, "cuda_graphs", False):
        return step
    if phase_of is not None:
        return Graphs(step, phase_of, state, device)
    return partial(Graphs(lambda _, *inputs: step(*inputs), lambda _: None, state, device), 0)


class Captured(NamedTuple):
    """A graph with the memory that it reads its inputs from and leaves its results in."""

    graph: Any
    places: list[Tensor]
    results: Any
