"""`export`: write the policy that a run saved for runtimes without torch; see `onnx_graph`."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags


def main(argv: Sequence[str]) -> int:
    """Write the policy that a run saved for ONNX runtimes."""
    about = "write the policy that a run saved for ONNX runtimes"
    parser = flags.make_parser("export", about, "run", "--best", "--task-from")
    text = "the file to write, such as reacher.onnx"
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help=text)
    options = parser.parse(argv)
    from reproduce.commands.onnx_graph import export_onnx  # torch

    lines = export_onnx(options.run, options.onnx, best=options.best)
    print("\n  ".join([f"written: {options.onnx}", *lines]))
    return 0
