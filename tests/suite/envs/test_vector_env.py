"""The adapter against the real simulators: every habit of theirs that agents need not know.

CartPole and Pendulum obey a few lines of mechanics, repeated here from their definitions, so their
tapes are checked step by step against something that is no simulator, whichever made them.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import envpool
import numpy as np
import pytest

from suite.base.randomness import environment_seeds
from suite.envs.tasks import TASKS, Task, find_task
from suite.envs.vector_env import Spaces, Step, VectorEnv

Reset = Literal["next_step", "same_step"]
Act = Callable[[np.ndarray], np.ndarray]
BOTH_RESETS = pytest.mark.parametrize("reset", ["next_step", "same_step"])
CARTPOLE, PENDULUM = find_task("CartPole-v1"), find_task("Pendulum-v1")
CARTPOLES = CARTPOLE, find_task("gymnasium:CartPole-v1")
BOTH_CARTPOLES = pytest.mark.parametrize("task", CARTPOLES, ids=["envpool", "gymnasium"])
HOPPER, QBERT = find_task("Hopper-v4"), find_task("Qbert-v5")
NEEDS_BOX2D = pytest.mark.skipif(find_spec("Box2D") is None, reason="needs the extra box2d")


class Play(NamedTuple):
    """One vector step with what it was taken on."""

    obs: np.ndarray
    actions: np.ndarray
    step: Step


def play(env: VectorEnv, act: Act, num_steps: int) -> list[Play]:
    obs, tape = env.reset(), []
    for _ in range(num_steps):
        actions = act(obs)
        step = env.step(actions)
        tape.append(Play(obs, actions, step))
        obs = step.obs
    return tape


def random_actions(env: VectorEnv, seed: int = 0) -> Act:
    """Return a policy that ignores what it sees."""
    generator = np.random.default_rng(seed)
    shape = (env.num_seeds, env.num_envs, *env.action_shape)

    def act(_: np.ndarray) -> np.ndarray:
        if not env.action_shape:
            return generator.integers(0, env.num_actions, size=shape)
        actions = generator.uniform(-1.0, 1.0, size=shape)
        if env.spaces.num_choices:
            actions[..., 0] = generator.integers(0, env.num_actions, size=shape[:2])
        return actions

    return act


def assert_same_steps(ours: Step, other: Step) -> None:
    for name, one, two in zip(Step._fields, ours, other, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=name, strict=True)


def cartpole(obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """One Euler step of 0.02 s (Barto, Sutton & Anderson 1983, without friction)."""
    _, speed, angle, turning = np.moveaxis(obs.astype(np.float64), -1, 0)
    push = (np.where(actions == 1, 10.0, -10.0) + 0.05 * turning**2 * np.sin(angle)) / 1.1
    turn = (9.8 * np.sin(angle) - np.cos(angle) * push) / (
        0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    )
    speed_up = push - 0.05 * turn * np.cos(angle) / 1.1
    rates = np.stack([speed, speed_up, turning, turn], axis=-1)
    return obs + 0.02 * rates


def pendulum_cost(obs: np.ndarray, torques: np.ndarray) -> np.ndarray:
    angle = np.arctan2(obs[..., 1], obs[..., 0])
    return angle**2 + 0.1 * obs[..., 2] ** 2 + 0.001 * torques**2


def test_a_reset_gives_no_reward() -> None:
    """A return is the sum of valid rows' rewards, where dm_control pays for the ignored one."""
    task = replace(find_task("CartpoleBalance-v1"), time_limit=10)
    env = VectorEnv(task, environment_seeds([1], 2, "test"))
    returns, number = np.zeros((1, 2)), 0
    for _, _, step in play(env, random_actions(env), 40):
        assert (step.rewards[~step.valid] == 0).all()
        returns += step.raw_rewards
        np.testing.assert_allclose(step.episode_returns, returns, rtol=1e-6)
        returns[step.episode_ends] = 0
        number += np.count_nonzero(~step.valid)
    assert number >= 4


@BOTH_CARTPOLES
@BOTH_RESETS
def test_the_tape_is_the_physics_across_terminations_and_truncations(
    task: Task, reset: Reset
) -> None:
    """CartPole with a time limit of 20, predicted step by step, in every field of `Step`."""
    knows_both = task.simulator == "gymnasium"  # envpool does not tell a fall on the last step
    task = replace(task, time_limit=20)
    env = VectorEnv(task, environment_seeds([1, 2], 3, "test"), reset=reset)
    ages, valid = np.zeros((2, 3), dtype=np.int64), np.ones((2, 3), dtype=bool)
    ended, cut = 0, 0
    for obs, actions, step in play(env, random_actions(env), 120):
        np.testing.assert_array_equal(step.valid, valid)
        ages += valid
        expected = cartpole(obs, actions)
        np.testing.assert_allclose(step.next_obs[valid], expected[valid], atol=2e-6)
        np.testing.assert_array_equal(step.raw_rewards, valid.astype(np.float32))
        np.testing.assert_array_equal(step.rewards, step.raw_rewards)
        fallen = (np.abs(expected[..., 2]) > np.pi / 15) | (np.abs(expected[..., 0]) > 2.4)
        fallen &= valid & ((ages < 20) | knows_both)
        np.testing.assert_array_equal(step.terminations, fallen)
        np.testing.assert_array_equal(step.truncations, valid & (ages == 20) & ~fallen)
        ends = step.terminations | step.truncations
        np.testing.assert_array_equal(step.episode_ends, ends)
        np.testing.assert_array_equal(step.episode_lengths, ages)
        np.testing.assert_array_equal(step.episode_returns, ages.astype(np.float64))
        fresh = ends if reset == "same_step" else ~valid
        assert (np.abs(step.obs[fresh]) < 0.05).all()
        np.testing.assert_array_equal(step.obs[~fresh], step.next_obs[~fresh])
        ages[ends] = 0
        valid = ~ends if reset == "next_step" else valid
        ended, cut = ended + step.terminations.sum(), cut + step.truncations.sum()
    assert ended > 5
    assert cut > 5


def lean(obs: np.ndarray) -> np.ndarray:
    """Push CartPole away from where it falls, now and then the other way."""
    return ((obs[..., 2] < 0) ^ (np.sin(1e4 * obs[..., 1]) > 0.5)).astype(np.int64)


def transitions(task: Task, reset: Reset, act: Act, num_steps: int) -> list[list[tuple[Any, ...]]]:
    """Return the valid transitions of each environment, as bytes, in order."""
    seeds = [1] if task is QBERT else [1, 2]  # frames take long
    env = VectorEnv(task, environment_seeds(seeds, 2, "test"), reset=reset)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(2 * len(seeds))]
    for obs, actions, step in play(env, act, num_steps):
        for index, (seed, number) in enumerate(np.ndindex(len(seeds), 2)):
            if step.valid[seed, number]:
                fields = step._replace(obs=obs)
                cells = [field[seed, number].tobytes() for field in (actions, *fields)]
                rows[index].append(tuple(cells))
    return rows


@pytest.mark.parametrize(
    ("task", "act", "num_steps", "least_ends"),
    [
        (CARTPOLE, lean, 150, 5),
        (CARTPOLES[1], lean, 150, 5),
        (HOPPER, lambda obs: np.sin(50.0 * obs[..., :3]), 150, 2),
        (QBERT, lambda obs: obs[..., -1, :, :].sum((-2, -1), np.int64) % 6, 160, 1),
    ],
    ids=["CartPole", "gymnasium", "Hopper", "Qbert"],
)
def test_both_resets_give_the_same_transitions(
    task: Task, act: Act, num_steps: int, least_ends: int
) -> None:
    """No bit of what is learned from depends on the reset, if actions follow what is seen."""
    next_step = transitions(task, "next_step", act, num_steps)
    same_step = transitions(task, "same_step", act, num_steps)
    for ours, other in zip(next_step, same_step, strict=True):
        assert len(other) == num_steps
        assert len(other) - len(ours) >= least_ends
        assert ours == other[: len(ours)]


@BOTH_CARTPOLES
@BOTH_RESETS
def test_a_recorded_step_does_not_change_later(task: Task, reset: Reset) -> None:
    """Agents keep steps for later; a buffer that simulator or adapter wrote again would lie."""
    task = replace(task, time_limit=5)
    env = VectorEnv(task, environment_seeds([1], 2, "test"), reset=reset)
    obs, act = env.reset(), random_actions(env)
    kept, copies = [obs], [obs.copy()]
    for _ in range(20):
        kept += env.step(act(obs))
        copies += [field.copy() for field in kept[len(copies) :]]
    for one, two in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(one, two)


def test_small_frames_show_the_same_game() -> None:
    """The same actions give the same rewards and ends; frames have a quarter of the pixels."""
    tasks = QBERT, find_task(QBERT.name, "small_frames")
    games = [VectorEnv(task, environment_seeds([1], 2, "test")) for task in tasks]
    assert [game.reset().shape[2:] for game in games] == [(4, 84, 84), (4, 42, 42)]
    assert Spaces.of(tasks[1]).obs_shape == games[1].spaces.obs_shape
    for actions in np.random.default_rng(0).integers(6, size=(200, 1, 2)):
        plain, small = (game.step(actions) for game in games)
        np.testing.assert_array_equal(small.rewards, plain.rewards)
        np.testing.assert_array_equal(small.terminations, plain.terminations)


@pytest.mark.parametrize(
    "task",
    [
        HOPPER,
        CARTPOLES[1],
        replace(find_task("TMaze-v0"), time_limit=15),
        replace(find_task("Claw-v0"), time_limit=5),
        pytest.param(replace(find_task("LunarLander-v3"), time_limit=25), marks=NEEDS_BOX2D),
    ],
    ids=["Hopper", "gymnasium", "TMaze", "Claw", "LunarLander"],
)
@BOTH_RESETS
def test_a_group_of_seeds_equals_each_seed_alone(task: Task, reset: Reset) -> None:
    """Neither a neighbour's falls nor the number of threads changes a bit of a seed's run."""
    env_seeds = environment_seeds([1, 2, 3], 2, "test")
    act = random_actions(VectorEnv(task, env_seeds))
    actions = np.array([act(np.empty(0)) for _ in range(60)])

    def tape(rows: slice) -> list[Step]:
        given = iter(actions[:, rows])
        threads = 3 if rows == slice(0, 3) else 1
        env = VectorEnv(task, env_seeds[rows], reset=reset, num_threads=threads)
        return [step for *_, step in play(env, lambda obs: next(given), len(actions))]

    group = tape(slice(0, 3))
    assert np.any([step.episode_ends for step in group], axis=(0, 2)).all()
    for i in range(3):
        for ours, alone in zip(group, tape(slice(i, i + 1)), strict=True):
            assert_same_steps(Step(*(field[i : i + 1] for field in ours)), alone)


@pytest.mark.parametrize("name", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_continuous_actions_are_scaled_to_the_bounds_and_clipped(name: str) -> None:
    """Pendulum's torque, read back from its cost: 1 is the bound of 2, and so is 7."""
    env = VectorEnv(find_task(name), environment_seeds([1], 5, "test"))
    obs = env.reset()
    actions = np.array([-7.0, -1.0, 0.25, 1.0, 7.0])[None, :, None]
    step = env.step(actions)
    resting = pendulum_cost(obs, np.zeros((1, 5)))
    torques_squared = (-step.rewards - resting) / 0.001
    np.testing.assert_allclose(torques_squared[0], [4.0, 4.0, 0.25, 4.0, 4.0], atol=0.01)
    spins = 15.0 * obs[..., 1] * 0.05 + 3.0 * np.array([-2.0, -2.0, 0.5, 2.0, 2.0]) * 0.05
    np.testing.assert_allclose(step.next_obs[..., 2], obs[..., 2] + spins, atol=1e-5)


@pytest.mark.parametrize(
    ("env_seeds", "num_threads", "message"),
    [
        *((np.array(seeds), 1, "must be") for seeds in ([[1.0, 2.0]], [1, 2], [[True, False]])),
        *((np.array([[1, seed]]), 1, "env_seeds outside") for seed in (-1, 2**31)),
        (np.array([[1, 2]]), 0, "num_threads must be at least 1, not 0"),  # as many as cores
    ],
)
def test_bad_seeds_and_threads_are_refused(
    env_seeds: np.ndarray, num_threads: int, message: str
) -> None:
    """Seeds are `[S, N]` non-negative int32: others crash envpool, or it reads foreign memory."""
    with pytest.raises(ValueError, match=message):
        VectorEnv(CARTPOLE, env_seeds, num_threads=num_threads)


@pytest.mark.parametrize(
    ("task", "actions", "message"),
    [
        *((HOPPER, np.zeros(shape), r"must be \(1, 2, 3\)") for shape in ((1, 2), (2, 1, 3), (3,))),
        *((CARTPOLE, np.array([[0, n]]), r"actions outside 0\.\.1") for n in (2, -1)),
        (CARTPOLE, np.array([[0.0, 1.0]]), "actions must be integers, not float64"),
        (CARTPOLE, np.array([0, 1]), r"actions must be \(1, 2\)"),
    ],
)
def test_bad_actions_are_refused_and_leave_nothing_in_flight(
    task: Task, actions: np.ndarray, message: str
) -> None:
    """Broadcasting would give several environments one action; the right actions may follow."""
    env = VectorEnv(task, environment_seeds([1], 2, "test"))
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.send(actions)
    assert env.step(random_actions(env)(np.empty(0))).episode_lengths.tolist() == [[1, 1]]


def test_calls_out_of_order_are_refused() -> None:
    """An action before the reset would be ignored, a second step in flight taken for the first."""
    env = VectorEnv(CARTPOLE, environment_seeds([1], 2, "test"))
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.array([[0, 1]]))
    env.reset()
    with pytest.raises(RuntimeError, match="once"):
        env.reset()
    with pytest.raises(RuntimeError, match="send"):
        env.recv()
    env.send(np.array([[0, 1]]))
    with pytest.raises(RuntimeError, match="twice"):
        env.send(np.array([[0, 1]]))
    assert env.recv().episode_lengths.tolist() == [[1, 1]]
    with pytest.raises(RuntimeError, match="send"):
        env.recv()
    assert env.step(np.array([[0, 1]])).episode_lengths.tolist() == [[2, 2]]
    with pytest.raises(RuntimeError, match="render"):
        env.render()


def test_dictionaries_are_flattened_in_key_order() -> None:
    """dm_control names its observations; the order must not depend on a dictionary's."""
    task, env_seeds = find_task("WalkerRun-v1"), environment_seeds([1], 2, "test")
    env = VectorEnv(task, env_seeds, reset="same_step")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = envpool.make_gymnasium(task.name, num_envs=2, seed=env_seeds[0].tolist())

    def flat(parts: dict[str, np.ndarray]) -> np.ndarray:
        assert set(parts) == {"orientations", "height", "velocity"}
        columns = [parts["height"].reshape(2, 1), parts["orientations"], parts["velocity"]]
        return np.concatenate(columns, axis=1).astype(np.float32)

    np.testing.assert_array_equal(env.reset()[0], flat(raw.reset()[0]), strict=True)
    actions = np.full((2, 6), 0.5)
    step = env.step(actions[None])
    np.testing.assert_array_equal(step.obs[0], flat(raw.step(actions)[0]), strict=True)


PARTED = [task for task in TASKS.values() if task.reward_parts]


@pytest.mark.parametrize("task", PARTED, ids=[task.name for task in PARTED])
def test_the_parts_of_a_reward_add_up_to_it(task: Task) -> None:
    """With weights 1, in every step of 120 and through ends."""
    env = VectorEnv(task, np.array([[1, 2], [3, 4]]), reset="same_step", reward_parts=True)
    parts, rewards = [], []
    for *_, step in play(env, random_actions(env), 120):
        assert step.reward_parts.dtype == np.float32
        parts.append(step.reward_parts)
        rewards.append(step.raw_rewards)
    assert np.shape(parts) == (120, 2, 2, len(task.reward_parts))
    np.testing.assert_allclose(np.sum(parts, -1), rewards, atol=2e-6, rtol=1e-6)


def test_parts_of_rewards_come_if_asked_for_and_change_nothing_else() -> None:
    """Where a task tells none, the reward is the only part."""
    env_seeds, actions = np.array([[1, 2]]), np.full((1, 2, 1), 0.3, dtype=np.float32)
    plain, parted = (VectorEnv(PENDULUM, env_seeds, reward_parts=each) for each in (False, True))
    tapes = (play(env, lambda obs: actions, 250) for env in (plain, parted))
    for (*_, one), (*_, other) in zip(*tapes, strict=True):
        assert one.reward_parts.shape == (1, 2, 0)
        assert_same_steps(one, other._replace(reward_parts=one.reward_parts))
        np.testing.assert_array_equal(other.reward_parts[..., 0], one.raw_rewards)


@pytest.mark.parametrize(
    "task",
    [*CARTPOLES, HOPPER, QBERT, *map(find_task, ("StatelessCartPole-v1", "Claw-v0"))],
    ids=lambda task: task.name,
)
def test_the_spaces_of_a_task_are_known_before_it_is_made(task: Task) -> None:
    """Sizes, not bounds; a game may have fewer actions than were counted."""
    made, told = VectorEnv(task, environment_seeds([1], 1, "test")).spaces, Spaces.of(task)
    counted = 18 if task is QBERT else made.num_outputs
    assert told._replace(low=made.low, high=made.high) == made._replace(num_outputs=counted)
    assert told.continuous == made.continuous


@BOTH_RESETS
@pytest.mark.parametrize("name", ["CheetahRun-v1", "Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_an_action_that_is_no_number_is_paid_with_one(name: str, reset: Reset) -> None:
    """Some simulators pay a finite reward for it, some fail; others' rows are as ever."""
    task = find_task(name)
    env, other = (
        VectorEnv(task, environment_seeds([1, 2], 2, "test"), reset=reset) for _ in range(2)
    )
    env.reset()
    other.reset()
    actions = np.full((2, 2, *env.action_shape), 0.25)
    actions[1, 0, -1] = np.nan
    step, expected = env.step(actions), other.step(np.nan_to_num(actions))
    assert np.isnan(step.rewards).tolist() == [[False, False], [True, False]]
    assert np.isnan(step.episode_returns).tolist() == [[False, False], [True, False]]
    is_number = ~np.isnan(step.rewards)
    np.testing.assert_array_equal(step.rewards[is_number], expected.rewards[is_number])
    assert not np.isnan(env.step(np.zeros_like(actions)).rewards).any()


def test_an_ignored_action_may_be_anything() -> None:
    """The row after an end only resets: a NaN there is no action, and the next return is whole."""
    env = VectorEnv(PENDULUM, environment_seeds([1], 1, "test"))
    env.reset()
    nothing = np.zeros((1, 1, 1))
    while not env.step(nothing).ends.all():
        pass
    step = env.step(nothing * np.nan)
    assert not step.valid.any()
    assert np.isfinite(step.episode_returns).all()
    assert np.isfinite(env.step(nothing).episode_returns).all()
