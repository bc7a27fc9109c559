"""Policies on disk: weights in safetensors, everything else that acting needs in JSON."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

from suite.files import open_regular, read_json, write_atomically, write_json
from suite.recurrence import Memory
from suite.settings import ConfigT, UsageError, by_todays_names, younger_settings
from suite.tasks import Task
from suite.vector_env import Spaces

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"


Decide = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""Maps observations `[B, *obs]` to actions for `VectorEnv.step`: drawn; None: the mode."""


class Policy:
    """A trained policy: call it with observations, get actions.

    A recurrent one remembers its episodes: call `reset` before the first observations, and say with
    the later ones which rewards the last actions gave, and where an episode begins.

        policy.reset()
        actions = policy(obs)
        ...
        actions = policy(obs, rewards=rewards, starts=starts)

    Args:
        task: the task it was trained on.
        spaces: shapes and bounds of that task.
        decide: the agent's own rule.
        memory: what the rule remembers; None: nothing.
    """

    def __init__(
        self, task: Task, spaces: Spaces, decide: Decide, memory: Memory | None = None
    ) -> None:
        self.task, self.memory = task, memory
        self._spaces, self._decide = spaces, decide
        if spaces.continuous:
            self._low, high = np.array([spaces.low, spaces.high], dtype=np.float32)
            self._half_range = (high - self._low) / 2

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
        actions = self.act(obs, generator, **noted)
        if not self._spaces.continuous:
            return actions
        first = int(self._spaces.num_choices > 0)
        scaled = self._low + (actions[..., first:] + 1) * self._half_range
        return np.concatenate([actions[..., :1], scaled], axis=-1) if first else scaled


def config_of(
    config_class: type[ConfigT], description: Mapping[str, Any], settings: Sequence[str]
) -> ConfigT:
    """Return the configuration that a policy acts by; settings of learning keep their defaults.

    Args:
        config_class: the agent's `Config`.
        description: of the policy.
        settings: those that it holds, beside task and protocol.

    Raises:
        UsageError: naming those that it lacks and that are not younger than all policies.
    """
    fields = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    names = [name for name in ("task", "protocol", *settings) if name in fields]
    description = {**younger_settings(config_class), **description}
    missing = [name for name in names if name not in description]
    if missing:
        raise UsageError(f"unreadable policy: {DESCRIPTION} lacks {', '.join(missing)}")
    kept = {name: description[name] for name in names}
    return config_class(**{k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()})


def save_policy(
    directory: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write a policy so that it can be loaded again without pickle.

    Args:
        directory: the run's folder.
        weights: tensors by name; written contiguous and on the CPU.
        description: settings that rebuild the network and act, `agent` and `task` included.

    Raises:
        OSError: if writing fails; each of the two files is then the old one or the new one.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_atomically(directory / WEIGHTS, safetensors.torch.save(tensors))
    write_json(directory / DESCRIPTION, dict(description))


def read_policy(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description that `save_policy` wrote.

    Raises:
        UsageError: if the policy is missing or unreadable.
    """
    try:
        description = read_json(directory / DESCRIPTION)
        with open_regular(directory / WEIGHTS) as file:
            weights = safetensors.torch.load(file.read())
    except FileNotFoundError:
        raise UsageError(
            f"{directory} holds no trained policy ({WEIGHTS}, {DESCRIPTION})"
        ) from None
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UsageError(f"unreadable policy in {directory}: {error}") from None
    except KeyError as error:  # safetensors knows more number types than torch
        raise UsageError(f"unreadable policy in {directory}: unknown type {error}") from None
    if not isinstance(description, dict) or "agent" not in description:
        raise UsageError(f"unreadable policy in {directory}: {DESCRIPTION} names no agent")
    return weights, by_todays_names(description)
