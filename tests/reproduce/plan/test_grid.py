"""A plan runs what was asked for, once, and never mistakes one run for another."""

import dataclasses
import importlib
import shlex
from pathlib import Path
from typing import Any

import pytest

from agents import sac
from reproduce import __main__ as command_line
from reproduce.commands import grid as running
from reproduce.plan import grid as planning
from reproduce.plan import resources
from reproduce.plan.grid import Plan
from reproduce.plan.make import commands, load_plan, make_plan
from reproduce.plan.request import FIELDS, Request, add_flags, read_request, words_of
from reproduce.plan.resources import check_memory
from suite.base.hardware import num_cores
from suite.envs.tasks import SUITES
from suite.settings.command_line import Parser, read_command_line
from tests.gpus import with_gpus
from tests.messages import refused
from tests.reproduce.conftest import TASK, pendulum, planned, record_run, reseal, saved, statuses


def seeds_to_run(plan: Plan) -> list[list[int]]:
    """The seeds of every process that is still to be started."""
    return [[run.seed for run in group] for group in plan.groups()]


def test_a_request_is_read_back_from_its_words() -> None:
    """Every field has a flag; num_seeds, which seeds exclude, is read back alone."""
    request = Request(
        agent="sac",
        suite="classic",
        tasks=[TASK],
        budget="smoke",
        env_steps=300,
        seeds=(3, 1),
        source="tuned",
        settings=["gamma=0.9"],
        baseline="a2c",
        runs_dir=Path("a b"),
        checkpoint_minutes=0.5,
        drop_checkpoints=True,
        keep_best=True,
        device="cpu",
        workers=2,
        launcher="ray",
        ray_address="here:1",
        track="wandb",
        fresh=True,
        open=True,
        dry_run=True,
    )
    plain = Request(agent="", suite="")
    alike = [name for name in FIELDS if getattr(request, name) == getattr(plain, name)]
    assert alike == ["num_seeds"]
    for each in (request, dataclasses.replace(request, seeds=None, num_seeds=4)):
        parser = Parser()
        add_flags(parser)
        assert read_request(parser.parse(words_of(each))) == each


def test_a_budget_gives_steps_and_seeds_unless_they_are_given(tmp_path: Path) -> None:
    """The paper spends 1 M steps on Hopper, 10 M on Humanoid and 3 M elsewhere, with 5 seeds."""
    plan = make_plan("sac", "mujoco", source="paper", budget="paper", runs_dir=tmp_path)
    steps = {"HalfCheetah-v4": 3, "Hopper-v4": 1, "Walker2d-v4": 3, "Ant-v4": 3, "Humanoid-v4": 10}
    assert plan.env_steps == {task: count * 1_000_000 for task, count in steps.items()}
    assert plan.seeds == (1, 2, 3, 4, 5)
    assert [run.env_steps for run in plan.runs() if run.task == "Hopper-v4"] == [1_000_000] * 5
    table: list[tuple[dict[str, Any], set[int], tuple[int, ...]]] = [
        ({"budget": "smoke"}, {30_000}, (1, 2, 3)),
        ({"budget": "paper", "env_steps": 700, "num_seeds": 2}, {700}, (1, 2)),
        ({"budget": "smoke", "seeds": [7, 3]}, {30_000}, (7, 3)),
    ]
    for asked, steps, seeds in table:
        plan = make_plan("sac", "mujoco", source="paper", runs_dir=tmp_path, **asked)
        assert (set(plan.env_steps.values()), plan.seeds) == (steps, seeds)


def test_settings_need_fit_no_other_number_of_steps(tmp_path: Path) -> None:
    """The preset's own, 1,000,000, is no multiple of three environments."""
    words = "sac classic --tasks Pendulum-v1 --env-steps 30000 --set num_envs=3"
    words += f" learning_starts=900 evaluation_interval=3000 --device cpu --runs-dir {tmp_path}"
    assert planned(words).config.env_steps == 30_000


def test_finished_and_diverged_runs_are_kept_and_all_others_run(tmp_path: Path) -> None:
    """What a run left behind decides: killed, crashed and unreadable runs are started again."""
    plan = pendulum(tmp_path, seeds=[1, 2, 3, 4, 5, 6])
    for seed, ended in enumerate(["finished", "diverged", "running", "failed"], start=1):
        record_run(plan, TASK, seed, status=ended)
    torn = plan.directory / TASK / "seed-5"
    torn.mkdir()
    (torn / "run.json").write_text('{"status": "finished", "con')
    expected = ["finished", "diverged", "running", "failed", "planned", "planned"]
    assert statuses(plan) == expected
    assert seeds_to_run(plan) == [[3], [4], [5], [6]]
    shorter, longer = (dataclasses.replace(plan, env_steps={TASK: n}) for n in (400, 1001))
    assert statuses(shorter) == expected
    assert statuses(longer) == ["shorter", *expected[1:]]
    assert seeds_to_run(longer) == [[1], [3], [4], [5], [6]]


@pytest.mark.parametrize("status", ["finished", "diverged", "running"])
def test_a_run_with_other_settings_is_refused(status: str, tmp_path: Path) -> None:
    """It would be judged as something it is not, or lost if it has a checkpoint to go on from."""
    plan = pendulum(tmp_path)
    record_run(plan, TASK, 2, status=status, gamma=0.5)
    (plan.directory / TASK / "seed-2" / "checkpoint").mkdir()
    with refused():
        plan.groups()
    assert statuses(pendulum(tmp_path, settings=["gamma=0.5"]))[1] == status


def test_only_what_changes_learning_makes_runs_differ(tmp_path: Path) -> None:
    """Device and threads decide the speed; a run that saved nothing yet is written over."""
    plan = pendulum(tmp_path)
    record_run(plan, TASK, 1, device="cuda:1", num_threads=4)
    record_run(plan, TASK, 2, status="running", gamma=0.5)
    record_run(plan, TASK, 3, hidden_sizes=(256, 256))
    assert statuses(plan) == ["finished", "running", "finished"]


@pytest.mark.parametrize(
    ("tasks", "num_seeds", "options", "sizes"),
    [
        (1, 10, {}, [2, 3, 2, 3]),
        (1, 3, {}, [1, 1, 1]),
        (3, 4, {}, [2, 2, 2, 2, 2, 2]),
        (3, 1, {}, [1, 1, 1]),
        (5, 4, {}, [4, 4, 4, 4, 4]),
        (1, 10, {"workers": 2}, [5, 5]),
        (1, 10, {"device": "cuda:1"}, [10]),
    ],
)
def test_seeds_occupy_every_gpu(
    tasks, num_seeds, options, sizes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer tasks than GPUs: seeds are split, evenly; each is trained once, in its order."""
    with_gpus(monkeypatch, 4)
    asked = {"tasks": SUITES["mujoco"][:tasks], "num_seeds": num_seeds, "device": "cuda"}
    plan = make_plan("sac", "mujoco", runs_dir=tmp_path, **asked | options)
    groups = plan.groups()
    assert [*map(len, groups)] == sizes
    assert [run for group in groups for run in group] == plan.runs()
    assert all(len({run.task for run in group}) == 1 for group in groups)
    for group in groups:  # which GPU it will be is not known yet, nor in its record
        command = plan.command(group, 1)
        assert command[command.index("--device") + 1] == plan.device


def test_a_checkpoint_keeps_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits no others, though one has diverged; the rest is split over the other GPUs."""
    with_gpus(monkeypatch, 3)
    plan = pendulum(tmp_path, range(1, 8), device="cuda", workers=None)
    assert seeds_to_run(plan) == [[1, 2], [3, 4], [5, 6, 7]]
    first = record_run(plan, TASK, 2, status="running", seeds=(2, 3, 4))
    (first / "checkpoint").mkdir()
    assert seeds_to_run(plan) == [[1, 5], [2, 3, 4], [6, 7]]
    reseal(first, status="diverged", error="no number")
    assert statuses(plan)[1:4] == ["diverged", "running", "running"]
    assert seeds_to_run(plan) == [[1, 5], [2, 3, 4], [6, 7]]


@pytest.mark.parametrize(
    ("device", "num_gpus", "gpus", "workers"),
    [
        ("auto", 0, (), 2),
        ("auto", 1, ("cuda",), 1),
        ("auto", 3, ("cuda:0", "cuda:1", "cuda:2"), 3),
        ("cuda", 3, ("cuda:0", "cuda:1", "cuda:2"), 3),
        ("cuda:1", 3, ("cuda:1",), 1),
        ("cpu", 3, (), 2),
    ],
)
def test_a_plan_takes_every_gpu_or_the_one_that_is_named(
    device, num_gpus, gpus, workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a process for each; the plan's own record keeps what was asked for."""
    with_gpus(monkeypatch, num_gpus)
    monkeypatch.setattr(resources, "num_cores", lambda: 2)
    settings = [f"tf32={'true' if gpus else 'false'}"]
    plan = pendulum(tmp_path, device=device, workers=None, settings=settings)
    assert (plan.gpus, plan.workers) == (gpus, workers)
    assert plan.device == ({0: "cpu"}.get(num_gpus, "cuda") if device == "auto" else device)
    assert "--workers" not in commands(plan)[0]
    assert (f"({len(gpus)} GPUs)" in str(running.plan_table(plan).caption)) == (len(gpus) > 1)
    saved(plan)
    assert load_plan("sac", "classic", None, tmp_path) == plan


@pytest.mark.parametrize(
    ("suite", "options"),
    [
        ("classic", {"settings": ["initial_alpha=0.1", "hidden_sizes=16,32", "learn-alpha=false"]}),
        ("mujoco", {"source": "jaxrl", "tasks": ["Hopper-v4", "Ant-v5"]}),
        ("classic", {"checkpoint_minutes": 0.5}),
        ("dmc", {"source": "pytorch_sac", "tasks": ["CheetahRun-v1"], "seeds": [0, 2**31 - 1]}),
    ],
)
def test_agents_read_what_was_planned(suite: str, options: dict[str, Any], tmp_path: Path) -> None:
    """An agent that reads its command has the plan's configuration, to the last setting."""
    plan = make_plan("sac", suite, runs_dir=tmp_path / "a b", device="cpu", **options)
    plan = dataclasses.replace(plan, device="cuda:0")
    groups = plan.groups()
    assert len(groups) == len(plan.tasks)
    for group in groups:
        config, said = read_command_line(sac.PRESETS, plan.command(group, 1)[3:], agent="sac")
        task, own = group[0].task, {"device": "cuda:0", "env_threads": config.env_threads}
        own |= {"task": task, "seeds": plan.seeds, "env_steps": plan.env_steps[task]}
        assert config == dataclasses.replace(plan.config, **own)
        assert (said.suite, said.source) == (suite, plan.source)
        assert said.checkpoint_minutes == options.get("checkpoint_minutes", 5.0)
        folders = {said.out / f"seed-{seed}" for seed in plan.seeds}
        assert {run.directory for run in group} == folders


@pytest.mark.parametrize(
    ("agent", "num_cores", "num_seeds", "workers", "threads"),
    [
        ("a2c", 2, 1, None, 2),
        ("a2c", 2, 3, None, 1),
        ("a2c", 16, 3, None, 5),
        ("a2c", 16, 3, 2, 8),
        ("impala", 2, 1, None, 1),
        ("impala", 8, 2, None, 3),
    ],
)
def test_the_simulator_gets_the_cores_that_no_run_keeps_busy(
    agent, num_cores, num_seeds, workers, threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared out among the processes side by side; IMPALA's acting and learning keep two busy."""
    for module in (planning, resources):
        monkeypatch.setattr(module, "num_cores", lambda: num_cores)
    asked = {"tasks": ["CartPole-v1"], "num_seeds": num_seeds, "workers": workers, "device": "cpu"}
    plan = make_plan(agent, "classic", runs_dir=tmp_path, **asked)
    presets = importlib.import_module(f"agents.{agent}").PRESETS
    groups = plan.groups()
    for group in groups:
        command = plan.command(group, min(plan.workers, len(groups)))
        config, _ = read_command_line(presets, command[3:], agent=agent)
        assert (config.env_threads or 1) == threads


@pytest.mark.parametrize(
    ("suite", "options"),
    [
        ("classic", {}),
        ("mujoco-9", {"source": "jaxrl", "budget": "smoke", "tasks": ["Hopper-v5", "Ant-v4"]}),
        ("classic", {"env_steps": 77, "seeds": [5, 0]}),
        ("classic", {"workers": 1, "settings": ["hidden_sizes=16,8", "log_std_min=-1"]}),
        ("classic", {"runs_dir": "my runs; $(x) `y` 'z' \"w\" *", "num_seeds": 2}),
    ],
)
def test_the_printed_command_makes_an_equal_plan(
    suite: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed into a shell, it plans the same again, whatever characters its folder has."""
    monkeypatch.chdir(tmp_path)
    again: list[Plan] = []
    monkeypatch.setattr(running, "run_plan", lambda plan, *_, **options: again.append(plan) or 0)
    runs_dir = Path(options.pop("runs_dir", "runs"))
    plan = make_plan("sac", suite, runs_dir=runs_dir, **options)
    words = shlex.split(commands(plan)[0])
    assert words[:3] == ["python", "-m", "reproduce"]
    assert command_line.main(words[3:]) == 0
    assert again == [plan]


def test_tasks_of_other_lengths_have_commands_of_their_own(tmp_path: Path) -> None:
    """Together they plan the same runs again."""
    steps = {"Hopper-v4": 1_000, "Walker2d-v4": 2_000, "HalfCheetah-v4": 1_000}
    plan = make_plan("sac", "mujoco", runs_dir=tmp_path, env_steps=steps, seeds=[1], device="cpu")
    parts = [planned(line.partition(" -m reproduce ")[2]) for line in commands(plan)]
    alike = {"Hopper-v4": 1_000, "HalfCheetah-v4": 1_000}
    assert [dict(part.env_steps) for part in parts] == [alike, {"Walker2d-v4": 2_000}]


def test_the_command_keeps_ones_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were begun on a CPU are not gone on with on a GPU unasked."""
    plan = pendulum(tmp_path, workers=1)
    assert ("--workers 1" in commands(plan)[0]) is (num_cores() > 1)
    with_gpus(monkeypatch, 1)
    assert "--device cpu" in commands(plan)[0]
    assert "--device" not in commands(pendulum(tmp_path, device="auto", workers=None))[0]


def test_a_plan_of_a_larger_machine_asks_for_as_many_workers_as_fit(tmp_path: Path) -> None:
    """More processes than this machine has cores are the cluster's, or another machine's."""
    plan = saved(pendulum(tmp_path, workers=num_cores() + 1))
    assert "--workers" not in commands(load_plan("sac", "classic", None, tmp_path))[0]
    saved(dataclasses.replace(plan, launcher="ray", ray_address="head:6379"))
    (line,) = commands(load_plan("sac", "classic", None, tmp_path))
    assert f"--workers {num_cores() + 1} --launcher ray --ray-address head:6379" in line


def test_too_little_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size times workers against the machine; the line names a number of workers that fits."""
    monkeypatch.setattr(resources, "machine", lambda: {"memory_gib": 12.0})

    def pong(**options: Any) -> Plan:
        standard = {"tasks": ["Pong-v5"], "num_seeds": 6, "workers": 3, "device": "cpu"}
        standard |= {"env_steps": 1_000_000}
        return make_plan("acer", "atari-7", runs_dir=tmp_path, **(standard | options))

    with refused():  # a full replay of 16 environments: 5.3 GiB
        check_memory(pong())
    check_memory(pong(workers=2))
    check_memory(pong(env_steps=100_000))  # never fills its replay
    with refused():
        check_memory(pong(env_steps=10_000_000, settings=["num_envs=64"]))
    check_memory(pendulum(tmp_path, workers=1000))  # an agent that states nothing
