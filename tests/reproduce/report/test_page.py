"""The page and the terminal table show everything recorded, safely and readably."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console, Group

from reproduce.report import frames, tables, words
from reproduce.report import page as report
from reproduce.report.page import ASSETS, TEMPLATES
from reproduce.report.tables import COLUMNS
from reproduce.words import MISSING, number
from tests.reproduce.report.tables import no_rows, over, reference, score
from tests.reproduce.report.tables import verdict as judged

HOSTILE = '"><script>alert(1)</script>'


class Page(HTMLParser):
    """What a browser would see: tags, links and text."""

    def __init__(self, path: Path) -> None:
        """Parse a page, without the text of its own scripts and what is shown without them."""
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        source = path.read_text(encoding="utf-8")
        for asset in ASSETS.values():
            assert f"<script>{asset()}</script>" in source
            source = source.replace(f"<script>{asset()}</script>", "")
        self.source = re.sub(r'(?<=<script type="application/json">)[^<]*', "", source)
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the tag and everything it refers to."""
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        """Keep text, with white space as a browser shows it."""
        self.text += " ".join([*data.split(), ""])


def terminal(comparison: Path | pd.DataFrame) -> Group:
    """The terminal's table of a folder, as it is read, or of rows without a suite's."""
    if isinstance(comparison, pd.DataFrame):
        return words.verdict_lines(comparison, no_rows("suite"), "")
    rows = pd.DataFrame(tables.verdict_rows(comparison))
    return words.verdict_lines(rows, tables.read_table(comparison, "suite"), "")


def verdict(task: str, name: str, **fields: object) -> dict[str, object]:
    """A row of verdicts.csv."""
    row: dict[str, object] = {"env_steps": 1_000_000, "rule": "deterministic", "num_seeds": 5}
    row |= {"num_failed": 0, "num_diverged": 0, "score_mean": 9876.5, "score_std": 512.3}
    row |= {"reference_source": "published", "reference_mean": 10_000.0, "reference_std": 400.0}
    row |= {"reference_num_runs": 10, "margin": 1000.0, "difference": -123.5, "ci_low": -600.0}
    row |= {"task": task, "verdict": name, "ci_high": 350.0, "ratio": 0.99}
    return dict.fromkeys(COLUMNS["verdicts"]) | row | fields


def run(task: str, seed: int, status: str = "finished", **fields: object) -> dict[str, object]:
    """A row of runs.csv."""
    command = f"python -m agents.sac --task {task} --seeds {seed}"
    row = {"task": task, "seed": seed, "status": status, "env_steps": 1000, "command": command}
    return dict.fromkeys(COLUMNS["runs"]) | row | fields


def point(task: str, seed: int, **fields: object) -> dict[str, object]:
    """A row of curves.csv."""
    row = {"task": task, "seed": seed, "env_steps": 1000, "mean_return": 2.0, "wall_seconds": 3.0}
    return row | {"rule": "deterministic"} | fields


def write(directory: Path, facts: dict[str, object] | None = None, **rows_of: list[dict]) -> Path:
    """Write report.json and the given files of a comparison."""
    standard = {"agent": "sac", "suite": "mujoco", "source": "paper", "judged_by": "published"}
    (directory / "report.json").write_text(json.dumps(standard | (facts or {})), encoding="utf-8")
    for name, rows in rows_of.items():
        table = pd.DataFrame(rows, columns=pd.Index(COLUMNS[name]))
        table.to_csv(directory / f"{name}.csv", index=False)
    return directory


def printed(table: Group, width: int = 200) -> str:
    """A table as a wide terminal without colours shows it."""
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_page_needs_only_the_report(tmp_path: Path) -> None:
    """Every tidy file and every figure is optional, and nothing but the files enters the page."""
    path = report.write_page(write(tmp_path))
    page, content = Page(path), path.read_bytes()
    assert "SAC on mujoco with the settings of 'paper', judged by 'published'" in page.text
    assert "No run has a score." in page.text
    assert report.write_page(tmp_path).read_bytes() == content


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    """Links lead to files beside the page, and only its own scripts run."""
    for name in ("curves.svg", "curves.png", "scores.png"):
        (tmp_path / name).write_bytes(b"<svg onload='alert(1)'/>")
    throughput = dict.fromkeys(COLUMNS["throughput"]) | {"task": "A", "seed": 1}
    score = dict.fromkeys(COLUMNS["scores"]) | {"task": "A", "seed": 1, "score": 2.0}
    tables = {"throughput": [throughput], "scores": [score], "curves": [point("A", 1)]}
    write(tmp_path, verdicts=[verdict("A", "above")], runs=[run("A", 1)], **tables)
    (tmp_path / "A" / "seed-1").mkdir(parents=True)
    page = Page(report.write_page(tmp_path))
    source = page.source
    files = [link for link in page.links if not link.startswith(("data:", "#"))]
    assert "./A/seed-1/" in files
    assert {"verdicts.csv", "runs.csv", "report.json", "curves.svg"} <= set(files)
    assert all((tmp_path / link).exists() for link in files)
    assert not re.search(r"https?:|url\(|@import|<link|<iframe|\bon\w+=", source)
    assert set(re.findall(r"<script[^>]*>", source)) == {'<script type="application/json">'}
    (policy,) = re.findall(r'content="(default-src [^"]*)"', source)
    allowed = [
        base64.b64encode(hashlib.sha256(read().encode()).digest()).decode()
        for read in ASSETS.values()
    ]
    assert re.findall(r"'sha256-([^']*)'", policy) == allowed
    assert policy.startswith("default-src 'none'; img-src data: blob:; media-src 'self' file:;")
    assert "script-src 'sha256-" in policy


def test_sources_are_named_and_linked_and_other_rules_told(tmp_path: Path) -> None:
    """Paper and repository of each are one click away, and no address is a script."""
    other = reference("A", [0, 40], "context").assign(source="other", rule="training")
    rows = pd.concat([reference("A", [0, 40]), reference("A", [0, 40], "context"), other])
    sources = {"published": {"name": "People's Zoo", "paper": "https://a.org", "code": ""}}
    sources["another"] = {"name": "Another", "paper": "", "code": "javascript:alert(1)"}
    tables = {"verdicts": [verdict("A", "above")], "curves": [point("A", 1)]}
    write(tmp_path, {"sources": sources}, **tables, reference_curves=rows.to_dict("records"))
    page = Page(report.write_page(tmp_path))
    assert "People's Zoo (the judge, 5 runs, paper ), Another (5 runs)." in page.text
    assert [link for link in page.links if ":" in link] == ["https://a.org"]
    assert "Measured by another rule, so not on these axes: other (training)." in page.text


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as the accessibility guidelines define it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    """Ratio of two colours, 1 to 21."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_inks_can_be_read_and_lines_be_seen_in_both_themes() -> None:
    """Text has a contrast of 4.5 to page and panel, a line of a chart 3 to the page."""
    style = (TEMPLATES / "page.css").read_text()
    pairs = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", style)
    colours = {name: both for name, *both in pairs}
    for theme in (0, 1):
        grounds = [colours[name][theme] for name in ("page", "panel")]
        for name in ("ink", "faint", "link", "good", "better", "bad", "open"):
            assert min(contrast(colours[name][theme], ground) for ground in grounds) >= 4.5, name
        for drawn in (*frames.OURS, *frames.OTHERS, *frames.JUDGE, *frames.many_colours(24)):
            assert contrast(drawn, grounds[0]) >= 3.0, drawn


def test_pages_may_share_their_scripts(tmp_path: Path) -> None:
    """A page that links to them carries none, and allows those of its own site alone."""
    write(tmp_path, verdicts=[verdict("A", "above")])
    page = report.render(tmp_path, "../../assets/")
    links = [f"../../assets/{name}" for name in ASSETS]
    assert re.findall(r'<script src="([^"]*)"></script>', page) == links
    assert "script-src 'self'" in page
    assert len(page) < 100_000


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Whatever a file holds is shown as characters."""
    texts = dict.fromkeys(("error", "log_tail", "command", "commit", "device"), HOSTILE)
    facts: dict[str, object] = {
        name: HOSTILE for name in ("title", "agent", "suite", "source", "budget", "command")
    }
    facts |= {"departures": [HOSTILE], "config": {HOSTILE: HOSTILE}, "env_steps": {HOSTILE: 1}}
    facts |= {"versions": {HOSTILE: [HOSTILE]}, "hardware": {HOSTILE: None}, "seeds": [HOSTILE]}
    facts |= {"sources": {HOSTILE: {"name": HOSTILE, "paper": HOSTILE, "code": HOSTILE}}}
    row = verdict(HOSTILE, HOSTILE, note=HOSTILE, rule=HOSTILE, reference_source=HOSTILE)
    speed = dict.fromkeys(COLUMNS["throughput"]) | {"task": HOSTILE, "device": HOSTILE}
    tables = {"curves": [point(HOSTILE, 1, rule=HOSTILE)], "throughput": [speed]}
    write(tmp_path, facts, verdicts=[row], runs=[run(HOSTILE, 1, "failed", **texts)], **tables)
    page = Page(report.write_page(tmp_path))
    assert set(re.findall(r"<script[^>]*>", page.source)) == {'<script type="application/json">'}
    assert "<script>alert" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.text.count("alert(1)") >= 15


def test_a_path_in_a_name_is_no_link(tmp_path: Path) -> None:
    """A task cannot lead a reader out of the comparison's directory."""
    (tmp_path / "seed-1").mkdir()
    directory = tmp_path / "comparison"
    directory.mkdir()
    write(directory, runs=[run("..", 1), run("javascript:alert(1)", 1)])
    page = Page(report.write_page(directory))
    assert [link for link in page.links if link[0] != "#"] == ["runs.csv", "report.json"]
    assert "javascript:alert(1)" in page.text


def test_failures_come_first_and_lead_to_their_logs(tmp_path: Path) -> None:
    """Every failed and diverged run is shown above the verdicts, counted against all runs."""
    lost = [
        run("A", 2, "failed", error="RuntimeError: no", log_tail="line 1\nline 2"),
        run("A", 3, "diverged", error="loss is not finite"),
    ]
    row = verdict("A", "inconclusive", num_failed=1, num_diverged=1)
    write(tmp_path, verdicts=[row], runs=[run("A", 1), *lost, run("A", 4, "planned")])
    page = Page(report.write_page(tmp_path))
    text, verdicts = page.text, page.text.index("task verdict ours")
    assert "2 of 4 runs failed or diverged" in text
    assert text.index("RuntimeError: no") < verdicts
    assert text.index("loss is not finite") < verdicts
    assert text.index("line 1 line 2") > text.rindex("Failed runs")
    assert {"#failure-1", "#failure-2"} <= set(page.links)
    assert "1 failed, 1 diverged" in text
    assert "1 of 4 runs have not finished" in text
    write(tmp_path, verdicts=[row], runs=[run("A", 1)])
    assert "failed or diverged" not in Page(report.write_page(tmp_path)).text


def test_no_task_vanishes(tmp_path: Path) -> None:
    """A task that was planned or run and has no verdict is a row that says so, even `NA`."""
    write(
        tmp_path,
        {"env_steps": {"A": 1, "Planned": 1}},
        verdicts=[verdict("A", "reproduced"), verdict("NA", "below")],
        runs=[run("A", 1), run("NA", 1), run("Crashed", 1, "failed")],
    )
    rows = {row["task"]: row["verdict"] for row in tables.verdict_rows(tmp_path)}
    assert rows == {
        "A": "reproduced",
        "NA": "below",
        "Crashed": "not judged",
        "Planned": "not judged",
    }
    text = Page(report.write_page(tmp_path)).text
    assert "1 of 4 tasks reproduced, 1 below, 2 not judged." in text
    assert all(task in printed(terminal(tmp_path)) for task in rows)


FACTS = {"agent": "sac", "suite": "s", "source": "p", "judged_by": "q"}


@pytest.mark.parametrize(
    ("verdicts", "suite_tasks", "said"),
    [
        (["strange", "below", "below"], "", "none of 3 tasks reproduced, 2 below, 1 strange."),
        (["reproduced", "shown only"], "ABCDE", "1 of 5 tasks reproduced, 1 shown only, 3 not pl"),
        (["shown only"] * 2, "", "none of 2 tasks can be judged, 2 shown only."),
        (["above", "reproduced"], "", "2 of 2 tasks reproduced (1 of them above the reference)."),
        ([], "", "no task yet."),
    ],
)
def test_the_headline_counts_every_task(verdicts: list[str], suite_tasks: str, said: str) -> None:
    """An unknown verdict, one that was not planned, and one better than published, too."""
    rows = [verdict("ABCDE"[place], name) for place, name in enumerate(verdicts)]
    headline = words.headline(FACTS | {"suite_tasks": list(suite_tasks)}, rows)
    assert headline.startswith(f"SAC on s with the settings of 'p', judged by 'q': {said}")


def test_configuration_departures_and_commands_are_complete(tmp_path: Path) -> None:
    """Every hyper-parameter is on the page, also one that is empty or nested."""
    facts: dict[str, object] = {
        "config": {"learning_rate": 3e-4, "clip": None, "sizes": [256, 256], "tanh": True},
        "departures": ["Another simulator."],
        "versions": {"torch": "2.9.0"},
        "hardware": {"cpu": "A CPU"},
        "command": "python -m reproduce sac mujoco",
    }
    write(tmp_path, facts, runs=[run("A", 1), run("A", 2)])
    text = Page(report.write_page(tmp_path)).text
    for said in (
        *("learning_rate 0.0003", "clip " + MISSING, "sizes [256, 256]", "tanh true"),
        *("Another simulator.", "torch 2.9.0", "cpu A CPU", "python -m reproduce sac mujoco"),
        *("python -m agents.sac --task A --seeds 1", "python -m agents.sac --task A --seeds 2"),
    ):
        assert said in text


def test_the_terminal_closes_with_what_would_settle_each_open_task(tmp_path: Path) -> None:
    """One row per task; below them one line for each that is not reproduced, and none else."""
    rows = [
        verdict("Fine", "reproduced"),
        verdict("Short", "below", difference=-2500.0, ci_low=-3000.0, ci_high=-2000.0),
        verdict("Open", "inconclusive", note="14 seeds would settle it"),
        verdict("New", "no reference", reference_mean=None, difference=None, note="nothing is"),
        verdict("mine:Own-v0", "no reference", reference_mean=None, difference=None),
    ]
    lines = printed(terminal(write(tmp_path, verdicts=rows))).splitlines()
    row = next(line for line in lines if line.strip().startswith("Fine"))
    for cell in ("9,876 ± 512", "10,000 ± 400", "-124", "reproduced"):
        assert cell in row
    assert lines[lines.index(row) + 1].split() == [
        *("1,000,000", "steps", "5", "seeds", "10", "runs", "[-600,", "350]", "1,000")
    ]
    assert lines[-1] == "Reference: published."
    closing = [line for line in lines if re.match(r"[\w:-]+ [a-z ]+\. ", line)]
    assert [line.split()[0] for line in closing] == ["Short", "Open", "New", "mine:Own-v0"]
    assert "short by 2,500, where 1,000 is allowed" in closing[0]
    assert "14 seeds would settle it" in closing[1]
    assert "Not judged: nothing is. A published score at" in closing[2]
    assert "--baseline AGENT judges it by the runs of another agent." in closing[3]


def test_what_holds_of_several_tasks_is_said_once_and_fits_80_columns() -> None:
    """Names are whole, and no number is missing."""
    names = ("MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
    note, ratios = "the reference has a single run", (0.97, 0.72, None)
    rows = [
        verdict(name, "shown only", note=note, ratio=ratio, ci_low=None, ci_high=None)
        for name, ratio in zip(names, ratios, strict=True)
    ]
    whole = suite("not judged", difference=None, num_tasks=0, left_out=f"{names[0]}: {note}")
    frame = pd.DataFrame(rows)
    text = printed(words.verdict_lines(frame, pd.DataFrame([whole]), "a2c, gamma = 0.9"), 80)
    lines = text.splitlines()
    assert lines[0] == "a2c, gamma = 0.9"
    assert all(any(line.startswith(f" {name} ") for line in lines) for name in names)
    end = next(i for i, line in enumerate(lines) if line.startswith("suite not judged"))
    said = " ".join(line.strip() for line in lines[end:])
    assert said.count(f"all tasks shown only. Shown, not judged: {note}.") == 1
    assert said.count("With the zero of the scale at 0") == 1
    assert f"ours is at 0.97 on {names[0]}, 0.72 on {names[1]}." in said
    assert MISSING not in said


def suite(name: str, **fields: object) -> dict[str, object]:
    """A row of suite.csv."""
    row = {"num_tasks": 2, "num_seeds": 10, "difference": -0.02, "ci_low": -0.06}
    row |= {"ci_high": 0.02, "margin": 0.1, "left_out": "Ant: no comparable reference"}
    return dict.fromkeys(COLUMNS["suite"]) | row | {"verdict": name} | fields


def test_the_suite_comes_first_in_table_and_page(tmp_path: Path) -> None:
    """Above every task, with what was left out; a plan of one task has no such row."""
    rows = [verdict("A", "reproduced"), verdict("B", "inconclusive")]
    write(tmp_path, verdicts=rows, suite=[suite("reproduced")])
    lines = printed(terminal(tmp_path)).splitlines()
    places = [
        next(i for i, line in enumerate(lines) if word in line) for word in ("suite of 2", "A ")
    ]
    assert places == sorted(places)
    assert "-0.020  reproduced" in lines[places[0]]
    assert lines[places[0] + 1].split() == ["[-0.060,", "0.020]", "0.1"]
    assert any(line.startswith("suite reproduced. Mean over 2 tasks") for line in lines)
    page = Page(report.write_page(tmp_path)).text
    assert "the suite reproduced, 1 of 2 tasks reproduced, 1 inconclusive" in page
    assert page.index("suite: reproduced") < page.index("9,876 ± 512")
    assert "Left out: Ant: no comparable reference." in page
    write(tmp_path, suite=[])
    assert "suite" not in printed(terminal(tmp_path))
    assert "suite:" not in Page(report.write_page(tmp_path)).text


def test_charts_over_tasks_need_three_and_say_what_they_leave_out(tmp_path: Path) -> None:
    """D has a single run, and so no share in either; with two tasks left there is no chart."""
    files = over("A", "B", "C") | {"verdicts": pd.concat(map(judged, "ABCD"))}
    files["scores"] = pd.concat([files["scores"], score("D", 10.0)])
    for name, table in files.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    page = Page(report.write_page(write(tmp_path)))
    assert '"reference: 95 % of the resamples"' in (tmp_path / "index.html").read_text()
    assert "Left out: D (no scale, or one seed)." in page.text
    assert "Left out, for want of two runs of either side: D." in page.text
    alone = files["reference_scores"].query("task != 'B'")
    alone.to_csv(tmp_path / "reference_scores.csv", index=False)
    assert "needs single runs of all these tasks" not in page.text
    assert "needs single runs of all these tasks" in Page(report.write_page(tmp_path)).text
    files["scores"].query("task != 'B'").to_csv(tmp_path / "scores.csv", index=False)
    files["improvement"][2:].to_csv(tmp_path / "improvement.csv", index=False)
    page = Page(report.write_page(tmp_path)).text
    assert "A performance profile needs three tasks" in page
    assert "No probability of improvement: it needs three tasks" in page


def test_an_exploratory_verdict_says_so_wherever_it_stands(tmp_path: Path) -> None:
    """In the row, the closing lines, the headline and the page; an older file has none."""
    row = verdict("A", "reproduced", exploratory=True, note="by its 3 declared seeds: below")
    write(tmp_path, verdicts=[row], suite=[suite("below", exploratory=True)])
    text = printed(terminal(tmp_path))
    assert text.count("reproduced, exploratory") == 2
    assert text.count("below, exploratory") == 2
    page = Page(report.write_page(tmp_path)).text
    assert "the suite below, exploratory, 1 of 1 task reproduced, 1 exploratory." in page
    assert "By its 3 declared seeds: below." in page
    assert "exploratory" not in printed(
        terminal(pd.DataFrame([verdict("A", "reproduced", exploratory=float("nan"))]))
    )


def test_a_task_that_is_below_by_chance_among_many_is_told_apart() -> None:
    """What Holm's adjustment leaves is an alarm; what it does not leave, says so."""
    row = verdict("A", "below", p_below_holm=0.2)
    assert "exit status does not count it" in words.explain(row)
    assert "exit status" not in words.explain(row | {"p_below_holm": 0.04})


def test_the_terminal_prints_names_literally(tmp_path: Path) -> None:
    """Neither an escape sequence nor console markup in a name does anything."""
    row = verdict("[red]A\x1b[2J\nB", "strange\x1b[2J", note="\x1b]0;title\x07")
    text = printed(terminal(pd.DataFrame([row])))
    assert "\x1b" not in text
    assert text.count("[red]A\\x1b[2J\\nB") == 2, "in its row and in its closing line"


def test_numbers_are_short() -> None:
    """Three significant digits, thousands separated, nothing invented for a missing one."""
    values = (1_234_567.8, 123.4, 12.345, -0.00012345, 3.0, 0, float("inf"))
    texts = ["1,234,568", "123", "12.3", "-0.000123", "3", "0", "infinite"]
    assert [number(value) for value in values] == texts
    assert [number(value) for value in (float("nan"), None, pd.NA)] == [MISSING] * 3


def test_a_spread_decides_the_digits() -> None:
    """A mean has no more digits than its spread can carry, and an interval none than its width."""
    assert words.mean_and_spread(9876.54, 512.3, 5) == "9,877 ± 512 (5)"
    assert words.mean_and_spread(-4.3141, 0.2236, 3, "source") == "-4.31 ± 0.22 (3, source)"
    assert words.mean_and_spread(12.345, None, 1) == "12.3 (1)"
    assert words.mean_and_spread(None, None, 0) == MISSING
    assert words.with_interval(0.98, 0.93, 1.02) == "0.980 [0.930, 1.020]"
    assert words.with_interval(0.579, 0.579, 0.579).startswith("0.579 ")
    assert words.mean_and_spread(0.579, 0.0, 3) == "0.579 ± 0 (3)"
    assert words.with_interval(-123.4, None, None) == "-123"
