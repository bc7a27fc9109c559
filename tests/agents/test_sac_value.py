"""Value-network SAC: every equation against a slow re-derivation, then what training must do."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import agents
from agents import sac, sac_value
from suite import session
from suite.base.errors import UsageError
from suite.envs.vector_env import Spaces
from suite.nets.networks import Stack
from suite.record.recorder import Recorder
from suite.replay import Batch, Replay
from tests.perceptrons import linear, vector, weights_in
from tests.scripted import ScriptedEnv

CPU = torch.device("cpu")
TINY = sac_value.Config(
    task="Pendulum-v1",
    device="cpu",
    env_steps=120,
    hidden_sizes=(16, 16),
    batch_size=8,
    learning_starts=40,
    evaluation_interval=120,
    evaluation_episodes=1,
    log_interval=40,
)
SHORT = replace(TINY, task="InvertedPendulum-v4", env_steps=60, evaluation_interval=60)
SHORT = replace(SHORT, log_interval=10)
"""20 updates; episodes end after a few steps."""


def train(config: sac_value.Config, directory: Path) -> tuple[sac_value.Learner, Recorder]:
    run = {"agent": "sac_value", "task": config.task}
    recorder = Recorder(directory, run, config.seeds, keeps_checkpoint=False)
    learner = sac_value.train(config, recorder)
    recorder.finish()
    return learner, recorder


def random_batch(generator: torch.Generator, seeds: int, size: int, obs: int, act: int) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observations, actions = draw(seeds, size, obs), torch.tanh(draw(seeds, size, act))
    return Batch(
        obs=observations,
        obs_actions=torch.cat([observations, actions], -1),
        rewards=draw(seeds, size),
        terminations=(draw(seeds, size) > 0.8).float(),
        next_obs=draw(seeds, size, obs),
    )


def stacks_of(learner: sac_value.Learner) -> dict[str, Stack]:
    names = ("actor", "critics", "value", "target_value")
    return {name: getattr(learner, name) for name in names}


def parameters_of(learner: sac_value.Learner) -> list[Tensor]:
    return weights_in(*stacks_of(learner).values())


def table(recorder: Recorder, name: str) -> np.ndarray:
    """Return one CSV file of the first seed."""
    return np.genfromtxt(recorder.seed_directories[0] / name, delimiter=",", names=True)


# Mathematics


def test_targets_and_losses_equal_a_slow_float64_derivation() -> None:
    """Eqs. (3), (5), (7), (8), (12), element by element; any sign error shows."""
    rng = np.random.default_rng(0)
    num_seeds, num_critics, size, gamma = 2, 3, 5, 0.9
    alpha = np.array([1.0, 0.3])  # the paper's, and a learned one
    rewards, next_values, log_probs, values = rng.normal(size=(4, num_seeds, size))
    terminations = (rng.uniform(size=(num_seeds, size)) < 0.4).astype(float)
    q_values, judged = rng.normal(size=(2, num_seeds, num_critics, size))
    of_value, of_q = np.zeros((2, num_seeds, size))
    value_losses, critic_losses, actor_losses = np.zeros((3, num_seeds))
    for s in range(num_seeds):
        for b in range(size):
            smallest = min(judged[s, k, b] for k in range(num_critics))
            of_value[s, b] = smallest - alpha[s] * log_probs[s, b]
            value_losses[s] += (values[s, b] - of_value[s, b]) ** 2 / 2 / size
            followed = 0 if terminations[s, b] else gamma * next_values[s, b]
            of_q[s, b] = rewards[s, b] + followed
            for k in range(num_critics):
                critic_losses[s] += (q_values[s, k, b] - of_q[s, b]) ** 2 / 2 / size
            actor_losses[s] += (alpha[s] * log_probs[s, b] - smallest) / size

    def equal(ours: Tensor, slow: np.ndarray) -> None:
        np.testing.assert_allclose(ours.numpy(), slow, rtol=1e-12)

    logs, judgements = torch.from_numpy(log_probs), torch.from_numpy(judged)
    temperature = torch.from_numpy(alpha)
    value_targets = sac_value.value_targets(judgements, logs, temperature)
    equal(value_targets, of_value)
    equal(sac_value.value_loss(torch.from_numpy(values), value_targets), value_losses)
    q_targets = sac_value.q_targets(
        torch.from_numpy(rewards),
        torch.from_numpy(terminations),
        torch.from_numpy(next_values),
        gamma,
    )
    equal(q_targets, of_q)
    equal(sac_value.critic_loss(torch.from_numpy(q_values), q_targets), critic_losses)
    equal(sac_value.actor_loss(logs, judgements, temperature), actor_losses)


def plain_bounds(outputs: Tensor) -> tuple[Tensor, Tensor]:
    means, log_stds = outputs.chunk(2, -1)
    return means, log_stds.clamp(-20, 2)


def stretched_bounds(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A tanh's -1 and 1 are moved to the bounds -3 and 1; means have a tanh of their own."""
    means, log_stds = outputs.chunk(2, -1)
    return torch.tanh(means), -3 + 4 * (torch.tanh(log_stds) + 1) / 2


FROM_SCRATCH: dict[str, Any] = {
    **{"learn_alpha": True, "initial_alpha": 0.3, "target_entropy_per_action": -0.5},
    **{"log_std_bound": "tanh", "log_std_min": -3.0, "log_std_max": 1.0, "bound_means": True},
    **{"alpha_learning_rate": 1e-2, "last_layer_bound": 0.5, "sample_without_replacement": True},
}
"""What the paper lacks: a learned temperature, and a policy network of tutorials."""


@pytest.mark.parametrize(
    ("options", "bounds"), [({}, plain_bounds), (FROM_SCRATCH, stretched_bounds)]
)
def test_an_update_equals_plain_autograd_and_adam(options: dict[str, Any], bounds: Any) -> None:
    """One update equals V, critics, actor, slow copy written out with separate networks."""
    config = replace(TINY, seeds=(3,), gamma=0.9, tau=0.1, **options)
    alpha = options.get("initial_alpha", 1.0)
    learner = sac_value.make_learner(config, 3, 2, CPU)
    with torch.no_grad():  # so that taking V for its slow copy would show
        for weight in learner.target_value.parameters():
            weight.mul_(1.5)
    generator = torch.Generator().manual_seed(1)
    batch = random_batch(generator, 1, 8, 3, 2)
    noise = torch.randn(2, 1, 8, 2, generator=generator)
    actor, value, slow = (
        linear(stack).double() for stack in (learner.actor, learner.value, learner.target_value)
    )
    critics = [linear(learner.critics, 0, k).double() for k in range(2)]
    exact = Batch(*(each.double() for each in batch))

    def act(obs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = bounds(actor(obs))
        normal = torch.distributions.Normal(means, log_stds.exp())
        pre_tanh = means + log_stds.exp() * draws.double()
        slope = torch.log(1 - torch.tanh(pre_tanh).square())
        return torch.tanh(pre_tanh), (normal.log_prob(pre_tanh) - slope).sum(-1)

    def judge(obs: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([obs, actions], -1)
        return torch.minimum(critics[0](inputs), critics[1](inputs)).squeeze(-1)

    def descend(loss: Tensor, *networks: torch.nn.Module) -> None:
        optimiser = torch.optim.Adam([p for n in networks for p in n.parameters()], lr=3e-4)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    obs, obs_actions = exact.obs[0], exact.obs_actions[0]
    with torch.no_grad():
        actions, log_probs = act(obs, noise[0, 0])
        value_targets = judge(obs, actions) - alpha * log_probs
        followed = 0.9 * (1 - exact.terminations[0]) * slow(exact.next_obs[0]).squeeze(-1)
        targets = exact.rewards[0] + followed
    descend(0.5 * (value(obs).squeeze(-1) - value_targets).square().mean(), value)
    losses = [0.5 * (c(obs_actions).squeeze(-1) - targets).square().mean() for c in critics]
    descend(losses[0] + losses[1], *critics)
    actions, log_probs = act(obs, noise[1, 0])
    descend((alpha * log_probs - judge(obs, actions)).mean(), actor)
    with torch.no_grad():
        for slowly, online in zip(slow.parameters(), value.parameters(), strict=True):
            slowly.copy_(0.1 * online + 0.9 * slowly)

    metrics = sac_value.update(learner, config, batch, noise, 0)
    if options:  # d/d log alpha is alpha (entropy - target), whose sign is Adam's first step
        excess = -log_probs.mean().item() - (-0.5) * 2
        expected = math.log(0.3) - 1e-2 * math.copysign(1.0, excess)
        assert learner.log_alpha.item() == pytest.approx(expected, abs=1e-6)
        assert metrics["alpha"].item() == pytest.approx(0.3)
    else:
        assert learner.log_alpha.item() == 0
        assert "alpha" not in metrics
    pairs = [(learner.critics, 0, critics[0]), (learner.critics, 1, critics[1])]
    pairs += [(learner.actor, 0, actor), (learner.value, 0, value)]
    pairs += [(learner.target_value, 0, slow)]
    for stack, member, reference in pairs:
        ours = vector(linear(stack, 0, member)).double()
        torch.testing.assert_close(ours, vector(reference), atol=1e-6, rtol=1e-5)


def test_each_loss_moves_its_own_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """V learns first, then critics, then the actor, each from a loss that moves nothing else."""
    config = replace(TINY, seeds=(1, 2))
    learner = sac_value.make_learner(config, 3, 1, CPU)
    generator = torch.Generator().manual_seed(0)
    minimise, moved = sac_value.minimise, []

    def watch(losses: Tensor, optimiser: torch.optim.Adam) -> None:
        before = {name: vector(stack) for name, stack in stacks_of(learner).items()}
        minimise(losses, optimiser)
        stacks = stacks_of(learner).items()
        moved.append([n for n, stack in stacks if not torch.equal(vector(stack), before[n])])

    monkeypatch.setattr(sac_value, "minimise", watch)
    noise = torch.randn(2, 2, 8, 1, generator=generator)
    sac_value.update(learner, config, random_batch(generator, 2, 8, 3, 1), noise, 0)
    assert moved == [["value"], ["critics"], ["actor"]]


def test_the_slow_copy_begins_as_v_and_does_not_learn() -> None:
    """Equal weights in other memory, without gradients; critics differ from each other."""
    learner = sac_value.make_learner(replace(TINY, seeds=(1, 2)), 3, 2, CPU)
    for slow, online in zip(
        learner.target_value.parameters(), learner.value.parameters(), strict=True
    ):
        assert torch.equal(slow, online)
        assert slow.data_ptr() != online.data_ptr()
        assert not slow.requires_grad
    members = [vector(network) for network in learner.critics.networks]
    assert not any(torch.equal(one, other) for one, other in combinations(members, 2))


def test_untrained_policies_are_those_of_sac() -> None:
    """The judge's runs begin alike under both papers: so do ours, to the bit."""
    of_sac = sac.make_learner(sac.Config(seeds=(4,), hidden_sizes=(16,)), 3, 2, CPU)
    ours = sac_value.make_learner(sac_value.Config(seeds=(4,), hidden_sizes=(16,)), 3, 2, CPU)
    assert torch.equal(vector(ours.actor), vector(of_sac.actor))


def test_the_log_deviation_is_clipped() -> None:
    """The bounds are met exactly, and nothing within them is moved."""
    outputs = torch.tensor([1.0, 2.0, 3.0, -100.0, 100.0, 0.5]).reshape(1, 1, 1, 6)
    means, log_stds = sac_value.split_outputs(outputs, replace(TINY, log_std_min=-5.0))
    assert means.flatten().tolist() == [1.0, 2.0, 3.0]
    assert log_stds.flatten().tolist() == [-5.0, 2.0, 0.5]


@pytest.mark.usefixtures("unchecked")
def test_a_learned_temperature_moves_the_entropy_to_its_target(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """From a start that pays too little or too much, whatever the scale of rewards."""
    scripted.reward = staticmethod(lambda actions: -((actions - 0.3) ** 2))
    for initial in (0.01, 3.0):
        config = replace(
            TINY,
            env_steps=500,
            learning_starts=100,
            learning_rate=1e-2,
            gamma=0.0,
            batch_size=32,
            reward_scale=4.0,
            evaluation_interval=500,
            learn_alpha=True,
            initial_alpha=initial,
            alpha_learning_rate=3e-2,
            target_entropy_per_action=-0.5,
        )
        _, recorder = train(config, tmp_path / str(initial))
        entropies = table(recorder, "updates.csv")["entropy"]
        assert entropies[-3:].mean() == pytest.approx(-0.5, abs=0.2)


def test_last_layers_are_drawn_within_their_own_bound() -> None:
    """Weights and biases of all three kinds of network; other layers stay as they were."""
    bound = 0.003
    config = replace(TINY, hidden_sizes=(200, 100), last_layer_bound=bound)
    learner = sac_value.make_learner(config, 3, 2, CPU)
    plain = sac_value.make_learner(replace(config, last_layer_bound=None), 3, 2, CPU)
    first = [stack.weights_of(0)["weight_0"] for stack in (learner.actor, plain.actor)]
    assert torch.equal(*first)
    for stack in (learner.actor, learner.critics, learner.value):
        weights = stack.weights_of(0)
        last = torch.cat([weights["weight_2"].flatten(), weights["bias_2"]])
        assert 0.9 * bound < last.abs().max().item() <= bound
        assert weights["bias_2"].abs().max() > 0
        assert weights["weight_1"].abs().max() > 10 * bound


# Training on scripted environments


@pytest.fixture
def scripted(scripted: type[ScriptedEnv], monkeypatch: pytest.MonkeyPatch) -> type[ScriptedEnv]:
    """Train on continuous actions, with evaluations that score 0."""
    scripted.spaces = Spaces.vectors(1, 1)
    monkeypatch.setattr(session, "evaluate", lambda *args, **kwargs: np.zeros((1, 1)))
    return scripted


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("kind", "length"), [("truncation", math.inf), ("termination", 8)])
def test_v_is_the_soft_value_to_the_end_of_the_process(
    kind: str, length: float, scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """Reward 1 and entropy H in every step: (1 + H) (1 - 0.8^8) / 0.2, or / 0.2 past a time limit.

    A reward that no action changes leaves entropy alone: H comes near log 2, the uniform policy's.
    """
    scripted.kind = kind
    config = replace(
        TINY,
        env_steps=300,
        learning_starts=100,
        gamma=0.8,
        learning_rate=1e-2,
        reward_scale=1.0,
        hidden_sizes=(32, 32),
        batch_size=32,
        tau=0.1,
        log_interval=100,
        evaluation_interval=300,
    )
    learner, recorder = train(config, tmp_path)
    entropy = table(recorder, "updates.csv")["entropy"][-1]
    assert entropy == pytest.approx(math.log(2), abs=0.05)
    value = learner.value(torch.zeros(1, 1, 1)).item()
    assert value == pytest.approx((1 + entropy) * (1 - 0.8**length) / 0.2, rel=0.05)


@pytest.mark.usefixtures("unchecked")
def test_the_scale_of_rewards_decides_the_entropy(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """A reward that wants no entropy gets the less of it the larger its scale."""
    scripted.reward = staticmethod(lambda actions: -((actions - 0.3) ** 2))
    entropies = []
    for scale in (0.1, 30.0):
        config = replace(
            TINY,
            env_steps=250,
            learning_starts=100,
            learning_rate=1e-2,
            gamma=0.0,
            batch_size=32,
            reward_scale=scale,
            evaluation_interval=250,
        )
        _, recorder = train(config, tmp_path / str(scale))
        entropies.append(table(recorder, "updates.csv")["entropy"][-1])
    assert entropies[0] > 0.5
    assert entropies[1] < -0.3


def test_a_reward_that_is_not_finite_ends_the_run_as_diverged(
    scripted: type[ScriptedEnv], tmp_path: Path
) -> None:
    """NaN in the rewards is found within one log interval and nothing is saved as a policy."""
    scripted.reward = staticmethod(lambda actions: actions * math.nan)
    _, recorder = train(replace(TINY, env_steps=240), tmp_path)
    assert recorder.statuses == ["diverged"]
    assert not (recorder.seed_directories[0] / "policy.safetensors").exists()
    record = (recorder.seed_directories[0] / "run.json").read_text()
    assert "non-finite reward at 40 env_steps" in record


# Training on the real simulator


def test_training_changes_every_network_and_records_everything(tmp_path: Path) -> None:
    """Past the start of learning, actor, critics, V and its slow copy have all moved."""
    before = sac_value.make_learner(TINY, 3, 1, CPU)
    learner, recorder = train(replace(TINY, evaluation_interval=60), tmp_path)
    for old, new in zip(parameters_of(before), parameters_of(learner), strict=True):
        assert not torch.equal(old, new)
    assert table(recorder, "evaluations.csv")["env_steps"].tolist() == [60, 120]
    updates = table(recorder, "updates.csv")
    assert updates["num_updates"].tolist() == [40, 80]
    assert all(np.isfinite(updates[name]).all() for name in updates.dtype.names or ())


HOPPER = replace(TINY, task="Hopper-v4", env_steps=160, learning_starts=100, hidden_sizes=(32, 32))
HOPPER = replace(HOPPER, evaluation_interval=160)


@pytest.mark.usefixtures("unchecked")
def test_a_seed_in_a_batch_has_the_bytes_of_the_seed_alone(tmp_path: Path) -> None:
    """Past several terminations and 60 updates: every table, and the policy."""
    _, recorder = train(replace(HOPPER, seeds=(1, 2)), tmp_path / "together")
    for i, seed in enumerate((1, 2)):
        _, solo = train(replace(HOPPER, seeds=(seed,)), tmp_path / f"alone-{seed}")
        for name in ("episodes.csv", "evaluations.csv", "updates.csv", "policy.safetensors"):
            ours = (recorder.seed_directories[i] / name).read_bytes()
            assert ours == (solo.seed_directories[0] / name).read_bytes()
        assert len((solo.seed_directories[0] / "episodes.csv").read_text().splitlines()) > 5


@pytest.mark.usefixtures("unchecked")
def test_a_diverging_seed_leaves_the_other_bits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V of seed 2 is poisoned at the start: seed 1 keeps its bits, seed 2 is `diverged`."""
    config = replace(HOPPER, seeds=(1, 2))
    healthy, _ = train(config, tmp_path / "healthy")
    make_learner = sac_value.make_learner

    def poisoned(*args: Any) -> sac_value.Learner:
        learner = make_learner(*args)
        with torch.no_grad():
            learner.value.weights_of(1)["weight_0"].fill_(math.nan)
        return learner

    monkeypatch.setattr(sac_value, "make_learner", poisoned)
    sick, recorder = train(config, tmp_path / "sick")
    assert recorder.statuses == ["finished", "diverged"]
    for ours, theirs in zip(stacks_of(healthy).values(), stacks_of(sick).values(), strict=True):
        weights = theirs.all_weights_of(0)
        assert all(
            torch.equal(each, weights[name]) for name, each in ours.all_weights_of(0).items()
        )


@pytest.mark.parametrize(("ratio", "period"), [(1.0, 1), (0.5, 2), (2.0, 3)])
def test_updates_keep_pace_with_transitions_and_the_actor_with_updates(
    ratio: float, period: int, tmp_path: Path
) -> None:
    """With four environments: `update_ratio` of V for a transition, an actor's for a period."""
    config = replace(SHORT, num_envs=4, update_ratio=ratio, policy_period=period)
    learner, recorder = train(config, tmp_path)
    num_updates = table(recorder, "updates.csv")["num_updates"][-1]
    assert num_updates == 20 * ratio
    optimisers = (learner.value_optimiser, learner.critic_optimiser, learner.actor_optimiser)
    assert [next(iter(o.state.values()))["step"].item() for o in optimisers] == [
        num_updates,
        num_updates,
        math.ceil(num_updates / period),
    ]


def test_a_hard_update_copies_v_once_a_period() -> None:
    """Rate 1: the slow copy stays for `target_period` updates and then is V."""
    config = replace(TINY, tau=1.0, target_period=3)
    learner = sac_value.make_learner(config, 3, 1, CPU)
    generator = torch.Generator().manual_seed(0)
    is_copy = []
    for num_updates in range(6):
        noise = torch.randn(2, 1, 8, 1, generator=generator)
        batch = random_batch(generator, 1, 8, 3, 1)
        sac_value.update(learner, config, batch, noise, num_updates)
        is_copy.append(torch.equal(vector(learner.target_value), vector(learner.value)))
    assert is_copy == [False, False, True] * 2


LEARNED: dict[str, Any] = {"alpha_learning_rate": 1e-2, "target_entropy_per_action": 0.5}
"""Settings that count with a learned temperature, and a value for each."""
SETTINGS: dict[str, Any] = {
    "hidden_sizes": (8, 8, 8),
    "num_critics": 3,
    "log_std_min": 0.5,
    "log_std_max": -1.0,
    "learning_rate": 3e-3,
    "reward_scale": 1.0,
    "batch_size": 16,
    "replay_capacity": 50,
    "learning_starts": 50,
    "update_ratio": 2.0,
    "policy_period": 2,
    "tau": 0.5,
    "target_period": 2,
    "gamma": 0.5,
    **{"learn_alpha": True, "initial_alpha": 0.3, "log_std_bound": "tanh", "bound_means": True},
    **{"last_layer_bound": 0.003, "sample_without_replacement": True},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> sac_value.Learner:
    return train(SHORT, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_does_something(name: str, plain: sac_value.Learner, tmp_path: Path) -> None:
    """No setting is decoration: changing it alone changes what is learned."""
    changed, recorder = train(replace(SHORT, **{name: SETTINGS[name]}), tmp_path)
    assert recorder.statuses == ["finished"]
    old, new = parameters_of(plain), parameters_of(changed)
    shapes_differ = [p.shape for p in old] != [p.shape for p in new]
    assert shapes_differ or not all(torch.equal(p, q) for p, q in zip(old, new, strict=True))


def test_settings_of_a_learned_temperature_do_something(tmp_path: Path) -> None:
    """Changed alone, each changes what the actor learns."""
    base = replace(SHORT, learn_alpha=True)
    changes: list[dict[str, Any]] = [{}, *({name: value} for name, value in LEARNED.items())]
    learned = [
        vector(train(replace(base, **change), tmp_path / str(i))[0].actor)
        for i, change in enumerate(changes)
    ]
    assert not any(torch.equal(one, other) for one, other in combinations(learned, 2))


@pytest.mark.parametrize("options", [{}, FROM_SCRATCH])
def test_a_saved_policy_acts_like_the_learner(options: dict[str, Any], tmp_path: Path) -> None:
    """Mode, bounds of the space, and sampling agree with what was trained."""
    config = replace(TINY, **options)
    learner, recorder = train(config, tmp_path)
    policy = agents.load_policy(recorder.seed_directories[0])
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    means, log_stds = sac_value.split_outputs(learner.actor(torch.from_numpy(obs)[None]), config)
    mode = torch.tanh(means)[0].detach().numpy()
    np.testing.assert_allclose(policy(obs), 2 * mode, rtol=1e-5, atol=1e-6)
    draws = np.stack([policy.act(obs, np.random.default_rng(k)) for k in range(200)])
    spread = torch.tanh(means + log_stds.exp() * torch.randn(5000, 4, 1)).std(0)
    np.testing.assert_allclose(draws.std(0), spread.detach().numpy(), rtol=0.25)


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("gamma", 1.5), ("tau", 0.0), ("batch_size", 0), ("env_steps", -5), ("hidden_sizes", ())],
        *[("learning_starts", -1), ("log_std_min", 3.0), ("task", "CartPole-v1")],
        *[("reward_scale", 0.0), ("replay_capacity", 0), ("policy_period", 0), ("seeds", (1, 1))],
        *[("initial_alpha", 0.0), ("last_layer_bound", 0.0)],
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_value(field: str, value: Any) -> None:
    """The message names the offending value."""
    with pytest.raises(UsageError) as error:
        replace(TINY, **{field: value})
    assert str(value) in str(error.value)


def test_a_batch_without_replacement_must_fit_the_first_replay() -> None:
    """After the warm-up, or the first step, and within the capacity of replay."""
    config = replace(TINY, sample_without_replacement=True)
    for change, rows in (({"learning_starts": 0}, 1), ({"replay_capacity": 6}, 6)):
        rule = f"without replacement batch_size must be at most {rows}, not 8"
        with pytest.raises(UsageError, match=rule):
            replace(config, **change)


def test_a_warm_up_of_the_task_must_fit_its_environments() -> None:
    """The message names the setting, though the number is the task's."""
    with pytest.raises(UsageError, match=r"learning_starts .* num_envs 64, not 1000$"):
        replace(TINY, learning_starts=None, num_envs=64, env_steps=640, evaluation_interval=64)


@pytest.mark.parametrize(
    ("task", "scale", "starts"),
    [
        *[("HalfCheetah-v4", 5.0, 10_000), ("Ant-v3", 5.0, 10_000), ("Hopper-v4", 5.0, 1_000)],
        *[("Walker2d-v4", 5.0, 1_000), ("Humanoid-v5", 20.0, 1_000)],
        *[("HumanoidRun-v1", 5.0, 1_000), ("CheetahRun-v1", 5.0, 1_000)],
    ],
)
def test_a_task_has_the_papers_settings_unless_it_is_given_others(
    task: str, scale: float, starts: int
) -> None:
    """Table 2 and the authors' code; a version of a task counts as the same, another name not."""
    config = replace(sac_value.PRESETS["mujoco", "paper"].config, task=task)
    assert (config.reward_factor, config.warm_up_steps) == (scale, starts)
    given = replace(config, reward_scale=0.5, learning_starts=40)
    assert (given.reward_factor, given.warm_up_steps) == (0.5, 40)


def test_the_memory_of_a_run_is_known() -> None:
    """That of its replay, and no more than a run fills."""
    config = replace(sac_value.PRESETS["mujoco", "paper"].config, env_steps=20_000)
    replay = Replay(1, config.replay_size, 1, 17, 6, CPU)
    assert config.memory_bytes == pytest.approx(vars(replay)["_rows"].nbytes)


@pytest.mark.gpu
def test_a_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    """The same draws on another device: weights agree to rounding after 40 updates."""
    config = replace(TINY, seeds=(1, 2), env_steps=80, evaluation_interval=80)
    cpu, _ = train(config, tmp_path / "cpu")
    gpu, _ = train(replace(config, device="cuda"), tmp_path / "gpu")
    for ours, theirs in zip(parameters_of(gpu), parameters_of(cpu), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-4, rtol=1e-3)
