"""The command line as its users meet it: right, wrong, interrupted and hostile."""

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

import agents
from reproduce import ROOT, pipeline
from reproduce import __main__ as command_line
from reproduce.commands import grid
from reproduce.commands import list as listing
from reproduce.commands.flags import COMMANDS
from reproduce.plan import grid as planning
from reproduce.plan.grid import Plan
from reproduce.plan.request import FIELDS, GROUPS
from reproduce.report.page import FIGURES
from reproduce.report.tables import COLUMNS
from reproduce.run import pool
from reproduce.run.progress import Board
from suite.settings.command_line import run_main
from tests.messages import check
from tests.reproduce.conftest import TASK, Say, pendulum, planned, record_run, saved
from tests.runs import tree
from tests.suite.envs import elsewhere

TINY = (
    *("sac", "classic", "--tasks", TASK, "--env-steps", "300", "--seeds", "1", "2"),
    *("--device", "cpu", "--set", "learning_starts=200", "batch_size=8", "hidden_sizes=8,4"),
    *("evaluation_episodes=1", "evaluation_interval=100", "log_interval=20"),
)
"""Two trainings of 100 updates."""

NO_TORCH = """
sca classic
reprot sac classic
sac
sac clasic
sac CLASSIC
sac classic --tasks
sac classic --tasks Pendulum-v0
sac mujoco --tasks Hopper-v4 Hopper-v4
sac classic --budget lapop
sac classic --env-step 3
sac classic --$(x)
sac classic --env-steps 0
sac classic --num-seeds 0
sac classic --num-seeds 100000
sac classic --workers 0
sac classic --seeds -1
sac classic --seeds 2147483648
sac classic --seeds 1 2 1
sac classic --seeds 1 --num-seeds 3
sac classic --set gamma
sac classic --set gamma=0.9 gamma=0.8
sac classic --runs-dir FILE
sac classic --runs-dir LONG
report sac classic --tasks Pendulum-v1
report sac classic --runs-dir nowhere
evaluate . --sampld
evaluate . --episodes many
list --like jaxlr
list scc
list a2c --like jaxrl
list sac mujoco
"""
"""Lines whose mistake is seen without torch, by names alone."""

WITH_TORCH = """
sac atari
acer box2d
sac mujoco --tasks Hopper
a2c atari --tasks xyz
sac classic --seeds 0-99999999
sac classic --like papr
sac classic --tasks CartPole-v1
sac classic --set gama=0.9
sac classic --set help=1
sac classic --set seeds=3
sac classic --set num_threads=3
sac classic --set batch_size=0
sac classic --set hidden_sizes=64,wide
report sac classic
evaluate nowhere
evaluate nowhere --episodes 0
compare nowhere ../../x
sac mujoco-9 --like jaxrl --tasks HalfCheetah-v4 --env-steps 5000
sac classic --tasks Pendulum-v1 --set evaluation_rule=deterministic,sampled
ppo atari-7 --tasks Pong-v5 --set protocol=sticky,noframeskip
sac classic --tasks Pendulum-v1 --set gamma=0.9,0.90
sac classic --tasks Pendulum-v1 --set gamma=0.9,0.9
sac classic --tasks Pendulum-v1 --set gamma=0.9,
sac classic --tasks Pendulum-v1 --set gamma=0.9,high
sac classic --set tau=1,2,3,4,5 batch_size=1,2,3,4,5 log_interval=1,2,3,4,5
sac classic --launcher slurm
sac classic --ray-address auto
throughput --update vtrace
"""
"""Lines whose mistake only an agent, or torch, can tell."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def words_of(line: str) -> list[str]:
    """Return a line's words; LONG is a name too long for a disk, FILE a file, not a folder."""
    return line.replace("LONG", "x" * 300).replace("FILE", "../FILE").split()


@pytest.mark.parametrize("line", WITH_TORCH.split("\n")[1:-1])
def test_a_mistake_only_an_agent_sees_is_one_line(
    line: str, desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, one line on standard error that names the fix, nothing written."""
    (desk.parent / "FILE").touch()
    monkeypatch.setattr(grid, "run_plan", lambda plan, *_: 0)  # should a line be accepted
    status, out, err = say(words_of(line))
    assert (status, out, err.count("\n"), list(desk.iterdir())) == (2, "", 1, [])
    check(err, line)


def in_a_shell(
    words: Sequence[str], folder: Path, said: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python as a user would, from another folder."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=said,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_plan_is_shown_before_a_simulator_is_imported(desk: Path) -> None:
    """Games are planned from names and settings: neither envpool nor Ray takes its time."""
    script = """
import sys
from reproduce.__main__ import main
assert main(["a2c", "atari", "--tasks", "Pong-v5", "--num-seeds", "3", "--dry-run"]) == 0
slow = {"envpool", "matplotlib", "ray"} & set(sys.modules)
assert not slow, slow
"""
    ended = in_a_shell(["-c", script], desk)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "3 processes" in ended.stdout


def test_what_names_alone_can_tell_is_one_line_before_torch_is_imported(desk: Path) -> None:
    """It takes a moment, not the seconds that torch needs; status 2 and nothing written."""
    (desk.parent / "FILE").touch()
    script = """
import json, sys
from suite.settings.command_line import run_main
from reproduce.__main__ import main
for words in json.load(sys.stdin):
    sys.argv[1:] = words
    assert run_main(main) == 2, words
    assert "torch" not in sys.modules, words
"""
    lines = ["", *NO_TORCH.split("\n")[1:-1]]
    ended = in_a_shell(["-c", script], desk, json.dumps([words_of(line) for line in lines]))
    assert (ended.returncode, ended.stdout, list(desk.iterdir())) == (0, "", []), ended.stderr
    for line, said in zip(lines, ended.stderr.splitlines(), strict=True):
        check(said, line or "nothing")


@pytest.mark.usefixtures("undrawn", "in_this_process")
def test_a_users_own_task_is_planned_trained_swept_and_reported(
    desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `module:id`; its folder has no colon. No file alone imports the module."""
    name, folder = f"{elsewhere.__name__}:Pulled-v0", f"{elsewhere.__name__}-Pulled-v0"
    tiny = [name if word == TASK else word for word in TINY if word != "2"]
    status, out, err = say(tiny)
    assert (status, err) == (0, "")
    assert "no reference" in out
    grid = desk / "runs" / "sac-classic" / "tuned"
    assert (grid / folder / "seed-1" / "policy.safetensors").exists()
    assert name in (grid / "index.html").read_text()
    status, _, err = say([*tiny, "gamma=0.9,0.99", "--runs-dir", "sweep"])
    assert (status, err) == (0, "")
    assert len(list(desk.glob(f"sweep/*/sac-classic/tuned/{folder}/seed-1/run.json"))) == 2
    monkeypatch.delitem(sys.modules, elsewhere.__name__)
    status, _, err = say(["report", "sac", "classic"])
    assert status == 2
    check(err)


def test_a_dry_run_shows_the_plan(desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks, steps, seeds, what is to run, what is left out; nothing is written."""
    status, out, err = say([*TINY, "--dry-run"])
    assert (status, err) == (0, "")
    line, outlook = [line for line in out.splitlines() if TASK in line]
    assert re.split(" {2,}", line.strip()) == [TASK, "300", "1 2", "1 2"]
    assert "2 processes" in out
    assert "Skipped" not in out
    assert "impossible: no curve judges these settings" in outlook
    monkeypatch.setattr(grid, "_say_outlook", lambda *_: None)  # it takes seconds
    _, out, _ = say(
        ["sac", "classic", "--dry-run", "--device", "cpu", "--env-steps", "3e3", "--seeds", "1-2,5"]
    )
    assert "3,000 1 2 5" in " ".join(out.split())
    cannot = "Skipped, without settings of tuned for sac: CartPole-v1 Acrobot-v1"
    assert f"{cannot} MountainCar-v0" in out
    _, out, _ = say(["impala", "atari", "--budget", "smoke", "--dry-run", "--device", "cpu"])
    assert "Not in --budget smoke, but with --tasks: Alien-v5 Amidar-v5 " in out
    assert list(desk.iterdir()) == []


@pytest.mark.usefixtures("desk")
def test_a_flag_that_is_repeated_adds_to_itself() -> None:
    """No seed, task or setting is dropped in silence."""
    words = f"--seeds 3 --seeds 5 --tasks {TASK} --tasks MountainCarContinuous-v0"
    plan = planned(f"sac classic {words} --set gamma=0.9 --set tau=0.1 --device cpu")
    assert plan.seeds == (3, 5)
    assert plan.tasks == (TASK, "MountainCarContinuous-v0")
    assert (plan.config.gamma, plan.config.tau) == (0.9, 0.1)


def test_the_help_names_commands_first_and_flags_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every flag is in a group: what, how much, how, where."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/encore"])
    with pytest.raises(SystemExit) as stop:
        command_line.main(["--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert {name for group in GROUPS.values() for name in group} == set(FIELDS)
    for word in COMMANDS:
        assert f"\n  {word} " in said
        assert callable(importlib.import_module(f"reproduce.commands.{word}").main)
    check(said, "--help")


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_an_agents_help_has_every_setting(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run, algorithm, speed; each setting with a text."""
    module = importlib.import_module(f"agents.{agent}")
    with pytest.raises(SystemExit):
        module.main(["--help"])
    run, rest = capsys.readouterr().out.split("\nalgorithm:\n")
    algorithm, speed = rest.split("\nspeed:\n")
    assert "--out DIR" in run
    assert "--gamma VALUE" in algorithm
    assert "--tf32 [true|false]" in speed
    for field in dataclasses.fields(module.Config):
        assert f"--{field.name.replace('_', '-')}" in run + rest
    assert not re.search(r"(?:VALUE|\}) +\(default", run + rest)


def test_the_list_shows_all_names(desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents with suites and sources, suites with tasks, what is published; or all of one name."""
    results = desk / "published" / "sac-mujoco" / "paper"
    results.mkdir(parents=True)
    (results / "verdicts.csv").write_text("task,verdict\n")
    monkeypatch.setattr(listing, "PUBLISHED", desk / "published")
    status, out, err = say(["list"])
    assert (status, err) == (0, "")
    lines = out.splitlines()
    mujoco = "  mujoco: jaxrl, cleanrl, mushroom_rl, paper (judged by nnabla_rl), "
    assert any(line.startswith(mujoco) for line in lines)
    assert {"agent sac", "suite atari: 57 tasks", "published sac-mujoco/paper"} <= {*lines}
    names = say(["list", "atari"])[1].split()
    assert (names[0], names[-1], len(names)) == ("Alien-v5", "Zaxxon-v5", 57)
    monkeypatch.undo()
    first, *lines = say(["list", "impala"])[1].splitlines()
    assert first == "agent impala"
    assert {"  classic: tuned (not judged), rllib_control", "control rllib: impala"} <= {*lines}
    starts = [line for line in lines if not line.startswith("  ")]
    assert all(line.startswith(("control rllib: ", "published impala-")) for line in starts)


BROKEN = {
    "torn": "def train(:\n",
    "presets that are none": "PRESETS = None\n",
    "no module": "\nimport nowhere_at_all\n",
    "two lines": "raise ValueError('two\\nlines')\n",
    "an exit": "import sys\nsys.exit(3)\n",
    "a default": """
from dataclasses import dataclass
from agents import a2c
from suite.settings.config import Fraction
from suite.settings.presets import Presets

@dataclass(frozen=True, kw_only=True)
class Config(a2c.Config):
    gamma: Fraction = 1.5

PRESETS = Presets("a2c", Config)
load = main = None
""",
}
"""Contents of a file `agents/half.py`."""


@pytest.mark.usefixtures("unchecked")  # a check of types would read the presets before anybody
@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_agent_yet_is_named_in_one_line_and_breaks_nothing_else(
    case: str, desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own command says what is wrong; `list` says the same and goes on with the others."""
    sys.modules.pop("agents.half", None)  # another content's
    (desk / "half.py").write_text(BROKEN[case])
    monkeypatch.setattr(agents, "__path__", [*agents.__path__, str(desk)])
    monkeypatch.setattr(agents, "AGENTS", ("half", *agents.AGENTS))
    status, out, err = say(["half", "classic"])
    assert (status, out, err.count("\n")) == (2, "", 1)
    check(err, case)
    status, out, _ = say(["list"])
    assert status == 0
    assert f"agent half\n  {err.removeprefix('error: ')}" in out
    assert "agent sac\n  mujoco: jaxrl, " in out
    sys.modules.pop("agents.half", None)


@pytest.mark.parametrize("name", ["load", "main"])
def test_an_agent_that_lacks_what_training_needs_is_refused_when_planned(
    name: str, desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after hours of training, which nobody could evaluate."""
    monkeypatch.delattr(f"agents.sac.{name}")
    status, out, err = say([*TINY, "--dry-run"])
    assert (status, out) == (2, "")
    check(err, f"an agent without {name}")


@pytest.mark.parametrize("words", [["list"], [*TINY, "--dry-run"]])
def test_a_reader_that_ends_first_ends_the_command_quietly(
    words, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `python -m reproduce list | head -1`: whether it prints lines or tables."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["reproduce", *words])
    with open(writer, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert run_main(command_line.main) == 141
    assert capsys.readouterr().err == ""


def test_ctrl_c_says_how_to_go_on(desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 130, and a command that goes on where the runs stopped."""

    def interrupted(plan: Plan, watch: Callable[[Board], None]) -> Board:
        raise KeyboardInterrupt  # once every process has ended: see `run/test_launch.py`

    monkeypatch.setattr(pool, "launch", interrupted)
    status, out, err = say([*TINY, "--workers", "1", "--runs-dir", "my runs"])
    assert (status, err) == (130, "")
    *_, stopped, again = out.splitlines()
    assert stopped == "Stopped. Finished runs are kept; go on with:"
    assert "'my runs'" in again
    assert "python -m reproduce sac classic" in again
    assert again.endswith("log_interval=20")
    assert (desk / "my runs" / "sac-classic" / "tuned" / "plan.json").exists()


def test_a_changed_grid_is_refused(desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with what differs and nothing written; `--fresh` counts no run of the old grid."""
    words = ["sac", "classic", "--tasks", TASK, "--env-steps", "1000", "--device", "cpu"]
    folder = record_run(pendulum(Path("runs"), [1]), TASK, 1)
    monkeypatch.setattr(planning, "sources", lambda agent: {"agents/sac.py": "another"})
    monkeypatch.setattr(planning, "uncommitted", tuple)
    before = {path for path in desk.rglob("*") if path.is_file()}
    status, _, err = say([*words, "--seeds", "1", "2"])
    assert status == 2
    assert err.startswith(f"error: {folder} was run with other code (made by commit ")
    assert "; agents/sac.py has uncommitted changes)" in err
    assert err.count("\n") == 1
    assert {path for path in desk.rglob("*") if path.is_file()} == before
    status, out, err = say([*words, "--seeds", "1", "2", "--fresh", "--dry-run"])
    assert (status, err) == (0, "")
    assert "2 processes" in out
    assert "runs/fresh-1/sac-classic/tuned" in "".join(out.split())
    (desk / "runs" / "fresh-1").mkdir()
    assert "runs/fresh-2" in say([*words, "--seeds", "1", "--fresh", "--dry-run"])[1]
    monkeypatch.setattr("reproduce.commands.report.report", lambda *arguments, **options: 0)
    assert say([*words, "--seeds", "1"])[0] == 2  # not today's, so it is not finished


@pytest.mark.usefixtures("in_this_process", "svg_alone")
def test_a_real_grid_from_command_to_page_and_again(
    desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Two trainings: status 0 and every file; once more, and `report`: no run, the same tables."""
    status, out, err = say(TINY)
    place = desk / "runs" / "sac-classic" / "tuned"
    assert (status, err) == (0, ""), (place / TASK / "seeds-1.log").read_text()
    for seed in (1, 2):
        assert f"{TASK} seed {seed} finished, last return -" in out
    assert "no reference" in out
    assert "learning_starts = 200, set by --set" in out
    assert "no update was made" not in out
    assert "2 planned = 2 finished" in out
    first = {name: text for name, text in tree(place).items() if "/checkpoint/" not in name}
    of_run = ["run.json", "episodes.csv", "evaluations.csv", "updates.csv", "timing.csv"]
    of_run += ["policy.safetensors", "policy.json", "SHA256SUMS"]
    recorded = {f"{TASK}/seed-{seed}/{name}" for seed in (1, 2) for name in of_run}
    recorded |= {f"{TASK}/seeds-{seed}.log" for seed in (1, 2)}
    assert {name for name in first if name.startswith(TASK)} == recorded
    tables = {f"{name}.csv" for name in COLUMNS}
    of_grid = {*tables, "plan.json", "report.json", "index.html", ".lock"}
    of_grid |= {f"{name}.svg" for name in ("curves", "scores", "throughput", "curves_by_time")}
    assert set(first) - recorded == of_grid
    verdicts = pd.read_csv(place / "verdicts.csv")
    assert verdicts.verdict.tolist() == ["no reference"]
    assert verdicts.num_seeds.tolist() == [2]
    scores = pd.read_csv(place / "scores.csv").score
    evaluations = pd.read_csv(place / TASK / "seed-1" / "evaluations.csv")
    assert evaluations.env_steps.tolist() == [100, 200, 300]
    assert scores[0] == float(f"{evaluations.mean_return.iloc[-1]:.9g}")
    assert pd.read_csv(place / "throughput.csv").num_updates.tolist() == [100, 100]

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(pool, "AgentProcess", never)
    request.getfixturevalue("undrawn")  # once is enough
    for words in (TINY, ["report", "sac", "classic"]):
        status, out, err = say(words)
        assert (status, err) == (0, "")
        again = {name: text for name, text in tree(place).items() if "/checkpoint/" not in name}
        same = recorded | tables | {"plan.json"}
        assert [name for name in same if again[name] != first[name]] == []
        assert set(again) == set(first) - set(FIGURES)


@pytest.mark.usefixtures("unchecked", "in_this_process")
def test_a_longer_command_goes_on(desk: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are kept as they are; a dropped checkpoint is said."""
    monkeypatch.setattr("reproduce.commands.report.report", lambda *arguments, **options: 0)
    short = [word for word in TINY if word != "2"]
    longer = [{"300": "500"}.get(word, word) for word in short] + ["--drop-checkpoints"]
    here = desk / "runs" / "sac-classic" / "tuned" / TASK / "seed-1"
    assert say(short)[0] == 0
    before = tree(here)
    assert say(longer)[0] == 0
    ours = tree(here)
    assert not any(name.startswith("checkpoint") for name in ours)
    assert len(json.loads(ours["run.json"])["resumed_at"]) == 1
    for name in ("episodes.csv", "evaluations.csv", "updates.csv"):
        assert ours[name].startswith(before[name])
        assert len(ours[name]) > len(before[name])
    assert [path.name for path in here.parent.iterdir() if path.is_dir()] == ["seed-1"]


def test_a_report_of_what_was_not_run_names_our_runs(published: Path, desk: Path, say: Say) -> None:
    """Those that are published, which the same words judge elsewhere."""
    saved(pendulum(published))
    status, out, err = say(["report", "sac", "classic"])
    ours = published / "sac-classic" / "tuned"
    assert (status, out) == (2, "")
    assert err == f"error: nothing was run in runs/sac-classic/tuned; our runs are in {ours}\n"


@pytest.mark.parametrize(
    ("program", "called"), [("/usr/bin/encore", "encore"), ("x.py", "python -m reproduce")]
)
def test_the_console_command_names_itself_and_its_version(
    program: str, called: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was started; entry and version are those of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["encore"] == "reproduce.__main__:command"
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit):
        command_line.command()
    assert f"for example: {called} sac mujoco" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["--version"])
    assert capsys.readouterr().out == f"encore {project['version']}\n"


@pytest.mark.usefixtures("undrawn")
def test_open_shows_the_page(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status is the verdict's, and the browser gets the page of this very grid."""
    plan = saved(pendulum(tmp_path, [1]))
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(pipeline, "exit_status", lambda *_: 1)
    command = ["report", "sac", "classic", "--runs-dir", str(tmp_path)]
    assert say(command)[0] == 1
    assert opened == []
    assert say([*command, "--open"])[0] == 1
    assert opened == [(plan.directory / "index.html").as_uri()]
