"""Policies on disk: weights in safetensors, everything else that acting needs in JSON."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

from suite.base.errors import UsageError
from suite.base.files import LARGEST_TENSORS, read_json, read_whole, write_atomically, write_json
from suite.base.snapshot import BROKEN
from suite.envs.tasks import Task, refuse_unimported
from suite.envs.vector_env import LARGEST_BOUND, Spaces
from suite.nets.initialisation import at_most
from suite.nets.recurrence import EnsembleMemory, Memory
from suite.settings.older import REMOVED, without_removed
from suite.settings.presets import ConfigT

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
LARGEST_DESCRIPTION = 2**16
"""Bytes of a policy's description that are read: 64 KiB; published ones have 1 KB."""
LONGEST_REASON = 300
"""Characters of torch's message about weights that do not fit: it lists all of them."""

Decide = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""Maps observations `[B, *obs]` to actions for `VectorEnv.step`: drawn; None: the mode."""


class Policy:
    """A trained policy: call it with observations to get actions.

    A recurrent policy remembers its episodes. Call `reset` before the first observations. Give the
    later ones with the rewards of the last actions, and mark where an episode begins.

        policy.reset()
        actions = policy(obs)
        ...
        actions = policy(obs, rewards=rewards, starts=starts)

    Args:
        task: the task that it was trained on.
        spaces: shapes and bounds of that task.
        decide: the agent's function from observations to actions.
        memory: what this function remembers; None: nothing.
    """

    def __init__(
        self,
        task: Task,
        spaces: Spaces,
        decide: Decide,
        memory: Memory | EnsembleMemory | None = None,
    ) -> None:
        self.task, self.memory = task, memory
        self._spaces, self._decide = spaces, decide
        if spaces.continuous:
            bounds = np.array([spaces.low, spaces.high], dtype=np.float64)
            if bounds.shape != (2, spaces.num_outputs):
                raise ValueError(f"low and high must have {spaces.num_outputs} numbers each")
            if not (abs(bounds) < LARGEST_BOUND).all():
                raise ValueError(f"low and high must be finite, and below {LARGEST_BOUND:.0e}")
            self._low, self._high = bounds.astype(np.float32)
            self._half_range = (self._high - self._low) / 2

    def fits(self, spaces: Spaces) -> bool:
        """Return whether an environment's observations and actions are those of this policy."""
        ours, theirs = (
            (tuple(each.obs_shape), each.num_outputs, each.continuous, each.num_choices)
            for each in (self._spaces, spaces)
        )
        return ours == theirs

    def reset(self) -> None:
        """Forget: the next observations are the first of their episodes."""
        if self.memory is not None:
            self.memory.forget()

    def act(
        self,
        obs: np.ndarray,
        generator: np.random.Generator | None = None,
        *,
        rewards: np.ndarray | None = None,
        starts: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return actions for `VectorEnv.step`: numbers `[...]`, or `[..., A]` in [-1, 1], or both.

        Args:
            obs: one observation or any batch of them.
            generator: random numbers to draw from the policy; None: take its mode.
            rewards: those of the last actions, for a recurrent policy; None: 0.
            starts: whether an observation is the first of its episode, for a recurrent policy;
                None: those after `reset` are, and no others.
        """
        obs, shape = np.asarray(obs), self._spaces.obs_shape
        if self.memory is not None:
            self.memory.note(rewards, starts)
        actions = self._decide(obs.reshape(-1, *shape), generator)
        return actions.reshape((*obs.shape[: obs.ndim - len(shape)], *actions.shape[1:]))

    def __call__(
        self, obs: np.ndarray, generator: np.random.Generator | None = None, **noted: Any
    ) -> np.ndarray:
        """Return actions in the units of the task's action space; see `act`.

        Of hybrid ones, `[..., 1 + A]`, the first is the discrete action's number.
        """
        actions, start = self.act(obs, generator, **noted), self._spaces.start
        if not self._spaces.continuous:
            return np.asarray(actions + start)
        first = int(self._spaces.num_choices > 0)
        scaled = self._low + (actions[..., first:] + 1) * self._half_range
        scaled = np.clip(scaled, self._low, self._high)  # it is rounded
        return np.concatenate([actions[..., :1] + start, scaled], -1) if first else scaled


def for_one_seed(act: Callable[..., np.ndarray]) -> Decide:
    """Return a seed's rule for observations `[B, *obs]` from that of S seeds, `[S, B, *obs]`."""

    def decide(obs: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return act(np.asarray(obs)[None], None if generator is None else [generator])[0]

    return decide


def config_of(
    config_class: type[ConfigT], description: Mapping[str, Any], settings: Sequence[str]
) -> ConfigT:
    """Return the configuration that a policy acts by; settings of learning keep their defaults."""
    fields = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    names = [name for name in ("task", "protocol", *settings) if name in fields]
    missing = [name for name in names if name not in description]
    if missing:
        raise UsageError(f"unreadable policy: {DESCRIPTION} lacks {', '.join(missing)}")
    gone = without_removed(description, fields).keys() & REMOVED.keys() - fields
    if gone:  # it would act otherwise without a word
        was = f"{min(gone)} = {description[min(gone)]!r}"
        raise UsageError(
            f"{DESCRIPTION} has {was}, which this agent has no more: load the policy by the code "
            "that trained it"
        )
    kept = {name: description[name] for name in names}
    refuse_unimported(str(kept["task"]), DESCRIPTION)
    return config_class(**{k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()})


def save_policy(
    directory: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write a policy so that it can be loaded again without pickle.

    Weights are written contiguous and on the CPU. The description holds the settings that rebuild
    the network and act, with `agent` and `task`.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_atomically(directory / WEIGHTS, safetensors.torch.save(tensors))
    write_json(directory / DESCRIPTION, dict(description))


def read_policy(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description that `save_policy` wrote."""
    try:
        description = read_json(directory / DESCRIPTION, LARGEST_DESCRIPTION)
        weights = safetensors.torch.load(read_whole(directory / WEIGHTS, LARGEST_TENSORS))
        if not isinstance(description, dict) or not isinstance(description.get("agent"), str):
            raise ValueError(f"{DESCRIPTION} names no agent")
    except FileNotFoundError:
        way = "name a run's folder, such as .../CartPole-v1/seed-1"
        if not directory.is_dir():
            raise UsageError(f"there is no folder {directory}: {way}") from None
        if (directory / "run.json").exists():
            way = "finish the run, or name another seed's, if this one's policy was left out"
        missing = f"{directory} holds no trained policy ({WEIGHTS}, {DESCRIPTION})"
        raise UsageError(f"{missing}: {way}") from None
    except KeyError as error:  # safetensors knows more number types than torch
        raise UsageError(f"unreadable policy in {directory}: unknown type {error}") from None
    except (OSError, *BROKEN) as error:
        raise UsageError(f"unreadable policy in {directory}: {_one_line(error)}") from None
    return weights, description


def rebuild_policy(
    directory: Path,
    load: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Policy],
    weights: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> Policy:
    """Rebuild a policy from untrusted files, try it once, and return it."""
    try:
        for name, tensor in weights.items():
            if tensor.is_complex() or not tensor.isfinite().all():
                raise ValueError(f"{name} holds what is no real number")
        num_weights = sum(tensor.numel() for tensor in weights.values())
        with at_most(num_weights):
            policy = load(weights, description)
        spaces = policy._spaces
        shape = spaces.obs_shape
        if math.prod(shape) > num_weights:
            raise ValueError("observations with more numbers than there are weights")
        kind = np.uint8 if len(shape) == 3 else np.float32
        actions = policy(np.zeros((1, *shape), dtype=kind))
        policy.reset()
        width = spaces.num_outputs + (spaces.num_choices > 0)
        wanted = (1, width) if spaces.continuous else (1,)
        if actions.shape != wanted:
            raise ValueError(f"actions {[*actions.shape]} instead of {[*wanted]}")
    except BROKEN as error:
        raise UsageError(f"unreadable policy in {directory}: {_one_line(error)}") from None
    return policy


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said.removeprefix("unreadable policy: ")[:LONGEST_REASON]
