"""`export`: write the policy that a run saved for runtimes without torch; see `onnx_graph`."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags
from suite.base.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Write the policy that a run saved in another form."""
    about = "write the policy that a run saved in another form"
    parser = flags.make_parser("export", about, "run", "--best", "--task-from")
    text = "the file to write (default: <agent>-<task>-seed-<k>.onnx)"
    parser.add_argument("--onnx", type=Path, nargs="?", const=Path(), metavar="FILE", help=text)
    options = parser.parse(argv)
    if options.onnx is None:
        raise UsageError("say in which form: --onnx [FILE]")
    file = None if options.onnx == Path() else options.onnx
    from reproduce.commands.onnx_graph import export_onnx  # torch

    file, lines = export_onnx(options.run, file, best=options.best)
    print("\n  ".join([f"written: {file}", *lines]))
    return 0
