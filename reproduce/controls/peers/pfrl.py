"""pfrl's ACER, unchanged, on gymnasium's tasks; see docs/controls.md.

ACER's loop is that of one of pfrl's asynchronous processes, so a seed has one environment.
"""

import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import torch
from pfrl import policies
from pfrl.agents import acer
from pfrl.nn import ConcatObsAndAction
from pfrl.nn.lmbda import Lambda
from pfrl.optimizers import SharedRMSpropEpsInsideSqrt
from pfrl.q_functions import DiscreteActionValueHead
from pfrl.replay_buffers import EpisodicReplayBuffer
from pfrl.utils import set_random_seed
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def train(name: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says."""
    torch.set_num_threads(1)
    set_random_seed(seed)
    env = _environment(config)
    makers = {"acer": _acer, "acer_continuous": _acer_continuous}
    agent, optimiser = makers[name](config, env)
    updates = [0]
    optimiser.register_step_post_hook(lambda *_: updates.__setitem__(0, updates[0] + 1))

    def play(seeds: list[int]) -> list[float]:
        return [_play(agent, config, episode_seed) for episode_seed in seeds]

    obs, _ = env.reset(seed=seed)
    total, length = 0.0, 0
    horizon, scale = config.get("learning_rate_decay_steps", 0), config.get("reward_scale", 1.0)
    for env_steps in range(1, config["env_steps"] + 1):
        if horizon:
            for group in optimiser.param_groups:
                left = max(1 - (env_steps - 1) / horizon, 0.0)
                group["lr"] = config["learning_rate"] * left
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total, length = total + float(reward), length + 1
        agent.observe(obs, scale * float(reward), terminated, truncated)
        if terminated or truncated:
            record.episode(env_steps, total, length)
            obs, _ = env.reset()
            total, length = 0.0, 0
        record.advance(env_steps, updates[0], play)
    record.finish(env_steps, updates[0], play)


def _environment(config: dict[str, Any]) -> gymnasium.Env:
    """Return an environment; continuous actions lie in [-1, 1], as in pfrl's examples."""
    env = gymnasium.make(config["task"])
    if isinstance(env.action_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)
    return gymnasium.wrappers.DtypeObservation(env, np.float32)


def _play(agent: Any, config: dict[str, Any], seed: int) -> float:
    """Return what the first episode of a fresh environment returns."""
    env = _environment(config)
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    agent.act_deterministically = config["evaluation_rule"] == "deterministic"
    with agent.eval_mode():
        while not over:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            total, over = total + float(reward), terminated or truncated
            agent.observe(obs, float(reward), terminated, truncated)
    env.close()
    return total


def _acer(config: dict[str, Any], env: Any) -> tuple[Any, Any]:
    """Return ACER for discrete actions, and its optimiser."""
    size, actions = env.observation_space.shape[0], int(env.action_space.n)
    layers = [size, *config["hidden_sizes"], actions]
    model = acer.ACERDiscreteActionHead(
        nn.Sequential(
            _perceptron(config, layers, config["policy_head_gain"]),
            policies.SoftmaxCategoricalHead(),
        ),
        nn.Sequential(
            _perceptron(config, layers, config["q_head_gain"]), DiscreteActionValueHead()
        ),
    )
    return _acer_of(model, config, Q_loss_coef=config["q_coef"])


def _acer_continuous(config: dict[str, Any], env: Any) -> tuple[Any, Any]:
    """Return ACER for continuous actions, and its optimiser."""
    size, actions = env.observation_space.shape[0], env.action_space.shape[0]
    # What softplus turns into the initial variance.
    offset = math.log(math.expm1(config["initial_std"] ** 2))
    learned = config["std"] == "learned"
    if learned:
        head: nn.Module = policies.GaussianHeadWithStateIndependentCovariance(
            actions, var_type="diagonal", var_param_init=offset
        )
    else:
        head = policies.GaussianHeadWithDiagonalCovariance()
    outputs = actions if learned else 2 * actions
    layers = _perceptron(
        config, [size, *config["hidden_sizes"], outputs], config["policy_head_gain"]
    )
    if not learned:
        nn.init.constant_(layers[-1].bias[actions:], offset)
    bound = Lambda(lambda x: torch.cat([x[:, :actions].tanh(), x[:, actions:]], 1))
    gain = config["value_head_gain"]
    model = acer.ACERContinuousActionHead(
        nn.Sequential(layers, *([bound] if config["bounded_mean"] else []), head),
        _perceptron(config, [size, *config["hidden_sizes"], 1], gain),
        nn.Sequential(
            ConcatObsAndAction(),
            _perceptron(config, [size + actions, *config["advantage_hidden_sizes"], 1], gain),
        ),
        n=config["num_action_samples"],
    )
    return _acer_of(model, config)


def _acer_of(model: nn.Module, config: dict[str, Any], **coefs: float) -> tuple[Any, Any]:
    """Return ACER with its networks, and its optimiser."""
    model.share_memory()
    optimiser = SharedRMSpropEpsInsideSqrt(
        model.parameters(),
        lr=config["learning_rate"],
        eps=config["rmsprop_epsilon"],
        alpha=config["rmsprop_decay"],
    )
    for state in optimiser.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.share_memory_()
    delta = config["trust_region_delta"]
    agent = acer.ACER(
        model,
        optimiser,
        t_max=config["unroll_length"],
        gamma=config["gamma"],
        replay_buffer=EpisodicReplayBuffer(config["replay_capacity"]),
        beta=config["entropy_coef"],
        use_trust_region=delta is not None,
        trust_region_alpha=1 - config["tau"],
        trust_region_delta=delta or 0.0,
        truncation_threshold=config["clip_rho_threshold"],
        disable_online_update=not config["online_updates"],
        n_times_replay=int(config["replay_ratio"]),
        replay_start_size=config["replay_start"],
        max_grad_norm=config["max_gradient_norm"],
        use_Q_opc=config["advantage_target"] == "q_opc",
        **coefs,
    )
    return agent, optimiser


def _perceptron(config: dict[str, Any], sizes: list[int], head_gain: float) -> nn.Sequential:
    """Return layers with orthogonal weights."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        is_head = len(layers) == 2 * len(sizes) - 4
        nn.init.orthogonal_(layer.weight, head_gain if is_head else config["hidden_gain"])
        nn.init.zeros_(layer.bias)
        layers += [layer, ACTIVATIONS[config["activation"]]()]
    return nn.Sequential(*layers[:-1])
