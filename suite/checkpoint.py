"""Policies on disk: weights in safetensors, all else that acting needs in JSON beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from suite.files import write_atomically, write_json
from suite.settings import UsageError

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"


def save_policy(
    directory: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write a policy so that it can be loaded again without pickle.

    Args:
        directory: the run's folder.
        weights: tensors by name; written contiguous and on the CPU.
        description: what rebuilding the network and acting needs, `agent` and `task` among it.

    Raises:
        OSError: if the disk refuses; an earlier policy then stays whole.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_atomically(directory / WEIGHTS, safetensors.torch.save(tensors))
    write_json(directory / DESCRIPTION, dict(description))


def read_policy(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description that `save_policy` wrote.

    Raises:
        UsageError: if there is no policy, or one of the files is not what it should be.
    """
    try:
        description = json.loads((directory / DESCRIPTION).read_text())
        weights = safetensors.torch.load((directory / WEIGHTS).read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{directory} holds no trained policy ({WEIGHTS}, {DESCRIPTION})"
        ) from None
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise UsageError(f"unreadable policy in {directory}: {error}") from None
    except KeyError as error:  # safetensors knows more number types than torch
        raise UsageError(f"unreadable policy in {directory}: unknown type {error}") from None
    if not isinstance(description, dict) or "agent" not in description:
        raise UsageError(f"unreadable policy in {directory}: {DESCRIPTION} names no agent")
    return weights, description
