"""The measurements of a GPU: the whole program, tried on a CPU with tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from suite.base.errors import UsageError
from tests.benchmarks import gpu, speeds
from tests.benchmarks.gpu import NEEDS_GPU, PARTS, Row, differing, main

ON_CPU = ["--device=cpu", "--seconds=0.1"]


@pytest.mark.further
@pytest.mark.usefixtures("unchecked")
def test_every_part_measures_or_says_that_it_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and without limits; a CPU has no target, and a share of the simulator's speed."""
    monkeypatch.setattr(speeds, "SETTLING_SECONDS", 0.05)
    monkeypatch.setattr("suite.base.hardware.num_cores", lambda: 1)
    kept = speeds.Recorder.log
    out = tmp_path / "new" / "gpu.json"
    assert main([*ON_CPU, "--here", f"--out={out}"]) == 0
    assert speeds.Recorder.log is kept
    said = json.loads(out.read_bytes())
    assert said["machine"]["cores"] > 0
    rows = [Row(**row) for row in said["rows"]]
    missing = [row.what for row in rows if row.value is None]
    assert all(row.note == NEEDS_GPU for row in rows if row.value is None)
    assert [what.split(",")[0] for what in missing] == [
        *(["products"] * 2 + ["graph of 1000 tiny kernels"] + ["copy to the device"] * 4),
        *("sac-1-graphs", "sac-16-graphs", "sac-64-graphs", "sac-64-tf32"),
        *("a2c-graphs", "impala-graphs", "impala-bfloat16", "acer-graphs"),
        "bytes-graphs",
    ]
    trained = [row for row in rows if row.unit == "steps/s" and not row.what.startswith("sim")]
    trained = [row for row in trained if row.value is not None]
    assert len(trained) == len(gpu.TRAININGS) - 8 + 1
    for row in trained:
        assert row.value is not None
        assert row.value > 0
        assert row.target is None
        assert row.shares or "evaluations counted" in row.what
    assert (rows[-3].value, rows[-3].note) == (0, "equal, byte by byte")


def test_a_part_has_its_own_process_and_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not done in time, or fails, is a row that says so; the others are measured."""
    monkeypatch.setitem(PARTS, "sac-64", (PARTS["sac-64"][0], 0.01))
    out = tmp_path / "gpu.json"
    assert main([*ON_CPU, f"--out={out}", "--only", "ceilings", "sac-64"]) == 1
    *rows, late = json.loads(out.read_bytes())["rows"]
    assert (late["what"], late["value"], late["note"]) == ("sac-64", None, "not done within 0 s")
    assert any(row["what"].startswith("simulator, Pong") and row["value"] for row in rows)


def test_what_was_measured_is_written_after_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is taken away in the second part leaves the first."""
    out = tmp_path / "gpu.json"

    def measure(name: str, options: Any) -> list[Row]:
        if name == "bytes":
            raise KeyboardInterrupt
        return [Row(name, 1.0, "steps/s")]

    monkeypatch.setattr(gpu, "in_a_process", measure)
    with pytest.raises(KeyboardInterrupt):
        main([*ON_CPU, f"--out={out}", "--only", "sac-1", "bytes"])
    assert [row["what"] for row in json.loads(out.read_bytes())["rows"]] == ["sac-1"]


def test_files_that_differ_or_lack_are_named(tmp_path: Path) -> None:
    """Of every seed, in one folder as in the other; a wall time is not compared."""
    first, second = tmp_path / "1", tmp_path / "2"
    with pytest.raises(UsageError, match="no run wrote anything"):
        differing(first, second)
    for folder in (first, second):
        for seed in ("seed-1", "seed-2"):
            (folder / seed).mkdir(parents=True)
            (folder / seed / "updates.csv").write_text("1")
        (folder / "seed-1" / "timing.csv").write_text(folder.name)
    assert differing(first, second) == []
    (first / "seed-2" / "updates.csv").write_text("2")
    (second / "seed-1" / "episodes.csv").write_text("")
    assert differing(first, second) == ["seed-1/episodes.csv", "seed-2/updates.csv"]
