"""What stands beside a verdict: every circumstance by its name, and nothing where there is none."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from reproduce.pipeline import gather
from reproduce.plan.make import make_plan
from reproduce.report.page import render
from reproduce.report.words import ABSENT, details, marks, remarks_on, verdict_lines
from tests.reproduce.conftest import make_report, record_run, reseal

TASK = "Reacher-v4"
XEON, EPYC = "Xeon family 6 model 207", "EPYC family 25 model 17"


def record(torch: str = "2.13.0", processor: Any = XEON, **entries: Any) -> dict[str, Any]:
    """Return what a record says of its circumstances."""
    machine = {"cpu": "Xeon", "processor": processor, "gpu": "H100"}
    said = {"dirty": False, "config": {"device": "cpu"}, "versions": {"torch": torch}}
    return {**said, "machine": machine, **entries}


@pytest.mark.parametrize(
    ("settings", "records", "wanted"),
    [
        ({}, [record(), record()], ""),
        ({"gamma": "0.9", "tau": "1"}, [], "settings changed: gamma = 0.9, tau = 1"),
        ({}, [record(), record(dirty=True)], "uncommitted code: in 1 of 2 runs"),
        ({}, [record(dirty=None)], ""),
        ({}, [record(), record("2.12.0")], "versions differ: torch 2.12.0 and 2.13.0"),
        ({}, [record(), record(versions={})], f"versions differ: torch 2.13.0 and {ABSENT}"),
        ({}, [record(), record(processor=EPYC)], f"processors differ: {EPYC} and {XEON}"),
        ({}, [record(), record(processor=None)], ""),  # an older record of the same model
        ({}, [record(), record(processor=f"{XEON} flags ecfefe")], ""),  # of an older one
        ({}, [record(), record(processor=["x"])], f"processors differ: {XEON} and ['x']"),
        ({}, [record(), record(config={"device": "cuda"})], f"processors differ: H100 and {XEON}"),
        ({}, [record("2.12.0\n; \x1b[2J"), record("2.12.0\n; \x1b[2J")], ""),
    ],
)
def test_a_remark_names_what_differs(
    settings: dict[str, str], records: list[dict[str, Any]], wanted: str
) -> None:
    """Values of settings, versions and processors are written out; what is equal is not."""
    assert remarks_on(settings, records) == wanted
    assert marks(wanted) == ([wanted.partition(": ")[0]] if wanted else [])
    assert details(wanted) == ([wanted] if wanted else [])
    suite = f"uncommitted code: in 1 of 3 runs; ; uncommitted code: in 2 of 3 runs; {wanted}"
    assert marks(suite) == [*dict.fromkeys(["uncommitted code", *marks(wanted)])]


@pytest.mark.usefixtures("undrawn")
def test_remarks_stand_on_console_page_and_table(tmp_path: Path) -> None:
    """A verdict with changed settings or mixed machines never looks clean."""
    asked: dict[str, Any] = {"tasks": [TASK], "settings": ["gamma=0.98"], "env_steps": 10_000}
    plan = make_plan("sac", "mujoco-small", runs_dir=tmp_path, seeds=[1, 2, 3], **asked)
    versions = ("2.12.0", "2.13.0", "2.13.0")
    for seed, torch in enumerate(versions, start=1):
        folder = record_run(plan, TASK, seed, {10_000: -5.0 - seed / 100})
        reseal(folder, dirty=seed == 3, versions={"torch": torch})
    verdicts = make_report(plan)
    (wanted,) = verdicts["remarks"]
    assert wanted == (
        "settings changed: gamma = 0.98; uncommitted code: in 1 of 3 runs; "
        "versions differ: torch 2.12.0 and 2.13.0"
    )
    assert pd.read_csv(plan.directory / "verdicts.csv")["remarks"].tolist() == [wanted]
    tables, console = gather(plan), Console(width=100)
    with console.capture() as shown:
        console.print(verdict_lines(tables["verdicts"], tables["suite"], ""))
    for place in (" ".join(shown.get().split()), render(plan.directory)):
        assert "Settings changed: gamma = 0.98." in place
        assert "Versions differ: torch 2.12.0 and 2.13.0." in place
        assert "settings changed, uncommitted code, versions differ" in place
