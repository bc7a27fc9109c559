"""The short runs whose bytes are compared: a source's settings, made small.

Between them an agent's runs use every choice that a setting offers and every branch of the agent;
`test_golden.py` counts the choices. Sizes of networks and batches stay the source's in at least one
run of every agent, as they decide how a processor adds up.

`python -m tests.golden --update` stores them: `golden.json` keeps every setting, so that what is
compared does not change with a preset.
"""

import ast
import dataclasses
from dataclasses import dataclass
from typing import Any

COMMON: dict[str, Any] = {"device": "cpu", "num_threads": 1, "evaluation_episodes": 1}
CLASSIC: dict[str, Any] = {
    **{"num_envs": 4, "env_steps": 1_000, "log_interval": 100, "evaluation_interval": 400}
}
SMALL: dict[str, dict[str, Any]] = {
    "SAC": {
        **{"hidden_sizes": (16, 16), "batch_size": 8, "learning_starts": 100, "env_steps": 400},
        **{"num_envs": 2, "log_interval": 60, "evaluation_interval": 200},
    },
    "CLASSIC": CLASSIC,
    "MUJOCO": CLASSIC | {"log_interval": 200},
    "FRAMES": {
        **{"task": "Breakout-v5", "num_envs": 2, "env_steps": 160, "log_interval": 40},
        "evaluation_interval": 10_000,
    },
    "ONE_STEP": {
        **{"num_envs": 1, "env_steps": 56, "learning_starts": 24, "batch_size": 8},
        **{"log_interval": 8, "target_period": 5},
    },
    "REPLAY": {"replay_start": 60, "replay_capacity": 150},
}
"""Settings that make runs short, by the names in the table."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Its seeds train in one process where the agent can, else in turn.
    """

    preset: tuple[str, str]
    """Suite and source."""
    settings: dict[str, Any]
    """What differs from the source's."""
    cut: bool = False
    """Whether it is killed in its second half, and goes on from a checkpoint."""


def configure(agent: Any, run: Run) -> Any:
    """Return the configuration of a run, with the presets that an agent's module has today."""
    return dataclasses.replace(agent.PRESETS[run.preset].config, **run.settings)


def _run(text: str) -> Run:
    """Read a run: suite, source, names in `SMALL`, settings, and `cut`; later words decide."""
    suite, source, *words = text.split()
    settings = dict(COMMON)
    for word in words:
        name, is_setting, value = word.partition("=")
        if is_setting:
            settings[name] = _value(value)
        elif name != "cut":
            settings |= SMALL[name]
    return Run(preset=(suite, source), settings=settings, cut="cut" in words)


def _value(text: str) -> Any:
    """Return a number, a tuple, a truth or None as Python writes it; else the word itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


TABLE: dict[str, dict[str, str]] = {
    "sac": {
        "paper, in full": (
            "mujoco paper learning_starts=280 env_steps=300 log_interval=5 evaluation_interval=300"
        ),
        "tianshou_v3, sampled, one critic, replay twice over": (
            "mujoco tianshou_v3 SAC task=Walker2d-v4 num_envs=1 num_critics=1 update_ratio=0.5 "
            "evaluation_rule=sampled replay_capacity=150"
        ),
        "dmc, pytorch_sac, two seeds": (
            "dmc pytorch_sac SAC task=ReacherEasy-v1 seeds=(1,7) hidden_sizes=(32,32) env_steps=160"
        ),
        "dmc, three critics, actor seldom": (
            "dmc paper SAC task=CartpoleSwingup-v1 seeds=(5,6) policy_period=3 env_steps=300 "
            "evaluation_interval=300 num_critics=3 alpha_learning_rate=0.01 "
            "target_entropy_per_action=2.0"
        ),
        "classic, tuned, two seeds, cut": "classic tuned SAC task=Pendulum-v1 seeds=(2,9) cut",
        "cleanrl, scored by training": "mujoco cleanrl SAC task=Hopper-v4",
        "simbav2_baselines, cut": (
            "mujoco simbav2_baselines SAC task=Ant-v4 num_envs=4 hidden_sizes=(16,) "
            "update_ratio=1.5 cut"
        ),
    },
    "a2c": {
        "classic, two seeds, cut": (
            "classic rl_zoo CLASSIC task=CartPole-v1 seeds=(1,2) evaluation_episodes=2 cut"
        ),
        "classic, continuous, the rate reaches 0": (
            "classic rl_zoo CLASSIC task=Pendulum-v1 activation=relu shared_trunk=True "
            "reward_normalisation=none learning_rate_decay_steps=700 rmsprop_epsilon_in_root=True "
            "rmsprop_initial_average=1.0 evaluation_rule=deterministic entropy_coef=0.01 "
            "max_gradient_norm=None"
        ),
        "classic, one row at a time": (
            "classic sb3_control CLASSIC task=CartPole-v1 num_envs=1 unroll_length=1 "
            "env_steps=200 log_interval=1 evaluation_rule=sampled"
        ),
        "mujoco, in full": (
            "mujoco tianshou_v3 task=HalfCheetah-v4 env_steps=800 log_interval=200 "
            "evaluation_interval=800"
        ),
        "frames, nnabla_rl, evaluated": "atari-7 nnabla_rl FRAMES learning_rate_decay_steps=320",
        "frames, bfloat16": "atari-7 openai_baselines FRAMES env_steps=100 bfloat16=True",
        "frames, sticky, two trunks": (
            "atari openai_baselines FRAMES task=Pong-v5 env_steps=100 protocol=sticky "
            "shared_trunk=False"
        ),
    },
    "ppo": {
        "classic, two seeds, cut": (
            "classic rl_zoo CLASSIC task=CartPole-v1 seeds=(1,2) evaluation_episodes=2 "
            "evaluation_rule=sampled cut"
        ),
        "classic, continuous, the rate and the clip reach 0": (
            "classic rl_zoo CLASSIC task=Pendulum-v1 activation=relu shared_trunk=True "
            "reward_normalisation=none learning_rate_decay_steps=700 decay_clip=True "
            "clip_values=True evaluation_rule=deterministic entropy_coef=0.01 "
            "max_gradient_norm=None time_limit_is_terminal=False"
        ),
        "classic, recurrent, stopped by divergence, cut": (
            "classic cleanrl CLASSIC task=CartPole-v1 shared_trunk=True lstm_size=16 max_kl=1e-4 "
            "learning_rate=0.01 cut"
        ),
        "mujoco-small, in full": "mujoco-small tianshou_control env_steps=2048",
        "frames, bfloat16, sticky": (
            "classic rl_zoo FRAMES task=Breakout-v5 unroll_length=8 protocol=sticky bfloat16=True "
            "normalise_observations=False env_steps=32"
        ),
        "frames, small": "atari-7 tuned FRAMES unroll_length=8 num_minibatches=4 env_steps=64 cut",
    },
    "impala": {
        "frames, shallow": "atari-7 paper FRAMES env_steps=240",
        "frames, bfloat16": "atari-7 paper FRAMES convolutions=deep env_steps=80 bfloat16=True",
        "frames, cleanba": "atari cleanba FRAMES num_envs=4 env_steps=240",
        "frames, rllib_2018": (
            "atari-7 rllib_2018 FRAMES task=SpaceInvaders-v5 num_minibatches=2 env_steps=200"
        ),
        "frames, rllib_speedrun": "atari-7 rllib_speedrun FRAMES num_minibatches=2 env_steps=200",
        "classic, far behind, adam, cut": (
            "classic tuned CLASSIC unroll_length=8 policy_lag=3 optimiser=adam activation=relu "
            "initialisation=glorot_uniform learning_rate_decay_steps=0 max_gradient_norm=None cut"
        ),
        "classic, continuous, in turns, the rate reaches 0": (
            "classic tuned CLASSIC task=Pendulum-v1 unroll_length=8 policy_lag=0 "
            "evaluation_rule=deterministic learning_rate_decay_steps=700 clip_rho_threshold=None "
            "clip_c_threshold=None trace_lambda=0.9 clip_pg_rho_threshold=None "
            "max_gradient_norm=None cut"
        ),
        "memory, two seeds, cut": (
            "memory tuned CLASSIC task=StatelessCartPole-v1 env_steps=400 unroll_length=8 "
            "seeds=(1,2) evaluation_rule=sampled cut"
        ),
        "classic, continuous, recurrent": (
            "classic tuned CLASSIC task=Pendulum-v1 env_steps=400 unroll_length=8 lstm_size=16 "
            "evaluation_rule=deterministic"
        ),
        "frames, nature, recurrent": (
            "atari paper FRAMES convolutions=nature env_steps=80 lstm_size=32"
        ),
    },
    "acer": {
        "classic, pfrl_control, CartPole": "classic pfrl_control env_steps=800",
        "classic, ChainerRL's choices": (
            "classic tuned CLASSIC REPLAY task=MountainCar-v0 statistics=logits "
            "advantage_target=q_opc entropy_in_trust_region=False "
            "replay_count=fixed replay_ratio=2.0 learning_rate_decay_steps=700 activation=relu "
            "shared_trunk=True trust_region_delta=0.01 evaluation_rule=deterministic cut"
        ),
        "classic, from replay alone, no truncation, no trust region": (
            "classic tuned CLASSIC REPLAY online_updates=False clip_rho_threshold=None "
            "trust_region_delta=None max_gradient_norm=None"
        ),
        "memory, two seeds, cut": (
            "memory tuned CLASSIC REPLAY env_steps=400 unroll_length=8 seeds=(1,2) "
            "evaluation_rule=sampled cut"
        ),
        "frames, bfloat16": (
            "atari-7 openai_baselines FRAMES REPLAY replay_start=40 env_steps=80 bfloat16=True"
        ),
        "frames, replay twice over, two trunks, evaluated": (
            "atari openai_baselines FRAMES shared_trunk=False protocol=sticky "
            "replay_start=20 replay_capacity=40 evaluation_rule=sampled"
        ),
    },
    "acer_continuous": {
        "mujoco": "mujoco tuned MUJOCO task=HalfCheetah-v4 env_steps=600 evaluation_interval=600",
        "classic, two seeds, cut": (
            "classic tuned CLASSIC REPLAY seeds=(1,2) unroll_length=10 hidden_sizes=(16,) "
            "batch_unrolls=3 advantage_hidden_sizes=(8,8) cut"
        ),
        "classic, chainerrl, cut": (
            "classic chainerrl CLASSIC REPLAY unroll_length=10 evaluation_rule=deterministic "
            "hidden_sizes=(16,16) num_envs=8 trust_region_delta=0.0 cut"
        ),
        "mujoco-small, online, cut": (
            "mujoco-small tuned REPLAY task=InvertedPendulum-v4 num_envs=4 env_steps=480 "
            "log_interval=80 evaluation_interval=240 evaluation_episodes=2 unroll_length=10 "
            "online_updates=True cut"
        ),
        "classic, learned deviation": (
            "classic tuned CLASSIC REPLAY unroll_length=10 std=learned entropy_coef=0.01 "
            "activation=tanh bounded_mean=False rmsprop_epsilon_in_root=False "
            "rmsprop_initial_average=0.0 trust_region_delta=0.001 replay_count=fixed "
            "batch_unrolls=2 max_gradient_norm=None hidden_sizes=(16,)"
        ),
        "classic, learned deviation, no truncation, no trust region": (
            "classic tuned CLASSIC REPLAY unroll_length=10 std=learned online_updates=True "
            "clip_rho_threshold=None trust_region_delta=None hidden_sizes=(16,) "
            "num_action_samples=1 evaluation_rule=training"
        ),
        "classic, normalised, cut": (
            "classic tuned CLASSIC REPLAY unroll_length=10 hidden_sizes=(16,) "
            "normalise_observations=True observation_clip=1.0 cut"
        ),
    },
    "sac_value": {
        "paper, in full": (
            "mujoco paper learning_starts=280 env_steps=300 log_interval=5 evaluation_interval=300"
        ),
        "warm-up and scale of the task": (
            "mujoco paper SAC task=Humanoid-v4 env_steps=1060 learning_starts=None "
            "evaluation_interval=600"
        ),
        "sampled, one critic, replay twice over, cut": (
            "mujoco paper SAC task=Walker2d-v4 num_envs=1 num_critics=1 update_ratio=0.5 "
            "evaluation_rule=sampled replay_capacity=150 cut"
        ),
        "dmc, hard target updates": (
            "dmc paper SAC task=ReacherEasy-v1 seeds=(1,7) env_steps=160 update_ratio=4.0 tau=1.0 "
            "target_period=50"
        ),
        "mujoco-small, own scale, three layers": (
            "mujoco-small paper SAC task=Reacher-v4 hidden_sizes=(16,8,16) num_critics=3 "
            "reward_scale=0.5 log_std_min=-2.0 log_std_max=0.1"
        ),
        "scored by training": "mujoco paper SAC task=Hopper-v4 evaluation_rule=training",
    },
    "sac_alf": {
        "alf, in full": (
            "mujoco alf learning_starts=150 env_steps=200 log_interval=50 evaluation_interval=200"
        ),
        "parts, priorities, sampled, replay twice over, three seeds": (
            "mujoco-small tuned SAC task=Reacher-v4 seeds=(1,2,7) reward_weights=(0.5,0.5) "
            "evaluation_episodes=2 prioritised_replay=True priority_epsilon=0.01 "
            "replay_capacity=150 update_ratio=0.5 evaluation_rule=sampled"
        ),
        "uniform prior, weights of both signs, no entropy in targets, bounds, cut": (
            "mujoco alf SAC task=Ant-v4 prior=uniform reward_weights=(1.0,-0.5,0.0,0.5) "
            "entropy_in_target=False num_critics=3 log_std_min=-1.0 log_std_max=0.0 tau=1.0 "
            "update_ratio=1.5 env_steps=300 evaluation_interval=300 cut"
        ),
        "a prior of one's own, equal priorities, all weighted": (
            "mujoco-small tuned SAC task=InvertedPendulum-v4 env_steps=300 "
            "evaluation_interval=300 prior=same_action same_action_prob=0.5 same_action_noise=0.3 "
            "target_kl_per_action=1.0 prioritised_replay=True priority_exponent=0.0 "
            "importance_exponent=1.0"
        ),
        "mixed, tuned, in full": "hybrid tuned learning_starts=200 env_steps=300 log_interval=50",
        "mixed, fixed temperatures, bounds, warm-up only at the start, cut": (
            "hybrid tuned SAC num_envs=4 num_critics=3 learn_alpha=False log_std_min=-1.0 "
            "log_std_max=0.0 tau=1.0 update_ratio=1.5 learning_starts=0 env_steps=200 cut"
        ),
        "discrete, two seeds, priorities, cut": (
            "classic tuned SAC task=CartPole-v1 seeds=(1,2) prioritised_replay=True "
            "normalise_entropy=True cut"
        ),
        "several steps, two seeds, actor seldom, orthogonal, cut": (
            "mujoco-small tuned SAC task=InvertedPendulum-v4 seeds=(3,4) td_steps=3 "
            "policy_period=2 target_period=3 action_gradient_clip=0.1 max_log_alpha=-1.0 "
            "log_std_bound=tanh initialisation=orthogonal separate_heads=True reward_scale=2.0 "
            "cut"
        ),
        "recurrent, mixed, two seeds, priorities, cut": (
            "hybrid tuned SAC seeds=(3,4) env_steps=200 evaluation_interval=100 lstm_size=8 "
            "td_steps=3 prioritised_replay=True evaluation_rule=sampled evaluation_epsilon=0.5 cut"
        ),
        "several steps with priorities, actor seldom": (
            "mujoco-small tuned SAC task=InvertedPendulum-v4 td_steps=2 td_lambda=0.5 "
            "prioritised_replay=True replay_capacity=150 policy_period=3 "
            "initialisation=lecun_normal env_steps=300 evaluation_interval=300"
        ),
        "mixed, several steps, some draws in evaluations": (
            "hybrid tuned SAC td_steps=3 action_gradient_clip=0.01 initialisation=torch "
            "evaluation_rule=sampled evaluation_epsilon=0.5"
        ),
        "scored by training": (
            "mujoco-small tuned SAC task=InvertedPendulum-v4 evaluation_rule=training"
        ),
    },
    "sac_discrete": {
        "classic, in full": (
            "classic tuned task=Acrobot-v1 learning_starts=160 env_steps=320 log_interval=80 "
            "evaluation_interval=160"
        ),
        "classic, alf, evaluated, two seeds, replay twice over, cut": (
            "classic alf SAC task=CartPole-v1 seeds=(3,4) hidden_sizes=(16,) update_ratio=0.5 "
            "replay_capacity=120 evaluation_rule=sampled evaluation_epsilon=0.05 cut"
        ),
        "classic, critics, three, their mean, a bound from the start": (
            "classic tuned SAC task=MountainCar-v0 policy=critics num_critics=3 q_of_critics=mean "
            "initialisation=orthogonal initial_alpha=0.5 max_log_alpha=-3.0 max_gradient_norm=0.5 "
            "critic_error=huber mean_over_actions=True"
        ),
        "classic, temperature kept": (
            "classic tuned SAC task=CartPole-v1 learn_alpha=False weight_decay=0.1 num_critics=1 "
            "initial_alpha=0.1 evaluation_rule=sampled"
        ),
        "frames, paper, evaluated, critics": (
            "atari-7 paper FRAMES ONE_STEP env_steps=40 policy=critics evaluation_epsilon=0.5"
        ),
        "frames, slm_lab_v5_fig, two seeds, replay twice over": (
            "atari-7 slm_lab_v5_fig FRAMES ONE_STEP num_envs=2 seeds=(1,2) env_steps=40 "
            "replay_capacity=16"
        ),
    },
}
"""By agent and name: see `_run`."""
RUNS = {agent: {name: _run(text) for name, text in runs.items()} for agent, runs in TABLE.items()}
"""By agent and name."""
