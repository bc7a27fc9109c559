"""A policy acts in an ONNX runtime as it does here."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import agents
from reproduce import __main__ as command_line
from reproduce.commands.export import export_onnx, graph_of, refuse_unable
from reproduce.plan.presets import PUBLISHED
from suite.policy import Policy, read_policy, save_policy
from suite.settings.older import todays_settings
from tests.messages import check, refused

pytestmark = pytest.mark.long

RUNS = {
    "a2c": "a2c-classic/rl_zoo/Pendulum-v1",
    "a2c, discrete": "a2c-classic/rl_zoo/CartPole-v1",
    "a2c, frames": "a2c-atari-7/nnabla_rl/Breakout-v5",
    "acer": "acer-classic/tuned/CartPole-v1",
    "acer_continuous": "acer_continuous-classic/tuned/Pendulum-v1",
    "impala": "impala-classic/tuned/CartPole-v1",
    "ppo": "ppo-classic/sb3_control/CartPole-v1",
    "ppo, normalised frames": "ppo-atari-7/tuned/Pong-v5",
    "sac": "sac-mujoco-small/paper/Reacher-v4",
    "sac_discrete": "sac_discrete-classic/tuned/CartPole-v1",
    "sac_alf, mixed": "sac_alf-hybrid/tuned/Claw-v0",
    "sac_alf": "sac-mujoco-small/paper/Reacher-v4",  # which acts as SAC does
    "sac_value": "sac-mujoco-small/paper/Reacher-v4",  # which does, too
}
"""Published policies of every agent."""
GYM = "gymnasium:CartPole-v1"


def observations(policy: Policy, number: int) -> np.ndarray:
    """Return any observations of a policy's task."""
    generator, shape = np.random.default_rng(number), (number, *policy._spaces.obs_shape)
    if len(shape) == 4:
        return generator.integers(0, 256, shape, dtype=np.uint8)
    return generator.normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", RUNS)
def test_a_graph_acts_as_its_policy(case: str, tmp_path: Path) -> None:
    """The same modes in the task's units, of every agent, for any number of observations."""
    assert {case.partition(",")[0] for case in RUNS} == set(agents.AGENTS)
    run = PUBLISHED / RUNS[case] / "seed-1"
    if case in ("sac_alf", "sac_value"):
        weights, description = read_policy(run)
        module, run = importlib.import_module(f"agents.{case}"), tmp_path
        settings = todays_settings(module.Config, description)
        save_policy(run, weights, {**settings, "agent": case})
    policy = agents.load_policy(run)
    graph, _ = graph_of(policy)
    obs = observations(policy, 16)
    with torch.no_grad():
        actions = graph(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(actions, policy(obs), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "case",
    [
        *("sac", "ppo, normalised frames"),
        *(pytest.param(case, marks=pytest.mark.further) for case in ("a2c", "a2c, frames")),
    ],
)
def test_an_exported_file_acts_as_its_policy(case: str, tmp_path: Path) -> None:
    """A perceptron, normalised observations and frames of bytes, in batches of any size."""
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = PUBLISHED / RUNS[case] / "seed-1"
    policy, file = agents.load_policy(folder), tmp_path / "a.onnx"
    lines = export_onnx(folder, file)
    session = onnxruntime.InferenceSession(str(file))
    for number in (1, 3, 8):
        obs = observations(policy, number)
        actions, *_ = session.run(None, {"observations": obs})
        assert actions.dtype == policy(obs).dtype
        np.testing.assert_allclose(actions, policy(obs), rtol=1e-4, atol=1e-5)
    check("\n".join(lines), case)
    said = session.get_modelmeta().custom_metadata_map
    assert (said["agent"], said["task"]) == (case[:3], policy.task.name)
    assert b"reproduce/" not in file.read_bytes()  # where the sources lie is nobody's business


def test_what_has_no_onnx_form_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recurrent policies, bfloat16, an unknown agent, another ending, a folder without a policy."""
    said = {"agent": "impala"}
    export = ("export", str(tmp_path / "copy"), "--onnx")
    shutil.copytree(PUBLISHED / RUNS["impala"] / "seed-1", tmp_path / "copy")
    for case, refuse in {
        "recurrent": lambda: refuse_unable({"core.lstm.weight": torch.zeros(1)}, said),
        "bfloat16": lambda: refuse_unable({}, {**said, "bfloat16": True}),
        "another ending": lambda: command_line.main([*export, str(tmp_path / "a.pb")]),
        "no folder": lambda: command_line.main([*export, str(tmp_path / "x" / "a.onnx")]),
        "no best": lambda: command_line.main([*export, "a.onnx", "--best"]),
        "another task": lambda: command_line.main([*export, "a.onnx", f"--task-from={GYM}"]),
        "no policy": lambda: command_line.main(["export", str(tmp_path), "--onnx", "a.onnx"]),
    }.items():
        with refused(case):
            refuse()
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert capsys.readouterr().out == ""
