"""Pages say what code and data give: blocks, names, columns, commands and examples."""

import contextlib
import dataclasses
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

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import agents
from reproduce import ROOT
from reproduce import __main__ as command_line
from reproduce.commands import catalogue, grid
from reproduce.extras import sweep
from reproduce.extras.docs import agent as agent_blocks
from reproduce.extras.docs import controls, results, wanted
from reproduce.report.tables import COLUMNS
from suite.command_line import Parser, read_command_line
from suite.recorder import Recorder
from suite.settings import UsageError

HEADINGS = (
    *("Idea", "From equation to function", "Deviations", "Settings by source"),
    *("Columns of the record", "Results", "Commands"),
)
SHORT: dict[str, dict[str, Any]] = {
    "a2c": {"task": "CartPole-v1", "num_envs": 4},
    "acer": {"task": "CartPole-v1", "num_envs": 4, "replay_start": 20, "replay_capacity": 100},
    "acer_continuous": {
        **{"task": "Pendulum-v1", "num_envs": 2, "unroll_length": 10, "replay_start": 10},
        **{"env_steps": 500, "learning_rate_decay_steps": 1_000, "num_action_samples": 1},
    },
    "impala": {"task": "CartPole-v1", "num_envs": 4},
    "sac": {"task": "Pendulum-v1", "learning_starts": 50, "batch_size": 8, "hidden_sizes": (8,)},
    "sac_discrete": {"task": "CartPole-v1", "learning_starts": 40, "batch_size": 8},
}
SHORT["sac_value"] = SHORT["sac"]
SHORT["sac_alf"] = SHORT["sac"] | {"task": "Claw-v0", "prior": "same_action"}
"""What every agent trains with here, so that its records have every column."""
MY_TASKS = """
import gymnasium
entry_point = "gymnasium.envs.classic_control:PendulumEnv"
gymnasium.register("Crane-v0", entry_point=entry_point, max_episode_steps=200)
"""
"""The module of a user that docs/tasks.md speaks of."""
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PARSE = Parser.parse
EXAMPLE = re.compile(r"```python\n(>>> .*?)```", re.DOTALL)


def page_of(agent: str) -> str:
    return (ROOT / "docs" / "agents" / f"{agent}.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def explained(page: str) -> dict[str, list[str]]:
    """Return the columns that a page's tables explain, by the file named before each table."""
    found: dict[str, list[str]] = {}
    file = ""
    for line in section(page, "Columns of the record").splitlines():
        if named := re.match(r"`(\w+\.csv)`", line):
            file = named[1]
        if column := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(file, []).append(column[1])
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose README has one block, for the command line."""
    text = "By hand.\n\n<!-- generated: equations sac -->\n<!-- end -->\n\nBy hand, too.\n"
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    return tmp_path


def test_a_block_that_its_source_does_not_give_fails_the_check(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names page and command; what is written by hand may be anything."""
    page = project / "README.md"
    assert command_line.main(["docs", "--check"]) == 1
    assert command_line.main(["docs"]) == 0
    made = page.read_text()
    assert made.startswith("By hand.\n\n<!-- generated: equations sac -->\n\n| what | equation |")
    assert made.endswith("\n\n<!-- end -->\n\nBy hand, too.\n")
    for text, status in (
        (made, 0),
        (made.replace("By hand.", "Written by hand."), 0),
        (made.replace("`squash`", "`squish`"), 1),
    ):
        page.write_text(text)
        capsys.readouterr()
        assert command_line.main(["docs", "--check"]) == status
        said = capsys.readouterr()
        wanted = f"out of date: {page}: run `make docs`\n" if status else ""
        assert (said.out, said.err) == ("", wanted)
        assert page.read_text() == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("equations sac", "equation sac", "unknown block 'equation'; did you mean equations?"),
        ("equations sac", "equations sca", "unknown agent 'sca'; did you mean sac?"),
        ("equations sac", "api agents.sac.squish", "agents.sac has no squish"),
        ("<!-- end -->\n", "", "its last block has no <!-- end -->"),
    ],
)
def test_a_block_that_cannot_be_made_is_named(
    project: Path, old: str, new: str, message: str
) -> None:
    """Nothing is written then."""
    page = project / "README.md"
    page.write_text(page.read_text().replace(old, new))
    before = page.read_text()
    with pytest.raises(UsageError, match=re.escape(message)):
        command_line.main(["docs"])
    assert page.read_text() == before


def test_an_equation_without_its_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of a docstring names what its file has."""
    from agents import sac

    docstring = str(sac.__doc__).replace("`critic_loss`", "`critics_loss`")
    monkeypatch.setattr(sac, "__doc__", docstring)
    with pytest.raises(UsageError, match="names critics_loss, which it lacks"):
        agent_blocks.equations(str, "sac")


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_a_page_has_its_headings_and_every_name_of_its_equations(agent: str) -> None:
    """Seven headings, in one order; each function of the table can be imported, or is a setting."""
    page = page_of(agent)
    assert tuple(re.findall(r"^## (.+)$", page, re.MULTILINE)) == HEADINGS
    rows = re.findall(r"^\|.*\| (`.+`) \|$", section(page, HEADINGS[1]), re.MULTILINE)
    module = importlib.import_module(f"agents.{agent}")
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(names) >= 5
    for name in names:
        found = callable(getattr(module, name, None)) or hasattr(module.Config, name)
        assert found or importlib.import_module(name), f"agents/{agent}.py has no {name}"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("agent", agents.AGENTS)
def test_every_column_of_a_record_is_explained(agent: str, tmp_path: Path) -> None:
    """A short training writes each of the four tables: their columns are the page's, no others."""
    module = importlib.import_module(f"agents.{agent}")
    short = {"env_steps": 200, "log_interval": 50, "evaluation_interval": 200, **SHORT[agent]}
    short |= {"evaluation_episodes": 2, "evaluation_rule": "sampled", "device": "cpu"}
    presets = sorted(module.PRESETS, key=lambda preset: preset[0] != "classic")  # if it has that
    config = dataclasses.replace(module.PRESETS[presets[0]].config, **short)
    recorder = Recorder(tmp_path, {"agent": agent, "task": config.task}, config.seeds)
    module.train(config, recorder)
    recorder.finish()
    said = explained(page_of(agent))
    for file in ("episodes.csv", "evaluations.csv", "updates.csv", "timing.csv"):
        header = (tmp_path / "seed-1" / file).read_text().partition("\n")[0]
        written = [name for name in header.split(",") if not re.fullmatch(r"return_[1-9]\d*", name)]
        missing = [name for name in written if name not in said[file]]
        assert not missing, f"docs/agents/{agent}.md does not explain {file}: {', '.join(missing)}"
        assert sorted(said[file]) == sorted(written), f"docs/agents/{agent}.md, {file}"


def test_every_metric_of_an_agent_is_explained() -> None:
    """Also those that the short training above may not write."""
    for agent in agents.AGENTS:
        metrics = getattr(importlib.import_module(f"agents.{agent}"), "METRICS", ())
        missing = [name for name in metrics if name not in explained(page_of(agent))["updates.csv"]]
        assert not missing, f"docs/agents/{agent}.md does not explain {', '.join(missing)}"


def test_a_setting_is_shown_where_a_source_differs_from_the_default() -> None:
    """A2C like tianshou_v3 clips nothing; its other cells in that row are empty."""
    table = agent_blocks.settings(str, "a2c").splitlines()
    header = next(line for line in table if line.startswith("| setting"))
    (row,) = [line for line in table if line.startswith("| `max_gradient_norm` |")]
    cells = dict(zip(header.split("|"), row.split("|"), strict=True))
    assert (cells[" default "], cells[" `tianshou_v3` "]) == (" 0.5 ", " none ")
    assert cells[" `rl_zoo` on `classic` "].strip() == ""


def test_costs_are_those_of_the_records() -> None:
    """Wall time of a task's runs times the cores of each: IMPALA's has two."""
    cells = {(cell.folder, cell.row["task"]): cell for cell in results.cells()}
    for folder, task, cores in (
        ("results/published/impala-classic/tuned", "CartPole-v1", 2),
        ("results/published/sac-mujoco-small/paper", "Reacher-v4", 1),
    ):
        paths = sorted((ROOT / folder / task).glob("seed-*/run.json"))
        records = [json.loads(path.read_text()) for path in paths]
        hours = cores * sum(record["wall_seconds"] for record in records) / 3600
        cell = cells[folder, task]
        assert cell.core_hours == pytest.approx(hours)
        assert set(cell.commits) == {record["commit"][:7] for record in records}


def test_what_is_published_is_in_the_tables() -> None:
    """Every row of every verdicts.csv is a cell of the matrix and a row by source."""
    tables = [pd.read_csv(path) for path in (ROOT / "results/published").glob("*/*/verdicts.csv")]
    assert len(results.cells()) == sum(map(len, tables))
    listed = results.by_source(str).splitlines()
    assert sum(line.startswith("| `") for line in listed) == len(results.cells())


def test_a_wanted_task_that_is_decided_or_has_its_seeds_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are, with the seeds that are there at just that step; the cost is of those left."""
    published = results.cells()
    small = [cell for cell in published if cell.source == "tianshou_v3"]
    of = {cell.row["task"]: cell.row for cell in small if cell.suite == "mujoco-small"}
    assert of["InvertedPendulum-v4"]["verdict"] == "reproduced"
    assert of["Swimmer-v4"]["verdict"] == "inconclusive"
    tasks = "InvertedPendulum-v4 Swimmer-v4"

    def missing(env_steps: int, num_seeds: int) -> dict[str, wanted.Missing]:
        (tmp_path / "wanted.csv").write_text(
            "agent,suite,source,tasks,env_steps,num_seeds\n"
            f"a2c,mujoco-small,tianshou_v3,{tasks},{env_steps},{num_seeds}\n"
        )
        monkeypatch.setattr(wanted, "WANTED", tmp_path / "wanted.csv")
        ((_, plan),) = wanted.grids()
        return {task.outlook.task: task for task in wanted.missing_from(plan, published)}

    there = int(of["Swimmer-v4"]["num_seeds"])
    assert missing(1_000_000, there) == {}
    assert wanted.missing(str) == "Everything that was wanted is there."
    more, far = missing(1_000_000, there + 2), missing(1_000_000, there + 4)
    assert {task: found.num_seeds for task, found in more.items()} == {"Swimmer-v4": there}
    hours, twice = more["Swimmer-v4"].core_hours, far["Swimmer-v4"].core_hours
    assert hours is not None
    assert twice == pytest.approx(2 * hours)
    other = missing(500_000, 3)
    assert {task: found.num_seeds for task, found in other.items()} == dict.fromkeys(
        tasks.split(), 0
    )


def test_a_wanted_grid_that_cannot_be_planned_is_named_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong task, a number that is none, and a column that is missing."""
    monkeypatch.setattr(wanted, "WANTED", tmp_path / "wanted.csv")
    header = "agent,suite,source,tasks,env_steps,num_seeds"
    good = "sac,mujoco,paper,Hopper-v4,100000,5"
    for head, row in (
        (header, good.replace("Hopper-v4", "Hoper-v4")),
        (header, good.replace("100000", "many")),
        (header.replace("tasks", "task"), good),
    ):
        (tmp_path / "wanted.csv").write_text(f"{head}\n{good}\n{row}\n")
        with pytest.raises(UsageError, match=r"wanted\.csv, line (2|3): "):
            list(wanted.grids())


@pytest.mark.filterwarnings("ignore:Precision loss")  # every run of a control reached the maximum
def test_a_control_is_judged_by_ours_as_ours_is_by_it() -> None:
    """Both verdicts are Welch's test on the same single scores, each with its judge's margin."""
    pairs = list(controls.pairs())
    for pair in pairs:
        row, back = pair.ours.row, pair.reversed
        scores = results.read_table(pair.ours.directory, "scores")
        own = scores[scores["task"] == row["task"]]["score"]
        for first, second, said in (
            (own, pair.theirs.scores, row),
            (pair.theirs.scores, own, dataclasses.asdict(back)),
        ):
            interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
            assert said["difference"] == pytest.approx(np.mean(first) - np.mean(second))
            if said["verdict"] not in ("shown only", "nothing learned"):
                gap = np.mean(second) - row["zero_score"]
                assert (said["ci_low"], said["ci_high"]) == pytest.approx(tuple(interval))
                assert said["margin"] == pytest.approx(gap / 10)
                within = interval.low >= -gap / 10
                assert (said["verdict"] in ("reproduced", "above")) == within
    table = controls.interchangeable(str)
    assert table.count("\n| `") == len(pairs) >= 4


def test_what_a_control_cost_is_the_time_of_all_its_runs() -> None:
    """Ten runs of 10,000 steps at 84.7 steps/s, as sb3's table of speeds says."""
    (pair,) = (
        pair
        for pair in controls.pairs()
        if (pair.ours.agent, pair.theirs.source, pair.theirs.env_id)
        == ("sac", "sb3_control", "Pendulum-v1")
    )
    assert pair.their_hours == pytest.approx(10 * 10_000 / 84.7 / 3_600, rel=1e-3)


def test_every_column_of_a_grids_tables_is_explained() -> None:
    """Once, under its file's name, and no column that the file has not."""
    text, found = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8"), {}
    for part in re.split(r"^(?=`[\w<>-]+\.csv`)", text, flags=re.MULTILINE)[1:]:
        name, table = re.match(r"`(.+?)\.csv`", part), part.partition("\n## ")[0]
        assert name is not None
        cells = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
        found[name[1]] = sorted(column for cell in cells for column in re.findall(r"`(\w+)`", cell))
    sweeps = {"sweep-<agent>-<suite>": sweep.COLUMNS}
    assert found == {name: sorted(columns) for name, columns in (COLUMNS | sweeps).items()}


def test_the_tables_are_read_as_their_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its example runs as it stands, and draws a panel for each task."""
    monkeypatch.chdir(ROOT)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tables.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(lines, names)
    assert names["figure"].axes.size == names["scores"]["task"].nunique() == 3


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_link_of_a_page_leads_nowhere() -> None:
    """Files exist, and headings are called as the links say."""
    names = ("README.md", "CONTRIBUTING.md", "agents/README.md", "results/README.md")
    for page in (*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file, _, anchor = target.partition("#")
            if not file.startswith("https://"):
                path = page.parent / file if file else page
                assert path.exists(), f"{page}: {target}"
                assert not anchor or anchor in anchors(path), f"{page}: {target}"


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command of README and pages on use, with its page."""
    names = ("README.md", "agents/README.md", "docs/quickstart.md", "docs/tasks.md")
    names += ("docs/controls.md", "docs/policies.md", "results/README.md")
    for path in (*(ROOT / name for name in names), *sorted((ROOT / "docs/agents").glob("*.md"))):
        page, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        page = re.sub(r"^```python\n.*?^```\n", "", page, flags=re.DOTALL | re.MULTILINE)
        for block in re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            lines = block.splitlines()
            if lines[0].startswith("$ "):  # with what it prints
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            yield from ((name, line) for line in lines)
        inline = re.findall(r"`((?:python -m|make) [^`]+)`", page)
        yield from ((name, line) for line in inline if "AGENT" not in line)


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
    if words == ["source", ".venv/bin/activate"]:
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
        assert importlib.util.find_spec(module)
        assert not argv


def run(argv: list[str]) -> None:
    """Run what takes no time; plan grids; else parse."""
    assert all((ROOT / word).exists() for word in argv if word.startswith("results/"))
    if argv[0] == "list" or "--dry-run" in argv:
        assert command_line.main(argv) == 0
        return
    with pytest.MonkeyPatch.context() as patch:
        if argv[0] in agents.AGENTS:  # the plan alone, without what it can decide
            patch.setattr(grid, "_say_outlook", lambda *arguments: None)
            assert command_line.main([*argv, "--dry-run"]) == 0
            return
        patch.setattr(Parser, "parse", parse_and_stop)
        with pytest.raises(ParsedError):
            command_line.main(argv)


@pytest.mark.usefixtures("unchecked")
def test_every_command_of_the_pages_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            if "pip install" not in str(error):  # of an extra, which the page names
                pytest.fail(f"{page}: {line}: {error}")
    assert list((tmp_path / "work").rglob("*.*")) == []


def test_a_command_that_is_not_understood_fails() -> None:
    """A flag, a task, a target and a file that do not exist."""
    for line in (
        "python -m reproduce sac mujoco --taks Hopper-v4",
        "python -m agents.sac --tusk Hopper-v4",
        "python -m reproduce evaluate results/published/sac-mujoco/nobody/Hopper-v4/seed-1",
        "make nothing",
    ):
        with pytest.raises((UsageError, AssertionError)):
            understand(shlex.split(line))


def test_the_lines_that_load_a_policy_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand in README, with what it installs."""
    monkeypatch.chdir(ROOT)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(lines, names)
    assert names["observation"].shape == (4,)
    assert names["reward"] == 1.0
    names["env"].close()


@pytest.mark.parametrize("name", re.findall(r"^### `([\w.]+)`$", API, re.MULTILINE))
def test_every_example_gives_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a function uses it, after the page's own beginning."""
    monkeypatch.chdir(ROOT)
    text = API.partition(f"### `{name}`\n")[2].partition("\n##")[0]
    example = EXAMPLE.findall(text)[0]
    assert name.rpartition(".")[2] in example or name == "suite.checkpoint.Policy"
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


def test_a_wrong_example_is_found() -> None:
    """The runner above compares what is printed."""
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "x", None, None)
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None).failed == 1
