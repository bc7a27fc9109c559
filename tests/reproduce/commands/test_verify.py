"""`verify` makes a recorded run again, byte by byte, and says where it differs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reproduce import ROOT
from reproduce import __main__ as command_line
from reproduce.commands import verify as verifying
from reproduce.plan import grid as planning
from suite.base import hardware
from suite.base.files import compress
from suite.record.manifest import write_manifest
from suite.record.records import read_record
from suite.settings.command_line import run_main
from suite.settings.recorded import REMOVED

TASK = "Pendulum-v1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of A2C, trained by its own command."""
    out = tmp_path_factory.mktemp("runs") / "a2c-classic" / "rl_zoo" / TASK
    command = [sys.executable, "-m", "agents.a2c", "--suite", "classic", "--task", TASK]
    command += ["--env-steps", "6000", "--log-interval", "1000", "--out", str(out)]
    command += ["--device", "cpu", "--hidden-sizes", "8", "--num-envs", "4"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return out / "seed-1"


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as a published one."""
    published = tmp_path / "published"
    folder = shutil.copytree(made, published / "a2c-classic" / "rl_zoo" / TASK / "seed-1")
    monkeypatch.setattr(verifying, "PUBLISHED", published)
    monkeypatch.setattr(planning, "PUBLISHED", published)
    return folder


def edit(folder: Path, **entries: Any) -> None:
    """Change a record's entries, and its manifest."""
    record = json.loads((folder / "run.json").read_text()) | entries
    (folder / "run.json").write_text(json.dumps(record))
    write_manifest(folder, (folder / "run.json").read_bytes())


def change_row(folder: Path, name: str = "updates.csv") -> None:
    """Change the last digit of the second row of a table."""
    lines = (folder / name).read_text().splitlines()
    lines[2] = lines[2][:-1] + ("1" if lines[2][-1] != "1" else "2")
    (folder / name).write_text("\n".join(lines) + "\n")


def at_commit(monkeypatch: pytest.MonkeyPatch, tree: Path = ROOT) -> list[str]:
    """Let every commit have the code of a tree; return the list of commits that are asked for."""
    asked: list[str] = []

    @contextmanager
    def worktree(revision: str) -> Iterator[Path]:
        asked.append(revision)
        yield tree

    monkeypatch.setattr(verifying, "worktree", worktree)
    return asked


def say(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Call the command and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["reproduce", "verify", *map(str, words)])
    return run_main(command_line.main)


def test_a_run_of_todays_code_is_made_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte by byte, though a table is compressed as long ones are when they are published."""
    compress(run / "episodes.csv")
    assert say(monkeypatch, "a2c", "--seconds", "5", run) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"ok {run}: the first ")
    assert said.endswith("byte by byte\n")


def test_a_changed_row_is_found_and_named(
    run: Path, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the record's own processor its rows must come again."""
    change_row(run)
    edit(run, commit="0" * 40, dirty=False)
    asked = at_commit(monkeypatch)
    monkeypatch.setattr(verifying, "_make_again", lambda *arguments: made)
    monkeypatch.setattr(verifying, "_run", lambda *arguments: made)
    assert say(monkeypatch, "a2c", run, "--seconds", "5") == 1
    said = capsys.readouterr().out
    assert "differs from today's code in updates.csv, row 2, " in said
    assert "the record was changed" in said
    assert said.count("\n") == 1
    assert asked == ["0" * 40]


@pytest.mark.parametrize("known", ["cpu", "processor"])
def test_elsewhere_the_records_commit_decides(
    known: str, run: Path, made: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Another processor rounds otherwise; there what counts is what the record's commit does.

    Another generation of the same name is another processor; older records know only the name.
    """
    change_row(run)
    record = json.loads((run / "run.json").read_text())
    elsewhere = record["machine"] | {known: "another"}
    if known == "cpu":
        del elsewhere["processor"]
    edit(run, commit="0" * 40, dirty=False, machine=elsewhere)
    at_commit(monkeypatch)
    monkeypatch.setattr(verifying, "_make_again", lambda *arguments: made)
    monkeypatch.setattr(verifying, "_run", lambda *arguments: made)
    assert say(monkeypatch, "a2c", run, "--seconds", "5") == 0
    assert "are those of its commit 0000000 here (recorded on another)" in capsys.readouterr().out
    monkeypatch.setattr(
        verifying, "_make_at_commit", lambda *arguments: _broken(run, tmp_path / "broken")
    )
    assert say(monkeypatch, "a2c", run, "--seconds", "5") == 1
    assert "today's code differs from commit 0000000 in episodes.csv" in capsys.readouterr().out


def _broken(run: Path, folder: Path) -> Path:
    """Return rows as another code would give them."""
    shutil.copytree(run, folder)
    change_row(folder, "episodes.csv")
    return folder


def test_rows_are_compared_as_far_as_both_go(run: Path, tmp_path: Path) -> None:
    """A torn line does not count; today's beginning may not go further than the finished record."""
    short = shutil.copytree(run, tmp_path / "short")
    lines = (run / "updates.csv").read_bytes().splitlines(keepends=True)
    (short / "updates.csv").write_bytes(b"".join(lines[:3]) + b"12,torn")
    rows, difference = verifying.compare(short, run)
    assert difference == ""
    assert 2 < rows < verifying.compare(run, run)[0]
    assert "updates.csv: it has 3 lines, today's" in verifying.compare(run, short)[1]
    assert verifying.compare(run, short, both_cut=True)[1] == ""


@pytest.mark.parametrize(
    ("words", "entries", "hint"),
    [
        (["acb"], {}, "unknown agent 'acb'"),
        (["a2c", "nowhere"], {}, "nowhere is not a run's folder"),
        (["sac", "RUN"], {}, "is a run of a2c, not of sac"),
        (["a2c", "RUN"], {"seed": 2}, "is damaged: it says seed 2"),
        (["a2c", "RUN"], {"status": "failed"}, "only a finished run can be verified"),
        (["a2c", "RUN", "--seconds", "0"], {}, "--seconds must be above 0"),
        (["a2c", "RUN"], {"machine": {}, "commit": None}, "its code was never committed"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    words: list[str], entries: dict[str, Any], hint: str, run: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It names what is wrong."""
    if "commit" in entries:
        change_row(run)
        monkeypatch.setattr(verifying, "_make_again", lambda *arguments: _broken(run, run / "x"))
    edit(run, **entries)
    assert say(monkeypatch, *(run if word == "RUN" else word for word in words)) == 2
    captured = capsys.readouterr()
    assert hint in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_without_a_name_the_quickest_run_of_todays_number_is_taken(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Continuous integration asks whether runs of today's number are still made.

    What was never committed cannot be made again on another processor: it is taken last.
    """
    settings = json.loads((run / "run.json").read_text())["config"]
    for seed, seconds, dirty in ((2, 1e6, False), (3, 1e7, False), (4, 1e5, True)):
        copy = shutil.copytree(run, run.with_name(f"seed-{seed}"))
        config = settings | {"seeds": [seed]}
        edit(copy, seed=seed, wall_seconds=seconds, dirty=dirty, config=config)
    for folder in run.parent.iterdir():
        edit(folder, behaviour=99)
    assert say(monkeypatch, "a2c") == 0
    assert "no published run of a2c has today's number: name a RUN" in capsys.readouterr().out
    for folder in run.parent.iterdir():
        if folder != run:
            edit(folder, behaviour=hardware.behaviour("a2c"))
    assert verifying.default_run("a2c") == run.with_name("seed-2")


def test_the_records_command_is_run_for_its_own_seeds(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command of three seeds that ran in turn is asked for the record's alone, elsewhere."""
    commands: list[list[str]] = []
    at_commit(monkeypatch)
    monkeypatch.setattr(
        verifying, "_run", lambda command, *_: commands.append(list(command)) or tmp_path
    )
    record = dict(read_record(run) or {})
    record |= {"commit": "0" * 40, "dirty": False}
    record["command"] = "python -m agents.a2c --seeds 1 2 3 --out runs/x --device cpu"
    verifying._make_at_commit(record, tmp_path, 1.0)
    expected = ["-m", "agents.a2c", "--seeds", "1", "--out", str(tmp_path), "--device", "cpu"]
    assert commands[0][1:] == expected
    for command in ("python -m agents.sac --out x", "rm -rf x", "python -m agents.a2c"):
        with pytest.raises(verifying.UsageError, match="cannot be run again"):
            verifying._make_at_commit(record | {"command": command}, tmp_path, 1.0)


def test_settings_are_the_records_and_not_a_presets(run: Path, tmp_path: Path) -> None:
    """A preset may change; a run is made again as it was configured, without what is gone."""
    from agents import a2c

    record = dict(read_record(run) or {})
    config = a2c.PRESETS["classic", "rl_zoo"].config
    assert record["config"]["num_envs"] != config.num_envs
    record["config"] |= REMOVED
    folder = verifying._make_again(record, tmp_path, 5.0)
    assert verifying.compare(folder, run)[1] == ""
