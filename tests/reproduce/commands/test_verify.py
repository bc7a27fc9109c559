"""`verify` makes a recorded run again, byte by byte, and says where it differs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agents import a2c
from reproduce.commands import verify as verifying
from suite.base import code
from suite.base.files import compress
from suite.record.reading import read_record
from suite.settings.older import REMOVED
from tests.messages import check
from tests.reproduce.conftest import NEVER_BEGUN, Say, reseal

TASK = "Pendulum-v1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of A2C with other settings than its preset's."""
    out = tmp_path_factory.mktemp("runs") / "a2c-classic" / "rl_zoo" / TASK
    command = ["--suite", "classic", "--task", TASK, "--device", "cpu", "--out", str(out)]
    command += ["--env-steps", "6000", "--log-interval", "1000"]
    assert a2c.main([*command, "--hidden-sizes", "8", "--num-envs", "4"]) == 0
    return out / "seed-1"


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as a published one."""
    published = tmp_path / "published"
    folder = shutil.copytree(made, published / "a2c-classic" / "rl_zoo" / TASK / "seed-1")
    monkeypatch.setattr(verifying, "PUBLISHED", published)
    return folder


def test_a_run_of_todays_code_is_made_again(run: Path, say: Say) -> None:
    """Byte by byte, by its own settings and without those that are gone."""
    gone = {name: values[-1] for name, values in REMOVED.items()}
    reseal(run, config=json.loads((run / "run.json").read_text())["config"] | gone)
    compress(run / "episodes.csv")
    status, out, err = say(["verify", "a2c", str(run), "--seconds", "5"])
    assert (status, err) == (0, "")
    assert out.startswith(f"ok {run}: the first ")


@pytest.mark.parametrize("row", [1, 2])
def test_a_changed_row_is_found_and_named(
    row: int, run: Path, made: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the record's own processor its rows must come again; on another they may be others."""
    lines = (run / "updates.csv").read_text().splitlines()
    lines[row] = lines[row][:-1] + ("1" if lines[row][-1] != "1" else "2")
    (run / "updates.csv").write_text("\n".join(lines) + "\n")
    reseal(run)
    monkeypatch.setattr(verifying, "_make_again", lambda *arguments: made)
    status, out, _ = say(["verify", "a2c", str(run)])
    assert status == 1
    assert out.startswith(f"DIFFERS {run}: updates.csv, line {row + 1}: ")
    machine = json.loads((run / "run.json").read_text())["machine"]
    older = {key: value for key, value in machine.items() if key != "processor"}
    for other in ({**machine, "processor": "some other"}, {**older, "cpu": "other"}, older):
        reseal(run, machine=other)  # older records know its name alone, which two models share
        status, out, _ = say(["verify", "a2c", str(run)])
        assert (status, out[:11]) == (0, "not decided")
        assert "it was recorded on some " in out


def test_rows_are_compared_as_far_as_both_go(run: Path, tmp_path: Path) -> None:
    """A torn line does not count; today's beginning may not go further than the finished record."""
    short = shutil.copytree(run, tmp_path / "short")
    lines = (run / "updates.csv").read_bytes().splitlines(keepends=True)
    (short / "updates.csv").write_bytes(b"".join(lines[:-1]) + b"12,torn")
    rows, difference = verifying.compare(short, run)
    assert difference == ""
    assert 2 < rows < verifying.compare(run, run)[0]
    assert verifying.compare(run, short)[1].startswith("updates.csv: it has ")


def test_bytes_of_another_gpu_decide_nothing(run: Path) -> None:
    """Nor does another driver; a run on a CPU has nothing to do with either."""
    record = read_record(run)
    assert record is not None
    assert verifying.elsewhere(record) == ""
    record["machine"] |= {"gpu": "another", "gpu_driver": "1.2"}
    assert verifying.elsewhere(record) == ""
    record["config"]["device"] = "cuda"
    assert verifying.elsewhere(record) == "with gpu another, with gpu_driver 1.2"


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "agent": ("acb", {}),
    "folder": ("a2c nowhere", {}),
    "another's run": ("sac RUN", {}),
    "damaged": ("a2c RUN", {"seed": 2}),
    "failed": ("a2c RUN", {"status": "failed"}),
    "never begun": ("a2c RUN", NEVER_BEGUN),
    "control": ("a2c RUN", {"control": "sb3"}),
    "seconds": ("a2c RUN --seconds 0", {}),
    "another task": ("a2c RUN --task-from gymnasium:CartPole-v1", {}),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_line_and_status_2(case: str, run: Path, say: Say) -> None:
    """It names what is wrong."""
    words, entries = WRONG[case]
    reseal(run, **entries)
    if entries is NEVER_BEGUN:
        (run / "run.json").write_text(json.dumps(entries))
    status, out, err = say(["verify", *words.replace("RUN", str(run)).split()])
    assert (status, out, err.count("\n")) == (2, "", 1)
    check(err, case)


def test_a_record_imports_no_module(run: Path, say: Say) -> None:
    """Who trusts the task that it names says so by --task-from."""
    config = json.loads((run / "run.json").read_text())["config"]
    run = run.parent.rename(run.parent.with_name("antigravity-X-v0")) / run.name
    reseal(run, task="antigravity:X-v0", config=config | {"task": "antigravity:X-v0"})
    status, _, err = say(["verify", "a2c", str(run)])
    assert status == 2
    assert "give a command --task-from antigravity:X-v0" in err


def test_without_a_name_the_quickest_run_of_todays_number_is_taken(run: Path, say: Say) -> None:
    """One that was made on another processor cannot be decided here: it is taken last."""
    record = json.loads((run / "run.json").read_text())
    here, there = record["machine"], record["machine"] | {"processor": "another"}
    for seed, seconds, machine in ((2, 1e6, here), (3, 1e7, here), (4, 1e5, there)):
        copy = shutil.copytree(run, run.with_name(f"seed-{seed}"))
        config = record["config"] | {"seeds": [seed]}
        reseal(copy, seed=seed, wall_seconds=seconds, machine=machine, config=config)
    for folder in run.parent.iterdir():
        reseal(folder, behaviour=99)
    out = "no published run of a2c has today's number: name a RUN\n"
    assert say(["verify", "a2c"]) == (0, out, "")
    for folder in run.parent.iterdir():
        if folder != run:
            reseal(folder, behaviour=code.behaviour("a2c"))
    assert verifying.default_run("a2c") == run.with_name("seed-2")
