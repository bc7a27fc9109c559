"""The pages' examples with policies run as they stand, and so does the notebook."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from reproduce import ROOT

PAGE = (ROOT / "docs" / "using_results.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^##+ (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
SECTIONS += [("README", (ROOT / "README.md").read_text(encoding="utf-8"))]
CODE = re.compile(r"```python\n(.*?)```", re.S)
EXAMPLES = {title: CODE.findall(text) for title, text in SECTIONS if CODE.search(text)}


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_of_the_page_runs(
    title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the project's folder, with what it imports, and nothing is written there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logs = {"MUJOCO_LOG.TXT"}  # another process of tests may write it there
    before = {path.name for path in ROOT.iterdir()} | logs
    names: dict[str, Any] = {}
    (code,) = EXAMPLES[title]
    exec(code, names)
    assert {path.name for path in ROOT.iterdir()} | logs == before
    if title == "README":
        assert names["observation"].shape == (4,)
        assert names["env"].step(int(names["action"]))[1] == 1.0
        names["env"].close()
    if title == "Tables in pandas":  # a panel for each task
        assert names["figure"].axes.size == names["scores"]["task"].nunique() == 3
    if title == "In gymnasium":
        assert names["score"] == 500.0
    if title == "In envpool, in batches":
        assert -8 < names["returns"].mean() < -3


@pytest.mark.long
def test_the_notebook_runs_and_is_committed_without_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its short form plans, trains three seeds for a moment, and shows figure, table and film."""
    notebook = nbformat.read(ROOT / "docs" / "first_day.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    monkeypatch.setenv("FIRST_DAY_STEPS", "3_000")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "runs/a2c-classic/rl_zoo/index.html").exists()
    shown = [name for cell in code for output in cell.outputs for name in output.get("data", {})]
    assert shown.count("image/png") == 1
    said = "".join(o.text for cell in code for o in cell.outputs if o.output_type == "stream")
    assert "3 planned = 3 finished" in said
    assert "filmed: pole.mp4" in said
    assert "rror" not in said
