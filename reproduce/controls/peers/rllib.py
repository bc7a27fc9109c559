"""RLlib's IMPALA, unchanged, with its environments and its learner in one process.

See docs/controls.md. Ray's own processes run beside it, for its store of objects.
"""

import os
import random
import secrets
import tempfile
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.spaces.space_utils import unsquash_action
from ray.tune.trainable import trainable


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says; the run ends before the unroll that exceeds `env_steps`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rllib-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # binds it to 127.0.0.1
        trainable.DEFAULT_STORAGE_PATH = folder  # else it makes one in the home directory
        ray.init("local", num_cpus=0, include_dashboard=False, _temp_dir=folder)
        try:
            _train({"impala": _impala}[agent](config, seed), config, record)
        finally:
            ray.shutdown()


def _train(settings: Any, config: dict[str, Any], record: Any) -> None:
    """Train by RLlib's algorithm, made by its configuration."""
    env_steps = num_updates = 0

    def count(**_: Any) -> None:
        nonlocal env_steps
        env_steps += 1

    def end(*, episode: Any, prev_episode_chunks: Any, **_: Any) -> None:
        parts = [*prev_episode_chunks, episode]  # the earlier ones belong to earlier unrolls
        episode_return = sum(float(part.get_return()) for part in parts)
        record.episode(env_steps, episode_return, sum(map(len, parts)))

    def play(seeds: list[int]) -> list[float]:
        module = algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]
        return [_play(module, config, episode_seed) for episode_seed in seeds]

    algorithm = settings.callbacks(on_episode_step=count, on_episode_end=end).build_algo()
    most = config["num_envs"] * (config["unroll_length"] + 1)  # all environments step together
    while env_steps + most <= config["env_steps"]:
        algorithm.train()
        num_updates += 1
        record.advance(env_steps, num_updates, play)
    record.finish(env_steps, num_updates, play)
    algorithm.stop()


@torch.no_grad()
def _play(module: Any, config: dict[str, Any], seed: int) -> float:
    """Return what the first episode of a fresh environment returns."""
    env = gymnasium.make(config["task"])
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        batch = {Columns.OBS: torch.as_tensor(np.float32(obs)[None])}
        outputs = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        policy = module.get_inference_action_dist_cls().from_logits(outputs)
        if config["evaluation_rule"] == "deterministic":
            policy = policy.to_deterministic()
        action = unsquash_action(policy.sample()[0].numpy(), env.action_space)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    env.close()
    return total


def _impala(config: dict[str, Any], seed: int) -> IMPALAConfig:
    """Return IMPALA's configuration: one learner and one runner of environments, both local."""
    rate, horizon = config["learning_rate"], config["learning_rate_decay_steps"]
    env = gymnasium.make(config["task"])
    model = DefaultModelConfig(
        fcnet_hiddens=list(config["hidden_sizes"]),
        fcnet_activation=config["activation"],
        fcnet_kernel_initializer="orthogonal_",
        fcnet_kernel_initializer_kwargs={"gain": config["hidden_gain"]},
        fcnet_bias_initializer="zeros_",
        free_log_std=isinstance(env.action_space, gymnasium.spaces.Box),
    )
    return (
        IMPALAConfig(algo_class=IMPALA)
        .environment(config["task"])
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=config["num_envs"],
            rollout_fragment_length=config["unroll_length"],
        )
        .learners(num_learners=0)
        .training(
            gamma=config["gamma"],
            lr=[[0, rate], [horizon, 0.0]] if horizon else rate,
            train_batch_size_per_learner=config["num_envs"] * config["unroll_length"],
            vf_loss_coeff=config["value_coef"],
            entropy_coeff=config["entropy_coef"],
            grad_clip=config["max_gradient_norm"],
            vtrace_clip_rho_threshold=config["clip_rho_threshold"],
            vtrace_clip_pg_rho_threshold=config["clip_pg_rho_threshold"],
        )
        .rl_module(model_config=model)
        .debugging(seed=random.Random(f"rllib {seed}").randrange(2**31))
        .reporting(
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=0,
            min_train_timesteps_per_iteration=0,
        )
    )
