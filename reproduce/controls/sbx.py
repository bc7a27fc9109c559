"""sbx's SAC (Stable Baselines in JAX), unchanged, on gymnasium's tasks; see docs/controls.md."""

import os
from typing import Any

import gymnasium
import torch
from sbx import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Watch(BaseCallback):
    """Hands episodes, evaluations and progress to the record, after every step of training."""

    def __init__(self, config: dict[str, Any], record: Any) -> None:
        super().__init__()
        self._config, self._record = config, record

    def play(self, seeds: list[int]) -> list[float]:
        """Play an episode of each of as many fresh environments; return their returns."""
        deterministic = self._config["evaluation_rule"] == "deterministic"
        returns = []
        for seed in seeds:
            env = gymnasium.make(self._config["task"])
            obs, _ = env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                action, _ = self.model.predict(obs, deterministic=deterministic)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
            env.close()
        return returns

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                episode = info["episode"]
                self._record.episode(self.num_timesteps, episode["r"], episode["l"])
        self._record.advance(self.num_timesteps, self.model._n_updates, self.play)
        return True


def train(agent: str, config: dict[str, Any], seed: int, record: Any) -> None:
    """Train one seed as the order says."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    torch.set_num_threads(1)
    env = make_vec_env(config["task"], config["num_envs"], seed=seed)
    model = {"sac": _sac}[agent](config, env, seed)
    watch = Watch(config, record)
    model.learn(config["env_steps"], callback=watch)
    record.finish(model.num_timesteps, model._n_updates, watch.play)


def _sac(config: dict[str, Any], env: Any, seed: int) -> SAC:
    """Return SAC."""
    alpha = config["initial_alpha"]
    (size,) = env.action_space.shape
    return SAC(
        "MlpPolicy",
        env,
        learning_rate=config["actor_learning_rate"],
        qf_learning_rate=config["critic_learning_rate"],
        buffer_size=min(config["replay_capacity"], config["env_steps"]),
        learning_starts=config["learning_starts"],
        batch_size=config["batch_size"],
        tau=config["tau"],
        gamma=config["gamma"],
        ent_coef=f"auto_{alpha}" if config["learn_alpha"] else float(alpha),
        target_entropy=config["target_entropy_per_action"] * size,
        policy_kwargs={"net_arch": config["hidden_sizes"], "n_critics": config["num_critics"]},
        seed=seed,
    )
