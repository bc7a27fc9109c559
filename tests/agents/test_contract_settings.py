"""What every agent's settings must do, once: each does something, or is refused by name."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from torch import Tensor

from suite import session
from suite.base.errors import UsageError
from tests.agents.trainings import SETTINGS, VARIANTS, fields, module_of, same, tiny, train, watch
from tests.golden import runner

OTHER: dict[str, Any] = {
    **{"num_envs": 2, "gamma": 0.5, "hidden_sizes": (8, 8, 8), "num_critics": 3, "batch_size": 16},
    **{"replay_capacity": 20, "learning_starts": 50, "update_ratio": 2.0, "tau": 0.5},
    **{"policy_period": 2, "target_period": 2, "log_std_min": 0.5, "log_std_max": -1.0},
    **{"log_std_bound": "tanh", "reward_scale": 3.0, "actor_learning_rate": 3e-3},
    **{"critic_learning_rate": 3e-3, "alpha_learning_rate": 3e-3, "initialisation": "orthogonal"},
    **{"hidden_gain": 0.5, "policy_head_gain": 0.3, "separate_heads": True, "initial_alpha": 0.3},
    **{"learn_alpha": False, "max_log_alpha": -1.0, "target_entropy_per_action": -3.0},
    **{"entropy_in_target": False, "action_gradient_clip": 1e-4},
    **{"learning_rate": 3e-3, "normalise_entropy": False},
    **{"prior": "uniform", "target_kl_per_action": 1.0, "same_action_prob": 0.5},
    **{"same_action_noise": 0.5, "reward_weights": (1.0, 0.0), "td_steps": 3, "td_lambda": 0.5},
    **{"lstm_size": 8, "prioritised_replay": False, "priority_exponent": 0.2},
    **{"priority_epsilon": 1.0, "importance_exponent": 1.0, "initial_choice_alpha": 0.3},
    **{"target_entropy_share": 0.9, "policy": "critics", "q_of_critics": "mean"},
    **{"adam_epsilon": 0.1, "weight_decay": 0.1, "max_gradient_norm": 0.01},
    **{"alpha_objective": "log_alpha", "min_log_alpha": -1e-3, "critic_error": "huber"},
    **{"mean_over_actions": True, "unroll_length": 6, "activation": "relu"},
    **{"learning_rate_decay_steps": 2_000, "entropy_coef": 0.1, "time_limit_is_terminal": True},
    **{"normalise_observations": True, "observation_clip": 0.3, "num_epochs": 3},
    **{"num_minibatches": 4, "gae_lambda": 0.5, "clip": 0.01, "decay_clip": True},
    **{"clip_values": True, "normalise_advantages": False, "recompute_advantages": True},
    **{"max_kl": 1e-6, "shared_trunk": True, "value_head_gain": 0.5, "initial_log_std": -1.0},
    **{"value_coef": 0.1, "reward_normalisation": "discounted_returns", "reward_clip": 0.01},
    **{"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0, "rmsprop_decay": 0.9},
    **{"rmsprop_epsilon": 0.1, "policy_lag": 2, "drop_last_row": True},
    **{"clip_rho_threshold": 0.9, "clip_c_threshold": 0.9, "clip_pg_rho_threshold": 0.9},
    **{"trace_lambda": 0.5, "loss_reduction": "mean", "optimiser": "adam"},
    **{"replay_ratio": 1.0, "replay_count": "fixed", "replay_start": 40},
    **{"trust_region_delta": None, "q_coef": 0.1, "online_updates": False},
    **{"advantage_target": "q_opc", "statistics": "logits", "entropy_in_trust_region": False},
    **{"q_head_gain": 0.5, "batch_unrolls": 4, "num_action_samples": 2},
    **{"std": "fixed", "initial_std": 0.5, "bounded_mean": True, "advantage_hidden_sizes": (8,)},
}
"""Another value of every setting."""
OTHER_OF: dict[tuple[str, str], Any] = {
    ("a2c", "initialisation"): "nnabla_rl",
    ("impala", "initialisation"): "truncated_normal",
    ("impala", "learning_rate"): 0.0003,
    ("acer_continuous", "activation"): "tanh",
    ("acer", "shared_trunk"): False,
    ("acer_continuous", "online_updates"): True,
    ("acer_continuous", "advantage_target"): "q_retrace",
}
"""Where that is an agent's own value, or none of its values."""
NOT_LEARNED = {
    *("task", "seeds", "env_steps", "device", "tf32", "num_threads", "env_threads", "cuda_graphs"),
    *("evaluation_rule", "evaluation_interval", "evaluation_episodes"),
    *("log_interval", "evaluation_epsilon"),
    *("protocol", "convolutions", "frame_divisor", "bfloat16"),
}
"""Settings of runs and evaluations, and those of frames, which golden runs use."""
MOVING: dict[str, Any] = {"env_steps": 140, "policy_head_gain": 1.0, "evaluation_rule": "training"}
"""A policy that moves away from its average and its past, so that every setting is felt."""
FELT: dict[str, dict[str, Any]] = {
    **{agent: {} for agent in ("sac", "sac_value", "sac_alf, mixed")},
    "sac_alf": VARIANTS["sac_alf, options"],
    "sac_discrete": {},
    "a2c": MOVING | {"task": "Pendulum-v1", "policy_head_gain": 0.01},
    "ppo": MOVING | {"task": "Pendulum-v1", "learning_rate": 1e-2, "clip": 0.05},
    "impala": MOVING | {"task": "Pendulum-v1", "env_steps": 200},
    "acer": MOVING | {"trust_region_delta": 1e-3, "learning_rate": 2e-2},
    "acer_continuous": MOVING
    | {"trust_region_delta": 0.01, "learning_rate": 1e-3}
    | {"std": "learned", "batch_unrolls": 2},
}
NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"initialisation": "orthogonal"} for name in ("hidden_gain", "policy_head_gain")},
    "lstm_size": {"td_steps": 3, "shared_trunk": True},
    "decay_clip": {"learning_rate_decay_steps": 200},
    "observation_clip": {"normalise_observations": True},
    "reward_clip": {"reward_normalisation": "discounted_returns"},
    "td_lambda": {"td_steps": 3},
    "time_limit_is_terminal": {"env_steps": 220, "num_envs": 1, "unroll_length": 20},
}
"""Settings that others need to take effect; steps up to a time limit of 200."""
NEEDED_OF: dict[tuple[str, str], dict[str, Any]] = {
    ("acer", "time_limit_is_terminal"): {"task": "MountainCar-v0"},
    ("acer_continuous", "time_limit_is_terminal"): {
        **{"task": "Pendulum-v1", "online_updates": True, "replay_ratio": 0.0, "batch_unrolls": 1}
    },
    ("sac_alf", "target_entropy_per_action"): {"prior": "none"},
}
OF_CHOICES = ("initial_choice_alpha", "target_entropy_share")
"""Settings of ALF's that take effect where an action has a number."""
CASES = [
    ("sac_alf, mixed" if agent == "sac_alf" and name in OF_CHOICES else agent, name)
    for agent in SETTINGS
    for name in sorted(fields(module_of(agent).Config) - NOT_LEARNED)
]


@pytest.fixture(scope="session")
def felt(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return what gives the learner of a run whose settings all count, trained once."""

    @cache
    def of(variant: str, *changes: tuple[str, Any]) -> Any:
        settings: dict[str, Any] = FELT[variant] | dict(changes)
        if variant.startswith("sac"):
            settings = {"env_steps": 60, "evaluation_interval": 60} | settings
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "evaluate", lambda *_, **__: (np.zeros((1, 1)), None))
            return train(tiny(variant, **settings), tmp_path_factory.mktemp("felt"))[0]

    return of


def test_every_setting_has_another_value_above() -> None:
    """A new setting needs one, by which its effect is tested."""
    assert {name for _, name in CASES} == OTHER.keys()


@pytest.mark.further
@pytest.mark.parametrize(("variant", "name"), CASES)
def test_every_setting_does_something(variant: str, name: str, felt: Callable[..., Any]) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    known = fields(module_of(variant).Config)
    needed = {key: each for key, each in NEEDED.get(name, {}).items() if key in known}
    needed |= NEEDED_OF.get((variant, name), {})
    changed = needed | {name: OTHER_OF.get((variant, name), OTHER[name])}
    assert not same(felt(variant, *needed.items()), felt(variant, *changed.items()))


@pytest.mark.parametrize("agent", SETTINGS)
def test_numbers_out_of_range_are_refused_by_name(agent: str) -> None:
    """A count below 0, and what is no number; unbounded are only logarithms and targets."""
    config_class = module_of(agent).Config
    unbounded = ("log_std_min", "log_std_max", "log_alpha", "target_entropy_per", "target_kl_per")
    for name, hint in get_type_hints(config_class).items():
        parts = (hint, *getattr(hint, "__args__", ()))
        if int in parts and bool not in parts and name in fields(config_class) and name != "seeds":
            with pytest.raises(UsageError, match=f"{name} .*-1"):
                tiny(agent, **{name: -1})
        elif float in parts and not hasattr(hint, "__origin__"):
            values = [math.nan] if any(part in name for part in unbounded) else [math.nan, -1e6]
            for value in values:
                with pytest.raises(UsageError, match=name):
                    tiny(agent, **{name: value})
    for name in ("num_envs", "evaluation_episodes"):
        with pytest.raises(UsageError, match=f"^{name} must be in"):
            tiny(agent, **{name: 10**6})


ALL, SACS, ACERS = " ".join(SETTINGS), "sac sac_value sac_discrete sac_alf", "acer acer_continuous"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ALL, {"task": "CartPol-v1"}, "CartPol-v1"),
    (ALL.replace("sac_alf", ""), {"task": "Claw-v0"}, "Claw-v0, which has hybrid"),
    ("sac sac_value acer_continuous", {"task": "CartPole-v1"}, "discrete"),
    ("sac_discrete acer", {"task": "Pendulum-v1"}, "continuous"),
    ("sac_alf", {"task": "Pong-v5"}, "Pong-v5"),
    ("sac_alf", {"task": "CartPole-v1", "prior": "uniform"}, "prior"),
    ("a2c ppo impala acer acer_continuous", {"env_steps": 19}, "19"),
    (SACS, {"num_envs": 7}, "7"),
    ("sac sac_discrete sac_alf", {"initial_alpha": 0.0}, "initial_alpha"),
    (SACS, {"hidden_sizes": ()}, "hidden_sizes"),
    ("sac sac_value sac_alf", {"log_std_min": 3.0}, "log_std_max 2.0, not 3.0"),
    ("sac_discrete", {"min_log_alpha": 2.0, "max_log_alpha": 1.0}, "min_log_alpha"),
    ("sac_discrete", {"replay_capacity": 15, "num_envs": 2}, "16, not 15"),
    (SACS, {"replay_capacity": 100_000_000_000}, "replay_capacity must be in"),
    (ALL, {"env_threads": 9_999}, "env_threads must be in"),
    ("sac_value", {"learning_starts": None, "num_envs": 60}, "learning_starts .* 60, not 1000"),
    ("sac_alf sac_discrete", {"evaluation_epsilon": 0.5}, "evaluation_epsilon"),
    *(("sac_alf", {"reward_weights": w}, "reward_weights") for w in ((), (1.0, 2.0), (math.inf,))),
    (ACERS, {"online_updates": False, "replay_ratio": 0.0}, "online_updates"),
    (ACERS, {"replay_start": 60_000}, "60000"),
    (ACERS, {"replay_capacity": 4, "replay_start": 0}, "4"),
    ("acer", {"replay_count": "fixed", "replay_ratio": 0.5}, r"whole, not 0\.5"),
    ("acer_continuous", {"replay_count": "fixed", "batch_unrolls": 3}, r"whole, not 2\.666"),
    ("acer", {"lstm_size": 8, "shared_trunk": False}, "shared_trunk"),
    *(("acer_continuous", {"initial_std": std}, "initial_std must") for std in (27.0, 1e-170)),
    ("impala ppo", {"num_minibatches": 3}, "3"),
    ("a2c ppo impala acer acer_continuous", {"bfloat16": True}, "bfloat16 is for convolutions"),
    ("ppo", {"lstm_size": 8}, "shared_trunk"),
    ("ppo", {"lstm_size": 8, "shared_trunk": True, "num_minibatches": 5}, "num_envs = 4, not 5"),
    ("impala", {"drop_last_row": True, "unroll_length": 1}, "2, not 1"),
]
"""Agents, settings that contradict each other or the task, and what the one line names."""


@pytest.mark.parametrize(
    ("agent", "changes", "named"),
    [(agent, *rest) for who, *rest in REFUSED for agent in who.split()],
)
def test_settings_that_contradict_each_other_are_refused(
    agent: str, changes: dict[str, Any], named: str
) -> None:
    """The line names what is wrong, before anything begins."""
    with pytest.raises(UsageError, match=named):
        tiny(agent, **changes)


@pytest.mark.parametrize("agent", SETTINGS)
def test_presets_grow_from_budget_to_budget(agent: str) -> None:
    """Steps grow from smoke to paper; seeds go together where an agent and the memory allow it."""
    for (suite, _), preset in module_of(agent).PRESETS.items():
        steps = [preset.budgets[name].env_steps for name in ("smoke", "laptop", "paper")]
        assert steps == sorted(steps)
        together = agent in runner.SEEDS_TOGETHER and not suite.startswith("atari")
        assert preset.seeds_together == together


class Stop(Exception):
    """Ends a run that has made its replay."""


MEMORY: list[tuple[str, dict[str, Any]]] = [
    *((agent, {"task": "Humanoid-v4"}) for agent in ("sac", "sac_value")),
    ("sac_alf", {"task": "Reacher-v4", "reward_weights": (1.0, 1.0)}),
    ("sac_alf", {"task": "Claw-v0", "replay_capacity": 100}),
    *(("sac_discrete", {"task": task}) for task in ("CartPole-v1", "Acrobot-v1")),
    ("sac_discrete", {"task": "Pong-v5", "env_steps": 400}),
    ("acer", {"task": "Acrobot-v1", "replay_capacity": 1_000}),
    ("acer", {"task": "Pong-v5", "protocol": "sticky", "replay_capacity": 400}),
    ("acer_continuous", {"task": "Humanoid-v4", "replay_capacity": 1_000}),
]


@pytest.mark.parametrize(("agent", "changes"), MEMORY)
def test_the_memory_of_a_run_is_known(
    agent: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of its replay, and no more than a run fills."""
    module, kinds = module_of(agent), ("Replay", "HistoryReplay", "StepReplay", "UnrollReplay")
    made = [watch(module, monkeypatch, kind) for kind in kinds if hasattr(module, kind)]

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    monkeypatch.setattr("suite.record.journal.Journal.__init__", stop)
    config = tiny(agent, **({"env_steps": 20_000} | changes))
    with pytest.raises(Stop):
        train(config, tmp_path)
    ((*_, kept),) = (call for calls in made for call in calls)
    arrays = [*vars(kept).values(), *getattr(kept, "_outcomes", ())]
    size = sum(each.nbytes for each in arrays if isinstance(each, np.ndarray | Tensor))
    assert config.memory_bytes == pytest.approx(size, rel=0.02)
    if "replay_capacity" not in changes:
        longer = replace(config, env_steps=4 * config.env_steps)
        assert config.memory_bytes < 0.3 * longer.memory_bytes


def test_a_gpu_takes_the_memory_of_replay_at_once() -> None:
    """A CPU's only as rows come, and half of the ring has room for ignored actions."""
    config = tiny("acer", task="Pong-v5", replay_capacity=50_000, env_steps=20_000, device="cpu")
    on_gpu = replace(config, device="cuda")
    assert on_gpu.memory_bytes == pytest.approx(2 * config.memory_bytes, rel=0.01)


def test_a_process_imports_nothing_that_it_never_uses(tmp_path: Path) -> None:
    """Neither drawing nor tables of others: they would take longer than all else that starts."""
    script = """
import sys
from agents import sac
words = "--task=Pendulum-v1 --device=cpu --env-steps=20 --learning-starts=10 --batch-size=4"
sac.main([*words.split(), "--evaluation-episodes=1", "--out", sys.argv[1]])
unused = {"matplotlib", "pandas", "scipy"} & set(sys.modules)
assert not unused, unused
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
