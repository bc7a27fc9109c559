"""What every agent must learn from: rows, time limits, updates as asked, its rate."""

import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from suite.envs.vector_env import Spaces
from suite.nets.networks import prepare
from suite.unrolls import UnrollBatch, UnrollReplay
from tests.agents.trainings import (
    CONTROL,
    CPU,
    SETTINGS,
    SWINGING,
    UNROLL_AGENTS,
    VARIANTS,
    fields,
    learned,
    module_of,
    outputs_of,
    random_transitions,
    table,
    tiny,
    train,
    watch,
)
from tests.golden import runner
from tests.scripted import ScriptedEnv


def expected_q_value(learner: Any) -> Tensor:
    logits, q_values = outputs_of(learner.network, torch.zeros(1, 1))
    return (logits.softmax(-1) * q_values).sum()


REPLAYED: dict[str, Any] = {
    **{"env_steps": 350, "learning_starts": 100, "evaluation_interval": 350},
    **{"hidden_sizes": (32, 32), "batch_size": 32, "tau": 0.1},
}
NO_ENTROPY: dict[str, Any] = REPLAYED | {"learn_alpha": False, "initial_alpha": 1e-6}
SMALL: dict[str, Any] = {"hidden_sizes": (32, 32), "evaluation_rule": "training"}
FAST: dict[str, Any] = SMALL | {
    **{"env_steps": 2_000, "rmsprop_epsilon": 1e-5, "max_gradient_norm": 0.5, "entropy_coef": 0.0},
    **{"rmsprop_epsilon_in_root": False, "rmsprop_initial_average": 0.0},
    "learning_rate_decay_steps": 2_000,
}
WORTH: dict[str, tuple[dict[str, Any], Callable[[Any], Tensor]]] = {
    "sac": (
        NO_ENTROPY | {"critic_learning_rate": 1e-2},
        lambda learner: learner.critics(torch.zeros(1, 1, 2)),
    ),
    "sac_alf, mixed": (
        NO_ENTROPY | {"critic_learning_rate": 1e-2, "initial_choice_alpha": 1e-6},
        lambda learner: learner.critics(torch.zeros(1, 1, 2)),
    ),
    "sac_alf, parts": (
        NO_ENTROPY
        | {"critic_learning_rate": 1e-2, "task": "Reacher-v4", "reward_weights": (0.5, 0.5)},
        lambda learner: (
            learner.q_values(learner.critics, *torch.zeros(2, 1, 1, 1))[0].mean((0, 2, 3))
            * torch.tensor([1.0, 2.0])  # the second part pays a half
        ),
    ),
    "sac_value": (
        REPLAYED | {"learning_rate": 1e-2, "reward_scale": 1.0},
        lambda learner: learner.value(torch.zeros(1, 1, 1)) / (1 + math.log(2)),  # uniform actions
    ),
    "sac_discrete": (
        NO_ENTROPY | {"critic_learning_rate": 1e-2, "target_period": 1, "tau": 0.2},
        lambda learner: learner.critics(torch.zeros(1, 1, 1)),
    ),
    "a2c": (
        FAST | {"learning_rate": 6e-3},
        lambda learner: learner.network.value(torch.zeros(1, 1)),
    ),
    "ppo": (
        SMALL
        | {"env_steps": 2_000, "num_epochs": 4}
        | {"learning_rate": 5e-3, "learning_rate_decay_steps": 2_000},
        lambda learner: outputs_of(learner.network, torch.zeros(1, 1))[1],
    ),
    "impala": (
        FAST | {"learning_rate": 6e-3, "loss_reduction": "mean"},
        lambda learner: outputs_of(learner.network, torch.zeros(1, 1))[1],
    ),
    "acer": (
        SMALL | {"env_steps": 2_800} | {"learning_rate": 5e-3, "learning_rate_decay_steps": 2_800},
        expected_q_value,
    ),
    "acer_continuous": (
        SMALL
        | {"env_steps": 2_400, "replay_ratio": 4.0, "batch_unrolls": 8}
        | {"rmsprop_epsilon": 1e-5, "learning_rate": 5e-3},
        lambda learner: learner.network.critic(torch.zeros(1, 1)),
    ),
}
"""Settings that learn a value fast, and what the first observation's is then."""
SPACES: dict[str, Spaces] = {
    "sac_alf, mixed": Spaces.vectors(1, 1)._replace(num_choices=3),
    **dict.fromkeys(
        ("sac", "sac_alf", "sac_alf, parts", "sac_value", "acer_continuous"), Spaces.vectors(1, 1)
    ),
}


def of_one_loop(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return parameters; each agent's equations say what an end is, so most are `further`."""
    first = ("sac", "a2c")
    return [
        pytest.param(*case, marks=[] if case[0] in first else pytest.mark.further) for case in cases
    ]


@pytest.mark.parametrize(
    ("variant", "kind", "terminal", "value"),
    [
        *((variant, "truncation", False, 5.0) for variant in WORTH),
        *of_one_loop((variant, "termination", False, 4.161) for variant in WORTH),
        *of_one_loop((variant, "truncation", True, 4.161) for variant in UNROLL_AGENTS),
    ],
)
def test_a_time_limit_bootstraps_unless_it_is_terminal(
    variant: str,
    kind: str,
    terminal: bool,
    value: float,
    scripted: type[ScriptedEnv],
    tmp_path: Path,
) -> None:
    """Reward 1, gamma 0.8: 1 / (1 - 0.8) = 5, or (1 - 0.8^8) / 0.2 where an end is one."""
    scripted.kind, scripted.spaces = kind, SPACES.get(variant, Spaces((1,), 2))
    if variant == "sac_alf, mixed":
        scripted.reward = staticmethod(lambda rows: np.ones_like(rows[..., 0]))
    changes, worth = WORTH[variant]
    changes = changes | ({"time_limit_is_terminal": True} if terminal else {})
    config = tiny(variant, gamma=0.8, **changes)
    learner, recorder = train(config, tmp_path)
    with torch.no_grad():
        values = worth(learner).flatten().tolist()
    assert values == pytest.approx([value] * len(values), rel=0.1 if "," in variant else 0.06)
    ends = table(recorder, "episodes.csv").env_steps.tolist()[:: config.num_envs]
    assert ends == list(range(8 * config.num_envs, max(ends) + 1, 8 * config.num_envs))


def columns_of(batch: Any) -> tuple[Tensor, ...]:
    """Return observations, actions, rewards, next observations, ends and valid rows, alike."""
    if isinstance(batch, UnrollBatch):
        obs, next_obs = batch.obs[:-1], batch.obs[1:]
        actions, ends, valid = batch.actions, batch.trace_mask == 0, batch.valid > 0
    else:
        obs, next_obs, ends = batch.obs, batch.next_obs, batch.terminations > 0
        actions = getattr(batch, "actions", None)
        actions = batch.obs_actions[..., 1:] if actions is None else actions
        valid = torch.ones_like(ends)
    first = actions[..., 0] if actions.is_floating_point() else actions
    return obs[..., 0], first.float(), batch.rewards, next_obs[..., 0], ends, valid


@pytest.mark.parametrize("agent", SETTINGS)
def test_a_row_holds_an_action_and_what_it_caused(
    agent: str, scripted: type[ScriptedEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that repeats the action, scaled if asked for; the next observation; an end."""
    module, name = module_of(agent), "with_advantages" if agent == "ppo" else "update"
    known = {"reward_scale": 0.25, "online_updates": True}  # of new rows and of replayed ones
    options = {key: value for key, value in known.items() if key in fields(module.Config)}
    learn, num_batches = getattr(module, name), 0

    def checked(learner: Any, config: Any, batch: Any, *others: Any) -> Any:
        nonlocal num_batches
        obs, actions, rewards, next_obs, ends, valid = columns_of(batch)
        assert torch.equal(rewards[valid], options.get("reward_scale", 1.0) * actions[valid])
        assert torch.equal(next_obs[valid], obs[valid] + 1 / 8)
        assert torch.equal(ends[valid], next_obs[valid] == 1)
        assert not next_obs[~valid].any()  # a new episode's first
        num_batches += 1
        return learn(learner, config, batch, *others)

    monkeypatch.setattr(module, name, checked)
    scripted.kind, scripted.spaces = "termination", SPACES.get(agent, Spaces((1,), 2))
    scripted.reward = staticmethod(lambda actions: actions.copy())
    _, recorder = train(tiny(agent, **options), tmp_path)
    assert num_batches >= 10
    assert set(table(recorder, "episodes.csv").episode_return) == {8.0}


WARM_UPS: dict[str, Spaces] = {
    "sac": Spaces.vectors(1, 1),
    "sac_discrete": Spaces((1,), 3),
    "sac_alf, mixed": SPACES["sac_alf, mixed"],
}


@pytest.mark.parametrize("variant", WARM_UPS)
def test_the_warm_up_is_uniform_in_choices_and_numbers(
    variant: str, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Every choice as often, and numbers from -1 to 1, before there is anything to prefer."""
    scripted.spaces, seen = WARM_UPS[variant], list[np.ndarray]()

    def reward(actions: np.ndarray) -> np.ndarray:
        seen.append(actions.reshape(4, -1))
        return np.zeros((1, 4))

    scripted.reward = staticmethod(reward)
    train(tiny(variant, env_steps=400, learning_starts=400, num_envs=4), tmp_path)
    columns = np.concatenate(seen).T
    if variant != "sac":
        assert np.bincount(columns[0].astype(int), minlength=3) == pytest.approx([133] * 3, abs=33)
    if variant != "sac_discrete":
        assert np.histogram(columns[-1], 4, (-1, 1))[0] == pytest.approx([100] * 4, abs=30)


@pytest.mark.parametrize("agent", runner.SEEDS_TOGETHER)
@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 10), (2.0, 40)])
def test_updates_keep_pace_with_transitions_after_the_warm_up(
    agent: str, ratio: float, expected: int, tmp_path: Path
) -> None:
    """With four environments: none before the start, then `update_ratio` for each transition."""
    config = tiny(agent, num_envs=4, env_steps=60, update_ratio=ratio, log_interval=20)
    _, recorder = train(config, tmp_path)
    updates = table(recorder, "updates.csv")
    assert updates.env_steps.tolist()[-1] == 60
    assert updates.num_updates.iloc[-1] == expected


def count_updates(config: Any, directory: Path) -> tuple[int, int]:
    """Return how many updates an ACER run made, and how many unrolls it collected."""
    counts, module = [], importlib.import_module(type(config).__module__)

    class Counted(UnrollReplay):
        def read(self, numbers: np.ndarray, envs: np.ndarray) -> Any:
            counts.append(self.num_unrolls)
            return super().read(numbers, envs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "UnrollReplay", Counted)
        _, recorder = train(replace(config, evaluation_rule="training"), directory)
    assert len(counts) == table(recorder, "updates.csv").num_updates.iloc[-1]
    return len(counts), max(counts)


@pytest.mark.parametrize(
    ("agent", "batch_unrolls", "drawn"), [("acer", None, 3), ("acer_continuous", 2, 6)]
)
def test_replay_follows_its_ratio_and_waits_for_its_start(
    agent: str, batch_unrolls: int | None, drawn: int, tmp_path: Path
) -> None:
    """Each new unroll is learned from three times, once environments made `replay_start` steps."""
    sizes = {} if batch_unrolls is None else {"batch_unrolls": batch_unrolls}
    config = tiny(agent, env_steps=400, replay_ratio=3.0, replay_start=0, **sizes)
    config = replace(config, online_updates=True)
    updates, unrolls = count_updates(config, tmp_path / "poisson")
    assert updates != (1 + drawn) * unrolls
    spread = 3 * math.sqrt(drawn / unrolls)
    assert updates / unrolls == pytest.approx(1 + drawn, abs=spread)
    fixed = replace(config, replay_count="fixed", env_steps=300)
    updates, unrolls = count_updates(fixed, tmp_path / "fixed")
    assert updates == (1 + drawn) * unrolls
    late = replace(fixed, replay_start=60)
    updates, unrolls = count_updates(late, tmp_path / "late")
    assert updates == unrolls + drawn * (unrolls - 11) > unrolls
    updates, unrolls = count_updates(replace(fixed, replay_ratio=0.0), tmp_path / "online")
    assert updates == unrolls
    updates, unrolls = count_updates(replace(fixed, online_updates=False), tmp_path / "replay")
    assert updates == drawn * unrolls


BOTH = (CONTROL, SWINGING)
OF_PPO: dict[str, Any] = {"num_minibatches": 1, "clip_values": True}
IGNORED = [
    *product(["a2c"], BOTH, [{"reward_normalisation": how} for how in ("none", "value_targets")]),
    *product(["ppo"], BOTH, [OF_PPO | {"reward_normalisation": "value_targets"}]),
    *product(["ppo"], BOTH, [OF_PPO | {"shared_trunk": True, "lstm_size": 6}]),
    *product(["impala"], BOTH, [{"loss_reduction": how} for how in ("sum", "mean")]),
]
"""ACER's own tests cover this: their derivations leave such rows out."""


@pytest.mark.parametrize(("agent", "spaces", "changes"), IGNORED)
def test_ignored_rows_change_nothing(agent: str, spaces: Spaces, changes: dict[str, Any]) -> None:
    """Everything recorded in them may be anything: weights and diagnostics keep their bits."""
    config, module = tiny(agent, unroll_length=8, **changes), module_of(agent)
    outcomes = []
    for scramble in (False, True):
        learner = module.make_learner(config, spaces, CPU)
        batch, given = random_transitions(config, spaces, 5), ()
        ignored = batch.valid == 0
        assert ignored.sum() >= 4
        if scramble:
            batch.rewards[ignored] = 1e3
            batch.actions[ignored] = 1
            batch.discounts[ignored] = 0.0
            batch.behaviour[ignored] = -3.0
        if agent == "ppo":
            memory = learner.network.trunk.initial_memory(config.num_envs)
            batch, given = module.with_advantages(learner, config, batch, memory), (memory, 0.2)
        metrics = module.update(learner, config, batch, *given[:1], 1e-2, *given[1:])
        returns = getattr(learner, "return_moments", None)
        moments = [] if returns is None else [returns.values]
        outcomes.append(
            [*learned(learner), learner.optimiser.weights.vector, *metrics.values(), *moments]
        )
    for plain, scrambled in zip(*outcomes, strict=True):
        assert torch.equal(plain, scrambled)


@pytest.mark.parametrize("agent", [*UNROLL_AGENTS, "impala, whose last rows are dropped"])
def test_an_unroll_without_a_transition_makes_no_update(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single row may be that of an ignored action: averages and weights would drift."""
    updates = watch(module_of(agent), monkeypatch)
    changes: dict[str, Any] = {"num_envs": 1, "unroll_length": 1, "env_steps": 100}
    changes |= {"log_interval": 1, "evaluation_rule": "training"}
    if agent == "ppo":
        changes |= {"num_minibatches": 1}
    if agent.startswith("acer"):
        changes |= {"online_updates": True, "replay_start": 0}
    if "dropped" in agent:
        changes |= {"drop_last_row": True, "unroll_length": 2}
    config = tiny(agent, **changes)
    _, recorder = train(config, tmp_path)
    assert table(recorder, "episodes.csv").env_steps.iloc[0] < 90
    assert len(updates) >= 100 // config.unroll_length - 10
    assert all(batch.valid.any() for _, _, batch, *_ in updates)


@pytest.mark.parametrize("agent", UNROLL_AGENTS)
def test_the_learning_rate_falls_linearly_to_zero_and_stays_there(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before the newest unroll decide; past the horizon nothing is learned."""
    updates = watch(module_of(agent), monkeypatch)
    place = -3 if agent in ("ppo", "impala", "acer") else -2  # a memory, or a clip, stands last
    changes = {"evaluation_rule": "training", "learning_rate": 0.01}
    if agent.startswith("acer"):
        changes |= {"online_updates": True, "replay_start": 0}
    config = tiny(agent, learning_rate_decay_steps=200, env_steps=300, **changes)
    longer, _ = train(config, tmp_path / "longer")
    distinct = list(dict.fromkeys(each[place] for each in updates))
    assert distinct[0] == 0.01
    assert distinct[-1] == 0.0
    steps = 200 * (1 - np.array(distinct[:-1]) / 0.01)
    assert (np.diff(steps) <= config.unroll_rows + 1e-9).all()
    assert (np.diff(steps) > config.unroll_rows / 2).all()
    shorter, _ = train(replace(config, env_steps=240), tmp_path / "shorter")
    assert torch.equal(shorter.optimiser.weights.vector, longer.optimiser.weights.vector)
    updates.clear()
    train(replace(config, learning_rate_decay_steps=0), tmp_path / "constant")
    assert {each[place] for each in updates} == {0.01}


@pytest.mark.parametrize("agent", ["a2c", "ppo", "impala", "acer", "sac_discrete"])
def test_the_protocol_reaches_the_simulator(agent: str, tmp_path: Path) -> None:
    """`sticky` has all 18 actions; a policy's file acts as it was trained, to the last bit."""
    changes: dict[str, Any] = {"num_envs": 2, "env_steps": 20, "evaluation_rule": "training"}
    if agent == "sac_discrete":
        changes |= {"learning_starts": 16, "evaluation_interval": 20, "update_ratio": 0.5}
    if agent == "acer":
        changes |= {"replay_start": 0, "replay_ratio": 1.0}
    if agent == "a2c":
        changes |= {"bfloat16": True, "convolutions": "a3c"}
    config = tiny(agent, task="Pong-v5", protocol="sticky", **changes)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    assert policy.task.protocol == "sticky"
    frames = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84)).astype(np.uint8)
    prepared = prepare(frames, CPU)
    with torch.no_grad():
        if agent == "sac_discrete":
            logits = learner.actor(prepared[None])[0, 0]
        else:
            logits = outputs_of(learner.network, prepared)[0]
    assert logits.shape == (64, 18)
    assert policy.act(frames).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "variant",
    [each for each in VARIANTS if each in SETTINGS and each not in ("a2c", "ppo", "impala")],
)
def test_slow_copies_begin_as_copies_that_do_not_learn(variant: str) -> None:
    """Equal weights in other memory, without gradients; critics differ from each other."""
    config, module = tiny(variant), module_of(variant)
    continuous = config.find_task().actions == "continuous"
    spaces = SWINGING if continuous else CONTROL
    shapes = (4, 2) if variant in ("sac", "sac_value") else (spaces,)
    learner = module.make_learner(config, *shapes, CPU)
    names = {"sac_value": ("value", "target_value"), "acer": ("network", "average_policy")}
    names["acer_continuous"] = names["acer"]
    online, slow = (
        getattr(learner, name) for name in names.get(variant, ("critics", "target_critics"))
    )
    online = getattr(online, "policy" if variant == "acer_continuous" else "actor", online)
    for fast, copied in zip(online.parameters(), slow.parameters(), strict=True):
        assert torch.equal(fast, copied)
        assert fast.data_ptr() != copied.data_ptr()
        assert not copied.requires_grad
    if hasattr(learner, "critics"):
        first, second = (learner.critics.weights_of(0, k)["weight_0"] for k in range(2))
        assert not torch.equal(first, second)
