"""Pages say what code and data give: tables, names, columns, commands and examples."""

import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import agents
from reproduce import ROOT
from reproduce import __main__ as command_line
from reproduce.commands import docs as pages
from reproduce.commands import grid, sweep
from reproduce.report.tables import COLUMNS
from reproduce.simulators import measure, same_work
from suite.base.errors import UsageError
from suite.record.clock import TIMING_COLUMNS
from suite.record.recorder import EPISODE_COLUMNS
from suite.settings.command_line import Parser, read_command_line
from tests.agents.columns import SHARED, TOGETHER, UPDATES, WAITS
from tests.reproduce.conftest import Say

HEADINGS = (
    *("Idea", "From equation to function", "Deviations", "Settings by source"),
    *("Columns of the record", "Results", "Commands"),
)
MY_TASKS = """
import gymnasium
entry_point = "gymnasium.envs.classic_control:PendulumEnv"
gymnasium.register("Crane-v0", entry_point=entry_point, max_episode_steps=200)
"""
"""The module of a user that docs/tasks.md speaks of."""
README = "By hand.\n\n<!-- generated: scores -->\n<!-- end -->\n\nBy hand, too.\n"
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PARSE = Parser.parse
EXAMPLE = re.compile(r"```python\n(>>> .*?)```", re.DOTALL)


def page_of(agent: str) -> str:
    return (ROOT / "docs" / "agents" / f"{agent}.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def explained(text: str, column: str = r"\| (`[\w`, ]+`) \|") -> dict[str, list[str]]:
    """Return the columns that a text explains, by the file named before them."""
    found: dict[str, list[str]] = {}
    file = ""
    for line in text.splitlines():
        if named := re.match(r"`([\w<>-]+\.csv)`", line):
            file = named[1]
        if cell := re.match(column, line):
            found.setdefault(file, []).extend(re.findall(r"`(\w+)`", cell[1]))
    return found


def columns() -> dict[str, list[str]]:
    """Return the columns that the page of all tables explains."""
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    return explained(text, r"- (.+?):")


def test_outdated_scores_of_readme_fail_the_check(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names page and command; what is written by hand may be anything."""
    page, verdicts = tmp_path / "README.md", tmp_path / "results" / "verdicts.csv"
    page.write_text(README)
    verdicts.parent.mkdir()
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert say(["docs", "--check"])[0] == 1
    assert say(["docs"])[0] == 0
    made = page.read_text()
    assert made.startswith("By hand.\n\n<!-- generated: scores -->\n\nAll ")
    assert made.endswith("\n\n<!-- end -->\n\nBy hand, too.\n")
    for text, status in (
        (made, 0),
        (made.replace("By hand.", "Written by hand."), 0),
        (made.replace("Reacher-v4", "Reacher-v5"), 1),
    ):
        page.write_text(text)
        wanted = f"out of date: {page}: run `make docs`\n" if status else ""
        assert say(["docs", "--check"]) == (status, "", wanted)
        assert page.read_text() == text
    page.write_text(made)
    verdicts.write_text(verdicts.read_text().replace("inconclusive", "reproduced", 1))
    assert say(["docs", "--check"]) == (1, "", f"out of date: {verdicts}: run `make docs`\n")


def test_every_file_of_tests_opens_with_the_properties_it_defends() -> None:
    """And the page of the tests names files that exist."""
    tests = ROOT / "tests"
    files = tests.rglob("test_*.py")
    assert [path for path in files if not ast.get_docstring(ast.parse(path.read_text()))] == []
    listed = (tests / "README.md").read_text(encoding="utf-8")
    table = listed.partition("| property | test |")[2]
    names = {*re.findall(r"`((?:\w+/)*\w+\.(?:py|txt))`", listed)}
    names |= {*re.findall(r"`([^`|]+)`(?=[^|]*\|$)", table, re.MULTILINE)}
    for name in names:
        assert [*tests.glob(name.replace("<agent>", "*"))], name
    assert len(names) > 15


def test_no_other_page_keeps_a_generated_table() -> None:
    """All others are made when the site is built; elsewhere their links lead to the data."""
    found = [path for name in ("agents", "docs", "results") for path in (ROOT / name).rglob("*.md")]
    calls = 0
    for path in (ROOT / "CONTRIBUTING.md", *found):
        text = path.read_text(encoding="utf-8")
        assert "<!-- generated" not in text, path
        for line, target in re.findall(r"(.*\]\((\S+) \".*)", text):
            call = pages.CALL.fullmatch(line)
            assert call, line
            assert call[1] in pages.TABLES, line
            assert (path.parent / target).exists(), line
            calls += 1
    assert calls > 40


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_a_page_has_its_headings_and_every_name_of_its_equations(agent: str) -> None:
    """Seven headings, in one order; each function of the table can be imported, or is a setting."""
    page = page_of(agent)
    found = tuple(re.findall(r"^## (.+)$", page, re.MULTILINE))
    assert found == HEADINGS
    rows = re.findall(r"^\|.*\| (`.+`) *\|$", pages.equations(agent), re.MULTILINE)
    module = importlib.import_module(f"agents.{agent}")
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(names) >= 5
    for name in names:
        found = callable(getattr(module, name, None)) or hasattr(module.Config, name)
        assert found or importlib.import_module(name), f"agents/{agent}.py has no {name}"


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_every_column_of_a_record_is_explained(agent: str) -> None:
    """Of each of the four tables, and no other: those that a training wrote in the contract."""
    said = explained(section(page_of(agent), "Columns of the record"))
    forms = [form for form in UPDATES if form.partition(",")[0] == agent]
    shared = SHARED - (set() if agent in TOGETHER else {"weight_norm"})
    written = shared.union(*(UPDATES[form] for form in forms))
    common = written.intersection(columns()["updates.csv"])
    assert common.union(said.pop("updates.csv")) == written
    assert said == ({"timing.csv": [*WAITS[agent]]} if agent in WAITS else {})
    assert columns()["episodes.csv"] == [*EPISODE_COLUMNS]
    assert columns()["evaluations.csv"] == ["env_steps", "mean_return", "return_0"]
    assert columns()["timing.csv"] == [*TIMING_COLUMNS]


def test_a_setting_is_shown_where_a_source_differs_from_the_default() -> None:
    """A2C like tianshou_v3 clips nothing; its other cells in that row are empty."""
    table = pages.settings("a2c").splitlines()
    (row,) = [line for line in table if line.startswith("| `max_gradient_norm` |")]
    cells = {
        name.partition(" on ")[0].partition("]")[0].strip(" ["): cell.strip()
        for name, cell in zip(table[0].split("|"), row.split("|"), strict=True)
    }
    assert (cells["default"], cells["`tianshou_v3`"]) == ("0.5", "None")
    assert cells["`sb3_control`"] == ""


def test_what_is_published_is_in_the_tables() -> None:
    """Each verdict is in results and matrix; a cost is wall time times cores, with threads two."""
    tables = [pd.read_csv(path) for path in (ROOT / "results/published").glob("*/*/verdicts.csv")]
    rows = [line for line in pages.results().splitlines() if line.startswith("| [")]
    assert len(rows) == sum(map(len, tables))
    assert pages.matrix().count("(/results/published/") == len(rows)
    cells = {(str(cell["folder"]), cell["task"]): cell for cell in pages.cells()}
    for folder, task, cores in (
        ("results/published/impala-classic/tuned", "CartPole-v1", 2),
        ("results/published/acer-atari-7/openai_baselines", "Pong-v5", 2),
        ("results/published/sac-mujoco-small/paper", "Reacher-v4", 1),
    ):
        paths = sorted((ROOT / folder / task).glob("seed-*/run.json"))
        records = [json.loads(path.read_text()) for path in paths]
        hours = cores * sum(record["wall_seconds"] for record in records) / 3600
        assert cells[str(ROOT / folder), task]["core_hours"] == pytest.approx(hours)


def test_every_column_of_a_grids_tables_is_explained() -> None:
    """Once, under its file's name, and no column that the file has not."""
    known: dict[str, Any] = COLUMNS | {"sweep-<agent>-<suite>-<source>-<variants>": sweep.COLUMNS}
    known |= {"turns": measure.COLUMNS, "same_work": same_work.COLUMNS}
    said = {name.removesuffix(".csv"): sorted(found) for name, found in columns().items()}
    assert {name: sorted(own) for name, own in known.items()}.items() <= said.items()


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command of README and pages on use, with its page."""
    names = ("README.md", "CONTRIBUTING.md", "agents/README.md", "results/README.md")
    for path in (*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md"))):
        page, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for script in re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            lines = re.findall("^python .*", re.sub(r'"\$\w+"', "1", script), re.MULTILINE)
            yield from ((name, line) for line in lines if not re.search("my_|launcher ray", line))
        page = re.sub(r"^```\w+\n.*?^```\n", "", page, flags=re.DOTALL | re.MULTILINE)
        for block in re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            lines = block.splitlines()
            if lines[0].startswith("$ "):  # with what it prints
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            yield from ((name, line) for line in lines if line and "launcher ray" not in line)
        inline = re.findall(r"`((?:python -m|make) [^`]+)`", page)
        lines = [line for line in inline if not re.search("AGENT|NAME|launcher ray", line)]
        yield from ((name, line) for line in lines)


class ParsedError(Exception):
    """The real parser has understood a command, which then goes no further."""


def parse_and_stop(parser: Parser, argv: list[str]) -> None:
    """Let the real parser judge a command, which then goes no further."""
    PARSE(parser, argv)
    raise ParsedError


def understand(words: list[str]) -> None:
    """Check a command as it stands; short ones are run."""
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
        return
    if words == ["source", ".venv/bin/activate"] or program in ("pip", "tensorboard"):
        return
    assert program in ("python", ".venv/bin/python")
    assert arguments[0] == "-m"
    module, argv = arguments[1], arguments[2:]
    if module.startswith("agents."):
        presets = importlib.import_module(module).PRESETS
        with contextlib.suppress(SystemExit):  # --help
            read_command_line(presets, argv, agent=module.removeprefix("agents."))
    elif module == "reproduce":
        run(argv)
    else:
        spec = importlib.util.find_spec(module)
        spec = importlib.util.find_spec(f"{module}.__main__") if spec and not spec.origin else spec
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        assert all(f'"{word}"' in text for word in argv if word.startswith("--"))


def run(argv: list[str]) -> None:
    """Run what takes no time; plan grids; else parse."""
    assert all((ROOT / word).exists() for word in argv if word.startswith("results/"))
    with pytest.MonkeyPatch.context() as patch:
        if argv[0] in agents.AGENTS:  # the plan alone, without what it can decide
            patch.setattr(grid, "_say_outlook", lambda *arguments: None)
            assert command_line.main([*argv, "--dry-run"]) == 0
            return
        if argv[0] == "list":
            assert command_line.main(argv) == 0
            return
        patch.setattr(Parser, "parse", parse_and_stop)
        with pytest.raises(ParsedError):
            command_line.main(argv)


@pytest.mark.usefixtures("unchecked")
def test_every_command_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids are planned, lists printed, all others parsed as they stand; nothing is written."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "my_tasks.py").write_text(MY_TASKS)
    monkeypatch.syspath_prepend(tmp_path / "path")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    known = list(commands())
    assert len(known) > 40
    for page, line in dict.fromkeys(known):
        try:
            understand(shlex.split(line, comments=True))
        except (UsageError, AssertionError) as error:
            # an extra, which the page names, or a GPU
            if not re.search("pip install|finds 0 GPUs", str(error)):
                pytest.fail(f"{page}: {line}: {error}")
    assert list((tmp_path / "work").rglob("*.*")) == []


@pytest.mark.parametrize("name", re.findall(r"^### `([\w.]+)`$", API, re.MULTILINE))
def test_every_example_gives_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a function uses it, after the page's own beginning."""
    monkeypatch.chdir(ROOT)
    text = API.partition(f"### `{name}`\n")[2].partition("\n##")[0]
    example = EXAMPLE.findall(text)[0]
    assert name.rpartition(".")[2] in example or name == "suite.policy.Policy"
    check_examples(EXAMPLE.findall(API)[0], example)


def test_training_from_python_works_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its examples, one after another, print what stands there."""
    monkeypatch.chdir(ROOT)
    examples = EXAMPLE.findall(section(API, "Training"))
    check_examples(*examples)
    assert "main(" in examples[0]


def check_examples(*examples: str) -> None:
    """Run examples of a page as one, and compare what they print."""
    test = doctest.DocTestParser().get_doctest("\n".join(examples), {}, "api.md", None, None)
    said = io.StringIO()
    outcome = doctest.DocTestRunner(verbose=False).run(test, out=said.write)
    assert outcome.failed == 0, said.getvalue()
    assert outcome.attempted > 4
