"""The task tables against the simulators' registrations, and how tasks are found by name."""

import warnings
from dataclasses import replace
from importlib.util import find_spec

import envpool
import pytest
from envpool.registration import registry
from gymnasium.spaces import flatdim

from suite.envs.gymnasium_pool import describe
from suite.envs.tasks import SUITES, TASKS, find_suite, find_task

NEEDS_BOX2D = pytest.mark.skipif(find_spec("Box2D") is None, reason="needs the extra box2d")
ENVPOOL = {name: task for name, task in TASKS.items() if task.simulator == "envpool"}


def test_a_row_of_envpool_is_what_envpool_registers() -> None:
    """A wrong frame skip mislabels every curve's axis; another module's task is another task."""
    modules = {
        **{"mujoco": "envpool.mujoco.gym", "classic": "envpool.classic_control"},
        **{"dmc": "envpool.mujoco.dmc", "atari": "envpool.atari"},
    }
    for name, task in ENVPOOL.items():
        module, specification, registered = registry.specs[task.simulator_id]
        assert task.time_limit == registered["max_episode_steps"], name
        assert module == modules.get(task.family, module), name
        game = task.family == "atari"
        if game:  # all games share one specification
            assert specification == "AtariEnvSpec"
            assert set(registered) <= {"task", "max_episode_steps", "base_path"}
        if game and name != "Pong-v5":
            assert (task.obs_size, task.action_size, task.num_actions) == (0, 0, 0)
            continue
        with warnings.catch_warnings():  # gymnasium warns about float64 bounds
            warnings.simplefilter("ignore")
            made = envpool.make_spec(task.simulator_id, **task.options)
            obs, action = made.observation_space, made.action_space
        kind = {"Box": "continuous", "Discrete": "discrete"}[type(action).__name__]
        frame_skip = getattr(made.config, "frame_skip", 1)
        assert (task.frame_skip, task.actions) == (frame_skip, kind), name
        of_action = (0, int(action.n)) if kind == "discrete" else (flatdim(action), 0)
        sizes = (0, 0, 0) if game else (len(task.observed) or flatdim(obs), *of_action)
        assert (task.obs_size, task.action_size, task.num_actions) == sizes, name


def test_suites_are_those_that_papers_report() -> None:
    """A suite's aggregate means nothing if a member is missing, twice, or of another version."""
    assert SUITES["mujoco-9"] == SUITES["mujoco"] + SUITES["mujoco-small"]
    assert (len(SUITES["mujoco"]), len(SUITES["mujoco-small"])) == (5, 4)
    assert (len(SUITES["atari"]), len(SUITES["atari-7"])) == (57, 7)
    assert set(SUITES["atari-7"]) < set(SUITES["atari"])
    for suite, names in SUITES.items():
        assert len(set(names)) == len(names)
        assert {TASKS[name].family for name in names} == {suite.partition("-")[0]}
        assert [find_task(name).name for name in find_suite(suite)] == list(names)


def test_atari_protocols_are_different_tasks() -> None:
    """Their scores are not comparable, so the protocol is part of the task and of its options."""
    plain, sticky = find_task("Pong-v5"), find_task("Pong-v5", "sticky")
    assert (plain.protocol, sticky.protocol) == ("noframeskip", "sticky")
    assert plain != sticky
    assert plain == TASKS["Pong-v5"]
    alike = {"episodic_life": True, "repeat_action_probability": 0.0}
    other = {"episodic_life": False, "repeat_action_probability": 0.25, "full_action_space": True}
    assert plain.options.items() >= alike.items()
    assert sticky.options.items() >= other.items()
    assert find_task("Hopper-v4", "sticky") is TASKS["Hopper-v4"]  # which has a score
    assert {t.protocol for t in TASKS.values() if t.family != "atari"} == {""}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=NEEDS_BOX2D if task.family == "box2d" else ())
        for name, task in TASKS.items()
        if task.simulator == "gymnasium"
    ],
)
def test_a_row_of_gymnasium_is_what_gymnasium_registers(name: str) -> None:
    """Time limit, kind of action and sizes, read from the task as it is made there."""
    row = TASKS[name]
    made = describe(row.simulator_id, row.time_limit)
    assert replace(row, name=made.name, family="other", made_as="") == made
