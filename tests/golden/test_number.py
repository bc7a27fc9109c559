"""An agent's bytes cannot change while its behaviour's number stays; trainings are stand-ins."""

import json
from pathlib import Path

import pytest

from suite.base import code
from suite.base.errors import UsageError
from tests.golden import __main__ as command_line
from tests.golden import runner, trees

AGENT = "sac"


class Project:
    """What an agent's number is, what bytes it gives, and what is not committed."""

    def __init__(self) -> None:
        self.number: int | None = 1
        self.bytes = {"one": {"updates.csv": "1"}, "two": {"updates.csv": "2"}}
        self.orders = {name: {"settings": {}, "cut": False} for name in self.bytes}
        self.changes: tuple[str, ...] = ()
        self.cpu = "a processor"

    def run(self, agent: str, runs: trees.Orders) -> trees.Checksums:
        return {name: self.bytes[name] for name in runs}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An agent with two short runs, whose checksums are stored for one processor."""
    project = Project()
    monkeypatch.setattr(trees, "STORED", tmp_path / "golden.json")
    monkeypatch.setattr(runner, "all_checksums", project.run)
    monkeypatch.setattr(trees, "machine", lambda: {"cpu": project.cpu})
    monkeypatch.setattr(trees, "todays_runs", lambda agent: dict(project.orders))
    monkeypatch.setattr(code, "sources", lambda agent: {"agents/sac.py": "sum"})
    monkeypatch.setattr(code, "behaviour", lambda agent: project.number)
    monkeypatch.setattr(code, "uncommitted", lambda sources: project.changes)
    assert update() == 0
    return project


def update() -> int:
    """Call `python -m tests.golden --update` for the agent."""
    return command_line.main(["--agent", AGENT, "--update"])


def stored() -> tuple[int, dict[str, trees.Checksums]]:
    """Return the stored number, and the checksums by processor."""
    content = json.loads(trees.STORED.read_text())[AGENT]
    made = {each["machine"]["cpu"]: each["checksums"] for each in content["made"]}
    return content["behaviour"], made


def test_other_bytes_need_a_higher_number(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the same number they fail and are never stored; a number goes up, not down."""
    before = trees.STORED.read_text()
    project.bytes["two"] = {"updates.csv": "3"}
    assert update() == 1
    assert trees.STORED.read_text() == before
    assert "two: updates.csv" in capsys.readouterr().out
    project.number = 0
    with pytest.raises(UsageError, match="raise it"):
        update()
    project.number = 2
    with pytest.raises(UsageError, match="no checksums of behaviour 2: python"):
        trees.check_stored(AGENT)
    project.cpu = "another"
    assert update() == 0
    assert stored() == (2, {"another": project.bytes})  # those of behaviour 1 are gone
    trees.check_stored(AGENT)


def test_a_new_run_is_stored_beside_the_others(project: Project) -> None:
    """Other processors keep their checksums of the runs that are the same."""
    project.cpu = "another"
    assert update() == 0
    project.bytes["three"] = {"updates.csv": "3"}
    project.orders["three"] = {"settings": {}, "cut": True}
    project.orders["one"] = {"settings": {"gamma": 0.99}, "cut": False}  # younger, the default
    project.orders["two"] = {"settings": {"gamma": 0.9}, "cut": False}
    assert update() == 0
    number, made = stored()
    assert number == 1
    assert made == {"another": project.bytes, "a processor": {"one": {"updates.csv": "1"}}}


def test_a_processor_without_checksums_gets_those_of_committed_code(project: Project) -> None:
    """Nothing is compared there until somebody stores what committed code gives."""
    project.cpu, project.changes = "another", ("agents/sac.py",)
    assert trees.checksums(AGENT) == {}
    with pytest.raises(UsageError, match=r"agents/sac\.py has uncommitted changes"):
        update()
    project.changes = ()
    assert update() == 0
    assert set(stored()[1]) == {"a processor", "another"}
    project.bytes["one"] = {"updates.csv": "7"}
    assert update() == 1
