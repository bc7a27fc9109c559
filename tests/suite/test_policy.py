"""Policies on disk: what acting needs is loaded, and nothing else ever is."""

import json
import pickle
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from agents import load_policy, sac
from suite.base.errors import UsageError
from suite.envs.tasks import find_task
from suite.envs.vector_env import Spaces
from suite.policy import Policy, config_of, read_policy, save_policy
from tests.bombs import Bomb
from tests.messages import refused

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

DESCRIPTION = {"agent": "sac", "task": "Hopper-v4", "hidden_sizes": [8, 8], "gamma": 0.1 + 0.2}


def saved(directory: Path) -> Path:
    save_policy(directory, {"x": torch.zeros(3)}, DESCRIPTION)
    return directory


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings as an agent states them."""

    task: str = "CartPole-v1"
    hidden_sizes: tuple[int, ...] = (64, 64)
    clip: float | None = 1.0
    gamma: float = 0.99


def test_a_description_gives_back_the_settings_that_acting_needs() -> None:
    """Others keep their defaults, whatever else the file holds."""
    description = {**DESCRIPTION, "clip": None, "obs_shape": [3], "gamma": 0.5}
    ours = config_of(Config, description, ("hidden_sizes", "clip"))
    assert ours == Config(task="Hopper-v4", hidden_sizes=(8, 8), clip=None)
    assert type(ours.hidden_sizes) is tuple


@pytest.mark.parametrize("name", ["task", "hidden_sizes", "clip"])
def test_a_description_that_lacks_a_setting_is_refused(name: str) -> None:
    """A default in its place would act otherwise than what was trained, without a word."""
    description = {**DESCRIPTION, "clip": None}
    del description[name]
    with pytest.raises(UsageError, match=f"lacks {name}$"):
        config_of(Config, description, ("hidden_sizes", "clip"))


def test_a_policy_with_a_setting_that_is_gone_is_refused_unless_it_made_no_difference() -> None:
    """The value that an agent has kept is no reason to refuse; nor is a setting that it has."""
    description = {**DESCRIPTION, "clip": None}
    config_of(Config, description | {"separate_optimisers": False}, ("hidden_sizes", "clip"))
    message = "has separate_optimisers = True, which this agent has no more"
    with pytest.raises(UsageError, match=message):
        config_of(Config, description | {"separate_optimisers": True}, ("hidden_sizes", "clip"))


def test_a_tasks_module_is_never_imported_because_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was handed over may hold both; who trusts the module imports it first."""
    (tmp_path / "handed_over.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    description = {**DESCRIPTION, "task": "handed_over:Any-v0", "clip": None}
    with refused():
        config_of(Config, description, ("hidden_sizes", "clip"))
    monkeypatch.setitem(sys.modules, "handed_over", ModuleType("handed_over"))
    assert config_of(Config, description, ("hidden_sizes", "clip")).task == "handed_over:Any-v0"


OF_PUBLISHED = pytest.mark.parametrize(
    "setting", sorted(path.name for path in PUBLISHED.iterdir() if list(path.rglob("policy.json")))
)


@OF_PUBLISHED
def test_published_policies_still_act(setting: str) -> None:
    """Under whatever names their settings were recorded: in their task's units, and finite."""
    path = min((PUBLISHED / setting).rglob("policy.json"))
    policy = load_policy(path.parent)
    spaces = Spaces.from_json(json.loads(path.read_text()))
    obs = (
        np.random.default_rng(0)
        .integers(0, 2, (3, *spaces.obs_shape))
        .astype(np.uint8 if len(spaces.obs_shape) == 3 else np.float32)
    )
    for generator in (None, np.random.default_rng(0)):
        actions = policy(obs, generator)
        if spaces.num_choices:
            assert set(actions[:, 0].tolist()) <= set(range(spaces.num_choices))
            actions = actions[:, 1:]
        if spaces.continuous:
            assert actions.shape == (3, spaces.num_outputs)
            assert ((actions >= spaces.low) & (actions <= spaces.high)).all()
        else:
            assert actions.shape == (3,)
            assert ((actions >= 0) & (actions < spaces.num_outputs)).all()


@OF_PUBLISHED
def test_a_description_that_contradicts_the_weights_is_refused(
    setting: str, tmp_path: Path
) -> None:
    """Observations or actions of another size are not those that the weights were trained on."""
    path = min((PUBLISHED / setting).rglob("policy.json"))
    shutil.copytree(path.parent, tmp_path / "run")
    description = json.loads(path.read_text())
    wrong = [{"obs_shape": [n + 1 for n in description["obs_shape"]]}]
    wrong += [{"num_outputs": description["num_outputs"] + 1}]
    if description["num_outputs"] > 1 and description["low"]:  # numpy would repeat them
        wrong += [{name: description[name][:1] for name in ("low", "high")}]
    for changes in wrong:
        (tmp_path / "run" / path.name).write_text(json.dumps(description | changes))
        with pytest.raises(UsageError, match="unreadable policy"):
            load_policy(tmp_path / "run")


def test_an_action_never_leaves_its_space() -> None:
    """Not by rounding either: half of the range, added in single precision, may end beyond it."""
    generator = np.random.default_rng(0)
    low = generator.uniform(-5, 0, 500).astype(np.float32)
    high = (low + generator.uniform(0.1, 5, 500)).astype(np.float32)
    spaces = Spaces((1,), 500, tuple(low.tolist()), tuple(high.tolist()))
    ends = np.stack([-np.ones(500), np.ones(500)]).astype(np.float32)
    policy = Policy(find_task("Pendulum-v1"), spaces, lambda obs, draws: ends)
    actions = policy(np.zeros((2, 1)))
    assert ((actions >= low) & (actions <= high)).all()
    np.testing.assert_allclose(actions, [low, high], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["discrete", "hybrid"])
def test_numbers_of_actions_are_the_tasks_own(kind: str) -> None:
    """A space may begin at five, which only `act` leaves out: an environment here adds it."""
    discrete = Spaces((1,), 3, start=5)
    hybrid = Spaces.vectors(1, 1)._replace(num_choices=3, start=5)
    spaces = json.loads(json.dumps({"discrete": discrete, "hybrid": hybrid}[kind]._asdict()))

    def decide(obs: np.ndarray, _: np.random.Generator | None) -> np.ndarray:
        numbers = obs[:, 0].astype(np.int64)
        return numbers if kind == "discrete" else np.stack([numbers, 0.5 + 0.0 * numbers], axis=1)

    policy = Policy(find_task("CartPole-v1"), Spaces.from_json(spaces), decide)
    first = (...,) if kind == "discrete" else (..., 0)
    obs = np.arange(3, dtype=np.float32)[:, None]
    for act, numbers in ((policy.act, [0, 1, 2]), (policy, [5, 6, 7])):
        actions = act(obs)
        assert actions[first].tolist() == numbers
        assert kind == "discrete" or (actions[:, 1] == 0.5).all()
    del spaces["start"]  # as older files
    assert Policy(policy.task, Spaces.from_json(spaces), decide)(obs)[first].tolist() == [0, 1, 2]


def test_no_policy_is_a_usage_error(tmp_path: Path) -> None:
    """`evaluate` of a run that never finished says so in one line."""
    with pytest.raises(UsageError, match="holds no trained policy"):
        read_policy(tmp_path)
    saved(tmp_path)
    (tmp_path / "policy.json").unlink()
    with pytest.raises(UsageError, match="holds no trained policy"):
        read_policy(tmp_path)


def test_an_agent_without_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new agent may be, whose policies are trained already."""
    saved(tmp_path)
    monkeypatch.delattr(sac, "load")
    with pytest.raises(UsageError, match=r"^agents/sac\.py has no load"):
        load_policy(tmp_path)


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_pickle_in_disguise_is_refused_and_not_run(form: str, tmp_path: Path) -> None:
    """A downloaded run directory must not be able to run code."""
    saved(tmp_path)
    target, path = tmp_path / "executed", tmp_path / "policy.safetensors"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Bomb(target)))
    else:
        torch.save({"x": Bomb(target)}, path)
    with pytest.raises(UsageError, match="unreadable policy"):
        read_policy(tmp_path)
    assert not target.exists()
    pickle.loads(pickle.dumps(Bomb(target)))
    assert target.exists()  # the bomb was live


def forged(kind: str, shape: int, end: int, data: bytes) -> bytes:
    """Return a file of one tensor whose header claims this."""
    entry = {"dtype": kind, "shape": [shape], "data_offsets": [0, end]}
    text = json.dumps({"x": entry}).encode()
    return struct.pack("<Q", len(text)) + text + data


WRONG = {
    "huge header": ("safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "huge shape": ("safetensors", forged("F32", 2**40, 4, b"abcd")),
    "type unknown to torch": ("safetensors", forged("F4", 2, 1, b"a")),
    "cut": ("safetensors", forged("F32", 1, 4, b"abc")),
    "torn": ("json", b"{"),
    "list": ("json", b"[]"),
    "no agent": ("json", b'{"task": "Hopper-v4"}'),
    "list agent": ("json", b'{"agent": ["sac"]}'),
    "no text": ("json", b"\xff\xfe"),
    "too deep": ("json", b"[" * 100_000),
}
"""By what is wrong: which of a policy's two files, and what stands in it."""


@pytest.mark.parametrize(("suffix", "content"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_in_one_line(suffix: str, content: bytes, tmp_path: Path) -> None:
    """Offsets, shapes and types are the file's claims, and are not believed."""
    (saved(tmp_path) / f"policy.{suffix}").write_bytes(content)
    with pytest.raises(UsageError, match="unreadable policy") as refusal:
        read_policy(tmp_path)
    assert "\n" not in str(refusal.value)
