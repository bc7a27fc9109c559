"""stable-baselines3's A2C, PPO and SAC, unchanged, on gymnasium's tasks; see docs/controls.md."""

from typing import Any

import gymnasium
import torch
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


class Watch(BaseCallback):
    """Hands episodes, evaluations and progress to the record, after every step of training."""

    def __init__(self, config: dict[str, Any], record: Any) -> None:
        super().__init__()
        self._config, self._record = config, record

    def play(self, seeds: list[int]) -> list[float]:
        """Play an episode of each of as many fresh environments; return their returns."""
        statistics = self.model.get_vec_normalize_env()
        returns = []
        for seed in seeds:
            env = gymnasium.make(self._config["task"])
            obs, _ = env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                if statistics is not None:
                    obs = statistics.normalize_obs(obs)
                deterministic = self._config["evaluation_rule"] == "deterministic"
                action, _ = self.model.predict(obs, deterministic=deterministic)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
            env.close()
        return returns

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:  # of the monitor, below any normalisation
                episode = info["episode"]
                self._record.episode(self.num_timesteps, episode["r"], episode["l"])
        self._record.advance(self.num_timesteps, self.num_updates, self.play)
        return True

    @property
    def num_updates(self) -> int:
        """Return the gradient steps so far, of which PPO counts each epoch's as one."""
        return self.model._n_updates * self._config.get("num_minibatches", 1)


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says."""
    torch.set_num_threads(1)
    env = make_vec_env(config["task"], config["num_envs"], seed=seed)
    make = {"a2c": _a2c, "ppo": _ppo, "sac": _sac}[agent]
    model, env_steps = make(config, env, seed)
    watch = Watch(config, record)
    model.learn(env_steps, callback=watch)
    record.finish(model.num_timesteps, watch.num_updates, watch.play)


def _a2c(config: dict[str, Any], env: Any, seed: int) -> tuple[A2C, int]:
    """Return A2C, and how long it learns."""
    shared, env_steps = _on_policy(config, env, seed)
    return A2C("MlpPolicy", **shared, rms_prop_eps=config["rmsprop_epsilon"]), env_steps


def _ppo(config: dict[str, Any], env: Any, seed: int) -> tuple[PPO, int]:
    """Return PPO, and how long it learns."""
    shared, env_steps = _on_policy(config, env, seed)
    clip, rate, rate_at = config["clip"], config["learning_rate"], shared["learning_rate"]

    def clip_at(remaining: float) -> float:
        return clip * rate_at(remaining) / rate if config["decay_clip"] else clip

    model = PPO(
        "MlpPolicy",
        **shared,
        batch_size=config["num_envs"] * config["unroll_length"] // config["num_minibatches"],
        n_epochs=config["num_epochs"],
        clip_range=clip_at,
        normalize_advantage=config["normalise_advantages"],
    )
    return model, env_steps


def _on_policy(config: dict[str, Any], env: Any, seed: int) -> tuple[dict[str, Any], int]:
    """Return what A2C and PPO share: a run ends before the unroll that exceeds `env_steps`."""
    normalises_rewards = config["reward_normalisation"] == "discounted_returns"
    if config["normalise_observations"] or normalises_rewards:
        env = VecNormalize(
            env,
            norm_obs=config["normalise_observations"],
            norm_reward=normalises_rewards,
            clip_obs=config["observation_clip"],
            clip_reward=config["reward_clip"],
            gamma=config["gamma"],
        )
    rows = config["num_envs"] * config["unroll_length"]
    env_steps = config["env_steps"] // rows * rows
    rate, horizon = config["learning_rate"], config["learning_rate_decay_steps"]

    def rate_at(remaining: float) -> float:
        return rate * max(1 - (1 - remaining) * env_steps / horizon, 0.0) if horizon else rate

    norm = config["max_gradient_norm"]
    shared = {
        **{"env": env, "learning_rate": rate_at, "n_steps": config["unroll_length"]},
        **{"gamma": config["gamma"], "gae_lambda": config["gae_lambda"]},
        **{"ent_coef": config["entropy_coef"], "vf_coef": config["value_coef"]},
        "max_grad_norm": float("inf") if norm is None else norm,
        "policy_kwargs": {
            "net_arch": {"pi": config["hidden_sizes"], "vf": config["hidden_sizes"]},
            "activation_fn": ACTIVATIONS[config["activation"]],
            "log_std_init": config["initial_log_std"],
        },
        **{"seed": seed, "device": "cpu"},
    }
    return shared, env_steps


def _sac(config: dict[str, Any], env: Any, seed: int) -> tuple[SAC, int]:
    """Return SAC, and how long it learns."""
    alpha = config["initial_alpha"]
    (size,) = env.action_space.shape
    model = SAC(
        "MlpPolicy",
        env,
        learning_rate=config["actor_learning_rate"],
        buffer_size=min(config["replay_capacity"], config["env_steps"]),
        learning_starts=config["learning_starts"],
        batch_size=config["batch_size"],
        tau=config["tau"],
        gamma=config["gamma"],
        ent_coef=f"auto_{alpha}" if config["learn_alpha"] else alpha,
        target_update_interval=config["target_period"],
        target_entropy=config["target_entropy_per_action"] * size,
        policy_kwargs={"net_arch": config["hidden_sizes"], "n_critics": config["num_critics"]},
        seed=seed,
        device="cpu",
    )
    return model, config["env_steps"]
