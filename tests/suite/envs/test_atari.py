"""Atari games through the adapter, and the same games in ale-py.

They play the same ROM with the same actions in ale-py, in its own vector environment or its bare
emulator, and ask for the same frames, points and ends. Tolerances, all:

- Random no-ops at the start differ between the simulators, so `noop_max=1` leaves none.
- Sticky actions are drawn from generators of their own, so they are off.
- In the row that ends a game the newest frame may differ: which frames of a decision that ends
  early enter the maximum over two frames is up to the wrapper.
- ale-py starts a stack of frames with black, envpool with copies of the first frame, so older
  frames are compared from the fourth decision after a reset on.
- ale-py's `episodic_life` restarts the whole game after a lost life. So `noframeskip` is compared
  with its vector environment where no life is lost, and with its bare emulator elsewhere.
"""

from dataclasses import replace
from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py.roms import get_rom_path
from ale_py.vector_env import AtariVectorEnv

from suite.envs.tasks import Protocol, find_task
from suite.envs.vector_env import VectorEnv


def aligned(name: str, protocol: Protocol, **options: Any) -> VectorEnv:
    """Return an environment whose games start in one way only."""
    task = find_task(name, protocol)
    task = replace(task, options={**task.options, "noop_max": 1, **options})
    env = VectorEnv(task, np.zeros((1, 1), dtype=np.int32))
    env.reset()
    return env


def ale_vector(rom: str, env: VectorEnv) -> Any:
    """Return ale-py's vector environment with points unclipped and lost lives that end nothing."""
    other = AtariVectorEnv(
        rom,
        env.num_envs,
        num_threads=1,
        noop_max=1,
        reward_clipping=False,
        full_action_space=env.task.protocol == "sticky",
        repeat_action_probability=0.0,
    )
    other.reset(seed=0)
    return other


def games_in_common(env: VectorEnv, other: Any, actions: np.ndarray) -> tuple[int, float]:
    """Play `actions`, `[T, N]`, in both and compare rows; return ended games, and points."""
    age = np.zeros(env.num_envs, dtype=np.int64)
    ended, points_seen = 0, 0.0
    for number, row in enumerate(actions):
        step = env.step(row[None])
        frames, points, terminations, truncations, _ = other.step(row)
        where = f"row {number}"
        np.testing.assert_array_equal(step.raw_rewards[0], points, err_msg=where)
        np.testing.assert_array_equal(step.rewards[0], np.clip(points, -1, 1), err_msg=where)
        np.testing.assert_array_equal(step.terminations[0], terminations, err_msg=where)
        np.testing.assert_array_equal(step.truncations[0], truncations, err_msg=where)
        np.testing.assert_array_equal(step.episode_ends[0], terminations, err_msg=where)
        age = np.where(step.valid[0], age + 1, 0)
        for i in range(env.num_envs):
            compared = slice(max(0, 3 - age[i]), 3 if terminations[i] else 4)
            np.testing.assert_array_equal(
                step.next_obs[0, i, compared], frames[i, compared], err_msg=f"{where}, game {i}"
            )
        ended += int(step.episode_ends.sum())
        points_seen += float(np.abs(points).sum())
    return ended, points_seen


def test_noframeskip_pong_is_the_game_of_ale_py() -> None:
    """Frames, points and the end of the first game, under random actions of the minimal set."""
    env = aligned("Pong-v5", "noframeskip")
    other = ale_vector("pong", env)
    assert env.num_actions == other.single_action_space.n == 6
    actions = np.random.default_rng(0).integers(0, env.num_actions, size=(1100, 1))
    assert games_in_common(env, other, actions) == (1, 23.0)


def test_breakout_with_all_actions_and_no_life_loss_is_the_game_of_ale_py() -> None:
    """The sticky protocol but for its stickiness: whole games, across lives and resets."""
    env = aligned("Breakout-v5", "sticky", repeat_action_probability=0.0)
    other = ale_vector("breakout", env)
    assert env.num_actions == other.single_action_space.n == 18
    actions = np.random.default_rng(1).integers(0, env.num_actions, size=(260, 1))
    assert games_in_common(env, other, actions) == (1, 3.0)


@pytest.mark.parametrize(
    ("name", "rom", "num_games", "num_lost"),
    [("Breakout-v5", "breakout", 2, 10), ("SpaceInvaders-v5", "space_invaders", 1, 3)],
)
def test_lives_games_and_scores_are_those_of_the_bare_emulator(
    name: str, rom: str, num_games: int, num_lost: int
) -> None:
    """A game goes on after a lost life: scores and lengths as counted around ale-py's emulator."""
    rom_path = get_rom_path(rom)
    assert rom_path is not None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(rom_path)
    buttons, fire = emulator.getMinimalActionSet(), ale_py.Action.FIRE
    emulator.reset_game()
    emulator.act(fire)
    env = aligned(name, "noframeskip")
    assert env.num_actions == len(buttons)
    generator = np.random.default_rng(1)
    games, lost, score, length, ended = 0, 0, 0, 0, False
    while games < num_games:
        action = int(generator.integers(env.num_actions))
        step = env.step(np.array([[action]]))
        assert step.valid.tolist() == [[not ended]]
        if ended:  # the ignored row presses FIRE for one frame
            points, ended = 0, False
            emulator.act(fire)
        else:
            lives, points = emulator.lives(), 0
            for _ in range(4):
                points += emulator.act(buttons[action])
                if emulator.game_over():
                    break
            ended = emulator.lives() < lives
            length += 1
        score += points
        over = emulator.game_over()
        row = (step.raw_rewards, step.rewards, step.terminations, step.episode_ends)
        assert [field.item() for field in row] == [points, np.sign(points), ended, over]
        assert (step.episode_returns.item(), step.episode_lengths.item()) == (score, length)
        lost += ended
        if over:
            games, score, length, ended = games + 1, 0, 0, False
            env.step(np.array([[0]]))
            emulator.reset_game()
            emulator.act(fire)
    assert lost == num_lost
