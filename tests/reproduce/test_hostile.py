"""Input that means harm, or none: one line, status 2, nothing written, nothing executed.

What is opened for writing, and what is started, is seen by an audit hook of the interpreter.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reproduce import ROOT
from reproduce.commands import evaluate as evaluating
from reproduce.commands import grid
from reproduce.commands.evaluate import evaluate_run
from reproduce.judge.verdicts import STATUSES
from reproduce.pipeline import gather, write_report
from reproduce.plan.make import load_plan
from reproduce.plan.request import SAVED
from suite.base.errors import UsageError
from suite.base.randomness import environment_seeds
from suite.envs.vector_env import VectorEnv
from tests.reproduce.conftest import TASK, Say, pendulum, record_run, reseal, saved

slow = pytest.mark.slow
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
STARTS += ("pickle.find_class",)
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

watching: list[list[str]] = []
"""The list that audited deeds go to, if anybody watches."""


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event in STARTS or event in CHANGES:
        watching[-1].append(f"{event} {arguments[:2]}")
    # A folder is opened in this way for a temporary file without a name, which leaves nothing.
    writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if writing and not (isinstance(arguments[0], str) and os.path.isdir(arguments[0])):
        watching[-1].append(f"open {arguments[0]} for writing")


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    """Audit this process from now on; a hook cannot be taken away, only ignored."""
    sys.addaudithook(audit)


def examples(count: int) -> Any:
    """Settings of a property that is tried `count` times."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


NAMES = [
    *("../../x", "..", ".", "/etc/passwd", "~", "~root/x", "a/b", "a\\b", "//x", "C:\\x", "-"),
    *("$(touch pwned)", "`touch pwned`", "; touch pwned", "| touch pwned", "&& touch pwned"),
    *("a\nb", "a\rerror: b", "\x1b[2Jx", "\u202egnp", "\udc80", "a\tb", "\x00", "\x7f", "x" * 300),
    *("{0.__class__}", "{{7*7}}", "%s%n", "<script>", "__import__('os')", "sac/../sac", "sac\n"),
    *("", "--", "Pendulum-v1/../x", "é", "ﬁ", "🐚", " ", "\u200b", "NUL", "None", "1e999"),
]
names = st.one_of(st.sampled_from(NAMES), st.text(min_size=1, max_size=40))

PLACES = (
    *("NAME classic", "sac NAME", "sac classic NAME", "sac classic --NAME 1", "report sac NAME"),
    *("sac classic --tasks NAME", "sac classic --budget NAME", "sac classic --seeds 1 NAME"),
    *("sac classic --like NAME", "sac classic --device NAME", "sac classic --workers NAME"),
    *("sac classic --set NAME", "sac classic --set NAME=1", "sac classic --set batch_size=NAME"),
    *("evaluate NAME", "compare NAME NAME"),
)
"""Command lines with a name that nobody knows."""


@pytest.mark.parametrize("line", PLACES)
def test_a_hostile_name_is_refused_in_one_line_wherever_it_stands(
    line: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed there without harm is in `test_command_line.py`."""
    desk = tmp_path / "desk"  # so that `..` is empty, too: other tests leave runs above it
    desk.mkdir()
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(grid, "run_plan", lambda plan, *_, **options: 0)
    for name in NAMES:
        word_of = name if name and not name.startswith("-") else f"x{name}"
        watching.append([])
        try:
            status, out, err = say([word.replace("NAME", word_of) for word in line.split()])
        finally:
            deeds = watching.pop()
        assert (status, out, deeds) == (2, "", [])
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err[:-1].isprintable(), err
    assert list(tmp_path.rglob("*")) == [desk]


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), names),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("times", [30, pytest.param(500, marks=slow)])
def test_a_plan_that_was_tampered_with_is_refused_or_harmless(times: int, tmp_path: Path) -> None:
    """Whatever stands in `plan.json`: a plan inside the runs directory, or one line."""
    saved(pendulum(tmp_path))
    file = tmp_path / "sac-classic" / "tuned" / "plan.json"
    whole = json.loads(file.read_text())

    numbers = st.lists(st.integers(0, 21), max_size=9) | anything
    row = {"task": st.just(TASK), "env_steps": st.just(whole["env_steps"][TASK]) | anything}
    rows = st.lists(st.fixed_dictionaries(row | {"seeds": numbers}))

    ours = {"task": TASK, "env_steps": whole["env_steps"][TASK]}

    @examples(times)
    @example("declared", [ours | {"seeds": [1, 1]}])
    @example("declared", [ours | {"seeds": []}])
    @given(st.sampled_from((*SAVED, "declared")), anything | rows)
    def check(key: str, value: Any) -> None:
        file.write_text(json.dumps(whole | {key: value}))
        try:
            plan = load_plan("sac", "classic", None, tmp_path)
        except UsageError:
            return
        for run in plan.runs():
            assert run.directory.resolve().is_relative_to(tmp_path.resolve())
        for seeds in plan.declared.values():
            assert len(set(seeds)) == len(seeds) > 0

    check()


POLICIES = {
    "a2c": "a2c-classic/rl_zoo/CartPole-v1",
    "acer": "acer-classic/tuned/CartPole-v1",
    "acer_continuous": "acer_continuous-classic/tuned/Pendulum-v1",
    "impala": "impala-classic/tuned/CartPole-v1",
    "sac": "sac-mujoco-small/paper/Reacher-v4",
    "sac_alf": "sac_alf-hybrid/tuned/Claw-v0",
}
HUGE = [[60_000, 60_000], 60_000, [2**40], [3] * 30_000, [8, 2**31]]
SPOILS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda tensor: torch.full_like(tensor, torch.nan),
    lambda tensor: tensor.flatten(),
    lambda tensor: tensor.transpose(0, -1).contiguous(),
    lambda tensor: tensor[..., :0].contiguous(),
    lambda tensor: tensor.double(),
    lambda tensor: tensor.to(torch.float8_e4m3fn),
    lambda tensor: tensor > 0,
    lambda tensor: tensor.to(torch.complex64),
    lambda tensor: torch.full_like(tensor, 3e38),
]
"""Ways to spoil a tensor."""
WEIGHTS_FILE = "policy.safetensors"


@pytest.mark.parametrize("agent", POLICIES)
@pytest.mark.parametrize("times", [8, pytest.param(300, marks=slow)])
def test_a_tampered_policy_is_refused_or_acts(agent: str, times: int, tmp_path: Path) -> None:
    """Whatever its description or its weights say: one line, or actions; never gigabytes."""
    folder = ROOT / "results" / "published" / POLICIES[agent] / "seed-1"
    description = json.loads((folder / "policy.json").read_text())
    weights = safetensors.torch.load_file(folder / "policy.safetensors")
    keys, names_of = sorted(description.keys() - {"agent"}), sorted(weights)

    def tried() -> str:
        try:
            evaluate_run(tmp_path, episodes=1)
        except UsageError as error:
            return str(error)
        return ""

    @examples(times)
    @example("hidden_sizes", [60_000, 60_000], 0, None)
    @example("obs_shape", [2**40], 0, None)
    @example("hidden_sizes", [1] * 30_000, 0, None)
    @example("hidden_sizes", "60000", 0, None)
    @example("hidden_sizes", [64.5, 64], 0, None)
    @example("low", [-1.0] * 30_000, 0, None)
    @example("low", {"1e999": None}, 0, None)
    @given(
        st.sampled_from(keys),
        anything | st.sampled_from(HUGE),
        st.integers(0, len(names_of) - 1),
        st.none() | st.sampled_from(SPOILS),
    )
    def check(key: str, value: Any, place: int, spoil: Any) -> None:
        changed = {} if spoil is None else {names_of[place]: spoil(weights[names_of[place]])}
        told = description | ({key: value} if spoil is None else {})
        (tmp_path / "policy.json").write_text(json.dumps(told))
        safetensors.torch.save_file({**weights, **changed}, tmp_path / WEIGHTS_FILE)
        said = tried()
        assert len(said) < 1000
        assert len(said.splitlines()) < 2

    with pytest.MonkeyPatch.context() as patch:  # one step is enough to see it act
        patch.setattr(evaluating, "evaluate", one_step)
        check()
        (tmp_path / "policy.json").write_text(json.dumps(description))
        for name, tensor in weights.items():
            for wrong in (torch.full_like(tensor, torch.nan), tensor[..., :0].contiguous()):
                safetensors.torch.save_file(weights | {name: wrong}, tmp_path / WEIGHTS_FILE)
                assert tried(), name


def one_step(task: Any, act: Any, seeds: Any, *_: Any, **options: Any) -> Any:
    """Play one step in place of an episode."""
    env = VectorEnv(task, environment_seeds(seeds, 1, "test"))
    return env.step(act(env.reset())).rewards, None


CELLS = ["x", "", "nan", "inf", "-1", "1e400", "1" + "0" * 30, "0.5", '"', "1,1", "\0", "True", "é"]
KINDS = ["evaluations.csv", "timing.csv", "episodes.csv", "run.json"]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("times", [1, pytest.param(500, marks=slow)])
def test_one_bad_run_never_sinks_a_report(
    times: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever its files say, and whoever sealed them: it is a line, and the other run counts."""
    if times == 1:  # charts take nine tenths of the time
        request.getfixturevalue("undrawn")
    plan = pendulum(tmp_path, [1, 2])
    steps = plan.env_steps[TASK]
    folder, _ = (record_run(plan, TASK, n, {steps - 9: n, steps: n}) for n in (2, 1))
    (folder / "episodes.csv").write_text("env_steps,episode_return,episode_length\n1,2,3\n4,5,6\n")
    whole = {name: (folder / name).read_text() for name in KINDS}
    record = json.loads(whole["run.json"])
    keys = sorted(record.keys() - {"config"})  # other settings are refused, by design

    @examples(times)
    @example("evaluations.csv", 0, 0, "a", None)
    @example("evaluations.csv", 1, 0, "x", None)
    @example("evaluations.csv", 1, 1, "inf", None)
    @example("evaluations.csv", 1, 1, "1e195", None)  # its square is no float
    @example("timing.csv", 2, 0, CELLS[6], None)
    @example("timing.csv", 1, 1, "", None)
    @example("run.json", 0, keys.index("wall_seconds"), "", "x")
    @example("run.json", 0, keys.index("machine"), "", {"cpu": [1], "gpu": float("nan")})
    @example("run.json", 0, keys.index("versions"), "", [1])
    @example("run.json", 1, 0, "", 10**30)
    @given(
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.integers(0, 30),
        st.one_of(st.sampled_from(CELLS), st.floats().map(repr)),
        anything,
    )
    def check(name: str, row: int, column: int, cell: str, value: Any) -> None:
        rows = [line.split(",") for line in whole[name].splitlines()]
        rows[row][column % len(rows[row])] = cell
        text = "\n".join(map(",".join, rows)) + "\n"
        if name == "run.json":
            said = record | ({keys[column % len(keys)]: value} if row == 0 else {})
            said["config"] = record["config"] | ({"env_steps": value} if row == 1 else {})
            text = json.dumps(said)
        for other in KINDS:
            (folder / other).write_text(text if other == name else whole[other])
        reseal(folder)
        tables = gather(plan)
        write_report(plan, tables)
        runs = tables["runs"]
        assert runs.status[0] == "finished"
        assert runs.status[1] in STATUSES
        assert "\n" not in runs.error[1]
        assert tables["verdicts"].num_seeds[0] >= 1

    check()
