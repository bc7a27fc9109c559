"""`export RUN --onnx`: a run's policy as an ONNX file, for runtimes without torch (extra `onnx`).

The graph is traced from the agent's own network and rule. `docs/using_results.md` has the names and
shapes of its inputs and outputs.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import agents
from reproduce.commands.evaluate import policy_folder
from suite.base.errors import UsageError
from suite.base.files import write_atomically
from suite.envs.vector_env import Spaces
from suite.nets.moments import RunningMoments
from suite.nets.perceptrons import Perceptron, Stack
from suite.resume.checkpoint import Policy, config_of, read_policy

OUTPUTS = {
    "categorical": ("actions", "log_probs"),
    "gaussian": ("actions", "means", "log_stds"),
    "tanh_gaussian": ("actions", "means", "log_stds"),
    "hybrid": ("actions", "means", "log_stds", "log_probs"),
}
"""Names of the outputs by kind of policy: the mode, then the distribution's parameters."""
EXAMPLES = 2
"""Observations with which the graph is traced; it takes any number."""

Rule = Callable[[Tensor], tuple[Tensor, ...]]
"""Maps observations as networks read them, float32 `[B, *obs]`, to actions in [-1, 1] (or numbers)
and the parameters of their distribution."""


def scaled(observations: Tensor, factor: float = 1 / 255) -> Tensor:
    """Return observations as networks read them: frames of bytes by a factor, else as they are."""
    return observations.float() * factor if observations.dtype == torch.uint8 else observations


class Graph(nn.Module):
    """From observations, as the task shows them, to actions, as the task takes them.

    Args:
        kind: a key of `OUTPUTS`.
        rule: the agent's.
        spaces: of the task.
        prepare: makes observations what networks read.
    """

    def __init__(
        self, kind: str, rule: Rule, spaces: Spaces, prepare: Callable[[Tensor], Tensor] = scaled
    ) -> None:
        super().__init__()
        self.kind, self._rule, self._spaces, self._prepare = kind, rule, spaces, prepare

    @property
    def example(self) -> Tensor:
        """Return observations of the shape and type that the graph takes."""
        shape = (EXAMPLES, *self._spaces.obs_shape)
        return torch.zeros(shape, dtype=torch.uint8 if len(shape) == 4 else torch.float32)

    def forward(self, observations: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs that `OUTPUTS` names."""
        actions, *parameters = self._rule(self._prepare(observations))
        if self._spaces.continuous:
            low, high = torch.tensor([self._spaces.low, self._spaces.high], dtype=torch.float32)
            first = int(self.kind == "hybrid")
            in_units = low + (actions[:, first:] + 1) * ((high - low) / 2)
            actions = torch.cat([actions[:, :first], in_units], -1)
        return actions, *parameters


def export_onnx(run: Path, file: Path, *, best: bool = False) -> list[str]:
    """Write a run's policy as an ONNX file.

    Args:
        run: the run's folder.
        file: the file to write, `.onnx`.
        best: take the policy of the run's best evaluation, which `--keep-best` kept.

    Returns:
        a line for each input and output: name, type and shape.

    Raises:
        UsageError: without a readable policy or the packages, for a damaged run, a recurrent policy
            or one of an agent whose graph is not known here, or a file that cannot be written.
    """
    folder = policy_folder(run, best)
    if file.suffix != ".onnx" or not file.parent.is_dir():
        raise UsageError(f"--onnx: {file} must end in .onnx, in a folder that is there")
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise UsageError("--onnx needs two packages: pip install 'encore-rl[onnx]'")
    policy = agents.load_policy(folder)  # refuses what cannot be read, and damaged runs
    weights, description = read_policy(folder)
    graph = graph_of(weights, description)
    if not _acts_as(graph, policy):
        agent = description["agent"]
        raise UsageError(f"{agent} has no ONNX form: it acts otherwise than those that do")
    model = _trace(graph)
    facts = {key: description[key] for key in ("agent", "task", "protocol") if key in description}
    facts |= {"policy": graph.kind, "low": policy._spaces.low, "high": policy._spaces.high}
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=value if type(value) is str else json.dumps(value))
    try:
        write_atomically(file, model.SerializeToString())
    except OSError as error:
        raise UsageError(f"--onnx: cannot write {file}: {error}") from None
    return [_in_words(value) for value in (*model.graph.input, *model.graph.output)]


def _acts_as(graph: Graph, policy: Policy) -> bool:
    """Return whether a graph acts as the policy; not so if its file is a changed copy."""
    generator, like = np.random.default_rng(0), graph.example
    obs = generator.standard_normal(like.shape, dtype=np.float32)
    if like.dtype == torch.uint8:
        obs = generator.integers(256, size=like.shape, dtype=np.uint8)
    with torch.no_grad():
        actions = graph(torch.from_numpy(obs))[0].numpy()
    return np.allclose(actions, policy(obs), rtol=1e-4, atol=1e-4)


def graph_of(weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Graph:
    """Return the graph of a policy that `suite.resume.checkpoint.read_policy` returned.

    Raises:
        UsageError: for a recurrent policy, or one of an agent whose graph is not known here.
    """
    agent = description["agent"]
    module: Any = importlib.import_module(f"agents.{agent}")
    make = next((make for name, make in GRAPHS.items() if hasattr(module, name)), None)
    if make is None:
        raise UsageError(f"{agent} has no ONNX form: its file has none of {', '.join(GRAPHS)}")
    if any("lstm." in name for name in weights):
        raise UsageError("a recurrent policy has no ONNX form here: its memory stays in torch")
    if description.get("bfloat16"):
        raise UsageError("a policy with bfloat16 has no ONNX form here: train it without")
    names = [name for name in module.ACTING if name in description]
    config = config_of(module.Config, description, module.ACTING if names else ())
    with torch.no_grad():
        return make(module, config, dict(weights), description)


def _of_trunk(module: Any, config: Any, weights: dict[str, Tensor], said: Any) -> Graph:
    """Return the graph of A2C, ACER or IMPALA."""
    spaces, moments = Spaces.from_json(said), RunningMoments.from_weights(weights)
    make = getattr(module, "GaussianPolicy", None) or module.ActorCritic
    network = make(config, spaces, np.random.default_rng(0))
    network.load_state_dict(weights)
    network.requires_grad_(False)

    def discrete(inputs: Tensor) -> tuple[Tensor, ...]:
        logits = network(inputs)[0]
        return logits.argmax(-1), logits.log_softmax(-1)

    def continuous(inputs: Tensor) -> tuple[Tensor, ...]:
        means, *others = network(inputs)
        log_stds = getattr(network, "log_stds", others[0])  # of the state, in ACER
        return means.clamp(-1, 1), means, log_stds.expand_as(means)

    prepare = partial(scaled, factor=1 / getattr(config, "frame_divisor", 255))
    if moments is not None:
        prepare = _standardised(moments, config.observation_clip)
    kind, rule = ("gaussian", continuous) if spaces.continuous else ("categorical", discrete)
    return Graph(kind, rule, spaces, prepare)


def _standardised(moments: RunningMoments, clip: float) -> Callable[[Tensor], Tensor]:
    """Return what standardises in float64, as `RunningMoments.standardise`."""
    mean = torch.from_numpy(moments.mean)
    deviation = torch.from_numpy(np.sqrt(moments.variance + 1e-8))
    return lambda obs: ((obs.double() - mean) / deviation).clamp(-clip, clip).float()


def _of_squashed(module: Any, config: Any, weights: dict[str, Tensor], said: Any) -> Graph:
    """Return the graph of SAC, with or without a state-value network."""
    shapes = {"obs_shape": weights["weight_0"].shape[:1], "num_outputs": len(said["low"])}
    actor = Stack([[Perceptron.from_weights(weights)]]).requires_grad_(False)

    def rule(inputs: Tensor) -> tuple[Tensor, ...]:
        means, log_stds = module.split_outputs(actor(inputs[None]), config)
        return torch.tanh(means)[0], means[0], log_stds[0]

    return Graph("tanh_gaussian", rule, Spaces.from_json({**said, **shapes}))


def _of_discrete(module: Any, config: Any, weights: dict[str, Tensor], said: Any) -> Graph:
    """Return the graph of discrete SAC."""
    spaces = Spaces.from_json(said)
    number = 1 if config.policy == "network" else config.num_critics
    critics = Stack([module.draw_networks(config, spaces, np.random.default_rng(0), number)])
    rest = dict(weights)
    temperature = rest.pop("temperature")
    critics.requires_grad_(False).put_weights(rest)

    def rule(inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = module.combine(critics(inputs[None]), config.q_of_critics)
        log_probs = module.log_policy(outputs, temperature)[0]
        return log_probs.argmax(-1), log_probs

    return Graph("categorical", rule, spaces)


def _of_alf(module: Any, config: Any, weights: dict[str, Tensor], said: Any) -> Graph:
    """Return the graph of ALF's SAC, for actions of any kind."""
    if "weight_0" in weights:
        return _of_squashed(module, config, weights, said)

    part = partial(Perceptron.from_weights, weights)
    spaces, log_alpha = Spaces.from_json(said), weights["log_alphas"][0]
    actor = Stack([[part("actor.")]]).requires_grad_(False) if spaces.continuous else None
    members = [part(f"critic_{n}.") for n in range(config.num_critics * config.num_parts)]
    critics = Stack([members]).requires_grad_(False)
    reward_weights = torch.tensor(config.reward_weights or (1.0,))

    def log_probs_of(inputs: Tensor, actions: Tensor) -> Tensor:
        outputs = critics(torch.cat([inputs[None], actions], -1))
        q_values = outputs.unflatten(1, (-1, config.num_parts))
        whole = module.whole_values(q_values, reward_weights)
        return module.choice_log_probs(whole, log_alpha.exp())[0]

    def choose(inputs: Tensor) -> tuple[Tensor, ...]:
        log_probs = log_probs_of(inputs, inputs[None, :, :0])
        return log_probs.argmax(-1), log_probs

    def mix(inputs: Tensor) -> tuple[Tensor, ...]:
        assert actor is not None
        means, log_stds = module.split_outputs(actor(inputs[None]), config)
        actions = torch.tanh(means)
        log_probs = log_probs_of(inputs, actions)
        both = torch.cat([log_probs.argmax(-1, keepdim=True), actions[0]], -1)
        return both, means[0], log_stds[0], log_probs

    if actor is None:
        return Graph("categorical", choose, spaces)
    return Graph("hybrid", mix, spaces)


GRAPHS: Mapping[str, Callable[[Any, Any, dict[str, Tensor], Mapping[str, Any]], Graph]] = {
    "GaussianPolicy": _of_trunk,
    "ActorCritic": _of_trunk,
    "draw_networks": _of_discrete,
    "choice_log_probs": _of_alf,
    "split_outputs": _of_squashed,
}
"""By what the agent's file defines, the first that it has: so a copy has the form of its origin."""


def _trace(graph: Graph) -> Any:
    """Return the ONNX model of a graph; what the exporter says on its way is dropped."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            torch.no_grad(),
        ):
            program = torch.onnx.export(
                graph,
                (graph.example,),
                input_names=["observations"],
                output_names=list(OUTPUTS[graph.kind]),
                dynamic_shapes={"observations": {0: torch.export.Dim("batch")}},
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(disabled)
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")  # lines of our sources, and where they lie here
        part.ClearField("doc_string")
    return model


def _in_words(value: Any) -> str:
    """Return name, type and shape of an input or output."""
    import onnx

    tensor = value.type.tensor_type
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = ", ".join(str(axis.dim_param or axis.dim_value) for axis in tensor.shape.dim)
    return f"{value.name}: {kind} [{shape}]"
