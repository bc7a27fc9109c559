"""What stands beside a verdict: every circumstance by its name, and nothing where there is none."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from reproduce.commands.judge import judge_curves
from reproduce.gather.others import read_curves
from reproduce.judge import remarks
from reproduce.judge.remarks import ABSENT, Judge, details, judge_of, marks, of_suite, of_task
from reproduce.pipeline import gather
from reproduce.plan.grid import PUBLISHED
from reproduce.plan.make import make_plan
from reproduce.report.page import render
from reproduce.report.words import verdict_lines
from tests.reproduce.conftest import make_report

RecordRun = Callable[..., Path]
Reseal = Callable[[Path], None]

TASK = "Reacher-v4"
XEON, EPYC = "Xeon family 6 model 207", "EPYC family 25 model 17"


def record(torch: str = "2.13.0", processor: str | None = XEON, **entries: Any) -> dict[str, Any]:
    """Return what a record says of its circumstances."""
    machine = {"cpu": "Xeon", "processor": processor, "gpu": "H100"}
    said = {"dirty": False, "config": {"device": "cpu"}, "versions": {"torch": torch}}
    return {**said, "machine": machine, **entries}


@pytest.mark.parametrize(
    ("settings", "records", "wanted"),
    [
        ({}, [record(), record()], ""),
        ({"gamma": "0.98"}, [record()], "settings changed: gamma = 0.98"),
        ({"gamma": "0.9", "tau": "1"}, [], "settings changed: gamma = 0.9, tau = 1"),
        ({}, [record(), record(dirty=True)], "uncommitted code: in 1 of 2 runs"),
        ({}, [record(dirty=None)], ""),
        ({}, [record(), record("2.12.0")], "versions differ: torch 2.12.0 and 2.13.0"),
        ({}, [record(), record(versions={})], f"versions differ: torch 2.13.0 and {ABSENT}"),
        ({}, [record(), record(processor=EPYC)], f"processors differ: {EPYC} and {XEON}"),
        ({}, [record(), record(processor=None)], ""),  # an older record of the same model
        ({}, [record(), record(config={"device": "cuda"})], f"processors differ: H100 and {XEON}"),
        ({}, [record("2.12.0\n; \x1b[2J"), record("2.12.0\n; \x1b[2J")], ""),
    ],
)
def test_a_remark_names_what_differs(
    settings: dict[str, str], records: list[dict[str, Any]], wanted: str
) -> None:
    """Values of settings, versions and processors are written out; what is equal is not."""
    assert of_task(settings, records, judge_changed=False) == wanted
    both = of_task(settings, records, judge_changed=True)
    assert both == "; ".join(filter(None, [wanted, "judge changed"]))
    assert marks(both) == [*([wanted.partition(": ")[0]] if wanted else []), "judge changed"]
    assert details(both) == ([wanted] if wanted else [])


def test_a_suite_has_the_marks_of_all_its_tasks() -> None:
    """Each once, without details, which stand beside the tasks."""
    said = [
        "uncommitted code: in 1 of 3 runs",
        "",
        "uncommitted code: in 2 of 3 runs; judge changed",
    ]
    assert of_suite(said) == "uncommitted code; judge changed"
    assert of_suite(["", ""]) == ""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project under git, with a file of each kind that judges, and one that does not."""
    names = ("reproduce/judge/verdicts.py", "reproduce/gather/references.py", "suite/suite.py")
    names += ("suite/random_scores.csv", "results/references/comparable.csv")
    names += ("results/references/jaxrl/curves.csv", "results/references/rl_zoo/curves.csv")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "All")
    return tmp_path


def git(project: Path, *words: str) -> None:
    """Run git in a project."""
    subprocess.run(["git", "-C", str(project), *words], check=True)


@pytest.mark.parametrize(
    ("name", "judges"),
    [
        ("reproduce/judge/verdicts.py", True),
        ("reproduce/judge/another.py", True),
        ("reproduce/gather/references.py", True),
        ("suite/random_scores.csv", True),
        ("results/references/comparable.csv", True),
        ("results/references/jaxrl/curves.csv", True),
        ("results/references/rl_zoo/curves.csv", False),
        ("suite/suite.py", False),
    ],
)
def test_a_change_of_what_judges_is_seen(name: str, judges: bool, project: Path) -> None:
    """Of code and of the judge's own tables, be a file new or edited; not of another source's."""
    before = judge_of("sac", "jaxrl", project)
    assert before.changed is False
    with (project / name).open("a") as file:
        file.write("changed\n")
    after = judge_of("sac", "jaxrl", project)
    assert after.changed is judges
    assert (after.digest != before.digest) is judges
    git(project, "add", "--all")
    assert judge_of("sac", "jaxrl", project).changed is judges  # staged is not committed


def test_without_git_nobody_knows_whether_it_changed(project: Path, tmp_path: Path) -> None:
    """The digest is the same; a project inside somebody else's repository is not theirs."""
    before = judge_of("sac", "jaxrl", project)
    (project / ".git").rename(tmp_path / "elsewhere")
    assert judge_of("sac", "jaxrl", project) == (before.digest, None)
    git(project, "init", "--quiet")
    assert judge_of("sac", "jaxrl", project) == (before.digest, None)
    assert Judge("12", None).sentence() == "Judged by code and tables 12, unknown to git"
    assert Judge("12", True).sentence() == "Judged by code and tables 12, changed since the commit"


def printed(plan_or_tables: Any, title: str = "") -> str:
    """Return what the console shows of verdicts."""
    console = Console(width=100)
    with console.capture() as shown:
        console.print(verdict_lines(plan_or_tables["verdicts"], plan_or_tables["suite"], title))
    return shown.get()


@pytest.mark.usefixtures("undrawn")
def test_remarks_stand_on_console_page_and_table(
    tmp_path: Path, record_run: RecordRun, reseal: Reseal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict with changed settings, mixed machines or a changed judge never looks clean."""
    monkeypatch.setattr(remarks, "judge_of", lambda *_: Judge("0123456789ab", True))
    plan = make_plan(
        "sac", "mujoco-small", runs_dir=tmp_path, tasks=[TASK], settings=["gamma=0.98"],
        env_steps=10_000, seeds=[1, 2, 3], published=False,
    )  # fmt: skip
    versions = ("2.12.0", "2.13.0", "2.13.0")
    for seed, torch in enumerate(versions, start=1):
        folder = record_run(plan, TASK, seed, {10_000: -5.0 - seed / 100})
        said = json.loads((folder / "run.json").read_text())
        said |= {"dirty": seed == 3, "versions": {"torch": torch}}
        (folder / "run.json").write_text(json.dumps(said))
        reseal(folder)
    verdicts = make_report(plan)
    (wanted,) = verdicts["remarks"]
    assert wanted == (
        "settings changed: gamma = 0.98; uncommitted code: in 1 of 3 runs; "
        "versions differ: torch 2.12.0 and 2.13.0; judge changed"
    )
    assert pd.read_csv(plan.directory / "verdicts.csv")["remarks"].tolist() == [wanted]
    report = json.loads((plan.directory / "report.json").read_bytes())
    assert report["judge"] == "0123456789ab"
    text = " ".join(printed(gather(plan)).split())
    page = render(plan.directory)
    for place in (text, page):
        assert "Settings changed: gamma = 0.98." in place
        assert "Versions differ: torch 2.12.0 and 2.13.0." in place
        assert "settings changed, uncommitted code, versions differ, judge changed" in place
    assert "Judged by code and tables <code>0123456789ab</code>" in page
    (again,) = gather(plan, is_committed=True)["verdicts"]["remarks"]
    assert again == wanted.removesuffix("; judge changed")


def test_anybodys_curves_are_judged_beside_a_changed_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of settings and machines nothing is known there; of the judge there is."""
    grid = PUBLISHED / "sac-mujoco-small" / "paper"
    for changed, wanted in ((True, {"judge changed"}), (False, {""}), (None, {""})):
        monkeypatch.setattr(remarks, "judge_of", lambda *_, changed=changed: Judge("12", changed))
        found = judge_curves("sac", read_curves([grid / "curves.csv"]), "nnabla_rl")
        assert {*found.tasks["remarks"], *found.suite["remarks"]} == wanted
        assert ("judge changed" in printed(found.tables)) is (changed is True)
