"""Atari games through the adapter: a scripted tape, and the same games in ale-py.

The scripted tapes hold what envpool would return, written by hand, with every number they must
give. The other tests play the same ROM with the same actions in ale-py, in its own vector
environment or its bare emulator, and ask for the same frames, points and ends. Tolerances, all:

- Random no-ops at the start differ between the simulators, so `noop_max=1` leaves none.
- Sticky actions are drawn from generators of their own, so they are off, or do not matter: while
  one action is held, repeating the last one changes nothing.
- In the row that ends a game the newest frame may differ: which frames of a decision that ends
  early enter the maximum over two frames is up to the wrapper.
- ale-py starts a stack of frames with black, envpool with copies of the first frame, so older
  frames are compared from the fourth decision after a reset on.
- ale-py's `episodic_life` restarts the whole game after a lost life. So `noframeskip` is compared
  with its vector environment where no life is lost, and with its bare emulator elsewhere.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import ale_py
import envpool
import numpy as np
import pytest
from ale_py.roms import get_rom_path
from ale_py.vector_env import AtariVectorEnv

from suite.envs.tasks import Protocol, find_task
from suite.envs.vector_env import Step, VectorEnv


class Row(NamedTuple):
    """One row that a scripted pool returns for one environment."""

    points: float
    """As the game gave them."""
    terminated: bool = False
    """As envpool tells the learner: also after a lost life, in `noframeskip`."""
    over: bool = False
    """`info["terminated"]`: the game is over."""
    truncated: bool = False


PLAY, IGNORED = Row(0.0), Row(0.0)


class TapePool:
    """envpool's interface over hand-written rows; the first pixel counts an environment's rows."""

    def __init__(self, tapes: list[list[Row]]) -> None:
        self.tapes = tapes
        self.rows = np.zeros(len(tapes), dtype=np.int64)
        self.observation_space = SimpleNamespace(shape=(4, 84, 84))
        self.action_space = SimpleNamespace(n=4)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        return self.frames(np.arange(len(self.tapes))), {}

    def send(self, actions: np.ndarray) -> None:
        assert actions.shape == (len(self.tapes),)
        self.ids = np.arange(len(self.tapes))

    def step(self, actions: np.ndarray, ids: np.ndarray) -> Any:
        assert len(actions) == len(ids)
        self.ids = ids
        return self.recv()

    def recv(self) -> Any:
        rows = [self.tapes[i][self.rows[i]] for i in self.ids]
        self.rows[self.ids] += 1
        points = np.array([row.points for row in rows], dtype=np.float32)
        info = {"reward": points, "terminated": np.array([int(row.over) for row in rows])}
        terminated = np.array([row.terminated for row in rows])
        truncated = np.array([row.truncated for row in rows])
        return self.frames(self.ids), np.sign(points), terminated, truncated, info

    def frames(self, ids: np.ndarray) -> np.ndarray:
        frames = np.zeros((len(ids), 4, 84, 84), dtype=np.uint8)
        frames[:, 0, 0, 0] = self.rows[ids]
        return frames


NOFRAMESKIP_TAPES = [
    [Row(4.0), Row(0.0, True), IGNORED, Row(7.0), Row(1.0, True, True), IGNORED, Row(2.0), PLAY],
    [Row(-20.0), PLAY, Row(0.25), Row(5.0, truncated=True), IGNORED, PLAY, Row(0.0, True), IGNORED],
]
"""A lost life, then a game over; and a time limit, then a lost life."""

STICKY_TAPES = [
    [Row(4.0), PLAY, Row(7.0), Row(0.0, True, True), IGNORED, Row(2.0), PLAY, PLAY],
    [Row(-20.0), PLAY, PLAY, Row(5.0, truncated=True), IGNORED, Row(3.0), PLAY, PLAY],
]
"""Lost lives are ordinary rows: a game over; and a time limit."""


def scripted(
    monkeypatch: pytest.MonkeyPatch, tapes: list[list[Row]], protocol: Protocol, **options: Any
) -> tuple[TapePool, VectorEnv]:
    pool, made = TapePool(tapes), {}

    def make(name: str, **settings: Any) -> TapePool:
        made.update(settings, name=name)
        return pool

    monkeypatch.setattr(envpool, "make_gymnasium", make)
    env = VectorEnv(find_task("Breakout-v5", protocol), np.zeros((1, 2), dtype=np.int32), **options)
    sticky = protocol == "sticky"
    assert made["episodic_life"] is not sticky
    assert made["repeat_action_probability"] == (0.25 if sticky else 0.0)
    assert made.get("full_action_space", False) is sticky
    assert made["max_episode_steps"] == 27_000
    env.reset()
    return pool, env


def play(env: VectorEnv, num_steps: int) -> dict[str, list[list[float]]]:
    """Return the fields of a tape but the frames, `[N][T]`."""
    steps = [env.step(np.zeros((1, env.num_envs), dtype=np.int64)) for _ in range(num_steps)]
    return {
        name: np.stack([getattr(step, name)[0] for step in steps], axis=1).tolist()
        for name in Step._fields
        if "obs" not in name
    }


def test_noframeskip_tape_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives end the learner's episode, games the score; ignored rows count nowhere."""
    _, env = scripted(monkeypatch, NOFRAMESKIP_TAPES, "noframeskip")
    tape, yes, no = play(env, 8), True, False
    assert tape["raw_rewards"] == [[4, 0, 0, 7, 1, 0, 2, 0], [-20, 0, 0.25, 5, 0, 0, 0, 0]]
    assert tape["rewards"] == [[1, 0, 0, 1, 1, 0, 1, 0], [-1, 0, 0.25, 1, 0, 0, 0, 0]]
    assert tape["terminations"] == [[no, yes, no, no, yes, no, no, no], [no] * 6 + [yes, no]]
    assert tape["truncations"] == [[no] * 8, [no, no, no, yes, no, no, no, no]]
    assert tape["valid"] == [
        [yes, yes, no, yes, yes, no, yes, yes],
        [yes, yes, yes, yes, no, yes, yes, no],
    ]
    assert tape["episode_ends"] == [
        [no, no, no, no, yes, no, no, no],
        [no, no, no, yes, no, no, no, no],
    ]
    assert tape["episode_returns"] == [
        [4, 4, 4, 11, 12, 0, 2, 2],
        [-20, -20, -19.75, -14.75, 0, 0, 0, 0],
    ]
    assert tape["episode_lengths"] == [[1, 2, 2, 3, 4, 0, 1, 2], [1, 2, 3, 4, 0, 1, 2, 2]]
    assert np.sum(tape["valid"]) == 12


def test_noframeskip_tape_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same games without the ignored rows: they are taken within the step that ends."""
    pool, env = scripted(monkeypatch, NOFRAMESKIP_TAPES, "noframeskip", reset="same_step")
    tape = play(env, 6)
    assert tape["raw_rewards"] == [[4, 0, 7, 1, 2, 0], [-20, 0, 0.25, 5, 0, 0]]
    assert tape["rewards"] == [[1, 0, 1, 1, 1, 0], [-1, 0, 0.25, 1, 0, 0]]
    assert tape["terminations"] == [[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]
    assert tape["truncations"] == [[0] * 6, [0, 0, 0, 1, 0, 0]]
    assert tape["valid"] == [[1] * 6, [1] * 6]
    assert tape["episode_ends"] == [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]]
    assert tape["episode_returns"] == [[4, 4, 11, 12, 2, 2], [-20, -20, -19.75, -14.75, 0, 0]]
    assert tape["episode_lengths"] == [[1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 1, 2]]
    assert pool.rows.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("reset", "next_rows", "rows"),
    [
        ("next_step", [[1, 2, 3, 4], [1, 2, 3, 4]], [[1, 2, 3, 4], [1, 2, 3, 4]]),
        ("same_step", [[1, 2, 4, 5], [1, 2, 3, 4]], [[1, 3, 4, 6], [1, 2, 3, 5]]),
    ],
)
def test_the_last_frames_of_a_life_and_the_first_of_the_next(
    monkeypatch: pytest.MonkeyPatch, reset: Any, next_rows: list[list[int]], rows: list[list[int]]
) -> None:
    """`next_obs` is what the action led to; with same-step resets `obs` is already the new life."""
    _, env = scripted(monkeypatch, NOFRAMESKIP_TAPES, "noframeskip", reset=reset)
    steps = [env.step(np.zeros((1, 2), dtype=np.int64)) for _ in range(4)]
    for number in range(2):
        assert [int(step.next_obs[0, number, 0, 0, 0]) for step in steps] == next_rows[number]
        assert [int(step.obs[0, number, 0, 0, 0]) for step in steps] == rows[number]


def test_sticky_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """One episode is one game: only its end terminates, and a time limit only truncates."""
    _, env = scripted(monkeypatch, STICKY_TAPES, "sticky")
    tape = play(env, 8)
    assert tape["rewards"] == [[1, 0, 1, 0, 0, 1, 0, 0], [-1, 0, 0, 1, 0, 1, 0, 0]]
    assert tape["terminations"] == [[0, 0, 0, 1, 0, 0, 0, 0], [0] * 8]
    assert tape["truncations"] == [[0] * 8, [0, 0, 0, 1, 0, 0, 0, 0]]
    assert tape["episode_ends"] == [[0, 0, 0, 1, 0, 0, 0, 0]] * 2
    assert tape["valid"] == [[1, 1, 1, 1, 0, 1, 1, 1]] * 2
    assert tape["episode_returns"] == [[4, 4, 11, 11, 0, 2, 2, 2], [-20, -20, -20, -15, 0, 3, 3, 3]]
    assert tape["episode_lengths"] == [[1, 2, 3, 4, 0, 1, 2, 3]] * 2


def aligned(name: str, protocol: Protocol, **options: Any) -> VectorEnv:
    """Return an environment whose games start in one way only."""
    task = find_task(name, protocol)
    task = replace(task, options={**task.options, "noop_max": 1, **options})
    env = VectorEnv(task, np.zeros((1, 1), dtype=np.int32))
    env.reset()
    return env


def ale_vector(rom: str, env: VectorEnv, repeat_action_probability: float) -> Any:
    """Return ale-py's vector environment with points unclipped and lost lives that end nothing."""
    other = AtariVectorEnv(
        rom,
        env.num_envs,
        num_threads=1,
        noop_max=1,
        reward_clipping=False,
        full_action_space=env.task.protocol == "sticky",
        repeat_action_probability=repeat_action_probability,
    )
    other.reset(seed=0)
    return other


def games_in_common(env: VectorEnv, other: Any, actions: np.ndarray) -> tuple[int, float]:
    """Play `actions`, `[T, N]`, in both, and compare every row but for the tolerances above.

    Returns:
        The number of games that ended, and the points that changed hands.
    """
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
    other = ale_vector("pong", env, 0.0)
    assert env.num_actions == other.single_action_space.n == 6
    actions = np.random.default_rng(0).integers(0, env.num_actions, size=(1100, 1))
    assert games_in_common(env, other, actions) == (1, 23.0)


def test_breakout_with_all_actions_and_no_life_loss_is_the_game_of_ale_py() -> None:
    """The sticky protocol but for its stickiness: whole games, across lives and resets."""
    env = aligned("Breakout-v5", "sticky", repeat_action_probability=0.0)
    other = ale_vector("breakout", env, 0.0)
    assert env.num_actions == other.single_action_space.n == 18
    actions = np.random.default_rng(1).integers(0, env.num_actions, size=(260, 1))
    assert games_in_common(env, other, actions) == (1, 3.0)


def test_one_action_held_is_the_same_sticky_game_in_ale_py() -> None:
    """With stickiness of both simulators on: holding still leaves nothing to stick to."""
    env = aligned("MsPacman-v5", "sticky")
    other = ale_vector("ms_pacman", env, 0.25)
    assert games_in_common(env, other, np.zeros((150, 1), dtype=np.int64)) == (0, 60.0)


@pytest.mark.parametrize(
    ("name", "rom", "num_games", "num_lost"),
    [("Breakout-v5", "breakout", 2, 10), ("SpaceInvaders-v5", "space_invaders", 1, 3)],
)
def test_lives_games_and_scores_are_those_of_the_bare_emulator(
    name: str, rom: str, num_games: int, num_lost: int
) -> None:
    """A game goes on after a lost life: scores and lengths as counted around ale-py's emulator.

    A decision is four emulator frames, fewer where the game ends. After a lost life the ignored row
    presses FIRE for one frame (and would wait up to 29 more frames with the default `noop_max`).
    """
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
        if ended:
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
        assert [field.tolist() for field in row] == [
            [[float(points)]],
            [[float(np.sign(points))]],
            [[ended]],
            [[over]],
        ]
        assert step.episode_returns.tolist() == [[score]]
        assert step.episode_lengths.tolist() == [[length]]
        lost += ended
        if over:
            games, score, length, ended = games + 1, 0, 0, False
            env.step(np.array([[0]]))
            emulator.reset_game()
            emulator.act(fire)
    assert lost == num_lost
