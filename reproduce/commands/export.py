"""`export RUN --onnx`: a run's policy as an ONNX file, for runtimes without torch (extra `onnx`).

torch traces what the policy does with observations, numpy's part included, so every agent has a
graph. `docs/using_results.md` has the names and shapes of its input and output.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.commands import flags
from suite.base.errors import UsageError
from suite.base.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn

    from suite.policy import Policy

EXAMPLES = 2
"""Observations with which the graph is traced; it takes any number."""


def export_onnx(
    run: Path, file: Path, *, best: bool = False, task_from: str | None = None
) -> list[str]:
    """Write a run's policy as an ONNX file: from observations to the modes, in the task's units.

    Returns:
        a line for the input and the output: name, type and shape.
    """
    if file.suffix != ".onnx" or not file.parent.is_dir():
        raise UsageError(f"--onnx: {file} must end in .onnx, in a folder that is there")
    if not all(map(flags.is_installed, ("onnx", "onnxscript"))):
        raise UsageError("--onnx needs two packages: pip install 'encore-rl[onnx]'")
    import agents
    from reproduce.commands.evaluate import policy_folder
    from suite.policy import read_policy

    folder = policy_folder(run, best)
    policy = agents.load_policy(folder)  # refuses what cannot be read, and damaged runs
    flags.refuse_other_task(run, policy.task.name, task_from)
    weights, description = read_policy(folder)
    refuse_unable(weights, description)
    model = _to_onnx(policy)
    facts = {key: description[key] for key in ("agent", "task", "protocol") if key in description}
    facts |= {"low": policy._spaces.low, "high": policy._spaces.high}
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=value if type(value) is str else json.dumps(value))
    try:
        write_atomically(file, model.SerializeToString())
    except OSError as error:
        raise UsageError(f"--onnx: cannot write {file}: {error.strerror}") from None
    return [_in_words(value) for value in (*model.graph.input, *model.graph.output)]


def refuse_unable(weights: Any, description: Any) -> None:
    """Raise a `UsageError` for a policy that no ONNX file can act as."""
    if any("lstm." in name for name in weights):
        raise UsageError("a recurrent policy has no ONNX form here: its memory stays in torch")
    if description.get("bfloat16"):
        raise UsageError("a policy with bfloat16 has no ONNX form here: train it without")


def graph_of(policy: "Policy") -> "tuple[nn.Module, Tensor]":
    """Return a policy's graph, from observations to actions, and an example of its input.

    torch's compiler gives its backend the graph of all that the policy computes; this one keeps it.
    """
    import torch

    shape = (EXAMPLES, *policy._spaces.obs_shape)
    example = torch.zeros(shape, dtype=torch.uint8 if len(shape) == 4 else torch.float32)
    torch._dynamo.mark_dynamic(example, 0)
    found: list[tuple[Any, Sequence[Any]]] = []

    def keep(graph: Any, inputs: Sequence[Any]) -> Any:
        found.append((graph, inputs))
        return graph.forward

    def act(observations: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(policy(observations.numpy()))

    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        torch.compile(act, backend=keep, fullgraph=True)(example)
    ((graph, inputs),) = found

    class Graph(torch.nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            numbers = {torch.SymInt: observations.shape[0]}
            given = [numbers.get(type(each), each) for each in inputs]
            return graph(*[observations if each is example else each for each in given])[0]

    return Graph(), example


def _to_onnx(policy: "Policy") -> Any:
    """Return the ONNX model of a policy; what the exporter says on its way is dropped."""
    import torch

    quiet, disabled = io.StringIO(), logging.root.manager.disable
    logging.disable(logging.WARNING)
    how: Any = {"input_names": ["observations"], "output_names": ["actions"], "verbose": False}
    how["dynamic_shapes"] = {"observations": {0: torch.export.Dim("batch")}}
    try:
        with contextlib.redirect_stdout(quiet), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph, example = graph_of(policy)
            program: Any = torch.onnx.export(graph, (example,), dynamo=True, **how)
    finally:
        logging.disable(disabled)
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")  # lines of our sources, and where they lie here
        part.ClearField("doc_string")
    return model


def _in_words(value: Any) -> str:
    import onnx

    tensor = value.type.tensor_type
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = ", ".join(str(axis.dim_param or axis.dim_value) for axis in tensor.shape.dim)
    return f"{value.name}: {kind} [{shape}]"


def main(argv: Sequence[str]) -> int:
    """Write the policy that a run saved for ONNX runtimes."""
    parser = flags.make_parser("export", "run", "--best", "--task-from")
    text = "the file to write, such as reacher.onnx"
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help=text)
    options = parser.parse(argv)
    lines = export_onnx(options.run, options.onnx, best=options.best, task_from=options.task_from)
    print("\n  ".join([f"written: {options.onnx}", *lines]))
    return 0
