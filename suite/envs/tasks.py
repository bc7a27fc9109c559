"""Tasks and suites: everything about the simulation, nothing about learning.

A task is a simulator's id with its physics. A suite is a named tuple of tasks. MuJoCo tasks default
to `-v4`; other versions are tasks of their own and never replace it. Sources: the environments' own
registrations in envpool 1.2.5 and gymnasium 1.4.0, which a test compares. A task without a row is
called `module:id`: importing the module registers the id with gymnasium.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from suite.base.errors import UsageError, near, nearest

Protocol = Literal["noframeskip", "sticky", "small_frames"]
"""How an Atari game is presented: see `ATARI_PROTOCOLS`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One environment, with everything that gives a return on it its meaning."""

    name: str
    """For example `HalfCheetah-v4`, or `module:id` for a task without a row."""
    family: Literal["mujoco", "classic", "dmc", "atari", "box2d", "memory", "hybrid", "other"]
    time_limit: int
    """Decisions after which an episode is truncated."""
    simulator: Literal["envpool", "gymnasium"] = "envpool"
    """Its simulator; gymnasium is far slower."""
    made_as: str = ""
    """The simulator's id for it, where that is not its name; gymnasium also knows `module:id`."""
    observed: tuple[int, ...] = ()
    """Components of the simulator's observation that are shown; empty: all."""
    frame_skip: int = 1
    """Simulator frames per decision."""
    protocol: Protocol | Literal[""] = ""
    """Atari only: how the game is presented; scores of two protocols are never compared."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the simulator that belong to the protocol."""
    obs_size: int = 0
    """Numbers of an observation; 0 of frames."""
    action_size: int = 0
    """Dimensions of the continuous action; else 0."""
    num_actions: int = 0
    """Discrete actions; 0 of a game, which has up to 18, and where there are none."""
    reward_parts: tuple[str, ...] = ()
    """Names of the simulator's numbers whose sum is the reward; empty: it tells the sum alone."""

    @property
    def actions(self) -> Literal["continuous", "discrete", "hybrid"]:
        """Return their kind; hybrid ones are a discrete action and a continuous one together."""
        if self.action_size:
            return "hybrid" if self.num_actions else "continuous"
        return "discrete"

    @property
    def simulator_id(self) -> str:
        """Return the id by which the simulator makes it."""
        return self.made_as or self.name


MUJOCO = {
    "HalfCheetah": (5, 17, 6),
    "Hopper": (4, 11, 3),
    "Walker2d": (4, 17, 6),
    "Ant": (5, 27, 8),
    "Humanoid": (5, 376, 17),
    "Reacher": (2, 11, 2),
    "Swimmer": (4, 8, 2),
    "InvertedPendulum": (2, 4, 1),
    "InvertedDoublePendulum": (5, 11, 1),
}
"""Frame skip, numbers of an observation and of an action, by environment."""
MUJOCO_SMALL = ("Reacher", "Swimmer", "InvertedPendulum", "InvertedDoublePendulum")
VERSION_2 = ("Reacher", "InvertedPendulum", "InvertedDoublePendulum")
"""MuJoCo environments whose legacy version is v2; the others' is v3."""
OTHER_OBS_SIZES = {
    "Ant-v3": 111,
    "Ant-v5": 105,
    "Humanoid-v5": 348,
    "Reacher-v5": 10,
    "InvertedDoublePendulum-v5": 9,
}
"""Numbers of an observation of the versions in which they differ."""
MUJOCO_REWARD_PARTS = {
    "HalfCheetah": ("reward_run", "reward_ctrl"),
    "Ant": ("reward_forward", "reward_ctrl", "reward_contact", "reward_survive"),
    "Humanoid": ("reward_linvel", "reward_quadctrl", "reward_alive", "reward_impact"),
    "Reacher": ("reward_dist", "reward_ctrl"),
    "Swimmer": ("reward_fwd", "reward_ctrl"),
}
"""The parts of the reward that envpool tells, by environment, in all versions."""

DMC = {
    "AcrobotSwingup": (1, 6, 1),
    "BallInCupCatch": (10, 8, 2),
    "CartpoleBalance": (1, 5, 1),
    "CartpoleBalanceSparse": (1, 5, 1),
    "CartpoleSwingup": (1, 5, 1),
    "CartpoleSwingupSparse": (1, 5, 1),
    "CheetahRun": (1, 17, 6),
    "FingerSpin": (2, 12, 2),
    "FingerTurnEasy": (2, 12, 2),
    "FingerTurnHard": (2, 12, 2),
    "FishSwim": (10, 24, 5),
    "FishUpright": (10, 24, 5),
    "HopperHop": (4, 15, 4),
    "HopperStand": (4, 15, 4),
    "HumanoidRun": (5, 95, 21),
    "HumanoidStand": (5, 95, 21),
    "HumanoidWalk": (5, 95, 21),
    "PendulumSwingup": (1, 3, 1),
    "QuadrupedRun": (4, 113, 12),
    "QuadrupedWalk": (4, 113, 12),
    "ReacherEasy": (1, 6, 2),
    "ReacherHard": (1, 6, 2),
    "SwimmerSwimmer6": (15, 25, 5),
    "SwimmerSwimmer15": (15, 61, 14),
    "WalkerRun": (10, 24, 6),
    "WalkerStand": (10, 24, 6),
    "WalkerWalk": (10, 24, 6),
}
"""Physics steps per control step, numbers of an observation and of an action, of dm_control."""

# fmt: off
ATARI_GAMES = (
    "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "BankHeist", "BattleZone",
    "BeamRider", "Berzerk", "Bowling", "Boxing", "Breakout", "Centipede", "ChopperCommand",
    "CrazyClimber", "Defender", "DemonAttack", "DoubleDunk", "Enduro", "FishingDerby", "Freeway",
    "Frostbite", "Gopher", "Gravitar", "Hero", "IceHockey", "Jamesbond", "Kangaroo", "Krull",
    "KungFuMaster", "MontezumaRevenge", "MsPacman", "NameThisGame", "Phoenix", "Pitfall", "Pong",
    "PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank", "Seaquest", "Skiing", "Solaris",
    "SpaceInvaders", "StarGunner", "Surround", "Tennis", "TimePilot", "Tutankham", "UpNDown",
    "Venture", "VideoPinball", "WizardOfWor", "YarsRevenge", "Zaxxon",
)
ATARI_7 = ("BeamRider", "Breakout", "Enduro", "Pong", "Qbert", "Seaquest", "SpaceInvaders")
# fmt: on

_NOFRAMESKIP = {"episodic_life": True, "repeat_action_probability": 0.0}
ATARI_PROTOCOLS: Mapping[Protocol, Mapping[str, Any]] = {
    "noframeskip": _NOFRAMESKIP,
    "small_frames": {**_NOFRAMESKIP, "img_height": 42, "img_width": 42},
    "sticky": {
        "episodic_life": False,
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "noop_max": 1,
    },
}

# envpool has Box2D's tasks too; gymnasium's are those that others publish scores of.
# StatelessCartPole shows position and angle without velocities: its best return is the time limit.
# TMaze's best return is 1, without memory 1/2 (memory_tasks.py). Claw's is 0.7 in every episode
# (hybrid_tasks.py).
# fmt: off
OTHER_TASKS = (
    Task(name="CartPole-v1", family="classic", time_limit=500, obs_size=4, num_actions=2),
    Task(name="Acrobot-v1", family="classic", time_limit=500, obs_size=6, num_actions=3),
    Task(name="MountainCar-v0", family="classic", time_limit=200, obs_size=2, num_actions=3),
    Task(name="Pendulum-v1", family="classic", time_limit=200, obs_size=3, action_size=1),
    Task(name="MountainCarContinuous-v0", family="classic", time_limit=999, obs_size=2,
         action_size=1),
    Task(name="LunarLander-v3", family="box2d", simulator="gymnasium", time_limit=1000,
         obs_size=8, num_actions=4),
    Task(name="LunarLanderContinuous-v3", family="box2d", simulator="gymnasium", time_limit=1000,
         obs_size=8, action_size=2),
    Task(name="BipedalWalker-v3", family="box2d", simulator="gymnasium", time_limit=1600,
         obs_size=24, action_size=4),
    Task(name="StatelessCartPole-v1", family="memory", made_as="CartPole-v1", observed=(0, 2),
         time_limit=500, obs_size=2, num_actions=2),
    Task(name="TMaze-v0", family="memory", simulator="gymnasium", time_limit=50, obs_size=2,
         num_actions=3),
    Task(name="Claw-v0", family="hybrid", simulator="gymnasium", time_limit=20, obs_size=2,
         action_size=2, num_actions=3),
)
# fmt: on


def _mujoco_tasks() -> Iterator[Task]:
    for stem, (frame_skip, obs_size, action_size) in MUJOCO.items():
        for version in ("v2" if stem in VERSION_2 else "v3", "v4", "v5"):
            name = f"{stem}-{version}"
            yield Task(
                name=name,
                family="mujoco",
                time_limit=50 if stem == "Reacher" else 1000,
                frame_skip=frame_skip,
                obs_size=OTHER_OBS_SIZES.get(name, obs_size),
                action_size=action_size,
                reward_parts=MUJOCO_REWARD_PARTS.get(stem, ()),
            )


def _dmc_tasks() -> Iterator[Task]:
    for stem, (frame_skip, obs_size, action_size) in DMC.items():
        yield Task(
            name=f"{stem}-v1",
            family="dmc",
            time_limit=1000,
            frame_skip=frame_skip,
            obs_size=obs_size,
            action_size=action_size,
        )


def _atari_task(name: str, protocol: Protocol) -> Task:
    return Task(
        name=name,
        family="atari",
        time_limit=27_000,
        frame_skip=4,
        protocol=protocol,
        options=ATARI_PROTOCOLS[protocol],
    )


_GAMES = (_atari_task(f"{game}-v5", "noframeskip") for game in ATARI_GAMES)
TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (*_mujoco_tasks(), *OTHER_TASKS, *_dmc_tasks(), *_GAMES)}
)
"""Every task by name; Atari games in the `noframeskip` protocol (see `find_task`)."""


def _names(family: str) -> tuple[str, ...]:
    return tuple(task.name for task in TASKS.values() if task.family == family)


SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "classic": _names("classic"),
        "mujoco": tuple(f"{n}-v4" for n in MUJOCO if n not in MUJOCO_SMALL),
        "mujoco-small": tuple(f"{n}-v4" for n in MUJOCO_SMALL),
        "mujoco-9": tuple(f"{n}-v4" for n in MUJOCO),
        "dmc": _names("dmc"),
        "atari-7": tuple(f"{game}-v5" for game in ATARI_7),
        "atari": _names("atari"),
        **{family: _names(family) for family in ("box2d", "memory", "hybrid")},
    }
)
"""Task names by suite; an agent's presets keep the order of suites."""


def find_task(name: str, protocol: Protocol = "noframeskip") -> Task:
    """Return the task called `name`.

    Args:
        name: for example `Hopper-v4`, or `module:id` of a task that a module registers.
        protocol: how an Atari game is presented; other tasks ignore it.

    Raises:
        UsageError: if no task has this name (the nearest is named), or if gymnasium cannot make the
            task of a module, or if no agent can train on it.
    """
    if ":" in name:
        from suite.envs.gymnasium_pool import describe

        return describe(name)
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}{nearest_task(name, TASKS)}")
    task = TASKS[name]
    return _atari_task(name, protocol) if task.family == "atari" else task


def refuse_unimported(task: str, file: str) -> None:
    """Refuse a task that a file names if its module was not imported: a file may not run code."""
    module = task.rpartition(":")[0]
    if module and module not in sys.modules:
        raise UsageError(
            f"{file} names the task {task}: if you trust it, give a command --task-from {task}, or "
            f"in Python import {module} first"
        )


def folder_of(task: str) -> str:
    """Return the name of the folder of a task's runs: the task's, without what no folder may be."""
    return task.replace(":", "-").replace("/", "-")


def nearest_task(name: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the hint of `nearest` for a task; of several versions it names the suite's."""
    own = list(dict.fromkeys(t for tasks in SUITES.values() for t in tasks if t in choices))
    return nearest(name, own if near(name, own) or not near(name, choices) else choices)


def find_suite(name: str) -> tuple[str, ...]:
    """Return the task names of a suite."""
    if name not in SUITES:
        raise UsageError(f"unknown suite {name!r}{nearest(name, SUITES)}")
    return SUITES[name]


def tasks_in(suite: str) -> tuple[str, ...]:
    """Return every task that may be run under `suite`: its own, and their other versions."""
    stems = {name.rpartition("-")[0] for name in find_suite(suite)}
    return tuple(name for name in TASKS if name.rpartition("-")[0] in stems)
