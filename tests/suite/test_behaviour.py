"""Code is called by what it does, where somebody has seen that, and else by its checksum."""

import json
from pathlib import Path
from typing import Any

import pytest

from suite import behaviour, hardware
from suite.behaviour import behaviours, code_name, code_of, declare, fingerprint
from suite.settings import UsageError

CODE = {"agents/sac.py": "1", "suite/noise.py": "2", "results/references/paper/sac.toml": "3"}


@pytest.fixture(autouse=True)
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of behaviours of the test's own."""
    monkeypatch.setattr(behaviour, "DECLARED", tmp_path / "behaviour.json")
    return tmp_path / "behaviour.json"


def entry(*sources: str, **runs: str) -> dict[str, Any]:
    """Return one behaviour."""
    return {"base": "abc", "sources": list(sources), "runs": runs}


def test_a_fingerprint_is_of_all_code_and_of_no_settings() -> None:
    """A record keeps its settings; what made something of them is the code."""
    ours = fingerprint(CODE)
    assert fingerprint(dict(reversed(CODE.items()))) == ours
    assert fingerprint(CODE | {"results/references/paper/sac.toml": "4"}) == ours
    assert fingerprint(CODE | {"suite/noise.py": "4"}) != ours
    assert fingerprint(CODE | {"suite/new.py": "4"}) != ours


def test_verified_code_is_called_by_its_behaviour() -> None:
    """A refactoring that was verified has the same name as the code before."""
    before, after = CODE, CODE | {"agents/sac.py": "rewritten"}
    assert code_name("sac", after) == f"code {fingerprint(after)[:12]}"
    declare("sac", {1: entry(fingerprint(before), fingerprint(after)), 2: entry("f" * 64)})
    assert code_name("sac", before) == code_name("sac", after) == "behaviour 1"
    assert code_name("sac", CODE | {"suite/noise.py": "4"}).startswith("code ")
    assert code_name("a2c", before).startswith("code ")
    declare("a2c", {3: entry(fingerprint(before))})
    assert (code_name("a2c", before), code_name("sac", before)) == ("behaviour 3", "behaviour 1")


def test_a_run_is_of_the_code_that_its_record_names(tmp_path: Path) -> None:
    """What `verify` found first, then checksums, else its commit; what a record claims is none."""
    folder = tmp_path / "seed-1"
    folder.mkdir()
    (folder / "updates.csv").write_text("env_steps\n1\n")
    record = {"agent": "sac", "commit": "0123456789", "sources": CODE, "behaviour": None}
    old = {"agent": "sac", "commit": "0123456789"}
    assert code_of(folder, record) == f"code {fingerprint(CODE)[:12]}"
    assert code_of(folder, record | {"behaviour": 7}) == code_of(folder, record)
    assert code_of(folder, old) == "commit 0123456"
    declare("sac", {1: entry(fingerprint(CODE)), 2: entry(old=behaviour.digest(folder))})
    assert code_of(folder, record | {"behaviour": 7}) == "behaviour 2"
    assert code_of(folder, old) == "behaviour 2"
    (folder / "updates.csv").write_text("env_steps\n2\n\n")
    assert code_of(folder, old) == "commit 0123456"  # other rows were never verified
    assert code_of(folder, record | {"behaviour": 7}) == "behaviour 1"


def test_a_file_that_cannot_be_read_is_bad_usage(declared: Path) -> None:
    """It is named in one line; without it, no code has a behaviour."""
    assert behaviours("sac") == {}
    for content in ("{", "[]", '{"sac": 3}', '{"sac": {"x": {}}}', '{"sac": {"1": {}}}'):
        declared.write_text(content)
        with pytest.raises(UsageError, match=r"unreadable .*behaviour\.json"):
            behaviours("sac")
    declared.write_text(json.dumps({"sac": {"1": entry()}}))
    assert behaviours("sac") == {1: entry()}


def test_code_is_an_agents_file_and_all_that_it_imports_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports are followed wherever they stand; other agents, tests and pages do not count."""
    files = {
        "agents/__init__.py": "",
        "agents/sac.py": "import numpy\nfrom suite import noise\nimport lab.nets",
        "agents/a2c.py": "from suite.unused import that",
        "suite/__init__.py": "",
        "suite/noise.py": "def f():\n    from suite.deep.layers import Layer",
        "suite/deep/__init__.py": "",
        "suite/deep/layers.py": "from . import parts",
        "suite/deep/parts.py": "",
        "suite/unused.py": "",
        "lab/nets.py": "not python (",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hardware, "_root", lambda: tmp_path)
    assert set(hardware.sources("sac")) == set(files) - {"agents/a2c.py", "suite/unused.py"}
