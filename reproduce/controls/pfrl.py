"""pfrl's ACER for discrete actions, unchanged, on gymnasium's tasks; see docs/controls.md.

Its loop is that of one of pfrl's asynchronous processes, so a seed has one environment.
"""

import itertools
from typing import Any

import gymnasium
import torch
from pfrl import policies
from pfrl.agents import acer
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
    env = gymnasium.make(config["task"])
    agent, optimiser = {"acer": _acer}[name](config, env)
    updates = [0]
    optimiser.register_step_post_hook(lambda *_: updates.__setitem__(0, updates[0] + 1))

    def play(seeds: list[int]) -> list[float]:
        return [_play(agent, config, episode_seed) for episode_seed in seeds]

    obs, _ = env.reset(seed=seed)
    total, length = 0.0, 0
    horizon = config["learning_rate_decay_steps"]
    for env_steps in range(1, config["env_steps"] + 1):
        if horizon:
            for group in optimiser.param_groups:
                left = max(1 - (env_steps - 1) / horizon, 0.0)
                group["lr"] = config["learning_rate"] * left
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total, length = total + float(reward), length + 1
        agent.observe(obs, float(reward), terminated, truncated)
        if terminated or truncated:
            record.episode(env_steps, total, length)
            obs, _ = env.reset()
            total, length = 0.0, 0
        record.advance(env_steps, updates[0], play)
    record.finish(env_steps, updates[0], play)


def _play(agent: Any, config: dict[str, Any], seed: int) -> float:
    """Return what the first episode of a fresh environment returns."""
    env = gymnasium.make(config["task"])
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
    """Return ACER and its optimiser."""
    size, actions = env.observation_space.shape[0], int(env.action_space.n)
    policy = _perceptron(config, size, actions, config["policy_head_gain"])
    values = _perceptron(config, size, actions, config["q_head_gain"])
    model = acer.ACERDiscreteActionHead(
        nn.Sequential(policy, policies.SoftmaxCategoricalHead()),
        nn.Sequential(values, DiscreteActionValueHead()),
    )
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
        pi_loss_coef=config["policy_coef"],
        Q_loss_coef=config["q_coef"],
        use_trust_region=delta is not None,
        trust_region_alpha=1 - config["tau"],
        trust_region_delta=delta or 0.0,
        truncation_threshold=config["clip_rho_threshold"],
        disable_online_update=not config["online_updates"],
        n_times_replay=int(config["replay_ratio"]),
        replay_start_size=config["replay_start"],
        max_grad_norm=config["max_gradient_norm"],
        use_Q_opc=config["advantage_target"] == "q_opc",
    )
    return agent, optimiser


def _perceptron(config: dict[str, Any], size: int, outputs: int, head_gain: float) -> nn.Module:
    """Return layers with orthogonal weights."""
    widths = [size, *config["hidden_sizes"], outputs]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layer = nn.Linear(fan_in, fan_out)
        is_head = len(layers) == 2 * len(config["hidden_sizes"])
        nn.init.orthogonal_(layer.weight, head_gain if is_head else config["hidden_gain"])
        nn.init.zeros_(layer.bias)
        layers += [layer, ACTIVATIONS[config["activation"]]()]
    return nn.Sequential(*layers[:-1])
