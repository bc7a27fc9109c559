"""tianshou's A2C as its MuJoCo benchmark puts it together, unchanged; see docs/controls.md."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import A2C
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import LRSchedulerFactoryLinear, RMSpropOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import OnPolicyTrainer, OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from torch import nn
from torch.distributions import Independent, Normal


class Counted(gymnasium.Wrapper):
    """Counts episodes: the collector's own lengths begin anew with every unroll.

    Args:
        env: the environment.
        ended: where return and length of every episode go.
    """

    def __init__(self, env: gymnasium.Env, ended: list[tuple[float, int]]) -> None:
        super().__init__(env)
        self._ended, self._return, self._length = ended, 0.0, 0

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        self._return, self._length = 0.0, 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Count a step."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._return, self._length = self._return + float(reward), self._length + 1
        if terminated or truncated:
            self._ended.append((self._return, self._length))
        return obs, reward, terminated, truncated, info


class Watched(OnPolicyTrainer):
    """Hands episodes and progress to the record, after every update."""

    def watch(self, config: dict[str, Any], record: Any, envs: Any, ended: list[Any]) -> None:
        """Say what is watched, before the run."""
        self._config, self._order, self._envs, self._ended = config, record, envs, ended

    def play(self, seeds: list[int]) -> np.ndarray:
        """Play an episode in each of as many fresh environments; return their returns."""
        envs = _environments(self._config, seeds, [])
        if self._config["normalise_observations"]:
            envs = VectorEnvNormObs(envs, update_obs_rms=False)
            envs.set_obs_rms(self._envs.get_obs_rms())
        collected = Collector(self.algorithm, envs).collect(
            n_episode=len(seeds), reset_before_collect=True
        )
        envs.close()
        return collected.returns

    def finish(self) -> None:
        """Write the end of the record."""
        self._order.finish(self._env_step, self._current_update_step, self.play)

    def _training_step(self) -> Any:
        result = super()._training_step()
        env_steps = self._env_step + result.get_env_step_advancement()
        for episode_return, length in self._ended:
            self._order.episode(env_steps, episode_return, length)
        self._ended.clear()
        self._order.advance(env_steps, self._current_update_step, self.play)
        return result


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says; the run ends before the unroll that exceeds `env_steps`."""
    torch.set_num_threads(1)
    np.random.seed(seed)  # noqa: NPY002  as tianshou's users do
    torch.manual_seed(seed)
    seeds = np.random.SeedSequence(seed).generate_state(config["num_envs"]) // 2
    ended: list[tuple[float, int]] = []
    envs: Any = _environments(config, [int(each) for each in seeds], ended)
    if config["normalise_observations"]:
        envs = VectorEnvNormObs(envs)
    algorithm = {"a2c": _a2c}[agent](config)
    rows = config["num_envs"] * config["unroll_length"]
    collector = Collector(
        algorithm, envs, VectorReplayBuffer(4096, config["num_envs"]), exploration_noise=True
    )
    trainer = Watched(
        algorithm,
        OnPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=config["env_steps"] // rows * rows,
            update_step_num_repetitions=1,
            batch_size=None,
            collection_step_num_env_steps=rows,
            test_in_training=False,
            show_progress=False,
        ),
    )
    trainer.watch(config, record, envs, ended)
    trainer.run()
    trainer.finish()


def _environments(
    config: dict[str, Any], seeds: list[int], ended: list[tuple[float, int]]
) -> DummyVectorEnv:
    """Return environments, each with a seed of its own."""

    def make() -> gymnasium.Env:
        return Counted(gymnasium.make(config["task"]), ended)

    envs = DummyVectorEnv([make for _ in seeds])
    envs.seed(seeds)
    return envs


def _a2c(config: dict[str, Any]) -> A2C:
    """Return what the benchmark's `mujoco_a2c.py` makes, with its initial weights."""
    env = gymnasium.make(config["task"])
    size, actions = env.observation_space.shape, env.action_space.shape
    layers = partial(Net, state_shape=size, hidden_sizes=config["hidden_sizes"], activation=nn.Tanh)
    actor = ContinuousActorProbabilistic(
        preprocess_net=layers(), action_shape=actions, unbounded=True
    )
    critic = ContinuousCritic(preprocess_net=layers())
    nn.init.constant_(actor.sigma_param, -0.5)
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=np.sqrt(2))
            nn.init.zeros_(module.bias)
    for module in actor.mu.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.copy_(0.01 * module.weight.data)
    optimiser = RMSpropOptimizerFactory(
        lr=config["learning_rate"], eps=config["rmsprop_epsilon"], alpha=config["rmsprop_decay"]
    )
    if config["learning_rate_decay_steps"]:
        optimiser.with_lr_scheduler_factory(
            LRSchedulerFactoryLinear(
                max_epochs=1,
                epoch_num_steps=config["learning_rate_decay_steps"],
                collection_step_num_env_steps=config["num_envs"] * config["unroll_length"],
            )
        )
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda loc_scale: Independent(Normal(*loc_scale), 1),
        action_scaling=True,
        action_bound_method="clip",
        action_space=env.action_space,
        deterministic_eval=config["evaluation_rule"] == "deterministic",
    )
    return A2C(
        policy=policy,
        critic=critic,
        optim=optimiser,
        gamma=config["gamma"],
        gae_lambda=config["gae_lambda"],
        max_grad_norm=config["max_gradient_norm"],
        vf_coef=config["value_coef"],
        ent_coef=config["entropy_coef"],
        return_scaling=config["reward_normalisation"] == "value_targets",
    )
