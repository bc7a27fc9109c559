"""An agent's bytes cannot change while its behaviour's number stays; trainings are stand-ins."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from suite import behaviour, hardware
from suite.settings import UsageError
from tests.golden import __main__ as command_line
from tests.golden import trees

AGENT = "sac"


class Project:
    """What the present code is, what bytes it gives, and what git says."""

    def __init__(self) -> None:
        self.code = "first"
        self.bytes = {"one": {"updates.csv": "1"}, "two": {"updates.csv": "2"}}
        self.changes = ""
        self.cpu = "a processor"
        self.num_trained = 0

    def run(self, agent: str, runs: trees.Orders) -> trees.Checksums:
        self.num_trained += len(runs)
        return {name: self.bytes[name] for name in runs}

    def git(self, *arguments: str) -> str:
        return self.changes if arguments[0] == "status" else f"commit of {self.code}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An agent with two short runs, whose first commit is the base."""
    project, runs = Project(), {"one": {"settings": {}, "cut": False}}
    monkeypatch.setattr(behaviour, "DECLARED", tmp_path / "behaviour.json")
    monkeypatch.setattr(trees, "STORED", tmp_path / "golden.json")
    monkeypatch.setattr(trees.Runner, "run", lambda self, agent, runs: project.run(agent, runs))
    monkeypatch.setattr(trees, "machine", lambda: {"cpu": project.cpu})
    monkeypatch.setattr(trees, "git", project.git)
    monkeypatch.setattr(trees, "todays_runs", lambda agent: runs | {"two": runs["one"]})
    monkeypatch.setattr(hardware, "sources", lambda agent: {"agents/sac.py": project.code})
    (tmp_path / "golden.json").write_text("{}")
    assert golden("--update") == 0
    return project


def golden(*arguments: str) -> int:
    """Call `python -m tests.golden` for the agent."""
    return command_line.main(["--agent", AGENT, *arguments])


def numbers() -> dict[int, tuple[str, int]]:
    """Base and number of listed codes, by behaviour."""
    known = behaviour.behaviours(AGENT)
    return {number: (each["base"], len(each["sources"])) for number, each in known.items()}


def test_the_first_base_is_behaviour_1(project: Project) -> None:
    """A new agent gets it by one command, and its code is listed."""
    assert numbers() == {1: ("commit of first", 1)}
    assert behaviour.number_of(AGENT, hardware.sources(AGENT)) == 1


def test_equal_bytes_list_the_code_and_change_nothing_else(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refactoring keeps the number; the same code is listed once."""
    project.code = "rewritten"
    assert behaviour.number_of(AGENT, hardware.sources(AGENT)) is None
    for _ in range(2):
        assert golden() == 0
    assert numbers() == {1: ("commit of first", 2)}
    assert "lists this code for behaviour 1" in capsys.readouterr().out


def test_other_bytes_are_refused_until_the_number_is_raised(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code with other bytes is never listed for the old number, and `--update` does not help."""
    project.code, project.bytes["two"] = "changed", {"updates.csv": "3"}
    for arguments in ([], ["--update"]):
        assert golden(*arguments) == 1
        assert numbers() == {1: ("commit of first", 1)}
        assert "tests.golden --agent sac --raise" in capsys.readouterr().out
    assert golden("--raise") == 0
    assert numbers() == {1: ("commit of first", 1), 2: ("commit of changed", 1)}
    assert golden() == 0
    project.bytes["two"] = {"updates.csv": "2"}
    assert golden() == 1  # the old bytes are wrong now


def test_a_base_moves_under_equal_bytes_alone(project: Project) -> None:
    """The number stays, the commit is the present one."""
    project.code = "rewritten"
    assert golden("--update") == 0
    assert numbers() == {1: ("commit of rewritten", 2)}


def test_a_part_of_the_runs_or_another_tree_verifies_nothing(project: Project) -> None:
    """Only all runs of the base show that the bytes hold."""
    project.code = "rewritten"
    assert golden("--run", "one") == 0
    assert golden("--tree", ".") == 0
    assert numbers() == {1: ("commit of first", 1)}


def test_a_machine_of_a_new_kind_makes_the_bases_bytes_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are stored beside the other kinds', which stay; a part of the runs is not stored."""
    asked: list[str] = []
    monkeypatch.setattr(
        trees, "checkout", lambda commit: asked.append(commit) or contextlib.nullcontext(Path())
    )
    assert golden() == 0
    assert asked == []
    project.cpu, project.bytes["one"] = "another", {"updates.csv": "7"}
    assert golden("--run", "one") == 0
    assert golden() == 0
    assert asked == ["commit of first"] * 2
    assert "stored: the base's checksums on another" in capsys.readouterr().out
    assert golden() == 0
    assert len(asked) == 2
    project.cpu = "a processor"
    assert golden() == 1  # its bytes are those that were stored first
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--run", "onne"], "did you mean one"),
        (["--raise", "--run", "one"], "leave out --run"),
        (["--update", "--tree", "."], "leave out --run and --tree"),
    ],
)
def test_bad_usage_names_the_fix(arguments: Sequence[str], hint: str, project: Project) -> None:
    """One line, before anything is trained."""
    before = project.num_trained
    with pytest.raises(UsageError, match=hint):
        golden(*arguments)
    assert project.num_trained == before


def test_a_base_is_a_commit(project: Project) -> None:
    """With changes that are not committed, nothing is stored."""
    project.changes, project.code = " M agents/sac.py", "changed"
    before = json.loads(trees.STORED.read_text())
    with pytest.raises(UsageError, match="commit them first"):
        golden("--raise")
    assert json.loads(trees.STORED.read_text()) == before
    assert numbers() == {1: ("commit of first", 1)}
