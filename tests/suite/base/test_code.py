"""Which code makes a run: its files, what is not committed, the number of its behaviour."""

import os
import subprocess
from pathlib import Path

import pytest

from suite.base import code

SOURCE = "results/references/authors"
FILES = {
    "agents/sac.py": "import numpy, suite.base.code\nimport lab.nets\nBEHAVIOUR = 12  # so\n",
    "suite/base/code.py": "def f():\n    from suite.deep.layers import Layer",
    "suite/deep/layers.py": "from . import parts\nfrom suite.base import noise",
    "lab/nets.py": "not python (",
    **dict.fromkeys(("agents/__init__.py", "suite/deep/__init__.py", "suite/deep/parts.py"), ""),
    **dict.fromkeys(("suite/__init__.py", "suite/base/__init__.py"), ""),
    **dict.fromkeys(("agents/a2c.py", "suite/base/noise.py"), "# BEHAVIOUR = 3\n"),
    **dict.fromkeys((f"{SOURCE}/{name}" for name in ("curves.csv", "sac.toml", "a2c.toml")), "1\n"),
    "docs/code.py": "notes\n",
}


def test_code_that_is_not_its_commits_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code and settings make a commit dirty; Python files that the agent imports are named."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr(code, "__file__", str(tmp_path / "suite" / "base" / "code.py"))

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def found() -> tuple[object, tuple[str, ...]]:
        code._uncommitted.cache_clear()
        now = code.revision.__wrapped__()
        return now if now["commit"] is None else now["dirty"], code.uncommitted(sources())

    def sources() -> dict[str, str]:
        return code.sources("sac")

    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    unknown = {"commit": None, "dirty": None}
    assert found() == (unknown, ())  # nobody knows without git
    git("init", "--quiet")
    for what in ("docs", "."):
        git("add", what)
        git("commit", "--quiet", "--message", what)
        assert what == "." or code.revision.__wrapped__() == unknown  # a host's commit
    assert code.revision.__wrapped__()["commit"] == git("rev-parse", "HEAD")
    before, noise = sources(), "suite/base/noise.py"
    unused = {"agents/a2c.py", "docs/code.py", f"{SOURCE}/curves.csv", f"{SOURCE}/a2c.toml"}
    assert before.keys() == FILES.keys() - unused
    assert [code.behaviour(agent) for agent in ("sac", "a2c", "acer")] == [12, None, None]
    for name, is_dirty, named in (
        *(("docs/code.py", False, ()), (f"{SOURCE}/curves.csv", False, ())),
        *((f"{SOURCE}/a2c.toml", True, ()), ("agents/a2c.py", True, ()), (noise, True, (noise,))),
        *((f"{SOURCE}/sac.toml", True, ()), ("agents/new.py", True, ())),
    ):
        (tmp_path / name).write_text("two\n")
        assert found() == (is_dirty, named), name
        assert (sources() != before) == (name in (noise, f"{SOURCE}/sac.toml")), name
        git("add", ".")
        assert found() == (is_dirty, named), name
        git("commit", "--quiet", "--message", name)
        assert found() == (False, ())
        before = sources()
    (tmp_path / "suite/new.py").write_text("one\n")
    (tmp_path / noise).write_text("import suite.new\n")
    assert found() == (True, (noise, "suite/new.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found()[0] == unknown


def test_a_copy_of_changed_code_has_uncommitted_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster's node git does not say it."""
    monkeypatch.setattr(code, "_root", lambda: tmp_path)
    (tmp_path / code.REVISION).write_text("{}")
    for dirty, files in ((True, ("agents/sac.py",)), (False, ())):
        monkeypatch.setattr(code, "revision", lambda dirty=dirty: {"dirty": dirty})
        assert code.uncommitted({"agents/sac.py": "1", "x/sac.toml": "2"}) == files
