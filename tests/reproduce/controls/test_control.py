"""Controls: somebody else's program is run, recorded, faulted and published as one of ours.

Small scripts, run by a Python that has the standard library alone, stand in for peers.
"""

import dataclasses
import importlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agents.a2c import Config
from reproduce.__main__ import main
from reproduce.commands.report import without_updates
from reproduce.controls import peer as control
from reproduce.controls.peer import agents_of, make_control, peer_of, peers, read_peer
from reproduce.controls.publish import _budgets, check_publishable, publish
from reproduce.gather import collect, references
from reproduce.gather.tables import read_table
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, load_grid, make_plan, save_plan
from reproduce.plan.status import check_extensions
from reproduce.run import pool as pooling
from reproduce.run.pool import launch
from suite.record.reading import KEYS, read_record
from suite.settings import presets
from suite.settings.presets import BUDGETS, Presets, read_source
from tests.messages import refused
from tests.reproduce.conftest import ReadFrom, Say, recorded, saved, scored
from tests.reproduce.run.boards import ends, ignore
from tests.runs import tree

TOML = """
title = "Somebody's library"
repository = "somebody/library"
commit = "0123456789012345678901234567890123456789"
licence = "MIT"
families = ["classic"]

[a2c]
actions = ["discrete"]
sets = ["num_envs", "unroll_length", "learning_rate", "hidden_sizes", "reward_normalisation"]
departures = ["its simulator is its own"]

[a2c.choices]
reward_normalisation = ["none", "discounted_returns"]

[a2c.has]
time_limit_is_terminal = { value = false, at = "library/a2c.py:7" }
entropy_coef = { value = 0.25, at = "library/a2c.py:8-9" }
rmsprop_epsilon_in_root = { value = false, because = "it says so nowhere" }
rmsprop_initial_average = { value = 0.0, at = "library/a2c.py:10" }
value_coef = { value = 0.5, at = "library/a2c.py:11" }
normalise_observations = { value = false, at = "library/a2c.py:12" }
"""
TRAIN = """
def train(agent, config, seed, record):
    print(agent, config["task"], config["entropy_coef"])
    play = lambda seeds: [100.0 * seed + config["num_envs"]] * len(seeds)
    for env_steps in range(10, config["env_steps"] + 1, 10):
        record.episode(env_steps, seed + env_steps / 1000, 10)
        record.advance(env_steps, env_steps // 5, play)
    record.finish(env_steps, env_steps // 5, play)
"""
"""Ends an episode every ten steps; seed 3's at step 500 returns 3.5."""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that makes a peer called `fake` of its glue and its pins."""
    controls, environments = tmp_path / "controls", tmp_path / "environments"
    python = environments / "fake" / "bin" / "python"
    controls.mkdir()
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(control, "GLUE", controls)
    monkeypatch.setattr(control, "PEERS", environments)
    monkeypatch.setattr(pooling, "POLL_SECONDS", 0.02)

    def write(glue: str = TRAIN, pins: str = "# none\n", toml: str = TOML) -> None:
        (controls / "fake.py").write_text(glue)
        (controls / "fake.txt").write_text(pins)
        (controls / "fake.toml").write_text(toml)

    write()
    return write


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_sources_from: ReadFrom) -> Path:
    """A folder of sources of the test's own, with `rl_zoo` to be judged by."""
    folder = tmp_path / "references"
    settings = "rl_zoo/a2c.toml", "tianshou_v3/a2c.toml"  # of MuJoCo these are the default
    for name in (*settings, "comparable.csv", "rl_zoo/curves.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((presets.REFERENCES / name).read_bytes())
    own = folder / settings[0]
    text = own.read_text().replace("[suites.classic]", '[suites.classic]\ndefault = "agent"')
    own.write_text(text)
    monkeypatch.setattr(presets, "REFERENCES", folder)
    read_sources_from(folder)
    return folder


def plan_of(tmp_path: Path, *, num_seeds: int | None = 3, **asked: Any) -> Plan:
    """Return a plan of CartPole runs of 500 steps by the stand-in."""
    asked = {"tasks": ["CartPole-v1"], "env_steps": 500, **asked}
    plan = make_control("fake", "a2c", "classic", runs_dir=tmp_path, num_seeds=num_seeds, **asked)
    plan.directory.mkdir(parents=True, exist_ok=True)
    return plan


def run_all(plan: Plan) -> dict[int, tuple[str, str]]:
    """Run a plan; return state and error of every run by its seed."""
    return ends(launch(plan, ignore))


def test_a_control_is_recorded_scored_and_kept_as_ours(install: Install, tmp_path: Path) -> None:
    """So are its window, (450, 500], and its speed; it is not run again, and cannot go on."""
    plan = plan_of(tmp_path)
    assert plan.directory == tmp_path / "controls" / "fake" / "a2c-classic" / "rl_zoo"
    assert {state for state, _ in run_all(plan).values()} == {"finished"}
    folder = plan.directory / "CartPole-v1" / "seed-3"
    record = read_record(folder)
    assert record is not None
    assert record["status"] == "finished"
    assert set(KEYS) <= set(record)
    assert record["config"]["entropy_coef"] == 0.25  # the peer's own
    assert record["config"]["num_envs"] == 16  # the source's
    assert "control fake a2c classic" in record["command"]
    assert "reproduce/controls/peers/fake.py" in record["sources"]
    assert collect.score(folder, "training", 500) == pytest.approx(3.48)
    table = recorded(plan)["scores"]
    assert table["score"].tolist() == pytest.approx([1.48, 2.48, 3.48])
    speed = recorded(plan)["throughput"]
    assert speed["env_frames_per_second"].tolist() == speed["env_steps_per_second"].tolist()
    log = (plan.directory / "CartPole-v1" / "seeds-3.log").read_text()
    assert log == "a2c CartPole-v1 0.25\n"
    assert without_updates(plan) == []  # nobody knows: it is not warned of
    before, again = tree(tmp_path / "controls"), plan_of(tmp_path)
    assert again.groups() == []
    run_all(again)
    assert tree(tmp_path / "controls") == before
    longer = plan_of(tmp_path, env_steps=600)
    with refused():
        check_extensions(longer, longer.runs())


def test_evaluations_are_due_as_ours_are(install: Install, tmp_path: Path) -> None:
    """Every interval and at the end, each episode with a seed of its own, by seed and step."""
    glue = TRAIN.replace('[100.0 * seed + config["num_envs"]] * len(seeds)', "list(seeds)")
    install(glue)
    changes = ["evaluation_rule=sampled", "evaluation_interval=200", "evaluation_episodes=3"]
    plan = plan_of(tmp_path, num_seeds=2, settings=changes)
    run_all(plan)
    tables = [collect.evaluations(run.directory) for run in plan.runs()]
    singles = np.array([table[["return_0", "return_1", "return_2"]].to_numpy() for table in tables])
    assert [table["env_steps"].tolist() for table in tables] == [[200, 400, 500]] * 2
    assert np.unique(singles).size == singles.size
    assert tables[0]["mean_return"].to_numpy() == pytest.approx(singles[0].mean(axis=1))


CRASH = "raise ValueError('the peer is broken')"
FAULTS = {
    2: CRASH,
    3: f"import threading as t; t.Thread(target=exec, args=[{CRASH!r}]).start(); t.Event().wait()",
    4: "return",
    5: "record.episode(10, float('nan'), 1)",
}
"""What goes wrong with a seed."""


def test_a_broken_peer_fails_its_own_run(install: Install, tmp_path: Path) -> None:
    """A crash, also of a thread, an early end or garbage is that run's end, with its reason."""
    faults = [f"    if seed == {seed}: {line}\n" for seed, line in FAULTS.items()]
    install(TRAIN.replace("    print(", f"{''.join(faults)}    print("))
    fine, broken = ("finished", ""), ("failed", "exit 1: ValueError: the peer is broken")
    early = ("failed", "exit 0: no output")
    wrong = ("diverged", "a return that is not finite at 10 env_steps")
    found = run_all(plan_of(tmp_path, num_seeds=6))
    assert [*found.values()] == [fine, broken, broken, early, wrong, fine]


def test_only_the_glue_and_the_pins_that_made_a_run_count(install: Install, tmp_path: Path) -> None:
    """Where others are installed than pinned, nothing is trained, and the line names the fix."""
    run_all(plan_of(tmp_path, num_seeds=1))
    install(TRAIN + "# changed\n")
    (run,) = plan_of(tmp_path, num_seeds=1).runs()
    assert run.status == "left out"
    assert "fake.py has changed since" in run.remark
    install(pins="no-such-package==1.2\n")
    with refused():
        plan_of(tmp_path, num_seeds=1).runs()
    ((state, error),) = run_all(plan_of(tmp_path / "other", num_seeds=1)).values()
    assert state == "failed"
    assert "no-such-package nothing, not 1.2: run `make -B peers PEER=fake`" in error


WRONG = """
fakes a2c classic
fake a2c atari-7
fake a2c classic --tasks Pendulum-v1
fake a2c classic --tasks CartPole-v1 --set entropy_coef=0.5
fake a2c classic --set gamma=0.5
fake a2c classic --set reward_normalisation=value_targets
fake a2c classic --tasks CartPole-v1 --publish --env-steps 15000 --set evaluation_rule=sampled
fake a2c classic --tasks CartPole-v1
"""
"""The last one has no mistake: the peer's environment is missing."""


@pytest.mark.parametrize("words", WRONG.split("\n")[1:-1])
def test_bad_input_names_the_fix(install: Install, tmp_path: Path, words: str) -> None:
    """A missing environment, too, is one line, before anything is trained."""
    (tmp_path / "environments" / "fake" / "bin" / "python").unlink()
    with refused(words):
        main(["control", *words.split(), "--runs-dir", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("interval", "smoke"), [(30_000, 90_000), (80, 100_000)])
def test_budgets_of_a_control_end_with_an_evaluation(
    install: Install, tmp_path: Path, sources: Path, interval: int, smoke: int
) -> None:
    """A shorter one than the control's is made whole: between two there is no reference."""
    settings = ["evaluation_rule=sampled", f"evaluation_interval={interval}"]
    plan = plan_of(tmp_path, env_steps=240_000, settings=settings)
    budgets = _budgets(plan, {"CartPole-v1": 240_000})
    assert [budgets[name]["env_steps"] for name in BUDGETS] == [smoke, 240_000, 240_000]


def test_a_published_control_judges_ours(install: Install, tmp_path: Path, sources: Path) -> None:
    """`--like fake_control` has the peer's settings, each with its place, and its scores."""
    plan = plan_of(tmp_path)
    run_all(plan)
    check_publishable(plan)
    folder = publish(plan)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    ours = Presets("a2c", Config, sources)["classic", "fake_control"]
    changed = {"task": ours.config.task, "env_steps": ours.config.env_steps}
    assert ours.config == dataclasses.replace(plan.config, **changed, device="auto")
    assert ours.judged_by == "fake_control"
    assert ours.departures == ("its simulator is its own",)
    assert ours.budgets["paper"].env_steps == 500
    assert ours.budgets["paper"].num_seeds == 3
    text = (folder / "a2c.toml").read_text()
    assert f"somebody/library@{'0123456789' * 4}:library/a2c.py:8-9" in text
    assert "DLR-RM/rl-trained-agents@cd35bde" in text
    settings = read_source(folder / "a2c.toml")["suites"]["classic"]["settings"]
    # the agent's defaults may change
    assert {*peer_of(plan).sets, *peer_of(plan).has} <= set(settings)
    assert settings["learning_rate"]["because"] == "default of agents/a2c.py"
    reference = scored("a2c", "fake_control", "CartPole-v1", 400, "training")
    assert (reference.mean, reference.std) == pytest.approx((2.385, 1.0))
    assert (reference.num_runs, reference.how) == (3, "single runs")
    drawn = references.reference_curves("a2c", "CartPole-v1", "fake_control")
    assert set(drawn[drawn["role"] == "judge"]["num_runs"]) == {3}
    publish(plan)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


@pytest.mark.usefixtures("sources")
def test_a_publication_that_is_cut_leaves_the_other_references(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an agent without a file would be refused, whoever is judged; it is repeated."""
    plan = plan_of(tmp_path)
    run_all(plan)
    with monkeypatch.context() as patch:
        patch.setattr("reproduce.controls.publish._toml", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            publish(plan)
    references.single_runs()  # refuses nothing
    assert (publish(plan) / "curves.csv").exists()


def test_a_run_may_end_between_episodes(install: Install, tmp_path: Path, sources: Path) -> None:
    """Scored by training episodes, a control reaches its end though no episode ends there."""
    out = "env_steps > 480 or (seed == 2 and env_steps < 200)"
    install(TRAIN.replace("record.episode(", f"{out} or record.episode("))
    plan = plan_of(tmp_path)
    run_all(plan)
    folder = publish(plan)
    curve = pd.read_csv(folder / "curves.csv")
    assert set(curve["num_runs"]) == {3}  # it begins where all have ended an episode
    asked = ("a2c", "fake_control", "CartPole-v1")
    scores = [references.reference_score(*asked, steps, "training") for steps in (500, 501)]
    assert [score and score.how for score in scores] == ["single runs", None]


def test_seeds_are_declared_before_runs(install: Install, tmp_path: Path, sources: Path) -> None:
    """A control that got more seeds after its first were known is no reference; nor is a part."""
    plan = plan_of(tmp_path)
    save_plan(plan)
    with refused("not trained"):
        publish(plan)
    run_all(plan)
    with refused():
        publish(plan_of(tmp_path, num_seeds=5))
    with refused():
        plan_of(tmp_path, num_seeds=None, seeds=[1, 3, 4], env_steps=450)


def test_advice_uses_flags_that_a_control_has(
    install: Install, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refuses other seeds says how to start anew; the command that goes on can be run."""
    monkeypatch.chdir(tmp_path)
    plan = plan_of(Path("runs"), workers=1)
    save_plan(plan)
    words = ["control", "fake", "a2c", "classic", "--tasks", "CartPole-v1", "--env-steps", "500"]
    status, _, error = say([*words, "--seeds", "1", "4"])
    assert (status, "with --fresh and other --seeds" in error) == (2, True)
    status, out, error = say([*words, "--seeds", "1", "4", "--fresh", "--dry-run"])
    assert (status, error) == (0, "")
    assert "runs/fresh-1/" in out
    again = shlex.split(commands(plan)[0])
    assert "--workers" in again
    assert again[again.index("--like") + 1] == plan.source, "the agent's default may be another"
    assert say([*again[again.index("control") :], "--dry-run"])[::2] == (0, "")


def test_a_second_task_joins_the_first(install: Install, tmp_path: Path, sources: Path) -> None:
    """What was published of one task stays when another follows, unless settings differ."""
    made = []
    for task in ("CartPole-v1", "Acrobot-v1", "CartPole-v1"):
        plan = plan_of(tmp_path, tasks=[task], settings=["num_envs=1"])
        run_all(plan)
        made.append(commands(plan)[0])
        folder = publish(plan)
    data = read_source(folder / "a2c.toml")["data"]
    assert data.path == "\n".join(made[1:])
    assert len(data.notes.splitlines()) == 2
    preset = Presets("a2c", Config, sources)["classic", "fake_control"]
    assert preset.tasks == ("CartPole-v1", "Acrobot-v1")
    runs = references.single_runs()
    assert set(runs["env_id"]) == {"CartPole-v1", "Acrobot-v1"}
    two: dict[str, Any] = {"settings": ["num_envs=2"], "env_steps": 1_000}
    with refused():
        check_publishable(plan_of(tmp_path / "other", tasks=["Acrobot-v1"], **two))
    sampled: dict[str, Any] = {"settings": ["evaluation_rule=sampled"], "env_steps": 10_000}
    with refused("another rule"):
        check_publishable(plan_of(tmp_path / "sampled", tasks=["Acrobot-v1"], **sampled))


def test_a_control_is_no_grid_of_ours(install: Install, tmp_path: Path) -> None:
    """`watch` and `report` do not take its settings for changed ones, whatever folders' names."""
    plan = plan_of(tmp_path)
    save_plan(plan)
    with refused():
        load_grid(plan.directory)
    ours = make_plan("a2c", "classic", device="cpu", runs_dir=tmp_path / "controls" / "mine")
    saved(ours)
    assert load_grid(ours.directory).directory == ours.directory


def test_a_task_has_one_curve(install: Install, tmp_path: Path, sources: Path) -> None:
    """Its rows would be replaced, while the other suite goes on stating the old settings."""
    plan = plan_of(tmp_path)
    run_all(plan)
    path = publish(plan) / "a2c.toml"
    path.write_text(path.read_text().replace("suites.classic", "suites.others"))
    with refused():
        check_publishable(plan)


@pytest.mark.parametrize("name", peers())
def test_peers_files_name_settings_that_exist(name: str) -> None:
    """Handed over, or the peer's own with its place; others are refused but for their default."""
    assert agents_of(name)
    for agent in agents_of(name):
        peer, module = read_peer(name, agent), importlib.import_module(f"agents.{agent}")
        fields = {field.name for field in dataclasses.fields(module.Config)}
        named = [*peer.sets, *peer.has]
        assert set(named) | set(peer.choices) <= fields
        assert len(named) == len(set(named))
        assert peer.pins["torch"] == peer.pins["torch"].partition("+")[0]
        assert presets.COMMIT.fullmatch(peer.commit)
        for key, of in peer.has.items():  # where it stands, or why it is so
            is_cited = presets.CITATION.fullmatch(of.get("at", "")) is not None
            assert is_cited != bool(of.get("because")), key


GRIDS: dict[str, tuple[str, str, str, list[str]]] = {
    "pfrl acer": ("classic", "CartPole-v1", "chainerrl", []),
    "pfrl acer_continuous": ("classic", "Pendulum-v1", "chainerrl", ["replay_start=1800"]),
    "rllib impala": ("classic", "CartPole-v1", "tuned", ["log_interval=500"]),
    "sb3 a2c": ("classic", "CartPole-v1", "rl_zoo", []),
    "sb3 ppo": ("classic", "CartPole-v1", "rl_zoo", []),
    "sb3 sac": ("classic", "Pendulum-v1", "tuned", ["learning_starts=1800"]),
    "tianshou a2c": ("mujoco", "Hopper-v4", "tianshou_v3", []),
    "tianshou ppo": ("mujoco", "Hopper-v4", "tianshou_v3", []),
    "tianshou sac": ("mujoco", "Hopper-v4", "tianshou_v3", ["learning_starts=1800"]),
}
"""Of each peer and agent: suite, task and source of settings, and what makes a run short."""


def grid_of(served: str, tmp_path: Path, **asked: Any) -> Plan:
    """Return a plan of a grid of `GRIDS`."""
    peer, agent = served.split()
    suite, task, source, changes = GRIDS[served]
    asked = {"tasks": [task], "source": source, "settings": changes, **asked}
    return make_control(peer, agent, suite, runs_dir=tmp_path, **asked)


@pytest.mark.parametrize("served", GRIDS)
def test_a_peer_takes_the_settings_of_a_source(tmp_path: Path, served: str) -> None:
    """None of the source's is refused, its own are said, and all that a peer serves is a case."""
    assert {f"{peer} {agent}" for peer in peers() for agent in agents_of(peer)} == set(GRIDS)
    plan = grid_of(served, tmp_path)
    said = [departure.partition(" = ")[0] for departure in plan.departures]
    for key, of in peer_of(plan).has.items():
        assert getattr(plan.preset.config, key) == of["value"] or key in said


@pytest.mark.long
@pytest.mark.parametrize("served", GRIDS)
def test_a_real_peer_trains(tmp_path: Path, served: str) -> None:
    """2,100 steps of one seed end finished, with updates and with every episode in its table."""
    plan = grid_of(served, tmp_path, env_steps=2_100, num_seeds=1)
    if not peer_of(plan).python.exists():
        pytest.skip(f"an environment is missing: `make peers PEER={peer_of(plan).name}`")
    plan.directory.mkdir(parents=True)
    assert list(run_all(plan).values()) == [("finished", "")]
    (run,) = plan.runs()
    episodes = read_table(run.directory / "episodes.csv")
    timing = read_table(run.directory / "timing.csv").iloc[-1]
    assert 1_600 < timing["env_steps"] <= 2_100
    assert 0 < episodes["episode_length"].sum() <= timing["env_steps"]  # the last are unfinished
    config: Any = plan.config
    expected = timing["num_updates"]  # of SAC, which has no unrolls
    if unroll := getattr(config, "unroll_length", 0):
        steps_each = getattr(config, "num_epochs", 1) * getattr(config, "num_minibatches", 1)
        expected = timing["env_steps"] // (config.num_envs * unroll) * steps_each
    assert timing["num_updates"] == expected > 0
    assert (np.diff(episodes["env_steps"]) >= 0).all()
