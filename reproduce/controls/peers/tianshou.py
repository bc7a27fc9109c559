"""tianshou's A2C, PPO and SAC as its examples have them, unchanged; see docs/controls.md."""

import math
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import A2C, PPO, SAC
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import (
    AdamOptimizerFactory,
    LRSchedulerFactoryLinear,
    RMSpropOptimizerFactory,
)
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import (
    OffPolicyTrainer,
    OffPolicyTrainerParams,
    OnPolicyTrainer,
    OnPolicyTrainerParams,
)
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn
from torch.distributions import Categorical, Independent, Normal


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


class Watch:
    """Hands episodes and progress to the record.

    Args:
        config: the run's settings.
        record: the run's record.
        envs: the environments, whose statistics normalise observations.
        ended: the episodes that ended since the last report.
    """

    def __init__(
        self, config: dict[str, Any], record: Any, envs: Any, ended: list[tuple[float, int]]
    ) -> None:
        self._config, self._record, self._envs, self._ended = config, record, envs, ended
        self._env_steps = self._num_updates = 0

    def report(self, algorithm: Any, env_steps: int, num_updates: int) -> None:
        """Say how many steps were taken since the last report, and all updates so far."""
        self._env_steps, self._num_updates = self._env_steps + env_steps, num_updates
        for episode_return, length in self._ended:
            self._record.episode(self._env_steps, episode_return, length)
        self._ended.clear()
        self._record.advance(self._env_steps, num_updates, partial(self._play, algorithm))

    def finish(self, algorithm: Any) -> None:
        """Write the end of the record."""
        self._record.finish(self._env_steps, self._num_updates, partial(self._play, algorithm))

    def _play(self, algorithm: Any, seeds: list[int]) -> np.ndarray:
        """Play an episode in each of as many fresh environments; return their returns."""
        envs: Any = _environments(self._config, seeds, [])
        if self._config.get("normalise_observations"):
            envs = VectorEnvNormObs(envs, update_obs_rms=False)
            envs.set_obs_rms(self._envs.get_obs_rms())
        collected = Collector(algorithm, envs).collect(
            n_episode=len(seeds), reset_before_collect=True
        )
        envs.close()
        return collected.returns


class Watched:
    """A trainer that counts gradient steps and reports after every update."""

    watch: Watch
    num_updates, steps_per_update = 0, 1

    def _update_moving_avg_stats_and_log_update_data(self, update_stat: Any) -> None:
        self.num_updates += self.steps_per_update
        super()._update_moving_avg_stats_and_log_update_data(update_stat)

    def _training_step(self) -> Any:
        result = super()._training_step()
        self.watch.report(self.algorithm, result.get_env_step_advancement(), self.num_updates)
        return result


class WatchedOnPolicy(Watched, OnPolicyTrainer):
    """The trainer of A2C and PPO."""


class WatchedOffPolicy(Watched, OffPolicyTrainer):
    """The trainer of SAC."""


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says; the run ends before the unroll that exceeds `env_steps`."""
    torch.set_num_threads(1)
    np.random.seed(seed)  # noqa: NPY002  as tianshou's users do
    torch.manual_seed(seed)
    seeds = np.random.SeedSequence(seed).generate_state(config["num_envs"]) // 2
    ended: list[tuple[float, int]] = []
    envs: Any = _environments(config, [int(each) for each in seeds], ended)
    if config.get("normalise_observations"):
        envs = VectorEnvNormObs(envs)
    algorithm = {"a2c": _a2c, "ppo": _ppo, "sac": _sac}[agent](config)
    watch = Watch(config, record, envs, ended)
    make = _off_policy if agent == "sac" else _on_policy
    trainer = make(algorithm, config, envs)
    trainer.watch = watch
    collector, random_steps = trainer.params.training_collector, _random_steps(config)
    if random_steps:
        collector.reset()
    for _ in range(0, random_steps, config["num_envs"]):
        collector.collect(n_step=config["num_envs"], random=True)
        watch.report(algorithm, config["num_envs"], 0)
    trainer.run()
    watch.finish(algorithm)


def _random_steps(config: dict[str, Any]) -> int:
    """Return the steps before learning starts: all environments step together."""
    num_envs = config["num_envs"]
    return -(-config.get("learning_starts", 0) // num_envs) * num_envs


def _on_policy(algorithm: Any, config: dict[str, Any], envs: Any) -> WatchedOnPolicy:
    """Return a trainer that learns from every unroll: once, or as PPO does."""
    rows = config["num_envs"] * config["unroll_length"]
    parts = config.get("num_minibatches")
    buffer = VectorReplayBuffer(max(4096, rows), config["num_envs"])  # holds an unroll
    params = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, buffer, exploration_noise=True),
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=config["env_steps"] // rows * rows,
        update_step_num_repetitions=config.get("num_epochs", 1),
        batch_size=rows // parts if parts else None,
        collection_step_num_env_steps=rows,
        test_in_training=False,
        show_progress=False,
    )
    trainer = WatchedOnPolicy(algorithm, params)
    trainer.steps_per_update = config.get("num_epochs", 1) * (parts or 1)
    return trainer


def _off_policy(algorithm: Any, config: dict[str, Any], envs: Any) -> WatchedOffPolicy:
    """Return a trainer that learns from replay after every step of all environments."""
    capacity = min(config["replay_capacity"], config["env_steps"])
    buffer = VectorReplayBuffer(capacity, config["num_envs"])
    params = OffPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, buffer, exploration_noise=True),
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=config["env_steps"] - _random_steps(config),
        update_step_num_gradient_steps_per_sample=config["update_ratio"],
        batch_size=config["batch_size"],
        collection_step_num_env_steps=config["num_envs"],
        test_in_training=False,
        show_progress=False,
    )
    return WatchedOffPolicy(algorithm, params)


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
    optimiser = RMSpropOptimizerFactory(
        lr=config["learning_rate"], eps=config["rmsprop_epsilon"], alpha=config["rmsprop_decay"]
    )
    return A2C(**_actor_critic(config, optimiser))


def _ppo(config: dict[str, Any]) -> PPO:
    """Return what the benchmark's `mujoco_ppo.py` makes, with its initial weights."""
    optimiser = AdamOptimizerFactory(lr=config["learning_rate"], eps=config["adam_epsilon"])
    return PPO(
        **_actor_critic(config, optimiser),
        eps_clip=config["clip"],
        value_clip=config["clip_values"],
        advantage_normalization=config["normalise_advantages"],
        recompute_advantage=config["recompute_advantages"],
    )


def _actor_critic(config: dict[str, Any], optimiser: Any) -> dict[str, Any]:
    """Return what A2C and PPO share; discrete actions have the same layers and initial weights."""
    env = gymnasium.make(config["task"])
    size, continuous = env.observation_space.shape, env.action_space.shape != ()
    layers = partial(Net, state_shape=size, hidden_sizes=config["hidden_sizes"], activation=nn.Tanh)
    if continuous:
        actor = ContinuousActorProbabilistic(
            preprocess_net=layers(), action_shape=env.action_space.shape, unbounded=True
        )
        nn.init.constant_(actor.sigma_param, -0.5)
        head, distribution = actor.mu, lambda given: Independent(Normal(*given), 1)
        critic = ContinuousCritic(preprocess_net=layers())
    else:
        actor = DiscreteActor(
            preprocess_net=layers(), action_shape=int(env.action_space.n), softmax_output=False
        )
        head, distribution = actor.last, lambda logits: Categorical(logits=logits)
        critic = DiscreteCritic(preprocess_net=layers())
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=np.sqrt(2))
            nn.init.zeros_(module.bias)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.copy_(0.01 * module.weight.data)
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
        dist_fn=distribution,
        action_scaling=continuous,
        action_bound_method="clip" if continuous else None,
        action_space=env.action_space,
        deterministic_eval=config["evaluation_rule"] == "deterministic",
    )
    return {
        **{"policy": policy, "critic": critic, "optim": optimiser},
        **{"gamma": config["gamma"], "gae_lambda": config["gae_lambda"]},
        "max_grad_norm": config["max_gradient_norm"],
        **{"vf_coef": config["value_coef"], "ent_coef": config["entropy_coef"]},
        "return_scaling": config["reward_normalisation"] == "value_targets",
    }


def _sac(config: dict[str, Any]) -> SAC:
    """Return what the benchmark's `mujoco_sac.py` makes."""
    env = gymnasium.make(config["task"])
    size, actions = env.observation_space.shape, env.action_space.shape
    layers = partial(Net, state_shape=size, hidden_sizes=config["hidden_sizes"])
    actor = ContinuousActorProbabilistic(
        preprocess_net=layers(), action_shape=actions, unbounded=True, conditioned_sigma=True
    )
    policy = SACPolicy(
        actor=actor,
        action_space=env.action_space,
        deterministic_eval=config["evaluation_rule"] == "deterministic",
    )
    critics = [
        ContinuousCritic(preprocess_net=layers(action_shape=actions, concat=True)) for _ in range(2)
    ]
    adam = AdamOptimizerFactory
    alpha: Any = float(config["initial_alpha"])
    if config["learn_alpha"]:
        target_entropy = config["target_entropy_per_action"] * math.prod(actions)
        optimiser = adam(lr=config["alpha_learning_rate"])
        alpha = AutoAlpha(target_entropy, math.log(alpha), optimiser)
    return SAC(
        policy=policy,
        critic=critics[0],
        critic2=critics[1],
        policy_optim=adam(lr=config["actor_learning_rate"]),
        critic_optim=adam(lr=config["critic_learning_rate"]),
        tau=config["tau"],
        gamma=config["gamma"],
        alpha=alpha,
    )
