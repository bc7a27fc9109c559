"""The page and the terminal table show everything recorded, safely and readably."""

import base64
import hashlib
import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from reproduce.report import frames, tables, words
from reproduce.report import page as report
from reproduce.report.charts import TEMPLATES
from reproduce.report.page import ASSETS
from reproduce.report.tables import COLUMNS
from reproduce.words import MISSING, number
from suite.base.errors import UsageError
from tests.messages import check
from tests.reproduce.report.grids import HOSTILE, Page
from tests.reproduce.report.tables import over, reference, score, write
from tests.reproduce.report.tables import verdict as judged


def terminal(folder: Path, title: str = "") -> str:
    """The terminal's table of a folder, as one without colours shows it."""
    rows, suite = (tables.read_report_table(folder, name) for name in ("verdicts", "suite"))
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(words.verdict_lines(rows, suite, title))
    return shown.get()


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
    return row | fields


def point(task: str, seed: int, **fields: object) -> dict[str, object]:
    """A row of curves.csv."""
    row = {"task": task, "seed": seed, "env_steps": 1000, "mean_return": 2.0, "wall_seconds": 3.0}
    return row | {"rule": "deterministic"} | fields


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    """Links lead to files beside the page, and only its own scripts run."""
    for name in ("curves.svg", "curves.png", "scores.png"):
        (tmp_path / name).write_bytes(b"<svg onload='alert(1)'/>")
    seed: dict[str, object] = {"task": "A", "seed": 1}
    tables = {"throughput": [seed], "scores": [seed | {"score": 2.0}], "curves": [point("A", 1)]}
    write(tmp_path, verdicts=[verdict("A", "above")], runs=[run("A", 1)], **tables)
    (tmp_path / "A" / "seed-1").mkdir(parents=True)
    page = Page(path := report.write_page(tmp_path))
    source, whole = page.source, path.read_text()
    assert all(f"<script>{read()}</script>" in whole for read in ASSETS.values())
    assert page.loaded == []
    files = [link for link in page.links if not link.startswith("#")]
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
    assert policy.startswith("default-src 'none'; img-src data: blob:;")
    assert "script-src 'sha256-" in policy


def test_sources_are_named_and_linked_and_other_rules_told(tmp_path: Path) -> None:
    """Paper and repository of each are one click away, and no address is a script."""
    other = reference("A", [0, 40], "context").assign(source="other", rule="training")
    rows = pd.concat([reference("A", [0, 40]), reference("A", [0, 40], "context"), other])
    sources = {"published": {"name": "People's Zoo", "paper": "https://a.org", "code": ""}}
    sources["another"] = {"name": "Another", "paper": "", "code": "javascript:alert(1)"}
    tables = {"verdicts": [verdict("A", "above")], "curves": [point("A", 1)]}
    write(tmp_path, {"sources": sources}, **tables, reference_curves=rows)
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
        for drawn in itertools.chain(*frames.PALETTES.values(), frames.many_colours(24)):
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
    """Whatever a file holds is shown as characters; a path in a task's name is no link."""
    texts = dict.fromkeys(("error", "log_tail", "command", "commit", "device"), HOSTILE)
    facts: dict[str, object] = {
        name: HOSTILE for name in ("title", "agent", "suite", "source", "budget", "command")
    }
    facts |= {"departures": [HOSTILE], "config": {HOSTILE: HOSTILE}, "env_steps": {HOSTILE: 1}}
    facts |= {"versions": {HOSTILE: [HOSTILE]}, "hardware": {HOSTILE: None}, "seeds": [HOSTILE]}
    facts |= {"sources": {HOSTILE: {"name": HOSTILE, "paper": HOSTILE, "code": HOSTILE}}}
    row = verdict(HOSTILE, HOSTILE, note=HOSTILE, rule=HOSTILE, reference_source=HOSTILE)
    speed: dict[str, object] = {"task": HOSTILE, "device": HOSTILE}
    tables = {"curves": [point(HOSTILE, 1, rule=HOSTILE)], "throughput": [speed]}
    write(tmp_path, facts, verdicts=[row], runs=[run(HOSTILE, 1, "failed", **texts)], **tables)
    page = Page(report.write_page(tmp_path))
    assert set(re.findall(r"<script[^>]*>", page.source)) == {'<script type="application/json">'}
    content = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in content
    assert not re.search("[\u202e\x07\x1b\u2028]", content)
    assert page.text.count("alert(1)") >= 15
    (tmp_path / "seed-1").mkdir()
    (folder := tmp_path / "grid").mkdir()
    write(folder, runs=[run("..", 1), run("javascript:alert(1)", 1)])
    page = Page(report.write_page(folder))
    assert [link for link in page.links if link[0] != "#"] == ["runs.csv", "report.json"]
    assert "javascript:alert(1)" in page.text


@pytest.mark.usefixtures("undrawn")
def test_failures_come_first_and_lead_to_their_logs(tmp_path: Path) -> None:
    """Every failed and diverged run is shown above the verdicts, counted against all runs."""
    lost = [
        run("A", 2, "failed", error="RuntimeError: no", log_tail="line 1\nline 2"),
        run("A", 3, "diverged", error="loss is not finite"),
    ]
    row = verdict("A", "inconclusive", num_failed=1, num_diverged=1)
    other = run("A", 5, "left out")  # it ended, but other code made it
    write(tmp_path, verdicts=[row], runs=[run("A", 1), *lost, run("A", 4, "planned"), other])
    page = Page(report.write_page(tmp_path))
    text, verdicts = page.text, page.text.index("task verdict ours")
    assert "2 of 5 runs failed or diverged" in text
    assert text.index("RuntimeError: no") < verdicts
    assert text.index("loss is not finite") < verdicts
    assert text.index("line 1 line 2") > text.rindex("Failed runs")
    assert {"#failure-1", "#failure-2"} <= set(page.links)
    assert "1 failed, 1 diverged" in text
    assert "1 of 5 runs have not finished" in text
    write(tmp_path, verdicts=[row], runs=[run("A", 1)])
    assert "failed or diverged" not in Page(report.write_page(tmp_path)).text


@pytest.mark.usefixtures("undrawn")
def test_a_task_called_na_is_a_task(tmp_path: Path) -> None:
    """Read from a table it is no missing value."""
    write(tmp_path, verdicts=[verdict("A", "reproduced"), verdict("NA", "below")])
    assert "1 of 2 tasks reproduced, 1 below." in Page(report.write_page(tmp_path)).text
    assert all(task in terminal(tmp_path) for task in ("A ", "NA "))


@pytest.mark.parametrize("name", ["verdicts.csv", "report.json"])
def test_a_damaged_file_of_a_page_is_named(name: str, tmp_path: Path) -> None:
    """Who draws a copied folder learns which file to fetch again."""
    write(tmp_path, verdicts=[verdict("A", "reproduced")])
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=f"unreadable .*{name}: "):
        report.write_page(tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_times_to_a_score_are_of_the_seeds_that_got_there(tmp_path: Path) -> None:
    """The third of three counts as the slowest. Where no seed got there, the page has no part."""
    times = {"task": "A", "share": 0.5, "score": 50.0, "env_steps": 10}
    rows = [times | {"seed": seed, "wall_seconds": 60.0 * seed} for seed in (1, 2)]
    rows.append(times | {"seed": 3, "env_steps": None, "wall_seconds": None})
    text = Page(report.write_page(write(tmp_path, times=rows))).text
    assert "A 50 % 50 2 of 3 2 min 00 s 1 min 00 s to 2 min 00 s" in text
    assert "No run has a score." in text
    write(tmp_path, times=rows[2:])
    assert "Time to a score" not in Page(report.write_page(tmp_path)).text


@pytest.mark.usefixtures("undrawn")
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


def suite(name: str, **fields: object) -> dict[str, object]:
    """A row of suite.csv."""
    row = {"num_tasks": 2, "num_seeds": 10, "difference": -0.02, "ci_low": -0.06}
    row |= {"ci_high": 0.02, "margin": 0.1, "left_out": "Ant: no comparable reference"}
    return row | {"verdict": name} | fields


def test_the_terminals_table_is_the_approved_one(tmp_path: Path) -> None:
    """It has the suite, each task, and what is to be said of it, in 80 columns, codes as text."""
    unknown = dict.fromkeys(("reference_mean", "reference_std", "difference", "ci_low", "ci_high"))
    one = {"note": "the reference has a single run", "ci_low": None, "ci_high": None}
    rows = [
        verdict("Fine", "reproduced"),
        verdict("Short", "below", difference=-2500.0, ci_low=-3000.0, p_below_holm=0.04),
        verdict("Chance", "below", p_below_holm=0.2),
        verdict("Open", "inconclusive", note="14 seeds would settle it", num_failed=1),
        verdict("New", "no reference", **unknown, note="nothing is"),
        verdict(
            "Bare", "no reference", **unknown, score_mean=None, num_failed=5, note="nothing is"
        ),
        verdict("mine:Own-v0", "no reference", **unknown, note="nothing is"),
        verdict("More", "reproduced", exploratory=True, note="by its 3 declared seeds: below"),
        verdict("Best", "above", older_runs="counted"),
        verdict("Flat", "nothing learned", note="it is too early", reference_share=0.07),
        verdict("[red]A\x1b[2J\nB", "strange\x1b[2J", note="\x1b]0;title\x07"),
    ]
    write(tmp_path, verdicts=rows, suite=[suite("below", exploratory=True)])
    check(terminal(tmp_path), "terminal, a suite")
    ratios = {"MountainCar-v0": 0.97, "MountainCarContinuous-v0": 0.72, "Pendulum-v1": None}
    alike = [verdict(task, "shown only", ratio=ratio, **one) for task, ratio in ratios.items()]
    left_out = f"MountainCar-v0: {one['note']}"
    whole = suite("not judged", difference=None, num_tasks=0, left_out=left_out)
    write(tmp_path, verdicts=alike, suite=[whole])
    check(terminal(tmp_path, "a2c, gamma = 0.9"), "terminal, all tasks alike")


def test_the_headline_counts_every_task() -> None:
    """An unknown verdict, tasks not planned, those better than published and of older runs, too."""
    facts = {"title": "sac on s, settings of p", "judged_by": "q"}
    said = []
    for verdicts, planned in (
        (["strange", "below", "below"], ""),
        (["reproduced", "shown only"], "ABCDE"),
        (["shown only"] * 2, ""),
        (["above", "reproduced"], ""),
        ([], ""),
    ):
        rows = [verdict("ABCDE"[place], name) for place, name in enumerate(verdicts)]
        rows = [row | {"older_runs": "counted" * (row["verdict"] == "above")} for row in rows]
        said.append(words.headline(facts | {"suite_tasks": list(planned)}, rows))
    check("\n".join(said))


@pytest.mark.usefixtures("undrawn")
def test_the_suite_comes_first_on_the_page(tmp_path: Path) -> None:
    """Above every task, with what was left out and its marks; one task alone has no suite."""
    more = verdict("A", "reproduced", exploratory=True, note="by its 3 declared seeds: below")
    rows = [more, verdict("B", "inconclusive")]
    write(tmp_path, verdicts=rows, suite=[suite("below", exploratory=True)])
    page = Page(report.write_page(tmp_path)).text
    headline = (
        "the suite below, exploratory, 1 of 2 tasks reproduced, 1 inconclusive, 1 exploratory."
    )
    assert headline in page
    assert page.index("suite: below") < page.index("9,876 ± 512")
    assert "Left out: Ant: no comparable reference." in page
    assert "By its 3 declared seeds: below." in page
    write(tmp_path, suite=[])
    assert "suite" not in terminal(tmp_path)
    assert "suite:" not in Page(report.write_page(tmp_path)).text


def test_charts_over_tasks_need_three_and_say_what_they_leave_out(tmp_path: Path) -> None:
    """D has a single run, and so no share in either; with two tasks left there is no chart."""
    files = over("A", "B", "C") | {"verdicts": pd.concat(map(judged, "ABCD"))}
    files["scores"] = pd.concat([files["scores"], score("D", 10.0)])
    page = Page(report.write_page(write(tmp_path, **files)))
    assert '"reference: 95 % of the resamples"' in (tmp_path / "index.html").read_text()
    assert "Left out: D (nothing learned, no scale, or one seed)." in page.text
    assert "for want of a normalised score, or of two runs of either side: D." in page.text
    alone = files["reference_scores"].query("task != 'B'")
    alone.to_csv(tmp_path / "reference_scores.csv", index=False)
    assert "needs single runs of all these tasks" not in page.text
    assert "needs single runs of all these tasks" in Page(report.write_page(tmp_path)).text
    files["scores"].query("task != 'B'").to_csv(tmp_path / "scores.csv", index=False)
    files["improvement"][2:].to_csv(tmp_path / "improvement.csv", index=False)
    page = Page(report.write_page(tmp_path)).text
    assert "A performance profile needs three tasks" in page
    assert "No probability of improvement: it needs three tasks" in page


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
