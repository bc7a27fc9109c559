"""SAC of torchrl's components, as its `sota-implementations/sac` joins them; docs/controls.md."""

from typing import Any

import numpy as np
import torch
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    EnvBase,
    GymEnv,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate, group_optimizers

MAX_STEPS = 1_000_000
"""Longer than any episode: gymnasium's own limits end them."""


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says; all environments step between two rounds of updates."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  as torchrl's users do
    num_envs, starts = config["num_envs"], config["learning_starts"]
    env = _environment(config, num_envs)
    env.set_seed(seed)
    actor, loss, optimiser, target_updater = _sac(config, env)
    collector = Collector(
        env,
        actor,
        init_random_frames=starts,
        frames_per_batch=num_envs,
        total_frames=config["env_steps"],
        device=torch.device("cpu"),
    )
    collector.set_seed(seed)
    capacity = min(config["replay_capacity"], config["env_steps"])
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity), batch_size=config["batch_size"]
    )

    def play(seeds: list[int]) -> list[float]:
        return [_play(actor, config, episode_seed) for episode_seed in seeds]

    env_steps = num_updates = 0
    for steps in collector:
        steps = steps.reshape(-1)
        env_steps += steps.numel()
        replay.extend(steps)
        after = steps["next"]
        for ended in after[after["done"].squeeze(-1)]:
            record.episode(env_steps, ended["episode_reward"].item(), ended["step_count"].item())
        if env_steps >= starts:
            for _ in range(num_envs):
                losses = loss(replay.sample())
                parts = [losses[name] for name in ("loss_actor", "loss_qvalue", "loss_alpha")]
                sum(parts).backward()
                optimiser.step()
                optimiser.zero_grad()
                target_updater.step()
                num_updates += 1
            collector.update_policy_weights_()
        record.advance(env_steps, num_updates, play)
    collector.shutdown()
    record.finish(env_steps, num_updates, play)


def _environment(config: dict[str, Any], number: int = 1) -> EnvBase:
    """Return gymnasium's environments with the transforms of torchrl's example."""
    make = lambda: GymEnv(config["task"])  # noqa: E731
    transforms = Compose(InitTracker(), StepCounter(MAX_STEPS), DoubleToFloat(), RewardSum())
    return TransformedEnv(SerialEnv(number, make) if number > 1 else make(), transforms)


@torch.no_grad()
def _play(actor: nn.Module, config: dict[str, Any], seed: int) -> float:
    """Return what the first episode of a fresh environment returns."""
    env = _environment(config)
    env.set_seed(seed)
    mode = config["evaluation_rule"] == "deterministic"
    with set_exploration_type(ExplorationType.DETERMINISTIC if mode else ExplorationType.RANDOM):
        steps = env.rollout(MAX_STEPS, actor)
    env.close()
    return steps["next", "reward"].sum().item()


def _sac(config: dict[str, Any], env: EnvBase) -> tuple[nn.Module, SACLoss, Any, SoftUpdate]:
    """Return policy, losses, optimisers and the update of target copies of torchrl's example."""
    spec = env.action_spec_unbatched
    cells: dict[str, Any] = {"num_cells": config["hidden_sizes"], "activation_class": nn.ReLU}
    extractor = NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1)
    actor = ProbabilisticActor(
        spec=spec,
        in_keys=["loc", "scale"],
        module=TensorDictModule(
            nn.Sequential(MLP(out_features=2 * spec.shape[-1], **cells), extractor),
            in_keys=["observation"],
            out_keys=["loc", "scale"],
        ),
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=False,
    )
    critic = ValueOperator(in_keys=["action", "observation"], module=MLP(out_features=1, **cells))
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        first = env.fake_tensordict()  # gives lazy layers their sizes
        for network in (actor, critic):
            network(first)
    loss = SACLoss(
        actor_network=actor,
        qvalue_network=critic,
        num_qvalue_nets=config["num_critics"],
        loss_function="l2",
        delay_actor=False,
        delay_qvalue=True,
        alpha_init=config["initial_alpha"],
        fixed_alpha=not config["learn_alpha"],
        target_entropy=config["target_entropy_per_action"] * spec.shape[-1],
    )
    loss.make_value_estimator(gamma=config["gamma"])
    optimisers = [
        torch.optim.Adam(parameters.flatten_keys().values(), lr=config[f"{name}_learning_rate"])
        for name, parameters in (
            ("critic", loss.qvalue_network_params),
            ("actor", loss.actor_network_params),
        )
    ]
    if config["learn_alpha"]:
        optimisers += [torch.optim.Adam([loss.log_alpha], lr=config["alpha_learning_rate"])]
    target_updater = SoftUpdate(loss, eps=1 - config["tau"])
    return actor, loss, group_optimizers(*optimisers), target_updater
