"""The measurements of a GPU: the whole program, tried on a CPU with tiny sizes."""

import json
from pathlib import Path

import pytest

from tests.benchmarks import gpu, speeds
from tests.benchmarks.gpu import NEEDS_GPU, Row, main

ON_CPU = ["--device=cpu", "--seconds=0.1"]


@pytest.mark.further
@pytest.mark.usefixtures("unchecked")
def test_every_part_measures_or_says_that_it_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and without limits."""
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
        *("sac-1-kernels", "sac-64-kernels", "sac-64-tf32"),
        *("a2c-kernels", "impala-kernels", "impala-bfloat16"),
    ]
    trained = [row for row in rows if row.unit == "steps/s" and row.value is not None]
    assert len(trained) == len(gpu.TRAININGS) - 6 + 1
    for row in trained:
        assert row.value is not None
        assert row.value > 0
    assert (rows[-1].value, rows[-1].note) == (0, "equal, byte by byte")
