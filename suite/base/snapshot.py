"""The state of a run on disk: live objects as tensors and JSON, in files with checksums.

`pack` takes objects apart, `unpack` restores them in objects of the same structure, and
`write_snapshot` and `read_snapshot` write and read the parts. Nothing is pickled, so reading a file
never runs code, whoever wrote it. One rename replaces a snapshot, so whenever a process dies the
folder holds the old one or the new one, whole.
"""

import dataclasses
import hashlib
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from suite.base.errors import UsageError
from suite.base.files import LARGEST_TABLE, LARGEST_TENSORS, read_json, read_whole, write_atomically

DESCRIPTION = "checkpoint.json"
BROKEN = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError),
    *(RecursionError, safetensors.SafetensorError),
)
"""Errors that reading a damaged or foreign file can raise."""


def pack(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return `value` as JSON; copy its tensors and arrays into `tensors`.

    Packs numbers, text, None, and lists, tuples, deques and dictionaries of them; tensors, arrays,
    numpy's generators, modules and optimisers; any other object by its attributes, but for those
    that its class lists as `NOT_SAVED`. A frozen dataclass is a setting, not a state, and is left
    out.

    Tensors inside it are called `<name>.<key>`.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name, "device": str(value.device)}
    if isinstance(value, np.ndarray | np.generic):
        tensors[name] = torch.from_numpy(np.array(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.random.Generator):
        return {"generator": value.bit_generator.state}
    if isinstance(value, list | tuple | deque):
        items = [pack(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if not isinstance(value, dict):
        if _is_setting(value):
            return None
        value = _attributes(value, name)
    return {"dict": [[key, pack(item, tensors, f"{name}.{key}")] for key, item in value.items()]}


def unpack(tree: Any, tensors: Mapping[str, Tensor], into: Any = None) -> Any:
    """Restore a value that `pack` took apart, in place where `into` allows it.

    Tensors, arrays, generators, modules, optimisers, lists, deques, dictionaries and other objects
    keep their identity, so every reference to them sees the restored state. Into None, new ones are
    made.
    """
    if _is_setting(into):
        return into
    if isinstance(into, np.random.Generator):
        into.bit_generator.state = tree["generator"]
        return into
    if isinstance(tree, list) or (isinstance(tree, dict) and "tuple" in tree):
        return _unpack_items(tree, tensors, into)
    if not isinstance(tree, dict):
        fits = isinstance(tree, int | float) if isinstance(into, int | float) else True
        if not fits or not (into is None or isinstance(into, int | float | str)):
            raise ValueError(f"{tree!r:.80} instead of a {type(into).__name__}")
        return tree
    if "dict" not in tree:
        return _unpack_tensor(tree, tensors, into)
    entries: list[list[Any]] = tree["dict"]
    if into is None or isinstance(into, dict):
        known = {} if into is None else into
        values = {key: unpack(item, tensors, known.get(key)) for key, item in entries}
        if into is None:
            return values
        into.clear()
        into.update(values)
    elif isinstance(into, torch.optim.Optimizer):
        _restore(into, unpack(tree, tensors))
    else:
        attributes = _attributes(into, "state")
        if attributes.keys() != {key for key, _ in entries}:
            raise ValueError(f"not the state of a {type(into).__name__}")
        for key, item in entries:
            value = unpack(item, tensors, attributes[key])
            if not isinstance(into, nn.Module):  # whose tensors have been overwritten
                setattr(into, key, value)
    return into


def _unpack_tensor(tree: Any, tensors: Mapping[str, Tensor], into: Any) -> Any:
    """Restore a tensor, an array or a number of numpy's."""
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]]
        return tensor.to(tree["device"]) if into is None else _overwrite(into, tensor)
    if "scalar" in tree:
        return tensors[tree["scalar"]].numpy()[()]
    array = tensors[tree["array"]].numpy().copy()
    if not isinstance(into, np.ndarray) or not into.flags.writeable:
        return array
    if into.shape == array.shape:
        into[...] = array
    elif into.shape[1:] == array.shape[1:]:  # a ring, if the run ends elsewhere now: neither has
        size = min(len(into), len(array))  # come round, and its first rows are all that were used
        into[:size] = array[:size]
    else:
        raise ValueError(f"an array {[*array.shape]} instead of {[*into.shape]}")
    return into


def _unpack_items(tree: Any, tensors: Mapping[str, Tensor], into: Any) -> Any:
    """Restore a list, tuple or deque; if `into` has the same length, restore its items in place."""
    trees = tree if isinstance(tree, list) else tree["tuple"]
    old = into if into is not None and len(into) == len(trees) else [None] * len(trees)
    if old is not into and any(isinstance(item, np.random.Generator) for item in into or ()):
        raise ValueError(f"{len(trees)} generators, which is another number")
    items = [unpack(item, tensors, known) for item, known in zip(trees, old, strict=True)]
    if isinstance(tree, dict):
        return tuple(items)
    if into is None:
        return items
    into.clear()
    into.extend(items)
    return into


def _restore(optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore an optimiser, in place if it has made steps, for a graph may hold its averages."""
    if not optimiser.state:
        optimiser.load_state_dict(saved)
        for weight, averages in optimiser.state.items():  # fused steps want one layout in memory
            for name, average in averages.items():
                if average.shape == weight.shape:
                    averages[name] = torch.empty_like(weight).copy_(average)
        return
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for place, weight in enumerate(weights):
        for name, average in optimiser.state.get(weight, {}).items():
            if place in saved["state"]:
                average.copy_(saved["state"][place][name])
            else:  # before the first step all that it remembers is zero
                average.zero_()


def _overwrite(into: Any, tensor: Tensor) -> Any:
    if (into.shape, into.dtype) != (tensor.shape, tensor.dtype):  # `copy_` would make it fit
        raise ValueError(f"a tensor {[*tensor.shape]} instead of {[*into.shape]}")
    into.detach().copy_(tensor)
    return into


def _is_setting(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _attributes(value: Any, place: str) -> dict[Any, Any]:
    """Return the parts of an object that hold its state."""
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return value.state_dict()
    if isinstance(value, type | FunctionType | MethodType) or not hasattr(value, "__dict__"):
        raise TypeError(f"{place} cannot be packed: {value!r:.80}")
    not_saved = getattr(value, "NOT_SAVED", ())
    return {name: part for name, part in vars(value).items() if name not in not_saved}


@dataclass(frozen=True)
class Snapshot:
    """A run's state for a folder: JSON, and the tensors that it names."""

    content: dict[str, Any]
    tensors: dict[str, Tensor]


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Replace the snapshot in `folder`; the old one stays until the new one is whole."""
    folder.mkdir(exist_ok=True)
    weights = safetensors.torch.save(snapshot.tensors)
    if len(weights) > LARGEST_TENSORS:  # it would not be read again
        size, most = len(weights) / 2**30, LARGEST_TENSORS / 2**30
        raise UsageError(
            f"a checkpoint has {size:.1f} GiB, more than {most:.0f}: train fewer seeds in a process"
        )
    content = {**snapshot.content, "tensors": hashlib.sha256(weights).hexdigest()}
    path = folder / _tensors_name(content)
    write_atomically(path, weights)
    description = {"sha256": _sum_of(content), "content": content}
    write_atomically(folder / DESCRIPTION, json.dumps(description).encode())
    names = os.open(folder, os.O_RDONLY)  # they survive a loss of power
    try:
        os.fsync(names)
    finally:
        os.close(names)
    for other in folder.glob(_tensors_name({"tensors": "*"})):
        if other != path:
            other.unlink(missing_ok=True)


def read_snapshot(folder: Path) -> Snapshot | None:
    """Return the snapshot in a folder; None if there is none.

    A `UsageError` says that it is damaged; any other `OSError` than of a missing file, that this
    machine cannot read it now.
    """
    try:
        description = read_json(folder / DESCRIPTION, LARGEST_TABLE)
        content = description["content"]
        if _sum_of(content) != description["sha256"]:
            raise ValueError(f"{DESCRIPTION} was changed")
        weights = read_whole(folder / _tensors_name(content), LARGEST_TENSORS)
        if hashlib.sha256(weights).hexdigest() != content["tensors"]:
            raise ValueError("its tensors were changed")
        return Snapshot(content, safetensors.torch.load(weights))
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == str(folder / DESCRIPTION):
            return None
        raise UsageError(f"unreadable checkpoint in {folder}: {error.strerror}") from None
    except BROKEN as error:
        raise UsageError(f"unreadable checkpoint in {folder}: {error}") from None


def _tensors_name(content: Mapping[str, Any]) -> str:
    """Return a file name that only these tensors have, so that two snapshots can coexist."""
    return f"tensors-{content['tensors'][:16]}.safetensors"


def _sum_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
