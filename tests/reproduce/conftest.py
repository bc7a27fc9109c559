"""Synthetic runs: what an agent would have recorded, without training one; the command line."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agents import sac
from reproduce import __main__ as command_line
from reproduce.gather import references
from reproduce.gather.collect import Failures, collect
from reproduce.gather.references import ReferenceScore
from reproduce.gather.tables import runs_of
from reproduce.pipeline import gather, write_report
from reproduce.plan import presets
from reproduce.plan.grid import Plan, Program
from reproduce.plan.make import make_plan, save_plan
from reproduce.plan.request import add_flags, read_request
from reproduce.plan.status import Run
from reproduce.report import figures, page
from reproduce.run import pool as pooling
from reproduce.run.processes import End
from suite.envs.tasks import folder_of
from suite.record.manifest import COVERED, write_manifest
from suite.record.reading import KEYS, SCHEMA_VERSION
from suite.record.recorder import Recorder
from suite.settings.command_line import Parser, run_main

TASK = "Pendulum-v1"
StandIn = Callable[[Mapping[int, str]], None]
Say = Callable[[Sequence[str]], tuple[int, str, str]]
ReadFrom = Callable[[Path], None]


def pendulum(runs_dir: Path, seeds: Sequence[int] = (1, 2, 3), **asked: Any) -> Plan:
    """Return SAC's runs of 1,000 steps of Pendulum on a CPU, two side by side."""
    size: dict[str, Any] = {"tasks": [TASK], "env_steps": 1000, "device": "cpu", "workers": 2}
    return make_plan("sac", "classic", runs_dir=runs_dir, seeds=seeds, **size | asked)


def saved(plan: Plan) -> Plan:
    """Save a plan, as a harness does before it begins, and return it."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    save_plan(plan)
    return plan


def statuses(plan: Plan) -> list[str]:
    """The status of every run."""
    return [run.status for run in plan.runs()]


def reference(mean: float, std: float, num_runs: int, **more: Any) -> ReferenceScore:
    """Return the score of a made-up source at 1,000 steps."""
    said: dict[str, Any] = {"env_steps": 1000, "rule": "deterministic", "how": "single runs"}
    said |= {"source": "someone", **more}
    return ReferenceScore(mean=mean, std=std, num_runs=num_runs, **said)


def scored(*asked: Any) -> ReferenceScore:
    """Return a reference's score, which must exist; arguments as for `reference_score`."""
    found = references.reference_score(*asked)
    assert found is not None
    return found


def make_report(plan: Plan) -> pd.DataFrame:
    """Gather, judge and draw a plan's runs so far; return the verdicts."""
    tables = gather(plan)
    write_report(plan, tables)
    return tables["verdicts"]


def recorded(plan: Plan, failures: Failures = MappingProxyType({})) -> dict[str, pd.DataFrame]:
    """The tables of a plan's runs so far; `failures` as for `collect`."""
    return collect(plan, runs_of(plan), failures)


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `results/published` of the test's own, so that no grid of ours is a baseline."""
    folder = tmp_path / "published"
    monkeypatch.setattr(presets, "PUBLISHED", folder)
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of 60 steps, scored by drawn actions of two episodes."""
    out = tmp_path_factory.mktemp("trained")
    flags = ["--learning-starts=40", "--batch-size=8", "--hidden-sizes=8", "--env-steps=60"]
    flags += ["--evaluation-episodes=2", "--evaluation-rule=sampled", "--device=cpu", "--seeds=3"]
    assert sac.main(["--task", TASK, "--out", str(out), *flags]) == 0
    return out / "seed-3"


@pytest.fixture
def read_sources_from(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadFrom]:
    """Let a folder of the test's own stand in place of `results/references`."""

    def forget() -> None:
        for function in references.KEPT:
            function.cache_clear()

    def read(folder: Path) -> None:
        for name, own in {"REFERENCES": folder, "LENT": {}}.items():
            monkeypatch.setattr(references, name, own)
        forget()

    yield read
    forget()


@pytest.fixture
def svg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of one kind: the others are the same, and each takes as long."""
    monkeypatch.setattr(figures, "FORMATS", ("svg",))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No files of figures, which have tests of their own."""
    for name in ("draw_curves", "draw_scores", "draw_throughput", "draw_over_tasks"):
        monkeypatch.setattr(figures, name, lambda *arguments, **options: None)


@pytest.fixture
def undrawn(without_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files of figures nor charts on pages, which take nine tenths of a report's time."""
    none = dict.fromkeys(("scores", "profile", "improvement", "throughput", "curves"), ())
    monkeypatch.setattr(page, "_charts", lambda *arguments: none)


class InThisProcess:
    """In place of an agent's process: the agent's command, carried out at once."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        log.touch()
        _, _, module, *words = command
        self._end = End(importlib.import_module(module).main(words))

    def poll(self) -> End:
        return self._end

    def terminate(self) -> None:
        """There is nothing left to end."""

    def kill(self, grace_seconds: float = 0.0) -> None:
        """There is nothing left to kill."""


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in the process of the test, whose imports are done: another one needs seconds."""
    monkeypatch.setattr(pooling, "AgentProcess", InThisProcess)
    monkeypatch.setattr(pooling, "POLL_SECONDS", 0.0)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """A function that gives a command line and returns status, output and errors."""

    def give(words: Sequence[str]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reproduce", *words])
        capsys.readouterr()
        status = run_main(command_line.main)
        said = capsys.readouterr()
        return status, said.out, said.err

    return give


PRELUDE = """
import hashlib, json, os, pathlib, signal, sys, time
out, env_steps, *seeds = sys.argv[1:]
with (pathlib.Path(out) / "executions").open("a") as file:
    file.write("".join(f"{seed} {os.getpid()}\\n" for seed in seeds))
folders = [pathlib.Path(out) / f"seed-{seed}" for seed in seeds]
def end(folder, status, error=None, seeds=None):
    task, seed = folder.parent.name, int(folder.name.removeprefix("seed-"))
    config = {"task": task, "seeds": seeds or [seed], "env_steps": int(env_steps)}
    said = {"task": task, "seed": seed, "status": status, "error": error}
    record = {**template, **said, "config": {**template["config"], **config}}
    content = json.dumps(record).encode()
    if status == "finished":
        files = {name: folder / name for name in covered if name != "run.json"}
        kept = {name: path.read_bytes() for name, path in files.items() if path.exists()}
        sums = {name: hashlib.sha256(kept[name]).hexdigest() for name in kept}
        sums["run.json"] = hashlib.sha256(content).hexdigest()
        lines = "".join(f"{digest}  {name}\\n" for name, digest in sums.items())
        (folder / "SHA256SUMS").write_text(lines)
    (folder / "run.json").write_bytes(content)
"""
"""What a stand-in for an agent begins with, after the `template` of its record and the names of the
files that a manifest covers; every start is a line per seed in `executions`."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A function that says by its first seed which script a process runs."""
    monkeypatch.setattr(pooling, "POLL_SECONDS", 0.02)

    def choose(scripts: Mapping[int, str]) -> None:
        def command(program: Program, plan: Plan, runs: Sequence[Run], _: int) -> tuple[str, ...]:
            seeds = (str(run.seed) for run in runs)
            where = (str(runs[0].directory.parent), str(runs[0].env_steps))
            given = f"template, covered = {_template(plan)!r}, {COVERED!r}"
            script = f"{given}\n{PRELUDE}{scripts[runs[0].seed]}"
            return (sys.executable, "-I", "-S", "-c", script, *where, *seeds)

        monkeypatch.setattr(Program, "command", command)

    return choose


def _template(plan: Plan) -> dict[str, Any]:
    """Return a record that names today's code."""
    values = json.loads(json.dumps(dataclasses.asdict(plan.config)))
    said = {"schema_version": SCHEMA_VERSION, "agent": plan.agent, "suite": plan.suite}
    said |= {"source": plan.source, "config": values, "sources": dict(plan.today.sources)}
    return dict.fromkeys(KEYS) | said | {"versions": {}, "machine": {}, "resumed_at": []}


def planned(words: str) -> Plan:
    """What the words of a command line plan."""
    parser = Parser()
    add_flags(parser)
    return make_plan(**vars(read_request(parser.parse(words.split()))))


NEVER_BEGUN = {
    **{"task": TASK, "seed": 1, "config": {"env_steps": 1000}, "command": "python"},
    **{"status": "failed", "error": "exit status 1", "log_tail": []},
}
"""The record that the harness writes of a run that failed before it wrote its own."""


def reseal(folder: Path, without: str = "", **entries: Any) -> None:
    """Change entries of a finished run's record, or drop one, and write its manifest anew."""
    if entries or without:
        record = json.loads((folder / "run.json").read_bytes()) | entries
        record.pop(without, None)
        (folder / "run.json").write_text(json.dumps(record))
    write_manifest(folder, (folder / "run.json").read_bytes())


def record_run(
    plan: Plan,
    task: str,
    seed: int,
    scores: Mapping[int, float] | None = None,
    *,
    status: str = "finished",
    env_steps: int | None = None,
    **settings: Any,
) -> Path:
    """Write a run as its agent would, and return its folder.

    Args:
        plan: where the run belongs and what its configuration is.
        task: the run's task.
        seed: the run's seed.
        scores: the mean return of its evaluation by step; default: 0 at the last.
        status: how it ended; `running` was killed, `failed` crashed and was recorded as such.
        env_steps: of its configuration; default: the plan's.
        settings: what its configuration has otherwise than the plan's; `seeds`, of which `seed`
            is the first: those that one process trained together.
    """
    env_steps = env_steps or plan.env_steps.get(task, 1000)
    changes = {"task": task, "seeds": (seed,), "env_steps": env_steps, **settings}
    config = dataclasses.asdict(dataclasses.replace(plan.config, **changes))
    run = {"agent": plan.agent, "suite": plan.suite, "source": plan.source, "task": task}
    command, seeds = f"python -m agents.{plan.agent} --task {task} --seeds {seed}", config["seeds"]
    run |= {"config": config, "command": command}
    recorder = Recorder(plan.directory / folder_of(task), run, seeds)
    for num_updates, (step, score) in enumerate((scores or {config["env_steps"]: 0.0}).items()):
        recorder.evaluation(step, np.array([[score - 1.0, score + 1.0]] * len(seeds)))
        recorder.log(step, num_updates, {}, {})
    if status == "diverged":
        recorder.log(config["env_steps"], 9, {"critic_loss": np.array([np.nan])}, {})
    if status == "finished":
        recorder.finish()
    folder = recorder.seed_directories[0]
    if status == "failed":
        record = json.loads((folder / "run.json").read_text())
        record |= {"status": "failed", "error": "exit 1: no memory", "log_tail": ["no memory"]}
        (folder / "run.json").write_text(json.dumps(record))
    return folder
