"""A plan says before it trains whether it can end in a verdict, and what it costs."""

import dataclasses
import importlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import AGENTS
from reproduce.gather.references import ReferenceScore
from reproduce.judge import outlook, verdicts
from reproduce.judge.outlook import chance_if_equal, outlooks, why_no_reference
from reproduce.judge.verdicts import judge
from reproduce.judge.zero import Scale
from reproduce.plan import resources, speeds
from reproduce.plan.grid import Plan
from reproduce.plan.make import make_plan
from reproduce.plan.presets import presets_of
from reproduce.plan.resources import check_memory, demand_of
from reproduce.plan.speeds import Speed, find_speed, read_speeds, run_seconds
from reproduce.plan.unlearned import Zero
from suite.base.errors import UsageError
from tests.gpus import with_gpus
from tests.messages import check, refused
from tests.reproduce.conftest import planned, record_run, reference

HOUR = 3600.0
HUMANOIDS = ["Humanoid-v3", "Humanoid-v4", "Humanoid-v5"]


def plan_of(agent: str, suite: str, source: str, budget: str, runs_dir: Path) -> Plan:
    """What the command plans on two cores."""
    module: Any = importlib.import_module(f"agents.{agent}")
    workers = 2 // module.PRESETS[suite, source].cores_per_run
    return make_plan(
        agent,
        suite,
        source=source,
        budget=budget,
        workers=workers,
        device="cpu",
        runs_dir=runs_dir,
    )


def row_of(reference: ReferenceScore, num_seeds: int) -> outlook.Outlook:
    """The outlook of a task beside this reference, whose zero is -10."""
    scale = Scale(reference=reference, zero=Zero(random=-10.0))
    return outlook.Outlook(
        task="Reacher-v4",
        env_steps=1000,
        num_seeds=num_seeds,
        scale=scale,
        obstacle="",
        chance=0.5,
        run_seconds=None,
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("std", "num_runs", "num_seeds"), [(15.0, 10, 3), (8.0, 3, 10)])
def test_the_chance_is_that_of_the_verdict_itself(
    std: float, num_runs: int, num_seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`judge`, run by run on draws of a distribution known by the reference's runs."""
    monkeypatch.setattr(verdicts, "_seeds_to_settle", lambda *_: None)  # takes longer than judging
    score, zero, rng = reference(90.0, std, num_runs), -10.0, np.random.default_rng(0)
    hits, repetitions, scale = 0, 150, Scale(reference=score, zero=Zero(random=zero))
    for _ in range(repetitions):
        ours = rng.normal(rng.normal(90.0, std / math.sqrt(num_runs)), std, num_seeds)
        hits += judge(ours, scale).verdict in ("reproduced", "above")
    share = hits / repetitions
    error = math.sqrt(share * (1.0 - share) / repetitions)
    assert chance_if_equal(scale, num_seeds) == pytest.approx(share, abs=4.0 * error)
    scale = Scale(reference=reference(1000.0, 0.0, 3), zero=Zero(random=5.0))
    assert chance_if_equal(scale, 3) == 1.0, "without any spread"


def test_a_copy_has_no_references_but_a_baseline() -> None:
    """The flag is named by which the runs of its origin judge it."""
    options: dict[str, Any] = {"tasks": ["CartPole-v1"], "source": "sb3_control", "device": "cpu"}
    plan = dataclasses.replace(make_plan("a2c", "classic", **options), agent="my_a2c")
    said = why_no_reference(plan, "CartPole-v1")
    assert said.startswith("my_a2c has no references of its own, but --baseline")


UNDECIDED = """
sac classic
sac mujoco --like paper --tasks Ant-v4
sac mujoco --like jaxrl --tasks Hopper-v4 --num-seeds 2
sac dmc --like pytorch_sac --tasks WalkerWalk-v1 --env-steps 5200
a2c classic --like rl_zoo --tasks CartPole-v1
a2c atari-7 --like openai_baselines
a2c mujoco --tasks Hopper-v4 --env-steps 100000
a2c mujoco --tasks Hopper-v4 --env-steps 4000000
"""


@pytest.mark.parametrize("words", UNDECIDED.split("\n")[1:-1])
def test_a_plan_that_cannot_decide_says_why(words: str, tmp_path: Path) -> None:
    """No reference, a single run, no spread, a step outside the source's grid, too few seeds."""
    rows = outlooks(planned(f"{words} --device cpu --runs-dir {tmp_path}"))
    assert all(row.obstacle and math.isnan(row.chance) for row in rows)
    check(rows[0].obstacle, words)


def test_a_plan_that_can_decide_says_how_probably(tmp_path: Path) -> None:
    """The step, window and rule are those by which it will be judged."""
    plan = plan_of("sac", "mujoco-small", "paper", "smoke", tmp_path)
    by_task = {row.task: row for row in outlooks(plan)}
    open_tasks = {task for task, row in by_task.items() if not row.obstacle}
    assert "InvertedPendulum-v4" in open_tasks
    assert by_task["InvertedPendulum-v4"].chance == 1.0
    assert all("not clear of" in row.obstacle for row in by_task.values() if row.obstacle)


UNMEASURED = """
a2c mujoco rl_zoo
acer classic chainerrl
acer_continuous classic chainerrl
sac mujoco cleanrl
sac mujoco mushroom_rl
sac classic tuned
sac mujoco-9 mushroom_rl
sac_alf mujoco-small tuned
sac_alf hybrid alf
sac_value dmc paper
"""
"""Agents, suites and sources of whose runs no speed is known."""


@pytest.mark.parametrize("agent", AGENTS)
def test_small_budgets_are_affordable(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two cores `smoke` takes minutes, `laptop` twelve hours at most, where it was measured."""
    monkeypatch.setattr(speeds, "relative_speed", lambda speed: 1.0)
    for suite, source in presets_of(agent):
        for budget, most in (("smoke", HOUR), ("laptop", 12 * HOUR)):
            plan = plan_of(agent, suite, source, budget, tmp_path)
            found = [plan.expected_seconds(task) for task in plan.tasks]
            seconds = [each for each in found if each is not None]
            unmeasured = f"{agent} {suite} {source}" in UNMEASURED.splitlines()
            number = 0 if unmeasured else len(found)
            assert len(seconds) == number, f"is {agent} {suite} {source} in UNMEASURED?"
            assert sum(seconds) * len(plan.seeds) / plan.workers <= most


@pytest.mark.parametrize(
    ("agent", "task", "env_steps", "parts"),
    [
        ("sac", "Hopper-v4", 30_000, (4, 10, 200, 6 * 0.5)),
        ("sac", "Hopper-v4", 5_000, (4, 5, 0, 0.5)),
        ("sac_value", "Hopper-v4", 30_000, (4, 1, 290, 3)),  # which takes the warm-up of the task
        ("sac_value", "HalfCheetah-v4", 30_000, (4, 10, 200, 3)),
    ],
)
def test_an_estimate_is_its_parts(
    agent: str, task: str, env_steps: int, parts: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start, warm-up, learning and evaluations, at the speeds of the row; hand-computed."""
    speed = Speed(agent, "paper", task, "x", 1000.0, 4.0, 1000.0, 100.0, 0.5, "")
    config = importlib.import_module(f"agents.{agent}").PRESETS["mujoco", "paper"].config
    config = dataclasses.replace(config, task=task, env_steps=env_steps)
    for relative in (1.0, 2.0):
        monkeypatch.setattr(speeds, "relative_speed", lambda _, ours=relative: ours)
        assert run_seconds(speed, config) == pytest.approx(sum(parts) / relative)


def test_an_unmeasured_task_is_as_fast_as_the_most_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its family and the size of observations; the slower of two."""
    measured = {"Hopper-v4": 50.0, "Reacher-v4": 40.0, "Humanoid-v4": 10.0, "CartPole-v1": 1.0}
    rows = [
        Speed("a2c", "me", task, "x", 1.0, 1.0, speed, speed, 0.0, "")
        for task, speed in measured.items()
    ]
    monkeypatch.setattr("reproduce.plan.speeds.read_speeds", lambda: rows)

    def found(task: str, source: str = "me") -> float | None:
        speed = find_speed("a2c", source, task)
        return speed and speed.env_steps_per_second

    assert [found(task) for task in ("Hopper-v4", "Hopper-v5", "Humanoid-v3")] == [50.0, 50.0, 10.0]
    assert [found(task) for task in ("Walker2d-v4", "Ant-v3")] == [40.0, 40.0]
    assert found("Pong-v5") is None
    assert found("Hopper-v4", source="another") is None


def test_what_is_left_of_a_shorter_run_is_counted(tmp_path: Path) -> None:
    """A finished run of half the steps needs half the time; on a GPU it is not known."""
    options: dict[str, Any] = {"tasks": ["Reacher-v4"], "seeds": [1], "device": "cpu"}
    plan = make_plan("sac", "mujoco-small", env_steps=60_000, runs_dir=tmp_path, **options)
    (row,) = outlooks(plan)
    whole = row.run_seconds or math.nan
    assert outlook.cost(plan, [row]).startswith(f"Time: {outlook.about(whole)}; refined")
    record_run(plan, "Reacher-v4", 1, env_steps=30_000, device="cpu")
    text = outlook.cost(plan, [row])
    assert text.startswith(f"Time: {outlook.about(whole / 2)}; refined")
    assert text.endswith("1 finished run to be extended.")
    assert dataclasses.replace(plan, device="cuda").expected_seconds("Reacher-v4") is None
    short = make_plan("sac", "mujoco-small", env_steps=30_000, runs_dir=tmp_path, **options)
    assert outlook.cost(short, [row]) == "Time: nothing is left to run."


def test_the_measured_speeds_are_of_settings_that_exist() -> None:
    """Every row names an agent, one of its sources and a task; it has a processor and a note."""
    for row in read_speeds():
        sources = {source for _, source in importlib.import_module(f"agents.{row.agent}").PRESETS}
        assert row.source in sources
        assert row.processor
        assert row.note
        assert min(row.env_steps_per_second, row.warm_up_steps_per_second) > 0


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("a2c classic MountainCar-v0 sb3_control", 3_200),  # 16 environments, 200 steps each
        ("impala atari-7 Breakout-v5 cleanba", 15_872),  # 128 environments, 124 steps at least
    ],
)
def test_a_run_in_which_no_episode_ends_is_refused(words: str, first: int, tmp_path: Path) -> None:
    """Training episodes are scored: the line names enough steps."""
    agent, suite, task, source = words.split()
    options: dict[str, Any] = {"tasks": [task], "device": "cpu", "source": source}
    with refused():
        make_plan(agent, suite, env_steps=first - 1, runs_dir=tmp_path, **options)
    assert make_plan(agent, suite, env_steps=first, runs_dir=tmp_path, **options)


def humanoid(runs_dir: Path, num_seeds: int, **options: Any) -> Plan:
    """SAC with a replay of 2.9 GiB a seed, on GPUs."""
    asked: dict[str, Any] = {"tasks": ["Humanoid-v4"], "env_steps": 1_000_000, "device": "cuda"}
    return make_plan("sac", "mujoco", num_seeds=num_seeds, runs_dir=runs_dir, **asked | options)


@pytest.mark.parametrize(
    ("gibibytes", "num_seeds", "options", "message"),
    [
        ((8.0,), 3, {}, "keep 8.6 GiB, but this GPU has 8.0 GiB of memory: train fewer seeds"),
        ((8.0, 8.0, 8.0), 6, {}, ""),
        ((80.0, 5.0), 4, {}, "keep 5.7 GiB, but each of 2 GPUs has 5.0"),
        ((80.0, 5.0), 4, {"device": "cuda:0"}, ""),
        ((4.0, 4.0), 1, {"tasks": HUMANOIDS, "workers": 3}, "use --workers 2"),
    ],
)
def test_every_gpu_must_hold_what_runs_on_it(
    gibibytes, num_seeds, options, message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the smallest: which gets which process is not known before. Fewer workers fit."""
    with_gpus(monkeypatch, len(gibibytes))
    sizes = {"cuda": gibibytes[0]} | {f"cuda:{i}": size for i, size in enumerate(gibibytes)}
    monkeypatch.setattr(resources, "gpu_memory_gib", sizes.__getitem__)
    facts = {"memory_gib": 1.0, "cpu": "", "gpu": "", "gpu_driver": ""}
    monkeypatch.setattr(resources, "machine", lambda: facts)
    plan = humanoid(tmp_path, num_seeds, **options)
    assert demand_of(plan, plan.groups()[0])["memory"] == 0.0, "replay lies on the GPU"
    if not message:
        check_memory(plan)
        return
    with pytest.raises(UsageError) as error:
        check_memory(plan)
    assert message in str(error.value)
    if "--workers" in message:
        number = int(str(error.value).split()[-1])
        check_memory(humanoid(tmp_path, num_seeds, **options | {"workers": number}))


def test_a_suite_is_decided_as_often_as_its_tasks_together() -> None:
    """Two tasks alike are surer than one, by the suite's own test; a single one is no suite."""
    rows = [row_of(reference(90.0, 15.0, 10), num_seeds=5) for _ in range(3)]
    alone = chance_if_equal(rows[0].scale, 5)
    assert outlook.suite_chance(rows[:1])[1] == 1
    assert math.isnan(outlook.suite_chance(rows[:1])[0])
    two, three = (outlook.suite_chance(rows[:count])[0] for count in (2, 3))
    assert alone + 0.05 < two < three < 1.0
    wide = row_of(reference(90.0, 60.0, 10), num_seeds=5)
    assert outlook.suite_chance([*rows, wide]) == (three, 3), "its gap is too small to count"
    assert outlook.suite_chance([row_of(reference(90.0, 0.0, 3), num_seeds=3)] * 2) == (1.0, 2)


CHOSEN = [
    (agent, suite)
    for agent in AGENTS
    for suite, number in Counter(suite for suite, _ in presets_of(agent)).items()
    if number > 1
]
"""Agents and suites with a choice of sources."""
DECIDED = {
    **{"a2c": "classic mujoco-small mujoco-9 atari-7", "ppo": "classic mujoco-small mujoco-9"},
    "sac": "mujoco mujoco-small mujoco-9",
}
"""Suites of which a source decides more probably than not."""


@pytest.mark.long
@pytest.mark.parametrize(("agent", "suite"), CHOSEN)
def test_a_default_source_decides_its_suite_best(agent: str, suite: str, tmp_path: Path) -> None:
    """Within the `laptop` budget, up to five points; where one does so."""
    asked: dict[str, Any] = {"device": "cpu", "runs_dir": tmp_path}
    chances = {
        source: outlook.suite_chance(outlooks(make_plan(agent, suite, source=source, **asked)))[0]
        for known, source in presets_of(agent)
        if known == suite
    }
    best = max((chance for chance in chances.values() if not math.isnan(chance)), default=0.0)
    assert (best > 0.5) == (suite in DECIDED.get(agent, "").split())
    assert best < 0.5 or chances[make_plan(agent, suite, **asked).source] > best - 0.05
