"""Presets read from the sources' files: what stands there is what is trained, or a clear error."""

import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from agents import AGENTS, a2c, sac
from reproduce.gather.references import sources
from reproduce.run.ray.pool import copy_code
from suite.base.errors import UsageError
from suite.envs.tasks import SUITES, find_suite
from suite.settings.command_line import read_command_line
from suite.settings.presets import (
    REFERENCES,
    Budget,
    Data,
    Presets,
    find_source,
    read_source,
    replaced,
    replacements,
)
from tests.agents.trainings import UNROLL_AGENTS
from tests.messages import refused

ROOT = REFERENCES.parents[1]
pytestmark = pytest.mark.usefixtures("unchecked")  # whoever checks the type of presets reads them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """An agent's settings, one of each type."""

    task: str = "Hopper-v4"
    protocol: Literal["noframeskip", "sticky"] = "noframeskip"
    gamma: float = 0.99
    batch_size: int = 256
    learn_alpha: bool = True
    hidden_sizes: tuple[int, ...] = (256, 256)
    clip: float | None = 0.5
    form: Literal["torch", "tensorflow"] = "torch"

    def __post_init__(self) -> None:
        """Refuse a discount above 1."""
        if self.gamma > 1:
            raise UsageError(f"gamma must be in [0, 1], not {self.gamma}")


DATA = """
[data]
judges = true
rule = "training"
path = "c.csv"
notes = "Read from a table."
"""
PLAIN = f"""
title = "Somebody"
repository = "some/body"
commit = "0123456789abcdef0123456789abcdef01234567"
licence = "MIT"
judged_by = "somebody"
departures = ["another simulator"]

[settings]
gamma = {{ value = 0.9, at = "train.py:31" }}
{DATA}
[budgets]
smoke = {{ env_steps = 10, num_seeds = 1 }}
laptop = {{ env_steps = 20, num_seeds = 2 }}
paper = {{ env_steps = 30, num_seeds = 3, env_steps_of = {{ Hopper-v4 = 40 }} }}

[suites.mujoco]
default = "agent"

[suites.mujoco-9]
default = "suite"
judged_by = "none"
tasks = ["Hopper-v4"]
settings.batch_size = {{ value = 8, because = "chosen here" }}
budgets.smoke = {{ env_steps = 11, num_seeds = 1 }}
"""


def write(root: Path, text: str, source: str = "somebody") -> Path:
    """Write what a source says; return the folder of all sources."""
    path = root / source / "agent.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def test_a_preset_is_what_its_file_says(tmp_path: Path) -> None:
    """A suite adds to the file's settings and budgets, and replaces all else that it names."""
    presets = Presets("agent", Config, write(tmp_path, PLAIN))
    mujoco, nine = presets["mujoco", "somebody"], presets["mujoco-9", "somebody"]
    assert mujoco.config == Config(gamma=0.9)
    assert mujoco.budgets == {
        "smoke": Budget(env_steps=10, num_seeds=1),
        "laptop": Budget(env_steps=20, num_seeds=2),
        "paper": Budget(env_steps=30, num_seeds=3, env_steps_of={"Hopper-v4": 40}),
    }
    assert (mujoco.judged_by, mujoco.tasks) == ("somebody", ())
    assert nine.config == Config(gamma=0.9, batch_size=8)
    assert nine.budgets == {**mujoco.budgets, "smoke": Budget(env_steps=11, num_seeds=1)}
    assert (nine.judged_by, nine.tasks) == (None, ("Hopper-v4",))
    assert nine.departures == mujoco.departures == ("another simulator",)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("gamma", "1", 1.0),
        ("hidden_sizes", "[64, 32]", (64, 32)),
        ("clip", '"none"', None),
        ("clip", "2", 2.0),
        ("form", '"tensorflow"', "tensorflow"),
        ("learn_alpha", "false", False),
    ],
)
def test_a_setting_has_the_type_of_its_field(
    tmp_path: Path, setting: str, value: str, expected: object
) -> None:
    """A record says 1.0 where the configuration has a float, whatever the file's writer typed."""
    text = PLAIN.replace("gamma = { value = 0.9", f"{setting} = {{ value = {value}")
    config = Presets("agent", Config, write(tmp_path, text))["mujoco", "somebody"].config
    assert getattr(config, setting) == expected
    assert type(getattr(config, setting)) is type(expected)


def test_task_and_protocol_are_said_once(tmp_path: Path) -> None:
    """A preset whose configuration has another protocol than itself would mix two games."""
    facts = PLAIN[: PLAIN.index("[suites.mujoco]")].replace("Hopper-v4", "Pong-v5")
    text = f'task = "Pong-v5"\nprotocol = "sticky"\n{facts}[suites.atari]\ndefault = "agent"\n'
    preset = Presets("agent", Config, write(tmp_path, text))["atari", "somebody"]
    assert preset.config == Config(task="Pong-v5", protocol="sticky", gamma=0.9)
    assert preset.protocol == "sticky"


COMMIT, REPOSITORY = 'commit = "0123456789abcdef', 'repository = "some/body"'
TITLE, AT = 'title = "Somebody"', ', at = "train.py:31"'
GAMMA, SMOKE = f"gamma = {{ value = 0.9{AT} }}", "smoke = { env_steps = 10, num_seeds = 1 }"
MISTAKES: dict[str, tuple[str, str]] = {
    "a key": ("departures", "departure"),
    "a setting": ("gamma =", "gama ="),
    "a budget's key": ("num_seeds = 2", "seeds = 2"),
    "a budget of no seed": ("num_seeds = 2", "num_seeds = 0"),
    "a suite": ("suites.mujoco]", "suites.mujocco]"),
    "no title": (TITLE, ""),
    "neither data nor suites": (PLAIN, "title = 'x'"),
    "no judge": ('judged_by = "somebody"', ""),
    "a judge without measurements": (DATA, ""),
    "a budget less": (SMOKE, ""),
    "a budget's task": ("num_seeds = 2", 'num_seeds = 2, tasks = ["Hoper-v4"]'),
    "a task": (TITLE, f'{TITLE}\ntask = "Hoper-v4"'),
    "text for a number": ("value = 0.9", 'value = "0.9"'),
    "a fraction": ("value = 8", "value = 8.0"),
    "a number for a table": (GAMMA, "gamma = 0.9"),
    "a word": ("gamma = { value = 0.9", 'form = { value = "jax"'),
    "a number for yes": (DATA, DATA.replace("true", "1")),
    "a short commit of data": (DATA, f'{DATA}commit = "0123"'),
    "no citation": (AT, ""),
    "no line cited": ("train.py:31", "train.py"),
    "a commit alone": (REPOSITORY, ""),
    "a citation of nothing": (PLAIN, re.sub("repository.*", "", PLAIN.replace(DATA, ""))),
    "a short commit": (COMMIT, COMMIT[:-5]),
    "a value out of range": ("value = 0.9", "value = 1.9"),
    "a suite's task": ('tasks = ["Hopper-v4"]', 'tasks = ["Pong-v5"]'),
    "no TOML": ("title =", "title"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_file_and_key(mistake: str, tmp_path: Path) -> None:
    """Settings that are silently left out, or of the wrong type, train something else."""
    old, new = MISTAKES[mistake]
    assert old in PLAIN
    root = write(tmp_path, PLAIN.replace(old, new, 1))
    with refused():
        len(Presets("agent", Config, root))


UNDEFAULTED = PLAIN.replace('default = "agent"', "").replace('default = "suite"', "")


def test_suites_and_sources_come_in_an_order_of_their_own(tmp_path: Path) -> None:
    """The first preset is an agent's default; folders' names and the disk must not choose it."""
    classic = UNDEFAULTED.replace("suites.mujoco-9]", "suites.classic]")
    classic = classic.replace('["Hopper-v4"]', '["Pendulum-v1"]')
    write(tmp_path, classic, "aaa")
    write(tmp_path, classic.replace("suites.classic]", 'suites.classic]\ndefault = "suite"'), "zzz")
    write(tmp_path, PLAIN, "somebody")
    presets = Presets("agent", Config, tmp_path)
    assert list(presets) == [
        ("mujoco", "somebody"),
        ("mujoco", "aaa"),
        ("mujoco", "zzz"),
        ("classic", "zzz"),
        ("classic", "aaa"),
        ("mujoco-9", "somebody"),
    ]
    assert [find_source(presets, suite, None) for suite in ("mujoco", "classic", "mujoco-9")] == [
        *("somebody", "zzz", "somebody")
    ]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (PLAIN, PLAIN),
        (UNDEFAULTED, UNDEFAULTED),
        (PLAIN, UNDEFAULTED.replace("suites.mujoco]", 'suites.mujoco]\ndefault = "suite"')),
    ],
    ids=["two agents'", "none", "two suites'"],
)
def test_two_that_claim_one_place_are_refused(tmp_path: Path, mine: str, theirs: str) -> None:
    """Which of the two is trained would be chance."""
    write(tmp_path, mine)
    root = write(tmp_path, theirs, "another")
    with refused():
        len(Presets("agent", Config, root))


def test_numbers_alone_are_a_source_without_settings(tmp_path: Path) -> None:
    """A curve that is only drawn needs no preset, and settings need no curve."""
    root = write(tmp_path, PLAIN.replace(DATA, "").replace('by = "somebody"', 'by = "drawn"'))
    facts = PLAIN[: PLAIN.index("judged_by")]
    write(tmp_path, facts + DATA, "drawn")
    assert {source for _, source in Presets("agent", Config, root)} == {"somebody"}
    said = read_source(root / "drawn" / "agent.toml")
    notes = "Read from a table."
    assert said["data"] == Data(judges=True, rule="training", path="c.csv", notes=notes)
    assert "data" not in read_source(root / "somebody" / "agent.toml")


def test_files_that_did_not_travel_are_one_line(tmp_path: Path) -> None:
    """Defaults in the place of a source's settings would be another experiment."""
    with pytest.raises(UsageError, match="sources must be there, not at"):
        len(Presets("agent", Config, tmp_path / "absent"))


def test_an_agent_without_a_file_has_its_defaults(tmp_path: Path) -> None:
    """On every suite with a task that its `Config` accepts, beginning with that of its own task."""
    presets = Presets("my_sac", sac.Config, tmp_path)
    assert next(iter(presets)) == ("mujoco", "defaults")
    assert ("atari", "defaults") not in presets
    preset = presets["classic", "defaults"]
    assert preset.config == sac.Config(task=preset.tasks[0])
    assert (preset.judged_by, "CartPole-v1" in preset.tasks) == (None, False)
    of_a2c = Presets("my_a2c", a2c.Config, tmp_path)
    assert "CartPole-v1" in of_a2c["classic", "defaults"].tasks


def test_a_copy_says_which_of_its_defaults_a_preset_replaces() -> None:
    """An edit that does nothing is said; what a flag sets, and an agent's own presets, are not."""
    key = ("classic", "sb3_control")
    config = a2c.PRESETS[key].config
    assert replaced(a2c.PRESETS, "a2c", key, config) == ""
    said = replaced(a2c.PRESETS, "my_a2c", key, config)
    assert said.startswith("agents/my_a2c.py takes the presets of a2c: sb3_control sets ")
    name = said.partition(" sets ")[2].split(" = ")[0]
    changed = dataclasses.replace(config, **{name: getattr(a2c.Config(), name)})
    assert f" {name} = " not in replaced(a2c.PRESETS, "my_a2c", key, changed)
    preset = a2c.PRESETS[key].config
    assert len(replacements(preset, config)) == len(replacements(preset, changed)) + 1
    assert not replacements(a2c.Config(), a2c.Config())


DEFAULT_TASKS = {
    **dict.fromkeys(("a2c", "acer", "ppo", "sac_discrete"), "CartPole-v1"),
    **dict.fromkeys(("sac", "sac_value", "sac_alf"), "HalfCheetah-v4"),
    **{"acer_continuous": "Pendulum-v1", "impala": "Pong-v5"},
}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_task_or_a_suite_alone_is_trained_by_its_preset(agent: str) -> None:
    """`--task Hopper-v4` takes the settings of `mujoco`, a suite one of its tasks; judges exist."""
    judges = {name for name, source in sources(agent).items() if source.judges}
    presets = Presets(agent, importlib.import_module(f"agents.{agent}").Config)
    suites = {suite for suite, _ in presets}
    home = {task: suite for suite in [*SUITES][::-1] for task in find_suite(suite)}
    tasks = ("Pong-v5", "Hopper-v4", "Reacher-v4", "Ant-v4", "Alien-v5")
    expected = ["atari-7", "mujoco", "mujoco-small", "mujoco", "atari"]
    assert [home[task] for task in tasks] == expected
    for (suite, source), preset in presets.items():
        members = preset.tasks or find_suite(suite)
        config, _ = read_command_line(presets, ["--suite", suite, "--like", source], agent="x")
        assert config.task in members
        assert preset.judged_by in (None, *judges)
        for task in members[::4] if source == find_source(presets, suite, None) else ():
            _, options = read_command_line(presets, ["--task", task], agent="x")
            assert options.suite == (home[task] if home[task] in suites else suite)
    config, _ = read_command_line(presets, [], agent="x")
    assert config.task == DEFAULT_TASKS.get(agent), "name the task in DEFAULT_TASKS"


LONGER_THAN_THE_RATE = {
    ("acer", "pfrl_control"): "a control states no steps: those of its budgets are the source's",
    ("impala", "rllib_control"): "as above",
    ("impala", "rllib_2018"): "its runs have 23M steps, past the end of the rate at 20M",
}


@pytest.mark.parametrize("agent", UNROLL_AGENTS)
def test_no_run_outlasts_its_learning_rate_by_default(agent: str) -> None:
    """What nobody asked for would be trained at rate 0; no budget does so at all."""
    presets = Presets(agent, importlib.import_module(f"agents.{agent}").Config)
    for (_, source), preset in presets.items():
        lengths = list[int]()
        for budget in preset.budgets.values():
            lengths += [budget.env_steps, *budget.env_steps_of.values()]
        if (agent, source) not in LONGER_THAN_THE_RATE:
            lengths.append(preset.config.env_steps)
        horizon = preset.config.learning_rate_decay_steps
        assert not horizon or max(lengths) <= horizon, source


def test_every_file_belongs_to_an_agent() -> None:
    """A file under a misspelt name would never be read."""
    assert {path.stem for path in REFERENCES.glob("*/*.toml")} <= set(AGENTS)


def read_all(folder: Path) -> dict[str, object]:
    """Read all presets that the copy of `suite/settings/presets.py` in a folder would read."""
    assert (folder / "suite" / "settings" / "presets.py").exists()
    root = folder / REFERENCES.relative_to(ROOT)
    configs = {agent: importlib.import_module(f"agents.{agent}").Config for agent in AGENTS}
    return {agent: Presets(agent, config, root) for agent, config in configs.items()}


def test_ray_and_a_wheel_carry_the_files(tmp_path: Path) -> None:
    """On a node, or installed, an agent would else have no settings at all."""
    ours = read_all(ROOT)
    sent, tree = tmp_path / "sent", tmp_path / "tree"
    copy_code(sent)
    assert read_all(sent) == ours
    shutil.copytree(sent, tree)
    shutil.copytree(REFERENCES, tree / REFERENCES.relative_to(ROOT), dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tree / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    assert read_all(installed) == ours
    held = installed / REFERENCES.relative_to(ROOT)
    for path in REFERENCES.rglob("*.*"):  # numbers judge where the harness is, not on a node
        assert (held / path.relative_to(REFERENCES)).read_bytes() == path.read_bytes()
